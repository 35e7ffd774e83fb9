"""A number of threads goes in; what they compute and move in a second on this machine comes out,
measured by a C probe that is built like any kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources

from lacc.runtime import building

WORKING_SETS = tuple(1 << n for n in (14, 16, 18, 20, 22, 24, 27))
"""Bytes of the buffers that bandwidth is measured in: from the first cache to memory."""


@dataclass(frozen=True)
class Rates:
    """A second of ``threads`` threads: float32 multiplies and adds (each a flop), float32 exps,
    bytes read and written by the size of the buffer that they are in."""

    threads: int
    flops: float
    exps: float
    bandwidth: dict[int, float]

    def bytes(self, touched: float) -> float:
        """Of a call that touches ``touched`` bytes in all: that of the next larger buffer."""
        each = touched / self.threads
        fits = [size for size in self.bandwidth if size >= each]
        return self.bandwidth[min(fits) if fits else max(self.bandwidth)]


def rates(threads: int = 1) -> Rates:
    """Measures, in about a second. Raises BuildError where there is no C compiler.

    One thread is measured in CPU time, which others on the machine do not take away; several by the
    clock."""
    probe = _probe()
    wall = int(threads > 1)

    def of_all(function: Callable[..., float], *arguments: int) -> float:
        if threads == 1:
            return function(*arguments, wall)
        with ThreadPoolExecutor(threads) as pool:  # a ctypes call lets other threads run
            calls = [pool.submit(function, *arguments, wall) for _ in range(threads)]
            return sum(call.result() for call in calls)

    return Rates(
        threads,
        of_all(probe.fma_rate),
        of_all(probe.exp_rate),
        {size: of_all(probe.byte_rate, size) for size in WORKING_SETS},
    )


def _probe() -> ctypes.CDLL:
    text = resources.files("lacc.templates").joinpath("c/rates.c").read_text("utf-8")
    probe = ctypes.CDLL(str(building.library("rates", {"rates.c": text})))
    for name in ("fma_rate", "exp_rate", "byte_rate"):
        function = getattr(probe, name)
        function.restype = ctypes.c_double
        function.argtypes = (
            [ctypes.c_int64, ctypes.c_int] if name == "byte_rate" else [ctypes.c_int]
        )
    return probe
