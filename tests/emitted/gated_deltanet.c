static int64_t forward_0_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 5 * round_up(L * K);
    room += 4 * round_up(L);
    room += round_up(levels_room(L, 1));
    room += 2 * round_up(L * V);
    room += 4 * round_up(L * L);
    room += round_up(inverse_room(L));
    return room;
}

static int64_t forward_0_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void forward_0(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const q = take(&w, L * K);
    real *const scaled3 = q;
    real *const g = take(&w, L);
    real *const decay_room = take(&w, levels_room(L, 1));
    real *const up = take(&w, L);
    real *const k = take(&w, L * K);
    real *const v = take(&w, L * V);
    real *const product = v;
    real *const o = v;
    real *const beta = take(&w, L);
    real *const between = take(&w, L * L);
    real *const scaled = take(&w, L * K);
    real *const scaled2 = take(&w, L * K);
    real *const pairs = take(&w, L * L);
    real *const inverted = pairs;
    real *const negated = take(&w, L * L);
    real *const pairs2 = negated;
    real *const down = take(&w, L);
    real *const scaled5 = take(&w, L * K);
    real *const scaled4 = take(&w, L * L);
    real *const summed = take(&w, L * V);
    real *const summed2 = summed;
    real *const scratch = take(&w, inverse_room(L));
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const S_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    real power;
    levels_t decay;
    real total;
    power = f_pow((real)(K), R(-0.5));
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *S = S_ring + i % ring * round_up(K * V);
            real *S_next = S_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) S = state_from(&x[GATED_DELTANET_FORWARD_0_BEGUN_S], n, h, S, K * V);
            if (i + 1 == chunks) S_next = state_into(&x[GATED_DELTANET_FORWARD_0_ENDED_S], &x[GATED_DELTANET_FORWARD_0_BEGUN_S], n, h, S_next);
            want_nothing();
            want(&x[GATED_DELTANET_FORWARD_0_OUT_o], n, h, at, C, V, 1);
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = then;
            if (then < chunks) {
                want(&x[GATED_DELTANET_FORWARD_0_IN_q], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_v], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_beta], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
            }
            load_tile(q, &x[GATED_DELTANET_FORWARD_0_IN_q], n, h, at, C, K);
            load_tile(g, &x[GATED_DELTANET_FORWARD_0_IN_g], n, h, at, C, 1);
            levels(&decay, g, C, 1, 1, 0, decay_room);
            prefix(up, &decay);
            load_tile(k, &x[GATED_DELTANET_FORWARD_0_IN_k], n, h, at, C, K);
            load_tile(v, &x[GATED_DELTANET_FORWARD_0_IN_v], n, h, at, C, V);
            load_tile(beta, &x[GATED_DELTANET_FORWARD_0_IN_beta], n, h, at, C, 1);
            matrix(between, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled[t * K + i_K] = q[t * K + i_K] * up[t];
                    scaled2[t * K + i_K] = k[t * K + i_K] * -beta[t];
                }
            }
            gemm(C, C, K, scaled2, K, 1, k, 1, K, pairs, C, 1, LOWER_OUT, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    negated[t * C + s] = -(pairs[t * C + s] * between[t * C + s]);
                }
            }
            inverse(inverted, negated, C, scratch);
            gemm(C, C, K, q, K, 1, k, 1, K, pairs2, C, 1, LOWER_OUT, 0);
            whole(&total, &decay);
            suffix(down, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled3[t * K + i_K] = scaled2[t * K + i_K] * up[t];
                    scaled5[t * K + i_K] = k[t * K + i_K] * down[t];
                }
            }
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    scaled4[t * C + s] = pairs2[t * C + s] * between[t * C + s];
                }
            }
            wait_for(by, &by->queue->state, i);
            gemm_onto(C, V, K, scaled3, K, 1, S, V, 1, summed, V, 1, WHOLE, v, beta, 1, 0);
            gemm(C, V, C, inverted, C, 1, summed, V, 1, product, V, 1, LOWER_A, 0);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(K, V, C, scaled5, 1, K, product, V, 1, S_next, V, 1, WHOLE, S, &total, 0, 0);
                    give_turn(by, &by->queue->state, i);
                } else {
                    gemm(C, V, K, scaled, K, 1, S, V, 1, summed2, V, 1, WHOLE, 0);
                    if (x[GATED_DELTANET_FORWARD_0_START_S].data)
                        keep_tile(&x[GATED_DELTANET_FORWARD_0_START_S], n, h, c, S, K * V, chunks * by->heads * (K * V) > NEAR);
                }
            gemm(C, V, C, scaled4, C, 1, product, V, 1, summed2, V, 1, LOWER_A, 1);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    o[t * V + i_V] = power * summed2[t * V + i_V];
                }
            }
            store_tile(&x[GATED_DELTANET_FORWARD_0_OUT_o], n, h, at, o, C, V);
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GATED_DELTANET_FORWARD_0_ENDED_S], n, h, S_next, K * V);
            }
        }
    }
    kept_all();
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GATED_DELTANET_FORWARD_0_ENDED_S], n, h, state_from(&x[GATED_DELTANET_FORWARD_0_BEGUN_S], n, h, S_ring, K * V), K * V);
        }
    }
}

static int64_t keep_0_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 4 * round_up(L);
    room += round_up(levels_room(L, 1));
    room += 4 * round_up(L * K);
    room += 2 * round_up(L * V);
    room += 3 * round_up(L * L);
    room += round_up(inverse_room(L));
    return room;
}

static int64_t keep_0_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void keep_0(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const g = take(&w, L);
    real *const decay_room = take(&w, levels_room(L, 1));
    real *const up = take(&w, L);
    real *const k = take(&w, L * K);
    real *const v = take(&w, L * V);
    real *const product = v;
    real *const beta = take(&w, L);
    real *const between = take(&w, L * L);
    real *const scaled = take(&w, L * K);
    real *const pairs = take(&w, L * L);
    real *const inverted = pairs;
    real *const negated = take(&w, L * L);
    real *const down = take(&w, L);
    real *const scaled2 = take(&w, L * K);
    real *const scaled3 = take(&w, L * K);
    real *const summed = take(&w, L * V);
    real *const scratch = take(&w, inverse_room(L));
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const S_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    levels_t decay;
    real total;
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *S = S_ring + i % ring * round_up(K * V);
            real *S_next = S_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) S = state_from(&x[GATED_DELTANET_FORWARD_0_BEGUN_S], n, h, S, K * V);
            if (i + 1 == chunks) S_next = state_into(&x[GATED_DELTANET_FORWARD_0_ENDED_S], &x[GATED_DELTANET_FORWARD_0_BEGUN_S], n, h, S_next);
            want_nothing();
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = then;
            if (then < chunks) {
                want(&x[GATED_DELTANET_FORWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_v], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
                want(&x[GATED_DELTANET_FORWARD_0_IN_beta], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
            }
            load_tile(g, &x[GATED_DELTANET_FORWARD_0_IN_g], n, h, at, C, 1);
            levels(&decay, g, C, 1, 1, 0, decay_room);
            prefix(up, &decay);
            load_tile(k, &x[GATED_DELTANET_FORWARD_0_IN_k], n, h, at, C, K);
            load_tile(v, &x[GATED_DELTANET_FORWARD_0_IN_v], n, h, at, C, V);
            load_tile(beta, &x[GATED_DELTANET_FORWARD_0_IN_beta], n, h, at, C, 1);
            matrix(between, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled[t * K + i_K] = k[t * K + i_K] * -beta[t];
                }
            }
            gemm(C, C, K, scaled, K, 1, k, 1, K, pairs, C, 1, LOWER_OUT, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    negated[t * C + s] = -(pairs[t * C + s] * between[t * C + s]);
                }
            }
            inverse(inverted, negated, C, scratch);
            whole(&total, &decay);
            suffix(down, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled2[t * K + i_K] = scaled[t * K + i_K] * up[t];
                    scaled3[t * K + i_K] = k[t * K + i_K] * down[t];
                }
            }
            wait_for(by, &by->queue->state, i);
            gemm_onto(C, V, K, scaled2, K, 1, S, V, 1, summed, V, 1, WHOLE, v, beta, 1, 0);
            gemm(C, V, C, inverted, C, 1, summed, V, 1, product, V, 1, LOWER_A, 0);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(K, V, C, scaled3, 1, K, product, V, 1, S_next, V, 1, WHOLE, S, &total, 0, 0);
                    give_turn(by, &by->queue->state, i);
                } else {
                    if (x[GATED_DELTANET_FORWARD_0_START_S].data)
                        keep_tile(&x[GATED_DELTANET_FORWARD_0_START_S], n, h, c, S, K * V, chunks * by->heads * (K * V) > NEAR);
                }
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GATED_DELTANET_FORWARD_0_ENDED_S], n, h, S_next, K * V);
            }
        }
    }
    kept_all();
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GATED_DELTANET_FORWARD_0_ENDED_S], n, h, state_from(&x[GATED_DELTANET_FORWARD_0_BEGUN_S], n, h, S_ring, K * V), K * V);
        }
    }
}

static int64_t backward_0_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 8 * round_up(L * K);
    room += 12 * round_up(L);
    room += round_up(levels_room(L, 1));
    room += 5 * round_up(L * V);
    room += 7 * round_up(L * L);
    room += round_up(most(most(inverse_room(L), matrix_pull_room(L, 1)), pulled_room(L, 1)));
    room += round_up(K * V);
    return room;
}

static int64_t backward_0_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void backward_0(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const q = take(&w, L * K);
    real *const scaled5 = q;
    real *const product7 = q;
    real *const g = take(&w, L);
    real *const decay_room = take(&w, levels_room(L, 1));
    real *const up = take(&w, L);
    real *const k = take(&w, L * K);
    real *const dk = k;
    real *const v = take(&w, L * V);
    real *const dv = v;
    real *const beta = take(&w, L);
    real *const scaled = take(&w, L * K);
    real *const product10 = scaled;
    real *const scaled2 = take(&w, L * K);
    real *const pairs = take(&w, L * L);
    real *const between = take(&w, L * L);
    real *const scaled3 = take(&w, L * K);
    real *const summed3 = scaled3;
    real *const summed = take(&w, L * V);
    real *const do_ = summed;
    real *const product2 = summed;
    real *const product6 = summed;
    real *const negated = take(&w, L * L);
    real *const pairs2 = negated;
    real *const inverted = take(&w, L * L);
    real *const pairs4 = inverted;
    real *const product = take(&w, L * V);
    real *const down = take(&w, L);
    real *const scaled6 = take(&w, L * V);
    real *const pairs3 = take(&w, L * L);
    real *const scaled4 = take(&w, L * L);
    real *const scaled7 = scaled4;
    real *const scaled8 = scaled4;
    real *const summed4 = take(&w, L * K);
    real *const product4 = take(&w, L * K);
    real *const dq = take(&w, L * K);
    real *const product5 = take(&w, L);
    real *const summed2 = take(&w, L * V);
    real *const product8 = take(&w, L);
    real *const product11 = take(&w, L);
    real *const added = take(&w, L * L);
    real *const dg2 = take(&w, L);
    real *const dbeta2 = take(&w, L);
    real *const dg = dbeta2;
    real *const dbeta3 = take(&w, L);
    real *const dbeta = take(&w, L);
    real *const added2 = take(&w, L);
    real *const scratch = take(&w, most(most(inverse_room(L), matrix_pull_room(L, 1)), pulled_room(L, 1)));
    real *const S_start_tile = take(&w, K * V);
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const dS_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    real power;
    levels_t decay;
    real total;
    real product9;
    power = f_pow((real)(K), R(-0.5));
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = chunks - 1 - i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *dS = dS_ring + i % ring * round_up(K * V);
            real *dS_next = dS_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) dS = state_from(&x[GATED_DELTANET_BACKWARD_0_DENDED_S], n, h, dS, K * V);
            if (i + 1 == chunks) dS_next = state_into(&x[GATED_DELTANET_BACKWARD_0_DBEGUN_S], &x[GATED_DELTANET_BACKWARD_0_DENDED_S], n, h, dS_next);
            const real *const S_start = start_from(&x[GATED_DELTANET_BACKWARD_0_START_S], n, h, c, S_start_tile, K * V);
            want_nothing();
            want(&x[GATED_DELTANET_BACKWARD_0_DIN_q], n, h, at, C, K, 1);
            want(&x[GATED_DELTANET_BACKWARD_0_DIN_g], n, h, at, C, 1, 1);
            want(&x[GATED_DELTANET_BACKWARD_0_DIN_k], n, h, at, C, K, 1);
            want(&x[GATED_DELTANET_BACKWARD_0_DIN_v], n, h, at, C, V, 1);
            want(&x[GATED_DELTANET_BACKWARD_0_DIN_beta], n, h, at, C, 1, 1);
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = chunks - 1 - then;
            if (then < chunks) {
                want(&x[GATED_DELTANET_BACKWARD_0_IN_q], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_START_S], n, beside, to, 1, K * V, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_v], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_beta], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_DOUT_o], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
            }
            load_tile(q, &x[GATED_DELTANET_BACKWARD_0_IN_q], n, h, at, C, K);
            load_tile(g, &x[GATED_DELTANET_BACKWARD_0_IN_g], n, h, at, C, 1);
            levels(&decay, g, C, 1, 1, 0, decay_room);
            prefix(up, &decay);
            load_tile(k, &x[GATED_DELTANET_BACKWARD_0_IN_k], n, h, at, C, K);
            load_tile(v, &x[GATED_DELTANET_BACKWARD_0_IN_v], n, h, at, C, V);
            load_tile(beta, &x[GATED_DELTANET_BACKWARD_0_IN_beta], n, h, at, C, 1);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled[t * K + i_K] = q[t * K + i_K] * up[t];
                    scaled2[t * K + i_K] = k[t * K + i_K] * -beta[t];
                }
            }
            gemm(C, C, K, scaled2, K, 1, k, 1, K, pairs, C, 1, LOWER_OUT, 0);
            matrix(between, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled3[t * K + i_K] = scaled2[t * K + i_K] * up[t];
                }
            }
            gemm_onto(C, V, K, scaled3, K, 1, S_start, V, 1, summed, V, 1, WHOLE, v, beta, 1, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    negated[t * C + s] = -(pairs[t * C + s] * between[t * C + s]);
                }
            }
            inverse(inverted, negated, C, scratch);
            gemm(C, V, C, inverted, C, 1, summed, V, 1, product, V, 1, LOWER_A, 0);
            gemm(C, C, K, q, K, 1, k, 1, K, pairs2, C, 1, LOWER_OUT, 0);
            whole(&total, &decay);
            suffix(down, &decay);
            load_tile(do_, &x[GATED_DELTANET_BACKWARD_0_DOUT_o], n, h, at, C, V);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    scaled6[t * V + i_V] = do_[t * V + i_V] * power;
                }
            }
            gemm(C, C, V, scaled6, V, 1, product, 1, V, pairs3, C, 1, LOWER_OUT, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    scaled4[t * C + s] = pairs2[t * C + s] * between[t * C + s];
                }
            }
            gemm(C, V, C, scaled4, 1, C, scaled6, V, 1, product2, V, 1, UPPER_A, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    scaled7[t * C + s] = pairs3[t * C + s] * between[t * C + s];
                }
            }
            gemm(C, K, C, scaled7, 1, C, q, K, 1, summed4, K, 1, UPPER_A, 0);
            gemm(C, K, V, scaled6, V, 1, S_start, 1, V, product4, K, 1, WHOLE, 0);
            gemm_onto(C, K, C, scaled7, C, 1, k, K, 1, dq, K, 1, LOWER_A, product4, up, 1, 0);
            row_dots(product5, product4, q, C, K);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled5[t * K + i_K] = k[t * K + i_K] * down[t];
                }
            }
            wait_for(by, &by->queue->state, i);
            gemm_onto(V, C, K, dS, 1, V, scaled5, 1, K, summed2, 1, V, WHOLE, product2, NULL, 0, 0);
            gemm(C, V, C, inverted, 1, C, summed2, V, 1, product6, V, 1, UPPER_A, 0);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(V, K, C, product6, 1, V, scaled3, K, 1, dS_next, 1, V, WHOLE, dS, &total, 0, 0);
                    gemm(V, K, C, scaled6, 1, V, scaled, K, 1, dS_next, 1, V, WHOLE, 1);
                    give_turn(by, &by->queue->state, i);
                } else {
                    gemm(K, C, V, dS, V, 1, product, 1, V, product7, 1, K, WHOLE, 0);
                    row_dots(&product9, dS, S_start, 1, K * V);
                }
            row_dots(product8, product7, k, C, K);
            gemm(C, C, V, product6, V, 1, product, 1, V, pairs4, C, 1, LOWER_OUT, 0);
            gemm(C, K, V, product6, V, 1, S_start, 1, V, product10, K, 1, WHOLE, 0);
            row_dots(product11, product10, scaled2, C, K);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    scaled8[t * C + s] = (t > s ? pairs4[t * C + s] : R(0)) * between[t * C + s];
                    added[t * C + s] = pairs3[t * C + s] * pairs2[t * C + s] + (t > s ? pairs4[t * C + s] : R(0)) * pairs[t * C + s];
                }
            }
            matrix_pull(dg2, added, &decay, scratch);
            gemm_onto(C, K, C, scaled8, C, 1, k, K, 1, summed3, K, 1, LOWER_A, product10, up, 1, 0);
            gemm(C, K, C, scaled8, 1, C, scaled2, K, 1, summed4, K, 1, UPPER_A, 1);
            for (int64_t t = 0; t < C; t++) {
                real sum = R(0);
                #pragma omp simd reduction(+ : sum)
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    sum += -summed3[t * K + i_K] * k[t * K + i_K];
                }
                dbeta2[t] = sum;
            }
            row_dots(dbeta3, product6, v, C, V);
            #pragma omp simd
            for (int64_t t = 0; t < C; t++) {
                dbeta[t] = dbeta2[t] + dbeta3[t];
                added2[t] = product11[t] + product5[t];
            }
            pulled(dg, dg2, added2, up, product8, down, &product9, &decay, scratch);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    dk[t * K + i_K] = product7[t * K + i_K] * down[t] + summed4[t * K + i_K] + -summed3[t * K + i_K] * beta[t];
                }
            }
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dv[t * V + i_V] = product6[t * V + i_V] * beta[t];
                }
            }
            store_tile(&x[GATED_DELTANET_BACKWARD_0_DIN_q], n, h, at, dq, C, K);
            store_tile(&x[GATED_DELTANET_BACKWARD_0_DIN_g], n, h, at, dg, C, 1);
            store_tile(&x[GATED_DELTANET_BACKWARD_0_DIN_k], n, h, at, dk, C, K);
            store_tile(&x[GATED_DELTANET_BACKWARD_0_DIN_v], n, h, at, dv, C, V);
            store_tile(&x[GATED_DELTANET_BACKWARD_0_DIN_beta], n, h, at, dbeta, C, 1);
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GATED_DELTANET_BACKWARD_0_DBEGUN_S], n, h, dS_next, K * V);
            }
        }
    }
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GATED_DELTANET_BACKWARD_0_DBEGUN_S], n, h, state_from(&x[GATED_DELTANET_BACKWARD_0_DENDED_S], n, h, dS_ring, K * V), K * V);
        }
    }
}

static int64_t adjoint_0_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 5 * round_up(L * K);
    room += 3 * round_up(L);
    room += round_up(levels_room(L, 1));
    room += 4 * round_up(L * L);
    room += 3 * round_up(L * V);
    room += round_up(inverse_room(L));
    return room;
}

static int64_t adjoint_0_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void adjoint_0(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const q = take(&w, L * K);
    real *const scaled3 = q;
    real *const g = take(&w, L);
    real *const decay_room = take(&w, levels_room(L, 1));
    real *const up = take(&w, L);
    real *const k = take(&w, L * K);
    real *const beta = take(&w, L);
    real *const down = beta;
    real *const between = take(&w, L * L);
    real *const scaled = take(&w, L * K);
    real *const scaled2 = take(&w, L * K);
    real *const pairs = take(&w, L * L);
    real *const inverted = pairs;
    real *const negated = take(&w, L * L);
    real *const pairs2 = negated;
    real *const do_ = take(&w, L * V);
    real *const product = do_;
    real *const product2 = do_;
    real *const scaled4 = take(&w, L * L);
    real *const scaled6 = take(&w, L * V);
    real *const scaled5 = take(&w, L * K);
    real *const summed = take(&w, L * V);
    real *const scratch = take(&w, inverse_room(L));
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const dS_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    real power;
    levels_t decay;
    real total;
    power = f_pow((real)(K), R(-0.5));
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = chunks - 1 - i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *dS = dS_ring + i % ring * round_up(K * V);
            real *dS_next = dS_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) dS = state_from(&x[GATED_DELTANET_BACKWARD_0_DENDED_S], n, h, dS, K * V);
            if (i + 1 == chunks) dS_next = state_into(&x[GATED_DELTANET_BACKWARD_0_DBEGUN_S], &x[GATED_DELTANET_BACKWARD_0_DENDED_S], n, h, dS_next);
            want_nothing();
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = chunks - 1 - then;
            if (then < chunks) {
                want(&x[GATED_DELTANET_BACKWARD_0_IN_q], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_IN_beta], n, beside, to * L, least(L, run->tokens - to * L), 1, 0);
                want(&x[GATED_DELTANET_BACKWARD_0_DOUT_o], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
            }
            load_tile(q, &x[GATED_DELTANET_BACKWARD_0_IN_q], n, h, at, C, K);
            load_tile(g, &x[GATED_DELTANET_BACKWARD_0_IN_g], n, h, at, C, 1);
            levels(&decay, g, C, 1, 1, 0, decay_room);
            prefix(up, &decay);
            load_tile(k, &x[GATED_DELTANET_BACKWARD_0_IN_k], n, h, at, C, K);
            load_tile(beta, &x[GATED_DELTANET_BACKWARD_0_IN_beta], n, h, at, C, 1);
            matrix(between, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled[t * K + i_K] = q[t * K + i_K] * up[t];
                    scaled2[t * K + i_K] = k[t * K + i_K] * -beta[t];
                }
            }
            gemm(C, C, K, scaled2, K, 1, k, 1, K, pairs, C, 1, LOWER_OUT, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    negated[t * C + s] = -(pairs[t * C + s] * between[t * C + s]);
                }
            }
            inverse(inverted, negated, C, scratch);
            gemm(C, C, K, q, K, 1, k, 1, K, pairs2, C, 1, LOWER_OUT, 0);
            whole(&total, &decay);
            suffix(down, &decay);
            load_tile(do_, &x[GATED_DELTANET_BACKWARD_0_DOUT_o], n, h, at, C, V);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t s = 0; s < C; s++) {
                    scaled4[t * C + s] = pairs2[t * C + s] * between[t * C + s];
                }
            }
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    scaled6[t * V + i_V] = do_[t * V + i_V] * power;
                }
            }
            gemm(C, V, C, scaled4, 1, C, scaled6, V, 1, product, V, 1, UPPER_A, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled3[t * K + i_K] = scaled2[t * K + i_K] * up[t];
                    scaled5[t * K + i_K] = k[t * K + i_K] * down[t];
                }
            }
            wait_for(by, &by->queue->state, i);
            gemm_onto(V, C, K, dS, 1, V, scaled5, 1, K, summed, 1, V, WHOLE, product, NULL, 0, 0);
            gemm(C, V, C, inverted, 1, C, summed, V, 1, product2, V, 1, UPPER_A, 0);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(V, K, C, product2, 1, V, scaled3, K, 1, dS_next, 1, V, WHOLE, dS, &total, 0, 0);
                    gemm(V, K, C, scaled6, 1, V, scaled, K, 1, dS_next, 1, V, WHOLE, 1);
                    give_turn(by, &by->queue->state, i);
                } else {
                }
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GATED_DELTANET_BACKWARD_0_DBEGUN_S], n, h, dS_next, K * V);
            }
        }
    }
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GATED_DELTANET_BACKWARD_0_DBEGUN_S], n, h, state_from(&x[GATED_DELTANET_BACKWARD_0_DENDED_S], n, h, dS_ring, K * V), K * V);
        }
    }
}

static int64_t forward_token_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    room += 3 * round_up(K);
    room += 2 * round_up(V);
    room += 2 * round_up(K * V);
    return room;
}

static int64_t forward_token_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    return room;
}

static void forward_token(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t h, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    real *const q = take(&w, K);
    real *const k = take(&w, K);
    real *const scaled = take(&w, K);
    real *const product = take(&w, V);
    real *const o = product;
    real *const v = take(&w, V);
    real *const product2 = v;
    real *const S_even = take(&w, K * V);
    real *const S_odd = take(&w, K * V);
    const int64_t chunks = run->tokens;
    real power;
    real g;
    real beta;
    real alpha;
    power = f_pow((real)(K), R(-0.5));
    real *S = S_even;
    S = state_from(&x[GATED_DELTANET_FORWARD_TOKEN_BEGUN_S], n, h, S_even, K * V);
    real *S_next = S == S_even ? S_odd : S_even;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = c;
        if (x[GATED_DELTANET_FORWARD_TOKEN_START_S].data && c % KEPT == 0)
            store_tile(&x[GATED_DELTANET_FORWARD_TOKEN_START_S], n, h, c / KEPT, S, 1, K * V);
        if (c + 1 == chunks) {
            S_next = state_into(&x[GATED_DELTANET_FORWARD_TOKEN_ENDED_S], &x[GATED_DELTANET_FORWARD_TOKEN_BEGUN_S], n, h, S_next);
        }
        load_tile(q, &x[GATED_DELTANET_FORWARD_TOKEN_IN_q], n, h, at, 1, K);
        load_tile(&g, &x[GATED_DELTANET_FORWARD_TOKEN_IN_g], n, h, at, 1, 1);
        load_tile(&beta, &x[GATED_DELTANET_FORWARD_TOKEN_IN_beta], n, h, at, 1, 1);
        load_tile(k, &x[GATED_DELTANET_FORWARD_TOKEN_IN_k], n, h, at, 1, K);
        alpha = f_exp(g);
        #pragma omp simd
        for (int64_t i_K = 0; i_K < K; i_K++) {
            scaled[i_K] = k[i_K] * -(beta * alpha);
        }
        gemm(1, V, K, scaled, 0, 1, S, V, 1, product, 0, 1, WHOLE, 0);
        load_tile(v, &x[GATED_DELTANET_FORWARD_TOKEN_IN_v], n, h, at, 1, V);
        for (int64_t i_K = 0; i_K < K; i_K++) {
            #pragma omp simd
            for (int64_t i_V = 0; i_V < V; i_V++) {
                S_next[i_K * V + i_V] = alpha * S[i_K * V + i_V] + k[i_K] * product[i_V] + beta * k[i_K] * v[i_V];
            }
        }
        gemm(1, V, K, q, 0, 1, S_next, V, 1, product2, 0, 1, WHOLE, 0);
        #pragma omp simd
        for (int64_t i_V = 0; i_V < V; i_V++) {
            o[i_V] = power * product2[i_V];
        }
        store_tile(&x[GATED_DELTANET_FORWARD_TOKEN_OUT_o], n, h, at, o, 1, V);
        S = S_next;
        S_next = S == S_even ? S_odd : S_even;
    }
    state_end(&x[GATED_DELTANET_FORWARD_TOKEN_ENDED_S], n, h, S, K * V);
}

static int64_t keep_token_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    room += 2 * round_up(K);
    room += 2 * round_up(V);
    room += 2 * round_up(K * V);
    return room;
}

static int64_t keep_token_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    return room;
}

static void keep_token(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t h, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    real *const k = take(&w, K);
    real *const scaled = take(&w, K);
    real *const product = take(&w, V);
    real *const v = take(&w, V);
    real *const S_even = take(&w, K * V);
    real *const S_odd = take(&w, K * V);
    const int64_t chunks = run->tokens;
    real g;
    real beta;
    real alpha;
    real *S = S_even;
    S = state_from(&x[GATED_DELTANET_FORWARD_TOKEN_BEGUN_S], n, h, S_even, K * V);
    real *S_next = S == S_even ? S_odd : S_even;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = c;
        if (x[GATED_DELTANET_FORWARD_TOKEN_START_S].data && c % KEPT == 0)
            store_tile(&x[GATED_DELTANET_FORWARD_TOKEN_START_S], n, h, c / KEPT, S, 1, K * V);
        if (c + 1 == chunks) {
            S_next = state_into(&x[GATED_DELTANET_FORWARD_TOKEN_ENDED_S], &x[GATED_DELTANET_FORWARD_TOKEN_BEGUN_S], n, h, S_next);
        }
        load_tile(&g, &x[GATED_DELTANET_FORWARD_TOKEN_IN_g], n, h, at, 1, 1);
        load_tile(&beta, &x[GATED_DELTANET_FORWARD_TOKEN_IN_beta], n, h, at, 1, 1);
        load_tile(k, &x[GATED_DELTANET_FORWARD_TOKEN_IN_k], n, h, at, 1, K);
        alpha = f_exp(g);
        #pragma omp simd
        for (int64_t i_K = 0; i_K < K; i_K++) {
            scaled[i_K] = k[i_K] * -(beta * alpha);
        }
        gemm(1, V, K, scaled, 0, 1, S, V, 1, product, 0, 1, WHOLE, 0);
        load_tile(v, &x[GATED_DELTANET_FORWARD_TOKEN_IN_v], n, h, at, 1, V);
        for (int64_t i_K = 0; i_K < K; i_K++) {
            #pragma omp simd
            for (int64_t i_V = 0; i_V < V; i_V++) {
                S_next[i_K * V + i_V] = alpha * S[i_K * V + i_V] + k[i_K] * product[i_V] + beta * k[i_K] * v[i_V];
            }
        }
        S = S_next;
        S_next = S == S_even ? S_odd : S_even;
    }
    state_end(&x[GATED_DELTANET_FORWARD_TOKEN_ENDED_S], n, h, S, K * V);
}

static int64_t backward_token_room(const gated_deltanet_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    room += 8 * round_up(K);
    room += 6 * round_up(V);
    room += 5 * round_up(K * V);
    room += round_up(KEPT * (K * V));
    return room;
}

static int64_t backward_token_shared(const gated_deltanet_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    return room;
}

static void backward_token(const gated_deltanet_run *run, const lacc_array *x, int64_t n, int64_t h, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    real *const q = take(&w, K);
    real *const summed = q;
    real *const k2 = take(&w, K);
    real *const dk = k2;
    real *const scaled2 = take(&w, K);
    real *const product2 = take(&w, V);
    real *const summed2 = product2;
    real *const v2 = take(&w, V);
    real *const dv = v2;
    real *const do_ = take(&w, V);
    real *const S2 = take(&w, K * V);
    real *const dS2 = S2;
    real *const scaled3 = take(&w, V);
    real *const dq = take(&w, K);
    real *const dk2 = take(&w, K);
    real *const product3 = take(&w, K);
    real *const dS_even = take(&w, K * V);
    real *const dS_odd = take(&w, K * V);
    real *const k = take(&w, K);
    real *const scaled = take(&w, K);
    real *const product = take(&w, V);
    real *const v = take(&w, V);
    real *const S_even = take(&w, K * V);
    real *const S_odd = take(&w, K * V);
    real *const S_kept = take(&w, KEPT * (K * V));
    real g;
    real beta;
    real alpha;
    real *S = S_even, *S_next = S_odd;
    real power;
    real g2;
    real beta2;
    real alpha2;
    real dbeta2;
    real product4;
    real dalpha;
    real dbeta;
    real dg;
    power = f_pow((real)(K), R(-0.5));
    real *dS = dS_even;
    dS = state_from(&x[GATED_DELTANET_BACKWARD_TOKEN_DENDED_S], n, h, dS_even, K * V);
    real *dS_next = dS == dS_even ? dS_odd : dS_even;
    for (int64_t c = (run->tokens + KEPT - 1) / KEPT - 1; c >= 0; c--) {
        const int64_t first = c * KEPT, count = least(KEPT, run->tokens - first);
        load_tile(S, &x[GATED_DELTANET_BACKWARD_TOKEN_START_S], n, h, c, 1, K * V);
        for (int64_t p = 0; p < count; p++) {
            const int64_t at = first + p;
            copy(S_kept + p * (K * V), S, K * V);
            load_tile(&g, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_g], n, h, at, 1, 1);
            load_tile(&beta, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_beta], n, h, at, 1, 1);
            load_tile(k, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_k], n, h, at, 1, K);
            alpha = f_exp(g);
            #pragma omp simd
            for (int64_t i_K = 0; i_K < K; i_K++) {
                scaled[i_K] = k[i_K] * -(beta * alpha);
            }
            gemm(1, V, K, scaled, 0, 1, S, V, 1, product, 0, 1, WHOLE, 0);
            load_tile(v, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_v], n, h, at, 1, V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    S_next[i_K * V + i_V] = alpha * S[i_K * V + i_V] + k[i_K] * product[i_V] + beta * k[i_K] * v[i_V];
                }
            }
            S = S_next;
            S_next = S == S_even ? S_odd : S_even;
        }
        for (int64_t p = count - 1; p >= 0; p--) {
            const int64_t at = first + p;
            real *const S_at = S_kept + p * (K * V);
            load_tile(q, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_q], n, h, at, 1, K);
            load_tile(&g2, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_g], n, h, at, 1, 1);
            load_tile(&beta2, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_beta], n, h, at, 1, 1);
            load_tile(k2, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_k], n, h, at, 1, K);
            alpha2 = f_exp(g2);
            #pragma omp simd
            for (int64_t i_K = 0; i_K < K; i_K++) {
                scaled2[i_K] = k2[i_K] * -(alpha2 * beta2);
            }
            gemm(1, V, K, scaled2, 0, 1, S_at, V, 1, product2, 0, 1, WHOLE, 0);
            load_tile(v2, &x[GATED_DELTANET_BACKWARD_TOKEN_IN_v], n, h, at, 1, V);
            load_tile(do_, &x[GATED_DELTANET_BACKWARD_TOKEN_DOUT_o], n, h, at, 1, V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    S2[i_K * V + i_V] = alpha2 * S_at[i_K * V + i_V] + k2[i_K] * product2[i_V] + beta2 * k2[i_K] * v2[i_V];
                }
            }
            #pragma omp simd
            for (int64_t i_V = 0; i_V < V; i_V++) {
                scaled3[i_V] = do_[i_V] * power;
            }
            gemm(1, K, V, scaled3, 0, 1, S2, 1, V, dq, 0, 1, WHOLE, 0);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dS2[i_K * V + i_V] = dS[i_K * V + i_V] + scaled3[i_V] * q[i_K];
                }
            }
            for (int64_t i_K = 0; i_K < K; i_K++) {
                real sum = R(0);
                #pragma omp simd reduction(+ : sum)
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    sum += dS2[i_K * V + i_V] * v2[i_V];
                }
                summed[i_K] = sum;
            }
            fill(dv, R(0), V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dv[i_V] += dS2[i_K * V + i_V] * (beta2 * k2[i_K]);
                }
            }
            row_dots(&dbeta2, summed, k2, 1, K);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                real sum = R(0);
                #pragma omp simd reduction(+ : sum)
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    sum += dS2[i_K * V + i_V] * product2[i_V];
                }
                dk2[i_K] = sum;
            }
            fill(summed2, R(0), V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    summed2[i_V] += dS2[i_K * V + i_V] * k2[i_K];
                }
            }
            gemm(1, K, V, summed2, 0, 1, S_at, 1, V, product3, 0, 1, WHOLE, 0);
            {
                real sum = R(0);
                #pragma omp simd reduction(+ : sum)
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    sum += -product3[i_K] * k2[i_K];
                }
                product4 = sum;
            }
            row_dots(&dalpha, dS2, S_at, 1, K * V);
            #pragma omp simd
            for (int64_t i_K = 0; i_K < K; i_K++) {
                dk[i_K] = summed[i_K] * beta2 + dk2[i_K] + -product3[i_K] * (alpha2 * beta2);
            }
            dbeta = dbeta2 + product4 * alpha2;
            dg = (product4 * beta2 + dalpha) * alpha2;
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dS_next[i_K * V + i_V] = summed2[i_V] * scaled2[i_K] + dS2[i_K * V + i_V] * alpha2;
                }
            }
            store_tile(&x[GATED_DELTANET_BACKWARD_TOKEN_DIN_q], n, h, at, dq, 1, K);
            store_tile(&x[GATED_DELTANET_BACKWARD_TOKEN_DIN_g], n, h, at, &dg, 1, 1);
            store_tile(&x[GATED_DELTANET_BACKWARD_TOKEN_DIN_beta], n, h, at, &dbeta, 1, 1);
            store_tile(&x[GATED_DELTANET_BACKWARD_TOKEN_DIN_k], n, h, at, dk, 1, K);
            store_tile(&x[GATED_DELTANET_BACKWARD_TOKEN_DIN_v], n, h, at, dv, 1, V);
            dS = dS_next;
            dS_next = dS == dS_even ? dS_odd : dS_even;
        }
    }
    state_end(&x[GATED_DELTANET_BACKWARD_TOKEN_DBEGUN_S], n, h, dS, K * V);
}
