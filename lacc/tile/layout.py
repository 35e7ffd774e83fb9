"""NumPy meanings of the tile ops that move entries; NumPy only, and copied by name into the files
that use them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

Tile = np.ndarray[Any, Any]


def blank(shape: tuple[int, ...], dtype: Any) -> Tile:
    """An array, not filled, that starts where a line of the cache does: products read it faster."""
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.ctypes.data % 64)


def packed(x: Tile, dtype: Any) -> Tile:
    """``x``, its entries side by side."""
    if x.dtype == dtype and x.flags.c_contiguous:
        return x
    out = blank(x.shape, dtype)
    out[...] = x
    return out


def room(x: Tile, n: int, at: int) -> Tile:
    """Space for n + 1 states [B, H, n + 1, *axes], of which the one at ``at`` is ``x``."""
    out = blank((*x.shape[:2], n + 1, *x.shape[2:]), x.dtype)
    out[:, :, at] = x
    return out


def slots(x: Tile, *axes: int) -> Tile:
    """Space for a tile of every sequence and head of the state ``x``: [B, H, *axes]."""
    return blank((*x.shape[:2], *axes), x.dtype)


def turned(x: Tile) -> Tile:
    """The last two axes exchanged, and laid out so."""
    return packed(x.swapaxes(-1, -2), x.dtype)


def spread(x: Tile, *lengths: int) -> Tile:
    """``x`` broadcast to trailing axes of these lengths: a view."""
    return np.broadcast_to(x, (*x.shape[: x.ndim - len(lengths)], *lengths))


def place_row(x: Tile, axes: int, tokens: int, last: bool) -> Tile:
    """``x`` as the last (or first) of ``tokens`` rows, the others 0; ``axes`` counts those of the
    result's tile."""
    lead = x.ndim - axes + 1
    out = np.zeros((*x.shape[:lead], tokens, *x.shape[lead:]), x.dtype)
    out[(slice(None),) * lead + (-1 if last else 0,)] = x
    return out


def shift(x: Tile, axis: int, back: bool) -> Tile:
    """The neighbour before (or behind) along an axis; 0 at the edge."""
    out = np.zeros_like(x)
    new, old = np.moveaxis(out, axis, 0), np.moveaxis(x, axis, 0)
    if back:
        new[:-1] = old[1:]
    else:
        new[1:] = old[:-1]
    return out


def before(x: Tile, start: Tile, axis: int) -> Tile:
    """The neighbour before along an axis; ``start`` (without it) before the first."""
    first = np.expand_dims(start, axis)
    rest = take(x, axis, 0, 1, x.shape[axis] - 1)
    shape = list(np.broadcast_shapes(first.shape, x.shape))
    out = np.empty(shape, x.dtype)
    take(out, axis, 0, 1, 1)[...] = first
    take(out, axis, 1, 1, shape[axis] - 1)[...] = rest
    return out


def take(x: Tile, axis: int, start: int, step: int, count: int) -> Tile:
    """``count`` entries of an axis, from ``start`` on: a view."""
    return np.moveaxis(np.moveaxis(x, axis, 0)[start : start + step * count : step], 0, axis)


def put(x: Tile, axis: int, start: int, step: int, length: int) -> Tile:
    """The transpose of `take`: the entries in an axis of ``length``, the others 0."""
    shape = list(x.shape)
    shape[axis] = length
    out = np.zeros(shape, x.dtype)
    take(out, axis, start, step, x.shape[axis])[...] = x
    return out


def join(axis: int, *parts: Tile) -> Tile:
    """Parts of an axis one after another; other axes broadcast."""
    lead = np.broadcast_shapes(*(np.delete(p.shape, p.ndim + axis).tolist() for p in parts))
    wide = []
    for p in parts:
        shape = list(lead)
        shape.insert(p.ndim + axis, p.shape[axis])
        wide.append(np.broadcast_to(p, shape))
    return np.concatenate(wide, axis)


def stacked(axis: int, *parts: Tile) -> Tile:
    """Parts as the entries of a new axis; they broadcast."""
    return np.stack(np.broadcast_arrays(*parts), axis, dtype=np.result_type(*parts))


def pooled(x: Tile) -> Tile:
    """The sum over sequences and chunks of ``x`` [B, H, n, *axes]: [1, H, 1, *axes]."""
    return np.add.reduce(x, (0, 2), keepdims=True)


def fold(x: Tile) -> Tile:
    """The last two axes as one, row-major."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def unfold(x: Tile, rows: int, columns: int) -> Tile:
    """The last axis as two."""
    return x.reshape(*x.shape[:-1], rows, columns)


def omitted(ct: Tile, given: Tile | None) -> Tile:
    """A cotangent where an argument was omitted and its default stands for it, else 0."""
    return ct if given is None else np.zeros_like(ct)
