"""The program of one kernel as it was cut out in, the same as it is written out: masked, in order,
and with the axis of which its programs hold a block, and what decides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from lacc.runtime.launching import ROOM, Workload, tightness, total
from lacc.tile.fit import Fit
from lacc.tile.free_axes import free_axes
from lacc.tile.operands import bare_operands, loaded_apart
from lacc.tile.order import scheduled
from lacc.tile.pad import fill_padding
from lacc.tile.partition import WIDTH, Part
from lacc.tile.plain_axes import plain_axes
from lacc.tile.pressure import fit
from lacc.tile.program import Program
from lacc.tile.rewrite import meet_once
from lacc.tile.rounds import round_axes

TOKENS = 4096
CHUNKS = (64, 32)
"""Tokens of the batch that kernels are laid out for, and of its chunks."""


CLOSE, MAY = 1.05, 1.25
"""The part of a thread's registers that a kernel may seem to need and yet is not cut in two, or
made for shorter chunks: the model errs by as much."""


@dataclass(frozen=True)
class Finished:
    """The program of a kernel as it is written; its programs share the axis ``split``, or each goes
    through blocks of the axis ``looped``, in rounds that may be ``spare``."""

    program: Program
    split: str
    looped: str
    spare: bool
    kind: str

    @property
    def axis(self) -> str:
        """The axis of which a program holds a block at a time."""
        return self.split or self.looped

    @cached_property
    def fit(self) -> Fit:
        """What a launch is chosen by."""
        return fit(self.program, self.axis, self.kind, bool(self.looped), self.spare)


def wider(dims: Mapping[str, int]) -> dict[str, int]:
    """Dims of calls with heads twice as wide as is declared, up to `WIDTH`."""
    return {n: WIDTH if WIDTH // 2 <= size < WIDTH else size for n, size in dims.items()}


def workload(dims: Mapping[str, int], chunk: int, fine: bool = False) -> Workload:
    """What kernels are laid out for: the declared dims, and a batch of middling size; with
    ``fine`` products as in `finer`."""
    sizes = tuple(sorted((name, size or WIDTH) for name, size in dims.items()))
    precision = "tf32" if fine else "bf16"
    return Workload(sizes, 1, 16, TOKENS, chunk, TOKENS // chunk, precision=precision)


def finished(part: Part, load: Workload, whole: bool = False, spare: bool = False) -> Finished:
    """A kernel as it is written; not in blocks where it must have the ``whole`` of each axis, and
    in ``spare`` rounds or others.

    One chunk is a program's own, so it goes through the blocks of an axis itself, where that takes
    the least time of all ways that fit.
    """
    carried = "dstate" if part.program.loads("dstate") else "state"
    own = plain_axes(part.program)
    met = meet_once(own, carried)
    if part.kind != "chunk":
        program = fill_padding(bare_operands(met))
        axes = () if whole else free_axes(program)
        ways = [
            Finished(scheduled(program, axis, part.kind), axis, "", False, part.kind)
            for axis in axes or ("",)
        ]
        return min(ways, key=lambda w: (max(1.0, tightness(w.fit, load)), total([w.fit], load)))
    ways = [Finished(_ready(met), "", "", False, "chunk")]
    plain = _ready(own)
    for axis in round_axes(plain):
        program = loaded_apart(plain, axis) if spare else plain
        ways.append(Finished(program, "", axis, spare, "chunk"))
    ways = [
        replace(w, program=scheduled(w.program, w.axis, w.kind, bool(w.looped), w.spare))
        for w in ways
    ]
    return min(ways, key=lambda w: (max(ROOM, tightness(w.fit, load)), total([w.fit], load)))


def _ready(program: Program) -> Program:
    return fill_padding(bare_operands(program))
