/* Sums over the pairs of tokens of a chunk, each pair weighted by what decays between them. Pairs in
   one run of LEAF tokens multiply factor by factor, the parts of the channels in registers; pairs in
   neighbouring runs are products of what was multiplied by up and by down. */

/* Where tokens of the run see each other in a [C][C], its rows counted from the first that sees any; else 0. */
static inline void leaf_block(real out[LEAF][LEAF], const real *a, int64_t n, int64_t late, int64_t C) {
    memset(out, 0, LEAF * sizeof(out[0]));
    for (int64_t t = 0; t + late < n; t++)
        for (int64_t s = 0; s <= t; s++) out[t][s] = a[(t + late) * C + s];
}

/* Rows of a run of LEAF tokens, `apart`: decays, x and y. */
typedef struct {
    const real *f, *x, *y;
    int64_t apart;
} leaf_t;

/* sums of the pairs of tokens s from `first` to `end` with those of `rows` that see them += one part of the channels. */
INLINE void leaf_pairs(vec sums[FOLDED], const int first, const int end, const int rows, const leaf_t *l, int64_t k) {
    int i = 0;
    UNROLLED
    for (int s = first; s < end; s++) {
        vec w = *(const vec *)(l->y + s * l->apart + k);
        sums[i++] += w * *(const vec *)(l->x + s * l->apart + k);
        UNROLLED
        for (int t = s + 1; t < rows; t++) {
            w *= *(const vec *)(l->f + t * l->apart + k);
            sums[i++] += w * *(const vec *)(l->x + t * l->apart + k);
        }
    }
}

/* A of `gram` for the tokens s from `first` to `end` of a run in which `rows` see any, of which n are
   at hand: a is its first entry. */
INLINE void leaf_columns(real *a, int64_t C, const int first, const int end, const int rows, const leaf_t *l, int64_t n, int64_t D) {
    vec sums[FOLDED];
    real out[FOLDED], *next = out;
    UNROLL for (int i = 0; i < FOLDED; i++) sums[i] = (vec){0};
    int64_t k = 0;
    for (; n == rows && k + LANES <= D; k += LANES) leaf_pairs(sums, first, end, rows, l, k);
    for (; k < D; k += LANES) {
        vec padded[3][LEAF];
        leaf_rows(padded[0], l->f, n, D, k), leaf_rows(padded[1], l->x, n, D, k), leaf_rows(padded[2], l->y, n, D, k);
        const leaf_t part = {(const real *)padded[0], (const real *)padded[1], (const real *)padded[2], LANES};
        leaf_pairs(sums, first, end, rows, &part, 0);
    }
    fold(out, sums);
    for (int s = first; s < end; s++)
        for (int t = s; t < rows; t++, next++)
            if (t < n) a[t * C + s] = *next;
}

/* A of `gram` within runs of LEAF tokens. */
static void gram_leaves(real *a, const real *x, const real *y, const levels_t *d) {
    const int64_t C = d->C, D = d->D, late = d->strict;
    for (int64_t from = 0; from < C; from += LEAF) {
        const int64_t n = least(LEAF, C - from) - late;
        const leaf_t leaf = {d->f + from * D, x + (from + late) * D, y + from * D, D};
        real *here = a + (from + late) * C + from;
        if (late) {
            leaf_columns(here, C, 0, 2, LEAF - 1, &leaf, n, D);
            leaf_columns(here, C, 2, LEAF - 1, LEAF - 1, &leaf, n, D);
        } else {
            leaf_columns(here, C, 0, 2, LEAF, &leaf, n, D);
            leaf_columns(here, C, 2, 5, LEAF, &leaf, n, D);
            leaf_columns(here, C, 5, LEAF, LEAF, &leaf, n, D);
        }
    }
}

static UNUSED int64_t meet_room(int64_t C, int64_t X) {
    return 2 * C * X;
}

/* `meet` of one decay a token. */
static void meet_one(real *a, real *up, real *down, const real *x, const real *y, int64_t X, levels_t *d, real *w) {
    const int64_t C = d->C;
    if (a) {
        gemm(C, C, X, x, X, 1, y, 1, X, a, C, 1, LOWER_OUT, 0);
        times(a, a, pairs_of(d), C * C);
    }
    if (up) prefix(w, d);
    for (int64_t t = 0; up && t < C; t++)
        for (int64_t k = 0; k < X; k++) up[t * X + k] = x[t * X + k] * w[t];
    if (down) suffix(w, d);
    for (int64_t t = 0; down && t < C; t++)
        for (int64_t k = 0; k < X; k++) down[t * X + k] = y[t * X + k] * w[t];
}

/* A[t, s] = sum_k x[t, k] y[s, k] P[t, s, k] [C][C], 0 where t does not see s; and x prefix, y suffix [C][X]. X: the channels of x
   and y, D or, for one decay a token, any number. Results may be NULL. */
static DEVICE void meet(real *a, real *up, real *down, const real *x, const real *y, int64_t X, levels_t *d, real *w) {
    const int64_t C = d->C, D = d->D;
    if (D == 1) {
        meet_one(a, up, down, x, y, X, d, w);
        return;
    }
    real *right = up ? up : w, *left = down ? down : w + C * D;
    if (a || up) times(right, x, d->up, C * D);
    if (a || down) times(left, y, d->down, C * D);
    if (a) {
        fill(a, 0, C * C);
        gram_leaves(a, x, y, d);
    }
    const real *totals = d->totals;
    for (int64_t m = LEAF; m < C; totals += runs_of(C, m) * D, m *= 2) {
        for (int64_t at = 0; a && at + m < C; at += 2 * m) {
            const int64_t from = at + m, n = least(m, C - from);
            gemm(n, m, D, right + from * D, D, 1, left + at * D, 1, D, a + from * C + at, C, 1, WHOLE, 0);
        }
        if (up || (a && 2 * m < C)) grow(right, right, UP, d, totals, m);
        if (down || (a && 2 * m < C)) grow(left, left, DOWN, d, totals, m);
    }
}

static UNUSED int64_t gram_room(int64_t C, int64_t X) {
    return meet_room(C, X);
}

static DEVICE void gram(real *a, const real *x, const real *y, int64_t X, levels_t *d, real *w) {
    meet(a, NULL, NULL, x, y, X, d, w);
}

static UNUSED int64_t decayed_room(int64_t C, int64_t X) {
    return 4 * C * X + C * C;
}

/* O[t, k] = sum_s a[t, s] y[s, k] P[t, s, k] over the s that t sees [C][X]. */
static DEVICE void decayed(real *out, const real *a, const real *y, int64_t X, levels_t *d, real *w) {
    const int64_t C = d->C, D = d->D, late = d->strict;
    if (D == 1) {
        times(w, a, pairs_of(d), C * C);
        gemm(C, X, C, w, C, 1, y, X, 1, out, X, 1, LOWER_A, 0);
        return;
    }
    real *left = w + 2 * C * D, *seen = left + C * D;
    const real *up = d->up, *down = d->down;
    if (late) fill(out, 0, C * D);
    for (int64_t from = 0; from < C; from += LEAF) {
        const int64_t n = least(LEAF, C - from) - late;
        real block[LEAF][LEAF];
        leaf_block(block, a + from * C + from, n + late, late, C);
        for (int64_t k = 0; k < D; k += LANES) {
            vec f[LEAF], ys[LEAF], sums[LEAF] = {0};
            leaf_rows(f, d->f + from * D, n, D, k);
            leaf_rows(ys, y + from * D, n, D, k);
            UNROLLED
            for (int s = 0; s < LEAF; s++) {
                vec w = ys[s];
                sums[s] += block[s][s] * w;
                for (int t = s + 1; t < LEAF; t++) w *= f[t], sums[t] += block[t][s] * w;
            }
            put_rows(out + (from + late) * D, sums, n, D, k);
        }
    }
    const real *totals = d->totals;
    for (int64_t m = LEAF; m < C; totals += runs_of(C, m) * D, m *= 2) {
        for (int64_t at = 0; at + m < C; at += 2 * m) {
            const int64_t from = at + m, n = least(m, C - from);
            times(left, y + at * D, down + at * D, m * D);
            gemm(n, D, m, a + from * C + at, C, 1, left, D, 1, seen, D, 1, WHOLE, 0);
            const real *scale = up + from * D;
            real *here = out + from * D;
#pragma omp simd
            for (int64_t i = 0; i < n * D; i++) here[i] += scale[i] * seen[i];
        }
        if (2 * m < C) {
            grow(w, up, UP, d, totals, m), grow(w + C * D, down, DOWN, d, totals, m);
            up = w, down = w + C * D;
        }
    }
}
