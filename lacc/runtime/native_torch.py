"""A caller's arrays or torch tensors in, the same out: the public functions of an emitted C file.

This module stands alone (NumPy; torch only where tensors come in): its text is also pasted into the
Python part of emitted C files, behind `calls.py`. Tensors are on the CPU; they and arrays share
their memory. Two custom operators, of which one is the other's gradient, are what autograd and
`torch.compile` see; the backward runs the forward again, so that nothing is kept between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lacc.runtime.arguments import Arguments
from lacc.runtime.calls import forward, step, vjp
from lacc.runtime.contract import Arrays, Core, Signature, axes_of, grows, record
from lacc.runtime.native_direct import Direct
from lacc.runtime.native_transforms import (
    guess,
    open_size,
    open_sizes,
    refuse_tangents,
    transformed,
    vmapped,
)
from lacc.runtime.passes import Program


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor of torch; torch need not be there."""
    return not isinstance(x, np.ndarray) and hasattr(x, "requires_grad")


def each(function: Callable[[Any], Any], x: Any) -> Any:
    """``function`` of ``x``, or of what a tuple or dict holds."""
    if isinstance(x, tuple):
        parts = [each(function, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if isinstance(x, Mapping):
        return {name: each(function, part) for name, part in x.items()}
    return function(x)


def array_of(x: Any) -> Any:
    """The memory of a tensor as an array; what is none as it is."""
    if not is_tensor(x):
        return x
    if x.device.type != "cpu":
        raise TypeError(f"expected tensors on the CPU, got one on {x.device}")
    x = x.detach()
    if "bfloat16" not in str(x.dtype):
        return x.numpy()
    import ml_dtypes
    import torch

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(x: Any) -> Any:
    """The memory of an array as a tensor; what is none as it is."""
    import torch

    if not isinstance(x, np.ndarray):
        return x
    x = np.ascontiguousarray(x)
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def dtype_of(x: Any) -> Any:
    """A dtype of torch as NumPy's; another as it is."""
    name = str(x).removeprefix("torch.")
    if x is None or name == str(x):
        return x
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class Host:
    """The functions of one spec for arrays, as `calls.py` has them, and for tensors."""

    def __init__(self, signature: Signature, core: Core, program: Program, digest: str) -> None:
        self.signature, self.core, self.digest = signature, core, digest
        self.direct = Direct(signature, core, program)
        self.arguments = tuple(a.name for a in signature.arguments)
        self.outputs = tuple(o.name for o in signature.outputs)
        self.fields = tuple(s.name for s in signature.states)
        self.declared = tuple(s.name for s in signature.states if s.role == "state")
        self.State = record(f"{signature.name}_state", self.fields)
        self.Outputs = record(f"{signature.name}_outputs", self.outputs)
        there = hasattr(sys.modules.get("torch"), "library")  # before a compiler looks
        self.operators = Operators(self) if there else None

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
    ) -> Any:
        """(outputs, state) of whole sequences."""
        state, key = self.listed(initial_state), None
        plain = cu_seqlens is None and valid is None and state_dtype is None and not debug
        plain = plain and type(mode) is str and (chunk is None or type(chunk) is int)
        if plain and state is not None and not compiling():
            given = [*arguments.values(), *state]
            key, found = self.direct.call((mode, chunk, initial_state is None), given, None)
            if found is not None:
                return self.given_back(found)
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
        if key is not None:
            arrays = [*map(array_of, given)]
            self.direct.remember(key, (mode, chunk), arrays, None, any(map(is_tensor, given)))
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
        """(outputs, state) of tensors, by the operator."""
        import torch

        if self.operators is None:
            self.operators = Operators(self)
        given = [arguments[name] for name in self.arguments]
        given = [tensor_of(x) for x in (*given, *state, cu_seqlens, valid)]
        if not torch.compiler.is_compiling():
            refuse_tangents(self.signature.name, given)
        return self.given_back(self.operators.forward(*given, mode, chunk, state_dtype, debug))

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
        plain = state_indices is None and state_dtype is None and not debug
        if plain and begun is not None and target is not None and not compiling():
            given = [*arguments.values(), *begun]
            key, found = self.direct.call(("step",), given, target)
            if found is not None:
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
            result = each(tensor_of, outputs), each(tensor_of, new) if out is None else out
        if key is not None:
            arrays, into = [*map(array_of, given)], [*map(array_of, target or ())]
            self.direct.remember(key, None, arrays, into, any(map(is_tensor, given)))
        return result

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
    ) -> Arrays:
        """Gradients by name."""
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
        return found

    def listed(self, state: Any) -> list[Any] | None:
        """The fields of a state in order, None in place of those that are missing; None where it is
        in no form of a state."""
        if state is None:
            return [None] * len(self.fields)
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


def watched(given: Iterable[Any]) -> bool:
    """Whether somebody looks at what becomes of tensors: autograd, a compiler, a mode."""
    import torch
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode

    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or transformed():
        return True
    return torch.is_grad_enabled() and any(is_tensor(x) and x.requires_grad for x in given)


class Operators:
    """The operators of one file, in the namespace of its spec's digest: ``forward`` takes all
    arguments and fields of the initial state, cu_seqlens, valid, mode, chunk, state_dtype and debug
    and gives outputs and fields of the final state; ``backward`` gives gradients of what is there.
    """

    def __init__(self, host: Host) -> None:
        import torch

        self.host, self.signature = host, host.signature
        names = [f"x_{name}" for name in host.arguments] + [f"s_{name}" for name in host.fields]
        self.count = len(names)
        asked = [f"Tensor? {name}" for name in (*names, "cu_seqlens", "valid")]
        asked += ["str mode", "int? chunk"]
        pulled = [f"Tensor? d_{name}" for name in (*host.outputs, *host.fields)]
        ways: list[tuple[str, Any, list[str]]] = [
            ("forward", self.run, [*asked, "ScalarType? state_dtype", "bool debug"]),
            ("backward", self.run_back, [*asked, *pulled]),
        ]
        space, made = f"lacc_c_{host.digest[:16]}", []
        for name, function, takes in ways:
            free, n = name, 1
            while hasattr(getattr(torch.ops, space), free):  # a file may be loaded twice
                n += 1
                free = f"{name}_{n}"
            schema = f"({', '.join(takes)}) -> Tensor[]"
            operator: Any = torch.library.custom_op(
                f"{space}::{free}", function, mutates_args=(), schema=schema
            )
            made.append(operator)
        self.forward, self.backward = made
        self.forward.register_fake(self.dry)
        self.backward.register_fake(self.dry_back)
        self.forward.register_autograd(self.pull, setup_context=self.save)
        self.backward.register_autograd(self.pull_twice)
        sums = any(a.role == "param" for a in self.signature.arguments)
        self.forward.register_vmap(
            lambda info, dims, *x: vmapped(self.forward, self.signature, True, info, dims, x)
        )
        self.backward.register_vmap(
            lambda info, dims, *x: vmapped(self.backward, self.signature, not sums, info, dims, x)
        )

    def taken(self, given: Iterable[Any]) -> tuple[Arrays, Arrays]:
        """Arguments, and those fields of the initial state that are there, by name."""
        arrays = list(given)
        cut = len(self.host.arguments)
        fields = zip(self.host.fields, arrays[cut:])
        state = {name: x for name, x in fields if x is not None}
        return dict(zip(self.host.arguments, arrays)), state

    def run(self, *given: Any) -> list[Any]:
        """What ``forward`` computes."""
        cu, valid, mode, chunk, state_dtype, debug = given[self.count :]
        x, state = self.taken(map(array_of, given[: self.count]))
        outputs, final = forward(
            self.signature,
            self.host.core,
            x,
            initial_state=state or None,
            cu_seqlens=array_of(cu),
            valid=array_of(valid),
            mode=mode,
            chunk=chunk,
            debug=debug,
            state_dtype=dtype_of(state_dtype),
        )
        outputs = outputs if len(self.host.outputs) > 1 else (outputs,)
        return [tensor_of(x) for x in (*outputs, *final)]

    def run_back(self, *given: Any) -> list[Any]:
        """What ``backward`` computes."""
        cu, valid, mode, chunk, *pulled = map(array_of, given[self.count :])
        x, state = self.taken(map(array_of, given[: self.count]))
        cut = len(self.host.outputs)
        found = vjp(
            self.signature,
            self.host.core,
            x,
            cotangent=dict(zip(self.host.outputs, pulled)),
            state_cotangent=dict(zip(self.host.fields, pulled[cut:])),
            initial_state=state or None,
            cu_seqlens=cu,
            valid=valid,
            mode=mode,
            chunk=chunk,
        )
        before = found.pop("initial_state", None)
        found |= {} if before is None else dict(zip(self.host.fields, before))
        wanted = zip(self.wanted(given), given)
        return [tensor_of(found[name]).to(x.dtype) for name, x in wanted if name]

    def wanted(self, given: Iterable[Any]) -> list[str]:
        """For each argument and field its name, "" for those that have no gradient."""
        values = (*self.signature.arguments, *self.signature.states)
        none = ("buffer", "position")
        return ["" if x is None or v.role in none else v.name for v, x in zip(values, given)]

    def dry(self, *given: Any) -> list[Any]:
        """Tensors like those that ``forward`` gives."""
        import torch

        cu, valid, _, _, state_dtype, _ = given[self.count :]
        x, state = self.taken(map(self.like, given[: self.count]))
        call = Arguments(self.signature, self.host.core.draws, x, step=False)
        if cu is not None:
            call.sizes["#N"] = int(cu.shape[0]) - 1
        call.fields("initial_state", state)
        sizes = open_sizes(self.signature, given, call.sizes)
        _, begun = self.taken(given[: self.count])
        like, found = next(x for x in given if x is not None), []
        for value in (*self.signature.outputs, *self.signature.states):
            shape: list[Any] = [open_size(axis, sizes) for axis in axes_of(value)]
            if grows(value):
                axis = axes_of(value).index(None)
                shape[axis] = sizes["#T"]
                if value.name in begun:
                    shape[axis] += begun[value.name].shape[axis]
                if cu is not None or valid is not None:
                    shape[axis] = torch.library.get_ctx().new_dynamic_size()
            dtype = call.out_dtype if value.role == "output" else call.dtype
            if value.role == "position":
                dtype = np.dtype(np.int64)
            elif value.role not in ("output", "log") and state_dtype is not None:
                dtype = dtype_of(state_dtype)
            found.append(like.new_empty(shape, dtype=getattr(torch, dtype.name)))
        return found

    def dry_back(self, *given: Any) -> list[Any]:
        """Tensors like those that ``backward`` gives."""
        wanted = zip(self.wanted(given), given)
        return [x.new_empty(x.shape) for name, x in wanted if name]

    def like(self, x: Any) -> Any:
        """An array of the shape and dtype of a tensor, which takes no memory."""
        if x is None:
            return None
        shape = tuple(guess(length) for length in x.shape)
        return np.broadcast_to(np.zeros((), dtype_of(x.dtype)), shape)

    def save(self, ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps what ``backward`` takes."""
        ctx.set_materialize_grads(False)
        ctx.mode, ctx.chunk = inputs[self.count + 2 : self.count + 4]
        ctx.save_for_backward(*inputs[: self.count + 2])

    def pull(self, ctx: Any, grads: Any) -> tuple[Any, ...]:
        """Gradients of all that ``forward`` takes."""
        given = ctx.saved_tensors
        found = iter(self.backward(*given, ctx.mode, ctx.chunk, *grads))
        return (*(next(found) if name else None for name in self.wanted(given)), *[None] * 6)

    def pull_twice(self, ctx: Any, *grads: Any) -> Any:
        """Gradients have none."""
        raise RuntimeError(
            f"{self.signature.name}: its gradients have no gradients (double backward)"
        )
