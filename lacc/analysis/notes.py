"""Recurrences in, notes out on those that run token by token only: the terms, the class, the modes
that remain, and what would have chunks."""

from __future__ import annotations

from collections.abc import Sequence

from lacc.analysis.gauge import longest_chunk
from lacc.analysis.transition import Obstacle, Recurrence
from lacc.diagnostics import Diagnostic, Note, note
from lacc.ir.graph import waits_for_the_end
from lacc.spec.model import Spec
from lacc.spec.names import is_memory

SHOWN = 3
"""Terms of one recurrence that a note shows."""


def chunk_notes(spec: Spec, recurrences: Sequence[Recurrence]) -> list[Diagnostic]:
    """LA0603 for every recurrence without a chunk form."""
    found = [_note(spec, r.states, r.obstacle) for r in recurrences if r.obstacle is not None]
    longest, bound = longest_chunk(spec, recurrences)
    if longest == 0 and bound is not None:
        gauged = (r.states for r in recurrences if r.gauge is not None)
        found.append(_note(spec, next(gauged), bound))
    return found


def _note(spec: Spec, states: Sequence[str], obstacle: Obstacle) -> Diagnostic:
    own = [f"`{name}`" for name in states if not is_memory(name)]
    notes = [Note("and this term", term.span) for term in obstacle.more[: SHOWN - 1]]
    if rest := obstacle.more[SHOWN - 1 :]:
        notes.append(Note(f"and {len(rest)} more"))
    waits = waits_for_the_end(spec)
    left = "the modes that remain are recurrent and step"
    if waits is not None:
        left = f"no mode remains, for {waits[0]}; the target reference runs it"
    notes.append(Note(left))
    return note(
        "LA0603",
        obstacle.expr.span,
        notes=notes,
        states=", ".join(own),
        kind=obstacle.kind,
        reason=obstacle.reason,
        cure=obstacle.cure,
    )
