/* Queries, keys and values of a sequence and head in, what each query attends to and its cotangents
   out, SIDE queries by SIDE keys at a time: no tile grows with T times T. Logits stand with a key in
   each row, so that a vector holds queries and their maxima and sums need no shuffles.

   Keys and values are loaded once for all the queries of a part, up to QUERIES, and on the way back
   queries once for up to PULLED keys: heads lie side by side in memory, rows of one far apart. What
   a query does not see is left out before the exponential. The running maximum and the sum of
   exp(logit - maximum) are kept apart, so that large logits keep their digits; the way back takes
   the shares exp(logit - maximum) / sum from them again. */

enum { SIDE = 64, QUERIES = 8 * SIDE, PULLED = 4 * SIDE }; /* SIDE: a multiple of any machine's WIDE */
enum { AHEAD = SIDE * SIDE / QUERIES };                    /* rows to ask for while SIDE queries are dealt with */
enum { PAIRS_WORTH_A_THREAD = 1 << 24 };                   /* entries of queries by keys: 0.5 ms */

/* An attention of a call: arrays as NAME.h says, `past` tokens before the call; `window` 0: all;
   queries are multiplied by `scale`. */
typedef struct {
    const lacc_array *query, *keys, *values, *sink, *past_keys, *past_values, *position, *output, *top, *sum;
    const lacc_array *kept_keys, *kept_values;
    const lacc_array *d_output, *d_query, *d_keys, *d_values, *d_sink, *d_past_keys, *d_past_values;
    int64_t sequences, tokens, heads, past, threads, window, K, V;
    real scale;
} attention;

/* The first row that is there, of those of the past and of the call. */
static int64_t oldest(const attention *a, int64_t n) {
    return a->position->data ? most(a->past - *(const int64_t *)place(a->position, n, 0, 0), 0) : 0;
}

/* out = rows [at, at + rows) of the past and of the call. */
static void load_seen(real *out, const attention *a, const lacc_array *past, const lacc_array *now, int64_t n, int64_t h,
                      int64_t at, int64_t rows, int64_t width) {
    const int64_t before = least(most(a->past - at, 0), rows);
    if (before) load_tile(out, past, n, h, at, before, width);
    if (before < rows) load_tile(out + before * width, now, n, h, at + before - a->past, rows - before, width);
}

static void store_seen(const attention *a, const lacc_array *past, const lacc_array *now, int64_t n, int64_t h, int64_t at,
                       const real *tile, int64_t rows, int64_t width) {
    const int64_t before = least(most(a->past - at, 0), rows);
    if (before) store_tile(past, n, h, at, tile, before, width);
    if (before < rows) store_tile(now, n, h, at + before - a->past, tile + before * width, rows - before, width);
}

/* Of a tile of rows from `key` on, those from `here` on go into the state of the call, where it holds
   them; of heads that share it, by the first. */
static void keep_rows(const attention *a, const lacc_array *into, int64_t n, int64_t h, int64_t here, int64_t key,
                      const real *tile, int64_t rows, int64_t width) {
    const int64_t held = a->window ? a->past + a->tokens + 1 - a->window : 0, skip = most(most(here, held) - key, 0);
    if (skip < rows && (!h || into->head))
        store_tile(into, n, h, key + skip - a->past, tile + skip * width, rows - skip, width);
}

/* Queries, or their cotangents. */
static void scale_queries(const attention *a, real *x, int64_t rows) {
    if (a->scale == 1) return;
#pragma omp simd
    for (int64_t i = 0; i < rows * a->K; i++) x[i] *= a->scale;
}

/* Of s [keys][SIDE] -inf where one of `width` queries, in row `query` + j, does not see the key in
   row `key` + i: it comes later, or too long before. */
static void hide(real *s, const attention *a, int64_t query, int64_t width, int64_t key, int64_t keys) {
    const int later = key + keys > query + 1, gone = a->window && key + a->window < query + width;
    if (!later && !gone) return;
    for (int64_t i = 0; i < keys; i++, s += SIDE) {
        fill(s, -INFINITY, least(key + i - query, width));
        if (!a->window) continue;
        const int64_t from = most(key + i + a->window - query, 0);
        fill(s + from, -INFINITY, width - from);
    }
}

/* Whether none of the queries from row `query` on sees any of the keys up to row `end`. */
INLINE int too_late(const attention *a, int64_t query, int64_t end) {
    return a->window && end + a->window <= query + 1;
}

INLINE int64_t whole_vectors(int64_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

/* x [keys][width] times what is packed of SIDE rows. */
static void all_pairs(real *s, int64_t keys, int64_t rows, int64_t width, const real *x, const real *packed) {
    for (int64_t j = 0, wide; j < rows; j += wide) {
        wide = least(WIDE, whole_vectors(rows) - j);
        gemm(keys, wide, width, x, width, 1, packed + j * width, wide, 1, s + j, SIDE, 1, WHOLE, 0);
    }
}

/* packed [width][SIDE] in columns of WIDE = the transpose of x [rows][width]. */
static void pack_queries(real *packed, const real *x, int64_t rows, int64_t width) {
    for (int64_t j = 0; j < rows; j += WIDE)
        pack(packed + j * width, least(WIDE, whole_vectors(rows) - j), width, least(WIDE, rows - j), x + j * width, 1, width);
}

/* exp(x) for what is not above 0; 0 where that is below all normal numbers. */
INLINE real share_of(real x) {
#ifdef LACC_DOUBLE
    const real least_x = -708;
#else
    const real least_x = -87;
#endif
    word n;
    const real y = exp_parts(x, &n) + 1;
    return x < least_x ? 0 : y * power_of_two(n); /* n and y mean nothing where x is out of range */
}

/* `sum` of `width` queries, their maxima `top` and `kept`, by which what was summed so far shrinks;
   logits s [keys][SIDE] become their exponentials. A NaN goes through these. */
static void online(real *restrict s, real *restrict top, real *restrict sum, real *restrict kept, int64_t width, int64_t keys) {
    for (int64_t j = 0; j < width; j += LANES, s += LANES) {
        real odd[LANES], grown[LANES], base[LANES], more[LANES];
        for (int i = 0; i < LANES; i++) grown[i] = top[j + i], odd[i] = s[(keys - 1) * SIDE + i], more[i] = 0;
        for (int64_t p = 0; p + 2 <= keys; p += 2)
#pragma omp simd
            for (int i = 0; i < LANES; i++) {
                const real one = s[p * SIDE + i], two = s[(p + 1) * SIDE + i];
                grown[i] = one > grown[i] ? one : grown[i];
                odd[i] = two > odd[i] ? two : odd[i];
            }
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            grown[i] = odd[i] > grown[i] ? odd[i] : grown[i];
            base[i] = grown[i] == -INFINITY ? 0 : grown[i];
        }
#pragma omp simd
        for (int i = 0; i < LANES; i++) kept[j + i] = share_of(top[j + i] - base[i]);
        for (int64_t p = 0; p < keys; p++)
#pragma omp simd
            for (int i = 0; i < LANES; i++) more[i] += s[p * SIDE + i] = share_of(s[p * SIDE + i] - base[i]);
#pragma omp simd
        for (int i = 0; i < LANES; i++) sum[j + i] = sum[j + i] * kept[j + i] + more[i], top[j + i] = grown[i];
    }
}

/* Queries of a part: fewer where threads would wait for one another. */
static int64_t attend_part(const attention *a) {
    const int64_t each = a->sequences * a->heads * a->tokens / (4 * most(a->threads, 1));
    return least(QUERIES, most(each / SIDE, 1) * SIDE);
}

static int64_t attend_forward_room(int64_t K, int64_t V) {
    return QUERIES * (K + V) + SIDE * (K + V) + SIDE * SIDE + 2 * QUERIES + SIDE;
}

/* out [rows][V] and the rest of SIDE queries, packed, seen as more keys: those of row `here` on and
   of row `key` on. */
static void attend_tile(const attention *a, const real *query, int64_t here, int64_t rows, const real *keys, const real *values,
                        int64_t key, int64_t count, real *out, real *top, real *sum, real *s, real *kept) {
    const int64_t V = a->V, width = whole_vectors(rows);
    all_pairs(s, count, rows, a->K, keys, query);
    hide(s, a, here, width, key, count);
    online(s, top, sum, kept, width, count);
    for (int64_t i = 0; i < rows; i++)
        if (kept[i] != 1)
            for (int64_t v = 0; v < V; v++) out[i * V + v] *= kept[i];
    gemm(rows, V, count, s, 1, SIDE, values, V, 1, out, V, 1, WHOLE, 1);
}

/* What up to QUERIES queries from `at` on attend to. */
static void attend_forward(const attention *a, int64_t n, int64_t h, int64_t at, int64_t rows, real *w) {
    const int64_t K = a->K, V = a->V, width = whole_vectors(rows);
    real *const query = w, *const out = query + QUERIES * K, *const keys = out + QUERIES * V;
    real *const values = keys + SIDE * K, *const s = values + SIDE * V, *const top = s + SIDE * SIDE;
    real *const sum = top + QUERIES, *const kept = sum + QUERIES;
    load_tile(out, a->query, n, h, at, rows, K);
    scale_queries(a, out, rows);
    pack_queries(query, out, rows, K);
    fill(top, -INFINITY, width);
    if (a->sink->data) load_tile(top, a->sink, n, h, at, rows, 1);
    for (int64_t i = 0; i < width; i++) sum[i] = top[i] != -INFINITY;
    fill(out, 0, rows * V);
    const int64_t here = a->past + at, end = here + rows, first = oldest(a, n);
    const int64_t start = a->window ? most(first, here + 1 - a->window) : first;
    for (int64_t key = start, count; key < end; key += count) {
        count = least(SIDE, end - key);
        load_seen(keys, a, a->past_keys, a->keys, n, h, key, count, K);
        load_seen(values, a, a->past_values, a->values, n, h, key, count, V);
        keep_rows(a, a->kept_keys, n, h, here, key, keys, count, K);
        keep_rows(a, a->kept_values, n, h, here, key, values, count, V);
        for (int64_t j = most(key - here, 0) / SIDE * SIDE; j < rows; j += SIDE) {
            if (too_late(a, here + j, key + count)) break;
            const int64_t next = key + count - a->past + j / SIDE * AHEAD; /* what is loaded then */
            if (next >= 0 && next + AHEAD <= a->tokens) {
                want(a->keys, n, h, next, AHEAD, K, 0);
                want(a->values, n, h, next, AHEAD, V, 0);
            }
            attend_tile(a, query + j * K, here + j, least(SIDE, rows - j), keys, values, key, count, out + j * V, top + j,
                        sum + j, s, kept);
        }
    }
    for (int64_t i = 0; i < rows; i++)
        if (sum[i] != 0)
            for (int64_t v = 0; v < V; v++) out[i * V + v] /= sum[i];
    store_tile(a->output, n, h, at, out, rows, V);
    store_tile(a->top, n, h, at, top, rows, 1);
    store_tile(a->sum, n, h, at, sum, rows, 1);
}

static int64_t attend_backward_room(int64_t tokens, int64_t K, int64_t V) {
    return round_up(tokens * K) + 4 * round_up(tokens) + 2 * (PULLED + SIDE) * (K + V) + 2 * SIDE * SIDE;
}

/* Of each token what its shares need, base and 1 / total, and their mean cotangent; with that the
   cotangent of the sink. */
static void shares(const attention *a, int64_t n, int64_t h, real *restrict base, real *restrict share, real *restrict mean,
                   real *restrict sink, real *restrict out, real *restrict d_out) {
    const int64_t T = a->tokens, V = a->V;
    load_tile(base, a->top, n, h, 0, T, 1);
    load_tile(share, a->sum, n, h, 0, T, 1);
    for (int64_t t = 0; t < T; t++) {
        base[t] = base[t] == -INFINITY ? 0 : base[t];
        share[t] = share[t] != 0 ? 1 / share[t] : 0;
    }
    for (int64_t at = 0, rows; at < T; at += rows) {
        rows = least(SIDE, T - at);
        load_tile(out, a->output, n, h, at, rows, V);
        load_tile(d_out, a->d_output, n, h, at, rows, V);
        for (int64_t i = 0; i < rows; i++) {
            real sum = 0;
            for (int64_t v = 0; v < V; v++) sum += out[i * V + v] * d_out[i * V + v];
            mean[at + i] = sum;
        }
    }
    if (!a->sink->data) return;
    load_tile(sink, a->sink, n, h, 0, T, 1);
    for (int64_t t = 0; t < T; t++) sink[t] = -f_exp(sink[t] - base[t]) * share[t] * mean[t];
    store_tile(a->d_sink, n, h, 0, sink, T, 1);
}

/* Logits s [keys][SIDE] and the products d of values with the cotangent of what was attended to
   become shares and the cotangents of logits. */
static void pulled_logits(real *restrict s, real *restrict d, const real *restrict base, const real *restrict share,
                          const real *restrict mean, int64_t width, int64_t keys) {
    for (int64_t p = 0; p < keys; p++, s += SIDE, d += SIDE)
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            s[i] = share_of(s[i] - base[i]) * share[i];
            d[i] = (d[i] - mean[i]) * s[i];
        }
}

/* Cotangents of a sequence and head: those of keys and values PULLED at a time, those of queries
   are added up. */
static void attend_backward(const attention *a, int64_t n, int64_t h, real *w) {
    const int64_t T = a->tokens, K = a->K, V = a->V, P = a->past, first = oldest(a, n);
    real *const d_query = w, *const base = d_query + round_up(T * K), *const share = base + round_up(T);
    real *const mean = share + round_up(T), *const key = mean + 2 * round_up(T), *const d_key = key + PULLED * K;
    real *const value = d_key + PULLED * K, *const d_value = value + PULLED * V, *const query = d_value + PULLED * V;
    real *const packed = query + SIDE * K, *const d_out = packed + SIDE * K, *const d_packed = d_out + SIDE * V;
    real *const s = d_packed + SIDE * V, *const d = s + SIDE * SIDE;
    shares(a, n, h, base, share, mean, mean + round_up(T), value, d_out);
    fill(d_query, 0, T * K);
    for (int64_t at = 0, keys; at < P + T; at += keys) {
        keys = least(PULLED, (at < first ? first : P + T) - at);
        fill(d_key, 0, keys * K);
        fill(d_value, 0, keys * V);
        const int64_t end = at < first ? 0 : a->window ? least(T, at + keys - 1 + a->window - P) : T;
        if (end) load_seen(key, a, a->past_keys, a->keys, n, h, at, keys, K);
        if (end) load_seen(value, a, a->past_values, a->values, n, h, at, keys, V);
        for (int64_t t = most(at - P, 0), rows; t < end; t += rows) {
            rows = least(SIDE, end - t);
            load_tile(query, a->query, n, h, t, rows, K);
            scale_queries(a, query, rows);
            load_tile(d_out, a->d_output, n, h, t, rows, V);
            pack_queries(packed, query, rows, K);
            pack_queries(d_packed, d_out, rows, V);
            for (int64_t k = 0, count; k < keys && at + k < P + t + rows; k += count) {
                count = least(SIDE, keys - k);
                if (too_late(a, P + t, at + k + count)) continue;
                all_pairs(s, count, rows, K, key + k * K, packed);
                hide(s, a, P + t, rows, at + k, count);
                all_pairs(d, count, rows, V, value + k * V, d_packed);
                pulled_logits(s, d, base + t, share + t, mean + t, rows, count);
                gemm(count, V, rows, s, SIDE, 1, d_out, V, 1, d_value + k * V, V, 1, WHOLE, 1);
                gemm(count, K, rows, d, SIDE, 1, query, K, 1, d_key + k * K, K, 1, WHOLE, 1);
                gemm(rows, K, count, d, 1, SIDE, key + k * K, K, 1, d_query + t * K, K, 1, WHOLE, 1);
            }
        }
        store_seen(a, a->d_past_keys, a->d_keys, n, h, at, d_key, keys, K);
        store_seen(a, a->d_past_values, a->d_values, n, h, at, d_value, keys, V);
    }
    scale_queries(a, d_query, T);
    store_tile(a->d_query, n, h, 0, d_query, T, K);
}

/* Parts of a sequence and head that are computed apart, forward. */
static int64_t attend_blocks(const attention *a, int backward) {
    return backward ? 1 : (a->tokens + attend_part(a) - 1) / attend_part(a);
}

/* The reals of workspace that a thread takes. */
static int64_t attend_room(const attention *a, int backward) {
    return backward ? attend_backward_room(a->tokens, a->K, a->V) : attend_forward_room(a->K, a->V);
}

/* Threads that have enough to do: a logit and what is summed by it take an operation for each entry. */
static int64_t attend_threads(const attention *a, int backward) {
    const int64_t all = a->past + a->tokens, seen = a->window ? least(a->window, all) : a->past + a->tokens / 2;
    const int64_t pairs = a->sequences * a->heads * whole_vectors(a->tokens) * most(seen, 1);
    const int64_t wanted = pairs * (a->K + a->V) * (backward ? 3 : 1) / PAIRS_WORTH_A_THREAD;
    return most(1, least(least(a->threads, wanted), a->sequences * a->heads * attend_blocks(a, backward)));
}

static UNUSED int64_t attend_workspace(const attention *a) {
    return most(attend_threads(a, 0) * attend_room(a, 0), attend_threads(a, 1) * attend_room(a, 1));
}

/* All sequences and heads. */
static UNUSED int attend(const attention *a, int backward, real *workspace) {
    const int64_t room = attend_room(a, backward), threads = attend_threads(a, backward);
    const int64_t blocks = attend_blocks(a, backward), part = attend_part(a);
    const int64_t parts = a->sequences * a->heads * blocks;
    real *const space = workspace ? workspace : allocate(threads * room);
    if (!space) return LACC_NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t n = i / blocks / a->heads, h = i / blocks % a->heads;
        const int64_t at = (blocks - 1 - i % blocks) * part; /* what sees the most tokens first */
        real *const w = space + thread_number() * room;
        const unsigned mode = flush_results();
        if (backward)
            attend_backward(a, n, h, w);
        else
            attend_forward(a, n, h, at, least(part, a->tokens - at), w);
        restore_mode(mode);
    }
    if (!workspace) free(space);
    return LACC_OK;
}
