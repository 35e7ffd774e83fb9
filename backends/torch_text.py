"""A tile program without passes over time in, a function of torch tensors out.

It prints what an emitted file computes beside its kernels: states before the first token with their
gradient, and where promises hold. A tile is a tensor [B, H, *axes] (either may be 1), time first
among its axes.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable

from lacc.backends.base import Variables
from lacc.backends.numpy_lines import Function
from lacc.backends.numpy_names import all_dims
from lacc.backends.text import (
    ATOM,
    CHOICE,
    COMPARE,
    OPERATORS,
    POWER,
    PRODUCT,
    SUM,
    UNARY,
    Text,
    size_text,
)
from lacc.tile.program import Axes, Inst, Program

ELEMENTWISE: dict[str, tuple[str, int, tuple[int, ...]]] = {
    **OPERATORS,
    "pow": ("{} ** {}", POWER, (ATOM, POWER)),
    "silu": ("{0} * torch.sigmoid({0})", PRODUCT, (ATOM,)),
    "softplus": ("torch.logaddexp({0}, torch.zeros_like({0}))", ATOM, (0,)),
    "logsigmoid": ("-torch.logaddexp(-{0}, torch.zeros_like({0}))", UNARY, (ATOM,)),
    "elu1": ("torch.nn.functional.elu({}) + 1", SUM, (0,)),
    **{f: (f"torch.nn.functional.{f}({{}})", ATOM, (0,)) for f in ("gelu", "elu")},
    **{
        f: (f"torch.{f}({{}})", ATOM, (0,))
        for f in (
            *("exp", "log", "sqrt", "rsqrt", "abs", "sign", "tanh", "sin", "cos"),
            *("sigmoid", "relu", "erf"),
        )
    },
    "where": ("torch.where({}, {}, {})", ATOM, (0, 0, 0)),
    **{
        f: (f"torch.{name}({{}}, {{}})", ATOM, (0, 0))
        for f, name in (
            *(("max", "maximum"), ("min", "minimum")),
            *(("mod", "remainder"), ("logaddexp", "logaddexp")),
        )
    },
}
RESERVED = ("torch", "x", "fixed", "dstates", "C", "dims", "dtype")


def plain(program: Program, head: str, doc: str, over_time: bool = False) -> Function:
    """The function ``head``: tensors by name in, tensors by name of output out, with an axis of
    time ([B, H, T, *axes], T 1 where it does not vary) if they are ``over_time``."""
    return _Writer(program).function(head, doc, over_time)


class _Writer:
    """Writes one program; values that are used once stand where they are used."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = Variables(program, [*RESERVED, *all_dims(program)])
        taken = {*RESERVED, *keyword.kwlist, *dir(builtins)}
        self.quoted = {d for d in all_dims(program) if d in taken or not d.isidentifier()}
        self.lengths = {a: size_text(size, self.quoted) for a, size in program.sizes.items()}
        self.lengths |= {"t": "C", "s": "C"}
        self.texts: dict[int, Text] = {}

    def function(self, head: str, doc: str, over_time: bool) -> Function:
        uses = [0] * len(self.program.body)
        for inst in self.program.body:
            for i in inst.ins:
                uses[i] += 1
        lines = []
        for n, inst in enumerate(self.program.body):
            text = self.text(inst)
            if uses[n] > 1 and inst.op not in ("load", "const", "size"):
                lines.append(f"{self.names[n]} = {text.code}")
                text = Text(self.names[n], number=text.number)
            self.texts[n] = text
        outs = []
        for name, n in self.program.outs.items():
            have = self.program.body[n].axes
            want = ("t", *(a for a in have if a != "t")) if over_time else have
            outs.append(f'"{name.rpartition(":")[2]}": {self.aligned(n, want).code}')
        body = [*lines, f"return {{{', '.join(outs)}}}"]
        words = set("".join(c if c.isalnum() or c == "_" else " " for c in " ".join(body)).split())
        dims = sorted((all_dims(self.program) & words) - self.quoted)
        named = [f"{d} = dims[{d!r}]".replace("'", '"') for d in dims]
        return Function(f"def {head}:", doc, (*named, *body))

    def text(self, inst: Inst) -> Text:
        """The expression of an instruction."""
        if inst.op in ELEMENTWISE:
            return self.elementwise(inst)
        return CALLS[inst.op](self, inst)

    def elementwise(self, inst: Inst) -> Text:
        """A row of the op table. Functions take tensors, operators numbers too."""
        form, binds, levels = ELEMENTWISE[inst.op]
        ins = [self.aligned(n, inst.axes) for n in inst.ins]
        plain = inst.op in OPERATORS or inst.op == "pow"
        if not plain:
            ins = [self.tensor(x) for x in ins]
        code = form.format(*(x.within(level) for x, level in zip(ins, levels)))
        return Text(code, binds, plain and all(x.number for x in ins))

    def tensor(self, x: Text) -> Text:
        """``x``, a tensor where it is a number."""
        return Text(f"torch.tensor({x.code}, dtype=dtype)") if x.number else x

    def axes(self, n: int) -> Axes:
        """The axes of a value."""
        return self.program.body[n].axes

    def aligned(self, n: int, want: Axes) -> Text:
        """Value ``n`` as an operand of something over ``want``: broadcastable, in that order."""
        x, have = self.texts[n], self.axes(n)
        if have == want or x.number:
            return x
        order = tuple(a for a in want if a in have)
        x = self.moved(x, have, order)
        if len(order) == len(want):
            return x
        kept = [":" if a in have else "None" for a in want]
        return Text(f"{x.within(ATOM)}[..., {', '.join(kept)}]")

    def moved(self, x: Text, have: Axes, want: Axes) -> Text:
        """``x`` with its own axes in another order."""
        if have == want:
            return x
        order = ", ".join(["0", "1", *(str(have.index(a) + 2) for a in want)])
        return Text(f"{x.within(ATOM)}.permute({order})")

    def at(self, axis: str, axes: Axes) -> int:
        """An axis, counted from the last."""
        return axes.index(axis) - len(axes)


def _load(w: _Writer, inst: Inst) -> Text:
    kind, name = inst.value
    source = {"input": "x", "dstate": "dstates"}.get(kind, "fixed")
    return Text(f'{"x" if (kind, name) == ("index", "t") else source}["{name}"]')


def _const(w: _Writer, inst: Inst) -> Text:
    value = float(inst.value)
    if value in (float("inf"), float("-inf")):
        return Text(f'float("{value}")', ATOM, True)
    code = str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return Text(code, ATOM if value >= 0 else UNARY, True)


def _size(w: _Writer, inst: Inst) -> Text:
    code = size_text(inst.value, w.quoted)
    return Text(code, ATOM if code.isidentifier() else COMPARE, True)


def _eye(w: _Writer, inst: Inst) -> Text:
    return Text(f"torch.eye({w.lengths[inst.axes[0]]}, dtype=dtype)[None, None]")


def _rename(w: _Writer, inst: Inst) -> Text:
    names = dict(inst.value)
    (n,) = inst.ins
    return w.moved(w.texts[n], tuple(names.get(a, a) for a in w.axes(n)), inst.axes)


def _expand(w: _Writer, inst: Inst) -> Text:
    x, shape = w.aligned(inst.ins[0], inst.axes), ", ".join(w.lengths[a] for a in inst.axes)
    if x.number:
        return Text(f"torch.full((1, 1, {shape}), {x.code}, dtype=dtype)")
    return Text(f"{x.within(ATOM)}.expand(-1, -1, {shape})")


def _contract(w: _Writer, inst: Inst) -> Text:
    every = dict.fromkeys(a for n in inst.ins for a in w.axes(n))
    letters = {a: chr(97 + n) for n, a in enumerate(every)}
    given = (*(w.axes(n) for n in inst.ins), inst.axes)
    left, right, out = ("..." + "".join(letters[a] for a in axes) for axes in given)
    both = ", ".join(w.texts[n].code for n in inst.ins)
    return Text(f'torch.einsum("{left},{right}->{out}", {both})')


def _reduce(call: str) -> Format:
    def run(w: _Writer, inst: Inst) -> Text:
        axes = w.axes(inst.ins[0])
        at = ", ".join(str(w.at(a, axes)) for a in axes if a in inst.value)
        return Text(f"{w.texts[inst.ins[0]].within(ATOM)}.{call}(({at},))")

    return run


def _stack(w: _Writer, inst: Inst) -> Text:
    rest = tuple(a for a in inst.axes if a != inst.value)
    parts = [w.tensor(w.aligned(n, rest)).code for n in inst.ins]
    both = f"torch.broadcast_tensors({', '.join(parts)})"
    return Text(f"torch.stack({both}, {w.at(inst.value, inst.axes)})")


def _entry(w: _Writer, inst: Inst) -> Text:
    axis, n = inst.value
    at = w.at(axis, w.axes(inst.ins[0]))
    return Text(f"{w.texts[inst.ins[0]].within(ATOM)}.select({at}, {n})")


def _take(w: _Writer, inst: Inst) -> Text:
    old, new, start, step = inst.value
    (n,) = inst.ins
    first = size_text(start, w.quoted)
    pieces = [":"] * len(w.axes(n))
    pieces[w.at(old, w.axes(n))] = f"{first}:{first} + {step} * ({w.lengths[new]}):{step}"
    x = Text(f"{w.texts[n].within(ATOM)}[..., {', '.join(pieces)}]")
    return w.moved(x, tuple(new if a == old else a for a in w.axes(n)), inst.axes)


def _put(w: _Writer, inst: Inst) -> Text:
    old, new, start, step = inst.value
    (n,) = inst.ins
    axes = w.axes(n)
    x = w.moved(w.texts[n], axes, (*(a for a in axes if a != old), old))
    first = size_text(start, w.quoted)
    row = f"torch.eye({w.lengths[new]}, dtype=dtype)"
    rows = f"{row}[{first}:{first} + {step} * ({w.lengths[old]}):{step}]"
    have = (*(a for a in axes if a != old), new)
    return w.moved(Text(f"({x.within(PRODUCT)} @ {rows})"), have, inst.axes)


def _concat(w: _Writer, inst: Inst) -> Text:
    whole, parts = inst.value
    want = [tuple(part if a == whole else a for a in inst.axes) for part in parts]
    wide = []
    for n, axes in zip(inst.ins, want):
        shape = ", ".join(w.lengths[a] for a in axes)
        wide.append(f"{w.tensor(w.aligned(n, axes)).within(ATOM)}.expand(-1, -1, {shape})")
    return Text(f"torch.cat([{', '.join(wide)}], {w.at(whole, inst.axes)})")


def _roll(w: _Writer, inst: Inst) -> Text:
    at = w.at(inst.value[0], inst.axes)
    return Text(f"torch.roll({w.texts[inst.ins[0]].code}, {inst.value[1]}, {at})")


def _fold(w: _Writer, inst: Inst) -> Text:
    rows, columns, flat = inst.value
    (n,) = inst.ins
    rest = tuple(a for a in w.axes(n) if a not in (rows, columns))
    x = w.moved(w.texts[n], w.axes(n), (*rest, rows, columns))
    return w.moved(Text(f"{x.within(ATOM)}.flatten(-2)"), (*rest, flat), inst.axes)


def _unfold(w: _Writer, inst: Inst) -> Text:
    rows, columns, flat = inst.value
    (n,) = inst.ins
    rest = tuple(a for a in w.axes(n) if a != flat)
    x = w.moved(w.texts[n], w.axes(n), (*rest, flat))
    shape = f"({w.lengths[rows]}, {w.lengths[columns]})"
    return w.moved(
        Text(f"{x.within(ATOM)}.unflatten(-1, {shape})"), (*rest, rows, columns), inst.axes
    )


def _default(w: _Writer, inst: Inst) -> Text:
    given, other = w.texts[inst.ins[0]].within(ATOM), w.aligned(inst.ins[1], inst.axes)
    value = f"torch.full((1, 1), {other.code}, dtype=dtype)" if other.number else other.code
    return Text(f"{value} if {given} is None else {given}", CHOICE)


def _omitted(w: _Writer, inst: Inst) -> Text:
    ct, given = (w.texts[n] for n in inst.ins)
    other = f"torch.zeros_like({ct.code})"
    return Text(f"{ct.within(COMPARE)} if {given.within(COMPARE)} is None else {other}", CHOICE)


Format = Callable[[_Writer, Inst], Text]

CALLS: dict[str, Format] = {
    "load": _load,
    "const": _const,
    "size": _size,
    "eye": _eye,
    "rename": _rename,
    "expand": _expand,
    "contract": _contract,
    "sum": _reduce("sum"),
    "largest": _reduce("amax"),
    "smallest": _reduce("amin"),
    "pooled": lambda w, i: Text(f"{w.texts[i.ins[0]].within(ATOM)}.sum(0, keepdim=True)"),
    "stack": _stack,
    "entry": _entry,
    "take": _take,
    "put": _put,
    "concat": _concat,
    "roll": _roll,
    "fold": _fold,
    "unfold": _unfold,
    "default": _default,
    "omitted": _omitted,
}
