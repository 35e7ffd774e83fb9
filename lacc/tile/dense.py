"""Square systems a token in, their solutions out; NumPy only, and copied by name into the files
that use it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def dense_solve(a: Array, b: Array) -> Array:
    """The X of a X = b: a [..., K, K], b and X [..., K, N], leading axes broadcast. NaN where a
    matrix is singular."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
        x = np.full_like(b, np.nan)
        for at in np.ndindex(lead):
            if np.linalg.matrix_rank(a[at]) == a.shape[-1]:
                x[at] = np.linalg.solve(a[at], b[at])
        return x
