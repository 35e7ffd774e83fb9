"""Ranges hold for every input that keeps the promises, and are as tight as a reader makes them."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from conftest import EXAMPLES
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacc import driver
from lacc.analysis.classify import recurrences
from lacc.analysis.decay import decays_of
from lacc.analysis.interval import Interval
from lacc.analysis.ranges import Ranges
from lacc.diagnostics import LaccError
from lacc.runtime.promises import aligned, evaluate
from lacc.spec.model import Expr, Spec
from lacc.verify.inputs import REGIMES, Sizes, draw

ARGUMENTS = """
input a, b, c : scalar where 0 <= a, a <= 1, -1 < b, b < 1, c <= 0
input f : scalar
input u, w : [K] where 0 <= w, w <= 1
input k : [K] where sum(k * k) <= 1
input p : scalar where 0 <= p <= 1
input r : scalar where 0 <= r, p + r <= 1
param s : scalar where s > 0
"""


@cache
def spec_of(*definitions: str, arguments: str = ARGUMENTS) -> Spec:
    """A spec whose definitions ``x0``, ``x1``, … are of interest."""
    lines = [f"x{n} = {body}" for n, body in enumerate(definitions)]
    used = " + ".join(f"sum(x{n})" for n in range(len(definitions)))
    return driver.load(
        "variant example\ndim K = 5\nconst eps = 0.001\ninput q : [K]\n"
        + arguments
        + "\n".join(lines)
        + f"\noutput o : scalar\no = {used}\n"
    )


def range_of(body: str, arguments: str = ARGUMENTS) -> Interval:
    """The range of one definition."""
    spec = spec_of(body, arguments=arguments)
    return Ranges(spec).of(spec.definitions[0].expr)


Arrays = dict[str, np.ndarray]


def drawn_for(spec: Spec, regime: str, seed: int) -> Arrays:
    """Arguments within the promises, at the heads."""
    drawn = draw(spec, Sizes(B=2, T=12, H=2), regime=regime, seed=seed)
    dims = {name: dim.default for name, dim in spec.dims.items()}
    arrays = {a.name: aligned(drawn[a.ascii], a.role, a.per, 2) for a in spec.args if not a.draw}
    for arg in spec.args:
        if arg.draw:
            heads = (2,) if arg.per == "head" else ()
            shape = (*heads, *(size.evaluate(dims) for size in arg.shape))
            made = np.random.default_rng(seed).normal(size=shape)
            arrays[arg.name] = aligned(made, arg.role, arg.per, 2)
    return arrays


def values(spec: Spec, expr: Expr, arrays: Arrays) -> np.ndarray:
    """The expression for arguments within the promises."""
    dims = {name: dim.default for name, dim in spec.dims.items()}
    with np.errstate(all="ignore"):
        return evaluate(expr, arrays, (2, 12, 2), dims)


def check(spec: Spec, expr: Expr, drawn: list[Arrays] | None = None) -> None:
    """Every drawn value is in the range, up to rounding."""
    interval = Ranges(spec).of(expr)
    for arrays in drawn or [drawn_for(spec, regime, 0) for regime in REGIMES]:
        found = values(spec, expr, arrays)
        found = found[~np.isnan(found)]
        slack = 1e-12 * (1 + np.abs(found))
        assert (found >= interval.lo - slack).all(), (interval, found.min())
        assert (found <= interval.hi + slack).all(), (interval, found.max())


@cache
def common_arrays() -> list[Arrays]:
    """Draws of `ARGUMENTS`."""
    return [drawn_for(spec_of("a"), regime, seed) for regime in REGIMES for seed in range(3)]


SCALARS = ("a", "b", "c", "f", "p", "r", "s", "0.5", "1", "2", "sum(k * k)", "k.T @ u", "max(w)")
VECTORS = ("u", "w", "k", "softmax(u)", "normalize(u)", "roll(k, 1)")
MAPS = ("exp", "sigmoid", "logsigmoid", "softplus", "tanh", "relu", "silu", "elu", "abs", "sin")


def grown(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions over ``leaves``."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds("{1}({0})".format, inner, st.sampled_from(MAPS)),
            st.builds("({0} {1} {2})".format, inner, st.sampled_from("+-*/"), inner),
            st.builds("{2}({0}, {1})".format, inner, inner, st.sampled_from(("max", "min"))),
            st.builds("(1 - {0})".format, inner),
            st.builds("({0})**2".format, inner),
            st.builds("sqrt({0} * {0} + eps)".format, inner),
            st.builds("where({0} < {1}, {1}, {0})".format, inner, inner),
        ),
        max_leaves=6,
    )


EXPRESSIONS = st.one_of(
    grown(st.sampled_from(SCALARS)),
    grown(st.sampled_from((*VECTORS, "a", "0.5"))).map("sum({})".format),
    grown(st.sampled_from((*VECTORS, "a", "0.5"))),
)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_a_range_holds_for_every_input_within_the_promises(body: str) -> None:
    try:
        spec = spec_of(f"u * ({body})" if not body.startswith("sum") else body)
    except LaccError as fault:
        assert fault.code == "LA0307", fault
        assume(False)
    root = spec.definitions[0].expr
    for node in list(root.walk())[-4:]:
        if len(node.shape) < 2 and node.op not in ("lt",):
            check(spec, node, common_arrays())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_ranges_of_the_examples_hold(path) -> None:
    spec = driver.load(path)
    for definition in spec.definitions:
        if not any(n.op in ("state", "attend") for n in definition.expr.walk()):
            check(spec, definition.expr)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 - a", "[0, 1]"),
        ("exp(c)", "[0, 1]"),
        ("sigmoid(f)", "(0, 1)"),
        ("exp(-exp(f))", "(0, 1)"),
        ("exp(-softplus(f) * s)", "(0, 1)"),
        ("b * b", "[0, 1)"),
        ("f * f", "[0, inf)"),
        ("a + (1 - a) * sigmoid(f)", "(0, 1]"),
        ("1 - p - r", "[0, 1]"),
        ("p + r", "[0, 1]"),
        ("p - r", "[-1, 1]"),
        ("1 - 2 * sum(k * k)", "[-1, 1]"),
        ("k.T @ k", "[0, 1]"),
        ("sum(k**2)", "[0, 1]"),
        ("k", "[-1, 1]"),
        ("sum(k * roll(k, 2))", "[-1, 1]"),
        ("sum(k * (2 * roll(k, 1)))", "[-2, 2]"),
        ("sum(softmax(u))", "[1, 1]"),
        ("sum(softmax(u) * w)", "[0, 1]"),
        ("sum(u * u) / (sum(u * u) + eps)", "[0, 1)"),
        ("f - max(f, a)", "(-inf, 0]"),
        ("a - logaddexp(a, f)", "(-inf, 0]"),
        ("K**-0.5", "(0, 1]"),
        ("min(max(f, 0), 1)", "[0, 1]"),
        ("1 - 2**(-5 - a)", "[0.96875, 0.984375]"),
    ],
)
def test_a_range_is_as_tight_as_a_reader_would_make_it(body: str, said: str) -> None:
    assert str(range_of(body)) == said


@pytest.mark.parametrize(
    "arguments",
    [
        "input k : [K] where sum(k * k) <= 4\n",
        "input k : [K] where k.T @ k <= 4\n",
        "input k : [K] where sum(k**2) <= 4\n",
        "input k : [K] where sqrt(sum(k * k)) <= 2\n",
        "input k : [K] where 0.5 * sum(k * k) - 2 <= 0\n",
        "const N = 4\ninput k : [K] where N >= sum(k * k)\n",
    ],
)
def test_a_promise_means_the_same_however_it_is_written(arguments: str) -> None:
    spec = spec_of("k", "k.T @ k", "2 * k", arguments=arguments)
    ranges = Ranges(spec)
    entry, squares, double = (d.expr for d in spec.definitions)
    assert ranges.of(entry).within(-2, 2)
    assert ranges.of(squares).within(0, 4)
    assert ranges.norm2(double) == 16


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("normalize(f * u)", 1.0),
        ("u * rsqrt(sum(u * u) + eps)", 1.0),
        ("u / (sqrt(sum(u * u)) + eps)", 1.0),
        ("u / max(sqrt(sum(u * u)), eps)", 1.0),
        ("silu(k)", 1.0),
        ("a * k", 1.0),
        ("w * k", 1.0),
        ("concat(k, 1)", 2.0),
        ("0.5 * (k + roll(k, 1))", 1.0),
        ("softmax(u)", 1.0),
        ("u", math.inf),
    ],
)
def test_the_norm_of_a_vector_is_bounded_by_how_it_was_made(body: str, limit: float) -> None:
    spec = spec_of(body)
    assert Ranges(spec).norm2(spec.definitions[0].expr) == pytest.approx(limit)


def test_a_delayed_input_keeps_its_promise_and_is_0_before_the_start() -> None:
    spec = spec_of(
        "g[t-2]",
        "k[t-1].T @ k[t-1]",
        arguments=("input g : scalar where 1 <= g, g <= 2\ninput k : [K] where sum(k * k) <= 1\n"),
    )
    first, second = (Ranges(spec).of(d.expr) for d in spec.definitions)
    assert (first.lo, first.hi) == (0, 2)
    assert second.within(0, 1)


def test_a_size_has_a_value_only_where_it_is_pinned() -> None:
    text = spec_of("1 / K").file.source.text
    free, pinned = (driver.load(text, given) for given in ({}, {"K": 4}))
    assert str(Ranges(free).of(free.definitions[0].expr)) == "(0, 1]"
    assert str(Ranges(pinned).of(pinned.definitions[0].expr)) == "[0.25, 0.25]"


def decay(gate: str, arguments: str):
    """The decay of a state that a gate multiplies."""
    spec = driver.load(
        "variant example\ndim K = 4, V = 3\ninput q, k : [K]\ninput v : [V]\n"
        + arguments
        + f"gate α = {gate}\nstate S : [K, V]\noutput o : [V]\n"
        "S[t] = α * S[t-1] + k @ v.T\no = S[t].T @ q\n"
    )
    ((found,),) = (decays_of(r, Ranges(spec)) for r in recurrences(spec))
    return spec, found


@pytest.mark.parametrize(
    ("gate", "arguments", "space"),
    [
        ("exp(g)", "input g : scalar where g <= 0\n", "log"),
        ("sigmoid(g)", "input g : scalar\n", "log"),
        ("1 - sigmoid(g)", "input g : scalar\n", "log"),
        ("sigmoid(g)**0.5", "input g : scalar\n", "log"),
        ("exp(g) * sigmoid(h)", "input g, h : scalar where g <= 0\n", "log"),
        ("exp(-softplus(g)) / (1 + exp(h))", "input g, h : scalar\n", "log"),
        ("where(h > 0, 0, exp(g))", "input g, h : scalar where g <= 0\n", "log"),
        ("min(sigmoid(g), 0.5)", "input g : scalar\n", "log"),
        ("1 - 2**(-5 - head)", "", "log"),
        ("γ", "param γ : scalar where 0 < γ < 1\n", "log"),
        ("γ**softplus(g)", "param γ : scalar where 0 < γ < 1\ninput g : scalar\n", "log"),
        ("γ", "param γ : scalar where 0 <= γ <= 1\n", "linear"),
        ("a", "input a : scalar where 0 < a <= 1\n", "linear"),
        ("a", "input a : scalar where 0 <= a <= 1\n", "linear"),
        ("tanh(a)", "input a : scalar\n", "linear"),
        ("a * exp(g)", "input a, g : scalar where g <= 0\n", "linear"),
        ("0.1 + 0.9 * sigmoid(g)", "input g : scalar\n", "linear"),
    ],
)
def test_a_decay_is_kept_as_its_log_only_where_that_loses_nothing(
    gate: str, arguments: str, space: str
) -> None:
    spec, found = decay(gate, arguments)
    assert found.space == space
    if space == "log":
        arrays = drawn_for(spec, "interior", 0)
        log = values(spec, found.expr, arrays)
        np.testing.assert_allclose(np.exp(log), values(spec, found.factor, arrays))


def test_a_decay_says_what_it_may_do() -> None:
    _, gate = decay("exp(g)", "input g : scalar where g <= 0\n")
    assert gate.bounded and gate.may_vanish and not gate.may_be_negative and gate.time_varying
    _, fixed = decay("1 - 2**(-5 - head)", "")
    assert fixed.bounded and not fixed.may_vanish and not fixed.time_varying
    _, signed = decay("tanh(a)", "input a : scalar\n")
    assert signed.bounded and signed.may_vanish and signed.may_be_negative
    _, free = decay("exp(g)", "input g : scalar\n")
    assert not free.bounded


def test_a_divisor_that_reaches_zero_from_below_gives_either_infinity() -> None:
    assert Interval(-2.0, 0.0).reciprocal() == Interval()
    assert Interval(-2.0, 0.0, hi_open=True).reciprocal().hi == -0.5
    spec = spec_of("u * min(a, a / c)")  # c <= 0: of c = 0 it is a, up to 1
    least = next(n for n in spec.definitions[0].expr.walk() if n.op == "min")
    assert Ranges(spec).of(least).hi == 1.0
