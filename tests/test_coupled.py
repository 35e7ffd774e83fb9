"""States that need one another by chunks: random couplings against the recurrence itself, what
their analysis finds, what has no chunk form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc import driver
from lacc.analysis.report import report
from lacc.analysis.transition import Coupling, Recurrence
from lacc.diagnostics import LaccError
from lacc.tile import scans

T, B, H, DIMS = 9, 1, 2, {"K": 3, "V": 2}
FACTORS = {
    "scalar": ["a *", "z *", "-0.5 *", ""],
    "channel": ["diag(c) @", "z *", "-diag(c) @", "0.5 *"],
    "entry": ["m *", "a *", "diag(c) @"],
}
READS = [
    "X0[t].T @ q",
    "X1[t-1].T @ q + X0[t].T @ k",
    "(X0[t] @ v).T @ q * v",
    "(X0[t] * X1[t]).T @ q",
]


@st.composite
def couplings(draw: Any) -> str:
    """A spec of two or three matrix states in a ring, with more between them."""
    n, kind = draw(st.sampled_from([2, 2, 3])), draw(st.sampled_from(sorted(FACTORS)))
    lines = []
    for i in range(n):
        next_to = (i + 1) % n
        sources = {(next_to, "t-1")}
        for j in range(n):
            if draw(st.booleans()):
                sources.add((j, draw(st.sampled_from(["t", "t-1"])) if j < i else "t-1"))
        terms = [
            f"{draw(st.sampled_from(FACTORS[kind]))} X{j}[{when}]" for j, when in sorted(sources)
        ]
        if kind == "scalar" and draw(st.booleans()):
            j, scale = draw(st.integers(0, n - 1)), draw(st.sampled_from(["", "z * ", "-a * "]))
            terms.append(f"{scale}k @ ({draw(st.sampled_from('kp'))}.T @ X{j}[t-1])")
        if draw(st.booleans()) or i == 0:
            terms.append(draw(st.sampled_from(["k @ v.T", "a * k @ v.T", "z * p @ v.T"])))
        lines.append(f"X{i}[t] = {' + '.join(terms)}")
    states = ", ".join(f"X{i}" for i in range(n))
    return "\n".join(
        [
            "variant random",
            "dim K = 3, V = 2",
            "input q, k, p, c : [K]\ninput v : [V]\ninput a, z : scalar\ninput m : [K, V]",
            f"state {states} : [K, V]\noutput o : [V]",
            *lines,
            f"o = {draw(st.sampled_from(READS))}",
        ]
    )


def arrays(kernel: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Inputs, initial states, cotangents of states and of the output; ``z`` is 0 at most tokens."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> Any:
        return 0.6 * rng.standard_normal(shape)

    lead = {"input": (B, T, H), "param": (H,)}
    spec = kernel.spec
    inputs = {a.ascii: some(*lead[a.role], *(s.evaluate(DIMS) for s in a.shape)) for a in spec.args}
    if "z" in inputs:
        inputs["z"] *= rng.random(inputs["z"].shape) < 0.4
    output, state = kernel(**inputs)
    start, ends = ({n: some(*x.shape) for n, x in state._asdict().items()} for _ in range(2))
    return inputs, start, ends, some(*output.shape)


def agree(text: str, seed: int = 0, chunks: tuple[int, ...] = (1, 2, 4, 16)) -> None:
    """Outputs, states and all gradients of every chunk length are those of the recurrence."""
    reference, kernel = driver.compile(text, "reference"), driver.compile(text, "numpy")
    inputs, start, ends, ct = arrays(reference, seed)
    outputs, final = reference(**inputs, initial_state=start)
    truth = reference.vjp(**inputs, cotangent=ct, state_cotangent=ends, initial_state=start)
    for chunk in chunks:
        how = {"mode": "chunk", "chunk": chunk}
        got, last = kernel(**inputs, initial_state=start, **how)
        found = kernel.vjp(**inputs, cotangent=ct, state_cotangent=ends, initial_state=start, **how)
        pairs = [(got, outputs), *zip(last, final)]
        pairs += zip(found.pop("initial_state"), truth["initial_state"])
        pairs += [(found[name], truth[name]) for name in found]
        for ours, theirs in pairs:
            scale = 1e-9 * max(1.0, np.abs(theirs).max())
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=scale, err_msg=f"{text}\n{how}")


@settings(max_examples=25, deadline=None)
@given(couplings(), st.integers(0, 99))
def test_chunks_of_random_couplings_are_the_recurrence(text: str, seed: int) -> None:
    assert driver.analyse(driver.load(text)).modes["chunk"] is None, text
    agree(text, seed, (1, 4, 16))


HEAD = """variant x
dim K = 3, V = 2
input q, k, p : [K]
input v : [V]
input a, b : scalar
"""
MATRICES = "state S, M : [K, V]\noutput o : [V]\n"
VECTORS = "state x, y : [K]\noutput o : [K]\n"
SCALARS = "state x, y : scalar\noutput o : scalar\n"
FORMS = {
    "a rotation that is read by contraction": HEAD + MATRICES + "S[t] = cos(a) * S[t-1] - sin(a) "
    "* M[t-1] + k @ v.T\nM[t] = sin(a) * S[t-1] + cos(a) * M[t-1]\no = S[t].T @ q",
    "momentum of a delta rule": HEAD + MATRICES + "M[t] = b * M[t-1] + k @ (p.T @ S[t-1] - v.T)\n"
    "S[t] = a * S[t-1] - M[t]\no = S[t].T @ q",
    "reads of both states": HEAD + MATRICES + "M[t] = a * M[t-1] + k @ (p.T @ S[t-1]) + S[t-1]\n"
    "S[t] = b * S[t-1] + q @ (k.T @ M[t-1]) + k @ v.T\no = S[t].T @ q + M[t-1].T @ p",
    "one read of two states": HEAD + MATRICES + "u = k.T @ S[t-1] + p.T @ M[t-1]\n"
    "M[t] = a * M[t-1] + b * k @ u + S[t-1]\nS[t] = S[t-1] - 0.3 * k @ u + k @ v.T\no = S[t].T @ q",
    "an erase on the right": HEAD + MATRICES + "M[t] = a * M[t-1] + (S[t-1] @ v) @ v.T\n"
    "S[t] = b * S[t-1] - M[t] + k @ v.T\no = S[t].T @ q",
    "an erase that is shown": HEAD + MATRICES.replace("[V]\n", "[K, V]\n") + "M[t] = b * M[t-1] + "
    "k @ (k.T @ S[t-1] - v.T)\nS[t] = a * S[t-1] - M[t]\no = S[t] + M[t-1]",
    "vectors": HEAD
    + VECTORS
    + "x[t] = k * x[t-1] - p * y[t-1] + q\ny[t] = p * x[t-1] + a * y[t-1]\n"
    "o = x[t] * y[t-1]",
    "vectors that are read by contraction": HEAD
    + VECTORS.replace("[K]\n", "scalar\n", 2).replace("scalar\n", "[K]\n", 1)
    + "x[t] = a * x[t-1] - b * y[t-1] + q\ny[t] = b * x[t-1] + k * a\n"
    "o = x[t].T @ q + y[t-1].T @ k",
    "an erase of vectors": HEAD + VECTORS + "x[t] = a * x[t-1] + y[t-1] + k * (p.T @ y[t-1])\n"
    "y[t] = b * y[t-1] + 0.5 * x[t] + q\no = x[t] + y[t]",
    "numbers": HEAD
    + SCALARS
    + "x[t] = a * x[t-1] - b * y[t-1] + sum(q)\ny[t] = b * x[t] + y[t-1]\n"
    "o = x[t] * y[t]",
    "states that only move": HEAD
    + VECTORS
    + "x[t] = y[t-1] + k\ny[t] = x[t-1]\no = x[t] + 2 * y[t]",
    "backward in time": HEAD
    + VECTORS
    + "x[t] = a * x[t+1] - y[t+1] + q\ny[t] = x[t+1] + b * y[t+1]\n"
    "o = x[t]",
    "another state's gate": HEAD + "state g : scalar\n" + MATRICES + "g[t] = 0.5 * g[t-1] + a\n"
    "S[t] = tanh(g[t]) * S[t-1] - b * M[t-1] + k @ v.T\nM[t] = S[t] + g[t-1] * M[t-1]\n"
    "o = S[t].T @ q",
    "a value between them": HEAD + "state u : [V]\n" + MATRICES + "u[t] = S[t-1].T @ k - v\n"
    "M[t] = a * M[t-1] - k @ u[t].T\nS[t] = b * S[t-1] + M[t]\no = S[t].T @ q + u[t-1]",
    "what feeds a third state": HEAD
    + "state z : [K]\n"
    + VECTORS
    + "x[t] = a * x[t-1] - y[t-1] + q\n"
    "y[t] = 0.5 * x[t-1]\nz[t] = b * z[t-1] + tanh(x[t]) * y[t-1]\no = z[t]",
    "starts of their own": HEAD
    + "param w : [K]\nstate x : [K] = w\nstate y : [K] = 2\noutput o : [K]\n"
    "x[t] = a * x[t-1] - y[t-1] + q\ny[t] = 0.5 * x[t-1] + k\no = x[t] * y[t]",
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_coupling_is_the_recurrence(name: str) -> None:
    text = FORMS[name]
    assert [r.transition for r in driver.analyse(driver.load(text)).recurrences].count(
        "coupled"
    ) == 1
    agree(text)


def found(equations: str, head: str = HEAD + MATRICES) -> tuple[Recurrence, Coupling]:
    (recurrence,) = driver.analyse(driver.load(f"{head}{equations}\no = S[t].T @ q")).recurrences
    assert recurrence.coupling is not None
    return recurrence, recurrence.coupling


def test_a_use_at_the_same_token_is_that_state_at_the_token_before() -> None:
    _, coupling = found(
        "M[t] = b * M[t-1] + k @ (S[t-1].T @ k - v).T\nS[t] = a * S[t-1] - 2 * M[t]"
    )
    assert [[x is not None for x in row] for row in coupling.kept] == [[True, True], [False, True]]
    assert [a.read for a in coupling.added] == [None, 0]
    assert coupling.partner(coupling.added[1]) == (coupling.added[0], -1)


def test_reads_that_are_added_alike_are_one() -> None:
    u = "u = k.T @ S[t-1] + p.T @ M[t-1]\n"
    _, coupling = found(u + "M[t] = M[t-1] + a * k @ u\nS[t] = S[t-1] + M[t-1] - b * k @ u")
    assert len(coupling.reads) == 1 and None not in coupling.reads[0]
    _, coupling = found(
        u + "M[t] = M[t-1] + a * k @ u\nS[t] = S[t-1] - M[t-1] - q @ (k.T @ S[t-1])"
    )
    assert len(coupling.reads) == 2


@pytest.mark.parametrize(
    ("equations", "why"),
    [
        (
            "S[t] = M[t-1] + k @ v.T\nM[t] = diag(q) @ S[t-1] - k @ (p.T @ S[t-1])",
            "more than scalars",
        ),
        ("S[t] = M[t-1] - k @ (p.T @ S[t-1])\nM[t] = S[t-1] - (M[t-1] @ v) @ v.T", "both sides"),
        ("S[t] = M[t-1] + k @ v.T\nM[t] = A @ S[t-1]", "dense"),
        ("S[t] = M[t-1] - k @ (p.T @ S[t-1])\nM[t] = S[t-1] + B", "no product of rows and columns"),
        ("S[t] = M[t-1] * sum(z[t-1])\nM[t] = S[t-1] + k @ v.T\nz[t] = S[t-1] @ v", "both hold"),
        ("S[t] = S[t-1] + z[t-1] @ v.T\nM[t] = M[t-1]\nz[t] = S[t-1] @ v + k", "different shapes"),
        ("S[t] = M[t-1] + k @ v.T\nM[t] = tanh(S[t-1])", "tanh"),
    ],
)
def test_what_has_no_chunk_form_says_why(equations: str, why: str) -> None:
    head = HEAD + "input A : [K, K]\ninput B : [K, V]\n" + MATRICES
    text = (
        head + ("state z : [K]\n" if "z[t]" in equations else "") + equations + "\no = S[t].T @ q"
    )
    modes = driver.analyse(driver.load(text)).modes
    assert modes["chunk"] is not None and why in modes["chunk"].reason
    assert modes["recurrent"] is None
    with pytest.raises(LaccError, match="LA0601"):
        driver.compile(text, mode="chunk")


TURN = "x[t] = {r} * cos(b) * x[t-1] - {r} * sin(b) * y[t-1] + q\n"
TURN += "y[t] = {r} * sin(b) * x[t-1] + {r} * cos(b) * y[t-1]"


@pytest.mark.parametrize(
    ("equations", "expected", "step"),
    [
        (TURN.format(r="sigmoid(a)"), "proved", "a rotation times a decay, one for all entries"),
        (TURN.format(r="tanh(k)"), "proved", "a rotation times a decay, one for each channel of K"),
        (TURN.format(r="exp(a)"), "may grow", "a rotation times a decay"),
        ("x[t] = y[t-1] + q\ny[t] = 0.5 * x[t-1]", "proved", "a matrix"),
        (
            "x[t] = 0.6 * x[t-1] + 0.4 * y[t-1]\ny[t] = 0.4 * x[t-1] - 0.6 * y[t-1] + q",
            "proved",
            "",
        ),
        ("x[t] = sigmoid(a) * x[t-1] + sigmoid(b) * y[t-1]\ny[t] = x[t-1]", "may grow", "a matrix"),
        (
            "x[t] = 0.9 * x[t-1] + y[t]\ny[t] = 0.9 * y[t-1] - 0.1 * k * (p.T @ x[t-1])",
            "",
            "rank 1",
        ),
    ],
)
def test_the_report_says_what_the_step_is_and_whether_it_is_bounded(
    equations: str, expected: str, step: str
) -> None:
    spec = driver.load(HEAD + VECTORS + equations + "\no = x[t]")
    sections = report(*driver.found(spec))
    rows = dict(next(s for s in sections if s.title.startswith("state")).rows)
    assert step in rows["transition"] and rows["stability"].startswith(expected)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_chain_and_its_adjoint_are_sums_of_products(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b, ct = (rng.standard_normal((2, 6, *s)) for s in ((n, n, 1), (n, 4), (n, 4)))
    a *= rng.random(a.shape) < 0.7
    h = np.zeros((2, n, 4))
    expected = []
    for t in range(6):
        h = np.einsum("bijk,bjk->bik", np.broadcast_to(a[:, t], (2, n, n, 4)), h) + b[:, t]
        expected.append(h)
    got = scans.chain(a, b, 1)
    np.testing.assert_allclose(got, np.stack(expected, 1), rtol=1e-12)
    assert np.vdot(got, ct) == pytest.approx(np.vdot(b, scans.chain_back(a, ct, 1)))


def test_a_reset_is_exact_and_later_tokens_change_nothing() -> None:
    kernel = driver.compile(FORMS["momentum of a delta rule"])
    inputs, start, _, _ = arrays(kernel, 3)
    inputs["a"][:, 5], inputs["b"][:, 5] = 0.0, 0.0
    inputs["v"][:, :5] = 1e300
    inputs["p"][:, 5:], inputs["k"][:, :5] = 0.0, 0.0
    whole, _ = kernel(**inputs, initial_state=start, mode="chunk", chunk=4)
    part = {name: x[:, 5:] for name, x in inputs.items()}
    after, _ = kernel(**part, mode="chunk", chunk=4)
    np.testing.assert_allclose(whole[:, 5:], after, rtol=1e-12)
    moved = {name: np.concatenate([x[:, :6], x[:, 6:] + 1.0], 1) for name, x in inputs.items()}
    other, _ = kernel(**moved, initial_state=start, mode="chunk", chunk=4)
    assert np.array_equal(whole[:, :6], other[:, :6])
