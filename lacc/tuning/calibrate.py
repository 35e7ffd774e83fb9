"""A target and some seconds in, the constants of this machine as its kernels find them out.

NumPy is timed as it is; for C the pieces that every kernel is built of are compiled and timed.
Seconds are those of this process: what else runs on the machine counts little.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.resources import files
from typing import Any

import numpy as np

from lacc.plan.machine import CACHES, LOCAL, MACHINES, RATES, SECONDS, Machine
from lacc.runtime import building, entries
from lacc.runtime.machines import KIND, caches, device, device_label, entry_name, family

SAMPLES = 5
"""How often each probe is timed; the fastest counts."""
WORK = (64, 64, 64), (32, 64, 128), (128, 128, 64)
"""Rows, columns and depth of products as chunks have them."""
SMALL = 16
"""Of a product that is hardly more than its start."""
IN_CACHE = 1 << 14
"""Floats of a tile that stays in the second level with two others."""
SHARE, THIRD = 4 << 20, 32 << 20
"""Bytes of the third level that a core is taken to have for itself, and to use at most: a virtual
machine is told of all that its host has."""
PIECES = ("base", "math", "products", "mixed", "probe")
ARRAYS = """
#include <stdint.h>
enum { LACC_F32, LACC_F64, LACC_BF16, LACC_F16, LACC_I64 };
typedef struct { void *data; int64_t sequence, token, head; int32_t dtype; } lacc_array;
"""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Probe:
    """Work that is done as often as ``run`` is told, of so many ``parts`` each time."""

    run: Callable[[int], object]
    parts: int = 1

    def seconds(self, times: int) -> float:
        """What it takes."""
        start = time.process_time()
        self.run(times)
        return time.process_time() - start


def calibrate(target: str, seconds: float, progress: Progress) -> Machine:
    """The machine as ``target`` finds it. Raises BuildError where C cannot be compiled."""
    probes = {"numpy": _numpy_probes, "c": _c_probes}[target]()
    each = seconds / len(probes) / SAMPLES
    times = {}
    for n, (name, probe) in enumerate(probes.items()):
        progress(n, len(probes), f"{target}, {name}")
        times[name] = fastest(probe, each)
    return machine_of(target, times)


def fastest(probe: Probe, seconds: float) -> float:
    """Seconds of a part, each sample about ``seconds`` long."""
    times = 1
    while (taken := probe.seconds(times)) < seconds / 4:
        times = min(8 * times, max(times + 1, int(times * seconds / max(taken, 1e-7))))
    return min(probe.seconds(times) for _ in range(SAMPLES)) / times / probe.parts


def machine_of(target: str, times: Mapping[str, float]) -> Machine:
    """Constants of what probes took: two of elementwise work, one with eight operations an entry
    and two floats moved, one with one operation and three, tell operations from bytes."""
    flops = sum(2 * m * n * k for m, n, k in WORK) / sum(times[f"product {s}"] for s in WORK)
    exp, mul = times["exp"] / IN_CACHE, times["mul"] / IN_CACHE
    moved = (8 * mul - exp) / (8 * 12 - 8)
    worked = (exp - 8 * moved) / 8
    start = times["small product"] - 2 * SMALL**3 / flops
    found = {
        "flops": flops,
        "map": 1 / worked if worked > 0 else 8 / exp,
        "near": 1 / moved if moved > 0 else 12 / mul,
        "far": 8 / times["copy"],
        "matrix": max(start, times["call"] / 8),
        "call": times["call"],
    }
    known = MACHINES[target][family()]
    levels = {name: getattr(known, name) for name in CACHES} | caches()
    levels["L3"] = max(levels["L2"], min(levels["L3"], THIRD))
    if not known.apart:
        levels["L2"] += min(SHARE, levels["L3"] // 8)
    rounded = {name: float(f"{value:.3g}") for name, value in found.items()}
    return replace(known, **rounded, **levels, name=LOCAL)  # type: ignore[arg-type]


def _numpy_probes() -> dict[str, Probe]:
    def again(function: Callable[..., object], *arrays: Any, parts: int = 1) -> Probe:
        def run(times: int) -> None:
            for _ in range(times):
                function(*arrays)

        return Probe(run, parts)

    heads, many = 8, 256
    found = {}
    for shape in WORK:
        m, n, k = shape
        arrays = _drawn(heads, m, k), _drawn(heads, k, n), _drawn(heads, m, n)
        found[f"product {shape}"] = again(np.matmul, *arrays, parts=heads)
    tiny = [_drawn(many, SMALL, SMALL) for _ in range(3)]
    found["small product"] = again(np.matmul, *tiny, parts=many)
    x, y, z = (_drawn(IN_CACHE) for _ in range(3))
    found["exp"], found["mul"] = again(np.exp, x, z), again(np.multiply, x, y, z)
    far = _far()
    found["copy"] = again(np.positive, far, far.copy(), parts=far.size)
    few = _drawn(2, 2, 2)
    found["call"] = again(lambda a, b: np.multiply(a[:, None], b[:, :, None]), few, few)
    return found


def _c_probes() -> dict[str, Probe]:
    pieces = [files("lacc.templates").joinpath("c", f"{piece}.c").read_text() for piece in PIECES]
    path = building.library("lacc_probe", {"lacc_probe.c": "\n".join([ARRAYS, *pieces])})
    library = ctypes.CDLL(str(path))

    def again(name: str, *arguments: Any, parts: int = 1) -> Probe:
        def run(times: int) -> None:
            given = [x if isinstance(x, int) else x.ctypes.data for x in arguments]
            function = getattr(library, f"probe_{name}")
            function(*map(ctypes.c_int64, (*given, times)))

        return Probe(run, parts)

    found = {}
    for shape in WORK:
        m, n, k = shape
        arrays = _drawn(m, k), _drawn(k, n), _drawn(m, n)
        found[f"product {shape}"] = again("products", m, n, k, *arrays)
    tiny = [_drawn(SMALL, SMALL) for _ in range(3)]
    found["small product"] = again("products", SMALL, SMALL, SMALL, *tiny)
    x, y, z = (_drawn(IN_CACHE) for _ in range(3))
    found["exp"], found["mul"] = again("exp", IN_CACHE, x, z), again("mul", IN_CACHE, x, y, z)
    far = _far()
    found["copy"] = again("copy", far.size, far, far.copy(), parts=far.size)
    found["call"] = again("call", _drawn(1 << 8), _drawn(1 << 10))
    return found


def _drawn(*shape: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def _far() -> Any:
    """An array that no cache holds, as far as is known of them."""
    return np.zeros(max(16 << 20, min(caches().get("L3", 0) // 2, 32 << 20)), np.float32)


def doubtful(target: str, machine: Machine) -> tuple[str, ...]:
    """The rates that no idle machine is so far below the declared ones of its family with."""
    known = MACHINES[target][family()]
    return tuple(n for n in RATES if getattr(machine, n) < getattr(known, n) / 10)


def sound(target: str, machine: Machine) -> Machine:
    """A machine whose doubtful rates are the declared ones of its family."""
    known = MACHINES[target][family()]
    rates = {name: getattr(known, name) for name in doubtful(target, machine)}
    return replace(machine, **rates)


def keep(target: str, machine: Machine) -> None:
    """Puts constants where plans find them. Raises OSError."""
    constants = {name: getattr(machine, name) for name in (*RATES, *SECONDS, *CACHES)}
    when = datetime.now().strftime("%Y-%m-%d %H:%M")
    entry = {"target": target, "device": device_label(target), "depends": device(target)}
    entries.change(
        KIND, entry_name(target), lambda _: entry | {"when": when, "constants": constants}
    )
