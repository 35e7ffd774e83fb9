"""Syntax and typed expressions go in, text as a paper writes it comes out.

`unparse` is canonical: equal files give equal text, and the text parses to an equal file.
"""

from __future__ import annotations

from collections.abc import Mapping

from lacc.spec.model import COMPARISONS, Expr
from lacc.spec.names import as_read
from lacc.spec.shapes import Size
from lacc.spec.syntax import (
    Declare,
    Define,
    Feature,
    File,
    Name,
    Node,
    Recur,
    Sized,
    Statement,
    Type,
    Use,
)

COMPARE, SUM, PRODUCT, SIGN, POWER, POSTFIX, ATOM = range(7)
"""How tightly a piece of text binds."""

Text = tuple[str, int]

BINARY = {
    "add": ("{} + {}", SUM, PRODUCT),
    "sub": ("{} - {}", SUM, PRODUCT),
    "mul": ("{} * {}", PRODUCT, SIGN),
    "div": ("{} / {}", PRODUCT, SIGN),
    "matmul": ("{} @ {}", PRODUCT, SIGN),
    "pow": ("{}**{}", POSTFIX, SIGN),
}
"""The form of an operator, and how tightly its left and right side must bind."""

SIGNS = {op: sign for sign, op in COMPARISONS.items()}
LEAVES = {"eye": "I", "t": "t", "T": "T", "head": "head", "H": "H"}
DOC_COLUMN = 38
LONGEST = 400
"""Characters of a typed expression's part, beyond which it is shown as `…`."""


def unparse(file: File) -> str:
    """The canonical text of ``file``. Raises ValueError for an output without a type."""
    head = f"variant {file.name.text}"
    if file.base:
        head += f" extends {_dotted(file.base)}"
    lines = [*_doc(file.doc), head]
    before = ""
    for statement in file.statements:
        kind = "equation" if isinstance(statement, Define | Recur) else "declaration"
        if isinstance(statement, Define) and statement.role == "gate":
            kind = before or kind
        if kind != before:
            lines.append("")
        before = kind
        lines += _statement(statement)
    if file.expects:
        lines += ["", *(f"# expect {key}: {value}".rstrip() for key, value in file.expects)]
    return "\n".join(lines) + "\n"


def written(node: Node) -> str:
    """The text of an untyped expression."""
    return _node(node)[0]


def show(expr: Expr, names: Mapping[Expr, str] | None = None) -> str:
    """The text of a typed expression; ``names`` gives parts a name to show instead.

    Parts that would take more than `LONGEST` characters are shown as `…`.
    """
    names = names or {}
    texts: dict[Expr, Text] = {}
    for node in expr.walk():
        text, binds = (names[node], ATOM) if node in names else _typed(node, texts)
        texts[node] = (text, binds) if len(text) <= LONGEST else ("…", ATOM)
    return texts[expr][0]


# ---- statements


def _doc(doc: str) -> list[str]:
    return [f"## {line}".rstrip() for line in doc.split("\n")] if doc else []


def _statement(statement: Statement) -> list[str]:
    text = _text(statement)
    doc = _doc(statement.doc)
    if len(doc) == 1 and isinstance(statement, Declare | Sized):
        return [f"{text:<{DOC_COLUMN - 1}} {doc[0]}"]
    return [*doc, text]


def _text(statement: Statement) -> str:
    match statement:
        case Sized(kind, items):
            return f"{kind} " + ", ".join(
                f"{name.text} = {written(value)}" for name, value in items
            )
        case Declare():
            return _declare(statement)
        case Feature(name, params, body):
            return f"feature {name.text}({_names(params)}) = {written(body)}"
        case Define(role, name, body):
            return f"{role} {name.text} = {written(body)}".lstrip()
        case Recur(name, body):
            return f"{name.text}[t] = {written(body)}"
        case Use(path, alias):
            renamed = f" as {alias.text}" if alias != path[-1] else ""
            return f"use {_dotted(path)}{renamed}"


def _declare(statement: Declare) -> str:
    if statement.type is None:
        raise ValueError(f"the output {_names(statement.names)} has no type")
    text = f"{statement.role} {_names(statement.names)} : {_type(statement.type)}"
    if statement.flags:
        text += f" ({', '.join(_flag(name, value) for name, value in statement.flags)})"
    if statement.per is not None:
        text += f" per {statement.per.text}"
    if statement.default is not None:
        text += f" = {written(statement.default)}"
    if statement.where:
        text += f" where {', '.join(map(written, statement.where))}"
    return text


def _flag(name: Name, value: Node | None) -> str:
    return name.text if value is None else f"{name.text} = {written(value)}"


def _names(names: tuple[Name, ...]) -> str:
    return ", ".join(name.text for name in names)


def _dotted(names: tuple[Name, ...]) -> str:
    return ".".join(name.text for name in names)


def _type(type: Type) -> str:
    return f"[{', '.join(map(written, type.axes))}]" if type.axes else "scalar"


# ---- expressions


def _bracket(text: Text, least: int) -> str:
    return text[0] if text[1] >= least else f"({text[0]})"


def _operator(op: str, args: list[Text]) -> Text | None:
    """The text of an operator, None for any other op."""
    if op in BINARY:
        form, left, right = BINARY[op]
        binds = POWER if op == "pow" else left
        return form.format(_bracket(args[0], left), _bracket(args[1], right)), binds
    if op == "neg":
        return f"-{_bracket(args[0], SIGN)}", SIGN
    if op == "T":
        return f"{_bracket(args[0], POSTFIX)}.T", POSTFIX
    return None


def _call(name: str, args: list[str]) -> Text:
    return f"{name}({', '.join(args)})", ATOM


def _node(node: Node) -> Text:
    args = [_node(arg) for arg in node.args]
    if operator := _operator(node.op, args):
        return operator
    match node.op, node.value:
        case "at", (str(name), str(base), shift):
            return f"{name}[{base}{_shift(shift)}]", ATOM
        case "call", str(name):
            return _call(name, [text for text, _ in args])
        case "keyword", str(name):
            return f"{name}={args[0][0]}", COMPARE
        case "compare", tuple(signs):
            parts = [_bracket(args[0], SUM)]
            for sign, arg in zip(signs, args[1:]):
                parts += [str(sign), _bracket(arg, SUM)]
            return " ".join(parts), COMPARE
        case "number", int() | float() as number:
            return _number(number), ATOM
        case _:
            return str(node.value), ATOM


def _number(number: int | float) -> str:
    """The shortest text of a number: 64, 0.5, 1e-6."""
    return repr(number).replace("e-0", "e-").replace("e+", "e").removesuffix(".0")


def _shift(shift: object) -> str:
    if isinstance(shift, int):
        return f"{shift:+d}" if shift else ""
    return str(shift)


def _typed(expr: Expr, texts: Mapping[Expr, Text]) -> Text:
    args = [texts[arg] for arg in expr.args]
    if expr.args and (operator := _operator(expr.op, args)):
        return operator
    if expr.op in SIGNS:
        return f"{_bracket(args[0], SUM)} {SIGNS[expr.op]} {_bracket(args[1], SUM)}", COMPARE
    plain = [text for text, _ in args]
    match expr.op, expr.value:
        case "const", int() | float() as number:
            return _number(number), SIGN if number < 0 else ATOM
        case "size", Size() as size:
            text = str(size)
            return text, SUM if " + " in text else ATOM if text.isidentifier() else PRODUCT
        case (("input" | "state"), (str(name), when)):
            name, when = as_read(name, when)
            bare = expr.op == "input" and not when
            time = f"t{_shift(when)}" if isinstance(when, int) else when
            return name if bare else f"{name}[{time}]", ATOM
        case (("param" | "buffer"), str(name)):
            return name, ATOM
        case "roll", int(by):
            return _call("roll", [*plain, str(by)])
        case "attend", window:
            span = [] if window is None else [f"window={window}"]
            return _call("attend", [*plain[:3], *span, *(f"sink={text}" for text in plain[3:])])
        case _ if expr.op in LEAVES and not args:
            return LEAVES[expr.op], ATOM
        case _:
            return _call(expr.op.removeprefix("reduce_"), plain)
