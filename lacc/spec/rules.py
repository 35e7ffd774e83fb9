"""A typed spec goes in; the faults that need the whole of it come out: time, circles, levels, misuse of roles."""

from __future__ import annotations

from lacc.spec.model import Expr


def states_in(expr: Expr) -> list[tuple[str, int | str]]:
    """The states that ``expr`` reads, each with its time, in order of first reading."""
    found: dict[tuple[str, int | str], None] = {}
    for node in expr.walk():
        if node.op == "state":
            found[node.value] = None  # type: ignore[index]
    return list(found)


def direction(name: str, update: Expr) -> str:
    """Which way the state's recurrence runs."""
    times = {when for state, when in states_in(update) if state == name}
    return "forward" if -1 in times else "backward" if 1 in times else "value"
