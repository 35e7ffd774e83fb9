"""Recurrences in, the most tokens that a chunk of them may have out, and what bounds it.

An erase contracts one axis of the state; a decay on the other axis gives every entry there a system
of its own, unless the state is kept relative to the product G of that decay since the chunk's
start. What is written is divided by G, so a chunk may be as long as promises keep G from
underflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lacc.analysis.decay import decay_of
from lacc.analysis.ranges import Ranges
from lacc.analysis.transition import Obstacle, Recurrence
from lacc.spec.model import Spec

EXPONENT = 80.0
"""The largest |log G|: what float32 can hold, with room for what is divided by it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """``states`` keep a chunk at ``longest`` tokens, 0 where no promise gives a bound."""

    longest: int
    states: tuple[str, ...]
    obstacle: Obstacle


def longest_chunk(spec: Spec, recurrences: Iterable[Recurrence]) -> Bound | None:
    """The least bound; None where there is none."""
    ranges, least = Ranges(spec), None
    for recurrence in recurrences:
        if recurrence.gauge is None or recurrence.obstacle is not None:
            continue
        factor = next(f for f in recurrence.decays if f.axes == (recurrence.gauge,))
        decay = decay_of(factor, ranges)
        known = ranges.of(decay.expr)
        ends = [known.lo, known.hi]
        if decay.space == "linear":
            sizes = [-end for end in ends] if known.hi < 0 else ends
            ends = [math.log(size) if size > 0 else -math.inf for size in sizes]
        steepest = max(abs(end) for end in ends)
        most = 0 if steepest == math.inf else int(EXPONENT / steepest) if steepest else None
        if most is not None and (least is None or most < least.longest):
            kind, cure = "an erase beside a decay without bound", ""
            reason = f"a decay on the axis that an erase leaves is bounded for {most} tokens"
            if most == 0:
                reason = "a decay on the axis that an erase leaves, which no promise keeps from 0"
                cure = "with a bound, as in `where g >= -1`, the recurrence has chunks"
            obstacle = Obstacle(reason, factor.expr, kind, cure)
            least = Bound(most, recurrence.states, obstacle)
    return least
