"""The program of one kernel in, the same in the order in which the least lives at once out.

A compiler keeps the order of what goes through shared memory, products and loads among it, so what
lives at once is decided here. Loads, views and vectors move to their first use; the rest is chosen
one after another: what frees the most, and of those alike what comes first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lacc.tile.pressure import pressure
from lacc.tile.program import TIME, Program
from lacc.tile.rounds import rounds

TOKENS, CHANNELS = 64, 128
"""What lengths are taken to be, where a program leaves them open."""


def scheduled(
    program: Program, split: str, kind: str = "loop", looped: bool = False, spare: bool = False
) -> Program:
    """The order of least pressure among that of the program and those found; `fit`'s arguments."""
    found = [sunk(program), sunk(reordered(program, greedy(program)))]
    if looped and spare:
        found = [in_rounds(p, split) for p in found]
    return min(found, key=lambda p: pressure(p, split, kind, looped, spare, TOKENS, CHANNELS))


def entries(program: Program, n: int) -> int:
    """About how many entries a value has."""
    axes = program.body[n].axes
    return prod(TOKENS if a in TIME else program.sizes[a].constant or CHANNELS for a in axes)


def greedy(program: Program) -> list[int]:
    """An order of the large values: each time the one that leaves the least alive."""
    large = [n for n, inst in enumerate(program.body) if inst.op != "load" and len(inst.axes) > 1]
    needs = _through(program, set(large))
    users: dict[int, set[int]] = {n: set() for n in large}
    for n in large:
        for i in needs[n]:
            users[i].add(n)
    outs = set(program.outs.values())
    order: list[int] = []
    left = dict.fromkeys(large)

    def grows(n: int) -> int:
        """Entries that live after ``n`` and did not before."""
        freed = (i for i in needs[n] if i not in outs and not users[i] & (left.keys() - {n}))
        return (n not in outs) * entries(program, n) - sum(entries(program, i) for i in freed)

    while left:
        ready = [n for n in left if not needs[n] & left.keys()]
        best = min(ready, key=lambda n: (grows(n), n))
        order.append(best)
        del left[best]
    return order


def _through(program: Program, kept: set[int]) -> dict[int, set[int]]:
    """The values of ``kept`` that each value needs, directly or through others."""
    found: dict[int, set[int]] = {}
    for n, inst in enumerate(program.body):
        found[n] = set()
        for i in inst.ins:
            found[n] |= {i} if i in kept else found[i]
    return found


def reordered(program: Program, order: list[int]) -> Program:
    """The program with values in this order, each behind those that it needs and are not in it."""
    placed: list[int] = []
    done: set[int] = set()

    def place(n: int) -> None:
        if n not in done:
            for i in program.body[n].ins:
                place(i)
            done.add(n)
            placed.append(n)

    for n in (*order, *range(len(program.body))):
        place(n)
    new = {n: at for at, n in enumerate(placed)}
    body = tuple(
        replace(program.body[n], ins=tuple(new[i] for i in program.body[n].ins)) for n in placed
    )
    return Program(body, {name: new[n] for name, n in program.outs.items()}, program.sizes)


def sunk(program: Program) -> Program:
    """The same order, with every load and view right before its first use."""
    stays = [n for n, inst in enumerate(program.body) if inst.op not in ("load", "rename")]
    return reordered(program, stays)


def in_rounds(program: Program, axis: str) -> Program:
    """The program with the values of every spare round over blocks of an axis after one another."""
    parts = rounds(program, axis, spare=True)
    return reordered(program, [n for part in parts for n in (*part.before, *part.inside)])
