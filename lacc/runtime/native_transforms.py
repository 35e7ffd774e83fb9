"""Calls under a transform of torch in (`torch.vmap`, forward mode), what they mean out: a call on
more rows, one call each, or a refusal by name; and the sizes of tensors that a tracer holds open.

This module stands alone (NumPy; torch inside functions): its text is also pasted into the Python
part of emitted C files, before `native_torch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lacc.runtime.contract import Axis, Signature, axes_of, size_of


def transformed() -> bool:
    """Whether a transform of torch (vmap, forward mode, `torch.func`) is at work."""
    import torch
    from torch.autograd import forward_ad

    stack = torch._C._functorch.peek_interpreter_stack()
    return stack is not None or forward_ad._current_level >= 0


def refuse_tangents(name: str, given: Iterable[Any]) -> None:
    """Raises RuntimeError where forward mode would pass tangents through an operator that has no
    rule for them, or where `torch.func` wants gradients of it."""
    import torch
    from torch.autograd import forward_ad

    if not transformed():
        return
    if forward_ad._current_level >= 0:
        unpack: Any = forward_ad.unpack_dual
        if any(isinstance(x, torch.Tensor) and unpack(x).tangent is not None for x in given):
            raise RuntimeError(f"{name}: it has no derivatives in forward mode (jvp)")
    top = torch._C._functorch.peek_interpreter_stack()
    if top is not None and top.key() == torch._C._functorch.TransformType.Grad:
        why = "use autograd (backward, torch.autograd.grad) on it"
        raise RuntimeError(f"{name}: torch.func.grad and vjp do not reach it; {why}")


def vmapped(
    call: Callable[..., list[Any]],
    signature: Signature,
    foldable: bool,
    info: Any,
    in_dims: Sequence[int | None],
    given: Sequence[Any],
) -> tuple[list[Any], list[int]]:
    """Results of ``call`` over a dimension more, which is their first, and these dimensions.

    Arguments begin with those of the variant and the fields of its state, cu_seqlens and valid.
    Where each token and state has the dimension (``foldable``: nor are results summed over rows),
    it becomes rows of one call; where a param or cu_seqlens has it, there is one call each."""
    import torch

    n = info.batch_size
    values = (*signature.arguments, *signature.states)
    rows = [v.role not in ("param", "buffer") for v in values] + [False, True]
    rows += [True] * (len(given) - len(rows))
    moved = [x if d is None else x.movedim(d, 0) for x, d in zip(given, in_dims)]
    fixed = any(d is not None and not row for d, row in zip(in_dims, rows))
    if not foldable or fixed or given[len(values)] is not None:
        each = [call(*(x if d is None else x[i] for x, d in zip(moved, in_dims))) for i in range(n)]
        found = [torch.stack(parts) for parts in zip(*each)]
        return found, [0] * len(found)
    folded = []
    for x, d, row in zip(moved, in_dims, rows):
        if row and isinstance(x, torch.Tensor):
            x = (x.expand(n, *x.shape) if d is None else x).flatten(0, 1)
        folded.append(x)
    found = [x.unflatten(0, (n, -1)) for x in call(*folded)]
    return found, [0] * len(found)


def guess(length: Any) -> int:
    """A length as it is, or as a tracer saw it first, without holding it to that."""
    if isinstance(length, int):
        return length
    hint = length.node.hint
    return 2 if hint is None else int(hint)


def open_sizes(signature: Signature, given: Sequence[Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """``sizes`` of a call with those lengths that a tracer holds open, as the tensors have them."""
    found = dict(sizes)
    values = (*signature.arguments, *signature.states)
    for value, x in reversed([*zip(values, given)]):
        if x is not None and value.role != "state":
            found |= {a: n for a, n in zip(axes_of(value), x.shape) if isinstance(a, str)}
    if isinstance(found["#N"], int) and sizes["#N"] == sizes["#B"]:
        found["#N"] = found["#B"]
    return found


def open_size(axis: Axis, sizes: dict[str, Any]) -> Any:
    """The length of an axis; of a sum of products, which no tracer holds open, as a number."""
    if isinstance(axis, tuple):
        named = {name for _, *names in axis for name in names}
        return size_of(axis, {name: int(sizes[name]) for name in named if isinstance(name, str)})
    return size_of(axis, sizes)
