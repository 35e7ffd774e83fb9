/* Matrices in that stay with the threads of a block, each with entries of its own in registers, and
   sums over their rows or columns out. Four neighbours of a row go together, in pieces of 16 bytes
   where an array is of floats and its rows are whole pieces. */

/* Who has which entry of a matrix [R][C] or less: ACROSS neighbouring threads, of one warp, share a
   row, DOWN threads a column; a thread has `EACH` entries, WIDE of a row, in TURNS rows. */
template <int R, int C>
struct spread {
    static constexpr int across_of(int pieces) {
        return pieces <= 1 ? 1 : pieces <= 2 ? 2 : pieces <= 4 ? 4 : pieces <= 8 ? 8 : pieces <= 16 ? 16 : 32;
    }
    static constexpr int ACROSS = across_of((C + 3) / 4), DOWN = THREADS / ACROSS;
    static constexpr int PIECES = (C + 4 * ACROSS - 1) / (4 * ACROSS), WIDE = 4 * PIECES;
    static constexpr int TURNS = (R + DOWN - 1) / DOWN, EACH = TURNS * WIDE;
    static constexpr int UNROLL = EACH <= 128 ? EACH : 1; /* of loops over entries: registers, or local memory */

    /* The row and column of entry e of this thread, and whether there are these. */
    static __device__ __forceinline__ int row(int e) {
        return e / WIDE * DOWN + (int)threadIdx.x / ACROSS;
    }

    static __device__ __forceinline__ int column(int e) {
        return (e % WIDE / 4 * ACROSS + (int)threadIdx.x % ACROSS) * 4 + e % 4;
    }

    static __device__ __forceinline__ bool holds(int e, int rows, int columns) {
        return (R % DOWN == 0 && rows == R || row(e) < rows) && (C % (4 * ACROSS) == 0 && columns == C || column(e) < columns);
    }
};

/* Four neighbours of a row as they lie in memory. */
template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) four {
    T x[4];
};

/* Whether the rows of an array may move four by four. */
template <class T>
INLINE bool by_fours(const T *x, int64_t row_step, int64_t step, int columns) {
    const uint64_t odd = (uint64_t)x | (uint64_t)row_step * sizeof(T) | (uint64_t)columns * sizeof(T);
    return step == 1 && odd % (4 * sizeof(T)) == 0;
}

/* out = the entries of this thread of rows at x (0 where x is not given). They were sent to `raw`, unless
   the call is the `first`; then those of rows at `next` are sent there (null: none are), to be had by the next call. */
template <class W, class T>
INLINE void take_spread(real (&out)[W::EACH], void *raw, const T *x, const T *next, int64_t row_step, int64_t step,
                        int rows, int columns, bool first) {
    four<T> *const sent = (four<T> *)raw;
    const bool fours = by_fours(x, row_step, step, columns);
    wait_groups<0>();
#pragma unroll W::UNROLL
    for (int e = 0; e < W::EACH; e += 4) {
        const T *const at = x + (W::row(e) * row_step + W::column(e) * step);
        if (!x || !W::holds(e, rows, columns)) {
            for (int j = 0; j < 4; j++) out[e + j] = R(0);
        } else if (fours) {
            const four<T> some = first || !raw ? *(const four<T> *)at : sent[e / 4 * THREADS + threadIdx.x];
            for (int j = 0; j < 4; j++) out[e + j] = real_of(some.x[j]);
        } else {
            for (int j = 0; j < 4; j++) out[e + j] = W::holds(e + j, rows, columns) ? real_of(at[j * step]) : R(0);
        }
    }
    if (x && raw && next && fours)
#pragma unroll W::UNROLL
        for (int e = 0; e < W::EACH; e += 4) {
            const T *const at = next + (W::row(e) * row_step + W::column(e));
            if (!W::holds(e, rows, columns)) continue;
            for (int j = 0; j < 4; j += 16 / (int)sizeof(T) < 4 ? 16 / (int)sizeof(T) : 4)
                copy_later<sizeof(T) < 4 ? 4 * sizeof(T) : 16>(sent[e / 4 * THREADS + threadIdx.x].x + j, at + j);
        }
    end_group();
}

/* The entries of all threads into rows at x, where x is given. */
template <class W, class T>
INLINE void store_spread(T *x, int64_t row_step, int64_t step, const real (&in)[W::EACH], int rows, int columns) {
    if (!x) return;
    const bool fours = by_fours(x, row_step, step, columns);
#pragma unroll W::UNROLL
    for (int e = 0; e < W::EACH; e += 4) {
        T *const at = x + (W::row(e) * row_step + W::column(e) * step);
        if (!W::holds(e, rows, columns)) continue;
        if (fours) {
            four<T> some;
            for (int j = 0; j < 4; j++) put(some.x + j, in[e + j]);
            *(four<T> *)at = some;
        } else {
            for (int j = 0; j < 4; j++)
                if (W::holds(e + j, rows, columns)) put(at + j * step, in[e + j]);
        }
    }
}

/* work [WARPS][C of the spread] = the sums of each warp, of what its threads have of a column. */
template <class W>
INLINE void add_down(real *work, int columns, real (&sums)[W::WIDE]) {
#pragma unroll
    for (int k = 0; k < W::WIDE; k++) {
#pragma unroll
        for (int mask = W::ACROSS; mask < LANES; mask *= 2) sums[k] += across(sums[k], mask);
        if (threadIdx.x % LANES < W::ACROSS && W::column(k) < columns)
            work[threadIdx.x / LANES * columns + W::column(k)] = sums[k];
    }
}

/* The sum of a column over all warps. */
INLINE real of_warps(const real *work, int columns, int column) {
    real sum = work[column];
#pragma unroll
    for (int w = 1; w < WARPS; w++) sum += work[w * columns + column];
    return sum;
}

/* The sum over all threads that share a row. */
template <class W>
INLINE real add_across(real sum) {
#pragma unroll
    for (int mask = 1; mask < W::ACROSS; mask *= 2) sum += across(sum, mask);
    return sum;
}

/* Blocks of a kernel that a multiprocessor has room for: of so many bytes of shared memory, whose threads keep so many
   entries of matrices in registers. */
ROOM int together(int64_t shared, int kept) {
    const int64_t near = (SHARED_LIMIT + 1024) / (shared + 1024), far = 65536 / (THREADS * ((kept + 105) / 8 * 8));
    const int64_t least = near < far ? near : far;
    return least < 1 ? 1 : least > 8 ? 8 : (int)least;
}
