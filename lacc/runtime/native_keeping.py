"""A call of the core in, its results and what its gradient needs of it out; later that and
cotangents in, gradients out, with no state computed twice.

This module stands alone (NumPy only): its text is also pasted into the Python part of emitted C
files, behind `native.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from lacc.runtime.contract import Array, Arrays, Core
from lacc.runtime.core import apart, restored, together, without
from lacc.runtime.exponents import field_gradients, scaled_states, state_cotangents, state_fields
from lacc.runtime.native import Along
from lacc.runtime.passes import Program


@dataclass(frozen=True)
class Kept:
    """What a call leaves for its gradient: by pass the states that chunks start from, or what is
    known of logits; values for later passes; states behind the last token."""

    passes: list[list[Array]]
    stored: Arrays
    state: Arrays

    def arrays(self) -> list[Array]:
        """All of it in order."""
        return [*chain(*self.passes), *self.stored.values(), *self.state.values()]

    def filled(self, arrays: Iterator[Any]) -> Kept:
        """The same with other arrays, in order."""
        passes = [[next(arrays) for _ in part] for part in self.passes]
        stored = {name: next(arrays) for name in self.stored}
        return Kept(passes, stored, {name: next(arrays) for name in self.state})


class Keeping:
    """The functions of a core for a call and its gradient; ``calls`` are those of its segments."""

    def __init__(self, program: Program, calls: Iterable[Kept] = ()) -> None:
        self.program, self.calls = program, [*calls]

    def core(self, core: Core) -> Core:
        """``core`` with these functions."""
        self.left = iter(self.calls)
        return replace(core, forward=self.forward, backward=self.backward)

    def begun(self, x: Arrays, state: Arrays, run: Any) -> Along:
        """A call before its first pass."""
        program = self.program
        start = apart(program, scaled_states(np, program.exponents, state))
        return Along(program, without(x, program.units), start, run, back=True)

    def forward(self, x: Arrays, state: Arrays, run: Any) -> tuple[Arrays, Arrays]:
        """As `core.run_forward`, in chunks as the way back takes them."""
        program = self.program
        with np.errstate(all="ignore"):
            call = self.begun(x, state, run)
            given = {*call.x}
            outputs, final, passes = call.forward(keep=True)
            stored = {name: y for name, y in call.x.items() if name not in given}
            new = {name: y for name, y in call.state.items() if y is not call.start.get(name)}
            self.calls.append(Kept(passes, stored, new))
            fields = state_fields(np, program.exponents, together(program, final))
        outputs = {name: outputs[name] for name in program.outputs}
        return restored(outputs, program.units), fields

    def backward(
        self, x: Arrays, state: Arrays, run: Any, cotangents: Arrays, ends: Arrays
    ) -> tuple[Arrays, Arrays]:
        """As `core.run_backward`, from what the next of the calls left."""
        program, kept = self.program, next(self.left)
        with np.errstate(all="ignore"):
            call = self.begun(x, state, run)
            call.x |= kept.stored
            call.state |= kept.state
            left = restored(call.final(), program.units)
            left = state_cotangents(np, program.exponents, left, ends)
            left = apart(program, left, cotangents=True)
            pulled = without(cotangents, program.units)
            gradients, initial = call.backward(kept.passes, pulled, left)
            initial = together(program, initial, cotangents=True)
            fields = field_gradients(np, program.exponents, state, initial)
        return restored(gradients, program.units), fields
