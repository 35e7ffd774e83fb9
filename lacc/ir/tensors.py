"""Operations on whole vectors and matrices: arrays in, arrays out, and the cotangents of both.

Values are ``fn(site, *arrays)``, rules ``fn(site, ct, y, *arrays)``; `Site` says where the axes of
a value begin, since any leading axes (batch, time, head) stand before them. A column [K] has one
axis, a row [1, K] two. Leading axes of the arrays broadcast; a cotangent has those of the result,
and summing over what was broadcast is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lacc.ir.late import np

Array = Any


@dataclass(frozen=True, slots=True)
class Site:
    """Where an operation stands: its node's ``value`` (roll's n), the shape of the result and the
    ranks of the arguments (how many trailing axes are theirs)."""

    value: Any
    shape: tuple[int, ...]
    ranks: tuple[int, ...]


def pull(ct: Array, d: Array) -> Array:
    """``ct * d``, and 0 where ct is 0 though d is not finite."""
    with np.errstate(all="ignore"):
        product = ct * d
    bad = np.isnan(product)
    return np.where(bad & np.equal(ct, 0), 0, product) if bad.any() else product


def _axes(rank: int) -> tuple[int, ...]:
    return tuple(range(-rank, 0))


def _under(x: Array, rank: int) -> Array:
    """A scalar per leading index, with ``rank`` axes of length 1 behind."""
    return x.reshape(x.shape + (1,) * rank)


def reduce_max(at: Site, x: Array) -> Array:
    return x.max(axis=_axes(at.ranks[0]))


def reduce_min(at: Site, x: Array) -> Array:
    return x.min(axis=_axes(at.ranks[0]))


def grad_extreme(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    """Ties share the cotangent evenly."""
    (rank,) = at.ranks
    hit = x == _under(y, rank)
    count = hit.sum(axis=_axes(rank), keepdims=True)
    return (np.where(hit, _under(ct, rank) / np.maximum(count, 1), 0),)


def total(at: Site, x: Array) -> Array:
    return x.sum(axis=_axes(at.ranks[0]))


def grad_total(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (np.broadcast_to(_under(ct, at.ranks[0]), x.shape),)


def mean(at: Site, x: Array) -> Array:
    return x.mean(axis=_axes(at.ranks[0]))


def grad_mean(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (np.broadcast_to(_under(ct, at.ranks[0]), x.shape) / _count(at, x),)


def _count(at: Site, x: Array) -> int:
    return int(np.prod(x.shape[x.ndim - at.ranks[0] :]))


def rms(at: Site, x: Array) -> Array:
    return np.sqrt(np.square(x).mean(axis=_axes(at.ranks[0])))


def grad_rms(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    (rank,) = at.ranks
    return (pull(_under(ct, rank), x / _under(y, rank)) / _count(at, x),)


def diag(at: Site, x: Array) -> Array:
    return x[..., None] * np.eye(x.shape[-1], dtype=x.dtype)


def grad_diag(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (np.diagonal(ct, axis1=-2, axis2=-1),)


def vec(at: Site, x: Array) -> Array:
    return x.reshape(x.shape[: x.ndim - at.ranks[0]] + at.shape)


def grad_vec(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (ct.reshape(x.shape),)


def concat(at: Site, *xs: Array) -> Array:
    columns = [x[..., None] if rank == 0 else x for x, rank in zip(xs, at.ranks)]
    lead = np.broadcast_shapes(*(c.shape[:-1] for c in columns))
    return np.concatenate([np.broadcast_to(c, lead + c.shape[-1:]) for c in columns], axis=-1)


def grad_concat(at: Site, ct: Array, y: Array, *xs: Array) -> tuple[Array, ...]:
    parts, start = [], 0
    for x, rank in zip(xs, at.ranks):
        stop = start + (x.shape[-1] if rank else 1)
        parts.append(ct[..., start:stop] if rank else ct[..., start])
        start = stop
    return tuple(parts)


def roll(at: Site, x: Array) -> Array:
    return np.roll(x, at.value, axis=-1)


def grad_roll(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (np.roll(ct, -at.value, axis=-1),)


def rotate(at: Site, x: Array, angle: Array) -> Array:
    """(x1, x2) → (x1 cos θ1 - x2 sin θ1, x1 sin θ1 + x2 cos θ1), …; channels beyond stay."""
    return _turn(x, angle[..., None] if at.ranks[1] == 0 else angle)


def _turn(x: Array, angle: Array) -> Array:
    turned = 2 * angle.shape[-1]
    lead = np.broadcast_shapes(x.shape[:-1], angle.shape[:-1])
    y = np.array(np.broadcast_to(x, lead + x.shape[-1:]))
    even, odd = x[..., 0:turned:2], x[..., 1:turned:2]
    c, s = np.cos(angle), np.sin(angle)
    y[..., 0:turned:2] = even * c - odd * s
    y[..., 1:turned:2] = even * s + odd * c
    return y


def grad_rotate(at: Site, ct: Array, y: Array, x: Array, angle: Array) -> tuple[Array, Array]:
    angle = angle[..., None] if at.ranks[1] == 0 else angle
    turned = 2 * angle.shape[-1]
    d_angle = ct[..., 1:turned:2] * y[..., 0:turned:2] - ct[..., 0:turned:2] * y[..., 1:turned:2]
    return _turn(ct, -angle), d_angle[..., 0] if at.ranks[1] == 0 else d_angle


def softmax(at: Site, x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def grad_softmax(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (y * (ct - (ct * y).sum(axis=-1, keepdims=True)),)


NORMALIZE_EPS = 1e-6
"""What `normalize` adds to the sum of squares."""


def normalize(at: Site, x: Array) -> Array:
    axes = _axes(at.ranks[0])
    return x / np.sqrt(np.square(x).sum(axis=axes, keepdims=True) + NORMALIZE_EPS)


def grad_normalize(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    axes = _axes(at.ranks[0])
    length = np.sqrt(np.square(x).sum(axis=axes, keepdims=True) + NORMALIZE_EPS)
    return ((ct - y * (ct * y).sum(axis=axes, keepdims=True)) / length,)


def _matrix(x: Array, rank: int) -> Array:
    """Any argument of a product as a matrix: a column [K] is [K, 1], a scalar [1, 1]."""
    return x.reshape(x.shape + (1,) * (2 - rank)) if rank < 2 else x


def _shaped(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(x.shape[:-2] + shape)


def transpose(at: Site, x: Array) -> Array:
    return _shaped(np.swapaxes(_matrix(x, at.ranks[0]), -1, -2), at.shape)


def grad_transpose(at: Site, ct: Array, y: Array, x: Array) -> tuple[Array]:
    ct = np.swapaxes(_matrix(ct, len(at.shape)), -1, -2)
    return (ct.reshape(ct.shape[:-2] + x.shape[x.ndim - at.ranks[0] :]),)


def matmul(at: Site, a: Array, b: Array) -> Array:
    return _shaped(_matrix(a, at.ranks[0]) @ _matrix(b, at.ranks[1]), at.shape)


def grad_matmul(at: Site, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    left, right = _matrix(a, at.ranks[0]), _matrix(b, at.ranks[1])
    ct = ct.reshape((*ct.shape[: ct.ndim - len(at.shape)], left.shape[-2], right.shape[-1]))
    d_left = _pulled(ct, np.swapaxes(right, -1, -2))
    d_right = np.swapaxes(_pulled(np.swapaxes(ct, -1, -2), left), -1, -2)
    return (
        d_left.reshape(d_left.shape[:-2] + a.shape[a.ndim - at.ranks[0] :]),
        d_right.reshape(d_right.shape[:-2] + b.shape[b.ndim - at.ranks[1] :]),
    )


def _pulled(ct: Array, d: Array) -> Array:
    """``ct @ d`` of which a 0 in ct takes nothing, whatever stands in d."""
    with np.errstate(all="ignore"):
        product = ct @ d
    if not np.isnan(product).any():
        return product
    return pull(ct[..., None], d[..., None, :, :]).sum(axis=-2)


def solve(at: Site, a: Array, b: Array) -> Array:
    return _shaped(_solved(a, _matrix(b, at.ranks[1])), at.shape)


def _solved(a: Array, b: Array) -> Array:
    """The X of A X = B, NaN where A is singular."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b))
        x = np.full(b.shape, np.nan, b.dtype)
        for at in np.ndindex(lead):
            if np.linalg.matrix_rank(a[at]) == a.shape[-1]:
                x[at] = np.linalg.solve(a[at], b[at])
        return x


def grad_solve(at: Site, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    rank = at.ranks[1]
    d_b = _solved(np.swapaxes(a, -1, -2), _matrix(ct, rank))
    d_a = -d_b @ np.swapaxes(_matrix(y, rank), -1, -2)
    return d_a, _shaped(d_b, at.shape)
