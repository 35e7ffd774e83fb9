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

/* out [rows][width] = the first `known` rows at x, a row_step apart, entries a step apart; zeros
   behind them, and where x is not given. */
template <class T>
DEVICE void load_tile(real *out, const T *x, int64_t row_step, int64_t step, int known, int rows, int width) {
    const int count = x ? known * width : 0;
    for (int i = threadIdx.x; i < rows * width; i += THREADS)
        out[i] = i < count ? real_of(x[i / width * row_step + i % width * step]) : R(0);
}

/* The first `known` rows at x = those of tile [known][width], where x is given. */
template <class T>
DEVICE void store_tile(T *x, int64_t row_step, int64_t step, const real *tile, int known, int width) {
    for (int i = threadIdx.x; x && i < known * width; i += THREADS)
        put(x + (i / width * row_step + i % width * step), tile[i]);
}

/* The bytes that `fetch` fills: rows of whole pieces of 16. */
template <class T>
ROOM int64_t fetch_room(int rows, int width) {
    return (int64_t)rows * ((width * (int)sizeof(T) + 15) / 16 * 16);
}

/* Rows of an array begin to arrive in raw, those of `load_fetched`: as pieces of 16 or 4 bytes on
   their way while other work is done, as far as addresses allow. */
template <class T>
DEVICE void fetch(void *raw, const T *x, int64_t row_step, int known, int width) {
    const int bytes = width * (int)sizeof(T), wide = (bytes + 15) / 16 * 16;
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
DEVICE void load_fetched(real *out, const void *raw, const T *x, int known, int rows, int width) {
    const int wide = (width * (int)sizeof(T) + 15) / 16 * 16, count = x ? known * width : 0;
    for (int i = threadIdx.x; i < rows * width; i += THREADS)
        out[i] = i < count ? real_of(((const T *)((const unsigned char *)raw + i / width * wide))[i % width]) : R(0);
}
