/* Queries, keys and values of a sequence and head in, what each query attends to and its cotangents
   out, QUERIES by KEYS tokens at a time: no tile grows with T times T. Logits stand with a key in
   each row, so that a vector holds queries and their maxima and sums need no shuffles.

   What a query does not see is left out before the exponential. The running maximum and the sum of
   exp(logit - maximum) are kept apart, so that large logits keep their digits; the way back takes
   the shares exp(logit - maximum) / sum from them again. */

enum { QUERIES = 128 / WIDE * WIDE, KEYS = 64 };

/* An attention of a call: arrays as NAME.h says, `past` tokens before the call; `window` 0: all. */
typedef struct {
    const lacc_array *query, *keys, *values, *sink, *past_keys, *past_values, *position, *output, *top, *sum;
    const lacc_array *d_output, *d_query, *d_keys, *d_values, *d_sink, *d_past_keys, *d_past_values;
    int64_t sequences, tokens, heads, past, threads, window, K, V;
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

/* s [keys][width] = -inf where the query in row `query` + j does not see the key in row `key` + i:
   it comes later, or too long before. */
static void hide(real *s, const attention *a, int64_t query, int64_t width, int64_t key, int64_t keys) {
    for (int64_t i = 0; i < keys; i++, s += width) {
        fill(s, -INFINITY, least(key + i - query, width));
        if (!a->window) continue;
        const int64_t gone = most(key + i + a->window - query, 0);
        fill(s + gone, -INFINITY, width - gone);
    }
}

/* `sum` of queries [from, width), their maxima `top` and `kept`, by which what was summed so far
   shrinks; logits s [keys][width] become their exponentials. */
static void online(real *restrict s, real *restrict top, real *restrict sum, real *restrict kept, int64_t from, int64_t width,
                   int64_t keys) {
    for (int64_t j = from; j < width; j += LANES) {
        real grown[LANES], base[LANES], more[LANES];
        for (int i = 0; i < LANES; i++) grown[i] = top[j + i];
        for (int64_t p = 0; p < keys; p++)
#pragma omp simd
            for (int i = 0; i < LANES; i++) grown[i] = f_max(grown[i], s[p * width + j + i]);
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            base[i] = grown[i] == -INFINITY ? 0 : grown[i];
            kept[j + i] = f_exp(top[j + i] - base[i]);
            top[j + i] = grown[i];
            more[i] = 0;
        }
        for (int64_t p = 0; p < keys; p++)
#pragma omp simd
            for (int i = 0; i < LANES; i++) more[i] += s[p * width + j + i] = f_exp(s[p * width + j + i] - base[i]);
#pragma omp simd
        for (int i = 0; i < LANES; i++) sum[j + i] = sum[j + i] * kept[j + i] + more[i];
    }
}

static int64_t attend_forward_room(int64_t K, int64_t V) {
    return round_up(QUERIES * K) + round_up(KEYS * most(K, V)) + KEYS * QUERIES + round_up(QUERIES * V) + 3 * QUERIES;
}

/* What the queries from `at` on, QUERIES at most, attend to. */
static void attend_forward(const attention *a, int64_t n, int64_t h, int64_t at, real *w) {
    const int64_t K = a->K, V = a->V, rows = least(QUERIES, a->tokens - at), width = (rows + LANES - 1) / LANES * LANES;
    real *const query = w, *const tile = query + round_up(QUERIES * K), *const s = tile + round_up(KEYS * most(K, V));
    real *const out = s + KEYS * QUERIES, *const top = out + round_up(QUERIES * V), *const sum = top + QUERIES;
    real *const kept = sum + QUERIES;
    load_tile(tile, a->query, n, h, at, rows, K);
    for (int64_t j = 0; j < width; j += WIDE)
        pack(query + j * K, least(WIDE, width - j), K, least(WIDE, rows - j), tile + j * K, 1, K);
    fill(top, -INFINITY, width);
    if (a->sink->data) load_tile(top, a->sink, n, h, at, rows, 1);
    for (int64_t i = 0; i < width; i++) sum[i] = top[i] != -INFINITY;
    fill(out, 0, rows * V);
    const int64_t here = a->past + at, end = here + rows, first = oldest(a, n);
    const int64_t start = a->window ? most(first, here + 1 - a->window) : first;
    for (int64_t key = start, keys; key < end; key += keys) {
        keys = least(KEYS, end - key);
        const int64_t from = most(key - here, 0) / WIDE * WIDE; /* queries before see none of these keys */
        load_seen(tile, a, a->past_keys, a->keys, n, h, key, keys, K);
        for (int64_t j = from; j < width; j += WIDE) {
            const int64_t wide = least(WIDE, width - j);
            gemm(keys, wide, K, tile, K, 1, query + j * K, wide, 1, s + j, width, 1, WHOLE, 0);
        }
        hide(s, a, here, width, key, keys);
        online(s, top, sum, kept, from, width, keys);
        for (int64_t i = from; i < rows; i++)
            if (kept[i] != 1)
                for (int64_t v = 0; v < V; v++) out[i * V + v] *= kept[i];
        load_seen(tile, a, a->past_values, a->values, n, h, key, keys, V);
        gemm(rows - from, V, keys, s + from, 1, width, tile, V, 1, out + from * V, V, 1, WHOLE, 1);
    }
    for (int64_t i = 0; i < rows; i++)
        if (sum[i] != 0)
            for (int64_t v = 0; v < V; v++) out[i * V + v] /= sum[i];
    store_tile(a->output, n, h, at, out, rows, V);
    store_tile(a->top, n, h, at, top, rows, 1);
    store_tile(a->sum, n, h, at, sum, rows, 1);
}

static int64_t attend_backward_room(int64_t tokens, int64_t K, int64_t V) {
    const int64_t tile = most(QUERIES, KEYS);
    return round_up(tokens * K) + 4 * round_up(tokens) + 3 * round_up(tile * K) + 3 * round_up(tile * V) +
           2 * KEYS * QUERIES;
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
        rows = least(QUERIES, T - at);
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

/* Logits s [keys][width] and the products d of values with the cotangent of what was attended to
   become shares and the cotangents of logits. */
static void pulled_logits(real *restrict s, real *restrict d, const real *restrict base, const real *restrict share,
                          const real *restrict mean, int64_t width, int64_t keys) {
    for (int64_t p = 0; p < keys; p++, s += width, d += width)
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            s[i] = f_exp(s[i] - base[i]) * share[i];
            d[i] = (d[i] - mean[i]) * s[i];
        }
}

/* Cotangents of a sequence and head: those of keys and values a block at a time, those of queries
   are added up. */
static void attend_backward(const attention *a, int64_t n, int64_t h, real *w) {
    const int64_t T = a->tokens, K = a->K, V = a->V, P = a->past, tile = most(QUERIES, KEYS);
    real *const d_query = w, *const base = d_query + round_up(T * K), *const share = base + round_up(T);
    real *const mean = share + round_up(T), *const query = mean + 2 * round_up(T), *const key = query + round_up(tile * K);
    real *const d_key = key + round_up(tile * K), *const d_out = d_key + round_up(tile * K);
    real *const value = d_out + round_up(tile * V), *const d_value = value + round_up(tile * V);
    real *const s = d_value + round_up(tile * V), *const d = s + KEYS * QUERIES;
    shares(a, n, h, base, share, mean, mean + round_up(T), value, d_out);
    fill(d_query, 0, T * K);
    const int64_t first = oldest(a, n);
    for (int64_t at = 0, keys; at < P + T; at += keys) {
        keys = least(KEYS, (at < first ? first : P + T) - at);
        fill(d_key, 0, keys * K);
        fill(d_value, 0, keys * V);
        const int64_t end = at < first ? 0 : a->window ? least(T, at + keys - 1 + a->window - P) : T;
        if (end) load_seen(key, a, a->past_keys, a->keys, n, h, at, keys, K);
        if (end) load_seen(value, a, a->past_values, a->values, n, h, at, keys, V);
        for (int64_t t = most(at - P, 0), rows; t < end; t += rows) {
            rows = least(QUERIES, end - t);
            load_tile(query, a->query, n, h, t, rows, K);
            load_tile(d_out, a->d_output, n, h, t, rows, V);
            gemm(keys, rows, K, key, K, 1, query, 1, K, s, rows, 1, WHOLE, 0);
            hide(s, a, P + t, rows, at, keys);
            gemm(keys, rows, V, value, V, 1, d_out, 1, V, d, rows, 1, WHOLE, 0);
            pulled_logits(s, d, base + t, share + t, mean + t, rows, keys);
            gemm(keys, V, rows, s, rows, 1, d_out, V, 1, d_value, V, 1, WHOLE, 1);
            gemm(keys, K, rows, d, rows, 1, query, K, 1, d_key, K, 1, WHOLE, 1);
            gemm(rows, K, keys, d, 1, rows, key, K, 1, d_query + t * K, K, 1, WHOLE, 1);
        }
        store_seen(a, a->d_past_keys, a->d_keys, n, h, at, d_key, keys, K);
        store_seen(a, a->d_past_values, a->d_values, n, h, at, d_value, keys, V);
    }
    store_tile(a->d_query, n, h, 0, d_query, T, K);
}

/* Parts of a sequence and head that are computed apart, forward. */
static int64_t attend_blocks(const attention *a, int backward) {
    return backward ? 1 : (a->tokens + QUERIES - 1) / QUERIES;
}

/* The reals of workspace that a thread takes. */
static int64_t attend_room(const attention *a, int backward) {
    return backward ? attend_backward_room(a->tokens, a->K, a->V) : attend_forward_room(a->K, a->V);
}

static int64_t attend_threads(const attention *a, int backward) {
    return most(1, least(a->threads, a->sequences * a->heads * attend_blocks(a, backward)));
}

static UNUSED int64_t attend_workspace(const attention *a) {
    return most(attend_threads(a, 0) * attend_room(a, 0), attend_threads(a, 1) * attend_room(a, 1));
}

/* All sequences and heads. */
static UNUSED int attend(const attention *a, int backward, real *workspace) {
    const int64_t room = attend_room(a, backward), threads = attend_threads(a, backward);
    const int64_t blocks = attend_blocks(a, backward), parts = a->sequences * a->heads * blocks;
    real *const space = workspace ? workspace : allocate(threads * room);
    if (!space) return LACC_NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t n = i / blocks / a->heads, h = i / blocks % a->heads;
        real *const w = space + thread_number() * room;
        const unsigned mode = flush_results();
        if (backward)
            attend_backward(a, n, h, w);
        else
            attend_forward(a, n, h, (blocks - 1 - i % blocks) * QUERIES, w);
        restore_mode(mode);
    }
    if (!workspace) free(space);
    return LACC_OK;
}
