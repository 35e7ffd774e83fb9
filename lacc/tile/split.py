"""A tile program in, the phase of each of its values out: what can run for all chunks at once, and
what must go in order.

Phases are numbered in the order they run:

    -1              fixed: holds nothing of the tokens, once per call
    0, 2, 4, …      sections: every chunk by itself, all at once
    1, 3, 5, …      loops: chunk after chunk, each carrying one recurrence (or several that need one
    another)

A value that needs no carried state is in section 0 (local); one on the way from the state a chunk
starts from to the one it leaves is in that state's loop (carry); what follows is in the section
behind the last loop it needs (output). States that feed one another run in loops one after the
other, the work between them for all chunks at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from lacc.ir.graph import ordered_groups
from lacc.tile.program import Program

FIXED = -1
VARYING = ("input", "stored", "cotangent", "state", "dstate", "kept")


def phases(program: Program, carried: str) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    """The phase of every value, and the states that each loop carries, in order.

    ``carried`` is the kind of load that goes from chunk to chunk: "state" forward, "dstate"
    backward.
    """
    loads = program.loads(carried)
    reach = reaches(program, {n: name for name, n in loads.items()})
    outs = {
        name.removeprefix("state:"): n
        for name, n in program.outs.items()
        if name.startswith("state:")
    }
    edges = {name: reach[outs[name]] if name in outs else frozenset() for name in {**loads, **outs}}
    loops = ordered_groups(edges)
    number = {name: n for n, group in enumerate(loops) for name in group}
    feeds = _feeds(program, {n: number[name] for name, n in outs.items()})
    varying: set[int] = set()
    found = []
    for n, inst in enumerate(program.body):
        kind = inst.value[0] if inst.op == "load" else ""
        if kind in VARYING or inst.value == ("index", "t") or any(i in varying for i in inst.ins):
            varying.add(n)
        needed = max((number[name] for name in reach[n]), default=-1)
        if n not in varying:
            found.append(FIXED)
        elif kind == carried or (needed >= 0 and needed in feeds[n]):
            found.append(2 * needed + 1)
        else:
            found.append(2 * (needed + 1))
    return tuple(found), loops


def shared(program: Program) -> set[int]:
    """Values that are the same for all sequences and chunks: made of params and buffers alone."""
    found: set[int] = set()
    for n, inst in enumerate(program.body):
        own = inst.op == "load" and (
            inst.value[0] in (*VARYING, "last") or inst.value == ("index", "t")
        )
        if not own and all(i in found for i in inst.ins):
            found.add(n)
    return found


def reaches(program: Program, loads: dict[int, str]) -> list[frozenset[str]]:
    """The carried states that each value needs; ``loads`` names their loads."""
    reach: list[frozenset[str]] = []
    for n, inst in enumerate(program.body):
        own = frozenset((loads[n],)) if n in loads else frozenset()
        reach.append(own.union(*(reach[i] for i in inst.ins)))
    return reach


def led_by(program: Program, states: Iterable[str]) -> set[str]:
    """``states``, and those that their values at later tokens are made of."""
    reach = reaches(program, {n: s for s, n in program.loads("state").items()})
    found, new = set[str](), set(states)
    while new:
        found |= new
        new = set[str]().union(*(reach[program.outs[f"state:{s}"]] for s in new)) - found
    return found


def _feeds(program: Program, outs: dict[int, int]) -> list[set[int]]:
    """The loops whose next state each value is needed for."""
    feeds: list[set[int]] = [set() for _ in program.body]
    for n, loop in outs.items():
        feeds[n].add(loop)
    for n in reversed(range(len(program.body))):
        for i in program.body[n].ins:
            feeds[i] |= feeds[n]
    return feeds
