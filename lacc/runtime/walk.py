"""A program and dense arrays in, outputs, final states and gradients out: its passes over time one
after the other.

This module stands alone (NumPy only): its text is also pasted into emitted files, behind
`passes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from lacc.runtime.contract import Array, Arrays, slack
from lacc.runtime.passes import Program, Rows, Walk

LINE, LARGE = 64, 1 << 16  # bytes of a cache line, and of a large array


def tiles(x: Array | None, at: int, n: int, C: int) -> Array | None:
    """Tokens at.. of ``x`` [B, T, H, *axes] as n chunks of C: a view [B, H, n, C, *axes]."""
    if x is None:
        return None
    part = x[:, at : at + n * C]
    part = part.reshape(part.shape[0], n, C, *part.shape[2:])
    return part.transpose(0, 3, 1, 2, *range(4, part.ndim))


def in_lines(shape: Sequence[int], dtype: Any, make: Callable[..., Array] = np.empty) -> Array:
    """A new array, by `numpy.empty` or ``numpy.zeros``; a large one begins at a cache line, as a
    tensor does: rows that lie across lines are read and written more slowly."""
    size = prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE:
        return make(shape, dtype)
    memory = make(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    found: Array = memory[first : first + size].view(dtype).reshape(shape)
    return found


class Call:
    """One call of the core, the plan taken up. Its passes find here the arrays over tokens ``x``
    [B, T, H, *axes], the ``state`` that they carry on [B, H, *axes] and what is ``fixed``
    [1, H or 1, 1, *axes]; they fill ``outputs``, and give back what `Walk.pull` needs where
    ``keep`` is set. Going back, they take ``cotangents`` of outputs (None: 0) and add to ``dx`` and
    ``dstate``, and to the params' by `add`; ``dx`` of what is not in ``written`` is still 0, or
    to be overwritten.
    """

    def __init__(
        self, program: Program, x: Arrays, state: Arrays, run: Any, back: bool = False
    ) -> None:
        self.program, self.run, self.x, self.state = program, run, dict(x), dict(state)
        self.plan = plan = (program.plan.back if back else None) or program.plan
        faster = program.mixes(self.x) if program.mixes is not None else 0.0
        self.mixed = faster > 0
        plan = plan.mixed(faster) if self.mixed else plan
        heads = run.B * run.H
        mode, C = plan.choose(run.T, heads, run.dims, run.mode)
        self.by_token = mode == "recurrent"
        self.passes: Sequence[Walk] = program.passes
        if self.by_token and program.token is not None:
            self.passes = (program.token,)
        self.C = max(1, min(run.chunk or C, run.T))
        self.n = 1 if self.by_token else plan.together(self.C, heads, run.dims)
        self.fixed: Arrays = {
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
        delays: dict[str, list[int]] = {}
        for label in sorted({name for p in self.passes for name in p.inputs if "@" in name}):
            name, offset = label.split("@")
            delays.setdefault(name, []).append(-int(offset))
        for name, ago in delays.items():
            self.x |= self.delayed(name, ago)
        if program.counts:
            start = self.state["position"]
            self.x["t"] = (start[:, None] + np.arange(1, run.T + 1)).astype(run.dtype)[:, :, None]
        if not run.T:
            self.passes = ()
        names = [name for p in self.passes for name in p.states]
        self.carried = {rows.field for rows in program.kept if not run.T or rows.field in names}
        self.growing = [rows.field for rows in program.kept if rows.length is None]
        self.past = self.start[self.growing[0]].shape[2] if self.growing else None
        for field in self.growing:
            if self.start[field].shape[2] != self.past:
                got = self.start[field].shape[2]
                raise ValueError(f"state.{field}: expected {self.past} rows, got {got}")
        self.keep = False
        self.outputs: Arrays = {}
        self.dpast: Arrays = {}
        self.dstart: Arrays = {}
        self.written: set[str] = set()

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

    def delayed(self, name: str, ago: list[int]) -> Arrays:
        """An input of some numbers of tokens ago, each [B, T, H, *axes] by its label, from the past
        before the start: views of one array."""
        x, past, most = self.x[name], np.moveaxis(self.state[f"{name}_past"], 2, 1), max(ago)
        past = past[:, max(past.shape[1] - most, 0) :]
        none = np.zeros((past.shape[0], most - past.shape[1], *past.shape[2:]), past.dtype)
        every = np.concatenate([none, past, x[:, : max(self.run.T - min(ago), 0)]], 1)
        return {f"{name}@-{by}": every[:, most - by : most - by + self.run.T] for by in ago}

    def every(self, rows: Rows, last: int | None = None) -> tuple[Array, int]:
        """The values before the call and those of its tokens [B, H, P + T, *axes], and P; with
        ``last`` of that many tokens at most, the newest."""
        x = self.x[rows.source][:, max(self.run.T - last, 0) if last else 0 :]
        x = np.moveaxis(x, 1, 2).astype(self.run.dtype, copy=False)
        parts = [self.start[rows.field]] if rows.length != 0 else []
        parts += [self.start[rows.state][:, :, None]] if rows.state is not None else []
        parts = [part for part in parts if part.shape[2]]
        past = sum(part.shape[2] for part in parts)
        return (np.concatenate([*parts, x], 2) if parts else x), past

    def pull(self, rows: Rows, d: Array, later: int = 0) -> None:
        """Adds the cotangent ``d`` of the last values, but for ``later`` more that follow them, to
        those of what they are of."""
        past = self.start[rows.field].shape[2] if rows.length != 0 else 0
        known = past + (rows.state is not None)
        stop = known + self.run.T - later

        def add(to: Array, first: int) -> None:
            """To what lies from ``first`` on among all the values, what ``d`` has of it."""
            at = stop - d.shape[2]
            begin, end = max(first, at), min(first + to.shape[2], stop)
            if begin < end:
                to[:, :, begin - first : end - first] += d[:, :, begin - at : end - at]

        if rows.length != 0:
            add(self.dpast[rows.field], 0)
        if rows.state is not None:
            start = self.dstart.setdefault(
                rows.state, np.zeros((*d.shape[:2], *d.shape[3:]), d.dtype)
            )
            add(start[:, :, None], past)
        add(np.moveaxis(self.dx[rows.source], 1, 2), known)
        self.written.add(rows.source)

    def add(self, name: str, d: Array | None) -> None:
        """Adds ``d`` [B, H or 1, 1, *axes], over the sequences, to the cotangent of a param."""
        if d is not None and name in self.dparams:
            each = np.broadcast_to(d, (*d.shape[:1], self.run.H, *d.shape[2:]))
            self.dparams[name] += each.sum((0, 2))

    def forward(self, keep: bool) -> tuple[Arrays, Arrays, list[Any]]:
        """Outputs, final states, and with ``keep`` what each pass needs to go back, in place of
        outputs."""
        self.keep = keep
        for name in self.program.outputs:
            self.into(name)
        kept = [p.run(self) for p in self.passes]
        return self.outputs, self.final(), kept

    def into(self, name: str, axes: tuple[int, ...] = ()) -> Array:
        """Where an output goes, or a stored value with ``axes``, which later passes find in x."""
        if name not in self.outputs:
            run, shape = self.run, self.program.outputs.get(name)
            axes = axes if shape is None else shape(run.dims)
            self.outputs[name] = in_lines((run.B, run.T, run.H, *axes), run.dtype)
            if shape is None:
                self.x[name] = self.outputs[name]
        into: Array = self.outputs[name]
        return into

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
                length = rows.length
                every, _ = self.every(rows, None if length is None else length + 1)
                stop = every.shape[2] - (rows.state is not None)
                if length is None:
                    length = self.start[rows.field].shape[2] + self.run.T
                found[rows.field] = every[:, :, stop - length : stop]
        return {name: np.array(value, order="C") for name, value in found.items()}

    def backward(self, kept: list[Any], cotangents: Arrays, ends: Arrays) -> tuple[Arrays, Arrays]:
        """Gradients of inputs and params, and of the initial state, after a forward that kept what
        passes need."""
        run, program = self.run, self.program
        whole = self.overwritten()
        self.dx = {
            name: in_lines(
                (run.B, run.T, run.H, *x.shape[3:]),
                run.dtype,
                np.empty if name in whole else np.zeros,
            )
            for name, x in self.x.items()
            if x is not None and name not in program.params and x.ndim > 2
        }
        self.dparams = {
            n: np.zeros(self.x[n].shape, run.dtype) for n in program.params if self.x[n] is not None
        }
        self.dstate = {
            name: np.zeros_like(self.state[name])
            if ends.get(name) is None
            else np.array(ends[name])
            for name in [*program.states, *self.carried]
        }
        self.dpast = {
            rows.field: np.zeros(self.start[rows.field].shape, run.dtype) for rows in program.kept
        }
        for rows in program.kept:
            if ends.get(rows.field) is not None and rows.field not in self.carried:
                self.pull(rows, ends[rows.field], later=int(rows.state is not None))
        self.cotangents = {**dict.fromkeys(program.outputs), **cotangents}
        for p, needed in reversed(list(zip(self.passes, kept))):
            p.pull(self, needed)
        return self.collected()

    def overwritten(self) -> set[str]:
        """Inputs whose cotangents are put whole where they go before anything is added to them."""
        first = {name: p.overwrites for p in self.passes for name in p.inputs}
        added = {rows.source for rows in self.program.kept}
        return {name for name, overwrites in first.items() if overwrites} - added

    def collected(self) -> tuple[Arrays, Arrays]:
        """Gradients by argument: delays taken back to their inputs and pasts, starts to the params
        that make them."""
        program, dx, dstate = self.program, self.dx, self.dstate
        for rows in (rows for rows in program.kept if rows.field == f"{rows.source}_past"):
            for label in [key for key in dx if key.startswith(f"{rows.source}@")]:
                by = -int(label.split("@")[1])
                self.pull(rows, np.moveaxis(dx[label], 1, 2), later=by)
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
                self.add(name, d)
        return {**dx, **self.dparams}, initial
