"""The program of one kernel in, how much it computes out, by the size of what it is computed over:
in products of matrices, and entry by entry."""

from __future__ import annotations

from collections.abc import Callable

from lacc.backends.c_ready import multiplies
from lacc.ir.ops import OPS
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import TIME, Axes, Inst, Program

MET = {"gram": 40.0, "meet": 40.0, "decayed": 40.0, "meet_pull": 120.0, "decayed_pull": 120.0}
"""Operations of an entry of what decays meet in, beside the products of pairs of tokens."""

ROWS = ("inverse", "solve", "solve_parts", "dense_solve")
"""What goes row after row, of which most threads wait."""
WAITING = 8.0
"""How much more each of its operations counts."""

Counted = dict[str, float]


def operations(program: Program, entries: Callable[[Axes, bool], str]) -> tuple[Counted, Counted]:
    """Flops in products of matrices, and operations entry by entry, by ``entries(axes, True)``."""
    products, others = Counted(), Counted()

    def add(found: Counted, axes: Axes, many: float) -> None:
        if axes and many:
            over = entries(tuple(dict.fromkeys(axes)), True)
            found[over] = found.get(over, 0.0) + many

    for inst in program.body:
        operands = [program.body[i].axes for i in inst.ins]
        axes = (*inst.axes, *(a for other in operands for a in other))
        if inst.op in MET:
            add(others, operands[-2], MET[inst.op])
            add(products, (*TIME, *operands[-2]), 4.0 if inst.op.endswith("pull") else 2.0)
        elif multiplies(program, inst):
            add(products, axes, 2.0)
        else:
            add(others, axes, _flops(inst) * (WAITING if inst.op in ROWS else 1.0))
    return products, others


def _flops(inst: Inst) -> float:
    """Operations of a point, with what reading and writing it takes where it is computed."""
    row = OPS.get(inst.op)
    own = row.flops if row is not None else TILE_OPS[inst.op].flops
    return own + 4.0 if own or inst.op == "load" else 0.0
