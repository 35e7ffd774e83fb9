"""A parsed `File` goes in, a typed `Spec` comes out, or every fault of the file at once.

    checked = check(file, {"K": 32})
    checked.spec, checked.warnings

Order of work: bases and library features are merged into one file (`load`), names and sizes are declared (`declare`), then
each statement is typed in turn (`infer`), and last the rules that need the whole spec are checked (`rules`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lacc.diagnostics import Diagnostic, LaccError, Note, suggest
from lacc.spec import rules
from lacc.spec.declare import Declarations
from lacc.spec.infer import Condition, Typer
from lacc.spec.load import Loader
from lacc.spec.model import Arg, Definition, Expr, Output, Promise, Spec, State
from lacc.spec.names import ascii_spelling
from lacc.spec.scope import ARGS
from lacc.spec.syntax import Declare, Define, File, Node, Recur

COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec without errors, and the warnings about it."""

    spec: Spec
    warnings: list[Diagnostic]


def check(
    file: File, overrides: Mapping[str, float] | None = None, load: Loader | None = None
) -> Checked:
    """The typed spec of ``file``.

    ``overrides`` gives dims and consts another value, by name (or its ASCII spelling); ``load`` finds what the file extends
    and uses. Raises LaccError with every diagnostic of the file where one is an error.
    """
    return _Check(file, dict(overrides or {})).result()


class _Check:
    def __init__(self, file: File, overrides: dict[str, float]) -> None:
        self.file = file
        self.given = overrides
        self.diagnostics: list[Diagnostic] = []
        self.declared = Declarations(file, overrides, self.diagnostics.append)
        self.typer: Typer = self.declared.typer
        self.symbols = self.declared.scope.symbols
        self.args: list[Arg] = []
        self.definitions: list[Definition] = []
        self.readouts: dict[str, Expr] = {}
        self.updates: dict[str, Recur] = {}
        self.typed_updates: dict[str, Expr] = {}
        self.initials: dict[str, Expr] = {}
        self.declarations: dict[str, Declare] = {}

    def result(self) -> Checked:
        """Types every statement; raises LaccError where the file has an error."""
        for index, statement in enumerate(self.file.statements):
            self.declared.scope.now = index
            if isinstance(statement, Declare):
                self._declare(statement)
            elif isinstance(statement, Define):
                self._define(statement)
            elif isinstance(statement, Recur):
                self._recur(statement)
        if any(d.severity == "error" for d in self.diagnostics):
            raise LaccError(self.diagnostics)
        return Checked(self._spec(), self.diagnostics)

    # ---- statements --------------------------------------------------------------------------------

    def _declare(self, statement: Declare) -> None:
        for name in statement.names:
            symbol = self.symbols.get(name.text)
            if symbol is None or symbol.index != self.declared.scope.now or symbol.broken:
                continue
            self.declarations[name.text] = statement
            if statement.role == "state":
                initial = self.typer.number(0, name.span)
                if statement.default is not None:
                    typed = self.typer.fit(statement.default, symbol.shape, name.text, scalar=True)
                    initial = typed or initial
                self.initials[name.text] = initial
            elif statement.role in ARGS:
                self._arg(statement, name.text)

    def _arg(self, statement: Declare, name: str) -> None:
        symbol = self.symbols[name]
        default, draw = None, None
        if statement.default is not None:
            if statement.role == "buffer" and statement.default.op == "call":
                draw = str(statement.default.value)
            else:
                default = self.typer.fit(statement.default, symbol.shape, name, scalar=True)
        index = self.declared.scope.now
        self.declared.scope.now = len(self.file.statements)
        promises = [promise for node in statement.where for promise in self._promises(node)]
        self.declared.scope.now = index
        self.args.append(
            Arg(
                statement.role,
                name,
                ascii_spelling(name),
                symbol.shape,
                symbol.per,
                default,
                draw,
                tuple(promises),
                symbol.span,
                statement.doc,
            )
        )

    def _promises(self, node: Node) -> list[Promise]:
        typed = self.typer.condition(node)
        if typed is None:
            return []
        return [Promise(COMPARED[p.op], *p.args, p.span) for p in typed.parts]

    def _define(self, statement: Define) -> None:
        name = statement.name.text
        symbol = self.symbols.get(name)
        applied = len(self.typer.applied)
        typed = self.typer.expr(statement.body)
        if typed is not None:
            typed = self.typer.settle(typed, statement.body)
        self._features(applied)
        if symbol is None:
            return
        if symbol.kind == "output":
            declaration = self.declarations.get(name)
            if declaration is not None and declaration.type is None and typed is not None:
                symbol.shape = typed.shape
            elif typed is not None and typed.shape != symbol.shape:
                typed = self.typer.fit(statement.body, symbol.shape, name)
            if typed is not None:
                self.readouts[name] = typed
            symbol.index = self.declared.scope.now
            symbol.expr, symbol.broken = typed, typed is None
            return
        symbol.expr, symbol.broken = typed, typed is None
        if typed is not None:
            self.definitions.append(
                Definition(
                    statement.role, name, ascii_spelling(name), typed, symbol.span, statement.doc
                )
            )

    def _features(self, since: int) -> None:
        for node, typed in self.typer.applied[since:]:
            name = " ".join(node.span.text.split())
            self.definitions.append(Definition("feature", name, "", typed, node.span))

    def _recur(self, statement: Recur) -> None:
        name = statement.name.text
        symbol = self.symbols.get(name)
        applied = len(self.typer.applied)
        if symbol is None or symbol.kind != "state" or symbol.broken:
            self.typer.expr(statement.body)
            return
        typed = self.typer.fit(statement.body, symbol.shape, name)
        self._features(applied)
        if typed is not None:
            self.updates[name] = statement
            self.typed_updates[name] = typed

    # ---- the result --------------------------------------------------------------------------------

    def _spec(self) -> Spec:
        states, outputs = [], []
        for name, statement in self.declarations.items():
            symbol = self.symbols[name]
            spelled = ascii_spelling(name)
            if statement.role == "state":
                update = self.typed_updates[name]
                states.append(
                    State(
                        name,
                        spelled,
                        symbol.shape,
                        symbol.per,
                        self.initials[name],
                        update,
                        rules.direction(name, update),
                        any(flag.text == "stabilized" for flag, _ in statement.flags),
                        symbol.span,
                        statement.doc,
                    )
                )
            elif statement.role == "output":
                outputs.append(
                    Output(
                        name,
                        spelled,
                        symbol.shape,
                        symbol.per,
                        self.readouts[name],
                        symbol.span,
                        statement.doc,
                    )
                )
        text = self.file.source.text
        dims = {
            name: replace(dim, pinned=dim.pinned or name in self.typer.fixed)
            for name, dim in self.declared.dims.items()
        }
        return Spec(
            self.file,
            self.file.name.text,
            ascii_spelling(self.file.name.text),
            self.file.doc,
            dims,
            self.declared.consts,
            tuple(self.args),
            tuple(states),
            tuple(self.definitions),
            tuple(outputs),
            self.file.expects,
            self.declared.overrides,
            text,
            hashlib.sha256(text.encode()).hexdigest(),
        )
