"""Specs that no paper has: each a kind of fault that once was, with what the NumPy target makes of
it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from checked import check

from lacc.diagnostics import LaccError
from lacc.driver import analyse, compile, load
from lacc.verify.inputs import REGIMES, Sizes, draw

SPECS = Path(__file__).parent / "specs"
HEAD = """variant x
dim K = 4, V = 3
input q, k : [K]
input v : [V]
input β : scalar where 0 < β < 1
kn = normalize(k)
"""
ONE_K = "variant x\ndim K = 4\ninput q, k : [K]\n"
MATRIX = "state S : [K, V]\noutput o : [V]\n"
SQUARE = "state S : [K, K]\noutput o : [K]\nS[t] = S[t-1] + k @ q.T\n"
DELTA = "S[t] = S[t-1] - β * kn @ (kn.T @ S[t-1]) + "

CHUNKED = {
    "an erase of a vector": HEAD
    + "state z : [K]\noutput o : scalar\nz[t] = z[t-1] - β * kn * (kn.T @ z[t-1]) + k\n"
    "o = z[t].T @ q",
    "an erase of a vector, shown": HEAD
    + "state z : [K]\noutput o : [K]\nz[t] = z[t-1] - β * kn * (kn.T @ z[t-1]) + kn\no = z[t] * q",
    "an erase, shown": HEAD + MATRIX + DELTA + "β * kn @ v.T + k @ v.T\no = tanh(S[t]).T @ q",
    "a mean of the state": ONE_K + "state h : [K]\noutput o : [K]\n"
    "h[t] = 0.5 * h[t-1] + 0.5 * mean(h[t-1]) + k\no = h[t] * q",
    "an erase on the right": HEAD + "state S : [V, K]\noutput o : [V]\nu = v - S[t-1] @ kn\n"
    "S[t] = 0.9 * S[t-1] + β * u @ kn.T\no = S[t] @ q + u",
    "an erase on the right, decayed": HEAD
    + MATRIX
    + "S[t] = S[t-1] @ diag(sigmoid(v)) @ (I - β * normalize(v) @ normalize(v).T) + k @ v.T\n"
    "o = S[t].T @ q",
    "a query that waits": ONE_K + SQUARE + "o = S[t] @ (S[T] @ k)",
    "a transposed query that waits": ONE_K + SQUARE + "o = S[t].T @ S[T].T @ k",
    "a query from the other direction": ONE_K
    + SQUARE
    + "state R : [K, K]\nR[t] = 0.5 * R[t+1] + k @ k.T\no = S[t-1] @ (R[t] @ k)",
    "slots read through a softmax": HEAD
    + "dim M = 5\ninput α : [M] where 0 < α < 1\nstate A : [M, K]\nstate U : [M, V]\n"
    "output o : [V]\nA[t] = diag(α) @ A[t-1] + (1 - α) @ k.T\n"
    "U[t] = diag(α) @ U[t-1] + (1 - α) @ v.T\no = U[t].T @ softmax(A[t] @ q)",
    "choices between numbers": ONE_K
    + "input r : scalar where 0 <= r <= 1\nparam s : scalar\nstate c : scalar\n"
    "state S : [K, K]\noutput o : [K]\nc[t] = where(r > 0.5, 0, c[t-1] + 1)\n"
    "α = where(r > 0.7, 0, exp(-1 / (1 + c[t-1])))\n"
    "S[t] = α * S[t-1] + where(q > 0, 1, -1) @ k.T\n"
    "o = where(s > 0, 2, 3) * S[t] @ where(k > 0, 1, 0)",
    "an output read with another": HEAD
    + MATRIX
    + "output r : [K]\nS[t] = 0.9 * S[t-1] + k @ v.T\no = S[t].T @ q\n"
    "r = S[t-1] @ (o / (1 + sum(o * o)))",
    "a chain of reads": ONE_K
    + SQUARE
    + "state R : [K, K]\nR[t] = 0.8 * R[t-1] + k @ k.T\no = S[t] @ R[t] @ S[t-1].T @ q",
    "defaults from defaults": HEAD
    + "input g : scalar = 0 where g <= 0\ninput h : scalar = g / 2 where h <= 0\n"
    "input a : [K] = k * exp(h)\nparam w : [K] = 1\nparam u : [K] = w * 2\n"
    + MATRIX
    + "S[t] = diag(exp(g + h) * sigmoid(u)) @ S[t-1] + (a * w) @ v.T\no = S[t].T @ q",
    "a start from defaults": ONE_K
    + "param w : scalar per layer = 0.5\nparam b : [K] per group = w\nstate z : [K] = b + w\n"
    "output o : scalar\nz[t] = 0.9 * z[t-1] + k\no = z[t].T @ q",
    "solves everywhere": HEAD + "input w : [K] = solve(k @ k.T + I, q)\n"
    "param A : [K, K] where sum(solve(A + 9 * I, A)) <= 1e6\n"
    "param B : [K, V]\nstate S : [K, V] = solve(A @ A.T + I, B)\noutput o : [K, V]\n"
    "S[t] = solve(A + 9 * I, β * k) @ v.T + 0.5 * S[t-1]\n"
    "o = solve(S[t] @ S[t-1].T + q @ q.T + 9 * I, S[t]) + w @ v.T",
    "axes of one": HEAD
    + "input a, b : [1]\nstate S : [1, V]\nstate R : [1, 1]\nstate z : [1] = 2\noutput o : [V]\n"
    "output p : [1]\nS[t] = 0.9 * (I - β * a @ a.T / (1 + a.T @ a)) @ S[t-1] + a @ v.T\n"
    "R[t] = 0.9 * R[t-1] + a @ b.T\nz[t] = sigmoid(a) * z[t-1] + b[t-1]\no = S[t].T @ a\n"
    "p = R[t] @ a + softmax(z[t]) + roll(z[t], 1)"
    " + solve(R[t] * R[t] + 1, b)",
    "a rotation of one pair": "variant x\ninput x : [3]\ninput θ : [1]\nstate h : [3]\n"
    "output o : [3]\nh[t] = 0.5 * h[t-1] + rotate(x, θ)\no = h[t]",
    "angles of a dim of their own": "variant x\ndim K = 4, A = 2\ninput k : [K]\ninput a : [A]\n"
    "state θ : [A]\nstate h : [K]\noutput o : [K]\nθ[t] = θ[t-1] + a\n"
    "h[t] = 0.5 * h[t-1] + rotate(k, θ[t])\no = h[t]",
    "dims named as time and variables": "variant x\ndim s = 4, C = 3, n = 2, range = 2 * n\n"
    "input q, k : [s]\ninput v : [C]\ninput g : [s] where g <= 0\ninput w : [range]\n"
    "state S : [s, C]\nstate z : [range]\noutput o : [C]\noutput p : [range]\n"
    "S[t] = diag(exp(g)) @ S[t-1] + k @ v.T\nz[t] = z[t-1] + w / range\n"
    "o = S[t].T @ q\np = z[t]",
    "names that end alike": "variant def\ndim inputs = 4, states = 3\n"
    "input self, class : [inputs]\n"
    "input dtype, added_at : [states]\nparam fixed : scalar\nbuffer last : [inputs]\n"
    "state S_at, S, dS : [inputs, states]\noutput import, None : [states]\n"
    "S_at[t] = sigmoid(fixed) * S_at[t-1] + (class + last) @ dtype.T\n"
    "S[t] = 0.9 * S[t-1] + class @ added_at.T\ndS[t] = S[t-1] + dS[t-1] / 2\n"
    "import = S_at[t].T @ self\nNone = S[t].T @ self + dS[t].T @ class",
    "windows over values that start": HEAD
    + "param u0 : [V]\nstate u : [V] = u0\nstate w : [K] = 1\noutput o : [V]\nu[t] = v * v\n"
    "w[t] = k * q\no = attend(q, w[t], u[t], window=3) + attend(w[t-2], k, u[t], window=5)",
    "exponents of rows and of columns": HEAD
    + "state n : [K] (stabilized)\nstate C : [V, K] (stabilized)\noutput o : [V]\n"
    "n[t] = n[t-1] + exp(k)\nC[t] = C[t-1] + v @ exp(k).T\n"
    "o = C[t-1] @ (exp(q) / (n[t-1] + exp(k)))",
    "a number beside an exponent of each row": HEAD
    + "state n : [K] (stabilized)\nstate C : [K, V] (stabilized)\noutput o : [V]\n"
    "n[t] = n[t-1] + exp(k)\nC[t] = C[t-1] + exp(k) @ v.T\n"
    "o = max(C[t], 0.1).T @ (exp(q) / (n[t] + 1e-6))",
    "coupled states, one of which attends": HEAD + "state S, M : [K, V]\noutput o : [V]\n"
    "M[t] = 0.5 * M[t-1] - 0.1 * S[t-1] - k @ attend(q, k, v).T\nS[t] = 0.9 * S[t-1] + M[t]\n"
    "o = S[t].T @ q + attend(q, k, M[t].T @ q, window=4)",
    "states that nothing reads": "variant x\ndim K = 3\ninput x : [K]\ninput s : scalar\n"
    "state c, d, g, m : scalar\nstate e, f : [K]\nstate u : [1, 1]\nstate S : [K, K]\n"
    "output o : scalar\nc[t] = 0.5 * c[t-1] + 0.1 * d[t-1] + s\n"
    "d[t] = 0.5 * d[t-1] - 0.1 * c[t-1] + s\ng[t] = sigmoid(s) * g[t-1] + s\n"
    "m[t] = max(m[t-1], s)\ne[t] = 0.5 * e[t-1] + 0.1 * f[t-1] + x\n"
    "f[t] = 0.5 * f[t-1] - 0.1 * e[t-1] + s\nu[t] = 0.5 * u[t-1] + s\n"
    "S[t] = 0.5 * S[t-1] + x @ x.T\no = s",
    "choices whose other branch is no number": HEAD
    + "input d : scalar\nstate S, A, B : [K, V]\nstate z : [K]\noutput o : [V]\noutput p : [K]\n"
    "S[t] = where(d > 0, sqrt(d) * S[t-1] / 2, (I - β * kn @ kn.T) @ S[t-1] + log(-d) * k @ v.T)\n"
    "A[t] = where(k @ v.T > 0, A[t-1] / 2, sqrt(-(k @ v.T)) + 0.3 * A[t-1] - 0.1 * B[t-1])\n"
    "B[t] = where(d < 0, sqrt(-d) * 0.3, 0.2) * B[t-1] + 0.2 * A[t-1]\n"
    "z[t] = where(k > 0, log(k), z[t-1] * where(k > -1, 0.5, 0.1))\n"
    "o = S[t].T @ q + where(d > 0, log(d) * A[t] + B[t], B[t-1]).T @ k\np = z[t]",
    "an input kept by its name and by a value's": HEAD + "state u : [V]\noutput o : [V]\nu[t] = v\n"
    "o = attend(q, k, u[t]) + attend(k, q, u[t], window=3) * v[t-1] + v[t-2] + u[t-1]",
    "a maximum from -inf": "variant x\ninput f, i : scalar\nstate m : scalar = -inf\n"
    "output o : scalar\nm[t] = max(m[t-1] + f, i)\no = m[t]",
}

BOUNDED = {
    "a negative decay of the axis that an erase leaves": HEAD
    + "input w : [V] where -1 <= w, w <= -0.5\n"
    + MATRIX
    + "S[t] = (I - β * kn @ kn.T) @ S[t-1] @ diag(w) + k @ v.T\no = S[t].T @ q",
    "a reset beside a decay of the axis that an erase leaves": HEAD
    + "input d : scalar\ninput w : [V] where -0.5 <= w, w <= 0\n"
    + MATRIX
    + "S[t] = where(d > 0, (I - β * kn @ kn.T) @ S[t-1] @ diag(exp(w)) + k @ v.T, 0)\n"
    "o = S[t].T @ q",
}


def _erased_again(times: int) -> str:
    """An erase with one key, over and over, each line using the one before twice."""
    lines, before = [], "S[t-1]"
    for n in range(times):
        name = f"A{n}" if n < times - 1 else "S[t]"
        lines.append(f"{name} = {before} - β * kn @ (kn.T @ {before}) + β * kn @ v.T")
        before = f"A{n}"
    return HEAD + MATRIX + "\n".join(lines) + "\no = S[t].T @ q"


BY_TOKEN = {
    "twelve erases": _erased_again(12),
    "a write for each entry": HEAD + MATRIX + "input M : [K, V]\n" + DELTA + "M\no = S[t].T @ q",
}

REFUSED = {
    "reads h[T], the last state, and the nonlinear function tanh": ONE_K
    + "state h : [K]\noutput o : [K]\nh[t] = tanh(h[t-1] + k)\no = h[T] + q",
}


WITHOUT_CHUNKS = {
    "attention_inside_a_recurrence",
    "attention_over_states",
    "erases_on_the_right",
    "nonlinear",
    "states_that_need_each_other",
}
"""Specs of `tests/specs` that have no chunk form."""


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.la")), ids=lambda path: path.stem)
def test_every_spec_of_the_oracle_runs(path: Path) -> None:
    check(path.read_text(), set() if path.stem in WITHOUT_CHUNKS else {"chunk"})


@pytest.mark.parametrize("text", CHUNKED.values(), ids=CHUNKED)
def test_a_chunk_form(text: str) -> None:
    check(text, {"chunk", "parallel"})


@pytest.mark.parametrize("text", BOUNDED.values(), ids=BOUNDED)
def test_a_chunk_form_of_bounded_length(text: str) -> None:
    check(text, {"chunk"})


@pytest.mark.parametrize("text", BY_TOKEN.values(), ids=BY_TOKEN)
def test_a_token_at_a_time(text: str) -> None:
    check(text, {"recurrent"})


@pytest.mark.parametrize("said", REFUSED)
def test_a_refusal_says_all_reasons(said: str) -> None:
    with pytest.raises(LaccError, match=re.escape(said)) as refused:
        compile(REFUSED[said], "numpy")
    assert [d.code for d in refused.value.diagnostics] == ["LA0704"]


@pytest.mark.parametrize("name", ["slots read through a softmax", "an output read with another"])
def test_a_state_that_is_only_contracted_is_not_kept_for_every_token(name: str) -> None:
    programs = [p.forward for p in analyse(load(CHUNKED[name], {})).passes]
    assert not [i for p in programs for i in p.body if "t" in i.axes and len(i.axes) > 2]


def test_a_long_delay_is_no_deep_recursion() -> None:
    head = "variant x\ninput k : scalar\nstate y : scalar\noutput o : scalar\n"
    assert analyse(load(head + "y[t] = k\no = y[t-250]", {})).passes


def test_a_query_that_waits_by_hand() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 9, 1, 4))
    o, _ = compile(CHUNKED["a query that waits"], "numpy")(q, k, chunk=4)
    states = np.cumsum(np.einsum("ti,tj->tij", k[0, :, 0], q[0, :, 0]), 0)
    expected = np.einsum("tij,jl,tl->ti", states, states[-1], k[0, :, 0])
    np.testing.assert_allclose(o[0, :, 0], expected, rtol=1e-12)


def test_debug_with_delays_positions_and_scalar_params() -> None:
    text = (
        "variant x\ndim K = 3\ninput k : [K] where sum(k * k) <= 100\n"
        "param w : scalar where w < 9\n"
        "state h : [K]\noutput o : [K]\nh[t] = 0.5 * h[t-1] + k[t-2] * w + cos(t)\no = h[t]"
    )
    k, kernel = np.ones((2, 5, 2, 3)), compile(text, "numpy")
    kernel(k, np.ones(2), debug=True)
    with pytest.raises(ValueError, match="w: expected w < 9"):
        kernel(k, np.array([1.0, 10.0]), debug=True)


def test_modes_and_chunks_are_checked_when_compiled() -> None:
    text = BY_TOKEN["a write for each entry"]
    with pytest.raises(LaccError, match="no mode chunk"):
        compile(text, "numpy", mode="chunk")
    with pytest.raises(LaccError, match="no mode chunk"):
        compile(text, "reference", chunk=8)
    for wrong in ({"mode": "fast"}, {"chunk": 0}, {"mode": "recurrent", "chunk": 8}):
        with pytest.raises(ValueError, match=r"mode|chunk"):
            compile(text, "numpy", **wrong)


@pytest.mark.parametrize("regime", REGIMES)
def test_arguments_that_share_a_promise_are_drawn(regime: str) -> None:
    text = (
        "variant x\ninput a, b, c : scalar where 0 <= a, 0 < b, a + b + c <= 1\n"
        "input d, e : [3] where d <= e, e <= 0\noutput o : [3]\no = a * d + b * e + c"
    )
    x = draw(load(text, {}), Sizes(T=50), regime=regime)
    assert (x["a"] >= 0).all() and (x["b"] > 0).all() and (x["d"] <= x["e"]).all()
    assert (x["a"] + x["b"] + x["c"] <= 1 + 1e-12).all()
