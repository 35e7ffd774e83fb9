"""CUDA source in, a library whose kernels run on the CPU out, for tests of pieces and primitives.

A source has kernels ``void NAME_kernel(const args_t a)`` over pointers ``p`` and numbers ``n``,
written as ``KERNEL(NAME, statements)``.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from lacc.runtime.cuda_emulation import LIBRARIES, RACES, joined, tell

ROOT = Path(__file__).parents[1]
PIECES = ROOT / "templates" / "cuda"
NAMES = (
    *("primitives", "base", "tiles", "math", "products"),
    *("scans", "solves", "decays", "grams", "pulls"),
)
"""Pieces of the device library, each after those that it uses."""

FLAGS = (
    "-std=c++17 -O1 -g0 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function "
    "-shared -fPIC"
)
LINES = 1 << 14
"""Lines of a file whose barriers the emulation keeps account of."""
ORDERS = {"ascending": 0, "descending": 1, "shuffled": 2}
POINTERS, NUMBERS = 16, 24
HEAD = f"""
typedef struct {{ real *p[{POINTERS}]; int64_t n[{NUMBERS}]; }} args_t;
#define KERNEL(name, ...) \\
    extern "C" __global__ void name##_kernel(const args_t a) {{ \\
        real *const *p = a.p; const int64_t *n = a.n; (void)p, (void)n; __VA_ARGS__ }}
"""
HOST = """
#define RUN(name) \\
    extern "C" int name##_run(const args_t *a, int64_t blocks, int64_t shared) { \\
        return launch(name##_kernel, blocks, 1, THREADS, shared, nullptr, *a); }
"""


def pieces(names: Sequence[str] = NAMES) -> str:
    """The text of pieces, which a source begins with."""
    return "\n".join((PIECES / f"{name}.cuh").read_text() for name in names)


def barriers(text: str) -> list[int]:
    """The lines of a text that have a barrier."""
    return [n for n, line in enumerate(text.splitlines(), 1) if re.search(r"barrier\(\);", line)]


def source(kernels: str, names: Sequence[str] = NAMES) -> str:
    """The text of a .cu file: pieces, kernels, and how each is launched."""
    runs = " ".join(f"RUN({name})" for name in re.findall(r"^[A-Z]+\((\w+)", kernels, re.M))
    return "\n".join((pieces(names), HEAD, kernels, HOST, runs, ""))


def built(
    room: Path, text: str, macros: Mapping[str, int], flags: Sequence[str] = RACES
) -> Emulated:
    """The library of a source, compiled in a folder; by default it finds races."""
    (room / "source.cu").write_text(text)
    given = [f"-D{name}={value}" for name, value in macros.items()]
    header = ROOT / "lacc" / "emulation" / "emulation.h"
    command = ["g++", *FLAGS.split(), *flags, *given, "-include", str(header)]
    if flags == RACES:  # what tells of accesses hides from g++ what is set before it is read
        command.append("-Wno-maybe-uninitialized")
    command += ["-x", "c++", "source.cu", *(LIBRARIES if flags == RACES else ())]
    subprocess.run([*command, "-o", "source.so"], cwd=room, check=True)
    return Emulated(ctypes.CDLL(str(room / "source.so")))


class Arguments(ctypes.Structure):
    _fields_ = [("p", ctypes.c_void_p * POINTERS), ("n", ctypes.c_int64 * NUMBERS)]


class Emulated:
    """Kernels of a library on NumPy arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.library.emulation_message.restype = ctypes.c_char_p
        self.shared = 24576

    @property
    def message(self) -> str:
        """What ended the last launch."""
        return str(self.library.emulation_message().decode())

    def order(self, name: str) -> None:
        """The order of threads from now on."""
        self.library.emulation_order(ORDERS[name], 1)

    def needed(self) -> Any:
        """Whether the barrier in each line has alone ordered accesses so far."""
        found = self.library.emulation_needed
        found.restype = ctypes.POINTER(ctypes.c_bool * LINES)
        return found().contents

    def launch(
        self, name: str, pointers: Sequence[Any], numbers: Sequence[int] = (), blocks: int = 1
    ) -> int:
        """The error of a kernel on arrays (None: null), 0 for none."""
        args = Arguments()
        for k, x in enumerate(pointers):
            args.p[k] = None if x is None else x.ctypes.data
        bounds = ((0, 0) if x is None else byte_bounds(x) for x in pointers)
        tell(self.library, joined((f"p[{k}]", place) for k, place in enumerate(bounds)))
        for k, n in enumerate(numbers):
            args.n[k] = int(n)
        run = getattr(self.library, f"{name}_run")
        sizes = ctypes.c_int64(blocks), ctypes.c_int64(self.shared)
        return int(run(ctypes.byref(args), *sizes))

    def __call__(self, name: str, pointers: Sequence[Any], numbers: Sequence[int] = ()) -> None:
        error = self.launch(name, pointers, numbers)
        assert error == 0, self.message


def aligned(*shape: int, dtype: Any = np.float32) -> Any:
    """An array of NaN at a multiple of 16 bytes."""
    size, one = int(np.prod(shape)), np.dtype(dtype).itemsize
    room = np.full(size + 4, np.nan, dtype)
    start = -room.ctypes.data % 16 // one
    return room[start : start + size].reshape(shape)
