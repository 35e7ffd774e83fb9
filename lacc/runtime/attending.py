"""A call of the core in, what its tokens attend to out: the passes that take all tokens at once.

This module stands alone (NumPy only): its text is also pasted into the emitted files of what
attends, behind `walk.py` and the kernels of `lacc.tile.attention_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.runtime.contract import Array
from lacc.runtime.passes import Rows
from lacc.runtime.walk import Call
from lacc.tile.attention_kernels import Sight, attend, attend_pull


@dataclass(frozen=True)
class Attention:
    """A pass that gives as ``output`` what the ``query`` of each token attends to among the last
    ``window`` tokens (None: all so far); ``sink`` names one more logit. Names are those of arrays
    over tokens, as in the inputs of a `Pass`."""

    query: str
    keys: Rows
    values: Rows
    sink: str | None
    output: str
    window: int | None

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it takes that has a token axis."""
        found = (self.query, self.keys.source, self.values.source, self.sink)
        return tuple(name for name in found if name is not None)

    @property
    def states(self) -> tuple[str, ...]:
        """It carries none on."""
        return ()

    @property
    def overwrites(self) -> bool:
        """It adds to cotangents."""
        return False

    def run(self, call: Call) -> Any:
        """Puts what the tokens attend to into ``call.x``; what `pull` needs."""
        keys, known = call.every(self.keys)
        values, others = call.every(self.values)
        past = min(known, others, *([] if self.window is None else [self.window - 1]))
        position = call.start["position"]
        heads = call.run.B * call.run.H
        width = max(call.C, call.plan.block // (4 * max(heads, 1) * call.C))
        sight = Sight(past, self.window, position, call.C, width)
        never = np.arange(past) < past - position[:, None]
        k, v = (self.seen(x, past + call.run.T, never) for x in (keys, values))
        sink = None if self.sink is None else self.by_head(call, self.sink)
        given = wide(self.by_head(call, self.query)), k, v, sink, sight
        attended = attend(*given)
        o = attended[0] if values.ndim > 3 else attended[0][..., 0]
        call.x[self.output] = np.moveaxis(o, 1, 2)
        return given, attended

    def pull(self, call: Call, kept: Any) -> None:
        """Adds to the cotangents of query, keys, values and sink."""
        (given, attended), dx = kept, call.dx
        ct = wide(np.moveaxis(dx[self.output], 2, 1))
        dq, dk, dv, dsink = attend_pull(np.ascontiguousarray(ct), attended, *given)
        call.written.update({self.query, *([self.sink] if self.sink else [])})
        dx[self.query] += np.moveaxis(dq, 1, 2).reshape(dx[self.query].shape)
        for rows, d in ((self.keys, dk), (self.values, dv)):
            call.pull(rows, d if dx[rows.source].ndim > 3 else d[..., 0])
        if self.sink is not None and dsink is not None:
            dx[self.sink] += np.moveaxis(dsink, 1, 2)

    def by_head(self, call: Call, name: str) -> Array:
        """An array over tokens with its heads first [B, H, T, *axes]."""
        x = np.moveaxis(call.x[name], 2, 1)
        return np.ascontiguousarray(x, call.run.dtype)

    def seen(self, x: Array, rows: int, never: Array) -> Array:
        """The last rows of ``x`` as a tile [B, H, rows, D], 0 where there was no token."""
        found = np.array(wide(x)[:, :, x.shape[2] - rows :], order="C")
        np.copyto(found[:, :, : never.shape[1]], 0, where=never[:, None, :, None])
        return found


def wide(x: Array) -> Array:
    """A value over an axis, one of a single entry where it had none."""
    return x if x.ndim > 3 else x[..., None]
