"""Samples go in; medians, intervals of medians and of their ratios come out.

Intervals are of the bootstrap: samples drawn anew with replacement, the middle 95 % of what their
medians are. Draws are seeded: the same samples give the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DRAWS = 2000
OUTER = (2.5, 97.5)
"""Percentiles between which an interval lies."""


@dataclass(frozen=True)
class Estimate:
    """A median and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def median(samples: Sequence[float]) -> Estimate:
    """The median of at least one sample."""
    x = np.asarray(samples, float)
    drawn = np.median(x[_draws(len(x))], axis=1)
    return _estimate(float(np.median(x)), drawn)


def ratio(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """Of two that took turns: the median of the ratios of each round, which saw the same noise."""
    count = min(len(over), len(under))
    return median([a / b for a, b in zip(over[:count], under[:count])])


def ratio_apart(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """Of two that were measured apart: the ratio of their medians."""
    a, b = np.asarray(over, float), np.asarray(under, float)
    drawn_a = np.median(a[_draws(len(a))], axis=1)
    drawn_b = np.median(b[_draws(len(b), seed=1)], axis=1)
    return _estimate(float(np.median(a) / np.median(b)), drawn_a / drawn_b)


def _draws(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, count, (DRAWS, count))


def _estimate(value: float, drawn: Any) -> Estimate:
    low, high = np.percentile(drawn, OUTER)
    return Estimate(value, min(float(low), value), max(float(high), value))
