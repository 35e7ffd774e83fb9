"""A program with its masks and arrays of true size in, its outputs for padded tiles out: what a
target of padded tiles computes, as badly as `lacc.tile.held` allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from programs import Loads

from lacc.ir.ops import OPS
from lacc.tile.held import ANY, FINITE, Fill, Held, Padding, subsets
from lacc.tile.meaning import Frame, place
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import Axes, Inst, Program


class Padded:
    """One run: axes are as long as the next power of two beyond their true sizes; what a value may
    hold in padding it does hold, NaN where that is anything. ``without`` leaves one mask out."""

    def __init__(
        self,
        program: Program,
        loads: Loads,
        dims: Mapping[str, int],
        tokens: int,
        without: int | None = None,
    ) -> None:
        self.program, self.loads, self.without = program, loads, without
        axes = {a for inst in program.body for a in inst.axes} | {"t", "s"}
        given = {"t": tokens, "s": tokens}
        self.true = {a: given[a] if a in given else program.sizes[a].evaluate(dims) for a in axes}
        self.wide = {a: 1 << n.bit_length() for a, n in self.true.items()}
        self.sizes = {**dims, **self.true}
        self.held = Held(program.body)
        self.random = np.random.default_rng(0)
        self.values: list[Any] = []
        with np.errstate(all="ignore"):
            for n in range(len(program.body)):
                self.values.append(self._spoilt(n, self._value(n)))

    def outputs(self) -> dict[str, Any]:
        """The part of each output that is there."""
        return {
            name: self.values[n][self.region(self.program.body[n].axes, frozenset())]
            for name, n in self.program.outs.items()
        }

    def paddings(self, n: int) -> Iterable[tuple[Padding, Any]]:
        """Every part of value ``n`` that is not, by the axes that are padding there."""
        axes = self.program.body[n].axes
        for p in subsets(axes):
            if p:
                yield p, self.values[n][self.region(axes, p)]

    def region(self, axes: Axes, padding: Padding) -> tuple[slice, ...]:
        """Where exactly some axes are padding."""
        return tuple(
            slice(self.true[a], None) if a in padding else slice(self.true[a]) for a in axes
        )

    def _spoilt(self, n: int, x: Any) -> Any:
        """A value with the worst in its padding that it may hold there."""
        axes = self.program.body[n].axes
        if not isinstance(x, np.ndarray):
            return x
        x = np.array(np.broadcast_to(x, [self.wide[a] for a in axes]), float)
        for p, fill in self.held.of(n).items():
            if p:
                part = x[self.region(axes, p)]
                assert self.without is not None or kept(part, fill), f"%{n}: not {fill} in {p}"
                if fill == ANY:
                    part[...] = np.nan
                elif fill == FINITE:
                    part[...] = self.random.uniform(-3, 3, part.shape)
        return x

    def _value(self, n: int) -> Any:
        inst = self.program.body[n]
        args = [self.values[i] for i in inst.ins]
        ins = tuple(self.program.body[i].axes for i in inst.ins)
        wide = Frame(inst.axes, ins, {**self.sizes, **self.wide})
        match inst.op:
            case "load":
                x = self.loads[inst.value]
                ends = [(0, self.wide[a] - self.true[a]) for a in inst.axes]
                return None if x is None else np.pad(x, ends) if ends else np.asarray(x)
            case "size":
                return np.asarray(float(inst.value.evaluate(self.sizes)))
            case "within":
                return args[0] if n == self.without else self._masked(inst, args[0])
            case "age":
                (axis,) = inst.axes
                return self.true[axis] - 1.0 - np.arange(self.wide[axis])
            case "row":
                at = self.true["t"] - 1 if inst.value else 0
                rest = tuple(a for a in ins[0] if a != "t")
                return place(np.take(args[0], at, ins[0].index("t")), rest, inst.axes)
            case "place_row":
                x = np.zeros([self.wide[a] for a in inst.axes])
                x[self.true["t"] - 1 if inst.value else 0] = args[0]
                return x
            case "take" | "put" | "concat" | "roll" | "fold" | "unfold":
                return self._moved(inst, ins, args)
            case "dense_solve":
                return self._eliminated(inst, ins, args)
        if inst.op in TILE_OPS:
            return TILE_OPS[inst.op].numpy(inst.value, wide, *args)
        meaning = OPS[inst.op].numpy
        assert meaning is not None
        return np.asarray(meaning(*(place(a, x, inst.axes) for a, x in zip(args, ins))))

    def _masked(self, inst: Inst, x: Any) -> Any:
        axes, fill = inst.value
        x = x.copy()
        for p in subsets(inst.axes):
            if p & set(axes):
                x[self.region(inst.axes, p)] = fill
        return x

    def _moved(self, inst: Inst, ins: tuple[Axes, ...], args: list[Any]) -> Any:
        """Entries moved by true sizes; those behind are anything."""
        match inst.op:
            case "concat":
                moved = {inst.value[0], *inst.value[1]}
            case "roll":
                moved = {inst.value[0]}
            case "fold" | "unfold":
                moved = set(inst.value)
            case _:
                moved = set(inst.value[:2])
        cut = [
            a[tuple(slice(self.true[x]) if x in moved else slice(None) for x in have)]
            for a, have in zip(args, ins)
        ]
        sizes = self.sizes
        if inst.op == "concat":
            sizes = {**sizes, **{a: n for a, n in self.wide.items() if a not in moved}}
        found = TILE_OPS[inst.op].numpy(inst.value, Frame(inst.axes, ins, sizes), *cut)
        ends = [(0, self.wide[a] - self.true[a] if a in moved else 0) for a in inst.axes]
        return np.pad(found, ends, constant_values=np.nan)

    def _eliminated(self, inst: Inst, ins: tuple[Axes, ...], args: list[Any]) -> Any:
        """Systems that are there, their true rows; right sides are 0 behind them."""
        _, column = inst.value
        cut = [
            a[tuple(slice(self.true[x]) if x in ins[0] else slice(None) for x in have)]
            for a, have in zip(args, ins)
        ]
        found = TILE_OPS[inst.op].numpy(inst.value, Frame(inst.axes, ins, self.sizes), *cut)
        x = np.full([self.wide[a] for a in inst.axes], np.nan)
        there = {a for a in inst.axes if a in ins[0]}
        at = [slice(self.true[a]) if a in there else slice(None) for a in inst.axes]
        x[tuple(at)] = found
        at[inst.axes.index(column)] = slice(self.true[column], None)
        x[tuple(at)] = 0.0
        return x


def kept(part: Any, fill: Fill) -> bool:
    """Whether numbers are those that a fill stands for; 0 is so exactly."""
    if isinstance(fill, float):
        return np.allclose(part, fill, rtol=1e-12, atol=0.0)
    return fill == ANY or bool(np.isfinite(part).all())
