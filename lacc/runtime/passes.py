"""What a spec computes goes in, tables of functions and names come out: the passes over time of one
program, its states and the values that they keep.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lacc.plan.plan import Plan
from lacc.runtime.exponents import Exponents


@dataclass(frozen=True)
class Rows:
    """Values of earlier tokens that the next call needs: the last ``length`` (None: all) of what
    the array ``source`` has for each token are the ``field`` of the state. Those of a ``state``
    come before its own value."""

    source: str
    field: str
    length: int | None
    state: str | None


class Walk(Protocol):
    """One pass over time, all tokens of a `walk.Call` at once. Names of ``inputs``, which have a
    token axis: an argument, "NAME@-2" (delayed), "t" (positions) or a stored value "0.1";
    ``states``: those that it carries on. Passes may also take ``fixed``: params, buffers and
    "head", "H", "T", and ``last``: final states of earlier passes."""

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def states(self) -> tuple[str, ...]: ...

    @property
    def overwrites(self) -> bool:
        """Whether `pull` puts cotangents of all its inputs whole where nothing is written yet."""

    def run(self, call: Any) -> Any:
        """Puts what it computes into the call; what `pull` needs of it."""

    def pull(self, call: Any, kept: Any) -> None:
        """Adds to the cotangents of what it takes, from those of what it gave."""


@dataclass(frozen=True)
class Program:
    """Everything that a spec computes: ``passes`` by chunks, ``token`` one at a time, ``kept`` of
    earlier tokens, outputs and states with their shapes by dims, ``pasts``: the states that make a
    field of delayed values, the oldest first, ``exponents`` of scaled states, ``units``: which axes
    of an array are a literal 1 and in no tile, ``initial`` states that are not 0 with the gradient
    of their params, and ``mixes``: how many times faster products of a call with such arguments
    are by factors rounded to bfloat16, 0 where these are not rounded."""

    passes: tuple[Walk, ...]
    token: Walk | None
    params: tuple[str, ...]
    kept: tuple[Rows, ...]
    outputs: dict[str, Callable[[Mapping[str, int]], tuple[int, ...]]]
    states: dict[str, Callable[[Mapping[str, int]], tuple[int, ...]]]
    pasts: dict[str, tuple[str, ...]]
    exponents: Exponents
    units: dict[str, tuple[int, ...]]
    counts: bool
    initial: Callable[..., Any] | None
    initial_pull: Callable[..., Any] | None
    plan: Plan
    mixes: Callable[[Mapping[str, Any]], float] | None = None
