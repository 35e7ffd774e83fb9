"""An example in, the barriers of its emitted CUDA kernels out, and those that order nothing."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cuda_cases
from kernel_cases import EXAMPLES, SCALE

import lacc
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_emulation import Emulated
from lacc.verify.cases import Bench, Case

WAITS = re.compile(r"\b(?:warp_)?barrier\(\);")
KERNEL = re.compile(r"(\w+)\(const \w+_args a\)$")
FUNCTION = re.compile(r"(?:INLINE|DEVICE)\b.*?\b(\w+)\(.*[^;]$")
CHUNK = SCALE.chunk
MODES = ("chunk", "recurrent", "parallel")
LINES = 1 << 14
"""Lines of a file whose barriers the emulation keeps account of."""
CALLS = (
    *((2 * CHUNK + 5, "float32"), (CHUNK + 1, "float32"), (1, "float32"), (0, "float32")),
    (2 * CHUNK + 5, "bfloat16"),
)
"""Tokens and dtypes of calls: chunks of which the last is short, one of a single token, none."""


@dataclass(frozen=True)
class Barrier:
    """A barrier of a file: the function that it is in, its line, and the statement behind it."""

    function: str
    line: int
    behind: str


def barriers(source: str) -> Iterator[Barrier]:
    """The barriers of a file."""
    lines, function = source.splitlines(), ""
    for number, line in enumerate(lines, 1):
        if found := KERNEL.search(line) or FUNCTION.match(line):
            function = found[1]
        if WAITS.search(line) and not line.startswith("#"):
            behind = (x.strip() for x in lines[number:] if not x.strip().startswith("//"))
            yield Barrier(function, number, next(behind))


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
        self.calls: list[tuple[Any, Bench, str, int, str]] = []
        for dims in sizes:
            spec = lacc.load(EXAMPLES / f"{name}.la", dims)
            bench = Bench(spec, lacc.compile(spec, "reference"), SCALE)
            for way in ("fused", "split"):
                kernel = lacc.compile(spec, "cuda")
                if way == "split" and not cuda_cases.has_two_ways(kernel.source or ""):
                    continue
                modes = [m for m in MODES if m in kernel.modes][:2]
                some = [
                    (kernel, bench, mode, *call)
                    for mode in (modes if way == "fused" else modes[:1])
                    for call in CALLS
                ]
                with cuda_cases.launched(way), cuda_calls.emulated(self.builder):
                    assert not self.fault(*some[0])  # loads it
                self.calls += some
        self.machine = self.builder.machine
        self.barriers = [*barriers(kernel.source)]

    def fault(self, kernel: Any, bench: Bench, mode: str, T: int, dtype: str) -> str:
        """What goes wrong in a call and its gradients."""
        started = not bench.reference.signature.no_initial
        case = Case(T=T, started=started, seed=1, dtype=dtype)
        options = {"mode": mode} | ({"chunk": CHUNK} if mode == "chunk" else {})
        try:
            bench.run(kernel, case, bench.arrays(case), options)
        except RuntimeError as problem:
            return str(problem)
        return ""

    def needed(self) -> set[int]:
        """The lines of barriers that alone order two accesses, in some call."""
        found = self.machine["emulation_needed"]
        found.restype = ctypes.POINTER(ctypes.c_bool * LINES)
        flags = found().contents
        flags[:] = [False] * LINES
        for call in self.calls:
            assert not self.fault(*call)
        return {line for line, alone in enumerate(flags) if alone}

    def caught(self, line: int) -> bool:
        """Whether a call fails without a barrier."""
        self.machine.emulation_skip(line)
        try:
            return any(self.fault(*call) for call in self.calls)
        finally:
            self.machine.emulation_skip(-1)

    def redundant(self, functions: Callable[[str], bool]) -> tuple[int, list[Barrier]]:
        """How many barriers some functions have, and those that order nothing in any call."""
        some = [b for b in self.barriers if functions(b.function)]
        needed = self.needed()
        rest = [b for b in some if b.line not in needed]
        return len(some), [b for b in rest if not self.caught(b.line)]
