"""From a decorated Python function comes the syntax of a spec: the function is read, never run.

    @lacc.variant
    def gla(q: "[K]", k: "[K]", v: "[V]", g: "[K] where g <= 0", *, K=128, V=128):
        α = gate(exp(g))
        S = state("[K, V]")
        S[t] = diag(α) @ S[t-1] + k @ v.T
        return K**-0.5 * S[t].T @ q

An annotation, or the text in the call of a role, is what a `.la` file has after the colon; before
it may stand `param` or `buffer` (`u: "param [K] per head"`). Keyword-only arguments are dims where
their value is an int, consts where it is a float. In the body, `gate(e)`, `normalizer(e)`,
`dim(e)`, `const(e)`, `feature(lambda x: e)`, `state("[K, V]")`, `param("[K]")`, `buffer("[M, K]")`
and `use(feature_maps.taylor2)` are the statements of that name.
"""

from __future__ import annotations

import ast
import inspect
import math
from dataclasses import replace
from types import FunctionType

from lacc.diagnostics import Diagnostic, LaccError, Source, Span, error, suggest
from lacc.frontends.la import parse_piece
from lacc.frontends.mistakes import FOREIGN
from lacc.frontends.split import MAX_DEPTH, Piece
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
    Use,
)

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
}
REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.For: ("a loop", FOREIGN["for"]),
    ast.While: ("a loop", FOREIGN["while"]),
    ast.If: ("`if`", FOREIGN["if"]),
    ast.IfExp: ("`if`", FOREIGN["if"]),
    ast.BoolOp: ("`and` or `or`", FOREIGN["and"]),
    ast.FunctionDef: ("a function", "a function is written φ = feature(lambda x: ...)"),
    ast.Lambda: ("`lambda`", "a function is written φ = feature(lambda x: ...)"),
    ast.Mod: ("`%`", "write mod(a, b)"),
    ast.AnnAssign: ("an annotation", 'a declaration is written S = state("[K, V]")'),
    ast.Expr: ("a line that defines nothing", "a body holds equations and declarations alone"),
}
"""Pieces of Python that a spec has not: what to call them, and what to write instead."""

MAX_BYTES = 4 * 1024 * 1024
"""Largest Python file that is read."""

DECLARING = ("input", "param", "buffer", "state", "output")
OUTPUT = "o"
"""The name of an output that is returned without one."""


class _Refused(Exception):
    """What stands here is no part of the language; the diagnostic is on its way."""


def variant(function: FunctionType) -> File:
    """The spec that ``function`` holds, with places in its Python file. Raises LaccError."""
    nowhere = error("LA0131", None, name=getattr(function, "__name__", repr(function)))
    if not isinstance(function, FunctionType):
        raise LaccError([nowhere])
    try:
        lines, _ = inspect.findsource(function)
        source = Source(function.__code__.co_filename, "".join(lines))
        tree = ast.parse(source.text)
    except (OSError, SyntaxError):
        raise LaccError([nowhere]) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == function.__code__.co_firstlineno and node.name == function.__name__:
                return _file(source, node)
    raise LaccError([nowhere])


def read(source: Source, name: str | None = None) -> File:
    """The spec that the decorated function called ``name`` of a Python file holds, the only one
    without a name. The file is parsed and never run. Raises LaccError."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line = min(getattr(fault, "lineno", None) or 1, len(source.starts))
        start = source.starts[line - 1]
        span = Span(source, start, start + len(source.line(line)))
        said = getattr(fault, "msg", None) or str(fault) or "it is nested too deeply"
        raise LaccError([error("LA0132", span, reason=said)]) from None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and _decorated(n)]
    names = [node.name for node in found]
    chosen = [node for node in found if name in (None, node.name)]
    if len(chosen) != 1:
        what = f"no decorated function `{name}`" if name else f"{len(found)} decorated functions"
        close = suggest(name, names) if name else ""
        hint = close or (
            f"write {source.name}:{names[0]}" if names else "decorate one: @lacc.variant"
        )
        raise LaccError([error("LA0133", None, file=source.name, what=what, hint=hint)])
    return _file(source, chosen[0])


def _decorated(node: ast.FunctionDef) -> bool:
    """Whether a function is decorated with `variant`, by whatever way that was imported."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name(id="variant") | ast.Attribute(attr="variant"):
                return True
    return False


def _file(source: Source, node: ast.FunctionDef) -> File:
    reader = _Reader(source)
    file = reader.file(node)
    if reader.problems:
        raise LaccError(reader.problems)
    return file


def _equation(statement: Recur | Define) -> bool:
    return isinstance(statement, Recur) or statement.role != "gate"


def _grouped(statements: list[Statement]) -> list[Statement]:
    """Neighbours that a `.la` file would declare on one line as one: `dim K = 4, V = 4`."""
    out: list[Statement] = []
    for statement in statements:
        match out[-1:], statement:
            case [Sized(kind) as last], Sized(same) if kind == same:
                span = last.span.to(statement.span)
                out[-1] = replace(last, items=last.items + statement.items, span=span)
            case [Declare(default=None, where=()) as last], Declare() if (
                replace(statement, names=last.names) == last
            ):
                span = last.span.to(statement.span)
                out[-1] = replace(last, names=last.names + statement.names, span=span)
            case _:
                out.append(statement)
    return out


class _Reader:
    """Reads one function; what is wrong with it is collected in ``problems``."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Diagnostic] = []

    # ---- places and faults

    def _offset(self, line: int, column: int) -> int:
        """The character at a place of Python's: lines from 1, columns in bytes of UTF-8."""
        text = self.source.line(line).encode()[:column].decode()
        return self.source.starts[line - 1] + len(text)

    def _span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Span:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        return Span(self.source, start, self._offset(node.end_lineno, node.end_col_offset))

    def _refuse(self, code: str, span: Span, **values: str | int) -> _Refused:
        self.problems.append(error(code, span, notes=(), **values))
        return _Refused()

    def _python(self, node: ast.expr | ast.stmt, kind: ast.AST | None = None) -> _Refused:
        """The refusal of a piece of Python."""
        type_ = type(kind or node)
        other = (f"`{type_.__name__.lower()}`", "a body holds equations and declarations alone")
        what, hint = REFUSED.get(type_, other)
        return self._refuse("LA0130", self._span(node), what=what, hint=hint)

    def _name(self, node: ast.expr | ast.arg) -> Name:
        if isinstance(node, ast.arg):
            start = self._span(node).start
            return Name(node.arg, Span(self.source, start, start + len(node.arg)))
        if isinstance(node, ast.Name):
            return Name(node.id, self._span(node))
        raise self._refuse("LA0130", self._span(node), what="this", hint="write a name")

    # ---- the function

    def file(self, node: ast.FunctionDef) -> File:
        """The whole function."""
        body = node.body
        doc = ast.get_docstring(node) or ""
        start = self._offset(node.lineno, node.col_offset) + len("def ")
        name = Name(node.name, Span(self.source, start, start + len(node.name)))
        statements: list[Statement] = []
        statements += self._signature(node.args)
        for number, statement in enumerate(body):
            try:
                if isinstance(statement, ast.Return) and statement.value is not None:
                    self._outputs(statement.value, statements, node.returns)
                    for after in body[number + 1 : number + 2]:
                        raise self._python(after)
                elif number or not doc:
                    statements.append(self._statement(statement))
            except _Refused:
                continue
        if not any(isinstance(statement, ast.Return) for statement in body):
            hint = "return the output, or a tuple of outputs"
            self._refuse("LA0130", name.span, what="a function that returns nothing", hint=hint)
        return File(self.source, name, None, tuple(statements), doc)

    def _signature(self, args: ast.arguments) -> list[Statement]:
        sized: list[Statement] = []
        declared: list[Statement] = []
        positional = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
        for extra in (args.vararg, args.kwarg):
            if extra is not None:
                self._refuse("LA0130", self._span(extra), what="`*`", hint="name each argument")
        for arg, default in [*zip(positional, defaults), *zip(args.kwonlyargs, args.kw_defaults)]:
            try:
                if arg in args.kwonlyargs and arg.annotation is None:
                    sized.append(self._sized(arg, default))
                else:
                    declared.append(self._argument(arg, default))
            except _Refused:
                continue
        return _grouped(sized + declared)

    def _sized(self, arg: ast.arg, default: ast.expr | None) -> Sized:
        """A keyword-only argument: a dim where it is an int, else a const."""
        name = self._name(arg)
        value = None if default is None else self._expr(default)
        inner = value.args[0] if value is not None and value.op == "neg" else value
        if value is None or inner is None or inner.op != "number":
            hint = f"write {arg.arg}=64 for a dim, {arg.arg}=1e-6 for a const"
            raise self._refuse("LA0130", name.span, what="a size without a number", hint=hint)
        kind = "dim" if isinstance(inner.value, int) else "const"
        return Sized(kind, ((name, value),), name.span.to(value.span))

    def _argument(self, arg: ast.arg, default: ast.expr | None) -> Declare:
        name = self._name(arg)
        if arg.annotation is None:
            raise self._refuse("LA0113", name.span, names=arg.arg, axes="K")
        value = None if default is None else self._expr(default)
        return self._declare(arg.annotation, "", (name,), value)

    def _declare(
        self, text: ast.expr, role: str, names: tuple[Name, ...], default: Node | None
    ) -> Declare:
        """The declaration of ``names`` whose shape (and the rest of it) is in a string."""
        span = self._span(text)
        value = text.value if isinstance(text, ast.Constant) else None
        at = span.text.find(value) if isinstance(value, str) and value else -1
        if at < 0 or not isinstance(value, str):
            hint = f'write {names[0].text}: "[K]"'
            raise self._refuse("LA0130", span, what="a shape that is no plain text", hint=hint)
        inner = Span(self.source, span.start + at, span.start + at + len(value))
        parsed, problems = parse_piece(Piece(inner), "annotation")
        self.problems += problems
        if not isinstance(parsed, Declare):
            raise _Refused
        if role and parsed.role not in ("", role):
            hint = f"write {role} or {parsed.role}"
            raise self._refuse("LA0130", span, what="a second role", hint=hint)
        return Declare(
            role or parsed.role or "input",
            names,
            parsed.type,
            parsed.flags,
            parsed.per,
            parsed.default if default is None else default,
            parsed.where,
            names[0].span.to(span),
        )

    # ---- statements

    def _statement(self, node: ast.stmt) -> Statement:
        span = self._span(node)
        match node:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name()) as target]):
                name, body = self._name(target.value), self._expr(node.value)
                if self._at(target).value != (name.text, "t", 0):
                    hint = f"write {name.text}[t] = ..., with the other times on the right"
                    at = self._span(target)
                    raise self._refuse("LA0115", at, left=at.text, hint=hint)
                return Recur(name, body, span)
            case ast.Assign(targets=[target]):
                return self._define(target, node.value, span)
            case ast.AugAssign():
                left = self._span(node.target).text
                hint = f"write {left} = {left} + ...".replace("= S[t] ", "= S[t-1] ")
                sign = span.text[len(left) :].split("=")[0].strip() + "="
                raise self._refuse("LA0112", span, sign=sign, hint=hint)
        raise self._python(node)

    def _define(self, target: ast.expr, value: ast.expr, span: Span) -> Statement:
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            return Define("", self._name(target), self._expr(value), span)
        role, args = value.func.id, value.args
        if role in DECLARING and len(args) == 1:
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            return self._declare(args[0], role, tuple(map(self._name, targets)), None)
        name = self._name(target)
        match role, args:
            case "gate" | "normalizer", [body]:
                return Define(role, name, self._expr(body), span)
            case "dim" | "const", [body]:
                return Sized(role, ((name, self._expr(body)),), span)
            case "feature", [ast.Lambda(args=params, body=body)]:
                names = tuple(map(self._name, params.args))
                return Feature(name, names, self._expr(body), span)
            case "use", [path]:
                return Use(self._path(path), name, span)
        return Define("", name, self._expr(value), span)

    def _path(self, node: ast.expr) -> tuple[Name, ...]:
        if not isinstance(node, ast.Attribute):
            return (self._name(node),)
        end = self._span(node).end
        last = Name(node.attr, Span(self.source, end - len(node.attr), end))
        return (*self._path(node.value), last)

    def _outputs(
        self, value: ast.expr, statements: list[Statement], returns: ast.expr | None
    ) -> None:
        """Adds what is returned to ``statements``; outputs are declared before the equations."""
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        declared = {n.text for s in statements if isinstance(s, Declare) for n in s.names}
        for each in values:
            span = self._span(each)
            id = each.id if isinstance(each, ast.Name) else None
            equations = [s for s in statements if isinstance(s, Define) and s.name.text == id]
            if equations:
                name = equations[-1].name
            elif len(values) == 1:
                name = Name(OUTPUT, span)
                statements.append(Define("", name, self._expr(each), span))
            else:
                hint = "define each, and return their names"
                raise self._refuse("LA0130", span, what="one of several outputs", hint=hint)
            if name.text in declared:
                continue
            output = Declare("output", (name,), None, (), None, None, (), span)
            if returns is not None and len(values) == 1:
                output = self._declare(returns, "output", (name,), None)
            first = next(s for s in statements if isinstance(s, Recur | Define) and _equation(s))
            statements.insert(statements.index(first), output)

    # ---- expressions

    def _expr(self, node: ast.expr, depth: int = 0) -> Node:
        span = self._span(node)
        if depth > MAX_DEPTH:
            raise self._refuse("LA0107", span, limit=MAX_DEPTH)

        def inner(child: ast.expr) -> Node:
            return self._expr(child, depth + 1)

        match node:
            case ast.Name(id=name):
                return Node("name", name, (), span)
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                if math.isinf(number):
                    hint = "write inf for infinity"
                    raise self._refuse("LA0108", span, number=span.text, hint=hint)
                return Node("number", number, (), span)
            case ast.Constant(value=str()):
                raise self._refuse("LA0120", span)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Node("neg", None, (inner(operand),), span)
            case ast.BinOp(op=ast.BitXor()):
                raise self._refuse("LA0116", span)
            case ast.BinOp(left=left, op=op, right=right):
                if type(op) not in OPERATORS:
                    raise self._python(node, op)
                return Node(OPERATORS[type(op)], None, (inner(left), inner(right)), span)
            case ast.Attribute(value=base, attr="T"):
                return Node("T", None, (inner(base),), span)
            case ast.Attribute(attr=attr):
                hint = f"write {attr}(...) or x.T"
                raise self._refuse("LA0104", span, found=f"`.{attr}`", hint=hint)
            case ast.Subscript():
                return self._at(node)
            case ast.Compare(left=left, ops=ops, comparators=rest):
                signs = tuple(COMPARISONS.get(type(op), "") for op in ops)
                if "" in signs:
                    raise self._python(node)
                return Node("compare", signs, tuple(map(inner, (left, *rest))), span)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                values = [inner(arg) for arg in args]
                for keyword in keywords:
                    if keyword.arg is None:
                        raise self._python(node)
                    value = inner(keyword.value)
                    values.append(Node("keyword", keyword.arg, (value,), self._span(keyword)))
                return Node("call", name, tuple(values), span)
            case ast.Call(func=ast.Attribute(attr=attr)):
                hint = f"write {attr}(...)"
                raise self._refuse("LA0104", span, found=f"`.{attr}`", hint=hint)
        raise self._python(node)

    def _at(self, node: ast.Subscript) -> Node:
        """`S[t]`, `S[t-1]`, `k[t-W]`, `S[T]`."""
        name, span = self._name(node.value), self._span(node)
        match node.slice:
            case ast.Name(id="t" | "T" as base):
                return Node("at", (name.text, base, 0), (), span)
            case ast.BinOp(left=ast.Name(id="t"), op=ast.Add() | ast.Sub() as op, right=right):
                minus = isinstance(op, ast.Sub)
                match right:
                    case ast.Constant(value=int() as by):
                        return Node("at", (name.text, "t", -by if minus else by), (), span)
                    case ast.Name(id=by):
                        shift = ("-" if minus else "+") + by
                        return Node("at", (name.text, "t", shift), (), span)
        index = self._span(node.slice)
        raise self._refuse("LA0114", index, index=index.text)
