/* What one thread of this machine does in a second, each the best of several tries: multiplies and
   adds of float in registers, exps by a polynomial, bytes read and written in a buffer. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES (BYTES / 4)
#define CHAINS 12
#define TRIES 12
typedef float vec __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(BYTES), aligned(4), may_alias));

static double seconds(int wall) {
    struct timespec t;
    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

double fma_rate(int wall) {
    vec a[CHAINS], b, c;
    for (int l = 0; l < LANES; l++) {
        b[l] = 1.0000001f;
        c[l] = 1e-9f;
    }
    for (int j = 0; j < CHAINS; j++) a[j] = b * (float)j;
    const int64_t turns = 300000;
    double best = 0;
    for (int try = 0; try < TRIES; try++) {
        double start = seconds(wall);
        for (int64_t i = 0; i < turns; i++) {
#pragma GCC unroll 12
            for (int j = 0; j < CHAINS; j++) a[j] = a[j] * b + c;
        }
        double rate = turns * 2.0 * CHAINS * LANES / (seconds(wall) - start);
        if (rate > best) best = rate;
    }
    volatile float sink = 0;
    for (int j = 0; j < CHAINS; j++) sink += a[j][0];
    return best;
}

static inline vec exp_of(vec x) {
    const float round = 12582912.0f; /* 1.5 2^23: adding it leaves the nearest whole number */
    vec n = x * 1.44269504f + round;
    ivec bits = (ivec)n << 23;
    n = n - round;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec y = r * 1.98756912e-4f + 1.39819994e-3f;
    y = y * r + 8.33345200e-3f;
    y = y * r + 4.16657962e-2f;
    y = y * r + 1.66666651e-1f;
    y = y * r + 5.00000012e-1f;
    y = y * r * r + r + 1.0f;
    return (vec)((ivec)y + bits);
}

double exp_rate(int wall) {
    enum { COUNT = 2048 };
    static _Thread_local float x[COUNT], y[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = -(float)(i % 97) / 16;
    const int64_t turns = 1500;
    double best = 0;
    for (int try = 0; try < TRIES; try++) {
        double start = seconds(wall);
        for (int64_t i = 0; i < turns; i++) {
            for (int j = 0; j < COUNT; j += LANES) *(vec *)(y + j) = exp_of(*(vec *)(x + j));
            __asm__ volatile("" ::: "memory");
        }
        double rate = turns * (double)COUNT / (seconds(wall) - start);
        if (rate > best) best = rate;
    }
    return best;
}

/* Bytes a second, read and written ones together; 0 where there is no memory for it. */
double byte_rate(int64_t bytes, int wall) {
    int64_t count = bytes / 4 / LANES * LANES;
    float *x = malloc(count * 4 + BYTES);
    if (!x) return 0;
    memset(x, 0, count * 4);
    int64_t turns = 1 + (8 << 20) / bytes;
    double best = 0;
    for (int try = 0; try < TRIES; try++) {
        double start = seconds(wall);
        for (int64_t i = 0; i < turns; i++) {
            for (int64_t j = 0; j < count; j += LANES) *(vec *)(x + j) = *(vec *)(x + j) * 1.0000001f;
            __asm__ volatile("" ::: "memory");
        }
        double rate = turns * 8.0 * count / (seconds(wall) - start);
        if (rate > best) best = rate;
    }
    free(x);
    return best;
}
