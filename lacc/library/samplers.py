"""A shape and a seed go in, the drawn values of a buffer come out.

Notation: the last two axes of ``shape`` are the buffer's [M, K] (a vector is [K]); axes before them
are independent draws.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Sampler = Callable[[tuple[int, ...], np.random.Generator], Array]


def gaussian(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Independent N(0, 1) entries."""
    return rng.standard_normal(shape)


def uniform(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Independent entries, uniform on [0, 1)."""
    return rng.random(shape)


def rademacher(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Independent entries, -1 or 1."""
    return np.where(rng.integers(0, 2, shape) == 0, -1.0, 1.0)


def orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Rows of length 1, orthogonal within each block of K rows (a Haar-random orthogonal matrix a
    block).
    """
    *batch, rows, columns = (1,) * (2 - len(shape)) + shape
    blocks = -(-rows // columns)
    normal = rng.standard_normal((*batch, blocks, columns, columns))
    q, r = np.linalg.qr(normal)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    q = q * np.where(diagonal < 0, -1.0, 1.0)[..., None, :]
    stacked = np.swapaxes(q, -1, -2).reshape(*batch, blocks * columns, columns)
    return np.ascontiguousarray(stacked[..., :rows, :]).reshape(shape)


def orthogonal_gaussian(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Rows that are N(0, I) each and orthogonal within each block of K rows (FAVOR+, Choromanski et
    al. 2020).
    """
    directions = orthogonal(shape or (1,), rng)
    normal = rng.standard_normal(shape or (1,))
    scaled: Array = directions * np.sqrt(np.sum(normal**2, axis=-1, keepdims=True))
    return scaled.reshape(shape)


SAMPLERS: dict[str, Sampler] = {
    "orthogonal_gaussian": orthogonal_gaussian,
    "gaussian": gaussian,
    "uniform": uniform,
    "rademacher": rademacher,
    "orthogonal": orthogonal,
}


def draw(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """Values of the sampler ``name``: float64 of ``shape``, the same for the same seed. KeyError
    where there is none.
    """
    return SAMPLERS[name](shape, np.random.default_rng(seed))
