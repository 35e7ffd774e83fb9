"""Terms in, text for a terminal out, close to the language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from lacc.derivation.printing import ATOM, POSTFIX, PRODUCT, SIGN, Piece, Printer
from lacc.derivation.terms import At, Equation


class Plain(Printer):
    """Text for a terminal, close to the language."""

    joints: ClassVar[Mapping[str, str]] = {
        "scale": " * ",
        "had": " ⊙ ",
        "matmul": " @ ",
        "dots": "…",
    }
    _OPS: ClassVar[Mapping[str, str]] = {"sum": "Σ", "prod": "Π", "max": "max", "min": "min"}

    def name(self, name: str, indices: Sequence[str] = ()) -> str:
        name = name.replace("d ", "d").replace("^", "")
        return f"{name}[{', '.join(indices)}]" if indices else name

    def path(self, name: str, low: str, high: str) -> str:
        return f"{name}[{low}→{high}]"

    def index(self, at: At) -> str:
        return f"{at.name}{at.offset:+d}" if at.offset else at.name

    def call(self, name: str, args: Sequence[str]) -> Piece:
        return f"{name}({', '.join(args)})", ATOM

    def fraction(self, a: Piece, b: Piece) -> Piece:
        return f"{self.fit(a, PRODUCT)} / {self.fit(b, POSTFIX)}", PRODUCT

    def power(self, a: Piece, b: Piece) -> Piece:
        return f"{self.fit(a, POSTFIX)}**{self.fit(b, SIGN)}", POSTFIX

    def over(self, op: str, index: str, low: str, high: str, body: Piece) -> Piece:
        if op == "lse":
            return f"log Σ_{{{index}={low}..{high}}} exp({body[0]})", PRODUCT
        return f"{self._OPS[op]}_{{{index}={low}..{high}}} {self.fit(body, PRODUCT)}", PRODUCT

    def matrix(self, rows: Sequence[Sequence[str]]) -> str:
        inner = ["[" + ", ".join(row) + "]" for row in rows]
        return "[" + ", ".join(inner) + "]"

    def named(self, name: str, at: At) -> str:
        return self.name(name, [self.index(at)] if at.name else [])

    def bracket(self, text: str) -> str:
        return f"({text})"

    def number(self, value: float) -> str:
        return repr(value).replace("e-0", "e-").replace("e+", "e").removesuffix(".0")

    def transposed(self, x: Piece) -> str:
        return f"{self.fit(x, POSTFIX)}ᵀ"

    def cotangent(self, x: Piece) -> str:
        return f"d{x[0]}" if re.fullmatch(r"[\w']+(\[[^\]]*\])?", x[0]) else f"d({x[0]})"

    def larger(self, a: Piece, b: Piece) -> str:
        return f"({a[0]} > {b[0]})"

    def entry(self, matrix: str, i: int, j: int) -> str:
        return f"{matrix}({i},{j})"

    def jacobian(self, sent: str, state: str) -> str:
        return f"{sent} + (∂{state}[t+1]/∂{state}[t])ᵀ d{state}[t+1]"

    def where(self, args: Sequence[str]) -> str:
        return f"where({', '.join(args)})"

    def equation(self, equation: Equation) -> str:
        left = self.text(equation.left) + (" +" if equation.share else " ")
        parts = self.summands(equation.right)
        lines = [f"{left}= {parts[0]}"]
        for part in parts[1:]:
            if len(lines[-1]) + len(part) < 92:
                lines[-1] += f" {part}"
            else:
                lines.append(" " * len(left) + part)
        where = equation.where.replace("<=", "≤")
        return "\n".join(lines) + (f"{' ' * 4}({where})" if where else "")
