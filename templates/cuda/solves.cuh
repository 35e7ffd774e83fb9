/* Unit lower triangular systems of a chunk's tokens in, their inverses and solutions out; and dense
   systems by elimination. Blocks of 16 rows on the diagonal are inverted by 16 threads each, in
   registers; below two inverted blocks X and Y of the diagonal the inverse is -Y B X. No power of a is
   formed. */

/* Products in solutions keep the digits of float, whatever operands others have. */
enum { SOLVING = PRECISION == PLAIN ? PLAIN : TF32X3 };

ROOM int64_t inverse_room(int64_t C) {
    return C * C;
}

/* Blocks where runs of m rows meet the run before them: of their terms those of one of the two runs. */
struct paired {
    int m;
    bool left;

    __device__ __forceinline__ range operator()(int row) const {
        const int from = row / (2 * m) * (2 * m) + (left ? 0 : m);
        return row & m ? range{from, from + m} : range{from, from};
    }

    __device__ __forceinline__ bool wanted(int row, int column) const {
        return row & m && column / m == row / m - 1;
    }
};

/* (I + strict lower of a)^-1: [C][C]. */
DEVICE void inverse(real *out, const real *a, int C, real *w) {
    for (int i = threadIdx.x; i < whole_units(C); i += THREADS) {
        const int from = i / UNIT * UNIT, column = i % UNIT, rows = least(UNIT, C - from);
        real x[UNIT];
#pragma unroll
        for (int t = 0; t < UNIT; t++) {
            x[t] = t == column;
#pragma unroll
            for (int s = 0; s < t; s++)
                if (t < rows) x[t] -= a[(from + t) * C + from + s] * x[s];
            if (t < rows && column < rows) out[(from + t) * C + i] = x[t];
        }
    }
    for (int i = threadIdx.x; i < C * C; i += THREADS)
        if (i % C / UNIT > i / C / UNIT) out[i] = 0;
    for (int m = UNIT; m < C; m *= 2)
        for (int step = 0; step < 2; step++) { /* w = B X, then -Y w */
            const strided left = {step ? out : a, C, 1}, right = {step ? w : out, 1, C};
            real *const to = step ? out : w;
            barrier();
            product<SOLVING>(C, C, left, right, C, paired{m, step == 0}, [=](int i, int j, real sum) {
                if (i & m && j / m == i / m - 1) to[i * C + j] = step ? -sum : sum;
            });
        }
}

ROOM int64_t solve_room(int64_t C, int64_t D) {
    return inverse_room(C) + C * (C > D ? C : D);
}

/* x [C][D] of (I + strict lower of a) x = r, or of its transpose; x may be r. */
DEVICE void solve(real *x, const real *a, const real *r, int C, int D, int transposed, real *w) {
    real *out = w + C * C;
    inverse(w, a, C, out);
    barrier();
    const int shape = transposed ? UPPER_A : LOWER_A;
    gemm(C, D, C, w, transposed ? 1 : C, transposed ? C : 1, r, D, 1, out, D, 1, shape, 0);
    barrier();
    copy(x, out, C * D);
}

enum { SOLVED = 8 };

ROOM int64_t solve_parts_room(int64_t n, int64_t C, int64_t D) {
    return 0 * n * C * D;
}

/* n unknowns a token, x[i] and r[i] [C][D], that see every unknown of the tokens before by a[i n + j] [C][C]:
   x_i[t] + sum_j sum_{s < t} a_ij[t, s] x_j[s] = r_i[t]; transposed: + sum_{s > t} a_ji[s, t] x_j[s]. */
template <int n>
DEVICE void solve_parts(real *const (&x)[n], const real *const (&a)[n * n], const real *const (&r)[n], int, int transposed, int C,
                        int D, real *) {
    for (int d = threadIdx.x; d < D; d += THREADS)
        for (int step = 0; step < C; step++) {
            const int t = transposed ? C - 1 - step : step;
            for (int i = 0; i < n; i++) {
                real sum = r[i][t * D + d];
                for (int back = step; back > 0; back--) {
                    const int s = transposed ? t + back : t - back;
                    for (int j = 0; j < n; j++)
                        sum -= (transposed ? a[j * n + i][s * C + t] : a[i * n + j][t * C + s]) * x[j][s * D + d];
                }
                x[i][t * D + d] = sum;
            }
        }
}

ROOM int64_t dense_solve_room(int64_t n, int64_t m) {
    return n * n + 0 * m;
}

/* x [n][m] of a [n][n] x = b [n][m], by elimination with the largest pivot; NaN where a is singular. */
DEVICE void dense_solve(real *x, const real *a, const real *b, int n, int m, real *w) {
    copy(w, a, n * n);
    if (x != b) copy(x, b, n * m);
    for (int i = 0; i < n; i++) {
        barrier();
        int pivot = i;
        for (int k = i + 1; k < n; k++)
            if (fabs(w[k * n + i]) > fabs(w[pivot * n + i])) pivot = k;
        const real scale = 1 / w[pivot * n + i];
        barrier();
        for (int k = threadIdx.x; k < n + m && pivot != i; k += THREADS) {
            real *one = k < n ? w + i * n + k : x + i * m + k - n, *other = k < n ? w + pivot * n + k : x + pivot * m + k - n;
            const real swapped = *one;
            *one = *other, *other = swapped;
        }
        barrier();
        for (int k = threadIdx.x; k < (n - i - 1) * (n - i - 1 + m); k += THREADS) {
            const int row = i + 1 + k / (n - i - 1 + m), column = i + 1 + k % (n - i - 1 + m);
            const real factor = w[row * n + i] * scale;
            if (column < n)
                w[row * n + column] -= factor * w[i * n + column];
            else
                x[row * m + column - n] -= factor * x[i * m + column - n];
        }
    } /* the last row has none to eliminate: all are done at its barriers */
    for (int k = threadIdx.x; k < m; k += THREADS)
        for (int i = n - 1; i >= 0; i--) {
            real sum = x[i * m + k];
            for (int j = i + 1; j < n; j++) sum -= w[i * n + j] * x[j * m + k];
            x[i * m + k] = w[i * n + i] == 0 ? R(NAN) : sum / w[i * n + i];
        }
}
