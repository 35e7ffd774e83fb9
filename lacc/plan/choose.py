"""Derived programs and a machine in, a plan out: mode, chunk and block, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from lacc.tile.derive import Derived


@dataclass(frozen=True, slots=True)
class Plan:
    """Choices for one spec on one machine.

    ``chunk`` tokens a chunk; ``block`` floats that a block of chunks may hold; ``parallel`` the longest sequence that runs as
    one chunk; ``mode`` for longer ones. ``why`` gives the reasons, one sentence each.
    """

    machine: str
    mode: str
    chunk: int
    block: int
    parallel: int
    why: tuple[str, ...]


def choose(
    derived: Derived, *, dtype: str = "float32", mode: str = "auto", chunk: int | None = None
) -> Plan:
    """The plan of a spec."""
    exists = derived.modes["chunk"] is None
    return Plan("generic", "chunk" if exists else "recurrent", chunk or 64, 1 << 18, 0, ())
