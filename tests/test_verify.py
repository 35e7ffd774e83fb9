"""Inputs within promises, and a harness that passes right kernels and fails wrong ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lacc
from lacc.diagnostics import LaccError
from lacc.runtime import contract
from lacc.runtime.kernel import Kernel, from_core, from_source
from lacc.runtime.oracle import reference
from lacc.runtime.signature import signature
from lacc.verify.checks import CHECKS, Check
from lacc.verify.harness import verify
from lacc.verify.inputs import REGIMES, Sizes, draw, log_gates

EXAMPLES = Path(__file__).parent.parent / "examples"

PROMISES = """variant promises
dim K = 4, V = 3
input q, k : [K] where sum(k * k) <= 1
input v : [V]
input w : [K] where sum(w) == 1, w >= 0
input a : scalar per group where 0 <= a <= 1
input b : scalar where a + b <= 1, b >= 0
input c : [K] where -1 < c < 1, rms(c) <= 0.2
input n : [K] per layer where sum(n * n) == 1
input u : scalar where u >= 5 + a * a
param A : scalar where A < 0
input g : scalar where g <= 0
state S : [K, V]
output o : [V]
S[t] = a * exp(g) * S[t-1] + (k + w + c + n) @ v.T
o = A * b * u * S[t].T @ q
"""


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_draws_keep_every_promise(regime: str, dtype: Any) -> None:
    spec = lacc.load(PROMISES)
    sizes = Sizes(B=2, T=40, H=4, G=2)
    x = draw(spec, sizes, regime=regime, dtype=dtype)
    assert all(array.dtype == dtype for array in x.values())
    near = 20 * np.finfo(dtype).eps
    exact = {name: array.astype(np.float64) for name, array in x.items()}
    assert (np.square(exact["k"]).sum(-1) <= 1).all()
    assert np.abs(exact["w"].sum(-1) - 1).max() <= near
    assert (exact["w"] >= 0).all()
    assert ((exact["a"] >= 0) & (exact["a"] <= 1)).all()
    assert (np.repeat(exact["a"], 2, 2) + exact["b"] <= 1).all()
    assert (np.abs(exact["c"]) < 1).all()
    assert (np.sqrt(np.square(exact["c"]).mean(-1)) <= 0.2).all()
    assert np.abs(np.square(exact["n"]).sum(-1) - 1).max() <= near
    assert (exact["A"] < 0).all()
    assert log_gates(spec) == {"g"}
    assert np.isneginf(exact["g"]).any() == (regime == "reset")
    assert np.isfinite(exact["A"]).all()
    if regime == "boundary":
        assert (exact["a"] == 0).any()
        assert (exact["a"] == 1).any()
        assert (exact["g"] == 0).any()
        assert (np.square(exact["k"]).sum(-1) > 1 - 1e-6).any()
    if regime == "strong":
        assert (exact["g"] == -1000).any()
        assert (exact["g"] == -20).any()
    again = draw(spec, sizes, regime=regime, dtype=dtype)
    assert all(np.array_equal(x[name], again[name]) for name in x)


def test_unpromised_inputs_are_normal() -> None:
    x = draw(lacc.load(PROMISES), Sizes(T=2000, H=2, G=2))["q"]
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05


def test_a_promise_that_cannot_be_kept_is_an_error() -> None:
    spec = lacc.load(PROMISES.replace("sum(k * k) <= 1", "sum(k * k) <= -1"))
    with pytest.raises(LaccError, match=r"no input k .*sum\(k \* k\) <= -1") as raised:
        draw(spec, Sizes())
    assert raised.value.code == "LA0505"


Core = contract.Core


def kernel(spec: str, change: Callable[[Core], Core] = lambda core: core) -> Kernel:
    """The reference of a spec, its core changed."""
    loaded = lacc.load(spec)
    seen = signature(loaded, dict.fromkeys(contract.MODES, ""))
    functions = from_core(seen, change(reference(loaded, {})))
    return Kernel(loaded, "changed", seen, functions, missing={}, verify=lambda: None)


def failed(spec: str, subject: Kernel, checks: Mapping[str, Check] = CHECKS) -> set[str]:
    """The checks that a kernel fails."""
    report = verify(kernel(spec), [subject], checks=checks)
    assert report.passed == (not report.failures)
    return {row for (row, _), cell in report.cells.items() if not cell.passed}


@pytest.mark.parametrize("spec", [PROMISES, (EXAMPLES / "gla.la").read_text()], ids=["all", "gla"])
def test_a_right_kernel_passes(spec: str) -> None:
    seen: list[tuple[int, int]] = []
    subject = kernel(spec)
    report = verify(kernel(spec), [subject], progress=lambda done, of, _: seen.append((done, of)))
    assert report.passed, str(report)
    assert seen == [(n, len(seen)) for n in range(len(seen))]
    assert "every check passed" in str(report)
    assert "gradients / its limit" in str(report)


def output(change: Callable[[dict[str, Any], dict[str, Any], Any], Any]) -> Callable[[Core], Core]:
    """Cores whose output is changed by ``change(x, outputs, run)``."""

    def apply(core: Core) -> Core:
        def forward(x: Any, state: Any, run: Any) -> Any:
            outputs, final = core.forward(x, state, run)
            return {"o": change(x, outputs["o"], run)}, final

        return replace(core, forward=forward)

    return apply


def argument(name: str, change: Callable[[Any], Any]) -> Callable[[Core], Core]:
    """Cores that see an argument changed."""

    def apply(core: Core) -> Core:
        def forward(x: Any, state: Any, run: Any) -> Any:
            return core.forward({**x, name: change(x[name])}, state, run)

        return replace(core, forward=forward)

    return apply


def gradient(name: str, factor: float) -> Callable[[Core], Core]:
    """Cores with a factor on one gradient."""

    def apply(core: Core) -> Core:
        def backward(*given: Any) -> Any:
            gradients, initial = core.backward(*given)
            found = initial if name in initial else gradients
            if name in found:
                found[name] = found[name] * factor
            return gradients, initial

        return replace(core, backward=backward)

    return apply


def forgetful(core: Core) -> Core:
    """Starts every call from zero."""
    return replace(core, forward=lambda x, state, run: core.forward(x, {**state, "S": None}, run))


def late(x: Any, o: Any, run: Any) -> Any:
    """Wrong from the first token of the third chunk on."""
    return np.where((np.arange(run.T) >= 16)[None, :, None, None], o * (1 + 1e-6), o)


MUTANTS = {
    "a gradient's sign": (gradient("g", -1), {"lengths", "float32"}),
    "a gradient's last digits": (gradient("k", 1 + 1e-7), {"lengths"}),
    "an initial gradient": (gradient("S", 0.5), {"initial state", "split"}),
    "no initial state": (forgetful, {"initial state", "split", "packed"}),
    "a later chunk": (output(late), {"lengths"}),
    "a clamped gate": (
        argument("g", lambda g: np.maximum(g, -15)),
        {"strong gates", "hard resets"},
    ),
    "a gate too weak": (argument("g", lambda g: np.minimum(g, -2e-4)), {"weak gates", "bounds"}),
    "half precision": (argument("v", lambda v: v.astype(np.float16)), {"lengths", "float32"}),
    "float32 inside": (argument("v", lambda v: v.astype(np.float32)), {"lengths"}),
    "a look ahead": (
        output(lambda x, o, run: o + 1e-14 * x["v"].astype(np.float64).sum(1, keepdims=True)),
        {"causal"},
    ),
    "a NaN": (output(lambda x, o, run: np.where(o > 1, np.nan, o)), {"lengths", "bfloat16"}),
    "a crash": (output(lambda x, o, run: o[:, :, :99].reshape(o.shape)[run.T - 9]), {"lengths"}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_fails(name: str) -> None:
    change, expected = MUTANTS[name]
    spec = (EXAMPLES / "gla.la").read_text()
    checks = {row: check for row, check in CHECKS.items() if row in expected}
    assert failed(spec, kernel(spec, change), checks) == expected


@pytest.mark.parametrize(
    ("option", "rows"), [("valid", {"padded"}), ("cu_seqlens", {"packed", "isolated"})]
)
def test_an_ignored_option_fails(option: str, rows: set[str]) -> None:
    spec = (EXAMPLES / "gla.la").read_text()
    right = kernel(spec)

    def without(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, **options: function(x, **{n: y for n, y in options.items() if n != option})

    functions = (without(right._forward), right._step, without(right._vjp))
    missing: dict[str, Any] = {}
    wrong = Kernel(right.spec, "deaf", right.signature, functions, missing=missing, verify=list)
    assert failed(spec, wrong) == rows


SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}


def slips(source: str) -> Iterator[tuple[str, str]]:
    """Each arithmetic operator of the spec's own functions replaced: the place, the new source."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and re.match("(for|back)ward_", function.name):
            for node in ast.walk(function):
                if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
                    op, text = node.op, ast.unparse(node)
                    node.op = SWAPS[type(op)]()
                    yield f"{function.name}: {text}", ast.unparse(tree)
                    node.op = op


@pytest.mark.parametrize(
    ("name", "every"),
    [("gla", 3), *(pytest.param(name, 1, marks=pytest.mark.full) for name in ("gla", "mamba2"))],
)
def test_every_operator_of_an_emitted_file_matters(name: str, every: int) -> None:
    right = lacc.compile(EXAMPLES / f"{name}.la")
    assert right.source is not None
    truth = lacc.compile(EXAMPLES / f"{name}.la", target="reference")
    checks = {row: CHECKS[row] for row in ("lengths", "initial state")}
    count = 0
    for place, source in islice(slips(right.source), 0, None, every):
        functions = from_source(right.signature.name, source)
        wrong = Kernel(
            right.spec, "slip", right.signature, functions, missing={}, verify=right.verify
        )
        assert not verify(truth, [wrong], checks=checks).passed, place
        count += 1
    assert count > 20 / every


def test_every_mask_of_an_emitted_file_matters() -> None:
    right = lacc.compile(EXAMPLES / "linear.la")
    truth = lacc.compile(EXAMPLES / "linear.la", target="reference")
    assert right.source is not None
    masks = list(re.finditer(r"np\.tril\(", right.source))
    for mask in masks:
        source = right.source[: mask.start()] + "(" + right.source[mask.end() :]
        functions = from_source(right.signature.name, source)
        wrong = Kernel(
            right.spec, "slip", right.signature, functions, missing={}, verify=right.verify
        )
        report = verify(truth, [wrong], checks={"lengths": CHECKS["lengths"]})
        assert not report.cells["lengths", "slip chunk"].passed
    assert len(masks) >= 3


def test_a_failure_says_how_to_see_it_again() -> None:
    spec = (EXAMPLES / "gla.la").read_text()
    checks = {"lengths": CHECKS["lengths"]}
    report = verify(kernel(spec), [kernel(spec, gradient("g", -1))], checks=checks)
    line = next(line for line in report.failures if line.startswith("lengths, changed recurrent"))
    assert re.search(r"d g off by 2.0e\+00 against 1.0e-09 at Case\(T=\d+, .*seed=0", line)
    assert "FAIL 2e+00 / 1e-09" in str(report)


def test_empty_rows_say_why() -> None:
    text = "variant open\ninput x, a : scalar\nstate s : scalar\noutput o : scalar\n"
    text += "s[t] = sigmoid(a) * s[t-1] + x\no = s[t]\n"
    names = ("strong gates", "hard resets", "lengths")
    checks = {name: CHECKS[name] for name in names}
    report = verify(lacc.compile(text, "reference"), [lacc.compile(text)], checks=checks)
    said = [note for note in report.notes if note.startswith("nothing to check in")]
    rows = [note.partition(":")[0].removeprefix("nothing to check in ") for note in said]
    assert rows == [*names[:2]]
    assert "no argument promises a bound" in said[0] and said[0] in str(report)


def test_growth_is_reported_not_failed() -> None:
    spec = PROMISES.replace("exp(g) *", "(1 + exp(-g)) * 5 *").replace("a * ", "")
    checks = {"lengths": CHECKS["lengths"]}
    report = verify(kernel(spec), [kernel(spec)], checks=checks)
    assert report.passed, str(report)
    assert any(cell.growth > 1e6 for cell in report.cells.values())
    assert "grows to" in str(report)


CENTRED = """variant x
dim K = 5, V = 4
input q, k : [K]
input v : [V]
state m : [K]
state S : [K, V]
output o : [V]
m[t] = m[t-1] + k
S[t] = 0.9 * S[t-1] + (k - m[T] / T) @ v.T
o = S[t].T @ q
"""


@pytest.mark.parametrize("chunk", [3, 8])
def test_what_cancels_is_asked_no_digits_that_the_recurrence_lacks(chunk: int) -> None:
    """Equal tokens less their mean are rounding errors alone."""
    checks = {"same tokens": CHECKS["same tokens"]}
    kernels = [lacc.compile(CENTRED, target="numpy", mode="chunk", chunk=chunk)]
    assert verify(kernel(CENTRED), kernels, checks=checks).passed
    assert failed(CENTRED, kernel(CENTRED, output(lambda x, o, run: o + 1e-12)), checks)


def test_what_is_not_a_number_is_not_compared_as_equal() -> None:
    """A reference that gives NaN says so; it is no agreement."""
    spec = PROMISES.replace("exp(g) *", "sqrt(-1 - g * g) *")
    assert "sqrt(-1" in spec
    report = verify(kernel(spec), [kernel(spec)], checks={"lengths": CHECKS["lengths"]})
    assert all(np.isinf(cell.growth) for cell in report.cells.values())
    assert "grows to" in str(report)


OTHERS = {
    "levels": """
input q : [K]
input k, v2 : [K] per group
input v : [V] per group
input f : scalar per layer where 0 <= f <= 1
param a : [K] per group
state S : [K, V] per group = 0.5
state z : scalar per layer
output o : [V]
S[t] = f * S[t-1] + (a * k + v2) @ v.T
z[t] = f * z[t-1] + f
o = S[t].T @ q + z[t]
""",
    "learned": """
input q, k : [K]
input v : [V]
input g : [K] where g <= 0
param S0 : [K, V]
param β : scalar per layer = 0.3
buffer W : [K, K] = orthogonal_gaussian()
state S : [K, V] = S0
output o : [V]
S[t] = diag(exp(g)) @ S[t-1] + β * (W @ k) @ v.T
o = S[t].T @ q
""",
    "delayed": """
input q, k : [K]
input v : [V]
input g : scalar per group where g <= 0
param w : [K] per layer
param E : [V] per position
state S : [K, V]
output o : [V]
output r : scalar
S[t] = exp(g) * S[t-1] + (w * k + 0.5 * k[t-1] + 0.25 * k[t-3]) @ v.T
o = S[t].T @ q + E * t
r = q.T @ k + head
""",
    "length": """
input q, k : [K]
input v : [V]
state S : [K, V]
output o : [V]
S[t] = S[t-1] + k @ v.T
o = S[t].T @ q / T
""",
    "both_sides": """
input q, k : [K]
input v : [V]
input a : [K]
input b : [V]
gate α = sigmoid(a)**0.25
gate β = sigmoid(b + 2)
state S : [K, V]
output o : [V]
S[t] = diag(α) @ S[t-1] @ diag(β) + k @ v.T
o = S[t].T @ q
""",
    "largest": """
input q, k : [K]
input v : [V]
input i : scalar
input f : scalar where f <= 0
state m : scalar
state S : [K, V]
output o : [V]
m[t] = max(m[t-1] + f, i)
S[t] = exp(m[t-1] + f - m[t]) * S[t-1] + exp(i - m[t]) * k @ v.T
o = S[t].T @ q
""",
    "signed": """
input x : [V]
input a : [V] where -1 <= a <= 1
state h : [V]
output y : [V]
h[t] = a * h[t-1] + x
y = tanh(h[t]) + h[t-1]
""",
    "stabilized": """
input q, k : [K]
input v : [V]
state S : [K, V] (stabilized)
state z : [K] (stabilized)
output o : [V]
S[t] = S[t-1] + exp(k) @ v.T
z[t] = z[t-1] + exp(k)
o = S[t].T @ exp(q) / (z[t].T @ exp(q))
""",
    "nonlinear": """
input x : [V]
param W : [V, V]
state h : [V]
output y : [V]
h[t] = tanh(W @ h[t-1] + x)
y = h[t]
""",
    "window": """
input q, k : [K]
input v : [V]
input s : scalar
output o : [V]
o = attend(q, k, v, window=5, sink=s)
""",
    "attention": """
input q, k : [K]
input v : [V]
input b : scalar
state S : [K, V]
output o : [V]
S[t] = 0.9 * S[t-1] + k @ v.T
o = attend(q, b * k, S[t].T @ k)
""",
}


SOME = ("lengths", "initial state", "defaults", "packed", "padded")
QUICK = {row: CHECKS[row] for row in SOME}
DEPTH = pytest.mark.parametrize(
    "checks", [QUICK, pytest.param(CHECKS, marks=pytest.mark.full)], ids=["quick", "full"]
)


@DEPTH
@pytest.mark.parametrize("target", ["reference", "numpy"])
@pytest.mark.parametrize("name", OTHERS)
def test_the_language_beyond_the_examples(
    name: str, target: str, checks: Mapping[str, Check]
) -> None:
    text = f"variant {name}\ndim K = 6, V = 4\n{OTHERS[name]}"
    try:
        subject = lacc.compile(text, target=target)
    except lacc.LaccError as refused:
        assert target != "reference"
        pytest.skip(str(refused).splitlines()[0])
    report = verify(lacc.compile(text, target="reference"), [subject], checks=checks)
    assert report.passed, str(report)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.la")), ids=lambda path: path.stem)
def test_examples_pass_on_numpy(path: Path) -> None:
    truth = lacc.compile(path, target="reference")
    report = verify(truth, [lacc.compile(path)], checks=QUICK)
    assert report.passed, str(report)
