"""A spec in, its recurrences in canonical form out: one per component of the state graph, in an
order that can run.

The class is read off the index structure of the expanded update (`affine.py`). With S[i, j] and
free indices o0, o1:

    no S                      a write
    S[o0, o1]                 a decay by the coefficients, grouped by the indices they carry
    S[b, o1], b bound         low rank on the left: a carries o0, b carries the bound index
    S[o0, b]                  low rank on the right
    one factor on both        a dense transition
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lacc.analysis.affine import TOO_LONG, Affine, NotAffine, Product, two_sided
from lacc.analysis.coupled import coupled_step
from lacc.analysis.kept_terms import factors_of, sum_of
from lacc.analysis.offending import free_of_states, linear, rid, term_around
from lacc.analysis.transition import Factor, LowRank, Obstacle, Recurrence, Write
from lacc.analysis.tropical import tropical_step
from lacc.ir.build import Builder
from lacc.ir.graph import components, fewest_covering, needs, ordered_groups
from lacc.spec.model import Expr, Spec, State
from lacc.spec.names import is_memory
from lacc.spec.shapes import ONE

DIAGONAL = (
    "in a basis where that matrix is diagonal it is a decay, and a sum of products a @ b.T of "
    "vectors is an erase: both have chunks"
)
ONE_STRENGTH = (
    "with one strength for all columns, as in `β : scalar`, or one for each row of what it reads, "
    "the recurrence has chunks"
)
_TROPICAL = {"max": "maxplus", "min": "minplus", "logaddexp": "logsumexp"}


def recurrences(spec: Spec) -> tuple[Recurrence, ...]:
    """Every component of the spec's states, each after those it needs."""
    return tuple(_component(spec, names) for names in components(spec))


def _component(spec: Spec, names: tuple[str, ...]) -> Recurrence:
    states = [spec.state(name) for name in names]
    found = _step(states)
    if found.obstacle is None:
        return found
    term = term_around(states, found.obstacle.expr)
    return replace(found, obstacle=replace(found.obstacle, expr=term))


def _step(states: Sequence[State]) -> Recurrence:
    """The recurrence of states that need one another."""
    names, direction = tuple(state.name for state in states), states[0].direction
    if len(states) > 1:
        found = coupled_step(states)
        if found.obstacle is None or not rid(states, free_of_states)[1]:
            return found
        return _nonlinear(states)
    (state,) = states
    try:
        return affine_step(state)
    except NotAffine as refusal:
        if refusal.obstacle.kind == TOO_LONG or not rid(states, free_of_states)[1]:
            return Recurrence(names, direction, "affine", "dense", obstacle=refusal.obstacle)
        tropical = tropical_step(state)
        if tropical is None:
            return _nonlinear(states)
        kind = _TROPICAL[tropical.op]
        return Recurrence(names, direction, kind, kind, tropical=tropical)


def _nonlinear(states: Sequence[State]) -> Recurrence:
    """States that are not affine in one another, and what they would be without the terms that make
    them so."""
    left, found = rid(states, free_of_states)
    first, *others = (refusal.obstacle for refusal in found)
    more = {(o.expr.span.start, o.expr.span.end): o.expr for o in (first, *others)}
    affine, one_by_one = rid(states, linear)
    if len(one_by_one) == 1 and _obstacle(affine) is None:
        cure = f"{first.cure}, the recurrence is affine and has chunks"
        return _refused(states, replace(first, cure=cure))
    own = ", ".join(f"`{state.name}`" for state in states if not is_memory(state.name))
    terms = "these terms" if len(more) > 1 else "this term"
    rest = _obstacle(left)
    then = "affine and has chunks" if rest is None else f"affine, still with {rest.reason}"
    cure = f"with {terms} computed without {own}, the recurrence is {then}"
    return _refused(states, replace(first, cure=cure, more=tuple(more.values())[1:]))


def _refused(states: Sequence[State], obstacle: Obstacle) -> Recurrence:
    names, kind = tuple(state.name for state in states), "nonlinear"
    return Recurrence(names, states[0].direction, kind, kind, obstacle=obstacle)


def _obstacle(states: Sequence[State]) -> Obstacle | None:
    """What keeps states from the chunk form, each with those that it still needs."""
    by_name = {state.name: state for state in states}
    needed = {s.name: {n.state for n in needs(s.update)} & by_name.keys() for s in states}
    found = (_step([by_name[name] for name in group]) for group in ordered_groups(needed))
    return next((r.obstacle for r in found if r.obstacle is not None), None)


def affine_step(state: State) -> Recurrence:
    """The canonical form of one state's update. Raises NotAffine where it has none."""
    build = Builder(state.span)
    affine = Affine(build, lambda leaf: leaf.reference[0] == state.name)
    free = affine.indices(state.update)
    products = [affine.product(term, free) for term in affine.terms(state.update, free)]
    axis = {index: n for n, index in enumerate(i for i in free if i is not None)}
    live = tuple(axis)
    decays: list[tuple[Factor, ...]] = []
    erases: list[LowRank] = []
    writes: list[Write] = []
    for product in products:
        if product.state is None:
            writes.append(_write(product, axis))
            continue
        at = tuple(i for i in product.state[1] if i is not None)
        moved = [n for n, (have, want) in enumerate(zip(at, live)) if have != want]
        if not moved:
            decays.append(factors_of(product.factors, axis))
        elif len(moved) == 1 and at[moved[0]] not in axis:
            erases.append(_low_rank(build, product, moved[0], at[moved[0]], live, state))
        elif len(moved) == 2 and not axis.keys() & {*at} and _is_thin(product):
            raise two_sided(state.update)
        else:
            reason = "a dense transition: entries of the state are mixed"
            raise NotAffine(reason, state.update, True, DIAGONAL)
    return _classified(build, state, decays, erases, writes)


def _is_thin(product: Product) -> bool:
    """Whether all factors are scalars and vectors."""
    return all(len(key) < 2 for key in product.factors)


def _write(product: Product, axis: dict[int, int]) -> Write:
    return Write(factors_of(product.factors, axis))


def _low_rank(
    build: Builder,
    product: Product,
    contracted: int,
    bound: int,
    live: tuple[int, ...],
    state: State,
) -> LowRank:
    """``a (bᵀ S)``: the column factor alone in ``a``, every scalar in ``b``, so that columns can be
    shared."""
    a: Expr | None = None
    b: Expr | None = None
    along: Expr | None = None
    scalar = build.number(1)
    for key, expr in product.factors.items():
        if key == ():
            scalar = build.mul(scalar, expr)
        elif key == (live[contracted],):
            a = expr
        elif key == (bound,):
            b = expr
        elif live[contracted] in key and bound in key:
            reason = "a dense transition: one factor on both sides"
            raise NotAffine(reason, expr, True, DIAGONAL)
        elif len(key) == 1:
            along = expr
        else:
            reason = "an erase of its own for every column of the state"
            raise NotAffine(reason, expr, True, ONE_STRENGTH, "an erase per channel")
    if a is None or b is None:
        size = [size for size in state.shape if size != ONE][contracted]
        ones = build.node("const", (), (size,), 1)
        a, b = a or ones, b or ones
    if a.op == "neg":
        a, scalar = a.args[0], build.neg(scalar)
    return LowRank(contracted, a, build.mul(scalar, b), along)


def _classified(
    build: Builder,
    state: State,
    decays: list[tuple[Factor, ...]],
    erases: list[LowRank],
    writes: list[Write],
) -> Recurrence:
    decay = sum_of(build, state.shape, decays)
    transition = _transition(decay, erases) if decays or erases else "none"
    obstacle = None
    if erases:
        obstacle = _on_both_sides(state, decay, erases, writes)
        erases = erases if obstacle else _least(build, erases)
        writes = _by_column(build, writes, erases[0].axis)
    else:
        writes = _fewest(build, writes)
    return Recurrence(
        (state.name,),
        state.direction,
        "affine",
        transition,
        decay,
        tuple(erases),
        tuple(writes),
        obstacle,
    )


def _on_both_sides(
    state: State, decay: tuple[Factor, ...], erases: list[LowRank], writes: list[Write]
) -> Obstacle | None:
    """What acts on the axis that the erases do not contract, where no gauge takes it out."""
    if len({erase.axis for erase in erases}) > 1:
        return two_sided(state.update).obstacle
    other = (1 - erases[0].axis,)
    shared = next((f.expr for f in decay if f.axes == other), None)
    for erase in erases:
        if erase.along is not None and erase.along is not shared:
            reason = "an erase of its own for every entry of the axis that it leaves"
            return Obstacle(reason, erase.along, "an erase per channel", ONE_STRENGTH)
    if any(f.axes == (0, 1) for f in decay):
        reason = "an erase beside a decay of its own for every entry"
        cure = "with a decay for each row or each column, the recurrence has chunks"
        return Obstacle(reason, state.update, "an erase beside a decay per entry", cure)
    if shared is not None and any(erase.along is None for erase in erases):
        reason = "a decay of the axis that an erase leaves, which it does not share"
        cure = "with the decay applied to what is erased too, the recurrence has chunks"
        return Obstacle(reason, shared, "an erase beside another decay", cure)
    if any(write.on((0, 1)) is not None for write in writes):
        reason = "an erase beside a write that is no product of rows and columns"
        cure = "with writes that are products x @ y.T of vectors, it has chunks"
        return Obstacle(reason, state.update, "an erase beside a write per entry", cure)
    return None


def _transition(decay: tuple[Factor, ...], erases: list[LowRank]) -> str:
    if erases:
        return "low rank"
    spread = {factor.axes for factor in decay}
    if (0, 1) in spread:
        return "elementwise"
    if (0,) in spread and (1,) in spread:
        return "diagonal (both sides)"
    if (0,) in spread:
        return "diagonal (rows)"
    if (1,) in spread:
        return "diagonal (columns)"
    return "scalar" if spread else "identity"


def _least(build: Builder, erases: list[LowRank]) -> list[LowRank]:
    """The fewest pairs: terms that share a column add their rows, terms that share a row add their
    columns.

    Terms are the edges of a bipartite graph of columns and rows; a minimum vertex cover is the
    rank.
    """
    ends = [(("a", id(erase.a)), ("b", id(_bare(erase.b)))) for erase in erases]
    cover = fewest_covering(ends)
    grouped: dict[tuple[str, int], list[LowRank]] = {}
    for erase, (column, row) in zip(erases, ends):
        grouped.setdefault(column if column in cover else row, []).append(erase)
    return [_joined(build, kind, group) for (kind, _), group in grouped.items()]


def _fewest(build: Builder, writes: list[Write]) -> list[Write]:
    """Writes x yᵀ that share an x or a y as one: k vᵀ + w vᵀ is (k + w) vᵀ."""
    pairs = []
    for write in writes:
        x, y, scalar = write.on((0,)), write.on((1,)), write.on(())
        if x is None or y is None or len(write.factors) > 2 + (scalar is not None):
            return writes
        pairs.append(LowRank(0, x, y if scalar is None else build.mul(scalar, y)))
    least = _least(build, pairs) if len(pairs) > 1 else pairs
    if len(least) == len(writes):
        return writes
    return [Write((Factor((0,), p.a), Factor((1,), p.b))) for p in least]


def _by_column(build: Builder, writes: list[Write], axis: int) -> list[Write]:
    """Writes of a column (along ``axis``) as one each, so that an erase can share it."""
    grouped: dict[object, list[Write]] = {}
    for write in writes:
        column, row = write.on((axis,)), write.on((1 - axis,))
        plain = column is not None and row is not None and write.on((0, 1)) is None
        grouped.setdefault(("column", id(column)) if plain else id(write), []).append(write)
    return [
        group[0] if len(group) == 1 else _added(build, group, axis) for group in grouped.values()
    ]


def _added(build: Builder, group: list[Write], axis: int) -> Write:
    """Writes of one column: the sum of their rows."""
    column = group[0].on((axis,))
    total: Expr | None = None
    for write in group:
        row = build.number(1)
        for factor in write.factors:
            row = row if factor.axes == (axis,) else build.mul(row, factor.expr)
        total = row if total is None else build.add(total, row)
    assert column is not None and total is not None
    return Write((Factor((axis,), column), Factor((1 - axis,), total)))


def _bare(row: Expr) -> Expr:
    """A row without its scalar factors and sign."""
    while True:
        if row.op == "neg":
            row = row.args[0]
        elif row.op == "mul" and not row.args[0].shape:
            row = row.args[1]
        elif row.op == "mul" and not row.args[1].shape:
            row = row.args[0]
        else:
            return row


def _scale(build: Builder, row: Expr) -> Expr:
    """The scalar factors and sign of a row."""
    scale = build.number(1)
    while True:
        if row.op == "neg":
            scale, row = build.neg(scale), row.args[0]
        elif row.op == "mul" and not row.args[0].shape:
            scale, row = build.mul(scale, row.args[0]), row.args[1]
        elif row.op == "mul" and not row.args[1].shape:
            scale, row = build.mul(scale, row.args[1]), row.args[0]
        else:
            return scale


def _joined(build: Builder, shared: str, group: list[LowRank]) -> LowRank:
    first = group[0]
    if len(group) == 1:
        return first
    if shared == "a":
        row = first.b
        for erase in group[1:]:
            row = build.add(row, erase.b)
        return LowRank(first.axis, first.a, row, first.along)
    column = build.mul(_scale(build, first.b), first.a)
    for erase in group[1:]:
        column = build.add(column, build.mul(_scale(build, erase.b), erase.a))
    return LowRank(first.axis, column, _bare(first.b), first.along)
