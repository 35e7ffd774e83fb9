"""Unit lower triangular systems in, their inverses and solutions out; NumPy only, and copied by
name into the files that use it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
LEAF = 4  # rows of the blocks that are inverted row by row


def inverse(a: Array) -> Array:
    """(I + tril(a, -1))⁻¹: [..., C, C].

    By halves: the lower left block of an inverse is -Y B X, for X and Y the inverses of the blocks
    on the diagonal and B the one beside them. That is substitution in another order, with blocks of
    one size at a time in every system. No power of a is formed: those of keys that are alike grow
    beyond all bounds, although the inverse does not. In double throughout: terms of reflections
    alternate, and a product that sums even and odd ones apart, as BLAS may, loses what they cancel.
    """
    kind, a = a.dtype, a.astype(np.float64, copy=False)
    tokens = a.shape[-1]
    size = max(LEAF, 1 << max(tokens - 1, 0).bit_length())
    below = np.zeros((prod(a.shape[:-2]), size, size), a.dtype)
    np.negative(a, out=below.reshape(*a.shape[:-2], size, size)[..., :tokens, :tokens])
    x, m = _leaves(below), LEAF
    while m < size:
        whole = np.zeros((len(x), size // (2 * m), 2 * m, 2 * m), a.dtype)
        whole[..., :m, :m], whole[..., m:, m:] = x[:, ::2], x[:, 1::2]
        beside = _blocks(below, 2 * m)[:, m:, :m].transpose(0, 3, 1, 2)
        np.matmul(x[:, 1::2], beside @ x[:, ::2], out=whole[..., m:, :m])
        x, m = whole, 2 * m
    return x.reshape(*a.shape[:-2], size, size)[..., :tokens, :tokens].astype(kind, copy=False)


def _blocks(x: Array, m: int) -> Array:
    """View of the blocks on the diagonal of ``x`` [N, C, C]: [N, m, m, C / m]."""
    blocks = x.shape[-1] // m
    return x.reshape(len(x), blocks, m, blocks, m).diagonal(0, 1, 3)


def _leaves(below: Array) -> Array:
    """The inverses of the blocks on the diagonal, ``below`` with its sign changed: [N, C / LEAF,
    LEAF, LEAF]."""
    blocks = _blocks(below, LEAF).transpose(1, 2, 0, 3)
    x = np.zeros_like(blocks, order="C")
    rows = blocks.copy()
    for row in range(LEAF):
        x[row, row] = 1
        np.sum(rows[row, :row, None] * x[:row, :row], 0, out=x[row, :row])
    return x.transpose(2, 3, 0, 1).copy()


def solve(a: Array, r: Array, transposed: bool) -> Array:
    """X with (I + tril(a, -1)) X = r, or with the transpose: a [..., C, C], r and X [..., C, D]."""
    x = inverse(a)
    return (x.swapaxes(-1, -2) if transposed else x) @ r


def solve_ranks(a: Array, r: Array, transposed: bool) -> Array:
    """`solve` for R rows a token, every token's before the next one's: a [..., R, R, C, C], r and X
    [..., R, C, D]."""
    ranks, tokens = a.shape[-3:-1]
    rows = ranks * tokens
    a = np.moveaxis(a, (-2, -4, -1, -3), (-4, -3, -2, -1)).reshape(*a.shape[:-4], rows, rows)
    x = solve(a, r.swapaxes(-2, -3).reshape(*r.shape[:-3], rows, r.shape[-1]), transposed)
    return x.reshape(*x.shape[:-2], tokens, ranks, x.shape[-1]).swapaxes(-2, -3)
