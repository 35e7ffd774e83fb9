"""Tile values and axes in, Triton expressions out that lay them out in registers: in which order a
tile has its axes, what is inside them, where entries are taken from.

A tile is a tensor with one dimension for each of its axes, in order. An operand is aligned to the
axes of a result by a permutation and by indexing with None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lacc.backends.text import ATOM, COMPARE, SUM, UNARY, Text
from lacc.spec.shapes import Size
from lacc.tile.program import TIME, Axes, Program


@dataclass(frozen=True, slots=True)
class Index:
    """How an axis is written: positions in a tile, which are inside it, how many a tile has."""

    at: str
    inside: str
    block: str


class Layout:
    """Axes of one program; ``index`` writes them, t and s alike, ``size`` a size. Of tokens there
    are `count` in a kernel that has an axis of them."""

    def __init__(
        self, program: Program, index: Mapping[str, Index], size: Callable[[Size], str]
    ) -> None:
        self.program = program
        self.index = index
        self.size = size

    def tensor(self, x: Text, axes: Axes = ()) -> Text:
        """A number as a tensor."""
        return Text(f"tl.full({self.shape(axes)}, {x.code}, FLOAT)") if x.number else x

    def aligned(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` as an operand of something over ``want``: broadcastable, in that order."""
        order = tuple(a for a in want if a in have)
        if order != have:
            if len(have) == 2:
                x = Text(f"tl.trans({x.code})")
            else:
                turn = ", ".join(str(have.index(a)) for a in order)
                x = Text(f"tl.permute({x.code}, ({turn}))")
        if not order or order == want:
            return x
        return Text(f"{x.within(ATOM)}{self.slots(order, want)}")

    def slots(self, axes: Axes | str, want: Axes) -> str:
        """The subscript that lays a tile over ``axes``, in the order of ``want``, out in it."""
        if len(want) == 1:
            return ""
        held = (axes,) if isinstance(axes, str) else axes
        return f"[{', '.join(':' if a in held else 'None' for a in want)}]"

    def wide(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` as a tile over exactly ``want``."""
        if not have:
            if x.number:
                return self.tensor(x, want)
            return Text(f"tl.zeros({self.shape(want)}, FLOAT) + {x.within(SUM)}", SUM)
        x = self.aligned(x, have, want)
        return (
            x if set(have) == set(want) else Text(f"tl.broadcast_to({x.code}, {self.shape(want)})")
        )

    def timed(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` as an operand of something over ``want`` that is t first: with all rows."""
        if "t" not in have:
            x, have = self.wide(x, have, ("t", *have)), ("t", *have)
        return self.aligned(x, have, want)

    def grouped(self, x: Text, have: Axes, *groups: Axes) -> Text:
        """``x`` with one dimension for each group of its axes, of one entry for none."""
        want = tuple(a for group in groups for a in group)
        x = self.aligned(x, have, want)
        if all(len(group) == 1 for group in groups):
            return x
        return Text(f"tl.reshape({x.code}, [{', '.join(map(self.entries, groups))}])")

    def apart(self, x: Text, groups: tuple[Axes, ...], want: Axes) -> Text:
        """``x`` that has one dimension for each group of axes, over ``want``."""
        have = tuple(a for group in groups for a in group)
        if any(len(group) != 1 for group in groups):
            x = Text(f"tl.reshape({x.code}, {self.shape(have)})")
        return self.aligned(x, have, want)

    def entries(self, axes: Axes) -> str:
        """How many entries a tile over axes has."""
        return " * ".join(self.index[a].block for a in axes) or "1"

    def length(self, axis: str) -> str:
        """How many entries an axis has, padding apart."""
        return "count" if axis in TIME else self.size(self.program.sizes[axis])

    def shape(self, axes: Axes) -> str:
        """The shape of a tile."""
        return f"[{', '.join(self.index[a].block for a in axes)}]"

    def inside(self, axes: Axes, want: Axes) -> Text:
        """Where entries of a tile over ``want`` are inside these axes."""
        parts = [f"{self.index[a].inside}{self.slots(a, want)}" for a in axes]
        return Text(" & ".join(parts), COMPARE if len(parts) > 1 else ATOM)

    def at(self, axis: str, want: Axes) -> str:
        """Positions along an axis, for a tile over ``want``."""
        return f"{self.index[axis].at}{self.slots(axis, want)}"

    def offset(self, strides: Mapping[str, str], want: Axes, at: Mapping[str, str]) -> str:
        """Offsets of a tile's entries from a pointer; ``at`` replaces positions of some axes."""
        parts = []
        for axis in want:
            position = f"{at.get(axis, self.index[axis].at)}{self.slots(axis, want)}"
            stride = strides[axis]
            parts.append(position if stride == "1" else f"{position} * {stride}")
        return " + ".join(parts)

    def gathered(self, x: Text, index: str, want: Axes, axis: str) -> Text:
        """Entries of an axis at the ``index`` of it, which broadcasts to a tile over ``want``."""
        n = want.index(axis)
        index = index if len(want) == 1 else f"tl.broadcast_to({index}, {self.shape(want)})"
        return Text(f"tl.gather({x.code}, {index}, {n})")


def number(value: float) -> Text:
    """A float as Python."""
    if math.isinf(value) or math.isnan(value):
        return Text(f'float("{value}")', ATOM, True)
    return Text(repr(value), ATOM if value >= 0 else UNARY, True)


def called(name: str, *arguments: Text | str, **constants: object) -> Text:
    """A call of a device function."""
    given = [x.code if isinstance(x, Text) else x for x in arguments]
    return Text(f"{name}({', '.join([*given, *(f'{k}={v}' for k, v in constants.items())])})")


def reduced(call: str, x: Text, have: Axes, over: Axes) -> Text:
    """A reduction over some of a tile's axes."""
    gone = [n for n, a in enumerate(have) if a in over]
    if len(gone) == len(have):
        return Text(f"tl.{call}({x.code})")
    for n in reversed(gone):
        x = Text(f"tl.{call}({x.code}, {n})")
    return x
