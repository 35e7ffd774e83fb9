"""A function that launches CUDA kernels goes in; what it launches, compiled by nvcc for an
architecture that need not be there and read off the binary, comes out. Nothing runs on a device.

    with pretended(ARCHITECTURES["sm_90"]) as recorder:
        recorder.attach(module)             # an emitted file
        call, outputs = recorder.call("forward", lambda: f(q, k, v))

Tensors are on the CPU: launches only read their types, shapes and strides.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lacc.runtime.caching import BuildError, compiled, failure
from lacc.runtime.cuda_building import (
    NVCC_SAID,
    SHARED_FLAGS,
    STANDARD,
    Loaded,
    Wanted,
    nvcc,
    written,
)
from lacc.static import binary
from lacc.static.architectures import Architecture
from lacc.static.launches import Call, Launch, NotCompiled
from lacc.static.torch_ops import TorchOps


@dataclass
class Measured:
    """What the binary of a kernel shows: registers of a thread, bytes that its registers spill,
    bytes of a block, tensor-core instructions; its launches are recorded."""

    recorder: CudaRecorder
    name: str
    warps: int
    resources: binary.Resources
    tensor: dict[str, int]
    shared: int
    scratch: int
    together: int = 0

    def launch(self, arguments: Any, programs: int, blocks: int, device: Any) -> str:
        """Records one launch."""
        self.recorder.add(self, programs, blocks)
        return ""


class CudaRecorder:
    """Launches, as they are made; what `lacc.runtime.cuda_building.Builder` says."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.launches: list[Launch] = []
        self._tensors: list[Any] = []
        self._programs = 0
        self._kept: list[Any] = []  # so that no address is another tensor's
        self._filled: set[int] = set()

    def attach(self, module: dict[str, Any]) -> None:
        """Has an emitted file launch its kernels here, on tensors of the CPU."""
        stock = module["launched"]
        stock.builder = self
        module["SUPPORT"].everywhere = True

        launched = module["launched"] = Noted(self, stock)
        if "ATTENTION" in module:
            module["ATTENTION"].launched = launched

    def note(self, programs: int, tensors: Iterable[Any], launch: Callable[[], None]) -> None:
        """Has ``launch()`` record the launch of so many programs on tensors."""
        self._tensors = [x for x in tensors if x is not None]
        self._programs, before = programs, len(self.launches)
        launch()
        self.launches[before:] = joined(self.launches[before:])

    def know(self, tensors: Iterable[Any]) -> None:
        """What calls are given: memory that holds something."""
        self._kept += tensors
        self._filled |= {place(x) for x in self._kept}

    def call(self, name: str, function: Callable[[], Any]) -> tuple[Call, Any]:
        """What ``function()`` launches, and what it returns."""
        self.launches = []
        with TorchOps() as ops:
            result = function()
        return Call(name, tuple(self.launches), dict(ops.seen)), result

    def limit(self, device: Any) -> int:
        """Bytes of shared memory that a block may have."""
        return self.architecture.shared_each

    def profile(self, device: Any) -> str:
        """The name of the architecture."""
        return self.architecture.name

    def built(self, wanted: Wanted, device: Any) -> Measured:
        """A kernel, compiled. Raises NotCompiled."""
        number = self.architecture.code
        flags = [*STANDARD, f"-arch=sm_{number}{'a' if number == 90 else ''}", *SHARED_FLAGS]
        command = [*nvcc(), *flags, "-Xptxas=-v", *wanted.defines, f"{wanted.name}.cu"]
        with tempfile.TemporaryDirectory(prefix="lacc-static-") as folder:
            work = Path(folder)
            written(wanted, work)
            done = compiled([*command, "-o", "kernel.so"], work)
            if done.returncode:
                raise NotCompiled(failure(done, *NVCC_SAID))
            try:
                loaded = Loaded(work / "kernel.so", wanted.symbol, lambda _: None, lambda *_: "")
            except BuildError as problem:
                raise NotCompiled(str(problem)) from None
            texts = assembly(work / "kernel.so")
        return Measured(
            self,
            wanted.symbol.removeprefix(f"{wanted.name}_"),
            wanted.threads // self.architecture.warp,
            resources(done.stdout),
            binary.tensor_instructions(texts),
            loaded.shared,
            loaded.scratch,
            loaded.together,
        )

    def add(self, kernel: Measured, programs: int, blocks: int) -> None:
        """One launch of a kernel on its part of the tensors at hand, each counted once: written
        where nothing has written it before, else read; scratch memory is both."""
        moved = {"read": 0, "written": 0}
        views = sorted(self._tensors, key=lambda x: int(x.numel()))
        for x in {place(x): x for x in views}.values():
            fresh = place(x) not in self._filled and x.is_floating_point()
            sizes = [n for n, step in zip(x.shape, x.stride()) if step]
            moved["written" if fresh else "read"] += torch.Size(sizes).numel() * x.element_size()
        self.know(self._tensors)
        scratch = kernel.scratch * programs * blocks
        moved = {way: n * programs // self._programs + scratch for way, n in moved.items()}
        used, warps = kernel.resources.registers, kernel.warps
        self.launches.append(
            Launch(
                kernel=kernel.name,
                grid=(programs, blocks, 1),
                warps=warps,
                stages=1,
                registers=used,
                spill=kernel.resources.spill,
                shared=kernel.shared,
                occupancy=self.architecture.occupancy(used, kernel.shared, warps),
                tensor=kernel.tensor,
                read=moved["read"],
                written=moved["written"],
                issued=None,
                scratch=kernel.scratch,
            )
        )


class Noted:
    """The launcher of an emitted file, which a recorder sees."""

    def __init__(self, recorder: CudaRecorder, stock: Any) -> None:
        self.recorder, self.stock, self.in_one = recorder, stock, stock.in_one

    def __call__(
        self, kernel: str, run: Any, programs: int, size: int, tensors: Any, *more: Any
    ) -> None:
        """A launch, as `lacc.runtime.cuda_launching.Launcher` takes it."""
        launch = partial(self.stock, kernel, run, programs, size, tensors, *more)
        self.recorder.note(programs, tensors, launch)


def joined(launches: list[Launch]) -> list[Launch]:
    """One launch in place of those that take the programs of one a part at a time."""
    if not launches:
        return []
    first = launches[0]
    grid = (sum(one.grid[0] for one in launches), *first.grid[1:])
    moved = (sum(one.read for one in launches), sum(one.written for one in launches))
    return [replace(first, grid=grid, read=moved[0], written=moved[1])]


def place(x: Any) -> int:
    """Where the memory of a tensor begins."""
    return int(x.untyped_storage().data_ptr())


def resources(said: str) -> binary.Resources:
    """What ptxas says of a file with one kernel: its registers, and what it and the functions that
    it calls spill."""
    used = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    spilt = [int(n) for n in re.findall(r"(\d+) bytes spill stores", said)]
    return binary.Resources(max(used, default=0), sum(spilt))


def assembly(library: Path) -> list[str]:
    """The instructions of a library, a line each."""
    wheel = find_spec("triton")
    places = [Path(nvcc()[0]).resolve().parent]
    places += [Path(part) / "backends/nvidia/bin" for part in _folders(wheel)]
    tool = next((place for place in places if (place / "cuobjdump").is_file()), None)
    if tool is None:
        raise NotCompiled("there is no cuobjdump beside nvcc, nor in the package triton")
    done = compiled([str(tool / "cuobjdump"), "-sass", str(library)], None)
    return done.stdout.splitlines()


def _folders(spec: Any) -> list[str]:
    return list(spec.submodule_search_locations or ()) if spec else []


@contextmanager
def pretended(architecture: Architecture) -> Iterator[CudaRecorder]:
    """Launches are recorded, not made; there is nothing else to pretend."""
    yield CudaRecorder(architecture)
