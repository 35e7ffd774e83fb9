/* Recurrences along time that go entry by entry: tiles of factors and of what is added in, the state
   of every token out. Strides are {token, row, column} in elements, the column's 0 or 1. */

enum { TROPICAL_MAX, TROPICAL_MIN, TROPICAL_LOGADDEXP };

/* out = a before + b over a row of D columns; a stride of 0 repeats one number. */
static inline void scan_row(real *out, int64_t D, const real *a, int64_t ac, const real *before, int64_t hc, const real *b,
                            int64_t bc) {
    if (ac == 1 && hc == 1 && bc == 1) {
#pragma omp simd
        for (int64_t d = 0; d < D; d++) out[d] = a[d] * before[d] + b[d];
    } else if (ac == 0 && hc == 1 && bc == 1) {
        const real factor = a[0];
#pragma omp simd
        for (int64_t d = 0; d < D; d++) out[d] = factor * before[d] + b[d];
    } else if (ac == 1 && hc == 1 && bc == 0) {
        const real more = b[0];
#pragma omp simd
        for (int64_t d = 0; d < D; d++) out[d] = a[d] * before[d] + more;
    } else {
#pragma omp simd
        for (int64_t d = 0; d < D; d++) out[d] = a[d * ac] * before[d * hc] + b[d * bc];
    }
}

/* Whether rows of D columns follow each other as one long row, so that R of them are one. */
static inline int one_row(const int64_t *s, int64_t D) {
    return s[1] == D * s[2];
}

/* h[t] = a[t] h[t-1] + b[t] from h = start before the first: h [C][R][D]. */
static DEVICE void scan(real *h, int64_t C, int64_t R, int64_t D, const real *a, const int64_t as[3], const real *b,
                        const int64_t bs[3], const real *start, const int64_t ss[2]) {
    const int64_t first[3] = {0, ss[0], ss[1]}, wide = R * D;
    const int one = one_row(as, D) && one_row(bs, D) && one_row(first, D);
    const int64_t rows = one ? 1 : R, columns = one ? wide : D;
    for (int64_t t = 0; t < C; t++)
        for (int64_t r = 0; r < rows; r++) {
            real *out = h + t * wide + r * D;
            const real *before = t ? out - wide : start + r * ss[0];
            scan_row(out, columns, a + t * as[0] + r * as[1], as[2], before, t ? 1 : ss[1], b + t * bs[0] + r * bs[1], bs[2]);
        }
}

/* h[t] = a[t+1] h[t+1] + b[t] from h = 0 behind the end, the adjoint of `scan`: h [C][R][D]. */
static DEVICE void scan_back(real *h, int64_t C, int64_t R, int64_t D, const real *a, const int64_t as[3], const real *b,
                             const int64_t bs[3]) {
    const int64_t wide = R * D;
    const int one = one_row(as, D) && one_row(bs, D);
    const int64_t rows = one ? 1 : R, columns = one ? wide : D;
    for (int64_t t = C - 1; t >= 0; t--)
        for (int64_t r = 0; r < rows; r++) {
            real *out = h + t * wide + r * D;
            const real *added = b + t * bs[0] + r * bs[1];
            if (t + 1 < C)
                scan_row(out, columns, a + (t + 1) * as[0] + r * as[1], as[2], out + wide, 1, added, bs[2]);
            else
                for (int64_t d = 0; d < columns; d++) out[d] = added[d * bs[2]];
        }
}

/* m[t] = op(m[t-1] + f[t], i[t]) from m = i at the first: all [C][D]. */
static DEVICE void tropical(real *m, int op, int64_t C, int64_t D, const real *f, const real *i) {
    memmove(m, i, (size_t)D * sizeof(real));
    for (int64_t t = 1; t < C; t++) {
        const real *before = m + (t - 1) * D, *grown = f + t * D, *in = i + t * D;
        real *out = m + t * D;
        if (op == TROPICAL_MAX) {
#pragma omp simd
            for (int64_t d = 0; d < D; d++) out[d] = f_max(before[d] + grown[d], in[d]);
        } else if (op == TROPICAL_MIN) {
#pragma omp simd
            for (int64_t d = 0; d < D; d++) out[d] = f_min(before[d] + grown[d], in[d]);
        } else {
#pragma omp simd
            for (int64_t d = 0; d < D; d++) out[d] = f_logaddexp(before[d] + grown[d], in[d]);
        }
    }
}

/* Sums over the tokens up to each: out and a [C][D]. */
static DEVICE void running(real *out, const real *a, int64_t C, int64_t D) {
    memmove(out, a, (size_t)D * sizeof(real));
    for (int64_t t = 1; t < C; t++) {
        const real *before = out + (t - 1) * D, *more = a + t * D;
        real *sum = out + t * D;
#pragma omp simd
        for (int64_t d = 0; d < D; d++) sum[d] = before[d] + more[d];
    }
}

/* n states at once, each [C][D], a[i n + j] [C][D] the entries of a matrix for each token: h_i[t] = sum_j a_ij[t] h_j[t-1] +
   b_i[t]; back, the adjoint: h_j[t] = sum_i a_ij[t+1] h_i[t+1] + b_j[t]. */
static DEVICE void chain_parts(real *const h[], const real *const a[], const real *const b[], int64_t n, int back, int64_t C,
                               int64_t D) {
    for (int64_t step = 0; step < C; step++) {
        const int64_t t = back ? C - 1 - step : step, from = back ? t + 1 : t - 1, at = back ? t + 1 : t;
        for (int64_t i = 0; i < n; i++) {
            real *out = h[i] + t * D;
            if (out != b[i] + t * D) memcpy(out, b[i] + t * D, (size_t)D * sizeof(real));
            for (int64_t j = 0; step && j < n; j++) {
                const real *factor = a[back ? j * n + i : i * n + j] + at * D, *other = h[j] + from * D;
#pragma omp simd
                for (int64_t d = 0; d < D; d++) out[d] += factor[d] * other[d];
            }
        }
    }
}
