"""A tile program in, C expressions of its entries out: each value is a function of the indices of
its axes.

A value is *stored*, a tile in memory or a plain variable, or else it is written where it is read:
views, moves of indices and cheap elementwise work need no memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lacc.backends.c_text import (
    TILEWISE,
    elementwise,
    number,
    plus,
    size,
    times,
    whole,
    words,
)
from lacc.backends.text import CHOICE, COMPARE, PRODUCT, SUM, Text
from lacc.ir.ops import OPS
from lacc.spec.shapes import Size
from lacc.tile.program import TIME, Axes, Program

Index = dict[str, str]
"""The C expression of the index of each axis."""

Source = tuple[int, Index, str]
"""An entry of a value, and the condition on which it is taken ("": always)."""

RESULTS = words("meet meet_pull meets_pull decayed_pull chain_parts solve_parts")
"""Ops with several results, to be picked."""

DENSE = RESULTS | words(
    "tropical running solve inverse dense_solve levels gram decayed prefix_pull "
    "suffix_pull whole_pull matrix_pull pulled"
)
"""Ops that take their operands as dense tiles in the order of their axes."""

MEMORY = (DENSE - RESULTS) | words(
    "load contract accumulate lower sum largest smallest scan scan_back prefix suffix whole "
    "matrix pick"
)
"""Ops whose one result lies in memory."""

ALIASES = words("within pooled instead through_time stop_gradient")
"""Ops that give their first operand. `pooled` does, because what it feeds is summed as it leaves:
over the chunks of a sequence here, over sequences by the caller."""

MOVES = words("shift before put roll concat place_row stack")
"""Ops that give entries of an operand elsewhere, or 0."""

VIEWS = ALIASES | words("rename expand entry take row unfold")
"""Ops of which an entry is one of the first operand, at an index that goes up in equal steps."""

SPELT = {"'": "_p", "*": "_x", "<": "_l", "|": "_o", "/": "_d", "+": "_a", "-": "_m"}
"""Characters of axes in names of variables."""


KEPT = "kept->"
"""Plain variables that each head has for itself."""


def index_name(axis: str) -> str:
    """The loop variable of an axis: one of its own for each."""
    if axis in TIME:
        return axis
    return "i_" + "".join(c if c.isascii() and c.isalnum() else SPELT.get(c, "_") for c in axis)


def identity(axes: Iterable[str]) -> Index:
    """Each axis by its own loop variable."""
    return {a: index_name(a) for a in axes}


@dataclass(frozen=True, slots=True)
class View:
    """Entries of memory: ``base[offset + Σ index · stride]``."""

    base: str
    offset: str
    strides: Mapping[str, str]

    @property
    def pointer(self) -> str:
        """The address of the first entry."""
        return plus(self.base, self.offset)


class Values:
    """The entries of the values of ``program``; ``arrays`` names the array that each load is of."""

    tilewise: Mapping[str, str] = TILEWISE

    def __init__(self, program: Program, arrays: Mapping[int, str]) -> None:
        self.program, self.body, self.arrays = program, program.body, arrays
        self.stored: set[int] = set()
        self.names: dict[int, str] = {}
        """The variable of each stored value."""
        self.locals: dict[int, str] = {}
        """Values of the loop that is being written that are variables of it."""

    def given(self, n: int) -> str:
        """Whether there is the array that a load is of."""
        return f"{self.arrays[n]}.data"

    def room(self, n: int) -> str:
        """The memory of decays."""
        return f"{self.names[n].removeprefix(KEPT)}_room"

    # ---- sizes -----------------------------------------------------------------------------------

    def length(self, axis: str, most: bool = False) -> str:
        """The entries of an axis; of tokens those at hand, or the most there are in a chunk."""
        if axis in TIME:
            return "L" if most else "C"
        return size(self.program.sizes[axis]).code

    def entries(self, axes: Axes, most: bool = False) -> str:
        """How many entries a tile has."""
        return times(*(self.length(a, most) for a in axes))

    def dense(self, axes: Axes) -> Index:
        """The strides of a tile, the last axis first."""
        return {a: self.entries(axes[n + 1 :]) for n, a in enumerate(axes)}

    # ---- entries ---------------------------------------------------------------------------------

    def at(self, n: int, index: Index) -> Text:
        """The entry of value ``n`` at ``index`` (which may name more axes)."""
        if n in self.locals:
            return Text(self.locals[n])
        return Text(self.entry(n, index)) if n in self.stored else self.computed(n, index)

    def entry(self, n: int, index: Index | None = None) -> str:
        """The entry of a stored value, at the loop variables of its axes without ``index``."""
        axes = self.body[n].axes
        if not axes:
            return self.names[n]
        at, strides = index or identity(axes), self.dense(axes)
        return f"{self.names[n]}[{plus(*(times(at[a], strides[a]) for a in axes))}]"

    def address(self, n: int) -> str:
        """The address of a stored value."""
        return self.names[n] if self.body[n].axes else f"&{self.names[n]}"

    def computed(self, n: int, index: Index) -> Text:
        """What the entry at ``index`` is computed as."""
        inst = self.body[n]
        if inst.op not in ALIASES and inst.op in OPS and OPS[inst.op].entrywise:
            return elementwise(inst.op, [self.at(i, index) for i in inst.ins])
        match inst.op:
            case "const":
                return number(inst.value)
            case "size":
                return Text(f"(real)({size(inst.value).code})")
            case "eye":
                a, b = (whole(index[x]) for x in inst.axes)
                return Text(f"{a} == {b}", COMPARE)
            case "age":
                return Text(f"(real)({self.length(inst.value)} - 1 - {whole(index[inst.value])})")
        *chosen, (source, moved, when) = self.sources(n, index)
        code = self.at(source, moved)
        if when:
            code = Text(f"{when} ? {code.within(COMPARE)} : R(0)", CHOICE)
        for source, moved, when in reversed(chosen):
            taken = self.at(source, moved).within(COMPARE)
            code = Text(f"{when} ? {taken} : {code.code}", CHOICE)
        return code

    def sources(self, n: int, index: Index) -> list[Source]:
        """What the entry at ``index`` of a value that is not stored is made of: the last is taken
        where no other is."""
        inst = self.body[n]
        op, value, ins = inst.op, inst.value, inst.ins
        match op:
            case "const" | "size" | "eye" | "age":
                return []
            case "rename":
                first = {new: old for old, new in value}
                own = {first.get(a, a): i for a, i in index.items() if a in inst.axes}
                return [(ins[0], own, "")]
            case "entry":
                return [(ins[0], {**index, value[0]: str(value[1])}, "")]
            case "take":
                axis, new, start, step = value
                moved = plus(size(start).within(SUM), times(index[new], str(step)))
                return [(ins[0], {**_without(index, new), axis: moved}, "")]
            case "fold":
                rows, columns, flat = value
                i, length = whole(index[flat]), whole(self.length(columns))
                apart = {rows: f"{i} / {length}", columns: f"{i} % {length}"}
                return [(ins[0], {**_without(index, flat), **apart}, "")]
            case "unfold":
                rows, columns, flat = value
                moved = plus(times(index[rows], self.length(columns)), index[columns])
                return [(ins[0], {**_without(index, rows, columns), flat: moved}, "")]
            case "default":
                return [(ins[0], index, self.given(ins[0])), (ins[1], index, "")]
            case "omitted":
                return [(ins[0], index, f"!{self.given(ins[1])}")]
            case "row" | "mask" | "place_row" | "shift" | "before":
                return self._in_time(n, index)
            case "roll":
                axis, by = value
                length = whole(self.length(axis))
                moved = f"(({index[axis]} + {length} - ({by}) % {length}) % {length})"
                return [(ins[0], {**index, axis: moved}, "")]
            case "put":
                return [self._put(ins[0], value, index)]
            case "concat":
                return self._joined(n, index)
            case "stack":
                i = whole(index[value])
                return [
                    (part, index, f"{i} == {k}" if k + 1 < len(ins) else "")
                    for k, part in enumerate(ins)
                ]
        return [(i, index, "") for i in (ins[:1] if op in VIEWS else ins)]

    def _in_time(self, n: int, index: Index) -> list[Source]:
        """The sources of what goes by the token."""
        inst = self.body[n]
        first, t = inst.ins[0], whole(index.get("t", ""))
        match inst.op:
            case "row":
                return [(first, {**index, "t": "C - 1" if inst.value else "0"}, "")]
            case "mask":
                sign = ">" if inst.value else ">="
                return [(first, index, f"{t} {sign} {whole(index['s'])}")]
            case "place_row":
                return [(first, index, f"{t} == {'C - 1' if inst.value else '0'}")]
            case "shift" if inst.value:
                return [(first, {**index, "t": f"{t} + 1"}, f"{t} + 1 < C")]
            case "shift":
                return [(first, {**index, "t": f"{t} - 1"}, f"{t} > 0")]
        return [(first, {**index, "t": f"{t} - 1"}, f"{t} > 0"), (inst.ins[1], index, "")]

    def _put(self, part: int, value: tuple[str, str, Size, int], index: Index) -> Source:
        axis, new, start, step = value
        first = size(start)
        away, conditions = whole(index[axis]), []
        if first.code != "0":
            away = f"({away} - {first.within(PRODUCT)})"
            conditions.append(f"{away} >= 0")
        conditions.append(f"{away} < {times(self.length(new), str(step))}")
        if step != 1:
            conditions.append(f"{away} % {step} == 0")
            away = f"{away} / {step}"
        return part, {**_without(index, axis), new: away}, " && ".join(conditions)

    def _joined(self, n: int, index: Index) -> list[Source]:
        inst = self.body[n]
        axis, axes = inst.value
        found: list[Source] = []
        i, start = whole(index[axis]), "0"
        for k, (part, own) in enumerate(zip(inst.ins, axes)):
            moved = i if start == "0" else f"{i} - ({start})"
            start = plus(start, self.length(own))
            when = f"{i} < {start}" if k + 1 < len(axes) else ""
            found.append((part, {**_without(index, axis), own: moved}, when))
        return found

    def leaves(self, n: int, index: Index, top: bool = True) -> Iterator[tuple[int, Index]]:
        """The stored values whose entries make that of ``n`` at ``index``, and which entries;
        ``n`` itself only with ``top`` false."""
        if n in self.stored and not top:
            yield n, {a: index[a] for a in self.body[n].axes}
            return
        for i, moved, _ in self.sources(n, index):
            yield from self.leaves(i, moved, False)

    def work(self, n: int) -> float:
        """Flops of one entry of a value that is not stored."""
        inst = self.body[n]
        if n in self.stored:
            return 0.0
        own = OPS[inst.op].flops if inst.op in OPS and OPS[inst.op].entrywise else 0.0
        return own + sum(map(self.work, inst.ins))

    # ---- views -----------------------------------------------------------------------------------

    def view(self, n: int) -> View | None:
        """Where the entries of ``n`` lie, if they do so with a stride for each axis."""
        inst = self.body[n]
        if n in self.stored:
            name = self.names.get(n, "")
            return View(name if inst.axes else f"&{name}", "0", self.dense(inst.axes))
        inner = self.view(inst.ins[0]) if inst.op in VIEWS else None
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
                offset = plus(offset, times(str(value[1]), strides.pop(value[0])))
            case "take":
                axis, new, start, step = value
                stride = strides.pop(axis)
                offset = plus(offset, times(size(start).code, stride))
                strides[new] = times(str(step), stride)
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
        return view is not None and view.strides == self.dense(axes)

    def tile_function(self, n: int) -> str:
        """The function that makes all entries of ``n`` of a tile of as many; "" where none does."""
        inst = self.body[n]
        function = self.tilewise.get(inst.op, "")
        wide = any(a not in TIME for a in inst.axes)
        return function if function and wide and self.is_dense(inst.ins[0], inst.axes) else ""

    def pointer(self, n: int) -> str:
        """The address of the first entry of a value that has a view."""
        view = self.view(n)
        assert view is not None
        return view.pointer


def _without(index: Index, *axes: str) -> Index:
    return {a: i for a, i in index.items() if a not in axes}
