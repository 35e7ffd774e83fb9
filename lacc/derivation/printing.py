"""Terms in, their text out, whatever the signs are: how tightly things bind, where signs go, and
what a spec's expressions are made of. `text` and `latex` say how each is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from lacc.derivation.terms import At, Equation, Term
from lacc.spec.format import SIGNS
from lacc.spec.model import Expr, Spec
from lacc.spec.names import as_read
from lacc.spec.shapes import Size

SUM, HAD, PRODUCT, SIGN, POSTFIX, ATOM = range(1, 7)
"""How tightly a piece binds."""

Piece = tuple[str, int]


def signed(term: Term) -> tuple[int, Term]:
    """A term as a sign and what is left, the signs of its factors pulled out."""
    match term.op, term.value:
        case "neg", _:
            sign, rest = signed(term.args[0])
            return -sign, rest
        case "spec", (Expr(op="neg") as expr, At() as at):
            sign, rest = signed(Term("spec", (), (expr.args[0], at)))
            return -sign, rest
        case (("scale" | "matmul" | "had" | "T" | "sum"), _):
            pairs = [signed(arg) for arg in term.args]
            minus = sum(sign < 0 for sign, _ in pairs) % 2
            return 1 - 2 * minus, Term(term.op, tuple(rest for _, rest in pairs), term.value)
    return 1, term


class Printer(ABC):
    """Writes the terms of one spec's derivation."""

    def __init__(self, spec: Spec, *forms: Spec) -> None:
        """``forms`` are what became of ``spec``, with definitions of their own."""
        self.spec = spec
        every = [d for form in (spec, *forms) for d in reversed(form.definitions)]
        self.names = {d.expr: d.name for d in every if d.expr.args}
        self.timed = {a.name for a in spec.args if a.role == "input" or a.per == "position"}

    # ---- how things are written

    @abstractmethod
    def name(self, name: str, indices: Sequence[str] = ()) -> str:
        """A name with its indices."""

    @abstractmethod
    def path(self, name: str, low: str, high: str) -> str:
        """What runs from low to high."""

    @abstractmethod
    def index(self, at: At) -> str:
        """A token."""

    @abstractmethod
    def call(self, name: str, args: Sequence[str]) -> Piece:
        """A function."""

    @abstractmethod
    def fraction(self, a: Piece, b: Piece) -> Piece:
        """a / b."""

    @abstractmethod
    def power(self, a: Piece, b: Piece) -> Piece:
        """a to the power of b."""

    @abstractmethod
    def over(self, op: str, index: str, low: str, high: str, body: Piece) -> Piece:
        """A sum, product or maximum over an index."""

    @abstractmethod
    def matrix(self, rows: Sequence[Sequence[str]]) -> str:
        """A matrix of entries."""

    @abstractmethod
    def named(self, name: str, at: At) -> str:
        """What a definition or an application is called, at a token."""

    @abstractmethod
    def bracket(self, text: str) -> str:
        """``text`` in brackets."""

    @abstractmethod
    def number(self, value: float) -> str:
        """A number."""

    def size(self, size: Size) -> str:
        """A size."""
        return str(size)

    joints: ClassVar[Mapping[str, str]]
    """The signs of scale, had, matmul and of what is left out."""

    # ---- terms

    def text(self, term: Term) -> str:
        return self.term(term)[0]

    def fit(self, piece: Piece, least: int) -> str:
        return piece[0] if piece[1] >= least else self.bracket(piece[0])

    def joined(self, sign: str, pieces: Iterable[Piece], least: int) -> str:
        return sign.join(self.fit(piece, least) for piece in pieces)

    def summands(self, term: Term) -> list[str]:
        """The terms of a sum, each with its sign."""
        parts = term.args if term.op == "add" else (term,)
        found = []
        for n, part in enumerate(parts):
            sign, rest = signed(part)
            text = self.fit(self.unsigned(rest), HAD if len(parts) > 1 or sign < 0 else SUM)
            minus = "-" if sign < 0 else ""
            found.append(f"{minus or '+'} {text}" if n else f"{minus}{text}")
        return found

    def term(self, term: Term) -> Piece:
        """The text of a term, a sign of its factors before it."""
        sign, rest = signed(term)
        piece = self.unsigned(rest)
        return piece if sign > 0 else (f"-{self.fit(piece, HAD)}", SUM)

    def unsigned(self, term: Term) -> Piece:
        """The text of a term that `signed` gave."""
        match term.op, term.value:
            case "spec" | "named", (Expr() as expr, At() as at):
                return self.expr(expr, at)
            case "whole", (Expr() as expr, At() as at):
                return self.made(expr, at)
            case "symbol", (str() as name, tuple() as indices):
                shown, _ = as_read(name, 0)
                return self.name(shown, [self.index(at) for at in indices]), ATOM
            case "path", (str() as name, At() as low, At() as high):
                return self.path(name, self.index(low), self.index(high)), ATOM
            case "number", int() | float() as value:
                return self.number(value), SIGN if value < 0 else ATOM
            case "ones", _:
                return self.name("𝟙"), ATOM
            case "chain", (At(), At() as low, At() as high):
                return self._chain(term, low, high), PRODUCT
            case "matrix", int() as columns:
                entries = [self.text(arg) for arg in term.args]
                rows = [entries[i : i + columns] for i in range(0, len(entries), columns)]
                return self.matrix(rows), ATOM
            case "entry", (int() as i, int() as j):
                return self.entry(self.text(term.args[0]), i + 1, j + 1), ATOM
            case (
                ("sum" | "prod" | "max" | "min" | "lse"),
                (At() as index, At() as low, At() as high),
            ):
                body = self.term(term.args[0])
                return self.over(term.op, index.name, self.index(low), self.index(high), body)
            case "jacobian", str() as state:
                return self.jacobian(self.text(term.args[0]), state), SUM
        if term.op == "add":
            return " ".join(self.summands(term)), SUM
        args = [self.term(arg) for arg in term.args]
        match term.op:
            case "scale" | "matmul":
                return self.joined(self.joints[term.op], args, PRODUCT), PRODUCT
            case "had":
                return self.joined(self.joints["had"], args, PRODUCT), HAD
            case "T":
                return self.transposed(args[0]), POSTFIX
            case "diag":
                return self.call("diag", [args[0][0]])
            case "d":
                return self.cotangent(args[0]), ATOM
            case "call" if term.value == "larger":
                return self.larger(args[0], args[1]), ATOM
        return self.call(str(term.value), [text for text, _ in args])

    def _chain(self, term: Term, low: At, high: At) -> str:
        factor = term.args[0]
        assert isinstance(factor.value, tuple)
        ends = [self.name(str(factor.value[0]), [self.index(at)]) for at in (high, high - 1, low)]
        sign = self.joints["matmul"]
        return f"{ends[0]}{sign}{ends[1]}{sign}{self.joints['dots']}{sign}{ends[2]}"

    @abstractmethod
    def transposed(self, x: Piece) -> str:
        """xᵀ."""

    @abstractmethod
    def cotangent(self, x: Piece) -> str:
        """dx."""

    @abstractmethod
    def larger(self, a: Piece, b: Piece) -> str:
        """1 where a > b."""

    @abstractmethod
    def entry(self, matrix: str, i: int, j: int) -> str:
        """An entry of a matrix, counted from 1."""

    @abstractmethod
    def jacobian(self, sent: str, state: str) -> str:
        """The adjoint of any update."""

    # ---- a spec's expressions

    def expr(self, expr: Expr, at: At) -> Piece:
        """An expression at a token, by its name where it has one."""
        name = self.names.get(expr)
        if name is None:
            return self.made(expr, at)
        return self.named(name, at if self.varies(expr) else At("")), ATOM

    def varies(self, expr: Expr) -> bool:
        """Whether it has a value of its own for each token."""
        for node in expr.walk():
            timed = node.op == "param" and node.value in self.timed
            if node.op in ("input", "state", "attend") or timed or (node.op == "t"):
                return True
        return False

    def made(self, expr: Expr, at: At) -> Piece:
        """An expression by its parts."""
        match expr.op, expr.value:
            case "const", int() | float() as value:
                return self.number(value), SIGN if value < 0 else ATOM
            case "size", Size() as size:
                text = self.size(size)
                return text, ATOM if text.isalnum() else SUM
            case (("input" | "state"), (str() as name, when)):
                name, when = as_read(name, when)
                token = At(at.name, at.offset + when) if isinstance(when, int) else At(str(when))
                return self.name(name, [self.index(token)]), ATOM
            case (("param" | "buffer"), str() as name):
                return self.name(name, [self.index(at)] if name in self.timed else []), ATOM
            case "eye", _:
                return self.name("I"), ATOM
            case "t", _:
                return self.index(at), ATOM if not at.offset else SUM
            case (("T" | "H" | "head"), None) if not expr.args:
                return self.name(expr.op), ATOM
        args = [self.expr(arg, at) for arg in expr.args]
        if expr.op in SIGNS:
            return f"{args[0][0]} {self.sign(SIGNS[expr.op])} {args[1][0]}", SUM
        match expr.op:
            case "add":
                return f"{args[0][0]} + {self.fit(args[1], SUM)}", SUM
            case "sub":
                return f"{args[0][0]} - {self.fit(args[1], HAD)}", SUM
            case "neg":
                return f"-{self.fit(args[0], HAD)}", SUM
            case "mul":
                if all(arg.shape for arg in expr.args):
                    return self.joined(self.joints["had"], args, HAD), HAD
                return self.joined(self.joints["scale"], args, PRODUCT), PRODUCT
            case "matmul":
                return self.joined(self.joints["matmul"], args, PRODUCT), PRODUCT
            case "div":
                return self.fraction(*args)
            case "pow":
                return self.power(*args)
            case "T":
                return self.transposed(args[0]), POSTFIX
            case "where":
                return self.where([text for text, _ in args]), ATOM
            case "attend" if expr.value is not None:
                return self.call("attend", [*(text for text, _ in args), str(expr.value)])
        return self.call(expr.op.removeprefix("reduce_"), [text for text, _ in args])

    def sign(self, sign: str) -> str:
        """A comparison's sign."""
        return sign

    @abstractmethod
    def where(self, args: Sequence[str]) -> str:
        """A choice."""

    # ---- equations

    @abstractmethod
    def equation(self, equation: Equation) -> str:
        """One equation."""
