"""Queries, keys and values of all tokens in, what each attends to and the gradients out: softmax
attention over time on torch tensors.

Never imported by lacc: the text is pasted into the emitted files of what attends, behind that of
`triton_attention_kernels.py`. The host calls two functions:

    attend_forward(query, keys, values, sink, past_keys, past_values, window, run, keep, dtype=None)
        -> output, kept
    attend_backward(query, keys, values, sink, past_keys, past_values, window, output, kept,
                    doutput, run)
        -> dquery, dkeys, dvalues, dsink, dpast_keys, dpast_values

- query, keys [B, T, E, K] and values [B, T, E, V] of any strides and float dtypes. E entries serve
  H heads, each H / E neighbouring ones: E is H, G (per group) or 1 (per layer), each argument has
  its own. A value without an axis is given as one over an axis of size 1, by a view.
- sink None or [B, T, E], one more logit whose value is 0; a parameter is given as a view (expand).
- past_keys [N, E, P, K], past_values [N, E, P, V], both or neither None: the P tokens before the
  call, the last of them last; only the last min(P, run.position[n]) ever were (none where position
  is None), the others are never used. Each may have a P of its own: the last of both are seen.
- window: a token sees itself and those before it, the last ``window`` of them, or all (None).
- run: B, T, H, N, dtype, FLOAT, PRECISION, cu, position and sms are used; with ``cu`` B is 1.
- output [B, T, H, V] in ``dtype`` (run.dtype if None), contiguous. kept: two new tensors of
  run.dtype, () unless ``keep``; the backward takes them and the output again.
- doutput [B, T, H, V], any strides. Each gradient has the shape and dtype of its argument, None
  where that is None; heads that share an entry are summed.

A token sees nothing where all its logits are -inf: its output and gradients are 0. Nothing depends
on the contents of arrays but for ``cu`` and ``position``; there are no atomics.
"""

from dataclasses import dataclass

import torch
import triton

from lacc.runtime.triton_attention_kernels import (
    attend_forward_kernel,
    attend_keys_kernel,
    attend_queries_kernel,
)


@dataclass(frozen=True)
class AttendTiles:
    """A launch: queries and keys of a tile, warps, stages of the pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


ATTEND_TILES = {
    ("forward", 2): ((64, 128, 64, 4, 3), (128, 128, 64, 8, 3), (256, 64, 32, 8, 2)),
    ("forward", 4): ((64, 64, 32, 4, 2), (128, 32, 32, 4, 2), (256, 16, 16, 4, 2)),
    ("queries", 2): ((64, 64, 64, 4, 3), (128, 64, 64, 8, 2), (256, 32, 32, 8, 1)),
    ("queries", 4): ((64, 32, 32, 4, 2), (128, 32, 32, 8, 1), (256, 16, 16, 8, 1)),
    ("keys", 2): ((64, 64, 64, 4, 3), (128, 32, 64, 8, 2), (256, 32, 32, 8, 1)),
    ("keys", 4): ((64, 32, 32, 4, 2), (128, 16, 32, 8, 1), (256, 16, 16, 8, 1)),
}
"""By kernel and bytes of what is multiplied: the widest axis, then an `AttendTiles`."""


def attend_tiles(kernel: str, K: int, V: int, PRECISION: str) -> AttendTiles:
    """The launch for these sizes; wider axes than the table knows take its last row."""
    rows = ATTEND_TILES[kernel, 2 if PRECISION == "bf16" else 4]
    _, *tiles = next((row for row in rows if row[0] >= max(K, V)), rows[-1])
    return AttendTiles(*tiles)


def attend_count(run, tokens: int) -> int:
    """How many tiles of tokens there are, at most."""
    if run.cu is None:
        return run.B * triton.cdiv(run.T, tokens)
    return run.T // tokens + run.N


def attend_seen(past_keys, past_values, window, run) -> int:
    """How many rows of the past a token may see."""
    if past_keys is None or run.position is None:
        return 0
    known = min(past_keys.shape[2], past_values.shape[2])
    return known if window is None else min(known, window - 1)


def attend_last(past, P: int, instead):
    """The last P rows of a past; without, anything of as many axes."""
    return instead if P == 0 else past[:, :, past.shape[2] - P :]


def attend_forward(
    query, keys, values, sink, past_keys, past_values, window, run, keep, dtype=None
):  # fmt: skip
    """What each token attends to and what the backward needs of it: see above."""
    B, T, H, K, V = run.B, run.T, run.H, query.shape[3], values.shape[3]
    o = query.new_empty(B, T, H, V, dtype=dtype or run.dtype)
    kept = [query.new_empty(B, H, T, dtype=run.dtype) for _ in range(2 if keep else 0)]
    if o.numel() == 0:
        return o, tuple(kept)
    P = attend_seen(past_keys, past_values, window, run)
    pk, pv = attend_last(past_keys, P, keys), attend_last(past_values, P, values)
    tiles = attend_tiles("forward", K, V, run.PRECISION)
    attend_forward_kernel[attend_count(run, tiles.queries), H](
        query, *query.stride(), keys, *keys.stride(), values, *values.stride(),
        *((query, 0, 0, 0) if sink is None else (sink, *sink.stride())),
        pk, *pk.stride(), pv, *pv.stride(), o, *(kept or (o, o)),
        query if run.cu is None else run.cu, query if P == 0 else run.position, T, P, run.N, H,
        *(H // (x.shape[2] if x is not None else 1) for x in (query, keys, values, sink)),
        H // pk.shape[1], H // pv.shape[1], K, V, tiles.queries, tiles.keys, window or 0,
        run.cu is not None, P > 0, sink is not None, keep, run.FLOAT, run.PRECISION,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return o, tuple(kept)


def attend_backward(
    query, keys, values, sink, past_keys, past_values, window, output, kept, doutput, run
):  # fmt: skip
    """Gradients of all that `attend_forward` took, from that of what it gave: see above."""
    T, H, K, V = run.T, run.H, query.shape[3], values.shape[3]
    if output.numel() == 0:
        given = query, keys, values, sink, past_keys, past_values
        return tuple(None if x is None else torch.zeros_like(x) for x in given)
    base, share = kept
    mean = torch.empty_like(base)
    P = attend_seen(past_keys, past_values, window, run)
    pk, pv = attend_last(past_keys, P, keys), attend_last(past_values, P, values)
    cu, position = query if run.cu is None else run.cu, query if P == 0 else run.position
    dq = attend_part(query, 2, H, run)
    dsink = None if sink is None else attend_part(sink, 2, H, run)
    tiles = attend_tiles("queries", K, V, run.PRECISION)
    attend_queries_kernel[attend_count(run, tiles.queries), H](
        query, *query.stride(), keys, *keys.stride(), values, *values.stride(),
        *((query, 0, 0, 0) if sink is None else (sink, *sink.stride())),
        pk, *pk.stride(), pv, *pv.stride(), doutput, *doutput.stride(), output, base, share, mean,
        dq, dq if dsink is None else dsink, cu, position, T, P, run.N, H,
        *(H // (x.shape[2] if x is not None else 1) for x in (query, keys, values, sink)),
        H // pk.shape[1], H // pv.shape[1], K, V, tiles.queries, tiles.keys, window or 0,
        run.cu is not None, P > 0, sink is not None, run.FLOAT, run.PRECISION,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip

    def pulled(k, v, axis, past):
        """dk and dv of the call's keys and values, or of those before it."""
        tiles = attend_tiles("keys", K, V, run.PRECISION)
        blocks = run.N * triton.cdiv(P, tiles.keys) if past else attend_count(run, tiles.keys)
        entries = max(k.shape[axis], v.shape[axis])
        if blocks * entries < run.sms:
            entries = H
        dk, dv = attend_part(k, axis, entries, run), attend_part(v, axis, entries, run)
        strides = [[x.stride(n) for n in (0, 3 - axis, axis, 3)] for x in (k, v, dk, dv)]
        attend_keys_kernel[blocks, entries](
            query, *query.stride(), k, *strides[0], v, *strides[1], doutput, *doutput.stride(),
            base, share, mean, dk, *strides[2][:3], dv, *strides[3][:3], cu, position, T, P,
            run.N, H, H // query.shape[2], H // k.shape[axis], H // v.shape[axis], H // entries,
            K, V, tiles.queries, tiles.keys, window or 0, run.cu is not None, past, run.FLOAT,
            run.PRECISION, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        return attend_summed(dk, k, axis), attend_summed(dv, v, axis)

    dk, dv = pulled(keys, values, 2, False)
    dpast = pulled(pk, pv, 1, True) if P else (None, None)
    dpast = [attend_padded(d, x) for d, x in zip(dpast, (past_keys, past_values))]
    return (
        attend_summed(dq, query, 2), dk, dv,
        None if sink is None else attend_summed(dsink, sink, 2), *dpast,
    )  # fmt: skip


def attend_part(like, axis, entries, run):
    """Memory for the gradient of something over ``entries``: in its own dtype if those are its."""
    shape = list(like.shape)
    dtype = like.dtype if shape[axis] == entries else run.dtype
    shape[axis] = entries
    return like.new_empty(shape, dtype=dtype)


def attend_summed(part, like, axis):
    """The sum over heads that share an entry."""
    if part.shape[axis] == like.shape[axis]:
        return part
    return part.unflatten(axis, (like.shape[axis], -1)).sum(axis + 1).to(like.dtype)


def attend_padded(part, past):
    """The gradient of a whole past from that of its last rows."""
    if past is None or (part is not None and part.shape == past.shape):
        return part
    whole = torch.zeros_like(past)
    if part is not None:
        whole[:, :, past.shape[2] - part.shape[2] :] = part
    return whole
