"""Shapes of expressions: syntax nodes and a scope in, interned typed expressions out, faults to a list.

An expression with a fault has the type None, which silences whatever is built on it. The walk is iterative, so that no
length of sum exhausts Python's stack; typed expressions deeper than `MAX_DEPTH` are refused.

`I` takes its size from its surroundings: until these are known its axes are the size `OPEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lacc.diagnostics import Diagnostic, Note, Span, error, suggest
from lacc.spec.builtins import FUNCTIONS, Function
from lacc.spec.fold import NoNumber, fold, number_of
from lacc.spec.model import Expr, Interner
from lacc.spec.names import RESERVED
from lacc.spec.scope import ARGS, Scope, Symbol
from lacc.spec.shapes import ONE, Shape, Size, show
from lacc.spec.syntax import Feature, Node

MAX_DEPTH = 400
MAX_INLINE = 24
OPEN = Size.of("?")

COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq"}
BINARY = ("add", "sub", "mul", "div", "pow")


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison, chains split: all of ``parts`` hold."""

    parts: tuple[Expr, ...]


Typed = Expr | Condition | None
Locals = Mapping[str, Expr | None]


class Typer:
    """Types the expressions of one file. ``fixed`` collects dims whose value is read as a number of tokens;
    ``applied`` the applications of features, in order; ``typed`` the type of each node of a statement."""

    def __init__(
        self, scope: Scope, dims: Mapping[str, int], report: Callable[[Diagnostic], None]
    ) -> None:
        self.scope = scope
        self.dims = dims
        self.report = report
        self.make = Interner()
        self.fixed: set[str] = set()
        self.applied: list[tuple[Node, Expr]] = []
        self.typed: dict[int, Expr] = {}
        self._depth: dict[int, int] = {}
        self._inlined = 0

    # ---- entry points ------------------------------------------------------------------------------

    def expr(self, node: Node) -> Expr | None:
        """The typed expression of a statement's ``node``; a comparison is refused."""
        return self._value(self._type(node, self.scope, None), node)

    def fit(self, node: Node, shape: Shape, what: str, scalar: bool = False) -> Expr | None:
        """As `expr`, and of ``shape`` (with ``scalar``, or a number for all entries); ``what`` names what it is given to."""
        typed = self.expr(node)
        if typed is None:
            return None
        typed = self._close(typed, shape)
        if typed.shape == shape or (scalar and not typed.shape):
            return self.settle(typed, node)
        flipped = bool(typed.shape) and _flip(typed.shape) == shape
        hint = (
            "transpose it with .T"
            if flipped
            else f"make it {show(shape)}, or declare the shape it has"
        )
        self.fault(
            "LA0304", node.span, name=what, want=show(shape), got=show(typed.shape), hint=hint
        )
        return None

    def settle(self, typed: Expr, node: Node) -> Expr | None:
        """``typed`` where all its sizes are known, else a fault."""
        if any(OPEN.dims & size.dims for size in typed.shape):
            self.fault("LA0305", node.span)
            return None
        return typed

    def condition(self, node: Node) -> Condition | None:
        """The typed comparison ``node``; any other expression is refused."""
        typed = self._type(node, self.scope, None)
        if isinstance(typed, Expr):
            self.fault("LA0222", node.span)
        return typed if isinstance(typed, Condition) else None

    def fault(
        self, code: str, span: Span, /, *, notes: Sequence[Note] = (), **values: object
    ) -> None:
        """Reports an error of the catalogue."""
        self.report(error(code, span, notes=notes, **values))

    def names(self, feature: Feature) -> bool:
        """Whether every name in a feature's body is known and called as it should be; faults where not."""
        params = {param.text for param in feature.params}
        reports: list[Diagnostic] = []
        report, self.report = self.report, reports.append
        stack = [feature.body]
        while stack:
            node = stack.pop()
            stack.extend(reversed(node.args))
            name = str(node.value[0] if isinstance(node.value, tuple) else node.value)
            if name in params and node.op != "call":
                continue
            symbol = self.scope.symbols.get(name)
            if node.op == "call":
                self._callable(node, name)
            elif node.op == "at" and symbol is not None and symbol.kind == "state":
                self.fault("LA0233", node.span, name=feature.name.text, state=name)
            elif node.op in ("name", "at") and name not in RESERVED:
                self.lookup(name, node.span)
        self.report = report
        for fault in reports:
            report(fault)
        return not reports

    def _callable(self, node: Node, name: str) -> None:
        symbol = self.scope.symbols.get(name)
        if symbol is not None and symbol.kind == "feature":
            self.lookup(name, node.span)
        elif name not in FUNCTIONS:
            self._unknown_function(node, name, self.scope)

    # ---- the walk ----------------------------------------------------------------------------------

    def _type(self, root: Node, scope: Scope, local: Locals | None) -> Typed:
        results: dict[int, Typed] = {}
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if not ready:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
                continue
            results[id(node)] = typed = self._node(node, results, scope, local)
            if local is None and isinstance(typed, Expr):
                self.typed[id(node)] = typed
        return results[id(root)]

    def _node(
        self, node: Node, results: dict[int, Typed], scope: Scope, local: Locals | None
    ) -> Typed:
        args = [results[id(arg)] for arg in node.args]
        if node.op == "name":
            return self._name(str(node.value), node.span, scope, local)
        if node.op == "number":
            assert isinstance(node.value, int | float)
            return self.number(node.value, node.span)
        if node.op == "at":
            return self._at(node, scope, local)
        if node.op == "keyword":
            return args[0]
        if node.op == "call":
            return self._call(node, args, scope, local)
        values = [self._value(arg, child) for arg, child in zip(args, node.args)]
        exprs = [value for value in values if value is not None]
        if len(exprs) < len(values):
            return None
        if node.op == "compare":
            return self._compare(node, exprs)
        if node.op == "T":
            return self.transpose(exprs[0], node.span)
        if node.op == "matmul":
            return self.matmul(exprs[0], exprs[1], node.span)
        return self.elementwise(node.op, exprs, node.span)

    def _value(self, typed: Typed, node: Node) -> Expr | None:
        if isinstance(typed, Condition):
            self.fault("LA0221", node.span)
            return None
        return typed

    def build(
        self, op: str, args: Sequence[Expr], value: object, shape: Shape, span: Span
    ) -> Expr | None:
        """The interned node, None (with a fault) where it is too deep."""
        node = self.make(op, tuple(args), value, shape, span)
        depth = self._depth.get(id(node))
        if depth is None:
            depth = 1 + max((self._depth[id(arg)] for arg in args), default=0)
            self._depth[id(node)] = depth
        if depth > MAX_DEPTH:
            if depth == MAX_DEPTH + 1:
                self.fault("LA0308", span, limit=MAX_DEPTH)
            return None
        return node

    def leaf(self, op: str, value: object, shape: Shape, span: Span) -> Expr:
        """A node without arguments."""
        node = self.make(op, (), value, shape, span)
        self._depth.setdefault(id(node), 1)
        return node

    def number(self, value: int | float, span: Span) -> Expr:
        """A number."""
        return self.leaf("const", value, (), span)

    # ---- names -------------------------------------------------------------------------------------

    def _name(self, name: str, span: Span, scope: Scope, local: Locals | None) -> Expr | None:
        if local is not None and name in local:
            return local[name]
        if name in RESERVED:
            if name == "inf":
                return self.number(float("inf"), span)
            if name == "I":
                return self.leaf("eye", None, (OPEN, OPEN), span)
            return self.leaf(name, None, (), span)
        symbol = self.lookup(name, span, scope)
        if symbol is None:
            return None
        if symbol.kind == "state":
            self.fault("LA0205", span, name=name)
            return None
        if symbol.kind == "feature":
            self.fault("LA0217", span, name=name)
            return None
        return self.value_of(symbol, span)

    def value_of(self, symbol: Symbol, span: Span, offset: int = 0) -> Expr | None:
        """A symbol that is not a state or a feature, as a value."""
        if symbol.kind == "dim":
            assert symbol.size is not None
            return self.leaf("size", symbol.size, (), span)
        if symbol.kind == "input":
            return self.leaf("input", (symbol.name, offset), symbol.shape, span)
        if symbol.kind in ARGS:
            return self.leaf(symbol.kind, symbol.name, symbol.shape, span)
        return symbol.expr

    def lookup(self, name: str, span: Span, scope: Scope | None = None) -> Symbol | None:
        """The symbol that ``name`` stands for here; None where there is none (a fault) or it has a fault of its own."""
        scope = self.scope if scope is None else scope
        symbol = scope.symbols.get(name)
        if symbol is None:
            known = [*scope.symbols, *RESERVED]
            if name in scope.broken:
                return None
            if name in FUNCTIONS:
                self.fault("LA0218", span, name=name)
            else:
                hint = suggest(name, known) or "declare or define it on an earlier line"
                self.fault("LA0201", span, name=name, hint=hint)
            return None
        symbol.read = True
        if not scope.usable(symbol):
            if not symbol.broken:
                notes = [Note(f"`{name}` is defined here", symbol.span)]
                self.fault("LA0204", span, name=name, notes=notes)
            return None
        return None if symbol.broken else symbol

    def _at(self, node: Node, scope: Scope, local: Locals | None) -> Expr | None:
        name, base, shift = node.value  # type: ignore[misc]
        if local is not None and name in local:
            self.fault(
                "LA0206", node.span, why=f"`{name}` is an argument here, not a value in time"
            )
            return None
        if name in RESERVED:
            self.fault("LA0206", node.span, why=f"`{name}` is {RESERVED[name]} and has no time")
            return None
        symbol = self.lookup(name, node.span, scope)
        offset = self._shift(shift, node.span, scope)
        if symbol is None or offset is None:
            return None
        if base == "T" and not offset and symbol.kind == "state":
            return self.leaf("state", (name, "T"), symbol.shape, node.span)
        if base != "t":
            why = f"`{base}` is not a time" if base != "T" else "only states are read at `T`"
            if base == "T" and offset:
                why = "the last token's value is `[T]`, with nothing added"
            self.fault("LA0206", node.span, why=why)
            return None
        if symbol.kind == "state":
            return self.leaf("state", (name, offset), symbol.shape, node.span)
        if symbol.kind == "input" and offset <= 0:
            return self.value_of(symbol, node.span, offset)
        if symbol.kind in ("", "gate", "normalizer", "output") and not offset:
            return symbol.expr
        self.fault("LA0206", node.span, why=_no_time(symbol))
        return None

    def _shift(self, shift: object, span: Span, scope: Scope) -> int | None:
        if isinstance(shift, int):
            return shift
        text = str(shift)
        symbol = self.lookup(text[1:], span, scope)
        if symbol is None:
            return None
        value = (
            self.count(self.value_of(symbol, span), span)
            if symbol.kind in ("dim", "const")
            else None
        )
        if value is None:
            if symbol.kind not in ("dim", "const"):
                self.fault("LA0206", span, why=f"`{symbol.name}` is not a dim or a const")
            return None
        return -value if text[0] == "-" else value

    def count(self, typed: Expr | None, span: Span) -> int | None:
        """A positive whole number that the spec fixes: of tokens, say."""
        if typed is None:
            return None
        try:
            value = number_of(typed, self.dims)
        except (NoNumber, ValueError):
            value = None
        if value is None or value != int(value) or value < 1:
            self.fault("LA0309", span)
            return None
        for leaf in typed.walk():
            if isinstance(leaf.value, Size):
                self.fixed |= leaf.value.dims
        return int(value)

    # ---- operators ---------------------------------------------------------------------------------

    def elementwise(self, op: str, args: Sequence[Expr], span: Span) -> Expr | None:
        """Scalars broadcast over anything; all other shapes are equal."""
        if all(arg.op == "const" for arg in args):
            return self._fold(op, args, span)
        shape = next((arg.shape for arg in args if arg.shape and not _open(arg.shape)), None)
        if shape is not None:
            args = [self._close(arg, shape) for arg in args]
        shapes = [arg.shape for arg in args if arg.shape]
        if any(other != shapes[0] for other in shapes):
            left, right = shapes[0], next(other for other in shapes if other != shapes[0])
            self._differ(op, left, right, span)
            return None
        return self.build(op, args, None, shapes[0] if shapes else (), span)

    def _fold(self, op: str, args: Sequence[Expr], span: Span) -> Expr | None:
        try:
            value = fold(op, [arg.value for arg in args])  # type: ignore[misc]
        except NoNumber as fault:
            self.fault("LA0307", span, why=str(fault))
            return None
        return self.build(op, args, None, (), span) if value is None else self.number(value, span)

    def _differ(self, op: str, left: Shape, right: Shape, span: Span) -> None:
        sign = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}.get(op)
        text = (
            f"{show(left)} {sign} {show(right)}" if sign else f"{op}({show(left)}, {show(right)})"
        )
        if _flip(left) == right:
            hint = "transpose one side with .T"
        elif len(left) == len(right) and self._values(left) == self._values(right):
            hint = "dims are told apart by name, even where their values are the same"
        elif op == "mul" and {len(left), len(right)} == {1, 2}:
            hint = "write diag(x) @ A to scale the rows of A, A @ diag(x) its columns"
        else:
            hint = "elementwise operators need equal shapes, or a scalar on one side"
        self.fault("LA0301", span, shapes=text, hint=hint)

    def _values(self, shape: Shape) -> list[int]:
        return [size.evaluate(self.dims) for size in shape]

    def matmul(self, left: Expr, right: Expr, span: Span) -> Expr | None:
        """The product of matrices, columns ([K]) and rows ([1, K])."""
        if not left.shape and right.shape[:1] == (ONE,) or not right.shape and len(left.shape) == 1:
            return self.build("mul", [left, right], None, left.shape or right.shape, span)
        if not left.shape or not right.shape:
            self.fault("LA0302", span, left=show(left.shape), right=show(right.shape),
                       hint="`@` multiplies matrices: write `*` with a scalar")  # fmt: skip
            return None
        rows, inner = left.shape if len(left.shape) == 2 else (left.shape[0], ONE)
        outer, columns = right.shape if len(right.shape) == 2 else (right.shape[0], None)
        if _open(left.shape) and outer != OPEN:
            left = self._close(left, (outer, outer))
            rows = inner = outer
        if _open(right.shape) and inner != OPEN:
            right = self._close(right, (inner, inner))
            outer = columns = inner
        if inner != outer:
            self.fault("LA0302", span, left=show(left.shape), right=show(right.shape),
                       hint=_product_hint(left.shape, right.shape))  # fmt: skip
            return None
        if columns is None or (columns == ONE and rows == ONE):
            shape: Shape = () if rows == ONE and len(left.shape) == 2 else (rows,)
        else:
            shape = (rows, columns)
        return self.build("matmul", [left, right], None, shape, span)

    def transpose(self, x: Expr, span: Span) -> Expr | None:
        """A column becomes a row and back; a scalar stays."""
        if not x.shape:
            return x
        if x.op == "T":
            return x.args[0]
        return self.build("T", [x], None, _flip(x.shape), span)

    def _compare(self, node: Node, args: list[Expr]) -> Condition | None:
        assert isinstance(node.value, tuple)
        parts = []
        for sign, left, right, first, second in zip(
            node.value, args, args[1:], node.args, node.args[1:]
        ):
            span = Span(node.span.source, first.span.start, second.span.end)
            part = self.build_comparison(COMPARISONS[sign], left, right, span)
            if part is None:
                return None
            parts.append(part)
        return Condition(tuple(parts))

    def build_comparison(self, op: str, left: Expr, right: Expr, span: Span) -> Expr | None:
        """``left op right``, elementwise."""
        return self.elementwise(op, [left, right], span)

    # ---- `I` ---------------------------------------------------------------------------------------

    def _close(self, x: Expr, shape: Shape) -> Expr:
        """``x`` with its open axes those of the square ``shape`` (as it is where that does not fit)."""
        if not _open(x.shape) or len(shape) != 2 or shape[0] != shape[1] or _open(shape):
            return x
        closed: dict[int, Expr] = {}
        for node in x.walk():
            args = tuple(closed[id(arg)] for arg in node.args)
            new = shape if _open(node.shape) else node.shape
            if args != node.args or new != node.shape:
                made = self.make(node.op, args, node.value, new, node.span)
                self._depth[id(made)] = self._depth[id(node)]
                closed[id(node)] = made
            else:
                closed[id(node)] = node
        return closed[id(x)]

    # ---- calls -------------------------------------------------------------------------------------

    def _call(self, node: Node, args: list[Typed], scope: Scope, local: Locals | None) -> Typed:
        name = str(node.value)
        symbol = scope.symbols.get(name)
        if symbol is not None and symbol.kind == "feature" and scope.usable(symbol):
            return self._apply(node, symbol, args, local)
        function = FUNCTIONS.get(name)
        if function is None:
            self._unknown_function(node, name, scope)
            return None
        positional, keywords = self._arguments(node, function, args)
        if positional is None:
            return None
        if function.rule == "where":
            return self._where(node, positional)
        values = [self._value(arg, child) for arg, child in zip(positional, node.args)]
        exprs = [value for value in values if value is not None]
        if len(exprs) < len(values) or None in keywords.values():
            return None
        if function.rule == "fold":
            return self._extreme(name, exprs, node.span)
        if function.rule == "map":
            return self.elementwise(name, exprs, node.span)
        if any(_open(arg.shape) for arg in exprs):
            self.fault("LA0305", node.span)
            return None
        if function.rule == "reduce":
            return self.build(name, exprs, None, (), node.span)
        if function.rule == "vector":
            return self._of_vector(name, exprs[0], node.span)
        if function.rule == "attend":
            return self._attend(node, exprs, keywords)
        rule = getattr(self, f"_{function.rule}")
        result: Expr | None = rule(node.span, *exprs)
        return result

    def _unknown_function(self, node: Node, name: str, scope: Scope) -> None:
        symbol = scope.symbols.get(name)
        if symbol is not None:
            symbol.read = True
        if symbol is not None and symbol.kind == "feature":
            self.lookup(name, node.span, scope)
        elif symbol is not None or name in RESERVED:
            self.fault("LA0219", node.span, name=name)
        elif name not in scope.broken:
            features = [s.name for s in scope.symbols.values() if s.kind == "feature"]
            hint = suggest(name, [*FUNCTIONS, *features])
            hint = hint or f"declare it, `feature {name}(x) = …`"
            self.fault("LA0220", node.span, name=name, hint=hint)

    def _arguments(
        self, node: Node, function: Function, args: list[Typed]
    ) -> tuple[list[Typed] | None, dict[str, Expr | None]]:
        positional: list[Typed] = []
        keywords: dict[str, Expr | None] = {}
        good = True
        for child, arg in zip(node.args, args):
            if child.op != "keyword":
                positional.append(arg)
                continue
            key = str(child.value)
            if key not in function.keywords:
                good = False
                hint = suggest(key, function.keywords) or f"{function.doc}"
                self.fault("LA0223", child.span, name=function.name, key=key, hint=hint)
            keywords[key] = self._value(arg, child)
        good &= self._counted(
            node, function.name, len(positional), function.least, function.most, function.doc
        )
        return (positional if good else None), keywords

    def _counted(
        self, node: Node, name: str, got: int, least: int, most: int | None, doc: str
    ) -> bool:
        if got >= least and (most is None or got <= most):
            return True
        want = f"{'at least ' if most != least else ''}{least} argument{'s' if least > 1 else ''}"
        self.fault("LA0224", node.span, name=name, want=want, got=got, doc=doc)
        return False

    def _where(self, node: Node, args: list[Typed]) -> Expr | None:
        cond, *branches = args
        first, second = (self._value(arg, child) for arg, child in zip(branches, node.args[1:]))
        if isinstance(cond, Expr):
            self.fault("LA0222", node.args[0].span)
        if not isinstance(cond, Condition) or first is None or second is None:
            return None
        result: Expr | None = first
        for part in reversed(cond.parts):
            result = self.elementwise("where", [part, result, second], node.span)
            if result is None:
                return None
        return result

    def _extreme(self, name: str, args: list[Expr], span: Span) -> Expr | None:
        if len(args) == 1:
            if _open(args[0].shape):
                self.fault("LA0305", span)
                return None
            return self.build(f"reduce_{name}", args, None, (), span)
        result: Expr | None = args[0]
        for other in args[1:]:
            if result is None:
                return None
            result = self.elementwise(name, [result, other], span)
        return result

    def _want(self, x: Expr, ranks: tuple[int, ...], what: str, span: Span) -> bool:
        if len(x.shape) in ranks and not (
            ranks == (1,) and x.shape[0] == ONE and len(x.shape) == 2
        ):
            return True
        words = {0: "a scalar", 1: "a vector", 2: "a matrix"}
        want = " or ".join(words[rank] for rank in ranks)
        hint = f"{what} of {want}: write the entries that it needs as one"
        if len(x.shape) == 2 and x.shape[0] == ONE:
            hint = "a transposed vector is a row: leave out the .T"
        elif what == "diag":
            hint = (
                "write α * I or α * S for a scalar α"
                if not x.shape
                else "a matrix is used as it is"
            )
        elif what == "outer":
            hint = "write a @ b.T for columns a and b"
        elif len(x.shape) == 2 and 1 in ranks:
            hint = "vec(A) makes a column of a matrix"
        self.fault("LA0303", span, what=what, want=want, got=show(x.shape), hint=hint)
        return False

    def _of_vector(self, name: str, x: Expr, span: Span) -> Expr | None:
        if len(x.shape) == 2 and x.shape[0] == ONE:
            column = self.transpose(x, span)
            result = None if column is None else self._of_vector(name, column, span)
            return None if result is None else self.transpose(result, span)
        if not self._want(x, (1,), name, span):
            return None
        return self.build(name, [x], None, x.shape, span)

    def _diag(self, span: Span, x: Expr) -> Expr | None:
        if not self._want(x, (1,), "diag", span):
            return None
        return self.build("diag", [x], None, (x.shape[0], x.shape[0]), span)

    def _vec(self, span: Span, x: Expr) -> Expr | None:
        if not self._want(x, (1, 2), "vec", span):
            return None
        if len(x.shape) == 1:
            return x
        return self.build("vec", [x], None, (x.shape[0] * x.shape[1],), span)

    def _concat(self, span: Span, *args: Expr) -> Expr | None:
        if not all([self._want(arg, (0, 1), "concat", span) for arg in args]):
            return None
        total = Size.of(0)
        for arg in args:
            total = total + (arg.shape[0] if arg.shape else ONE)
        return self.build("concat", args, None, (total,), span)

    def _outer(self, span: Span, a: Expr, b: Expr) -> Expr | None:
        if not self._want(a, (1,), "outer", span) or not self._want(b, (1,), "outer", span):
            return None
        row = self.transpose(b, span)
        return None if row is None else self.matmul(a, row, span)

    def _roll(self, span: Span, x: Expr, n: Expr) -> Expr | None:
        if not self._want(x, (1,), "roll", span):
            return None
        if n.op != "const" or n.value != int(n.value):  # type: ignore[call-overload]
            self.fault("LA0310", n.span)
            return None
        return self.build("roll", [x], int(n.value), x.shape, span)  # type: ignore[call-overload]

    def _rotate(self, span: Span, x: Expr, angles: Expr) -> Expr | None:
        if not self._want(x, (1,), "rotate", span) or not self._want(angles, (1,), "rotate", span):
            return None
        (have,), (pairs,) = self._values(x.shape), self._values(angles.shape)
        if 2 * pairs > have:
            self.fault("LA0311", span, pairs=show(angles.shape), have=show(x.shape))
            return None
        return self.build("rotate", [x, angles], None, x.shape, span)

    def _solve(self, span: Span, a: Expr, b: Expr) -> Expr | None:
        if not self._want(a, (2,), "solve", span) or not self._want(b, (1, 2), "solve", span):
            return None
        if a.shape[0] != a.shape[1] or a.shape[0] != b.shape[0]:
            self.fault("LA0312", span, left=show(a.shape), right=show(b.shape))
            return None
        return self.build("solve", [a, b], None, b.shape, span)

    def _attend(
        self, node: Node, args: list[Expr], keywords: dict[str, Expr | None]
    ) -> Expr | None:
        q, k, v = args
        if not all([self._want(arg, (1,), "attend", node.span) for arg in args]):
            return None
        if q.shape != k.shape:
            self._differ("attend", q.shape, k.shape, node.span)
            return None
        window, sink = keywords.get("window"), keywords.get("sink")
        length = None
        if window is not None:
            length = self.count(window, window.span)
            if length is None:
                return None
        if sink is not None:
            if not self._want(sink, (0,), "the sink of attend", node.span):
                return None
            args = [*args, sink]
        return self.build("attend", args, length, v.shape, node.span)

    # ---- features ----------------------------------------------------------------------------------

    def _apply(
        self, node: Node, symbol: Symbol, args: list[Typed], local: Locals | None
    ) -> Expr | None:
        symbol.read = True
        feature = symbol.feature
        if feature is None or symbol.broken or symbol.home is None:
            return None
        for child in node.args:
            if child.op == "keyword":
                key = str(child.value)
                hint = "write the value alone: arguments of a feature go by their order"
                self.fault("LA0223", child.span, name=symbol.name, key=key, hint=hint)
                return None
        want = len(feature.params)
        written = f"it is declared as {symbol.name}({', '.join(p.text for p in feature.params)})"
        if not self._counted(node, symbol.name, len(args), want, want, written):
            return None
        values = [self._value(arg, child) for arg, child in zip(args, node.args)]
        if None in values:
            return None
        if self._inlined >= MAX_INLINE:
            self.fault("LA0308", node.span, limit=MAX_INLINE)
            return None
        outer, now = symbol.home, symbol.home.now
        bound = {param.text: value for param, value in zip(feature.params, values)}
        self._inlined += 1
        outer.now = min(now, symbol.index) if outer is self.scope else now
        faults: list[Diagnostic] = []
        report, self.report = self.report, faults.append
        typed = self._type(feature.body, outer, bound)
        self.report = report
        outer.now = now
        self._inlined -= 1
        for fault in faults:
            shown = ", ".join(
                f"{param.text} : {show(value.shape)}"
                for param, value in zip(feature.params, values)
                if value is not None
            )
            note = Note(f"`{symbol.name}` is applied here to {shown}", node.span)
            self.report(_with_note(fault, note) if not self._inlined else fault)
        result = self._value(typed, feature.body)
        if result is not None and local is None:
            self.applied.append((node, result))
        return result


def _with_note(fault: Diagnostic, note: Note) -> Diagnostic:
    return Diagnostic(
        fault.code, fault.severity, fault.message, fault.span, fault.help, (*fault.notes, note)
    )


def _open(shape: Shape) -> bool:
    return any("?" in size.dims for size in shape)


def _flip(shape: Shape) -> Shape:
    if len(shape) == 1:
        return (ONE, shape[0])
    return (shape[1],) if shape[0] == ONE else (shape[1], shape[0])


def _product_hint(left: Shape, right: Shape) -> str:
    if len(left) == len(right) == 1:
        return "write a.T @ b for the inner product, a @ b.T for the outer one"
    if len(right) == 2 and right[1] == (left[1] if len(left) == 2 else ONE):
        return "transpose the right side with .T"
    if len(left) == 2 and left[0] == right[0]:
        return "transpose the left side with .T"
    return "the last size on the left must be the first on the right"


def _no_time(symbol: Symbol) -> str:
    name = symbol.name
    if symbol.kind == "input":
        return f"`{name}` is read ahead of its token; only states run backward"
    if symbol.kind in ("", "gate", "normalizer", "output"):
        return (
            f"`{name}` is not kept from token to token; "
            f"declare a state and write `state_name[t] = {name}` to delay it"
        )
    return f"`{name}` has no time axis"
