"""Queries, keys and values of all tokens in, what each attends to and the gradients out: softmax
attention over time on torch tensors.

Never imported by lacc: the text is pasted into the emitted files of what attends, behind those of
`triton_attention_kernels.py` and `torch_attention.py`. The host calls two functions:

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
- run: B, T, H, N, dtype, FLOAT, PRECISION, cu, position, sms and dry are used; with ``cu`` B is 1.
- output [B, T, H, V] in ``dtype`` (run.dtype if None), contiguous. kept: two new tensors of
  run.dtype, () unless ``keep``; the backward takes them and the output again.
- doutput [B, T, H, V], any strides. Each gradient has the shape and dtype of its argument, None
  where that is None; heads that share an entry are summed.

A token sees nothing where all its logits are -inf: its output is 0. What is computed together
depends on shapes, ``cu`` and ``position`` alone; there are no atomics. ValueError where K or V are
too large for the device.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton

from lacc.runtime.torch_attention import (
    attend_count,
    attend_last,
    attend_padded,
    attend_part,
    attend_seen,
    attend_summed,
)
from lacc.runtime.triton_attention_kernels import (
    attend_forward_kernel,
    attend_join_kernel,
    attend_keys_kernel,
    attend_queries_kernel,
)


@dataclass(frozen=True)
class AttendTiles:
    """A launch of a kernel for axes up to ``width``: queries and keys of a tile, warps, stages."""

    width: int
    queries: int
    keys: int
    warps: int
    stages: int


# By PRECISION ("exact": "ieee" and "tf32x3") and kernel an `AttendTiles` a row; the first that is
# wide enough and fits the device is taken. "few": the forward of few tokens a sequence; "past": the
# keys before the call, which are float32 and so take more room, tensor memory too; beside them
# stands what products round them to.
# fmt: off
ATTEND_TILES = {
    ("bf16", "few"): (
        (64, 16, 64, 4, 3), (128, 16, 32, 4, 3), (256, 16, 32, 4, 2), (1024, 16, 16, 8, 1),
    ),
    ("bf16", "forward"): (
        (64, 128, 64, 8, 3), (64, 64, 32, 4, 2), (128, 128, 64, 8, 3), (128, 128, 32, 8, 2),
        (128, 64, 32, 4, 2), (256, 64, 32, 8, 2), (256, 32, 16, 4, 1), (1024, 16, 16, 8, 1),
    ),
    ("bf16", "queries"): (
        (64, 64, 64, 4, 3), (64, 64, 32, 4, 1), (128, 128, 64, 8, 2), (128, 128, 32, 8, 1),
        (128, 64, 32, 4, 1), (256, 32, 32, 8, 1), (1024, 16, 16, 8, 1),
    ),
    ("bf16", "keys"): (
        (64, 64, 64, 8, 3), (64, 32, 64, 4, 1), (128, 32, 128, 8, 2), (128, 32, 64, 8, 1),
        (256, 32, 32, 8, 1), (1024, 16, 16, 8, 1),
    ),
    ("bf16", "past"): (
        (64, 64, 64, 4, 3), (64, 32, 64, 4, 1), (128, 64, 16, 8, 1), (256, 32, 32, 8, 1),
        (1024, 16, 16, 8, 1),
    ),
    ("tf32", "few"): ((64, 16, 64, 4, 2), (128, 16, 32, 4, 2), (1024, 16, 16, 8, 1)),
    ("tf32", "forward"): ((64, 64, 64, 4, 2), (128, 64, 32, 8, 2), (1024, 16, 16, 8, 1)),
    ("tf32", "queries"): ((64, 64, 32, 4, 2), (128, 32, 32, 8, 1), (1024, 16, 16, 8, 1)),
    ("tf32", "keys"): ((64, 32, 64, 4, 2), (128, 32, 32, 8, 1), (1024, 16, 16, 8, 1)),
    ("tf32", "past"): ((64, 32, 64, 4, 2), (128, 32, 32, 8, 1), (1024, 16, 16, 8, 1)),
    ("exact", "few"): ((128, 16, 32, 4, 1), (1024, 16, 16, 8, 1)),
    ("exact", "forward"): ((128, 32, 32, 8, 1), (1024, 16, 16, 8, 1)),
    ("exact", "queries"): ((128, 32, 32, 8, 1), (1024, 16, 16, 8, 1)),
    ("exact", "keys"): ((128, 16, 32, 8, 1), (1024, 16, 16, 8, 1)),
    ("exact", "past"): ((128, 16, 32, 8, 1), (1024, 16, 16, 8, 1)),
}
# fmt: on


@cache
def attend_shared(device) -> int:
    """Bytes of shared memory that a program may have on a device."""
    if device.type == "cpu":
        return 1 << 40
    utils = triton.runtime.driver.active.utils
    return utils.get_device_properties(device.index or 0)["max_shared_mem"]


def attend_tiles(kernel, K, V, past, device, run):
    """The launch of a kernel for these axes. ValueError where they are too wide for the device."""
    rows = ATTEND_TILES[run.PRECISION if run.PRECISION in ("bf16", "tf32") else "exact", kernel]
    short = 2 if run.PRECISION == "bf16" else 4
    limit = attend_shared(device)
    K2, V2 = triton.next_power_of_2(K), triton.next_power_of_2(V)
    for tiles in (AttendTiles(*row) for row in rows):
        own, others, axes = tiles.queries, tiles.keys, K2
        if kernel in ("queries", "keys", "past"):
            axes += V2
        if kernel in ("keys", "past"):
            own, others = others, own
        ahead = tiles.stages * others * (K2 + V2) * (4 if past else short)
        if past and short < 4:
            ahead += others * (K2 + V2 + own) * short
        if tiles.width >= max(K, V) and own * axes * short + ahead <= limit:
            return tiles
    sizes = f"attend: queries of {K} and values of {V} entries"
    if max(K, V) > rows[-1][0]:
        raise ValueError(f"{sizes}: a kernel takes at most {rows[-1][0]}")
    raise ValueError(f"{sizes} do not fit {limit >> 10} KiB of shared memory")


def attend_parts(run, programs, P):
    """Into how many parts, a power of two, the past is split so that a device has enough to do:
    none where there are programs enough, else each part has 256 rows or more."""
    parts = min(2 * run.sms // max(programs, 1), P // 256, 64)
    return 1 << max(parts, 1).bit_length() - 1


def attend_forward(
    query, keys, values, sink, past_keys, past_values, window, run, keep, dtype=None
):  # fmt: skip
    """What each token attends to and what the backward needs of it: see above."""
    B, T, H, K, V = run.B, run.T, run.H, query.shape[3], values.shape[3]
    o = query.new_empty(B, T, H, V, dtype=dtype or run.dtype)
    kept = tuple(query.new_empty(B, H, T, dtype=run.dtype) for _ in range(2 if keep else 0))
    if o.numel() == 0 or run.dry:
        return o, kept
    P = attend_seen(past_keys, past_values, window, run)
    pk, pv = attend_last(past_keys, P, keys), attend_last(past_values, P, values)
    few = T <= 16 * run.N
    tiles = attend_tiles("few" if few else "forward", K, V, P > 0, query.device, run)
    blocks = attend_count(run, tiles.queries)
    parts = attend_parts(run, blocks * H, P)
    seen = o, *(kept or (o, o))
    if parts > 1:
        shapes = (B, T, H, V), (B, H, T), (B, H, T)
        seen = [query.new_empty(parts, *shape, dtype=run.dtype) for shape in shapes]
    attend_forward_kernel[blocks, H, parts](
        query, *query.stride(), keys, *keys.stride(), values, *values.stride(),
        *((query, 0, 0, 0) if sink is None else (sink, *sink.stride())),
        pk, *pk.stride(), pv, *pv.stride(), *seen, query if run.cu is None else run.cu,
        query if P == 0 else run.position, T, P, run.N, H,
        *(H // (x.shape[2] if x is not None else 1) for x in (query, keys, values, sink)),
        H // pk.shape[1] if P else 1, H // pv.shape[1] if P else 1, K, V, tiles.queries,
        tiles.keys, parts, window or 0, run.cu is not None, P > 0, sink is not None,
        keep or parts > 1, run.FLOAT, run.PRECISION, num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip
    if parts > 1:
        attend_join_kernel[B * T, H](*seen, o, *(kept or (o, o)), B, T, H, V, parts, keep)
    return o, kept


def attend_backward(
    query, keys, values, sink, past_keys, past_values, window, output, kept, doutput, run
):  # fmt: skip
    """Gradients of all that `attend_forward` took, from that of what it gave: see above."""
    T, H, K, V = run.T, run.H, query.shape[3], values.shape[3]
    if output.numel() == 0 or run.dry:
        given = query, keys, values, sink, past_keys, past_values
        return tuple(None if x is None else torch.zeros_like(x) for x in given)
    base, share = kept
    mean = torch.empty_like(base)
    P = attend_seen(past_keys, past_values, window, run)
    pk, pv = attend_last(past_keys, P, keys), attend_last(past_values, P, values)
    cu, position = query if run.cu is None else run.cu, query if P == 0 else run.position
    dq = attend_part(query, 2, H, run)
    dsink = None if sink is None else attend_part(sink, 2, H, run)
    tiles = attend_tiles("queries", K, V, P > 0, query.device, run)
    attend_queries_kernel[attend_count(run, tiles.queries), H](
        query, *query.stride(), keys, *keys.stride(), values, *values.stride(),
        *((query, 0, 0, 0) if sink is None else (sink, *sink.stride())),
        pk, *pk.stride(), pv, *pv.stride(), doutput, *doutput.stride(), output, base, share, mean,
        dq, dq if dsink is None else dsink, cu, position, T, P, run.N, H,
        *(H // (x.shape[2] if x is not None else 1) for x in (query, keys, values, sink)),
        H // pk.shape[1] if P else 1, H // pv.shape[1] if P else 1, K, V, tiles.queries,
        tiles.keys, window or 0, run.cu is not None, P > 0, sink is not None, run.FLOAT,
        run.PRECISION, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip

    def pulled(k, v, axis, past):
        """dk and dv of the call's keys and values, or of those before it."""
        tiles = attend_tiles("past" if past else "keys", K, V, past, query.device, run)
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
