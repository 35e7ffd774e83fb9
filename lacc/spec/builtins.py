"""The functions that a spec may call: a name goes in, how it is called and typed comes out.

A row of `FUNCTIONS` holds the number of arguments, the keywords, the rule by which
`lacc.spec.infer` types a call, and what it means. A new elementwise function is one row here and
one in `lacc.ir.ops`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """How ``name`` is called; ``rule`` is "map" (elementwise), "reduce" (to a scalar), "fold"
    (both: `max`, `min`) or the name of its own rule. ``most`` is None where any number of arguments
    may come."""

    name: str
    rule: str
    least: int
    most: int | None
    doc: str
    keywords: tuple[str, ...] = ()


def _rows() -> list[Function]:
    maps = {
        "exp": "e to the power x",
        "log": "natural logarithm",
        "sqrt": "square root",
        "rsqrt": "1 / sqrt(x)",
        "abs": "absolute value",
        "sign": "-1, 0 or 1",
        "sigmoid": "1 / (1 + exp(-x))",
        "logsigmoid": "log(sigmoid(x))",
        "softplus": "log(1 + exp(x))",
        "tanh": "hyperbolic tangent",
        "relu": "max(x, 0)",
        "silu": "x * sigmoid(x)",
        "gelu": "x times the normal distribution function of x (erf)",
        "elu": "x where x > 0, else exp(x) - 1",
        "sin": "sine",
        "cos": "cosine",
        "stop_gradient": "x, without a derivative",
    }
    return [
        *(Function(name, "map", 1, 1, doc) for name, doc in maps.items()),
        Function("logaddexp", "map", 2, 2, "log(exp(a) + exp(b))"),
        Function("mod", "map", 2, 2, "a - b * floor(a / b)"),
        Function(
            "max", "fold", 1, None, "the larger, elementwise; of one argument the largest entry"
        ),
        Function(
            "min", "fold", 1, None, "the smaller, elementwise; of one argument the least entry"
        ),
        Function("sum", "reduce", 1, 1, "sum of all entries"),
        Function("mean", "reduce", 1, 1, "mean of all entries"),
        Function("rms", "reduce", 1, 1, "sqrt(mean(x * x))"),
        Function("where", "where", 3, 3, "where(cond, a, b): a where cond holds, else b"),
        Function("diag", "diag", 1, 1, "the diagonal matrix of a vector"),
        Function("vec", "vec", 1, 1, "the entries of a matrix as a column, row by row"),
        Function("concat", "concat", 1, None, "scalars and columns below each other, one column"),
        Function("outer", "outer", 2, 2, "a @ b.T"),
        Function("roll", "roll", 2, 2, "roll(x, n): entry i moves to i + n, circularly"),
        Function("rotate", "rotate", 2, 2, "rotate(x, θ): turns the pairs (x1, x2), … by θ1, …"),
        Function("softmax", "vector", 1, 1, "exp(x) / sum(exp(x)) of a vector"),
        Function("normalize", "vector", 1, 1, "x / sqrt(sum(x * x) + 1e-6)"),
        Function("solve", "solve", 2, 2, "solve(A, b): the x with A @ x = b"),
        Function(
            "attend",
            "attend",
            3,
            3,
            "attend(q, k, v, window=W, sink=s): softmax attention over the last W tokens, or all",
            ("window", "sink"),
        ),
    ]


FUNCTIONS = {row.name: row for row in _rows()}
