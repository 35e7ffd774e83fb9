/* Numbers of a C file in: the type it computes in, vectors of it as wide as the machine's registers,
   and the way between arrays of any type and stride and the small dense tiles everything else is
   written for. Tiles are [rows][width], row after row. LACC_DOUBLE chooses fp64 over fp32. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define UNUSED __attribute__((unused))
#define DEVICE __attribute__((unused, noinline)) /* inlined into every call it would take seconds to build */
#define UNROLL _Pragma("GCC unroll 16") /* loops over registers, whole */
#define INLINE static inline __attribute__((always_inline, unused))

#ifdef LACC_DOUBLE
typedef double real;
typedef uint64_t word; /* the bits of a real */
#define LIBM(name) name
#define LACC_REAL LACC_F64
#else
typedef float real;
typedef uint32_t word;
#define LIBM(name) name##f
#define LACC_REAL LACC_F32
#endif

#if defined(__AVX512F__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512") /* loops that become vector code, like products */
#endif
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

enum { LANES = VECTOR_BYTES / sizeof(real) };
typedef real vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

/* Stores a vector, aligned, past the caches where the compiler knows how. */
#if defined(__clang__)
typedef real line_vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
#define STREAM(at, v) __builtin_nontemporal_store((line_vec)(v), (line_vec *)(at))
#elif defined(__AVX512F__)
#define STREAM(at, v) __builtin_ia32_movntps512((float *)(at), (float __attribute__((vector_size(64))))(v))
#elif defined(__AVX__)
#define STREAM(at, v) __builtin_ia32_movntps256((float *)(at), (float __attribute__((vector_size(32))))(v))
#elif defined(__SSE__)
#define STREAM(at, v) __builtin_ia32_movntps((float *)(at), (float __attribute__((vector_size(16))))(v))
#else
#define STREAM(at, v) (*(vec *)(at) = (v))
#endif

INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float from_bf16(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

/* Half precision: an exponent field that is 112 too small, so that subnormals come out as well. */
INLINE float from_f16(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
    return float_of((magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : finite) | sign);
}

/* To the nearest, ties to even; a NaN keeps its sign and becomes quiet. */
INLINE uint16_t to_bf16(float x) {
    const uint32_t u = bits_of(x), rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded);
}

INLINE uint16_t to_f16(float x) {
    const uint32_t u = bits_of(x) & 0x7fffffffu, sign = bits_of(x) >> 16 & 0x8000u;
    const uint32_t normal = (u - (112u << 23) + 0xfffu + (u >> 13 & 1)) >> 13;
    const uint32_t small = bits_of(float_of(u) + 0.5f) - bits_of(0.5f); /* below 2^-14: the sum rounds */
    const uint32_t finite = u < 0x38800000u ? small : normal;
    const uint32_t beyond = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return (uint16_t)((u >= 0x47800000u ? beyond : finite) | sign);
}

/* A double cut to float with its last bit set where that lost anything: rounding once more, to half
   the digits, then gives the nearest. */
INLINE float cut(double x) {
    const float nearest = (float)x;
    const uint32_t above = fabs((double)nearest) > fabs(x), inexact = (double)nearest != x;
    return float_of((bits_of(nearest) - above) | inexact);
}

INLINE float narrow(real x) {
#ifdef LACC_DOUBLE
    return cut(x);
#else
    return x;
#endif
}

/* Part of a row of b: GCC would load it again for each use, if these are few. */
INLINE vec in_register(const real *x) {
    vec v = *(const vec *)x;
#if defined(__x86_64__) || defined(__i386__)
    __asm__("" : "+v"(v));
#endif
    return v;
}

/* n reals; what is short takes no call. */
INLINE void copy_row(real *restrict out, const real *restrict x, int64_t n) {
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        vec v[4];
        UNROLL for (int j = 0; j < 4; j++) v[j] = in_register(x + i + j * LANES);
        UNROLL for (int j = 0; j < 4; j++) *(vec *)(out + i + j * LANES) = v[j];
    }
    for (; i + LANES <= n; i += LANES) *(vec *)(out + i) = in_register(x + i);
    for (; i < n; i++) out[i] = x[i];
}

/* out = rows of width numbers at data, a stride apart. */
INLINE void load_rows(real *restrict out, const char *data, int32_t dtype, int64_t stride, int64_t rows, int64_t width) {
    for (int64_t t = 0; t < rows; t++, out += width) {
        const int64_t at = t * stride;
        if (dtype == LACC_F32) {
            const float *x = (const float *)data + at;
            for (int64_t i = 0; i < width; i++) out[i] = (real)x[i];
        } else if (dtype == LACC_F64) {
            const double *x = (const double *)data + at;
            for (int64_t i = 0; i < width; i++) out[i] = (real)x[i];
        } else {
            const uint16_t *x = (const uint16_t *)data + at;
            if (dtype == LACC_BF16)
                for (int64_t i = 0; i < width; i++) out[i] = from_bf16(x[i]);
            else
                for (int64_t i = 0; i < width; i++) out[i] = from_f16(x[i]);
        }
    }
}

INLINE void store_rows(char *data, int32_t dtype, int64_t stride, const real *restrict in, int64_t rows, int64_t width) {
    for (int64_t t = 0; t < rows; t++, in += width) {
        const int64_t at = t * stride;
        if (dtype == LACC_F32) {
            float *x = (float *)data + at;
            for (int64_t i = 0; i < width; i++) x[i] = (float)in[i];
        } else if (dtype == LACC_F64) {
            double *x = (double *)data + at;
            for (int64_t i = 0; i < width; i++) x[i] = (double)in[i];
        } else {
            uint16_t *x = (uint16_t *)data + at;
            if (dtype == LACC_BF16)
                for (int64_t i = 0; i < width; i++) x[i] = to_bf16(narrow(in[i]));
            else
                for (int64_t i = 0; i < width; i++) x[i] = to_f16(narrow(in[i]));
        }
    }
}

enum { LINE = 64 };

INLINE int64_t size_of(int32_t dtype) {
    static const int64_t size[] = {[LACC_F32] = 4, [LACC_F64] = 8, [LACC_BF16] = 2, [LACC_F16] = 2, [LACC_I64] = 8};
    return size[dtype];
}

/* Where tokens from `at` on lie for sequence n and head h. */
INLINE char *place(const lacc_array *x, int64_t n, int64_t h, int64_t at) {
    return (char *)x->data + (n * x->sequence + at * x->token + h * x->head) * size_of(x->dtype);
}

/* out [rows][width] = the tokens from `at` on of array x [n, t, h, width]; zeros where it is not
   given. */
static DEVICE void load_tile(real *restrict out, const lacc_array *x, int64_t n, int64_t h, int64_t at, int64_t rows,
                             int64_t width) {
    if (!x->data) {
        memset(out, 0, (size_t)(rows * width) * sizeof(real));
        return;
    }
    const char *data = place(x, n, h, at);
    const int one = x->token == width;
    const int64_t count = one ? 1 : rows, wide = one ? rows * width : width;
    if (x->dtype == LACC_REAL)
        for (int64_t t = 0; t < count; t++) copy_row(out + t * wide, (const real *)data + t * x->token, wide);
    else
        load_rows(out, data, x->dtype, x->token, count, wide);
}

/* Memory that is wanted soon: a kernel says what, products ask for some of its lines with each of
   their blocks: at a pace at which all would be asked for in 4/7 of the products of the chunk before.
   With heads side by side in memory no prefetcher of the machine sees that the rows of one follow one
   another, and asked for all at once they come no sooner than if loaded. */
typedef struct {
    const char *row;
    int64_t apart, rows, lines; /* of each row */
    int written;
} wanted_t;

enum { WANTED = 16, ASKED = 20, AT_ONCE = 8 };

typedef struct {
    int64_t first, count, lines;
    int64_t before, work; /* products of a number and a vector: about those of the chunk before, and of this one so far */
    wanted_t rows[WANTED];
} ahead_t;

static _Thread_local ahead_t ahead;

/* Begins a chunk. */
INLINE void want_nothing(void) {
    ahead.first = ahead.count = ahead.lines = 0;
    ahead.before = ahead.work, ahead.work = 0;
}

/* The work for each line that is asked for; 0 where none is. */
INLINE int64_t work_per_line(const ahead_t *a) {
    return a->first == a->count || !a->before ? 0 : 1 + 4 * a->before / (7 * a->lines);
}

/* Wants the tokens from `at` on, to read or to write them. */
INLINE void want(const lacc_array *x, int64_t n, int64_t h, int64_t at, int64_t rows, int64_t width, int written) {
    const int64_t size = x->data ? size_of(x->dtype) : 0;
    if (ahead.first == ahead.count) ahead.first = ahead.count = 0;
    if (!size || rows < 1 || ahead.count == WANTED) return;
    const char *const row = place(x, n, h, at);
    const int64_t bytes = width * size, all = rows * bytes, apart = x->token * size;
    const int across = ((uintptr_t)row | (uintptr_t)apart | (uintptr_t)bytes) % LINE != 0;
    wanted_t w = {row, apart, rows, bytes / LINE + across, written};
    if (rows == 1 || apart == bytes) w.apart = AT_ONCE * LINE, w.lines = AT_ONCE, w.rows = (all + w.apart - 1) / w.apart;
    ahead.rows[ahead.count++] = w, ahead.lines += w.rows * w.lines;
}

/* Asks for about so many lines of what is wanted, by whole rows. */
static UNUSED void ask(ahead_t *a, int64_t lines) {
    while (lines > 0 && a->first < a->count) {
        wanted_t *w = a->rows + a->first;
        const char *line = w->row;
        const int64_t n = w->lines;
        if (w->written)
            for (int64_t i = 0; i < n; i++) __builtin_prefetch(line + i * LINE, 1);
        else
            for (int64_t i = 0; i < n; i++) __builtin_prefetch(line + i * LINE);
        lines -= n, w->row += w->apart;
        if (!--w->rows) a->first++;
    }
}

/* The tokens from `at` on of array x [n, t, h, width] = tile [rows][width], where it is wanted. */
static DEVICE void store_tile(const lacc_array *x, int64_t n, int64_t h, int64_t at, const real *restrict tile, int64_t rows,
                              int64_t width) {
    if (!x->data) return;
    char *data = place(x, n, h, at);
    const int one = x->token == width;
    const int64_t count = one ? 1 : rows, wide = one ? rows * width : width;
    if (x->dtype == LACC_REAL)
        for (int64_t t = 0; t < count; t++) copy_row((real *)data + t * x->token, tile + t * wide, wide);
    else
        store_rows(data, x->dtype, x->token, tile, count, wide);
}
