"""The texts of a CUDA file and the macros of one of its kernels in, the kernel as this machine can
launch it out: of a library that nvcc makes, or of a cubin that NVRTC makes.

This module stands alone (torch, and cuda.bindings where there is no nvcc): its text is pasted into
emitted files, behind `caching.py`, which keeps what is made. Every code that CUDA returns is looked
at and named.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from lacc.runtime.caching import (
    BuildError,
    cache_folder,
    compiled,
    digest,
    failure,
    kept,
    made,
    shown,
    version_text,
)

OLDEST = (8, 0)  # compute capability that kernels are written for
PATIENCE = 600.0  # seconds to wait for a process that builds the same
STANDARD = ("-std=c++17", "-O3")
SHARED_FLAGS = ("--shared", "-Xcompiler=-fPIC,-fvisibility=default")
NVCC_SAID = ("nvcc", "another one may do: set NVCC")
EITHER = (
    "there is neither nvcc nor NVRTC: install the CUDA toolkit, or `pip install nvidia-cuda-nvcc`, "
    "or `pip install nvidia-cuda-nvrtc cuda-bindings`, or set NVCC"
)
NEEDS = ("shared", "scratch", "together")
"""What a kernel says of itself, as `Built` has it."""


@dataclass(frozen=True)
class Wanted:
    """One kernel to build: ``symbol`` is its name in the file ``name``.cu of ``files``, texts by
    file name; ``macros`` as NAME=VALUE, those of ``unused`` names say types of null pointers;
    ``threads`` of a block."""

    name: str
    symbol: str
    files: Mapping[str, str]
    macros: tuple[str, ...]
    threads: int
    unused: tuple[str, ...] = ()

    def key(self, *more: str) -> str:
        """A digest of all of it, and of ``more``."""
        files = [part for pair in sorted(self.files.items()) for part in pair]
        parts = (*files, self.symbol, *self.macros, *more)
        return digest(*(part.encode() for part in parts))

    @property
    def defines(self) -> list[str]:
        """The macros as options of a compiler."""
        return [f"-D{macro}" for macro in self.macros]


class Built(Protocol):
    """A kernel that can be launched; ``shared`` and ``scratch`` are the bytes that a block takes of
    shared and of global memory; ``together``, if not 0, how many blocks a multiprocessor runs at
    once, which take all programs in turn."""

    shared: int
    scratch: int
    together: int

    def launch(self, arguments: ctypes.Structure, programs: int, blocks: int, device: Any) -> str:
        """Launches ``programs`` times ``blocks`` blocks on torch's current stream of ``device``:
        what went wrong, "" where nothing did. ``arguments.tensors`` are what its pointers, which
        come first, point to."""


class Builder(Protocol):
    """What makes kernels of a text."""

    def built(self, wanted: Wanted, device: Any) -> Built:
        """The kernel for a device. Raises BuildError where it cannot be made."""

    def limit(self, device: Any) -> int:
        """Bytes of shared memory that a block may have there."""

    def profile(self, device: Any) -> str:
        """The name by which launches are chosen, as `lacc.plan.devices` has it; "" where kernels
        are emulated."""


# ---- the device, its driver and what compiles for it


def profile_of(device: Any) -> str:
    """The name of a device by its capability."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def architecture(device: Any) -> str:
    """What to compile for. Raises BuildError where a device is older than the kernels."""
    found = torch.cuda.get_device_capability(device)
    major, minor = found
    if found < OLDEST:
        raise BuildError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; kernels "
            f"need {OLDEST[0]}.{OLDEST[1]} or later: its tensors can go to --target c on the CPU"
        )
    return f"sm_{major}{minor}{'a' if major == 9 else ''}"


def check_driver(toolkit: tuple[int, int], whose: str) -> None:
    """Raises BuildError where the driver is older than the toolkit that compiles for it."""
    torch_c: Any = torch._C
    version = torch_c._cuda_getDriverVersion()
    driver = version // 1000, version % 1000 // 10
    if driver[0] < toolkit[0]:
        raise BuildError(
            f"the driver takes what CUDA {driver[0]}.{driver[1]} and older compile; {whose} is of "
            f"CUDA {toolkit[0]}.{toolkit[1]}: update the driver, or set NVCC to an older nvcc"
        )


def packaged(pattern: str) -> Iterator[Path]:
    """Files of NVIDIA's Python packages."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob(pattern), reverse=True)


def nvcc() -> tuple[str, ...]:
    """The command of nvcc: $NVCC, else that of $CUDA_HOME, of the PATH, of /usr/local/cuda, or of
    the package nvidia-cuda-nvcc; () where there is none. Raises BuildError where $NVCC is none."""
    if given := shlex.split(os.environ.get("NVCC", "")):
        if shutil.which(given[0]) is None:
            raise BuildError(f"NVCC={shlex.join(given)}: there is no such compiler")
        return tuple(given)
    homes = [home for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    places = [f"{home}/bin/nvcc" for home in homes]
    places += ["nvcc", "/usr/local/cuda/bin/nvcc", *map(str, packaged("*/bin/nvcc"))]
    return next(((place,) for place in places if shutil.which(place)), ())


@cache
def release(command: tuple[str, ...]) -> tuple[int, int]:
    """The CUDA release of an nvcc. Raises BuildError where it does not say one."""
    said = version_text(command, *NVCC_SAID)
    found = re.search(r"release (\d+)\.(\d+)", said)
    if found is None:
        raise BuildError("\n  ".join([f"{command[0]} does not say its release", *shown(said)]))
    return int(found[1]), int(found[2])


def nvrtc_missing() -> str:
    """What there is no NVRTC for, "" where there is one."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "there is no package cuda-bindings"
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as problem:
        return str(problem).strip().partition(",")[0]
    return ""


def builder() -> Builder:
    """What can compile here: nvcc, else NVRTC. Raises BuildError where neither is there."""
    if command := nvcc():
        return Nvcc(command)
    if lacking := nvrtc_missing():
        raise BuildError(f"{EITHER} ({lacking})")
    return Nvrtc()


@contextmanager
def alone(name: str, key: str) -> Iterator[None]:
    """No other process builds the same meanwhile. Raises BuildError where one takes too long."""
    from filelock import FileLock, Timeout

    lock = FileLock(cache_folder() / f".{name}-{key}.lock")
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        said = f"another process has been building {name} for {PATIENCE:.0f} seconds"
        raise BuildError(f"{said}; remove {lock.lock_file} if there is none") from None
    try:
        yield
    finally:
        lock.release()


def made_alone(name: str, key: str, ending: str, make: Callable[[Path], Path]) -> Path:
    """The file of ``key``: the one that is kept, else what ``make`` gives."""
    if found := kept(name, key, ending):
        return found
    with alone(name, key):
        return kept(name, key, ending) or made(name, key, make)


def written(wanted: Wanted, folder: Path) -> None:
    """Writes the files into a folder."""
    for file, text in wanted.files.items():
        (folder / file).write_text(text, "utf-8")


# ---- libraries


class Loaded:
    """A kernel of a shared library, with the launcher that its text has; ``error`` says what a code
    of it means."""

    def __init__(
        self,
        path: Path,
        symbol: str,
        stream: Callable[[Any], int | None],
        error: Callable[[Any, int], str],
    ) -> None:
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as problem:
            raise BuildError(
                f"cannot load {path}: {problem}; set LACC_CACHE to a folder of a disk that "
                "programs may be run from"
            ) from None
        self._launch = self.library[f"{symbol}_launch"]
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._stream, self._error = stream, error
        self.shared, self.scratch, self.together = (self._told(f"{symbol}_{n}") for n in NEEDS)

    def _told(self, function: str) -> int:
        told = self.library[function]
        told.restype = ctypes.c_int64
        return int(told())

    def launch(self, arguments: ctypes.Structure, programs: int, blocks: int, device: Any) -> str:
        """As `Built` says."""
        stream = self._stream(device)
        code = self._launch(ctypes.byref(arguments), programs, blocks, stream)
        return self._error(self.library, code) if code else ""


def stream_of(device: Any) -> int:
    """Torch's current stream of a device."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def error_of(library: Any, code: int) -> str:
    """What a code of CUDA's runtime means."""
    return str(torch.cuda.CudaError(code))


class Nvcc:
    """Makes shared libraries by nvcc."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.command = command

    def limit(self, device: Any) -> int:
        """As `Builder` says."""
        return shared_of(device)

    def profile(self, device: Any) -> str:
        """As `Builder` says."""
        return profile_of(device)

    def built(self, wanted: Wanted, device: Any) -> Built:
        """As `Builder` says."""
        check_driver(release(self.command), shlex.join(self.command))
        path = self.library(wanted, architecture(device))
        return Loaded(path, wanted.symbol, stream_of, error_of)

    def library(self, wanted: Wanted, arch: str) -> Path:
        """The library of a kernel for an architecture; needs no GPU."""
        more = shlex.split(os.environ.get("NVCC_APPEND_FLAGS", ""))
        flags = [*STANDARD, f"-arch={arch}", *SHARED_FLAGS, *wanted.defines]
        said = version_text(self.command, *NVCC_SAID)

        def make(work: Path) -> Path:
            written(wanted, work)
            path = work / f"{wanted.symbol}.so"
            done = compiled([*self.command, *flags, f"{wanted.name}.cu", "-o", path.name], work)
            if done.returncode:
                raise BuildError(failure(done, *NVCC_SAID))
            return path

        key = wanted.key(*self.command, *flags, *more, said)
        return made_alone(wanted.symbol, key, ".so", make)


def shared_of(device: Any) -> int:
    """Bytes of shared memory that a block may have on a device."""
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


# ---- NVRTC


class Nvrtc:
    """Makes cubins by NVRTC, without a host compiler, and launches them by the driver."""

    def limit(self, device: Any) -> int:
        """As `Builder` says."""
        return shared_of(device)

    def profile(self, device: Any) -> str:
        """As `Builder` says."""
        return profile_of(device)

    def built(self, wanted: Wanted, device: Any) -> Built:
        """As `Builder` says."""
        check_driver(nvrtc_release(), "NVRTC")
        path = self.cubin(wanted, architecture(device))
        return Cubin(path.read_bytes(), wanted.symbol, wanted.threads)

    def cubin(self, wanted: Wanted, arch: str) -> Path:
        """The cubin of a kernel for an architecture; needs no GPU."""
        options = ["-std=c++17", f"--gpu-architecture={arch}", "-default-device", *wanted.defines]
        options += [f"-I{folder}" for folder in headers()]
        version = "NVRTC {}.{}".format(*nvrtc_release())

        def make(work: Path) -> Path:
            path = work / f"{wanted.symbol}.cubin"
            path.write_bytes(cubin_of(wanted, options))
            return path

        return made_alone(wanted.symbol, wanted.key(*options, version), ".cubin", make)


@cache
def nvrtc_release() -> tuple[int, int]:
    """The CUDA release of NVRTC."""
    from cuda.bindings import nvrtc

    major, minor = checked(nvrtc.nvrtcVersion())
    return int(major), int(minor)


def headers() -> list[str]:
    """Folders with CUDA's headers. Raises BuildError where there is none."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += [str(Path(command[0]).resolve().parent.parent)] if (command := nvcc()) else []
    places = [Path(home) / "include" for home in homes if home]
    places += [path.parent for path in packaged("*/include/cuda_bf16.h")]
    found = [str(place) for place in places if (place / "cuda_bf16.h").is_file()]
    if not found:
        raise BuildError(
            "there are no headers of CUDA: `pip install nvidia-cuda-runtime`, or set CUDA_HOME"
        )
    return found[:1]


def checked(reply: Any) -> Any:
    """What a call of cuda.bindings gives behind its code, which must be that of success. Raises
    BuildError."""
    code, *rest = reply
    if int(code):
        raise BuildError(f"CUDA: {code.name}")
    return rest[0] if len(rest) == 1 else tuple(rest)


def cubin_of(wanted: Wanted, options: Sequence[str]) -> bytes:
    """The cubin that NVRTC makes. Raises BuildError with what it says."""
    from cuda.bindings import nvrtc

    source = f"{wanted.name}.cu"
    beside = {name: text for name, text in wanted.files.items() if name != source}
    program = checked(
        nvrtc.nvrtcCreateProgram(
            wanted.files[source].encode(),
            source.encode(),
            len(beside),
            [text.encode() for text in beside.values()],
            [name.encode() for name in beside],
        )
    )
    try:
        (code,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        if int(code):
            log = b" " * int(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            said = log.decode("utf-8", "replace").rstrip("\0")
            raise BuildError("\n  ".join([f"NVRTC: {code.name}", *shown(said)]))
        cubin = b" " * int(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Cubin:
    """A kernel of a cubin, in the context of torch's current device."""

    def __init__(self, cubin: bytes, symbol: str, threads: int) -> None:
        from cuda.bindings import driver

        self.module = checked(driver.cuModuleLoadData(cubin))
        self.kernel = checked(driver.cuModuleGetFunction(self.module, symbol.encode()))
        self.threads = threads
        needs = (ctypes.c_int64 * len(NEEDS))()
        place, size = checked(driver.cuModuleGetGlobal(self.module, f"{symbol}_needs".encode()))
        checked(driver.cuMemcpyDtoH(ctypes.addressof(needs), place, size))
        self.shared, self.scratch, self.together = needs
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self.kernel, most, self.shared))

    def launch(self, arguments: ctypes.Structure, programs: int, blocks: int, device: Any) -> str:
        """As `Built` says."""
        from cuda.bindings import driver

        given = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        (code,) = driver.cuLaunchKernel(
            self.kernel,
            *(programs, blocks, 1),
            *(self.threads, 1, 1),
            self.shared,
            stream_of(device),
            ctypes.addressof(given),
            0,
        )
        return str(code.name) if int(code) else ""
