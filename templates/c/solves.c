/* Unit lower triangular systems of a chunk's tokens in, their inverses and solutions out; and dense
   systems by elimination. Triangular ones go by blocks of rows: gemm_exact brings in the rows that are
   solved already, substitution the rows of the block. No power of a is formed. */

enum { SOLVED = 8, INVERTED = 16 };

/* Row i of the inverse is that of the identity less a's factors times the rows before it. */
static inline void inverse_rows(real *out, const real *a, int64_t C, int64_t from, int64_t n) {
    enum { PARTS = INVERTED / LANES };
    real known[INVERTED][INVERTED];
    for (int64_t i = 0; i < n; i++) {
        const real *factors = a + (from + i) * C + from;
        vec even[PARTS], odd[PARTS];
        UNROLL for (int v = 0; v < PARTS; v++) even[v] = odd[v] = (vec){0};
        for (int64_t j = 0; j < i; j += 2)
            UNROLL for (int v = 0; v < PARTS; v++) {
                even[v] -= factors[j] * *(const vec *)(known[j] + v * LANES);
                if (j + 1 < i) odd[v] -= factors[j + 1] * *(const vec *)(known[j + 1] + v * LANES);
            }
        UNROLL for (int v = 0; v < PARTS; v++) *(vec *)(known[i] + v * LANES) = even[v] + odd[v];
        known[i][i] = 1;
        for (int64_t s = i + 1; s < INVERTED; s++) known[i][s] = 0; /* a factor may be infinite */
        memcpy(out + (from + i) * C + from, known[i], (size_t)n * sizeof(real));
    }
}

static UNUSED int64_t inverse_room(int64_t C) {
    return C * C;
}

/* (I + strict lower of a)^-1: [C][C]. Below two inverted blocks X and Y on the diagonal it is -Y B X. */
static DEVICE void inverse(real *out, const real *a, int64_t C, real *w) {
    memset(out, 0, (size_t)(C * C) * sizeof(real));
    for (int64_t from = 0; from < C; from += INVERTED) inverse_rows(out, a, C, from, least(INVERTED, C - from));
    for (int64_t m = INVERTED; m < C; m *= 2)
        for (int64_t left = 0; left + m < C; left += 2 * m) {
            const int64_t right = left + m, n = least(m, C - right), below = right * C + left;
            gemm_exact(n, m, m, a + below, C, 1, out + left * C + left, C, 1, w, m, 1, WHOLE, 0);
#pragma omp simd
            for (int64_t i = 0; i < n * m; i++) w[i] = -w[i];
            gemm_exact(n, m, n, out + right * C + right, C, 1, w, m, 1, out + below, C, 1, LOWER_A, 0);
        }
}

static UNUSED int64_t solve_parts_room(int64_t n, int64_t C, int64_t D) {
    (void)n, (void)C;
    return SOLVED * D;
}

/* x -= factor y over D channels. */
static inline void less(real *restrict x, real factor, const real *restrict y, int64_t D) {
#pragma omp simd
    for (int64_t d = 0; d < D; d++) x[d] -= factor * y[d];
}

/* n unknowns a token, x[i] and r[i] [C][D], that see every unknown of the tokens before by a[i n + j] [C][C]:
   x_i[t] + sum_j sum_{s < t} a_ij[t, s] x_j[s] = r_i[t]; transposed: + sum_{s > t} a_ji[s, t] x_j[s]. */
static DEVICE void solve_parts(real *const x[], const real *const a[], const real *const r[], int64_t n, int transposed, int64_t C,
                               int64_t D, real *w) {
    const int64_t blocks = (C + SOLVED - 1) / SOLVED, across = transposed ? C : 1, down = transposed ? 1 : C;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t from = (transposed ? blocks - 1 - b : b) * SOLVED, rows = least(SOLVED, C - from);
        const int64_t known = transposed ? from + rows : 0, count = transposed ? C - known : from;
        for (int64_t i = 0; i < n; i++) {
            real *here = x[i] + from * D;
            memmove(here, r[i] + from * D, (size_t)(rows * D) * sizeof(real));
            if (!count) continue;
            for (int64_t j = 0; j < n; j++)
                gemm_exact(rows, D, count, a[transposed ? j * n + i : i * n + j] + from * down + known * across, down, across,
                     x[j] + known * D, D, 1, w, D, 1, WHOLE, j > 0);
#pragma omp simd
            for (int64_t d = 0; d < rows * D; d++) here[d] -= w[d];
        }
        for (int64_t step = 1; step < rows; step++)
            for (int64_t i = 0; i < n; i++) {
                const int64_t t = transposed ? from + rows - 1 - step : from + step;
                for (int64_t j = 0; j < n; j++)
                    for (int64_t back = step; back > 0; back--) {
                        const int64_t s = transposed ? t + back : t - back;
                        less(x[i] + t * D, a[transposed ? j * n + i : i * n + j][t * down + s * across], x[j] + s * D, D);
                    }
            }
    }
}

static UNUSED int64_t solve_room(int64_t C, int64_t D) {
    return solve_parts_room(1, C, D);
}

/* x [C][D] of (I + strict lower of a) x = r, or of its transpose; x may be r. */
static DEVICE void solve(real *x, const real *a, const real *r, int64_t C, int64_t D, int transposed, real *w) {
    solve_parts(&x, &a, &r, 1, transposed, C, D, w);
}

static UNUSED int64_t dense_solve_room(int64_t n, int64_t m) {
    (void)m;
    return n * n;
}

/* x [n][m] of a [n][n] x = b [n][m], by elimination with the largest pivot; NaN where a is singular. */
static DEVICE void dense_solve(real *x, const real *a, const real *b, int64_t n, int64_t m, real *w) {
    memcpy(w, a, (size_t)(n * n) * sizeof(real));
    memmove(x, b, (size_t)(n * m) * sizeof(real));
    for (int64_t i = 0; i < n; i++) {
        int64_t pivot = i;
        for (int64_t k = i + 1; k < n; k++)
            if (fabs((double)w[k * n + i]) > fabs((double)w[pivot * n + i])) pivot = k;
        if (w[pivot * n + i] == 0) {
            for (int64_t k = 0; k < n * m; k++) x[k] = (real)NAN;
            return;
        }
        for (int64_t k = 0; pivot != i && k < n; k++) {
            const real swapped = w[i * n + k];
            w[i * n + k] = w[pivot * n + k], w[pivot * n + k] = swapped;
        }
        for (int64_t k = 0; pivot != i && k < m; k++) {
            const real swapped = x[i * m + k];
            x[i * m + k] = x[pivot * m + k], x[pivot * m + k] = swapped;
        }
        for (int64_t k = i + 1; k < n; k++) {
            const real factor = w[k * n + i] / w[i * n + i];
            less(w + k * n + i, factor, w + i * n + i, n - i);
            less(x + k * m, factor, x + i * m, m);
        }
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < n; k++) less(x + i * m, w[i * n + k], x + k * m, m);
        const real scale = 1 / w[i * n + i];
        for (int64_t k = 0; k < m; k++) x[i * m + k] *= scale;
    }
}
