"""What a caller sees of a variant goes in, the axes and dtypes of its arrays come out: the terms
that a call (`calls.py`) keeps to, and the *core* that it runs.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file.

Notation: B batch rows, T tokens, H heads, G groups of heads, N states (B, or one per segment).

A core is five things (`Core`), whose arguments and results are dicts by ASCII name:

    forward(x, state, run)  -> (outputs, final)
    step(x, state, run)     -> (outputs, final): one token, as forward without the time axis
    backward(x, state, run, cotangent, state_cotangent) -> (gradients, initial)
    promises(x, run)        -> [(argument, text, holds), ...]: for each `where` a bool array, as
                               [B, T, H, *axes] (1 where it does not vary) or a single bool
    draws                      {sampler: fn(shape, seed) -> array}, for buffers that are not given

``x`` holds inputs [B, T, H, *axes], params and buffers [H, *axes], all repeated to the H heads, in
the caller's dtypes (cast to ``run.dtype`` block by block); a `per position` table arrives gathered,
as an input does. They may be read-only views of any strides. An omitted optional argument is None.
``state`` holds each field as [B, H, *axes] in ``run.dtype`` (position: int64 [B], the tokens seen
before), None for a state that starts as declared. Outputs are [B, T, H, *axes]; ``final`` has every
field, shaped as in ``state``; both are fresh arrays. Cotangents have the shapes of outputs and of
states, None for zero. ``gradients`` has an entry for each input and param that is not None, shaped
as in ``x``; ``initial`` one for each field of ``state`` that is an array, except position. B and T
may be 0; after no token the final state is the initial one.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]
# A number, a dim, a sum of products as in ((1,), (1, "K"), ("1/2", "K", "K")), None for any length.
Axis = int | str | tuple[tuple[int | str, ...], ...] | None

FLOATS = ("float16", "bfloat16", "float32", "float64")
MODES = ("auto", "chunk", "parallel", "recurrent")


@dataclass(frozen=True)
class Value:
    """An argument, output or field of the state. ``role`` is input, param, buffer, output, state,
    log (``NAME_log``, the exponent of the state NAME), past (delayed values, the most recent last
    along the first of ``axes``) or position; ``level`` is head, group, layer or position."""

    name: str
    role: str
    axes: tuple[Axis, ...] = ()
    level: str = "head"
    optional: bool = False  # has a default, which the core evaluates
    draw: str = ""  # the sampler of a buffer


@dataclass(frozen=True)
class Signature:
    """What a caller sees of a variant. ``modes`` maps each mode to the reason why it is missing, or
    to ""; ``no_step`` and ``no_initial`` (no initial state is accepted) are such reasons too."""

    name: str
    dims: dict[str, int]  # their defaults, which count where no array shows the dim
    pinned: tuple[str, ...]  # dims whose default is the only value
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[Value, ...]
    modes: dict[str, str]
    no_step: str = ""
    no_initial: str = ""
    longest: int | None = None  # the most tokens of a chunk


@dataclass(frozen=True)
class Core:
    """What a call runs: functions of dense arrays by name, [B, T, H, *axes]."""

    forward: Callable[..., tuple[Arrays, Arrays]]
    step: Callable[..., tuple[Arrays, Arrays]]
    backward: Callable[..., tuple[Arrays, Arrays]]
    promises: Callable[..., list[tuple[str, str, Any]]]
    draws: Mapping[str, Callable[[tuple[int, ...], int], Any]]


@dataclass(frozen=True)
class Run:
    """One call of a core: sizes, all dims by name, the dtype to compute in, mode and chunk."""

    B: int
    T: int
    H: int
    dims: dict[str, int]
    dtype: Any
    mode: str = "auto"
    chunk: int | None = None


# Leading axes by role and level; "#" keeps them apart from a spec's own dims.
_TOKEN = {"head": ("#B", "#T", "#H"), "group": ("#B", "#T", "#G"), "layer": ("#B", "#T")}
_TABLE = {"head": ("#H",), "group": ("#G",), "layer": (), "position": (None,)}
_STATE = {"head": ("#N", "#H"), "group": ("#N", "#G"), "layer": ("#N",)}


def axes_of(value: Value, step: bool = False) -> tuple[Axis, ...]:
    """All axes of a value as a caller sees it."""
    if value.role in ("input", "output"):
        return (*(a for a in _TOKEN[value.level] if not (step and a == "#T")), *value.axes)
    table = _TABLE if value.role in ("param", "buffer") else _STATE
    return (*table[value.level], *value.axes)


def size_of(axis: Axis, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, tuple):
        return int(sum(Fraction(c) * prod(sizes[str(n)] for n in names) for c, *names in axis))
    return sizes[axis] if isinstance(axis, str) else axis or 0


def axes_text(*axes: Axis) -> str:
    """``[B, T, 1 + K*K]``, for messages."""

    def one(axis: Axis) -> str:
        if isinstance(axis, tuple):
            return " + ".join("*".join(map(str, m[m[0] == 1 and len(m) > 1 :])) for m in axis)
        return "any" if axis is None else str(axis).lstrip("#")

    return f"[{', '.join(map(one, axes))}]"


def floats_of(name: str, x: Any) -> Array:
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(f"{name}: expected a NumPy array, got {type(x)}")
    if x.dtype.name not in FLOATS:
        raise TypeError(f"{name}: expected dtype {', '.join(FLOATS)}, got {x.dtype}")
    return np.asarray(x)


def cast_to(x: Array, dtype: Any) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(dtype, copy=False)


@cache
def record(name: str, fields: tuple[str, ...]) -> Any:
    """The NamedTuple class of a state or of several outputs."""
    return namedtuple(name, fields)


def grows(field: Value) -> bool:
    """Whether a field holds all tokens so far."""
    return field.role == "past" and field.axes[0] is None


def slack(arrays: Iterable[Array | None]) -> float:
    """What a promised equation may be off by: the root of the coarsest array's rounding."""
    digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
    coarsest = min(digits[x.dtype.name] for x in arrays if x is not None)
    return float(2.0 ** (-coarsest / 2))
