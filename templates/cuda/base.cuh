/* Numbers of a CUDA file in: the types that callers keep them in, and the way between arrays of any of
   these types and stride and the dense tiles that everything else is written for. Tiles are
   [rows][width], row after row, in shared or global memory. All threads of a block call a function
   together; what it reads is visible to all of them, what it writes is after the next barrier. */

typedef struct {
    uint16_t bits;
} bf16;
typedef struct {
    uint16_t bits;
} fp16;

/* The type of the entries of a pointer, by its number in T_<pointer>. */
template <int number>
struct element {
    typedef float type;
};
template <>
struct element<1> {
    typedef bf16 type;
};
template <>
struct element<2> {
    typedef fp16 type;
};

template <>
struct element<3> {
    typedef double type;
};

INLINE int least(int a, int b) {
    return a < b ? a : b;
}

INLINE int most(int a, int b) {
    return a > b ? a : b;
}

INLINE real real_of(float x) {
    return x;
}

INLINE real real_of(double x) {
    return (real)x;
}

INLINE real real_of(bf16 x) {
    return float_of((uint32_t)x.bits << 16);
}

INLINE real real_of(fp16 x) {
    return from_fp16(x.bits);
}

/* An entry of an array, 0 where there is no array. */
template <class T>
INLINE real there(const void *given, const T *x, int64_t at) {
    return given ? real_of(x[at]) : R(0);
}

INLINE void put(float *out, real x) {
    *out = (float)x;
}

INLINE void put(double *out, real x) {
    *out = x;
}

INLINE void put(bf16 *out, real x) {
    out->bits = (uint16_t)pair_bf16((float)x, 0);
}

INLINE void put(fp16 *out, real x) {
    out->bits = (uint16_t)pair_fp16((float)x, 0);
}

/* Entries that move together: 16 bytes. */
template <class T>
struct alignas(16) piece {
    enum { SIZE = 16 / sizeof(T) };
    T x[SIZE];
};

/* Whether rows of an array and of a tile are whole pieces. */
template <class T>
INLINE bool in_pieces(const T *x, int64_t row_step, int64_t step, const real *tile, int width) {
    const uint64_t odd = (uint64_t)x | (uint64_t)row_step * sizeof(T) | (uint64_t)width * sizeof(T) | (uint64_t)tile;
    return step == 1 && odd % 16 == 0;
}

/* out [rows][width] = the first `known` rows at x, a row_step apart, entries a step apart; zeros
   behind them, and where x is not given. */
template <class T>
DEVICE void load_tile(real *out, const T *x, int64_t row_step, int64_t step, int known, int rows, int width) {
    enum { N = piece<T>::SIZE, M = piece<real>::SIZE };
    const int count = x ? known * width : 0;
    if (N >= M && in_pieces(x, row_step, step, out, width)) {
#pragma unroll 4
        for (int i = threadIdx.x * N; i < rows * width; i += THREADS * N) {
            real found[N] = {};
            if (i < count) {
                const piece<T> in = *(const piece<T> *)(x + (i / width * row_step + i % width));
#pragma unroll
                for (int e = 0; e < N; e++) found[e] = real_of(in.x[e]);
            }
#pragma unroll
            for (int e = 0; e < N; e += M) {
                piece<real> some;
#pragma unroll
                for (int f = 0; f < M; f++) some.x[f] = found[(e + f) % N];
                *(piece<real> *)(out + i + e) = some;
            }
        }
        return;
    }
    for (int i = threadIdx.x; i < rows * width; i += THREADS)
        out[i] = i < count ? real_of(x[i / width * row_step + i % width * step]) : R(0);
}

/* The first `known` rows at x = those of tile [known][width], where x is given. */
template <class T>
DEVICE void store_tile(T *x, int64_t row_step, int64_t step, const real *tile, int known, int width) {
    enum { N = piece<T>::SIZE };
    if (!x) return;
    if (!in_pieces(x, row_step, step, tile, width)) {
        for (int i = threadIdx.x; i < known * width; i += THREADS)
            put(x + (i / width * row_step + i % width * step), tile[i]);
        return;
    }
    for (int i = threadIdx.x * N; i < known * width; i += THREADS * N) {
        piece<T> out;
#pragma unroll
        for (int e = 0; e < N; e++) put(out.x + e, tile[i + e]);
        *(piece<T> *)(x + (i / width * row_step + i % width)) = out;
    }
}

/* `load_tile` of all `known` rows, of which each call brings the `next` ones of the next call on their
   way, `by` entries on and next_width wide (next is 0 or less behind the last), into raw: shared memory
   as large as the rows, or null, and then nothing is brought. Nothing is on its way where the call is `fresh`. A thread takes the pieces that it has sent
   for itself; `others` such calls lie between one and the next for the same rows. */
template <int others, class T>
DEVICE void load_ahead(real *out, void *raw, const T *x, int64_t by, int64_t row_step, int64_t step, int known, int width,
                       int next, int next_width, bool fresh) {
    enum { N = piece<T>::SIZE, M = piece<real>::SIZE };
    const auto able = [&](int w) { return raw && N >= M && in_pieces(x, row_step, step, out, w); };
    wait_groups<others>();
    if (fresh || !able(width))
        load_tile(out, x, row_step, step, known, known, width);
    else
        load_tile(out, x ? (const T *)raw : x, width, 1, known, known, width);
    const int sent = x && next > 0 && able(next_width) ? next * next_width : 0;
    for (int i = threadIdx.x * N; i < sent; i += THREADS * N)
        copy_later<16>((T *)raw + i, x + by + (i / next_width * row_step + i % next_width));
    end_group();
}
