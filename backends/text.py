"""Expressions as text that any backend writes, with how tightly they bind; sizes as expressions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lacc.spec.shapes import Size

ATOM, POWER, UNARY, PRODUCT, SUM, COMPARE, CHOICE = 9, 6, 5, 4, 3, 2, 1


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, how tightly its outermost operator binds, and whether it is a Python number,
    not an array."""

    code: str
    binds: int = ATOM
    number: bool = False

    def within(self, level: int) -> str:
        """The code, in parentheses where it binds less tightly than ``level``."""
        return self.code if self.binds >= level else f"({self.code})"


OPERATORS: dict[str, tuple[str, int, tuple[int, ...]]] = {
    # op: format, how the result binds, how tightly each operand must bind
    "add": ("{} + {}", SUM, (SUM, SUM)),
    "sub": ("{} - {}", SUM, (SUM, PRODUCT)),
    "mul": ("{} * {}", PRODUCT, (PRODUCT, UNARY)),
    "div": ("{} / {}", PRODUCT, (PRODUCT, UNARY)),
    "neg": ("-{}", UNARY, (UNARY,)),
    "lt": ("{} < {}", COMPARE, (SUM, SUM)),
    "le": ("{} <= {}", COMPARE, (SUM, SUM)),
    "gt": ("{} > {}", COMPARE, (SUM, SUM)),
    "ge": ("{} >= {}", COMPARE, (SUM, SUM)),
    "eq": ("{} == {}", COMPARE, (SUM, SUM)),
    "stop_gradient": ("{}", ATOM, (ATOM,)),
}
"""What is written alike wherever the syntax is Python's."""


def size_text(size: Size, quoted: Collection[str] = ()) -> str:
    """A size as Python, over names of dims; those of ``quoted`` are looked up in ``dims``."""
    constant = size.constant
    if constant is not None:
        return str(constant)
    terms, whole = [], 1
    for _, coefficient in size.terms:
        whole = max(whole, coefficient.denominator)
    for monomial, coefficient in size.terms:
        factors = [
            f'dims["{name}"]' if name in quoted else name
            for name, power in monomial
            for _ in range(power)
        ]
        number = coefficient * whole
        if number != 1 or not factors:
            factors.insert(0, str(number))
        terms.append(" * ".join(factors))
    text = " + ".join(terms)
    return text if whole == 1 else f"({text}) // {whole}"
