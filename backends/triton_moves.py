"""Ops that move entries or choose among them in, Triton expressions out."""

from __future__ import annotations

from lacc.backends.text import Text
from lacc.backends.triton_layout import Layout, called, number
from lacc.spec.shapes import Size
from lacc.tile.program import Axes, Inst


def _rename(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    names = dict(inst.value)
    return f.aligned(ins[0], tuple(names.get(a, a) for a in axes[0]), inst.axes)


def _within(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    inner, fill = inst.value
    return called("tl.where", f.inside(inner, inst.axes), ins[0], number(fill))


def _mask(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    compare = ">" if inst.value else ">="
    kept = f"{f.at('t', inst.axes)} {compare} {f.at('s', inst.axes)}"
    return called("tl.where", kept, f.aligned(ins[0], axes[0], inst.axes), "0.0")


def _eye(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rows, columns = (f.at(a, inst.axes) for a in inst.axes)
    return Text(f"({rows} == {columns}).to(FLOAT)")


def _age(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    (axis,) = inst.axes
    return Text(f"({f.length(axis)} - 1 - {f.index[axis].at}).to(FLOAT)")


def _last(f: Layout, last: bool) -> str:
    return "count - 1" if last else "0"


def _row(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    x = f.aligned(ins[0], axes[0], ("t", *inst.axes))
    return called("row", x, _last(f, inst.value))


def _place_row(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    hit = f"{f.at('t', inst.axes)} == {_last(f, inst.value)}"
    return called("tl.where", hit, f.aligned(ins[0], axes[0], inst.axes), "0.0")


def _chosen(conditions: list[str], parts: list[Text]) -> Text:
    """The first part whose condition holds; that of the last is not asked."""
    found = parts[-1]
    for condition, part in zip(reversed(conditions[:-1]), reversed(parts[:-1])):
        found = called("tl.where", condition, part, found)
    return found


def _take(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    old, new, start, step = inst.value
    want = tuple(new if a == old else a for a in axes[0])
    index = f"{f.size(start)} + {step} * {f.at(new, want)}"
    index = f"tl.minimum({index}, {f.index[old].block} - 1)"
    return f.aligned(f.gathered(ins[0], index, want, new), want, inst.axes)


def _put(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    old, new, start, step = inst.value
    want = tuple(old if a == new else a for a in axes[0])
    behind = f"({f.at(old, want)} - {f.size(start)})"
    kept = f"({behind} >= 0) & ({behind} < {step} * {f.length(new)})"
    if step != 1:
        kept += f" & ({behind} % {step} == 0)"
        behind = f"{behind} // {step}"
    index = f"tl.maximum(tl.minimum({behind}, {f.index[new].block} - 1), 0)"
    found = f.gathered(ins[0], index, want, old)
    return f.aligned(called("tl.where", kept, found, "0.0"), want, inst.axes)


def _concat(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    whole, own = inst.value
    start, ends, parts = Size.of(0), [], []
    for x, have, axis in zip(ins, axes, own):
        want = tuple(axis if a == whole else a for a in inst.axes)
        index = f"{f.at(whole, inst.axes)} - {f.size(start)}"
        index = f"tl.maximum(tl.minimum({index}, {f.index[axis].block} - 1), 0)"
        parts.append(f.gathered(f.wide(x, have, want), index, inst.axes, whole))
        start = start + f.program.sizes[axis]
        ends.append(f"{f.at(whole, inst.axes)} < {f.size(start)}")
    return _chosen(ends, parts)


def _roll(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    axis, n = inst.value
    size = f.length(axis)
    back = f"({size} - {n} % {size})" if n > 0 else str(-n)
    index = f"({f.at(axis, inst.axes)} + {back}) % {size}"
    return f.gathered(f.aligned(ins[0], axes[0], inst.axes), index, inst.axes, axis)


def _fold(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rows, columns, flat = inst.value
    rest = tuple(a for a in axes[0] if a not in (rows, columns))
    x = f.grouped(ins[0], axes[0], rest, (rows,), (columns,))
    x = called("fold", x, f.length(columns), f.index[flat].block)
    return f.apart(x, (rest, (flat,)), inst.axes)


def _unfold(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rows, columns, flat = inst.value
    rest = tuple(a for a in axes[0] if a != flat)
    x = f.grouped(ins[0], axes[0], rest, (flat,))
    blocks = f"{f.index[rows].block}, {f.index[columns].block}"
    x = called("unfold", x, f.length(columns), blocks)
    return f.apart(x, (rest, (rows,), (columns,)), inst.axes)


def _shift(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    return called("shift", f.aligned(ins[0], axes[0], inst.axes), "count", BACK=inst.value)


def _before(f: Layout, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rest = tuple(a for a in inst.axes if a != "t")
    start = f.tensor(f.aligned(ins[1], axes[1], rest))
    return called("before", f.aligned(ins[0], axes[0], inst.axes), start)


MOVES = {
    "rename": _rename,
    "within": _within,
    "mask": _mask,
    "eye": _eye,
    "age": _age,
    "row": _row,
    "place_row": _place_row,
    "take": _take,
    "put": _put,
    "concat": _concat,
    "roll": _roll,
    "fold": _fold,
    "unfold": _unfold,
    "shift": _shift,
    "before": _before,
}
"""The format of each op."""
