"""The modes of a spec in, notes out on what runs token by token only, or not at all: the terms, the
class, the modes that remain, and what would have chunks."""

from __future__ import annotations

from collections.abc import Sequence

from lacc.analysis.modes import Modes
from lacc.analysis.transition import Obstacle
from lacc.diagnostics import Diagnostic, Note, note
from lacc.spec.model import Spec
from lacc.spec.names import is_memory

SHOWN = 3
"""Terms of one recurrence that a note shows."""


def chunk_notes(spec: Spec, modes: Modes) -> list[Diagnostic]:
    """LA0603 for everything without a chunk form."""
    return [_note(spec, modes, states, obstacle) for states, obstacle in modes.refused]


def _note(spec: Spec, modes: Modes, states: Sequence[str], obstacle: Obstacle) -> Diagnostic:
    own = [f"`{name}`" for name in states if not is_memory(name)] or [spec.name]
    notes = [Note("and this term", term.span) for term in obstacle.more[: SHOWN - 1]]
    if rest := obstacle.more[SHOWN - 1 :]:
        notes.append(Note(f"and {len(rest)} more"))
    notes.append(Note(_left(modes, obstacle)))
    return note(
        "LA0603",
        obstacle.expr.span,
        notes=notes,
        states=", ".join(own),
        kind=obstacle.kind,
        reason=obstacle.reason,
        cure=obstacle.cure,
    )


def _left(modes: Modes, obstacle: Obstacle) -> str:
    """The modes that remain; where none does, why."""
    left = [name for name, why in modes.by_name.items() if why is None]
    if left:
        return f"the modes that remain are {' and '.join(left)}"
    token = modes.by_name["recurrent"]
    why = f", for {token.reason}" if token is not None and token != obstacle else ""
    return f"no mode remains{why}; the target reference runs it"
