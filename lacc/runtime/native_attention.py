"""A call of the core in, what its tokens attend to by the functions of a compiled C file out.

This module stands alone (NumPy only): its text is also pasted into the Python part of emitted C
files of what attends, behind `native.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lacc.runtime.contract import Array, Arrays
from lacc.runtime.native import Library, Table
from lacc.runtime.passes import Rows
from lacc.runtime.walk import Call


@dataclass(frozen=True)
class NativeAttention:
    """A `Walk` by the functions ``number`` of a library: gives as ``output`` what the ``query`` of
    each token attends to among the last ``window`` tokens (None: all so far); ``sink`` names one
    more logit. Names are those of arrays over tokens."""

    library: Library
    number: str
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

    def run(self, call: Call) -> list[Array]:
        """Puts what the tokens attend to into ``call.x``; that and what is known of logits."""
        run, pasts = call.run, self.seen(call)
        lead, last = (run.B, run.T, run.H), self.output in call.program.outputs
        shapes = ((*lead, *call.x[self.values.source].shape[3:]), lead, lead)
        found = [np.empty(shape, run.dtype) for shape in shapes]
        if last and not call.keep:
            found[0] = call.into(self.output)
        table = self.given(call, pasts)
        for x in (*found, None, None):
            table.put(x)
        self.library.run(self.way, call, table.described(), pasts[0].shape[1])
        if not last:
            call.x[self.output] = found[0]
        elif call.keep:  # a caller may write to an output, and not to what is kept
            call.into(self.output)[...] = found[0]
        return found

    @property
    def way(self) -> str:
        """The function that goes forward."""
        return f"attend_forward_{self.number}"

    @property
    def ends(self) -> tuple[str, ...]:
        """The fields of a state that `taken` fills."""
        kept = None if self.window is None else self.window - 1
        every = (self.keys, self.values)
        return tuple(rows.field for rows in every if (rows.length, rows.state) == (kept, None))

    def taken(self, call: Call, final: Arrays, starts: list[Array]) -> Table:
        """All that the way there takes in a call that begins anew: keys and values go to the fields
        of the state ``final`` that hold them."""
        run, table = call.run, Table(call.run.B, call.run.H)
        for name in self.inputs:
            table.put(call.x[name], name=name)
        for _ in range(3 if self.sink is not None else 4):  # a sink, and what came before the call
            table.put(None)
        axes = call.x[self.values.source].shape[3:]
        table.put(call.into(self.output, axes), name=f"out {self.output}")
        table.put(None)
        table.put(None)
        for rows in (self.keys, self.values):
            into = final[rows.field] if rows.field in self.ends else None
            table.put(None if into is None else np.moveaxis(into, 2, 1), name=f"ended {rows.field}")
            if into is not None:  # as if it held all tokens
                data, sequence, token, *others = table.rows[-1]
                data -= (run.T - into.shape[2]) * token * into.itemsize
                table.rows[-1] = (data, sequence, token, *others)
        return table

    def pull(self, call: Call, kept: list[Array]) -> None:
        """Adds to the cotangents of query, keys, values and sink."""
        pasts, dx = self.seen(call), call.dx
        table, later = self.given(call, pasts), []
        given = call.cotangents if self.output in call.program.outputs else dx
        for x in (*kept, given[self.output]):
            table.put(x)
        for name in self.inputs:
            d = dx[name]
            if name in call.written:
                d = np.empty_like(d)
                later.append((name, d))
            call.written.add(name)
            table.put(d)
        if self.sink is None:
            table.put(None)
        dpasts = [np.empty_like(past, order="C") for past in pasts]
        for d in dpasts:
            table.put(d)
        seen = dpasts[0].shape[1]
        self.library.run(f"attend_backward_{self.number}", call, table.described(), seen)
        for name, d in later:
            dx[name] += d
        for rows, d in zip((self.keys, self.values), dpasts):
            if d.shape[1]:
                call.pull(rows, np.moveaxis(d, 1, 2), later=call.run.T)

    def seen(self, call: Call) -> list[Array]:
        """The keys and values before the call that are seen."""
        pasts = [rows_before(call, rows) for rows in (self.keys, self.values)]
        seen = min(past.shape[1] for past in pasts)
        if self.window is not None:
            seen = min(seen, self.window - 1)
        return [past[:, past.shape[1] - seen :] for past in pasts]

    def given(self, call: Call, pasts: list[Array]) -> Table:
        """A table that begins with all that is attended to."""
        table = Table(call.run.B, call.run.H)
        for name in self.inputs:
            table.put(call.x[name])
        if self.sink is None:
            table.put(None)
        for past in pasts:
            table.put(past)
        table.put(np.asarray(call.start["position"], np.int64)[:, None], 2)
        return table


def rows_before(call: Call, rows: Rows) -> Array:
    """The values before the call [B, P, H, *axes]."""
    parts = [call.start[rows.field]] if rows.length != 0 else []
    parts += [call.start[rows.state][:, :, None]] if rows.state is not None else []
    like = call.x[rows.source]
    none = np.empty((*like.shape[:1], call.run.H, 0, *like.shape[3:]), call.run.dtype)
    past = parts[0] if len(parts) == 1 else np.concatenate([none, *parts], 2)
    return np.moveaxis(past, 2, 1)
