"""An order of programs goes in; a session that watches every access of kernels, and what they cost,
comes out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Order = Literal["ascending", "descending", "shuffle"]


@dataclass
class Counts:
    """What all launches of one kernel did: bytes that loads and stores moved, bytes of memory they
    touched (each once a launch), and work."""

    launches: int = 0
    programs: int = 0
    load_bytes: int = 0
    store_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    dots: int = 0
    dot_flops: int = 0
    exponentials: int = 0


@dataclass
class Report:
    """What ran, by the kernel's name."""

    kernels: dict[str, Counts] = field(default_factory=dict)

    def of(self, kernel: str) -> Counts:
        """The counts of a kernel."""
        return self.kernels.setdefault(kernel, Counts())


@dataclass
class Session:
    """How kernels run while `checked` is active."""

    order: Order
    seed: int
    poison: bool
    report: Report
    counts: Counts = field(default_factory=Counts)

    def permuted(self, programs: Sequence[int]) -> Sequence[int]:
        """In which order programs run."""
        match self.order:
            case "ascending":
                return programs
            case "descending":
                return programs[::-1]
            case "shuffle":
                return random.Random(self.seed).sample(programs, len(programs))


_active: list[Session] = []


def active() -> Session | None:
    """The innermost session."""
    return _active[-1] if _active else None


@contextmanager
def checked(order: Order = "shuffle", *, seed: int = 0, poison: bool = True) -> Iterator[Report]:
    """While active, kernels run in ``order`` and raise `MemoryFault` where programs race, or where
    one loads what it stored without a barrier; lanes masked off without ``other`` and what
    torch.empty gives hold NaN (``poison``). Repairs the interpreter first; raises what `repair`
    does."""
    import torch

    from lacc.interpreter.repair import repair

    repair()
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    session = Session(order, seed, poison, Report())
    _active.append(session)
    if poison:  # then torch.empty is filled
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield session.report
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        _active.remove(session)
