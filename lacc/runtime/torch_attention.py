"""Arguments of an attention in, how many tiles and rows there are and where gradients are summed
out: what hosts of attention kernels on torch tensors share.

This module stands alone (torch only): its text is pasted into emitted files of what attends.
"""

from __future__ import annotations

from typing import Any

import torch


def attend_count(run: Any, tokens: int) -> int:
    """How many tiles of tokens there are, at most."""
    B, T, N = int(run.B), int(run.T), int(run.N)
    return B * -(-T // tokens) if run.cu is None else T // tokens + N


def attend_seen(past_keys: Any, past_values: Any, window: int | None, run: Any) -> int:
    """How many rows of the past a token may see."""
    if past_keys is None or run.position is None:
        return 0
    known: int = min(past_keys.shape[2], past_values.shape[2])
    return known if window is None else min(known, window - 1)


def attend_last(past: Any, P: int, instead: Any) -> Any:
    """The last P rows of a past; without, anything of as many axes."""
    return instead if P == 0 else past[:, :, past.shape[2] - P :]


def attend_part(like: Any, axis: int, entries: int, run: Any) -> Any:
    """Memory for the gradient of something over ``entries``: in its own dtype if those are its."""
    shape = list(like.shape)
    dtype = like.dtype if shape[axis] == entries else run.dtype
    shape[axis] = entries
    return like.new_empty(shape, dtype=dtype)


def attend_summed(part: Any, like: Any, axis: int) -> Any:
    """The sum over heads that share an entry."""
    if part.shape[axis] == like.shape[axis]:
        return part
    return part.unflatten(axis, (like.shape[axis], -1)).sum(axis + 1).to(like.dtype)


def attend_padded(part: Any, past: Any) -> Any:
    """The gradient of a whole past from that of its last rows."""
    if past is None or (part is not None and part.shape == past.shape):
        return part
    whole = torch.zeros_like(past)
    if part is not None:
        whole[:, :, past.shape[2] - part.shape[2] :] = part
    return whole
