"""A spec in, the spec that is compiled out, with its recurrences and what it keeps of the spec that
was written: memories are of one token only, `(stabilized)` states are scaled values beside their
exponents.

    found = plain(spec)

The names of what no spec has (`lacc.spec.names.is_memory`) are shown as what they are read for.
"""

from __future__ import annotations

from dataclasses import dataclass

from lacc.analysis.classify import recurrences
from lacc.analysis.stabilize import Exponents, stabilized
from lacc.analysis.transition import Recurrence
from lacc.ir.memories import AttendPasts, Chains, one_token_memories
from lacc.spec.model import Spec


@dataclass(frozen=True, slots=True)
class Plain:
    """What is compiled.

    spec         the spec in these terms
    recurrences  its recurrences, each after those it needs
    unscaled     the spec with memories of one token, its states as they were written
    chains       the memories that make each field of delayed values
    exponents    the state that holds the exponent of each scaled one, and its axes
    attended     what is kept of the keys and of the values of each attention
    """

    spec: Spec
    recurrences: tuple[Recurrence, ...]
    unscaled: Spec
    chains: Chains
    exponents: Exponents
    attended: AttendPasts

    @property
    def written(self) -> tuple[Recurrence, ...]:
        """The recurrences of the unscaled states, as a paper has them."""
        return self.recurrences if self.unscaled is self.spec else recurrences(self.unscaled)


def plain(spec: Spec) -> Plain:
    """``spec`` as it is compiled."""
    unscaled, chains, attended = one_token_memories(spec)
    scaled, exponents, attended = stabilized(unscaled, attended)
    return Plain(scaled, recurrences(scaled), unscaled, chains, exponents, attended)
