"""The tile ops beside the elementwise rows of the op table: type rule, meaning in NumPy, gradient rule, flops; a row each.

A meaning takes the instruction's ``value``, the axes of operands and result, and arrays whose trailing axes are those (any
leading axes broadcast). A gradient rule builds tiles: ``fn(f, ct, y, value, *ins) -> cotangents``. ``levels`` is opaque: a
`Levels` of its decays, and its cotangent is by convention that of the decays themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.spec.shapes import Size
from lacc.tile import kernels
from lacc.tile.program import Axes

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """Axes of the result and of the operands, and the number of entries of every axis."""

    out: Axes
    ins: tuple[Axes, ...]
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class TileOp:
    """A row; ``flops`` per element of the result (for products: per multiplied pair). ``grad`` None: never differentiated."""

    name: str
    axes: Fn
    numpy: Fn
    grad: Fn | None
    flops: float
    doc: str


def place(array: Any, have: Axes, want: Axes) -> Any:
    """``array`` with its trailing axes ``have`` laid out as ``want``: moved, and of length one where it lacks one."""
    order = [a for a in want if a in have]
    lead = array.ndim - len(have)
    array = array.transpose(*range(lead), *(lead + have.index(a) for a in order))
    index = (Ellipsis, *(slice(None) if a in have else None for a in want))
    return array[index]


def _contract(value: Any, f: Frame, a: Any, b: Any) -> Any:
    letters = {axis: chr(97 + n) for n, axis in enumerate(dict.fromkeys((*f.ins[0], *f.ins[1])))}
    sub = ["..." + "".join(letters[x] for x in axes) for axes in (*f.ins, f.out)]
    return np.einsum(f"{sub[0]},{sub[1]}->{sub[2]}", a, b, optimize=True)


def _reduce(fn: Fn) -> Fn:
    def run(over: Axes, f: Frame, a: Any) -> Any:
        (have,) = f.ins
        return fn(a, axis=tuple(n - len(have) for n, x in enumerate(have) if x in over))

    return run


def _expand(more: Axes, f: Frame, a: Any) -> Any:
    a = place(a, f.ins[0], f.out)
    lead = a.shape[: a.ndim - len(f.out)]
    return np.broadcast_to(a, (*lead, *(f.sizes[x] for x in f.out)))


def _rename(names: Any, f: Frame, a: Any) -> Any:
    new = dict(names)
    return place(a, tuple(new.get(x, x) for x in f.ins[0]), f.out)


def _mask(strict: bool, f: Frame, a: Any) -> Any:
    a = place(a, f.ins[0], f.out)
    return np.tril(a, -1 if strict else 0)


def timed(a: Any, have: Axes) -> Any:
    """A tile over t and at most one more axis as [..., C, D]."""
    assert have[0] == "t" and len(have) <= 2
    return a if len(have) == 2 else a[..., None]


def _untimed(a: Any, out: Axes) -> Any:
    return a if "t" not in out or len(out) == 2 else a[..., 0]


def _levels(value: Any, f: Frame, g: Any) -> Any:
    log, strict = value
    return kernels.levels(timed(g, f.ins[0]), log, strict)


def _runs(fn: Fn) -> Fn:
    def run(value: Any, f: Frame, *args: Any) -> Any:
        result = fn(*(timed(a, x) if isinstance(a, np.ndarray) and "s" not in x else a
                      for a, x in zip(args, f.ins)))
        return result if "s" in f.out else _untimed(result, f.out)

    return run


def _whole(value: Any, f: Frame, d: Any) -> Any:
    total = kernels.whole(d)
    return total if f.out else total[..., 0]


def _whole_pull(value: Any, f: Frame, ct: Any, d: Any) -> Any:
    return _untimed(kernels.whole_pull(ct if f.ins[0] else ct[..., None], d), f.out)


def _matrix(value: Any, f: Frame, d: Any) -> Any:
    return kernels.between(d)


def _matrix_pull(value: Any, f: Frame, ct: Any, d: Any) -> Any:
    return kernels.between_pull(ct, d)[..., 0]


def _solve(transposed: bool, f: Frame, a: Any, r: Any) -> Any:
    return _untimed(kernels.solve(a, timed(r, f.ins[1]), transposed), f.out)


def _along_time(fn: Fn) -> Fn:
    def run(value: Any, f: Frame, a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(place(a, f.ins[0], f.out), place(b, f.ins[1], f.out))
        axis = -len(f.out)
        return np.moveaxis(fn(np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)), 0, axis)

    return run


def _row(last: bool, f: Frame, a: Any) -> Any:
    return np.take(a, -1 if last else 0, axis=-len(f.ins[0]))


def _place_row(last: bool, f: Frame, a: Any) -> Any:
    lead = a.shape[: a.ndim - len(f.ins[0])]
    out = np.zeros((*lead, *(f.sizes[x] for x in f.out)), a.dtype)
    np.moveaxis(out, -len(f.out), 0)[-1 if last else 0] = a
    return out


def _shift(back: bool, f: Frame, a: Any) -> Any:
    out = np.zeros_like(a)
    new, old = np.moveaxis(out, -len(f.out), 0), np.moveaxis(a, -len(f.out), 0)
    if back:
        new[:-1] = old[1:]
    else:
        new[1:] = old[:-1]
    return out


def _take(value: Any, f: Frame, a: Any) -> Any:
    old, new, start, step = value
    first = start.evaluate(f.sizes)
    index = [slice(None)] * a.ndim
    index[f.ins[0].index(old) - len(f.ins[0])] = slice(first, first + step * f.sizes[new], step)
    return a[tuple(index)]


def _put(value: Any, f: Frame, a: Any) -> Any:
    lead = a.shape[: a.ndim - len(f.ins[0])]
    out = np.zeros((*lead, *(f.sizes[x] for x in f.out)), a.dtype)
    _take(value, Frame(f.ins[0], (f.out,), f.sizes), out)[...] = a
    return out


def _fold(value: Any, f: Frame, a: Any) -> Any:
    rows, columns, flat = value
    rest = tuple(x for x in f.ins[0] if x not in (rows, columns))
    a = place(a, f.ins[0], (*rest, rows, columns))
    return place(a.reshape(*a.shape[:-2], -1), (*rest, flat), f.out)


def _unfold(value: Any, f: Frame, a: Any) -> Any:
    rows, columns, flat = value
    rest = tuple(x for x in f.ins[0] if x != flat)
    a = place(a, f.ins[0], (*rest, flat))
    a = a.reshape(*a.shape[:-1], f.sizes[rows], f.sizes[columns])
    return place(a, (*rest, rows, columns), f.out)


def _concat(value: Any, f: Frame, *parts: Any) -> Any:
    whole, axes = value
    aligned = []
    for part, have, axis in zip(parts, f.ins, axes):
        want = tuple(axis if x == whole else x for x in f.out)
        aligned.append(_expand((), Frame(want, (have,), f.sizes), part))
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - len(f.out)] for a in aligned))
    aligned = [np.broadcast_to(a, (*lead, *a.shape[a.ndim - len(f.out) :])) for a in aligned]
    return np.concatenate(aligned, axis=f.out.index(whole) - len(f.out))


def _concat_axes(value: Any, *parts: Axes) -> Axes:
    whole, axes = value
    return tuple(dict.fromkeys(whole if x in axes else x for part in parts for x in part))


def _concat_grad(f: Any, ct: int, y: int, value: Any, *parts: int) -> tuple[int, ...]:
    whole, axes = value
    start, pulled = Size.of(0), []
    for axis in axes:
        pulled.append(f.op("take", (ct,), (whole, axis, start, 1)))
        start = start + f.sizes[axis]
    return tuple(pulled)


def _roll(value: Any, f: Frame, a: Any) -> Any:
    axis, n = value
    return np.roll(a, n, axis=f.out.index(axis) - len(f.out))


def _identity_matrix(value: Any, f: Frame) -> Any:
    return np.eye(f.sizes[f.out[0]])


def _drop(over: Axes, *ins: Axes) -> Axes:
    return tuple(dict.fromkeys(x for axes in ins for x in axes if x not in over))


def _ties(f: Any, ct: int, y: int, over: Axes, x: int) -> tuple[int]:
    hit = f.where(f.eq(x, f.expand(y, f.axes(x))), 1.0, 0.0)
    return (f.pull(f.expand(f.div(ct, f.sum(hit, over)), f.axes(x)), hit),)


def _lower_pairs(f: Any, ct: int, x: int) -> int:
    """The strict lower triangle of ct xᵀ over their common channels."""
    over = tuple(a for a in f.axes(ct) if a != "t")
    return f.op("mask", (f.contract(ct, f.rename(x, {"t": "s"}), over),), True)


def _solve_grad(f: Any, ct: int, y: int, transposed: bool, a: int, r: int) -> tuple[int, int]:
    dr = f.op("solve", (a, ct), not transposed)
    da = _lower_pairs(f, y, dr) if transposed else _lower_pairs(f, dr, y)
    return f.neg(da), dr


def _scan_grad(f: Any, ct: int, y: int, value: Any, a: int, b: int) -> tuple[int, int]:
    back = f.op("scan_back", (a, ct))
    return f.pull(back, f.op("shift", (y,), False)), back


def _pulled(op: str) -> Fn:
    """The rule of an op whose cotangents come from one kernel, a pick for each operand."""

    def rule(f: Any, ct: int, y: int, v: Any, *ins: int) -> tuple[int, ...]:
        every = f.op(op, (ct, *ins))
        return tuple(f.op("pick", (every, i), n) for n, i in enumerate(ins))

    return rule


def _opaque(fn: Fn) -> Fn:
    """A kernel with several results, kept together until they are picked."""

    def run(value: Any, f: Frame, *args: Any) -> Any:
        return fn(*(timed(a, x) if isinstance(a, np.ndarray) and "s" not in x else a for a, x in zip(args, f.ins)))

    return run


def _pick(n: int, f: Frame, every: Any, like: Any) -> Any:
    return every[n] if "s" in f.out else _untimed(every[n], f.out)


def _inverse(names: Any) -> dict[str, str]:
    return {new: old for old, new in names}


# fmt: off
_ROWS = (
    TileOp("load", lambda v: (), lambda v, f: None, None, 0, "what comes from outside; axes as declared"),
    TileOp("const", lambda v: (), lambda v, f: np.float64(v), None, 0, "a number"),
    TileOp("size", lambda v: (), lambda v, f: np.float64(v.evaluate(f.sizes)), None, 0, "a size as a number"),
    TileOp("eye", lambda v: v, _identity_matrix, None, 0, "1 where two axes agree"),
    TileOp("rename", lambda n, a: tuple(dict(n).get(x, x) for x in a), _rename,
           lambda f, ct, y, n, a: (f.rename(ct, _inverse(n)),), 0, "axes under other names"),
    TileOp("expand", lambda m, a: (*a, *m), _expand,
           lambda f, ct, y, m, a: (f.sum(ct, m),), 0, "broadcast over more axes"),
    TileOp("contract", lambda o, a, b: _drop(o, a, b), _contract,
           lambda f, ct, y, o, a, b: (f.contract(ct, b, _drop(f.axes(a), f.axes(ct), f.axes(b))),
                                      f.contract(ct, a, _drop(f.axes(b), f.axes(ct), f.axes(a)))),
           2, "sum of products over axes"),
    TileOp("sum", _drop, _reduce(np.sum),
           lambda f, ct, y, o, a: (f.expand(ct, f.axes(a)),), 1, "sum over axes"),
    TileOp("largest", _drop, _reduce(np.max), _ties, 1, "maximum over axes; ties share"),
    TileOp("smallest", _drop, _reduce(np.min), _ties, 1, "minimum over axes; ties share"),
    TileOp("mask", lambda s, a: a, _mask,
           lambda f, ct, y, s, a: (f.op("mask", (ct,), s),), 0, "the pairs t >= s (t > s where strict), else 0"),
    TileOp("within", lambda v, a: a, lambda v, f, a: a,
           lambda f, ct, y, v, a: (ct,), 0, "a number in the padding of axes, on targets whose tiles are padded"),
    TileOp("row", lambda last, a: tuple(x for x in a if x != "t"), _row,
           lambda f, ct, y, last, a: (f.op("place_row", (ct,), last),), 0, "the last or the first token"),
    TileOp("place_row", lambda last, a: ("t", *a), _place_row, None, 0, "a tile of one token, the others 0"),
    TileOp("shift", lambda back, a: a, _shift,
           lambda f, ct, y, back, a: (f.op("shift", (ct,), not back),), 0, "the token before (or behind), 0 at the edge"),
    TileOp("scan", lambda v, a, b: _drop((), b, a), _along_time(kernels.scan), _scan_grad, 2,
           "h[t] = a[t] h[t-1] + b[t] from 0"),
    TileOp("scan_back", lambda v, a, b: _drop((), b, a), _along_time(kernels.scan_back), None, 2,
           "the adjoint of scan"),
    TileOp("solve", lambda v, a, r: r, _solve, _solve_grad, 2, "(I + strict lower)⁻¹ r, or its transpose's"),
    TileOp("levels", lambda v, g: g, _levels, lambda f, ct, y, v, g: (ct,), 12, "products of decays over runs"),
    TileOp("prefix", lambda v, d: d, _runs(kernels.prefix),
           lambda f, ct, y, v, d: (f.op("prefix_pull", (ct, d)),), 0, "decay from the chunk's start to t"),
    TileOp("suffix", lambda v, d: d, _runs(kernels.suffix),
           lambda f, ct, y, v, d: (f.op("suffix_pull", (ct, d)),), 0, "decay after t to the chunk's end"),
    TileOp("whole", lambda v, d: tuple(x for x in d if x != "t"), _whole,
           lambda f, ct, y, v, d: (f.op("whole_pull", (ct, d)),), 0, "decay of the whole chunk"),
    TileOp("matrix", lambda v, d: ("t", "s"), _matrix,
           lambda f, ct, y, v, d: (f.op("matrix_pull", (ct, d)),), 2, "decay from s to t, 0 above the diagonal"),
    TileOp("gram", lambda v, x, y, d: ("t", "s"), _runs(kernels.gram), _pulled("meet_pull"), 3,
           "decayed products of pairs"),
    TileOp("meet", lambda v, x, y, d: ("t", "s"), _opaque(kernels.meet), None, 3,
           "gram, x times prefix and y times suffix, to be picked"),
    TileOp("meet_pull", lambda v, c, x, y, d: ("t", "s"), _opaque(kernels.meet_pull), None, 9,
           "cotangents of the operands of gram, to be picked"),
    TileOp("decayed", lambda v, a, y, d: _drop((), d, y), _runs(kernels.decayed), _pulled("decayed_pull"), 3,
           "pairs times what was written, decayed per channel"),
    TileOp("decayed_pull", lambda v, c, a, y, d: ("t", "s"), _opaque(kernels.decayed_pull), None, 9,
           "cotangents of the operands of decayed, to be picked"),
    TileOp("pick", lambda n, every, like: like, _pick, None, 0, "one of several results, with the axes of another value"),
    TileOp("prefix_pull", lambda v, c, d: d, _runs(kernels.prefix_pull), None, 4, "cotangent of decays in prefix"),
    TileOp("suffix_pull", lambda v, c, d: d, _runs(kernels.suffix_pull), None, 4, "cotangent of decays in suffix"),
    TileOp("whole_pull", lambda v, c, d: d, _whole_pull, None, 4, "cotangent of decays in whole"),
    TileOp("matrix_pull", lambda v, c, d: d, _matrix_pull, None, 4, "cotangent of decays in matrix"),
    TileOp("take", lambda v, a: tuple(v[1] if x == v[0] else x for x in a), _take,
           lambda f, ct, y, v, a: (f.op("put", (ct,), v),), 0, "entries start, start + step, … of an axis"),
    TileOp("put", lambda v, a: tuple(v[0] if x == v[1] else x for x in a), _put,
           lambda f, ct, y, v, a: (f.op("take", (ct,), v),), 0, "the transpose of take: the other entries are 0"),
    TileOp("concat", _concat_axes, _concat, _concat_grad, 0, "parts of an axis one after another"),
    TileOp("roll", lambda v, a: a, _roll,
           lambda f, ct, y, v, a: (f.op("roll", (ct,), (v[0], -v[1])),), 0, "a circular shift along an axis"),
    TileOp("default", lambda v, a, b: _drop((), a, b), lambda v, f, a, b: place(b if a is None else a, f.ins[a is None], f.out),
           lambda f, ct, y, v, a, b: (ct, f.op("omitted", (ct,), v)), 0, "an argument, or its default where omitted"),
    TileOp("omitted", lambda v, a: a, lambda v, f, a: a, None, 0, "a cotangent where the argument was omitted, else 0"),
    TileOp("fold", lambda v, a: (*(x for x in a if x not in v[:2]), v[2]), _fold,
           lambda f, ct, y, v, a: (f.op("unfold", (ct,), v),), 0, "two axes as one, row-major"),
    TileOp("unfold", lambda v, a: (*(x for x in a if x != v[2]), *v[:2]), _unfold,
           lambda f, ct, y, v, a: (f.op("fold", (ct,), v),), 0, "one axis as two"),
)
# fmt: on

TILE_OPS: dict[str, TileOp] = {row.name: row for row in _ROWS}
