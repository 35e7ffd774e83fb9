"""A shape and a seed go in, the drawn values of a buffer come out: float64, for the same seed the
same numbers wherever kernels run.

A sampler stands alone: its text is pasted by name into emitted files. ``xp`` is the library of
arrays that it computes in, numpy or torch. Notation: the last two axes of ``shape`` are the
buffer's [M, K] (a vector is [K]); axes before them are independent draws.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sampler = Callable[[Any, tuple[int, ...], int], Any]


def mixed(x: Any) -> Any:
    """The output of splitmix64 (Steele et al. 2014) at states ``x``, int64."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def random(xp: Any, count: int, seed: int) -> Any:
    """``count`` independent numbers, uniform on [0, 1): splitmix64 from the mixed seed on."""
    start = mixed(xp.arange(seed, seed + 1, dtype=xp.int64) + 1)
    state = start - xp.arange(1, count + 1, dtype=xp.int64) * 0x61C8864680B583EB
    return xp.asarray((mixed(state) >> 11) & 0x1FFFFFFFFFFFFF, dtype=xp.float64) * 2.0**-53


def normal(xp: Any, count: int, seed: int) -> Any:
    """``count`` independent numbers of N(0, 1), by the method of Box and Muller."""
    length, turn = random(xp, 2 * count, seed).reshape(2, count)
    return xp.sqrt(-2.0 * xp.log(1.0 - length)) * xp.cos(2.0 * xp.pi * turn)


def uniform(xp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Independent entries, uniform on [0, 1)."""
    return random(xp, prod(shape), seed).reshape(shape)


def gaussian(xp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Independent N(0, 1) entries."""
    return normal(xp, prod(shape), seed).reshape(shape)


def rademacher(xp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Independent entries, -1 or 1."""
    return 2.0 * xp.floor(2.0 * uniform(xp, shape, seed)) - 1.0


def directions(shape: tuple[int, ...], entries: Any) -> Any:
    """Rows of length 1, orthogonal within each block of K rows: ``entries`` of N(0, 1), as many as
    `entries_of` says, made so by the Gram-Schmidt process (each block is a Haar-random matrix).

    Every row is projected twice, after which it is orthogonal to all before it but for rounding.
    """
    *batch, rows, columns = (1,) * (2 - len(shape)) + tuple(shape)
    blocks = entries.reshape(*batch, -(-rows // columns), columns, columns)
    for n in range(columns):
        row, earlier = blocks[..., n, :], blocks[..., :n, :]
        for _ in range(2):
            along = (earlier * row[..., None, :]).sum(-1)
            row = row - (along[..., None] * earlier).sum(-2)
        blocks[..., n, :] = row / (row * row).sum(-1)[..., None] ** 0.5
    return blocks.reshape(*batch, -1, columns)[..., :rows, :].reshape(shape)


def entries_of(shape: tuple[int, ...]) -> int:
    """The entries of whole blocks of K rows."""
    *batch, rows, columns = (1,) * (2 - len(shape)) + tuple(shape)
    return prod(batch) * -(-rows // columns) * columns * columns


def orthogonal(xp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Rows of length 1, orthogonal within each block of K rows (a Haar-random orthogonal matrix a
    block).
    """
    return directions(shape, normal(xp, entries_of(shape), seed))


def orthogonal_gaussian(xp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Rows that are N(0, I) each and orthogonal within each block of K rows (FAVOR+, Choromanski et
    al. 2020).
    """
    cut, rows = entries_of(shape), shape or (1,)
    entries = normal(xp, cut + prod(shape), seed)
    lengths = (entries[cut:].reshape(rows) ** 2).sum(-1)[..., None] ** 0.5
    return (directions(rows, entries[:cut]) * lengths).reshape(shape)


SAMPLERS: dict[str, Sampler] = {
    "orthogonal_gaussian": orthogonal_gaussian,
    "gaussian": gaussian,
    "uniform": uniform,
    "rademacher": rademacher,
    "orthogonal": orthogonal,
}


def draw(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float64]:
    """What the sampler ``name`` draws, in NumPy. KeyError where there is none."""
    drawn: NDArray[np.float64] = SAMPLERS[name](np, shape, seed)
    return drawn
