"""A function and new meanings of global names in, the function that reads them by these names out.

Methods of models call functions of their own module by global names. A rebuilt method has the code
of the old one and other globals, so that one object changes and its class does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any


def names_read(code: CodeType) -> set[str]:
    """Names of globals (and attributes) in ``code`` and in the functions that it makes."""
    inner = (names_read(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def reads(function: Any) -> set[str]:
    """The global names that ``function`` and the functions it closes over (a decorator closes over
    what it decorates) read; none of what is no function."""
    if not isinstance(function, FunctionType):
        return set()
    own = names_read(function.__code__) & function.__globals__.keys()
    return own.union(*(reads(value) for value in closed_over(function)))


def closed_over(function: FunctionType) -> list[Any]:
    """What stands in the cells of ``function``, apart from itself."""
    cells = function.__closure__ or ()
    return [x for x in (contents(cell) for cell in cells) if x is not function]


def contents(cell: CellType) -> Any:
    """What stands in a cell; None where nothing does yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def meaning(function: Any, name: str) -> Any:
    """What the global ``name`` is to ``function``, or to one it closes over; None if neither reads
    it."""
    if name not in reads(function):
        return None
    if name in names_read(function.__code__) & function.__globals__.keys():
        return function.__globals__[name]
    return next(meaning(x, name) for x in closed_over(function) if name in reads(x))


def rebuilt(function: FunctionType, new: Mapping[str, Callable[..., Any]]) -> FunctionType:
    """``function`` with the globals of ``new`` that it, or a function it closes over, reads."""
    cells = tuple(
        CellType(rebuilt(value, new))
        if isinstance(value := contents(cell), FunctionType)
        and value is not function
        and reads(value) & new.keys()
        else cell
        for cell in function.__closure__ or ()
    )
    own = names_read(function.__code__) & function.__globals__.keys() & new.keys()
    scope = function.__globals__ | {name: new[name] for name in own}
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__doc__, made.__qualname__ = function.__doc__, function.__qualname__
    return made
