"""What is compiled in, the modes that it has out, and for each that it lacks what keeps it from
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lacc.analysis.gauge import Bound, longest_chunk
from lacc.analysis.plain import Plain
from lacc.analysis.transition import Obstacle, Recurrence
from lacc.ir.graph import nodes, waits_for_the_end

_CURE = "without (stabilized), the target numpy compiles the recurrence"
_RUNNING = {"maxplus": "maximum", "minplus": "minimum", "logsumexp": "log-sum-exp"}


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of a spec.

    by_name   mode -> None, or the `Obstacle` that prevents it
    longest   the most tokens of a chunk (None: any number)
    refused   what keeps from chunks, each by the states whose recurrence it is in; () for what is
              no recurrence's
    """

    by_name: dict[str, Obstacle | None]
    longest: int | None
    refused: tuple[tuple[tuple[str, ...], Obstacle], ...]


def modes(plain: Plain) -> Modes:
    """The modes of ``plain``."""
    bound = longest_chunk(plain.spec, plain.recurrences)
    waits = waits_for_the_end(plain.spec)
    unlowered = tuple(_unlowered(plain))
    refused = [(r.states, r.obstacle) for r in plain.recurrences if r.obstacle is not None]
    known = {name for states, _ in refused for name in states}
    refused += [(states, why) for states, why in unlowered if known.isdisjoint(states)]
    if bound is not None and bound.longest == 0:
        refused.append((bound.states, _unbounded(plain, bound)))
    chunk = next((why for _, why in refused), None)
    token = next((why for _, why in unlowered), None)
    if waits is not None:
        token = Obstacle(*waits)
    whole = chunk or (None if bound is None else bound.obstacle)
    by_name = {"chunk": chunk, "parallel": whole, "recurrent": token, "step": token}
    return Modes(by_name, None if bound is None else bound.longest, tuple(refused))


def _unbounded(plain: Plain, bound: Bound) -> Obstacle:
    """Why no chunk is short enough."""
    state = plain.spec.state(bound.states[0])
    if state.ascii not in plain.exponents:
        return bound.obstacle
    reason = (
        f"an erase beside a decay of the axis that it leaves, with the exponent of {state.name}"
    )
    update = plain.unscaled.state(state.name).update
    return Obstacle(reason, update, "an erase beside a scaled decay", _CURE)


def _unlowered(plain: Plain) -> Iterator[tuple[tuple[str, ...], Obstacle]]:
    """What no tile program computes yet."""
    for node, both in plain.attended.items():
        for past in both:
            if past.state in plain.exponents:
                reason = f"it attends to the (stabilized) state {past.state} itself"
                yield (), Obstacle(reason, node, "attention to a scaled state", _CURE)
    for recurrence in plain.recurrences:
        for state in map(plain.spec.state, recurrence.states):
            if state.stabilized:
                why, term = _unscaled(recurrence), recurrence.obstacle
                reason = f"the (stabilized) state {state.name} has no scaled form ({why})"
                expr = state.update if term is None else term.expr
                yield recurrence.states, Obstacle(reason, expr, "stabilized", _CURE)
                break
    for arg in plain.spec.args:
        for node in nodes([side for p in arg.promises for side in (p.left, p.right)]):
            if node.op == "attend":
                reason = f"the promise of {arg.name} attends to other tokens"
                yield (), Obstacle(reason, node, "a promise of other tokens")


def _unscaled(recurrence: Recurrence) -> str:
    """Why a state is no scaled value beside an exponent."""
    if len(recurrence.states) > 1:
        return "it needs other states that need it"
    if recurrence.obstacle is not None:
        return recurrence.obstacle.reason
    if recurrence.tropical is not None:
        return f"it is a running {_RUNNING[recurrence.kind]}"
    if recurrence.form == "written":
        return "it keeps nothing of the token before"
    return "an axis of it has one entry"
