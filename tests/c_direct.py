"""Calls like earlier ones of emitted C files, for tests: how many are known, and what the long way
gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TIMES = 4
"""The third call is the first that is known."""


def known(module: Any) -> int:
    """How many calls are known."""
    return sum(type(x) is module.Prepared for x in module.HOST.direct.mine.seen.values())


def slowly(module: Any, function: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """What a call gives that goes the long way."""
    direct = module.HOST.direct
    direct.possible = False
    try:
        return function(*given, **more)
    finally:
        direct.possible = True
