/* Decays of a chunk in, as logs or as factors of any sign: products over contiguous runs of its tokens
   out. P[t, s] is the product of the factors of the tokens after s up to t (before t where strict).
   No quotient and no difference of running sums is formed, so that a factor of 0 is exact and nothing
   overflows that the result does not. Runs are of LEAF, 2 LEAF, 4 LEAF, ... tokens; up multiplies a run
   from its start to a token, down from after a token to its end; from one length to the next both
   are multiplied by whole runs. With t in the right and s in the left one of two neighbours
   P[t, s] = up[t] down[s]. */

enum { LEAF = 8 };

#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

/* Part of a row of channels, 0 behind its last, and its way back. */
static inline vec part(const real *x, int64_t n) {
    vec v = {0};
    if (n >= LANES) return *(const vec *)x;
    for (int64_t i = 0; i < n; i++) v[i] = x[i];
    return v;
}

static inline void put_part(real *x, vec v, int64_t n) {
    if (n >= LANES) *(vec *)x = v;
    else for (int64_t i = 0; i < n; i++) x[i] = v[i];
}

/* In a run of LEAF tokens and one part of the channels: rows of x, 0 behind the last of n. */
static inline void leaf_rows(vec out[LEAF], const real *x, int64_t n, int64_t D, int64_t k) {
    if (n == LEAF && k + LANES <= D)
        for (int t = 0; t < LEAF; t++) out[t] = *(const vec *)(x + t * D + k);
    else
        for (int t = 0; t < LEAF; t++) out[t] = t < n ? part(x + t * D + k, D - k) : (vec){0};
}

static inline void put_rows(real *x, const vec rows[LEAF], int64_t n, int64_t D, int64_t k) {
    if (n == LEAF && k + LANES <= D)
        for (int t = 0; t < LEAF; t++) *(vec *)(x + t * D + k) = rows[t];
    else
        for (int t = 0; t < n; t++) put_part(x + t * D + k, rows[t], D - k);
}

typedef struct {
    int64_t C, D;
    int log, strict, paired;
    const real *g, *f; /* as given, and factors [C][D] */
    real *totals;      /* whole runs of LEAF, 2 LEAF, ... tokens, the last of them all: [runs][D] */
    real *up, *down;   /* within runs of LEAF tokens [C][D] */
    real *pairs;       /* P [C][C] of one decay a token, once it was asked for */
} levels_t;

static inline int64_t runs_of(int64_t C, int64_t m) {
    return (C + m - 1) / m;
}

static inline int64_t all_runs(int64_t C) {
    int64_t count = 1;
    for (int64_t m = LEAF; m < C; m *= 2) count += runs_of(C, m);
    return count;
}

static UNUSED int64_t levels_room(int64_t C, int64_t D) {
    return (3 * C + all_runs(C)) * D + (D == 1 ? C * C : 0);
}

/* out = a b over n numbers. */
static inline void times(real *out, const real *a, const real *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = a[i] * b[i];
}

/* x = join of rows a and b: sums of logs, products of factors. */
static inline void joined(real *out, const real *a, const real *b, int64_t n, int log) {
    if (!log) {
        times(out, a, b, n);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

/* One part of the channels of a run of LEAF tokens, rows `apart`: `leaf_runs`. */
INLINE void run_part(real *total, real *up, real *down, const real *g, const real *f, int64_t apart, int log, const int late) {
    vec own[LEAF], all = (vec){0} + 1;
    UNROLLED for (int t = 0; t < LEAF; t++) own[t] = *(const vec *)(f + t * apart);
    UNROLLED for (int t = 0; t < LEAF; t++) {
        if (up && late) *(vec *)(up + t * apart) = all;
        all *= own[t];
        if (up && !late) *(vec *)(up + t * apart) = all;
    }
    if (total && log) {
        all = *(const vec *)g;
        UNROLLED for (int t = 1; t < LEAF; t++) all += *(const vec *)(g + t * apart);
    }
    if (total) *(vec *)total = all;
    if (!down) return;
    all = (vec){0} + 1;
    UNROLLED for (int t = LEAF - 1; t >= 0; t--) *(vec *)(down + t * apart) = all, all *= own[t];
}

/* Products of every run of LEAF tokens from its start to each and after each to its end, and of it
   whole: from logs the sum, so that slow decays keep their digits. Results may be NULL. */
INLINE void leaf_runs(real *totals, real *up, real *down, const levels_t *d, const int late) {
    const int64_t C = d->C, D = d->D;
    const real *g = d->g, *f = d->f;
    const int log = d->log;
    for (int64_t from = 0; from < C; from += LEAF) {
        const int64_t n = least(LEAF, C - from);
        int64_t k = 0;
        for (; n == LEAF && k + LANES <= D; k += LANES)
            run_part(totals ? totals + k : NULL, up ? up + k : NULL, down ? down + k : NULL, g + k, f + k, D, log, late);
        for (; k < D; k += LANES) {
            vec logs[LEAF], own[LEAF], ups[LEAF], downs[LEAF], total;
            leaf_rows(logs, g, n, D, k), leaf_rows(own, f, n, D, k);
            for (int64_t t = n; t < LEAF; t++) own[t] = (vec){0} + 1;
            run_part((real *)&total, (real *)ups, (real *)downs, (real *)logs, (real *)own, LANES, log, late);
            if (totals) put_part(totals + k, total, D - k);
            if (up) put_rows(up, ups, n, D, k);
            if (down) put_rows(down, downs, n, D, k);
        }
        g += LEAF * D, f += LEAF * D;
        if (totals) totals += D;
        if (up) up += LEAF * D;
        if (down) down += LEAF * D;
    }
}

/* Runs of 2 LEAF, 4 LEAF, ... tokens from those of LEAF. */
static void find_totals(levels_t *d) {
    const int64_t C = d->C, D = d->D;
    const real *below = d->totals;
    real *out = d->totals + runs_of(C, LEAF) * D;
    for (int64_t m = LEAF; m < C; m *= 2) {
        const int64_t runs = runs_of(C, m);
        for (int64_t r = 0; r < runs; r += 2, out += D)
            if (r + 1 < runs)
                joined(out, below + r * D, below + (r + 1) * D, D, d->log);
            else
                copy(out, below + r * D, D);
        below += runs * D;
    }
    if (d->log) exps(d->totals, d->totals, out - d->totals);
}

/* Of one decay a token: the whole runs of LEAF tokens. */
static void leaf_totals(const levels_t *d) {
    for (int64_t from = 0; from < d->C; from += LEAF) {
        const int64_t end = least(from + LEAF, d->C);
        real all = d->g[from];
        for (int64_t t = from + 1; t < end; t++) all = d->log ? all + d->g[t] : all * d->g[t];
        d->totals[from / LEAF] = all;
    }
}

/* The runs of decays g [C][D], logs or factors; w stays with d. */
static DEVICE void levels(levels_t *d, const real *g, int64_t C, int64_t D, int log, int strict, real *w) {
    *d = (levels_t){C, D, log, strict, 0, g, g, w, NULL, NULL, NULL};
    d->up = w + all_runs(C) * D, d->down = d->up + C * D;
    if (log) exps(d->down + C * D, g, C * D), d->f = d->down + C * D;
    if (D == 1) d->pairs = d->down + 2 * C;
    if (D == 1) leaf_totals(d);
    else if (strict) leaf_runs(d->totals, d->up, d->down, d, 1);
    else leaf_runs(d->totals, d->up, d->down, d, 0);
    find_totals(d);
}

static UNUSED int64_t levels_beside_room(int64_t C, int64_t D) {
    return D == 1 ? C * C : C * D;
}

/* The runs of the decays that `of` is made of, where tokens see them by another rule. */
static DEVICE void levels_beside(levels_t *d, const levels_t *of, int strict, real *w) {
    *d = *of;
    d->strict = strict, d->paired = 0;
    if (d->D == 1) d->pairs = w;
    else if (strict) d->up = w, leaf_runs(NULL, w, NULL, d, 1);
    else d->up = w, leaf_runs(NULL, w, NULL, d, 0);
}

enum { DOWN, UP };

/* out [rows][D] = every row of x times a row of factors. */
static inline void scale_rows(real *out, const real *x, const real *factors, int64_t rows, int64_t D) {
    int64_t k = 0;
    for (; k + LANES <= D; k += LANES) {
        const vec factor = *(const vec *)(factors + k);
        for (int64_t t = 0; t < rows; t++) *(vec *)(out + t * D + k) = *(const vec *)(x + t * D + k) * factor;
    }
    for (int64_t t = 0; k < D && t < rows; t++)
        for (int64_t q = k; q < D; q++) out[t * D + q] = x[t * D + q] * factors[q];
}

/* From runs of m tokens to runs of 2 m: right runs of what has been multiplied by up times their left neighbours, left runs of what
   has been by down times their right ones. */
static void grow(real *out, const real *x, int side, const levels_t *d, const real *totals, int64_t m) {
    const int64_t C = d->C, D = d->D;
    for (int64_t run = 0, from = 0; from < C; run++, from += m) {
        const int64_t beside = run ^ 1, end = least(from + m, C);
        const int grows = (run & 1) == side && beside * m < C;
        if (grows) scale_rows(out + from * D, x + from * D, totals + beside * D, end - from, D);
        else if (out != x) copy(out + from * D, x + from * D, (end - from) * D);
    }
}

static void grow_all(real *x, int side, const levels_t *d) {
    const real *totals = d->totals;
    for (int64_t m = LEAF; m < d->C; totals += runs_of(d->C, m) * d->D, m *= 2) grow(x, x, side, d, totals, m);
}

/* The product from the chunk's start to each token [C][D]. */
static DEVICE void prefix(real *out, const levels_t *d) {
    const int64_t C = d->C, D = d->D;
    if (D > 1) {
        copy(out, d->up, C * D);
        grow_all(out, UP, d);
    } else if (d->log) {
        real sum = 0;
        for (int64_t t = 0; t < C; t++) {
            if (d->strict) out[t] = sum;
            sum = t ? sum + d->g[t] : d->g[t];
            if (!d->strict) out[t] = sum;
        }
        exps(out, out, C);
    } else {
        real all = 1;
        for (int64_t t = 0; t < C; t++) {
            if (d->strict) out[t] = all;
            all *= d->f[t];
            if (!d->strict) out[t] = all;
        }
    }
}

/* The product after each token to the chunk's end [C][D]. */
static DEVICE void suffix(real *out, const levels_t *d) {
    const int64_t C = d->C, D = d->D;
    if (D > 1) {
        copy(out, d->down, C * D);
        grow_all(out, DOWN, d);
    } else if (d->log) {
        real sum = 0;
        for (int64_t t = C - 1; t >= 0; t--) {
            out[t] = sum;
            sum += d->g[t];
        }
        exps(out, out, C);
    } else {
        real all = 1;
        for (int64_t t = C - 1; t >= 0; all *= d->f[t], t--) out[t] = all;
    }
}

/* The product of the whole chunk [D]. */
static DEVICE void whole(real *out, const levels_t *d) {
    copy(out, d->totals + (all_runs(d->C) - 1) * d->D, d->D);
}

/* Products between the tokens of a run of one decay a token: out[t][s] is that of the factors after s
   up to t, 0 where s > t. */
static void leaf_products(real out[LEAF][LEAF], const levels_t *d, int64_t from, int64_t n) {
    const int log = d->log;
    const real start = log ? 0 : 1, none = log ? (real)-INFINITY : 0;
    for (int s = 0; s < LEAF; s++) out[0][s] = s ? none : start;
    for (int t = 1; t < LEAF; t++) {
        const real own = t < n ? d->g[from + t] : 0;
#pragma omp simd
        for (int s = 0; s < LEAF; s++) {
            const real more = log ? out[t - 1][s] + own : out[t - 1][s] * own;
            out[t][s] = s < t ? more : s == t ? start : none;
        }
    }
    if (log) exps(out[0], out[0], LEAF * LEAF);
}

/* Part of a row of pairs, of a whole run but for the last: a multiple of x. */
static inline void run_row(real *out, const real *x, real factor, int64_t n) {
    if (n == LEAF)
#pragma omp simd
        for (int s = 0; s < LEAF; s++) out[s] = factor * x[s];
    else
        for (int64_t s = 0; s < n; s++) out[s] = factor * x[s];
}

/* P [C][C] of one decay a token, 0 where t does not see s. A token sees those before its run through
   the end of the run before. */
static const real *pairs_of(levels_t *d) {
    static const real none[LEAF];
    const int64_t C = d->C, late = d->strict;
    if (d->paired) return d->pairs;
    d->paired = 1;
    fill(d->pairs, 0, late * C);
    for (int64_t from = 0; from < C - late; from += LEAF) {
        const int64_t n = least(LEAF, C - late - from);
        real own[LEAF][LEAF], *rows = d->pairs + (late + from) * C;
        leaf_products(own, d, from, n);
        for (int64_t t = 0; t < n; t++) {
            real *row = rows + t * C;
            const real up = own[t][0] * d->f[from];
            for (int64_t at = 0; at < from; at += LEAF) run_row(row + at, rows - C + at, up, LEAF);
            run_row(row + from, own[t], 1, least(LEAF, C - from));
            for (int64_t at = from + LEAF; at < C; at += LEAF) run_row(row + at, none, 0, least(LEAF, C - at));
        }
    }
    return d->pairs;
}

static DEVICE void matrix(real *out, levels_t *d) {
    copy(out, pairs_of(d), d->C * d->C);
}
