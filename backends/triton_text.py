"""Tile values in, Triton expressions out: the table of formats, one entry per op.

What a line cannot say is a device function (see `lacc.backends.triton_device`); how tiles lie in
registers says `lacc.backends.triton_layout`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lacc.backends.text import (
    ATOM,
    COMPARE,
    OPERATORS,
    POWER,
    PRODUCT,
    SUM,
    UNARY,
    Text,
)
from lacc.backends.triton_layout import Layout, called, number, reduced
from lacc.backends.triton_moves import MOVES
from lacc.ir.ops import OPS
from lacc.tile.program import TIME, Axes, Inst, Program, ordered

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

OF_NUMBERS = frozenset({"add", "sub", "mul", "div", "neg", "stop_gradient"})
"""Ops that are Python's where all operands are numbers; others work on tensors alone."""

WRITTEN_BY_KERNEL = frozenset({"load", "default", "omitted", "pick"})
"""Ops without a format: the kernel that holds the program writes them."""

RESULTS = {"meet": 3, "meet_pull": 3, "decayed_pull": 3}


def results(inst: Inst) -> int:
    """How many results an instruction has: from two on a tuple, to be picked."""
    if inst.op in ("chain_parts", "solve_parts"):
        count: int = inst.value[0]
        return count
    return RESULTS.get(inst.op, 1)


def multiplied(program: Program) -> frozenset[str]:
    """The axes, t and s apart, that products on matrix units have: 16 entries or more of a block,
    a power of two, make these fast (fewer are right, too)."""
    found: set[str] = set()
    for inst in program.body:
        ins = [program.body[i].axes for i in inst.ins]
        if inst.op == "contract":
            if all(_sides(inst, ins)[1:]):
                found.update(a for axes in ins for a in axes)
        elif inst.op in DOTTED:
            found.update(a for axes in ins for a in axes)
    return frozenset(found.difference(TIME))


class Formats(Layout):
    """Formats for one program. Of tokens there are `count` in a kernel that has an axis of them."""

    def text(self, inst: Inst, ins: list[Text]) -> Text:
        """The expression of an instruction over its operands: of a tuple where it has several
        `results`. KeyError where there is no format."""
        axes = [self.program.body[i].axes for i in inst.ins]
        if inst.op in ELEMENTWISE:
            return self._elementwise(inst, ins, axes)
        return OTHER[inst.op](self, inst, ins, axes)

    def _elementwise(self, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
        plain = all(x.number for x in ins) and inst.op not in OF_NUMBERS
        if plain or (inst.op == "where" and all(x.number for x in ins[1:])):
            ins = [*ins[:-1], self.tensor(ins[-1])]
        form, binds, levels = ELEMENTWISE[inst.op]
        aligned = [self.aligned(x, have, inst.axes) for x, have in zip(ins, axes)]
        if inst.op == "where" and not self._compares(inst.ins[0]):
            aligned[0] = Text(f"{aligned[0].within(SUM)} != 0.0", COMPARE)
        code = form.format(*(x.within(level) for x, level in zip(aligned, levels)))
        if inst.op == "stop_gradient":
            return aligned[0]
        return Text(code, binds, all(x.number for x in ins))

    def _compares(self, n: int) -> bool:
        row = OPS.get(self.program.body[n].op)
        return row is not None and row.kind == "compare"

    def space(self, decay: int) -> tuple[bool, bool]:
        """Whether a decay is a logarithm, and whether it leaves a token's own factor out."""
        log, strict = self.program.body[decay].value
        return log, strict


# ---- products and sums ---------------------------------------------------------------------------


def _sides(inst: Inst, axes: list[Axes]) -> tuple[Axes, Axes, Axes]:
    """The axes of a product that both operands keep, and those that each alone has."""
    (a, b), over = axes, inst.value
    both = tuple(x for x in a if x in b and x not in over)
    return both, tuple(x for x in a if x not in b), tuple(x for x in b if x not in a)


def _contract(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """A matrix product, or one for each entry of the axes that both keep; a sum of products where
    an operand has no axis of its own."""
    (a, b), (have_a, have_b) = ins, axes
    over: Axes = inst.value
    both, rows, columns = _sides(inst, axes)
    if not rows or not columns:
        every = ordered((*have_a, *have_b))
        left, right = f.aligned(a, have_a, every), f.aligned(b, have_b, every)
        product = Text(f"{left.within(PRODUCT)} * {right.within(UNARY)}", PRODUCT)
        left_over = tuple(x for x in every if x not in over)
        return f.aligned(reduced("sum", product, every, over), left_over, inst.axes)
    if inst.axes == (*columns, *rows):
        a, b, have_a, have_b, rows, columns = b, a, have_b, have_a, columns, rows
    batch = (both,) if both else ()
    left = f.grouped(a, have_a, *batch, rows, over)
    right = f.grouped(b, have_b, *batch, over, columns)
    product = called("dot", left, right, "PRECISION")
    return f.apart(product, (*batch, rows, columns), inst.axes)


def _reduce(call: str) -> Format:
    return lambda f, inst, ins, axes: reduced(call, ins[0], axes[0], inst.value)


# ---- along time ----------------------------------------------------------------------------------


def _scan(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    a, b, *start = (
        f.timed(x, have, inst.axes) if n < 2 else f.tensor(f.aligned(x, have, inst.axes[1:]))
        for n, (x, have) in enumerate(zip(ins, axes))
    )
    return called(inst.op, a, b, *start, *(() if start else ("count",)))


def _tropical(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    factor, entry = (f.timed(x, have, inst.axes) for x, have in zip(ins, axes))
    return called("tropical", factor, entry, OP=f'"{inst.value}"')


def _running(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    return called("tl.cumsum", ins[0], "0")


def _chain_parts(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    n, back = inst.value
    every = [f.timed(x, have, inst.axes) for x, have in zip(ins, axes)]
    given = [_tuple(every[: n * n]), _tuple(every[n * n :])]
    return called("chain_back", *given, "count", N=n) if back else called("chain", *given, N=n)


def _tuple(parts: list[Text]) -> str:
    return f"({', '.join(x.code for x in parts)})"


# ---- decays and systems --------------------------------------------------------------------------


def _runs(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """A kernel over a decay, which comes last; `suffix` and `whole` are the same for strict
    ones."""
    log, strict = f.space(inst.ins[-1])
    own = axes[-1]
    if inst.op in ("whole", "whole_pull"):
        given = [f.aligned(ins[0], axes[0], own[1:])] if len(ins) > 1 else []
    else:
        given = [x if "s" in have else f.wide(x, have, own) for x, have in zip(ins[:-1], axes)]
    constants: dict[str, object] = {"LOG": log}
    if inst.op not in ("suffix", "suffix_pull", "whole", "whole_pull"):
        constants["STRICT"] = strict
    masks = ("masks",) if inst.op in MASKED else ()
    precision = ("PRECISION",) if inst.op in DOTTED or inst.op == "matrix_pull" else ()
    return called(inst.op, *given, ins[-1], *masks, *precision, **constants)


def _solve(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """All axes behind t are columns of the right side."""
    columns = tuple(a for a in axes[1] if a != "t")
    right = f.grouped(ins[1], axes[1], ("t",), columns)
    x = called("solve", ins[0], right, "PRECISION", TRANSPOSED=inst.value)
    return f.apart(x, (("t",), columns), inst.axes)


def _solve_parts(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    n, transposed = inst.value
    systems, sides = ins[: n * n], ins[n * n :]
    given = _tuple(systems), _tuple(sides)
    return called("solve_parts", *given, "PRECISION", N=n, TRANSPOSED=transposed)


def _dense_solve(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    row, column = inst.value
    have_a, have_b = axes
    rest = tuple(a for a in inst.axes if a == "t" or (a in have_a and a != column))
    each = tuple(a for a in inst.axes if a not in (*rest, column))
    a = f.grouped(
        f.wide(ins[0], have_a, (*rest, row, column)), (*rest, row, column), rest, (row,), (column,)
    )
    b = f.grouped(
        f.wide(ins[1], have_b, (*rest, row, *each)), (*rest, row, *each), rest, (row,), each
    )
    x = called("dense_solve", a, b, N=f.length(row))
    return f.apart(x, (rest, (column,), each), inst.axes)


# ---- powers --------------------------------------------------------------------------------------


def _pow(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    base, exponent = (f.program.body[i] for i in inst.ins)
    if all(x.number for x in ins):
        return Text(f"{ins[0].within(ATOM)} ** {ins[1].within(UNARY)}", POWER, True)
    if exponent.op == "const":
        return f.aligned(_power(ins[0], float(exponent.value)), axes[0], inst.axes)
    if base.op == "const" and float(base.value) > 0:
        turns = number(math.log2(float(base.value)))
        scaled = ins[1] if turns.code == "1.0" else Text(f"{turns.code} * {ins[1].within(UNARY)}")
        return f.aligned(Text(f"tl.exp2({scaled.code})"), axes[1], inst.axes)
    wide = [f.tensor(f.aligned(x, have, inst.axes)) for x, have in zip(ins, axes)]
    return called("pow", *wide)


def _power(x: Text, exponent: float) -> Text:
    """A power whose exponent is a number: a product or a root where it is one."""
    if exponent < 0:
        return Text(f"1.0 / {_power(x, -exponent).within(UNARY)}", PRODUCT)
    if exponent == 0.5:
        return Text(f"tl.sqrt({x.code})")
    if exponent.is_integer() and exponent <= 16:
        return Text(f"power({x.code}, {int(exponent)})")
    return Text(f"pow({x.code}, {exponent!r})")


Format = Callable[[Formats, Inst, list[Text], list[Axes]], Text]

DOTTED = frozenset({"gram", "meet", "meet_pull", "decayed", "decayed_pull", "solve", "solve_parts"})
"""Ops, `contract` apart, that work on matrix units."""

MASKED = frozenset({"decayed", "meet_pull", "decayed_pull"})
"""Ops that read which tokens meet, and which cross, at each level."""

OTHER: dict[str, Format] = {
    **MOVES,
    "const": lambda f, i, x, a: number(float(i.value)),
    "size": lambda f, i, x, a: Text(f.size(i.value), ATOM, True),
    "expand": lambda f, i, x, a: f.wide(x[0], a[0], i.axes),
    "contract": _contract,
    "sum": _reduce("sum"),
    "largest": _reduce("max"),
    "smallest": _reduce("min"),
    "pow": _pow,
    "scan": _scan,
    "scan_back": _scan,
    "tropical": _tropical,
    "running": _running,
    "chain_parts": _chain_parts,
    "solve": _solve,
    "solve_parts": _solve_parts,
    "inverse": lambda f, i, x, a: called("inverse", x[0], "PRECISION"),
    "dense_solve": _dense_solve,
    **dict.fromkeys(("levels", "pooled", "instead", "through_time"), lambda f, i, x, a: x[0]),
    **dict.fromkeys(("prefix", "suffix", "whole", "matrix", "gram", "meet", "decayed"), _runs),
    **dict.fromkeys(
        (
            *("prefix_pull", "suffix_pull", "whole_pull", "matrix_pull"),
            *("meet_pull", "decayed_pull"),
        ),
        _runs,
    ),
}
