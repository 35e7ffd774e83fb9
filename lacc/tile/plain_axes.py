"""A tile program in, the same without second names of an axis out: what is summed over a renamed
axis is summed over the axis itself, so that its blocks may be gone through."""

from __future__ import annotations

from dataclasses import replace

from lacc.tile.program import TIME, Program, Tiles
from lacc.tile.rounds import SUMMED


def plain_axes(program: Program) -> Program:
    """The program in which an axis is no longer renamed where no value or op has both names."""
    pairs = {pair for inst in program.body if inst.op == "rename" for pair in inst.value}
    for old, new in sorted(pairs):
        if not {old, new} & {*TIME} and _apart(program, old, new):
            program = _without(program, old, new)
    return program


def _apart(program: Program, old: str, new: str) -> bool:
    """Whether ``new`` is only ever another name of ``old``, and of nothing that comes or goes."""
    if any(new in program.body[n].axes for n in program.outs.values()):
        return False
    for inst in program.body:
        if inst.op == "rename" and {(old, new), (new, old)} & {*inst.value}:
            if any(len({*pair} & {old, new}) == 1 for pair in inst.value):
                return False
            continue
        axes = {*inst.axes}.union(*(program.body[i].axes for i in inst.ins))
        moved = inst.op not in SUMMED and isinstance(inst.value, tuple) and new in axes
        if {old, new} <= axes or moved:
            return False
    return True


def _without(program: Program, old: str, new: str) -> Program:
    f = Tiles(program.sizes)
    done: list[int] = []
    for inst in program.body:
        ins = tuple(done[i] for i in inst.ins)
        value = inst.value
        axes = tuple(old if a == new else a for a in inst.axes)
        if inst.op == "rename":
            value = tuple(pair for pair in value if {*pair} != {old, new})
            if not value:
                done.append(f.arrange(ins[0], axes))
                continue
        if inst.op in SUMMED:
            value = tuple(old if a == new else a for a in inst.value or ())
        done.append(f.emit(replace(inst, ins=ins, value=value or inst.value, axes=axes)))
    return f.finish({name: done[n] for name, n in program.outs.items()})
