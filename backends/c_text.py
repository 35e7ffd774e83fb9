"""Entries of tile values in, C expressions out: the table of formats, one per elementwise op, and
sizes and numbers as C."""

from __future__ import annotations

import math
import re

from lacc.backends.base import unused
from lacc.backends.text import ATOM, CHOICE, COMPARE, OPERATORS, PRODUCT, SUM, Text
from lacc.spec.model import Spec
from lacc.spec.shapes import Size

ELEMENTWISE: dict[str, tuple[str, int, tuple[int, ...]]] = {
    **OPERATORS,
    "where": ("{} ? {} : {}", CHOICE, (COMPARE, COMPARE, COMPARE)),
    **{
        f: (f"f_{f}({{}})", ATOM, (0,))
        for f in (
            *("exp", "log", "sqrt", "rsqrt", "abs", "sign", "sigmoid", "logsigmoid", "softplus"),
            *("tanh", "relu", "silu", "gelu", "erf", "elu", "elu1", "sin", "cos"),
        )
    },
    **{f: (f"f_{f}({{}}, {{}})", ATOM, (0, 0)) for f in ("pow", "mod", "max", "min", "logaddexp")},
}

KEYWORDS = frozenset(
    ["auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "real", "vec"]
)

RESERVED = KEYWORDS | frozenset(
    ["run", "x", "n", "h", "w", "C", "L", "c", "at", "t", "s", "past", "chunks", "known", "room", "scratch", "first", "count", "p", "i", "sum"]
)
"""Names that emitted functions use."""


def elementwise(op: str, ins: list[Text]) -> Text:
    """The entry of an elementwise value over those of its operands."""
    form, binds, levels = ELEMENTWISE[op]
    if op == "stop_gradient":
        return ins[0]
    return Text(form.format(*(x.within(level) for x, level in zip(ins, levels))), binds)


def number(value: float) -> Text:
    """A number of the file's precision."""
    if math.isnan(value):
        return Text("R(NAN)")
    if math.isinf(value):
        return Text("R(INFINITY)" if value > 0 else "R(-INFINITY)")
    return Text(f"R({int(value) if value == int(value) and abs(value) < 2**53 else value!r})")


def size(value: Size) -> Text:
    """A size as a whole number, over the names of dims."""
    if (constant := value.constant) is not None:
        return Text(str(constant), ATOM)
    whole = math.lcm(*(coefficient.denominator for _, coefficient in value.terms))
    terms = []
    for monomial, coefficient in value.terms:
        factors = [dim(name) for name, power in monomial for _ in range(power)]
        times = coefficient * whole
        if times != 1 or not factors:
            factors.insert(0, str(times))
        terms.append(" * ".join(factors))
    single = len(terms) == 1 and " * " not in terms[0]
    sum_ = Text(" + ".join(terms), ATOM if single else SUM if len(terms) > 1 else PRODUCT)
    return sum_ if whole == 1 else Text(f"({sum_.code}) / {whole}", PRODUCT)


def dim(name: str) -> str:
    """A dim as a C variable, and as the field of a run."""
    return "past" if name == "#past" else unused(name, RESERVED)


def free_dims(spec: Spec) -> list[str]:
    """The dims of a call: those that no other size gives."""
    return [name for name, dim in spec.dims.items() if dim.size == Size.of(name)]


def identifier(label: str) -> str:
    """A label as part of a C name: "k@-2" is k_2."""
    return re.sub(r"\W+", "_", label, flags=re.ASCII).strip("_")


def times(*factors: str) -> str:
    """A product of whole numbers; "1" of none."""
    return (
        " * ".join(f if re.fullmatch(r"\w+", f) else f"({f})" for f in factors if f != "1") or "1"
    )


def plus(*terms: str) -> str:
    """A sum of whole numbers; "0" of none."""
    return " + ".join(term for term in terms if term != "0") or "0"
