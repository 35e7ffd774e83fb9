"""Arrays or tensors of one token after another in, outputs out, with nothing in between but a look
whether they are like those of the first: what a call of C costs from Python.

This module stands alone (NumPy; torch only where tensors come in): its text is also pasted into the
Python part of emitted C files, behind `native_direct.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from lacc.runtime.contract import Array, Arrays
from lacc.runtime.native_direct import HEAD, PEEKS, Prepared, addresses, peek, span
from lacc.runtime.stepping import Stepper


@dataclass(slots=True)
class Input:
    """What an input of every token is like, and the rows of C that say where it is: each with the
    bytes from there. ``place`` is where that of the last token was."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    low: int  # its first byte, from where it begins, and the one behind its last
    high: int
    rows: list[tuple[Any, int]]
    unaligned: int  # bits that are 0 in an address where its numbers are aligned
    near: tuple[int, int] = (0, 0)  # where it lies between these, it may overlap a state
    place: int = 0
    last: Any = None  # the array itself, where it can be known again by that

    def alike(self, strides: tuple[int, ...]) -> bool:
        """Whether strides differ in axes of one entry only, where they mean nothing; if so, they
        are those that the next token most likely has."""
        pairs = zip(self.shape, self.strides, strides)
        same = all(length == 1 or one == other for length, one, other in pairs)
        if same:
            self.strides = strides
        return same

    def check(self, place: int, states: list[tuple[int, int]]) -> None:
        """Raises ValueError where C cannot read it there, as it writes to ``states``, or its
        numbers are not aligned."""
        first, stop = place + self.low, place + self.high
        if any(first < high and low < stop for low, high in states):
            raise ValueError(f"{self.name}: expected memory that is none of the state's")
        if place & self.unaligned:
            raise ValueError(f"{self.name}: expected numbers that are aligned in memory")

    def refuse(self, kind: str, got: str) -> NoReturn:
        """Raises ValueError for something else."""
        like = f"{kind} of {self.dtype}, shape {[*self.shape]}, strides {[*self.strides]}"
        raise ValueError(f"{self.name}: expected, as for the first token, {like}; got {got}")


class Bound(Stepper):
    """A `Stepper` whose calls of C are made once: a token's inputs are read where they are."""

    def bind(
        self,
        ready: Prepared,
        given: Arrays,
        arrays: list[Array],
        several: Callable[[list[Any]], Any],
    ) -> Bound:
        """The calls are ``ready`` for ``given``, all arguments that are there; ``arrays`` are their
        memory and behind it that of states. ``several`` makes of outputs what the caller gets."""
        self.ready, self.several = ready, several
        self.held = arrays  # as long as C uses them
        self.between = [np.empty(size, np.uint8) for size in ready.between]
        count, end = len(given), 2 * len(arrays) - len(given)
        stop = end + len(ready.made)
        rows: list[list[tuple[Any, int]]] = [[] for _ in range(stop + len(self.between))]
        for row, n, offset, _ in ready.places:
            rows[n].append((row, offset))
        at = addresses(arrays)
        for n, place in enumerate((*at, *at[count:])):
            point(rows[n], place)
        for n, place in enumerate(addresses(self.between), stop):
            point(rows[n], place)
        self.inputs = [
            self.input(name, x, array, rows[n])
            for n, ((name, x), array) in enumerate(zip(given.items(), arrays))
            if name in self.names
        ]
        self.outs = rows[end:stop]
        self.states = [(place, place + x.nbytes) for place, x in zip(at[count:], arrays[count:])]
        least, most = min(low for low, _ in self.states), max(high for _, high in self.states)
        for one in self.inputs:
            one.near = least - one.high, most - one.low
        return self

    def input(self, name: str, x: Any, array: Array, rows: list[tuple[Any, int]]) -> Input:
        """What an input is like."""
        aligned = array.itemsize - 1
        return Input(name, x.shape, x.strides, x.dtype, *span(array), rows, aligned)

    def __call__(self, *inputs: Any) -> Any:
        """The outputs of the next token, in arrays of their own. Raises ValueError for an input
        that is not like the one that this was made with."""
        self.count(inputs)
        self.take(inputs)
        made, ready = self.fresh(), self.ready
        ready.refresh()
        ready.call()
        return made[0] if len(made) == 1 else self.several(made)

    def take(self, inputs: tuple[Any, ...]) -> None:
        """Has C read arrays."""
        for one, x in zip(self.inputs, inputs):
            if x is one.last:  # which cannot be elsewhere as long as it is held here
                continue
            if type(x) is not np.ndarray:
                one.refuse("numpy.ndarray", type(x).__name__)
            same = x.shape == one.shape and x.dtype == one.dtype
            if not (same and (x.strides == one.strides or one.alike(x.strides))):
                got = f"one of {x.dtype}, shape {[*x.shape]}, strides {[*x.strides]}"
                one.refuse("numpy.ndarray", got)
            place = (peek(id(x) + HEAD).value or 0) if PEEKS else x.ctypes.data
            if place != one.place:
                if one.near[0] < place < one.near[1] or place & one.unaligned:
                    one.check(place, self.states)
                for row, offset in one.rows:
                    row.data = place + offset
                one.place = place
            one.last = x

    def fresh(self) -> list[Any]:
        """Arrays that outputs go to."""
        made = [np.empty(shape, dtype) for shape, dtype in self.ready.made]
        for rows, place in zip(self.outs, addresses(made)):
            point(rows, place)
        return made


class BoundTensors(Bound):
    """A `Bound` for tensors of torch. Nothing of it has a gradient: it is a RuntimeError where one
    is asked for, or where a transform or a mode of torch would look at operators."""

    def bind(
        self,
        ready: Prepared,
        given: Arrays,
        arrays: list[Array],
        several: Callable[[list[Any]], Any],
    ) -> Bound:
        torch = sys.modules["torch"]
        self.torch, self.changed = torch, [x for x in self.state if not x.is_inference()]
        self.learns = any(x.requires_grad for n, x in given.items() if n not in self.names)
        self.models = [
            torch.empty(shape, dtype=getattr(torch, dtype.name), device="cpu")
            for shape, dtype in ready.made
        ]
        return super().bind(ready, given, arrays, several)

    def input(self, name: str, x: Any, array: Array, rows: list[tuple[Any, int]]) -> Input:
        aligned = array.itemsize - 1
        return Input(name, x.shape, x.stride(), x.dtype, *span(array), rows, aligned)

    def take(self, inputs: tuple[Any, ...]) -> None:
        """Has C read tensors."""
        torch = self.torch
        plain, strided = torch.Tensor, torch.strided
        grads = torch.is_grad_enabled()
        if grads and self.learns:
            self.refuse_gradients()
        if (
            torch._C._len_torch_dispatch_stack()
            or torch._C._are_functorch_transforms_active()
            or torch.compiler.is_compiling()
        ):
            raise RuntimeError(
                f"{self.name}: no mode or transform of torch sees a stepper; take step"
            )
        for one, x in zip(self.inputs, inputs):
            if type(x) is not plain or not x.is_cpu or x.layout is not strided:
                got = f"{x.layout} on {x.device}" if hasattr(x, "layout") else type(x).__name__
                one.refuse("torch.Tensor on cpu", got)
            if grads and x.requires_grad:
                self.refuse_gradients()
            strides, same = x.stride(), x.shape == one.shape and x.dtype is one.dtype
            if not same or x.is_neg() or not (strides == one.strides or one.alike(strides)):
                neg = ", negated" if x.is_neg() else ""
                got = f"one of {x.dtype}, shape {[*x.shape]}, strides {[*strides]}{neg}"
                one.refuse("torch.Tensor", got)
            place = x.data_ptr()
            if place != one.place:
                if one.near[0] < place < one.near[1] or place & one.unaligned:
                    one.check(place, self.states)
                for row, offset in one.rows:
                    row.data = place + offset
                one.place = place

    def refuse_gradients(self) -> NoReturn:
        """Raises RuntimeError where one is asked for."""
        raise RuntimeError(f"{self.name}: a stepper has no gradients; torch.no_grad(), or step")

    def fresh(self) -> list[Any]:
        """Tensors that outputs go to; autograd is told that states are written to."""
        torch = self.torch
        made = [torch.empty_like(x) for x in self.models]
        for rows, x in zip(self.outs, made):
            place = x.data_ptr()
            for row, offset in rows:
                row.data = place + offset
        torch._C._increment_version(self.changed)
        return made


def point(rows: list[tuple[Any, int]], place: int) -> None:
    """Has C find there what ``rows`` are about."""
    for row, offset in rows:
        row.data = place + offset
