"""A profile's name in, the machine to plan for out: declared constants, so plans reproduce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """What one core does, as NumPy gets it.

    flops      float32 operations a second in products of matrices that fit the cache
    map        float32 operations a second in elementwise work (an exp counts 8)
    bandwidth  bytes a second that elementwise passes read and write within the L2 cache
    matrix     seconds to start one matrix of a batched product, whatever its size
    call       seconds of one NumPy call, whatever its size
    L1, L2     bytes of data cache
    """

    name: str
    flops: float
    map: float
    bandwidth: float
    matrix: float
    call: float
    L1: int
    L2: int


GENERIC = Machine(
    "generic",
    flops=100e9,
    map=4e9,
    bandwidth=30e9,
    matrix=0.4e-6,
    call=1.5e-6,
    L1=1 << 15,
    L2=1 << 20,
)
"""One core of a laptop with 256-bit vectors."""

MACHINES = {machine.name: machine for machine in (GENERIC,)}
