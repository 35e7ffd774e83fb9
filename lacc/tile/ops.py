"""The tile ops beside the elementwise rows of the op table: type, meaning, gradient, flops.

A gradient rule builds tiles: ``fn(f, ct, y, value, *ins) -> cotangents``. ``levels`` is opaque: a
`Levels` of its decays, and its cotangent is by convention that of the decays themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.spec.shapes import Size
from lacc.tile import kernels, meaning
from lacc.tile.program import Axes

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class TileOp:
    """A row; ``flops`` per point of the axes that operands and result have together. ``grad`` None:
    never differentiated. ``view``: moves nothing."""

    name: str
    axes: Fn
    numpy: Fn
    grad: Fn | None
    flops: float
    doc: str
    view: bool = False


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


def _drop(over: Axes, *ins: Axes) -> Axes:
    return tuple(dict.fromkeys(x for axes in ins for x in axes if x not in over))


def _contract_grad(f: Any, ct: int, y: int, over: Axes, a: int, b: int) -> tuple[int, int]:
    return (
        f.contract(ct, b, _drop(f.axes(a), f.axes(ct), f.axes(b))),
        f.contract(ct, a, _drop(f.axes(b), f.axes(ct), f.axes(a))),
    )


def _ties(f: Any, ct: int, y: int, over: Axes, x: int) -> tuple[int]:
    hit = f.where(f.eq(x, f.expand(y, f.axes(x))), 1.0, 0.0)
    return (f.pull(f.expand(f.div(ct, f.sum(hit, over)), f.axes(x)), hit),)


def _lower_pairs(f: Any, ct: int, x: int) -> int:
    """The strict lower triangle of ct xᵀ over their common channels, for every pair of ranks."""
    rows = [a for a in f.axes(ct) if a[0] == "#"]
    over = tuple(a for a in f.axes(ct) if a != "t" and a not in rows)
    columns = f.rename(x, {"t": "s", **{row: f"{row}'" for row in rows}})
    pairs: int = f.op("mask", (f.contract(ct, columns, over),), True)
    return pairs


def _solve_grad(f: Any, ct: int, y: int, transposed: bool, a: int, r: int) -> tuple[int, int]:
    dr = f.op("solve", (a, ct), not transposed)
    da = _lower_pairs(f, y, dr) if transposed else _lower_pairs(f, dr, y)
    return f.neg(da), dr


def _dense_solve_axes(value: tuple[str, str], a: Axes, b: Axes) -> Axes:
    row, column = value
    rest = tuple(x for x in a if x not in value)
    return _drop((), rest, tuple(column if x == row else x for x in b))


def _dense_solve_grad(
    f: Any, ct: int, y: int, value: tuple[str, str], a: int, b: int
) -> tuple[int, int]:
    row, column = value
    db = f.op("dense_solve", (a, ct), (column, row))
    each = tuple(x for x in f.axes(db) if x not in f.axes(a))
    return f.neg(f.contract(db, y, [x for x in each if x != "t"])), db


def _scan_grad(f: Any, ct: int, y: int, value: Any, a: int, b: int, start: int) -> tuple[int, ...]:
    back = f.op("scan_back", (a, ct))
    first = f.op("row", (f.pull(back, a),), False)
    return f.pull(back, f.op("before", (y, start))), back, first


def _chain_axes(value: Any, a: Axes, b: Axes) -> Axes:
    return (*b, *(x for x in a if x not in (*b, value[1])))


def _chain_grad(adjoint: str) -> Fn:
    """The adjoint chain λ of the cotangent; that of a[t] is λ[t] h[t-1]ᵀ, h and λ the forward and
    the backward one of the two."""

    def rule(f: Any, ct: int, y: int, value: Any, a: int, b: int) -> tuple[int, int]:
        row, column = value
        pulled = f.op(adjoint, (a, ct), value)
        ahead, behind = (pulled, y) if adjoint == "chain_back" else (y, pulled)
        before = f.op("shift", (f.rename(behind, {row: column}),), False)
        over = [x for x in (*f.axes(ahead), *f.axes(before)) if x not in f.axes(a)]
        return f.contract(ahead, before, over), pulled

    return rule


def _stack_grad(f: Any, ct: int, y: int, axis: str, *parts: int) -> tuple[int, ...]:
    return tuple(f.entry(ct, axis, n) for n in range(len(parts)))


def _entry_grad(f: Any, ct: int, y: int, value: Any, a: int) -> tuple[int]:
    axis, n = value
    none = f.expand(f.const(0.0), f.axes(ct))
    return (f.stack([ct if k == n else none for k in range(f.sizes[axis].constant)], axis),)


def _pulled(op: str) -> Fn:
    """The rule of an op whose cotangents come from one kernel, a pick for each operand."""

    def rule(f: Any, ct: int, y: int, v: Any, *ins: int) -> tuple[int, ...]:
        every = f.op(op, (ct, *ins))
        return tuple(f.op("pick", (every, i), n) for n, i in enumerate(ins))

    return rule


def _inverse(names: Any) -> dict[str, str]:
    return {new: old for old, new in names}


# fmt: off
_ROWS = (
    TileOp("load", lambda v: (), lambda v, f: None, None, 0,
           "what comes from outside; axes as declared", view=True),
    TileOp("const", lambda v: (), lambda v, f: np.float64(v), None, 0, "a number"),
    TileOp("size", lambda v: (), lambda v, f: np.float64(v.evaluate(f.sizes)), None, 0,
           "a size as a number"),
    TileOp("eye", lambda v: v, meaning.identity_matrix, None, 0, "1 where two axes agree"),
    TileOp("age", lambda axis, a: (axis,), meaning.age, None, 0,
           "how many entries come behind each along an axis of a"),
    TileOp("rename", lambda n, a: tuple(dict(n).get(x, x) for x in a), meaning.rename,
           lambda f, ct, y, n, a: (f.rename(ct, _inverse(n)),), 0, "axes under other names",
           view=True),
    TileOp("expand", lambda m, a: (*a, *m), meaning.expand, lambda f, ct, y, m, a: (f.sum(ct, m),),
           0, "broadcast over more axes", view=True),
    TileOp("contract", lambda o, a, b: _drop(o, a, b), meaning.contract, _contract_grad, 2,
           "sum of products over axes"),
    TileOp("sum", _drop, meaning.reduce(np.sum), lambda f, ct, y, o, a: (f.expand(ct, f.axes(a)),),
           1, "sum over axes"),
    TileOp("largest", _drop, meaning.reduce(np.max), _ties, 1, "maximum over axes; ties share"),
    TileOp("smallest", _drop, meaning.reduce(np.min), _ties, 1, "minimum over axes; ties share"),
    TileOp("mask", lambda s, a: a, meaning.mask, lambda f, ct, y, s, a: (f.op("mask", (ct,), s),),
           0, "the pairs t >= s (t > s where strict), else 0"),
    TileOp("pooled", lambda v, a: a, lambda v, f, a: a, None, 1,
           "the sum over sequences and chunks of a cotangent of what they share"),
    TileOp("within", lambda v, a: a, lambda v, f, a: a, lambda f, ct, y, v, a: (ct,), 0,
           "a number in the padding of axes, on targets whose tiles are padded", view=True),
    TileOp("row", lambda last, a: tuple(x for x in a if x != "t"), meaning.row,
           lambda f, ct, y, last, a: (f.op("place_row", (ct,), last),), 0,
           "the last or the first token", view=True),
    TileOp("place_row", lambda last, a: ("t", *a), meaning.place_row,
           lambda f, ct, y, last, a: (f.op("row", (ct,), last),), 0,
           "a tile of one token, the others 0"),
    TileOp("shift", lambda back, a: a, meaning.shift,
           lambda f, ct, y, back, a: (f.op("shift", (ct,), not back),), 0,
           "the token before (or behind), 0 at the edge"),
    TileOp("before", lambda v, a, start: a, meaning.before,
           lambda f, ct, y, v, a, start: (f.op("shift", (ct,), True), f.op("row", (ct,), False)), 0,
           "the token before, and what came before the first"),
    TileOp("scan", lambda v, a, b, start: _drop((), b, a), meaning.along_time(kernels.scan),
           _scan_grad, 2, "h[t] = a[t] h[t-1] + b[t] from a start"),
    TileOp("scan_back", lambda v, a, b: _drop((), b, a), meaning.along_time(kernels.scan_back),
           None, 2, "the adjoint of scan"),
    TileOp("chain", _chain_axes, meaning.chain(False), _chain_grad("chain_back"), 2,
           "h[t] = a[t] h[t-1] + b[t] from 0, of matrices a over two axes and an h over the first"),
    TileOp("chain_back", _chain_axes, meaning.chain(True), _chain_grad("chain"), 2,
           "the adjoint of chain"),
    TileOp("chain_parts", lambda v, *ins: _drop((), *ins[::-1]), meaning.chain_parts, None, 2,
           "chain (chain_back, where so) of v[0] states, to be picked: operands are the entries of "
           "a, row by row, and those of b"),
    TileOp("stack", lambda v, *ins: tuple(dict.fromkeys((*(x for axes in ins for x in axes), v))),
           meaning.stack, _stack_grad, 0, "tiles as the entries of a new axis"),
    TileOp("entry", lambda v, a: tuple(x for x in a if x != v[0]), meaning.entry, _entry_grad, 0,
           "one entry of an axis", view=True),
    TileOp("tropical", lambda op, f, i: _drop((), i, f), meaning.tropical, None, 2,
           "m[t] = op(m[t-1] + f[t], i[t]), op max, min or logaddexp, from i at the first token"),
    TileOp("running", lambda v, a: a, meaning.running, None, 1, "sums over the tokens up to each"),
    TileOp("through_time", lambda v, y, w: y, lambda v, f, y, w: y,
           lambda f, ct, y, v, x, w: (f.op("scan_back", (f.expand(w, f.axes(ct)), ct)), None), 0,
           "y, of which a token's value depends on the one before with slope w"),
    TileOp("instead", lambda v, a, b: a, lambda v, f, a, b: a, lambda f, ct, y, v, a, b: (None, ct),
           0, "a, with the gradient of b, which is the same value"),
    TileOp("solve", lambda v, a, r: r, meaning.solve, _solve_grad, 2,
           "(I + strict lower)⁻¹ r, or its transpose's; with ranks, one system of all of them"),
    TileOp("solve_parts", lambda v, *ins: ins[-1], meaning.solve_parts, None, 2,
           "solve of v[0] ranks (v[1]: transposed), to be picked: operands are the [t, s] of every "
           "two ranks, row by row, of which only t > s count, and the r of each"),
    TileOp("inverse", lambda v, a: a, meaning.inverse, None, 1, "(I + strict lower)⁻¹"),
    TileOp("dense_solve", _dense_solve_axes, meaning.dense_solve, _dense_solve_grad, 2,
           "the x of Σ a[row, column] x[column] = b[row], for the axes (row, column)"),
    TileOp("levels", lambda v, g: g, meaning.levels, lambda f, ct, y, v, g: (ct,), 12,
           "products of decays over runs"),
    TileOp("prefix", lambda v, d: d, meaning.runs(kernels.prefix),
           lambda f, ct, y, v, d: (f.op("prefix_pull", (ct, d)),), 0,
           "decay from the chunk's start to t", view=True),
    TileOp("suffix", lambda v, d: d, meaning.runs(kernels.suffix),
           lambda f, ct, y, v, d: (f.op("suffix_pull", (ct, d)),), 0,
           "decay after t to the chunk's end", view=True),
    TileOp("whole", lambda v, d: tuple(x for x in d if x != "t"), meaning.whole,
           lambda f, ct, y, v, d: (f.op("whole_pull", (ct, d)),), 0, "decay of the whole chunk",
           view=True),
    TileOp("matrix", lambda v, d: ("t", "s"), meaning.matrix,
           lambda f, ct, y, v, d: (f.op("matrix_pull", (ct, d)),), 2,
           "decay from s to t, 0 above the diagonal"),
    TileOp("gram", lambda v, x, y, d: ("t", "s"), meaning.runs(kernels.gram), _pulled("meet_pull"),
           2, "decayed products of pairs"),
    TileOp("meet", lambda v, x, y, d: ("t", "s"), meaning.opaque(kernels.meet), None, 2,
           "gram, x times prefix and y times suffix, to be picked"),
    TileOp("meet_pull", lambda v, c, x, y, d: ("t", "s"), meaning.opaque(kernels.meet_pull), None,
           4, "cotangents of the operands of gram, to be picked"),
    TileOp("decayed", lambda v, a, y, d: _drop((), d, y), meaning.runs(kernels.decayed),
           _pulled("decayed_pull"), 2, "pairs times what was written, decayed per channel"),
    TileOp("decayed_pull", lambda v, c, a, y, d: ("t", "s"), meaning.opaque(kernels.decayed_pull),
           None, 6, "cotangents of the operands of decayed, to be picked"),
    TileOp("pick", lambda n, every, like: like, meaning.pick, None, 0,
           "one of several results, with the axes of another value", view=True),
    TileOp("prefix_pull", lambda v, c, d: d, meaning.runs(kernels.prefix_pull), None, 4,
           "cotangent of decays in prefix"),
    TileOp("suffix_pull", lambda v, c, d: d, meaning.runs(kernels.suffix_pull), None, 4,
           "cotangent of decays in suffix"),
    TileOp("whole_pull", lambda v, c, d: d, meaning.whole_pull, None, 4,
           "cotangent of decays in whole"),
    TileOp("matrix_pull", lambda v, c, d: d, meaning.matrix_pull, None, 4,
           "cotangent of decays in matrix"),
    TileOp("take", lambda v, a: tuple(v[1] if x == v[0] else x for x in a), meaning.take,
           lambda f, ct, y, v, a: (f.op("put", (ct,), v),), 0,
           "entries start, start + step, … of an axis", view=True),
    TileOp("put", lambda v, a: tuple(v[0] if x == v[1] else x for x in a), meaning.put,
           lambda f, ct, y, v, a: (f.op("take", (ct,), v),), 0,
           "the transpose of take: the other entries are 0"),
    TileOp("concat", _concat_axes, meaning.concat, _concat_grad, 0,
           "parts of an axis one after another"),
    TileOp("roll", lambda v, a: a, meaning.roll,
           lambda f, ct, y, v, a: (f.op("roll", (ct,), (v[0], -v[1])),), 0,
           "a circular shift along an axis"),
    TileOp("default", lambda v, a, b: _drop((), a, b),
           lambda v, f, a, b: meaning.place(b if a is None else a, f.ins[a is None], f.out),
           lambda f, ct, y, v, a, b: (ct, f.op("omitted", (ct, a))), 0,
           "an argument, or its default where omitted", view=True),
    TileOp("omitted", lambda v, a, b: a, lambda v, f, a, b: a if b is None else np.zeros_like(a),
           None, 0, "a cotangent where the argument was omitted, else 0", view=True),
    TileOp("fold", lambda v, a: (*(x for x in a if x not in v[:2]), v[2]), meaning.fold,
           lambda f, ct, y, v, a: (f.op("unfold", (ct,), v),), 0, "two axes as one, row-major",
           view=True),
    TileOp("unfold", lambda v, a: (*(x for x in a if x != v[2]), *v[:2]), meaning.unfold,
           lambda f, ct, y, v, a: (f.op("fold", (ct,), v),), 0, "one axis as two", view=True),
)
# fmt: on

TILE_OPS: dict[str, TileOp] = {row.name: row for row in _ROWS}
