"""A tile program in, C expressions of its entries out: each value is a function of the indices of
its axes.

A value is *stored*, a tile in memory or a plain variable, or else it is written where it is read:
views, moves of indices and cheap elementwise work need no memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lacc.backends.c_text import elementwise, number, plus, size, times
from lacc.backends.text import ATOM, CHOICE, COMPARE, PRODUCT, SUM, Text
from lacc.ir.ops import OPS
from lacc.tile.program import Axes, Program

Index = Mapping[str, str]
"""The C expression of the index of each axis."""

MEMORY = frozenset(
    ["load", "contract", "accumulate", "sum", "largest", "smallest", "scan", "scan_back", "tropical", "running", "solve", "solve_parts", "inverse", "dense_solve", "chain_parts", "levels", "prefix", "suffix", "whole", "matrix", "gram", "meet", "decayed", "meet_pull", "decayed_pull", "prefix_pull", "suffix_pull", "whole_pull", "matrix_pull", "pick"]
)
"""Ops whose results lie in memory."""

ALIASES = frozenset(("within", "pooled", "instead", "through_time", "stop_gradient"))
"""Ops that give their first operand. `pooled` does, because what it feeds is summed as it leaves:
over the chunks of a sequence here, over sequences by the caller."""

MOVES = frozenset(("shift", "before", "put", "roll", "concat", "place_row", "stack"))
"""Ops that give entries of an operand elsewhere, or 0."""

DEAR = 4.0
"""Flops of an entry from which on it is computed once and stored."""


@dataclass(frozen=True, slots=True)
class View:
    """Entries of memory: ``base[offset + Σ index · stride]``."""

    base: str
    offset: str
    strides: Mapping[str, str]


class Values:
    """The entries of the values of ``program``; ``arrays`` names the array that each load is of."""

    def __init__(self, program: Program, arrays: Mapping[int, str]) -> None:
        self.program, self.body, self.arrays = program, program.body, arrays
        self.names: dict[int, str] = {}
        """The variable of each stored value."""
        self.stored: set[int] = set()
        self.locals: dict[int, str] = {}
        """Values of the loop that is being written that are variables of it."""

    # ---- sizes -----------------------------------------------------------------------------------

    def length(self, axis: str, most: bool = False) -> str:
        """The entries of an axis; of tokens those at hand, or the most there are in a chunk."""
        if axis in ("t", "s"):
            return "L" if most else "C"
        return size(self.program.sizes[axis]).code

    def entries(self, axes: Axes, most: bool = False) -> str:
        """How many entries a tile has."""
        return times(*(self.length(a, most) for a in axes))

    def dense(self, axes: Axes) -> dict[str, str]:
        """The strides of a tile, the last axis first."""
        return {a: times(*map(self.length, axes[n + 1 :])) for n, a in enumerate(axes)}

    # ---- entries ---------------------------------------------------------------------------------

    def at(self, n: int, index: Index) -> Text:
        """The entry of value ``n`` at ``index`` (which may name more axes)."""
        inst = self.body[n]
        if n in self.locals:
            return Text(self.locals[n])
        if n in self.stored:
            if not inst.axes:
                return Text(self.names[n])
            strides = self.dense(inst.axes)
            return Text(
                f"{self.names[n]}[{plus(*(times(index[a], strides[a]) for a in inst.axes))}]"
            )
        if inst.op in OPS and inst.op not in ALIASES and OPS[inst.op].entrywise:
            return elementwise(inst.op, [self.at(i, index) for i in inst.ins])
        match inst.op:
            case "const":
                return number(inst.value)
            case "size":
                return Text(f"(real)({size(inst.value).code})", ATOM)
            case "eye":
                a, b = (index[x] for x in inst.axes)
                return Text(f"{_whole(a)} == {_whole(b)}", COMPARE)
            case "age":
                return Text(f"(real)({self.length(inst.value)} - 1 - {_whole(index[inst.value])})")
        *chosen, (n, moved, when) = self.sources(n, index)
        code = self.at(n, moved)
        if when:
            code = Text(f"{when} ? {code.within(COMPARE)} : R(0)", CHOICE)
        for n, moved, when in reversed(chosen):
            code = Text(f"{when} ? {self.at(n, moved).within(COMPARE)} : {code.code}", CHOICE)
        return code

    def sources(self, n: int, index: Index) -> list[tuple[int, Index, str]]:
        """What the entry at ``index`` of a value that is not stored is made of: values, the indices
        of their entries, and the condition on which each is taken ("": always)."""
        inst = self.body[n]
        op, value, ins = inst.op, inst.value, inst.ins
        at = dict(index)
        match op:
            case "const" | "size" | "eye" | "age":
                return []
            case "rename":
                old = {new: first for first, new in value}
                return [(ins[0], {old.get(a, a): i for a, i in at.items()} if old else at, "")]
            case "entry":
                return [(ins[0], {**at, value[0]: str(value[1])}, "")]
            case "take":
                axis, new, start, step = value
                moved = plus(size(start).within(SUM), times(_whole(at[new]), str(step)))
                return [(ins[0], {**_without(at, new), axis: moved}, "")]
            case "row":
                return [(ins[0], {**at, "t": "C - 1" if value else "0"}, "")]
            case "mask":
                sign = ">" if value else ">="
                return [(ins[0], at, f"{_whole(at['t'])} {sign} {_whole(at['s'])}")]
            case "place_row":
                edge = "C - 1" if value else "0"
                return [(ins[0], at, f"{_whole(at['t'])} == {edge}")]
            case "shift":
                t = _whole(at["t"])
                there, when = (f"{t} + 1", f"{t} + 1 < C") if value else (f"{t} - 1", f"{t} > 0")
                return [(ins[0], {**at, "t": there}, when)]
            case "before":
                t = _whole(at["t"])
                return [(ins[0], {**at, "t": f"{t} - 1"}, f"{t} > 0"), (ins[1], at, "")]
            case "roll":
                axis, by = value
                length = _whole(self.length(axis))
                moved = f"(({_whole(at[axis])} - {by}) % {length} + {length}) % {length}"
                return [(ins[0], {**at, axis: moved.replace("- -", "+ ")}, "")]
            case "put":
                return [self._put(ins[0], value, at)]
            case "concat":
                return self._joined(n, at)
            case "stack":
                i = _whole(at[value])
                conditions = [f"{i} == {k}" for k in range(len(ins) - 1)] + [""]
                return [(part, at, when) for part, when in zip(ins, conditions)]
            case "fold":
                rows, columns, flat = value
                i, length = _whole(at[flat]), _whole(self.length(columns))
                moved = {rows: f"{i} / {length}", columns: f"{i} % {length}"}
                return [(ins[0], {**_without(at, flat), **moved}, "")]
            case "unfold":
                rows, columns, flat = value
                moved = plus(times(at[rows], self.length(columns)), at[columns])
                return [(ins[0], {**_without(at, rows, columns), flat: moved}, "")]
            case "default":
                return [(ins[0], at, f"{self.arrays[ins[0]]}.data"), (ins[1], at, "")]
            case "omitted":
                return [(ins[0], at, f"!{self.arrays[ins[1]]}.data")]
            case "expand":
                return [(ins[0], at, "")]
        if op in ALIASES:
            return [(ins[0], at, "")]
        return [(i, at, "") for i in ins]

    def _put(
        self, part: int, value: tuple[str, str, object, int], at: Index
    ) -> tuple[int, Index, str]:
        axis, new, start, step = value
        first = size(start)  # type: ignore[arg-type]
        away = (
            f"({_whole(at[axis])} - {first.within(PRODUCT)})"
            if first.code != "0"
            else _whole(at[axis])
        )
        when = f"{away} < {times(self.length(new), str(step))}"
        if first.code != "0":
            when = f"{away} >= 0 && {when}"
        if step != 1:
            when = f"{when} && {away} % {step} == 0"
        moved = away if step == 1 else f"{away} / {step}"
        return part, {**_without(at, axis), new: moved}, when

    def _joined(self, n: int, at: Index) -> list[tuple[int, Index, str]]:
        inst = self.body[n]
        whole, axes = inst.value
        found, start = [], "0"
        for part, axis in zip(inst.ins, axes):
            i = _whole(at[whole])
            end = plus(start, self.length(axis))
            moved = i if start == "0" else f"{i} - ({start})"
            when = "" if part is inst.ins[-1] and axis == axes[-1] else f"{i} < {end}"
            found.append((part, {**_without(at, whole), axis: moved}, when))
            start = end
        return found

    # ---- views -----------------------------------------------------------------------------------

    def view(self, n: int) -> View | None:
        """Where the entries of ``n`` lie, if they do so with a stride for each axis."""
        inst = self.body[n]
        if n in self.stored:
            if not inst.axes:
                return View(f"&{self.names.get(n, '')}", "0", {})
            return View(self.names.get(n, ""), "0", self.dense(inst.axes))
        if inst.op not in ("rename", "expand", "entry", "take", "row", "unfold", *ALIASES):
            return None
        inner = self.view(inst.ins[0])
        if inner is None:
            return None
        strides, value, offset = dict(inner.strides), inst.value, inner.offset
        match inst.op:
            case "rename":
                new = dict(value)
                strides = {new.get(a, a): stride for a, stride in strides.items()}
            case "expand":
                strides |= dict.fromkeys(value, "0")
            case "entry":
                offset = plus(
                    offset, times(str(value[1]), strides.pop(value[0])) if value[1] else "0"
                )
            case "take":
                axis, axis_new, start, step = value
                stride = strides.pop(axis)
                if size(start).code != "0":
                    offset = plus(offset, times(size(start).code, stride))
                strides[axis_new] = times(str(step), stride)
            case "row":
                stride = strides.pop("t")
                offset = plus(offset, times("C - 1", stride)) if value else offset
            case "unfold":
                rows, columns, flat = value
                stride = strides.pop(flat)
                strides |= {rows: times(self.length(columns), stride), columns: stride}
        return View(inner.base, offset, strides)

    def is_dense(self, n: int, axes: Axes) -> bool:
        """Whether the entries of ``n`` lie as a tile over ``axes``."""
        view = self.view(n)
        return view is not None and dict(view.strides) == self.dense(axes)

    def pointer(self, n: int) -> str:
        """The address of the first entry."""
        view = self.view(n)
        assert view is not None
        return view.base if view.offset == "0" else f"{view.base} + {view.offset}"

    # ---- what is stored --------------------------------------------------------------------------

    def leaves(self, n: int, index: Index, top: bool = True) -> Iterator[tuple[int, Index]]:
        """The stored values whose entries make that of ``n`` at ``index``, and which entries."""
        if n in self.stored and not top:
            yield n, {a: index[a] for a in self.body[n].axes}
            return
        for i, moved, _ in self.sources(n, index):
            yield from self.leaves(i, moved, False)

    def work(self, n: int) -> float:
        """Flops of one entry of a value that is not stored."""
        if n in self.stored:
            return 0.0
        inst = self.body[n]
        own = OPS[inst.op].flops if inst.op in OPS and OPS[inst.op].entrywise else 0.0
        if all(self.body[i].op in ("const", "size") for i in inst.ins) and not inst.axes:
            own = 0.0
        return own + sum(map(self.work, inst.ins))


def _whole(index: str) -> str:
    """An index as an operand of any operator."""
    return index if index.replace("_", "").isalnum() else f"({index})"


def _without(at: Index, *axes: str) -> dict[str, str]:
    return {a: i for a, i in at.items() if a not in axes}
