static int64_t forward_0_room(const gla_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 5 * round_up(L * K);
    room += round_up(levels_room(L, K));
    room += round_up(L * L);
    room += 2 * round_up(L * V);
    room += round_up(K);
    room += round_up(meet_room(L, K));
    return room;
}

static int64_t forward_0_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void forward_0(const gla_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const q = take(&w, L * K);
    real *const g = take(&w, L * K);
    real *const decay_room = take(&w, levels_room(L, K));
    real *const k = take(&w, L * K);
    real *const from_start = take(&w, L * K);
    real *const pairs = take(&w, L * L);
    real *const to_end = take(&w, L * K);
    real *const v = take(&w, L * V);
    real *const o = v;
    real *const total = take(&w, K);
    real *const summed = take(&w, L * V);
    real *const scratch = take(&w, meet_room(L, K));
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const S_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    real power;
    levels_t decay;
    power = f_pow((real)(K), R(-0.5));
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *S = S_ring + i % ring * round_up(K * V);
            real *S_next = S_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) S = state_from(&x[GLA_FORWARD_0_BEGUN_S], n, h, S, K * V);
            if (i + 1 == chunks) S_next = state_into(&x[GLA_FORWARD_0_ENDED_S], &x[GLA_FORWARD_0_BEGUN_S], n, h, S_next);
            want_nothing();
            want(&x[GLA_FORWARD_0_OUT_o], n, h, at, C, V, 1);
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = then;
            if (then < chunks) {
                want(&x[GLA_FORWARD_0_IN_q], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_FORWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_FORWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_FORWARD_0_IN_v], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
            }
            load_tile(q, &x[GLA_FORWARD_0_IN_q], n, h, at, C, K);
            load_tile(g, &x[GLA_FORWARD_0_IN_g], n, h, at, C, K);
            levels(&decay, g, C, K, 1, 0, decay_room);
            load_tile(k, &x[GLA_FORWARD_0_IN_k], n, h, at, C, K);
            meet(pairs, from_start, to_end, q, k, K, &decay, scratch);
            load_tile(v, &x[GLA_FORWARD_0_IN_v], n, h, at, C, V);
            whole(total, &decay);
            wait_for(by, &by->queue->state, i);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(K, V, C, to_end, 1, K, v, V, 1, S_next, V, 1, WHOLE, S, total, 1, 0);
                    give_turn(by, &by->queue->state, i);
                } else {
                    gemm(C, V, K, from_start, K, 1, S, V, 1, summed, V, 1, WHOLE, 0);
                    if (x[GLA_FORWARD_0_START_S].data)
                        keep_tile(&x[GLA_FORWARD_0_START_S], n, h, c, S, K * V, chunks * by->heads * (K * V) > NEAR);
                }
            gemm(C, V, C, pairs, C, 1, v, V, 1, summed, V, 1, LOWER_A, 1);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    o[t * V + i_V] = power * summed[t * V + i_V];
                }
            }
            store_tile(&x[GLA_FORWARD_0_OUT_o], n, h, at, o, C, V);
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GLA_FORWARD_0_ENDED_S], n, h, S_next, K * V);
            }
        }
    }
    kept_all();
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GLA_FORWARD_0_ENDED_S], n, h, state_from(&x[GLA_FORWARD_0_BEGUN_S], n, h, S_ring, K * V), K * V);
        }
    }
}

static int64_t keep_0_room(const gla_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 3 * round_up(L * K);
    room += round_up(levels_room(L, K));
    room += round_up(L * V);
    room += round_up(K);
    return room;
}

static int64_t keep_0_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void keep_0(const gla_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const g = take(&w, L * K);
    real *const scaled = g;
    real *const decay_room = take(&w, levels_room(L, K));
    real *const k = take(&w, L * K);
    real *const v = take(&w, L * V);
    real *const total = take(&w, K);
    real *const down = take(&w, L * K);
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const S_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    levels_t decay;
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *S = S_ring + i % ring * round_up(K * V);
            real *S_next = S_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) S = state_from(&x[GLA_FORWARD_0_BEGUN_S], n, h, S, K * V);
            if (i + 1 == chunks) S_next = state_into(&x[GLA_FORWARD_0_ENDED_S], &x[GLA_FORWARD_0_BEGUN_S], n, h, S_next);
            want_nothing();
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = then;
            if (then < chunks) {
                want(&x[GLA_FORWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_FORWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_FORWARD_0_IN_v], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
            }
            load_tile(g, &x[GLA_FORWARD_0_IN_g], n, h, at, C, K);
            levels(&decay, g, C, K, 1, 0, decay_room);
            load_tile(k, &x[GLA_FORWARD_0_IN_k], n, h, at, C, K);
            load_tile(v, &x[GLA_FORWARD_0_IN_v], n, h, at, C, V);
            whole(total, &decay);
            suffix(down, &decay);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled[t * K + i_K] = k[t * K + i_K] * down[t * K + i_K];
                }
            }
            wait_for(by, &by->queue->state, i);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(K, V, C, scaled, 1, K, v, V, 1, S_next, V, 1, WHOLE, S, total, 1, 0);
                    give_turn(by, &by->queue->state, i);
                } else {
                    if (x[GLA_FORWARD_0_START_S].data)
                        keep_tile(&x[GLA_FORWARD_0_START_S], n, h, c, S, K * V, chunks * by->heads * (K * V) > NEAR);
                }
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GLA_FORWARD_0_ENDED_S], n, h, S_next, K * V);
            }
        }
    }
    kept_all();
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const S_ring = S_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GLA_FORWARD_0_ENDED_S], n, h, state_from(&x[GLA_FORWARD_0_BEGUN_S], n, h, S_ring, K * V), K * V);
        }
    }
}

static int64_t backward_0_room(const gla_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 13 * round_up(L * K);
    room += round_up(levels_room(L, K));
    room += 2 * round_up(L * L);
    room += 4 * round_up(L * V);
    room += 2 * round_up(K);
    room += round_up(most(most(meet_room(L, K), meet_pull_room(L, K)), pulled_room(L, K)));
    room += round_up(K * V);
    return room;
}

static int64_t backward_0_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void backward_0(const gla_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const q = take(&w, L * K);
    real *const g = take(&w, L * K);
    real *const decay_room = take(&w, levels_room(L, K));
    real *const up = take(&w, L * K);
    real *const k = take(&w, L * K);
    real *const from_start = take(&w, L * K);
    real *const dk = from_start;
    real *const pairs = take(&w, L * L);
    real *const to_end = take(&w, L * K);
    real *const scaled3 = to_end;
    real *const v = take(&w, L * V);
    real *const total = take(&w, K);
    real *const down = take(&w, L * K);
    real *const do_ = take(&w, L * V);
    real *const product = do_;
    real *const scaled = take(&w, L * V);
    real *const pairs2 = take(&w, L * L);
    real *const dq2 = take(&w, L * K);
    real *const dk2 = take(&w, L * K);
    real *const dg = dk2;
    real *const dg2 = take(&w, L * K);
    real *const product2 = take(&w, L * K);
    real *const product3 = product2;
    real *const scaled2 = take(&w, L * K);
    real *const dq = take(&w, L * K);
    real *const product4 = take(&w, K);
    real *const dv = take(&w, L * V);
    real *const scratch = take(&w, most(most(meet_room(L, K), meet_pull_room(L, K)), pulled_room(L, K)));
    real *const S_start_tile = take(&w, K * V);
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const dS_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    real power;
    levels_t decay;
    power = f_pow((real)(K), R(-0.5));
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = chunks - 1 - i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *dS = dS_ring + i % ring * round_up(K * V);
            real *dS_next = dS_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) dS = state_from(&x[GLA_BACKWARD_0_DENDED_S], n, h, dS, K * V);
            if (i + 1 == chunks) dS_next = state_into(&x[GLA_BACKWARD_0_DBEGUN_S], &x[GLA_BACKWARD_0_DENDED_S], n, h, dS_next);
            const real *const S_start = start_from(&x[GLA_BACKWARD_0_START_S], n, h, c, S_start_tile, K * V);
            want_nothing();
            want(&x[GLA_BACKWARD_0_DIN_q], n, h, at, C, K, 1);
            want(&x[GLA_BACKWARD_0_DIN_g], n, h, at, C, K, 1);
            want(&x[GLA_BACKWARD_0_DIN_k], n, h, at, C, K, 1);
            want(&x[GLA_BACKWARD_0_DIN_v], n, h, at, C, V, 1);
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = chunks - 1 - then;
            if (then < chunks) {
                want(&x[GLA_BACKWARD_0_IN_q], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_BACKWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_BACKWARD_0_IN_k], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_BACKWARD_0_START_S], n, beside, to, 1, K * V, 0);
                want(&x[GLA_BACKWARD_0_IN_v], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
                want(&x[GLA_BACKWARD_0_DOUT_o], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
            }
            load_tile(q, &x[GLA_BACKWARD_0_IN_q], n, h, at, C, K);
            load_tile(g, &x[GLA_BACKWARD_0_IN_g], n, h, at, C, K);
            levels(&decay, g, C, K, 1, 0, decay_room);
            prefix(up, &decay);
            load_tile(k, &x[GLA_BACKWARD_0_IN_k], n, h, at, C, K);
            meet(pairs, from_start, to_end, q, k, K, &decay, scratch);
            load_tile(v, &x[GLA_BACKWARD_0_IN_v], n, h, at, C, V);
            whole(total, &decay);
            suffix(down, &decay);
            load_tile(do_, &x[GLA_BACKWARD_0_DOUT_o], n, h, at, C, V);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    scaled[t * V + i_V] = do_[t * V + i_V] * power;
                }
            }
            gemm(C, C, V, scaled, V, 1, v, 1, V, pairs2, C, 1, LOWER_OUT, 0);
            gemm(C, V, C, pairs, 1, C, scaled, V, 1, product, V, 1, UPPER_A, 0);
            meet_pull((const meet_t[]){{pairs2, q, k, dq2, dk2}}, 1, dg2, K, &decay, scratch);
            gemm(C, K, V, scaled, V, 1, S_start, 1, V, product2, K, 1, WHOLE, 0);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled2[t * K + i_K] = product2[t * K + i_K] * q[t * K + i_K];
                    dq[t * K + i_K] = dq2[t * K + i_K] + product2[t * K + i_K] * up[t * K + i_K];
                }
            }
            wait_for(by, &by->queue->state, i);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(V, K, C, scaled, 1, V, from_start, K, 1, dS_next, 1, V, WHOLE, dS, total, 0, 1);
                    give_turn(by, &by->queue->state, i);
                } else {
                    gemm(K, C, V, dS, V, 1, v, 1, V, product3, 1, K, WHOLE, 0);
                    row_dots(product4, dS, S_start, K, V);
                    gemm_onto(V, C, K, dS, 1, V, to_end, 1, K, dv, 1, V, WHOLE, product, NULL, 0, 0);
                }
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled3[t * K + i_K] = product3[t * K + i_K] * k[t * K + i_K];
                    dk[t * K + i_K] = product3[t * K + i_K] * down[t * K + i_K] + dk2[t * K + i_K];
                }
            }
            pulled(dg, dg2, scaled2, up, scaled3, down, product4, &decay, scratch);
            store_tile(&x[GLA_BACKWARD_0_DIN_q], n, h, at, dq, C, K);
            store_tile(&x[GLA_BACKWARD_0_DIN_g], n, h, at, dg, C, K);
            store_tile(&x[GLA_BACKWARD_0_DIN_k], n, h, at, dk, C, K);
            store_tile(&x[GLA_BACKWARD_0_DIN_v], n, h, at, dv, C, V);
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GLA_BACKWARD_0_DBEGUN_S], n, h, dS_next, K * V);
            }
        }
    }
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GLA_BACKWARD_0_DBEGUN_S], n, h, state_from(&x[GLA_BACKWARD_0_DENDED_S], n, h, dS_ring, K * V), K * V);
        }
    }
}

static int64_t adjoint_0_room(const gla_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += 3 * round_up(L * K);
    room += round_up(levels_room(L, K));
    room += round_up(K);
    room += 2 * round_up(L * V);
    return room;
}

static int64_t adjoint_0_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    int64_t room = 0;
    room += ring_of(ring) * round_up(K * V);
    return room;
}

static void adjoint_0(const gla_run *run, const lacc_array *x, int64_t n, int64_t first, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = run->chunk;
    real *const q = take(&w, L * K);
    real *const g = take(&w, L * K);
    real *const scaled = g;
    real *const decay_room = take(&w, levels_room(L, K));
    real *const up = take(&w, L * K);
    real *const total = take(&w, K);
    real *const do_ = take(&w, L * V);
    real *const scaled2 = take(&w, L * V);
    const int64_t ring = ring_of(by->ring);
    real *all = by->shared;
    real *const dS_ring_all = take(&all, by->heads * ring_of(ring) * round_up(K * V));
    const int64_t chunks = (run->tokens + L - 1) / L;
    real power;
    levels_t decay;
    power = f_pow((real)(K), R(-0.5));
    for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {
        const int64_t c = chunks - 1 - i;
        const int64_t at = c * L, C = least(L, run->tokens - at);
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            UNUSED real *dS = dS_ring + i % ring * round_up(K * V);
            real *dS_next = dS_ring + (i + 1) % ring * round_up(K * V);
            if (i == 0) dS = state_from(&x[GLA_BACKWARD_0_DENDED_S], n, h, dS, K * V);
            if (i + 1 == chunks) dS_next = state_into(&x[GLA_BACKWARD_0_DBEGUN_S], &x[GLA_BACKWARD_0_DENDED_S], n, h, dS_next);
            want_nothing();
            const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;
            const int64_t then = other ? i : i + by->members;
            const int64_t to = chunks - 1 - then;
            if (then < chunks) {
                want(&x[GLA_BACKWARD_0_IN_q], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_BACKWARD_0_IN_g], n, beside, to * L, least(L, run->tokens - to * L), K, 0);
                want(&x[GLA_BACKWARD_0_DOUT_o], n, beside, to * L, least(L, run->tokens - to * L), V, 0);
            }
            load_tile(q, &x[GLA_BACKWARD_0_IN_q], n, h, at, C, K);
            load_tile(g, &x[GLA_BACKWARD_0_IN_g], n, h, at, C, K);
            levels(&decay, g, C, K, 1, 0, decay_room);
            prefix(up, &decay);
            whole(total, &decay);
            load_tile(do_, &x[GLA_BACKWARD_0_DOUT_o], n, h, at, C, V);
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_K = 0; i_K < K; i_K++) {
                    scaled[t * K + i_K] = q[t * K + i_K] * up[t * K + i_K];
                }
            }
            for (int64_t t = 0; t < C; t++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    scaled2[t * V + i_V] = do_[t * V + i_V] * power;
                }
            }
            wait_for(by, &by->queue->state, i);
            for (int step = 0; step < 2; step++)
                if (step == (by->members == 1)) { /* alone, once the state is read */
                    gemm_onto(V, K, C, scaled2, 1, V, scaled, K, 1, dS_next, 1, V, WHOLE, dS, total, 0, 1);
                    give_turn(by, &by->queue->state, i);
                } else {
                }
            wait_for(by, &by->queue->done, i);
            give_turn(by, &by->queue->done, i);
            if (i + 1 == chunks) {
                state_end(&x[GLA_BACKWARD_0_DBEGUN_S], n, h, dS_next, K * V);
            }
        }
    }
    if (!chunks) {
        for (int64_t h = first; h < first + by->heads; h++) {
            real *const dS_ring = dS_ring_all + (h - first) * ring_of(ring) * round_up(K * V);
            state_end(&x[GLA_BACKWARD_0_DBEGUN_S], n, h, state_from(&x[GLA_BACKWARD_0_DENDED_S], n, h, dS_ring, K * V), K * V);
        }
    }
}

static int64_t forward_token_room(const gla_run *run, UNUSED int64_t heads)
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

static int64_t forward_token_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    return room;
}

static void forward_token(const gla_run *run, const lacc_array *x, int64_t n, int64_t h, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    real *const q = take(&w, K);
    real *const g = take(&w, K);
    real *const k = g;
    real *const alpha = take(&w, K);
    real *const v = take(&w, V);
    real *const product = v;
    real *const o = take(&w, V);
    real *const S_even = take(&w, K * V);
    real *const S_odd = take(&w, K * V);
    const int64_t chunks = run->tokens;
    real power;
    power = f_pow((real)(K), R(-0.5));
    real *S = S_even;
    S = state_from(&x[GLA_FORWARD_TOKEN_BEGUN_S], n, h, S_even, K * V);
    real *S_next = S == S_even ? S_odd : S_even;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = c;
        if (x[GLA_FORWARD_TOKEN_START_S].data && c % KEPT == 0)
            store_tile(&x[GLA_FORWARD_TOKEN_START_S], n, h, c / KEPT, S, 1, K * V);
        if (c + 1 == chunks) {
            S_next = state_into(&x[GLA_FORWARD_TOKEN_ENDED_S], &x[GLA_FORWARD_TOKEN_BEGUN_S], n, h, S_next);
        }
        load_tile(q, &x[GLA_FORWARD_TOKEN_IN_q], n, h, at, 1, K);
        load_tile(g, &x[GLA_FORWARD_TOKEN_IN_g], n, h, at, 1, K);
        exps(alpha, g, K);
        load_tile(k, &x[GLA_FORWARD_TOKEN_IN_k], n, h, at, 1, K);
        load_tile(v, &x[GLA_FORWARD_TOKEN_IN_v], n, h, at, 1, V);
        for (int64_t i_K = 0; i_K < K; i_K++) {
            #pragma omp simd
            for (int64_t i_V = 0; i_V < V; i_V++) {
                S_next[i_K * V + i_V] = alpha[i_K] * S[i_K * V + i_V] + k[i_K] * v[i_V];
            }
        }
        gemm(1, V, K, q, 0, 1, S_next, V, 1, product, 0, 1, WHOLE, 0);
        #pragma omp simd
        for (int64_t i_V = 0; i_V < V; i_V++) {
            o[i_V] = power * product[i_V];
        }
        store_tile(&x[GLA_FORWARD_TOKEN_OUT_o], n, h, at, o, 1, V);
        S = S_next;
        S_next = S == S_even ? S_odd : S_even;
    }
    state_end(&x[GLA_FORWARD_TOKEN_ENDED_S], n, h, S, K * V);
}

static int64_t keep_token_room(const gla_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    room += 2 * round_up(K);
    room += round_up(V);
    room += 2 * round_up(K * V);
    return room;
}

static int64_t keep_token_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    return room;
}

static void keep_token(const gla_run *run, const lacc_array *x, int64_t n, int64_t h, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    real *const g = take(&w, K);
    real *const k = g;
    real *const alpha = take(&w, K);
    real *const v = take(&w, V);
    real *const S_even = take(&w, K * V);
    real *const S_odd = take(&w, K * V);
    const int64_t chunks = run->tokens;
    real *S = S_even;
    S = state_from(&x[GLA_FORWARD_TOKEN_BEGUN_S], n, h, S_even, K * V);
    real *S_next = S == S_even ? S_odd : S_even;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = c;
        if (x[GLA_FORWARD_TOKEN_START_S].data && c % KEPT == 0)
            store_tile(&x[GLA_FORWARD_TOKEN_START_S], n, h, c / KEPT, S, 1, K * V);
        if (c + 1 == chunks) {
            S_next = state_into(&x[GLA_FORWARD_TOKEN_ENDED_S], &x[GLA_FORWARD_TOKEN_BEGUN_S], n, h, S_next);
        }
        load_tile(g, &x[GLA_FORWARD_TOKEN_IN_g], n, h, at, 1, K);
        exps(alpha, g, K);
        load_tile(k, &x[GLA_FORWARD_TOKEN_IN_k], n, h, at, 1, K);
        load_tile(v, &x[GLA_FORWARD_TOKEN_IN_v], n, h, at, 1, V);
        for (int64_t i_K = 0; i_K < K; i_K++) {
            #pragma omp simd
            for (int64_t i_V = 0; i_V < V; i_V++) {
                S_next[i_K * V + i_V] = alpha[i_K] * S[i_K * V + i_V] + k[i_K] * v[i_V];
            }
        }
        S = S_next;
        S_next = S == S_even ? S_odd : S_even;
    }
    state_end(&x[GLA_FORWARD_TOKEN_ENDED_S], n, h, S, K * V);
}

static int64_t backward_token_room(const gla_run *run, UNUSED int64_t heads)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    room += 7 * round_up(K);
    room += 4 * round_up(V);
    room += 5 * round_up(K * V);
    room += round_up(KEPT * (K * V));
    return room;
}

static int64_t backward_token_shared(const gla_run *run, UNUSED int64_t ring)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    int64_t room = 0;
    return room;
}

static void backward_token(const gla_run *run, const lacc_array *x, int64_t n, int64_t h, real *w, UNUSED turns *by)
{
    UNUSED const int64_t K = run->dim.K;
    UNUSED const int64_t V = run->dim.V;
    UNUSED const int64_t L = 1;
    real *const q = take(&w, K);
    real *const dk = q;
    real *const g2 = take(&w, K);
    real *const k2 = g2;
    real *const dalpha = g2;
    real *const alpha2 = take(&w, K);
    real *const v2 = take(&w, V);
    real *const dv = v2;
    real *const do_ = take(&w, V);
    real *const S2 = take(&w, K * V);
    real *const dS2 = S2;
    real *const scaled = take(&w, V);
    real *const dq = take(&w, K);
    real *const dg = take(&w, K);
    real *const dS_even = take(&w, K * V);
    real *const dS_odd = take(&w, K * V);
    real *const g = take(&w, K);
    real *const k = g;
    real *const alpha = take(&w, K);
    real *const v = take(&w, V);
    real *const S_even = take(&w, K * V);
    real *const S_odd = take(&w, K * V);
    real *const S_kept = take(&w, KEPT * (K * V));
    real *S = S_even, *S_next = S_odd;
    real power;
    power = f_pow((real)(K), R(-0.5));
    real *dS = dS_even;
    dS = state_from(&x[GLA_BACKWARD_TOKEN_DENDED_S], n, h, dS_even, K * V);
    real *dS_next = dS == dS_even ? dS_odd : dS_even;
    for (int64_t c = (run->tokens + KEPT - 1) / KEPT - 1; c >= 0; c--) {
        const int64_t first = c * KEPT, count = least(KEPT, run->tokens - first);
        load_tile(S, &x[GLA_BACKWARD_TOKEN_START_S], n, h, c, 1, K * V);
        for (int64_t p = 0; p < count; p++) {
            const int64_t at = first + p;
            copy(S_kept + p * (K * V), S, K * V);
            load_tile(g, &x[GLA_BACKWARD_TOKEN_IN_g], n, h, at, 1, K);
            exps(alpha, g, K);
            load_tile(k, &x[GLA_BACKWARD_TOKEN_IN_k], n, h, at, 1, K);
            load_tile(v, &x[GLA_BACKWARD_TOKEN_IN_v], n, h, at, 1, V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    S_next[i_K * V + i_V] = alpha[i_K] * S[i_K * V + i_V] + k[i_K] * v[i_V];
                }
            }
            S = S_next;
            S_next = S == S_even ? S_odd : S_even;
        }
        for (int64_t p = count - 1; p >= 0; p--) {
            const int64_t at = first + p;
            real *const S_at = S_kept + p * (K * V);
            load_tile(q, &x[GLA_BACKWARD_TOKEN_IN_q], n, h, at, 1, K);
            load_tile(g2, &x[GLA_BACKWARD_TOKEN_IN_g], n, h, at, 1, K);
            exps(alpha2, g2, K);
            load_tile(k2, &x[GLA_BACKWARD_TOKEN_IN_k], n, h, at, 1, K);
            load_tile(v2, &x[GLA_BACKWARD_TOKEN_IN_v], n, h, at, 1, V);
            load_tile(do_, &x[GLA_BACKWARD_TOKEN_DOUT_o], n, h, at, 1, V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    S2[i_K * V + i_V] = alpha2[i_K] * S_at[i_K * V + i_V] + k2[i_K] * v2[i_V];
                }
            }
            #pragma omp simd
            for (int64_t i_V = 0; i_V < V; i_V++) {
                scaled[i_V] = do_[i_V] * power;
            }
            gemm(1, K, V, scaled, 0, 1, S2, 1, V, dq, 0, 1, WHOLE, 0);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dS2[i_K * V + i_V] = dS[i_K * V + i_V] + scaled[i_V] * q[i_K];
                }
            }
            for (int64_t i_K = 0; i_K < K; i_K++) {
                real sum = R(0);
                #pragma omp simd reduction(+ : sum)
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    sum += dS2[i_K * V + i_V] * v2[i_V];
                }
                dk[i_K] = sum;
            }
            fill(dv, R(0), V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dv[i_V] += dS2[i_K * V + i_V] * k2[i_K];
                }
            }
            row_dots(dalpha, dS2, S_at, K, V);
            for (int64_t i_K = 0; i_K < K; i_K++) {
                #pragma omp simd
                for (int64_t i_V = 0; i_V < V; i_V++) {
                    dS_next[i_K * V + i_V] = dS2[i_K * V + i_V] * alpha2[i_K];
                }
            }
            #pragma omp simd
            for (int64_t i_K = 0; i_K < K; i_K++) {
                dg[i_K] = dalpha[i_K] * alpha2[i_K];
            }
            store_tile(&x[GLA_BACKWARD_TOKEN_DIN_q], n, h, at, dq, 1, K);
            store_tile(&x[GLA_BACKWARD_TOKEN_DIN_g], n, h, at, dg, 1, K);
            store_tile(&x[GLA_BACKWARD_TOKEN_DIN_k], n, h, at, dk, 1, K);
            store_tile(&x[GLA_BACKWARD_TOKEN_DIN_v], n, h, at, dv, 1, V);
            dS = dS_next;
            dS_next = dS == dS_even ? dS_odd : dS_even;
        }
    }
    state_end(&x[GLA_BACKWARD_TOKEN_DBEGUN_S], n, h, dS, K * V);
}
