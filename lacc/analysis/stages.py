"""A spec in, its passes over time out: which states run together, in which direction, and where
each output is read.

A state that needs another one of the other direction, or another's last value (`S[T]`), runs in a
later pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from lacc.ir.graph import needs
from lacc.spec.model import Spec


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass: ``direction`` "forward" or "backward", the states it carries and the outputs it
    gives."""

    direction: str
    states: tuple[str, ...]
    outputs: tuple[str, ...]


def stages(spec: Spec, order: tuple[str, ...]) -> tuple[Stage, ...]:
    """The passes in order; ``order`` lists the states, each after those it needs. At least one
    pass."""
    level: dict[str, int] = {}
    direction = {s.name: s.direction for s in spec.states}
    for name in order:
        level[name] = max(
            (
                level[n.state] + (n.when == "T" or direction[n.state] != direction[name])
                for n in needs(spec.state(name).update)
                if n.state in level
            ),
            default=0,
        )
    keys = sorted({(level[name], direction[name] == "backward") for name in level})
    at = {name: keys.index((level[name], direction[name] == "backward")) for name in level}
    last = {
        out.name: max((at[n.state] + (n.when == "T") for n in needs(out.expr)), default=0)
        for out in spec.outputs
    }
    count = max([len(keys), *(n + 1 for n in last.values())])
    return tuple(
        Stage(
            "backward" if n < len(keys) and keys[n][1] else "forward",
            tuple(name for name in order if at.get(name) == n),
            tuple(name for name, where in last.items() if where == n),
        )
        for n in range(count)
    )
