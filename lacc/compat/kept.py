"""A function of constants in, the same with its results kept out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which runs once for the same arguments. `torch.compile` calls it while it
    traces and goes on with what it gave; into a cache it would look and find what it cannot
    trace."""
    found: Callable[..., Any] = cache(function)

    @wraps(function)
    def look(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = found(*args, **kwargs)
        return result

    look.__dict__["_dynamo_marked_constant"] = True
    return look
