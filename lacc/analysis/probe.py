"""A recurrence and its promises in, an input that makes its state grow out, where a search finds
one.

Two runs of the spec's own equations with the same constant inputs and different states: what one
token does to their difference is the transition, whatever its class, gates of other states and
positions included. All candidates run at once, on small sizes; the simplest that grows is run again
at the sizes of the spec before it is believed.

Shapes: every value is [2, N, *axes], of two runs and N candidates, with 1 where it does not vary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.analysis.interval import number
from lacc.analysis.ranges import Ranges
from lacc.analysis.transition import Recurrence
from lacc.ir.apply import Apply, compare
from lacc.spec.model import Arg, Expr, Promise, Spec

Array = np.ndarray[Any, Any]

_TOKENS = 40
_SMALL = 4
_CANDIDATES = 512
_GROWS = 1.01
_PLAIN = (0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0, 0.0)
_SLACK = 1e-5


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of an argument, the same at every token: in all of its entries, or in the first and 0
    elsewhere."""

    name: str
    value: float
    first: bool
    rank: int

    def array(self, shape: Sequence[int]) -> Array:
        """The argument's value, of ``shape``."""
        filled = np.full(tuple(shape), self.value)
        if self.first:
            filled.reshape(-1)[1:] = 0.0
        return filled

    def __str__(self) -> str:
        value = number(self.value)
        if not self.rank:
            return f"{self.name} = {value}"
        return (
            f"{self.name} = ({value}, 0, …)" if self.first else f"{self.name} = {value} throughout"
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """Constant inputs and the factor a token by which they make the state grow."""

    settings: tuple[Setting, ...]
    factor: float


def growth(spec: Spec, recurrence: Recurrence, ranges: Ranges) -> Growth | None:
    """The simplest input found that keeps every promise and makes the state grow without end; None
    where none is found."""
    roots = [spec.state(name).update for name in recurrence.states]
    reached = _reached(spec, roots)
    if any(n.op == "attend" or (n.op == "state" and n.value[1] == "T") for n in reached):
        return None
    names = {n.value[0] if n.op == "input" else n.value for n in reached if n.op in _ARGUMENTS}
    moving = names if not recurrence.decays and not recurrence.erases else _moving(spec, recurrence)
    args = [arg for arg in spec.args if arg.name in names]
    choices = [_settings(arg, ranges, arg.name in moving) for arg in args]
    candidates = list(_combinations(choices))
    states = sorted({n.value[0] for n in reached if n.op == "state"} | set(recurrence.states))
    small = {name: dim.default if dim.pinned else _SMALL for name, dim in spec.dims.items()}
    promises = [p for arg in args for p in arg.promises if _arguments(p) <= names]
    try:
        factors = _Run(spec, recurrence, candidates, small, promises, states).factors()
    except ValueError:
        return None
    order = sorted(
        (n for n, factor in enumerate(factors) if factor > _GROWS),
        key=lambda n: (sum(map(_effort, candidates[n])), factors[n]),
    )
    full = {name: dim.default for name, dim in spec.dims.items()}
    for n in order[:3]:
        (factor,) = _Run(spec, recurrence, [candidates[n]], full, promises, states).factors()
        if factor > _GROWS:
            shown = tuple(s for s in candidates[n] if s.name in moving)
            return Growth(shown, float(factor))
    return None


_ARGUMENTS = ("input", "param", "buffer")


def _reached(spec: Spec, roots: Sequence[Expr]) -> list[Expr]:
    """Every node below ``roots`` and below the updates of the states that these need."""
    seen: dict[int, Expr] = {}
    todo = list(roots)
    while todo:
        for node in todo.pop().walk():
            if id(node) not in seen:
                seen[id(node)] = node
                if node.op == "state":
                    todo.append(spec.state(node.value[0]).update)
    return list(seen.values())


def _moving(spec: Spec, recurrence: Recurrence) -> set[str]:
    """The arguments that the transition reads."""
    factors = [factor.expr for factor in recurrence.decays]
    factors += [side for erase in recurrence.erases for side in (erase.a, erase.b)]
    return {
        n.value[0] if n.op == "input" else n.value
        for n in _reached(spec, factors)
        if n.op in _ARGUMENTS
    }


def _arguments(promise: Promise) -> set[str]:
    nodes = [*promise.left.walk(), *promise.right.walk()]
    return {n.value[0] if n.op == "input" else n.value for n in nodes if n.op in _ARGUMENTS}


def _settings(arg: Arg, ranges: Ranges, moves: bool) -> list[Setting]:
    """Values to try: plain numbers in the range, its ends, its middle, and the largest norm."""
    leaf = Expr("input", (), (arg.name, 0), arg.shape, arg.span)
    if arg.role != "input":
        leaf = Expr(arg.role, (), arg.name, arg.shape, arg.span)
    interval = ranges.of(leaf)
    ends = [end for end in (interval.hi, interval.lo) if math.isfinite(end)]
    if len(ends) == 2:
        width = interval.hi - interval.lo
        ends += [interval.lo + width / 2, interval.hi - width / 1024, interval.lo + width / 1024]
    values = [v for v in dict.fromkeys((*_PLAIN, *ends)) if v in interval]
    norm2 = ranges.norm2(leaf) if len(arg.shape) == 1 else math.inf
    if math.isfinite(norm2):
        values.append(math.sqrt(norm2))
    rank = len(arg.shape)
    settings = [Setting(arg.name, v, False, rank) for v in values]
    if rank:
        settings += [Setting(arg.name, v, True, rank) for v in values if v and 0.0 in interval]
    if not moves:
        settings = [s for s in settings if s.value == 0][:1] or settings[:1]
    return settings


def _combinations(choices: list[list[Setting]]) -> Iterator[tuple[Setting, ...]]:
    """All of them, or a fixed random sample where they are too many."""
    if math.prod(map(len, choices)) <= _CANDIDATES:
        yield from itertools.product(*choices)
        return
    draw = np.random.default_rng(0)
    for _ in range(_CANDIDATES):
        yield tuple(options[draw.integers(len(options))] for options in choices)


def _effort(setting: Setting) -> float:
    """How much a reader has to take in: 0 is nothing, 1 and 0.5 are little."""
    if setting.value == 0:
        return 0.0
    plain = 1.0 if abs(setting.value) in (0.5, 1.0) else 2.0
    return plain + 0.1 * (setting.value < 0) + 0.5 * (setting.rank > 0 and not setting.first)


class _Run:
    """Two runs of every candidate, token by token."""

    def __init__(
        self,
        spec: Spec,
        recurrence: Recurrence,
        candidates: Sequence[tuple[Setting, ...]],
        dims: dict[str, int],
        promises: Sequence[Promise],
        states: Sequence[str],
    ) -> None:
        self._spec, self._recurrence = spec, recurrence
        self._dims, self._promises = dims, promises
        self._count = len(candidates)
        self._args = {
            settings[0].name: np.stack([s.array(self._shape_of(s.name)) for s in settings])[None]
            for settings in zip(*candidates)
        }
        self._kept: dict[int, tuple[Expr, Array]] = {}
        self._past: dict[str, list[Array]] = {}
        self._now: dict[int, tuple[Expr, Array]] = {}
        self._applied: dict[Expr, Apply] = {}
        self._t = 1
        for name in states:
            self._past[name] = [self._start(name)]

    def factors(self) -> Array:
        """The growth a token of each candidate, [N]; 0 where it breaks a promise or does not grow
        like a power."""
        with np.errstate(all="ignore"):
            allowed = np.ones(self._count, bool)
            for p in self._promises:
                left, right = self._pair(p)
                met = np.asarray(compare(p.cmp, left, right, _SLACK))
                kept = np.asarray(met.all(tuple(range(2, met.ndim))))
                allowed &= np.broadcast_to(kept[0], allowed.shape)
            start = self._distance()
            sizes = [start]
            for self._t in range(1, _TOKENS + 1):
                self._advance()
                sizes.append(self._distance())
            early = (sizes[_TOKENS // 2] / sizes[_TOKENS // 4]) ** (4 / _TOKENS)
            late = (sizes[_TOKENS] / sizes[_TOKENS // 2]) ** (2 / _TOKENS)
            grows = allowed & (sizes[_TOKENS] > 1.05 * start) & (late > early - 0.005)
            return np.where(grows & np.isfinite(late), late, 0.0)

    def _pair(self, promise: Promise) -> tuple[Array, Array]:
        left, right = self._value(promise.left), self._value(promise.right)
        rank = max(left.ndim, right.ndim)
        return left.reshape(left.shape + (1,) * (rank - left.ndim)), right.reshape(
            right.shape + (1,) * (rank - right.ndim)
        )

    def _distance(self) -> Array:
        """How far apart the two runs are, [N]."""
        total = np.zeros(self._count)
        for name in self._recurrence.states:
            value = self._past[name][-1]
            difference = np.abs(value[1] - value[0])
            total = np.maximum(total, difference.reshape(len(difference), -1).max(1))
        return total

    def _start(self, name: str) -> Array:
        """The value of a state before the first token; the second run starts somewhere else."""
        state = self._spec.state(name)
        shape = (2, self._count, *(size.evaluate(self._dims) for size in state.shape))
        initial = self._value(state.initial)
        padded = initial.reshape(initial.shape + (1,) * (len(shape) - initial.ndim))
        value = np.broadcast_to(padded, shape).copy()
        if name in self._recurrence.states:
            value[1] += np.random.default_rng(1).uniform(0.5, 1.0, shape[2:])
        return value

    def _advance(self) -> None:
        self._now = {}
        values = {name: self._current(name) for name in self._past}
        for name, value in values.items():
            self._past[name].append(value)

    def _current(self, name: str) -> Array:
        value = self._value(self._spec.state(name).update)
        return np.broadcast_to(value, (2, self._count, *value.shape[2:]))

    def _value(self, root: Expr) -> Array:
        for node in root.walk():
            if id(node) in self._kept or id(node) in self._now:
                continue
            value = self._node(node)
            fixed = node.op not in ("state", "t") and all(id(a) in self._kept for a in node.args)
            (self._kept if fixed else self._now)[id(node)] = (node, value)
        return (self._kept.get(id(root)) or self._now[id(root)])[1]

    def _node(self, node: Expr) -> Array:
        if node.args:
            return self._apply(node)
        match node.op:
            case "const":
                return self._number(float(node.value))
            case "size":
                dims = {name: dim.default for name, dim in self._spec.dims.items()}
                return self._number(float(node.value.evaluate(dims)))
            case "input":
                return self._args[node.value[0]]
            case "param" | "buffer":
                return self._args[str(node.value)]
            case "eye":
                return np.eye(node.shape[0].evaluate(self._dims))[None, None]
            case "t":
                return self._number(float(self._t))
            case "T" | "H":
                return self._number(float(_TOKENS if node.op == "T" else 8))
            case "state":
                return self._state(node)
        return self._number(0.0)

    def _state(self, node: Expr) -> Array:
        assert isinstance(node.value, tuple)
        name, when = node.value
        if when == 0:
            return self._current(name)
        past, back = self._past[name], abs(when)
        return past[-back] if back <= len(past) else np.zeros_like(past[0])

    def _apply(self, node: Expr) -> Array:
        values = [(self._kept.get(id(a)) or self._now[id(a)])[1] for a in node.args]
        if node not in self._applied:
            self._applied[node] = Apply(node, self._dims)
        return np.asarray(self._applied[node].value(values))

    def _number(self, value: float) -> Array:
        return np.full((1, 1), value)

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(size.evaluate(self._dims) for size in self._spec.arg(name).shape)
