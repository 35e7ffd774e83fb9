"""Tiles in registers in, tiles out: recurrences along the tokens of a chunk, for emitted Triton
kernels.

Never imported by lacc: emitted files hold copies of what they use. Notation as in
`lacc.runtime.triton_axes`. Each doubles the run of tokens that a row has seen until it has seen all
of them: sums of products over contiguous runs alone, exact at 0 and at -inf.
"""

import triton
import triton.language as tl

from lacc.runtime.triton_axes import halvings, moved, rows
from lacc.runtime.triton_math import logaddexp


@triton.jit
def linked(a, b, N: tl.constexpr, BACK: tl.constexpr):
    """h[t] = a[t] h[t-1] + b[t] from 0 for N entries, b their tuple and a that of the N² of a
    matrix by rows; with BACK of h[t+1]. Tiles of a and of b broadcast."""
    for level in range(halvings(b[0].shape[0])):
        step = (1 << level) if BACK else -(1 << level)
        joined = ()
        for i in tl.static_range(N):
            h = b[i]
            for j in tl.static_range(N):
                h += a[N * i + j] * moved(b[j], step, 0.0)
            joined += (h,)
        longer = ()
        for i in tl.static_range(N):
            for k in tl.static_range(N):
                run = a[N * i] * moved(a[k], step, 0.0)
                for j in tl.static_range(1, N):
                    run += a[N * i + j] * moved(a[N * j + k], step, 0.0)
                longer += (run,)
        a, b = longer, joined
    return b


@triton.jit
def chain(a, b, N: tl.constexpr):
    """h[t] = a[t] h[t-1] + b[t] from 0, of a tuple a of N² and b of N tiles."""
    return linked(a, b, N, False)


@triton.jit
def chain_back(a, b, count, N: tl.constexpr):
    """h[t] = a[t+1]ᵀ h[t+1] + b[t] from 0 behind the last token: the adjoint of `chain`."""
    behind = ()
    for i in tl.static_range(N):
        for j in tl.static_range(N):
            x = a[N * j + i]
            behind += (tl.where(rows(x) < count - 1, moved(x, 1, 0.0), 0.0),)
    added = ()
    for i in tl.static_range(N):
        added += (tl.where(rows(b[i]) < count, b[i], 0.0),)
    return linked(behind, added, N, True)


@triton.jit
def scan(a, b, start):
    """h[t] = a[t] h[t-1] + b[t] from ``start``, which lacks the rows."""
    a, b = tl.broadcast(a, b)
    b += tl.where(rows(a) == 0, a, 0.0) * tl.expand_dims(start, 0)
    return linked((a,), (b,), 1, False)[0]


@triton.jit
def scan_back(a, b, count):
    """h[t] = a[t+1] h[t+1] + b[t] from 0 behind the last token: the adjoint of `scan`."""
    a, b = tl.broadcast(a, b)
    return chain_back((a,), (b,), count, 1)[0]


@triton.jit
def join(x, y, OP: tl.constexpr):
    """max, min or logaddexp of two."""
    if OP == "max":
        return tl.maximum(x, y)
    elif OP == "min":
        return tl.minimum(x, y)
    else:
        return logaddexp(x, y)


@triton.jit
def tropical(f, i, OP: tl.constexpr):
    """m[t] = OP(m[t-1] + f[t], i[t]), from i at the first token."""
    f, m = tl.broadcast(f, i)
    t = rows(m)
    for level in range(halvings(m.shape[0])):
        step = 1 << level
        m = tl.where(t >= step, join(moved(m, -step, 0.0) + f, m, OP), m)
        f += moved(f, -step, 0.0)
    return m
