"""Tiles in registers in, tiles out: cotangents of decays and of what they multiply, for emitted
Triton kernels.

Never imported by lacc: emitted files hold copies of what they use. Notation as in
`lacc.runtime.triton_decays`; ``ct`` is the cotangent of a result and 0 behind the last token. The
cotangent of a decay at u sums over the pairs t >= u > s that cross it, and over no others: nothing
cancels, so it is as accurate as its terms however strong the decays are.
"""

import triton
import triton.language as tl

from lacc.runtime.triton_axes import dot, exact, halvings, moved, rounded
from lacc.runtime.triton_decays import (
    diagonal,
    doubled,
    gram,
    lower,
    masked,
    matrix,
    met,
    prefix,
    runs,
    suffix,
    whole,
)
from lacc.runtime.triton_scans import linked


@triton.jit
def from_right(ct, decay, m):
    """sum over t >= u of ct[t] and the factors after u up to t, in the runs of m tokens."""
    inner = (tl.arange(0, ct.shape[0]) + 1)[:, None] & (m - 1) != 0
    return linked((tl.where(inner, moved(decay, 1, 0.0), 0.0),), (ct,), 1, True)[0]


@triton.jit
def from_left(ct, decay, m):
    """sum over s < u of ct[s] and the factors after s before u, in the runs of m tokens."""
    inner = tl.arange(0, ct.shape[0])[:, None] & (m - 1) != 0
    seen = linked((tl.where(inner, decay, 0.0),), (ct,), 1, False)[0]
    return tl.where(inner, moved(seen, -1, 0.0), 0.0)


@triton.jit
def prefix_pull(ct, decay, LOG: tl.constexpr, STRICT: tl.constexpr):
    """The cotangent of the decays from that of `prefix`."""
    if LOG:
        pulled = ct * prefix(decay, LOG, STRICT)
        return tl.cumsum(moved(pulled, 1, 0.0) if STRICT else pulled, 0, reverse=True)
    else:
        pulled = moved(ct, 1, 0.0) if STRICT else ct
        seen = linked((moved(decay, 1, 0.0),), (pulled,), 1, True)[0]
        return prefix(decay, LOG, True) * seen


@triton.jit
def suffix_pull(ct, decay, LOG: tl.constexpr):
    """The cotangent of the decays from that of `suffix`."""
    if LOG:
        return tl.cumsum(moved(ct * suffix(decay, LOG), -1, 0.0), 0)
    else:
        return suffix(decay, LOG) * moved(linked((decay,), (ct,), 1, False)[0], -1, 0.0)


@triton.jit
def whole_pull(ct, decay, LOG: tl.constexpr):
    """The cotangent of the decays from that of `whole`."""
    if LOG:
        return tl.broadcast_to(tl.expand_dims(ct * whole(decay, LOG), 0), decay.shape)
    else:
        return tl.expand_dims(ct, 0) * prefix(decay, LOG, True) * suffix(decay, LOG)


@triton.jit
def matrix_pull(ct, decay, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr):
    """The cotangent [C] of the decays from that of `matrix`."""
    p = matrix(decay, LOG, STRICT)
    if LOG:
        pulled = tl.cumsum(ct * p, 0, reverse=True)
        return tl.sum(lower(moved(pulled, 1, 0.0) if STRICT else pulled), 1)
    else:
        pulled = dot(tl.trans(p), ct, exact(PRECISION))
        return tl.sum(matrix(decay, LOG, True) * pulled, 1)


@triton.jit
def meet_pull(
    ct, x, y, decay, masks, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr
):
    """Cotangents of x, y and of the decays from that of the A of `meet`, each [C, D].

    At each level z is what either side of a pair was multiplied by, and read what comes back; w is
    their product, whose sums are taken a level later: products that wait for each other share warps
    badly.
    """
    C: tl.constexpr = x.shape[0]
    t = tl.arange(0, C)[:, None]
    up, before, down = runs(decay, LOG)
    both = rounded(lower(ct), PRECISION)
    both += tl.trans(both)
    dx = tl.zeros(x.shape, x.dtype)
    dy = dx
    ddecay = dx
    w = rounded(dx, PRECISION)
    if not STRICT:
        dx, dy = diagonal(ct) * y, diagonal(ct) * x
    x, y = rounded(x, PRECISION), rounded(y, PRECISION)
    crossing: tl.constexpr = 2 if STRICT else 1
    for level in range(halvings(C)):
        m = 1 << level
        right = (t & m) != 0
        z = tl.where(right, x, y)
        run = tl.where(right, before if STRICT else up, down)
        if LOG:
            crossed = masked(masks, crossing, tl.maximum(level - 1, 0), C).to(w.dtype)
            ddecay += dot(crossed, w, PRECISION)
        read = dot(met(both, masks, level), z * run, PRECISION)
        if not LOG:
            rights = tl.where(right, z * read, 0.0)
            if STRICT:
                rights = tl.where((t + 1) & (m - 1) != 0, moved(rights, 1, 0.0), 0.0)
            lefts = tl.where(right, 0.0, z * read)
            ddecay += before * tl.where(right, from_right(rights, decay, m), 0.0)
            ddecay += down * tl.where(right, 0.0, from_left(lefts, decay, m))
        read *= run
        w = rounded(z * read, PRECISION)
        dx += tl.where(right, read, 0.0)
        dy += tl.where(right, 0.0, read)
        up, before, down = doubled(up, before, down, level)
    if LOG:
        crossed = masked(masks, crossing, halvings(C) - 1, C).to(w.dtype)
        ddecay += dot(crossed, w, PRECISION)
    return dx, dy, ddecay


@triton.jit
def decayed_pull(
    ct, a, y, decay, masks, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr
):
    """Cotangents of a [C, C], y and of the decays from that of `decayed`."""
    _, dy, ddecay = meet_pull(a, ct, y, decay, masks, PRECISION, LOG, STRICT)
    return gram(ct, y, decay, PRECISION, LOG, STRICT), dy, ddecay
