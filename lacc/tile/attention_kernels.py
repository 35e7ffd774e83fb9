"""Queries, keys and values of all tokens in, what each attends to and the cotangents out; NumPy
only, and copied by name into the files that use it.

Notation: T queries q [B, H, T, K] with keys k and values v [B, H, N, ·] of N = P + T tokens, the P
tokens before the call (``past``) first, of which ``position`` [B] ever were. A token sees itself
and those before it, the last ``window`` of them where that is a number. Queries are worked on
``rows`` at a time, against ``width`` keys at a time: no array is as large as T times N.

What a query does not see is left out before the exponential, never multiplied by 0 after it. The
running maximum m and sum l of exp(logit - m) are kept apart to the end, not as one logarithm of the
sum, so that large logits keep their digits; the pull takes p = exp(logit - m) / l from them again
and needs of the softmax only Σ p dp = o · do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Sight:
    """What queries may see, and how much of it they look at together."""

    past: int
    window: int | None
    position: NDArray[np.integer[Any]]
    rows: int
    width: int

    def blocks(self, T: int) -> Iterator[tuple[slice, list[slice]]]:
        """Blocks of queries, each with the blocks of tokens that one of its queries may see."""
        oldest = max(self.past - int(self.position.max(initial=0)), 0)
        for first in range(0, T, self.rows):
            queries = slice(first, min(first + self.rows, T))
            stop, start = self.past + queries.stop, oldest
            if self.window is not None:
                start = max(oldest, self.past + first + 1 - self.window)
            starts = range(start, stop, self.width)
            yield queries, [slice(at, min(at + self.width, stop)) for at in starts]

    def logits(self, q: Array, k: Array, queries: slice, tokens: slice) -> Array:
        """The products of a block of queries with a block of keys, -inf for what a query does not
        see."""
        products: Array = q[:, :, queries] @ k[:, :, tokens].swapaxes(-1, -2)
        first, last = self.past + queries.start, self.past + queries.stop - 1
        here, there = np.arange(first, last + 1)[:, None], np.arange(tokens.start, tokens.stop)
        hidden = []
        if tokens.stop - 1 > first:
            hidden.append(there > here)
        if self.window is not None and tokens.start <= last - self.window:
            hidden.append(there <= here - self.window)
        if tokens.start < self.past - int(self.position.min(initial=self.past)):
            hidden.append(there < self.past - self.position[:, None, None, None])
        for pairs in hidden:
            np.copyto(products, -np.inf, where=pairs)
        return products


def attend(
    q: Array, k: Array, v: Array, sink: Array | None, sight: Sight
) -> tuple[Array, Array, Array]:
    """What each query attends to [B, H, T, V], 0 where it sees nothing, and m and l [B, H, T, 1];
    ``sink`` [B, H, T] is one more logit, whose value is 0."""
    o = np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
    m, l = np.full((*q.shape[:3], 1), -np.inf, q.dtype), np.zeros((*q.shape[:3], 1), q.dtype)
    if sink is not None:
        m[...], l[...] = sink[..., None], ~np.isneginf(sink)[..., None]
    for queries, blocks in sight.blocks(q.shape[2]):
        top, total, sums = m[:, :, queries], l[:, :, queries], o[:, :, queries]
        for tokens in blocks:
            p = sight.logits(q, k, queries, tokens)
            grown = np.maximum(top, p.max(-1, keepdims=True))
            base = np.where(np.isneginf(grown), 0, grown)
            np.exp(np.subtract(p, base, out=p), out=p)
            kept = np.exp(top - base)
            total *= kept
            total += p.sum(-1, keepdims=True)
            sums *= kept
            sums += p @ v[:, :, tokens]
            top[...] = grown
        np.divide(sums, total, out=sums, where=total != 0)
    return o, m, l


def attend_pull(
    ct: Array,
    attended: tuple[Array, Array, Array],
    q: Array,
    k: Array,
    v: Array,
    sink: Array | None,
    sight: Sight,
) -> tuple[Array, Array, Array, Array | None]:
    """Cotangents of queries, keys, values and sink from that of the o of `attend`, and from what it
    gave."""
    o, m, l = attended
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    base, mean = np.where(np.isneginf(m), 0, m), (ct * o).sum(-1, keepdims=True)
    share = np.divide(1, l, out=np.zeros_like(l), where=l != 0)
    for queries, blocks in sight.blocks(q.shape[2]):
        given = ct[:, :, queries]
        for tokens in blocks:
            p = sight.logits(q, k, queries, tokens)
            np.exp(np.subtract(p, base[:, :, queries], out=p), out=p)
            p *= share[:, :, queries]
            dv[:, :, tokens] += p.swapaxes(-1, -2) @ given
            d = given @ v[:, :, tokens].swapaxes(-1, -2)
            d -= mean[:, :, queries]
            d *= p
            dk[:, :, tokens] += d.swapaxes(-1, -2) @ q[:, :, queries]
            dq[:, :, queries] += d @ k[:, :, tokens]
    if sink is None:
        return dq, dk, dv, None
    return dq, dk, dv, -(np.exp(sink[..., None] - base) * share * mean)[..., 0]
