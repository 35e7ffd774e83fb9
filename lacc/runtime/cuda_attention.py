"""Queries, keys and values of all tokens in, what each attends to and the gradients out: softmax
attention over time by CUDA kernels on torch tensors.

This module stands alone (torch only): its text is pasted into emitted files of what attends,
behind that of `torch_attention.py`. What the arguments are, `triton_attention.py` says.
"""

from __future__ import annotations

from typing import Any

import torch

from lacc.runtime.torch_attention import (
    attend_count,
    attend_last,
    attend_padded,
    attend_part,
    attend_seen,
    attend_summed,
)

ATTEND_TILE = 64
"""Tokens that a block of threads has."""


class CudaAttention:
    """Attention by the kernels that ``launched`` launches."""

    def __init__(self, launched: Any) -> None:
        self.launched = launched

    def forward(
        self,
        query: Any,
        keys: Any,
        values: Any,
        sink: Any,
        past_keys: Any,
        past_values: Any,
        window: int | None,
        run: Any,
        keep: bool,
        dtype: Any = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """What each token attends to and what the backward needs of it."""
        B, T, H, V = run.B, run.T, run.H, values.shape[3]
        o = query.new_empty(B, T, H, V, dtype=dtype or run.dtype)
        kept = tuple(query.new_empty(B, H, T, dtype=run.dtype) for _ in range(2 if keep else 0))
        if o.numel() == 0 or run.dry:
            return o, kept
        P = attend_seen(past_keys, past_values, window, run)
        pasts = attend_last(past_keys, P, None), attend_last(past_values, P, None)
        tiles = attend_count(run, ATTEND_TILE)
        given = query, keys, values, sink, *pasts
        numbers = (T, P, run.N, H, tiles, query.shape[3], V, window or 0)
        self.launched(
            "attend_forward",
            run,
            tiles * H,
            1,
            (*given, o, *(kept or (None, None)), run.cu, _position(P, run)),
            (*numbers, *_places(given, H)),
        )
        return o, kept

    def backward(
        self,
        query: Any,
        keys: Any,
        values: Any,
        sink: Any,
        past_keys: Any,
        past_values: Any,
        window: int | None,
        output: Any,
        kept: tuple[Any, ...],
        doutput: Any,
        run: Any,
    ) -> tuple[Any, ...]:
        """Gradients of all that `forward` took, from that of what it gave."""
        H, K, V = run.H, query.shape[3], values.shape[3]
        if output.numel() == 0 or run.dry:
            every = query, keys, values, sink, past_keys, past_values
            return tuple(None if x is None else torch.zeros_like(x) for x in every)
        mean = torch.empty_like(kept[0])
        P = attend_seen(past_keys, past_values, window, run)
        pasts = attend_last(past_keys, P, None), attend_last(past_values, P, None)
        dq = attend_part(query, 2, H, run)
        dsink = None if sink is None else attend_part(sink, 2, H, run)
        tiles = attend_count(run, ATTEND_TILE)
        given = query, keys, values, sink, *pasts
        self.launched(
            "attend_queries",
            run,
            tiles * H,
            1,
            (*given, doutput, output, *kept, mean, dq, dsink, run.cu, _position(P, run)),
            (run.T, P, run.N, H, tiles, K, V, window or 0, *_places(given, H), *doutput.stride()),
        )

        def pulled(k: Any, v: Any, axis: int, past: int) -> tuple[Any, Any]:
            """dk and dv of the call's keys and values, or of those before it."""
            blocks = run.N * -(-past // ATTEND_TILE) if past else attend_count(run, ATTEND_TILE)
            entries = max(k.shape[axis], v.shape[axis])
            if blocks * entries < run.sms:
                entries = H
            dk, dv = attend_part(k, axis, entries, run), attend_part(v, axis, entries, run)
            steps = [[x.stride(n) for n in (0, 3 - axis, axis, 3)] for x in (k, v, dk, dv)]
            self.launched(
                "attend_keys",
                run,
                blocks * entries,
                1,
                (query, k, v, doutput, *kept, mean, dk, dv, run.cu, _position(past, run)),
                (
                    *(run.T, past, run.N, H, entries, K, V, window or 0),
                    *(*query.stride(), H // query.shape[2]),
                    *(*steps[0], H // k.shape[axis], *steps[1], H // v.shape[axis]),
                    *(*doutput.stride(), *steps[2][:3], *steps[3][:3]),
                ),
            )
            return attend_summed(dk, k, axis), attend_summed(dv, v, axis)

        dk, dv = pulled(keys, values, 2, 0)
        of_past = pulled(*pasts, 1, P) if P else (None, None)
        dpast = [attend_padded(d, x) for d, x in zip(of_past, (past_keys, past_values))]
        dsink = None if sink is None else attend_summed(dsink, sink, 2)
        return attend_summed(dq, query, 2), dk, dv, dsink, *dpast


def _position(P: int, run: Any) -> Any:
    """How many tokens ever were before the call, where there is a past."""
    return run.position if P else None


def _places(given: tuple[Any, ...], H: int) -> tuple[int, ...]:
    """The strides of query, keys, values, sink, past keys and past values, behind those of each how
    many heads share an entry; 0 and 1 for what is not given."""
    found: list[int] = []
    for x, axis, rank in zip(given, (2, 2, 2, 2, 1, 1), (4, 4, 4, 3, 4, 4)):
        if x is None:
            found += [*(0,) * rank, 1]
        elif axis == 1:
            found += [*(x.stride(n) for n in (0, 2, 1, 3)), H // x.shape[1]]
        else:
            found += [*x.stride(), H // x.shape[2]]
    return tuple(found)
