"""Tiles in registers in, tiles out: solutions of systems of equations, for emitted Triton kernels.

Never imported by lacc: emitted files hold copies of what they use. Notation as in
`lacc.runtime.triton_axes`. Triangular systems are solved by substitution in blocks of 16 rows that
are then merged, at the precision of float32 whatever PRECISION is: no power of a is formed.
"""

import triton
import triton.language as tl

from lacc.runtime.triton_axes import dot, exact, halvings


@triton.jit
def inverse(a, PRECISION: tl.constexpr):
    """(I + tril(a, -1))⁻¹ [C, C]: substitution inside blocks of 16 rows, all at once, then merges.

    Two neighbouring blocks with inverses X, Y and the coupling L below merge to X, Y and -Y L X.
    """
    C: tl.constexpr = a.shape[0]
    EXACT: tl.constexpr = exact(PRECISION)
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    column = tl.arange(0, 16)[None, :]
    start, row = t & -16, t & 15
    own = tl.gather(a, start + column, 1)
    x = tl.where(column == row, 1.0, 0.0).to(a.dtype)
    for i in range(15):
        factor = tl.sum(tl.where(column == i, own, 0.0), 1)[:, None]
        solved = tl.gather(x, tl.broadcast_to(start + i, x.shape), 0)
        x = x - tl.where(row > i, factor * solved, 0.0)
    x = tl.gather(x, tl.broadcast_to(s & 15, a.shape), 1)
    x = tl.where(t >> 4 == s >> 4, x, 0.0)
    for level in range(4, halvings(C)):
        meet = (t > s) & ((t ^ s) >> level == 1)
        x = x - dot(x, dot(tl.where(meet, a, 0.0), x, EXACT), EXACT)
    return x


@triton.jit
def solve(a, r, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr):
    """X with (I + tril(a, -1)) X = r, or with the transpose: r and X [C, D]."""
    x = inverse(a, PRECISION)
    return dot(tl.trans(x) if TRANSPOSED else x, r, exact(PRECISION))


@triton.constexpr_function
def next_power(n):
    """The least power of two from n on."""
    return 1 << (n - 1).bit_length()


@triton.jit
def solve_parts(a, r, PRECISION: tl.constexpr, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    """`solve` for N rows a token: a tuple a of the N² pairs of ranks [C, C], by rows, and r of N
    [C, D]; only entries t > s of a count. One system, the rows of a token side by side."""
    C: tl.constexpr = r[0].shape[0]
    D: tl.constexpr = r[0].shape[1]
    P: tl.constexpr = next_power(N)
    rank, other = tl.arange(0, P)[None, :, None, None], tl.arange(0, P)[None, None, None, :]
    t, s = tl.arange(0, C)[:, None, None, None], tl.arange(0, C)[None, None, :, None]
    system = tl.zeros([C, P, C, P], r[0].dtype)
    for i in tl.static_range(N):
        for j in tl.static_range(N):
            here = (rank == i) & (other == j) & (t > s)
            system = tl.where(here, a[N * i + j][:, None, :, None], system)
    own = tl.arange(0, P)[None, :, None]
    right = tl.zeros([C, P, D], r[0].dtype)
    for i in tl.static_range(N):
        right = tl.where(own == i, r[i][:, None, :], right)
    system, right = tl.reshape(system, [C * P, C * P]), tl.reshape(right, [C * P, D])
    x = tl.reshape(solve(system, right, PRECISION, TRANSPOSED), [C, P, D])
    solved = ()
    for i in tl.static_range(N):
        solved += (tl.sum(tl.where(own == i, x, 0.0), 1),)
    return solved


@triton.jit
def dense_solve(a, b, N: tl.constexpr):
    """The X of a X = b for every matrix: a [M, R, R], b and X [M, R, D], N of R rows there. By
    elimination, of each column with the row not yet used that is largest there; NaN where a matrix
    is singular."""
    row, column = tl.arange(0, a.shape[1])[None, :], tl.arange(0, a.shape[1])[None, None, :]
    free = tl.broadcast_to(row < N, [a.shape[0], a.shape[1]])
    order = tl.zeros([a.shape[0], a.shape[1]], tl.int32)
    for k in range(N):
        entry = tl.sum(tl.where(column == k, a, 0.0), 2)
        size = tl.where(free & (entry == entry), tl.abs(entry), -1.0)
        chosen = tl.argmax(size, 1)[:, None]
        hit = (row == chosen)[:, :, None]
        pivot = tl.sum(tl.where(row == chosen, entry, 0.0), 1)[:, None]
        pivot = tl.where(pivot == 0.0, float("nan"), pivot)[:, :, None]
        left = tl.sum(tl.where(hit, a, 0.0), 1)[:, None, :] / pivot
        right = tl.sum(tl.where(hit, b, 0.0), 1)[:, None, :] / pivot
        a = tl.where(hit, left, a - entry[:, :, None] * left)
        b = tl.where(hit, right, b - entry[:, :, None] * right)
        free = free & (row != chosen)
        order = tl.where(row == k, chosen, order)
    return tl.gather(b, tl.broadcast_to(order[:, :, None], b.shape), 1)
