"""NumPy meanings of the tile ops that carry several states at once along time; NumPy only, and
copied by name into the files that use them.

Notation: n states, their entries on axis i; a [..., C, i, j, *rest] a matrix for each token, b
[..., C, i, *rest]; ``rest`` counts the axes behind those of states. Leading axes and those of rest
broadcast. Sums of products alone: any sign, exact at 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Entries = NDArray[np.floating]


def chain(a: Entries, b: Entries, rest: int) -> Entries:
    """h[t] = a[t] h[t-1] + b[t] from h = 0, as b is laid out."""
    steps, added, h = time_first(a, b, rest)
    for t in range(len(h)):
        if t:
            np.add((steps[t] * h[t - 1]).sum(1), added[t], out=h[t])
        else:
            h[t] = added[t]
    return np.moveaxis(h, (0, 1), (-2 - rest, -1 - rest))


def chain_back(a: Entries, b: Entries, rest: int) -> Entries:
    """h[t] = a[t+1]ᵀ h[t+1] + b[t] from h = 0 behind the end: the adjoint of `chain`."""
    steps, added, h = time_first(a, b, rest)
    for t in reversed(range(len(h))):
        if t + 1 < len(h):
            np.add((steps[t + 1] * h[t + 1][:, None]).sum(0), added[t], out=h[t])
        else:
            h[t] = added[t]
    return np.moveaxis(h, (0, 1), (-2 - rest, -1 - rest))


def time_first(a: Entries, b: Entries, rest: int) -> tuple[Any, Any, Any]:
    """Views of ``a`` as [C, i, j, ...] and of ``b`` as [C, i, ...], and room for their result."""
    steps = np.moveaxis(a, (-3 - rest, -2 - rest, -1 - rest), (0, 1, 2))
    added = np.moveaxis(b, (-2 - rest, -1 - rest), (0, 1))
    shape = np.broadcast_shapes(steps.shape[3:], added.shape[2:])
    return steps, added, np.empty((*added.shape[:2], *shape), b.dtype)
