"""An example in, the barriers of its emitted CUDA kernels out that may be left out unnoticed."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_cases
import numpy as np
from kernel_cases import EXAMPLES, SCALE

import lacc
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_emulation import COMPILER, FLAGS, HEADER, ORDERS, Emulated, header
from lacc.verify.cases import Bench, Case

NUMBERED = re.compile(r"emulation::wait_(?:all|warp)\((\d+)\)")
TRIALS = [("ascending", 1), ("descending", 1), *(("shuffled", seed) for seed in range(1, 5))]
"""Orders of threads, with seeds, in which a fault may show."""


@dataclass(frozen=True)
class Barrier:
    """A barrier of a kernel: its number in the file, and the statement behind it."""

    kernel: str
    number: int
    behind: str


def barriers(name: str, source: str, head: str) -> Iterator[Barrier]:
    """The barriers of the kernels of a file, as the preprocessor numbers them."""
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        for file, text in ((f"{name}.cu", source), (f"{name}.h", head), (HEADER, header())):
            (room / file).write_text(text)
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        command = [COMPILER, *flags, "-E", "-P", "-include", HEADER, f"{name}.cu"]
        done = subprocess.run(command, cwd=room, capture_output=True, text=True, check=True)
    kernels = re.finditer(rf'extern "C"\s+void\s+{name}_(\w+)\(const [^)]*\)\s*{{', done.stdout)
    for kernel in kernels:
        lines = re.split(r"\n}", done.stdout[kernel.end() :], maxsplit=1)[0].splitlines()
        for line, after in zip(lines, [*lines[1:], ""]):
            for found in NUMBERED.finditer(line):
                yield Barrier(kernel[1], int(found[1]), after.strip())


def results(kernel: Any, bench: Bench, modes: Sequence[str]) -> list[Any]:
    """What calls in some modes give, gradients too, or what went wrong."""
    found: list[Any] = []
    for mode in modes:
        case = Case(T=2 * SCALE.chunk + 5, started=True, seed=1, dtype="float32")
        options = {"mode": mode} | ({"chunk": SCALE.chunk} if mode == "chunk" else {})
        try:
            found += bench.run(kernel, case, bench.arrays(case), options).values()
        except RuntimeError as problem:
            found.append(str(problem))
    return found


def unnoticed(name: str, dims: Mapping[str, int]) -> tuple[int, list[Barrier]]:
    """How many barriers the kernels of an example have, and those without which no order of threads
    changes a bit."""
    spec = lacc.load(EXAMPLES / f"{name}.la", dims)
    bench = Bench(spec, lacc.compile(spec, "reference"), SCALE)
    left: dict[int, Barrier] = {}
    count = 0
    for way in ("fused", "split"):
        with cuda_cases.launched(way), cuda_calls.emulated(Emulated()):
            kernel = lacc.compile(spec, "cuda")
            modes = [m for m in ("chunk", "recurrent") if m in kernel.modes and way == "fused"]
            modes = modes or ["chunk"]
            source, head = kernel.files[f"{name}.cu"], kernel.files[f"{name}.h"]
            if way == "split" and not cuda_cases.has_two_ways(source):
                continue
            every = {b.number: b for b in barriers(name, source, head)}
            taken = {n: b for n, b in every.items() if of(b.kernel, way)}
            count += len(taken)
            machine = emulation(kernel, bench, modes)
            want = {trial: in_order(machine, trial, -1, kernel, bench, modes) for trial in TRIALS}
            for number, barrier in taken.items():
                trials = (
                    same(in_order(machine, t, number, kernel, bench, modes), want[t])
                    for t in TRIALS
                )
                if all(trials):
                    left[number] = barrier
            machine.emulation_skip(-1)
    return count, list(left.values())


def of(kernel: str, way: str) -> bool:
    """Whether a way of launching tries a kernel; the backward belongs to the first."""
    return (
        kernel.startswith("forward_") and "token" not in kernel
        if way == "split"
        else ("token" in kernel or not kernel.startswith("forward_"))
    )


def emulation(kernel: Any, bench: Bench, modes: Sequence[str]) -> Any:
    """The machine that runs kernels: one for all libraries of the process."""
    results(kernel, bench, modes)
    from lacc.runtime.caching import cache_folder

    newest = max(cache_folder().glob("*.so"), key=lambda path: path.stat().st_mtime)
    return ctypes.CDLL(str(newest))


def in_order(
    machine: Any, trial: tuple[str, int], skipped: int, kernel: Any, bench: Bench, modes: Any
) -> list[Any]:
    order, seed = trial
    machine.emulation_order(ORDERS.index(order), seed)
    machine.emulation_skip(skipped)
    return results(kernel, bench, modes)


def same(got: list[Any], want: list[Any]) -> bool:
    return len(got) == len(want) and all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(got, want)
    )
