"""From the text of a `.la` file come its syntax (`File`) and a diagnostic for each mistake."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import cast

from lark import Lark, Token, Transformer_NonRecursive, Tree, v_args
from lark.exceptions import UnexpectedInput
from lark.tree import Meta
from platformdirs import user_cache_path

from lacc.diagnostics import MAX_BYTES, Diagnostic, Source, Span, error, suggest
from lacc.frontends.mistakes import explain_mistake
from lacc.frontends.split import MAX_DEPTH, NAME, Piece, split
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

HEADER = re.compile(r"variant\b(?!\s*[=\[])")
MAX_STATEMENTS = 500
MAX_DIGITS = 40
MAX_PROBLEMS = 50
"""Statements with a mistake that are reported in one run."""

Header = tuple[Name, tuple[Name, ...] | None]


@cache
def grammar() -> Lark:
    """The LALR parser of `la.lark`, with one start for each thing that is parsed by itself.

    Its tables are kept in the user's cache: they take longer to make than most specs to check.
    """
    folder = user_cache_path("lacc")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept: str | bool = str(folder / "grammar")
    except OSError:
        kept = False
    return Lark(
        (files("lacc.frontends") / "la.lark").read_text(encoding="utf-8"),
        parser="lalr",
        start=["header", "statement", "annotation"],
        propagate_positions=True,
        maybe_placeholders=True,
        cache=kept,
    )


def parse(source: Source) -> tuple[File | None, list[Diagnostic]]:
    """The syntax of ``source`` and everything that is wrong with it.

    Statements that are wrong are left out of the file. It is None where too much is missing to
    judge the rest: with no statement at all, an unknown base, or more than `MAX_PROBLEMS`.
    """
    if len(source.text) > MAX_BYTES:
        end = Span(source, MAX_BYTES, MAX_BYTES)
        return None, [error("LA0102", end, what="the file", limit=f"{MAX_BYTES} characters")]
    pieces, expects = split(source)
    if len(pieces) > MAX_STATEMENTS:
        what = f"a file of {len(pieces)} statements"
        return None, [error("LA0102", pieces[-1].span, what=what, limit=str(MAX_STATEMENTS))]

    problems: list[Diagnostic] = []
    statements: list[Statement] = []
    broken: set[str] = set()
    name, base, doc = Name("spec", Span(source, 0, 0)), None, ""
    if not pieces or not HEADER.match(pieces[0].span.text):
        at = pieces[0].span if pieces else Span(source, len(source.text), len(source.text))
        problems.append(error("LA0109", at))
        if pieces and suggest(pieces[0].span.text.split()[0], ["variant"]):
            del pieces[0]
    headers, inherits = 0, False
    for piece in pieces:
        if len(problems) >= MAX_PROBLEMS:
            return None, problems
        header = HEADER.match(piece.span.text) is not None
        headers += header
        if header and headers > 1:
            problems.append(error("LA0110", piece.span))
            continue
        parsed, wrong = parse_piece(piece, "header" if header else "statement")
        problems += wrong
        if parsed is None:
            broken |= _declared(piece.span.text)
            inherits = inherits or (header and "extends" in piece.span.text)
        elif header:
            (name, base), doc = cast(Header, parsed), piece.doc
        else:
            statements.append(cast(Statement, parsed))
    problems += _subscripts(statements, broken)
    if not pieces or inherits:
        return None, problems
    parts = tuple(statements)
    return File(source, name, base, parts, doc, tuple(expects), frozenset(broken)), problems


def parse_piece(piece: Piece, start: str) -> tuple[object | None, list[Diagnostic]]:
    """What ``start`` of the grammar makes of one statement, or None and what is wrong."""
    if piece.problem is not None:
        return None, [piece.problem]
    try:
        tree = grammar().parse(piece.span.text, start=start)
    except UnexpectedInput as fault:
        return None, [explain_mistake(piece.span, fault, start)]
    if too_deep := _too_deep(tree, piece.span):
        return None, [too_deep]
    builder = _Builder(piece)
    built: object = builder.transform(tree)
    return (None, builder.problems) if builder.problems else (built, [])


def _too_deep(tree: Tree[Token], span: Span) -> Diagnostic | None:
    level: list[Tree[Token]] = [tree]
    for _ in range(MAX_DEPTH + 4):  # the statement's own rules lie above the expression
        level = [child for node in level for child in node.children if isinstance(child, Tree)]
        if not level:
            return None
    meta = level[0].meta
    deep = Span(span.source, span.start + meta.start_pos, span.start + meta.end_pos)
    return error("LA0107", deep, limit=MAX_DEPTH)


def _subscripts(statements: list[Statement], broken: set[str]) -> list[Diagnostic]:
    """The names `S_t` that were meant as `S[t]`; what follows from them joins ``broken``."""
    declared = {n.text: s.role for s in statements if isinstance(s, Declare) for n in s.names}
    timed = declared.keys()
    solved = {s.name.text for s in statements if isinstance(s, Recur)}
    defined = {s.name.text: s for s in statements if isinstance(s, Define)}
    found: list[tuple[str, Span]] = []
    everywhere = list(statements)
    for name, statement in defined.items():
        if name.endswith("_t") and name[:-2] in timed - solved and name not in timed:
            found.append((name, statement.name.span))
            broken.add(name[:-2])
            statements.remove(statement)
    for node in (node for s in everywhere for node in _walk(s)):
        name = str(node.value)
        known = name in timed | defined.keys() | broken
        if node.op == "name" and name.endswith("_t") and name[:-2] in timed and not known:
            found.append((name, node.span))
    broken |= {name for name, _ in found}
    meant = {f"{x}_t": f"{x}[t]" if role == "state" else x for x, role in declared.items()}
    return [error("LA0118", span, name=name, meant=meant[name]) for name, span in found]


def _walk(statement: Statement) -> Iterator[Node]:
    """Every node of an equation's right side."""
    stack = [statement.body] if isinstance(statement, Define | Recur) else []
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.args)


def _declared(text: str) -> set[str]:
    """The names that a statement with a mistake in it may have meant to declare."""
    head = text if re.match(r"(dim|const|use)\s", text) else re.split("[:=]", text, maxsplit=1)[0]
    words = re.findall(NAME, head) + re.findall(rf"\b{NAME}(?=\s*=)", text)
    return {unicodedata.normalize("NFKC", word) for word in words}


_rule = v_args(inline=True, meta=True)


def _operator(op: str) -> Callable[..., Node]:
    def build(self: _Builder, meta: Meta, *nodes: Node | Token) -> Node:
        args = tuple(node for node in nodes if isinstance(node, Node))
        return Node(op, None, args, self._span(meta))

    return cast(Callable[..., Node], _rule(build))


class _Builder(Transformer_NonRecursive[Token, object]):
    """Makes nodes of a parse tree; collects in ``problems`` what is wrong beyond the grammar."""

    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.origin = piece.span
        self.doc = piece.doc
        self.problems: list[Diagnostic] = []

    def _span(self, at: Meta | Token) -> Span:
        start, end = at.start_pos, at.end_pos
        assert start is not None and end is not None
        return Span(self.origin.source, self.origin.start + start, self.origin.start + end)

    # ---- leaves

    def NAME(self, token: Token) -> Name:
        span, text = self._span(token), unicodedata.normalize("NFKC", str(token))
        power = re.search("[⁰¹²³⁴-⁹]+", token)
        if power is not None:
            base = token[: power.start()] or "x"
            exponent = unicodedata.normalize("NFKC", power[0])
            self.problems.append(error("LA0117", span, name=token, power=f"{base}**{exponent}"))
        elif not re.fullmatch(NAME, text):
            self.problems.append(
                error("LA0103", span, char=token, hint="names are letters, digits and _")
            )
        return Name(text, span)

    def NUMBER(self, token: Token) -> Node:
        span = self._span(token)
        if len(token) > MAX_DIGITS:
            self.problems.append(
                error("LA0102", span, what="a number", limit=f"{MAX_DIGITS} digits")
            )
            return Node("number", 0, (), span)
        value = int(token) if token.isdecimal() else float(token)
        if math.isinf(value):
            self.problems.append(error("LA0108", span, number=token, hint="write inf for infinity"))
        return Node("number", value, (), span)

    # ---- expressions

    @_rule
    def name(self, meta: Meta, name: Name) -> Node:
        return Node("name", name.text, (), name.span)

    @_rule
    def number(self, meta: Meta, number: Node) -> Node:
        return number

    add, sub, mul, div = map(_operator, ("add", "sub", "mul", "div"))
    matmul, pow, neg, transpose = map(_operator, ("matmul", "pow", "neg", "T"))

    @_rule
    def at(self, meta: Meta, name: Name, time: tuple[str, int | str]) -> Node:
        return Node("at", (name.text, *time), (), self._span(meta))

    @_rule
    def time(
        self, meta: Meta, base: Name, sign: Token | None = None, by: object = 0
    ) -> tuple[str, int | str]:
        span = self._span(meta)
        minus = sign == "-"
        if base.text not in ("t", "T") or (base.text == "T" and sign is not None):
            self.problems.append(error("LA0114", span, index=span.text))
            return "t", 0
        if isinstance(by, Name):
            return base.text, ("-" if minus else "+") + by.text
        shift = by.value if isinstance(by, Node) else by
        if not isinstance(shift, int):
            self.problems.append(error("LA0114", span, index=span.text))
            return base.text, 0
        return base.text, -shift if minus else shift

    @_rule
    def call(self, meta: Meta, name: Name, *args: Node) -> Node:
        positional = [arg for arg in args if arg.op != "keyword"]
        for before, after in pairwise(args):
            if before.op == "keyword" and after.op != "keyword":
                self.problems.append(error("LA0121", after.span, name=before.value))
        keywords = [arg for arg in args if arg.op == "keyword"]
        return Node("call", name.text, (*positional, *keywords), self._span(meta))

    @_rule
    def keyword(self, meta: Meta, name: Name, value: Node) -> Node:
        return Node("keyword", name.text, (value,), self._span(meta))

    @_rule
    def cond(self, meta: Meta, *parts: object) -> Node:
        signs = tuple(str(part) for part in parts[1::2])
        nodes = tuple(part for part in parts[::2] if isinstance(part, Node))
        return Node("compare", signs, nodes, self._span(meta))

    # ---- statements

    def _tuple(self, children: list[object]) -> tuple[object, ...]:
        return tuple(children)

    names = dotted = flags = conds = assign = flag = _tuple

    @_rule
    def type(self, meta: Meta, *axes: Node) -> Type:
        return Type(axes, self._span(meta))

    @_rule
    def header(self, meta: Meta, _: Token, name: Name, base: tuple[Name, ...] | None) -> Header:
        return name, base

    @_rule
    def statement(self, meta: Meta, statement: object) -> object:
        return statement

    @_rule
    def use(self, meta: Meta, _: Token, path: tuple[Name, ...], alias: Name | None) -> Use:
        return Use(path, alias or path[-1], self._span(meta), self.doc)

    @_rule
    def sized(self, meta: Meta, kind: Token, *items: tuple[Name, Node]) -> Sized:
        return Sized(str(kind), items, self._span(meta), self.doc)

    @_rule
    def declare(
        self,
        meta: Meta,
        role: Token,
        names: tuple[Name, ...],
        type: Type,
        flags: tuple[tuple[Name, Node | None], ...] | None,
        per: Name | None,
        default: Node | None,
        where: tuple[Node, ...] | None,
    ) -> Declare:
        span = self._span(meta)
        return Declare(
            str(role), names, type, flags or (), per, default, where or (), span, self.doc
        )

    @_rule
    def annotation(
        self,
        meta: Meta,
        role: Token | None,
        type: Type,
        flags: tuple[tuple[Name, Node | None], ...] | None,
        per: Name | None,
        default: Node | None,
        where: tuple[Node, ...] | None,
    ) -> Declare:
        span = self._span(meta)
        return Declare(str(role or ""), (), type, flags or (), per, default, where or (), span)

    @_rule
    def feature(
        self, meta: Meta, _: Token, name: Name, params: tuple[Name, ...], body: Node
    ) -> Feature:
        return Feature(name, params, body, self._span(meta), self.doc)

    @_rule
    def define(self, meta: Meta, role: Token | None, name: Name, body: Node) -> Define:
        return Define(str(role or ""), name, body, self._span(meta), self.doc)

    @_rule
    def recur(self, meta: Meta, name: Name, time: tuple[str, int | str], body: Node) -> Recur:
        if time != ("t", 0) and not self.problems:
            text = self.origin.source.text[name.span.start : body.span.start].rstrip(" (=")
            left = Span(name.span.source, name.span.start, name.span.start + len(text))
            hint = f"write {name.text}[t] = ..., with the other times on the right"
            self.problems.append(error("LA0115", left, left=text, hint=hint))
        return Recur(name, body, self._span(meta), self.doc)
