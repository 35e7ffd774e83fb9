"""NumPy meanings of the tile ops that work along time; NumPy only, and copied by name into the files that use them.

Notation: C tokens of a chunk on axis -2 (-1 for a matrix's columns), D channels, any leading axes. A decay is given per
token, as its logarithm g <= 0 ("log") or as the factor a itself ("linear", any sign, zero too). P[t, s] is the product of
the factors of the tokens after s up to t. No quotient and no difference of running sums is ever formed: every factor used is
a product over a contiguous run of tokens, so a factor of 0 (g = -inf) is exact and nothing overflows that the result does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(slots=True)
class Levels:
    """Products over runs of tokens, by recursive halving of the chunk.

    At level ``l`` (runs of m = 2**l tokens), ``up[l][t]`` multiplies the run of t from its start to t, ``down[l][s]`` the run of
    s from after s to its end, ``whole[l]`` entire runs. A pair (t, s) meets at the level where t lies in the right run and s in
    the left one of two neighbours: P[t, s] = up[l][t] * down[l][s]. The last level holds one run: all C tokens.
    """

    up: list[Array]
    down: list[Array]
    whole: list[Array]
    tokens: int
    log: bool
    strict: bool


def halves(x: Array, m: int) -> tuple[Array, Array]:
    """Views of the left and right runs of m tokens of ``x`` [..., C, D], each [..., C / 2m, m, D]."""
    pairs = x.reshape(*x.shape[:-2], x.shape[-2] // (2 * m), 2, m, x.shape[-1])
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def padded(x: Array, axis: int, tokens: int, fill: float = 0.0) -> Array:
    """``x`` with ``fill`` behind its last token, up to ``tokens``."""
    if x.shape[axis] == tokens:
        return x
    shape = list(x.shape)
    shape[axis] = tokens - x.shape[axis]
    return np.concatenate([x, np.full(shape, fill, x.dtype)], axis)


def levels(g: Array, log: bool, strict: bool) -> Levels:
    """The runs' products for decays ``g`` [..., C, D]; ``strict`` leaves a token's own factor out of ``up``."""
    tokens = g.shape[-2]
    size = 1 << max(tokens - 1, 0).bit_length()
    g = padded(g, -2, size, 0.0 if log else 1.0)
    factor = np.exp(g) if log else g
    up, down = [np.ones_like(g) if strict else factor], [np.ones_like(g)]
    total, whole, m = g, [factor], 1
    while m < size:
        left, right = halves(whole[-1], 1)
        up.append(up[-1].copy())
        down.append(down[-1].copy())
        halves(up[-1], m)[1][...] *= left
        halves(down[-1], m)[0][...] *= right
        first, second = halves(total, 1)
        total = (first + second if log else first * second)[..., 0, :]
        whole.append(np.exp(total) if log else total)
        m *= 2
    return Levels(up, down, whole, tokens, log, strict)


def prefix(d: Levels) -> Array:
    """The product from the chunk's start to each token [..., C, D] (without its own factor where strict)."""
    return d.up[-1][..., : d.tokens, :]


def suffix(d: Levels) -> Array:
    """The product after each token to the chunk's end [..., C, D]."""
    return d.down[-1][..., : d.tokens, :]


def whole(d: Levels) -> Array:
    """The product of the whole chunk [..., D]."""
    return d.whole[-1][..., 0, :]


def pair_block(a: Array, m: int) -> Array:
    """View of the blocks of ``a`` [..., C, C] where right runs of m tokens meet their left ones [..., C / 2m, m, m]."""
    row, column = a.strides[-2:]
    return np.lib.stride_tricks.as_strided(
        a[..., m:, :],
        (*a.shape[:-2], a.shape[-1] // (2 * m), m, m),
        (*a.strides[:-2], 2 * m * (row + column), row, column),
    )


def gram(x: Array, y: Array, d: Levels) -> Array:
    """A[t, s] = sum_d x[t, d] y[s, d] P[t, s, d] for s <= t (s < t where strict), else 0: [..., C, C]."""
    size = d.up[0].shape[-2]
    x, y = padded(x, -2, size), padded(y, -2, size)
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2], d.up[0].shape[:-2])
    a = np.zeros((*lead, size, size), x.dtype)
    m = 1
    for up, down in zip(d.up, d.down):
        if m == size:
            break
        right = halves(x * up if x.shape[-1] >= up.shape[-1] else up * x, m)[1]
        left = halves(y * down, m)[0].swapaxes(-1, -2)
        pair_block(a, m)[...] = right * left if right.shape[-1] == 1 else right @ left
        m *= 2
    if not d.strict:
        np.einsum("...tt->...t", a)[...] = (x * y).sum(-1)
    return a[..., : d.tokens, : d.tokens]


def decayed(a: Array, y: Array, d: Levels) -> Array:
    """O[t, d] = sum_s a[t, s] y[s, d] P[t, s, d] over s <= t (s < t where strict): [..., C, D]."""
    size = d.up[0].shape[-2]
    a, y = padded(padded(a, -1, size), -2, size), padded(y, -2, size)
    lead = np.broadcast_shapes(a.shape[:-2], y.shape[:-2], d.up[0].shape[:-2])
    out = np.zeros((*lead, *y.shape[-2:]), y.dtype)
    if not d.strict:
        out += np.einsum("...tt->...t", a)[..., None] * y
    m = 1
    for up, down in zip(d.up, d.down):
        if m == size:
            break
        halves(out, m)[1][...] += halves(up, m)[1] * (pair_block(a, m) @ halves(y * down, m)[0])
        m *= 2
    return out[..., : d.tokens, :]


def decayed_back(a: Array, x: Array, d: Levels) -> Array:
    """O[s, d] = sum_t a[t, s] x[t, d] P[t, s, d] over t >= s (t > s where strict): [..., C, D]."""
    size = d.up[0].shape[-2]
    a, x = padded(padded(a, -1, size), -2, size), padded(x, -2, size)
    lead = np.broadcast_shapes(a.shape[:-2], x.shape[:-2], d.up[0].shape[:-2])
    out = np.zeros((*lead, *x.shape[-2:]), x.dtype)
    if not d.strict:
        out += np.einsum("...tt->...t", a)[..., None] * x
    m = 1
    for up, down in zip(d.up, d.down):
        if m == size:
            break
        block = pair_block(a, m).swapaxes(-1, -2)
        halves(out, m)[0][...] += halves(down, m)[0] * (block @ halves(x * up, m)[1])
        m *= 2
    return out[..., : d.tokens, :]


def gram_pull(a: Array, x: Array, y: Array, d: Levels) -> Array:
    """The cotangent of the decays behind ``d`` from sum_ts a[t, s] gram(x, y, d)[t, s]: [..., C, D]."""
    size = d.up[0].shape[-2]
    a = padded(padded(a, -1, size), -2, size)
    x, y = padded(x, -2, size), padded(y, -2, size)
    dup, ddown, m = [], [], 1
    for up, down in zip(d.up[:-1], d.down[:-1]):
        block = pair_block(a, m)
        from_left = halves(x, m)[1] * (block @ halves(y * down, m)[0])
        from_right = halves(y, m)[0] * (block.swapaxes(-1, -2) @ halves(x * up, m)[1])
        dup.append(from_left)
        ddown.append(from_right)
        m *= 2
    lead = np.broadcast_shapes(a.shape[:-2], x.shape[:-2], y.shape[:-2])
    return levels_pull(d, lead, max(x.shape[-1], y.shape[-1]), dup, ddown)


def prefix_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays from that of `prefix`."""
    return levels_pull(d, ct.shape[:-2], ct.shape[-1], last_up=ct)


def suffix_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays from that of `suffix`."""
    return levels_pull(d, ct.shape[:-2], ct.shape[-1], last_down=ct)


def whole_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays from that of `whole`."""
    return levels_pull(d, ct.shape[:-1], ct.shape[-1], last_whole=ct)


def levels_pull(
    d: Levels,
    lead: tuple[int, ...],
    channels: int,
    right_up: Sequence[Array] = (),
    left_down: Sequence[Array] = (),
    last_up: Array | None = None,
    last_down: Array | None = None,
    last_whole: Array | None = None,
) -> Array:
    """Reverse mode through `levels`: cotangents of the right runs' ``up`` and left runs' ``down`` of each level, and of the
    last level, to that of the decays [*lead, C, channels]. Sums of products only, so it is as accurate as its terms."""
    size = d.up[0].shape[-2]
    lead = np.broadcast_shapes(lead, d.up[0].shape[:-2])
    channels = max(channels, d.up[0].shape[-1])
    shape = (*lead, size, channels)
    dup = np.zeros(shape, d.up[0].dtype)
    ddown = np.zeros(shape, d.up[0].dtype)
    dwhole = np.zeros((*lead, 1, channels), d.up[0].dtype)
    if last_up is not None:
        dup[..., : d.tokens, :] += last_up
    if last_down is not None:
        ddown[..., : d.tokens, :] += last_down
    if last_whole is not None:
        dwhole[..., 0, :] += last_whole
    dtotal = dwhole * d.whole[-1] if d.log else dwhole
    m = size // 2
    for level in reversed(range(len(d.up) - 1)):
        left, right = halves(d.whole[level], 1)
        ups, downs = halves(dup, m)[1], halves(ddown, m)[0]
        dleft = (ups * halves(d.up[level], m)[1]).sum(-2)
        dright = (downs * halves(d.down[level], m)[0]).sum(-2)
        ups *= left
        downs *= right
        if right_up:
            ups += right_up[level]
            downs += left_down[level]
        pair = np.empty((*dtotal.shape[:-2], dtotal.shape[-2], 2, channels), dtotal.dtype)
        if d.log:
            pair[..., 0, :] = dtotal + dleft * left[..., 0, :]
            pair[..., 1, :] = dtotal + dright * right[..., 0, :]
        else:
            pair[..., 0, :] = dtotal * right[..., 0, :] + dleft
            pair[..., 1, :] = dtotal * left[..., 0, :] + dright
        dtotal = pair.reshape(*pair.shape[:-3], 2 * pair.shape[-3], channels)
        m //= 2
    if not d.strict:
        dtotal = dtotal + (dup * d.up[0] if d.log else dup)
    return dtotal[..., : d.tokens, :]


def solve(a: Array, r: Array, transposed: bool) -> Array:
    """X with (I + tril(a, -1)) X = r, or with the transpose: a [..., C, C], r and X [..., C, D].

    Substitution by blocks of 16 rows: exact inverses of the diagonal blocks, row by row, and merges between blocks.
    """
    tokens = a.shape[-1]
    size = -(-tokens // 16) * 16
    a, r = padded(padded(a, -1, size), -2, size), padded(r, -2, size)
    blocks = range(0, size, 16)
    diagonal = np.stack([a[..., b : b + 16, b : b + 16] for b in blocks], -3)
    inverse = np.broadcast_to(np.eye(16, dtype=a.dtype), diagonal.shape).copy()
    for row in range(1, 16):
        inverse[..., row, :] -= (diagonal[..., row, None, :row] @ inverse[..., :row, :])[..., 0, :]
    lead = np.broadcast_shapes(a.shape[:-2], r.shape[:-2])
    x = np.empty((*lead, *r.shape[-2:]), r.dtype)
    for n, b in reversed(list(enumerate(blocks))) if transposed else enumerate(blocks):
        here, there = slice(b, b + 16), slice(b + 16, size) if transposed else slice(0, b)
        rest = r[..., here, :]
        if there.start < there.stop:
            coupling = a[..., there, here].swapaxes(-1, -2) if transposed else a[..., here, there]
            rest = rest - coupling @ x[..., there, :]
        inv = inverse[..., n, :, :]
        x[..., here, :] = (inv.swapaxes(-1, -2) if transposed else inv) @ rest
    return x[..., :tokens, :]


def scan(a: Array, b: Array) -> Array:
    """h[t] = a[t] h[t-1] + b[t] along axis 0 after moving it there, from h = 0; a broadcasts to b."""
    h = np.empty(np.broadcast_shapes(a.shape, b.shape), b.dtype)
    for t in range(len(h)):
        h[t] = b[t] if t == 0 else a[t] * h[t - 1] + b[t]
    return h


def scan_back(a: Array, b: Array) -> Array:
    """h[t] = a[t+1] h[t+1] + b[t] along axis 0, from h = 0 behind the end: the adjoint of `scan`."""
    h = np.empty(np.broadcast_shapes(a.shape, b.shape), b.dtype)
    for t in reversed(range(len(h))):
        h[t] = b[t] if t == len(h) - 1 else a[t + 1] * h[t + 1] + b[t]
    return h


def between(d: Levels) -> Array:
    """P[t, s] of one scalar decay a token: [..., C, C], 0 where s > t (s >= t where strict)."""
    one = np.ones((d.tokens, 1), d.up[0].dtype)
    return gram(one, one, d)


def between_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays [..., C, 1] from that of `between`."""
    one = np.ones((d.tokens, 1), d.up[0].dtype)
    return gram_pull(ct, one, one, d)


def spread(x: Array, *lengths: int) -> Array:
    """``x`` broadcast to trailing axes of these lengths: a view."""
    return np.broadcast_to(x, (*x.shape[: x.ndim - len(lengths)], *lengths))


def place_row(x: Array, axes: int, tokens: int, last: bool) -> Array:
    """``x`` as the last (or first) of ``tokens`` rows, the others 0; ``axes`` counts those of the result's tile."""
    lead = x.ndim - axes + 1
    out = np.zeros((*x.shape[:lead], tokens, *x.shape[lead:]), x.dtype)
    out[(slice(None),) * lead + (-1 if last else 0,)] = x
    return out


def shift(x: Array, axis: int, back: bool) -> Array:
    """The neighbour before (or behind) along an axis; 0 at the edge."""
    out = np.zeros_like(x)
    new, old = np.moveaxis(out, axis, 0), np.moveaxis(x, axis, 0)
    if back:
        new[:-1] = old[1:]
    else:
        new[1:] = old[:-1]
    return out


def take(x: Array, axis: int, start: int, step: int, count: int) -> Array:
    """``count`` entries of an axis, from ``start`` on: a view."""
    return np.moveaxis(np.moveaxis(x, axis, 0)[start : start + step * count : step], 0, axis)


def put(x: Array, axis: int, start: int, step: int, length: int) -> Array:
    """The transpose of `take`: the entries in an axis of ``length``, the others 0."""
    shape = list(x.shape)
    shape[axis] = length
    out = np.zeros(shape, x.dtype)
    take(out, axis, start, step, x.shape[axis])[...] = x
    return out


def join(axis: int, *parts: Array) -> Array:
    """Parts of an axis one after another; other axes broadcast."""
    lead = np.broadcast_shapes(*(np.delete(p.shape, p.ndim + axis).tolist() for p in parts))
    wide = []
    for p in parts:
        shape = list(lead)
        shape.insert(p.ndim + axis, p.shape[axis])
        wide.append(np.broadcast_to(p, shape))
    return np.concatenate(wide, axis)


def fold(x: Array) -> Array:
    """The last two axes as one, row-major."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def unfold(x: Array, rows: int, columns: int) -> Array:
    """The last axis as two."""
    return x.reshape(*x.shape[:-1], rows, columns)


def omitted(ct: Array, given: Array | None) -> Array:
    """A cotangent where an argument was omitted and its default stands for it, else 0."""
    return ct if given is None else np.zeros_like(ct)
