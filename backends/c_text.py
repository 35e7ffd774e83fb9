"""Entries of tile values in, C expressions out: the table of formats, one per elementwise op, and
sizes, numbers and names as C."""

from __future__ import annotations

import math
import re

from lacc.backends.base import unused
from lacc.backends.text import ATOM, CHOICE, COMPARE, OPERATORS, PRODUCT, SUM, Text
from lacc.ir.ops import OPS
from lacc.spec.model import Spec
from lacc.spec.shapes import Size
from lacc.tile.ops import TILE_OPS

ELEMENTWISE: dict[str, tuple[str, int, tuple[int, ...]]] = {
    **{
        name: (f"f_{name}({', '.join(['{}'] * op.arity[0])})", ATOM, (0,) * op.arity[0])
        for name, op in OPS.items()
        if op.entrywise
    },
    **OPERATORS,
    "where": ("{} ? {} : {}", CHOICE, (COMPARE, COMPARE, COMPARE)),
}

TILEWISE = {
    "exp": "exps",
    "sigmoid": "sigmoids",
    "logsigmoid": "logsigmoids",
    "softplus": "softpluses",
    "silu": "silus",
    "elu1": "elu1s",
}
"""The function of all numbers of a tile, by the op of one: powers of e come faster together."""


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


KEYWORDS = words(
    "auto break case char const continue default do double else enum extern float for "
    "goto if inline int long register restrict return short signed sizeof static struct "
    "switch typedef union unsigned void volatile while real vec "
    "alignas alignof asm bool constexpr false linux nullptr static_assert thread_local true "
    "typeof typeof_unqual unix int32_t int64_t size_t"
)

RESERVED = KEYWORDS.union(
    words(
        "run x n h w C L c at t s past chunks known room scratch first count p i sum gemm "
        "fill copy add_to take state_from state_into state_end start_from keep_tile kept_all "
        "least most round_up allocate levels_beside load_tile store_tile gemm_onto pulled row_dots "
        "want ask ahead by ring all heads other beside then to kept step ring_of"
    ),
    TILE_OPS,
    TILEWISE.values(),
    (f"f_{name}" for name in OPS),
)
"""Names that emitted functions use."""


def plain_name(name: str) -> str:
    """``name``, with an underscore behind it where it is a keyword, as ``do`` is, or looks like a
    macro, as NULL and EVEN do: which ones there are differs from one C library to the next."""
    macro = re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", name)
    return f"{name}_" if macro or name in KEYWORDS else name


def elementwise(op: str, ins: list[Text]) -> Text:
    """The entry of an elementwise value over those of its operands."""
    form, binds, levels = ELEMENTWISE[op]
    return Text(form.format(*(x.within(level) for x, level in zip(ins, levels))), binds)


def number(value: float) -> Text:
    """A number of the file's precision."""
    if math.isfinite(value):
        return Text(f"R({int(value) if value == int(value) and abs(value) < 2**53 else value!r})")
    return Text("R(NAN)" if math.isnan(value) else f"R({'-' if value < 0 else ''}INFINITY)")


def size(value: Size) -> Text:
    """A size as a whole number, over the names of dims."""
    if (constant := value.constant) is not None:
        return Text(str(constant))
    divisor = math.lcm(*(coefficient.denominator for _, coefficient in value.terms))
    terms = []
    for monomial, coefficient in value.terms:
        factors = [dim(name) for name, power in monomial for _ in range(power)]
        if coefficient * divisor != 1 or not factors:
            factors.insert(0, str(coefficient * divisor))
        terms.append(" * ".join(factors))
    code = " + ".join(terms)
    if divisor != 1:
        return Text(f"{whole(code)} / {divisor}", PRODUCT)
    return Text(code, SUM if len(terms) > 1 else PRODUCT if "*" in code else ATOM)


def dim(name: str) -> str:
    """A dim as a C variable, and as the field of a run."""
    return "past" if name == "#past" else unused(plain_name(name), RESERVED)


def free_dims(spec: Spec) -> list[str]:
    """The dims of a call: those that no other size gives."""
    return [name for name, dim in spec.dims.items() if dim.size == Size.of(name)]


def identifier(label: str) -> str:
    """A label as part of a C name: "k@-2" is k_2."""
    return re.sub(r"\W+", "_", label, flags=re.ASCII)


def whole(index: str) -> str:
    """A whole number as an operand of any operator."""
    return index if re.fullmatch(r"[\w.]*|\w*\([^()]*\)", index) else f"({index})"


def times(*factors: str) -> str:
    """A product of whole numbers; "1" of none."""
    return "0" if "0" in factors else " * ".join(whole(f) for f in factors if f != "1") or "1"


def plus(*terms: str) -> str:
    """A sum of whole numbers; "0" of none."""
    return " + ".join(term for term in terms if term != "0") or "0"
