"""What one call launched, as figures: the record that a capturing process hands to its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lacc.static.architectures import CLOCK, ISSUE, MULTIPROCESSORS

MIB = 1 << 20


class NotCompiled(Exception):
    """An architecture's compiler refuses a kernel; says which, and why."""


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel. ``registers`` of a thread, ``spill`` bytes of a thread in local
    memory, ``shared`` bytes of a program, ``tensor`` core instructions by kind as they stand in the
    binary, ``read`` and ``written`` bytes of the tensors behind its loads and stores, each once;
    ``issued`` instructions of a warp, None where they are not known, for the reason ``unknown``;
    ``scratch`` bytes of a program in memory that its kernel has to itself.
    """

    kernel: str
    grid: tuple[int, int, int]
    warps: int
    stages: int
    registers: int
    spill: int
    shared: int
    occupancy: float
    tensor: Mapping[str, int]
    read: int
    written: int
    issued: float | None
    unknown: str = ""
    scratch: int = 0

    @property
    def programs(self) -> int:
        """All programs of the launch."""
        x, y, z = self.grid
        return x * y * z

    @property
    def microseconds(self) -> float | None:
        """The time in which the busiest multiprocessor issues its programs' instructions."""
        if self.issued is None:
            return None
        programs = -(-self.programs // MULTIPROCESSORS)
        return programs * self.warps * self.issued / ISSUE / CLOCK * 1e6


@dataclass(frozen=True)
class Call:
    """One call: its launches in order, and how often each torch op around them ran that would
    launch a kernel of its own.
    """

    name: str
    launches: tuple[Launch, ...]
    torch: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes that the launches read and write."""
        return sum(launch.read + launch.written for launch in self.launches)

    @property
    def spill(self) -> int:
        """The most bytes that a thread spills."""
        return max((launch.spill for launch in self.launches), default=0)

    @property
    def microseconds(self) -> float | None:
        """The issue time of all launches, None where one's is not known."""
        times = [launch.microseconds for launch in self.launches]
        return None if None in times else sum(time for time in times if time is not None)


def call_of(given: Mapping[str, Any]) -> Call:
    """A call from its fields as JSON has them."""
    launches = (Launch(**{**one, "grid": tuple(one["grid"])}) for one in given["launches"])
    return Call(given["name"], tuple(launches), given["torch"])
