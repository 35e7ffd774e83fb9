/* Decays of a chunk in, as logs or as factors of any sign: products over contiguous runs of its tokens
   out. P[t, s] is the product of the factors of the tokens after s up to t (before t where strict).
   No quotient and no difference of running sums is formed, so that a factor of 0 is exact and nothing
   overflows that the result does not. Kept are the factors, and the totals of whole runs of LEAF, 2
   LEAF, 4 LEAF, ... tokens; up multiplies a run of m from its start to a token, down from after a token
   to its end: the factors of the token's leaf and a total for each length up to m. With t in the right
   and s in the left one of two neighbours P[t, s] = up[t] down[s]. */

enum { LEAF = 8 };

typedef struct {
    int C, D, log, strict, paired;
    const real *f; /* factors [C][D] */
    real *totals;  /* whole runs of LEAF, 2 LEAF, ... tokens, the last of them all: [runs][D] */
    real *pairs;   /* P [C][C] of one decay a token, once it was asked for */
} levels_t;

ROOM int runs_of(int C, int m) {
    return (C + m - 1) / m;
}

ROOM int all_runs(int C) {
    int count = 1;
    for (int m = LEAF; m < C; m *= 2) count += runs_of(C, m);
    return count;
}

/* Lengths of runs that meet: LEAF, 2 LEAF, ... below C. */
ROOM int lengths(int C) {
    int count = 0;
    for (int m = LEAF; m < C; m *= 2) count++;
    return count;
}

ROOM int64_t levels_room(int64_t C, int64_t D) {
    return (C + all_runs(C)) * D + (D == 1 ? (C + 2 * lengths(C)) * C : 0);
}

/* The runs of decays g [C][D], logs or factors; w stays with d. From logs a total is the exp of a sum,
   so that slow decays keep their digits. */
DEVICE void levels(levels_t *d, const real *g, int C, int D, int log, int strict, real *w) {
    const int leaves = runs_of(C, LEAF) * D, many = all_runs(C) * D;
    real *f = w + many;
    d->C = C, d->D = D, d->log = log, d->strict = strict, d->paired = 0;
    d->f = log ? f : g, d->totals = w, d->pairs = f + C * D;
    for (int i = threadIdx.x; log && i < C * D; i += THREADS) f[i] = f_exp(g[i]);
    for (int i = threadIdx.x; i < leaves; i += THREADS) {
        const int from = i / D * LEAF;
        real total = g[from * D + i % D];
        for (int t = from + 1; t < least(from + LEAF, C); t++) {
            const real own = g[t * D + i % D];
            total = log ? total + own : total * own;
        }
        w[i] = total;
    }
    barrier();
    for (int i = leaves + threadIdx.x; i < many; i += THREADS) { /* i - first: of the runs of m tokens */
        int m = 2 * LEAF, first = leaves;
        for (; i >= first + runs_of(C, m) * D; m *= 2) first += runs_of(C, m) * D;
        const int from = (i - first) / D * (m / LEAF), k = i % D;
        real total = w[from * D + k];
        for (int r = from + 1; r < least(from + m / LEAF, runs_of(C, LEAF)); r++)
            total = log ? total + w[r * D + k] : total * w[r * D + k];
        w[i] = log ? f_exp(total) : total;
    }
    if (!log) return;
    barrier();
    for (int i = threadIdx.x; i < leaves; i += THREADS) w[i] = f_exp(w[i]);
}

/* The totals of runs of m tokens [runs][D]. */
INLINE const real *totals_of(const levels_t &d, int m) {
    const real *total = d.totals;
    for (int n = LEAF; n < m; n *= 2) total += runs_of(d.C, n) * d.D;
    return total;
}

/* The product of what lies between a token's leaf and the start (the end where `after`) of its run of m. */
INLINE real edge(const levels_t &d, int t, int k, int m, bool after) {
    const real *total = d.totals + k;
    real x = 1;
    for (int n = LEAF; n < m; total += runs_of(d.C, n) * d.D, n *= 2) {
        const int run = t / n, beside = after ? run + 1 : run - 1;
        if ((run & 1) != after && beside * n < d.C) x *= total[beside * d.D];
    }
    return x;
}

INLINE real up(const levels_t &d, int t, int k, int m) {
    real x = edge(d, t, k, m, false);
    for (int s = t / LEAF * LEAF; s < t + 1 - d.strict; s++) x *= d.f[s * d.D + k];
    return x;
}

INLINE real down(const levels_t &d, int t, int k, int m) {
    real x = 1;
    for (int s = least(t / LEAF * LEAF + LEAF, d.C) - 1; s > t; s--) x *= d.f[s * d.D + k];
    return x * edge(d, t, k, m, true);
}

/* The product from the chunk's start to each token [C][D]. */
DEVICE void prefix(real *out, const levels_t *d) {
    for (int i = threadIdx.x; i < d->C * d->D; i += THREADS) out[i] = up(*d, i / d->D, i % d->D, d->C);
}

/* The product after each token to the chunk's end [C][D]. */
DEVICE void suffix(real *out, const levels_t *d) {
    for (int i = threadIdx.x; i < d->C * d->D; i += THREADS) out[i] = down(*d, i / d->D, i % d->D, d->C);
}

/* The product of the whole chunk [D]. */
DEVICE void whole(real *out, const levels_t *d) {
    copy(out, d->totals + (all_runs(d->C) - 1) * d->D, d->D);
}

/* P [C][C] of one decay a token, 0 where t does not see s: there for all threads. */
DEVICE const real *pairs_of(levels_t *d) {
    const int C = d->C;
    if (d->paired) return d->pairs;
    d->paired = 1;
    real *const ups = d->pairs + C * C, *const downs = ups + lengths(C) * C;
    for (int i = threadIdx.x; i < lengths(C) * C; i += THREADS) {
        ups[i] = up(*d, i % C, 0, LEAF << i / C);
        downs[i] = down(*d, i % C, 0, LEAF << i / C);
    }
    barrier();
    for (int i = threadIdx.x; i < C * C; i += THREADS) {
        const int t = i / C, s = i % C;
        real x = s + d->strict <= t;
        if (t / LEAF == s / LEAF) {
            for (int u = s + 1; u < t + 1 - d->strict; u++) x *= d->f[u];
        } else if (s < t) {
            int level = 0;
            while (t / (2 * LEAF << level) != s / (2 * LEAF << level)) level++;
            x = ups[level * C + t] * downs[level * C + s];
        }
        d->pairs[i] = x;
    }
    barrier();
    return d->pairs;
}

DEVICE void matrix(real *out, levels_t *d) {
    copy(out, pairs_of(d), d->C * d->C);
}
