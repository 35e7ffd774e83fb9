"""A program and one of its inputs in, whether it is read where a caller has it out."""

from __future__ import annotations

from collections.abc import Iterator

from lacc.backends.c_ready import multiplies
from lacc.backends.c_values import ALIASES
from lacc.ir.ops import OPS
from lacc.tile.program import Program


def read_there(program: Program, n: int, entries: bool) -> bool:
    """Whether a value is read where a caller has it, as it is or renamed: by products of matrices
    alone and, where single ``entries`` may be, by sums and by what is computed entry by entry
    once."""
    found = [*_readers(program, n)]
    if None in found:
        return False
    singly = [k for k in found if k is not None and not multiplies(program, program.body[k])]
    loops = [k for k in singly if program.body[k].op not in ("contract", "sum")]
    return entries and len(loops) <= 1 if singly else True


def _readers(program: Program, n: int) -> Iterator[int | None]:
    """What reads a value, renamed or as it is; None for what takes a tile."""
    if n in program.outs.values():
        yield None
    for k, inst in enumerate(program.body):
        if n not in inst.ins:
            continue
        if inst.op in ALIASES or inst.op == "rename":
            yield from _readers(program, k)
        elif inst.op in ("contract", "accumulate", "lower"):
            yield None if n in inst.ins[:-2] else k
        else:
            yield k if inst.op == "sum" or (inst.op in OPS and OPS[inst.op].entrywise) else None
