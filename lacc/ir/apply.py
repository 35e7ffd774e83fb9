"""One operation at one node: argument values in, the value out, and cotangents back.

Values are arrays whose trailing axes are the node's own, behind any number of leading ones (time,
batch, head) that broadcast; or Python numbers, where a node is one whatever the inputs are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lacc.ir.ops import OPS, F, Site
from lacc.spec.model import COMPARISONS, Expr

Value = Any


class Apply:
    """The operation of ``node`` under ``dims``.

    An elementwise argument with fewer axes than the result gets the missing ones behind its own: a
    scalar stands beside anything, a column beside a matrix is for its rows.
    """

    def __init__(self, node: Expr, dims: Mapping[str, int]) -> None:
        self.op = OPS[node.op]
        self.ranks = tuple(len(arg.shape) for arg in node.args)
        shape = tuple(size.evaluate(dims) for size in node.shape)
        self.site = Site(node.value, shape, self.ranks)
        self.pads = tuple((1,) * (len(shape) - rank) for rank in self.ranks)

    def value(self, xs: Sequence[Value]) -> Value:
        """The result for argument values."""
        assert self.op.numpy is not None
        if not self.op.entrywise:
            return self.op.numpy(self.site, *self._arrays(xs))
        y = self.op.numpy(*self._aligned(xs))
        return y if any(isinstance(x, np.ndarray) for x in xs) else np.asarray(y).item()

    def pull(self, ct: Value, y: Value, xs: Sequence[Value], wanted: Sequence[bool]) -> list[Value]:
        """The cotangent of each argument that is wanted, in its shape; None for the others."""
        assert self.op.grad is not None
        if self.op.entrywise:
            cts = self.op.grad(F, ct, y, *self._aligned(xs))
        else:
            xs = self._arrays(xs)
            cts = self.op.grad(self.site, ct, y, *xs)
        return [
            fold(d, x, pad).astype(ct.dtype, copy=False) if want and d is not None else None
            for d, x, pad, want in zip(cts, xs, self.pads, wanted)
        ]

    def _aligned(self, xs: Sequence[Value]) -> list[Value]:
        return [
            x.reshape(x.shape + pad) if pad and isinstance(x, np.ndarray) else x
            for x, pad in zip(xs, self.pads)
        ]

    def _arrays(self, xs: Sequence[Value]) -> list[Value]:
        leads = [x.ndim - rank for x, rank in zip(xs, self.ranks) if isinstance(x, np.ndarray)]
        dtypes = [x.dtype for x in xs if isinstance(x, np.ndarray)]
        lead, dtype = (1,) * max(leads, default=3), dtypes[0] if dtypes else None
        return [x if isinstance(x, np.ndarray) else np.full(lead, x, dtype) for x in xs]


def compare(sign: str, left: Value, right: Value, slack: float) -> Value:
    """Where ``left sign right`` holds; an equation within ``slack``, relative to 1 and the right
    side."""
    if sign == "==":
        return np.abs(left - right) <= slack * (1 + np.abs(right))
    meaning = OPS[COMPARISONS[sign]].numpy
    assert meaning is not None
    return meaning(left, right)


def fold(ct: Value, x: Value, pad: tuple[int, ...] = ()) -> Value:
    """``ct`` summed over the axes along which ``x`` (with ``pad`` behind) was broadcast."""
    shape = x.shape + pad
    axes = tuple(i for i, (have, want) in enumerate(zip(ct.shape, shape)) if want == 1 != have)
    return (ct.sum(axes) if axes else ct).reshape(x.shape)
