"""One state's update in, its form ``m[t] = (m[t-1] + f) ⊕ i`` out, where ⊕ is max, min or
logaddexp.

Sums distribute over ⊕, so what is composed of ⊕, sums and choices is of that form again:

    ((m + f) ⊕ i) + c        f + c, i + c
    ((m + f) ⊕ i) ⊕ j        f, i ⊕ j               and ((m + f) ⊕ i) ⊕ ((m + g) ⊕ j): f ⊕ g, i ⊕ j
    where(c, (m + f) ⊕ i, (m + g) ⊕ j)              where(c, f, g), where(c, i, j)

A part that is not there is the identity of ⊕. Under a minus, max and min change places.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lacc.analysis.transition import Tropical
from lacc.ir.build import Builder
from lacc.spec.model import Expr, State

_MIRROR = {"max": "min", "min": "max"}
_WITH_ZERO = {"relu": "max", "softplus": "logaddexp"}
_IDENTITY = {"max": -math.inf, "min": math.inf, "logaddexp": -math.inf}

Parts = tuple[Expr | None, Expr | None]
"""What is added to the state, and what it meets; None for the identity of ⊕."""

Join = Callable[[Expr | None, Expr | None], Expr | None]


class _NotTropical(Exception):
    """The update has no such form."""


def tropical_step(state: State) -> Tropical | None:
    """The form of one state's update; None where it has none."""
    forms = _Forms(state)
    try:
        forms.of(state.update, False)  # finds which ⊕ it is
        f, i = forms.of(state.update, False)
    except _NotTropical:
        return None
    return Tropical(forms.op, f, i) if f is not None and i is not None and forms.op else None


def written(form: Tropical, state: State) -> Expr:
    """The form as the right side of an update."""
    build, shape = Builder(state.span), state.shape
    step = 1 if state.direction == "backward" else -1
    moved = build.node("state", (), shape, (state.name, step))
    if not (form.f.op == "const" and form.f.value == 0):
        moved = build.add(moved, form.f)
    return build.node(form.op, (moved, form.i), shape)


class _Forms:
    """Forms of the parts of one update."""

    def __init__(self, state: State) -> None:
        self.op = ""
        self._state = state
        self._build = Builder(state.span)
        self._holds: dict[Expr, bool] = {}
        for node in state.update.walk():
            own = node.op == "state" and node.reference[0] == state.name
            self._holds[node] = own or any(self._holds[arg] for arg in node.args)

    def of(self, e: Expr, minus: bool) -> Parts:
        """The form of ``e``, of its negative with ``minus``."""
        build = self._build
        if not self._holds.get(e, False):
            return None, build.neg(e) if minus else e
        match e.op, e.args:
            case "state", _ if not minus and e.reference[1] in (-1, 1):
                return build.number(0), None
            case "neg", (a,):
                return self.of(a, not minus)
            case (("add" | "sub"), (a, b)) if self._holds[a] != self._holds[b]:
                inner, other = (a, b) if self._holds[a] else (b, a)
                flipped = e.op == "sub" and inner is b
                negative = e.op == "sub" and inner is a
                added = build.neg(other) if minus != negative else other
                return self._shifted(self.of(inner, minus != flipped), added)
            case (("max" | "min" | "logaddexp"), (a, b)):
                return self._joined(e.op, minus, a, b)
            case (("relu" | "softplus"), (a,)):
                return self._joined(_WITH_ZERO[e.op], minus, a, build.number(0))
            case "stop_gradient", (a,):
                return self.of(a, minus)
            case "where", (condition, a, b) if not self._holds[condition]:
                choose = self._chosen(condition)
                return self._both(choose, self.of(a, minus), self.of(b, minus))
        raise _NotTropical

    def _shifted(self, form: Parts, by: Expr) -> Parts:
        f, i = (None if part is None else self._sum(part, by) for part in form)
        return f, i

    def _sum(self, a: Expr, b: Expr) -> Expr:
        return b if a.op == "const" and a.value == 0 and not a.shape else self._build.add(a, b)

    def _joined(self, op: str, minus: bool, a: Expr, b: Expr) -> Parts:
        """The form of ``op(a, b)``."""
        if minus and op not in _MIRROR:
            raise _NotTropical
        op = _MIRROR[op] if minus else op
        if self.op not in ("", op):
            raise _NotTropical
        self.op = op
        return self._both(self._op, self.of(a, minus), self.of(b, minus))

    def _both(self, join: Join, a: Parts, b: Parts) -> Parts:
        return join(a[0], b[0]), join(a[1], b[1])

    def _op(self, a: Expr | None, b: Expr | None) -> Expr | None:
        if a is None or b is None:
            return b if a is None else a
        return self._build.node(self.op, (a, b), a.shape or b.shape)

    def _chosen(self, condition: Expr) -> Join:
        def choose(a: Expr | None, b: Expr | None) -> Expr | None:
            if a is None and b is None:
                return None
            none = self._build.number(_IDENTITY[self.op or "max"])
            args = (condition, none if a is None else a, none if b is None else b)
            shape = next((arg.shape for arg in args if arg.shape), ())
            return self._build.node("where", args, shape)

        return choose
