"""A tile program and a rule in, the program with the values that the rule replaces out."""

from __future__ import annotations

from collections.abc import Callable

from lacc.tile.program import Inst, Program, Tiles, prune

Rule = Callable[[Tiles, int, Callable[[int], int]], int | None]


def rebuild(program: Program, rule: Rule) -> Program:
    """The program with each value ``n`` replaced by ``rule(f, n, new)``, kept where that is None;
    ``new(i)`` is what stands for value ``i``."""
    f = Tiles(program.sizes)
    done: dict[int, int] = {}

    def new(n: int) -> int:
        if n not in done:
            inst = program.body[n]
            ins = tuple(map(new, inst.ins))
            f.line = inst.line
            value = rule(f, n, new)
            if value is None:
                value = f.emit(Inst(inst.op, ins, inst.value, inst.axes, inst.name, inst.line))
            elif inst.name:
                f.named(value, inst.name)
            done[n] = value
        return done[n]

    for n in range(len(program.body)):
        new(n)
    outs = {name: f.arrange(done[n], program.body[n].axes) for name, n in program.outs.items()}
    return prune(Program(tuple(f.body), outs, program.sizes))
