"""The program of one kernel in, the axes out of which each of its programs may hold a part."""

from __future__ import annotations

from lacc.tile.program import Program


def free_axes(program: Program) -> tuple[str, ...]:
    """Axes that may be cut into blocks, as nothing is summed over them or moved along them, the
    last axes of carried matrices first."""
    bound: set[str] = set()
    for inst in program.body:
        operands = [program.body[i].axes for i in inst.ins]
        match inst.op:
            case "contract" | "sum" | "largest" | "smallest":
                bound.update(inst.value)
            case "gram" | "meet" | "decayed_pull":
                bound.update(a for axes in operands for a in axes)
            case "rename":
                bound.update(a for pair in inst.value for a in pair)
            case "eye" | "stack" | "entry" | "age" | "dense_solve":
                bound.update(a for axes in (*operands, inst.axes) for a in axes)
            case "take" | "put" | "fold" | "unfold" | "concat" | "roll":
                bound.update(a for axes in (*operands, inst.axes) for a in axes)
    ends = [program.body[n].axes for n in program.outs.values()]
    every = dict.fromkeys(a for axes in ends if len(axes) >= 2 for a in reversed(axes))
    return tuple(a for a in every if a not in bound and a not in ("t", "s"))
