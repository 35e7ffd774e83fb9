"""Conditions of a `where` and the arguments of a call go in; where they hold comes out.

Shapes: B T H are batch, tokens and heads; every value is [B, T, H, *shape] or has 1 in place of an
axis that it does not depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lacc.ir.apply import Apply, compare
from lacc.spec.model import Expr, Promise
from lacc.spec.shapes import Size

Array = np.ndarray[Any, Any]


def evaluate(
    root: Expr, arrays: Mapping[str, Array], sizes: tuple[int, int, int], dims: Mapping[str, int]
) -> Array:
    """The value of an expression of arguments: ``arrays`` by name, aligned to [B, T, H, *shape].

    Raises KeyError with the name of an argument that is not given.
    """
    _, T, H = sizes
    values: dict[Expr, Any] = {}
    for node in root.walk():
        match node.op, node.value:
            case "const", float() | int() as number:
                y: Any = float(number)
            case "size", Size() as size:
                y = float(size.evaluate(dims))
            case "input", (str() as name, int() as offset):
                y = _delayed(arrays[name], offset)
            case (("param" | "buffer"), str() as name):
                y = arrays[name]
            case "eye", _:
                y = np.eye(node.shape[0].evaluate(dims))[None, None, None]
            case "t", _:
                y = np.arange(1.0, T + 1)[None, :, None]
            case "head", _:
                y = np.arange(float(H))[None, None]
            case ("T" | "H") as length, None if not node.args:
                y = float(T if length == "T" else H)
            case _:
                y = Apply(node, dims).value([values[arg] for arg in node.args])
        values[node] = y
    return np.asarray(values[root]) + np.zeros((1, 1, 1) + (1,) * len(root.shape))


def _delayed(x: Array, offset: int) -> Array:
    """``x`` of ``-offset`` tokens ago, 0 before the start."""
    if offset == 0:
        return x
    y = np.zeros_like(x)
    y[:, -offset:] = x[:, :offset]
    return y


def holds(
    promise: Promise,
    arrays: Mapping[str, Array],
    sizes: tuple[int, int, int],
    dims: Mapping[str, int],
    slack: float,
) -> Array:
    """Where a promise holds, a bool array [B, T, H]; an equation holds within ``slack``."""
    left = evaluate(promise.left, arrays, sizes, dims)
    right = evaluate(promise.right, arrays, sizes, dims)
    rank = max(left.ndim, right.ndim)
    left, right = (a.reshape(a.shape + (1,) * (rank - a.ndim)) for a in (left, right))
    kept = compare(promise.cmp, left, right, slack)
    return np.broadcast_to(kept.all(tuple(range(3, rank))), sizes)


def aligned(x: Array, role: str, per: str, heads: int) -> Array:
    """An argument as a caller gives it, at the heads: [B, T, H, *shape], [1, 1, H, *shape] for a
    param or buffer, [1, P, H, *shape] for one by position (1 for H where nothing is per head)."""
    if role == "input":
        return _at_heads(x, per, heads, 2)
    if per == "position":
        return x[None, :, None]
    return _at_heads(x, per, heads, 0)[None, None]


def _at_heads(x: Array, per: str, heads: int, axis: int) -> Array:
    if per == "layer":
        return np.expand_dims(x, axis)
    return x if x.shape[axis] == heads else np.repeat(x, heads // x.shape[axis], axis)
