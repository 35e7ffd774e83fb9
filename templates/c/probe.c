/* Sizes in, seconds of nothing but work out: what `lacc calibrate` times, built from the same pieces as
   every kernel. Each repeats one piece of work so often that the call into it does not count. */

#define AGAIN __asm__ volatile("" ::: "memory") /* memory may have changed: do it once more */

/* c [m][n] = a [m][k] b [k][n] */
void probe_products(int64_t m, int64_t n, int64_t k, const real *a, const real *b, real *c, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        gemm(m, n, k, a, k, 1, b, n, 1, c, n, 1, WHOLE, 0);
        AGAIN;
    }
}

void probe_exp(int64_t n, const real *a, real *c, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) c[j] = f_exp(a[j]);
        AGAIN;
    }
}

void probe_mul(int64_t n, const real *a, const real *b, real *c, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) c[j] = a[j] * b[j];
        AGAIN;
    }
}

void probe_copy(int64_t n, const real *a, real *c, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        memcpy(c, a, (size_t)n * sizeof(real));
        AGAIN;
    }
}

/* the way of a small array into a tile: what a function on tiles takes, whatever its size */
void probe_call(real *out, float *rows, int64_t times) {
    const lacc_array x = {.data = rows, .token = 2 * LANES, .dtype = LACC_F32};
    for (int64_t i = 0; i < times; i++) {
        load_tile(out, &x, 0, 0, 0, 16, LANES);
        AGAIN;
    }
}
