"""A function that launches Triton kernels goes in; what it launches, compiled for an architecture
that need not be there and measured on the binary, comes out. Nothing runs on a device.

    with pretended(ARCHITECTURES["sm_90"]) as recorder:   # before a library looks for its device
        call, outputs = recorder.call("forward", lambda: f(q, k, v))

Tensors are on the CPU: launches only read their types, shapes and alignment. To be imported in a
process of its own alone, as the stand-in is Triton's driver until that process ends.
"""

from __future__ import annotations

import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction

from lacc.static import binary, ttir
from lacc.static.architectures import MULTIPROCESSORS, Architecture
from lacc.static.launches import Call, Launch, NotCompiled
from lacc.static.torch_ops import TorchOps

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

Properties = namedtuple(
    "Properties",
    "name major minor multi_processor_count shared_memory_per_block "
    "shared_memory_per_block_optin total_memory warp_size gcnArchName",
)


class Recorder:
    """Launches, as they are made."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.launches: list[Launch] = []
        self._kernels: dict[int, tuple[Any, _Measured]] = {}

    def call(self, name: str, function: Callable[[], Any]) -> tuple[Call, Any]:
        """What ``function()`` launches, and what it returns."""
        self.launches = []
        with TorchOps() as ops:
            result = function()
        return Call(name, tuple(self.launches), dict(ops.seen)), result

    def attach(self, module: dict[str, Any]) -> None:
        """Has an emitted file launch its kernels on tensors of the CPU."""
        module["on_device"] = lambda where: True

    def know(self, tensors: Iterable[Any]) -> None:
        """What calls are given; loads and stores of a kernel say what it reads."""

    def measured(self, compiled: Any) -> _Measured:
        """What a compiled kernel shows."""
        if id(compiled) not in self._kernels:
            self._kernels[id(compiled)] = compiled, _Measured(compiled, self.architecture)
        return self._kernels[id(compiled)][1]

    def add(
        self, compiled: Any, name: str, arguments: dict[str, Any], grid: tuple[int, ...]
    ) -> None:
        """One launch of a compiled kernel with ``arguments`` by name."""
        found = self.measured(compiled)
        full = (*grid, 1, 1)[:3]
        read, written = _traffic(found.accesses, arguments)
        issued, unknown = found.issued(arguments, full)
        self.launches.append(
            Launch(
                kernel=name,
                grid=(int(full[0]), int(full[1]), int(full[2])),
                warps=compiled.metadata.num_warps,
                stages=compiled.metadata.num_stages,
                registers=found.resources.registers,
                spill=found.resources.spill,
                shared=compiled.metadata.shared,
                occupancy=self.architecture.occupancy(
                    found.resources.registers, compiled.metadata.shared, compiled.metadata.num_warps
                ),
                tensor=found.tensor,
                read=read,
                written=written,
                issued=issued,
                unknown=unknown,
            )
        )


class _Measured:
    """What a compiled kernel shows, whatever it is launched with."""

    def __init__(self, compiled: Any, architecture: Architecture) -> None:
        self._ir = ttir.parse(compiled.asm["ttir"])
        self.accesses = ttir.accesses(self._ir)
        self._code: list[binary.Instruction] = []
        self._loops: list[binary.Loop] = []
        if architecture.backend == "hip":
            text = compiled.asm["amdgcn"]
            self.resources = binary.resources_of_amdgcn(text)
            self.tensor = binary.tensor_instructions(text.splitlines())
            return
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            self.resources = binary.resources_of_cubin(TOOLS, Path(file.name))
            self._code, self._loops = binary.disassemble(TOOLS, Path(file.name))
        self.tensor = binary.tensor_instructions([i.text for i in self._code])

    def issued(self, arguments: dict[str, Any], grid: tuple[int, ...]) -> tuple[float | None, str]:
        """Instructions that a warp issues, or why that is not known."""
        if not self._code:
            return None, "instructions are read off NVIDIA's binaries alone"
        try:
            counts = ttir.executions(self._ir, arguments, grid)
            return binary.issued(self._code, self._loops, counts), ""
        except ttir.Unknown as unknown:
            return None, str(unknown)


def _traffic(accesses: dict[str, str], arguments: dict[str, Any]) -> tuple[int, int]:
    """Bytes read and written, each tensor once however many programs touch it."""
    touched: dict[str, dict[tuple[Any, ...], int]] = {"r": {}, "w": {}}
    for name, how in accesses.items():
        tensor = getattr(arguments.get(name), "base", arguments.get(name))
        if not isinstance(tensor, torch.Tensor):
            continue
        sizes = [n for n, stride in zip(tensor.shape, tensor.stride()) if stride]
        size = torch.Size(sizes).numel() * tensor.element_size()
        for way in how:
            touched[way][tensor.data_ptr(), *tensor.shape] = size
    return sum(touched["r"].values()), sum(touched["w"].values())


class _Driver:
    """What Triton asks of a driver, answered for an architecture; it can load no kernel."""

    def __init__(self, architecture: Architecture) -> None:
        self.target = GPUTarget(architecture.backend, architecture.code, architecture.warp)
        self.utils = self
        self._properties = {
            "max_shared_mem": architecture.shared_each,
            "max_num_regs": architecture.registers,
            "multiprocessor_count": MULTIPROCESSORS,
            "warpSize": architecture.warp,
        }

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        return self._properties

    def get_benchmarker(self) -> Any:
        return lambda run, **_: [0.0, 0.0, 0.0]

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


@contextmanager
def pretended(architecture: Architecture) -> Iterator[Recorder]:
    """Triton and torch see one device of the architecture; launches are recorded, not made. Where
    a library lets Triton choose a configuration by time, its first one stays.
    """
    recorder = Recorder(architecture)
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        try:
            compiled = launch(self, *args, grid=grid, warmup=True, **kwargs)
        except (CompilationError, PTXASError, RuntimeError) as problem:
            raise NotCompiled(f"{self.__name__}: {problem}") from problem
        compiled.n_spills = recorder.measured(compiled).resources.spill
        if not warmup:
            bound = self.signature.bind_partial(
                *args, **{n: x for n, x in kwargs.items() if n in self.arg_names}
            )
            bound.apply_defaults()
            sizes = grid(bound.arguments) if callable(grid) else grid
            recorder.add(compiled, self.__name__, bound.arguments, tuple(sizes))
        return compiled

    number = architecture.code if isinstance(architecture.code, int) else 90
    seen = Properties(
        architecture.name,
        *divmod(number, 10),
        MULTIPROCESSORS,
        48 << 10,
        architecture.shared_each,
        140 << 30,
        architecture.warp,
        architecture.name if architecture.backend == "hip" else "",
    )
    stands_in: dict[tuple[Any, str], Any] = {
        (JITFunction, "run"): run,
        (Autotuner, "_bench"): lambda *_, **__: [0.0, 0.0, 0.0],
        (Autotuner, "check_disk_cache"): lambda self, key, configs, bench: bool(bench()),
        (torch.cuda, "get_device_capability"): lambda *_: (seen.major, seen.minor),
        (torch.cuda, "get_device_name"): lambda *_: seen.name,
        (torch.cuda, "get_device_properties"): lambda *_: seen,
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda, "device_count"): lambda: 1,
    }
    before = {(owner, name): getattr(owner, name) for owner, name in stands_in}
    driver.set_active(_Driver(architecture))
    try:
        for (owner, name), value in stands_in.items():
            setattr(owner, name, value)
        yield recorder
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
