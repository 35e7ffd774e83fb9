"""The program of one kernel and an axis in, rounds over blocks of that axis out: tiles along it are
never whole, however long it is.

Every round goes through all blocks. What is summed along the axis is complete when its round ends,
and what needs such a sum waits for the next round; a value along the axis that several rounds need
is computed, or loaded, in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lacc.tile.program import TIME, Program

SUMMED = {"contract": "+", "sum": "+", "gram": "+", "largest": "maximum", "smallest": "minimum"}
"""Ops that go over an axis, and how what blocks give is joined."""

WHOLE = ("eye", "age", "dense_solve", "take", "put", "fold", "unfold", "concat", "roll")
SEVERAL = ("meet_pull", "solve_parts")
"""Ops with several results, all of which have the axes of what they are of."""

MIXED = ("meet", "decayed_pull", "chain_parts")
"""Ops that need an axis whole, and those with several results some of which are summed along it."""


@dataclass(frozen=True, slots=True)
class Round:
    """Values ``before`` the loop over blocks, those ``inside`` it in order, ``joined`` ones among
    them that are joined over all blocks, and the ``outs`` that are stored block by block."""

    before: tuple[int, ...]
    inside: tuple[int, ...]
    joined: frozenset[int]
    outs: tuple[str, ...]


def round_axes(program: Program) -> tuple[str, ...]:
    """The axes for which there are rounds."""
    found = dict.fromkeys(a for inst in program.body for a in inst.axes if a not in TIME)
    for inst in program.body:
        operands = [program.body[i].axes for i in inst.ins]
        if inst.op in (*WHOLE, *MIXED):
            for axis in {a for axes in (*operands, inst.axes) for a in axes}:
                found.pop(axis, None)
        elif inst.op == "rename":
            for axis in {a for pair in inst.value for a in pair}:
                found.pop(axis, None)
    return tuple(found)


def rounds(program: Program, axis: str) -> tuple[Round, ...]:
    """The rounds over blocks of ``axis``; the last one may have no loop."""
    body = program.body
    stage: list[int] = []
    along: set[int] = set()
    joined: set[int] = set()
    for n, inst in enumerate(body):
        of = any(i in along for i in inst.ins)
        if axis in inst.axes or (of and inst.op in SEVERAL):
            along.add(n)
        elif of:
            joined.add(n)
        stage.append(max((stage[i] for i in inst.ins), default=0) + (n in joined))
    assert all(body[n].op in SUMMED for n in joined), "an axis without rounds"
    outs = {name: stage[n] for name, n in program.outs.items() if n in along}
    count = max([*(stage[n] for n in joined), *(s + 1 for s in outs.values())], default=0)
    found = []
    for number in range(count + 1):
        ends = {n for n in joined if stage[n] == number + 1}
        stored = tuple(name for name, s in outs.items() if s == number)
        inside = _needed(program, along, {*ends, *(program.outs[name] for name in stored)})
        plain = tuple(
            n for n in range(len(body)) if n not in along and n not in joined and stage[n] == number
        )
        found.append(Round(plain, tuple(sorted(inside)), frozenset(ends), stored))
    return tuple(found)


def _needed(program: Program, along: set[int], ends: set[int]) -> set[int]:
    """``ends`` and the values ``along`` the axis that they need."""
    found: set[int] = set()
    stack = list(ends)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(i for i in program.body[n].ins if i in along)
    return found
