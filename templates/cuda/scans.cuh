/* Recurrences along time that go entry by entry: tiles of factors and of what is added in, the state
   of every token out; a thread for each channel. Strides are {token, row, column} in entries. */

enum { TROPICAL_MAX, TROPICAL_MIN, TROPICAL_LOGADDEXP };

/* h[t] = a[t] h[t-1] + b[t] from h = start before the first: h [C][R][D]. */
DEVICE void scan(real *h, int C, int R, int D, const real *a, const int64_t (&as)[3], const real *b, const int64_t (&bs)[3],
                 const real *start, const int64_t (&ss)[2]) {
    for (int i = threadIdx.x; i < R * D; i += THREADS) {
        const int r = i / D, d = i % D;
        const real *factor = a + r * as[1] + d * as[2], *more = b + r * bs[1] + d * bs[2];
        real state = start[r * ss[0] + d * ss[1]];
        for (int t = 0; t < C; t++) {
            state = factor[t * as[0]] * state + more[t * bs[0]];
            h[t * R * D + i] = state;
        }
    }
}

/* h[t] = a[t+1] h[t+1] + b[t] from h = 0 behind the end, the adjoint of `scan`: h [C][R][D]. */
DEVICE void scan_back(real *h, int C, int R, int D, const real *a, const int64_t (&as)[3], const real *b,
                      const int64_t (&bs)[3]) {
    for (int i = threadIdx.x; i < R * D; i += THREADS) {
        const int r = i / D, d = i % D;
        const real *factor = a + r * as[1] + d * as[2], *more = b + r * bs[1] + d * bs[2];
        real state = 0;
        for (int t = C - 1; t >= 0; t--) {
            state = (t + 1 < C ? factor[(t + 1) * as[0]] * state : R(0)) + more[t * bs[0]];
            h[t * R * D + i] = state;
        }
    }
}

/* m[t] = op(m[t-1] + f[t], i[t]) from m = i at the first: all [C][D]. */
DEVICE void tropical(real *m, int op, int C, int D, const real *f, const real *i) {
    for (int d = threadIdx.x; d < D; d += THREADS) {
        real state = i[d];
        m[d] = state;
        for (int t = 1; t < C; t++) {
            const real grown = state + f[t * D + d], in = i[t * D + d];
            state = op == TROPICAL_MAX ? f_max(grown, in) : op == TROPICAL_MIN ? f_min(grown, in) : f_logaddexp(grown, in);
            m[t * D + d] = state;
        }
    }
}

/* Sums over the tokens up to each: out and a [C][D]. */
DEVICE void running(real *out, const real *a, int C, int D) {
    for (int d = threadIdx.x; d < D; d += THREADS) {
        real sum = 0;
        for (int t = 0; t < C; t++) {
            sum += a[t * D + d];
            out[t * D + d] = sum;
        }
    }
}

/* n states at once, each [C][D], a[i n + j] [C][D] the entries of a matrix for each token: h_i[t] = sum_j a_ij[t] h_j[t-1] +
   b_i[t]; back, the adjoint: h_j[t] = sum_i a_ij[t+1] h_i[t+1] + b_j[t]. */
template <int n>
DEVICE void chain_parts(real *const (&h)[n], const real *const (&a)[n * n], const real *const (&b)[n], int, int back, int C, int D) {
    for (int d = threadIdx.x; d < D; d += THREADS) {
        real state[n], next[n];
        for (int step = 0; step < C; step++) {
            const int t = back ? C - 1 - step : step, at = (back ? t + 1 : t) * D + d;
#pragma unroll
            for (int i = 0; i < n; i++) {
                next[i] = b[i][t * D + d];
#pragma unroll
                for (int j = 0; step && j < n; j++) next[i] += a[back ? j * n + i : i * n + j][at] * state[j];
            }
#pragma unroll
            for (int i = 0; i < n; i++) h[i][t * D + d] = state[i] = next[i];
        }
    }
}
