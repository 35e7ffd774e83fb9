"""Passes over time and dense arrays in, outputs, final states and gradients out, a block of chunks
at a time.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file. A tile
is an array [B, H, n, *axes] for n chunks; C is the chunk's length, the first of a tile's axes where
it is over time. A block's tiles are small enough to stay in cache, so long sequences stream through
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lacc.runtime.contract import Array, Arrays, slack
from lacc.runtime.passes import Pass, Program, Rows, Whole

KEPT = 64  # tokens between two states that the backward pass of a token program keeps


def tiles(x: Array | None, at: int, n: int, C: int) -> Array | None:
    """Tokens at.. of ``x`` [B, T, H, *axes] as n chunks of C: a view [B, H, n, C, *axes]."""
    if x is None:
        return None
    part = x[:, at : at + n * C]
    part = part.reshape(part.shape[0], n, C, *part.shape[2:])
    return part.transpose(0, 3, 1, 2, *range(4, part.ndim))


def spans(T: int, C: int, n: int) -> Iterator[tuple[int, int, int]]:
    """Blocks of whole chunks (start, chunks, length), then the tail as a chunk of its own."""
    whole = T // C
    for first in range(0, whole, n):
        yield first * C, min(n, whole - first), C
    if T % C:
        yield whole * C, 1, T % C


class Call:
    """One call of the core: arrays at hand, the plan taken up."""

    def __init__(
        self, program: Program, x: Arrays, state: Arrays, run: Any, back: bool = False
    ) -> None:
        self.program, self.run, self.x, self.state = program, run, dict(x), dict(state)
        self.plan = plan = (program.plan.back if back else None) or program.plan
        heads = run.B * run.H
        mode, C = plan.choose(run.T, heads, run.dims, run.mode)
        self.by_token = mode == "recurrent"
        self.passes: Sequence[Pass | Whole] = program.passes
        if self.by_token and program.token is not None:
            self.passes = (program.token,)
        self.C = max(1, min(run.chunk or C, run.T))
        self.n = 1 if self.by_token else plan.together(self.C, heads, run.dims)
        self.fixed = {
            name: None
            if self.x[name] is None
            else self.x[name].astype(run.dtype, copy=False)[None, :, None]
            for name in program.params
        }
        self.fixed["head"] = np.arange(run.H, dtype=run.dtype)[None, :, None]
        self.fixed["H"] = np.full((1, 1, 1), run.H, run.dtype)
        self.fixed["slack"] = np.full((1, 1, 1), slack(x.values()), run.dtype)
        self.fixed["T"] = np.full((1, 1, 1), run.T, run.dtype)
        self.started = {name for name in program.states if self.state.get(name) is None}
        first = program.initial(self.fixed, run.dims, run.dtype) if program.initial else {}
        for name, shape in program.states.items():
            if name in self.started:
                axes = shape(run.dims)
                value = np.asarray(first.get(name, 0.0))
                value = value[:, :, 0] if value.ndim > len(axes) else value  # else it is constant
                self.state[name] = np.broadcast_to(value, (run.B, run.H, *axes)).astype(run.dtype)
        self.unfilled: dict[str, str] = {}
        for rows in program.kept:
            if self.state.get(rows.field) is None:
                name = rows.state or program.pasts[rows.field][0]
                self.state[rows.field] = self.declared(rows, name, first.get(name, 0.0))
                self.unfilled[rows.field] = name
        self.start = dict(self.state)
        chunked = [p for p in self.passes if isinstance(p, Pass)]
        for label in {name for p in chunked for name in p.inputs if "@" in name}:
            name, offset = label.split("@")
            self.x[label] = self.delayed(name, -int(offset))
        if program.counts:
            start = self.state["position"]
            self.x["t"] = (start[:, None] + np.arange(1, run.T + 1)).astype(run.dtype)[:, :, None]
        if not run.T:
            self.passes = ()
        names = [name for p in self.passes if isinstance(p, Pass) for name in p.states]
        self.carried = {rows.field for rows in program.kept if not run.T or rows.field in names}
        growing = [rows.field for rows in program.kept if rows.length is None]
        self.past = self.start[growing[0]].shape[2] if growing else None
        for field in growing:
            if self.start[field].shape[2] != self.past:
                got = self.start[field].shape[2]
                raise ValueError(f"state.{field}: expected {self.past} rows, got {got}")
        self.constants: dict[tuple[int, int, bool], Any] = {}

    def dims(self, at: int) -> Mapping[str, int]:
        """All dims; by token also how many tokens came before it."""
        if self.past is None or not self.by_token:
            dims: Mapping[str, int] = self.run.dims
            return dims
        return {**self.run.dims, "#past": self.past + at}

    def declared(self, rows: Rows, name: str, value: Any) -> Array:
        """Rows of the state ``name`` as it is declared to start."""
        like, value = self.state[name], np.asarray(value)
        value = value[:, :, 0] if value.ndim > like.ndim - 2 else value
        value = np.broadcast_to(value, like.shape)[:, :, None]
        return np.repeat(value, rows.length or 0, 2).astype(self.run.dtype)

    def delayed(self, name: str, by: int) -> Array:
        """An input of ``by`` tokens ago [B, T, H, *axes], from the past before the start."""
        x, past = self.x[name], np.moveaxis(self.state[f"{name}_past"], 2, 1)
        none = np.zeros((past.shape[0], by, *past.shape[2:]), past.dtype)
        past = np.concatenate([none, past], 1)
        return np.concatenate([past[:, past.shape[1] - by :], x], 1)[:, : x.shape[1]]

    def every(self, rows: Rows) -> tuple[Array, int]:
        """The values before the call and those of its tokens [B, H, P + T, *axes], and P."""
        x = np.moveaxis(self.x[rows.source], 1, 2).astype(self.run.dtype, copy=False)
        parts = [self.start[rows.field]] if rows.length != 0 else []
        parts += [self.start[rows.state][:, :, None]] if rows.state is not None else []
        past = sum(part.shape[2] for part in parts)
        return (np.concatenate([*parts, x], 2) if parts else x), past

    def pull(self, rows: Rows, d: Array, dx: Arrays, later: int = 0) -> None:
        """Adds the cotangent ``d`` of the last values, but for ``later`` more that follow them, to
        those of what they are of."""
        past = self.start[rows.field].shape[2] if rows.length != 0 else 0
        known = past + (rows.state is not None)
        every = np.zeros((*d.shape[:2], known + self.run.T, *d.shape[3:]), d.dtype)
        stop = every.shape[2] - later
        first = max(d.shape[2] - stop, 0)
        every[:, :, stop - d.shape[2] + first : stop] = d[:, :, first:]
        if rows.length != 0:
            self.dpast[rows.field] += every[:, :, :past]
        if rows.state is not None:
            self.dstart[rows.state] = self.dstart.get(rows.state, 0.0) + every[:, :, past]
        dx[rows.source] += np.moveaxis(every[:, :, known:], 2, 1)
        self.written.add(rows.source)

    def constant(self, p: Pass, number: int, C: int, back: bool = False) -> Any:
        """What a pass prepares once for chunks of C tokens, forward or backward."""
        prepare = p.prepare_back if back else p.prepare
        if prepare is None:
            return ()
        if (number, C, back) not in self.constants:
            fixed = tuple(self.fixed[name] for name in p.fixed)
            last = tuple(self.state[name][:, :, None] for name in p.last)
            made = prepare(C, self.run.dims, self.run.dtype, fixed, last)
            self.constants[number, C, back] = made
        return self.constants[number, C, back]

    def inputs(self, p: Pass, at: int, n: int, C: int) -> tuple[Any, ...]:
        """The tiles of a block in the dtype to compute in."""
        found = []
        for name in p.inputs:
            x = self.x[name]
            x = tiles(x[:, ::-1] if p.reverse and x is not None else x, at, n, C)
            x = x if x is None or not self.by_token else x[:, :, :, 0]
            found.append(None if x is None else x.astype(self.run.dtype, copy=False))
        return tuple(found)

    def put(
        self, p: Pass, into: Array, value: Array, at: int, n: int, C: int, add: bool = False
    ) -> None:
        """A block's tiles into their tokens."""
        view = tiles(into[:, ::-1] if p.reverse else into, at, n, C)
        assert view is not None
        view = view[:, :, :, 0] if self.by_token else view
        if add:
            view += value
        else:
            view[...] = value

    def forward(self, keep: bool) -> tuple[Arrays, Arrays, list[list[Any]]]:
        """Outputs, final states, and with ``keep`` the states each block or chunk starts from in
        place of outputs."""
        run, kept = self.run, []
        outputs = {
            name: np.empty((run.B, run.T, run.H, *shape(run.dims)), run.dtype)
            for name, shape in self.program.outputs.items()
        }
        for number, p in enumerate(self.passes):
            if not isinstance(p, Pass):
                kept.append(p.forward(self))
                continue
            states, starts = tuple(self.state[name] for name in p.states), []
            for at, n, C in spans(run.T, self.C, self.n):
                constants = self.constant(p, number, C)
                before, dims = states, self.dims(at)
                given = (self.inputs(p, at, n, C), states, constants, n, C, dims, run.dtype)
                values, states, first = p.forward(*given, *(() if self.by_token else (not keep,)))
                if keep and not self.by_token:
                    starts.append(first)
                elif keep and at % KEPT == 0:
                    starts.append(before)
                for name, value in zip(p.outputs, values):
                    if name not in outputs:
                        shape = value.shape[4 - self.by_token :]
                        outputs[name] = np.empty((run.B, run.T, run.H, *shape), run.dtype)
                        self.x[name] = outputs[name]
                    self.put(p, outputs[name], value, at, n, C)
            self.state.update(zip(p.states, states))
            kept.append(starts)
        return outputs, self.final(), kept

    def final(self) -> Arrays:
        """The state after the last token, every field."""
        lead, dims = (self.run.B, self.run.H), self.run.dims
        found = {
            name: np.broadcast_to(self.state[name], (*lead, *shape(dims)))
            for name, shape in self.program.states.items()
        }
        if self.program.counts:
            found["position"] = self.state["position"] + self.run.T
        found |= {field: self.state[field] for field in self.carried}
        for rows in self.program.kept:
            if rows.field not in self.carried:
                every, _ = self.every(rows)
                stop = every.shape[2] - (rows.state is not None)
                length = rows.length
                if length is None:
                    length = self.start[rows.field].shape[2] + self.run.T
                found[rows.field] = every[:, :, stop - length : stop]
        return {name: np.array(value) for name, value in found.items()}

    def backward(
        self, kept: list[list[Any]], cotangents: Arrays, ends: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Gradients of inputs and params, and of the initial state, after a forward that kept what
        blocks start from."""
        run, program = self.run, self.program
        dx = {
            name: np.zeros((run.B, run.T, run.H, *x.shape[3:]), run.dtype)
            for name, x in self.x.items()
            if x is not None and name not in program.params and x.ndim > 2
        }
        dparams = {
            n: np.zeros(self.x[n].shape, run.dtype) for n in program.params if self.x[n] is not None
        }
        dstate = {
            name: np.zeros_like(self.state[name])
            if ends.get(name) is None
            else np.array(ends[name])
            for name in [*program.states, *self.carried]
        }
        self.dpast = {
            rows.field: np.zeros(self.start[rows.field].shape, run.dtype) for rows in program.kept
        }
        self.dstart: Arrays = {}
        self.written: set[str] = set()
        for rows in program.kept:
            if ends.get(rows.field) is not None and rows.field not in self.carried:
                self.pull(rows, ends[rows.field], dx, later=int(rows.state is not None))
        cotangents = {**dict.fromkeys(program.outputs), **cotangents}
        for number, p in reversed(list(enumerate(self.passes))):
            if not isinstance(p, Pass):
                p.backward(self, kept[number], dx)
                continue
            dstates = tuple(dstate[name] for name in p.states)
            for (at, n, C), starts in self.reversed_blocks(p, number, kept[number]):
                constants = self.constant(p, number, C, back=True)
                pulled = tuple(
                    self.cotangent(p, name, cotangents, dx, at, n, C) for name in p.outputs
                )
                dinputs, dfixed, dlast, dstates = p.backward(
                    self.inputs(p, at, n, C),
                    starts,
                    constants,
                    pulled,
                    dstates,
                    n,
                    C,
                    self.dims(at),
                    run.dtype,
                )
                for name, d in zip(p.inputs, dinputs):
                    if d is not None and name in dx:
                        self.put(p, dx[name], d, at, n, C, add=name in self.written)
                for name, d in zip(p.fixed, dfixed):
                    if d is not None and name in dparams:
                        dparams[name] += np.broadcast_to(
                            d, (*d.shape[:1], run.H, *d.shape[2:])
                        ).sum((0, 2))
                for name, d in zip(p.last, dlast):
                    if d is not None:
                        dstate[name] = dstate[name] + d.sum(2)
            dstate.update(zip(p.states, dstates))
            self.written.update(p.inputs)
        return self.collected(dx, dparams, dstate)

    def reversed_blocks(
        self, p: Pass, number: int, kept: list[Any]
    ) -> Iterator[tuple[tuple[int, int, int], Any]]:
        """Blocks from last to first, each with the states that its chunks start from; those between
        kept tokens are made again, so that memory does not grow with a state per token."""
        run, blocks = self.run, list(spans(self.run.T, self.C, self.n))
        if not self.by_token:
            yield from zip(reversed(blocks), reversed(kept))
            return
        for first in reversed(range(0, len(blocks), KEPT)):
            states, group = kept[first // KEPT], []
            for at, n, C in blocks[first : first + KEPT]:
                group.append(((at, n, C), tuple(s[:, :, None] for s in states)))
                constants = self.constant(p, number, C)
                _, states, _ = p.forward(
                    self.inputs(p, at, n, C), states, constants, n, C, self.dims(at), run.dtype
                )
            yield from reversed(group)

    def cotangent(
        self, p: Pass, name: str, given: Arrays, dx: Arrays, at: int, n: int, C: int
    ) -> Array:
        """The cotangent of an output or a stored value, zeros where there is none."""
        whole = given.get(name) if name in self.program.outputs else dx[name]
        if whole is None:
            shape = self.program.outputs[name](self.run.dims)
            return np.zeros(
                (self.run.B, self.run.H, n, *(() if self.by_token else (C,)), *shape),
                self.run.dtype,
            )
        part = tiles(whole[:, ::-1] if p.reverse else whole, at, n, C)
        assert part is not None
        return (part[:, :, :, 0] if self.by_token else part).astype(self.run.dtype, copy=False)

    def collected(self, dx: Arrays, dparams: Arrays, dstate: Arrays) -> tuple[Arrays, Arrays]:
        """Gradients by argument: delays taken back to their inputs and pasts, starts to the params
        that make them."""
        program = self.program
        for rows in (rows for rows in program.kept if rows.field == f"{rows.source}_past"):
            for label in [key for key in dx if key.startswith(f"{rows.source}@")]:
                by = -int(label.split("@")[1])
                self.pull(rows, np.moveaxis(dx[label], 1, 2), dx, later=by)
        for name, d in self.dstart.items():
            dstate[name] = dstate[name] + d
        initial = dict(dstate)
        for field, d in self.dpast.items():
            initial[field] = d + dstate.get(field, 0.0)
        if program.initial_pull is not None:
            run = self.run
            made = {
                n: (dstate[n] if n in self.started else np.zeros_like(dstate[n]))[:, :, None]
                for n in program.states
            }
            for field, n in self.unfilled.items():
                made[n] = made[n] + initial[field].sum(2, keepdims=True)
            pulled = program.initial_pull(self.fixed, made, run.dims, run.dtype)
            for name, d in pulled.items():
                if d is not None and name in dparams:
                    dparams[name] += np.broadcast_to(d, (*d.shape[:1], run.H, *d.shape[2:])).sum(
                        (0, 2)
                    )
        return {**dx, **dparams}, initial
