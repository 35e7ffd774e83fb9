"""A `torch.nn.Linear` and tokens in, what the layer gives out, from a kernel of lacc where that is
quicker than torch: MKL, by which torch multiplies, leaves out AVX-512 on processors that are not
Intel's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from lacc.compat.fla import kernel
from lacc.compat.kept import kept
from lacc.runtime.building import processor
from lacc.runtime.native import processors

ROWS = (512, 128)
"""Rows of a matrix that make a head: so many that threads have heads to share."""

FEW = 128
"""Fewer tokens than these go to torch."""


def bare(module: Module) -> bool:
    """Whether nobody looks at what goes into a module and comes out, so that it need not be
    called."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(module, word) for word in hooks) and not hasattr(module, "_hf_hook")


@kept
def gains() -> bool:
    """Whether kernels multiply faster than torch on this machine."""
    there = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return there and "AMD" in processor() and "avx512f" in processor()


def projected(linear: Any, x: Tensor) -> Tensor:
    """``linear(x)``, ``x`` [B, T, D]."""
    weight = linear.weight
    mine = gains() and type(linear) is Linear and bare(linear) and linear.bias is None
    mine = mine and type(x) is Tensor and type(weight) is torch.nn.Parameter
    mine = mine and x.is_cpu and x.dtype == weight.dtype == torch.float32
    mine = mine and x.shape[1] >= FEW and not torch.is_autocast_enabled("cpu")
    fits = (n for n in ROWS if mine and len(weight) % n == 0 and len(weight) >= n * processors())
    if not (rows := next(fits, 0)):
        y: Tensor = linear(x)
        return y
    y = kernel("projection")(x, weight.view(-1, rows, x.shape[-1]))[0]
    return y.flatten(2)
