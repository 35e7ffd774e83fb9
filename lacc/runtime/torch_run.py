"""What a spec computes and the sizes of a call in, tables out: the passes over time of an emitted
file, its states, what it keeps of earlier tokens, and one run of them.

This module stands alone (torch only): its text is pasted into emitted files of torch.
Notation: B batch rows, T tokens, H heads, G groups of heads, N sequences (B, or one a segment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lacc.runtime.passes import Rows

# Tokens between two states that the backward of a token program keeps.
KEPT = 64

# How many shapes are remembered.
MOST = 256

# Dtypes of arguments whose states have another.
SHORT = (torch.float16, torch.bfloat16)

Tensors = dict[str, Any]
Shape = Callable[[Mapping[str, int]], tuple[int, ...]]


def on_device(device: Any) -> bool:
    """Whether compiled kernels run where a tensor of ``device`` lies."""
    return bool(device.type == "cuda")


@dataclass
class Support:
    """What the kernels of a file take: ``floats``, the dtypes of states with their names in
    kernels, those that are 8 bytes long only where kernels run ``everywhere``, which is also on the
    CPU; ``instead``: what a CPU can run where they do not."""

    floats: Mapping[Any, Any]
    instead: str
    everywhere: bool = False

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """The dtypes that arguments may have."""
        return (*SHORT, *(x for x in self.floats if self.everywhere or x.itemsize < 8))


@dataclass(frozen=True)
class Run:
    """One call of the passes. Tokens are [B, T], those of sequence n are row n, or with ``cu``
    (then B = 1) the tokens cu[n] .. cu[n + 1] - 1 of the only row; tokens from cu[N] on belong to
    no sequence: their inputs are never used and what is stored for them is never read.

    ``C`` tokens make a chunk, at most: a power of two, from 16 on unless the spec takes fewer.
    A token program has C = `KEPT`. ``chunks`` counts those of all sequences: B * cdiv(T, C) of them
    in order where ``cu`` is None. Else ``table`` [chunks, 2] int32 says the sequence of each and
    its number in the sequence, ``firsts`` [N + 1] int32 the first chunk of each sequence; there are
    as many as there may be at most, and those from firsts[N] on lie behind the last sequence's end,
    so that none of their tokens is live.

    With ``dry`` nothing is launched: passes only allocate what they give.
    ``rows`` [N] int64 and ``into``, by state: a token program of one token reads state n in row
    rows[n] of the states (None: in row n) and writes it into that row of the tensors of ``into``
    (None: into new ones), in their dtype. States and ``into`` may be the same tensors.
    """

    B: int
    T: int
    H: int
    G: int
    N: int
    dims: Mapping[str, int]
    dtype: Any  # of states and accumulators
    out_dtype: Any
    device: Any
    FLOAT: Any  # dtype, as kernels name it
    PRECISION: str
    C: int
    chunks: int
    sms: int
    cu: Any = None  # int64 [N + 1]
    table: Any = None
    firsts: Any = None
    position: Any = None  # int64 [N], the tokens seen before; None: none
    rows: Any = None
    into: Any = None
    dry: bool = False

    def placed(self, rows: Any, into: Any) -> Run:
        """The same with ``rows`` and ``into``, in less time than `dataclasses.replace`."""
        run = Run.__new__(Run)
        run.__dict__.update(self.__dict__, rows=rows, into=into)
        return run


@dataclass(frozen=True)
class Pass:
    """One pass over time, backward in time with ``reverse``. Names of ``inputs``: an argument,
    "NAME@-2" (delayed), a stored value "0.1"; ``fixed``: params and buffers; ``last``: final states
    of earlier passes; ``outputs``: outputs and stored values.

    ``forward(x, states, last, run, keep) -> (values, finals, kept)`` and
    ``backward(x, last, kept, run, dvalues, dfinals) -> (dx, dfixed, dlast, dstates)``: dicts by
    name, ``kept`` a tuple of new tensors, () without ``keep``. An argument is as it was given: [B,
    T, H, *axes], [B, T, G, *axes] or [B, T, *axes] by its level, a param without B and T; None
    where it is omitted. Values are [B, T, H, *axes], outputs in run.out_dtype, states [N, H,
    *axes], None for 0. dvalues and dfinals may be None, for 0; dx is per head, [B, T, H, *axes],
    dfixed the partial sums [parts, H, *axes] of each head.
    """

    reverse: bool
    inputs: tuple[str, ...]
    fixed: tuple[str, ...]
    last: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class Attention:
    """A pass that gives as ``output`` what the ``query`` of each token attends to among the last
    ``window`` tokens (None: all so far); ``sink`` names one more logit. Names are those of values
    over tokens, as in `Pass`. ``forward`` and ``backward`` are those of the kernels."""

    query: str
    keys: Rows
    values: Rows
    sink: str | None
    output: str
    window: int | None
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """Everything that a spec computes: ``passes`` by chunks, ``token`` one at a time, ``kept`` of
    earlier tokens, ``outputs`` by name, ``states`` with their shapes by dims, ``pasts``: the states
    that make a field of delayed values, the oldest first, ``exponents`` of scaled states as in
    `exponents`, ``units``: which axes, counted from the last, of an array are a literal 1
    (``initial`` and ``promised`` do not have these), whether it ``counts`` tokens.

    ``initial(fixed, dims, dtype)`` gives states that do not start at 0, ``initial_pull`` the
    gradient of their params; ``promised(x, fixed, C, dims, dtype)`` says where promises hold,
    ``said`` which: (name, argument, text). ``draws`` are the samplers of buffers.

    ``support`` says what kernels take. ``chunk(arguments, T)`` is the plan's choice of tokens of a
    chunk, ``alone(arguments, T)`` whether mode auto takes the program of a token, ``limit`` what
    mode parallel takes at most.
    """

    passes: tuple[Pass | Attention, ...]
    token: Pass | None
    kept: tuple[Rows, ...]
    outputs: tuple[str, ...]
    states: Mapping[str, Shape]
    pasts: Mapping[str, tuple[str, ...]]
    exponents: Mapping[str, tuple[str, tuple[int, ...]]]
    units: Mapping[str, tuple[int, ...]]
    counts: bool
    initial: Callable[..., Any] | None
    initial_pull: Callable[..., Any] | None
    promised: Callable[..., Any] | None
    said: tuple[tuple[str, str, str], ...]
    draws: Mapping[str, Callable[[tuple[int, ...], int], Any]]
    support: Support
    chunk: Callable[[Any, int], int]
    alone: Callable[[Any, int], bool]
    limit: int
