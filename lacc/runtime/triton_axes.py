"""Tiles in registers in, tiles out: matrix products and rows in another place, for emitted Triton
kernels.

Never imported by lacc: emitted files hold copies of what they use. Notation: axis 0 of a tile is
the token, C of them, a power of two from 16 on, of which the first ``count`` are there; any axes
follow. PRECISION is what matrix products round their operands to: "bf16", "tf32", parts that
together are as good as float32 ("tf32x3", "bf16x6"), or "ieee", not at all.
"""

import triton
import triton.language as tl

EXACT = tl.constexpr("tf32x3" if triton.knobs.runtime.interpret else "bf16x6")
"""What stands for float32 in products of solves: every target compiles bf16x6, none interprets
it."""


@triton.constexpr_function
def halvings(n):
    """How often n tokens can be halved."""
    return (n - 1).bit_length()


@triton.constexpr_function
def small(a, b):
    """Whether matrices of these shapes are too small for the matrix units."""
    return min(*a[-2:], b[-1]) < 16


@triton.constexpr_function
def exact(precision):
    """The precision of products in a solve."""
    return "ieee" if precision == "ieee" else EXACT.value


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """x as products take it: what waits for one is kept so."""
    return x.to(tl.bfloat16) if PRECISION == "bf16" else x


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a @ b, accumulated in the wide dtype: [M, K] and [K, N], or a batch of them."""
    if small(a.shape, b.shape):
        N: tl.constexpr = len(a.shape)
        return tl.sum(tl.expand_dims(a, N) * tl.expand_dims(b, N - 2), N - 1)
    elif PRECISION == "bf16":
        return tl.dot(rounded(a, PRECISION), rounded(b, PRECISION))
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def rows(x):
    """The row of each entry of x."""
    t = tl.arange(0, x.shape[0])
    for n in tl.static_range(1, len(x.shape)):
        t = tl.expand_dims(t, n)
    return tl.broadcast_to(t, x.shape)


@triton.jit
def moved(x, step, fill):
    """Row t + step of x in row t, ``fill`` where there is none."""
    t = rows(x)
    there = t + step
    kept = (there >= 0) & (there < x.shape[0])
    return tl.where(kept, tl.gather(x, tl.where(kept, there, t), 0), fill)


@triton.jit
def before(x, start):
    """The row before each one, ``start`` before the first."""
    x, first = tl.broadcast(x, tl.expand_dims(start, 0))
    return tl.where(rows(x) == 0, first, moved(x, -1, 0.0))


@triton.jit
def shift(x, count, BACK: tl.constexpr):
    """The row before each one, or behind it (BACK), 0 at the edge."""
    if BACK:
        return tl.where(rows(x) < count - 1, moved(x, 1, 0.0), 0.0)
    else:
        return moved(x, -1, 0.0)


@triton.jit
def row(x, at):
    """One row of x."""
    return tl.sum(tl.where(rows(x) == at, x, 0.0), 0)


@triton.jit
def fold(x, D: tl.constexpr, N: tl.constexpr):
    """Rows of D entries, of a tile [M, ., .] that may hold more, one after another: [M, N]."""
    flat = tl.reshape(x, [x.shape[0], x.shape[1] * x.shape[2]])
    if flat.shape[1] == N and x.shape[2] == D:
        return flat
    else:
        at = tl.arange(0, N)
        at = tl.minimum(at // D * x.shape[2] + at % D, flat.shape[1] - 1)
        return tl.gather(flat, tl.broadcast_to(at[None, :], [x.shape[0], N]), 1)


@triton.jit
def unfold(x, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """The entries of a tile [M, .] as rows of D, in a tile [M, BR, BD]."""
    if x.shape[1] == BR * BD and BD == D:
        return tl.reshape(x, [x.shape[0], BR, BD])
    else:
        at = tl.arange(0, BR * BD)
        at = tl.minimum(at // BD * D + at % BD, x.shape[1] - 1)
        apart = tl.gather(x, tl.broadcast_to(at[None, :], [x.shape[0], BR * BD]), 1)
        return tl.reshape(apart, [x.shape[0], BR, BD])
