"""Tile programs in, equal ones out whose factors of fewer axes multiply where there are the fewest
entries: (w ⊙ x) y as w ⊙ (x y), where the product has fewer entries than x, or x (w ⊙ y)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from lacc.tile.program import TIME, Axes, Inst, Program, Tiles
from lacc.tile.rebuild import rebuild

CHUNK, CHANNELS = 32, 64  # what lengths are taken to be, where a program leaves them open
Sink = tuple[int, int, tuple[tuple[str, str], ...]]
"""A contraction, which operand of it a value is, and the names of the value's axes there."""


def move_factors(program: Program, carried: str) -> Program:
    """Factors and signs out of the operands of contractions, to where they are cheapest."""
    body = program.body
    lifted = _lifted(program)

    def bare(f: Tiles, n: int, new: Callable[[int], int]) -> tuple[int, list[int]]:
        """The value without the factors that leave it, and those."""
        inst = body[n]
        if n in lifted:
            tile, factor = lifted[n]
            value, factors = bare(f, tile, new)
            return value, [*factors, f.const(-1.0) if factor is None else new(factor)]
        if inst.op == "rename":
            value, factors = bare(f, inst.ins[0], new)
            if factors:
                names = dict(inst.value)
                renamed = f.arrange(f.rename(value, names), inst.axes)
                return renamed, [f.rename(x, names) for x in factors]
        return new(n), []

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op != "contract":
            return None
        found = [bare(f, i, new) for i in inst.ins]
        if not any(factors for _, factors in found):
            return None
        moved: tuple[list[int], ...] = ([], [], [])
        for at, (_, factors) in enumerate(found):
            for factor in factors:
                moved[_place(program, inst, at, f.axes(factor))].append(factor)
        a, b = (times(f, value, moved[at]) for at, (value, _) in enumerate(found))
        return times(f, f.arrange(f.contract(a, b, inst.value), inst.axes), moved[2])

    return rebuild(program, rule)


def _lifted(program: Program) -> dict[int, tuple[int, int | None]]:
    """The products of a tile and a factor of fewer axes (None: a sign) that only contractions use,
    each of which has a better place for the factor."""
    body = program.body
    users: list[list[tuple[int, int]]] = [[] for _ in body]
    for u, inst in enumerate(body):
        for at, i in enumerate(inst.ins):
            users[i].append((u, at))
    found: dict[int, tuple[int, int | None]] = {}
    sinks: list[list[Sink] | None] = [None] * len(body)
    kept = set(program.outs.values())
    for n in reversed(range(len(body))):
        sinks[n] = None if n in kept or not users[n] else _sinks(program, n, users, sinks, found)
        parts = scale(program, n)
        if parts is not None and sinks[n] is not None:
            axes = () if parts[1] is None else body[parts[1]].axes
            if all(
                _place(program, body[c], at, _renamed(axes, names)) != at
                for c, at, names in sinks[n] or ()
            ):
                found[n] = parts
    return found


def _sinks(
    program: Program,
    n: int,
    users: list[list[tuple[int, int]]],
    sinks: list[list[Sink] | None],
    lifted: dict[int, tuple[int, int | None]],
) -> list[Sink] | None:
    """The contractions that a value reaches as it is, or by factors that leave it; None where
    something else uses it."""
    found: list[Sink] = []
    for u, at in users[n]:
        inst, further = program.body[u], sinks[u]
        if inst.op == "contract":
            found.append((u, at, ()))
        elif inst.op == "rename" and further is not None:
            axes = program.body[n].axes
            for c, where, later in further:
                there = _renamed(_renamed(axes, inst.value), later)
                found.append((c, where, tuple(zip(axes, there))))
        elif u in lifted and lifted[u][0] == n and further is not None:
            found += further
        else:
            return None
    return found


def _renamed(axes: Axes, names: Sequence[tuple[str, str]]) -> Axes:
    return tuple(dict(names).get(x, x) for x in axes)


def _place(program: Program, contraction: Inst, at: int, axes: Axes) -> int:
    """Where a factor over ``axes`` of operand ``at`` is cheapest: 0 or 1, an operand, or 2, the
    result; the operand that has it, in doubt."""
    tiles = [program.body[i].axes for i in contraction.ins]
    tiles.append(contraction.axes)
    order = (at, 2, 1 - at)
    fit = [where for where in order if set(axes) <= set(tiles[where])]
    return min(fit, key=lambda where: _entries(program, tiles[where]))


def _entries(program: Program, axes: Axes) -> int:
    """About how many entries a tile has."""
    lengths = (CHUNK if a in TIME else program.sizes[a].constant or CHANNELS for a in axes)
    return prod(int(n) for n in lengths)


def scale(program: Program, n: int) -> tuple[int, int | None] | None:
    """The tile and the factor of fewer axes that a value is the product of; (tile, None) for one
    with its sign changed."""
    inst = program.body[n]
    if inst.op == "neg":
        return inst.ins[0], None
    if inst.op == "mul":
        for tile, factor in (inst.ins, inst.ins[::-1]):
            fewer = set(program.body[factor].axes) < set(inst.axes)
            if fewer and set(program.body[tile].axes) == set(inst.axes):
                return tile, factor
    return None


def times(f: Tiles, tile: int, factors: Sequence[int]) -> int:
    """The tile times the factors, these multiplied together first where one has the axes of the
    other."""
    groups: list[int] = []
    for factor in sorted(factors, key=lambda x: len(f.axes(x))):
        axes = set(f.axes(factor))
        near = next((g for g in groups if set(f.axes(g)) <= axes), None)
        if near is None:
            groups.append(factor)
        else:
            groups[groups.index(near)] = f.mul(factor, near)
    for group in groups:
        tile = f.mul(tile, group)
    return tile


def gather(program: Program, carried: str) -> Program:
    """Chains of products and signs as one: tiles first, then all factors of fewer axes together."""
    body = program.body
    uses = [0] * len(body)
    for inst in body:
        for i in inst.ins:
            uses[i] += 1
    for n in program.outs.values():
        uses[n] += 2

    def chain(n: int, root: bool = True) -> list[int | None]:
        """The factors of a value, None for each sign."""
        inst = body[n]
        if inst.op == "neg" and (root or uses[n] == 1):
            return [None, *chain(inst.ins[0], False)]
        if inst.op == "mul" and (root or uses[n] == 1):
            return [x for i in inst.ins for x in chain(i, False)]
        return [n]

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        if body[n].op not in ("mul", "neg"):
            return None
        parts = chain(n)
        tiles = [x for x in parts if x is not None]
        wide = [x for x in tiles if len(body[x].axes) == len(body[n].axes)]
        small = [x for x in tiles if len(body[x].axes) < len(body[n].axes)]
        signs = parts.count(None)
        if not wide or not signs + len(small) > 1:
            return None
        value = new(wide[0])
        for x in wide[1:]:
            value = f.mul(value, new(x))
        factors = [new(x) for x in small]
        if signs % 2:
            factors.append(f.const(-1.0))
        return times(f, value, factors)

    return rebuild(program, rule)
