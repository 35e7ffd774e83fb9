"""THE op table: one row per operation says all that any part of the compiler knows of it.

A row serves everybody: the checker (arity), the oracle and the tile interpreter (NumPy meaning),
the affine analysis (linearity), both reverse modes (gradient rule), range analysis (interval rule),
the cost model (flops). A new op is one row; tests find it by walking the table. What a row needs
more than a line for is in `lacc.ir.scalars` (elementwise), `lacc.ir.tensors` (reduce, shape,
product) and `lacc.ir.intervals`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lacc.ir import intervals as iv
from lacc.ir import scalars, tensors
from lacc.ir.late import np
from lacc.ir.tensors import Site, pull

__all__ = ["OPS", "F", "Op", "Site"]

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    kind      "elementwise" | "compare" | "reduce" | "shape" | "product" | "time"
    arity     (least, most) number of arguments; most is None where unbounded (concat)
    numpy     elementwise, compare: ``fn(*arrays)`` under NumPy broadcasting.
              reduce, shape, product: ``fn(site, *arrays)`` on the trailing axes (any leading axes
              broadcast); the `Site` holds the node's value (roll's n, for instance), the shape of
              the result and the ranks of the arguments.
              None for the kind "time": it has no meaning within one token
    linear    "sum" jointly linear in all arguments (add, concat, transpose) | "each" linear in
              each by itself (mul, matmul) | "first" | "second" | "branches" (where: in its last
              two) | "none"
    grad      ``fn(f, ct, y, *xs) -> tuple`` of cotangents, None for an argument without one;
              written only in rows of this table through ``f`` (``f.mul(a, b)``, ``f.exp(x)``;
              numbers may stand for scalars), so that the same rule runs on arrays (`F`) and builds
              ops in the tile program. ``f.pull(ct, d)`` is ``ct * d``, and 0 where ct is 0 though
              d is not finite: every product with a cotangent is written with it. Results have the
              shape of ``y``; summing over broadcast axes is the caller's.
              reduce, shape, product: ``fn(site, ct, y, *xs)`` on arrays.
              None: has its own rule where it is lowered
    interval  ``fn(*(lo, hi)) -> (lo, hi)``, sound bounds over extended reals; None: unbounded
    flops     per element of the result (an exp counts 8, a division 4: rough, for the cost model)
    """

    name: str
    kind: str
    arity: tuple[int, int | None]
    numpy: Fn | None
    linear: str = "none"
    grad: Fn | None = None
    interval: Fn | None = None
    flops: float = 1.0
    doc: str = ""

    @property
    def entrywise(self) -> bool:
        """Whether each element of the result is made of one of each argument."""
        return self.kind in ("elementwise", "compare")


def _row(
    name: str,
    kind: str,
    arity: int | tuple[int, int | None],
    numpy: Fn | None,
    linear: str,
    grad: Fn | None,
    interval: Fn | None,
    flops: float,
    doc: str,
) -> Op:
    counts = (arity, arity) if isinstance(arity, int) else arity
    silent = _silent(numpy) if numpy else None
    return Op(name, kind, counts, silent, linear, grad and _silent(grad), interval, flops, doc)


def _silent(fn: Fn) -> Fn:
    """Infinities and NaN of IEEE arithmetic without NumPy's warnings."""

    @functools.wraps(fn)
    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(*args)

    return run


def _same(f: Any, ct: Any, *_: Any) -> tuple[Any]:
    return (ct,)


def _flat(f: Any, ct: Any, y: Any, *xs: Any) -> tuple[None, ...]:
    return (None,) * len(xs)


def _identity(x: iv.Bounds) -> iv.Bounds:
    return x


def _fixed(lo: float, hi: float) -> Fn:
    return lambda *xs: (lo, hi)


# fmt: off
_ROWS = (
    # ---- arithmetic
    _row("add", "elementwise", 2, np.add, "sum",
         lambda f, ct, y, a, b: (ct, ct), iv.rising(np.add), 1, "a + b"),
    _row("sub", "elementwise", 2, np.subtract, "sum",
         lambda f, ct, y, a, b: (ct, f.neg(ct)), iv.sub, 1, "a - b"),
    _row("mul", "elementwise", 2, np.multiply, "each",
         lambda f, ct, y, a, b: (f.pull(ct, b), f.pull(ct, a)), iv.mul, 1, "a * b, elementwise"),
    _row("div", "elementwise", 2, np.divide, "first", scalars.grad_div, iv.div, 4, "a / b"),
    _row("pow", "elementwise", 2, np.power, "none",
         scalars.grad_pow, iv.power, 16, "x ** p"),
    _row("neg", "elementwise", 1, np.negative, "sum",
         lambda f, ct, y, x: (f.neg(ct),), iv.neg, 1, "-x"),
    _row("mod", "elementwise", 2, np.mod, "none", scalars.grad_mod, iv.mod, 4,
         "a modulo b, with the sign of b"),
    # ---- functions of one number
    _row("exp", "elementwise", 1, np.exp, "none",
         lambda f, ct, y, x: (f.pull(ct, y),), iv.rising(np.exp), 8, "e to the x"),
    _row("log", "elementwise", 1, np.log, "none",
         lambda f, ct, y, x: (f.pull(ct, f.div(1, x)),), iv.log, 8, "natural logarithm"),
    _row("sqrt", "elementwise", 1, np.sqrt, "none",
         lambda f, ct, y, x: (f.pull(ct, f.div(0.5, y)),), iv.sqrt, 4, "square root"),
    _row("rsqrt", "elementwise", 1, lambda x: 1 / np.sqrt(x), "none",
         lambda f, ct, y, x: (f.pull(ct, f.mul(-0.5, f.mul(y, f.mul(y, y)))),), iv.rsqrt, 5,
         "1 / sqrt(x)"),
    _row("abs", "elementwise", 1, np.abs, "none",
         lambda f, ct, y, x: (f.pull(ct, f.sign(x)),), iv.absolute, 1, "|x|, with slope 0 at 0"),
    _row("sign", "elementwise", 1, np.sign, "none", _flat, iv.rising(np.sign), 1,
         "-1, 0 or 1; no gradient"),
    _row("sigmoid", "elementwise", 1, scalars.sigmoid, "none",
         lambda f, ct, y, x: (f.pull(ct, f.mul(y, f.sigmoid(f.neg(x)))),),
         iv.rising(scalars.sigmoid), 12, "1 / (1 + exp(-x))"),
    _row("logsigmoid", "elementwise", 1, scalars.logsigmoid, "none",
         lambda f, ct, y, x: (f.pull(ct, f.sigmoid(f.neg(x))),),
         iv.rising(scalars.logsigmoid), 16, "log(sigmoid(x))"),
    _row("softplus", "elementwise", 1, scalars.softplus, "none",
         lambda f, ct, y, x: (f.pull(ct, f.sigmoid(x)),),
         iv.rising(scalars.softplus), 16, "log(1 + exp(x))"),
    _row("tanh", "elementwise", 1, np.tanh, "none", scalars.grad_tanh,
         iv.rising(np.tanh), 10, "hyperbolic tangent"),
    _row("relu", "elementwise", 1, lambda x: np.maximum(x, 0), "none",
         lambda f, ct, y, x: (f.where(f.gt(x, 0), ct, 0),),
         iv.rising(lambda x: np.maximum(x, 0)), 1, "max(x, 0), with slope 0 at 0"),
    _row("silu", "elementwise", 1, lambda x: x * scalars.sigmoid(x), "none", scalars.grad_silu,
         iv.dip(lambda x: x * scalars.sigmoid(x), -1.2784645427610738, -0.27846454276107385), 13,
         "x * sigmoid(x)"),
    _row("gelu", "elementwise", 1, scalars.gelu, "none", scalars.grad_gelu,
         iv.dip(scalars.gelu, -0.7517915246935645, -0.16997120747990473), 20,
         "x Φ(x), by the error function"),
    _row("erf", "elementwise", 1, scalars.erf, "none", scalars.grad_erf,
         iv.rising(scalars.erf), 16, "error function"),
    _row("elu", "elementwise", 1, scalars.elu, "none", scalars.grad_elu,
         iv.rising(scalars.elu), 9, "x above 0, exp(x) - 1 below"),
    _row("elu1", "elementwise", 1, scalars.elu1, "none", scalars.grad_elu,
         iv.rising(scalars.elu1), 9, "elu(x) + 1, exact below 0 too"),
    _row("sin", "elementwise", 1, np.sin, "none",
         lambda f, ct, y, x: (f.pull(ct, f.cos(x)),), _fixed(-1, 1), 10, "sine"),
    _row("cos", "elementwise", 1, np.cos, "none",
         lambda f, ct, y, x: (f.neg(f.pull(ct, f.sin(x))),), _fixed(-1, 1), 10, "cosine"),
    _row("stop_gradient", "elementwise", 1, np.array, "none", _flat, _identity, 0,
         "x, a constant to the gradient"),
    # ---- functions of two
    _row("max", "elementwise", 2, np.maximum, "none", scalars.grad_max,
         iv.rising(np.maximum), 1, "the larger; ties share the gradient"),
    _row("min", "elementwise", 2, np.minimum, "none", scalars.grad_min,
         iv.rising(np.minimum), 1, "the smaller; ties share the gradient"),
    _row("logaddexp", "elementwise", 2, np.logaddexp, "none", scalars.grad_logaddexp,
         iv.rising(np.logaddexp), 18, "log(exp(a) + exp(b)); of two -inf -inf, with no gradient"),
    # ---- choice
    _row("where", "elementwise", 3, np.where, "branches",
         lambda f, ct, y, c, a, b: (None, f.where(c, ct, 0), f.where(c, 0, ct)),
         lambda c, a, b: iv.span(a, b), 1, "a where the condition holds, b elsewhere"),
    _row("lt", "compare", 2, np.less, "none", _flat, _fixed(0, 1), 1, "a < b"),
    _row("le", "compare", 2, np.less_equal, "none", _flat, _fixed(0, 1), 1, "a <= b"),
    _row("gt", "compare", 2, np.greater, "none", _flat, _fixed(0, 1), 1, "a > b"),
    _row("ge", "compare", 2, np.greater_equal, "none", _flat, _fixed(0, 1), 1, "a >= b"),
    _row("eq", "compare", 2, np.equal, "none", _flat, _fixed(0, 1), 1, "a == b"),
    # ---- reductions of a whole value to a scalar
    _row("sum", "reduce", 1, tensors.total, "sum", tensors.grad_total, iv.total, 1,
         "sum of all elements"),
    _row("mean", "reduce", 1, tensors.mean, "sum", tensors.grad_mean, _identity, 1,
         "mean of all elements"),
    _row("reduce_max", "reduce", 1, tensors.reduce_max, "none", tensors.grad_extreme, _identity, 1,
         "largest element; ties share the gradient"),
    _row("reduce_min", "reduce", 1, tensors.reduce_min, "none", tensors.grad_extreme, _identity, 1,
         "smallest element; ties share the gradient"),
    _row("rms", "reduce", 1, tensors.rms, "none", tensors.grad_rms, iv.absolute, 2,
         "sqrt(mean(x²))"),
    # ---- shapes
    _row("T", "shape", 1, tensors.transpose, "sum", tensors.grad_transpose, _identity, 0,
         "transpose; a vector's is a row"),
    _row("diag", "shape", 1, tensors.diag, "sum", tensors.grad_diag,
         lambda x: iv.span(x, (0.0, 0.0)), 0, "diagonal matrix of a vector"),
    _row("vec", "shape", 1, tensors.vec, "sum", tensors.grad_vec, _identity, 0,
         "all elements as one vector, row-major"),
    _row("concat", "shape", (1, None), tensors.concat, "sum", tensors.grad_concat, iv.span, 0,
         "scalars and columns one after another"),
    _row("roll", "shape", 1, tensors.roll, "sum", tensors.grad_roll, _identity, 0,
         "circular shift by n to higher indices"),
    _row("rotate", "shape", 2, tensors.rotate, "first", tensors.grad_rotate, iv.rotated, 3,
         "turns (x1, x2), (x3, x4), … by θ1, θ2, …"),
    _row("softmax", "shape", 1, tensors.softmax, "none", tensors.grad_softmax, _fixed(0, 1), 12,
         "softmax of a vector"),
    _row("normalize", "shape", 1, tensors.normalize, "none", tensors.grad_normalize,
         iv.normalized, 4, "x / sqrt(sum(x²) + 1e-6)"),
    # ---- products
    _row("matmul", "product", 2, tensors.matmul, "each", tensors.grad_matmul, iv.product, 2,
         "matrix product"),
    _row("solve", "product", 2, tensors.solve, "second", tensors.grad_solve, None, 2,
         "the x of A x = b"),
    # ---- over time
    _row("attend", "time", (3, 4), None, "none", None, None, 0,
         "softmax attention over the tokens so far"),
)
# fmt: on

OPS: dict[str, Op] = {op.name: op for op in _ROWS}

F: Any = SimpleNamespace(
    pull=pull,
    **{op.name: op.numpy for op in _ROWS if op.entrywise},
)
"""The namespace of rules on NumPy arrays: every elementwise op and comparison, and ``pull``."""
