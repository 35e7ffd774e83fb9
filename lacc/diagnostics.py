"""From a place in a source and a catalogue code comes a diagnostic a user can act on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A spec's text and where it came from (``name`` is what an error shows: a path or ``<spec>``)."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to ``end`` of ``source``, half open, counted in code points."""

    source: Source = field(repr=False)
    start: int
    end: int
