"""A profile's name and a target in, the machine to plan for out: declared constants, so that plans
reproduce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """What one core does, as NumPy or compiled C gets it.

    flops      float32 operations a second in products of matrices that fit the cache
    map        float32 operations a second in elementwise work (an exp counts 8)
    near       bytes a second that elementwise passes read and write in cache
    far        bytes a second beyond it: beyond ``L3`` for NumPy, ``L2`` where heads go apart
    matrix     seconds to start one matrix of a batched product, whatever its size
    call       seconds of one NumPy call, or of a function on tiles, whatever its size
    L2, L3     bytes of cache: the second level and a fair share of the third, all of the third
    apart      whether heads go one after another, each with calls and tiles of its own
    """

    name: str
    flops: float
    map: float
    near: float
    far: float
    matrix: float
    call: float
    L2: int
    L3: int
    apart: bool = False


RATES = ("flops", "map", "near", "far")
SECONDS = ("matrix", "call")
CACHES = ("L2", "L3")
DEFAULT, LOCAL = "default", "local"
"""What to plan for where nothing else is said: the same everywhere. `LOCAL` is the machine that
lacc runs on."""


MACHINES = {
    "numpy": {
        DEFAULT: Machine("generic", 85e9, 5e9, 60e9, 8e9, 0.15e-6, 1.4e-6, 6 << 20, 16 << 20),
        "avx512": Machine("avx512", 120e9, 5e9, 60e9, 10e9, 0.15e-6, 1.2e-6, 6 << 20, 32 << 20),
        "avx2": Machine("avx2", 60e9, 4e9, 50e9, 10e9, 0.15e-6, 1.2e-6, 4 << 20, 16 << 20),
        "neon": Machine("neon", 40e9, 3e9, 40e9, 12e9, 0.15e-6, 1.2e-6, 4 << 20, 12 << 20),
        "plain": Machine("plain", 12e9, 1e9, 20e9, 6e9, 0.3e-6, 2.5e-6, 1 << 20, 4 << 20),
    },
    "c": {
        DEFAULT: Machine(
            "compiled", 120e9, 40e9, 150e9, 30e9, 0.01e-6, 0.03e-6, 1 << 20, 16 << 20, True
        ),
        "avx512": Machine(
            "avx512", 120e9, 40e9, 150e9, 30e9, 0.01e-6, 0.03e-6, 2 << 20, 32 << 20, True
        ),
        "avx2": Machine("avx2", 70e9, 13e9, 100e9, 25e9, 0.03e-6, 0.03e-6, 1 << 20, 16 << 20, True),
        "neon": Machine("neon", 40e9, 7e9, 60e9, 20e9, 0.04e-6, 0.04e-6, 1 << 20, 12 << 20, True),
        "plain": Machine("plain", 8e9, 2e9, 20e9, 6e9, 0.08e-6, 0.1e-6, 1 << 19, 4 << 20, True),
    },
}
"""By target and family of processors: vectors of 512 and 256 bits on x86, of 128 on ARM, none. For
GPUs `lacc.plan.devices` has the table."""
