"""A kernel in, what a layer needs to know of its variant out: values with their promises.

The rules are general, one for each kind of promise and of use; nothing is known by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lacc.ir.graph import expressions
from lacc.runtime.kernel import Kernel
from lacc.runtime.promises import evaluate
from lacc.spec.model import Arg, Expr, Spec

FLIPPED = str.maketrans("<>", "><")


def described(kernel: Kernel) -> list[dict[str, Any]]:
    """The fields of each argument and output that differ from those of a bare `Value`."""
    spec, found = kernel.spec, []
    for value in (*kernel.signature.arguments, *kernel.signature.outputs):
        fields: dict[str, Any] = {"name": value.name, "role": value.role}
        if value.axes:
            fields["axes"] = value.axes
        if value.level != "head":
            fields["level"] = value.level
        if value.role != "output":
            arg = next(a for a in spec.args if a.ascii == value.name)
            fields |= kept(spec, arg)
            if value.role == "param":
                fields |= {"start": begun} if (begun := start(spec, arg)) else {}
            number = arg.default is not None and arg.default.op == "const"
            if value.draw or (value.optional and not (number and value.role == "param")):
                fields["omitted"] = True
        found.append(fields)
    return found


def kept(spec: Spec, arg: Arg) -> dict[str, Any]:
    """What is promised of an argument: an interval, its sum of squares, its sum; what else is
    promised of it is ``unruled``."""
    found: dict[str, Any] = {"low": -math.inf, "high": math.inf}
    for promise in arg.promises:
        left, right, cmp = promise.left, promise.right, promise.cmp
        if _number(spec, left) is not None:
            left, right, cmp = right, left, cmp.translate(FLIPPED)
        edge = _number(spec, right)
        if edge is None or (what := _what(left, arg)) is None:
            found["unruled"] = promise.span.words
        elif what == "itself" and cmp != "==":
            if cmp[0] == "<":
                found["high"] = min(found["high"], edge)
            else:
                found["low"] = max(found["low"], edge)
        elif (what, cmp[0]) == ("square", "<") and edge > 0:
            found["square"] = edge
        elif (what, cmp) == ("total", "=="):
            found["total"] = edge
        elif (what, cmp[0]) != ("square", ">"):
            found["unruled"] = promise.span.words
    if "total" in found and found["low"] in (0, -math.inf):  # a softmax is positive
        found["low"] = -math.inf
    return {name: x for name, x in found.items() if x not in (math.inf, -math.inf)}


def _number(spec: Spec, expr: Expr) -> float | None:
    """What an expression of numbers, dims and consts is."""
    if any(node.op in ("input", "param", "buffer", "t", "head", "T", "H") for node in expr.walk()):
        return None
    dims = {name: dim.default for name, dim in spec.dims.items()}
    return float(evaluate(expr, {}, (1, 1, 1), dims).reshape(-1)[0])


def _what(expr: Expr, arg: Arg) -> str | None:
    """How an argument stands in one side of a promise."""
    if _is(expr, arg):
        return "itself"
    if expr.op != "sum":
        return None
    (inner,) = expr.args
    if _is(inner, arg):
        return "total"
    squared = inner.op == "mul" and all(_is(part, arg) for part in inner.args)
    return "square" if squared else None


def _is(expr: Expr, arg: Arg) -> bool:
    if expr.op == "input":
        return bool(expr.value == (arg.name, 0))
    return expr.op in ("param", "buffer") and bool(expr.value == arg.name)


def start(spec: Spec, arg: Arg) -> float | str:
    """Where a param starts: at its default if that is a number, within its bounds, drawn where it
    is a matrix, as angles where it multiplies the position; else what only multiplies is 1, what is
    added is 0."""
    if arg.default is not None and arg.default.op == "const":
        return float(arg.default.value)
    if {"low", "high"} & kept(spec, arg).keys():
        return "inside"
    if len(arg.shape) > 1 or arg.per == "position":
        return "drawn"
    users = [*_users(spec, arg)]
    if arg.shape and any(child.op == "t" for user in users for child in user.args):
        return "angles"
    return float(bool(users) and {user.op for user in users} <= {"mul", "matmul", "diag", "T"})


def _users(spec: Spec, arg: Arg) -> Iterator[Expr]:
    for root in expressions(spec):
        for node in root.walk():
            if any(_is(child, arg) for child in node.args):
                yield node
