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
    if (N < M || !in_pieces(x, row_step, step, out, width)) {
        for (int i = threadIdx.x; i < rows * width; i += THREADS)
            out[i] = i < count ? real_of(x[i / width * row_step + i % width * step]) : R(0);
        return;
    }
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

/* The bytes that `fetch` fills: rows of whole pieces of 16. */
template <class T>
ROOM int64_t fetch_room(int64_t rows, int64_t width) {
    return rows * ((width * (int64_t)sizeof(T) + 15) / 16 * 16);
}

/* Rows of an array begin to arrive in raw, those of `load_fetched`: as pieces of 16 or 4 bytes on
   their way while other work is done, as far as addresses allow. */
template <class T>
DEVICE void fetch(void *raw, const T *x, int64_t row_step, int known, int width) {
    const int bytes = width * (int)sizeof(T), wide = (int)fetch_room<T>(1, width);
    const int64_t apart = row_step * (int64_t)sizeof(T);
    const uint64_t aligned = (uint64_t)x | (uint64_t)apart | (uint64_t)bytes;
    unsigned char *out = (unsigned char *)raw;
    const unsigned char *in = (const unsigned char *)x;
    if (x && aligned % 16 == 0) {
        for (int i = threadIdx.x; i < known * (bytes / 16); i += THREADS) {
            const int row = i / (bytes / 16), at = i % (bytes / 16) * 16;
            copy_later<16>(out + row * wide + at, in + row * apart + at);
        }
    } else if (x && aligned % 4 == 0) {
        for (int i = threadIdx.x; i < known * (bytes / 4); i += THREADS) {
            const int row = i / (bytes / 4), at = i % (bytes / 4) * 4;
            copy_later<4>(out + row * wide + at, in + row * apart + at);
        }
    } else if (x) {
        for (int i = threadIdx.x; i < known * width; i += THREADS)
            ((T *)(out + i / width * wide))[i % width] = x[i / width * row_step + i % width];
    }
    end_group();
}

/* Waits for this thread's part of all that was fetched but the last `pending` calls; after a barrier
   it is there for all threads. */
template <int pending>
INLINE void fetched() {
    wait_groups<pending>();
}

/* out [rows][width] = what `fetch` brought, zeros behind the first `known` rows and where x is not given. */
template <class T>
INLINE void load_fetched(real *out, const void *raw, const T *x, int known, int rows, int width) {
    const int64_t step = fetch_room<T>(1, width) / sizeof(T);
    load_tile(out, x ? (const T *)raw : nullptr, step, 1, known, rows, width);
}
