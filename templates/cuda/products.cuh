/* Products of matrices in: tiles of any size and stride in, C (+)= A B out. Blocks of TALL rows by up to
   WIDE columns are summed in the registers of the block's warps, 16 rows by whole pairs of 8 columns
   each. Slabs of the operands are rounded and staged in shared memory as rows along k, 128 bytes of
   eight chunks that are swapped by the row's number, so that neither writing nor reading them meets a
   bank twice. The staging begins the dynamic shared memory: OPERANDS bytes. */

enum { WHOLE, LOWER_OUT, LOWER_A, UPPER_A };

enum { UNIT = 16, TALL = UNIT * (WARPS < 4 ? WARPS : 4), WIDE = 128, CHUNKS = 8 };

/* Eight entries of an operand of 16 bits, or four of 32, or two of 64. */
struct alignas(16) chunk {
    uint32_t word[4];
};

struct alignas(16) reals {
    real x[sizeof(chunk) / sizeof(real)];
};

enum { OPERANDS = (TALL + WIDE) * CHUNKS * sizeof(chunk) };

/* Entries of a chunk, and along k of a slab. */
template <int P>
struct operand {
    enum { CHUNK = P < TF32X3 ? 8 : P < PLAIN ? 4 : sizeof(reals) / sizeof(real), SLAB = CHUNKS * CHUNK };
};

/* A run of k. */
struct range {
    int from, to;
};

INLINE int whole_units(int n) {
    return (n + UNIT - 1) / UNIT * UNIT;
}

INLINE chunk *row_panel() {
    return (chunk *)shared_memory();
}

INLINE chunk *column_panel() {
    return row_panel() + TALL * CHUNKS;
}

INLINE chunk *place(chunk *panel, int row, int c) {
    return panel + row * CHUNKS + (c ^ row % CHUNKS);
}

/* A word of a chunk: two entries of 16 bits, or x[0]. */
template <int P>
INLINE uint32_t rounded(const real *x) {
    if constexpr (P == BF16)
        return pair_bf16(x[0], x[1]);
    else if constexpr (P == FP16)
        return pair_fp16(x[0], x[1]);
    else if constexpr (P == TF32)
        return tf32_of(x[0]);
    else
        return bits_of(x[0]);
}

/* A chunk of entries. */
template <int P>
INLINE void pack(chunk *out, const real (&x)[operand<P>::CHUNK]) {
    if constexpr (P == PLAIN) {
        reals packed;
#pragma unroll
        for (int e = 0; e < operand<P>::CHUNK; e++) packed.x[e] = x[e];
        *(reals *)out = packed;
    } else {
        chunk packed;
#pragma unroll
        for (int w = 0; w < 4; w++) packed.word[w] = rounded<P>(x + w * (operand<P>::CHUNK / 4));
        *out = packed;
    }
}

/* Entries (row, k) of a matrix in memory. */
struct strided {
    const real *x;
    int row_step, k_step;

    __device__ __forceinline__ real at(int row, int k) const {
        return x[row * row_step + k * k_step];
    }

    __device__ __forceinline__ bool along() const {
        return k_step == 1;
    }

    /* The entries from k on, whole chunks where these are in memory. */
    template <int N>
    __device__ __forceinline__ void read(real (&out)[N], int row, int k, int count) const {
        const real *in = x + row * row_step + k * k_step;
        if (k_step == 1 && count >= N && (uint64_t)in % sizeof(chunk) == 0) {
#pragma unroll
            for (int e = 0; e < N; e += sizeof(reals) / sizeof(real)) {
                const reals some = *(const reals *)(in + e);
#pragma unroll
                for (int i = 0; i < (int)(sizeof(reals) / sizeof(real)); i++) out[e + i] = some.x[i];
            }
        } else {
#pragma unroll
            for (int e = 0; e < N; e++) out[e] = e < count ? in[e * k_step] : R(0);
        }
    }
};

/* Entries (row, k) of a matrix where a caller has it, of any type, with any steps; 0 where there is
   none. */
template <class T>
struct lying {
    const T *x;
    int64_t row_step, k_step;

    __device__ __forceinline__ bool along() const {
        return k_step == 1;
    }

    __device__ __forceinline__ real at(int row, int k) const {
        return x ? real_of(x[row * row_step + k * k_step]) : R(0);
    }

    template <int N>
    __device__ __forceinline__ void read(real (&out)[N], int row, int k, int count) const {
        enum { SOME = N * sizeof(T) < 16 ? N : 16 / sizeof(T) };
        struct alignas(SOME * sizeof(T)) several {
            T x[SOME];
        };
        const T *in = x + (row * row_step + k * k_step);
        if (k_step == 1 && x && count >= N && (uint64_t)in % sizeof(several) == 0) {
#pragma unroll
            for (int e = 0; e < N; e += SOME) {
                const several some = *(const several *)(in + e);
#pragma unroll
                for (int i = 0; i < SOME; i++) out[e + i] = real_of(some.x[i]);
            }
        } else {
#pragma unroll
            for (int e = 0; e < N; e++) out[e] = x && e < count ? real_of(in[e * k_step]) : R(0);
        }
    }
};

/* The same as strided, each entry times one of another matrix. */
struct weighted {
    const real *x, *y;
    int row_step, k_step;

    __device__ __forceinline__ real at(int row, int k) const {
        return x[row * row_step + k * k_step] * y[row * row_step + k * k_step];
    }

    __device__ __forceinline__ bool along() const {
        return k_step == 1;
    }

    template <int N>
    __device__ __forceinline__ void read(real (&out)[N], int row, int k, int count) const {
#pragma unroll
        for (int e = 0; e < N; e++) out[e] = e < count ? at(row, k + e) : R(0);
    }
};

/* `rows` rows of a panel: those of a matrix from `first` on, from k on, zeros from row M and k = K on.
   Lanes go along what is contiguous in memory. */
template <int P, class Matrix>
INLINE void stage(chunk *panel, int rows, const Matrix &x, int first, int M, int k, int K) {
    enum { N = operand<P>::CHUNK };
    const bool along = x.along();
    for (int i = threadIdx.x; i < (rows + LANES - 1) / LANES * LANES * CHUNKS; i += THREADS) {
        const int row = along ? i / CHUNKS : i / (LANES * CHUNKS) * LANES + i % LANES;
        const int c = along ? i % CHUNKS : i / LANES % CHUNKS, from = k + c * N;
        if (row >= rows) continue;
        real entries[N];
        x.read(entries, first + row, from, first + row < M ? K - from : 0);
        pack<P>(place(panel, row, c), entries);
    }
}

template <int P>
INLINE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (P == BF16)
        multiply_bf16(c, a, b0, b1);
    else if constexpr (P == FP16)
        multiply_fp16(c, a, b0, b1);
    else if constexpr (P == TF32)
        multiply_tf32(c, a, b0, b1);
    else { /* each operand as the sum of two: all but the product of what is left */
        uint32_t high[4], low[4];
        const uint32_t high0 = tf32_of(float_of(b0)), low0 = tf32_of(float_of(b0) - float_of(high0));
        const uint32_t high1 = tf32_of(float_of(b1)), low1 = tf32_of(float_of(b1) - float_of(high1));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            high[i] = tf32_of(float_of(a[i]));
            low[i] = tf32_of(float_of(a[i]) - float_of(high[i]));
        }
        multiply_tf32(c, low, high0, high1);
        multiply_tf32(c, high, low0, low1);
        multiply_tf32(c, high, high0, high1);
    }
}

/* Rows and columns of a product that the block sums at once; `wide` columns are a warp's. */
struct block {
    int row, rows, column, columns, wide;
};

template <class Body>
INLINE void each_block(int M, int N, const Body &body) {
    for (int row = 0; row < M; row += TALL) {
        const int rows = least(TALL, whole_units(M - row)), groups = least(WARPS * UNIT / rows, WIDE / UNIT);
        const int wide = least(whole_units((N + groups - 1) / groups), WIDE / groups / UNIT * UNIT);
        for (int column = 0; column < N; column += wide * groups)
            body(block{row, rows, column, least(wide * groups, whole_units(N - column)), wide});
    }
}

/* An entry of a panel that is not rounded. */
INLINE real plain(chunk *panel, int row, int k) {
    enum { N = operand<PLAIN>::CHUNK };
    return ((const reals *)place(panel, row, k / N))->x[k % N];
}

/* What a warp sums of a block, spread over its lanes as the instruction has it. */
template <int P>
struct sums {
    real sum[WIDE / 8][4];
    int row, column, pairs; /* within the block; pairs of 8 columns */

    __device__ __forceinline__ explicit sums(const block &b) {
        const int warp = threadIdx.x / LANES, tall = b.rows / UNIT;
        row = warp % tall * UNIT, column = warp / tall * b.wide;
        pairs = most(0, least(b.wide, b.columns - column)) / UNIT;
#pragma unroll
        for (int i = 0; i < WIDE / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][e] = 0;
    }

    /* Adds what is staged, `span` of the slab's k, for the pairs of columns that are wanted. */
    template <class Wanted>
    __device__ __forceinline__ void add(range span, const Wanted &wanted) {
        enum { STEP = 2 * operand<P>::CHUNK };
        const int lane = threadIdx.x % LANES, end = least((span.to + STEP - 1) / STEP * 2, CHUNKS);
        if constexpr (P == PLAIN) {
            for (int k = most(span.from, 0); k < end * operand<P>::CHUNK; k++) {
                const real left = plain(row_panel(), row + lane / 4, k), below = plain(row_panel(), row + lane / 4 + 8, k);
#pragma unroll
                for (int i = 0; i < WIDE / 8; i++)
                    if (i < 2 * pairs && wanted(column + i / 2 * UNIT)) {
                        const int at = column + i * 8 + lane % 4 * 2;
                        const real one = plain(column_panel(), at, k), next = plain(column_panel(), at + 1, k);
                        sum[i][0] += left * one, sum[i][1] += left * next;
                        sum[i][2] += below * one, sum[i][3] += below * next;
                    }
            }
        } else
            for (int c = most(span.from, 0) / STEP * 2; c < end; c += 2) {
                uint32_t a[4];
                load_matrices(a, place(row_panel(), row + lane % 16, c + lane / 16));
#pragma unroll
                for (int p = 0; p < WIDE / UNIT; p++)
                    if (p < pairs && wanted(column + p * UNIT)) {
                        uint32_t b[4];
                        load_matrices(b, place(column_panel(), column + p * UNIT + lane / 16 * 8 + lane % 8, c + lane / 8 % 2));
                        multiply<P>(sum[2 * p], a, b[0], b[1]);
                        multiply<P>(sum[2 * p + 1], a, b[2], b[3]);
                    }
            }
    }

    /* body(row, column, sum) for all entries of this lane. */
    template <class Body>
    __device__ __forceinline__ void each(const Body &body) {
        const int lane = threadIdx.x % LANES;
#pragma unroll
        for (int i = 0; i < WIDE / 8; i++)
            if (i < 2 * pairs)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    body(row + lane / 4 + e / 2 * 8, column + i * 8 + lane % 4 * 2 + e % 2, sum[i][e]);
    }
};

/* The sum over the lanes of a warp. */
INLINE real lane_sum(real x) {
#pragma unroll
    for (int n = LANES / 2; n; n /= 2) x += across(x, n);
    return x;
}

/* `product` of a single row or column: entry by entry, by one thread each or, where there are few, by
   the lanes of a warp. */
template <class A, class B, class Span, class Put>
INLINE void thin_product(int M, int N, const A &a, const B &b, int K, const Span &span, const Put &put) {
    const bool few = M * N < THREADS;
    const int own = few ? threadIdx.x / LANES : threadIdx.x, apart = few ? WARPS : THREADS;
    const int lane = few ? threadIdx.x % LANES : 0, lanes = few ? LANES : 1;
    for (int e = own; e < M * N; e += apart) {
        const int i = e / N, j = e % N, row = i / UNIT * UNIT;
        const range k = span.wanted(row, j / UNIT * UNIT) ? span(row) : range{0, 0};
        real sum = 0;
        for (int p = k.from + lane; p < least(k.to, K); p += lanes) sum += a.at(i, p) * b.at(j, p);
        if (few) sum = lane_sum(sum);
        if (lane == 0) put(i, j, sum);
    }
}

/* put(i, j, sum over k of a(i, k) b(j, k)) for all entries. span(row) are the k that 16 rows from there
   on have, which do not go down from rows to rows; span.wanted(row, column) whether any of 16 by 16
   entries is wanted: others are put as 0. */
template <int P, class A, class B, class Span, class Put>
INLINE void product(int M, int N, const A &a, const B &b, int K, const Span &span, const Put &put) {
    enum { SLAB = operand<P>::SLAB };
    if (M == 1 || N == 1) {
        thin_product(M, N, a, b, K, span, put);
        return;
    }
    bool staged = false;
    each_block(M, N, [&](const block &at) {
        sums<P> s(at);
        const int row = at.row + s.row;
        const range own = span(row), all = {span(at.row).from, least(span(at.row + at.rows - UNIT).to, K)};
        for (int k = all.from / SLAB * SLAB; k < all.to; k += SLAB) {
            if (staged) barrier();
            staged = true;
            stage<P>(row_panel(), at.rows, a, at.row, M, k, K);
            stage<P>(column_panel(), at.columns, b, at.column, N, k, K);
            barrier();
            s.add(range{own.from - k, own.to - k}, [&](int column) { return span.wanted(row, at.column + column); });
        }
        s.each([&](int i, int j, real sum) {
            if (at.row + i < M && at.column + j < N) put(at.row + i, at.column + j, sum);
        });
    });
}

/* The terms of a product of a shape. */
struct shaped {
    int shape, K;

    __device__ __forceinline__ range operator()(int row) const {
        return range{shape == UPPER_A ? least(row, K) : 0, shape == LOWER_A ? least(row + UNIT, K) : K};
    }

    __device__ __forceinline__ bool wanted(int row, int column) const {
        return shape != LOWER_OUT || column <= row;
    }
};

/* C = A B, or base + A B, or scale[i sm + j sn] base + A B. */
template <class Left, class Right>
INLINE void multiplied_onto(int m, int n, int k, const Left &a, const Right &b, real *c, int cm, int cn, int shape,
                            const real *base, const real *scale, int sm, int sn) {
    const bool lower = shape == LOWER_OUT;
    product<PRECISION>(m, n, a, b, k, shaped{shape, k}, [&](int i, int j, real sum) {
        const int at = i * cm + j * cn;
        if (!base)
            c[at] = lower && j > i ? R(0) : sum;
        else if (!lower || j <= i)
            c[at] = (scale ? scale[i * sm + j * sn] * base[at] : base[at]) + sum;
    });
}

DEVICE void multiply_onto(int m, int n, int k, const real *a, int am, int ak, const real *b, int bk, int bn, real *c, int cm,
                          int cn, int shape, const real *base, const real *scale, int sm, int sn) {
    multiplied_onto(m, n, k, strided{a, am, ak}, strided{b, bn, bk}, c, cm, cn, shape, base, scale, sm, sn);
}

/* The same, of operands where a caller has them. */
template <class A, class B>
DEVICE void multiply_onto(int m, int n, int k, const A *a, int64_t am, int64_t ak, const B *b, int64_t bk, int64_t bn, real *c,
                          int cm, int cn, int shape, const real *base, const real *scale, int sm, int sn) {
    multiplied_onto(m, n, k, lying<A>{a, am, ak}, lying<B>{b, bn, bk}, c, cm, cn, shape, base, scale, sm, sn);
}

/* C[i cm + j cn] (+)= sum over p of a[i am + p ak] b[p bk + j bn]: added where `add`, else written.
   LOWER_OUT: only j <= i is wanted, the rest is written as 0, or left alone where `add`. LOWER_A,
   UPPER_A: a is 0 for p > i, p < i. */
INLINE void gemm(int m, int n, int k, const real *a, int am, int ak, const real *b, int bk, int bn, real *c, int cm, int cn,
                 int shape, int add) {
    multiply_onto(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, add ? c : nullptr, nullptr, 0, 0);
}

/* C = scale[i sm + j sn] base + A B: one of sm and sn is 0, the other 0 or a step; base is laid out
   as C, which it may be. scale null: 1. Not for LOWER_OUT. */
INLINE void gemm_onto(int m, int n, int k, const real *a, int am, int ak, const real *b, int bk, int bn, real *c, int cm, int cn,
                      int shape, const real *base, const real *scale, int sm, int sn) {
    multiply_onto(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, base, scale, sm, sn);
}

/* The same of operands where a caller has them, whose steps may be of 64 bits. */
template <class A, class B, class AM, class AK, class BK, class BN>
INLINE void gemm(int m, int n, int k, const A *a, AM am, AK ak, const B *b, BK bk, BN bn, real *c, int cm, int cn, int shape,
                 int add) {
    multiply_onto(m, n, k, a, (int64_t)am, (int64_t)ak, b, (int64_t)bk, (int64_t)bn, c, cm, cn, shape, add ? c : nullptr,
                  nullptr, 0, 0);
}

template <class A, class B, class AM, class AK, class BK, class BN>
INLINE void gemm_onto(int m, int n, int k, const A *a, AM am, AK ak, const B *b, BK bk, BN bn, real *c, int cm, int cn,
                      int shape, const real *base, const real *scale, int sm, int sn) {
    multiply_onto(m, n, k, a, (int64_t)am, (int64_t)ak, b, (int64_t)bk, (int64_t)bn, c, cm, cn, shape, base, scale, sm, sn);
}
