"""Typed expressions in, tile values out: everything of a spec that is computed token by token.

Axes of a value are named after its shape: `[K, V]` has axes K and V, `[K, K]` has K and K'. What
holds a state or an attention is handed to
``read``; the rest is lowered here, once per node.
"""

from __future__ import annotations

from collections.abc import Callable

from lacc.ir.build import inside_elu_plus_one
from lacc.ir.ops import OPS
from lacc.ir.tensors import NORMALIZE_EPS
from lacc.spec.model import Expr, Spec
from lacc.spec.shapes import ONE, Shape, Size
from lacc.tile.program import TIME, Axes, Tiles

UNIT = "1"


class Naming:
    """Names of axes for the sizes of one spec."""

    def __init__(self, spec: Spec) -> None:
        self._named = {dim.size: dim.name for dim in reversed(spec.dims.values())}
        self.sizes: dict[str, Size] = {UNIT: ONE}

    def axis(self, size: Size, taken: Axes = ()) -> str:
        """The axis for ``size``; with a prime for each one that is taken, or time's."""
        name = self._named.setdefault(size, f"({size})")
        while name in taken or name in TIME:
            name += "'"
        self.sizes[name] = size
        return name

    def axes(self, shape: Shape) -> Axes:
        """One axis for each size that is not one."""
        named: list[str] = []
        for size in shape:
            if size != ONE:
                named.append(self.axis(size, tuple(named)))
        return tuple(named)

    def tiles(self) -> Tiles:
        """A builder that knows the sizes of all axes, those named later too."""
        tiles = Tiles({})
        tiles.sizes = self.sizes
        return tiles


class Lower:
    """Lowers expressions at the tokens of a chunk (``rows``) or at a single token."""

    def __init__(
        self,
        tiles: Tiles,
        naming: Naming,
        spec: Spec,
        rows: bool,
        read: Callable[[Expr], int | None],
    ) -> None:
        self.f = tiles
        self.naming = naming
        self.spec = spec
        self.time: Axes = ("t",) if rows else ()
        self._read = read
        self._done: dict[int, tuple[Expr, int]] = {}
        self._stateful: dict[int, tuple[Expr, bool]] = {}
        self._names = {id(d.expr): d.ascii for d in spec.definitions}

    def __call__(self, expr: Expr) -> int:
        """The value of ``expr``, over the axes of its shape (and t)."""
        if id(expr) not in self._done:
            for node in expr.walk() if not self._holds_state(expr) else (expr,):
                if id(node) not in self._done:
                    value = self._read(node) if self._holds_state(node) else None
                    if value is None:
                        self.tag(node)
                        value = self._lower(node)
                    if id(node) in self._names:
                        self.f.named(value, self._names[id(node)])
                    self._done[id(node)] = (node, value)
        return self._done[id(expr)][1]

    def _holds_state(self, expr: Expr) -> bool:
        if id(expr) not in self._stateful:
            for node in expr.walk():
                if id(node) not in self._stateful:
                    held = node.op in ("state", "attend") or any(
                        self._stateful[id(a)][1] for a in node.args
                    )
                    self._stateful[id(node)] = (node, held)
        return self._stateful[id(expr)][1]

    def tag(self, node: Expr) -> None:
        """What follows comes from the line of ``node``, where that is in the spec's own file."""
        if node.span.source is not self.spec.file.source:
            return
        self.f.line = node.span.source.text.count("\n", 0, node.span.start) + 1

    def on(self, expr: Expr, axes: Axes) -> int:
        """The value of a vector or matrix ``expr`` with its axes under other names."""
        return self.f.rename(self(expr), dict(zip(self.naming.axes(expr.shape), axes)))

    def _lower(self, node: Expr) -> int:
        f, named = self.f, self.naming.axes(node.shape)
        args = [self(arg) for arg in node.args]
        match node.op:
            case "const":
                return f.expand(f.const(float(node.value)), named)
            case "size":
                return f.size(node.value)
            case "input" | "param" | "buffer":
                return self._argument(node, named)
            case "t":
                return f.load("index", "t", self.time)
            case "T" if not node.args:
                return f.load("index", "T", ())
            case "head" | "H":
                return f.load("index", node.op, ())
            case "eye":
                return f.op("eye", (), named) if named else f.const(1.0)
            case "T":
                inner = self.naming.axes(node.args[0].shape)
                return f.rename(
                    args[0], dict(zip(reversed(inner), named)) if len(named) == 2 else {}
                )
            case "matmul":
                return self._matmul(node, *args)
            case "sum":
                return f.sum(args[0], self.naming.axes(node.args[0].shape))
            case "mean":
                return self._mean(node.args[0], args[0])
            case "rms":
                return f.sqrt(self._mean(node.args[0], f.mul(args[0], args[0])))
            case "reduce_max" | "reduce_min":
                op = "largest" if node.op == "reduce_max" else "smallest"
                return f.op(op, (args[0],), self.naming.axes(node.args[0].shape))
            case "softmax":
                top = f.stop_gradient(f.op("largest", (args[0],), named))
                raised = f.exp(f.sub(args[0], top))
                return f.div(raised, f.sum(raised, named))
            case "normalize":
                square = f.sum(f.mul(args[0], args[0]), named)
                return f.mul(args[0], f.rsqrt(f.add(square, NORMALIZE_EPS)))
            case "diag":
                return f.mul(args[0], f.op("eye", (), named)) if named else args[0]
            case "vec":
                return self._vec(node.args[0], args[0], named)
            case "concat":
                return self._concat(node, args, named[0]) if named else args[0]
            case "roll":
                return f.op("roll", (args[0],), (named[0], node.value)) if named else args[0]
            case "rotate":
                return self._rotate(node, *args)
            case "solve":
                return self._solve(node, *args)
        assert node.op in OPS, node.op
        x = inside_elu_plus_one(node.args) if node.op == "add" else None
        return f.ew(node.op, *args) if x is None else f.elu1(self(x))

    def _argument(self, node: Expr, named: Axes) -> int:
        f = self.f
        name, offset = node.value if node.op == "input" else (node.value, 0)
        arg = self.spec.arg(name)
        if arg.role == "input" or arg.per == "position":
            label = arg.ascii if not offset else f"{arg.ascii}@{offset}"
            value = f.load("input", label, (*self.time, *named))
        else:
            value = f.load(arg.role, arg.ascii, named)
        if arg.default is not None and not offset:
            value = f.op("default", (value, f.expand(self(arg.default), f.axes(value))))
        return value

    def _mean(self, inner: Expr, value: int) -> int:
        count = Size.of(1)
        for size in inner.shape:
            count = count * size
        return self.f.div(self.f.sum(value, self.naming.axes(inner.shape)), self.f.size(count))

    def _matmul(self, node: Expr, a: int, b: int) -> int:
        """Contracts the last axis of ``a`` with the first of ``b``, under names of their own; a
        diagonal matrix multiplies entries."""
        f = self.f
        first, second = node.args
        for diagonal, other, value, axis in ((first, second, b, 0), (second, first, a, -1)):
            if diagonal.op == "diag" and diagonal.shape[0] != ONE:
                label = self.naming.axes(other.shape)[axis]
                return f.mul(self.on(diagonal.args[0], (label,)), value)
        left, right = (_spread(self.naming, arg.shape) for arg in node.args)
        left = [*left, ""] if len(left) == 1 else left
        inner, outer_left, outer_right = left[-1], left[:-1], right[1:]
        a_names = {x: f"{x}<" for x in outer_left if x}
        b_names = {x: f"{x}>" for x in outer_right if x}
        summed = f"{right[0]}*"
        if inner:
            a_names[inner] = b_names[right[0]] = summed
        for names in (a_names, b_names):
            for old, new in names.items():
                f.sizes[new] = self.naming.sizes[old]
        over = (summed,) if inner else ()
        product = f.contract(f.rename(a, a_names), f.rename(b, b_names), over)
        temporary = [a_names[x] for x in outer_left if x] + [b_names[x] for x in outer_right if x]
        return f.rename(product, dict(zip(temporary, self.naming.axes(node.shape))))

    def _solve(self, node: Expr, a: int, b: int) -> int:
        """The solution of a square system, whose two axes get names of their own."""
        f, matrix = self.f, self.naming.axes(node.args[0].shape)
        if not matrix:
            return f.div(b, a)
        own, *_ = self.naming.axes(node.shape)
        row, column = f"{own} row", f"{own} column"
        f.sizes[row] = f.sizes[column] = self.naming.sizes[matrix[0]]
        a = f.rename(f.expand(a, matrix), dict(zip(matrix, (row, column))))
        b = f.rename(f.expand(b, self.naming.axes(node.shape)), {own: row})
        return f.rename(f.op("dense_solve", (a, b), (row, column)), {column: own})

    def _vec(self, inner: Expr, value: int, named: Axes) -> int:
        axes = self.naming.axes(inner.shape)
        if len(axes) < 2:
            return self.f.rename(value, dict(zip(axes, named)))
        value = self.f.expand(value, axes)
        return self.f.op("fold", (value,), (*axes, named[0]))

    def _concat(self, node: Expr, args: list[int], whole: str) -> int:
        f, parts, axes = self.f, [], []
        for n, (arg, value) in enumerate(zip(node.args, args)):
            own = self.naming.axes(arg.shape)
            part = f"{own[0] if own else UNIT}|{n}"
            self.naming.sizes[part] = f.sizes[part] = self.naming.sizes[own[0]] if own else ONE
            value = f.rename(value, {own[0]: part}) if own else value
            parts.append(f.expand(value, (part,)))
            axes.append(part)
        return f.op("concat", tuple(parts), (whole, tuple(axes)))

    def _rotate(self, node: Expr, x: int, angle: int) -> int:
        f = self.f
        (channel,) = self.naming.axes(node.args[0].shape)
        (pair,) = self.naming.axes(node.args[1].shape) or (UNIT,)
        angle = f.expand(angle, (pair,))
        first, second = (channel, pair, Size.of(0), 2), (channel, pair, Size.of(1), 2)
        x = f.expand(
            x, f.axes(angle) if channel == pair else [a for a in f.axes(angle) if a != pair]
        )
        x1, x2 = f.op("take", (x,), first), f.op("take", (x,), second)
        cos, sin = f.cos(angle), f.sin(angle)
        y1 = f.sub(f.mul(x1, cos), f.mul(x2, sin))
        y2 = f.add(f.mul(x1, sin), f.mul(x2, cos))
        turned = f.add(f.op("put", (y1,), first), f.op("put", (y2,), second))
        if node.args[1].shape[0] * Size.of(2) == node.args[0].shape[0]:
            return turned
        kept = f.add(f.op("put", (x1,), first), f.op("put", (x2,), second))
        return f.add(f.sub(x, kept), turned)


def _spread(naming: Naming, shape: Shape) -> list[str]:
    """Axis names with "" for axes of size one."""
    names = iter(naming.axes(shape))
    return ["" if size == ONE else next(names) for size in shape]
