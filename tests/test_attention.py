"""Attention over time on the NumPy target: its kernels against the definition and finite
differences, and specs that attend in every way against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checked import check
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc.diagnostics import LaccError
from lacc.driver import analyse, compile, load
from lacc.tile.attention_kernels import Sight, attend, attend_pull
from lacc.tile.attention_pass import AttentionPass

Array = Any


def defined(q: Array, k: Array, v: Array, sink: Array | None, sight: Sight) -> Array:
    """Σ_j softmax_j(q·k_j) v_j, a query at a time."""
    o = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, t in np.ndindex(q.shape[:3]):
        here = sight.past + t
        first = max(sight.past - sight.position[b], 0)
        if sight.window is not None:
            first = max(first, here + 1 - sight.window)
        logits = k[b, h, first : here + 1] @ q[b, h, t]
        every = logits if sink is None else np.append(logits, sink[b, h, t])
        shares = np.exp(logits - every.max())
        o[b, h, t] = shares @ v[b, h, first : here + 1] / np.exp(every - every.max()).sum()
    return o


def arrays(T: int, past: int, sunk: bool, seed: int = 0) -> tuple[Array, Array, Array, Any]:
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, 2, T, 3)), rng.normal(size=(2, 2, past + T, 3))
    sink = rng.normal(size=(2, 2, T)) if sunk else None
    return q, k, rng.normal(size=(2, 2, past + T, 4)), sink


@settings(max_examples=60, deadline=None)
@given(
    T=st.integers(0, 20),
    past=st.integers(0, 6),
    window=st.none() | st.integers(1, 30),
    rows=st.integers(1, 24),
    width=st.integers(1, 24),
    sunk=st.booleans(),
    seen=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
def test_blocks_of_any_size_give_what_is_defined(
    T: int, past: int, window: int | None, rows: int, width: int, sunk: bool, seen: tuple[int, int]
) -> None:
    given_ = arrays(T, past, sunk)
    sight = Sight(past, window, np.array(seen), rows, width)
    o, m, l = attend(*given_, sight)
    np.testing.assert_allclose(o, defined(*given_, sight), rtol=1e-12, atol=1e-14)
    ct = np.random.default_rng(1).normal(size=o.shape)
    whole = Sight(past, window, np.array(seen), T + 1, T + past + 1)
    for ours, theirs in zip(
        attend_pull(ct, (o, m, l), *given_, sight),
        attend_pull(ct, attend(*given_, whole), *given_, whole),
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("window", [None, 4])
def test_cotangents_are_those_of_central_differences(window: int | None) -> None:
    sight = Sight(3, window, np.array([2, 3]), 4, 5)
    given_ = arrays(9, 3, True)
    attended = attend(*given_, sight)
    rng = np.random.default_rng(2)
    ct = rng.normal(size=attended[0].shape)
    pulled = attend_pull(ct, attended, *given_, sight)
    for n, gradient in enumerate(pulled):
        step = 1e-6 * rng.normal(size=given_[n].shape)
        ends = []
        for sign in (1, -1):
            moved = [x + sign * step if i == n else x for i, x in enumerate(given_)]
            ends.append((attend(*moved, sight)[0] * ct).sum())
        np.testing.assert_allclose((ends[0] - ends[1]) / 2, (gradient * step).sum(), rtol=1e-6)


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_logits_are_finite(size: float, dtype: Any) -> None:
    q, k, v, sink = (x.astype(dtype) for x in arrays(12, 0, True))
    q[..., 0], k[..., 0] = abs(size) ** 0.5, np.copysign(abs(size) ** 0.5, size)
    sight = Sight(0, None, np.zeros(2, np.int64), 4, 4)
    attended = attend(q, k, v, sink, sight)
    pulled = attend_pull(v, attended, q, k, v, sink, sight)
    assert all(np.isfinite(x).all() for x in (*attended, *pulled))
    exact = defined(*(x.astype(np.float64) for x in (q, k, v, sink)), sight)
    np.testing.assert_allclose(attended[0], exact, atol=5e-3 if dtype == np.float32 else 1e-11)


def test_what_sees_nothing_gives_nothing() -> None:
    q, k, v, _ = arrays(3, 0, False)
    k[:, :, 0] = -np.inf
    q = abs(q)
    sight = Sight(0, None, np.zeros(2, np.int64), 2, 2)
    o, *_ = attend(q, k, v, None, sight)
    assert (o[:, :, 0] == 0).all() and np.isfinite(o).all()


def test_what_comes_later_changes_no_bit() -> None:
    q, k, v, sink = arrays(20, 0, True)
    sight = Sight(0, None, np.zeros(2, np.int64), 8, 5)
    before, *_ = attend(q, k, v, sink, sight)
    k[:, :, 11:], v[:, :, 11:] = 1e3, -1e3
    after, *_ = attend(q, k, v, sink, sight)
    assert before[:, :, :11].tobytes() == after[:, :, :11].tobytes()


# ---- specs

HEAD = """variant x
dim K = 4, V = 3
input q, k : [K]
input v : [V]
input g : scalar where g <= 0
"""
H_STATE = "state h : [K] = 0.5\noutput o : [V]\nh[t] = 0.9 * h[t-1] + k\n"
S_STATE = "state S : [K, V]\noutput o : [V]\nS[t] = 0.5 * S[t-1] + k @ v.T\n"
CAUSAL = {
    "what was attended to": HEAD + "output o : [V]\na = attend(q, k, v)\n"
    "o = attend(q, k, a, window=4) + attend(q, k, v * 2)",
    "a state of what was attended to": HEAD
    + "state S : [K, V]\noutput o : [V]\na = attend(q, k, v)\nS[t] = exp(g) * S[t-1] + k @ a.T\n"
    "o = S[t].T @ q + attend(S[t] @ v, k, a, window=2)",
    "states as keys": HEAD + H_STATE + "o = attend(q, h[t], v) + attend(h[t], k, v, window=3)",
    "states as keys of short windows": HEAD
    + H_STATE
    + "o = attend(q, h[t], v, window=3) + attend(h[t-1], h[t], v, window=1)"
    " + attend(q, h[t], v, window=2)",
    "a state read by what was attended to": HEAD
    + S_STATE
    + "o = S[t].T @ attend(q, k, k, window=3) + attend(q, k, S[t].T @ k)",
    "delayed and attended to": HEAD
    + "output o : [V]\no = attend(q, k[t-2], v[t-1], window=3) + attend(q, k, v, window=2)"
    " + v[t-4] + attend(q, k, v[t-1])",
    "a value, delayed too": HEAD + "state u : [V]\noutput o : [V]\nu[t] = tanh(v)\n"
    "o = attend(q, k, u[t], window=3) + u[t-1] + u[t-4]",
    "all of a value, delayed too": HEAD
    + "state u : [V]\noutput o : [V]\nu[t] = tanh(v)\no = attend(q, k, u[t]) + u[t-1] + u[t-4]",
    "optional inputs": HEAD + "input w : [K] = 2 * k\noutput o : [V]\n"
    "o = attend(q, w, v) + attend(w[t-1], w, v, window=2)",
    "a default that attends": HEAD
    + "input w : [V] = attend(q, k, v, window=3)\noutput o : [V]\no = w * v",
    "axes of one": "variant x\ninput q, k : [1]\ninput v : [1]\ninput s : scalar\n"
    "param p : [1] = 1\noutput o : [1]\noutput r : scalar\n"
    "o = attend(q, k + p, v, sink=s) + attend(q, k, v, window=2)\nr = sum(o)",
    "params": HEAD + "param w : [K] per head\nparam z : scalar\noutput o : [V]\n"
    "o = attend(q * w, k, v, sink=z) + attend(w, w, v, sink=z * g)",
    "shared keys and values": "variant x\ndim K = 4\ninput q : [K]\ninput k : [K] per group\n"
    "input v : [K] per layer\noutput o : [K]\n"
    "o = attend(q, k * 2, v + 1, window=5) + attend(q, k, v)",
    "a stabilized state": HEAD + "input i : scalar\nstate S : [K, V] (stabilized)\noutput o : [V]\n"
    "S[t] = exp(g) * S[t-1] + exp(i) * k @ v.T\no = attend(q, k, S[t].T @ q / 9, window=5) + v",
    "a bias of positions": HEAD
    + "output o : [V]\no = attend(concat(q, head + 1), concat(k, 0.1 * t), v)",
}
NOT_CAUSAL = {
    "backward states as keys": HEAD + "state r : [K]\noutput o : [V]\nr[t] = 0.9 * r[t+1] + k\n"
    "o = attend(q, r[t], v) + attend(q, r[t], v, window=4)",
    "last states": HEAD + S_STATE + "o = attend(q, k, S[T].T @ k) + attend(S[T] @ v, k, v)",
}
BY_TOKEN = {
    "within a recurrence": HEAD + "state h : [K] = 0.3\noutput o : [K]\no = h[t]\n"
    "h[t] = tanh(h[t-1] + attend(h[t-1], h[t-1] + k, k, window=3) + attend(q, h[t-1], k))",
}


@pytest.mark.parametrize("text", CAUSAL.values(), ids=CAUSAL)
def test_causal_specs(text: str) -> None:
    check(text, {"chunk", "parallel", "recurrent"})


@pytest.mark.parametrize("text", NOT_CAUSAL.values(), ids=NOT_CAUSAL)
def test_specs_that_wait_for_the_end(text: str) -> None:
    assert check(text, {"chunk", "parallel"}).modes == ("chunk", "parallel")


@pytest.mark.parametrize("text", BY_TOKEN.values(), ids=BY_TOKEN)
def test_specs_that_run_token_by_token(text: str) -> None:
    assert check(text, {"recurrent"}).modes == ("recurrent",)
    obstacle = analyse(load(text, {})).modes["chunk"]
    assert obstacle is not None and "of the state" in obstacle.reason


def test_what_is_there_is_not_stored_again() -> None:
    text = HEAD + "output o : [V]\no = attend(q, k, v) + attend(q, k, attend(q, k, v), window=2)"
    passes = analyse(load(text, {})).passes
    assert [isinstance(p, AttentionPass) for p in passes] == [True, True, False]
    assert [str(p) for p in passes[:2]] == [
        "0.0 = attend(q, k, v)",
        "1.0 = attend(q, k, 0.0, window=2)",
    ]


def test_a_window_costs_no_more_in_a_longer_sequence() -> None:
    text = HEAD + "output o : [V]\no = attend(q, k, v, window=16)"
    plan, dims = compile(text, "numpy").plan, {"K": 4, "V": 3}
    assert plan.by_chunk(64, 8192, 8, dims) < 2.1 * plan.by_chunk(64, 4096, 8, dims)
    plan = compile(text.replace(", window=16", ""), "numpy").plan
    assert plan.by_chunk(64, 8192, 8, dims) > 2.5 * plan.by_chunk(64, 4096, 8, dims)


def test_what_grows_is_not_updated_in_place() -> None:
    kernel = compile(HEAD + "output o : [V]\no = attend(q, k, v) + g", "numpy")
    q, k = np.ones((2, 1, 2, 4))
    _, state = kernel.step(q, k, np.ones((1, 2, 3)), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="out: k_past grows with every token"):
        kernel.step(q, k, np.ones((1, 2, 3)), np.zeros((1, 2)), state, out=state)


def test_fields_of_different_lengths_are_refused() -> None:
    kernel = compile(HEAD + "output o : [V]\no = attend(q, k, v) + g", "numpy")
    q, k = np.ones((2, 1, 5, 2, 4))
    v, g = np.ones((1, 5, 2, 3)), np.zeros((1, 5, 2))
    _, state = kernel(q, k, v, g)
    with pytest.raises(ValueError, match=r"v_past: expected 5 rows, got 4"):
        kernel(q, k, v, g, initial_state=state._replace(v_past=state.v_past[:, :, 1:]))


def test_a_stabilized_state_that_is_attended_to_is_refused() -> None:
    text = HEAD + H_STATE.replace("[K] =", "[K] (stabilized) =") + "o = attend(q, h[t], v)"
    with pytest.raises(LaccError, match=r"attends to the \(stabilized\) state h itself"):
        compile(text, "numpy")


def test_a_promise_that_attends_is_refused() -> None:
    text = HEAD.replace("[V]", "[V] where sum(attend(v, v, v)) <= 9") + "output o : [V]\no = v"
    with pytest.raises(LaccError, match="the promise of v attends to other tokens"):
        compile(text, "numpy")
