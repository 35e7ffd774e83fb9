"""Tiles of a pass over time in, the pass out: it goes a block of chunks at a time.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file. A tile
is an array [B, H, n, *axes] for n chunks; C is the chunk's length, the first of a tile's axes where
it is over time. A block's tiles are small enough to stay in cache, so long sequences stream through
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.runtime.contract import Array
from lacc.runtime.walk import Call, tiles

KEPT = 64  # tokens between two states that the backward pass of a token program keeps


def spans(T: int, C: int, n: int) -> Iterator[tuple[int, int, int]]:
    """Blocks of whole chunks (start, chunks, length), then the tail as a chunk of its own."""
    whole = T // C
    for first in range(0, whole, n):
        yield first * C, min(n, whole - first), C
    if T % C:
        yield whole * C, 1, T % C


@dataclass(frozen=True)
class Pass:
    """A `Walk` by functions of tiles.

    ``prepare(C, dims, dtype, fixed, last) -> constants`` of ``forward``, ``prepare_back`` of
    ``backward``;
    ``forward(inputs, states, constants, n, C, dims, dtype, outputs) -> (outputs, states, starts)``,
    starts: the states of every chunk, and with ``outputs`` false no outputs but what passes read;
    ``backward(inputs, starts, constants, cotangents, dstates, n, C, dims, dtype) -> (dinputs,
    dfixed, dlast, dstates)``; arguments and results are tuples in the order of the names; None
    stands for what is not there.
    """

    reverse: bool
    inputs: tuple[str, ...]
    fixed: tuple[str, ...]
    last: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    prepare: Callable[..., Any] | None
    prepare_back: Callable[..., Any] | None
    forward: Callable[..., Any]
    backward: Callable[..., Any]

    @property
    def overwrites(self) -> bool:
        """Inputs may have no cotangent, which then is to be 0 already."""
        return False

    def run(self, call: Call) -> list[Any]:
        """Outputs and states, and the states that each block or chunk starts from."""
        run, constants = call.run, Constants(self.prepare, self, call)
        states, starts = tuple(call.state[name] for name in self.states), []
        for at, n, C in spans(run.T, call.C, call.n):
            before, dims = states, call.dims(at)
            given = (self.taken(call, at, n, C), states, constants[C], n, C, dims, run.dtype)
            skip = () if call.by_token else (not call.keep,)
            values, states, first = self.forward(*given, *skip)
            if call.keep and not call.by_token:
                starts.append(first)
            elif call.keep and at % KEPT == 0:
                starts.append(before)
            for name, value in zip(self.outputs, values):
                into = call.into(name, np.shape(value)[4 - call.by_token :])
                self.put(call, into, value, at, n, C)
        call.state.update(zip(self.states, states))
        return starts

    def pull(self, call: Call, kept: list[Any]) -> None:
        """Cotangents of what the pass takes, from those of what it gives."""
        run, constants = call.run, Constants(self.prepare_back, self, call)
        dstates = tuple(call.dstate[name] for name in self.states)
        for (at, n, C), starts in self.reversed_blocks(call, kept):
            pulled = tuple(self.cotangent(call, name, at, n, C) for name in self.outputs)
            dinputs, dfixed, dlast, dstates = self.backward(
                self.taken(call, at, n, C),
                starts,
                constants[C],
                pulled,
                dstates,
                n,
                C,
                call.dims(at),
                run.dtype,
            )
            for name, d in zip(self.inputs, dinputs):
                if d is not None and name in call.dx:
                    self.put(call, call.dx[name], d, at, n, C, add=name in call.written)
            for name, d in zip(self.fixed, dfixed):
                call.add(name, d)
            for name, d in zip(self.last, dlast):
                if d is not None:
                    call.dstate[name] = call.dstate[name] + d.sum(2)
        call.dstate.update(zip(self.states, dstates))
        call.written.update(self.inputs)

    def taken(self, call: Call, at: int, n: int, C: int) -> tuple[Any, ...]:
        """The tiles of a block's inputs in the dtype to compute in."""
        found = []
        for name in self.inputs:
            x = call.x[name]
            x = tiles(x[:, ::-1] if self.reverse and x is not None else x, at, n, C)
            x = x if x is None or not call.by_token else x[:, :, :, 0]
            found.append(None if x is None else x.astype(call.run.dtype, copy=False))
        return tuple(found)

    def put(
        self, call: Call, into: Array, value: Array, at: int, n: int, C: int, add: bool = False
    ) -> None:
        """A block's tiles into their tokens."""
        view = tiles(into[:, ::-1] if self.reverse else into, at, n, C)
        assert view is not None
        view = view[:, :, :, 0] if call.by_token else view
        if add:
            view += value
        else:
            view[...] = value

    def reversed_blocks(
        self, call: Call, kept: list[Any]
    ) -> Iterator[tuple[tuple[int, int, int], Any]]:
        """Blocks from last to first, each with the states that its chunks start from; those between
        kept tokens are made again, so that memory does not grow with a state per token."""
        run, blocks = call.run, list(spans(call.run.T, call.C, call.n))
        if not call.by_token:
            yield from zip(reversed(blocks), reversed(kept))
            return
        constants = Constants(self.prepare, self, call)
        for first in reversed(range(0, len(blocks), KEPT)):
            states, group = kept[first // KEPT], []
            for at, n, C in blocks[first : first + KEPT]:
                group.append(((at, n, C), tuple(s[:, :, None] for s in states)))
                given = (self.taken(call, at, n, C), states, constants[C])
                _, states, _ = self.forward(*given, n, C, call.dims(at), run.dtype)
            yield from reversed(group)

    def cotangent(self, call: Call, name: str, at: int, n: int, C: int) -> Array:
        """The cotangent of an output or a stored value, zeros where there is none."""
        run, given = call.run, call.cotangents
        whole = given[name] if name in given else call.dx[name]
        if whole is None:
            shape = call.program.outputs[name](run.dims)
            time = () if call.by_token else (C,)
            return np.zeros((run.B, run.H, n, *time, *shape), run.dtype)
        part = tiles(whole[:, ::-1] if self.reverse else whole, at, n, C)
        assert part is not None
        return (part[:, :, :, 0] if call.by_token else part).astype(run.dtype, copy=False)


class Constants(dict[int, Any]):
    """What ``prepare`` makes for chunks of C tokens, by C."""

    def __init__(self, prepare: Callable[..., Any] | None, p: Pass, call: Call) -> None:
        super().__init__()
        self.prepare, self.p, self.call = prepare, p, call

    def __missing__(self, C: int) -> Any:
        call, made = self.call, ()
        if self.prepare is not None:
            fixed = tuple(call.fixed[name] for name in self.p.fixed)
            last = tuple(call.state[name][:, :, None] for name in self.p.last)
            made = self.prepare(C, call.run.dims, call.run.dtype, fixed, last)
        self[C] = made
        return made
