"""What is proven stable is, for inputs within the promises; what may grow does, by its witness."""

from __future__ import annotations

import re
import time
from functools import cache

import numpy as np
import pytest
from conftest import EXAMPLES

from lacc import driver
from lacc.analysis.classify import recurrences
from lacc.analysis.ranges import Ranges
from lacc.analysis.stability import Stability, reflects, stability, stability_warnings
from lacc.diagnostics import render
from lacc.spec.model import Spec
from lacc.verify.inputs import Sizes, draw

KEY, FREE = "where sum(k * k) <= 1", ""
SIGN = "input β : scalar where 0 < β, β < 2\n"
WRITE = "input β : scalar where 0 < β, β < 1\n"
LOG = "input g : scalar where g <= 0\n"
LOGS = "input g : [K] where g <= 0\n"


@cache
def spec_of(declarations: str, equations: str, key: str = KEY) -> Spec:
    """A spec with keys, values and a state S [K, V]."""
    return driver.load(
        f"variant example\ndim K = 5, V = 4\ninput q : [K]\ninput k : [K] {key}\ninput v : [V]\n"
        f"{declarations}state S : [K, V]\noutput o : [V]\n{equations}\no = S[t].T @ q\n"
    )


PROVED = {
    "a sum": ("", "S[t] = S[t-1] + k @ v.T"),
    "a log gate": (LOG, "S[t] = exp(g) * S[t-1] + k @ v.T"),
    "a gate per channel": (LOGS, "S[t] = diag(exp(g)) @ S[t-1] + k @ v.T"),
    "a gate with a sign": ("input a : [K]\n", "S[t] = diag(tanh(a)) @ S[t-1] + k @ v.T"),
    "a hard reset": (
        "input a : scalar\n" + LOG,
        "S[t] = where(a > 0, 0, exp(g)) * S[t-1] + k @ v.T",
    ),
    "both sides": (
        LOGS + "input f : [V]\n",
        "S[t] = diag(exp(g)) @ S[t-1] @ diag(sigmoid(f)) + k @ v.T",
    ),
    "a lower bound": (
        "input f : [K]\nparam lb : [K] where 0 <= lb <= 1\ngate α = lb + (1 - lb) * sigmoid(f)\n",
        "S[t] = diag(α) @ S[t-1] + (k * (1 - α)) @ v.T",
    ),
    "two gates that sum": (
        "input a : scalar where 0 <= a <= 1\ninput b : scalar where 0 <= b, a + b <= 1\n",
        "S1 = a * S[t-1]\nS[t] = S1 + b * S[t-1] + k @ v.T",
    ),
    "an erase": (SIGN, "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T"),
    "an erase written out": (SIGN, "S[t] = S[t-1] + k @ (β * (v - S[t-1].T @ k)).T"),
    "an erase of joint strength": (
        "input β : scalar where 0 <= β, β * sum(k * k) <= 2\n",
        "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
        FREE,
    ),
    "a normalized key": (
        SIGN + "u = normalize(silu(k))\n",
        "S[t] = (I - β * u @ u.T) @ S[t-1] + β * u @ v.T",
        FREE,
    ),
    "a key over its norm": (
        SIGN + "u = k / max(sqrt(sum(k * k)), 1e-12)\n",
        "S[t] = (I - β * u @ u.T) @ S[t-1] + β * u @ v.T",
        FREE,
    ),
    "an implicit step": (
        "input d : scalar\nb = sigmoid(d)\ne = b / (1 + b * sum(k * k))\n",
        "S[t] = (I - e * k @ k.T) @ S[t-1] + e * k @ v.T",
        FREE,
    ),
    "the diagonal of an implicit step": (
        "input d : scalar\nb = sigmoid(d)\ne = b / (1 + b * sum(k * k))\n",
        "S[t] = diag(1 - e * k * k) @ S[t-1] + e * k @ v.T",
        FREE,
    ),
    "a gated erase": (
        LOG + SIGN,
        "S[t] = exp(g) * (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
    ),
    "an erase of the decayed state": (
        LOGS + SIGN,
        "S1 = diag(exp(g)) @ S[t-1]\nS[t] = (I - β * k @ k.T) @ S1 + β * k @ v.T",
    ),
    "the same in one line": (
        LOGS + SIGN,
        "S[t] = diag(exp(g)) @ S[t-1] - β * k @ (k.T @ diag(exp(g)) @ S[t-1]) + β * k @ v.T",
    ),
    "a decay of the erased state": (
        LOGS + SIGN,
        "S[t] = diag(exp(g)) @ (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
    ),
    "an erase beside a decay": (
        "input w : [K] where 0 <= w, w <= 1\n",
        "S[t] = diag(w) @ S[t-1] - k @ k.T @ S[t-1] + k @ v.T",
    ),
    "two erases a token": (
        SIGN + "input l : [K] where sum(l * l) <= 1\n",
        "S1 = S[t-1] + k @ (β * (v - S[t-1].T @ k)).T\nS[t] = S1 + l @ (β * (v - S1.T @ l)).T",
    ),
    "an erase on the right": (
        "input f : [V] where f <= 0\n" + WRITE + "u = normalize(v)\n",
        "S1 = S[t-1] @ diag(exp(f))\nS[t] = S1 + β * (k - S1 @ u) @ u.T",
    ),
    "an erase by an earlier key": (
        "input g : scalar\n",
        "S[t] = sigmoid(g) * (I - k[t-1] @ k[t-1].T) @ S[t-1] + k @ v.T",
    ),
    "a gate from a running maximum": (
        "input i, f : scalar\nstate m : scalar\n",
        "m[t] = max(logsigmoid(f) + m[t-1], i)\n"
        "S[t] = exp(logsigmoid(f) + m[t-1] - m[t]) * S[t-1] + exp(i - m[t]) * k @ v.T",
    ),
    "a gate from a running log-sum-exp": (
        "input s : [K]\nstate z : [K]\n",
        "z[t] = logaddexp(z[t-1], s)\n"
        "S[t] = diag(exp(z[t-1] - z[t])) @ S[t-1] + exp(s - z[t]) @ v.T",
    ),
}

GROWING = {
    "a log gate": ("input g : scalar\n", "S[t] = exp(g) * S[t-1] + k @ v.T", "g <= 0"),
    "a linear gate": (
        "input a : [K]\n",
        "S[t] = diag(a) @ S[t-1] + k @ v.T",
        "0 <= a <= 1",
    ),
    "a rate": (
        "input d : scalar\nparam A : scalar\n",
        "S[t] = exp(softplus(d) * A) * S[t-1] + k @ v.T",
        "A <= 0",
    ),
    "a key": (
        WRITE,
        "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
        "sum(k * k) <= 1",
        FREE,
    ),
    "a strength": (
        "input β : scalar\n",
        "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
        "0 <= β <= 2",
    ),
    "a strength and a key": (
        "input β : scalar\n",
        "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
        "sum(k * k) <= 1, 0 <= β <= 2",
        FREE,
    ),
    "a strength a little too large": (
        "input β : scalar where 0 <= β, β <= 2.05\n",
        "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
        "0 <= β <= 2",
    ),
    "another column than row": (
        WRITE + "input p : [K] where sum(p * p) <= 1\n",
        "S[t] = (I - β * k @ p.T) @ S[t-1] + β * k @ v.T",
        "",
    ),
    "a dense transition": ("param A : [K, K]\n", "S[t] = A @ S[t-1] + k @ v.T", ""),
    "coupled states": (
        "input β, m : scalar\nstate M : [K, V]\n",
        "M[t] = exp(m) * M[t-1] + k @ (S[t-1].T @ k - v).T\nS[t] = S[t-1] - β * M[t]",
        "",
    ),
}

OPEN = {
    "a vector of strengths": (
        "input a : [K] where 0 < a, a < 1\ninput w : [K]\n",
        "S[t] = diag(sigmoid(w)) @ S[t-1] - (k * a) @ k.T @ S[t-1] + k @ v.T",
    ),
    "a nonlinear update": ("", "S[t] = tanh(S[t-1]) + k @ v.T"),
}


def verdict(spec: Spec) -> Stability:
    """The verdict on the recurrence of S."""
    (found,) = [r for r in recurrences(spec) if "S" in r.states]
    return stability(spec, found, Ranges(spec))


def norms(spec: Spec, arrays: dict[str, np.ndarray], count: int) -> list[float]:
    """The norm of the transition of each token, from the reference on a basis of states."""
    kernel = driver.compile(spec, "reference")
    start = np.eye(20).reshape(20, 1, 5, 4)
    found = []
    timed = {a.ascii for a in spec.args if a.role == "input"}
    for t in range(1, count):

        def at(first: int, last: int) -> dict[str, np.ndarray]:
            return {
                n: np.broadcast_to(x[:, first:last], (20, last - first, *x.shape[2:]))
                if n in timed
                else x
                for n, x in arrays.items()
            }

        _, middle = kernel(**at(t - 1, t))
        ends = []
        for scale in (0.0, 1.0):
            state = middle._asdict() | {"S": scale * start}
            ends.append(kernel(**at(t, t + 1), initial_state=state)[1].S.reshape(20, 20))
        found.append(float(np.linalg.norm(ends[1] - ends[0], 2)))
    return found


@pytest.mark.parametrize("name", PROVED)
def test_a_proven_transition_enlarges_no_state(name: str) -> None:
    spec = spec_of(*PROVED[name])
    found = verdict(spec)
    assert found.verdict == "proved", found.why
    for regime in ("interior", "boundary"):
        arrays = draw(spec, Sizes(B=1, T=8, H=1), regime=regime)
        assert max(norms(spec, arrays, 8)) <= 1 + 1e-9


@pytest.mark.parametrize("name", GROWING)
def test_a_witness_keeps_the_promises_and_makes_the_state_grow(name: str) -> None:
    declarations, equations, help, *key = GROWING[name]
    spec = spec_of(declarations, equations, *key)
    found = verdict(spec)
    assert found.verdict == "may grow"
    assert found.help == (f"promise it: `where {help}`" if help else "")
    assert found.witness is not None
    given = {s.name: s for s in found.witness.settings}
    arrays = {}
    for arg in spec.args:
        shape = tuple({"K": 5, "V": 4}[str(size)] for size in arg.shape)
        x = given[arg.name].array(shape) if arg.name in given else np.zeros(shape)
        arrays[arg.ascii] = np.broadcast_to(
            x, ((2, 40, 1) if arg.role == "input" else (1,)) + shape
        )
    kernel = driver.compile(spec, "reference")
    start = {s.ascii: np.stack([np.zeros((1, 5, 4)), np.ones((1, 5, 4))]) for s in spec.states}
    sizes = []
    for tokens in (20, 40):
        cut = {n: x[:, :tokens] if x.shape[:1] == (2,) else x for n, x in arrays.items()}
        _, end = kernel(**cut, initial_state=start, debug=True)
        sizes.append(max(np.abs(x[1] - x[0]).max() for x in end._asdict().values()))
    assert (sizes[1] / sizes[0]) ** (1 / 20) == pytest.approx(found.witness.factor, rel=1e-3)
    assert found.witness.factor > 1


@pytest.mark.parametrize("name", [n for n in GROWING if GROWING[n][2]])
def test_the_promises_that_are_advised_make_the_proof(name: str) -> None:
    declarations, equations, help, *key = GROWING[name]
    for promise in help.split(", "):
        argument = re.sub(r"sum\((\w+).*|0 <= (\w+).*|(\w+) <= 0", r"\1\2\3", promise)
        if argument == "k":
            key = [f"where {promise}"]
            continue
        said = rf"\1 where {promise}"
        declarations = re.sub(rf"(?m)^((?:input|param) {argument} : [^\s]+).*$", said, declarations)
    assert verdict(spec_of(declarations, equations, *key)).verdict == "proved"


@pytest.mark.parametrize("name", OPEN)
def test_neither_a_proof_nor_an_input_is_said_so(name: str) -> None:
    found = verdict(spec_of(*OPEN[name]))
    assert found.verdict == "not proved"
    assert found.witness is None


UNPROVED = {
    "comba": "may grow",
    "deltaformer": "not proved",
    "dplr": "may grow",
    "gdn2": "not proved",
    "growing_gate": "may grow",
    "iplr": "may grow",
    "longhorn": "not proved",
    "momentum_delta": "not proved",
    "nonlinear_delta": "not proved",
    "precond_gdn": "not proved",
    "precond_kda": "not proved",
    "rwkv7": "not proved",
    "slstm": "not proved",
    "titans_linear": "not proved",
    "titans_memory": "not proved",
    "ttt_linear": "not proved",
    "ttt_mlp": "not proved",
}
"""Examples whose promises do not keep the state small, or not in a way that is found."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_proven_stable(path) -> None:
    spec = driver.load(path)
    ranges = Ranges(spec)
    verdicts = {stability(spec, r, ranges).verdict for r in recurrences(spec)}
    assert verdicts - {"proved"} == {*filter(None, [UNPROVED.get(path.stem)])}


@pytest.mark.parametrize(
    ("equations", "expected"),
    [
        (SIGN + "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T", True),
        (SIGN + "S[t] = S[t-1] + k @ (β * (v - S[t-1].T @ k)).T", True),
        (WRITE + "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T", False),
        (SIGN + LOG + "S[t] = exp(g) * (I - β * k @ k.T) @ S[t-1] + β * k @ v.T", False),
        ("S[t] = S[t-1] + k @ v.T", False),
    ],
)
def test_an_erase_reflects_where_its_strength_may_pass_1(equations: str, expected: bool) -> None:
    *declarations, update = equations.rsplit("\n", 1)
    spec = spec_of("".join(f"{d}\n" for d in declarations), update)
    ranges = Ranges(spec)
    assert any(reflects(r, ranges) for r in recurrences(spec)) == expected


def test_growth_is_a_warning_with_the_input_and_a_way_out() -> None:
    spec = spec_of("input g : scalar\n", "S[t] = exp(g) * S[t-1] + k @ v.T")
    (found,) = stability_warnings(spec, recurrences(spec))
    assert (found.code, found.severity) == ("LA0501", "warning")
    assert render([found]) == (
        "warning[LA0501]: the state S can grow without end: "
        "g = 0.5 multiplies it by 1.65 every token\n"
        " --> <spec>:9:8\n"
        "  |\n"
        "9 | S[t] = exp(g) * S[t-1] + k @ v.T\n"
        "  |        ^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  = help: promise it: `where g <= 0`"
    )


def test_a_stable_spec_gets_no_warning() -> None:
    spec = spec_of(LOG, "S[t] = exp(g) * S[t-1] + k @ v.T")
    assert stability_warnings(spec, recurrences(spec)) == []


@pytest.mark.parametrize(
    "gate",
    [
        " + ".join(f"max(a, {n})" for n in range(150)),
        " * ".join(f"(1 - {n} * a)" for n in range(60)),
        " + ".join(f"sigmoid(a * {n})" for n in range(150)),
    ],
    ids=["maxima", "products", "sigmoids"],
)
def test_a_verdict_on_a_very_long_gate_comes_soon(gate: str) -> None:
    spec = spec_of("input a : scalar where 0 <= a <= 1\n", f"S[t] = ({gate}) * S[t-1] + k @ v.T")
    began = time.perf_counter()
    assert verdict(spec).verdict != "proved"
    assert time.perf_counter() - began < 5
