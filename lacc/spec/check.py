"""A parsed `File` goes in, a typed `Spec` comes out, or every fault of the file at once.

    checked = check(file, {"K": 32}, Loader(parse, folder))
    checked.spec, checked.warnings

Order of work: bases and library features are merged into one file (`load`), names and sizes are declared (`declare`), then
each statement is typed in turn (`infer`), and last the rules that need the whole spec are checked (`rules`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from lacc import library
from lacc.diagnostics import Diagnostic, LaccError, Note, Span, error, suggest
from lacc.spec import rules
from lacc.spec.declare import Declarations
from lacc.spec.format import unparse
from lacc.spec.load import Loader, merge
from lacc.spec.model import Arg, Definition, Expr, Output, Promise, Spec, State
from lacc.spec.names import RESERVED, ascii_spelling
from lacc.spec.scope import ARGS, Symbol
from lacc.spec.shapes import Shape, Size
from lacc.spec.syntax import Declare, Define, Feature, File, Node, Recur, Type

SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
FIXED = ("const", "size", "param", "buffer", "eye", "head", "H")
"""Leaves that do not change from token to token."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec without errors, and the warnings about it."""

    spec: Spec
    warnings: list[Diagnostic]


def check(
    file: File,
    overrides: Mapping[str, float] | None = None,
    load: Loader | None = None,
    problems: Sequence[Diagnostic] = (),
) -> Checked:
    """The typed spec of ``file``.

    ``overrides`` gives dims and consts another value, by name or ASCII spelling; ``load`` finds what the file extends and
    uses; ``problems`` is what the frontend reported. Raises LaccError with every diagnostic of the file, in the order of
    its lines, where one of them is an error.
    """
    diagnostics = list(problems)
    merged = merge(file, load, diagnostics.append)
    return _Check(merged, overrides or {}, diagnostics).result()


class _Check:
    def __init__(
        self, file: File, overrides: Mapping[str, float], diagnostics: list[Diagnostic]
    ) -> None:
        self.file = file
        self.diagnostics = diagnostics
        self.declared = Declarations(file, overrides, diagnostics.append)
        self.typer = self.declared.typer
        self.scope = self.declared.scope
        self.args: list[Arg] = []
        self.definitions: list[Definition] = []
        self.declarations: dict[str, Declare] = {}
        self.initials: dict[str, Expr] = {}
        self.updates: dict[str, Expr] = {}
        self.readouts: dict[str, Expr] = {}
        self.assigned: dict[str, Span] = {}

    def result(self) -> Checked:
        """Types every statement; raises LaccError where the file has an error."""
        for index, statement in enumerate(self.file.statements):
            self.scope.now = index
            first = len(self.typer.applied)
            if isinstance(statement, Declare):
                self._declare(statement)
            elif isinstance(statement, Feature):
                self._feature(statement)
            elif isinstance(statement, Define):
                self._define(statement, first)
            elif isinstance(statement, Recur):
                self._recur(statement, first)
        self._complete()
        rules.whole_spec(
            rules.Facts(
                self.file,
                self.scope,
                self.updates,
                self.readouts,
                {d.name: d.expr for d in self.definitions if d.role != "feature"},
                self.initials,
                self.typer.typed,
                self.diagnostics.append,
            )
        )
        found = _once(self.diagnostics)
        found.sort(key=lambda d: d.span.start if d.span and d.span.source is self.file.source else -1)
        if any(d.severity == "error" for d in found):
            raise LaccError([d for d in found if d.severity == "error" or not self.file.broken])
        return Checked(self._spec(), found)

    def fault(
        self, code: str, span: Span, /, *, notes: tuple[Note, ...] = (), **values: str
    ) -> None:
        """Reports an error of the catalogue."""
        self.diagnostics.append(error(code, span, notes=notes, **values))

    # ---- declarations ------------------------------------------------------------------------------

    def _declare(self, statement: Declare) -> None:
        role = statement.role
        for flag, _ in statement.flags:
            if role != "state" or flag.text != "stabilized":
                hint = suggest(flag.text, ["stabilized"]) if role == "state" else ""
                hint = hint or "the one flag is `(stabilized)`, of a state"
                self.fault(
                    "LA0230", flag.span, what=f"the flag `{flag.text}`", role=role, hint=hint
                )
        if statement.where and role not in ARGS:
            hint = "promises are made of inputs, params and buffers"
            self.fault("LA0230", statement.where[0].span, what="`where`", role=role, hint=hint)
        if statement.default is not None and role == "output":
            hint = f"write `{statement.names[0].text} = …` on a line of its own"
            self.fault("LA0230", statement.default.span, what="a value", role=role, hint=hint)
        for name in statement.names:
            symbol = self.scope.symbols.get(name.text)
            if symbol is None or symbol.index != self.scope.now:
                continue
            self.declarations[name.text] = statement
            if role == "state":
                self._initial(statement, symbol)
            elif role in ARGS:
                self._arg(statement, symbol)

    def _initial(self, statement: Declare, symbol: Symbol) -> None:
        initial: Expr | None = self.typer.number(0, symbol.span)
        if statement.default is not None and not symbol.broken:
            what = f"the start of `{symbol.name}`"
            initial = self.typer.fit(statement.default, symbol.shape, what, scalar=True)
            allowed = "numbers, dims, consts, params and buffers"
            if initial is not None and not self._only(initial, FIXED, what, allowed):
                initial = None
        if initial is not None:
            self.initials[symbol.name] = initial

    def _arg(self, statement: Declare, symbol: Symbol) -> None:
        default, draw = None, None
        node = statement.default
        if node is not None and statement.role == "buffer" and self._is_draw(node):
            draw = str(node.value)
        elif node is not None and not symbol.broken:
            what = f"the default of `{symbol.name}`"
            default = self.typer.fit(node, symbol.shape, what, scalar=True)
            leaves, words = FIXED, "numbers, dims, consts, params and buffers"
            if statement.role == "input":
                leaves, words = (*FIXED, "input", "t", "T"), "earlier arguments at the same token"
            if default is not None and self._only(default, leaves, what, words):
                rules.finer(default, symbol, self.scope.symbols, self.diagnostics.append)
        promises = self._promises(statement)
        if symbol.broken:
            return
        self.args.append(
            Arg(
                statement.role,
                symbol.name,
                ascii_spelling(symbol.name),
                symbol.shape,
                symbol.per,
                default,
                draw,
                promises,
                symbol.span,
                statement.doc,
            )
        )

    def _is_draw(self, node: Node) -> bool:
        """Whether a buffer's value is a call of a sampler; a near miss is reported."""
        name = str(node.value)
        if node.op != "call" or self.scope.symbols.get(name) is not None:
            return False
        if name in library.SAMPLERS:
            if node.args:
                self.fault("LA0407", node.span, name=name, hint=f"write {name}()")
            return True
        if not node.args:
            hint = suggest(name, library.SAMPLERS)
            hint = hint or "the samplers are " + ", ".join(library.SAMPLERS)
            self.fault("LA0407", node.span, name=name, hint=hint)
        return not node.args

    def _promises(self, statement: Declare) -> tuple[Promise, ...]:
        """Promises may speak of any argument, and reading a name in one is no use of it."""
        now, self.scope.now = self.scope.now, len(self.file.statements)
        read = [symbol.name for symbol in self.scope.symbols.values() if symbol.read]
        found: list[Promise] = []
        for node in statement.where:
            typed = self.typer.condition(node)
            for part in typed.parts if typed is not None else ():
                leaves = (*FIXED, "input", "t", "T")
                if self._only(part, leaves, "a promise", "arguments, numbers, dims and consts"):
                    left, right = part.args
                    found.append(Promise(SIGNS[part.op], left, right, part.span))
        for symbol in self.scope.symbols.values():
            symbol.read = symbol.name in read or (symbol.read and symbol.kind in ("dim", "const"))
        self.scope.now = now
        return tuple(found)

    def _only(self, expr: Expr, leaves: tuple[str, ...], what: str, allowed: str) -> bool:
        """Whether ``expr`` reads nothing but ``leaves``, at the token itself; a fault where not."""
        for node in expr.walk():
            if node.args:
                continue
            delayed = node.op == "input" and isinstance(node.value, tuple) and node.value[1] != 0
            table = node.op == "param" and self.scope.symbols[str(node.value)].per == "position"
            if node.op not in leaves or delayed or (table and "input" not in leaves):
                self.fault("LA0227", node.span, what=what, allowed=allowed)
                return False
        return True

    # ---- equations ---------------------------------------------------------------------------------

    def _feature(self, statement: Feature) -> None:
        """Names and the number of arguments in the body, before any application gives it shapes."""
        params: dict[str, Span] = {}
        for param in statement.params:
            if param.text in RESERVED:
                why = f"`{param.text}` is {RESERVED[param.text]}"
                self.fault("LA0203", param.span, name=param.text, why=why)
            elif param.text in params:
                note = Note(f"`{param.text}` is first declared here", params[param.text])
                self.fault("LA0202", param.span, notes=(note,), name=param.text)
            params.setdefault(param.text, param.span)
        symbol = self.scope.symbols.get(statement.name.text)
        known = self.typer.names(statement)
        if symbol is not None and symbol.feature is statement:
            symbol.broken = not known

    def _define(self, statement: Define, first: int) -> None:
        name = statement.name.text
        symbol = self.scope.symbols.get(name)
        if symbol is not None and symbol.kind == "output":
            self._readout(statement, symbol, first)
            return
        typed = self.typer.expr(statement.body)
        if typed is not None:
            typed = self.typer.settle(typed, statement.body)
        self._applications(first)
        if symbol is None or symbol.index != self.scope.now:
            return
        symbol.expr, symbol.broken = typed, typed is None
        if typed is not None:
            spelled = ascii_spelling(name)
            self.definitions.append(
                Definition(statement.role, name, spelled, typed, symbol.span, statement.doc)
            )

    def _readout(self, statement: Define, symbol: Symbol, first: int) -> None:
        name = symbol.name
        if statement.role:
            hint = f"give the {statement.role} a name of its own"
            self.fault(
                "LA0230", statement.span, what=f"`{statement.role}`", role="output", hint=hint
            )
        if not self._first(name, statement.name.span):
            return
        if self.declarations[name].type is None:
            typed = self.typer.expr(statement.body)
            typed = None if typed is None else self.typer.settle(typed, statement.body)
            symbol.shape = () if typed is None else typed.shape
        elif symbol.broken:
            typed = None
            self.typer.expr(statement.body)
        else:
            typed = self.typer.fit(statement.body, symbol.shape, f"`{name}`")
        self._applications(first)
        symbol.index = self.scope.now
        symbol.expr, symbol.broken = typed, typed is None
        if typed is not None:
            self.readouts[name] = typed

    def _recur(self, statement: Recur, first: int) -> None:
        name = statement.name.text
        symbol = self.scope.symbols.get(name)
        if symbol is None or symbol.kind != "state":
            self.typer.expr(statement.body)
            if name not in self.file.broken:
                self._no_state(statement, symbol)
            return
        if not self._first(name, statement.name.span):
            return
        if symbol.broken:
            self.typer.expr(statement.body)
            return
        typed = self.typer.fit(statement.body, symbol.shape, f"`{name}`")
        self._applications(first)
        if typed is not None:
            self.updates[name] = typed

    def _no_state(self, statement: Recur, symbol: Symbol | None) -> None:
        name = statement.name.text
        states = [s.name for s in self.scope.symbols.values() if s.kind == "state"]
        hint = suggest(name, states) or f"declare it: `state {name} : [K, V]`"
        if symbol is not None:
            hint = f"`{name}` is declared as {symbol.kind or 'a definition'}: write `{name} = …`"
            if symbol.kind in ARGS:
                hint = f"`{name}` is given from outside; give the state a name of its own"
        self.fault("LA0228", statement.name.span, name=name, hint=hint)

    def _first(self, name: str, span: Span) -> bool:
        """Whether ``name`` is assigned for the first time; a fault where not."""
        if name in self.assigned:
            note = Note(f"`{name}` is first assigned here", self.assigned[name])
            self.fault("LA0213", span, notes=(note,), name=name)
            return False
        self.assigned[name] = span
        return True

    def _applications(self, first: int) -> None:
        known = {(d.name, id(d.expr)) for d in self.definitions}
        taken = {d.ascii for d in self.definitions} | {
            ascii_spelling(name) for name in self.scope.symbols
        }
        for node, typed in self.typer.applied[first:]:
            name = " ".join(node.span.text.split())
            if (name, id(typed)) in known:
                continue
            known.add((name, id(typed)))
            spelled = _spelled_application(node)
            while spelled in taken:
                stem, _, number = spelled.rpartition("_")
                spelled = f"{stem}_{int(number) + 1}" if number.isdigit() else f"{spelled}_2"
            taken.add(spelled)
            doc = self._doc_of_feature(str(node.value))
            self.definitions.append(Definition("feature", name, spelled, typed, node.span, doc))

    def _doc_of_feature(self, name: str) -> str:
        feature = self.scope.symbols[name].feature
        return feature.doc if feature is not None else ""

    # ---- the whole ---------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Every state has an update, every output a value, and there is an output."""
        broken = self.file.broken
        for name, statement in self.declarations.items():
            if name in self.assigned or name in broken:
                continue
            span = self.scope.symbols[name].span
            if statement.role == "state":
                self.fault("LA0211", span, name=name)
            elif statement.role == "output":
                self.fault("LA0212", span, name=name)
        if not broken and not any(s.role == "output" for s in self.declarations.values()):
            self.fault("LA0231", self.file.name.span, name=self.file.name.text)

    def _with_types(self) -> File:
        """The file, with the types that outputs got from their values."""
        statements = [
            replace(s, type=_written(self.scope.symbols[s.names[0].text].shape, s.span))
            if isinstance(s, Declare) and s.type is None
            else s
            for s in self.file.statements
        ]
        return replace(self.file, statements=tuple(statements))

    def _spec(self) -> Spec:
        file = self._with_types()
        text = unparse(file)
        states, outputs = [], []
        for name, declared in self.declarations.items():
            symbol, spelled = self.scope.symbols[name], ascii_spelling(name)
            if declared.role == "state":
                update = self.updates[name]
                states.append(
                    State(
                        name,
                        spelled,
                        symbol.shape,
                        symbol.per,
                        self.initials[name],
                        update,
                        rules.direction(name, update),
                        any(flag.text == "stabilized" for flag, _ in declared.flags),
                        symbol.span,
                        declared.doc,
                    )
                )
            elif declared.role == "output":
                readout = self.readouts[name]
                outputs.append(
                    Output(
                        name, spelled, symbol.shape, symbol.per, readout, symbol.span, declared.doc
                    )
                )
        fixed = self.typer.fixed
        return Spec(
            file=file,
            name=self.file.name.text,
            ascii=ascii_spelling(self.file.name.text),
            doc=self.file.doc,
            dims={
                name: replace(dim, pinned=dim.pinned or name in fixed)
                for name, dim in self.declared.dims.items()
            },
            consts=self.declared.consts,
            args=tuple(sorted(self.args, key=lambda arg: ARGS.index(arg.role))),
            states=tuple(states),
            definitions=tuple(self.definitions),
            outputs=tuple(outputs),
            expects=self.file.expects,
            overrides=self.declared.overrides,
            text=text,
            digest=hashlib.sha256(text.encode()).hexdigest(),
        )


def _written(shape: Shape, span: Span) -> Type:
    """A shape as it would have been declared."""
    return Type(tuple(_sum(size, span) for size in shape), span)


def _sum(size: Size, span: Span) -> Node:
    terms = []
    for monomial, coefficient in size.terms:
        factors = [Node("number", coefficient.numerator, (), span)]
        for name, power in monomial:
            factors += [Node("name", name, (), span)] * power
        if coefficient.numerator == 1 and len(factors) > 1:
            del factors[0]
        product = reduce(lambda a, b: Node("mul", None, (a, b), span), factors)
        if coefficient.denominator != 1:
            over = Node("number", coefficient.denominator, (), span)
            product = Node("div", None, (product, over), span)
        terms.append(product)
    return reduce(lambda a, b: Node("add", None, (a, b), span), terms)


def _spelled_application(node: Node) -> str:
    """`phi_k` for `φ(k)`, `phi_1` for an argument that is more than a name."""
    words = [str(node.value)]
    for arg in node.args:
        words.append(str(arg.value) if arg.op == "name" else "1")
    return "_".join(ascii_spelling(word).rstrip("_") for word in words)


def _once(found: list[Diagnostic]) -> list[Diagnostic]:
    """The same list without repetitions, in the order of the file."""
    seen: dict[tuple[object, ...], Diagnostic] = {}
    for diagnostic in found:
        span = diagnostic.span
        place = (span.source.name, span.start, span.end) if span is not None else ()
        seen.setdefault((diagnostic.code, *place, diagnostic.message), diagnostic)
    return sorted(seen.values(), key=_place)


def _place(diagnostic: Diagnostic) -> tuple[bool, int]:
    return diagnostic.span is None, 0 if diagnostic.span is None else diagnostic.span.start
