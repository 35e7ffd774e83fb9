/* Products in mixed precision: factors rounded to bfloat16, sums in float, in calls that ask for it on
   a processor that is faster so; else the products above. Both factors are packed in pairs of
   neighbours in the sum: left [rows][pairs], right [pairs][columns]. C goes by blocks of SQUARE. */

#if defined(LACC_DOUBLE) || defined(EXACT_PRODUCTS)
#define MIXED 0
#elif defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define MIXED 2 /* products of 16 rows, 16 columns and 16 pairs in tile registers */
#elif defined(__AVX512BF16__) && !defined(__AVX512FP16__)
#define MIXED 1 /* sums of pairs in vectors; processors of AVX512_FP16 do these at half the rate of float */
#else
#define MIXED 0
#endif

#if MIXED
#include <immintrin.h>

enum { SQUARE = 32, HIGH = 128 }; /* rows of a block, and of all that are packed at a time: DEPTH numbers of each */

typedef uint32_t pairs __attribute__((vector_size(64), aligned(4), may_alias));

static _Thread_local int mixed; /* whether this thread is in a call that asks for it */

/* The first `count` numbers of x, a step apart, and zeros. */
static DEVICE __m512 numbers(const real *x, int64_t step, int64_t count) {
    const int64_t n = count < 0 ? 0 : count < LANES ? count : LANES;
    real found[LANES] = {0};
    if (step == 1) return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), x);
    for (int64_t i = 0; i < n; i++) found[i] = x[i * step];
    return _mm512_loadu_ps(found);
}

/* The 32 numbers of x, then y, rounded. */
INLINE pairs rounded(__m512 x, __m512 y) {
    return (pairs)_mm512_cvtne2ps_pbh(y, x);
}

/* Numbers of x and y in turn, rounded. */
INLINE pairs zipped(__m512 x, __m512 y) {
    static const uint16_t turns[] = {0,  16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8,  24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (pairs)_mm512_permutexvar_epi16(_mm512_loadu_si512(turns), (__m512i)rounded(x, y));
}

/* Numbers [sides][depth] whose steps are xs and xk, and how their pairs are read: of each side in turn
   where `along`, else of each two neighbours of all sides. */
typedef struct {
    const real *x;
    int64_t xs, xk, sides, depth;
    int along;
} factor_t;

/* out [rows][width], `os` apart, = pairs of f from row r and number v on, and zeros behind the last. */
static DEVICE void pair_rows(uint32_t *out, int64_t os, const factor_t *f, int64_t r, int64_t rows, int64_t v, int64_t width) {
    const int64_t xs = f->xs, xk = f->xk, sides = f->sides, depth = f->depth;
    if (f->along && xk == 1 && r + rows <= sides && v + width <= depth) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < width; k += 2 * LANES) {
                const real *x = f->x + (r + i) * xs + v + k;
                *(pairs *)(out + i * os + k / 2) = rounded(_mm512_loadu_ps(x), _mm512_loadu_ps(x + LANES));
            }
    } else if (f->along) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < width; k += 2 * LANES) {
                const real *x = f->x + (r + i) * xs + (v + k) * xk;
                const int64_t left = r + i < sides ? depth - v - k : 0;
                *(pairs *)(out + i * os + k / 2) = rounded(numbers(x, xk, left), numbers(x + LANES * xk, xk, left - LANES));
            }
    } else if (2 * (r + rows) <= depth && v + width <= sides) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < width; k += LANES) {
                const real *x = f->x + 2 * (r + i) * xk + v + k;
                *(pairs *)(out + i * os + k) = zipped(_mm512_loadu_ps(x), _mm512_loadu_ps(x + xk));
            }
    } else {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < width; k += LANES) {
                const real *x = f->x + 2 * (r + i) * xk + v + k;
                const int64_t first = 2 * (r + i), left = sides - v - k;
                *(pairs *)(out + i * os + k) =
                    zipped(numbers(x, 1, first < depth ? left : 0), numbers(x + xk, 1, first + 1 < depth ? left : 0));
            }
    }
}

static inline int64_t whole_blocks(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

/* Pairs of x [sides][depth], whose steps are xs and xk, zeros behind them up to whole blocks:
   out[side][pair] where `left`, else out[pair][side]; its rows are `os` apart. */
static DEVICE void pack_pairs(uint32_t *out, int64_t os, int left, const real *x, int64_t xs, int64_t xk, int64_t sides,
                              int64_t depth) {
    const factor_t f = {x, xs, xk, sides, depth, xs != 1 || (xk == 1 && left)};
    const int64_t s = whole_blocks(sides, SQUARE), d = whole_blocks(depth, 2 * LANES);
    const int64_t rows = f.along ? s : d / 2, width = f.along ? d : s, step = f.along ? 2 * LANES : LANES;
    if (f.along == left) {
        pair_rows(out, os, &f, 0, rows, 0, width);
        return;
    }
    _Alignas(64) uint32_t block[LANES * LANES];
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t v = 0; v < width; v += step) {
            pair_rows(block, LANES, &f, r, LANES, v, step);
            transposed((real *)(out + v * LANES / step * os + r), os, (const real *)block, LANES, LANES);
        }
}

#if MIXED == 2
long syscall(long number, ...);

/* Whether this process may use tile registers: the system is asked for them. */
static int may_mix(void) {
    enum { SYS_ARCH_PRCTL = 158, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Has this thread's products be mixed from now on, with eight tiles of 16 rows, or no more. */
static void mix(int wanted) {
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
    __asm__ volatile("" ::: "memory");
    if (wanted) _tile_loadconfig(&tiles);
    else if (mixed) _tile_release();
    mixed = wanted;
}

/* c [SQUARE][SQUARE] (+)= left right over `deep` pairs, a multiple of 16; rows are so many numbers apart. */
INLINE void square(real *c, int64_t cm, const uint32_t *a, int64_t am, const uint32_t *b, int64_t bm, int64_t deep, int add) {
    real *const below = c + 16 * cm;
    const int64_t cs = cm * 4, as = am * 4, bs = bm * 4;
    __asm__ volatile("" ::: "memory"); /* intrinsics of tiles do not say what they read and write */
    if (add) {
        _tile_loadd(0, c, cs);
        _tile_loadd(1, c + 16, cs);
        _tile_loadd(2, below, cs);
        _tile_loadd(3, below + 16, cs);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < deep; p += 16) {
        _tile_loadd(4, a + p, as);
        _tile_loadd(5, a + 16 * am + p, as);
        _tile_loadd(6, b + p * bm, bs);
        _tile_loadd(7, b + p * bm + 16, bs);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, cs);
    _tile_stored(1, c + 16, cs);
    _tile_stored(2, below, cs);
    _tile_stored(3, below + 16, cs);
    __asm__ volatile("" ::: "memory");
}
#else
static int may_mix(void) { return 1; }
static void mix(int wanted) { mixed = wanted; }

INLINE void square(real *c, int64_t cm, const uint32_t *a, int64_t am, const uint32_t *b, int64_t bm, int64_t deep, int add) {
    for (int64_t i = 0; i < SQUARE; i += TALL, c += TALL * cm, a += TALL * am) {
        __m512 sum[TALL][2];
        UNROLL for (int r = 0; r < TALL; r++)
            UNROLL for (int v = 0; v < 2; v++)
                sum[r][v] = add ? _mm512_loadu_ps(c + r * cm + v * LANES) : _mm512_setzero_ps();
        for (int64_t p = 0; p < deep; p++) {
            const __m512bh low = (__m512bh)_mm512_loadu_si512(b + p * bm), high = (__m512bh)_mm512_loadu_si512(b + p * bm + LANES);
            UNROLL for (int r = 0; r < TALL; r++) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)a[r * am + p]);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, low);
                sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, high);
            }
        }
        UNROLL for (int r = 0; r < TALL; r++)
            UNROLL for (int v = 0; v < 2; v++) _mm512_storeu_ps(c + r * cm + v * LANES, sum[r][v]);
    }
}
#endif

/* Rows of C from `top` on, SQUARE at most, by `width` columns from j on, summed over `depth` numbers from p on. */
static DEVICE void squares(int64_t top, int64_t j, int64_t p, int64_t rows, int64_t width, int64_t depth, const uint32_t *a,
                           int64_t am, const uint32_t *b, real *c, int64_t cm, int64_t cn, int shape, int add) {
    _Alignas(64) real tile[SQUARE * WIDE];
    const int64_t seen = shape == LOWER_A && top + rows - p < depth ? top + rows - p : depth;
    const int64_t first = shape == UPPER_A && top > p ? (top - p) / (2 * LANES) * LANES : 0;
    const int64_t end = seen > 0 ? whole_blocks(seen, 2 * LANES) / 2 : 0, deep = end > first ? end - first : 0;
    for (int64_t v = 0; v < width; v += SQUARE) {
        const int64_t wide = width - v < SQUARE ? width - v : SQUARE, last = shape == LOWER_OUT ? top - (j + v) : wide;
        real *const here = c + top * cm + (j + v) * cn;
        if (add && (!deep || last + rows <= 0)) continue;
        ask(&ahead, ASKED);
        if (cn == 1 && rows == SQUARE && wide == SQUARE && last + 1 >= wide) {
            square(here, cm, a + first, am, b + first * WIDE + v, WIDE, deep, add);
            continue;
        }
        square(tile, WIDE, a + first, am, b + first * WIDE + v, WIDE, last + rows > 0 ? deep : 0, 0);
        put(here, cm, cn, tile, rows, wide, last, add);
    }
}

/* `multiply` in mixed precision. Rows are packed just before they are multiplied: the processor does both
   at once. */
static DEVICE void multiply_mixed(int64_t m, int64_t n, int64_t k, const real *a, int64_t am, int64_t ak, const real *b, int64_t bk,
                                  int64_t bn, real *c, int64_t cm, int64_t cn, int shape, int add, const onto_t *onto) {
    if (shape == WHOLE && cm == 1 && cn != 1) {
        const onto_t flipped = onto ? (onto_t){onto->base, onto->scale, onto->sn, onto->sm} : (onto_t){0};
        multiply_mixed(n, m, k, b, bn, bk, a, ak, am, c, cn, cm, shape, add, onto ? &flipped : NULL);
        return;
    }
    _Alignas(64) uint32_t left[HIGH * DEPTH / 2], right[DEPTH / 2 * WIDE];
    for (int64_t i = 0; i < m; i += HIGH)
        for (int64_t p = 0; p < k; p += DEPTH) {
            const int64_t high = m - i < HIGH ? m - i : HIGH, depth = k - p < DEPTH ? k - p : DEPTH;
            const int64_t step = whole_blocks(depth, 2 * LANES) / 2;
            for (int64_t j = 0; j < n; j += WIDE) {
                const int64_t width = n - j < WIDE ? n - j : WIDE;
                pack_pairs(right, WIDE, 0, b + p * bk + j * bn, bn, bk, width, depth);
                for (int64_t u = 0; u < high; u += SQUARE) {
                    const int64_t rows = high - u < SQUARE ? high - u : SQUARE;
                    if (!j) pack_pairs(left + u * step, step, 1, a + (i + u) * am + p * ak, am, ak, rows, depth);
                    if (onto && !p) begin(onto, c, cm, cn, i + u, j, rows, width);
                    squares(i + u, j, p, rows, width, depth, left + u * step, step, right, c, cm, cn, shape, add || onto || p);
                }
            }
        }
}
#else
enum { mixed = 0 };
#define may_mix() 0
#define mix(wanted) ((void)(wanted))
#define multiply_mixed multiply
#endif

enum { WORTH_MIXING = 32 }; /* rows, columns and terms of a sum from which on it pays to round */

INLINE int mixes(int64_t m, int64_t n, int64_t k) {
    return m >= WORTH_MIXING && n >= WORTH_MIXING && k >= WORTH_MIXING && mixed;
}

/* `gemm_exact`, factors rounded where this thread's products are mixed. */
static DEVICE void gemm(int64_t m, int64_t n, int64_t k, const real *a, int64_t am, int64_t ak, const real *b, int64_t bk,
                        int64_t bn, real *c, int64_t cm, int64_t cn, int shape, int add) {
    if (mixes(m, n, k)) multiply_mixed(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, add, NULL);
    else multiply(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, add, NULL);
}

/* C = scale[i sm + j sn] base + A B: one of sm and sn is 0, the other 0 or a step; base is laid out
   as C, which it may be. scale NULL: 1. Not for LOWER_OUT. */
static DEVICE void gemm_onto(int64_t m, int64_t n, int64_t k, const real *a, int64_t am, int64_t ak, const real *b, int64_t bk,
                             int64_t bn, real *c, int64_t cm, int64_t cn, int shape, const real *base, const real *scale,
                             int64_t sm, int64_t sn) {
    const onto_t onto = {base, scale, sm, sn};
    if (mixes(m, n, k)) multiply_mixed(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, 1, &onto);
    else multiply(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, 1, &onto);
}
