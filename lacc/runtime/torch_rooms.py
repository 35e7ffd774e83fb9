"""One run of the passes in, room for what its kernels give out.

This module stands alone (torch only): its text is pasted into emitted files of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from lacc.runtime.torch_walk import power_from


def block(size: int, least: int) -> int:
    """Entries of a tile along an axis of ``size``: a power of two, at least ``least``."""
    return power_from(size, least)


def strides(x: Any, count: int) -> tuple[int, ...]:
    """The strides of a tensor that may not be there."""
    return (0,) * count if x is None else x.stride()


def token_room(run: Any, dtype: Any, *axes: int) -> torch.Tensor:
    """[B, T, H, *axes], not filled."""
    return torch.empty((run.B, run.T, run.H, *axes), dtype=dtype, device=run.device)


def chunk_room(run: Any, dtype: Any, *axes: int) -> torch.Tensor:
    """[chunks, H, *axes], not filled."""
    return torch.empty((run.chunks, run.H, *axes), dtype=dtype, device=run.device)


def state_room(run: Any, *axes: int) -> torch.Tensor:
    """[N, H, *axes], not filled."""
    return torch.empty((run.N, run.H, *axes), dtype=run.dtype, device=run.device)


def apart(begun: Mapping[str, Any], run: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """States before the first token, those of ``names`` as copies where a run writes in place."""
    if run.into is None:
        return begun
    copies = {name: begun[name].clone() for name in names if begun[name] is not None}
    return {**begun, **copies}


def finer(run: Any) -> Any:
    """The run with products that round less than bfloat16 does: for gradients that cancel."""
    return replace(run, PRECISION="tf32") if run.PRECISION == "bf16" else run


def scratch_room(run: Any, *axes: int) -> torch.Tensor:
    """[N, H, C, *axes], not filled."""
    return torch.empty((run.N, run.H, run.C, *axes), dtype=run.dtype, device=run.device)


def operand_dtype(run: Any) -> torch.dtype:
    """The dtype of what only products take, which round it anyway."""
    return torch.bfloat16 if run.PRECISION == "bf16" else run.dtype


def gradient_room(run: Any, x: Any, level: str, *axes: int) -> torch.Tensor | None:
    """[B, T, H, *axes] for the gradient of an argument: in its dtype where no more is added to it;
    None where it is omitted."""
    if x is None:
        return None
    return token_room(run, x.dtype if level == "head" else run.dtype, *axes)


def partial_room(run: Any, x: Any, parts: int, *axes: int) -> torch.Tensor | None:
    """[parts, H, *axes] for sums of the gradient of a param, 0 where no program of a part may add
    to it; None where it is omitted."""
    if x is None:
        return None
    room = torch.empty if run.table is None else torch.zeros
    return room((parts, run.H, *axes), dtype=run.dtype, device=run.device)
