"""The program of a chunk in, the same in an order out that lets chunks overlap: what needs no
carried state, what the next state is made of, then what only reads the state."""

from __future__ import annotations

from dataclasses import replace

from lacc.tile.program import Program


def in_turns(program: Program, kind: str, states: frozenset[str]) -> tuple[Program, int, int]:
    """The program in this order, and where the second and the third part begin. ``states`` are
    those that the chunk changes, loads of ``kind``."""
    body = program.body
    held = {n for n, inst in enumerate(body) if inst.op == "load" and inst.value[0] == kind}
    waits: set[int] = set()
    for n, inst in enumerate(body):
        if (
            inst.op == "load" and inst.value[0] == kind and inst.value[1] in states
        ) or not waits.isdisjoint(inst.ins):
            waits.add(n)
    wanted: set[int] = set()
    stack = [program.outs[f"state:{s}"] for s in states]
    while stack:
        n = stack.pop()
        if n not in wanted:
            wanted.add(n)
            stack.extend(body[n].ins)
    parts = [
        0 if n not in waits or n in held else 1 if n in wanted else 2 for n in range(len(body))
    ]
    order = sorted(range(len(body)), key=parts.__getitem__)
    new = {n: k for k, n in enumerate(order)}
    moved = tuple(replace(body[n], ins=tuple(new[i] for i in body[n].ins)) for n in order)
    outs = {label: new[n] for label, n in program.outs.items()}
    return Program(moved, outs, program.sizes), parts.count(0), parts.count(0) + parts.count(1)


def changed(program: Program, kind: str) -> frozenset[str]:
    """The states that the chunk leaves otherwise than it found them."""
    loads = program.loads(kind)
    outs = [(label.partition(":"), n) for label, n in program.outs.items()]
    return frozenset(s for (role, _, s), n in outs if role == "state" and loads.get(s) != n)
