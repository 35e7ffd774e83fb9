"""The statements of a file, whose names are declared, go in; typed arguments, states, definitions
and readouts come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lacc import library
from lacc.diagnostics import Diagnostic, Note, Span, error, suggest
from lacc.spec import rules
from lacc.spec.declare import Declarations
from lacc.spec.model import Arg, Definition, Expr, Promise
from lacc.spec.names import RESERVED, ascii_spelling
from lacc.spec.scope import ARGS, Symbol
from lacc.spec.syntax import Declare, Define, Feature, File, Name, Node, Recur

SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
FIXED = ("const", "size", "param", "buffer", "eye", "head", "H")
"""Leaves that do not change from token to token."""
OF_TOKEN = (*FIXED, "input", "t", "T")
"""Leaves that are known before any state is."""


class Statements:
    """Types every statement of ``file`` in order.

    ``args``, ``definitions`` (features' applications among them), ``initials``, ``updates`` and
    ``readouts`` hold what is free of faults; ``declarations`` the statement that declares each
    name.
    """

    def __init__(
        self,
        file: File,
        overrides: Mapping[str, float],
        report: Callable[[Diagnostic], None],
    ) -> None:
        self.file = file
        self.report = report
        self.declared = Declarations(file, overrides, report)
        self.typer = self.declared.typer
        self.scope = self.declared.scope
        self.args: list[Arg] = []
        self.definitions: list[Definition] = []
        self.declarations = {
            name.text: statement
            for statement in file.statements
            if isinstance(statement, Declare)
            for name in statement.names
            if self._declares(name)
        }
        self.initials: dict[str, Expr] = {}
        self.updates: dict[str, Expr] = {}
        self.readouts: dict[str, Expr] = {}
        self._assigned: dict[str, Span] = {}
        for index, statement in enumerate(file.statements):
            self.scope.now = index
            applied = len(self.typer.applied)
            match statement:
                case Declare():
                    self._declare(statement)
                case Feature():
                    self._feature(statement)
                case Define():
                    self._define(statement)
                case Recur():
                    self._recur(statement)
            self._applications(applied)
        self._complete()

    def _fault(
        self, code: str, span: Span, /, *, notes: tuple[Note, ...] = (), **values: str
    ) -> None:
        self.report(error(code, span, notes=notes, **values))

    # ---- declarations

    def _declares(self, name: Name) -> bool:
        """Whether ``name`` stands where it is declared, and may be."""
        symbol = self.scope.symbols.get(name.text)
        return symbol is not None and symbol.span == name.span

    def _declare(self, statement: Declare) -> None:
        self._parts(statement)
        for name in statement.names:
            if not self._declares(name):
                continue
            symbol = self.scope.symbols[name.text]
            if statement.role == "state":
                self._initial(statement, symbol)
            elif statement.role in ARGS:
                self._arg(statement, symbol)

    def _parts(self, statement: Declare) -> None:
        """A declaration has the parts that its role has."""
        role = statement.role
        article = f"an {role}" if role in ("input", "output") else f"a {role}"
        for flag, value in statement.flags:
            if role != "state" or flag.text != "stabilized" or value is not None:
                hint = suggest(flag.text, ["stabilized"]) if role == "state" else ""
                hint = hint or "the one flag is `(stabilized)`, of a state"
                what = f"the flag `{flag.text}`"
                self._fault("LA0230", flag.span, what=what, role=article, hint=hint)
        if statement.where and role not in ARGS:
            hint = "promises are made of inputs, params and buffers"
            self._fault("LA0230", statement.where[0].span, what="`where`", role=article, hint=hint)
        if statement.default is not None and role == "output":
            hint = f"write `{statement.names[0].text} = …` on a line of its own"
            self._fault("LA0230", statement.default.span, what="a value", role=article, hint=hint)

    def _initial(self, statement: Declare, symbol: Symbol) -> None:
        initial: Expr | None = self.typer.number(0, symbol.span)
        if statement.default is not None and symbol.broken:
            self.typer.expr(statement.default)
        elif statement.default is not None:
            what = f"the start of `{symbol.name}`"
            initial = self.typer.fit(statement.default, symbol.shape, what, scalar=True)
            words = "numbers, dims, consts, params and buffers"
            if initial is not None and not self._only(initial, FIXED, what, words):
                initial = None
        if initial is not None:
            self.initials[symbol.name] = initial

    def _arg(self, statement: Declare, symbol: Symbol) -> None:
        default, draw = None, None
        node = statement.default
        if node is not None and statement.role == "buffer" and self._is_draw(node):
            draw = str(node.value)
        elif node is not None and symbol.broken:
            self.typer.expr(node)
        elif node is not None:
            what = f"the default of `{symbol.name}`"
            default = self.typer.fit(node, symbol.shape, what, scalar=True)
            leaves: tuple[str, ...] = FIXED
            words = "numbers, dims, consts, params and buffers"
            if statement.role == "input":
                leaves, words = OF_TOKEN, "earlier arguments at the same token"
            if default is not None and self._only(default, leaves, what, words):
                leaf = rules.finer(default, symbol, self.scope.symbols)
                if leaf is not None:
                    symbols = self.scope.symbols
                    rules.report_finer(leaf, node.span, symbol, symbols, self.report)
        promises = self._promises(statement, symbol)
        spelled = ascii_spelling(symbol.name)
        if not symbol.broken:
            self.args.append(
                Arg(
                    role=statement.role,
                    name=symbol.name,
                    ascii=spelled,
                    shape=symbol.shape,
                    per=symbol.per,
                    default=default,
                    draw=draw,
                    promises=promises,
                    span=symbol.span,
                    doc=statement.doc,
                )
            )

    def _is_draw(self, node: Node) -> bool:
        """Whether a buffer's value is a call of a sampler; a near miss is reported."""
        name = str(node.value)
        if node.op != "call" or name in self.scope.symbols:
            return False
        if name in library.SAMPLERS and not node.args:
            return True
        if name not in library.SAMPLERS and node.args:
            return False
        hint = suggest(name, library.SAMPLERS)
        hint = hint or "the samplers are " + ", ".join(library.SAMPLERS)
        if name in library.SAMPLERS:
            hint = f"write {name}()"
        self._fault("LA0407", node.span, name=name, hint=hint)
        return True

    def _promises(self, statement: Declare, symbol: Symbol) -> tuple[Promise, ...]:
        """The promises that speak of ``symbol``; the first name of a declaration takes the others.

        They may speak of any argument, and to read one in a promise is no use of it.
        """
        names = [name.text for name in statement.names]
        now, self.scope.now = self.scope.now, len(self.file.statements)
        symbols = self.scope.symbols.values()
        unread = [s for s in symbols if not s.read and s.kind not in ("dim", "const")]
        found: list[Promise] = []
        for node in statement.where:
            typed = self.typer.condition(node)
            for part in typed.parts if typed is not None else ():
                words = "arguments, numbers, dims and consts"
                if not self._only(part, OF_TOKEN, "a promise", words):
                    continue
                left, right = part.args
                about = {n.value[0] if isinstance(n.value, tuple) else n.value for n in part.walk()}
                mine = symbol.name in about or (
                    symbol.name == names[0] and not about.intersection(names)
                )
                if mine:
                    found.append(Promise(SIGNS[part.op], left, right, part.span))
        for other in unread:
            other.read = False
        self.scope.now = now
        return tuple(found)

    def _only(self, expr: Expr, leaves: tuple[str, ...], what: str, allowed: str) -> bool:
        """Whether ``expr`` reads nothing but ``leaves``, at the token itself; a fault where not."""
        for node in expr.walk():
            delayed = node.op == "input" and isinstance(node.value, tuple) and node.value[1] != 0
            table = node.op == "param" and self.scope.symbols[str(node.value)].per == "position"
            if node.args or (node.op in leaves and not delayed and not (table and leaves is FIXED)):
                continue
            self._fault("LA0227", node.span, what=what, allowed=allowed)
            return False
        return True

    # ---- equations

    def _feature(self, statement: Feature) -> None:
        params: dict[str, Span] = {}
        for param in statement.params:
            if param.text in RESERVED:
                why = f"`{param.text}` is {RESERVED[param.text]}"
                self._fault("LA0203", param.span, name=param.text, why=why)
            elif param.text in params:
                note = Note(f"`{param.text}` is first declared here", params[param.text])
                self._fault("LA0202", param.span, notes=(note,), name=param.text)
            params.setdefault(param.text, param.span)
        symbol = self.scope.symbols.get(statement.name.text)
        known = self.typer.names(statement)
        if symbol is not None and symbol.feature is statement:
            symbol.broken = not known

    def _define(self, statement: Define) -> None:
        name = statement.name.text
        symbol = self.scope.symbols.get(name)
        if symbol is not None and symbol.kind == "output":
            self._readout(statement, symbol)
            return
        typed = self.typer.closed(statement.body)
        if symbol is not None and symbol.kind == "state":
            self._assigned.setdefault(name, statement.name.span)
        if symbol is None or symbol.span != statement.name.span:
            return
        symbol.expr, symbol.broken = typed, typed is None
        if typed is not None:
            spelled = ascii_spelling(name)
            self.definitions.append(
                Definition(statement.role, name, spelled, typed, symbol.span, statement.doc)
            )

    def _readout(self, statement: Define, symbol: Symbol) -> None:
        name = symbol.name
        if statement.role:
            hint = f"give the {statement.role} a name of its own"
            what = f"`{statement.role}`"
            self._fault("LA0230", statement.span, what=what, role="an output", hint=hint)
        if not self._first(name, statement.name.span):
            return
        if symbol.broken:
            self.typer.expr(statement.body)
            typed = None
        elif self.declarations[name].type is None:
            typed = self.typer.closed(statement.body)
            symbol.shape = () if typed is None else typed.shape
        else:
            typed = self.typer.fit(statement.body, symbol.shape, f"`{name}`")
        symbol.expr, symbol.broken = typed, typed is None
        if typed is not None:
            self.readouts[name] = typed

    def _recur(self, statement: Recur) -> None:
        name = statement.name.text
        symbol = self.scope.symbols.get(name)
        if symbol is None or symbol.kind != "state":
            self.typer.expr(statement.body)
            if name not in self.scope.broken and (self.scope.whole or symbol is not None):
                self._no_state(statement, symbol)
        elif self._first(name, statement.name.span):
            if symbol.broken:
                self.typer.expr(statement.body)
                return
            typed = self.typer.fit(statement.body, symbol.shape, f"`{name}`")
            if typed is not None:
                self.updates[name] = typed

    def _no_state(self, statement: Recur, symbol: Symbol | None) -> None:
        name = statement.name.text
        if symbol is None:
            states = [s.name for s in self.scope.symbols.values() if s.kind == "state"]
            hint = suggest(name, states) or f"declare it: `state {name} : [K, V]`"
        elif symbol.kind in ARGS:
            hint = f"`{name}` is given from outside; give the state a name of its own"
        else:
            if symbol.kind == "output":
                self._assigned.setdefault(name, statement.name.span)
                symbol.broken = True
            what = f"an {symbol.kind}" if symbol.kind == "output" else f"a {symbol.kind}".strip()
            hint = f"`{name}` is {what if symbol.kind else 'a definition'}: write `{name} = …`"
        self._fault("LA0228", statement.name.span, name=name, hint=hint)

    def _first(self, name: str, span: Span) -> bool:
        """Whether ``name`` is assigned for the first time; a fault where not."""
        first = self._assigned.setdefault(name, span)
        if first is not span:
            note = Note(f"`{name}` is first assigned here", first)
            self._fault("LA0213", span, notes=(note,), name=name)
        return first is span

    def _applications(self, first: int) -> None:
        """Each application of a feature in a statement becomes a definition such as `φ(k)`."""
        known = {(d.name, id(d.expr)) for d in self.definitions}
        taken = {ascii_spelling(name) for name in self.scope.symbols}
        taken |= {definition.ascii for definition in self.definitions}
        for node, typed in self.typer.applied[first:]:
            name = node.span.words
            if (name, id(typed)) in known:
                continue
            known.add((name, id(typed)))
            stem = _spelled(node)
            numbers = (f"{stem}_{number}" for number in range(2, len(taken) + 3))
            spelled = stem if stem not in taken else next(n for n in numbers if n not in taken)
            taken.add(spelled)
            feature = self.scope.symbols[str(node.value)].feature
            doc = feature.doc if feature is not None else ""
            self.definitions.append(Definition("feature", name, spelled, typed, node.span, doc))

    # ---- the whole

    def _complete(self) -> None:
        """Every state has an update, every output a value, and there is an output."""
        broken = self.scope.broken
        if not self.scope.whole:
            return
        for name, statement in self.declarations.items():
            if name not in self._assigned and name not in broken:
                span = self.scope.symbols[name].span
                if statement.role == "state":
                    self._fault("LA0211", span, name=name)
                elif statement.role == "output":
                    self._fault("LA0212", span, name=name)
        declares = [s for s in self.file.statements if isinstance(s, Declare)]
        for role, code in (("output", "LA0231"), ("input", "LA0234")):
            if not broken and all(statement.role != role for statement in declares):
                self._fault(code, self.file.name.span, name=self.file.name.text)


def _spelled(node: Node) -> str:
    """`phi_k` for `φ(k)`; an argument that is more than a name goes without."""
    words = [str(node.value), *(str(arg.value) for arg in node.args if arg.op == "name")]
    return "_".join(ascii_spelling(word).rstrip("_") for word in words)
