"""The program of one kernel and an axis in, rounds over blocks of that axis out: tiles along it are
never whole, however long it is.

Every round goes through all blocks. What is summed along the axis is complete when its round ends,
and what needs such a sum waits for the next round; a value along the axis that several rounds need
is computed, or loaded, in each of them. In *spare* rounds pairs of tokens are apart, and what no
block changes is computed late, so that little waits for the end of a loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from lacc.tile.program import TIME, Inst, Program

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


def rounds(program: Program, axis: str, spare: bool = False) -> tuple[Round, ...]:
    """The rounds over blocks of ``axis``, of which some may have no loop; ``spare`` as above."""
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
        begun = max((stage[i] for i in inst.ins), default=0)
        stage.append(begun + 1 + (spare and _waits(inst, begun)) if n in joined else begun)
    assert all(body[n].op in SUMMED for n in joined), "an axis without rounds"
    outs = {
        name: stage[n] + (spare and _waits(body[n], stage[n]))
        for name, n in program.outs.items()
        if n in along
    }
    count = max([*(stage[n] for n in joined), *(s + 1 for s in outs.values())], default=0)
    ends = [{n for n in joined if stage[n] == number + 1} for number in range(count + 1)]
    stored = [tuple(n for n, s in outs.items() if s == number) for number in range(count + 1)]
    inside = [
        _needed(program, along, {*ends[number], *(program.outs[n] for n in stored[number])})
        for number in range(count + 1)
    ]
    looped = along | joined
    before = _late(program, stage, inside, looped) if spare else stage
    return tuple(
        Round(
            tuple(n for n, turn in enumerate(before) if turn == number and n not in looped),
            tuple(sorted(inside[number])),
            frozenset(ends[number]),
            stored[number],
        )
        for number in range(count + 1)
    )


def _late(
    program: Program, stage: list[int], inside: list[set[int]], looped: set[int]
) -> list[int]:
    """The round before whose loop each value is computed that is not ``looped``: as late as no more
    room is taken by what it needs than it takes itself."""
    body = program.body
    users: list[list[int]] = [[] for _ in body]
    for n, inst in enumerate(body):
        for i in inst.ins:
            users[i].append(n)
    turns = [
        [number for number, values in enumerate(inside) if n in values] for n in range(len(body))
    ]
    ends = {*program.outs.values()}
    for n in reversed(range(len(body))):
        if n in looped:
            continue
        turns[n] = [stage[n]]
        large = [i for i in body[n].ins if len(body[i].axes) > 1]
        dying = [i for i in large if body[i].op != "load" and users[i] == [n]]
        grows = len(body[n].axes) > 1 or not large
        if users[n] and n not in ends and grows and len(dying) < 2:
            turns[n] = [max(stage[n], min(turns[u][0] for u in users[n]))]
    return [turn[0] if turn else 0 for turn in turns]


def _waits(inst: Inst, begun: int) -> bool:
    """Whether a value is joined or stored a round after ``begun``: one in turn is for tiles of
    pairs of tokens, which take much room until they are used, the next for others."""
    return begun % 2 == ({*inst.axes} >= {*TIME})


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
