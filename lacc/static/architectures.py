"""The name of a GPU architecture goes in; what a kernel is compiled for and how much of it fits on
one multiprocessor come out.
"""

from __future__ import annotations

from dataclasses import dataclass

CLOCK = 1.75e9
"""Cycles a second in the issue model."""

MULTIPROCESSORS = 132
"""Multiprocessors in the issue model, and what launch choices see."""

ISSUE = 4
"""Warp instructions that a multiprocessor issues in a cycle at most."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a Triton kernel is compiled for (``backend``, ``code``, lanes of a ``warp``) and the
    limits of a multiprocessor: registers (of 32 bits), warps and programs that are resident at a
    time, bytes of shared memory in all and for one program. ``reserved`` bytes of each program are
    the system's own; registers are given out to warps in units of ``unit``.
    """

    name: str
    backend: str
    code: int | str
    warp: int
    registers: int
    warps: int
    programs: int
    shared: int
    shared_each: int
    reserved: int
    unit: int

    def occupancy(self, registers: int, shared: int, warps: int) -> float:
        """Resident warps of programs like this one, of those that could be; 0 where one does not
        fit. ``registers`` are those of a thread.
        """
        if shared > self.shared_each:
            return 0.0
        warp = -(-max(registers, 1) * self.warp // self.unit) * self.unit
        fitting = min(
            self.registers // warp // warps,
            self.shared // (shared + self.reserved) if shared + self.reserved else self.programs,
            self.warps // warps,
            self.programs,
        )
        return fitting * warps / self.warps


def _nvidia(code: int, shared: int) -> Architecture:
    """Shared memory in KB of a multiprocessor; a program may have all but the reserved KB."""
    most = (shared - 1) << 10
    return Architecture(
        f"sm_{code}", "cuda", code, 32, 65536, 64, 32, shared << 10, most, 1 << 10, 256
    )


ARCHITECTURES = {
    found.name: found
    for found in (
        _nvidia(80, 164),
        _nvidia(90, 228),
        _nvidia(100, 228),
        Architecture("gfx942", "hip", "gfx942", 64, 131072, 32, 32, 65536, 65536, 0, 512),
    )
}
"""A100, H100 and H200, B200, MI300."""
