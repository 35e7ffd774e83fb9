"""A caller's arrays or torch tensors in, the same out: the public functions of an emitted C file.

This module stands alone (NumPy; torch only where tensors come in): its text is also pasted into the
Python part of emitted C files, behind `calls.py`. Tensors are on the CPU; they and arrays share
their memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from lacc.runtime.calls import forward, step, vjp
from lacc.runtime.contract import Arrays, Core, Signature, record
from lacc.runtime.native_direct import Direct, Prepared, array_key, tensor_key
from lacc.runtime.native_direct_back import (
    prepared_back,
    prepared_begin,
    prepared_end,
    prepared_kept,
)
from lacc.runtime.native_operators import (
    Operators,
    array_of,
    dtype_of,
    each,
    is_tensor,
    looked_at,
    tensor_of,
    watched,
)
from lacc.runtime.native_stepping import Bound, BoundTensors
from lacc.runtime.native_transforms import refuse_tangents
from lacc.runtime.passes import Program
from lacc.runtime.stepping import Stepper


class Host:
    """The functions of one spec for arrays, as `calls.py` has them, and for tensors."""

    def __init__(self, signature: Signature, core: Core, program: Program, digest: str) -> None:
        self.signature, self.core = signature, core
        self.parts = (signature, core, program, digest)
        self.direct = Direct(signature, core, program)
        self.arguments = tuple(a.name for a in signature.arguments)
        self.outputs = tuple(o.name for o in signature.outputs)
        self.fields = tuple(s.name for s in signature.states)
        self.declared = tuple(s.name for s in signature.states if s.role == "state")
        self.State = record(f"{signature.name}_state", self.fields)
        self.Outputs = record(f"{signature.name}_outputs", self.outputs)
        there = hasattr(sys.modules.get("torch"), "library")  # before a compiler looks
        self.operators = Operators(*self.parts) if there else None

    def forward(
        self,
        arguments: Arrays,
        *,
        initial_state: Any,
        cu_seqlens: Any,
        valid: Any,
        mode: str,
        chunk: int | None,
        debug: bool,
        state_dtype: Any,
        placed: Sequence[Any] = (),
        keep: list[Any] | None = None,
    ) -> Any:
        """(outputs, state) of whole sequences; outputs go where they are ``placed``. To ``keep``
        goes then what `vjp` need not compute again, where there is such a thing."""
        state, key = self.listed(initial_state), None
        plain = cu_seqlens is None and valid is None and state_dtype is None and not debug
        plain = plain and type(mode) is str and (chunk is None or type(chunk) is int)
        if plain and state is not None and not compiling():
            given = [*arguments.values(), *state]
            asked = (mode, chunk, initial_state is None, keep is not None)
            key, found = self.direct.call(asked, given, None, placed=placed)
            if found is not None:
                changed(placed)
                if keep is not None:
                    keep += found[len(self.fields) :]
                    found = found[: len(self.fields)]
                return self.given_back([*placed, *found])
        if state is None or not any(map(is_tensor, arguments.values())):
            result = forward(
                self.signature,
                self.core,
                each(array_of, arguments),
                initial_state=initial_state,
                cu_seqlens=cu_seqlens,
                valid=valid,
                mode=mode,
                chunk=chunk,
                debug=debug,
                state_dtype=state_dtype,
            )
        else:
            result = self.run(
                arguments,
                state,
                cu_seqlens=cu_seqlens,
                valid=valid,
                mode=mode,
                chunk=chunk,
                debug=debug,
                state_dtype=state_dtype,
            )
        if placed:
            outputs, final = result
            fill(placed, [outputs] if len(placed) == 1 else outputs)
            result = self.several([*placed]), final
        if key is not None:
            arrays, tensors = [*map(array_of, given)], any(map(is_tensor, given))
            places = [*map(array_of, placed)]
            plainly = partial(self.direct.prepared, (mode, chunk), arrays, None, placed=places)
            kept = partial(prepared_kept, self.direct, (mode, chunk), arrays, places)
            self.direct.remember(
                key, plainly if keep is None else lambda: kept() or plainly(), tensors
            )
        return result

    def run(
        self,
        arguments: Arrays,
        state: Iterable[Any],
        *,
        cu_seqlens: Any = None,
        valid: Any = None,
        mode: str,
        chunk: int | None = None,
        debug: bool,
        state_dtype: Any,
    ) -> Any:
        """(outputs, state) of tensors: by the operator where somebody looks at operators."""
        import torch

        if self.operators is None:
            self.operators = Operators(*self.parts)
        given = [arguments[name] for name in self.arguments]
        given = [tensor_of(x) for x in (*given, *state, cu_seqlens, valid)]
        if not torch.compiler.is_compiling():
            refuse_tangents(self.signature.name, given)
        asked, operators = (*given, mode, chunk, state_dtype, debug), self.operators
        if looked_at(given):
            return self.given_back(operators.forward(*asked))
        if torch.is_grad_enabled() and any(is_tensor(x) and x.requires_grad for x in given):
            return self.given_back(operators.differentiable(*asked))
        return self.given_back(operators.run(*asked))

    def step(
        self,
        arguments: Arrays,
        state: Any,
        *,
        out: Any,
        state_indices: Any,
        debug: bool,
        state_dtype: Any,
    ) -> Any:
        """(outputs, state) of one token; where gradients or a compiler want to see it, it is a call
        of one token."""
        begun, target, key = self.listed(state), [] if out is None else self.listed(out), None
        plain = (state_indices is None or bool(target)) and state_dtype is None and not debug
        if plain and begun is not None and target is not None and not compiling():
            given = [*arguments.values(), *begun]
            pooled = state_indices is not None
            key, found = self.direct.call(("step", pooled), given, target, state_indices)
            if found is not None:
                changed(target)
                outputs, new = self.given_back([*found, *target])
                return outputs, new if out is None else out
        if not any(map(is_tensor, arguments.values())):
            result = step(
                self.signature,
                self.core,
                arguments,
                state,
                out=out,
                state_indices=state_indices,
                debug=debug,
                state_dtype=state_dtype,
            )
        elif begun is not None and watched([*arguments.values(), *begun]):
            return self.watched_step(
                arguments,
                begun,
                out=out,
                state_indices=state_indices,
                debug=debug,
                state_dtype=state_dtype,
            )
        else:
            refuse_out(target or ())
            outputs, new = step(
                self.signature,
                self.core,
                each(array_of, arguments),
                each(array_of, state),
                out=each(array_of, out),
                state_indices=array_of(state_indices),
                debug=debug,
                state_dtype=dtype_of(state_dtype),
            )
            changed(target or ())
            result = each(tensor_of, outputs), each(tensor_of, new) if out is None else out
        if key is not None:
            arrays, into = [*map(array_of, given)], [*map(array_of, target or ())]
            prepare = partial(self.direct.prepared, None, arrays, into, pooled)
            self.direct.remember(key, prepare, any(map(is_tensor, given)))
        return result

    def stepper(self, arguments: Arrays, state: Any) -> Stepper:
        """What takes one token after another from ``state`` on, which goes on in place. All that it
        takes is checked here, by a step that is taken back."""
        if self.signature.no_step:
            raise ValueError(f"step: {self.signature.no_step}")
        given = {name: x for name, x in arguments.items() if x is not None}
        tensors = any(map(is_tensor, given.values()))
        none: Arrays = {"cu_seqlens": None, "valid": None, "debug": False, "state_dtype": None}
        step = partial(self.step, state_indices=None, debug=False, state_dtype=None)
        forward = partial(self.forward, initial_state=None, mode="auto", chunk=None, **none)
        with sys.modules["torch"].no_grad() if tensors else nullcontext():
            kind = BoundTensors if tensors else Bound
            made = kind(self.signature, step, forward, arguments, state)
            fields = self.listed(made.state) or [None]
            if any(x is None for x in fields):
                raise ValueError(f"state: expected {', '.join(self.fields)}, got {state!r}")
            made.now = self.State(*fields)
            arrays = [array_of(x) for x in (*given.values(), *fields)]
            if made.grows or not self.direct.possible or self.direct.attends:
                return Stepper(self.signature, step, forward, arguments, made.state)
            kept = [x.copy() for x in arrays[len(given) :]]
            step(arguments, state=made.state, out=made.state)
            for x, y in zip(arrays[len(given) :], kept):
                x[...] = y
            every = [*given.values(), *fields]
            plain = tensor_key(every) if tensors else array_key(every)
            asked = [*map(array_of, arguments.values()), *arrays[len(given) :]]
            ready = plain and self.direct.prepared(None, asked, arrays[len(given) :])
        if not ready:
            return Stepper(self.signature, step, forward, arguments, made.state)
        return made.bind(ready, given, arrays, lambda found: self.Outputs(*found))

    def watched_step(
        self,
        arguments: Arrays,
        begun: list[Any],
        *,
        out: Any,
        state_indices: Any,
        debug: bool,
        state_dtype: Any,
    ) -> Any:
        """(outputs, state) of one token, as a call of one token."""
        if self.signature.no_step:
            raise ValueError(f"step: {self.signature.no_step}")
        if state_indices is not None:
            begun = [None if x is None else x[state_indices] for x in begun]
        inputs = {a.name for a in self.signature.arguments if a.role == "input"}
        token = {
            name: x.unsqueeze(1) if name in inputs and x is not None else x
            for name, x in arguments.items()
        }
        mode = "auto" if self.signature.modes.get("recurrent") else "recurrent"
        found, new = self.run(token, begun, mode=mode, debug=debug, state_dtype=state_dtype)
        found = each(lambda x: x[:, 0], found)
        if out is None:
            return found, new
        for x, y in zip(self.listed(out) or (), new):
            if state_indices is None:
                x.copy_(y)
            else:
                x[state_indices] = y.to(x.dtype)
        return found, out

    def vjp(
        self,
        arguments: Arrays,
        *,
        cotangent: Any,
        state_cotangent: Any,
        initial_state: Any,
        cu_seqlens: Any,
        valid: Any,
        mode: str,
        chunk: int | None,
        placed: Sequence[Any] = (),
        kept: Sequence[Any] = (),
    ) -> Arrays:
        """Gradients by name; those of inputs and params go where they are ``placed``. The call may
        have ``kept`` something for them."""
        begun, ends, key = self.listed(initial_state), self.listed(state_cotangent), None
        pulled, begins = self.pulled(cotangent), initial_state is not None
        plain = cu_seqlens is None and valid is None and type(mode) is str
        plain = plain and (chunk is None or type(chunk) is int) and not self.direct.attends
        if plain and None not in (pulled, begun, ends) and not compiling():
            given = [*arguments.values(), *(begun or ()), *(pulled or ()), *(ends or ()), *kept]
            asked = ("vjp", mode, chunk, begins, len(kept))
            key, done = self.direct.call(asked, given, None, placed=placed)
            if done is not None:
                changed(placed)
                done = [*placed, *done]
                gradients = {n: done.pop(0) for n, x in arguments.items() if x is not None}
                return gradients | ({"initial_state": self.State(*done)} if begins else {})
        found = vjp(
            self.signature,
            self.core,
            each(array_of, arguments),
            cotangent=each(array_of, cotangent),
            state_cotangent=each(array_of, state_cotangent),
            initial_state=each(array_of, initial_state),
            cu_seqlens=array_of(cu_seqlens),
            valid=array_of(valid),
            mode=mode,
            chunk=chunk,
        )
        if any(map(is_tensor, arguments.values())):
            found = each(tensor_of, found)
        if placed:
            wanted = (a.name for a in self.signature.arguments if a.role != "buffer")
            there = [name for name in wanted if arguments[name] is not None]
            fill(placed, [found[name] for name in there])
            found |= zip(there, placed)
        if key is not None:
            arrays, tensors = [*map(array_of, given)], any(map(is_tensor, given))
            places, start = [*map(array_of, placed)], len(given) - len(kept)
            parts = arrays[:start], places, arrays[start:]
            prepare = partial(prepared_back, self.direct, (mode, chunk), begins, *parts)
            self.direct.remember(key, prepare, tensors)
        return found

    def end(self, arguments: Arrays, *, initial_state: Any, mode: str, chunk: int | None) -> Any:
        """The state that a call would give, None where that alone is not to be had."""
        begun = self.listed(initial_state) or []
        given = [*arguments.values(), *begun]
        found = self.alone(("end", mode, chunk), given, partial(prepared_end, self.direct))
        return found and self.State(*found)

    def begin(
        self,
        arguments: Arrays,
        *,
        cotangent: Any,
        state_cotangent: Any,
        initial_state: Any,
        mode: str,
        chunk: int | None,
    ) -> Any:
        """The gradient of the initial state that `vjp` would give, None where that alone is not to
        be had."""
        every = self.listed(initial_state), self.pulled(cotangent), self.listed(state_cotangent)
        given = [*arguments.values(), *(x for part in every for x in part or ())]
        found = self.alone(("begin", mode, chunk), given, partial(prepared_begin, self.direct))
        return found and self.State(*found)

    def alone(
        self,
        asked: tuple[str, str, int | None],
        given: list[Any],
        prepared: Callable[[tuple[str, int | None], list[Any]], Prepared | None],
    ) -> list[Any] | None:
        """Fields of a state by calls that are ``prepared``, of what a call has been right with."""
        if self.direct.attends or compiling():
            return None
        for _ in range(3):  # what is seen for the second time is prepared
            key, found = self.direct.call(asked, given, None)
            if found is not None or key is None:
                return found
            prepare = partial(prepared, asked[1:], [*map(array_of, given)])
            self.direct.remember(key, prepare, any(map(is_tensor, given)))
        return None

    def pulled(self, cotangent: Any) -> list[Any] | None:
        """The cotangents of outputs in order; None where they are in no form of these."""
        if cotangent is None:
            return [None] * len(self.outputs)
        if isinstance(cotangent, tuple):
            return list(cotangent) if len(cotangent) == len(self.outputs) else None
        if isinstance(cotangent, Mapping):
            there = all(name in self.outputs for name in cotangent)
            return [cotangent.get(name) for name in self.outputs] if there else None
        return [cotangent] if len(self.outputs) == 1 else None

    def listed(self, state: Any) -> list[Any] | None:
        """The fields of a state in order, None in place of those that are missing; None where it is
        in no form of a state."""
        if state is None:
            return [None] * len(self.fields)
        if isinstance(state, np.ndarray) and len(self.fields) == len(self.declared) == 1:
            return [state]
        if (isinstance(state, np.ndarray) or is_tensor(state)) and len(self.declared) == 1:
            state = {self.declared[0]: state}
        elif isinstance(state, tuple):
            same = len(state) == len(self.fields)
            return list(state) if same and names_of(state) in ((), self.fields) else None
        if isinstance(state, Mapping) and all(name in self.fields for name in state):
            return [state.get(name) for name in self.fields]
        return None

    def given_back(self, found: list[Any]) -> Any:
        """Outputs and the state, from all of them in order."""
        cut = len(self.outputs)
        return self.several(found[:cut]), self.State(*found[cut:])

    def several(self, found: list[Any]) -> Any:
        """One output, or the tuple of several."""
        return found[0] if len(found) == 1 else self.Outputs(*found)


def names_of(x: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of a named tuple's fields."""
    found: tuple[str, ...] = getattr(x, "_fields", ())
    return found


def compiling() -> bool:
    """Whether a compiler of torch looks at what is called."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def refuse_out(target: Iterable[Any]) -> None:
    """Raises ValueError for a tensor that a step cannot be written into."""
    import torch

    for x in filter(is_tensor, target):
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError("out: expected a tensor without requires_grad, or torch.no_grad()")
        if x.is_neg():
            raise ValueError("out: expected a tensor of its own, got a negated view")


def fill(placed: Iterable[Any], found: Iterable[Any]) -> None:
    """Writes what was ``found`` where it is to be. Raises ValueError for another shape."""
    for x, y in zip(placed, found, strict=True):
        if x.shape != y.shape:
            raise ValueError(f"expected a place of shape {[*y.shape]}, got {[*x.shape]}")
        x[...] = y


def changed(target: Iterable[Any]) -> None:
    """Tells autograd that tensors were written to: who kept one for a gradient has to notice."""
    for x in filter(is_tensor, target):
        if not x.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(x)
