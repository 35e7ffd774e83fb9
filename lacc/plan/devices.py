"""A device's name in, what it has and how fast it is out: declared constants, so that launches are
the same everywhere. Plain Python: emitted files hold a copy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU as its kernels find it.

    multiprocessors  how many of them; a call may know better
    lanes            threads of a warp
    warps            warps that a multiprocessor holds at once
    registers        of 4 bytes, all of a multiprocessor
    most             registers that one thread may have
    shared           bytes of shared memory that one program may take
    shared_all       bytes of shared memory of a multiprocessor
    flops            of a multiprocessor in products of bf16 matrices, a second
    issue            instructions of warps that a multiprocessor begins a second
    bandwidth        bytes a second of the memory, all multiprocessors together
    """

    name: str
    multiprocessors: int
    lanes: int
    warps: int
    registers: int
    most: int
    shared: int
    shared_all: int
    flops: float
    issue: float
    bandwidth: float


# fmt: off
DEVICES = {
    device.name: device
    for device in (
        Device("sm_80", 108, 32, 64, 1 << 16, 255, 163 << 10, 164 << 10, 2.9e12, 5.6e9, 1.9e12),
        Device("sm_86", 84, 32, 48, 1 << 16, 255, 99 << 10, 100 << 10, 0.9e12, 6.8e9, 0.9e12),
        Device("sm_89", 128, 32, 48, 1 << 16, 255, 99 << 10, 100 << 10, 1.3e12, 10e9, 1.0e12),
        Device("sm_90", 132, 32, 64, 1 << 16, 255, 227 << 10, 228 << 10, 7.5e12, 7.0e9, 4.0e12),
        Device("sm_100", 148, 32, 64, 1 << 16, 255, 227 << 10, 228 << 10, 15e12, 7.5e9, 7.5e12),
        Device("sm_120", 170, 32, 48, 1 << 16, 255, 99 << 10, 100 << 10, 2.5e12, 9.6e9, 1.7e12),
        Device("gfx942", 304, 64, 32, 1 << 17, 512, 64 << 10, 64 << 10, 4.3e12, 8.4e9, 5.3e12),
        Device("gfx950", 256, 64, 32, 1 << 17, 512, 160 << 10, 160 << 10, 9.0e12, 9.6e9, 8.0e12),
    )
}
# fmt: on

UNKNOWN = "sm_80"
"""The device that one without a profile is taken for."""


def device_named(name: str) -> Device:
    """The profile of a device; that of the same family with the next lower number where it has
    none, and `UNKNOWN` where no family fits.
    """
    if name in DEVICES:
        return DEVICES[name]
    family = name.rstrip("0123456789abcdef")
    below = [d for d in DEVICES if d.startswith(family) and (len(d), d) < (len(name), name)]
    return DEVICES[max(below, key=lambda d: (len(d), d))] if family and below else DEVICES[UNKNOWN]
