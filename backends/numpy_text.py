"""Tile values in, NumPy expressions out: the table of formats, one entry per op, and the layout of
tiles in arrays.

A tile is an array [B, H, n, *axes] (in the carry, [B, H, *axes]). Operands are aligned to the axes
of the result by indexing with None; products of two tiles over one axis are matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lacc.backends.text import (
    ATOM,
    CHOICE,
    COMPARE,
    OPERATORS,
    POWER,
    PRODUCT,
    UNARY,
    Text,
    size_text,
)
from lacc.spec.shapes import Size
from lacc.tile.program import Axes, Inst

ELEMENTWISE: dict[str, tuple[str, int, tuple[int, ...]]] = {
    **OPERATORS,
    "pow": ("{} ** {}", POWER, (ATOM, POWER)),
    "relu": ("np.maximum({}, 0)", ATOM, (0,)),
    "rsqrt": ("1 / np.sqrt({})", PRODUCT, (0,)),
    "where": ("np.where({}, {}, {})", ATOM, (0, 0, 0)),
    "silu": ("{0} * sigmoid({0})", PRODUCT, (ATOM,)),
    "max": ("np.maximum({}, {})", ATOM, (0, 0)),
    "min": ("np.minimum({}, {})", ATOM, (0, 0)),
    "mod": ("np.mod({}, {})", ATOM, (0, 0)),
    "logaddexp": ("np.logaddexp({}, {})", ATOM, (0, 0)),
    **{
        f: (f"np.{f}({{}})", ATOM, (0,))
        for f in ("exp", "log", "sqrt", "abs", "sign", "tanh", "sin", "cos")
    },
    **{
        f: (f"{f}({{}})", ATOM, (0,))
        for f in ("sigmoid", "logsigmoid", "softplus", "gelu", "erf", "elu", "elu1")
    },
}

LAID = ("rename", "expand")
"""Ops whose result is the array of their operand, as that is laid out."""


class Formats:
    """Formats for one program: ``axes`` of values, how each axis' length is written, and the dims
    that no variable is named after."""

    def __init__(self, lengths: dict[str, str], dtype: str, quoted: Collection[str]) -> None:
        self.lengths = lengths
        self.dtype = dtype
        self.quoted = quoted

    def aligned(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` as an operand of something over ``want``: broadcastable, in that order."""
        if have == want or x.number:
            return x
        order = tuple(a for a in want if a in have)
        if order != have:
            x = self.moved(x, have, order)
        if len(order) == len(want):
            return x
        kept = [":" if a in have else "None" for a in want]
        while kept and kept[0] == ":":
            kept.pop(0)
        return Text(f"{x.within(ATOM)}[..., {', '.join(kept)}]")

    def moved(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` with its trailing axes in another order."""
        if have == want:
            return x
        if len(have) == 2:
            return Text(f"{x.within(ATOM)}.swapaxes(-1, -2)")
        letters = {a: chr(97 + n) for n, a in enumerate(have)}
        into = "".join(letters[a] for a in want)
        return Text(f'np.einsum("...{"".join(letters.values())}->...{into}", {x.code})')

    def text(self, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
        """The expression of an instruction over its operands, which have these axes."""
        if inst.op in ELEMENTWISE:
            return self.elementwise(inst, ins, axes)
        return CALLS[inst.op](self, inst, ins, axes)

    def elementwise(self, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
        """A row of the op table."""
        form, binds, levels = ELEMENTWISE[inst.op]
        aligned = [self.aligned(x, have, inst.axes) for x, have in zip(ins, axes)]
        code = form.format(*(x.within(level) for x, level in zip(aligned, levels)))
        if inst.op == "where" and [x.number for x in ins] == [False, True, True]:
            code += f".astype({self.dtype})"  # of numbers NumPy makes an array of its own choice
        return Text(code, binds, all(x.number for x in ins))

    def right(self, inst: Inst, axes: list[Axes]) -> int | None:
        """Which operand is the right one, where a contraction is a product of two matrices."""
        free = [tuple(x for x in have if x not in inst.value) for have in axes]
        if len(inst.value) > 1 or any(len(x) != 1 for x in free) or free[0] == free[1]:
            return None
        return int(inst.axes == free[0] + free[1])

    def factors(self, inst: Inst, ins: list[Text], axes: list[Axes]) -> tuple[Text, Text] | None:
        """Left and right factor, where a contraction is a product of two matrices."""
        right = self.right(inst, axes)
        if right is None:
            return None
        over: Axes = inst.value
        moved = [
            self.moved(x, have, free + over if n != right else over + free)
            for n, (x, have) in enumerate(zip(ins, axes))
            for free in [tuple(a for a in have if a not in over)]
        ]
        return moved[1 - right], moved[right]

    def contract(self, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
        """A product over axes: of matrices where it is one, else an einsum."""
        factors = self.factors(inst, ins, axes)
        if factors is not None:
            return Text(f"{factors[0].within(PRODUCT)} @ {factors[1].within(UNARY)}", PRODUCT)
        (a, b), (have_a, have_b) = ins, axes
        over: Axes = inst.value
        free_a = tuple(x for x in have_a if x not in over)
        free_b = tuple(x for x in have_b if x not in over)
        if len(over) == 1 and len(free_a) + len(free_b) == 1:
            if inst.axes != free_a + free_b:
                a, b, have_a, have_b, free_a, free_b = b, a, have_b, have_a, free_b, free_a
            left, right = self.moved(a, have_a, free_a + over), self.moved(b, have_b, over + free_b)
            if free_a:
                return Text(f"({left.within(PRODUCT)} @ {right.within(ATOM)}[..., None])[..., 0]")
            return Text(f"({left.within(ATOM)}[..., None, :] @ {right.within(UNARY)})[..., 0, :]")
        every = dict.fromkeys((*have_a, *have_b))
        letters = {x: chr(97 + n) for n, x in enumerate(every)}
        sub = ["..." + "".join(letters[x] for x in given) for given in (have_a, have_b, inst.axes)]
        return Text(f'np.einsum("{sub[0]},{sub[1]}->{sub[2]}", {a.code}, {b.code})')


def _reduce(call: str) -> Call:
    """A reduction over axes."""

    def run(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
        at = [n - len(axes[0]) for n, x in enumerate(axes[0]) if x in inst.value]
        where = str(at[0]) if len(at) == 1 else str(tuple(at))
        return Text(f"{ins[0].within(ATOM)}.{call}({where})")

    return run


def _expand(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    shape = ", ".join(f.lengths[a] for a in inst.axes)
    if ins[0].number:
        return Text(f"np.full((1, 1, 1, {shape}), {ins[0].code}, {f.dtype})")
    return Text(f"spread({f.aligned(ins[0], axes[0], inst.axes).code}, {shape})")


def _rename(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    names = dict(inst.value)
    return f.moved(ins[0], tuple(names.get(x, x) for x in axes[0]), inst.axes)


def timed(x: Text, axes: Axes) -> str:
    """A tile over t, and channels, as [..., C, D]."""
    return x.code if len(axes) > 1 or "s" in axes else f"{x.within(ATOM)}[..., None]"


def _runs(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """A kernel over decays: scalar ones have one channel."""
    *tiles, decay = ins
    args = [timed(x, have) for x, have in zip(tiles, axes)]
    code = f"{inst.op}({', '.join([*args, decay.code])})"
    scalar = "s" not in inst.axes and len(inst.axes) == 1
    return Text(f"{code}[..., 0]" if scalar else code)


def _opaque(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    args = [timed(x, have) for x, have in zip(ins[:-1], axes)]
    return Text(f"{inst.op}({', '.join([*args, ins[-1].code])})")


def _whole(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    ct = (
        []
        if inst.op == "whole"
        else [ins[0].code if axes[0] else f"{ins[0].within(ATOM)}[..., None]"]
    )
    code = f"{inst.op}({', '.join([*ct, ins[-1].code])})"
    bare = len(inst.axes) == (0 if inst.op == "whole" else 1)
    return Text(f"{code}[..., 0]" if bare else code)


def _levels(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    log, strict = inst.value
    return Text(f"levels({timed(ins[0], axes[0])}, log={log}, strict={strict})")


def _solve(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    call, lead = ("solve", 1) if len(axes[0]) == 2 else ("solve_ranks", 2)
    right = ins[1].code if len(inst.axes) > lead else f"{ins[1].within(ATOM)}[..., None]"
    code = f"{call}({ins[0].code}, {right}, transposed={inst.value})"
    return Text(code if len(inst.axes) > lead else f"{code}[..., 0]")


def _dense_solve(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    row, column = inst.value
    rest = tuple(x for x in inst.axes if x == "t" or (x in axes[0] and x != column))
    each = tuple(x for x in inst.axes if x not in (*rest, column))
    a = f.aligned(ins[0], axes[0], (*rest, row, column))
    b = f.aligned(ins[1], axes[1], (*rest, row, *each))
    if each:
        return f.moved(Text(f"dense_solve({a.code}, {b.code})"), (*rest, column, *each), inst.axes)
    code = f"dense_solve({a.code}, {b.within(ATOM)}[..., None])[..., 0]"
    return f.moved(Text(code), (*rest, column), inst.axes)


def _along_time(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    """A kernel of tiles over time, and of one without it that starts it."""
    rest = tuple(x for x in inst.axes if x != "t")
    wide = [f.aligned(x, have, inst.axes if "t" in have else rest) for x, have in zip(ins, axes)]
    args = ([f'"{inst.value}"'] if inst.value else []) + [x.code for x in wide]
    return Text(f"{inst.op}({', '.join(args)}, {_at(f, 't', inst.axes)})")


def _chain(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    row, column = inst.value
    rest = tuple(x for x in inst.axes if x not in (row, "t"))
    a = f.aligned(ins[0], axes[0], ("t", row, column, *rest))
    b = f.aligned(ins[1], axes[1], ("t", row, *rest))
    run = Text(f"{inst.op}({a.code}, {b.code}, {len(rest)})")
    return f.moved(run, ("t", row, *rest), inst.axes)


def _stack(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rest = tuple(x for x in inst.axes if x != inst.value)
    parts = [f.aligned(x, have, rest).code for x, have in zip(ins, axes)]
    return Text(f"stacked({_at(f, inst.value, inst.axes)}, {', '.join(parts)})")


def _entry(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    axis, n = inst.value
    rest = ", :" * -(_at(f, axis, axes[0]) + 1)
    return Text(f"{ins[0].within(ATOM)}[..., {n}{rest}]")


def _row(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rest = tuple(x for x in axes[0] if x != "t")
    row = Text(f"{ins[0].within(ATOM)}[..., {-1 if inst.value else 0}{', :' * len(rest)}]")
    return f.moved(row, rest, inst.axes)


def _at(f: Formats, axis: str, axes: Axes) -> int:
    return axes.index(axis) - len(axes)


def _take(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    old, new, start, step = inst.value
    return Text(
        f"take({ins[0].code}, {_at(f, old, axes[0])}, {size_text(start, f.quoted)}, {step}, "
        f"{f.lengths[new]})"
    )


def _put(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    old, new, start, step = inst.value
    where = f"{_at(f, new, axes[0])}, {size_text(start, f.quoted)}, {step}, {f.lengths[old]}"
    return f.moved(
        Text(f"put({ins[0].code}, {where})"),
        tuple(old if x == new else x for x in axes[0]),
        inst.axes,
    )


def _concat(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    whole, parts = inst.value
    want = [tuple(part if x == whole else x for x in inst.axes) for part in parts]
    lengths = [", ".join(f.lengths[x] for x in axes_) for axes_ in want]
    spreads = [
        f"spread({f.aligned(x, have, axes_).code}, {length})"
        if set(have) != set(axes_)
        else f.moved(x, have, axes_).code
        for x, have, axes_, length in zip(ins, axes, want, lengths)
    ]
    return Text(f"join({_at(f, whole, inst.axes)}, {', '.join(spreads)})")


def _fold(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rows, columns, flat = inst.value
    rest = tuple(x for x in axes[0] if x not in (rows, columns))
    x = f.moved(ins[0], axes[0], (*rest, rows, columns))
    folded = Text(f"fold({x.code})")
    return f.moved(folded, (*rest, flat), inst.axes)


def _unfold(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    rows, columns, flat = inst.value
    rest = tuple(x for x in axes[0] if x != flat)
    x = f.moved(ins[0], axes[0], (*rest, flat))
    unfolded = Text(f"unfold({x.code}, {f.lengths[rows]}, {f.lengths[columns]})")
    return f.moved(unfolded, (*rest, rows, columns), inst.axes)


def _default(f: Formats, inst: Inst, ins: list[Text], axes: list[Axes]) -> Text:
    given, otherwise = ins[0].within(ATOM), f.aligned(ins[1], axes[1], inst.axes)
    value = f"np.asarray({otherwise.code}, {f.dtype})"
    if otherwise.number:
        value = f"np.full((1, 1, 1), {otherwise.code}, {f.dtype})"
    return Text(f"{value} if {given} is None else {given}", CHOICE)


Call = Callable[[Formats, Inst, list[Text], list[Axes]], Text]

CALLS: dict[str, Call] = {
    "const": lambda f, i, x, a: _number(float(i.value)),
    "size": lambda f, i, x, a: _size(i.value, f.quoted),
    "eye": lambda f, i, x, a: Text(
        f"np.eye({f.lengths[i.axes[0]]}, dtype={f.dtype})[None, None, None]"
    ),
    "age": lambda f, i, x, a: Text(
        f"np.arange({f.lengths[i.value]}, dtype={f.dtype})[None, None, None, ::-1]"
    ),
    "rename": _rename,
    "expand": _expand,
    "contract": Formats.contract,
    "sum": _reduce("sum"),
    "largest": _reduce("max"),
    "smallest": _reduce("min"),
    "mask": lambda f, i, x, a: Text(f"np.tril({x[0].code}{', -1' if i.value else ''})"),
    "pooled": lambda f, i, x, a: Text(f"pooled({x[0].code})"),
    "row": _row,
    "place_row": lambda f, i, x, a: Text(
        f"place_row({f.moved(x[0], a[0], i.axes[1:]).code}, {len(i.axes)}, {f.lengths['t']}, "
        f"last={i.value})"
    ),
    "shift": lambda f, i, x, a: Text(
        f"shift({f.moved(x[0], a[0], i.axes).code}, {-len(i.axes)}, back={i.value})"
    ),
    **dict.fromkeys(("scan", "scan_back", "before", "tropical"), _along_time),
    "chain": _chain,
    "chain_back": _chain,
    "stack": _stack,
    "entry": _entry,
    "running": lambda f, i, x, a: Text(f"np.cumsum({x[0].code}, {-len(i.axes)})"),
    "solve": _solve,
    "inverse": lambda f, i, x, a: Text(f"inverse({x[0].code})"),
    "dense_solve": _dense_solve,
    "levels": _levels,
    "whole": _whole,
    "whole_pull": _whole,
    "matrix": lambda f, i, x, a: Text(f"between({x[0].code})"),
    "matrix_pull": lambda f, i, x, a: Text(f"between_pull({x[0].code}, {x[1].code})[..., 0]"),
    **dict.fromkeys(("prefix", "suffix", "gram", "decayed", "prefix_pull", "suffix_pull"), _runs),
    **dict.fromkeys(("meet", "meet_pull", "decayed_pull"), _opaque),
    "pick": lambda f, i, x, a: Text(
        f"{x[0].code}[{i.value}]" + ("" if len(i.axes) > 1 else "[..., 0]")
    ),
    "take": _take,
    "put": _put,
    "concat": _concat,
    "roll": lambda f, i, x, a: Text(
        f"np.roll({x[0].code}, {i.value[1]}, {_at(f, i.value[0], i.axes)})"
    ),
    "fold": _fold,
    "unfold": _unfold,
    "default": _default,
    "omitted": lambda f, i, x, a: Text(f"omitted({x[0].code}, {x[1].code})"),
}


def _number(value: float) -> Text:
    if value in (float("inf"), float("-inf")):
        return Text("np.inf" if value > 0 else "-np.inf", ATOM if value > 0 else UNARY, True)
    code = str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return Text(code, ATOM if value >= 0 else UNARY, True)


def _size(size: Size, quoted: Collection[str]) -> Text:
    code = size_text(size, quoted)
    return Text(code, ATOM if code.isidentifier() else COMPARE, True)
