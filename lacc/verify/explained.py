"""Two results that differ go in; the simple relation between them, if there is one, comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def likely(got: Array, want: Array, limit: float, time: int | None, dims: Mapping[str, int]) -> str:
    """A sentence on how ``got`` comes of ``want``: no numbers, a factor, a token early or late; ""
    where none does."""
    bad = int(np.count_nonzero(~np.isfinite(got)))
    if bad:
        return f"{bad} of yours are not finite"
    if not np.any(got):
        return "yours are all 0"
    factor = _factor(got, want, limit)
    if factor is not None:
        return f"yours are {factor:.6g}{_named(factor, dims)} times the spec's"
    if time is not None and want.shape[time] > 2:
        later, earlier = slice(1, None), slice(None, -1)
        yours, theirs = (np.moveaxis(x, time, 0) for x in (got, want))
        if _same(yours[later], theirs[earlier], limit):
            return "yours at a token are the spec's at the one before"
        if _same(yours[earlier], theirs[later], limit):
            return "yours at a token are the spec's at the one after"
    return ""


def _same(got: Array, want: Array, limit: float) -> bool:
    return bool(np.max(np.abs(got - want)) <= limit * np.max(np.abs(want)))


def _factor(got: Array, want: Array, limit: float) -> float | None:
    """The number that all of ``got`` are times ``want``."""
    square = float(np.sum(want * want))
    if not square:
        return None
    factor = float(np.sum(got * want)) / square
    return factor if factor and _same(got, factor * want, limit * abs(factor)) else None


def _named(factor: float, dims: Mapping[str, int]) -> str:
    """`` (K**0.5)`` where a power of a dim is the factor."""
    for name, size in dims.items():
        for power in (0.5, -0.5, 1, -1):
            if size > 1 and abs(size**power / abs(factor) - 1) < 1e-6:
                return f" ({'-' * (factor < 0)}{name}**{power})"
    return ""
