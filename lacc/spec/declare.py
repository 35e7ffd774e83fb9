"""Declarations of a file and overrides go in, its scope, dims and consts come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lacc.diagnostics import Diagnostic, Note, Span, error, suggest
from lacc.spec.builtins import FUNCTIONS
from lacc.spec.fold import NoNumber, number_of
from lacc.spec.infer import Typer
from lacc.spec.model import LEVELS, Dim
from lacc.spec.names import API, RESERVED, ascii_spelling, meant, nfkc
from lacc.spec.scope import ARGS, Scope, Symbol
from lacc.spec.shapes import Shape, Size
from lacc.spec.syntax import (
    Declare,
    Define,
    Feature,
    File,
    Name,
    Node,
    Sized,
    Statement,
    Type,
)

MAX_TERMS = 64
MAX_POWER = 16
MAX_SIZE = 2**31 - 1
DEFAULT_PER = {"buffer": "layer"}


class Declarations:
    """The names of ``file``: fills ``scope``, ``dims`` and ``consts``, reports faults."""

    def __init__(
        self, file: File, overrides: Mapping[str, float], report: Callable[[Diagnostic], None]
    ) -> None:
        self.file = file
        self.report = report
        self.scope = Scope(broken=set(file.broken), whole=file.base is None)
        self.dims: dict[str, Dim] = {}
        self.values: dict[str, int] = {}
        self.consts: dict[str, float] = {}
        for statement in file.statements:
            for name in _declared(statement):
                self.scope.places.setdefault(name.text, name.span)
        self.typer = Typer(self.scope, self.values, report)
        self.overrides = self._overrides(overrides)
        outputs, states = (
            {
                name.text
                for statement in file.statements
                if isinstance(statement, Declare) and statement.role == role
                for name in statement.names
            }
            for role in ("output", "state")
        )
        for index, statement in enumerate(file.statements):
            self.scope.now = index
            self._statement(index, statement, outputs, states)
        for index, statement in reversed(list(enumerate(file.statements))):
            if isinstance(statement, Define) and statement.name.text in outputs:
                output = self.scope.symbols.get(statement.name.text)
                if output is not None and output.kind == "output":
                    output.index = index
        self._spellings()

    def fault(
        self, code: str, span: Span | None, /, *, notes: Sequence[Note] = (), **values: object
    ) -> None:
        """Reports an error of the catalogue."""
        self.report(error(code, span, notes=notes, **values))

    # ---- overrides

    def _overrides(self, given: Mapping[str, float]) -> dict[str, float]:
        """Overrides by the name in the file; unknown ones are reported."""
        known = {
            name.text: statement.kind
            for statement in self.file.statements
            if isinstance(statement, Sized)
            for name, _ in statement.items
        }
        by_ascii = {ascii_spelling(name): name for name in known}
        found: dict[str, float] = {}
        for given_name, value in given.items():
            key = nfkc(given_name)
            name = key if key in known else by_ascii.get(key)
            if name is None and key not in self.file.broken and self.scope.whole:
                hint = suggest(key, [*known, *by_ascii])
                if not hint:
                    hint = "it has " + (", ".join(f"`{n}`" for n in known) or "no dim and no const")
                self.fault("LA0401", self.file.name.span, name=key, hint=hint)
            elif name is None:
                continue
            elif isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                self.fault("LA0402", None, name=key, value=repr(value)[:60], want="a number")
            elif known[name] == "dim" and not (1 <= value <= MAX_SIZE and value == int(value)):
                want = f"at most {MAX_SIZE}" if value > MAX_SIZE else "a positive integer"
                self.fault("LA0402", None, name=key, value=value, want=want)
            else:
                found[name] = int(value) if known[name] == "dim" else value
        return found

    # ---- statements

    def _statement(
        self, index: int, statement: Statement, outputs: set[str], states: set[str]
    ) -> None:
        if isinstance(statement, Sized):
            for name, body in statement.items:
                (self._dim if statement.kind == "dim" else self._const)(index, name, body)
        elif isinstance(statement, Declare):
            self._declare(index, statement)
        elif isinstance(statement, Feature):
            symbol = self._symbol(index, statement.name, "feature")
            if symbol is not None:
                symbol.feature = statement
        elif isinstance(statement, Define) and statement.name.text not in outputs:
            if statement.name.text in states:
                self.fault("LA0205", statement.name.span, name=statement.name.text)
            else:
                self._symbol(index, statement.name, statement.role)

    def _symbol(self, index: int, name: Name, kind: str) -> Symbol | None:
        """Declares ``name``; None (and a fault) where it may not be declared."""
        text = name.text
        why = ""
        if text in RESERVED:
            why = f"`{text}` is {RESERVED[text]}"
        elif text in FUNCTIONS:
            why = f"`{text}` is a function of the language"
        elif kind in ARGS and ascii_spelling(text) in API:
            why = f"`{text}` is an argument of every compiled variant"
        if why:
            self.scope.broken.add(text)
            self.fault("LA0203", name.span, name=text, why=why)
            return None
        first = self.scope.symbols.get(text)
        if first is not None:
            self.fault("LA0202", name.span, name=text,
                       notes=[Note(f"`{text}` is first declared here", first.span)])  # fmt: skip
            return None
        symbol = self.scope.symbols[text] = Symbol(text, kind, index, name.span)
        return symbol

    def _dim(self, index: int, name: Name, body: Node) -> None:
        self.scope.now = index + 1
        size = self.size(body)
        value = None if size is None else self._evaluate(size, body.span)
        symbol = self._symbol(index, name, "dim")
        if symbol is None:
            return
        symbol.broken = value is None
        if size is None or value is None:
            return
        override = self.overrides.get(name.text)
        if size.constant is not None:
            size = Size.of(name.text)
            value = int(override) if override is not None else value
        elif override is not None and override != value:
            self.fault(
                "LA0403", body.span, name=name.text, value=int(override), size=size, default=value
            )
        symbol.size = size
        self.values[name.text] = value
        self.dims[name.text] = Dim(name.text, value, size, override is not None, name.span)

    def _const(self, index: int, name: Name, body: Node) -> None:
        self.scope.now = index + 1
        typed = self.typer.expr(body)
        symbol = self._symbol(index, name, "const")
        if symbol is None:
            return
        symbol.broken = True
        override = self.overrides.get(name.text)
        if override is not None:
            typed = self.typer.number(override, name.span)
        if typed is None:
            return
        try:
            value = number_of(typed, self.values)
        except (NoNumber, ValueError) as fault:
            self.fault("LA0307", body.span, why=str(fault))
            return
        if value is None:
            self.fault("LA0313", body.span, name=name.text)
            return
        symbol.expr, symbol.broken = typed, False
        self.consts[name.text] = value

    def _declare(self, index: int, statement: Declare) -> None:
        role = statement.role
        shape = self.shape(statement.type) if statement.type is not None else ()
        per = statement.per.text if statement.per is not None else DEFAULT_PER.get(role, "head")
        if per not in LEVELS or (per == "position" and role != "param"):
            assert statement.per is not None
            levels = [level for level in LEVELS if level != "position" or role == "param"]
            hint = suggest(per, levels) or "write per " + ", per ".join(levels)
            self.fault("LA0225", statement.per.span, role=role, per=per, hint=hint)
            per = "head"
        for name in statement.names:
            symbol = self._symbol(index, name, role)
            if symbol is not None:
                symbol.per = per
                symbol.broken = shape is None
                symbol.shape = shape or ()

    def _spellings(self) -> None:
        """Outside the file every name has one ASCII spelling; two names never share it."""
        first: dict[str, Symbol] = {}
        for symbol in self.scope.symbols.values():
            spelled = ascii_spelling(symbol.name)
            other = first.setdefault(spelled, symbol)
            if other is not symbol:
                note = Note(f"`{other.name}` is declared here", other.span)
                values = {"name": symbol.name, "other": other.name, "spelled": spelled}
                self.fault("LA0214", symbol.span, notes=[note], **values)

    # ---- sizes

    def shape(self, type: Type) -> Shape | None:
        """The shape that a declaration's type says; None (and a fault) where it says none."""
        if len(type.axes) > 2:
            outer = {"B", "T", "H"} - self.dims.keys()
            own = [axis for axis in type.axes if axis.value not in outer]
            hint = "use a vector or a matrix; `vec` and dims such as [M * K] hold more"
            if len(own) < len(type.axes):
                kept = ", ".join(axis.span.text for axis in own)
                hint = f"each token and head has one: write {f'[{kept}]' if own else 'scalar'}"
            self.fault("LA0314", type.span, rank=len(type.axes), hint=hint)
            return None
        sizes = [self.size(axis) for axis in type.axes]
        for size, axis in zip(sizes, type.axes):
            if size is not None and self._evaluate(size, axis.span) is None:
                return None
        return None if None in sizes else tuple(size for size in sizes if size is not None)

    def _evaluate(self, size: Size, span: Span) -> int | None:
        try:
            value = size.evaluate(self.values)
        except ValueError as fault:
            self.fault("LA0306", span, why=str(fault))
            return None
        if not 1 <= value <= MAX_SIZE:
            why = f"it is {value}" if abs(value) <= MAX_SIZE else "it is too large"
            self.fault("LA0306", span, why=why)
            return None
        return value

    def size(self, root: Node) -> Size | None:
        """The polynomial over dims that ``root`` writes; None (and a fault) where it is none."""
        results: dict[int, Size | None] = {}
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                results[id(node)] = self._size(node, [results[id(arg)] for arg in node.args])
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
        return results[id(root)]

    def _size(self, node: Node, given: list[Size | None]) -> Size | None:
        args = [arg for arg in given if arg is not None]
        if len(args) < len(given):
            return None
        result: Size | None = None
        why = "a size is a polynomial of dims"
        if node.op == "number":
            value = node.value
            if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
                result = Size.of(int(value)) if abs(value) <= MAX_SIZE else None
                why = "it is too large"
            else:
                why = "a size is a whole number"
        elif node.op == "name":
            return self._named_size(node)
        elif node.op == "neg":
            result = Size.of(-1) * args[0]
        elif node.op == "add":
            result = args[0] + args[1]
        elif node.op == "sub":
            result = args[0] - args[1]
        elif node.op == "mul":
            result = args[0] * args[1]
        elif node.op == "div":
            divisor = args[1].constant
            result = args[0].divided(divisor) if divisor else None
            why = "a size is divided by a whole number only"
        elif node.op == "pow":
            power = args[1].constant
            if power is None or not 0 <= power <= MAX_POWER:
                why = f"the power of a size is a number from 0 to {MAX_POWER}"
            else:
                result = Size.of(1)
                for _ in range(power):
                    result = result * args[0]
                    if not _small(result):
                        break
        if result is not None and not _small(result):
            result, why = None, "it is too large"
        if result is None:
            self.fault("LA0306", node.span, why=why)
        return result

    def _named_size(self, node: Node) -> Size | None:
        name = str(node.value)
        if name in RESERVED:
            self.fault("LA0306", node.span, why=f"`{name}` is {RESERVED[name]}, not a dim")
            return None
        if name not in self.scope.places and name not in self.scope.broken and self.scope.whole:
            hint = meant(name, self.dims) or f"declare it: `dim {name} = 64`"
            self.fault("LA0201", node.span, name=name, hint=hint)
            return None
        symbol = self.typer.lookup(name, node.span)
        if symbol is None:
            return None
        if symbol.kind == "dim":
            return symbol.size
        value = symbol.expr.value if symbol.kind == "const" and symbol.expr is not None else None
        if isinstance(value, int | float) and value == int(value) and abs(value) <= MAX_SIZE:
            return Size.of(int(value))
        self.fault("LA0306", node.span, why=f"`{name}` is not a dim")
        return None


def _declared(statement: Statement) -> Iterable[Name]:
    if isinstance(statement, Sized):
        return [name for name, _ in statement.items]
    if isinstance(statement, Declare):
        return statement.names
    return [statement.name] if isinstance(statement, Define | Feature) else []


def _small(size: Size) -> bool:
    return len(size.terms) <= MAX_TERMS and all(
        abs(c.numerator) <= MAX_SIZE
        and c.denominator <= MAX_SIZE
        and sum(p for _, p in m) <= MAX_POWER
        for m, c in size.terms
    )
