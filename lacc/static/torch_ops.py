"""A function of tensors goes in; how often it runs each torch op that would launch a kernel of its
own comes out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = {
    *("view", "reshape", "_unsafe_view", "transpose", "t", "permute", "expand", "as_strided"),
    *("slice", "select", "squeeze", "unsqueeze", "unbind", "split", "split_with_sizes", "chunk"),
    *("detach", "detach_", "alias", "lift_fresh", "is_same_size", "_local_scalar_dense"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}
"""Torch ops that make a view or take memory, and launch nothing."""


class TorchOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the torch ops that would launch a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.name().removesuffix(f".{op._overloadname}")
        if (custom := OPDEFS.get(name)) is not None:  # what it runs is looked at instead
            with self:
                return custom._init_fn(*args, **(kwargs or {}))
        with self:
            if (parts := op.decompose(*args, **(kwargs or {}))) is not NotImplemented:
                return parts
        if (short := name.partition("::")[2]) not in VIEWS:
            self.seen[short] += 1
        return op(*args, **(kwargs or {}))
