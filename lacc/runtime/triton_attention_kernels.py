"""Queries, keys and values in memory in, softmax attention over time and its gradients out: Triton
kernels that never hold a T by T array.

Never imported by lacc: emitted files of what attends hold a copy, behind which stands that of
`triton_attention.py`, whose text says what the arrays are.

Notation: logits are in base 2 under the exponential. ``base`` is the largest logit of a query in
base 2 (0 where that is -inf) and ``share`` is 1 / Σ 2^(logit - base): kept apart, since one
logarithm of the sum would cost large logits their digits. Products of two operands that come from
memory in one 16-bit dtype are exact, all others round their operands to PRECISION.
"""

import triton
import triton.language as tl

from lacc.runtime.triton_axes import exact

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_dot(a, b, FLOAT: tl.constexpr, PRECISION: tl.constexpr):
    """a @ b in FLOAT."""
    if a.dtype == b.dtype and a.dtype.primitive_bitwidth == 16:
        return tl.dot(a, b).to(FLOAT)
    elif PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16)).to(FLOAT)
    else:
        return tl.dot(a.to(FLOAT), b.to(FLOAT), input_precision=PRECISION)


@triton.jit
def attend_logits(a, b, FLOAT: tl.constexpr, PRECISION: tl.constexpr):
    """a @ b in FLOAT. What is kept in FLOAT is not rounded: sums over time may stand in it, of
    which the differences count."""
    if a.dtype.primitive_bitwidth == 16 and b.dtype.primitive_bitwidth == 16:
        return attend_dot(a, b, FLOAT, PRECISION)
    else:
        return tl.dot(a.to(FLOAT), b.to(FLOAT), input_precision=exact(PRECISION))


@triton.jit
def attend_place(tile, cu, T, N, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """Of a tile of BLOCK tokens: its sequence, its first token and the first one of its sequence
    in the batch's row, the row, and the sequence's length (the tile may lie behind its end)."""
    if PACKED:
        low, high = tile * 0, tile * 0 + N - 1
        while low < high:
            middle = (low + high + 1) // 2
            behind = tl.load(cu + middle) // BLOCK + middle > tile
            high = tl.where(behind, middle - 1, high)
            low = tl.where(behind, low, middle)
        begin = tl.load(cu + low)
        first = tile - (begin // BLOCK).to(tl.int32) - low
        return low, first * BLOCK, begin, begin * 0, (tl.load(cu + low + 1) - begin).to(tl.int32)
    else:
        tiles = tl.cdiv(T, BLOCK)
        n = tile // tiles
        row = n.to(tl.int64)
        return n, (tile - n * tiles) * BLOCK, row * 0, row, T


@triton.jit
def attend_rows(x, first, low, high, step, inner, D: tl.constexpr, BLOCK: tl.constexpr):
    """Rows from ``first`` on of x, with ``step`` and ``inner`` its strides, as a tile; 0 outside
    low .. high and behind D."""
    BD: tl.constexpr = attend_width(D)
    t, d = first + tl.arange(0, BLOCK), tl.arange(0, BD)
    at = x + t.to(tl.int64)[:, None] * step + d.to(tl.int64)[None, :] * inner
    there = (t >= low) & (t < high)
    if D == BD:
        return tl.load(at, mask=there[:, None], other=0.0)
    else:
        return tl.load(at, mask=there[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def attend_put(x, tile, first, high, step, inner, D: tl.constexpr):
    """Stores a tile of rows from ``first`` on, as far as they lie before ``high``."""
    BLOCK: tl.constexpr = tile.shape[0]
    BD: tl.constexpr = tile.shape[1]
    t, d = first + tl.arange(0, BLOCK), tl.arange(0, BD)
    at = x + t.to(tl.int64)[:, None] * step + d.to(tl.int64)[None, :] * inner
    tl.store(at, tile.to(x.dtype.element_ty), mask=(t < high)[:, None] & (d < D)[None, :])


@triton.constexpr_function
def attend_width(d):
    """What an axis of d entries is padded to."""
    return max(16, 1 << (d - 1).bit_length())


@triton.jit
def attend_sees(t, s, WINDOW: tl.constexpr):
    """Whether a token at t sees one at s; WINDOW 0: any before it."""
    if WINDOW:
        return (s <= t) & (s > t - WINDOW)
    else:
        return s <= t


@triton.jit
def attend_keys(first, T, BM: tl.constexpr, BN: tl.constexpr, WINDOW: tl.constexpr):
    """Of the tiles of BN keys that BM queries see: where they start, where those start and stop
    that all queries see whole, and where they all stop."""
    low, whole, stop = 0, 0, (first + 1) // BN * BN
    if WINDOW:
        low = tl.maximum(first + 1 - WINDOW, 0) // BN * BN
        whole = tl.minimum(tl.cdiv(tl.maximum(first + BM - WINDOW, 0), BN) * BN, stop)
    return low, whole, stop, tl.minimum(first + BM, T)


@triton.jit
def attend_past(first, seen, P, BN: tl.constexpr, WINDOW: tl.constexpr):
    """The first row of the past that ever was, and the first tile that queries from ``first`` on
    see of it."""
    low = P - tl.minimum(seen, P).to(tl.int32)
    start = low
    if WINDOW:
        start = tl.maximum(low, P + first + 1 - WINDOW)
    return low, start // BN * BN


@triton.jit
def attend_grown(top, more):
    """The larger of two largest logits, the base it gives, and what is kept of sums to ``top``."""
    grown = tl.maximum(top, more)
    base = tl.where(grown == float("-inf"), 0.0, grown * LOG2E)
    return grown, base, tl.exp2(top * LOG2E - base)


@triton.jit
def attend_share(total):
    """1 / total, 0 where there is nothing."""
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@triton.jit
def attend_fold(
    q, k, v, sees, top, total, sums,
    EDGE: tl.constexpr, FLOAT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax of queries with one more tile of keys and values."""
    logits = attend_logits(q, tl.trans(k), FLOAT, PRECISION)
    if EDGE:
        logits = tl.where(sees, logits, float("-inf"))
    grown, base, kept = attend_grown(top, tl.max(logits, 1))
    p = tl.exp2(logits * LOG2E - base[:, None])
    sums = sums * kept[:, None] + attend_dot(p, v, FLOAT, PRECISION)
    return grown, total * kept + tl.sum(p, 1), sums


@triton.jit
def attend_pull(
    q, k, v, ct, sees, base, share, mean, dq,
    EDGE: tl.constexpr, FLOAT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq with what one more tile of keys and values adds to it."""
    logits = attend_logits(q, tl.trans(k), FLOAT, PRECISION)
    if EDGE:
        logits = tl.where(sees, logits, float("-inf"))
    p = tl.exp2(logits * LOG2E - base[:, None]) * share[:, None]
    d = p * (attend_dot(ct, tl.trans(v), FLOAT, PRECISION) - mean[:, None])
    return dq + attend_dot(d, k, FLOAT, PRECISION)


ATTEND_SIZES = ["T", "P", "N", "H"]


@triton.jit(do_not_specialize=ATTEND_SIZES)
def attend_forward_kernel(
    q_ptr, q_b, q_t, q_h, q_d, k_ptr, k_b, k_t, k_h, k_d, v_ptr, v_b, v_t, v_h, v_d,
    sink_ptr, sink_b, sink_t, sink_h, pk_ptr, pk_n, pk_h, pk_t, pk_d, pv_ptr, pv_n, pv_h, pv_t,
    pv_d, o_ptr, base_ptr, share_ptr, cu_ptr, position_ptr, T, P, N, H, q_per, k_per, v_per,
    sink_per, pk_per, pv_per, K: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, PAST: tl.constexpr,
    SINK: tl.constexpr, KEEP: tl.constexpr, FLOAT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output, base and share of BM queries of one head, the longest rows first. Where PARTS
    programs share the past, each gives those of what it saw, [PARTS, ...]."""
    tile, h = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    n, first, begin, row, length = attend_place(tile, cu_ptr, T, N, BM, PACKED)
    if first >= length:
        return
    t, s = first + tl.arange(0, BM), tl.arange(0, BN)
    q_ptr += row * q_b + begin * q_t + h // q_per * q_h
    k_ptr += row * k_b + begin * k_t + h // k_per * k_h
    v_ptr += row * v_b + begin * v_t + h // v_per * v_h
    part = tl.program_id(2) if PARTS > 1 else 0
    q = attend_rows(q_ptr, first, 0, length, q_t, q_d, K, BM)
    top, total = tl.full([BM], float("-inf"), FLOAT), tl.zeros([BM], FLOAT)
    sums = tl.zeros([BM, attend_width(V)], FLOAT)
    low, whole, stop, end = attend_keys(first, length, BM, BN, WINDOW)
    if PARTS > 1:
        stop = tl.where(part == 0, stop, whole)
        low, end = tl.where(part == 0, low, whole), tl.where(part == 0, end, whole)
    for at in range(whole, stop, BN):
        k = attend_rows(k_ptr, at, 0, length, k_t, k_d, K, BN)
        v = attend_rows(v_ptr, at, 0, length, v_t, v_d, V, BN)
        top, total, sums = attend_fold(q, k, v, t, top, total, sums, False, FLOAT, PRECISION)
    left = (whole - low) // BN
    for i in range(0, left + tl.cdiv(end - stop, BN)):
        at = i * BN + tl.where(i < left, low, stop - left * BN)
        k = attend_rows(k_ptr, at, 0, length, k_t, k_d, K, BN)
        v = attend_rows(v_ptr, at, 0, length, v_t, v_d, V, BN)
        sees = attend_sees(t[:, None], at + s[None, :], WINDOW)
        top, total, sums = attend_fold(q, k, v, sees, top, total, sums, True, FLOAT, PRECISION)
    if PAST:
        pk_ptr += n.to(tl.int64) * pk_n + h // pk_per * pk_h
        pv_ptr += n.to(tl.int64) * pv_n + h // pv_per * pv_h
        born, start = attend_past(first, tl.load(position_ptr + n), P, BN, WINDOW)
        behind = P
        if PARTS > 1:
            each = tl.cdiv(P - start, BN * PARTS) * BN
            start += part * each
            behind = tl.minimum(start + each, P)
        for at in range(start, behind, BN):
            k = attend_rows(pk_ptr, at, born, P, pk_t, pk_d, K, BN)
            v = attend_rows(pv_ptr, at, born, P, pv_t, pv_d, V, BN)
            there = at + s[None, :]
            sees = attend_sees(t[:, None], there - P, WINDOW) & (there >= born) & (there < P)
            top, total, sums = attend_fold(q, k, v, sees, top, total, sums, True, FLOAT, PRECISION)
    if SINK:
        sink_ptr += row * sink_b + begin * sink_t + h // sink_per * sink_h
        sink = tl.load(sink_ptr + t.to(tl.int64) * sink_t, mask=t < length, other=0.0).to(FLOAT)
        if PARTS > 1:
            sink = tl.where(part == 0, sink, float("-inf"))
        top, base, kept = attend_grown(top, sink)
        total, sums = total * kept + tl.exp2(sink * LOG2E - base), sums * kept[:, None]
    share = attend_share(total)
    if PARTS > 1:
        row += part.to(tl.int64) * (1 if PACKED else N)
    o_ptr += ((row * T + begin) * H + h) * V
    attend_put(o_ptr, sums * share[:, None], first, length, H * V, 1, V)
    if KEEP:
        at = (row * H + h) * T + begin + t
        tl.store(base_ptr + at, tl.where(top == float("-inf"), 0.0, top * LOG2E), mask=t < length)
        tl.store(share_ptr + at, share, mask=t < length)


@triton.jit(do_not_specialize=["B", "T", "H"])
def attend_join_kernel(
    part_ptr, bases_ptr, shares_ptr, o_ptr, base_ptr, share_ptr, B, T, H, V: tl.constexpr,
    PARTS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Output, base and share of a token from those of what each part saw."""
    token, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, d = tl.arange(0, PARTS), tl.arange(0, attend_width(V))
    row = token // T
    at = (row * H + h) * T + token - row * T
    each = part.to(tl.int64) * B * H * T
    bases, shares = tl.load(bases_ptr + each + at), tl.load(shares_ptr + each + at)
    base = tl.max(tl.where(shares == 0.0, float("-inf"), bases), 0)
    base = tl.where(base == float("-inf"), 0.0, base)
    totals = tl.where(shares == 0.0, 0.0, tl.exp2(bases - base) * attend_share(shares))
    share = attend_share(tl.sum(totals, 0))
    where = (token * H + h) * V + d
    o = tl.load(part_ptr + each[:, None] * V + where[None, :], mask=(d < V)[None, :], other=0.0)
    o = tl.sum(o * (totals * share)[:, None], 0)
    tl.store(o_ptr + where, o.to(o_ptr.dtype.element_ty), mask=d < V)
    if KEEP:
        tl.store(base_ptr + at, base)
        tl.store(share_ptr + at, share)


@triton.jit(do_not_specialize=ATTEND_SIZES)
def attend_queries_kernel(
    q_ptr, q_b, q_t, q_h, q_d, k_ptr, k_b, k_t, k_h, k_d, v_ptr, v_b, v_t, v_h, v_d,
    sink_ptr, sink_b, sink_t, sink_h, pk_ptr, pk_n, pk_h, pk_t, pk_d, pv_ptr, pv_n, pv_h, pv_t,
    pv_d, ct_ptr, ct_b, ct_t, ct_h, ct_d, o_ptr, base_ptr, share_ptr, mean_ptr, dq_ptr, dsink_ptr,
    cu_ptr, position_ptr, T, P, N, H, q_per, k_per, v_per, sink_per, pk_per, pv_per,
    K: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WINDOW: tl.constexpr,
    PACKED: tl.constexpr, PAST: tl.constexpr, SINK: tl.constexpr, FLOAT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dq and dsink of BM queries of one head, and their mean o · do for the keys' kernel."""
    tile, h = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    n, first, begin, row, length = attend_place(tile, cu_ptr, T, N, BM, PACKED)
    if first >= length:
        return
    t, s = first + tl.arange(0, BM), tl.arange(0, BN)
    q_ptr += row * q_b + begin * q_t + h // q_per * q_h
    k_ptr += row * k_b + begin * k_t + h // k_per * k_h
    v_ptr += row * v_b + begin * v_t + h // v_per * v_h
    ct_ptr += row * ct_b + begin * ct_t + h * ct_h
    o_ptr += ((row * T + begin) * H + h) * V
    q = attend_rows(q_ptr, first, 0, length, q_t, q_d, K, BM)
    ct = attend_rows(ct_ptr, first, 0, length, ct_t, ct_d, V, BM)
    o = attend_rows(o_ptr, first, 0, length, H * V, 1, V, BM)
    mean = tl.sum(ct.to(FLOAT) * o.to(FLOAT), 1)
    at = (row * H + h) * T + begin + t
    base = tl.load(base_ptr + at, mask=t < length, other=0.0)
    share = tl.load(share_ptr + at, mask=t < length, other=0.0)
    tl.store(mean_ptr + at, mean, mask=t < length)
    if SINK:
        sink_ptr += row * sink_b + begin * sink_t + h // sink_per * sink_h
        sink = tl.load(sink_ptr + t.to(tl.int64) * sink_t, mask=t < length, other=0.0).to(FLOAT)
        dsink = -tl.exp2(sink * LOG2E - base) * share * mean
        dsink_ptr += (row * T + begin) * H + h
        tl.store(dsink_ptr + t.to(tl.int64) * H, dsink, mask=t < length)
    dq = tl.zeros([BM, attend_width(K)], FLOAT)
    low, whole, stop, end = attend_keys(first, length, BM, BN, WINDOW)
    for at in range(whole, stop, BN):
        k = attend_rows(k_ptr, at, 0, length, k_t, k_d, K, BN)
        v = attend_rows(v_ptr, at, 0, length, v_t, v_d, V, BN)
        dq = attend_pull(q, k, v, ct, t, base, share, mean, dq, False, FLOAT, PRECISION)
    left = (whole - low) // BN
    for i in range(0, left + tl.cdiv(end - stop, BN)):
        at = i * BN + tl.where(i < left, low, stop - left * BN)
        k = attend_rows(k_ptr, at, 0, length, k_t, k_d, K, BN)
        v = attend_rows(v_ptr, at, 0, length, v_t, v_d, V, BN)
        sees = attend_sees(t[:, None], at + s[None, :], WINDOW)
        dq = attend_pull(q, k, v, ct, sees, base, share, mean, dq, True, FLOAT, PRECISION)
    if PAST:
        pk_ptr += n.to(tl.int64) * pk_n + h // pk_per * pk_h
        pv_ptr += n.to(tl.int64) * pv_n + h // pv_per * pv_h
        born, start = attend_past(first, tl.load(position_ptr + n), P, BN, WINDOW)
        for at in range(start, P, BN):
            k = attend_rows(pk_ptr, at, born, P, pk_t, pk_d, K, BN)
            v = attend_rows(pv_ptr, at, born, P, pv_t, pv_d, V, BN)
            there = at + s[None, :]
            sees = attend_sees(t[:, None], there - P, WINDOW) & (there >= born) & (there < P)
            dq = attend_pull(q, k, v, ct, sees, base, share, mean, dq, True, FLOAT, PRECISION)
    attend_put(dq_ptr + ((row * T + begin) * H + h) * K, dq, first, length, H * K, 1, K)


@triton.jit
def attend_add(
    q_ptr, q_t, q_d, ct_ptr, ct_t, ct_d, base_ptr, share_ptr, mean_ptr, at, length, k, v, there,
    dk, dv, EDGE: tl.constexpr, BM: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    WINDOW: tl.constexpr, FLOAT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv with what the tile of queries from ``at`` on adds to them."""
    t = at + tl.arange(0, BM)
    q = attend_rows(q_ptr, at, 0, length, q_t, q_d, K, BM)
    ct = attend_rows(ct_ptr, at, 0, length, ct_t, ct_d, V, BM)
    base = tl.load(base_ptr + t, mask=t < length, other=0.0)
    share = tl.load(share_ptr + t, mask=t < length, other=0.0)
    mean = tl.load(mean_ptr + t, mask=t < length, other=0.0)
    logits = attend_logits(k, tl.trans(q), FLOAT, PRECISION)
    if EDGE:
        logits = tl.where(attend_sees(t[None, :], there, WINDOW), logits, float("-inf"))
    p = tl.exp2(logits * LOG2E - base[None, :]) * share[None, :]
    dv += attend_dot(p, ct, FLOAT, PRECISION)
    d = p * (attend_dot(v, tl.trans(ct), FLOAT, PRECISION) - mean[None, :])
    return dk + attend_dot(d, q, FLOAT, PRECISION), dv


@triton.jit(do_not_specialize=ATTEND_SIZES)
def attend_keys_kernel(
    q_ptr, q_b, q_t, q_h, q_d, k_ptr, k_b, k_t, k_h, k_d, v_ptr, v_b, v_t, v_h, v_d,
    ct_ptr, ct_b, ct_t, ct_h, ct_d, base_ptr, share_ptr, mean_ptr, dk_ptr, dk_b, dk_t, dk_h,
    dv_ptr, dv_b, dv_t, dv_h, cu_ptr, position_ptr, T, P, N, H, q_per, k_per, v_per,
    SHARED: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    WINDOW: tl.constexpr, PACKED: tl.constexpr, PAST: tl.constexpr, FLOAT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of BN keys, those of the call or (PAST) those before it, over SHARED heads."""
    tile, entry = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if PAST:
        tiles = tl.cdiv(P, BN)
        n = tile // tiles
        row, first, rows = n.to(tl.int64), (tile - n * tiles) * BN, P
        begin = tl.load(cu_ptr + n) if PACKED else row * 0
        length = (tl.load(cu_ptr + n + 1) - begin).to(tl.int32) if PACKED else T
        held, held_begin = row, row * 0
        row = row * 0 if PACKED else row
        born, time = P - tl.minimum(tl.load(position_ptr + n), P).to(tl.int32), first - P
    else:
        n, first, begin, row, length = attend_place(tile, cu_ptr, T, N, BN, PACKED)
        if first >= length:
            return
        rows, held, held_begin = length, row, begin
        born, time = 0, first
    there = time + tl.arange(0, BN)[:, None]
    k_ptr += held * k_b + held_begin * k_t + entry * SHARED // k_per * k_h
    v_ptr += held * v_b + held_begin * v_t + entry * SHARED // v_per * v_h
    k = attend_rows(k_ptr, first, born, rows, k_t, k_d, K, BN)
    v = attend_rows(v_ptr, first, born, rows, v_t, v_d, V, BN)
    dk, dv = tl.zeros([BN, attend_width(K)], FLOAT), tl.zeros([BN, attend_width(V)], FLOAT)
    low, end = tl.maximum(time, 0) // BM * BM, length
    if WINDOW:
        end = tl.minimum(end, time + BN - 1 + WINDOW)
    end = tl.cdiv(tl.where(first + BN > born, tl.maximum(end, low), low), BM) * BM
    whole, stop = tl.cdiv(tl.maximum(time + BN - 1, 0), BM) * BM, end
    whole = tl.minimum(whole, end)
    if WINDOW:
        stop = tl.maximum(tl.minimum(tl.maximum(time + WINDOW, 0) // BM * BM, end), whole)
    left = (whole - low) // BM
    for h in range(entry * SHARED, entry * SHARED + SHARED):
        q_at = q_ptr + row * q_b + begin * q_t + h // q_per * q_h
        ct_at = ct_ptr + row * ct_b + begin * ct_t + h * ct_h
        kept = (row * H + h) * T + begin
        base_at, share_at, mean_at = base_ptr + kept, share_ptr + kept, mean_ptr + kept
        for i in range(0, left + (end - stop) // BM):
            at = i * BM + tl.where(i < left, low, stop - left * BM)
            dk, dv = attend_add(
                q_at, q_t, q_d, ct_at, ct_t, ct_d, base_at, share_at, mean_at, at, length, k, v,
                there, dk, dv, True, BM, K, V, WINDOW, FLOAT, PRECISION,
            )  # fmt: skip
        for at in range(whole, stop, BM):
            dk, dv = attend_add(
                q_at, q_t, q_d, ct_at, ct_t, ct_d, base_at, share_at, mean_at, at, length, k, v,
                there, dk, dv, False, BM, K, V, WINDOW, FLOAT, PRECISION,
            )  # fmt: skip
    if PAST:
        was = first + tl.arange(0, BN)[:, None] >= born
        dk, dv = tl.where(was, dk, 0.0), tl.where(was, dv, 0.0)
    dk_ptr += held * dk_b + held_begin * dk_t + entry * dk_h
    dv_ptr += held * dv_b + held_begin * dv_t + entry * dv_h
    attend_put(dk_ptr, dk, first, rows, dk_t, 1, K)
    attend_put(dv_ptr, dv, first, rows, dv_t, 1, V)
