"""NumPy meanings of the tile ops that work along time; NumPy only, and copied by name into the
files that use them.

Notation: C tokens of a chunk on axis -2 (-1 for a matrix's columns), D channels, any leading axes.
A decay is given per token, as its logarithm g <= 0 ("log") or as the factor a itself ("linear", any
sign, zero too). P[t, s] is the product of the factors of the tokens after s up to t. No quotient
and no difference of running sums is ever formed: every factor used is a product over a contiguous
run of tokens, so a factor of 0 (g = -inf) is exact and nothing overflows that the result does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
LEAST = -1e30  # stands for -inf in sums where terms are chosen by factors 0 and 1


class Levels:
    """Products over runs of tokens, by recursive halving of the chunk.

    At a level with runs of m tokens, ``up[t]`` multiplies the run of t from its start to t,
    ``down[s]`` the run of s from after s to its end. A pair (t, s) meets at the level where t lies
    in the right run and s in the left one of two neighbours: P[t, s] = up[t] * down[s]. At the last
    level one run holds all tokens. ``totals[l]`` are whole runs of 2**l tokens; from logs they are
    the exp of a sum, but for the shortest, so that slow decays keep their digits over a long
    sequence.
    """

    def __init__(self, g: Array, log: bool, strict: bool) -> None:
        self.g = np.ascontiguousarray(g) if g.shape[-1] == 1 else by_token(g)
        self.log, self.strict = log, strict
        self.tokens = g.shape[-2]
        self.size = 1 << max(self.tokens - 1, 0).bit_length()

    @cached_property
    def totals(self) -> list[Array]:
        """Whole runs of 1, 2, 4, … tokens."""
        g = padded(self.g, -2, self.size, 0.0 if self.log else 1.0)
        found = [np.exp(g) if self.log else g]
        while g.shape[-2] > 1:
            total = found[-1][..., ::2, :] * found[-1][..., 1::2, :]
            if self.log:
                g = g[..., ::2, :] + g[..., 1::2, :]
                total = total if len(found) < 3 else np.exp(g)
            else:
                g = total
            found.append(total)
        return found

    @property
    def one(self) -> Array:
        """A factor of 1 for each token."""
        return np.ones_like(self.totals[0])

    def walk(self, *grown: tuple[Array, Array]) -> Iterator[tuple[int, list[tuple[Array, Array]]]]:
        """The m of each level but the last, with the right runs of each x and the left runs of each
        y of ``grown``. Each x is multiplied by ``up``, each y by ``down``, from level to level."""
        for x, _ in () if self.strict else grown:
            x *= self.totals[0]
        for n, total in enumerate(self.totals[:-1]):
            m = 1 << n
            met = [(halves(x, m)[1], halves(y, m)[0]) for x, y in grown]
            yield m, met
            for x, y in met:
                np.multiply(x, total[..., ::2, None, :], out=x)
                np.multiply(y, total[..., 1::2, None, :], out=y)

    def start(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Arrays of their own for `walk` to multiply, broadcast to one shape."""
        factor = self.totals[0]
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2], factor.shape[:-2])
        tile = x.shape[-2:] if self.strict else np.broadcast_shapes(x.shape[-2:], factor.shape[-2:])
        wide = np.broadcast_to(x, (*lead, *tile)), np.broadcast_to(y, (*lead, *y.shape[-2:]))
        return by_token(wide[0]), by_token(wide[1])

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """``up`` and ``down`` of the last level."""
        if self.log and self.g.shape[-1] == 1:
            up, down = self.ends_of(self.tokens)
            return up.swapaxes(-1, -2), down.swapaxes(-1, -2)
        if self.log:
            return np.exp(running(self.g, self.strict)), np.exp(running(self.g, True, back=True))
        up, down = self.start(self.one, self.one)
        for _ in self.walk((up, down)):
            pass
        return up[..., : self.tokens, :], down[..., : self.tokens, :]

    def ends_of(self, m: int) -> tuple[Array, Array]:
        """``up`` and ``down`` of runs of m tokens from one log a token [..., C / m, m]."""
        earlier, later = sides(m, self.strict, self.g.dtype)
        return self.summed(earlier.T, 0.0), self.summed(later, 0.0)

    def summed(self, chosen: Array, more: Any) -> Array:
        """From one log a token, exp(runs of m @ ``chosen`` + ``more``): [..., C / m, columns]."""
        m, columns = chosen.shape
        g = np.maximum(self.g[..., 0], LEAST)  # exp of it is 0 too, and 0 times it is not NaN
        g = padded(g, -1, -(-self.tokens // m) * m)
        sums = g.reshape(g.size // m, m) @ chosen
        sums += more
        return np.exp(sums, out=sums).reshape(*g.shape[:-1], g.shape[-1] // m, columns)

    @cached_property
    def pairs(self) -> Array:
        """The P of `between`: from sums in runs of up to 16 tokens, from ends where these meet."""
        if not self.log:
            return meet(self.one, self.one, self)[0]
        m = min(self.size, 16)
        p = self.summed(*between_sums(m, self.strict, self.g.dtype))
        p = p.reshape(*p.shape[:-1], m, m)
        if m == self.size:
            return p[..., 0, : self.tokens, : self.tokens]
        a = np.zeros((*p.shape[:-3], self.size, self.size), p.dtype)
        diagonal(a, m)[..., : p.shape[-3], :, :] = p
        while m < self.size:
            up, down = (padded(x, -2, self.size // m) for x in self.ends_of(m))
            np.multiply(up[..., 1::2, :, None], down[..., ::2, None, :], out=pair_block(a, m))
            m *= 2
        return a[..., : self.tokens, : self.tokens]


def halves(x: Array, m: int) -> tuple[Array, Array]:
    """Views of the left and right runs of m tokens of ``x`` [..., C, D], each [..., C / 2m, m,
    D]."""
    pairs = x.reshape(*x.shape[:-2], x.shape[-2] // (2 * m), 2, m, x.shape[-1])
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def by_token(x: Array) -> Array:
    """A copy of ``x`` [..., C, D] that keeps each token's channels, those of all chunks and heads,
    side by side: work on runs of tokens then goes over long rows."""
    return x.swapaxes(0, -2).copy().swapaxes(0, -2)


def padded(x: Array, axis: int, tokens: int, fill: float = 0.0) -> Array:
    """``x`` with ``fill`` behind its last token, up to ``tokens``."""
    if x.shape[axis] == tokens:
        return x
    shape = list(x.shape)
    shape[axis] = tokens - x.shape[axis]
    return np.concatenate([x, np.full(shape, fill, x.dtype)], axis)


@cache
def sides(m: int, strict: bool, dtype: Any) -> tuple[Array, Array]:
    """For a pair (t, s) of m tokens, those up to t (before t where strict) and those after s, as
    factors 0 and 1: [t, m] and [m, s]."""
    one = np.ones((m, m), dtype)
    return np.tril(one, -1 if strict else 0), np.tril(one, -1)


@cache
def between_sums(m: int, strict: bool, dtype: Any) -> tuple[Array, Array]:
    """What sums logs between tokens: factors 0 and 1 [m, m * m], and 0 or as good as -inf [m * m]
    for the pairs (t, s) that have none."""
    earlier, later = sides(m, strict, dtype)
    none = np.where(earlier > 0, 0, LEAST).astype(dtype)
    return (earlier.T[:, :, None] * later[:, None, :]).reshape(m, -1), none.reshape(-1)


def levels(g: Array, log: bool, strict: bool) -> Levels:
    """The runs of decays ``g`` [..., C, D]; strict leaves a token's own factor out of ``up``."""
    return Levels(g, log, strict)


def running(x: Array, exclusive: bool, back: bool = False) -> Array:
    """Sums over the tokens up to each (from each on, ``back``), itself left out where exclusive."""
    x = x[..., ::-1, :] if back else x
    if exclusive:
        x = np.concatenate([np.zeros_like(x[..., :1, :]), x[..., :-1, :]], -2)
    sums = np.cumsum(x, -2)
    return sums[..., ::-1, :] if back else sums


def prefix(d: Levels) -> Array:
    """The product from the chunk's start to each token [..., C, D] (without its own factor where
    strict)."""
    return d.ends[0]


def suffix(d: Levels) -> Array:
    """The product after each token to the chunk's end [..., C, D]."""
    return d.ends[1]


def whole(d: Levels) -> Array:
    """The product of the whole chunk [..., D]."""
    return np.exp(d.g.sum(-2)) if d.log else d.totals[-1][..., 0, :]


def diagonal(a: Array, m: int) -> Array:
    """View of the blocks of m tokens on the diagonal of ``a`` [..., C, C]: [..., C / m, m, m]."""
    blocks = a.reshape(*a.shape[:-2], a.shape[-2] // m, m, a.shape[-1] // m, m)
    view: Array = np.einsum("...isit->...ist", blocks)
    return view


def pair_block(a: Array, m: int) -> Array:
    """View of the blocks of ``a`` [..., C, C] where right runs of m tokens meet their left ones
    [..., C / 2m, m, m]."""
    return diagonal(a, 2 * m)[..., m:, :m]


def meet(x: Array, y: Array, d: Levels) -> tuple[Array, Array, Array]:
    """A[t, s] = sum_d x[t, d] y[s, d] P[t, s, d] for s <= t (s < t where strict), else 0: [..., C,
    C]; and on the way x · prefix and y · suffix [..., C, D]."""
    x, y = padded(x, -2, d.size), padded(y, -2, d.size)
    up, down = d.start(x, y)
    a = np.zeros((*up.shape[:-2], d.size, d.size), x.dtype)
    if not d.strict:
        np.einsum("...td,...td->...t", up, down, out=np.einsum("...tt->...t", a))
    for m, ((right, left),) in d.walk((up, down)):
        np.matmul(right, left.swapaxes(-1, -2), out=pair_block(a, m))
    return a[..., : d.tokens, : d.tokens], up[..., : d.tokens, :], down[..., : d.tokens, :]


def gram(x: Array, y: Array, d: Levels) -> Array:
    """The A of `meet`."""
    return meet(x, y, d)[0]


def between(d: Levels) -> Array:
    """P[t, s] of one scalar decay a token: [..., C, C], 0 where s > t (s >= t where strict)."""
    return d.pairs


def meet_pull(ct: Array, x: Array, y: Array, d: Levels) -> tuple[Array, Array, Array]:
    """Cotangents of x, y and of the decays from that of A in `meet`: each [..., C, D]."""
    a = padded(padded(ct, -1, d.size), -2, d.size)
    x, y = padded(x, -2, d.size), padded(y, -2, d.size)
    met, ends = d.start(x, y), d.start(d.one, d.one)
    shape = (*np.broadcast_shapes(met[0].shape[:-2], a.shape[:-2]), *met[0].shape[-2:])
    dx, dy = np.zeros(shape, x.dtype), np.zeros(shape, x.dtype)
    if not d.strict:
        diagonal = np.einsum("...tt->...t", a)[..., None]
        dx += diagonal * y
        dy += diagonal * x
    pulled = []
    for m, ((right, left), (up, down)) in d.walk(met, ends):
        block = pair_block(a, m)
        from_left = block @ left
        from_right = block.swapaxes(-1, -2) @ right
        pulled.append((halves(x, m)[1] * from_left, halves(y, m)[0] * from_right))
        np.add(here := halves(dx, m)[1], up * from_left, out=here)
        np.add(here := halves(dy, m)[0], down * from_right, out=here)
    dg = levels_pull(d, shape[:-2], shape[-1], pulled)
    return dx[..., : d.tokens, :], dy[..., : d.tokens, :], dg


def between_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays [..., C, 1] from that of `between`."""
    if not d.log:
        return meet_pull(ct, d.one, d.one, d)[2]
    earlier, later = sides(d.tokens, d.strict, d.g.dtype)
    pulled: Array = ((earlier.T @ (ct * d.pairs)) * later).sum(-1)
    return pulled[..., None]


def decayed(a: Array, y: Array, d: Levels) -> Array:
    """O[t, d] = sum_s a[t, s] y[s, d] P[t, s, d] over s <= t (s < t where strict): [..., C, D]."""
    a, y = padded(padded(a, -1, d.size), -2, d.size), padded(y, -2, d.size)
    up, down = d.start(d.one, y)
    out = np.zeros((*np.broadcast_shapes(a.shape[:-2], down.shape[:-2]), *y.shape[-2:]), y.dtype)
    if not d.strict:
        out += np.einsum("...tt->...t", a)[..., None] * y
    for m, ((right, left),) in d.walk((up, down)):
        met = right * (pair_block(a, m) @ left)
        np.add(here := halves(out, m)[1], met, out=here)
    return out[..., : d.tokens, :]


def decayed_pull(ct: Array, a: Array, y: Array, d: Levels) -> tuple[Array, Array, Array]:
    """Cotangents of a, y and of the decays from that of `decayed`."""
    _, dy, dg = meet_pull(a, ct, y, d)
    return gram(ct, y, d), dy, dg


def prefix_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays from that of `prefix`."""
    if d.log:
        return running(ct * prefix(d), d.strict, back=True)
    return levels_pull(d, ct.shape[:-2], ct.shape[-1], last_up=ct)


def suffix_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays from that of `suffix`."""
    if d.log:
        return running(ct * suffix(d), True)
    return levels_pull(d, ct.shape[:-2], ct.shape[-1], last_down=ct)


def whole_pull(ct: Array, d: Levels) -> Array:
    """The cotangent of the decays from that of `whole`."""
    if d.log:
        return np.repeat((ct * whole(d))[..., None, :], d.tokens, -2)
    return levels_pull(d, ct.shape[:-1], ct.shape[-1], last_whole=ct)


def levels_pull(
    d: Levels,
    lead: tuple[int, ...],
    channels: int,
    pulled: Sequence[tuple[Array, Array]] = (),
    last_up: Array | None = None,
    last_down: Array | None = None,
    last_whole: Array | None = None,
) -> Array:
    """Reverse mode through `levels`: ``pulled`` cotangents of the right runs' ``up`` and left runs'
    ``down`` of each level, and those of the last level, to that of the decays [*lead, C, channels].
    Sums of products only, as accurate as its terms."""
    factor = d.totals[0]
    lead = np.broadcast_shapes(lead, factor.shape[:-2])
    channels = max(channels, factor.shape[-1])
    dup = np.zeros((*lead, d.size, channels), factor.dtype)
    ddown = np.zeros_like(dup)
    dwhole = np.zeros((*lead, 1, channels), factor.dtype)
    if last_up is not None:
        dup[..., : d.tokens, :] += last_up
    if last_down is not None:
        ddown[..., : d.tokens, :] += last_down
    if last_whole is not None:
        dwhole[..., 0, :] += last_whole
    dtotal = dwhole * d.totals[-1] if d.log else dwhole
    ends = d.start(d.one, d.one)
    runs = [(up.copy("K"), down.copy("K")) for _, ((up, down),) in d.walk(ends)]
    m = d.size // 2
    for level in reversed(range(len(runs))):
        left, right = halves(d.totals[level], 1)
        ups, downs = halves(dup, m)[1], halves(ddown, m)[0]
        dleft = (ups * runs[level][0]).sum(-2)
        dright = (downs * runs[level][1]).sum(-2)
        ups *= left
        downs *= right
        if pulled:
            ups += pulled[level][0]
            downs += pulled[level][1]
        pair = np.empty((*dtotal.shape[:-2], dtotal.shape[-2], 2, channels), factor.dtype)
        if d.log:
            pair[..., 0, :] = dtotal + dleft * left[..., 0, :]
            pair[..., 1, :] = dtotal + dright * right[..., 0, :]
        else:
            pair[..., 0, :] = dtotal * right[..., 0, :] + dleft
            pair[..., 1, :] = dtotal * left[..., 0, :] + dright
        dtotal = pair.reshape(*pair.shape[:-3], 2 * pair.shape[-3], channels)
        m //= 2
    if not d.strict:
        dtotal = dtotal + (dup * factor if d.log else dup)
    return dtotal[..., : d.tokens, :]


def scan(a: Array, b: Array, start: Array, axis: int) -> Array:
    """h[t] = a[t] h[t-1] + b[t] along ``axis``, from h = ``start`` (without it) before the first;
    all broadcast."""
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    h = np.empty((len(b), *np.broadcast_shapes(a.shape[1:], b.shape[1:], start.shape)), b.dtype)
    for t in range(len(h)):
        np.multiply(a[t], h[t - 1] if t else start, out=h[t, ...])
        h[t] += b[t]
    return np.moveaxis(h, 0, axis)


def scan_back(a: Array, b: Array, axis: int) -> Array:
    """h[t] = a[t+1] h[t+1] + b[t] along ``axis``, from h = 0 behind the end: the adjoint of
    `scan`."""
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    h = np.empty((len(b), *np.broadcast_shapes(a.shape[1:], b.shape[1:])), b.dtype)
    h[-1] = b[-1]
    for t in reversed(range(len(h) - 1)):
        np.multiply(a[t + 1], h[t + 1], out=h[t, ...])
        h[t] += b[t]
    return np.moveaxis(h, 0, axis)


def tropical(op: str, f: Array, i: Array, axis: int) -> Array:
    """m[t] = op(m[t-1] + f[t], i[t]) along ``axis``, from m = i at the first."""
    join = {"max": np.maximum, "min": np.minimum, "logaddexp": np.logaddexp}[op]
    f, i = np.moveaxis(f, axis, 0), np.moveaxis(i, axis, 0)
    m = np.array(np.broadcast_to(i, np.broadcast_shapes(f.shape, i.shape)))
    for t in range(1, len(m)):
        m[t] = join(m[t - 1] + f[t], m[t])
    return np.moveaxis(m, 0, axis)
