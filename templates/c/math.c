/* Functions of numbers in: reals in, reals out, with the meaning NumPy gives them. All up to
   f_logaddexp are free of branches and calls, so that loops over them become vector code; NaN goes
   through, infinities and subnormals are meant. Within 3 units in the last place. */

#ifdef LACC_DOUBLE
enum { MANTISSA = 52, BIAS = 1023 };
static const real LN2_HIGH = 0x1.62e42fee00000p-1, LN2_LOW = 0x1.a39ef35793c76p-33, ROUND = 0x1.8p52;
static const real EXP_LEAST = -746, EXP_MOST = 710, TINIEST = DBL_MIN;
#else
enum { MANTISSA = 23, BIAS = 127 };
static const real LN2_HIGH = 0x1.62e400p-1f, LN2_LOW = 0x1.7f7d1cp-20f, ROUND = 0x1.8p23f;
static const real EXP_LEAST = -105, EXP_MOST = 89, TINIEST = FLT_MIN;
#endif

INLINE word word_of(real x) {
    word bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE real real_of(word bits) {
    real x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^n of a whole number -BIAS < n <= BIAS. */
INLINE real power_of_two(word n) {
    return real_of((n + BIAS) << MANTISSA);
}

/* (exp(r) - 1 - r) / r² for |r| <= log(2) / 2: coefficients, the highest power first. */
static const real exp_tail[] = {
#ifdef LACC_DOUBLE
    1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0,
    1 / 5040.0,       1 / 720.0,       1 / 120.0,      1 / 24.0,      1 / 6.0,      0.5,
#else
    1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f,
#endif
};
enum { EXP_TERMS = sizeof exp_tail / sizeof(real) };

/* x = n log(2) + r: exp(r) - 1 out, and n as the bits of a whole number. */
INLINE real exp_parts(real x, word *n) {
    const real shifted = x * (real)1.4426950408889634 + ROUND, whole = shifted - ROUND;
    const real r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    *n = word_of(shifted) - word_of(ROUND);
    real y = exp_tail[0];
    UNROLL for (int i = 1; i < EXP_TERMS; i++) y = y * r + exp_tail[i];
    return r * r * y + r;
}

INLINE real f_exp(real x) {
    word n;
    x = x > EXP_MOST ? EXP_MOST : x;
    x = x < EXP_LEAST ? EXP_LEAST : x;
    const real y = exp_parts(x, &n) + 1;
    const word both = n + 2 * BIAS, half = both >> 1; /* in two steps, so that the ends are reached */
    return y * real_of(half << MANTISSA) * real_of((both - half) << MANTISSA);
}

#ifdef __AVX512F__
#include <immintrin.h>
#ifdef LACC_DOUBLE
#define AVX512(name) _mm512_##name##_pd
#else
#define AVX512(name) _mm512_##name##_ps
#endif

/* f_exp of n vectors, to the bit: step by step for all of them, as each step waits for the one before. */
INLINE void exp_of(vec *x, const int n) {
    vec whole[4], r[4], y[4];
    UNROLL for (int i = 0; i < n; i++) {
        x[i] = AVX512(max)(AVX512(set1)(EXP_LEAST), AVX512(min)(AVX512(set1)(EXP_MOST), x[i])); /* the second, if NaN */
        whole[i] = x[i] * (real)1.4426950408889634 + ROUND - ROUND;
        r[i] = (x[i] - whole[i] * LN2_HIGH) - whole[i] * LN2_LOW;
        y[i] = (vec){0} + exp_tail[0];
    }
    UNROLL for (int t = 1; t < EXP_TERMS; t++)
        UNROLL for (int i = 0; i < n; i++) y[i] = y[i] * r[i] + exp_tail[t];
    UNROLL for (int i = 0; i < n; i++) x[i] = AVX512(scalef)(r[i] * r[i] * y[i] + r[i] + 1, whole[i]);
}
#endif

/* out = f_exp of n numbers. */
static UNUSED void exps(real *out, const real *x, int64_t n) {
#ifdef __AVX512F__
    for (; n >= 4 * LANES; n -= 4 * LANES, x += 4 * LANES, out += 4 * LANES) {
        vec v[4];
        UNROLL for (int q = 0; q < 4; q++) v[q] = *(const vec *)(x + q * LANES);
        exp_of(v, 4);
        UNROLL for (int q = 0; q < 4; q++) *(vec *)(out + q * LANES) = v[q];
    }
#endif
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = f_exp(x[i]);
}

/* exp(x) - 1 for x <= 0. */
INLINE real fallen(real x) {
    word n;
    const real y = exp_parts(x < -40 ? -40 : x, &n), scale = power_of_two(n);
    return scale * y + (scale - 1);
}

/* log(1 + f) - f for sqrt(1/2) <= 1 + f <= sqrt(2). */
INLINE real log_tail(real f) {
#ifdef LACC_DOUBLE
    const real s = f / (2 + f), z = s * s, half = f * f / 2;
    real y = 1.479819860511658591e-01;
    y = y * z + 1.531383769920937332e-01;
    y = y * z + 1.818357216161805012e-01;
    y = y * z + 2.222219843214978396e-01;
    y = y * z + 2.857142874366239149e-01;
    y = y * z + 3.999999999940941908e-01;
    y = y * z + 6.666666666666735130e-01;
    return s * (half + z * y) - half;
#else
    real y = 7.0376836292e-2f;
    y = y * f - 1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f - 1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f - 2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    return f * f * (y * f - 0.5f);
#endif
}

INLINE real f_log(real x) {
    const int tiny = x < TINIEST;
    const real scaled = tiny ? x * power_of_two(MANTISSA) : x;
    const word root = word_of((real)0.70710678118654752), one = word_of(1), bits = word_of(scaled) + (one - root);
    const real f = real_of((bits & (((word)1 << MANTISSA) - 1)) + root) - 1;
    const real n = real_of((bits >> MANTISSA) + word_of(ROUND)) - ROUND - (tiny ? BIAS + MANTISSA : BIAS);
    const real y = n * LN2_HIGH + (f + (log_tail(f) + n * LN2_LOW));
    const real ends = x == 0 ? -INFINITY : x > 0 ? x : NAN;
    return ((x > 0) & (x < INFINITY)) ? y : ends;
}

/* log(1 + e) for 0 <= e <= 1. */
INLINE real log_above_one(real e) {
    const int upper = e > (real)0.41421356237309505;
    const real f = upper ? (e - 1) / 2 : e;
    return (upper ? LN2_HIGH : 0) + (f + (log_tail(f) + (upper ? LN2_LOW : 0)));
}

INLINE real f_abs(real x) {
    return LIBM(fabs)(x);
}

INLINE real f_sqrt(real x) {
    return LIBM(sqrt)(x);
}

INLINE real f_rsqrt(real x) {
    return 1 / f_sqrt(x);
}

INLINE real f_sign(real x) {
    return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x;
}

INLINE real f_relu(real x) {
    return x < 0 ? 0 : x;
}

INLINE real f_max(real a, real b) {
    return ((a > b) | (a != a)) ? a : b;
}

INLINE real f_min(real a, real b) {
    return ((a < b) | (a != a)) ? a : b;
}

/* f_ONE(x), of x and e, a power of e; ALL: out = f_ONE of n numbers, whose powers are found together. */
enum { POWERS = 4 * LANES };
#define WITH_POWER(ONE, ALL, POWER, VALUE)                                                    \
    INLINE real f_##ONE(real x) {                                                             \
        const real e = f_exp(POWER);                                                          \
        return VALUE;                                                                         \
    }                                                                                         \
    static UNUSED DEVICE void ALL(real *restrict out, const real *restrict from, int64_t n) { \
        real powers[POWERS];                                                                  \
        for (; n >= POWERS; n -= POWERS, from += POWERS, out += POWERS) {                     \
            _Pragma("omp simd")                                                               \
            for (int i = 0; i < POWERS; i++) {                                                \
                const real x = from[i];                                                       \
                powers[i] = POWER;                                                            \
            }                                                                                 \
            exps(powers, powers, POWERS);                                                     \
            _Pragma("omp simd")                                                               \
            for (int i = 0; i < POWERS; i++) {                                                \
                const real x = from[i], e = powers[i];                                        \
                out[i] = VALUE;                                                               \
            }                                                                                 \
        }                                                                                     \
        _Pragma("omp simd")                                                                   \
        for (int64_t i = 0; i < n; i++) out[i] = f_##ONE(from[i]);                            \
    }

WITH_POWER(sigmoid, sigmoids, -f_abs(x), (x >= 0 ? 1 : e) / (1 + e))
WITH_POWER(logsigmoid, logsigmoids, -f_abs(x), f_min(x, 0) - log_above_one(e))
WITH_POWER(softplus, softpluses, -f_abs(x), f_max(x, 0) + log_above_one(e))
WITH_POWER(silu, silus, -f_abs(x), x * ((x >= 0 ? 1 : e) / (1 + e)))
WITH_POWER(elu1, elu1s, f_min(x, 0), f_max(x, 0) + e)

INLINE real f_tanh(real x) {
    const real e = fallen(-2 * f_abs(x));
    return LIBM(copysign)(e / (e + 2), x);
}

INLINE real f_elu(real x) {
    return x > 0 ? x : fallen(x);
}

INLINE real f_logaddexp(real a, real b) {
    const real apart = a == b ? 0 : f_abs(a - b);
    return f_max(a, b) + log_above_one(f_exp(-apart));
}

INLINE real f_erf(real x) {
    return LIBM(erf)(x);
}

INLINE real f_gelu(real x) {
    return x * ((real)0.5 + (real)0.5 * f_erf(x * (real)0.70710678118654752));
}

INLINE real f_sin(real x) {
    return LIBM(sin)(x);
}

INLINE real f_cos(real x) {
    return LIBM(cos)(x);
}

INLINE real f_pow(real x, real p) {
    return LIBM(pow)(x, p);
}

/* a modulo b, with the sign of b. */
INLINE real f_mod(real a, real b) {
    const real rest = LIBM(fmod)(a, b);
    if (rest == 0) return LIBM(copysign)(0, b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
}
