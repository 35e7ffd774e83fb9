"""A pass over time in, its CUDA kernels and the two functions that launch them out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import replace
from math import prod

from lacc.backends.base import tuple_code, tuple_text
from lacc.backends.c_ready import for_c
from lacc.backends.cuda_decode import CudaDecode, layouts_of
from lacc.backends.cuda_kernel import BLOCKS, CudaKernel
from lacc.backends.cuda_steps import DEVICE
from lacc.backends.device_kernel import KernelSpec, host_size
from lacc.backends.device_pass import DevicePass
from lacc.plan.devices import device_named
from lacc.spec.model import Spec
from lacc.tile.derive import Pair
from lacc.tile.free_axes import free_axes
from lacc.tile.order import scheduled
from lacc.tile.partition import WIDTH, Part, Partitioner, Tight, partition
from lacc.tile.program import TIME, Program
from lacc.tile.rewrite import meet_once

CHUNKS, SHORT = (64,), 32
"""Tokens of a chunk that kernels are laid out for; fewer ones."""

LONGEST = 1024
"""Rows, or columns, up to which matrices stay in the registers of a block's threads: four columns
of that many are 32 entries of each."""

NARROW = BLOCKS[-1]
"""Entries of the axis that blocks share, with which it is seen whether a kernel is cut in two."""


class CudaPass(DevicePass[CudaKernel]):
    """The CUDA kernels of one pass over time, or of one token."""

    chunks = CHUNKS
    pairs = "run.C"

    def __init__(
        self,
        spec: Spec,
        pair: Pair,
        number: str,
        library: Iterable[str],
        *,
        reverse: bool = False,
        shared: Iterable[str] = (),
        fine: bool = False,
    ) -> None:
        """``library`` are the names that a file has anyway."""
        self.library = library
        self.known: list[tuple[tuple[Part, bool, Program | None], CudaKernel]] = []
        """Kernels by what they are of: most are tried before they are taken."""
        super().__init__(spec, pair, number, reverse=reverse, shared=set(shared), fine=fine)

    @property
    def ways(self) -> tuple[tuple[Partitioner, int], ...]:
        """Cut so that all fits, else so that kernels of single chunks fit in shorter ones."""
        return (partition, CHUNKS[0]), (_as_for_long, SHORT)

    def _fits(self, part: Part) -> bool:
        """Whether all tiles of a kernel lie in shared memory."""
        kernel = self._kernel("trial", part, backward=bool(part.program.loads("dstate")))
        chunk = self.chunk if part.kind == "chunk" else CHUNKS[0]
        return kernel.arena(chunk, NARROW) <= device_named(DEVICE).shared

    def _may_fit(self, part: Part) -> bool:
        return part.kind != "chunk" or self._fits(part)

    def _kernel(
        self, name: str, part: Part, *, backward: bool, remade: Program | None = None
    ) -> CudaKernel:
        of = part, backward, remade
        found = next((kernel for known, kernel in self.known if known == of), None)
        if found is None:
            found = self._made(name, part, backward, remade)
            self.known.append((of, found))
        found = copy(found)
        found.what = replace(found.what, name=name)
        return found

    def _made(self, name: str, part: Part, backward: bool, remade: Program | None) -> CudaKernel:
        program = meet_once(part.program, "dstate" if backward else "state")
        split = ""
        if remade is None:
            split = min(free_axes(program), key=lambda a: self._alike(program, a), default="")
        program = scheduled(program, split, part.kind)
        what = KernelSpec(
            name,
            self._doc(part, program, backward),
            part.kind,
            program,
            split,
            "",
            backward,
            self.reverse,
            part.carries,
            remade=remade,
            optional=self.optional,
        )
        return self._text(what)

    def _text(self, what: KernelSpec) -> CudaKernel:
        """With matrices in registers where that can be: of one token, shared by blocks."""
        if what.kind != "token" or what.backward:
            return CudaKernel(self.spec, what, self.library)
        if why := self._one_each(what):
            doc = f"{what.doc} A block has one sequence and head: {why}."
            return CudaKernel(self.spec, replace(what, doc=doc), self.library)
        doc = f"{what.doc} Blocks take sequences and heads in turn."
        return CudaDecode(self.spec, replace(what, doc=doc), self.library)

    def _one_each(self, what: KernelSpec) -> str:
        """Why a block that took several sequences and heads would gain nothing, "" where it does:
        as states that stay in registers leave shared memory to the next ones."""
        if not what.split:
            return "they share no axis of the states"
        program = for_c(what.program)
        matrices = layouts_of(program, what.split)
        if not matrices:
            return "no state is a matrix of which others need but entries and sums"
        longest = max(self._length(program, a) for axes in matrices for a in axes)
        return f"a state has more than {LONGEST} rows" if longest > LONGEST else ""

    def _alike(self, program: Program, axis: str) -> float:
        """The entries a token that every block computes of those that share an axis."""
        return sum(
            self._entries(program, n) for n, i in enumerate(program.body) if axis not in i.axes
        )

    def _entries(self, program: Program, n: int) -> float:
        return prod(self._length(program, axis) for axis in program.body[n].axes)

    def _length(self, program: Program, axis: str) -> float:
        """The entries of an axis, at the dims that a spec declares."""
        size = program.sizes.get(axis)
        dims = {d: self.dims.get(d) or WIDTH for d in size.dims} if size else {}
        return CHUNKS[0] if axis in TIME or size is None else float(size.evaluate(dims))

    def _takes_one(self) -> str:
        ways = (tuple_text(k.what.name for k in kernels) for kernels in (self.fused, self.split))
        return f"launched.in_one(run, {', '.join(ways)})"

    def planned(self) -> list[CudaKernel]:
        """The kernels that a plan compares."""
        return [] if self.by_token else [*(self.split or self.fused), *self.back]

    @staticmethod
    def shared_size(kernel: CudaKernel) -> str:
        """The size of the axis that blocks share, 1 where there is none."""
        axis = kernel.what.split
        return host_size(kernel.what.program.sizes[axis]) if axis else "1"

    def _launch(self, way: str, kernel: CudaKernel) -> list[str]:
        programs = "run.chunks" if kernel.what.kind == "chunk" else "run.N"
        pointers = tuple_code(a.call for a in kernel.pointers.values())
        numbers = tuple_code(a.call for a in kernel.numbers.values() if a.call)
        return [
            "launched(",
            f'    "{kernel.what.name}", run, {programs} * run.H, {self.shared_size(kernel)},',
            f"    {pointers},",
            f"    {numbers},",
            *([f"    {most},"] if (most := kernel.widest) else []),
            ")",
        ]


def _as_for_long(
    program: Program,
    carried: str,
    dims: Mapping[str, int],
    starts: Collection[str],
    chunk: int,
    tight: Tight,
) -> tuple[Part, ...]:
    """Kernels by what they cost in long chunks, whatever these hold at once."""
    return partition(program, carried, dims, starts, CHUNKS[0], tight)
