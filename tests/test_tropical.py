"""Max-plus, min-plus and log-sum-exp recurrences: the form that is found, and what runs by chunks
against the reference, at ties too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc import driver
from lacc.analysis.classify import recurrences
from lacc.spec.format import show
from lacc.tile.rewrite import for_chunks
from lacc.tile.split import phases
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify

HEAD = """variant scans
dim K = 3, V = 2
input f, g, c : scalar
input i, j : scalar
input x : [K]
state m : scalar
output o : scalar

m[t] = {}
o = {}
"""
READ = "m[t] * c + m[t-1]"


def spec(update: str, read: str = READ) -> Any:
    return driver.load(HEAD.format(update, read))


@pytest.mark.parametrize(
    ("update", "op", "f", "i"),
    [
        ("max(m[t-1] + f, i)", "max", "f", "i"),
        ("max(i, m[t-1])", "max", "0", "i"),
        ("min(m[t-1] - f, i)", "min", "-f", "i"),
        ("logaddexp(m[t-1] + f, i)", "logaddexp", "f", "i"),
        ("max(max(m[t-1], i) + c, j)", "max", "c", "max(i + c, j)"),
        ("c + max(m[t-1] + f, i) - g", "max", "f + c - g", "i + c - g"),
        ("max(m[t-1] + f, max(m[t-1] + g, i))", "max", "max(f, g)", "i"),
        ("-max(-m[t-1] + f, i)", "min", "-f", "-i"),
        ("f - min(g - m[t-1], i)", "max", "f - g", "f - i"),
        ("max(m[t-1], i, j)", "max", "0", "max(i, j)"),
        ("relu(m[t-1] + f)", "max", "f", "0"),
        ("softplus(m[t-1] + f)", "logaddexp", "f", "0"),
        (
            "where(c > 0, max(m[t-1] + f, i), m[t-1] + g)",
            "max",
            "where(c > 0, f, g)",
            "where(c > 0, i, -inf)",
        ),
        ("max(m[t-1] + f, max(x))", "max", "f", "max(x)"),
    ],
)
def test_a_form_is_found(update: str, op: str, f: str, i: str) -> None:
    (found,) = recurrences(spec(update))
    assert found.tropical is not None and found.obstacle is None
    assert found.kind == {"max": "maxplus", "min": "minplus", "logaddexp": "logsumexp"}[op]
    form = found.tropical
    assert (form.op, show(form.f), show(form.i)) == (op, f, i)


@pytest.mark.parametrize(
    "update",
    [
        "max(f - m[t-1], i)",
        "max(2 * m[t-1], i)",
        "min(max(m[t-1] + f, i), j)",
        "-logaddexp(-m[t-1], i)",
        "where(m[t-1] > 0, max(m[t-1], i), i)",
        "max(m[t-1] + f, tanh(m[t-1]))",
        "max(m[t-1] + f, i) + m[t-1]",
    ],
)
def test_what_has_no_form_is_nonlinear(update: str) -> None:
    (found,) = recurrences(spec(update))
    assert found.kind == "nonlinear" and found.tropical is None and found.obstacle is not None


# ---- against the reference ---------------------------------------------------------------------

SOME = ("lengths", "chunks", "initial state", "same tokens", "split", "packed", "padded", "causal")
CHECKED = {name: CHECKS[name] for name in (*SOME, "empty", "float32")}

VERIFIED = {
    "vectors": """
input f : scalar
input g, i : [K]
state m, z : [K]
state w : scalar
output o : [K]
output p : scalar
m[t] = max(m[t-1] + g, i)
z[t] = logaddexp(z[t-1] + f, i)
w[t] = min(w[t-1] - f, g[t-1].T @ i)
o = m[t] * z[t-1] + m[t-1]
p = w[t] + w[t-1]
""",
    "a matrix": """
input a : [K, V]
input f : scalar
input q : [K]
state M : [K, V]
output o : [V]
M[t] = logaddexp(M[t-1] + f, a)
o = M[t].T @ q
""",
    "backward": """
input f, i : [K]
state m : [K]
output o : [K]
m[t] = max(m[t+1] + f, i)
o = m[t] + m[t+1]
""",
    "one drives the next": """
input f, i : [K]
state m, z : [K]
state h : [K]
output o : [K]
m[t] = max(m[t-1] + f, i)
z[t] = logaddexp(z[t-1] - m[t], m[t-1] * i)
h[t] = sigmoid(z[t-1] - m[t]) * h[t-1] + z[t]
o = h[t] + z[t]
""",
    "a gated matrix": """
input q, k : [K]
input v : [V]
input f, i : scalar
state m : scalar
state S : [K, V]
output o : [V]
m[t] = max(m[t-1] + f, i)
S[t] = exp(m[t-1] + f - m[t]) * S[t-1] + exp(i - m[t]) * k @ v.T
o = S[t].T @ q + m[t] * v
""",
    "nothing so far is -inf": """
input q, k : [K]
input v : [V]
state z : [K] = -inf
state S : [K, V]
output o : [V]
z[t] = logaddexp(z[t-1], k)
S[t] = diag(exp(z[t-1] - z[t])) @ S[t-1] + exp(k - z[t]) @ v.T
o = S[t].T @ q
""",
    "the last value": """
input i, v : [K]
state m : [K]
state n : [K]
output o : [K]
m[t] = max(m[t-1], i)
n[t] = n[t-1] + exp(i - m[T]) * v
o = n[T] * i
""",
}


@pytest.mark.parametrize("name", VERIFIED)
def test_every_mode_gives_what_the_reference_gives(name: str) -> None:
    text = f"variant scans\ndim K = 4, V = 3\n{VERIFIED[name]}"
    kernel = driver.compile(text, "numpy")
    assert {"chunk", "parallel"} <= set(kernel.modes)
    report = verify(driver.compile(text, "reference"), [kernel], checks=CHECKED)
    assert report.passed, str(report)


def both(text: str, arrays: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Outputs, states and gradients, of the reference and by chunks of 3."""
    found = []
    for target, how in (("reference", {}), ("numpy", {"chunk": 3, "mode": "chunk"})):
        kernel = driver.compile(text, target)
        with np.errstate(all="ignore"):
            o, state = kernel(**arrays, **options, **how)
            ends = type(state)(*(np.ones_like(x) for x in state))
            gradients = kernel.vjp(
                **arrays, cotangent=np.ones_like(o), state_cotangent=ends, **options, **how
            )
        initial = gradients.pop("initial_state", None)
        started = {} if initial is None else {f"d0 {n}": x for n, x in initial._asdict().items()}
        found.append({"o": o, **state._asdict(), **gradients, **started})
    return found


def agree(text: str, arrays: dict[str, Any], **options: Any) -> None:
    truth, ours = both(text, arrays, **options)
    for name, want in truth.items():
        np.testing.assert_allclose(ours[name], want, rtol=1e-12, atol=1e-12, err_msg=name)


def numbers(rng: Any, T: int = 11) -> dict[str, Any]:
    """Small whole numbers: every comparison is exact, and ties are frequent."""
    arrays = {n: rng.integers(-2, 3, (2, T, 1)).astype(float) for n in "fgcij"}
    return arrays | {"x": rng.integers(-2, 3, (2, T, 1, 3)).astype(float)}


@st.composite
def updates(draw: Any, op: str, depth: int = 3) -> str:
    """Nested forms over one ⊕, with sums, choices and a double minus."""

    def part(depth: int) -> str:
        leaf = draw(st.sampled_from(["m[t-1]", "m[t-1] + f", "c + m[t-1]", "(m[t-1] - g)"]))
        if not depth:
            return leaf
        inner = part(depth - 1)
        match draw(st.integers(0, 5 if op != "logaddexp" else 4)):
            case 0:
                return f"{op}({inner}, {part(depth - 1)})"
            case 1:
                return f"({inner} + {draw(st.sampled_from('fgc'))})"
            case 2:
                return f"where(c > 0, {inner}, {part(depth - 1)})"
            case 3:
                return f"({draw(st.sampled_from('fgc'))} + {op}(i, {inner}) - j)"
            case 4:
                return f"{op}({inner}, {draw(st.sampled_from('ij'))})"
            case _:
                mirror = {"max": "min", "min": "max"}[op]
                return f"-{mirror}(-({inner}), {draw(st.sampled_from('ij'))})"

    return f"{op}({part(depth)}, {draw(st.sampled_from('ij'))})"


@pytest.mark.parametrize("op", ["max", "min", "logaddexp"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_nested_forms_agree_at_ties_too(op: str, data: Any) -> None:
    update = data.draw(updates(op))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = {name: x for name, x in numbers(rng).items() if name != "x"}
    text = HEAD.replace("input x : [K]\n", "").replace("dim K = 3, V = 2\n", "")
    spec = text.format(update, READ + " + 0 * (f + g + i + j)")
    agree(spec, arrays, initial_state=rng.integers(-2, 3, (2, 1)).astype(float))
    agree(spec, {name: 0 * x for name, x in arrays.items()})


@pytest.mark.parametrize("op", ["max", "logaddexp"])
def test_resets_growth_and_absent_values(op: str) -> None:
    text = HEAD.replace("state m : scalar", "state m : scalar = -inf")
    text = text.format(f"{op}(m[t-1] + f, i)", "m[t] + 0 * (c + g + j + sum(x))")
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=(2, 17, 2)) for n in "fgcij"}
    arrays["x"] = rng.normal(size=(2, 17, 2, 3))
    agree(text, arrays)
    arrays["f"][:, [0, 4, 5]] = -np.inf
    arrays["f"][:, 8] = 88.0
    agree(text, arrays)
    arrays["i"][:, [0, 1, 7]] = -np.inf  # nothing at all for two tokens: -inf, with no gradient
    agree(text, arrays)
    arrays["i"][:, 4] = -np.inf  # a reset to nothing
    agree(text, arrays, initial_state=np.full((2, 2), 3.0))


@pytest.mark.parametrize("name", ["vectors", "a gated matrix"])
def test_the_carry_is_one_token_of_work(name: str) -> None:
    derived = driver.analyse(driver.load(f"variant scans\ndim K = 4, V = 3\n{VERIFIED[name]}"))
    for stage in derived.passes:
        for program, carried in ((stage.forward, "state"), (stage.backward, "dstate")):
            program = for_chunks(program, carried)
            found, loops = phases(program, carried)
            assert loops
            inside = [inst for inst, p in zip(program.body, found) if p > 0 and p % 2]
            assert not [inst.op for inst in inside if "t" in inst.axes]
            ops = {inst.op for inst in program.body}
            assert not ops & {"instead", "through_time"}
