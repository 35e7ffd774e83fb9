"""States that need one another in, their step as one recurrence out: linear in all of them at the
token before.

A use of a state at the same token stands for that state's update, so that only X[t-1] is left on
the right; circles within a token are refused earlier. A state that is a value of its token alone
vanishes on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lacc.analysis.affine import Affine, NotAffine, Product, two_sided
from lacc.analysis.kept_terms import factors_of, sum_of
from lacc.analysis.transition import Added, Coupling, Factor, Obstacle, Recurrence
from lacc.ir.build import Builder
from lacc.spec.model import Expr, State
from lacc.spec.shapes import ONE

SHAPES = "coupled states of different shapes"
ONE_SHAPE = "states of one shape that need one another have chunks"
VECTORS = "with products of vectors in place of the matrix, the recurrence has chunks"

Uses = dict[tuple[int, int], tuple[Expr, Expr]]
"""Where a read goes: by state and the identity of its column, the column and its scalar."""


def coupled_step(states: Sequence[State]) -> Recurrence:
    """The recurrence of states that need one another; with an obstacle where there is no chunk
    form."""
    names, direction = tuple(state.name for state in states), states[0].direction
    try:
        found = _Terms(_over_the_token_before(states)).coupling()
    except NotAffine as refusal:
        kind, transition = ("affine", "coupled") if refusal.linear else ("nonlinear",) * 2
        return Recurrence(names, direction, kind, transition, obstacle=refusal.obstacle)
    reason = cure = ""
    if found.reads and not found.scalar:
        cure = "with scalars between the states, or without the erase, they have chunks"
        reason = "an erase in states that are coupled by more than scalars"
    elif found.reads and not found.separable:
        cure = "with writes that are products x @ y.T of vectors, they have chunks"
        reason = "an erase beside a write that is no product of rows and columns"
    obstacle = Obstacle(reason, states[0].update, "coupled", cure) if reason else None
    return Recurrence(names, direction, "affine", "coupled", obstacle=obstacle, coupling=found)


def _over_the_token_before(states: Sequence[State]) -> list[State]:
    """The states with updates that read no state at its own token."""
    by_name = {state.name: state for state in states}
    done: dict[str, Expr] = {}

    def expanded(name: str) -> Expr:
        if name not in done:
            update = by_name[name].update
            build = Builder(update.span)
            rebuilt: dict[int, Expr] = {}
            for node in update.walk():
                if node.op == "state" and node.value[0] in by_name and node.value[1] == 0:
                    rebuilt[id(node)] = expanded(node.value[0])
                    continue
                args = tuple(rebuilt[id(arg)] for arg in node.args)
                same = all(a is b for a, b in zip(args, node.args))
                made = node if same else build.node(node.op, args, node.shape, node.value)
                rebuilt[id(node)] = made
            done[name] = rebuilt[id(update)]
        return done[name]

    return [replace(state, update=expanded(state.name)) for state in states]


class _Terms:
    """The terms of all updates; equal products are one, with a scalar for each state."""

    def __init__(self, states: Sequence[State]) -> None:
        self.build = Builder(states[0].span)
        self.states = states
        self.kept: dict[tuple[int, int], list[tuple[Factor, ...]]] = {}
        self.writes: dict[tuple[object, ...], tuple[tuple[Factor, ...], list[Expr | None]]] = {}
        self.reads: dict[tuple[int, int], tuple[Expr, Uses]] = {}
        self.contracted: set[int] = set()
        for i, state in enumerate(states):
            self._take(i, state)

    def _take(self, i: int, state: State) -> None:
        names = [s.name for s in self.states]
        if state.update.shape != self.states[0].shape:
            raise NotAffine(SHAPES, state.update, True, ONE_SHAPE)
        affine = Affine(self.build, lambda leaf: leaf.reference[0] in names)
        free = affine.indices(state.update)
        for term in affine.terms(state.update, free):
            product = affine.product(term, free)
            axis = {index: n for n, index in enumerate(x for x in free if x is not None)}
            scale = product.factors.pop((), self.build.number(1))
            if product.state is None:
                self._write(i, factors_of(product.factors, axis), scale)
                continue
            leaf, at = product.state
            if leaf.shape != state.update.shape:
                raise NotAffine(SHAPES, leaf, True, ONE_SHAPE)
            j = names.index(leaf.reference[0])
            held = [x for x in at if x is not None]
            moved = [n for n, (have, want) in enumerate(zip(held, axis)) if have != want]
            if not moved:
                one = scale.op == "const" and scale.value == 1
                rest = factors_of(product.factors, axis)
                factors = rest if one else (Factor((), scale), *rest)
                self.kept.setdefault((i, j), []).append(factors)
            elif len(moved) == 1 and held[moved[0]] not in axis:
                self._read(i, j, product, scale, moved[0], list(axis)[moved[0]], held[moved[0]])
            else:
                reason = "a dense transition: entries of the state are mixed"
                raise NotAffine(reason, state.update, True, VECTORS)

    def _sum(self, a: Expr | None, b: Expr) -> Expr:
        return b if a is None else self.build.add(a, b)

    def _write(self, i: int, factors: tuple[Factor, ...], scale: Expr) -> None:
        key = tuple((f.axes, id(f.expr)) for f in factors)
        _, scales = self.writes.setdefault(key, (factors, [None] * len(self.states)))
        scales[i] = self._sum(scales[i], scale)

    def _read(
        self, i: int, j: int, product: Product, scale: Expr, axis: int, free: int, bound: int
    ) -> None:
        """``a (bᵀ X_j)`` in state ``i``."""
        for key, expr in product.factors.items():
            if key not in ((free,), (bound,)):
                reason = "a dense transition: a factor of a read that is no row and no column"
                raise NotAffine(reason, expr, True, VECTORS)
        size = [size for size in self.states[i].shape if size != ONE][axis]
        ones = self.build.node("const", (), (size,), 1)
        a, b = (product.factors.get((index,), ones) for index in (free, bound))
        self.contracted.add(axis)
        if len(self.contracted) > 1:
            raise two_sided(a)
        _, uses = self.reads.setdefault((j, id(b)), (b, {}))
        known = uses.get((i, id(a)))
        uses[i, id(a)] = a, self._sum(known and known[1], scale)

    def _kept(self, i: int, j: int) -> tuple[Factor, ...] | None:
        if (i, j) not in self.kept:
            return None
        return sum_of(self.build, self.states[0].shape, self.kept[i, j])

    def coupling(self) -> Coupling:
        """All of them; reads that are used alike are one."""
        at = range(len(self.states))
        axis = min(self.contracted, default=0)
        added = [Added(factors, tuple(scales)) for factors, scales in self.writes.values()]
        rows: dict[tuple[object, ...], tuple[list[Expr | None], Uses]] = {}
        for (j, _), (b, uses) in self.reads.items():
            key = tuple(sorted((*place, id(scale)) for place, (_, scale) in uses.items()))
            row, _ = rows.setdefault(key, ([None] * len(self.states), uses))
            row[j] = self._sum(row[j], b)
        for r, (_, uses) in enumerate(rows.values()):
            columns = {id(a): a for a, _ in uses.values()}
            for known, a in columns.items():
                scales = (uses.get((i, known)) for i in at)
                scaled = tuple(use and use[1] for use in scales)
                added.append(Added((Factor((axis,), a),), scaled, r))
        return Coupling(
            tuple(tuple(self._kept(i, j) for j in at) for i in at),
            tuple(added),
            tuple(tuple(row) for row, _ in rows.values()),
            axis,
        )
