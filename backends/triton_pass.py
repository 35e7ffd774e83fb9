"""A pass over time in, its Triton kernels and the two functions that launch them out."""

from __future__ import annotations

from collections.abc import Iterable

from lacc.backends.device_kernel import KernelSpec
from lacc.backends.device_pass import DevicePass
from lacc.backends.triton_cut import CHUNKS, CLOSE, MAY, Finished, finished, wider, workload
from lacc.backends.triton_kernel import KernelText
from lacc.runtime.launching import Workload, tightness, total
from lacc.tile.cuts import cut
from lacc.tile.fit import Fit
from lacc.tile.pad import fill_padding
from lacc.tile.partition import Part, Partitioner, with_features_apart
from lacc.tile.program import Program

LARGEST = 140
"""Values at most of a program that is searched for cuts, which takes a second or two."""


class TritonPass(DevicePass[KernelText]):
    """The Triton kernels of one pass over time, or of one token."""

    chunks = CHUNKS
    may = MAY / CLOSE
    pairs = "block(run.C, 16)"

    @property
    def ways(self) -> tuple[tuple[Partitioner, int], ...]:
        """Cut kernels hold less in shorter chunks, too: they are laid out for the longest."""
        apart = ((with_features_apart, chunk) for chunk in self.chunks)
        small = len(self.backward_program.body) <= LARGEST
        return (*super().ways, *apart, *([(cut, self.chunks[0])] if small else []))

    def _fits(self, part: Part) -> bool:
        return self._tight(part) <= 1

    def _tight(self, part: Part) -> float:
        ready = finished(part, self._wide, spare=self.way is cut)
        return tightness(ready.fit, self._workload) / CLOSE

    @property
    def _workload(self) -> Workload:
        return workload(self.dims, self.chunk, self.fine)

    @property
    def _wide(self) -> Workload:
        return workload(wider(self.dims), self.chunk, self.fine)

    def _kernel(
        self, name: str, part: Part, *, backward: bool, remade: Program | None = None
    ) -> KernelText:
        ready = finished(part, self._wide, remade is not None, self.way is cut)
        what = KernelSpec(
            name,
            self._doc(part, ready.program, backward),
            part.kind,
            ready.program,
            ready.split,
            ready.looped,
            backward,
            self.reverse,
            part.carries,
            remade=fill_padding(remade) if remade is not None else None,
            optional=self.optional,
            spare=ready.spare,
        )
        return KernelText(self.spec, what)

    def _takes_one(self) -> str:
        return f"in_one(FUSED_{self.number}, SPLIT_{self.number}, run)"

    def _launch(self, way: str, kernel: KernelText) -> list[str]:
        name, table = kernel.what.name, f"{way}_{self.number}"
        programs = "run.chunks" if kernel.what.kind == "chunk" else "run.N"
        return [
            "launched(",
            f'    "{name}", {name}, {table}["{name}"], run, {programs} * run.H,',
            "    lambda config: called(",
            *(f"        {line}," for line in kernel.call),
            "    ),",
            ")",
        ]

    def plan(self) -> list[str]:
        """How the kernels share the work, and why."""
        found = []
        if self.split:
            load = self._workload
            one, several = (self._micros(kernels, load) for kernels in (self.fused, self.split))
            found.append(
                f"pass {self.number} forward at B H = {load.heads}, T = {load.tokens}: one kernel "
                f"{one:.0f} us, {len(self.split)} kernels {several:.0f} us, by the model of a "
                "device; each call takes what is less for its own sizes"
            )
        for kernel in self.kernels:
            what = kernel.what
            said = {"chunk": "chunks by themselves", "loop": "chunk after chunk"}.get(what.kind)
            said = said or "token after token"
            shared = f", programs share {what.split}" if what.split else ""
            looped = f", in blocks of {what.looped}, to hold less at once" if what.looped else ""
            found.append(f"{what.name}: {said}{shared}{looped}")
        return found

    @staticmethod
    def _micros(kernels: Iterable[KernelText], load: Workload) -> float:
        """Microseconds that kernels should take one after another."""
        return 1e6 * total(map(_fit, kernels), load)

    def planned(self) -> list[str]:
        """The tables of the kernels that a plan compares."""
        ways = {"SPLIT": self.split} if self.split else {"FUSED": self.fused}
        return [f"{way}_{self.number}" for way, k in {**ways, "BACK": self.back}.items() if k]

    def tables(self) -> dict[str, dict[str, Fit]]:
        """What launches are chosen by, for the kernels of each way."""
        ways = {"FUSED": self.fused, "SPLIT": self.split, "BACK": self.back}
        return {
            f"{way}_{self.number}": {k.what.name: _fit(k) for k in kernels}
            for way, kernels in ways.items()
            if kernels
        }


def _fit(kernel: KernelText) -> Fit:
    """What the launch of a kernel is chosen by."""
    what = kernel.what
    return Finished(what.program, what.split, what.looped, what.spare, what.kind).fit
