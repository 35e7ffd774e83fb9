/* Cotangents of what decays.c computes. Sums of products only, as accurate as their terms: what
   comes back to the factor of a token is summed over the pairs of tokens around it. */

/* Adds to dg what comes back through `up` of the run of tokens from .. end - 1, of cotangents ct; sum: scratch [D]. Nothing
   but sums of products: from logs of ct up, from factors of ct times the factors before and after each. */
static void up_pull(real *dg, const real *ct, const real *up, int64_t from, int64_t end, const levels_t *d, real *sum) {
    const int64_t D = d->D;
    fill(sum, 0, D);
    for (int64_t t = end - 1, seen = t + d->strict; t >= from; t--, seen--) {
        if (seen >= end) continue;
        const real *own = ct + seen * D, *here = up + seen * D, *next = d->f + (seen + 1 < end ? t + 1 : t) * D;
        const real *before = t == from ? here : here - D;
        real *out = dg + t * D;
        if (d->log) {
#pragma omp simd
            for (int64_t k = 0; k < D; k++) sum[k] += own[k] * here[k], out[k] += sum[k];
            continue;
        }
#pragma omp simd
        for (int64_t k = 0; k < D; k++) sum[k] = sum[k] * next[k] + own[k];
#pragma omp simd
        for (int64_t k = 0; k < D; k++) out[k] += t == from ? sum[k] : sum[k] * before[k];
    }
}

/* The same of `down`, where that of s holds the factors of the tokens after s. */
static void down_pull(real *dg, const real *ct, const real *down, int64_t from, int64_t end, const levels_t *d, real *sum) {
    const int64_t D = d->D;
    fill(sum, 0, D);
    for (int64_t t = from + 1; t < end; t++) {
        const real *own = ct + (t - 1) * D, *here = down + (t - 1) * D, *last = d->f + (t - 1) * D, *behind = down + t * D;
        real *out = dg + t * D;
        if (d->log) {
#pragma omp simd
            for (int64_t k = 0; k < D; k++) sum[k] += own[k] * here[k], out[k] += sum[k];
        } else {
#pragma omp simd
            for (int64_t k = 0; k < D; k++) sum[k] = sum[k] * last[k] + own[k], out[k] += sum[k] * behind[k];
        }
    }
}

static UNUSED int64_t prefix_pull_room(int64_t C, int64_t X) {
    return (C + 1) * X;
}

static DEVICE void prefix_pull(real *dg, const real *ct, const levels_t *d, real *w) {
    prefix(w, d);
    fill(dg, 0, d->C * d->D);
    up_pull(dg, ct, w, 0, d->C, d, w + d->C * d->D);
}

static UNUSED int64_t suffix_pull_room(int64_t C, int64_t X) {
    return (C + 1) * X;
}

static DEVICE void suffix_pull(real *dg, const real *ct, const levels_t *d, real *w) {
    suffix(w, d);
    fill(dg, 0, d->C * d->D);
    down_pull(dg, ct, w, 0, d->C, d, w + d->C * d->D);
}

static UNUSED int64_t whole_pull_room(int64_t C, int64_t X) {
    return (C + 1) * X;
}

/* ct [D]: each factor's cotangent holds the factors before and after it. */
static DEVICE void whole_pull(real *dg, const real *ct, const levels_t *d, real *w) {
    const int64_t C = d->C, D = d->D;
    if (d->log) {
        whole(w, d);
        for (int64_t t = 0; t < C; t++) times(dg + t * D, ct, w, D);
        return;
    }
    copy(w, ct, D);
    for (int64_t t = 1; t < C; t++) times(w + t * D, w + (t - 1) * D, d->f + (t - 1) * D, D);
    suffix(dg, d);
    times(dg, dg, w, C * D);
}

static UNUSED int64_t matrix_pull_room(int64_t C, int64_t X) {
    return C * X;
}

/* dg [C][1] from ct [C][C] of P. */
static DEVICE void matrix_pull(real *dg, const real *ct, levels_t *d, real *w) {
    const int64_t C = d->C, late = d->strict;
    const real *p = pairs_of(d);
    fill(w, 0, C);
    for (int64_t t = C - 1; t >= 0; t--) { /* w[s]: what comes back to t from the pairs (t.., s) */
        const int64_t seen = t + late;
        const real *own = ct + seen * C, *here = p + seen * C, *before = t ? here - C : here;
        const real next = t + 1 < C ? d->f[t + 1] : 0;
        real sum = 0;
        if (seen < C && d->log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t s = 0; s < t; s++) w[s] += own[s] * here[s], sum += w[s];
        } else if (seen < C) {
#pragma omp simd reduction(+ : sum)
            for (int64_t s = 0; s < t; s++) w[s] = w[s] * next + own[s], sum += w[s] * before[s];
        }
        dg[t] = sum;
    }
}

/* dx, dy, dg of `gram` within runs of LEAF tokens. */
static void leaves_pull(real *dx, real *dy, real *dg, const real *ct, const real *x, const real *y, const levels_t *d) {
    const int64_t C = d->C, D = d->D, late = d->strict;
    for (int64_t from = 0; from < C; from += LEAF) {
        const int64_t all = least(LEAF, C - from), n = all - late;
        real block[LEAF][LEAF];
        leaf_block(block, ct + from * C + from, all, late, C);
        if (late) fill(dx + from * D, 0, D);
        for (int64_t k = 0; k < D; k += LANES) {
            vec f[LEAF], xs[LEAF], ys[LEAF], xd[LEAF] = {0}, yd[LEAF], fd[LEAF] = {0};
            leaf_rows(f, d->f + from * D, n, D, k);
            leaf_rows(xs, x + (from + late) * D, n, D, k);
            leaf_rows(ys, y + from * D, n, D, k);
            UNROLLED
            for (int s = 0; s < LEAF; s++) {
                vec w[LEAF], back = {0};
                w[s] = ys[s];
                xd[s] += block[s][s] * w[s];
                for (int t = s + 1; t < LEAF; t++) w[t] = w[t - 1] * f[t], xd[t] += block[t][s] * w[t];
                for (int t = LEAF - 1; t > s; t--) {
                    back += block[t][s] * xs[t];
                    fd[t] += back * w[t - 1];
                    back *= f[t];
                }
                yd[s] = back + block[s][s] * xs[s];
            }
            for (int t = 0; d->log && t < LEAF; t++) fd[t] *= f[t];
            put_rows(dx + (from + late) * D, xd, n, D, k);
            put_rows(dy + from * D, yd, all, D, k);
            put_rows(dg + from * D, fd, all, D, k);
        }
    }
}

static UNUSED int64_t meet_pull_room(int64_t C, int64_t X) {
    return 7 * C * X + X + 2 * C * C + C;
}

/* `meet_pull` of one decay a token. */
static void meet_pull_one(real *dx, real *dy, real *dg, const real *ct, const real *x, const real *y, int64_t X, levels_t *d,
                          real *w) {
    const int64_t C = d->C;
    if (dx || dy) times(w, ct, pairs_of(d), C * C);
    if (dx) gemm(C, X, C, w, C, 1, y, X, 1, dx, X, 1, LOWER_A, 0);
    if (dy) gemm(C, X, C, w, 1, C, x, X, 1, dy, X, 1, UPPER_A, 0);
    if (!dg) return;
    real *one = w + C * C;
    gemm(C, C, X, x, X, 1, y, 1, X, w, C, 1, LOWER_OUT, 0);
    times(w, w, ct, C * C);
    matrix_pull(one, w, d, one + C);
    fill(dg, 0, C * X);
    for (int64_t t = 0; t < C; t++) dg[t * X] = one[t];
}

/* Cotangents of x, y and the decays [C][X] from that of A of `meet`; results may be NULL. For one decay a token it is dg's sum over
   channels that counts: it stands in the first of them. */
static DEVICE void meet_pull(real *dx, real *dy, real *dg, const real *ct, const real *x, const real *y, int64_t X, levels_t *d,
                             real *w) {
    const int64_t C = d->C, D = d->D, size = C * D;
    if (D == 1) {
        meet_pull_one(dx, dy, dg, ct, x, y, X, d, w);
        return;
    }
    real *met = w + 2 * size, *back = met + size, *sum = back + size;
    const real *up = d->up, *down = d->down;
    dx = dx ? dx : sum + D, dy = dy ? dy : sum + D + size;
    const int pulled = dg != NULL;
    dg = dg ? dg : sum + D + 2 * size;
    leaves_pull(dx, dy, dg, ct, x, y, d);
    const real *totals = d->totals;
    for (int64_t m = LEAF; m < C; totals += runs_of(C, m) * D, m *= 2) {
        for (int64_t left = 0; left + m < C; left += 2 * m) {
            const int64_t right = left + m, n = least(m, C - right), l = left * D, r = right * D;
            const real *block = ct + right * C + left;
            times(met + l, y + l, down + l, m * D), times(met + r, x + r, up + r, n * D);
            gemm(n, D, m, block, C, 1, met + l, D, 1, back + r, D, 1, WHOLE, 0);
            gemm(m, D, n, block, 1, C, met + r, D, 1, back + l, D, 1, WHOLE, 0);
#pragma omp simd
            for (int64_t i = r; i < r + n * D; i++) dx[i] += up[i] * back[i], back[i] *= x[i];
#pragma omp simd
            for (int64_t i = l; i < r; i++) dy[i] += down[i] * back[i], back[i] *= y[i];
            if (pulled) up_pull(dg, back, up, right, right + n, d, sum);
            if (pulled) down_pull(dg, back, down, left, right, d, sum);
        }
        if (2 * m < C) {
            grow(w, up, UP, d, totals, m), grow(w + size, down, DOWN, d, totals, m);
            up = w, down = w + size;
        }
    }
}

static UNUSED int64_t decayed_pull_room(int64_t C, int64_t X) {
    return meet_pull_room(C, X);
}

/* Cotangents of a, y and the decays from that of `decayed`, as those of `meet_pull`. */
static DEVICE void decayed_pull(real *da, real *dy, real *dg, const real *ct, const real *a, const real *y, int64_t X, levels_t *d,
                                real *w) {
    if (da) gram(da, ct, y, X, d, w);
    if (dy || dg) meet_pull(NULL, dy, dg, a, ct, y, X, d, w);
}
