"""Tile values in, Triton expressions out: the table of formats, one entry per op, and the layout of
tiles in registers.

A tile is a tensor over its axes in order, at most two. An operand is aligned to the axes of the
result by indexing with None or by a transpose; a product over one axis is a `dot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lacc.backends.text import ATOM, COMPARE, OPERATORS, POWER, PRODUCT, SUM, UNARY, Text
from lacc.spec.shapes import Size
from lacc.tile.program import Axes, Inst, Program, numbers, ordered

ELEMENTWISE: dict[str, tuple[str, int, tuple[int, ...]]] = {
    **OPERATORS,
    "relu": ("tl.maximum({}, 0.0)", ATOM, (0,)),
    "rsqrt": ("1.0 / tl.sqrt({})", PRODUCT, (0,)),
    "where": ("tl.where({}, {}, {})", ATOM, (0, 0, 0)),
    "max": ("tl.maximum({}, {})", ATOM, (0, 0)),
    "min": ("tl.minimum({}, {})", ATOM, (0, 0)),
    **{
        f: (f"tl.{f}({{}})", ATOM, (0,))
        for f in ("exp", "log", "sqrt", "abs", "sin", "cos", "sigmoid", "erf")
    },
    **{
        f: (f"{f}({{}})", ATOM, (0,))
        for f in ("sign", "silu", "tanh", "logsigmoid", "softplus", "gelu", "elu", "elu1")
    },
    **{f: (f"{f}({{}}, {{}})", ATOM, (0, 0)) for f in ("mod", "logaddexp")},
}


@dataclass(frozen=True, slots=True)
class Index:
    """How an axis is written: positions in a tile, which are inside it, how many a tile has."""

    at: str
    inside: str
    block: str


class Formats:
    """Formats for one program; ``index`` writes its axes, t and s alike, ``size`` a size."""

    def __init__(
        self, program: Program, index: Mapping[str, Index], size: Callable[[Size], str]
    ) -> None:
        self.program = program
        self.index = index
        self.size = size

    def text(self, inst: Inst, ins: list[Text]) -> Text:
        """The expression of an instruction over its operands. KeyError where there is no format."""
        axes = [self.program.body[i].axes for i in inst.ins]
        if inst.op in ELEMENTWISE:
            form, binds, levels = ELEMENTWISE[inst.op]
            aligned = [self.aligned(x, have, inst.axes) for x, have in zip(ins, axes)]
            code = form.format(*(x.within(level) for x, level in zip(aligned, levels)))
            return Text(code, binds, all(x.number for x in ins))
        return OTHER[inst.op](self, inst, ins, axes)

    def aligned(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` as an operand of something over ``want``: broadcastable, in that order."""
        if have == want or not have:
            return x
        if len(have) == 2:
            return Text(f"tl.trans({x.code})")
        return Text(f"{x.within(ATOM)}{self.slots(have[0], want)}")

    def slots(self, axis: str, want: Axes) -> str:
        """The subscript that lays a vector over one axis out in ``want``."""
        if len(want) == 1:
            return ""
        return f"[{', '.join(':' if a == axis else 'None' for a in want)}]"

    def shape(self, axes: Axes) -> str:
        """The shape of a tile."""
        return f"[{', '.join(self.index[a].block for a in axes)}]"

    def inside(self, axes: Axes, want: Axes) -> Text:
        """Where entries of a tile over ``want`` are inside these axes."""
        parts = [f"{self.index[a].inside}{self.slots(a, want)}" for a in axes]
        return Text(" & ".join(parts), COMPARE if len(parts) > 1 else ATOM)

    def offset(self, strides: Mapping[str, str], want: Axes, at: Mapping[str, str]) -> str:
        """Offsets of a tile's entries from a pointer; ``at`` replaces positions of some axes."""
        parts = []
        for axis in want:
            position = f"{at.get(axis, self.index[axis].at)}{self.slots(axis, want)}"
            stride = strides[axis]
            parts.append(position if stride == "1" else f"{position} * {stride}")
        return " + ".join(parts)

    def space(self, decay: int) -> tuple[bool, bool]:
        """Whether a decay is a logarithm, and whether it leaves a token's own factor out."""
        log, strict = self.program.body[decay].value
        return log, strict


def _contract(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """A product over axes: a `dot` of two matrices, or a sum over what at most two axes hold."""
    (a, b), (have_a, have_b) = ins, axes
    over: Axes = inst.value
    every = ordered((*have_a, *have_b))
    if len(every) == 3 and len(over) == 1:
        free_a, free_b = ((*(x for x in have if x not in over),) for have in axes)
        if inst.axes != free_a + free_b:
            a, b, have_a, have_b = b, a, have_b, have_a
        left = f.aligned(a, have_a, (inst.axes[0], *over))
        right = f.aligned(b, have_b, (*over, inst.axes[1]))
        return Text(f"dot({left.code}, {right.code}, PRECISION)")
    left, right = f.aligned(a, have_a, every), f.aligned(b, have_b, every)
    product = Text(f"{left.within(PRODUCT)} * {right.within(UNARY)}", PRODUCT)
    return _reduce("sum")(f, inst, [product], [every])


def _reduce(call: str) -> Format:
    def run(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
        over = [n for n, a in enumerate(axes[0]) if a in inst.value]
        axis = "" if len(over) > 1 else f", {over[0]}"
        return Text(f"tl.{call}({ins[0].code}{axis})")

    return run


def _expand(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    if not axes[0]:
        return Text(f"tl.zeros({f.shape(inst.axes)}, FLOAT) + {ins[0].within(SUM)}", SUM)
    aligned = f.aligned(ins[0], axes[0], inst.axes)
    return Text(f"tl.broadcast_to({aligned.code}, {f.shape(inst.axes)})")


def _rename(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    names = dict(inst.value)
    return f.aligned(ins[0], tuple(names.get(a, a) for a in axes[0]), inst.axes)


def _within(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    inner, fill = inst.value
    inside = f.inside(inner, inst.axes)
    return Text(f"tl.where({inside.code}, {ins[0].code}, {number(fill).code})")


def _mask(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    t = f.index["t"].at
    compare = ">" if inst.value else ">="
    return Text(f"tl.where({t}[:, None] {compare} {t}[None, :], {ins[0].code}, 0.0)")


def _pow(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    base, exponent = (f.program.body[i] for i in inst.ins)
    if all(x.number for x in ins):
        return Text(f"{ins[0].within(ATOM)} ** {ins[1].within(UNARY)}", POWER, True)
    if exponent.op == "const":
        return _power(ins[0], float(exponent.value))
    turns = number(math.log2(float(base.value)))
    scaled = ins[1] if turns.code == "1.0" else Text(f"{turns.code} * {ins[1].within(UNARY)}")
    return f.aligned(Text(f"tl.exp2({scaled.code})"), axes[1], inst.axes)


def _power(x: Text, exponent: float) -> Text:
    """A power whose exponent is a number: a product or a root where it is one."""
    if exponent < 0:
        return Text(f"1.0 / {_power(x, -exponent).within(UNARY)}", PRODUCT)
    if exponent == 0.5:
        return Text(f"tl.sqrt({x.code})")
    if exponent.is_integer() and exponent <= 16:
        return Text(f"power({x.code}, {int(exponent)})")
    return Text(f"tl.exp2({exponent!r} * tl.log2({x.code}))")


def _eye(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rows, columns = (f"{f.index[a].at}{f.slots(a, inst.axes)}" for a in inst.axes)
    return Text(f"tl.where({rows} == {columns}, 1.0, 0.0)")


def _runs(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """A kernel over a decay; `suffix` and `whole` are the same for strict ones."""
    log, strict = f.space(inst.ins[-1])
    arguments = [x.code for x in ins] + (["PRECISION"] if len(ins) > 1 else []) + [f"LOG={log}"]
    if inst.op not in ("suffix", "whole"):
        arguments.append(f"STRICT={strict}")
    return Text(f"{inst.op}({', '.join(arguments)})")


def _solve(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    return Text(f"solve({ins[0].code}, {ins[1].code}, PRECISION, TRANSPOSED={inst.value})")


def number(value: float) -> Text:
    """A float as Python."""
    if math.isinf(value):
        return Text(f'float("{value}")', ATOM, True)
    return Text(repr(value), ATOM if value >= 0 else UNARY, True)


Format = Callable[[Formats, Inst, list[Text], list[Axes]], Text]

OTHER: dict[str, Format] = {
    "const": lambda f, i, x, a: number(float(i.value)),
    "size": lambda f, i, x, a: Text(f.size(i.value), ATOM, True),
    "eye": _eye,
    "rename": _rename,
    "expand": _expand,
    "contract": _contract,
    "sum": _reduce("sum"),
    "largest": _reduce("max"),
    "smallest": _reduce("min"),
    "mask": _mask,
    "within": _within,
    "pow": _pow,
    "solve": _solve,
    "levels": lambda f, i, x, a: x[0],
    **dict.fromkeys(("prefix", "suffix", "whole", "matrix", "gram", "decayed"), _runs),
}

LACKS = {
    *("age", "inverse", "dense_solve", "default", "omitted", "pick", "pooled"),
    *("row", "place_row", "shift", "before", "scan", "scan_back", "chain", "chain_back"),
    *("chain_parts", "solve_parts"),
    *("tropical", "running", "instead", "through_time"),
    *("stack", "entry", "take", "put", "concat", "roll", "fold", "unfold"),
    *("meet", "meet_pull", "decayed_pull", "prefix_pull", "suffix_pull", "whole_pull"),
    "matrix_pull",
}
"""Tile ops that have no format yet."""

COUNTED = ("const", "size", "add", "sub", "mul", "div", "neg", "pow")
"""Ops of which numbers are made that the launch knows."""


def obstacle(program: Program) -> str:
    """Why a program cannot be written in Triton, "" where it can."""
    counted = numbers(program)
    for n, inst in enumerate(program.body):
        found = _no_format(program, inst, n in counted)
        if found:
            return f"{found} has no Triton format"
    return ""


def _no_format(program: Program, inst: Inst, counted: bool) -> str:
    """What of an instruction cannot be written, "" where all can."""
    operands = [program.body[i] for i in inst.ins]
    if inst.op in LACKS:
        return f"the tile op {inst.op}"
    if len(inst.axes) > 2:
        return f"a tile over {', '.join(inst.axes)}"
    if counted:
        return "" if inst.op in COUNTED else f"{inst.op} of numbers alone"
    match inst.op:
        case "contract":
            every = ordered(a for x in operands for a in x.axes)
            product = len(every) == 3 and all(len(x.axes) == 2 for x in operands)
            if len(every) > 2 and not (product and len(inst.axes) == 2):
                return f"a product over {', '.join(every)} at once"
        case "solve" if len(inst.axes) < 2:
            return "a solve of one column"
        case "pow":
            base, exponent = operands
            positive = base.op == "const" and float(base.value) > 0
            if exponent.op != "const" and not positive:
                return "a power whose base and exponent both vary"
    return ""
