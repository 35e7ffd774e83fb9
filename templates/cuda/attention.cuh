/* Queries, keys and values in memory in, what each query attends to and its cotangents out: OWN tokens
   of a block by OTHERS at a time, so that nothing grows with T times T. Heads share entries of an array
   by groups of its `per`. A token at time t of a sequence sees those from t - window + 1 (0: all) to t;
   tokens before the call have times from -P on.

   What a query does not see is left out before the exponential. The running maximum and the sum of
   exp(logit - maximum) are kept apart, so that large logits keep their digits; the way back takes the
   shares exp(logit - base) share from them again. */

enum { OWN = 64, OTHERS = LANES };

/* Logits of operands of 16 bits are exact; those of others keep their digits: sums over time may stand
   in them, of which the differences count. */
template <int one, int other>
struct logits_of {
    static constexpr bool exact = (one == 1 || one == 2) && (other == 1 || other == 2);
    enum { P = exact || PRECISION == PLAIN ? PRECISION : TF32X3 };
};

/* Of a tile of OWN tokens: its sequence, that one's row of the batch and first token in it, the tile's
   first token, and how many the sequence has; the tile may lie behind them. */
struct tile_place {
    int64_t sequence, row, begin, first, length;
};

INLINE tile_place tile_at(int64_t tile, int64_t T, int64_t N, const int64_t *cu) {
    if (!cu) {
        const int64_t tiles = (T + OWN - 1) / OWN;
        return {tile / tiles, tile / tiles, 0, tile % tiles * OWN, T};
    }
    int64_t low = 0, high = N - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (cu[middle] / OWN + middle > tile)
            high = middle - 1;
        else
            low = middle;
    }
    return {low, 0, cu[low], (tile - cu[low] / OWN - low) * OWN, cu[low + 1] - cu[low]};
}

INLINE int64_t fewer(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The tokens of the past that never were. */
template <class Args>
INLINE int64_t unborn(const Args &a, int64_t sequence) {
    return a.P ? a.P - fewer(((const int64_t *)a.position)[sequence], a.P) : 0;
}

template <class Args>
INLINE bool sees(const Args &a, int64_t t, int64_t s) {
    return s <= t && (!a.window || s > t - a.window);
}

/* The first time that a token sees, of what there is. */
template <class Args>
INLINE int64_t earliest(const Args &a, int64_t t, int64_t sequence) {
    const int64_t born = unborn(a, sequence) - a.P, from = a.window ? t + 1 - a.window : born;
    return from < born ? born : from;
}

/* keys [count][K] and values [count][V] of times from s on, all of the call or all before it. */
template <class Args>
INLINE void load_seen(real *keys, real *values, const Args &a, const tile_place &at, int64_t h, int64_t s, int count) {
    const int64_t token = at.begin + s, row = s + a.P;
    if (s < 0) {
        load_tile(keys, entries<T_past_keys>(a.past_keys, at.sequence * a.pk_n + h / a.pk_per * a.pk_h + row * a.pk_t), a.pk_t,
                  a.pk_d, count, count, (int)a.K);
        load_tile(values, entries<T_past_values>(a.past_values, at.sequence * a.pv_n + h / a.pv_per * a.pv_h + row * a.pv_t),
                  a.pv_t, a.pv_d, count, count, (int)a.V);
    } else {
        load_tile(keys, entries<T_keys>(a.keys, at.row * a.k_b + token * a.k_t + h / a.k_per * a.k_h), a.k_t, a.k_d, count, count,
                  (int)a.K);
        load_tile(values, entries<T_values>(a.values, at.row * a.v_b + token * a.v_t + h / a.v_per * a.v_h), a.v_t, a.v_d, count,
                  count, (int)a.V);
    }
}

template <class Args>
INLINE void load_queries(real *query, const Args &a, const tile_place &at, int64_t h, int64_t t, int rows) {
    load_tile(query, entries<T_query>(a.query, at.row * a.q_b + (at.begin + t) * a.q_t + h / a.q_per * a.q_h), a.q_t, a.q_d, rows,
              rows, (int)a.K);
}

/* The extra logit of a token, -inf where there is none. */
template <class Args>
INLINE real sink_of(const Args &a, const tile_place &at, int64_t h, int64_t t) {
    const auto *sink = entries<T_sink>(a.sink, at.row * a.sink_b + (at.begin + t) * a.sink_t + h / a.sink_per * a.sink_h);
    return sink ? real_of(*sink) : R(-INFINITY);
}

/* The largest over the lanes of a warp. */
INLINE real lane_max(real x) {
#pragma unroll
    for (int n = LANES / 2; n; n /= 2) x = f_max(x, across(x, n));
    return x;
}

/* What OWN queries of a head attend to, 0 where they see nothing, and base and share of each. Tiles:
   query [OWN][K], keys [OTHERS][K], values [OTHERS][V], logits [OWN][OTHERS], out [OWN][V], rows [3][OWN]. */
template <class Args>
INLINE void attended(const Args &a, int64_t program, real *query, real *keys, real *values, real *logits, real *out,
                           real *rows) {
    const int64_t h = program % a.H;
    const tile_place at = tile_at(a.tiles - 1 - program / a.H, a.T, a.N, (const int64_t *)a.cu);
    const int count = (int)fewer(OWN, at.length - at.first), K = (int)a.K, V = (int)a.V, lane = threadIdx.x % LANES;
    real *const top = rows, *const sum = top + OWN, *const kept = sum + OWN;
    if (count <= 0) return;
    load_queries(query, a, at, h, at.first, count);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        top[i] = sink_of(a, at, h, at.first + i);
        sum[i] = top[i] != R(-INFINITY);
    }
    fill(out, 0, count * V);
    const int64_t end = at.first + count;
    int width = 0;
    for (int64_t s = earliest(a, at.first, at.sequence); s < end; s += width) {
        width = (int)fewer(OTHERS, (s < 0 ? 0 : end) - s);
        load_seen(keys, values, a, at, h, s, width);
        barrier();
        product<logits_of<T_query, T_keys>::P>(count, width, strided{query, K, 1}, strided{keys, K, 1}, K, shaped{WHOLE, K},
                                               [&](int i, int j, real x) {
                                                   const bool seen = sees(a, at.first + i, s + j);
                                                   logits[i * OTHERS + j] = seen ? x : R(-INFINITY);
                                               });
        barrier();
        for (int i = threadIdx.x / LANES; i < count; i += WARPS) {
            const real x = lane < width ? logits[i * OTHERS + lane] : R(-INFINITY), before = top[i];
            const real grown = f_max(before, lane_max(x)), base = grown == R(-INFINITY) ? R(0) : grown;
            const real p = f_exp(x - base), total = lane_sum(p), shrunk = f_exp(before - base);
            logits[i * OTHERS + lane] = p;
            warp_barrier(); /* all have read top */
            if (lane == 0) {
                sum[i] = sum[i] * shrunk + total;
                kept[i] = shrunk, top[i] = grown;
            }
        }
        barrier();
        gemm_onto(count, V, width, logits, OTHERS, 1, values, V, 1, out, V, 1, WHOLE, out, kept, 1, 0);
        barrier();
    }
    const int64_t token = (at.row * a.T + at.begin + at.first) * a.H + h, row = (at.row * a.H + h) * a.T + at.begin + at.first;
    for (int i = threadIdx.x; i < count * V; i += THREADS)
        if (sum[i / V] != 0) out[i] /= sum[i / V];
    barrier();
    store_tile(entries<T_output>(a.output, token * V), a.H * V, 1, out, count, V);
    for (int i = threadIdx.x; i < count && a.base; i += THREADS) {
        ((real *)a.base)[row + i] = top[i] == R(-INFINITY) ? R(0) : top[i];
        ((real *)a.share)[row + i] = sum[i] != 0 ? 1 / sum[i] : R(0);
    }
}

/* Gradients of OWN queries of a head and of their sinks, and for `pulled_keys` the means. Tiles: query
   and d_query [OWN][K], ct [OWN][V], keys [OTHERS][K], values [OTHERS][V], shares [OWN][OTHERS], rows [3][OWN]. */
template <class Args>
INLINE void pulled_queries(const Args &a, int64_t program, real *query, real *d_query, real *ct, real *keys, real *values,
                           real *shares, real *rows) {
    const int64_t h = program % a.H;
    const tile_place at = tile_at(a.tiles - 1 - program / a.H, a.T, a.N, (const int64_t *)a.cu);
    const int count = (int)fewer(OWN, at.length - at.first), K = (int)a.K, V = (int)a.V, lane = threadIdx.x % LANES;
    real *const base = rows, *const share = base + OWN, *const mean = share + OWN;
    if (count <= 0) return;
    const int64_t token = at.begin + at.first, row = (at.row * a.H + h) * a.T + token, wide = (at.row * a.T + token) * a.H + h;
    load_queries(query, a, at, h, at.first, count);
    load_tile(ct, entries<T_d_output>(a.d_output, at.row * a.ct_b + token * a.ct_t + h * a.ct_h), a.ct_t, a.ct_d, count, count, V);
    fill(d_query, 0, count * K);
    barrier();
    for (int i = threadIdx.x / LANES; i < count; i += WARPS) {
        real sum = 0;
        for (int v = lane; v < V; v += LANES) sum += ct[i * V + v] * real_of(*entries<T_output>(a.output, (wide + i * a.H) * V + v));
        sum = lane_sum(sum);
        if (lane == 0) {
            base[i] = ((const real *)a.base)[row + i], share[i] = ((const real *)a.share)[row + i];
            mean[i] = ((real *)a.mean)[row + i] = sum;
            const real sink = sink_of(a, at, h, at.first + i);
            if (a.sink) put(entries<T_d_sink>(a.d_sink, wide + i * a.H), -f_exp(sink - base[i]) * share[i] * sum);
        }
    }
    const int64_t end = at.first + count;
    int width = 0;
    for (int64_t s = earliest(a, at.first, at.sequence); s < end; s += width) {
        width = (int)fewer(OTHERS, (s < 0 ? 0 : end) - s);
        load_seen(keys, values, a, at, h, s, width);
        barrier();
        product<logits_of<T_query, T_keys>::P>(
            count, width, strided{query, K, 1}, strided{keys, K, 1}, K, shaped{WHOLE, K}, [&](int i, int j, real x) {
                shares[i * OTHERS + j] = sees(a, at.first + i, s + j) ? f_exp(x - base[i]) * share[i] : R(0);
            });
        barrier();
        product<PRECISION>(count, width, strided{ct, V, 1}, strided{values, V, 1}, V, shaped{WHOLE, V},
                           [&](int i, int j, real x) { shares[i * OTHERS + j] *= x - mean[i]; });
        barrier();
        gemm(count, K, width, shares, OTHERS, 1, keys, K, 1, d_query, K, 1, WHOLE, 1);
        barrier();
    }
    store_tile(entries<T_d_query>(a.d_query, wide * K), a.H * K, 1, d_query, count, K);
}

/* Gradients of OWN keys and values, of the call or, where `past`, of the tokens before it, over all the
   heads that share them. Tiles: keys and d_keys [OWN][K], values and d_values [OWN][V], query [OTHERS][K], ct
   [OTHERS][V], shares [OWN][OTHERS], rows [3][OTHERS]. */
template <class Args>
INLINE void pulled_keys(const Args &a, int64_t program, real *keys, real *d_keys, real *values, real *d_values, real *query,
                        real *ct, real *shares, real *rows) {
    const int64_t heads = a.H / a.entries, entry = program % a.entries, tile = program / a.entries, tiles = (a.P + OWN - 1) / OWN;
    const int64_t *const cu = (const int64_t *)a.cu;
    const bool past = a.P > 0;
    const int K = (int)a.K, V = (int)a.V;
    tile_place at;
    if (past) {
        const int64_t n = tile / tiles, begin = cu ? cu[n] : 0;
        at = {n, cu ? 0 : n, begin, tile % tiles * OWN - a.P, cu ? cu[n + 1] - begin : a.T};
    } else
        at = tile_at(tile, a.T, a.N, cu);
    const int64_t born = past ? unborn(a, at.sequence) - a.P : 0, behind = past ? 0 : at.length;
    const int count = (int)fewer(OWN, behind - at.first);
    if (count <= 0) return;
    real *const base = rows, *const share = base + OTHERS, *const mean = share + OTHERS;
    const int64_t held = past ? at.sequence : at.row, row = at.first + (past ? a.P : at.begin);
    load_tile(keys, entries<T_keys>(a.keys, held * a.k_b + row * a.k_t + entry * heads / a.k_per * a.k_h), a.k_t, a.k_d, count,
              count, K);
    load_tile(values, entries<T_values>(a.values, held * a.v_b + row * a.v_t + entry * heads / a.v_per * a.v_h), a.v_t, a.v_d,
              count, count, V);
    fill(d_keys, 0, count * K);
    fill(d_values, 0, count * V);
    const int64_t last = a.window ? fewer(at.length, at.first + count - 1 + a.window) : at.length;
    const int64_t end = at.first + count > born ? last : 0;
    int width = 0;
    for (int64_t h = entry * heads; h < entry * heads + heads; h++)
        for (int64_t t = at.first < 0 ? 0 : at.first; t < end; t += width) {
            width = (int)fewer(OTHERS, end - t);
            const int64_t token = at.begin + t, stat = (at.row * a.H + h) * a.T + token;
            load_queries(query, a, at, h, t, width);
            load_tile(ct, entries<T_d_output>(a.d_output, at.row * a.ct_b + token * a.ct_t + h * a.ct_h), a.ct_t, a.ct_d, width,
                      width, V);
            for (int i = threadIdx.x; i < width; i += THREADS) {
                base[i] = ((const real *)a.base)[stat + i], share[i] = ((const real *)a.share)[stat + i];
                mean[i] = ((const real *)a.mean)[stat + i];
            }
            barrier();
            product<logits_of<T_query, T_keys>::P>(
                count, width, strided{keys, K, 1}, strided{query, K, 1}, K, shaped{WHOLE, K}, [&](int i, int j, real x) {
                    const bool seen = at.first + i >= born && sees(a, t + j, at.first + i);
                    shares[i * OTHERS + j] = seen ? f_exp(x - base[j]) * share[j] : R(0);
                });
            barrier();
            gemm(count, V, width, shares, OTHERS, 1, ct, V, 1, d_values, V, 1, WHOLE, 1);
            barrier();
            product<PRECISION>(count, width, strided{values, V, 1}, strided{ct, V, 1}, V, shaped{WHOLE, V},
                               [&](int i, int j, real x) { /* NaN may stand where nothing ever was */
                                   real &pulled = shares[i * OTHERS + j];
                                   pulled = at.first + i < born ? R(0) : pulled * (x - mean[j]);
                               });
            barrier();
            gemm(count, K, width, shares, OTHERS, 1, query, K, 1, d_keys, K, 1, WHOLE, 1);
            barrier();
        }
    if (!width) barrier();
    store_tile(entries<T_d_keys>(a.d_keys, held * a.dk_b + row * a.dk_t + entry * a.dk_h), a.dk_t, 1, d_keys, count, K);
    store_tile(entries<T_d_values>(a.d_values, held * a.dv_b + row * a.dv_t + entry * a.dv_h), a.dv_t, 1, d_values, count, V);
}
