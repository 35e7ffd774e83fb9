"""A signature and its program in, custom operators of torch out: forward and backward, with what
they give where nothing runs, and autograd.

This module stands alone (torch only): its text is pasted into emitted files of torch. The
operators take all tensors of a call in order, so `torch.compile` and CUDA graphs see one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from lacc.runtime.contract import Signature
from lacc.runtime.torch_core import Asked, Core
from lacc.runtime.torch_run import Program


def free_name(namespace: str, name: str) -> str:
    """``namespace::name``, numbered where an operator has that name: a file may be loaded twice."""
    space, n = getattr(torch.ops, namespace), 1
    found = name
    while hasattr(space, found):
        n += 1
        found = f"{name}_{n}"
    return f"{namespace}::{found}"


def is_seen(tensors: Iterable[Any]) -> bool:
    """Whether somebody looks at operators: a compiler, a mode, a transform, a kind of tensor."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    plain = (torch.Tensor, torch.nn.Parameter)
    return any(x is not None and type(x) not in plain for x in tensors)


class Differentiable(torch.autograd.Function):
    """A call where nobody looks: what the operators do, in a fifth of their time."""

    @staticmethod
    def forward(ctx: Any, operators: Any, *given: Any) -> Any:
        found = operators.run(*given)
        lists = found[operators.results :]
        ctx.set_materialize_grads(False)
        ctx.operators, ctx.lengths = operators, [len(part) for part in lists]
        ctx.mode, ctx.chunk = given[operators.tensors + 2 : operators.tensors + 4]
        flat = [x for part in lists for x in part]
        ctx.save_for_backward(*given[: operators.tensors + 2], *flat)
        return found[: operators.results]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        operators = ctx.operators
        asked, lists = operators.saved(ctx)
        with torch.no_grad():
            found = operators.run_back(*asked, ctx.mode, ctx.chunk, *lists, *grads)
        if torch.is_grad_enabled():
            given = [x for x in (*asked, *grads) if x is not None]
            once: Any = Once.apply
            found = once(operators.name, len(found), *found, *given)
        return (None, *operators.placed(asked[: operators.tensors], list(found)), *[None] * 7)


class Once(torch.autograd.Function):
    """Gradients that have none, of what they were made from."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *given: Any) -> Any:
        ctx.name = name
        return tuple(x.clone() for x in given[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise twice(ctx.name)


def twice(name: str) -> RuntimeError:
    """The error of a second derivative."""
    return RuntimeError(f"{name}: its gradients have no gradients (double backward)")


class Operators:
    """``forward`` and ``backward`` of one emitted file, in the namespace of its spec's digest.

    ``forward(arguments, fields, cu_seqlens, valid, mode, chunk, keep, state_dtype, debug)`` gives
    outputs, fields of the final state, then lists of what the backward takes; ``backward`` takes
    the first six, these lists, cotangents of outputs and of final fields, and gives gradients of
    what is there.
    """

    def __init__(self, signature: Signature, program: Program, digest: str) -> None:
        self.core = core = Core(signature, program)
        self.name = signature.name
        self.tensors = core.count + len(signature.states)
        self.results = len(signature.outputs) + len(signature.states)
        self.lists = 1 + core.slots
        given = [f"Tensor? x_{a.name}" for a in signature.arguments]
        given += [f"Tensor? s_{s.name}" for s in signature.states]
        asked = [*given, "Tensor? cu_seqlens", "Tensor? valid", "str mode", "int chunk"]
        lists = ["Tensor[]"] * self.lists
        forward = [*asked, "bool keep", "ScalarType? state_dtype", "bool debug"]
        made = ", ".join(["Tensor"] * self.results + lists)
        kept = [f"{kind} kept_{n}" for n, kind in enumerate(lists)]
        pulled = [f"Tensor? d_{o.name}" for o in signature.outputs]
        pulled += [f"Tensor? e_{s.name}" for s in signature.states]
        namespace = f"lacc_{digest[:16]}"
        custom = torch.library.custom_op
        self.forward: Any = custom(
            free_name(namespace, "forward"),
            self.run,
            mutates_args=(),
            schema=f"({', '.join(forward)}) -> ({made})",
        )
        self.backward: Any = custom(
            free_name(namespace, "backward"),
            self.run_back,
            mutates_args=(),
            schema=f"({', '.join([*asked, *kept, *pulled])}) -> Tensor[]",
        )
        self.forward.register_fake(self._forward_dry)
        self.backward.register_fake(self._backward_dry)
        self.forward.register_autograd(self._pull, setup_context=self._save)
        self.backward.register_autograd(self._pull_twice)

    def run(self, *given: Any, dry: bool = False) -> tuple[Any, ...]:
        """What ``forward`` computes."""
        tensors, rest = given[: self.tensors], given[self.tensors :]
        cu, valid, mode, chunk, keep, state_dtype, debug = rest
        asked = Asked(mode, chunk, dry)
        outputs, fields, crossed, kept = self.core.forward(
            tensors, cu, valid, asked, keep, state_dtype, debug
        )
        return (*outputs, *fields, crossed, *kept)

    def _forward_dry(self, *given: Any) -> tuple[Any, ...]:
        return self.run(*given, dry=True)

    def run_back(self, *given: Any, dry: bool = False) -> list[Any]:
        """What ``backward`` computes."""
        tensors, rest = given[: self.tensors], given[self.tensors :]
        cu, valid, mode, chunk, crossed, *more = rest
        kept, more = more[: self.core.slots], more[self.core.slots :]
        cut = len(self.core.signature.outputs)
        asked = Asked(mode, chunk, dry)
        return self.core.backward(tensors, cu, valid, asked, crossed, kept, more[:cut], more[cut:])

    def _backward_dry(self, *given: Any) -> list[Any]:
        return self.run_back(*given, dry=True)

    def _save(self, ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps the call and what its forward kept."""
        lists = output[self.results :]
        ctx.set_materialize_grads(False)
        ctx.lengths = [len(part) for part in lists]
        *_, ctx.mode, ctx.chunk, ctx.keep, _, _ = inputs
        flat = [x for part in lists for x in part]
        ctx.save_for_backward(*inputs[: self.tensors + 2], *flat)

    def _pull(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Gradients of all that `forward` takes."""
        if not ctx.keep:
            raise RuntimeError(f"{self.name}: a forward without keep has no backward")
        asked, lists = self.saved(ctx)
        found = self.backward(*asked, ctx.mode, ctx.chunk, *lists, *grads[: self.results])
        return (*self.placed(asked[: self.tensors], found), *[None] * 7)

    def saved(self, ctx: Any) -> tuple[Any, list[list[Any]]]:
        """What a call was given, and what its forward kept."""
        saved = ctx.saved_tensors
        asked, flat = saved[: self.tensors + 2], iter(saved[self.tensors + 2 :])
        return asked, [[next(flat) for _ in range(length)] for length in ctx.lengths]

    def call(self, *given: Any) -> Any:
        """What `forward` gives, with autograd where it keeps; the lists only to who looks."""
        if is_seen(given[: self.tensors + 2]):
            return self.forward(*given)
        keep = given[self.tensors + 4]
        apply: Any = Differentiable.apply
        return apply(self, *given) if keep else self.run(*given)

    def placed(self, tensors: Any, gradients: list[Any]) -> list[Any]:
        """Gradients in the order of arguments and fields, None where there is none."""
        core, left = self.core, iter(gradients)
        wanted = {a.name for a in core.wanted(tensors)}
        begun = {s.name for s in core.begun(tensors)}
        arguments = [next(left) if a.name in wanted else None for a in core.signature.arguments]
        return arguments + [next(left) if s.name in begun else None for s in core.signature.states]

    def _pull_twice(self, ctx: Any, *grads: Any) -> Any:
        raise twice(self.name)
