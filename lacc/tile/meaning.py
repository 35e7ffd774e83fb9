"""Arrays of tiles in, an array out: what each tile op of `lacc.tile.ops` means, in NumPy.

A meaning takes the instruction's ``value``, a `Frame` of the axes at hand, and arrays whose
trailing axes are those of the operands (any leading axes broadcast).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lacc.tile import dense, kernels, layout, scans, triangular
from lacc.tile.program import Axes

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """Axes of the result and of the operands, and the number of entries of every axis."""

    out: Axes
    ins: tuple[Axes, ...]
    sizes: dict[str, int]


def place(array: Any, have: Axes, want: Axes) -> Any:
    """``array`` with its trailing axes ``have`` laid out as ``want``: moved, and of length one
    where it lacks one."""
    order = [a for a in want if a in have]
    lead = array.ndim - len(have)
    array = array.transpose(*range(lead), *(lead + have.index(a) for a in order))
    index = (Ellipsis, *(slice(None) if a in have else None for a in want))
    return array[index]


def contract(value: Any, f: Frame, a: Any, b: Any) -> Any:
    letters = {axis: chr(97 + n) for n, axis in enumerate(dict.fromkeys((*f.ins[0], *f.ins[1])))}
    sub = ["..." + "".join(letters[x] for x in axes) for axes in (*f.ins, f.out)]
    return np.einsum(f"{sub[0]},{sub[1]}->{sub[2]}", a, b, optimize=True)


def reduce(fn: Fn) -> Fn:
    def run(over: Axes, f: Frame, a: Any) -> Any:
        (have,) = f.ins
        return fn(a, axis=tuple(n - len(have) for n, x in enumerate(have) if x in over))

    return run


def expand(more: Axes, f: Frame, a: Any) -> Any:
    a = place(a, f.ins[0], f.out)
    lead = a.shape[: a.ndim - len(f.out)]
    return np.broadcast_to(a, (*lead, *(f.sizes[x] for x in f.out)))


def rename(names: Any, f: Frame, a: Any) -> Any:
    new = dict(names)
    return place(a, tuple(new.get(x, x) for x in f.ins[0]), f.out)


def mask(strict: bool, f: Frame, a: Any) -> Any:
    a = place(a, f.ins[0], f.out)
    return np.tril(a, -1 if strict else 0)


def timed(a: Any, have: Axes) -> Any:
    """A tile over t and at most one more axis as [..., C, D]."""
    assert have[0] == "t" and len(have) <= 2
    return a if len(have) == 2 else a[..., None]


def channelled(a: Any, axes: Axes) -> Any:
    """One of several results, as `pick` takes it: a tile over t alone has one channel."""
    return a[..., None] if axes == ("t",) else a


def untimed(a: Any, out: Axes) -> Any:
    return a[..., 0] if out == ("t",) else a


def levels(value: Any, f: Frame, g: Any) -> Any:
    log, strict = value
    return kernels.levels(timed(g, f.ins[0]), log, strict)


def runs(fn: Fn) -> Fn:
    """A kernel over tiles and the decays behind them: scalar decays have one channel."""
    every = opaque(fn)

    def run(value: Any, f: Frame, *args: Any) -> Any:
        result = every(value, f, *args)
        return result if "s" in f.out else untimed(result, f.out)

    return run


def whole(value: Any, f: Frame, d: Any) -> Any:
    total = kernels.whole(d)
    return total if f.out else total[..., 0]


def whole_pull(value: Any, f: Frame, ct: Any, d: Any) -> Any:
    return untimed(kernels.whole_pull(ct if f.ins[0] else ct[..., None], d), f.out)


def matrix(value: Any, f: Frame, d: Any) -> Any:
    return kernels.between(d)


def matrix_pull(value: Any, f: Frame, ct: Any, d: Any) -> Any:
    return kernels.between_pull(ct, d)[..., 0]


def solve(transposed: bool, f: Frame, a: Any, r: Any) -> Any:
    if len(f.ins[0]) == 2:
        return untimed(triangular.solve(a, timed(r, f.ins[1]), transposed), f.out)
    r = r if len(f.out) == 3 else r[..., None]
    x = triangular.solve_ranks(a, r, transposed)
    return x if len(f.out) == 3 else x[..., 0]


def solve_parts(value: tuple[int, bool], f: Frame, *args: Any) -> list[Any]:
    n, transposed = value
    systems = np.stack(np.broadcast_arrays(*args[: n * n]), -3)
    systems = np.tril(systems.reshape(*systems.shape[:-3], n, n, *systems.shape[-2:]), -1)
    sides = (timed(r, have) for r, have in zip(args[n * n :], f.ins[n * n :]))
    x = triangular.solve_ranks(systems, np.stack(np.broadcast_arrays(*sides), -3), transposed)
    return [x[..., r, :, :] for r in range(n)]


def inverse(value: Any, f: Frame, a: Any) -> Any:
    return triangular.inverse(a)


def dense_solve(value: tuple[str, str], f: Frame, a: Any, b: Any) -> Any:
    row, column = value
    rest = tuple(x for x in f.out if x == "t" or (x in f.ins[0] and x != column))
    each = tuple(x for x in f.out if x not in (*rest, column))
    a = place(a, f.ins[0], (*rest, row, column))
    b = place(b, f.ins[1], (*rest, row, *each))
    x = dense.dense_solve(a, b if each else b[..., None])
    return place(x if each else x[..., 0], (*rest, column, *each), f.out)


def along_time(fn: Fn) -> Fn:
    """A kernel of tiles over time, and of one without it that starts it."""

    def run(value: Any, f: Frame, *args: Any) -> Any:
        rest = tuple(x for x in f.out if x != "t")
        wide = [place(a, x, f.out if "t" in x else rest) for a, x in zip(args, f.ins)]
        return fn(*wide, axis=f.out.index("t") - len(f.out))

    return run


def chain(back: bool) -> Fn:
    """A kernel over matrices and entries of the states of each token."""
    kernel = scans.chain_back if back else scans.chain

    def run(value: Any, f: Frame, a: Any, b: Any) -> Any:
        row, column = value
        rest = tuple(x for x in f.out if x not in (row, "t"))
        a = place(a, f.ins[0], ("t", row, column, *rest))
        b = place(b, f.ins[1], ("t", row, *rest))
        lead = max(a.ndim - 1, b.ndim)
        a, b = a[(None,) * (lead + 1 - a.ndim)], b[(None,) * (lead - b.ndim)]
        return place(kernel(a, b, len(rest)), ("t", row, *rest), f.out)

    return run


def chain_parts(value: tuple[int, bool], f: Frame, *args: Any) -> list[Any]:
    n, back = value
    rest = tuple(x for x in f.out if x != "t")
    wide = (place(a, have, ("t", *rest)) for a, have in zip(args, f.ins))
    parts = np.stack(np.broadcast_arrays(*wide), -1 - len(rest))
    at = parts.ndim - 1 - len(rest)
    a, b = np.split(parts, [n * n], at)
    a = a.reshape(*a.shape[:at], n, n, *a.shape[at + 1 :])
    h = (scans.chain_back if back else scans.chain)(a, b, len(rest))
    return [
        channelled(place(np.take(h, r, at), ("t", *rest), have), have)
        for r, have in enumerate(f.ins[-n:])
    ]


def stack(axis: str, f: Frame, *parts: Any) -> Any:
    rest = tuple(x for x in f.out if x != axis)
    placed = (place(part, have, rest) for part, have in zip(parts, f.ins))
    return layout.stacked(f.out.index(axis) - len(f.out), *placed)


def entry(value: Any, f: Frame, a: Any) -> Any:
    axis, n = value
    return np.take(a, n, axis=f.ins[0].index(axis) - len(f.ins[0]))


def tropical(op: str, f: Frame, a: Any, b: Any) -> Any:
    return along_time(partial(kernels.tropical, op))(None, f, a, b)


def running(value: Any, f: Frame, a: Any) -> Any:
    return np.cumsum(a, -len(f.out))


def before(value: Any, f: Frame, a: Any, start: Any) -> Any:
    rest = tuple(x for x in f.out if x != "t")
    axis = f.out.index("t") - len(f.out)
    return layout.before(place(a, f.ins[0], f.out), place(start, f.ins[1], rest), axis)


def row(last: bool, f: Frame, a: Any) -> Any:
    rest = tuple(x for x in f.ins[0] if x != "t")
    return place(np.take(a, -1 if last else 0, axis=-len(f.ins[0])), rest, f.out)


def place_row(last: bool, f: Frame, a: Any) -> Any:
    return layout.place_row(a, len(f.out), f.sizes["t"], last)


def shift(back: bool, f: Frame, a: Any) -> Any:
    return layout.shift(place(a, f.ins[0], f.out), -len(f.out), back)


def take(value: Any, f: Frame, a: Any) -> Any:
    old, new, start, step = value
    axis = f.ins[0].index(old) - len(f.ins[0])
    return layout.take(a, axis, start.evaluate(f.sizes), step, f.sizes[new])


def put(value: Any, f: Frame, a: Any) -> Any:
    old, new, start, step = value
    axis = f.ins[0].index(new) - len(f.ins[0])
    want = tuple(old if x == new else x for x in f.ins[0])
    return place(layout.put(a, axis, start.evaluate(f.sizes), step, f.sizes[old]), want, f.out)


def fold(value: Any, f: Frame, a: Any) -> Any:
    rows, columns, flat = value
    rest = tuple(x for x in f.ins[0] if x not in (rows, columns))
    a = place(a, f.ins[0], (*rest, rows, columns))
    return place(a.reshape(*a.shape[:-2], -1), (*rest, flat), f.out)


def unfold(value: Any, f: Frame, a: Any) -> Any:
    rows, columns, flat = value
    rest = tuple(x for x in f.ins[0] if x != flat)
    a = place(a, f.ins[0], (*rest, flat))
    a = a.reshape(*a.shape[:-1], f.sizes[rows], f.sizes[columns])
    return place(a, (*rest, rows, columns), f.out)


def concat(value: Any, f: Frame, *parts: Any) -> Any:
    whole, axes = value
    aligned = []
    for part, have, axis in zip(parts, f.ins, axes):
        want = tuple(axis if x == whole else x for x in f.out)
        aligned.append(expand((), Frame(want, (have,), f.sizes), part))
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - len(f.out)] for a in aligned))
    aligned = [np.broadcast_to(a, (*lead, *a.shape[a.ndim - len(f.out) :])) for a in aligned]
    return np.concatenate(aligned, axis=f.out.index(whole) - len(f.out))


def roll(value: Any, f: Frame, a: Any) -> Any:
    axis, n = value
    return np.roll(a, n, axis=f.out.index(axis) - len(f.out))


def age(axis: str, f: Frame, a: Any) -> Any:
    return np.arange(f.sizes[axis])[::-1]


def identity_matrix(value: Any, f: Frame) -> Any:
    return np.eye(f.sizes[f.out[0]])


def opaque(fn: Fn) -> Fn:
    """A kernel with several results, kept together until they are picked."""

    def run(value: Any, f: Frame, *args: Any) -> Any:
        return fn(
            *(
                timed(a, x) if isinstance(a, np.ndarray) and "s" not in x else a
                for a, x in zip(args, f.ins)
            )
        )

    return run


def pick(n: int, f: Frame, every: Any, like: Any) -> Any:
    return every[n] if "s" in f.out else untimed(every[n], f.out)
