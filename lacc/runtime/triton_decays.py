"""Tiles in registers in, tiles out: products of decays over runs of tokens, for emitted Triton
kernels.

Never imported by lacc: emitted files hold copies of what they use. Notation as in
`lacc.runtime.triton_axes`, D channels. A decay is given for each token, [C] or [C, D], as its
logarithm <= 0 (LOG) or as the factor itself, of any sign; behind the last token there is none.
P[t, s] is the product of the factors after s up to t (up to t - 1 where STRICT). Products over long
runs are exponentials of sums, those inside a chunk are multiplied up; none is a quotient or the
exponential of a difference of running sums, so a factor of 0 is exact and nothing overflows that
the result does not.

Pairs meet by recursive halving: at a level with runs of m tokens, t and s meet where t lies in the
right and s in the left of two neighbouring runs, P[t, s] = up[t] down[s]. ``up`` multiplies a run
from its start to t, ``before`` to t - 1, ``down`` from after s to the end.
"""

import triton
import triton.language as tl

from lacc.runtime.triton_axes import dot, halvings, moved, rounded, rows


@triton.jit
def multiplied(decay, LOG: tl.constexpr, REVERSE: tl.constexpr):
    """Products of the rows up to each one, or from it on."""
    if LOG:
        return tl.exp(tl.cumsum(decay, 0, reverse=REVERSE))
    else:
        return tl.cumprod(decay, 0, reverse=REVERSE)


@triton.jit
def prefix(decay, LOG: tl.constexpr, STRICT: tl.constexpr):
    """The product from the chunk's start to each token."""
    none: tl.constexpr = 0.0 if LOG else 1.0
    return multiplied(moved(decay, -1, none) if STRICT else decay, LOG, False)


@triton.jit
def suffix(decay, LOG: tl.constexpr):
    """The product after each token to the chunk's end."""
    none: tl.constexpr = 0.0 if LOG else 1.0
    return multiplied(moved(decay, 1, none), LOG, True)


@triton.jit
def whole(decay, LOG: tl.constexpr):
    """The product of the whole chunk, [D] or a number."""
    if LOG:
        return tl.exp(tl.sum(decay, 0))
    else:
        every = tl.cumprod(decay, 0)
        return tl.sum(tl.where(rows(every) == decay.shape[0] - 1, every, 0.0), 0)


@triton.jit
def matrix(decay, LOG: tl.constexpr, STRICT: tl.constexpr):
    """P [C, C] of one decay a token, 0 above the diagonal (on it too where STRICT)."""
    C: tl.constexpr = decay.shape[0]
    none: tl.constexpr = 0.0 if LOG else 1.0
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    first = s + 1 if STRICT else s
    steps = (moved(decay, -1, none) if STRICT else decay)[:, None]
    return tl.where(t >= first, multiplied(tl.where(t > first, steps, none), LOG, False), 0.0)


@triton.jit
def runs(decay, LOG: tl.constexpr):
    """``up``, ``before`` and ``down`` of runs of one token."""
    one = tl.full(decay.shape, 1.0, decay.dtype)
    return tl.exp(decay) if LOG else decay, one, one


@triton.jit
def doubled(up, before, down, level):
    """``up``, ``before`` and ``down`` of runs twice as long as those of 2**level tokens."""
    m = 1 << level
    at = rows(up)
    right = (at & m) != 0
    neighbour = tl.gather(up, (at ^ m) | (m - 1), 0)
    up = tl.where(right, up * neighbour, up)
    before = tl.where(right, before * neighbour, before)
    return up, before, tl.where(right, down, down * neighbour)


@triton.jit
def masked(masks, kind, level, C: tl.constexpr):
    """One [C, C] of ``masks`` [3, levels, C, C], which hold 1 where, and 0 elsewhere: 0 tokens meet
    at a level; 1 tokens of a run of 2**level whose factors at that level include that of a token,
    which gives the row: those from it on in a right run, those before it in a left one; 2 the same
    of strict ones. That every program reads them costs fewer instructions and registers than to
    find them."""
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.load(masks + (kind * halvings(C) + level) * (C * C) + t * C + s)


@triton.jit
def met(a, masks, level):
    """The entries of a [C, C] whose tokens meet at a level; those below and above the diagonal."""
    return a * masked(masks, 0, level, a.shape[0]).to(a.dtype)


@triton.jit
def lower(a):
    """The entries below the diagonal."""
    t, s = tl.arange(0, a.shape[0])[:, None], tl.arange(0, a.shape[0])[None, :]
    return tl.where(t > s, a, 0.0)


@triton.jit
def diagonal(a):
    """The diagonal of a [C, C], as a column."""
    t, s = tl.arange(0, a.shape[0])[:, None], tl.arange(0, a.shape[0])[None, :]
    return tl.sum(tl.where(t == s, a, 0.0), 1)[:, None]


@triton.jit
def meet(x, y, decay, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr):
    """A[t, s] = sum_d x[t, d] y[s, d] P[t, s, d], 0 above the diagonal, [C, C]; x times prefix and
    y times suffix."""
    C: tl.constexpr = x.shape[0]
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    up, before, down = runs(decay, LOG)
    a = tl.zeros([C, C], x.dtype)
    if not STRICT:
        a = tl.where(t == s, tl.sum(x * y, 1)[:, None], a)
    for level in range(halvings(C)):
        right = (t >> level) & 1 != 0
        run = tl.where(right, before if STRICT else up, down)
        crossed = tl.where(right, t >> level, 0) - 1 == s >> level
        a = tl.where(crossed, dot(x * run, tl.trans(y * run), PRECISION), a)
        up, before, down = doubled(up, before, down, level)
    return a, x * (before if STRICT else up), y * down


@triton.jit
def gram(x, y, decay, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr):
    """The A of `meet`."""
    a, _, _ = meet(x, y, decay, PRECISION, LOG, STRICT)
    return a


@triton.jit
def decayed(a, y, decay, masks, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr):
    """O[t, d] = sum_s a[t, s] y[s, d] P[t, s, d] over s <= t (s < t where STRICT): [C, D]."""
    t = tl.arange(0, y.shape[0])[:, None]
    up, before, down = runs(decay, LOG)
    out = tl.zeros(y.shape, y.dtype)
    if not STRICT:
        out += diagonal(a) * y
    below = rounded(lower(a), PRECISION)
    for level in range(halvings(y.shape[0])):
        right = (t >> level) & 1 != 0
        read = dot(met(below, masks, level), tl.where(right, 0.0, y * down), PRECISION)
        out += tl.where(right, before if STRICT else up, 0.0) * read
        up, before, down = doubled(up, before, down, level)
    return out
