"""A function of the language and its typed arguments go in, the typed call or a fault comes out.

`RULES` has one entry for each rule that a row of `lacc.spec.builtins.FUNCTIONS` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lacc.diagnostics import Span
from lacc.spec.algebra import Algebra, is_open
from lacc.spec.builtins import Function
from lacc.spec.model import Expr
from lacc.spec.shapes import ONE, Shape, Size, show

RANKS = {0: "a scalar", 1: "a vector", 2: "a matrix"}


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose arguments have types; ``keywords`` are those that were given."""

    function: Function
    args: tuple[Expr, ...]
    keywords: Mapping[str, Expr]
    span: Span


def typed_call(algebra: Algebra, call: Call) -> Expr | None:
    """The typed expression of a call, by its function's rule."""
    rule = call.function.rule
    if rule == "map" or (rule == "fold" and len(call.args) > 1):
        return _elementwise(algebra, call)
    if any(is_open(arg.shape) for arg in call.args):
        algebra.fault("LA0305", call.span)
        return None
    return RULES[rule](algebra, call)


def _elementwise(algebra: Algebra, call: Call) -> Expr | None:
    """`max(a, b, c)` is `max(max(a, b), c)`."""
    name = call.function.name
    if call.function.rule == "map":
        return algebra.elementwise(name, call.args, call.span)
    result: Expr | None = call.args[0]
    for other in call.args[1:]:
        if result is not None:
            result = algebra.elementwise(name, [result, other], call.span)
    return result


def _reduce(algebra: Algebra, call: Call) -> Expr | None:
    return algebra.build(call.function.name, call.args, None, (), call.span)


def _extreme(algebra: Algebra, call: Call) -> Expr | None:
    return algebra.build(f"reduce_{call.function.name}", call.args, None, (), call.span)


def _vector(algebra: Algebra, call: Call) -> Expr | None:
    """A function of a vector that keeps its shape; of a row it gives a row."""
    (x,) = call.args
    name, row = call.function.name, len(x.shape) == 2 and x.shape[0] == ONE
    column = algebra.transpose(x, call.span) if row else x
    if column is None or not _is(algebra, call, column, 1):
        return None
    result = algebra.build(name, [column], None, column.shape, call.span)
    return algebra.transpose(result, call.span) if row and result is not None else result


def _diag(algebra: Algebra, call: Call) -> Expr | None:
    (x,) = call.args
    if not _is(algebra, call, x, 1):
        return None
    return algebra.build("diag", [x], None, (x.shape[0], x.shape[0]), call.span)


def _vec(algebra: Algebra, call: Call) -> Expr | None:
    (x,) = call.args
    if not _is(algebra, call, x, 1, 2):
        return None
    shape = (x.shape[0] * x.shape[1],) if len(x.shape) == 2 else ()
    return algebra.build("vec", [x], None, shape, call.span) if shape else x


def _concat(algebra: Algebra, call: Call) -> Expr | None:
    if not _are(algebra, call, 0, 1):
        return None
    total = Size.of(0)
    for arg in call.args:
        total = total + (arg.shape[0] if arg.shape else ONE)
    return algebra.build("concat", call.args, None, (total,), call.span)


def _outer(algebra: Algebra, call: Call) -> Expr | None:
    a, b = call.args
    if not _are(algebra, call, 1):
        return None
    row = algebra.transpose(b, call.span)
    return None if row is None else algebra.matmul(a, row, call.span)


def _roll(algebra: Algebra, call: Call) -> Expr | None:
    x, n = call.args
    if not _is(algebra, call, x, 1):
        return None
    if not isinstance(n.value, int | float) or not float(n.value).is_integer():
        algebra.fault("LA0310", n.span)
        return None
    return algebra.build("roll", [x], int(n.value), x.shape, call.span)


def _rotate(algebra: Algebra, call: Call) -> Expr | None:
    x, angles = call.args
    if not _are(algebra, call, 1):
        return None
    (channels,), (pairs,) = algebra.values(x.shape), algebra.values(angles.shape)
    if 2 * pairs > channels:
        algebra.fault("LA0311", call.span, pairs=show(angles.shape), have=show(x.shape))
        return None
    return algebra.build("rotate", call.args, None, x.shape, call.span)


def _solve(algebra: Algebra, call: Call) -> Expr | None:
    a, b = call.args
    if len(a.shape) == 2 and a.shape[0] == a.shape[1] and a.shape[:1] == b.shape[:1]:
        return algebra.build("solve", call.args, None, b.shape, call.span)
    algebra.fault("LA0312", call.span, left=show(a.shape), right=show(b.shape))
    return None


def _attend(algebra: Algebra, call: Call) -> Expr | None:
    q, k, v = args = call.args
    if not _are(algebra, call, 1):
        return None
    if q.shape != k.shape:
        algebra.differ("attend", q.shape, k.shape, call.span)
        return None
    window, sink = call.keywords.get("window"), call.keywords.get("sink")
    length = None if window is None else algebra.count(window, window.span)
    if window is not None and length is None:
        return None
    if sink is not None:
        if not _is(algebra, call, sink, 0):
            return None
        args = (*args, sink)
    return algebra.build("attend", args, length, v.shape, call.span)


def _is(algebra: Algebra, call: Call, x: Expr, *ranks: int) -> bool:
    """Whether an argument has one of the ranks; a fault where not. A row is no vector."""
    name = call.function.name
    row = len(x.shape) == 2 and x.shape[0] == ONE
    if len(x.shape) in ranks and not (row and ranks == (1,)):
        return True
    want = " or ".join(RANKS[rank] for rank in ranks)
    hint = _rank_hint(name, x.shape, row)
    algebra.fault("LA0303", call.span, what=f"`{name}`", want=want, got=_shown(x.shape), hint=hint)
    return False


def _shown(shape: Shape) -> str:
    return show(shape) if shape else "a scalar"


def _are(algebra: Algebra, call: Call, *ranks: int) -> bool:
    """The same of all arguments, each fault reported."""
    return min(*(_is(algebra, call, arg, *ranks) for arg in call.args), True)


def _rank_hint(name: str, shape: Shape, row: bool) -> str:
    if row:
        return "the transpose of a vector is a row: leave out the .T"
    if name == "diag":
        return "a scalar α scales as α * S" if not shape else "a matrix stands as it is"
    if len(shape) == 2:
        return "vec(A) makes a column of a matrix"
    return (
        "concat(x, y) makes a vector of scalars" if not shape else "x[t] is one value of a vector"
    )


Rule = Callable[[Algebra, Call], Expr | None]

RULES: dict[str, Rule] = {
    "reduce": _reduce,
    "fold": _extreme,
    "vector": _vector,
    "diag": _diag,
    "vec": _vec,
    "concat": _concat,
    "outer": _outer,
    "roll": _roll,
    "rotate": _rotate,
    "solve": _solve,
    "attend": _attend,
}
