"""Tensors of torch on the CPU in, what they are as NumPy's arrays out, and back; the operators by
which autograd and compilers of torch see the functions of an emitted C file.

This module stands alone (NumPy; torch inside functions): its text is also pasted into the Python
part of emitted C files, before `native_torch.py`. Autograd keeps the states that chunks start from.
Two custom operators, of which one is the other's gradient, are what `torch.compile` sees; there the
backward makes states again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lacc.runtime.arguments import Arguments
from lacc.runtime.calls import forward, vjp
from lacc.runtime.contract import Arrays, Core, Signature, axes_of, grows
from lacc.runtime.native_keeping import Keeping
from lacc.runtime.native_transforms import (
    guess,
    open_size,
    open_sizes,
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
    x = x.detach().resolve_neg()
    if x.numel() and not x.data_ptr():
        raise ValueError(f"expected a tensor with memory, got one of {tuple(x.shape)} without")
    if "bfloat16" not in str(x.dtype):
        return x.numpy()
    import ml_dtypes
    import torch

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(x: Any) -> Any:
    """The memory of an array as a tensor; what is none as it is."""
    import torch

    if not isinstance(x, (np.ndarray, np.generic)):  # a sum to no axes is no array
        return x
    x = np.require(x, None, ("C", "W"))
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


def looked_at(given: Iterable[Any]) -> bool:
    """Whether somebody looks at operators: a compiler, a mode, a transform, a kind of tensor."""
    import torch
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode

    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or transformed():
        return True
    plain = (torch.Tensor, torch.nn.Parameter)
    return any(is_tensor(x) and (type(x) not in plain or x.is_meta) for x in given)


def watched(given: list[Any]) -> bool:
    """Whether somebody looks at what becomes of tensors: autograd, or at operators."""
    import torch

    if looked_at(given):
        return True
    return torch.is_grad_enabled() and any(is_tensor(x) and x.requires_grad for x in given)


def differentiable(operators: Operators) -> Any:
    """``operators.forward`` with autograd where nobody looks at operators: its gradient begins
    with what it kept."""
    import torch

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            keeping, asked = Keeping(operators.program), given[: operators.count + 2]
            found = operators.run(*given, keeping=keeping)
            ctx.set_materialize_grads(False)
            ctx.mode, ctx.chunk = given[operators.count + 2 : operators.count + 4]
            ctx.calls = [kept.filled(iter([None] * len(kept.arrays()))) for kept in keeping.calls]
            arrays = [x for kept in keeping.calls for x in kept.arrays()]
            ctx.save_for_backward(*asked, *map(tensor_of, arrays))
            return tuple(found)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            saved = ctx.saved_tensors
            asked = saved[: operators.count + 2]
            every = (*asked, ctx.mode, ctx.chunk, *grads)
            if torch.is_grad_enabled() or looked_at(grads):  # by the operator, which knows its ways
                return operators.placed(asked, operators.backward(*every))
            arrays = map(array_of, saved[len(asked) :])
            keeping = Keeping(operators.program, (kept.filled(arrays) for kept in ctx.calls))
            return operators.placed(asked, operators.run_back(*every, keeping=keeping))

    return Differentiable.apply


class Operators:
    """The operators of one file, in the namespace of its spec's digest: ``forward`` takes all
    arguments and fields of the initial state, cu_seqlens, valid, mode, chunk, state_dtype and debug
    and gives outputs and fields of the final state; ``backward`` gives gradients of what is there.
    """

    def __init__(self, signature: Signature, core: Core, program: Program, digest: str) -> None:
        import torch

        self.signature, self.core, self.program = signature, core, program
        self.differentiable = differentiable(self)
        self.arguments = tuple(a.name for a in signature.arguments)
        self.outputs = tuple(o.name for o in signature.outputs)
        self.fields = tuple(s.name for s in signature.states)
        names = [f"x_{name}" for name in self.arguments] + [f"s_{name}" for name in self.fields]
        self.count = len(names)
        asked = [f"Tensor? {name}" for name in (*names, "cu_seqlens", "valid")]
        asked += ["str mode", "int? chunk"]
        pulled = [f"Tensor? d_{name}" for name in (*self.outputs, *self.fields)]
        ways: list[tuple[str, Any, list[str]]] = [
            ("forward", self.run, [*asked, "ScalarType? state_dtype", "bool debug"]),
            ("backward", self.run_back, [*asked, *pulled]),
        ]
        space, made = f"lacc_c_{digest[:16]}", []
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
        cut = len(self.arguments)
        fields = zip(self.fields, arrays[cut:])
        state = {name: x for name, x in fields if x is not None}
        return dict(zip(self.arguments, arrays)), state

    def run(self, *given: Any, keeping: Keeping | None = None) -> list[Any]:
        """What ``forward`` computes; ``keeping`` what its gradient needs."""
        core = self.core if keeping is None else keeping.core(self.core)
        cu, valid, mode, chunk, state_dtype, debug = given[self.count :]
        x, state = self.taken(map(array_of, given[: self.count]))
        outputs, final = forward(
            self.signature,
            core,
            x,
            initial_state=state or None,
            cu_seqlens=array_of(cu),
            valid=array_of(valid),
            mode=mode,
            chunk=chunk,
            debug=debug,
            state_dtype=dtype_of(state_dtype),
        )
        outputs = outputs if len(self.outputs) > 1 else (outputs,)
        return [tensor_of(x) for x in (*outputs, *final)]

    def run_back(self, *given: Any, keeping: Keeping | None = None) -> list[Any]:
        """What ``backward`` computes; ``keeping`` has what the forward kept."""
        core = self.core if keeping is None else keeping.core(self.core)
        cu, valid, mode, chunk, *pulled = map(array_of, given[self.count :])
        x, state = self.taken(map(array_of, given[: self.count]))
        cut = len(self.outputs)
        found = vjp(
            self.signature,
            core,
            x,
            cotangent=dict(zip(self.outputs, pulled)),
            state_cotangent=dict(zip(self.fields, pulled[cut:])),
            initial_state=state or None,
            cu_seqlens=cu,
            valid=valid,
            mode=mode,
            chunk=chunk,
        )
        before = found.pop("initial_state", None)
        found |= {} if before is None else dict(zip(self.fields, before))
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
        call = Arguments(self.signature, self.core.draws, x, step=False)
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
        return self.placed(given, self.backward(*given, ctx.mode, ctx.chunk, *grads))

    def placed(self, given: Iterable[Any], gradients: Iterable[Any]) -> tuple[Any, ...]:
        """Gradients in the order of all that ``forward`` takes, None where there is none."""
        found = iter(gradients)
        return (*(next(found) if name else None for name in self.wanted(given)), *[None] * 6)

    def pull_twice(self, ctx: Any, *grads: Any) -> Any:
        """Gradients have none."""
        raise RuntimeError(
            f"{self.signature.name}: its gradients have no gradients (double backward)"
        )
