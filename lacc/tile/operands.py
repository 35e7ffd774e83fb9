"""The program of one kernel in, the same with products of matrices over what was loaded out.

An operand that is loaded goes from memory to shared memory by itself and takes no registers; one
that is computed is loaded into registers, computed there and written to shared memory. So factors
of rows leave the operands that are loads otherwise: (w ⊙ q) S is w ⊙ (q S). Entries of products are
rounded less, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lacc.tile.pressure import matrix_product
from lacc.tile.program import Axes, Inst, Program, Tiles
from lacc.tile.rebuild import rebuild
from lacc.tile.row_factors import scale, times

RESULT = 2

ROUNDED = ("gram", "meet", "decayed")
PASSING = ("mul", "neg", "rename", "expand", "within")


def only_products(program: Program, n: int) -> bool:
    """Whether a value goes, but for factors, into products of matrices alone, which round their
    operands, or into a sum over all that it has, where errors cancel."""
    if n in program.outs.values():
        return False
    for k, inst in enumerate(program.body):
        if n in inst.ins:
            if inst.op in PASSING:
                if not only_products(program, k):
                    return False
            elif inst.op == "contract":
                a, b = (program.body[i].axes for i in inst.ins)
                if a != b and not matrix_product(program, inst):
                    return False
            elif inst.op not in ROUNDED:
                return False
    return True


def bare_operands(program: Program) -> Program:
    """Factors of fewer axes out of the operands that are loads without them."""
    body = program.body

    def root(n: int) -> tuple[int, tuple[int | None, ...]]:
        """What a value is a product of: a tile, and factors of fewer axes or signs (None)."""
        parts = scale(program, n)
        if parts is not None:
            tile, factors = root(parts[0])
            return tile, (*factors, parts[1])
        return n, ()

    def bare(f: Tiles, n: int, new: Callable[[int], int]) -> tuple[int, list[int]]:
        """The load that a value is but for factors, and those; the value itself elsewhere."""
        inst = body[n]
        if inst.op == "rename":
            value, factors = bare(f, inst.ins[0], new)
            names = dict(inst.value)
            return f.arrange(f.rename(value, names), inst.axes), [
                f.rename(x, names) for x in factors
            ]
        tile, found = root(n)
        if found and body[tile].op in ("load", "rename"):
            inner, more = bare(f, tile, new)
            return inner, [*more, *(f.const(-1.0) if x is None else new(x) for x in found)]
        return new(n), []

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if not matrix_product(program, inst):
            return None
        found = [bare(f, i, new) for i in inst.ins]
        if not any(factors for _, factors in found):
            return None
        moved: tuple[list[int], ...] = ([], [], [])
        for at, (_, factors) in enumerate(found):
            for x in factors:
                moved[_place(f, inst.axes, found, at, x)].append(x)
        a, b = (times(f, value, moved[at]) for at, (value, _) in enumerate(found))
        product = f.emit(replace(inst, ins=(a, b), name=""))
        return times(f, product, moved[RESULT])

    return rebuild(program, rule)


def _place(f: Tiles, axes: Axes, found: list[tuple[int, list[int]]], at: int, factor: int) -> int:
    """Where a factor of operand ``at`` goes: to the result, else to the other operand where that is
    computed anyway, else back."""
    if set(f.axes(factor)) <= set(axes):
        return RESULT
    other = found[1 - at][0]
    while f.body[other].op == "rename":
        other = f.body[other].ins[0]
    fits = set(f.axes(factor)) <= set(f.axes(found[1 - at][0]))
    return 1 - at if fits and f.body[other].op != "load" else at


def loaded_apart(program: Program, axis: str) -> Program:
    """Tiles without ``axis`` that products of matrices take and others use, too, are loaded once
    for either: an operand waits for all blocks of the axis in shared memory, not in registers."""
    body: list[Inst] = []
    new: list[int] = []
    own: dict[int, int] = {}
    uses = [set[bool]() for _ in program.body]
    for n, inst in reversed([*enumerate(program.body)]):
        for i in inst.ins:
            uses[i] |= uses[n] if inst.op == "rename" else {matrix_product(program, inst)}
    for n, inst in enumerate(program.body):
        product = matrix_product(program, inst) or (inst.op == "rename" and uses[n] == {True})
        ins = tuple(own.get(i, new[i]) if product else new[i] for i in inst.ins)
        new.append(len(body))
        body.append(replace(inst, ins=ins))
        if inst.op == "load" and axis not in inst.axes and len(uses[n]) == 2:
            own[n] = len(body)
            body.append(inst)
    return Program(tuple(body), {name: new[n] for name, n in program.outs.items()}, program.sizes)
