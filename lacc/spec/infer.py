"""Syntax nodes and a scope go in, typed expressions come out, faults go to a list.

The walk is iterative: no length of sum exhausts Python's stack. Features are applied, definitions
inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lacc.diagnostics import Diagnostic, Note, Span, suggest
from lacc.spec.algebra import Algebra, is_open
from lacc.spec.builtins import FUNCTIONS, Function
from lacc.spec.calls import Call, typed_call
from lacc.spec.model import COMPARISONS, Expr
from lacc.spec.names import RESERVED, meant
from lacc.spec.scope import ARGS, Scope, Symbol
from lacc.spec.shapes import Shape, flip, show
from lacc.spec.syntax import Feature, Node

MAX_INLINE = 24
"""Deepest nesting of features that apply features."""

MAX_EXPANDED = 20_000
"""Most nodes of all applications of features together."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison, chains split: all of ``parts`` hold."""

    parts: tuple[Expr, ...]


Typed = Expr | Condition | None
Locals = Mapping[str, Expr | None]


class Typer(Algebra):
    """Types the expressions of one file.

    ``applied`` holds the applications of features in the order met, ``typed`` the type of each node
    that a statement wrote, by the node's id.
    """

    def __init__(
        self, scope: Scope, dims: Mapping[str, int], report: Callable[[Diagnostic], None]
    ) -> None:
        super().__init__(dims, report)
        self.scope = scope
        self.applied: list[tuple[Node, Expr]] = []
        self.typed: dict[int, Expr] = {}
        self._inlined = 0
        self._expanded = 0

    # ---- what a statement asks for

    def expr(self, node: Node) -> Expr | None:
        """The typed ``node``; a comparison is refused."""
        return self._value(self._type(node, None), node)

    def closed(self, node: Node) -> Expr | None:
        """As `expr`, with all sizes known."""
        typed = self.expr(node)
        if typed is not None and is_open(typed.shape):
            self.fault("LA0305", node.span)
            return None
        return typed

    def fit(self, node: Node, shape: Shape, name: str, scalar: bool = False) -> Expr | None:
        """As `expr`, and of ``shape``, or with ``scalar`` one number for all entries; ``name`` is
        what gets the value.
        """
        typed = self.expr(node)
        if typed is None:
            return None
        typed = self.close(typed, shape)
        if typed.shape == shape or (scalar and not typed.shape):
            return typed
        hint = f"make it {show(shape)}, or declare the shape that it has"
        if is_open(typed.shape):
            self.fault("LA0305", node.span)
            return None
        if typed.shape and flip(typed.shape) == shape:
            hint = "transpose it with .T"
        if not typed.shape:
            hint = "multiply it with what has that shape, or declare it scalar"
        want, got = show(shape), show(typed.shape)
        self.fault("LA0304", node.span, name=name, want=want, got=got, hint=hint)
        return None

    def condition(self, node: Node) -> Condition | None:
        """The typed comparison ``node``; any other expression is refused."""
        typed = self._type(node, None)
        if isinstance(typed, Expr):
            self.fault("LA0222", node.span)
        return typed if isinstance(typed, Condition) else None

    def names(self, feature: Feature) -> bool:
        """Whether every name in a feature's body is known and used as it may be; faults where
        not.
        """
        params = {param.text for param in feature.params}
        faults: list[Diagnostic] = []
        report, self.report = self.report, faults.append
        stack = [feature.body]
        while stack:
            node = stack.pop()
            stack.extend(reversed(node.args))
            name = str(node.value[0] if isinstance(node.value, tuple) else node.value)
            symbol = self.scope.symbols.get(name)
            if node.op == "call":
                if name not in FUNCTIONS:
                    self._feature(node, name)
            elif name in params or name in RESERVED or node.op not in ("name", "at"):
                continue
            elif symbol is not None and symbol.kind == "state":
                self.fault("LA0233", node.span, name=feature.name.text, state=name)
            else:
                self.lookup(name, node.span)
        self.report = report
        for fault in faults:
            report(fault)
        return not faults

    # ---- the walk

    def _type(self, root: Node, local: Locals | None) -> Typed:
        """The type of ``root``; ``local`` are the arguments of the feature whose body it is, None
        outside.
        """
        results: dict[int, Typed] = {}
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if not ready:
                self._expanded += local is not None
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
                continue
            typed = self._node(node, [results[id(arg)] for arg in node.args], local)
            results[id(node)] = typed
            if local is None and isinstance(typed, Expr):
                self.typed[id(node)] = typed
        return results[id(root)]

    def _node(self, node: Node, args: list[Typed], local: Locals | None) -> Typed:
        match node.op, node.value:
            case "name", str(name):
                return self._name(name, node.span, local)
            case "number", int() | float() as number:
                return self.number(number, node.span)
            case "at", (str(name), str(base), int() | str() as shift):
                return self._at(name, base, shift, node.span, local)
            case "keyword", _:
                return args[0]
            case "call", str(name):
                return self._call(node, name, args, local)
        exprs = self._all(args, node.args)
        if exprs is None:
            return None
        match node.op, node.value:
            case "compare", tuple(signs):
                return self._compare(signs, exprs, node)
            case "T", _:
                return self.transpose(exprs[0], node.span)
            case "matmul", _:
                return self.matmul(exprs[0], exprs[1], node.span)
            case _:
                return self.elementwise(node.op, exprs, node.span)

    def _value(self, typed: Typed, node: Node) -> Expr | None:
        if isinstance(typed, Condition):
            self.fault("LA0221", node.span)
            return None
        return typed

    def _all(self, typed: Sequence[Typed], nodes: Sequence[Node]) -> list[Expr] | None:
        values = [self._value(one, node) for one, node in zip(typed, nodes)]
        found = [value for value in values if value is not None]
        return found if len(found) == len(values) else None

    def _compare(self, signs: tuple[str, ...], args: list[Expr], node: Node) -> Condition | None:
        parts = []
        for index, sign in enumerate(signs):
            span = node.args[index].span.to(node.args[index + 1].span)
            part = self.build_comparison(COMPARISONS[sign], args[index], args[index + 1], span)
            if part is not None:
                parts.append(part)
        return Condition(tuple(parts)) if len(parts) == len(signs) else None

    def build_comparison(self, op: str, left: Expr, right: Expr, span: Span) -> Expr | None:
        """``left op right``, elementwise, also of two numbers."""
        if left.op == right.op == "const":
            return self.build(op, [left, right], None, (), span)
        return self.elementwise(op, [left, right], span)

    # ---- names and times

    def lookup(self, name: str, span: Span) -> Symbol | None:
        """What ``name`` stands for here; None where nothing does (a fault) or where it has a fault
        of its own.
        """
        symbol = self.scope.symbols.get(name)
        if symbol is None:
            if name in self.scope.broken or not (self.scope.whole or name in self.scope.places):
                return None
            if name in self.scope.places:
                self._early(name, self.scope.places[name], span)
            elif name in FUNCTIONS:
                self.fault("LA0218", span, name=name)
            else:
                hint = meant(name, [*self.scope.symbols, *RESERVED])
                hint = hint or "declare or define it on an earlier line"
                self.fault("LA0201", span, name=name, hint=hint)
            return None
        symbol.read = True
        if not self.scope.usable(symbol):
            self._early(name, symbol.span, span)
            return None
        return None if symbol.broken else symbol

    def _early(self, name: str, place: Span, span: Span) -> None:
        note = Note(f"`{name}` is defined here", place)
        self.fault("LA0204", span, name=name, notes=[note])

    def value_of(self, symbol: Symbol, span: Span, offset: int = 0) -> Expr | None:
        """What a symbol, no state and no feature, is worth."""
        if symbol.kind == "dim":
            return self.leaf("size", symbol.size, (), span)
        if symbol.kind == "input":
            return self.leaf("input", (symbol.name, offset), symbol.shape, span)
        if symbol.kind in ARGS:
            return self.leaf(symbol.kind, symbol.name, symbol.shape, span)
        return symbol.expr

    def _name(self, name: str, span: Span, local: Locals | None) -> Expr | None:
        if local is not None and name in local:
            return local[name]
        if name in self.scope.broken:
            return None
        if name == "inf":
            return self.number(float("inf"), span)
        if name == "I":
            return self.identity(span)
        if name in RESERVED:
            return self.leaf(name, None, (), span)
        symbol = self.lookup(name, span)
        if symbol is not None and symbol.kind in ("state", "feature"):
            self.fault("LA0205" if symbol.kind == "state" else "LA0217", span, name=name)
            return None
        return None if symbol is None else self.value_of(symbol, span)

    def _at(
        self, name: str, base: str, shift: int | str, span: Span, local: Locals | None
    ) -> Expr | None:
        if name in self.scope.broken:
            return None
        if name in RESERVED or (local is not None and name in local):
            what = RESERVED.get(name, "an argument of the feature")
            self.fault("LA0206", span, why=f"`{name}` is {what} and has no time")
            return None
        symbol, offset = self.lookup(name, span), self._offset(shift, span)
        if symbol is None or offset is None:
            return None
        if symbol.kind == "state" and (base == "t" or offset == 0):
            when = "T" if base == "T" else offset
            return self.leaf("state", (name, when), symbol.shape, span)
        if base == "t" and symbol.kind == "input" and offset <= 0:
            return self.value_of(symbol, span, offset)
        if base == "t" and symbol.kind in ("", "gate", "normalizer", "output") and offset == 0:
            return symbol.expr
        self.fault("LA0206", span, why=_no_time(symbol, base))
        return None

    def _offset(self, shift: int | str, span: Span) -> int | None:
        if isinstance(shift, int):
            return shift
        symbol = self.lookup(shift[1:], span)
        if symbol is None:
            return None
        if symbol.kind not in ("dim", "const"):
            self.fault("LA0309", span)
            return None
        value = self.value_of(symbol, span)
        count = None if value is None else self.count(value, span)
        return None if count is None else (-count if shift[0] == "-" else count)

    # ---- calls

    def _call(self, node: Node, name: str, args: list[Typed], local: Locals | None) -> Expr | None:
        function = FUNCTIONS.get(name)
        if function is None:
            symbol = self._feature(node, name)
            return None if symbol is None else self._apply(node, symbol, args, local)
        split = len([arg for arg in node.args if arg.op != "keyword"])
        good = self._counted(node, function, split) and self._keywords(node, function)
        if name == "where" and good:
            return self._where(node, args)
        exprs = self._all(args, node.args)
        if exprs is None or not good:
            return None
        keywords = {str(key.value): value for key, value in zip(node.args[split:], exprs[split:])}
        return typed_call(self, Call(function, tuple(exprs[:split]), keywords, node.span))

    def _keywords(self, node: Node, function: Function) -> bool:
        good = True
        for arg in node.args:
            key = str(arg.value)
            if arg.op == "keyword" and key not in function.keywords:
                good = False
                hint = suggest(key, function.keywords) or f"`{function.name}`: {function.doc}"
                self.fault("LA0223", arg.span, name=function.name, key=key, hint=hint)
        return good

    def _counted(self, node: Node, function: Function, got: int) -> bool:
        if got >= function.least and (function.most is None or got <= function.most):
            return True
        least = "" if function.most == function.least else "at least "
        want = f"{least}{function.least} argument{'s' if function.least != 1 else ''}"
        self.fault("LA0224", node.span, name=function.name, want=want, got=got, doc=function.doc)
        return False

    def _where(self, node: Node, args: list[Typed]) -> Expr | None:
        condition, branches = args[0], self._all(args[1:], node.args[1:])
        if isinstance(condition, Expr):
            self.fault("LA0222", node.args[0].span)
        if not isinstance(condition, Condition) or branches is None:
            return None
        result: Expr | None = branches[0]
        for part in reversed(condition.parts):
            if result is not None:
                result = self.elementwise("where", [part, result, branches[1]], node.span)
        return result

    # ---- features

    def _feature(self, node: Node, name: str) -> Symbol | None:
        """The feature that a call means; a fault where it means none."""
        symbol = self.scope.symbols.get(name)
        if symbol is not None and symbol.kind == "feature":
            return self.lookup(name, node.span)
        if symbol is not None or name in RESERVED:
            self.fault("LA0219", node.span, name=name)
        elif name not in self.scope.broken and self.scope.whole:
            features = [s.name for s in self.scope.symbols.values() if s.kind == "feature"]
            hint = meant(name, [*FUNCTIONS, *features])
            hint = hint or f"declare it, `feature {name}(x) = …`"
            self.fault("LA0220", node.span, name=name, hint=hint)
        return None

    def _apply(
        self, node: Node, symbol: Symbol, args: list[Typed], local: Locals | None
    ) -> Expr | None:
        """The body of a feature with its arguments in place."""
        feature = symbol.feature
        if feature is None:
            return None
        params = [param.text for param in feature.params]
        doc = f"it is declared as {symbol.name}({', '.join(params)})"
        signature = Function(symbol.name, "feature", len(params), len(params), doc)
        values = self._all(args, node.args)
        if not self._keywords(node, signature) or not self._counted(node, signature, len(args)):
            return None
        if values is None:
            return None
        if self._inlined == MAX_INLINE or self._expanded > MAX_EXPANDED:
            deep = f"features are nested more than {MAX_INLINE} deep"
            wide = f"its features expand to more than {MAX_EXPANDED} operations"
            self.fault("LA0308", node.span, why=deep if self._inlined == MAX_INLINE else wide)
            return None
        faults: list[Diagnostic] = []
        report, self.report = self.report, faults.append
        now, self.scope.now = self.scope.now, symbol.index
        self._inlined += 1
        result = self._value(self._type(feature.body, dict(zip(params, values))), feature.body)
        self._inlined -= 1
        self.scope.now, self.report = now, report
        shapes = ", ".join(f"{param} : {show(v.shape)}" for param, v in zip(params, values))
        note = Note(f"`{symbol.name}` is applied to {shapes} here", node.span)
        for fault in faults:
            report(fault if self._inlined else replace(fault, notes=(*fault.notes, note)))
        if result is not None and local is None:
            self.applied.append((node, result))
        return result


def _no_time(symbol: Symbol, base: str) -> str:
    name = symbol.name
    if base == "T":
        return f"only states are read at `T`, `{name}` is none"
    if symbol.kind == "input":
        return f"`{name}` is not known ahead of its token"
    if symbol.kind in ("", "gate", "normalizer", "output"):
        return f"`{name}` is not kept from token to token: declare a state for it"
    return f"`{name}` has no time axis"
