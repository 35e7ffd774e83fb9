"""One kernel in, the axes of its tiles out: names, positions, blocks, and sizes as its text has
them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from lacc.backends import paste, triton_device
from lacc.backends.base import unused
from lacc.backends.device_kernel import WORD, KernelSpec, host_size
from lacc.backends.text import size_text
from lacc.backends.triton_layout import Index
from lacc.backends.triton_text import multiplied
from lacc.spec.model import Spec
from lacc.spec.shapes import Size
from lacc.tile.program import Program

PLACES = "lacc.runtime.triton_places"

RESERVED = (
    *("tl", "torch", "triton", "T", "H", "G", "CHUNK", "BT", "FLOAT", "PRECISION", "INTO"),
    *("sequence", "batch", "head", "chunk", "chunks", "first", "tokens", "index", "number"),
    *("t", "start", "count", "live", "place", "token", "flat", "cu", "firsts", "table", "position"),
    "masks",
    *(
        "block",
        "state_rows",
        "begin_row",
        "end_row",
        "into",
        "step",
        "later",
        "seen",
        "first_chunk",
    ),
)


class Frame:
    """What every part of a kernel's text needs: names that are not taken, dims, and the axes of
    tiles. ``before`` are lines before all others, ``at_block`` those of each block where a program
    loops over them, ``blocks`` the entries of tiles along axes, as the launch gives them."""

    def __init__(self, spec: Spec, what: KernelSpec) -> None:
        self.spec, self.what, self.program = spec, what, what.program
        self.by_token = what.kind == "token"
        self.before: list[str] = []
        self.at_block: list[str] = []
        self.used = {*RESERVED, *keyword.kwlist, *triton_device.names(), *paste.names(PLACES)}
        self.arguments = {a.ascii: a for a in spec.args}
        self.states = {s.ascii: s for s in spec.states}
        programs = [p for p in (what.program, what.remade) if p is not None]
        self.dims = {dim: self.name(dim) for dim in self._dims_used(programs)}
        self.blocks: dict[str, str] = {}
        self.index = self._indices(programs)

    def name(self, wish: str) -> str:
        """``wish``, with underscores behind it where it is taken."""
        plain = re.sub(r"\W", "_", wish)
        name = unused(f"stored_{plain}" if plain[0].isdigit() else plain, self.used)
        self.used.add(name)
        return name

    def _dims_used(self, programs: Iterable[Program]) -> list[str]:
        found: set[str] = set()
        for program in programs:
            axes = {a for inst in program.body for a in inst.axes}
            sizes = [size for axis, size in program.sizes.items() if axis in axes]
            for inst in program.body:
                values = inst.value if isinstance(inst.value, tuple) else (inst.value,)
                sizes += [value for value in values if isinstance(value, Size)]
                if inst.op == "load" and inst.value[0] in ("state", "dstate", "last"):
                    sizes += self.states[inst.value[1]].shape
                names = [a for v in values if isinstance(v, tuple) for a in v]
                names += [v for v in values if isinstance(v, str)]
                sizes += [program.sizes[a] for a in names if a in program.sizes]
            found |= {dim for size in sizes for dim in size.dims}
        found |= {d for s in self.what.carries for size in self.states[s].shape for d in size.dims}
        return sorted(found)

    def length(self, size: Size) -> str:
        """A size as an operand in the kernel."""
        text = WORD.sub(lambda name: self.dims[name[0]], size_text(size))
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _indices(self, programs: Iterable[Program]) -> dict[str, Index]:
        """An index for every axis: equal sizes share one, an axis that is split has its own."""
        found = {axis: Index("t", "live", "BT") for axis in ("t", "s")}
        shared: dict[object, Index] = {}
        for program in programs:
            dotted = {program.sizes[a] for a in multiplied(program)}
            for axis in dict.fromkeys(a for inst in program.body for a in inst.axes):
                if axis in found:
                    continue
                size, cut = program.sizes[axis], axis in (self.what.split, self.what.looped)
                key = axis if cut else size
                if key not in shared:
                    label = re.sub(r"\W", "", size_text(size))
                    index = Index(*(self.name(f"{stem}{label}") for stem in ("at_", "in_", "B")))
                    shared[key] = index
                    least = 16 if size in dotted else 1
                    self.blocks[index.block] = self._block(size, axis if cut else "", least)
                    self._index_lines(axis, size, index)
                found[axis] = shared[key]
        return found

    def _index_lines(self, axis: str, size: Size, index: Index) -> None:
        """Where a program's tiles stand along an axis."""
        first = {self.what.split: "tl.program_id(1)", self.what.looped: "block"}.get(axis)
        start = f"{first} * {index.block} + " if first else ""
        lines = self.at_block if first == "block" else self.before
        lines.append(f"{index.at} = {start}tl.arange(0, {index.block})")
        lines.append(f"{index.inside} = {index.at} < {self.length(size)}")

    def _block(self, size: Size, cut: str, least: int) -> str:
        """The entries of a tile along an axis, for the launch."""
        whole = host_size(size)
        return "config.block" if cut else f"block({whole}, {least})"

    def shape(self, axes: Iterable[str]) -> str:
        """The shape of a tile."""
        return f"[{', '.join(self.index[a].block for a in axes)}]"

    def entries(self, axis: str) -> str:
        """How many entries an axis has in memory."""
        return "BT" if axis in ("t", "s") else self.length(self.program.sizes[axis])
