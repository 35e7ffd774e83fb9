"""What is read further back than a state keeps: values, optional inputs and last values as memories
of one token each."""

from __future__ import annotations

import numpy as np
import pytest
from checked import check

from lacc.diagnostics import LaccError
from lacc.driver import analyse, compile, describe, emit, load
from lacc.ir.memories import one_token_memories

HEAD = """variant x
dim K = 4, V = 3, W = 5
input q, k : [K]
input v : [V]
"""
MATRIX = "state S : [K, V]\noutput o : [V]\n"
ALL = {"chunk", "parallel", "recurrent"}

CAUSAL = {
    "a value of three tokens ago": HEAD
    + "state u : [K] = 0.25\noutput o : [K]\nu[t] = tanh(k) * sum(v)\no = u[t-3] + u[t-1] * u[t]",
    "a window of values": HEAD
    + MATRIX
    + "state u : [K]\nstate c : [V]\nu[t] = k + k[t-1]\nc[t] = silu(v)\n"
    "S[t] = S[t-1] + u[t] @ c[t].T - u[t-W] @ c[t-W].T\no = S[t].T @ q",
    "a window of inputs": HEAD + MATRIX + "S[t] = S[t-1] + k @ v.T - k[t-W] @ v[t-W].T\n"
    "o = S[t].T @ q",
    "two tokens in one update": HEAD
    + MATRIX
    + "input g : scalar where g <= 0\ninput λ : scalar where 0 < λ < 1\n"
    "input θ : [2]\nstate r : [K]\n"
    "α = exp(g)\nr[t] = rotate(k, θ)\n"
    "S[t] = α * (S[t-1] + (1 - λ) * r[t-1] @ v[t-1].T) + λ * r[t] @ v.T\no = S[t].T @ q",
    "what was read a token ago": HEAD
    + MATRIX
    + "state u : [V]\nS[t] = 0.9 * S[t-1] + k @ v.T\nu[t] = S[t].T @ q\no = u[t] - 0.5 * u[t-1]",
    "what was written by a delta rule": HEAD
    + MATRIX
    + "state u : [V]\nkn = normalize(k)\nu[t] = v - S[t-1].T @ kn\nS[t] = S[t-1] + kn @ u[t].T\n"
    "o = S[t].T @ q + u[t-2]",
    "a gate of the token before": HEAD
    + MATRIX
    + "state a : [K]\na[t] = sigmoid(k)\nS[t] = diag(a[t-1]) @ S[t-1] + k @ v.T\no = S[t].T @ q",
    "a matrix": HEAD
    + MATRIX
    + "state X : [K, V]\nX[t] = k @ v.T\nS[t] = 0.5 * S[t-1] + X[t-2]\no = S[t].T @ q",
    "a state of the token before": HEAD
    + MATRIX
    + "state P : [K, V]\nP[t] = S[t-1]\nS[t] = 0.5 * S[t-1] + k @ v.T\no = P[t-2].T @ q",
    "optional inputs": HEAD
    + "input d : scalar = sum(k) * 0.5\ninput e : [K] = 0\ninput g : scalar = 1\n"
    "state h : [K]\noutput o : [K]\nh[t] = 0.5 * h[t-1] + d[t-1] * e[t-3] + g[t-2] * k\n"
    "o = h[t] + d * e",
    "what no token changes": HEAD
    + "param w : [K]\nstate u : [K] = w / 2\noutput o : [K]\nu[t] = w\no = u[t-2] * q",
    "axes of one": "variant x\ndim K = 4\ninput k : [K]\ninput j : [1]\n"
    "state u : [1, K]\nstate c : [1]\n"
    "output o : [K]\nu[t] = tanh(k).T\nc[t] = j * j\no = u[t-2].T * sum(c[t-1])",
    "levels": "variant x\ndim K = 4\ninput k : [K] per group\ninput d : scalar per layer = 0.5\n"
    "param w : [K] per group = 0.5\nstate u : [K] per group = w\nstate c : scalar per layer\n"
    "output o : [K]\nu[t] = k * k\nc[t] = d + 1\no = u[t-2] * c[t-1] * d[t-1] * (head + 1)",
}

ENDS = {
    "the last value": HEAD + "state u : [K]\noutput o : [K]\nu[t] = tanh(k)\no = u[T] + q",
    "the last value and the one before": HEAD
    + "state u : [K] = 2\noutput o : [K]\nu[t] = tanh(k)\no = u[T] * u[t-2]",
    "the last of a backward state": HEAD + MATRIX + "S[t] = 0.9 * S[t+1] + k @ v.T\no = S[T].T @ q",
    "a delayed read of a backward state": HEAD
    + MATRIX
    + "state u : [V]\nS[t] = 0.9 * S[t+1] + k @ v.T\nu[t] = S[t].T @ q\no = u[t-1] + u[T]",
    "a value of a backward state": HEAD
    + MATRIX
    + "state u : [V]\nu[t] = tanh(v)\nS[t] = 0.9 * S[t+1] + k @ u[t-2].T\no = S[t].T @ q",
    "a last default": HEAD
    + "input a : [K] = 2 * k\nstate u : [K]\noutput o : [K]\nu[t] = a * q\no = a[t-1] + u[T]",
}

CIRCLES = {
    "two values": HEAD + "state a, b : [K] = 0.5\noutput o : [K]\na[t] = 0.5 * b[t-1] + k\n"
    "b[t] = tanh(a[t-2]) + a[t]\no = a[t] * b[t]",
    "a value and a state": HEAD
    + MATRIX
    + "state u : [V]\nu[t] = tanh(S[t-1].T @ k)\nS[t] = 0.5 * S[t-1] + k @ u[t-1].T + q @ v.T\n"
    "o = S[t].T @ q",
}


@pytest.mark.parametrize("text", CAUSAL.values(), ids=CAUSAL)
def test_a_delay_has_all_modes(text: str) -> None:
    check(text, ALL)


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_last_value_is_read_after_its_pass(text: str) -> None:
    check(text, {"chunk", "parallel"})


@pytest.mark.parametrize("text", CIRCLES.values(), ids=CIRCLES)
def test_values_in_a_circle_through_delays_are_states(text: str) -> None:
    check(text, {"recurrent"})


def test_a_long_delay_of_an_input_takes_no_memories() -> None:
    spec = load(CAUSAL["a window of inputs"], {"W": 64})
    assert one_token_memories(spec) == (spec, {}, {})
    assert analyse(spec).delays == {"k": 64, "v": 64}


def test_a_chain_of_memories_makes_one_field() -> None:
    plain, chains, _ = one_token_memories(load(CAUSAL["a value of three tokens ago"], {}))
    assert [s.name for s in plain.states] == ["u", "u@2", "u@3"]
    assert chains == {"u_past": ("u@3", "u@2", "u")}


def test_a_value_that_nothing_reads_back_is_no_state() -> None:
    text = HEAD + MATRIX + "state u : [K]\nu[t] = tanh(k)\nS[t] = S[t-1] + u[t] @ v.T\n"
    plain, chains, _ = one_token_memories(load(text + "o = S[t].T @ u[t]", {}))
    assert [s.name for s in plain.states] == ["S"]
    assert chains == {}


def test_the_field_holds_the_values_most_recent_last() -> None:
    kernel = compile(load(CAUSAL["a value of three tokens ago"], {}), "numpy", dtype="float64")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 5, 1, n)) for n in (4, 4, 3))
    _, state = kernel(q, k, v)
    u = np.tanh(k) * v.sum(-1, keepdims=True)
    assert np.allclose(state.u_past[0, 0], u[0, 2:, 0])
    _, early = kernel(q[:, :1], k[:, :1], v[:, :1])
    assert np.allclose(early.u_past[0, 0, :2], 0.25)


def test_a_report_speaks_of_what_the_spec_reads() -> None:
    said = describe(load(CAUSAL["a value of three tokens ago"], {}))
    assert "@2" not in said and "@3" not in said
    assert "update      u[t] = tanh(k) * sum(v)" in said
    assert "reads u of 3 tokens ago" in said


def test_a_chunk_beyond_a_bound_that_a_memory_gives_is_refused_with_its_term() -> None:
    text = (
        "variant x\ndim K = 4, V = 3\ninput k, q : [K]\ninput v, d : [V]\nstate u : [V]\n"
        "state S : [K, V]\noutput o : [V]\nn = normalize(k)\nu[t] = d\n"
        "S[t] = (I - n @ n.T) @ S[t-1] @ diag(exp(-sigmoid(u[t-2]))) + n @ v.T\no = S[t].T @ q"
    )
    assert compile(text, "numpy", chunk=80).modes[0] == "chunk"
    with pytest.raises(LaccError, match="is bounded for 80 tokens") as refused:
        compile(text, "numpy", chunk=200)
    (said,) = refused.value.diagnostics
    assert said.code == "LA0601" and said.span is not None
    assert said.span.words == "exp(-sigmoid(u[t-2]))"
    shown = emit(text, "recurrence")
    assert "u[t-2]: none" in shown and "@" not in shown
