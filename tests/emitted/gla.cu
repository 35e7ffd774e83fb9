/* ---- gla: kernels */

#if !defined(LACC_ONLY) || defined(LACC_ONLY_fused_0)
namespace fused_0 {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int V_most = BLOCK < V ? BLOCK : V;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<15> tiles()
{
    return placed<15>({
        {L * K, 2, 3}, /* k */
        {L * K, 3, 4}, /* from_start */
        {L * K, 3, 6}, /* to_end */
        {K * V_most, 0, 8}, /* S */
        {L * V_most, 4, 6}, /* summed */
        {levels_room(L, K), 2, 5}, /* decay */
        {L * K, 1, 2}, /* g */
        {L * K, 2, 3}, /* q */
        {L * L, 3, 5}, /* pairs */
        {K, 5, 6}, /* total */
        {L * V_most, 6, 7}, /* o */
        {meet_room(L, K), 3, 3}, /* work */
        {L * K * sizeof(element<T_g>::type) / sizeof(real), 0, 8, true}, /* g_ahead */
        {L * K * sizeof(element<T_q>::type) / sizeof(real), 0, 8, true}, /* q_ahead */
        {L * K * sizeof(element<T_k>::type) / sizeof(real), 0, 8, true}, /* k_ahead */
    });
}

/* o, S_start, chunk after chunk carrying S. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_fused_0(const gla_fused_0_args a)
{
    constexpr auto lies = tiles();
    real *const k = lies.tile(0, a.arena);
    real *const from_start = lies.tile(1, a.arena);
    real *const to_end = lies.tile(2, a.arena);
    real *const S = lies.tile(3, a.arena);
    real *const summed = lies.tile(4, a.arena);
    real *const decay_room = lies.tile(5, a.arena);
    real *const g = lies.tile(6, a.arena);
    real *const q = lies.tile(7, a.arena);
    real *const pairs = lies.tile(8, a.arena);
    real *const total = lies.tile(9, a.arena);
    real *const o = lies.tile(10, a.arena);
    real *const work = lies.tile(11, a.arena);
    real *const g_ahead = lies.spare(12);
    real *const q_ahead = lies.spare(13);
    real *const k_ahead = lies.spare(14);
    constexpr int others = 2;
    levels_t decay;
    real power;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t sequence = program / H;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    const int64_t chunks = (its.tokens + L - 1) / L;
    const int64_t from = blockIdx.y * (int64_t)V_most;
    const int V_here = V % V_most == 0 ? V_most : least(V_most, V - (int)from);
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h);
    auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h);
    auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h);
    auto *const v_at = entries<T_v>(a.v, its.batch * a.v_b + head * a.v_h + from * a.v_0);
    auto *const S_begun_at = entries<T_S_begun>(a.S_begun, (sequence * H + head) * K * V + from);
    auto *const S_start_at = entries<T_S_start>(a.S_start, from);
    auto *const o_at = entries<T_o>(a.o, head * V + from);
    auto *const S_ended_at = entries<T_S_ended>(a.S_ended, (sequence * H + head) * K * V + from);
    // o = K**-0.5 * S[t].T @ q
    power = f_pow((real)(K), R(-0.5));
    load_tile(S, S_begun_at, V, 1, K, K, V_here);
    barrier();
    for (int64_t number = 0; number < chunks; number++) {
        const int64_t index = number, chunk = its.chunk + index;
        const int C_next = (int)(its.tokens - (index + 1) * L < L ? its.tokens - (index + 1) * L : L);
        const int64_t start = index * L;
        const int C = (int)(its.tokens - start < L ? its.tokens - start : L);
        [[maybe_unused]] const int64_t place = start, token = its.first + place;
        [[maybe_unused]] const int64_t row = its.batch * a.T + token;
        store_tile(moved(S_start_at, (chunk * H + head) * (K * V)), V, 1, S, K, V_here);
        load_ahead<others>(g, g_ahead, g_at + token * a.g_t, L * (a.g_t), a.g_t, a.g_0, C, K, C_next, K, number == 0);
        barrier();
        // S[t] = diag(α) @ S[t-1] + k @ v.T
        levels(&decay, g, C, K, 1, 0, decay_room);
        load_ahead<others>(q, q_ahead, q_at + token * a.q_t, L * (a.q_t), a.q_t, a.q_0, C, K, C_next, K, number == 0);
        load_ahead<others>(k, k_ahead, k_at + token * a.k_t, L * (a.k_t), a.k_t, a.k_0, C, K, C_next, K, number == 0);
        barrier();
        meet(pairs, from_start, to_end, q, k, K, &decay, work);
        barrier();
        gemm(C, V_here, K, from_start, K, 1, S, V_here, 1, summed, V_here, 1, WHOLE, 0);
        barrier();
        gemm(C, V_here, C, pairs, C, 1, v_at + token * a.v_t, a.v_t, a.v_0, summed, V_here, 1, LOWER_A, 1);
        whole(total, &decay);
        barrier();
        gemm_onto(K, V_here, C, to_end, 1, K, v_at + token * a.v_t, a.v_t, a.v_0, S, V_here, 1, WHOLE, S, total, 1, 0);
        // o = K**-0.5 * S[t].T @ q
        for (int i = threadIdx.x; i < C * V_here; i += THREADS) {
            o[i] = power * summed[i];
        }
        barrier();
        store_tile(o_at + row * (H * V), H * V, 1, o, C, V_here);
        barrier();
    }
    store_tile(S_ended_at, V, 1, S, K, V_here);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_fused_0_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_fused_0_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_fused_0_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_fused_0_together(void)
{
    return 0;
}

extern "C" int gla_fused_0_launch(const gla_fused_0_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_fused_0, programs, blocks, THREADS, gla_fused_0_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_forward_0a)
namespace forward_0a {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int K_most = BLOCK < K ? BLOCK : K;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<9> tiles()
{
    return placed<9>({
        {K_most * V, 0, 6}, /* S */
        {levels_room(L, K_most), 2, 3}, /* decay */
        {L * K_most, 1, 2}, /* g */
        {K_most, 3, 5}, /* total */
        {L * K_most, 3, 4}, /* down2 */
        {L * K_most, 3, 4}, /* k */
        {L * K_most, 4, 5}, /* scaled */
        {L * K_most * sizeof(element<T_g>::type) / sizeof(real), 0, 6, true}, /* g_ahead */
        {L * K_most * sizeof(element<T_k>::type) / sizeof(real), 0, 6, true}, /* k_ahead */
    });
}

/* S_start, chunk after chunk carrying S. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_forward_0a(const gla_forward_0a_args a)
{
    constexpr auto lies = tiles();
    real *const S = lies.tile(0, a.arena);
    real *const decay_room = lies.tile(1, a.arena);
    real *const g = lies.tile(2, a.arena);
    real *const total = lies.tile(3, a.arena);
    real *const down2 = lies.tile(4, a.arena);
    real *const k = lies.tile(5, a.arena);
    real *const scaled = lies.tile(6, a.arena);
    real *const g_ahead = lies.spare(7);
    real *const k_ahead = lies.spare(8);
    constexpr int others = 1;
    levels_t decay;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t sequence = program / H;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    const int64_t chunks = (its.tokens + L - 1) / L;
    const int64_t from = blockIdx.y * (int64_t)K_most;
    const int K_here = K % K_most == 0 ? K_most : least(K_most, K - (int)from);
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h + from * a.g_0);
    auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h + from * a.k_0);
    auto *const v_at = entries<T_v>(a.v, its.batch * a.v_b + head * a.v_h);
    auto *const S_begun_at = entries<T_S_begun>(a.S_begun, (sequence * H + head) * K * V + from * V);
    auto *const S_start_at = entries<T_S_start>(a.S_start, from * V);
    auto *const S_ended_at = entries<T_S_ended>(a.S_ended, (sequence * H + head) * K * V + from * V);
    load_tile(S, S_begun_at, 0, 1, 1, 1, K_here * V);
    barrier();
    for (int64_t number = 0; number < chunks; number++) {
        const int64_t index = number, chunk = its.chunk + index;
        const int C_next = (int)(its.tokens - (index + 1) * L < L ? its.tokens - (index + 1) * L : L);
        const int64_t start = index * L;
        const int C = (int)(its.tokens - start < L ? its.tokens - start : L);
        [[maybe_unused]] const int64_t place = start, token = its.first + place;
        [[maybe_unused]] const int64_t row = its.batch * a.T + token;
        store_tile(moved(S_start_at, (chunk * H + head) * (K * V)), 0, 1, S, 1, K_here * V);
        load_ahead<others>(g, g_ahead, g_at + token * a.g_t, L * (a.g_t), a.g_t, a.g_0, C, K_here, C_next, K_here, number == 0);
        barrier();
        // S[t] = diag(α) @ S[t-1] + k @ v.T
        levels(&decay, g, C, K_here, 1, 0, decay_room);
        barrier();
        whole(total, &decay);
        suffix(down2, &decay);
        load_ahead<others>(k, k_ahead, k_at + token * a.k_t, L * (a.k_t), a.k_t, a.k_0, C, K_here, C_next, K_here, number == 0);
        barrier();
        for (int i = threadIdx.x; i < C * K_here; i += THREADS) {
            scaled[i] = k[i] * down2[i];
        }
        barrier();
        gemm_onto(K_here, V, C, scaled, 1, K_here, v_at + token * a.v_t, a.v_t, a.v_0, S, V, 1, WHOLE, S, total, 1, 0);
        barrier();
    }
    store_tile(S_ended_at, 0, 1, S, 1, K_here * V);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_forward_0a_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_forward_0a_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_forward_0a_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_forward_0a_together(void)
{
    return 0;
}

extern "C" int gla_forward_0a_launch(const gla_forward_0a_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_forward_0a, programs, blocks, THREADS, gla_forward_0a_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_forward_0b)
namespace forward_0b {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int V_most = BLOCK < V ? BLOCK : V;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<8> tiles()
{
    return placed<8>({
        {L * K, 2, 3}, /* from_start */
        {L * L, 2, 4}, /* pairs */
        {L * V_most, 3, 6}, /* summed */
        {L * K, 0, 1}, /* g */
        {levels_room(L, K), 1, 2}, /* decay */
        {L * K, 1, 2}, /* q */
        {L * K, 1, 2}, /* k */
        {meet_room(L, K), 2, 2}, /* work */
    });
}

/* o, of one chunk. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_forward_0b(const gla_forward_0b_args a)
{
    constexpr auto lies = tiles();
    real *const from_start = lies.tile(0, a.arena);
    real *const pairs = lies.tile(1, a.arena);
    real *const summed = lies.tile(2, a.arena);
    real *const g = lies.tile(3, a.arena);
    real *const decay_room = lies.tile(4, a.arena);
    real *const q = lies.tile(5, a.arena);
    real *const k = lies.tile(6, a.arena);
    real *const work = lies.tile(7, a.arena);
    levels_t decay;
    real power;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t chunk = program / H;
    const auto at = chunk_at(chunk, a.T, a.table);
    const int64_t sequence = at.sequence, index = at.index;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    if (index * L >= its.tokens) return; /* behind all tokens */
    const int64_t from = blockIdx.y * (int64_t)V_most;
    const int V_here = V % V_most == 0 ? V_most : least(V_most, V - (int)from);
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h);
    auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h);
    auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h);
    auto *const S_start_at = entries<T_S_start>(a.S_start, from);
    auto *const v_at = entries<T_v>(a.v, its.batch * a.v_b + head * a.v_h + from * a.v_0);
    auto *const o_at = entries<T_o>(a.o, head * V + from);
    // o = K**-0.5 * S[t].T @ q
    power = f_pow((real)(K), R(-0.5));
    const int64_t start = index * L;
    const int C = (int)(its.tokens - start < L ? its.tokens - start : L);
    [[maybe_unused]] const int64_t place = start, token = its.first + place;
    [[maybe_unused]] const int64_t row = its.batch * a.T + token;
    load_tile(g, g_at + token * a.g_t, a.g_t, a.g_0, C, C, K);
    barrier();
    // S[t] = diag(α) @ S[t-1] + k @ v.T
    levels(&decay, g, C, K, 1, 0, decay_room);
    load_tile(q, q_at + token * a.q_t, a.q_t, a.q_0, C, C, K);
    load_tile(k, k_at + token * a.k_t, a.k_t, a.k_0, C, C, K);
    barrier();
    meet(pairs, from_start, 0, q, k, K, &decay, work);
    barrier();
    gemm(C, V_here, K, from_start, K, 1, moved(S_start_at, (chunk * H + head) * (K * V)), V, 1, summed, V_here, 1, WHOLE, 0);
    barrier();
    gemm(C, V_here, C, pairs, C, 1, v_at + token * a.v_t, a.v_t, a.v_0, summed, V_here, 1, LOWER_A, 1);
    barrier();
    // o = K**-0.5 * S[t].T @ q
    for (int i = threadIdx.x; i < C * V_here; i += THREADS) {
        summed[i] = power * summed[i];
    }
    barrier();
    store_tile(o_at + row * (H * V), H * V, 1, summed, C, V_here);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_forward_0b_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_forward_0b_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_forward_0b_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_forward_0b_together(void)
{
    return 0;
}

extern "C" int gla_forward_0b_launch(const gla_forward_0b_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_forward_0b, programs, blocks, THREADS, gla_forward_0b_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_backward_0a)
namespace backward_0a {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int K_most = BLOCK < K ? BLOCK : K;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<12> tiles()
{
    return placed<12>({
        {K_most * V, 0, 6}, /* dS */
        {K_most, 3, 5}, /* total */
        {L * K_most, 4, 5}, /* scaled */
        {L * V, 4, 5}, /* scaled2 */
        {L * K_most, 3, 4}, /* up2 */
        {L * K_most, 3, 4}, /* q */
        {L * V, 3, 4}, /* do_ */
        {levels_room(L, K_most), 2, 3}, /* decay */
        {L * K_most, 1, 2}, /* g */
        {L * K_most * sizeof(element<T_g>::type) / sizeof(real), 0, 6, true}, /* g_ahead */
        {L * K_most * sizeof(element<T_q>::type) / sizeof(real), 0, 6, true}, /* q_ahead */
        {L * V * sizeof(element<T_do_>::type) / sizeof(real), 0, 6, true}, /* do__ahead */
    });
}

/* dS_end, chunk after chunk carrying S. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_backward_0a(const gla_backward_0a_args a)
{
    constexpr auto lies = tiles();
    real *const dS = lies.tile(0, a.arena);
    real *const total = lies.tile(1, a.arena);
    real *const scaled = lies.tile(2, a.arena);
    real *const scaled2 = lies.tile(3, a.arena);
    real *const up2 = lies.tile(4, a.arena);
    real *const q = lies.tile(5, a.arena);
    real *const do_ = lies.tile(6, a.arena);
    real *const decay_room = lies.tile(7, a.arena);
    real *const g = lies.tile(8, a.arena);
    real *const g_ahead = lies.spare(9);
    real *const q_ahead = lies.spare(10);
    real *const do__ahead = lies.spare(11);
    constexpr int others = 2;
    levels_t decay;
    real power;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t sequence = program / H;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    const int64_t chunks = (its.tokens + L - 1) / L;
    const int64_t from = blockIdx.y * (int64_t)K_most;
    const int K_here = K % K_most == 0 ? K_most : least(K_most, K - (int)from);
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h + from * a.g_0);
    auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h + from * a.q_0);
    auto *const do__at = entries<T_do_>(a.do_, its.batch * a.do__b + head * a.do__h);
    auto *const S_dended_at = entries<T_S_dended>(a.S_dended, (sequence * H + head) * K * V + from * V);
    auto *const dS_end_at = entries<T_dS_end>(a.dS_end, from * V);
    auto *const S_dbegun_at = entries<T_S_dbegun>(a.S_dbegun, (sequence * H + head) * K * V + from * V);
    // o = K**-0.5 * S[t].T @ q
    power = f_pow((real)(K), R(-0.5));
    load_tile(dS, S_dended_at, 0, 1, 1, 1, K_here * V);
    barrier();
    for (int64_t number = 0; number < chunks; number++) {
        const int64_t index = chunks - 1 - number, chunk = its.chunk + index;
        const int C_next = (int)(index * L < L ? index * L : L);
        const int64_t start = index * L;
        const int C = (int)(its.tokens - start < L ? its.tokens - start : L);
        [[maybe_unused]] const int64_t place = start, token = its.first + place;
        [[maybe_unused]] const int64_t row = its.batch * a.T + token;
        store_tile(moved(dS_end_at, (chunk * H + head) * (K * V)), 0, 1, dS, 1, K_here * V);
        load_ahead<others>(g, g_ahead, g_at + token * a.g_t, -L * (a.g_t), a.g_t, a.g_0, C, K_here, C_next, K_here, number == 0);
        barrier();
        // S[t] = diag(α) @ S[t-1] + k @ v.T
        levels(&decay, g, C, K_here, 1, 0, decay_room);
        barrier();
        prefix(up2, &decay);
        load_ahead<others>(q, q_ahead, q_at + token * a.q_t, -L * (a.q_t), a.q_t, a.q_0, C, K_here, C_next, K_here, number == 0);
        whole(total, &decay);
        load_ahead<others>(do_, do__ahead, moved(do__at, token * a.do__t), -L * (a.do__t), a.do__t, a.do__0, C, V, C_next, V, number == 0);
        barrier();
        for (int i = threadIdx.x; i < C * K_here; i += THREADS) {
            scaled[i] = q[i] * up2[i];
        }
        // o = K**-0.5 * S[t].T @ q
        for (int i = threadIdx.x; i < C * V; i += THREADS) {
            scaled2[i] = do_[i] * power;
        }
        barrier();
        // S[t] = diag(α) @ S[t-1] + k @ v.T
        gemm_onto(V, K_here, C, scaled2, 1, V, scaled, K_here, 1, dS, 1, V, WHOLE, dS, total, 0, 1);
        barrier();
    }
    store_tile(S_dbegun_at, 0, 1, dS, 1, K_here * V);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_backward_0a_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_backward_0a_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_backward_0a_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_backward_0a_together(void)
{
    return 0;
}

extern "C" int gla_backward_0a_launch(const gla_backward_0a_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_backward_0a, programs, blocks, THREADS, gla_backward_0a_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_backward_0b)
namespace backward_0b {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int V_most = BLOCK < V ? BLOCK : V;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<10> tiles()
{
    return placed<10>({
        {L * K, 2, 4}, /* to_end */
        {L * V_most, 2, 3}, /* scaled */
        {L * K, 0, 1}, /* g */
        {levels_room(L, K), 1, 2}, /* decay */
        {L * K, 1, 2}, /* q */
        {L * K, 1, 2}, /* k */
        {L * L, 2, 3}, /* pairs */
        {L * V_most, 3, 4}, /* product2 */
        {L * V_most, 4, 5}, /* dv */
        {meet_room(L, K), 2, 2}, /* work */
    });
}

/* dv, of one chunk. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_backward_0b(const gla_backward_0b_args a)
{
    constexpr auto lies = tiles();
    real *const to_end = lies.tile(0, a.arena);
    real *const scaled = lies.tile(1, a.arena);
    real *const g = lies.tile(2, a.arena);
    real *const decay_room = lies.tile(3, a.arena);
    real *const q = lies.tile(4, a.arena);
    real *const k = lies.tile(5, a.arena);
    real *const pairs = lies.tile(6, a.arena);
    real *const product2 = lies.tile(7, a.arena);
    real *const dv = lies.tile(8, a.arena);
    real *const work = lies.tile(9, a.arena);
    levels_t decay;
    real power;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t chunk = program / H;
    const auto at = chunk_at(chunk, a.T, a.table);
    const int64_t sequence = at.sequence, index = at.index;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    if (index * L >= its.tokens) return; /* behind all tokens */
    const int64_t from = blockIdx.y * (int64_t)V_most;
    const int V_here = V % V_most == 0 ? V_most : least(V_most, V - (int)from);
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h);
    auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h);
    auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h);
    auto *const dS_end_at = entries<T_dS_end>(a.dS_end, from);
    auto *const do__at = entries<T_do_>(a.do_, its.batch * a.do__b + head * a.do__h + from * a.do__0);
    auto *const dv_at = entries<T_dv>(a.dv, head * V + from);
    // o = K**-0.5 * S[t].T @ q
    power = f_pow((real)(K), R(-0.5));
    const int64_t start = index * L;
    const int C = (int)(its.tokens - start < L ? its.tokens - start : L);
    [[maybe_unused]] const int64_t place = start, token = its.first + place;
    [[maybe_unused]] const int64_t row = its.batch * a.T + token;
    load_tile(g, g_at + token * a.g_t, a.g_t, a.g_0, C, C, K);
    barrier();
    // S[t] = diag(α) @ S[t-1] + k @ v.T
    levels(&decay, g, C, K, 1, 0, decay_room);
    load_tile(q, q_at + token * a.q_t, a.q_t, a.q_0, C, C, K);
    load_tile(k, k_at + token * a.k_t, a.k_t, a.k_0, C, C, K);
    barrier();
    meet(pairs, 0, to_end, q, k, K, &decay, work);
    // o = K**-0.5 * S[t].T @ q
    for (int i = threadIdx.x; i < C * V_here; i += THREADS) {
        const int t = i / V_here;
        const int i_V = i % V_here;
        scaled[i] = there(a.do_, moved(do__at, token * a.do__t), t * a.do__t + i_V * a.do__0) * power;
    }
    barrier();
    // S[t] = diag(α) @ S[t-1] + k @ v.T
    gemm(C, V_here, C, pairs, 1, C, scaled, V_here, 1, product2, V_here, 1, UPPER_A, 0);
    barrier();
    gemm_onto(V_here, C, K, moved(dS_end_at, (chunk * H + head) * (K * V)), 1, V, to_end, 1, K, dv, 1, V_here, WHOLE, product2, NULL, 0, 0);
    barrier();
    store_tile(moved(dv_at, row * (H * V)), H * V, 1, dv, C, V_here);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_backward_0b_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_backward_0b_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_backward_0b_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_backward_0b_together(void)
{
    return 0;
}

extern "C" int gla_backward_0b_launch(const gla_backward_0b_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_backward_0b, programs, blocks, THREADS, gla_backward_0b_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_backward_0c)
namespace backward_0c {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int K_most = BLOCK < K ? BLOCK : K;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<17> tiles()
{
    return placed<17>({
        {L * K_most, 3, 6}, /* product5 */
        {L * K_most, 4, 7}, /* q */
        {L * K_most, 6, 12}, /* dg */
        {L * K_most, 6, 10}, /* k */
        {prefix_pull_room(L, K_most), 6, 6}, /* work4 */
        {L * K_most, 0, 1}, /* g */
        {levels_room(L, K_most), 1, 11}, /* decay */
        {L * V, 1, 3}, /* scaled2 */
        {L * L, 2, 7}, /* product4 */
        {L * K_most, 3, 8}, /* up2 */
        {L * K_most, 7, 13}, /* dk */
        {meet_pull_room(L, K_most, K_most), 7, 7}, /* work3 */
        {L * K_most, 8, 12}, /* product2 */
        {K_most, 10, 11}, /* product3 */
        {suffix_pull_room(L, K_most), 10, 10}, /* work */
        {L * K_most, 11, 12}, /* down2 */
        {whole_pull_room(L, K_most), 11, 11}, /* work2 */
    });
}

/* dq, dg, dk, of one chunk. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_backward_0c(const gla_backward_0c_args a)
{
    constexpr auto lies = tiles();
    real *const product5 = lies.tile(0, a.arena);
    real *const q = lies.tile(1, a.arena);
    real *const dg = lies.tile(2, a.arena);
    real *const k = lies.tile(3, a.arena);
    real *const work4 = lies.tile(4, a.arena);
    real *const g = lies.tile(5, a.arena);
    real *const decay_room = lies.tile(6, a.arena);
    real *const scaled2 = lies.tile(7, a.arena);
    real *const product4 = lies.tile(8, a.arena);
    real *const up2 = lies.tile(9, a.arena);
    real *const dk = lies.tile(10, a.arena);
    real *const work3 = lies.tile(11, a.arena);
    real *const product2 = lies.tile(12, a.arena);
    real *const product3 = lies.tile(13, a.arena);
    real *const work = lies.tile(14, a.arena);
    real *const down2 = lies.tile(15, a.arena);
    real *const work2 = lies.tile(16, a.arena);
    levels_t decay;
    real power;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t chunk = program / H;
    const auto at = chunk_at(chunk, a.T, a.table);
    const int64_t sequence = at.sequence, index = at.index;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    if (index * L >= its.tokens) return; /* behind all tokens */
    const int64_t from = blockIdx.y * (int64_t)K_most;
    const int K_here = K % K_most == 0 ? K_most : least(K_most, K - (int)from);
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h + from * a.g_0);
    auto *const dS_end_at = entries<T_dS_end>(a.dS_end, from * V);
    auto *const v_at = entries<T_v>(a.v, its.batch * a.v_b + head * a.v_h);
    auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h + from * a.k_0);
    auto *const S_start_at = entries<T_S_start>(a.S_start, from * V);
    auto *const do__at = entries<T_do_>(a.do_, its.batch * a.do__b + head * a.do__h);
    auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h + from * a.q_0);
    auto *const dq_at = entries<T_dq>(a.dq, head * K + from);
    auto *const dg_at = entries<T_dg>(a.dg, head * K + from);
    auto *const dk_at = entries<T_dk>(a.dk, head * K + from);
    // o = K**-0.5 * S[t].T @ q
    power = f_pow((real)(K), R(-0.5));
    const int64_t start = index * L;
    const int C = (int)(its.tokens - start < L ? its.tokens - start : L);
    [[maybe_unused]] const int64_t place = start, token = its.first + place;
    [[maybe_unused]] const int64_t row = its.batch * a.T + token;
    load_tile(g, g_at + token * a.g_t, a.g_t, a.g_0, C, C, K_here);
    barrier();
    // S[t] = diag(α) @ S[t-1] + k @ v.T
    levels(&decay, g, C, K_here, 1, 0, decay_room);
    // o = K**-0.5 * S[t].T @ q
    for (int i = threadIdx.x; i < C * V; i += THREADS) {
        const int t = i / V;
        const int i_V = i % V;
        scaled2[i] = there(a.do_, moved(do__at, token * a.do__t), t * a.do__t + i_V * a.do__0) * power;
    }
    barrier();
    // S[t] = diag(α) @ S[t-1] + k @ v.T
    gemm(C, C, V, scaled2, V, 1, v_at + token * a.v_t, a.v_0, a.v_t, product4, C, 1, WHOLE, 0);
    barrier();
    gemm(C, K_here, V, scaled2, V, 1, moved(S_start_at, (chunk * H + head) * (K * V)), 1, V, product5, K_here, 1, WHOLE, 0);
    prefix(up2, &decay);
    barrier();
    for (int i = threadIdx.x; i < C * K_here; i += THREADS) {
        up2[i] = product5[i] * up2[i];
    }
    load_tile(q, q_at + token * a.q_t, a.q_t, a.q_0, C, C, K_here);
    barrier();
    for (int i = threadIdx.x; i < C * K_here; i += THREADS) {
        product5[i] = product5[i] * q[i];
    }
    barrier();
    prefix_pull(dg, product5, &decay, work4);
    load_tile(k, k_at + token * a.k_t, a.k_t, a.k_0, C, C, K_here);
    barrier();
    meet_pull(up2, dk, dg, product4, q, k, K_here, &decay, work3, 5);
    barrier();
    store_tile(moved(dq_at, row * (H * K)), H * K, 1, up2, C, K_here);
    gemm(K_here, C, V, moved(dS_end_at, (chunk * H + head) * (K * V)), V, 1, v_at + token * a.v_t, a.v_0, a.v_t, product2, 1, K_here, WHOLE, 0);
    barrier();
    for (int i = threadIdx.x; i < C * K_here; i += THREADS) {
        k[i] = product2[i] * k[i];
    }
    barrier();
    suffix_pull(dg, k, &decay, work, 1);
    for (int i = threadIdx.x / LANES; i < K_here; i += WARPS) {
        const int i_K = i;
        real sum = R(0);
        for (int j = threadIdx.x % LANES; j < V; j += LANES) {
            const int i_V = j;
            sum += there(a.dS_end, moved(dS_end_at, (chunk * H + head) * (K * V)), i_K * V + i_V) * there(a.S_start, moved(S_start_at, (chunk * H + head) * (K * V)), i_K * V + i_V);
        }
        for (int mask = LANES / 2; mask > 0; mask /= 2)
            sum += across(sum, mask);
        if (threadIdx.x % LANES == 0) product3[i] = sum;
    }
    barrier();
    whole_pull(dg, product3, &decay, work2, 1);
    suffix(down2, &decay);
    barrier();
    for (int i = threadIdx.x; i < C * K_here; i += THREADS) {
        dk[i] += product2[i] * down2[i];
    }
    store_tile(moved(dg_at, row * (H * K)), H * K, 1, dg, C, K_here);
    barrier();
    store_tile(moved(dk_at, row * (H * K)), H * K, 1, dk, C, K_here);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_backward_0c_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_backward_0c_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_backward_0c_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_backward_0c_together(void)
{
    return 0;
}

extern "C" int gla_backward_0c_launch(const gla_backward_0c_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_backward_0c, programs, blocks, THREADS, gla_backward_0c_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_forward_token)
namespace forward_token {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;
constexpr int V_most = BLOCK < V ? BLOCK : V;
typedef spread<K, V_most> by_K_V;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<9> tiles()
{
    return placed<9>({
        {K, 1, 2}, /* g */
        {K, 1, 3}, /* k */
        {V_most, 1, 3}, /* v */
        {K, 1, 3}, /* q */
        {K, 2, 3}, /* alpha */
        {V_most, 3, 4}, /* product2 */
        {V_most, 4, 5}, /* o */
        {WARPS * V_most, 3, 3}, /* work */
        {by_K_V::EACH * THREADS * sizeof(element<T_S_begun>::type) / sizeof(real), 0, 7, true}, /* S_raw */
    }, 0);
}

/* o, S_start, token after token carrying S. Blocks take sequences and heads in turn. */
extern "C" __global__ void __launch_bounds__(THREADS, together(tiles().shared, by_K_V::EACH)) gla_forward_token(const gla_forward_token_args a)
{
    constexpr auto lies = tiles();
    real *const g = lies.tile(0, a.arena);
    real *const k = lies.tile(1, a.arena);
    real *const v = lies.tile(2, a.arena);
    real *const q = lies.tile(3, a.arena);
    real *const alpha = lies.tile(4, a.arena);
    real *const product2 = lies.tile(5, a.arena);
    real *const o = lies.tile(6, a.arena);
    real *const work = lies.tile(7, a.arena);
    real *const S_raw = lies.spare(8);
    real power;
    real S[by_K_V::EACH];
    const int64_t programs = a.N * a.H;
    for (int64_t program = blockIdx.x + a.program0; program < programs; program += gridDim.x) {
        const int64_t H = a.H, head = program % H, next = program + gridDim.x;
        const bool first = program == blockIdx.x + a.program0, more = next < programs;
        const int64_t sequence = program / H;
        const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
        const int64_t begin_row = a.state_rows ? a.state_rows[sequence] : sequence;
        const int64_t end_row = a.INTO ? begin_row : sequence;
        const int64_t from = blockIdx.y * (int64_t)V_most;
        const int V_here = V % V_most == 0 ? V_most : least(V_most, V - (int)from);
        /* states from those of this program to those of the next one */
        const int64_t next_row = !more ? begin_row : a.state_rows ? a.state_rows[next / H] : next / H;
        const int64_t ahead = (next_row - begin_row) * H + next % H - head;
        auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h);
        auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h);
        auto *const v_at = entries<T_v>(a.v, its.batch * a.v_b + head * a.v_h + from * a.v_0);
        auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h);
        auto *const S_begun_at = entries<T_S_begun>(a.S_begun, (begin_row * H + head) * K * V + from);
        auto *const o_at = entries<T_o>(a.o, head * V + from);
        auto *const S_start_at = entries<T_S_start>(a.S_start, from);
        auto *const S_ended_at = entries<T_S_ended>(a.S_ended, (end_row * H + head) * K * V + from);
        // o = K**-0.5 * S[t].T @ q
        power = f_pow((real)(K), R(-0.5));
        take_spread<by_K_V>(S, S_raw, S_begun_at, more ? moved(S_begun_at, ahead * (K * V)) : nullptr, V, 1, K, V_here, first);
        for (int64_t step = 0; step < its.tokens; step++) {
            [[maybe_unused]] const int64_t chunk = its.chunk + step / L;
            [[maybe_unused]] const int64_t place = step, token = its.first + place;
            [[maybe_unused]] const int64_t row = its.batch * a.T + token;
            if (step % L == 0) {
                store_spread<by_K_V>(moved(S_start_at, (chunk * H + head) * (K * V)), V, 1, S, K, V_here);
            }
            load_tile(g, g_at + token * a.g_t, 0, a.g_0, 1, 1, K);
            load_tile(k, k_at + token * a.k_t, 0, a.k_0, 1, 1, K);
            load_tile(v, v_at + token * a.v_t, 0, a.v_0, 1, 1, V_here);
            load_tile(q, q_at + token * a.q_t, 0, a.q_0, 1, 1, K);
            barrier();
            // gate α = exp(g)
            for (int i = threadIdx.x; i < K; i += THREADS) {
                alpha[i] = f_exp(g[i]);
            }
            barrier();
            // S[t] = diag(α) @ S[t-1] + k @ v.T
            #pragma unroll by_K_V::UNROLL
            for (int e = 0; e < by_K_V::EACH; e++) {
                if (!by_K_V::holds(e, K, V_here)) continue;
                const int i_K = by_K_V::row(e);
                const int i_V = by_K_V::column(e);
                S[e] = alpha[i_K] * S[e] + k[i_K] * v[i_V];
            }
            {
                real part[by_K_V::WIDE] = {};
                #pragma unroll by_K_V::UNROLL
                for (int e = 0; e < by_K_V::EACH; e++) {
                    if (!by_K_V::holds(e, K, V_here)) continue;
                    const int i_K = by_K_V::row(e);
                    part[e % by_K_V::WIDE] += q[i_K] * S[e];
                }
                add_down<by_K_V>(work, V_here, part);
                barrier();
                for (int i = threadIdx.x; i < V_here; i += THREADS) {
                    const int i_V = i;
                    product2[i_V] = of_warps(work, V_here, i_V);
                }
            }
            barrier();
            // o = K**-0.5 * S[t].T @ q
            for (int i = threadIdx.x; i < V_here; i += THREADS) {
                o[i] = power * product2[i];
            }
            barrier();
            store_tile(o_at + row * (H * V), 0, 1, o, 1, V_here);
            barrier();
        }
        barrier();
        store_spread<by_K_V>(S_ended_at, V, 1, S, K, V_here);
        barrier();
    }
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_forward_token_needs[3] = {tiles().shared, tiles().scratch, together(tiles().shared, by_K_V::EACH)};
#else
extern "C" int64_t gla_forward_token_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_forward_token_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_forward_token_together(void)
{
    return together(tiles().shared, by_K_V::EACH);
}

extern "C" int gla_forward_token_launch(const gla_forward_token_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_forward_token, programs, blocks, THREADS, gla_forward_token_shared(), stream, *a);
}
#endif

}
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_backward_token)
namespace backward_token {

[[maybe_unused]] constexpr int K = D_K, V = D_V, L = CHUNK_L;

/* Tiles: floats, and the stretches between barriers from which to which each is held. */
ROOM placement<22> tiles()
{
    return placed<22>({
        {K * V, 10, 12}, /* dS2 */
        {K * V, 0, 16}, /* S_before */
        {K * V, 0, 16}, /* dS */
        {K, 7, 12}, /* alpha2 */
        {K * V, 0, 16}, /* S_then */
        {K, 6, 11}, /* k2 */
        {V, 6, 11}, /* v2 */
        {V, 8, 10}, /* scaled */
        {K * V, 0, 16}, /* S_after */
        {K, 2, 3}, /* g */
        {K, 2, 4}, /* k */
        {V, 2, 4}, /* v */
        {K, 3, 4}, /* alpha */
        {K, 6, 7}, /* g2 */
        {V, 7, 8}, /* do_ */
        {K * V, 8, 9}, /* S */
        {K, 9, 12}, /* dq */
        {K, 9, 10}, /* q */
        {K, 11, 13}, /* dk */
        {V, 11, 13}, /* dv */
        {K, 11, 12}, /* dalpha */
        {K, 12, 13}, /* dg */
    });
}

/* dq, dg, dk, dv, token after token carrying S. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) gla_backward_token(const gla_backward_token_args a)
{
    constexpr auto lies = tiles();
    real *const dS2 = lies.tile(0, a.arena);
    real *const S_before = lies.tile(1, a.arena);
    real *const dS = lies.tile(2, a.arena);
    real *const alpha2 = lies.tile(3, a.arena);
    real *const S_then = lies.tile(4, a.arena);
    real *const k2 = lies.tile(5, a.arena);
    real *const v2 = lies.tile(6, a.arena);
    real *const scaled = lies.tile(7, a.arena);
    real *const S_after = lies.tile(8, a.arena);
    real *const g = lies.tile(9, a.arena);
    real *const k = lies.tile(10, a.arena);
    real *const v = lies.tile(11, a.arena);
    real *const alpha = lies.tile(12, a.arena);
    real *const g2 = lies.tile(13, a.arena);
    real *const do_ = lies.tile(14, a.arena);
    real *const S = lies.tile(15, a.arena);
    real *const dq = lies.tile(16, a.arena);
    real *const q = lies.tile(17, a.arena);
    real *const dk = lies.tile(18, a.arena);
    real *const dv = lies.tile(19, a.arena);
    real *const dalpha = lies.tile(20, a.arena);
    real *const dg = lies.tile(21, a.arena);
    real power;
    const int64_t program = blockIdx.x + a.program0, H = a.H, head = program % H;
    const int64_t sequence = program / H;
    const auto its = sequence_at(sequence, a.T, a.cu, a.firsts);
    const int64_t chunks = (its.tokens + L - 1) / L;
    auto *const g_at = entries<T_g>(a.g, its.batch * a.g_b + head * a.g_h);
    auto *const k_at = entries<T_k>(a.k, its.batch * a.k_b + head * a.k_h);
    auto *const v_at = entries<T_v>(a.v, its.batch * a.v_b + head * a.v_h);
    auto *const do__at = entries<T_do_>(a.do_, its.batch * a.do__b + head * a.do__h);
    auto *const q_at = entries<T_q>(a.q, its.batch * a.q_b + head * a.q_h);
    auto *const S_dended_at = entries<T_S_dended>(a.S_dended, (sequence * H + head) * K * V);
    auto *const dq_at = entries<T_dq>(a.dq, head * K);
    auto *const dg_at = entries<T_dg>(a.dg, head * K);
    auto *const dk_at = entries<T_dk>(a.dk, head * K);
    auto *const dv_at = entries<T_dv>(a.dv, head * V);
    auto *const S_start_at = entries<T_S_start>(a.S_start, 0);
    auto *const S_scratch_at = entries<T_S_scratch>(a.S_scratch, (sequence * H + head) * L * (K * V));
    auto *const S_dbegun_at = entries<T_S_dbegun>(a.S_dbegun, (sequence * H + head) * K * V);
    // o = K**-0.5 * S[t].T @ q
    power = f_pow((real)(K), R(-0.5));
    load_tile(dS, S_dended_at, 0, 1, 1, 1, K * V);
    for (int64_t number = 0; number < chunks; number++) {
        const int64_t index = chunks - 1 - number, chunk = its.chunk + index;
        const int64_t start = index * L;
        const int count = (int)(its.tokens - start < L ? its.tokens - start : L);
        load_tile(S_before, moved(S_start_at, (chunk * H + head) * (K * V)), 0, 1, 1, 1, K * V);
        barrier();
        for (int step = 0; step < count; step++) {
            [[maybe_unused]] const int64_t place = start + step, token = its.first + place;
            [[maybe_unused]] const int64_t row = its.batch * a.T + token;
            store_tile(S_scratch_at + step * (K * V), 0, 1, S_before, 1, K * V);
            load_tile(g, g_at + token * a.g_t, 0, a.g_0, 1, 1, K);
            load_tile(k, k_at + token * a.k_t, 0, a.k_0, 1, 1, K);
            load_tile(v, v_at + token * a.v_t, 0, a.v_0, 1, 1, V);
            barrier();
            // gate α = exp(g)
            for (int i = threadIdx.x; i < K; i += THREADS) {
                alpha[i] = f_exp(g[i]);
            }
            barrier();
            // S[t] = diag(α) @ S[t-1] + k @ v.T
            for (int i = threadIdx.x; i < K * V; i += THREADS) {
                const int i_K = i / V;
                const int i_V = i % V;
                S_after[i] = alpha[i_K] * S_before[i] + k[i_K] * v[i_V];
            }
            copy(S_before, S_after, K * V);
            barrier();
        }
        for (int step = count - 1; step >= 0; step--) {
            [[maybe_unused]] const int64_t place = start + step, token = its.first + place;
            [[maybe_unused]] const int64_t row = its.batch * a.T + token;
            load_tile(S_then, S_scratch_at + step * (K * V), 0, 1, 1, 1, K * V);
            load_tile(g2, g_at + token * a.g_t, 0, a.g_0, 1, 1, K);
            load_tile(k2, k_at + token * a.k_t, 0, a.k_0, 1, 1, K);
            load_tile(v2, v_at + token * a.v_t, 0, a.v_0, 1, 1, V);
            barrier();
            // gate α = exp(g)
            for (int i = threadIdx.x; i < K; i += THREADS) {
                alpha2[i] = f_exp(g2[i]);
            }
            load_tile(do_, moved(do__at, token * a.do__t), 0, a.do__0, 1, 1, V);
            barrier();
            // S[t] = diag(α) @ S[t-1] + k @ v.T
            for (int i = threadIdx.x; i < K * V; i += THREADS) {
                const int i_K = i / V;
                const int i_V = i % V;
                S[i] = alpha2[i_K] * S_then[i] + k2[i_K] * v2[i_V];
            }
            // o = K**-0.5 * S[t].T @ q
            for (int i = threadIdx.x; i < V; i += THREADS) {
                scaled[i] = do_[i] * power;
            }
            barrier();
            // S[t] = diag(α) @ S[t-1] + k @ v.T
            gemm(1, K, V, scaled, 0, 1, S, 1, V, dq, 0, 1, WHOLE, 0);
            load_tile(q, q_at + token * a.q_t, 0, a.q_0, 1, 1, K);
            barrier();
            for (int i = threadIdx.x; i < K * V; i += THREADS) {
                const int i_K = i / V;
                const int i_V = i % V;
                dS2[i] = dS[i] + scaled[i_V] * q[i_K];
            }
            barrier();
            for (int i = threadIdx.x / LANES; i < K; i += WARPS) {
                const int i_K = i;
                real sum = R(0);
                for (int j = threadIdx.x % LANES; j < V; j += LANES) {
                    const int i_V = j;
                    sum += dS2[i_K * V + i_V] * v2[i_V];
                }
                for (int mask = LANES / 2; mask > 0; mask /= 2)
                    sum += across(sum, mask);
                if (threadIdx.x % LANES == 0) dk[i] = sum;
            }
            for (int i = threadIdx.x; i < V; i += THREADS) {
                const int i_V = i;
                real sum = R(0);
                for (int j = 0; j < K; j++) {
                    const int i_K = j;
                    sum += dS2[i_K * V + i_V] * k2[i_K];
                }
                dv[i] = sum;
            }
            // gate α = exp(g)
            for (int i = threadIdx.x / LANES; i < K; i += WARPS) {
                const int i_K = i;
                real sum = R(0);
                for (int j = threadIdx.x % LANES; j < V; j += LANES) {
                    const int i_V = j;
                    sum += dS2[i_K * V + i_V] * S_then[i_K * V + i_V];
                }
                for (int mask = LANES / 2; mask > 0; mask /= 2)
                    sum += across(sum, mask);
                if (threadIdx.x % LANES == 0) dalpha[i] = sum;
            }
            barrier();
            for (int i = threadIdx.x; i < K; i += THREADS) {
                dg[i] = dalpha[i] * alpha2[i];
            }
            for (int i = threadIdx.x; i < K * V; i += THREADS) {
                const int i_K = i / V;
                dS[i] = dS2[i] * alpha2[i_K];
            }
            store_tile(moved(dq_at, row * (H * K)), 0, 1, dq, 1, K);
            barrier();
            store_tile(moved(dg_at, row * (H * K)), 0, 1, dg, 1, K);
            store_tile(moved(dk_at, row * (H * K)), 0, 1, dk, 1, K);
            store_tile(moved(dv_at, row * (H * V)), 0, 1, dv, 1, V);
            barrier();
        }
    }
    barrier();
    store_tile(S_dbegun_at, 0, 1, dS, 1, K * V);
}

/* Bytes of shared and of global memory of a block; blocks that a multiprocessor runs at once, of a
   kernel whose blocks take programs in turn, else 0. */
#ifdef __CUDACC_RTC__
extern "C" __device__ long long gla_backward_token_needs[3] = {tiles().shared, tiles().scratch, 0};
#else
extern "C" int64_t gla_backward_token_shared(void)
{
    return tiles().shared;
}

extern "C" int64_t gla_backward_token_scratch(void)
{
    return tiles().scratch;
}

extern "C" int64_t gla_backward_token_together(void)
{
    return 0;
}

extern "C" int gla_backward_token_launch(const gla_backward_token_args *a, int64_t programs, int64_t blocks, void *stream)
{
    return launch(gla_backward_token, programs, blocks, THREADS, gla_backward_token_shared(), stream, *a);
}
#endif

}
#endif
