"""An example in, the barriers of its emitted CUDA kernels out, and those that order nothing."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_cases
from kernel_cases import EXAMPLES, SCALE

import lacc
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_emulation import COMPILER, FLAGS, HEADERS, Emulated, headers
from lacc.verify.cases import Bench, Case

NUMBERED = re.compile(r"emulation::wait_(?:all|warp)\((\d+)\)")
FUNCTION = re.compile(r"^\S.*?\b(\w+)\((?!.*;$)")
CHUNK = SCALE.chunk
SEEN = 1 << 12
"""Barriers whose needs the emulation knows."""
LENGTHS = (2 * CHUNK + 5, CHUNK + 1, 1, 0)
"""Tokens of calls: chunks of which the last is short, one of a single token, none."""


@dataclass(frozen=True)
class Barrier:
    """A barrier of a file: the function that it is in, its number, and the statement behind it."""

    function: str
    number: int
    behind: str


def barriers(name: str, files: Mapping[str, str]) -> Iterator[Barrier]:
    """The barriers of a file, as the preprocessor numbers them."""
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        for file, text in (*files.items(), *headers().items()):
            (room / file).write_text(text)
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        command = [COMPILER, *flags, "-E", "-P", "-include", HEADERS[0], f"{name}.cu"]
        done = subprocess.run(command, cwd=room, capture_output=True, text=True, check=True)
    lines, function = done.stdout.splitlines(), ""
    for line, after in zip(lines, [*lines[1:], ""]):
        if found := FUNCTION.match(line):
            function = found[1].removeprefix(f"{name}_")
        for number in NUMBERED.findall(line):
            yield Barrier(function, int(number), after.strip())


class Watched(Emulated):
    """Keeps hold of a library, all of which have one machine."""

    machine: Any = None

    def built(self, wanted: Any, device: Any) -> Any:
        loaded = super().built(wanted, device)
        self.machine = loaded.library
        return loaded


class Trial:
    """Calls of the kernels of an example: by chunks, in one kernel and in several, and by token,
    gradients too, of several lengths; with each of some sizes."""

    def __init__(self, name: str, sizes: Sequence[Mapping[str, int]]) -> None:
        self.builder = Watched()
        self.calls: list[tuple[Any, Bench, str, int]] = []
        for dims in sizes:
            spec = lacc.load(EXAMPLES / f"{name}.la", dims)
            bench = Bench(spec, lacc.compile(spec, "reference"), SCALE)
            for way in ("fused", "split"):
                kernel = lacc.compile(spec, "cuda")
                if way == "split" and not cuda_cases.has_two_ways(kernel.source or ""):
                    continue
                modes = [m for m in ("chunk", "recurrent") if m in kernel.modes]
                some = [
                    (kernel, bench, mode, T)
                    for mode in (modes if way == "fused" else modes[:1])
                    for T in LENGTHS
                ]
                with cuda_cases.launched(way), cuda_calls.emulated(self.builder):
                    assert not self.fault(*some[0])  # loads it
                self.calls += some
        self.machine = self.builder.machine
        self.barriers = [*barriers(name, kernel.files)]

    def fault(self, kernel: Any, bench: Bench, mode: str, T: int) -> str:
        """What goes wrong in a call and its gradients."""
        case = Case(T=T, started=not bench.reference.signature.no_initial, seed=1, dtype="float32")
        options = {"mode": mode} | ({"chunk": CHUNK} if mode == "chunk" else {})
        try:
            bench.run(kernel, case, bench.arrays(case), options)
        except RuntimeError as problem:
            return str(problem)
        return ""

    def needed(self) -> set[int]:
        """The numbers of barriers that alone order two accesses, in some call."""
        found = self.machine["emulation_needed"]
        found.restype = ctypes.POINTER(ctypes.c_bool * SEEN)
        flags = found().contents
        flags[:] = [False] * SEEN
        for call in self.calls:
            assert not self.fault(*call)
        return {number for number, is_needed in enumerate(flags) if is_needed}

    def caught(self, number: int) -> bool:
        """Whether a call fails without a barrier."""
        self.machine.emulation_skip(number)
        try:
            return any(self.fault(*call) for call in self.calls)
        finally:
            self.machine.emulation_skip(-1)

    def redundant(self, functions: Callable[[str], bool]) -> tuple[int, list[Barrier]]:
        """How many barriers some functions have, and those that order nothing in any call."""
        some = [b for b in self.barriers if functions(b.function)]
        needed = self.needed()
        rest = [b for b in some if b.number not in needed]
        return len(some), [b for b in rest if not self.caught(b.number)]
