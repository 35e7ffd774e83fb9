"""A tile program in, an equal one out that a target runs chunk by chunk at less cost: the rewrites,
and `PIPELINE`, the order of them all.

Each takes the program and the kind of load that is carried from chunk to chunk ("state" forward,
"dstate" backward); outputs keep their names, axes and, up to rounding, values. It is a rule for
`rebuild`: ``rule(f, n, new)`` is what stands for value ``n`` in the new program ``f``, where
``new(i)`` stands for value ``i``; None keeps it.
A value is *in the loop*, or waits for the carry, where `split.phases` has it carried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from lacc.ir.ops import OPS
from lacc.tile.program import Axes, Program, Tiles
from lacc.tile.rebuild import rebuild
from lacc.tile.row_factors import gather, move_factors
from lacc.tile.split import phases, reaches

Rewrite = Callable[[Program, str], Program]

ELEMENTWISE = frozenset(n for n, op in OPS.items() if op.entrywise)


def free_carry_of_solves(program: Program, carried: str) -> Program:
    """A solve that waits for the carried state becomes two that do not: (I+L)⁻¹ (R + B S) = (I+L)⁻¹
    R + ((I+L)⁻¹ B) S.

    The carry is left with two products a chunk and no solve. Works on the transpose as well: Bᵀ
    (I+L)⁻ᵀ X = ((I+L)⁻¹ B)ᵀ X.
    """
    needs: set[int] = set()
    for n, inst in enumerate(program.body):
        carries = inst.op == "load" and inst.value[0] == carried
        if carries or any(i in needs for i in inst.ins):
            needs.add(n)
    body = program.body

    def linear(
        f: Tiles, system: int, right: int, new: Callable[[int], int], transposed: bool
    ) -> int | None:
        """The solve of ``right`` by parts: sums, and products whose state-free factor holds
        time."""
        if right not in needs:
            return f.op("solve", (system, new(right)), transposed)
        inst = body[right]
        if inst.op in ("add", "sub"):
            parts = [linear(f, system, i, new, transposed) for i in inst.ins]
            if None in parts or any(body[i].axes != inst.axes for i in inst.ins):
                return None
            return f.ew(inst.op, *(p for p in parts if p is not None))
        if inst.op == "neg":
            part = linear(f, system, inst.ins[0], new, transposed)
            return None if part is None else f.neg(part)
        if inst.op == "contract" and "t" not in inst.value:
            for free, held in (inst.ins, inst.ins[::-1]):
                if (
                    free not in needs
                    and "t" in body[free].axes
                    and not set(body[held].axes) & {"t", "s"}
                ):
                    solved = f.op("solve", (system, new(free)), transposed)
                    return f.contract(solved, new(held), inst.value)
        return None

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op == "solve" and inst.ins[1] in needs and inst.ins[0] not in needs:
            return linear(f, new(inst.ins[0]), inst.ins[1], new, bool(inst.value))
        return None

    return rebuild(program, rule)


def solve_by_inverse(program: Program, carried: str) -> Program:
    """Solves as products with the inverse of their system: one inverse serves all that have the
    system in common, those with its transpose too."""
    body = program.body

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op != "solve" or len(body[inst.ins[0]].axes) > 2:
            return None
        inverse, right = f.op("inverse", (new(inst.ins[0]),)), new(inst.ins[1])
        if inst.value:
            return f.rename(f.contract(inverse, right, ("t",)), {"s": "t"})
        return f.contract(inverse, f.rename(right, {"t": "s"}), ("s",))

    return rebuild(program, rule)


def meet_once(program: Program, carried: str) -> Program:
    """``gram(x, y, d)`` beside x · prefix(d) or y · suffix(d) as one walk over the levels that
    gives all three. Not where x · prefix(d) would have to wait for the carried state that y needs,
    or the other way round."""
    body = program.body
    waits = reaches(program, {n: name for name, n in program.loads(carried).items()})
    grams = {inst.ins: n for n, inst in enumerate(body) if inst.op == "gram"}

    def factor(n: int, ends: str) -> tuple[int, int] | None:
        """(x, d) where value ``n`` is x · prefix(d) (or suffix), with the axes of x."""
        for x, end in (body[n].ins, body[n].ins[::-1]) if body[n].op == "mul" else ():
            if body[end].op == ends and set(body[x].axes) == set(body[n].axes):
                return x, body[end].ins[0]
        return None

    found: dict[int, tuple[int, int]] = {}
    for n in range(len(body)):
        for ends, place in (("prefix", 0), ("suffix", 1)):
            pair = factor(n, ends)
            for (x, y, d), gram in grams.items() if pair else ():
                if pair == ((x, y)[place], d) and waits[gram] <= waits[n]:
                    found[n] = (gram, 1 + place)
    joined = {gram for gram, _ in found.values()}

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        if n not in found and n not in joined:
            return None
        gram, place = found.get(n, (n, 0))
        every = f.op("meet", tuple(map(new, body[gram].ins)))
        like = new(body[gram].ins[place - 1]) if place else every
        return f.arrange(f.op("pick", (every, like), place), body[n].axes)

    return rebuild(program, rule)


def plain(program: Program, carried: str) -> Program:
    """The program without what only its gradient needed: values that stand for others."""

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = program.body[n]
        return new(inst.ins[0]) if inst.op in ("instead", "through_time") else None

    return rebuild(program, rule)


def free_carry_of_scans(program: Program, carried: str) -> Program:
    """A scan that is carried from the chunk behind, which reaches it at its end alone, becomes two
    that are not: back(a, b + end(d)) = back(a, b) + back(a, end(1)) d."""
    body = program.body
    phase, groups = phases(program, carried)
    loops = range(1, 2 * len(groups), 2)

    def terms(n: int) -> list[int]:
        return [t for i in body[n].ins for t in terms(i)] if body[n].op == "add" else [n]

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op != "scan_back" or phase[n] not in loops:
            return None
        parts = terms(inst.ins[1])
        ends = [t for t in parts if body[t].op == "place_row" and body[t].value]
        if not ends:
            return None
        a, total = new(inst.ins[0]), f.expand(f.const(0.0), inst.axes)
        for t in (t for t in parts if t not in ends):
            total = f.add(total, new(t))
        if len(ends) < len(parts):
            total = f.op("scan_back", (a, f.expand(total, inst.axes)))
        one = f.op("row", (f.expand(f.const(1.0), inst.axes),), True)
        weight = f.op("scan_back", (a, f.op("place_row", (one,), True)))
        for t in ends:
            total = f.add(total, f.mul(weight, new(body[t].ins[0])))
        return f.expand(total, inst.axes)

    return rebuild(program, rule)


def rows_first(program: Program, carried: str) -> Program:
    """A row of a carried elementwise value as that value of rows: the carry is left with one
    token's work."""
    body = program.body
    phase, groups = phases(program, carried)
    loops = range(1, 2 * len(groups), 2)

    def row(f: Tiles, n: int, last: bool, new: Callable[[int], int]) -> int:
        inst = body[n]
        if "t" not in inst.axes:
            return new(n)
        if inst.op == "place_row" and inst.value == last:
            return new(inst.ins[0])
        if inst.op not in ELEMENTWISE or phase[n] not in loops:
            return f.op("row", (new(n),), last)
        value = f.ew(inst.op, *(row(f, i, last, new) for i in inst.ins))
        return f.expand(value, tuple(a for a in inst.axes if a != "t"))

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op != "row" or phase[n] not in loops:
            return None
        return row(f, inst.ins[0], inst.value, new)

    return rebuild(program, rule)


def contract_sums(program: Program, carried: str) -> Program:
    """Sums of products that nothing else uses as contractions: no tile of all their terms."""
    body = program.body
    uses = Counter(i for inst in body for i in inst.ins) + Counter(program.outs.values())

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        terms = body[inst.ins[0]] if inst.op == "sum" and uses[inst.ins[0]] == 1 else inst
        same = all(len(body[i].axes) == len(terms.axes) for i in terms.ins)
        if terms is not inst and terms.op == "mul" and same:
            a, b = map(new, terms.ins)
            return f.arrange(f.contract(a, b, inst.value), inst.axes)
        return None

    return rebuild(program, rule)


def orient(program: Program, carried: str) -> Program:
    """Tiles without time laid out as what they are added to: products give either order of their
    axes at no cost, while entries in another order are slow to reach."""
    body = program.body
    want: dict[int, Axes] = {}
    for n in reversed(range(len(body))):
        inst = body[n]
        turns = inst.op == "rename" and not inst.value
        for i in inst.ins if inst.op in ELEMENTWISE or turns else ():
            if set(body[i].axes) == set(inst.axes) and len(inst.axes) > 1:
                want.setdefault(i, inst.axes if turns else want.get(n, inst.axes))

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op == "rename" and not inst.value:
            return f.arrange(new(inst.ins[0]), inst.axes)
        if n in want and want[n] != inst.axes and (inst.op in ("contract", *ELEMENTWISE)):
            return f.emit(replace(inst, ins=tuple(map(new, inst.ins)), axes=want[n], name=""))
        return None

    return rebuild(program, rule)


PIPELINE: tuple[tuple[Rewrite, str], ...] = (
    (plain, "first: the others look at values, not through those that stand for others"),
    (free_carry_of_scans, "before rows: they are taken of sums and products, not of a scan"),
    (rows_first, "once what is carried goes entry by entry"),
    (free_carry_of_solves, "while solves are solves: a product with an inverse is not split"),
    (solve_by_inverse, "after it: the parts of a split solve share one inverse"),
    (meet_once, "before factors move: it knows its products by x · prefix(d)"),
    (contract_sums, "before factors move, which they do out of contractions alone"),
    (move_factors, "once every contraction there will be is there"),
    (gather, "once all factors stand where they stay"),
    (orient, "last, for it sets layouts: what a later rewrite made would have any"),
)
"""Every rewrite in the order they run, and why each runs where it does."""


def for_chunks(program: Program, carried: str) -> Program:
    """The program as a target runs it chunk by chunk, all of `PIPELINE` applied."""
    for rewrite, _ in PIPELINE:
        program = rewrite(program, carried)
    return program


WITHOUT_LOOPS = (free_carry_of_scans, rows_first, meet_once)
"""Rewrites that kernels do without: scans go where the carry goes, and which gram meets which
product is known when each kernel is (`meet_once` of its program)."""


def for_kernels(program: Program, carried: str) -> Program:
    """The program as targets with a kernel for each phase run it."""
    return _but_for(WITHOUT_LOOPS, program, carried)


def for_one_loop(program: Program, carried: str) -> Program:
    """The program as a target runs it whose kernel goes from chunk to chunk itself. Solves may wait
    for the carry: (I+L)⁻¹ (R + B S) is a product less than when what is free of S goes ahead."""
    return _but_for((*WITHOUT_LOOPS, free_carry_of_solves), program, carried)


def _but_for(left_out: Collection[Rewrite], program: Program, carried: str) -> Program:
    for rewrite, _ in PIPELINE:
        if rewrite not in left_out:
            program = rewrite(program, carried)
    return program
