"""A profile's name in, the machine to plan for out: declared constants, so plans reproduce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """What one core does, as NumPy or compiled C gets it.

    flops      float32 operations a second in products of matrices that fit the cache
    map        float32 operations a second in elementwise work (an exp counts 8)
    near       bytes a second that elementwise passes read and write in cache
    far        bytes a second beyond ``L3``
    matrix     seconds to start one matrix of a batched product, whatever its size
    call       seconds of one NumPy call, or of a function on tiles, whatever its size
    L2, L3     bytes of cache: the second level and a fair share of the third, all of the third
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


GENERIC = Machine(
    "generic",
    flops=85e9,
    map=5e9,
    near=60e9,
    far=8e9,
    matrix=0.15e-6,
    call=1.4e-6,
    L2=6 << 20,
    L3=16 << 20,
)
"""One core of a laptop or a server with vectors of 256 bits or more."""

COMPILED = Machine(
    "compiled",
    flops=170e9,
    map=40e9,
    near=150e9,
    far=20e9,
    matrix=0.05e-6,
    call=0.03e-6,
    L2=1 << 20,
    L3=16 << 20,
)
"""The same core under compiled C, whose loops compute many values at once and whose tiles stay in
the second level."""

MACHINES = {machine.name: machine for machine in (GENERIC, COMPILED)}
