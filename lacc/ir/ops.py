"""THE op table: one row per operation says all that any part of the compiler knows of it.

A row serves everybody: the checker (arity, type rule), the oracle and the tile interpreter (NumPy meaning), the affine
analysis (linearity), both reverse modes (gradient rule), range analysis (interval rule), the cost model (flops).
A new op is one row; tests find it by walking the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    kind      "elementwise" | "compare" | "reduce" | "shape" | "product" | "time"
    arity     (least, most) number of arguments; most is None where unbounded (concat)
    numpy     elementwise, compare: ``fn(*arrays)`` under NumPy broadcasting.
              reduce, shape, product: ``fn(value, *arrays)`` on the trailing axes (any leading axes broadcast); ``value`` is
              the node's `Expr.value` (roll's n, for instance)
    linear    "sum" jointly linear in all arguments (add, concat, transpose) | "each" linear in each by itself (mul, matmul) |
              "first" | "second" | "branches" (where: in its last two) | "none"
    grad      ``fn(f, ct, y, *xs) -> tuple`` of cotangents, None for an argument without one; written only in rows of this
              table through ``f`` (``f.mul(a, b)``, ``f.exp(x)``; numbers may stand for scalars), so that the same rule runs
              on arrays in the oracle and builds ops in the tile program. ``f.pull(ct, d)`` is ``ct * d``, and 0 where ct is 0
              though d is not finite: every product with a cotangent is written with it. Results have the shape of ``y``;
              summing over broadcast axes is the caller's. None: has its own rule where it is lowered
    interval  ``fn(*(lo, hi)) -> (lo, hi)``, sound bounds over extended reals; None: unbounded
    flops     per element of the result (an exp counts 8, a division 4: rough, for the cost model)
    """

    name: str
    kind: str
    arity: tuple[int, int | None]
    numpy: Fn
    linear: str = "none"
    grad: Fn | None = None
    interval: Fn | None = None
    flops: float = 1.0
    doc: str = ""
