"""A shape and a seed go in, the drawn values of a buffer come out: float64 on the CPU, the same for
the same seed.

This module stands alone (torch only): its text is pasted by name into emitted Triton files. The
last two axes of ``shape`` are the buffer's [M, K] (a vector is [K]); axes before them are
independent draws.
"""

from __future__ import annotations

from typing import Any

import torch


def generator(seed: int) -> Any:
    """Random numbers of a seed."""
    return torch.Generator().manual_seed(seed)


def gaussian(shape: tuple[int, ...], seed: int) -> Any:
    """Independent N(0, 1) entries."""
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def uniform(shape: tuple[int, ...], seed: int) -> Any:
    """Independent entries, uniform on [0, 1)."""
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def rademacher(shape: tuple[int, ...], seed: int) -> Any:
    """Independent entries, -1 or 1."""
    return 2.0 * torch.randint(2, shape, generator=generator(seed)).to(torch.float64) - 1.0


def directions(shape: tuple[int, ...], random: Any) -> Any:
    """Rows of length 1, orthogonal within each block of K rows (a Haar-random orthogonal matrix a
    block)."""
    *batch, rows, columns = (1,) * (2 - len(shape)) + tuple(shape)
    blocks = -(-rows // columns)
    size = (*batch, blocks, columns, columns)
    q, r = torch.linalg.qr(torch.randn(size, generator=random, dtype=torch.float64))
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    q = q * torch.where(diagonal < 0, -1.0, 1.0)[..., None, :]
    stacked = q.transpose(-1, -2).reshape(*batch, blocks * columns, columns)
    return stacked[..., :rows, :].reshape(shape)


def orthogonal(shape: tuple[int, ...], seed: int) -> Any:
    """Rows of length 1, orthogonal within each block of K rows."""
    return directions(shape or (1,), generator(seed)).reshape(shape)


def orthogonal_gaussian(shape: tuple[int, ...], seed: int) -> Any:
    """Rows that are N(0, I) each and orthogonal within each block of K rows (FAVOR+, Choromanski et
    al. 2020)."""
    random = generator(seed)
    rows = directions(shape or (1,), random)
    normal = torch.randn(shape or (1,), generator=random, dtype=torch.float64)
    return (rows * normal.square().sum(-1, keepdim=True).sqrt()).reshape(shape)
