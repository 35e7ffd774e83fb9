"""A spec and sizes go in; arguments that keep every promise, or break off with an error, come out.

What a `where` says of a name alone bounds it directly; every other promise (``sum(k * k) <= 1``,
``a + b <= 1``, ``sum(w) == 1``) is reached by moving a draw towards an anchor that keeps it, as far
as is needed. Unpromised inputs are N(0, 1). What is looked at is always the draw as rounded to the
dtype asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lacc.diagnostics import LaccError, error
from lacc.runtime.promises import aligned, evaluate, holds
from lacc.spec.model import Arg, Expr, Promise, Spec
from lacc.spec.shapes import show

Array = np.ndarray[Any, Any]

REGIMES = ("interior", "boundary", "strong", "weak", "reset", "repeated")
"""How arguments with a bound are drawn: inside; often at it; far from it (-20, -1000); next to
it (1e-4); with hard resets (-inf), where the spec reads a gate only through exp. In the last,
every token is the first one again."""

ANCHORS = (0.0, 1.0, -1.0, 0.5, -0.5, 0.1, -0.1, 2.0, -2.0, 10.0, -10.0, 100.0, -100.0)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a call: batch, tokens, heads, groups, rows of tables by position (T if 0), and dims
    that differ from their defaults."""

    B: int = 2
    T: int = 64
    H: int = 2
    G: int = 1
    P: int = 0
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Drawing:
    """What is drawn so far, and how to look at a promise over it."""

    spec: Spec
    sizes: Sizes
    dims: dict[str, int]
    dtype: Any
    arrays: dict[str, Array]  # by name in the file, at the heads
    ahead: list[tuple[set[str], list[Promise]]] = field(default_factory=list)  # see `_ahead`

    @property
    def full(self) -> tuple[int, int, int]:
        return (self.sizes.B, self.sizes.T, self.sizes.H)

    def lead(self, arg: Arg) -> tuple[int, ...]:
        """The leading axes of an argument."""
        if arg.per == "position":
            return (self.sizes.P or self.sizes.T,)
        heads = {"head": (self.sizes.H,), "group": (self.sizes.G,), "layer": ()}[arg.per]
        return (self.sizes.B, self.sizes.T, *heads) if arg.role == "input" else heads

    def align(self, arg: Arg, x: Array) -> Array:
        """An argument at the heads, the rows of a table that tokens read."""
        return aligned(
            x[: self.sizes.T] if arg.per == "position" else x, arg.role, arg.per, self.sizes.H
        )

    def rounded(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return x.astype(self.dtype).astype(np.float64)

    def kept(self, arg: Arg, promises: list[Promise], x: Array) -> Array:
        """At which leading indices of ``arg`` its promises hold when it is ``x``."""
        trial = {**self.arrays, arg.name: self.align(arg, self.rounded(x))}
        rounding = 2.0**-7 if np.dtype(self.dtype).name == "bfloat16" else np.finfo(self.dtype).eps
        slack = 16 * float(rounding)
        kept = np.ones(self.full, bool)
        for promise in promises:
            kept = kept & holds(promise, trial, self.full, self.dims, slack)
        for names, later in self.ahead:
            can = np.zeros(self.full, bool)
            for anchor in ANCHORS:
                trial |= {n: self.filled(self.spec.arg(n), anchor) for n in names}
                every = np.ones(self.full, bool)
                for promise in later:
                    every = every & holds(promise, trial, self.full, self.dims, slack)
                can = can | every
            kept = kept & can
        return self.own(arg, kept)

    def filled(self, arg: Arg, value: float) -> Array:
        """An argument whose every entry is ``value``, at the heads."""
        shape = (*self.lead(arg), *(axis.evaluate(self.dims) for axis in arg.shape))
        return self.align(arg, np.full(shape, value))

    def own(self, arg: Arg, kept: Array) -> Array:
        """What holds at [B, T, H] at the leading indices of ``arg``."""
        B, T, H = self.full
        if arg.per == "position":
            rows = np.ones(self.lead(arg), bool)
            rows[:T] = kept.all((0, 2))
            return rows
        if arg.per == "group":
            kept = np.all(kept.reshape(B, T, self.sizes.G, H // self.sizes.G), axis=-1)
        elif arg.per == "layer":
            kept = np.all(kept, axis=-1)
        return kept if arg.role == "input" else np.asarray(np.all(kept, axis=(0, 1)))


def as_dtype(name: str) -> Any:
    """The NumPy dtype called ``name``, bfloat16 too."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def draw(
    spec: Spec,
    sizes: Sizes,
    *,
    seed: int = 0,
    regime: str = "interior",
    dtype: Any = np.float64,
    omit: tuple[str, ...] = (),
) -> dict[str, Array]:
    """All inputs and params by ASCII name (optional ones too), in the shapes of the API.

    Buffers with a sampler and the names in ``omit`` are left out. Raises LaccError
    where the promises of an argument could not be met.
    """
    if regime not in REGIMES:
        raise ValueError(f"regime: expected one of {', '.join(REGIMES)}, got {regime!r}")
    dims = {name: dim.default for name, dim in spec.dims.items()} | dict(sizes.dims)
    drawing = _Drawing(spec, sizes, dims, dtype, {})
    logs = log_gates(spec)
    every = [promise for arg in spec.args for promise in arg.promises]
    arrays: dict[str, Array] = {}
    for number, arg in enumerate(spec.args):
        if arg.draw or arg.ascii in omit:
            continue
        rng = np.random.default_rng([seed, number])
        shape = (*drawing.lead(arg), *(axis.evaluate(dims) for axis in arg.shape))
        promises = [p for p in every if _last(spec, p) is arg]
        drawing.ahead = _ahead(spec, arg, every)
        bounds = _bounds(drawing, arg, promises)
        if bounds is None:
            x = rng.normal(size=shape)
        else:
            x = _within(rng, shape, bounds, regime, arg.name in logs)
        if promises or drawing.ahead:
            x = _mend(drawing, arg, promises, x, rng, regime)
        if regime == "repeated" and arg.role == "input":
            x = np.repeat(x[:, :1], sizes.T, 1)
        arrays[arg.ascii] = x.astype(dtype)
        drawing.arrays[arg.name] = drawing.align(arg, drawing.rounded(x))
    return arrays


def log_gates(spec: Spec) -> frozenset[str]:
    """Names of inputs that are read only as exp(input): -inf is a reset there, with no NaN."""
    uses: dict[str, bool] = {}
    for root in roots(spec):
        for node in root.walk():
            for child in node.args:
                if child.op == "input":
                    name = child.value[0]
                    uses[name] = uses.get(name, True) and node.op == "exp"
        if root.op == "input":
            uses[root.value[0]] = False
    return frozenset(name for name, only in uses.items() if only)


def roots(spec: Spec) -> list[Expr]:
    """Every expression that a token evaluates."""
    found = [e for s in spec.states for e in (s.update, s.initial)] + [o.expr for o in spec.outputs]
    return found + [a.default for a in spec.args if a.default is not None]


def _last(spec: Spec, promise: Promise) -> Arg | None:
    """The argument, latest in declared order, that a promise speaks of."""
    named = {name for side in (promise.left, promise.right) for name in _names(side)}
    return next((arg for arg in reversed(spec.args) if arg.name in named), None)


def _ahead(spec: Spec, arg: Arg, every: list[Promise]) -> list[tuple[set[str], list[Promise]]]:
    """Promises that ``arg`` shares with arguments to be drawn after it: the names of these, and all
    that is promised of them."""
    order = [a.name for a in spec.args]
    later = set(order[order.index(arg.name) + 1 :])
    named = [(p, _names(p.left) | _names(p.right)) for p in every]
    found = []
    for promise, names in named:
        if arg.name in names and names & later:
            own = [p for p, others in named if others <= names & later]
            found.append((names & later, [promise, *own]))
    return found


def _names(expr: Expr) -> set[str]:
    found: set[str] = set()
    for node in expr.walk():
        if node.op == "input":
            found.add(node.value[0])
        elif node.op in ("param", "buffer"):
            found.add(str(node.value))
    return found


@dataclass(frozen=True)
class _Bounds:
    low: float = -np.inf
    high: float = np.inf
    low_in: bool = False  # the bound itself is allowed
    high_in: bool = False


def _bounds(drawing: _Drawing, arg: Arg, promises: list[Promise]) -> _Bounds | None:
    """What promises of the name itself, against what is known already, leave for every entry."""
    low, high, low_in, high_in = -np.inf, np.inf, False, False
    for promise in promises:
        left, right, cmp = promise.left, promise.right, promise.cmp
        if _is(right, arg):
            left, right, cmp = right, left, cmp.translate(str.maketrans("<>", "><"))
        if not _is(left, arg) or arg.name in _names(right):
            continue
        edge = evaluate(right, drawing.arrays, drawing.full, drawing.dims)
        least, most = float(edge.min(initial=np.inf)), float(edge.max(initial=-np.inf))
        if cmp[0] != ">" and least <= high:
            high, high_in = least, cmp != "<" and (high_in or least < high)
        if cmp[0] != "<" and most >= low:
            low, low_in = most, cmp != ">" and (low_in or most > low)
    return None if low == -np.inf and high == np.inf else _Bounds(low, high, low_in, high_in)


def _is(expr: Expr, arg: Arg) -> bool:
    if expr.op == "input":
        return bool(expr.value == (arg.name, 0))
    return bool(expr.op in ("param", "buffer") and expr.value == arg.name)


def _within(
    rng: np.random.Generator, shape: tuple[int, ...], at: _Bounds, regime: str, log: bool
) -> Array:
    """Values between two bounds, of which one may be infinite, as the regime says."""
    pick = rng.uniform(size=shape)
    if np.isfinite(at.low) and np.isfinite(at.high):
        width = at.high - at.low
        x = rng.uniform(at.low + 0.02 * width, at.high - 0.02 * width, size=shape)
        if regime != "interior":
            near = 1e-4 * width if regime == "weak" else 1e-2 * width
            x = np.where(pick < 0.3, at.high - (0 if at.high_in else near), x)
            x = np.where(pick > 0.7, at.low + (0 if at.low_in else near), x)
        return x
    up = np.isfinite(at.low)
    away = np.abs(rng.normal(size=shape)) + 1e-3
    if regime == "boundary":
        away = np.where(pick < 0.3, 0 if (at.low_in if up else at.high_in) else 1e-3, away)
    elif regime == "weak":
        away = np.full(shape, 1e-4)
    elif regime == "strong":
        away = np.where(pick < 0.3, 20, np.where(pick > 0.9, 20 if up else 1000, away))
    elif regime == "reset" and log and not up:
        away = np.where(pick < 0.2, np.inf, away)
    return at.low + away if up else at.high - away


def _mend(
    drawing: _Drawing,
    arg: Arg,
    promises: list[Promise],
    x: Array,
    rng: np.random.Generator,
    regime: str,
) -> Array:
    """``x``, moved at each leading index towards an anchor as far as the promises need."""
    lead = drawing.lead(arg)
    column = lead + (1,) * (x.ndim - len(lead))
    done = drawing.kept(arg, promises, x)
    equations = [p for p in promises if p.cmp == "=="]
    for equation in equations + equations:  # twice: once more from a draw without zeros
        if not done.all():
            x = np.where(done.reshape(column), x, _scaled(drawing, arg, equation, x))
            done = drawing.kept(arg, promises, x)
            x = np.where(done.reshape(column), x, np.abs(rng.normal(size=x.shape)) + 0.1)
    for anchor in ANCHORS:
        if done.all():
            return x
        todo = ~done & drawing.kept(arg, promises, np.full(x.shape, anchor))
        if not todo.any():
            continue
        reach, beyond = np.zeros(lead), np.ones(lead)
        for _ in range(40):
            middle = (reach + beyond) / 2
            good = drawing.kept(arg, promises, anchor + middle.reshape(column) * (x - anchor))
            reach, beyond = np.where(good, middle, reach), np.where(good, beyond, middle)
        inside = rng.uniform(0.5, 1, size=lead)
        if regime == "boundary":
            inside = np.where(inside < 0.75, 1.0, inside)
        moved = anchor + (reach * inside).reshape(column) * (x - anchor)
        safe = drawing.kept(arg, promises, moved)
        moved = np.where(safe.reshape(column), moved, anchor + reach.reshape(column) * (x - anchor))
        x = np.where(todo.reshape(column), moved, x)
        done = drawing.kept(arg, promises, x)
    if not done.all():
        promises = [*promises, *(p for _, later in drawing.ahead for p in later)]
        words = ", ".join(dict.fromkeys(p.span.words for p in promises))
        shape = show(arg.shape)
        fault = error(
            "LA0505", promises[0].span, role=arg.role, name=arg.name, shape=shape, promises=words
        )
        raise LaccError([fault])
    return x


def _scaled(drawing: _Drawing, arg: Arg, equation: Promise, x: Array) -> Array:
    """``x`` (or its magnitudes), scaled at each leading index so that an equation holds there."""
    lead = drawing.lead(arg)
    column = lead + (1,) * (x.ndim - len(lead))

    def off(x: Array) -> Array:
        trial = {**drawing.arrays, arg.name: drawing.align(arg, drawing.rounded(x))}
        left, right = (
            evaluate(side, trial, drawing.full, drawing.dims)
            for side in (equation.left, equation.right)
        )
        gap = (left - right).reshape(*(left - right).shape[:3], -1)[..., 0]
        return drawing.own(arg, np.broadcast_to(gap, drawing.full) > 0)

    x = np.abs(x)
    low, high = np.zeros(lead), np.full(lead, 1e6)
    rising = off(x * 1e6)
    for _ in range(80):
        middle = (low + high) / 2
        above = off(middle.reshape(column) * x) == rising
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high.reshape(column) * x
