"""``cu_seqlens`` and ``valid`` of a call in, the tokens of each segment out.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np


def segments(B: int, T: int, cu_seqlens: Any, valid: Any) -> Iterator[tuple[slice, Any, slice]]:
    """Rows, tokens and states of each segment: a row, or what lies between two entries of
    ``cu_seqlens``; its valid tokens are a slice where they are neighbours, else an index array."""
    if valid is not None:
        if getattr(valid, "dtype", None) != np.bool_:
            got = getattr(valid, "dtype", type(valid))
            raise TypeError(f"valid: expected a bool array [B, T], got {got}")
        if valid.shape != (B, T):
            raise ValueError(f"valid: expected [B, T] = [{B}, {T}], got {valid.shape}")
    bounds = [(b, 0, T) for b in range(B)]
    if cu_seqlens is not None:
        cu = np.asarray(cu_seqlens)
        if cu.ndim != 1 or cu.dtype.kind not in "iu":
            raise TypeError(f"cu_seqlens: expected integers [N + 1], got {cu.dtype} {cu.shape}")
        if B != 1:
            raise ValueError(f"cu_seqlens: expected packed arrays with B = 1, got B = {B}")
        ends = cu.tolist()
        if not ends or ends[0] != 0 or ends[-1] != T or ends != sorted(ends):
            raise ValueError(f"cu_seqlens: expected to rise from 0 to T = {T}, got {ends}")
        bounds = [(0, start, stop) for start, stop in pairwise(ends)]
    for n, (b, start, stop) in enumerate(bounds):
        tokens: Any = slice(start, stop)
        if valid is not None:
            tokens = start + np.flatnonzero(valid[b, start:stop])
            if tokens.size == 0:
                tokens = slice(start, start)
            elif tokens[-1] - tokens[0] + 1 == tokens.size:
                tokens = slice(int(tokens[0]), int(tokens[-1]) + 1)
        yield slice(b, b + 1), tokens, slice(n, n + 1)


def token_count(tokens: Any) -> int:
    """How many tokens a segment has."""
    return tokens.stop - tokens.start if isinstance(tokens, slice) else len(tokens)
