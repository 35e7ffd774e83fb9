"""One run of the passes in, how its CUDA kernels are built and launched out.

This module stands alone (torch only): its text is pasted into emitted files, behind
`cuda_building.py`. A kernel is built when it is first launched with new sizes or dtypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import torch

from lacc.runtime.caching import BuildError
from lacc.runtime.cuda_building import Builder, Built, Wanted, builder
from lacc.runtime.cuda_choosing import THREADS, Load, Work, choice, chunk_of, total
from lacc.runtime.torch_rooms import operand_dtype
from lacc.runtime.torch_run import Support
from lacc.runtime.torch_walk import multiprocessors, power_from

SUPPORT = Support({torch.float32: "float", torch.float64: "double"}, "--target c or numpy")
"""CUDA's kernels: an emulation runs them on the CPU, too."""

PRECISIONS = {"bf16": 0, "fp16": 1, "tf32x3": 2, "tf32": 3, "ieee": 4}
ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
WIDEST, NARROWEST = 64, 16
"""Entries of the axis that blocks share: at most and at least, in each."""
ROOM = 1 << 28
"""Bytes of scratch memory that blocks which run at once may have together."""
GRID = (1 << 31) - 1
"""Blocks along the first axis of a grid at most."""


def entries(size: int, programs: int, sms: int, widest: int = WIDEST) -> int:
    """Entries of an axis of ``size`` that a block has, a power of two, ``widest`` or less: fewer
    where a device has little to do."""
    found = min(WIDEST, power_from(size, NARROWEST))
    while found > max(widest, 4):
        found //= 2
    while found > NARROWEST and programs * -(-size // found) < sms:
        found //= 2
    return found


class Launcher:
    """The kernels of ``name``.cu, which lies in the folder ``home`` with ``name``.h and begins with
    the line ``head``: for each the names of its pointers, then of its numbers; ``works`` say what
    those that walk over chunks do, of which the ``planned`` ones decide on chunks. They are built
    by ``builder``, what is there where it is None, as a call of them needs, which raises BuildError
    before it launches anything."""

    def __init__(
        self,
        name: str,
        head: str,
        home: Path,
        kernels: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
        works: Mapping[str, Work] = MappingProxyType({}),
        planned: tuple[str, ...] = (),
    ) -> None:
        self.name, self.head, self.home, self.kernels = name, head, home, kernels
        self.works, self.planned = works, planned
        self.builder: Builder | None = None
        self.built: dict[Any, Built] = {}
        self.structs: dict[str, Any] = {}
        self.lock = Lock()

    def load(self, given: Any, sequences: int, tokens: int) -> Load:
        """A call of ``tokens`` of all sequences, as choices depend on it; ``given``: its run, or
        its arguments."""
        return Load(
            tuple(sorted(given.dims.items())),
            sequences,
            int(given.sizes["#H"]) if hasattr(given, "sizes") else given.H,
            tokens,
            given.out_dtype.itemsize,
            self._builder().profile(given.device),
            multiprocessors(given.device),
        )

    def chunk(self, args: Any, T: int) -> int:
        """Tokens of a chunk, by what a call of T tokens a row should take."""
        if not self.planned:
            return NARROWEST
        rows = int(args.sizes["#B"])
        works = {name: self.works[name] for name in self.planned}
        return chunk_of(works, self.load(args, rows, rows * T))

    def in_one(self, run: Any, one: Sequence[str], several: Sequence[str]) -> bool:
        """Whether a forward takes ``one`` kernel for all, not ``several``, by what they should
        take; emulated where sequences and heads would fill a device, so that both are."""
        load = self.load(run, run.N, run.B * run.T)
        if not load.device:
            return bool(run.sms <= run.N * run.H)
        ways = ([self.works[name] for name in names] for names in (one, several))
        first, second = (total(works, load, run.C) for works in ways)
        return first <= second

    def _sizes(
        self, kernel: str, run: Any, programs: int, size: int, widest: int
    ) -> tuple[int, int]:
        """The entries of the axis that blocks share, 0 where they share none, and the threads of a
        block."""
        work = self.works.get(kernel)
        if work is None:
            return entries(size, programs, run.sms, widest) if size > 1 else 0, THREADS[0]
        found = choice(work, self.load(run, run.N, run.B * run.T), run.C)
        return found.block if size > 1 else 0, found.threads

    def _builder(self) -> Builder:
        if self.builder is None:
            self.builder = builder()
        return self.builder

    def __call__(
        self,
        kernel: str,
        run: Any,
        programs: int,
        size: int,
        tensors: Sequence[Any],
        numbers: Sequence[int],
        widest: int = WIDEST,
    ) -> None:
        """Launches ``programs`` of a kernel, each with all its blocks of an axis of ``size`` that
        they share (1: none does), ``widest`` entries each at most; nothing where there are none.
        Where blocks take programs in turn, there are as many as the device runs at once. Tensors
        may be None. Raises ValueError where a block does not fit the device, RuntimeError for what
        CUDA says."""
        if not programs or run.dry:
            return
        block, threads = self._sizes(kernel, run, programs, size, widest)
        types = tuple(None if x is None else x.dtype for x in tensors)
        key = (
            kernel,
            run.device,
            run.C,
            run.PRECISION,
            block,
            threads,
            tuple(run.dims.items()),
            types,
        )
        built = self.built.get(key)
        if built is None:
            with self.lock:
                built = self._alike(key) or self._built(kernel, run, block, threads, types)
                self.built[key] = built
        blocks = -(-size // block) if block else 1
        each = built.scratch * blocks
        wave = min(programs, GRID, max(1, ROOM // each) if each else GRID)
        if built.together:
            programs = wave = min(wave, max(1, run.sms * built.together // blocks))
        arena = None
        if each:
            arena = torch.empty(wave * each, dtype=torch.uint8, device=run.device)
        pointers = [None if x is None else x.data_ptr() for x in (*tensors, arena)]
        arguments = self.struct(kernel)(*pointers, *map(int, numbers))
        arguments.tensors = (*tensors, arena)
        for first in range(0, programs, wave):
            arguments.program0 = first
            several = min(wave, programs - first)
            with torch.cuda.device(run.device if run.device.type == "cuda" else -1):
                wrong = built.launch(arguments, several, blocks, run.device)
            if wrong:
                grid = f"{several} x {blocks} blocks of {threads} threads"
                raise RuntimeError(f"{self.name}_{kernel}, {grid}: {wrong}")

    def struct(self, kernel: str) -> Any:
        """The class of a kernel's arguments, as NAME.h has them."""
        if kernel not in self.structs:
            pointers, numbers = self.kernels[kernel]
            fields: list[tuple[str, Any]] = [
                (name, ctypes.c_void_p) for name in (*pointers, "arena")
            ]
            fields += [(name, ctypes.c_int64) for name in (*numbers, "program0")]
            self.structs[kernel] = type(kernel, (ctypes.Structure,), {"_fields_": fields})
        return self.structs[kernel]

    def macros(
        self, kernel: str, run: Any, block: int, threads: int, types: Sequence[Any], limit: int
    ) -> tuple[str, ...]:
        """What a kernel is compiled with: the sizes and dtypes of a call."""
        found = {f"D_{name}": size for name, size in run.dims.items()}
        found |= {"CHUNK_L": run.C, "THREADS": threads, "SHARED_LIMIT": limit}
        found |= {"PRECISION": PRECISIONS[run.PRECISION]}
        found |= {"BLOCK": block or NARROWEST}
        given = zip(self.kernels[kernel][0], types, strict=True)
        each = {name: ELEMENTS.get(x or operand_dtype(run)) for name, x in given}
        found |= {f"T_{name}": number for name, number in each.items() if number is not None}
        only = ["LACC_ONLY", f"LACC_ONLY_{kernel}"]
        double = ["LACC_DOUBLE"] if run.dtype == torch.float64 else []
        return (*(f"{name}={value}" for name, value in found.items()), *only, *double)

    def _alike(self, key: Any) -> Built | None:
        """What was built for the same with types for tensors that are omitted now."""
        for other, built in self.built.items():
            pairs = zip(key[-1], other[-1], strict=True)
            if key[:-1] == other[:-1] and all(now in (None, then) for now, then in pairs):
                return built
        return None

    def _built(
        self, kernel: str, run: Any, block: int, threads: int, types: Sequence[Any]
    ) -> Built:
        maker = self._builder()
        limit = maker.limit(run.device)
        macros = self.macros(kernel, run, block, threads, types, limit)
        given = zip(self.kernels[kernel][0], types)
        unused = tuple(f"T_{name}" for name, type_ in given if type_ is None)
        symbol = f"{self.name}_{kernel}"
        wanted = Wanted(self.name, symbol, self.files(), macros, threads, unused)
        built = maker.built(wanted, run.device)
        if built.shared > limit:
            sizes = ", ".join(f"{name} = {n}" for name, n in run.dims.items())
            raise ValueError(
                f"{self.name}_{kernel} with {sizes} needs {built.shared / 1024:.0f} KiB of shared "
                f"memory in chunks of {run.C} tokens; {run.device} has {limit >> 10} KiB a block"
            )
        return built

    def files(self) -> dict[str, str]:
        """The texts of NAME.cu and NAME.h, which must be those that this file was written with."""
        found = {}
        for file in (f"{self.name}.cu", f"{self.name}.h"):
            try:
                found[file] = (self.home / file).read_text("utf-8")
            except OSError as problem:
                said = f"cannot read {self.home / file}: {problem.strerror}"
                raise BuildError(said) from None
        if found[f"{self.name}.cu"].partition("\n")[0] != self.head:
            raise BuildError(
                f"{self.home / self.name}.cu is not what its Python file was written with; compile "
                "the spec again"
            )
        return found
