"""A spec's promises in, sound ranges of its expressions out.

Two bounds are taken and met: the op table's interval rules, node by node, and the polynomial of the expression
(`algebra.py`), where a promise about `sum(k * k)` or `a - b`, a convex combination and `n / (n + eps)` are seen as what
they are. A promise never clips a value: everything here holds for inputs that keep the promises, with initial states that
the spec itself could have left behind.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

from lacc.analysis.algebra import Algebra, Group, Mono, Node, Poly, Total, add, number, scaled, times, unit
from lacc.analysis.interval import REALS, Interval
from lacc.ir.ops import OPS
from lacc.spec.model import Arg, Expr, Spec
from lacc.spec.shapes import ONE, Size

_RISING = {"exp", "log", "sqrt", "sigmoid", "logsigmoid", "softplus", "tanh", "erf", "elu", "elu1"}
_CONTRACTING = {"relu", "tanh", "sin", "elu", "silu", "gelu", "erf", "abs", "neg", "stop_gradient"}
_ABOVE_ARGUMENTS = {"max", "logaddexp", "relu", "softplus", "abs"}
_CORNERS = 8
_NESTED = 2
_INVARIANTS = (Interval(0.0, 1.0), Interval(0.0), Interval(-1.0, 1.0), Interval(-math.inf, 0.0))


class Ranges:
    """Ranges of the expressions of one spec, from its promises."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._args = {arg.name: arg for arg in spec.args}
        self._states = {state.name: state for state in spec.states}
        self.algebra = Algebra(self._fixed, self._update)
        self._promised: dict[Poly, Interval] = {}
        self._assumed: dict[str, Interval] = {}
        self._level = 0
        self._forget()
        for arg in spec.args:
            for promise in arg.promises:
                self._learn_comparison(promise.cmp, promise.left, promise.right)

    def _forget(self) -> None:
        self._known: dict[int, tuple[Expr, Interval]] = {}
        self._polys: dict[tuple[Poly, bool], Interval] = {}
        self._atoms: dict[tuple[int, bool], Interval] = {}
        self._related = True

    # ---- what is asked --------------------------------------------------------------------------

    def of(self, expr: Expr) -> Interval:
        """The range of every entry of ``expr``."""
        if id(expr) not in self._known:
            for node in expr.walk():
                if id(node) not in self._known:
                    bound = self._by_op(node).meet(self.of_poly(self.algebra.poly(node)))
                    self._known[id(node)] = (node, bound)
        return self._known[id(expr)][1]

    def norm2(self, expr: Expr) -> float:
        """An upper bound of ``sum(x * x)`` of a vector; inf where nothing bounds it."""
        poly = self.algebra.poly(expr)
        square = self.algebra.mul(poly, poly)
        squares = square and self.algebra.total(square)
        return self.of_poly(squares).hi if squares else math.inf

    def of_poly(self, poly: Poly) -> Interval:
        """The range of a polynomial of the algebra."""
        key = poly, self._related
        if key not in self._polys:
            self._polys[key] = REALS
            self._polys[key] = self._bound(poly, depth=2)
        return self._polys[key]

    # ---- promises -------------------------------------------------------------------------------

    def _learn_comparison(self, cmp: str, left: Expr, right: Expr) -> None:
        difference = add(self.algebra.poly(left), scaled(self.algebra.poly(right), -1.0))
        interval = {
            "<": Interval(-math.inf, 0.0, hi_open=True),
            "<=": Interval(-math.inf, 0.0),
            ">": Interval(0.0, math.inf, lo_open=True),
            ">=": Interval(0.0, math.inf),
            "==": Interval(0.0, 0.0),
        }[cmp]
        self._learn(difference, interval)

    def _learn(self, poly: Poly, interval: Interval) -> None:
        """``poly`` is in ``interval``: kept without its constant, and with its first coefficient 1."""
        constant = dict(poly.terms).get((), 0.0)
        linear = add(poly, number(-constant))
        if not linear.terms:
            return
        leading = linear.terms[0][1]
        linear, interval = scaled(linear, 1 / leading), interval.shifted(-constant).scaled(1 / leading)
        self._promised[linear] = self._promised.get(linear, Interval()).meet(interval)
        if len(linear.terms) == 1 and len(linear.terms[0][0]) == 1:
            self._learn_inverse(linear.terms[0][0][0], interval)

    def _learn_inverse(self, factor: tuple[int, Fraction], interval: Interval) -> None:
        """What a bound of ``f(x)`` says of x, where f is a power or one of a few functions."""
        index, power = factor
        atom = self.algebra.atoms[index]
        if power != 1:
            if power > 0 and (power.denominator != 1 or power % 2 == 0):
                base = interval.meet(Interval(0.0)).power(1 / power)
                if power.denominator == 1:
                    base = Interval(-base.hi, base.hi, base.hi_open, base.hi_open)
                self._learn(atom.poly if isinstance(atom, Group) else unit(index), base)
            return
        if not isinstance(atom, Node):
            return
        args = [self.algebra.poly(arg) for arg in atom.expr.args]
        match atom.expr.op:
            case "exp" if interval.hi > 0:
                self._learn(args[0], Interval(hi=math.log(interval.hi), hi_open=interval.hi_open))
            case "abs":
                self._learn(args[0], Interval(-interval.hi, interval.hi, interval.hi_open, interval.hi_open))
            case "reduce_max":
                self._learn(args[0], Interval(hi=interval.hi, hi_open=interval.hi_open))
            case "reduce_min":
                self._learn(args[0], Interval(lo=interval.lo, lo_open=interval.lo_open))

    # ---- polynomials ----------------------------------------------------------------------------

    def _bound(self, poly: Poly, depth: int) -> Interval:
        total = Interval.point(0.0)
        pieces = [(self._pieces(mono), coefficient) for mono, coefficient in poly.terms]
        for parts, coefficient in pieces:
            total = total + self._product(parts).scaled(coefficient)
        bound = total.meet(self._by_promise(poly)).meet(self._at_corners(pieces))
        if depth and len(poly.terms) > 1:
            bound = bound.meet(self._common(poly, depth)).meet(self._by_dominance(poly, depth))
        return bound.meet(self._by_relation(poly))

    def _by_promise(self, poly: Poly) -> Interval:
        constant = dict(poly.terms).get((), 0.0)
        linear = add(poly, number(-constant))
        if not linear.terms:
            return Interval.point(constant)
        leading = linear.terms[0][1]
        promised = self._promised.get(scaled(linear, 1 / leading))
        return promised.scaled(leading).shifted(constant) if promised else Interval()

    def _by_relation(self, poly: Poly) -> Interval:
        """``a <= b`` bounds a by b: the poly is the promised difference and what then remains."""
        bound, mine = Interval(), {mono for mono, _ in poly.terms if mono}
        if not self._related:
            return bound
        self._related = False
        for relation, interval in self._promised.items():
            if len(relation.terms) < 2:
                continue
            for mono, coefficient in relation.terms:
                if mono in mine:
                    factor = dict(poly.terms)[mono] / coefficient
                    rest = self.of_poly(add(poly, scaled(relation, -factor)))
                    bound = bound.meet(rest + interval.scaled(factor))
        self._related = True
        return bound

    def _common(self, poly: Poly, depth: int) -> Interval:
        """``c · (a + b)`` bounded as a product."""
        shared = dict(poly.terms[0][0])
        for mono, _ in poly.terms[1:]:
            powers = dict(mono)
            shared = {a: p for a, p in shared.items() if powers.get(a) == p}
        if not shared:
            return Interval()
        factor: Mono = tuple(sorted(shared.items()))
        rest = Poly(tuple(sorted((times(m, factor, Fraction(-1)), c) for m, c in poly.terms)))
        return self._product(self._pieces(factor)) * self._bound(rest, depth - 1)

    def _by_dominance(self, poly: Poly, depth: int) -> Interval:
        """max(a, b) is at least a: a sum that holds one, alone in its term, is bounded by the sum with a in its place."""
        bound = Interval()
        for mono, coefficient in poly.terms:
            if len(mono) != 1 or mono[0][1] != 1:
                continue
            atom = self.algebra.atoms[mono[0][0]]
            if not isinstance(atom, Node) or atom.expr.op not in _ABOVE_ARGUMENTS | {"min"}:
                continue
            above = atom.expr.op != "min"
            rest = add(poly, Poly(((mono, -coefficient),)))
            below = [self.algebra.poly(arg) for arg in atom.expr.args]
            if atom.expr.op == "abs":
                below.append(scaled(below[0], -1.0))
            if len(below) < 2 or atom.expr.op == "abs":
                below.append(number(0.0))
            for other in below:
                replaced = self._bound(add(rest, scaled(other, coefficient)), depth - 1)
                if (coefficient < 0) == above:
                    bound = bound.meet(Interval(hi=replaced.hi))
                else:
                    bound = bound.meet(Interval(lo=replaced.lo))
        return bound

    def _at_corners(self, terms: list[tuple[list[Mono], float]]) -> Interval:
        """A polynomial that is linear in each of its pieces takes its extremes at the corners of their box."""
        pieces = sorted({piece for parts, _ in terms for piece in parts})
        if len(pieces) > _CORNERS or any(len(set(parts)) < len(parts) for parts, _ in terms):
            return Interval()
        box = [self._piece(piece) for piece in pieces]
        if not all(side.bounded for side in box):
            return Interval()
        values = {}
        for corner in itertools.product((0, 1), repeat=len(pieces)):
            at = {p: (side.hi if up else side.lo) for p, side, up in zip(pieces, box, corner)}
            values[corner] = sum(c * math.prod(at[p] for p in parts) for parts, c in terms)
        lo, hi = min(values.values()), max(values.values())
        return Interval(lo, hi, not _reached(values, box, lo), not _reached(values, box, hi))

    # ---- products -------------------------------------------------------------------------------

    def _product(self, pieces: list[Mono]) -> Interval:
        result = Interval.point(1.0)
        for piece in pieces:
            result = result * self._piece(piece)
        return result

    def _pieces(self, mono: Mono) -> list[Mono]:
        """``mono`` cut into products about which something is known as a whole, and single powers."""
        pieces: list[Mono] = []
        rest = mono
        known = [poly.terms[0][0] for poly in self._promised if len(poly.terms) == 1]
        for candidate in [m for m in known if len(m) > 1] + self._ratios(mono):
            powers = dict(rest)
            if all(_covers(powers.get(a, Fraction(0)), p) for a, p in candidate):
                pieces.append(candidate)
                rest = times(rest, candidate, Fraction(-1))
        return pieces + [(one,) for one in rest]

    def _ratios(self, mono: Mono) -> list[Mono]:
        """Products ``t^p · D^-p`` in ``mono`` where t is a term of D = t + others, all from 0 on: at most 1."""
        return [candidate for candidate, _ in self._fractions(mono)]

    def _fractions(self, mono: Mono) -> list[tuple[Mono, Interval]]:
        found: list[tuple[Mono, Interval]] = []
        powers = dict(mono)
        for index, power in mono:
            if power >= 0:
                continue
            atom = self.algebra.atoms[index]
            below = (index, power)
            for term, coefficient, strict in self._parts(index):
                raised = self.algebra.merged(tuple((a, p * -power) for a, p in term), ())
                if raised is None or len(raised.terms) != 1:
                    continue
                ((numerator, _),) = raised.terms
                for candidate in (numerator, self._entrywise(numerator)):
                    if candidate and all(_covers(powers.get(a, Fraction(0)), p) for a, p in candidate):
                        limit = coefficient ** float(power)
                        bound = Interval(0.0, limit, False, strict)
                        found.append((times(candidate, (below,)), bound))
            if isinstance(atom, Total) and len(atom.mono) == 1 and atom.mono[0][1] == 2:
                entry = (atom.mono[0][0], -2 * power)
                if _covers(powers.get(entry[0], Fraction(0)), entry[1]):
                    found.append((tuple(sorted((entry, below))), Interval(0.0, 1.0)))
        return found

    def _parts(self, index: int) -> list[tuple[Mono, float, bool]]:
        """Terms t ≥ 0 with D ≥ c t for the atom D: the term, c, and whether D > c t."""
        atom = self.algebra.atoms[index]
        if isinstance(atom, Node) and atom.expr.op == "max":
            args = [self.algebra.poly(arg) for arg in atom.expr.args]
            singles = [arg for arg in args if len(arg.terms) == 1 and self.of_poly(arg).lo >= 0]
            return [(mono, c, False) for (mono, c), in (a.terms for a in singles) if mono and c > 0]
        if not isinstance(atom, Group):
            return []
        result = []
        for mono, coefficient in atom.poly.terms:
            rest = self.of_poly(add(atom.poly, Poly(((mono, -coefficient),))))
            alone = self._product([(one,) for one in mono])
            if mono and coefficient > 0 and rest.lo >= 0 and alone.lo >= 0:
                result.append((mono, coefficient, rest.positive))
        return result

    def _entrywise(self, mono: Mono) -> Mono:
        """``mono`` with ``sum(x²)`` replaced by x², which is at most as large; empty where it holds no such sum."""
        for index, power in mono:
            atom = self.algebra.atoms[index]
            if isinstance(atom, Total) and len(atom.mono) == 1 and atom.mono[0][1] == 2 and power > 0:
                entry = ((atom.mono[0][0], 2 * power),)
                return times(times(mono, ((index, -power),)), entry)
        return ()

    def _piece(self, piece: Mono) -> Interval:
        bound = self._by_promise(Poly(((piece, 1.0),)))
        if len(piece) == 1:
            ((index, power),) = piece
            return self._atom(index).power(power).meet(bound)
        for candidate, interval in self._fractions(piece):
            if candidate == piece:
                bound = bound.meet(interval)
        return bound.meet(self._product([(one,) for one in piece]))

    # ---- atoms ----------------------------------------------------------------------------------

    def _atom(self, index: int) -> Interval:
        key = index, self._related
        if key in self._atoms:
            return self._atoms[key]
        self._atoms[key] = REALS
        match self.algebra.atoms[index]:
            case Node(expr):
                bound = self._by_op(expr).meet(self._by_norm(index, expr))
            case Total(mono):
                bound = self._total(mono)
            case Group(poly):
                bound = self.of_poly(poly)
        one = unit(index)
        self._atoms[key] = bound.meet(self._by_promise(one)).meet(self._by_relation(one))
        return self._atoms[key]

    def _by_norm(self, index: int, expr: Expr) -> Interval:
        """An entry is no larger than a promised norm of its vector."""
        squares = self.algebra.total(unit(index, 2)) if len(expr.shape) == 1 else None
        promised = squares and self._promised.get(squares)
        if not promised:
            return Interval()
        bound = math.sqrt(max(promised.hi, 0.0))
        return Interval(-bound, bound, promised.hi_open, promised.hi_open)

    def _total(self, mono: Mono) -> Interval:
        """The sum over a vector of Π atom^power."""
        atoms = [(self.algebra.atoms[index], power) for index, power in mono]
        shifted = self._now(mono)
        if shifted is not None:
            return self.of_poly(shifted).hull(Interval.point(0.0))
        entry = self._product(self._pieces(mono))
        bound = Interval(*OPS["sum"].interval((entry.lo, entry.hi)))  # type: ignore[misc]
        if entry.positive:
            bound = bound.meet(Interval(0.0, lo_open=True))
        count = self._count(mono)
        if count is not None:
            bound = bound.meet(entry.scaled(count))
        for position, (atom, power) in enumerate(atoms):
            others = self._product([(one,) for n, one in enumerate(mono) if n != position])
            if isinstance(atom, Node) and atom.expr.op == "softmax" and power == 1:
                bound = bound.meet(others)
            if power == 2 and len(mono) > 1 and others.lo >= 0:
                squares = self._squares(mono[position][0])
                bound = bound.meet(Interval(0.0, squares) * Interval(0.0, others.hi))
        if len(mono) == 1 and mono[0][1] == 2:
            bound = bound.meet(Interval(0.0, self._structural(mono[0][0])))
        if len(mono) == 2 and mono[0][1] == mono[1][1] == 1:
            limit = math.sqrt(self._squares(mono[0][0])) * math.sqrt(self._squares(mono[1][0]))
            if not math.isnan(limit):
                bound = bound.meet(Interval(-limit, limit))
        return bound

    def _squares(self, index: int) -> float:
        """A bound of ``sum(x²)`` of one atom."""
        squares = self.algebra.total(unit(index, 2))
        return self.of_poly(squares).hi if squares else math.inf

    def _structural(self, index: int) -> float:
        """A bound of ``sum(x²)`` that comes from how x was made."""
        atom = self.algebra.atoms[index]
        if not isinstance(atom, Node):
            return math.inf
        expr = atom.expr
        if expr.op == "softmax":
            return 1.0
        if expr.op in _CONTRACTING | {"roll", "rotate", "T"}:
            return self.norm2(expr.args[0])
        if expr.op == "concat":
            return sum(
                self.norm2(arg) if arg.shape else self.of(arg).magnitude ** 2 for arg in expr.args
            )
        if expr.op == "where":
            return sum(self.norm2(arg) if arg.shape else math.inf for arg in expr.args[1:])
        return math.inf

    def _count(self, mono: Mono) -> int | None:
        """How many entries the vector has, where its size is fixed."""
        for index, _ in mono:
            atom = self.algebra.atoms[index]
            if isinstance(atom, Node) and len(atom.expr.shape) == 1:
                value = self._fixed(atom.expr.shape[0])
                return None if value is None else int(value)
        return None

    def _now(self, mono: Mono) -> Poly | None:
        """A sum over one delayed input, as the sum over the input now; None for any other."""
        if len(mono) != 1:
            return None
        atom = self.algebra.atoms[mono[0][0]]
        if not isinstance(atom, Node) or atom.expr.op != "input":
            return None
        name, offset = atom.expr.value  # type: ignore[misc]
        if offset == 0:
            return None
        ((now, _),) = self.algebra.poly(_input(self._args[name])).terms
        return self.algebra.total(unit(now[0][0], mono[0][1]))

    # ---- the op table ---------------------------------------------------------------------------

    def _by_op(self, e: Expr) -> Interval:
        args = [self.of(arg) for arg in e.args]
        if not args:
            return self._leaf(e)
        match e.op:
            case "add":
                return args[0] + args[1]
            case "sub":
                return args[0] + -args[1]
            case "neg":
                return -args[0]
            case "mul":
                return args[0] * args[1]
            case "div":
                return args[0] * args[1].reciprocal()
            case "where":
                return args[1].hull(args[2])
            case "pow" if args[0].lo == args[0].hi and args[0].positive:
                lo, hi = OPS["pow"].interval(*((a.lo, a.hi) for a in args))  # type: ignore[misc]
                ends = args[1] if args[0].lo >= 1 else -args[1]
                return Interval(lo, hi, ends.lo_open, ends.hi_open)
            case "T" | "roll" | "vec" | "mean" | "reduce_max" | "reduce_min" | "stop_gradient":
                return args[0]
            case "concat":
                result = args[0]
                for arg in args[1:]:
                    result = result.hull(arg)
                return result
            case "matmul" if e.args[0].shape[-1] == ONE:
                return args[0] * args[1]
            case "attend":
                return args[2].hull(Interval.point(0.0)) if len(args) > 3 else args[2]
            case "softmax":
                return Interval(0.0, 1.0, args[0].lo_open or math.isfinite(args[0].lo))
        rule = OPS[e.op].interval
        if rule is None:
            return REALS
        lo, hi = rule(*((a.lo, a.hi) for a in args))
        reached = not all(a.lo_open or math.isfinite(a.lo) for a in args)
        topped = not all(a.hi_open or math.isfinite(a.hi) for a in args)
        infinite = reached or topped
        if e.op in _RISING:
            return Interval(lo, hi, args[0].lo_open, args[0].hi_open)
        return Interval(
            lo, hi, math.isinf(lo) and not infinite, math.isinf(hi) and not infinite
        )

    def _leaf(self, e: Expr) -> Interval:
        match e.op:
            case "const":
                return Interval.point(float(e.value))  # type: ignore[arg-type]
            case "size":
                return self._size(e.value)  # type: ignore[arg-type]
            case "eye":
                return Interval(0.0, 1.0)
            case "head":
                return Interval(0.0, math.inf, False, True)
            case "t" | "T" | "T_length" | "H":
                return Interval(1.0, math.inf, False, True)
            case "input" if e.value[1] != 0:  # type: ignore[index]
                now = _input(self._args[e.value[0]])  # type: ignore[index]
                return self.of(now).hull(Interval.point(0.0))
            case "input" | "param" | "buffer":
                name = e.value[0] if e.op == "input" else e.value  # type: ignore[index]
                return Interval() if self._args[name].promises else REALS  # type: ignore[index]
            case "state":
                return self._state(*e.value)  # type: ignore[misc]
        return REALS

    def _state(self, name: str, when: object) -> Interval:
        """An interval that holds the initial state and that the update does not leave."""
        state = self._states[name]
        if when == 0 and len(state.shape) == 2:
            return self.of(state.update)
        if name not in self._assumed:
            self._assumed[name] = REALS
            start = self.of(state.initial).hull(Interval.point(0.0))
            for candidate in _INVARIANTS if self._level < _NESTED else ():
                if start.within(candidate.lo, candidate.hi) and self._kept(name, candidate):
                    self._assumed[name] = candidate
                    break
        return self._assumed[name]

    def _kept(self, name: str, candidate: Interval) -> bool:
        """Whether the update of ``name`` stays in ``candidate`` when its earlier values are there."""
        inner = Ranges.__new__(Ranges)
        inner.spec, inner._args, inner._states = self.spec, self._args, self._states
        inner.algebra, inner._promised = self.algebra, self._promised
        inner._assumed, inner._level = {**self._assumed, name: candidate}, self._level + 1
        inner._forget()
        bound = inner.of(self._states[name].update)
        return bound.within(candidate.lo, candidate.hi)

    def _size(self, size: Size) -> Interval:
        value = self._fixed(size)
        if value is not None:
            return Interval.point(value)
        if all(coefficient >= 0 for _, coefficient in size.terms):
            return Interval(float(size.evaluate(dict.fromkeys(size.dims, 1))), math.inf, False, True)
        return REALS

    def _fixed(self, size: Size) -> float | None:
        """The value of a size whose dims are all pinned (the others come with the arrays)."""
        dims = self.spec.dims
        if all(name in dims and dims[name].pinned for name in size.dims):
            return float(size.evaluate({name: dims[name].default for name in size.dims}))
        return None

    def _update(self, name: str) -> Expr | None:
        return self._states[name].update


def _input(arg: Arg) -> Expr:
    return Expr("input", (), (arg.name, 0), arg.shape, arg.span)


def _covers(have: Fraction, want: Fraction) -> bool:
    """Whether a power ``want`` can be taken out of ``have``."""
    return have == want or (want > 0 and have > want and have.denominator == want.denominator == 1)


def _reached(values: dict[tuple[int, ...], float], box: list[Interval], extreme: float) -> bool:
    """Whether a corner value is taken: sides without a closed end count only with both of their corners."""
    choices = []
    for side in box:
        closed = [(end,) for end, is_open in ((0, side.lo_open), (1, side.hi_open)) if not is_open]
        choices.append(closed or [(0, 1)])
    return any(
        all(values[corner] == extreme for corner in itertools.product(*choice))
        for choice in itertools.product(*choices)
    )
