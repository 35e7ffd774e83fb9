"""A tile program and the phases of its values in, phases out where features have kernels of their
own: every chunk by itself, before all others, and their gradients behind all others.

*Features* are what tokens have along an axis that nothing has which is given for each token: maps
of a key to more entries than it has. A kernel that makes them holds them whole; one that finds them
in memory goes through them block by block.
"""

from __future__ import annotations

from lacc.ir.ops import OPS
from lacc.tile.program import TIME, Program, cone
from lacc.tile.split import FIXED, phases

OF_A_TOKEN = (
    *("contract", "sum", "largest", "smallest", "expand", "rename", "concat", "fold", "unfold"),
    *("take", "put", "roll", "stack", "entry", "mask", "within", "instead"),
)
"""Ops, beside elementwise ones, that may leave tokens apart."""

GIVEN = ("input", "stored", "param", "buffer", "index")
"""Loads that features are made of."""

Phases = tuple[list[int], tuple[tuple[str, ...], ...], frozenset[int]]
"""The phase of every value, the states that each loop carries, and the values that later phases
take from memory in any case."""


def features_apart(program: Program, carried: str) -> Phases | None:
    """None where there are no features, or loops need what is made of their gradients."""
    body = program.body
    given = {a for inst in body if inst.op == "load" and "t" in inst.axes for a in inst.axes}
    for inst in body:
        if inst.op == "rename":
            given |= {new for old, new in inst.value if old in given}
    wide = {a for inst in body for a in inst.axes} - given - {*TIME}
    of_a_token = _of_a_token(program)
    users: list[list[int]] = [[] for _ in body]
    for n, inst in enumerate(body):
        for i in inst.ins:
            users[i].append(n)
    outs = {*program.outs.values()}

    def feature(n: int) -> bool:
        return not wide.isdisjoint(body[n].axes) and not {*TIME}.isdisjoint(body[n].axes)

    made = {
        n for n in of_a_token if feature(n) and (n in outs or not of_a_token.issuperset(users[n]))
    }
    if not made:
        return None
    found, loops = phases(program, carried)
    summed: set[int] = set()
    for n, inst in enumerate(body):
        if n not in of_a_token and feature(n):
            before = [i for i in inst.ins if feature(i)]
            linear = (inst.op in OPS or inst.op == "rename") and summed.issuperset(before)
            if linear or (inst.op == "contract" and not before) or _product(program, n):
                summed.add(n)
    ends = {n for n in summed if users[n] and not summed.issuperset(users[n])}
    first = cone(program, made)
    last = 2 * len(loops) + 2
    phase: list[int] = []
    behind: set[int] = set()
    for n, inst in enumerate(body):
        if any(i in behind or (i in ends and n not in summed) for i in inst.ins):
            if found[n] % 2:
                return None
            behind.add(n)
        own = found[n] if found[n] == FIXED or n in first else found[n] + 2
        phase.append(last + 2 if n in behind else last if n in ends else own)
    if any(n in behind for k, inst in enumerate(body) if k not in behind for n in inst.ins):
        return None
    return phase, ((), *loops, *([()] if behind else [])), frozenset(made | ends)


def _product(program: Program, n: int) -> bool:
    """Whether a value is a sum over other tokens or entries than its own features."""
    inst = program.body[n]
    return inst.op == "contract" and not {*inst.value}.isdisjoint(
        {a for i in inst.ins for a in program.body[i].axes} - {*inst.axes}
    )


def _of_a_token(program: Program) -> set[int]:
    """Values that are made of what is given, for each token by itself."""
    found: set[int] = set()
    for n, inst in enumerate(program.body):
        if not inst.ins:
            own = inst.op != "load" or inst.value[0] in GIVEN
        else:
            moved = str(inst.value) if inst.op not in OPS else ""
            own = inst.op in OPS or inst.op in OF_A_TOKEN
            own = own and "s" not in inst.axes and not any(f"'{a}'" in moved for a in TIME)
        if own and found.issuperset(inst.ins):
            found.add(n)
    return found
