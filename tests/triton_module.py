"""A spec in, its emitted Triton file loaded out, as `torch_standin.loaded` does it; and memory that
holds NaN until something is written there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_standin

import lacc
from lacc import interpreter
from lacc.runtime.contract import Signature
from lacc.runtime.kernel import load
from lacc.runtime.torch_calls import interpreted
from lacc.spec.model import Spec


def loaded(spec: Spec, signature: Signature) -> dict[str, Any]:
    """The names of the emitted file."""
    if interpreted():
        interpreter.repair()
    source = lacc.compile(spec, "triton").source
    assert source is not None
    return load(signature.name, source)


def filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What ``make`` gives, with `torch_standin.FILL` in it."""

    def made(*given: Any, **options: Any) -> torch.Tensor:
        found = make(*given, **options)
        return found.fill_(torch_standin.FILL) if found.is_floating_point() else found

    return made


def poison() -> None:
    """Makes all memory that kernels are given hold `torch_standin.FILL`."""
    torch.empty = filled(torch.empty)
    torch.empty_like = filled(torch.empty_like)
    new: Any = filled(torch.Tensor.new_empty)
    torch.Tensor.new_empty = new  # type: ignore[method-assign]
