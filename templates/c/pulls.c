/* Cotangents of what decays.c computes. Sums of products only, as accurate as their terms: what
   comes back to the factor of a token is summed over the pairs of tokens around it. */

/* Adds to dg what comes back through `up` of the run of tokens from .. end - 1, of cotangents ct, in the channels from `first` on;
   sum: scratch [D]. Nothing but sums of products: from logs of ct up, from factors of ct times the factors before and after each. */
static void up_pull(real *dg, const real *ct, const real *up, int64_t from, int64_t end, int64_t first, const levels_t *d, real *sum) {
    const int64_t D = d->D;
    fill(sum, 0, D);
    for (int64_t t = end - 1, seen = t + d->strict; t >= from; t--, seen--) {
        if (seen >= end) continue;
        const real *own = ct + seen * D, *here = up + seen * D, *next = d->f + (seen + 1 < end ? t + 1 : t) * D;
        const real *before = t == from ? here : here - D;
        real *out = dg + t * D;
        if (d->log) {
#pragma omp simd
            for (int64_t k = first; k < D; k++) sum[k] += own[k] * here[k], out[k] += sum[k];
            continue;
        }
#pragma omp simd
        for (int64_t k = first; k < D; k++) sum[k] = sum[k] * next[k] + own[k];
#pragma omp simd
        for (int64_t k = first; k < D; k++) out[k] += t == from ? sum[k] : sum[k] * before[k];
    }
}

/* The same of `down`, where that of s holds the factors of the tokens after s. */
static void down_pull(real *dg, const real *ct, const real *down, int64_t from, int64_t end, int64_t first, const levels_t *d,
                      real *sum) {
    const int64_t D = d->D;
    fill(sum, 0, D);
    for (int64_t t = from + 1; t < end; t++) {
        const real *own = ct + (t - 1) * D, *here = down + (t - 1) * D, *last = d->f + (t - 1) * D, *behind = down + t * D;
        real *out = dg + t * D;
        if (d->log) {
#pragma omp simd
            for (int64_t k = first; k < D; k++) sum[k] += own[k] * here[k], out[k] += sum[k];
        } else {
#pragma omp simd
            for (int64_t k = first; k < D; k++) sum[k] = sum[k] * last[k] + own[k], out[k] += sum[k] * behind[k];
        }
    }
}

static UNUSED int64_t pulled_room(int64_t C, int64_t X) {
    return (C + 1) * X;
}

/* dg [C][D] = base and what comes back to the decays through `prefix`, of cotangents cu, through `suffix`, of cd, and through
   `whole`, of cw [D]: each where it is not NULL, the first two with what they are cotangents of. */
static DEVICE void pulled(real *dg, const real *base, const real *cu, const real *up, const real *cd, const real *down,
                          const real *cw, const levels_t *d, real *w) {
    const int64_t C = d->C, D = d->D, late = d->strict;
    int64_t k = 0;
    if (cw && d->log) whole(w, d), times(w, w, cw, D);
    else fill(w, 0, D);
    for (; d->log && k + LANES <= D; k += LANES) {
        vec all = *(const vec *)(w + k);
        for (int64_t t = C - 1; t >= 0; t--) {
            const int64_t at = t * D + k, seen = at + late * D;
            if (cu && t + late < C) all += *(const vec *)(cu + seen) * *(const vec *)(up + seen);
            *(vec *)(dg + at) = all;
            if (base) *(vec *)(dg + at) += *(const vec *)(base + at);
        }
        all = (vec){0};
        for (int64_t at = k; cd && at + D < C * D; at += D) {
            all += *(const vec *)(cd + at) * *(const vec *)(down + at);
            *(vec *)(dg + at + D) += all;
        }
    }
    for (int64_t t = 0; k < D && t < C; t++)
        if (base) joined(dg + t * D + k, base + t * D + k, w + k, D - k, 1);
        else copy(dg + t * D + k, w + k, D - k);
    if (cu && k < D) up_pull(dg, cu, up, 0, C, k, d, w);
    if (cd && k < D) down_pull(dg, cd, down, 0, C, k, d, w);
    if (!cw || d->log) return;
    real *after = w + D; /* each factor's cotangent holds the factors before and after it */
    copy(w, cw, D);
    suffix(after, d);
    for (int64_t t = 0; t < C; t++, after += D) {
        const real *own = d->f + t * D;
        real *out = dg + t * D;
#pragma omp simd
        for (int64_t k = 0; k < D; k++) out[k] += w[k] * after[k], w[k] *= own[k];
    }
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

/* A sum over pairs: the cotangent of A of `meet` of x and y, and where those of x and y go, if they are wanted. */
typedef struct {
    const real *ct, *x, *y;
    real *dx, *dy;
} meet_t;

enum { MEETS = 4 }; /* sums whose cotangents are found together */

/* Whether one before has its cotangent of x, or y, where the sum n has it: they are added up. */
static inline int x_before(const meet_t *m, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (m[i].dx == m[n].dx) return 1;
    return 0;
}

static inline int y_before(const meet_t *m, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (m[i].dy == m[n].dy) return 1;
    return 0;
}

/* Where the cotangents of a run go, each put there or added; `apart` as in leaf_t. */
typedef struct {
    real *dx, *dy, *dg;
    int add_x, add_y, add_g;
} leaf_back_t;

INLINE void put_vec(real *x, vec v, int add) {
    if (x && add) v += *(const vec *)x;
    if (x) *(vec *)x = v;
}

/* The cotangents of the pairs of a run of which `rows` tokens see any, one part of the channels. */
INLINE void leaf_back(const int rows, const leaf_t *l, const leaf_back_t *to, const real block[LEAF][LEAF], int log, int64_t k) {
    vec f[LEAF], sums[LEAF], back[LEAF], seen[LEAF][LEAF];
    UNROLLED
    for (int t = 0; t < rows; t++) f[t] = *(const vec *)(l->f + t * l->apart + k), sums[t] = back[t] = (vec){0};
    UNROLLED
    for (int s = 0; s < rows; s++) {
        vec w = *(const vec *)(l->y + s * l->apart + k);
        sums[s] += block[s][s] * w;
        UNROLLED
        for (int t = s + 1; t < rows; t++) seen[t][s] = w, w *= f[t], sums[t] += block[t][s] * w;
    }
    UNROLLED
    for (int t = 0; t < rows; t++) put_vec(to->dx ? to->dx + t * l->apart + k : NULL, sums[t], to->add_x);
    UNROLLED
    for (int t = rows - 1; t >= 0; t--) { /* back[s]: what comes back to s and the decays up to t from the tokens from t on */
        const vec own = *(const vec *)(l->x + t * l->apart + k);
        vec sum = {0};
        if (t + 1 < rows)
            UNROLLED
            for (int s = 0; s <= t; s++) back[s] *= f[t + 1];
        UNROLLED
        for (int s = 0; s <= t; s++) back[s] += block[t][s] * own;
        UNROLLED
        for (int s = 0; s < t; s++) sum += seen[t][s] * back[s];
        put_vec(to->dy ? to->dy + t * l->apart + k : NULL, back[t], to->add_y);
        if (log) sum *= f[t];
        put_vec(to->dg + t * l->apart + k, sum, to->add_g);
    }
}

/* The same, where not all rows or channels of a part are at hand: n, and width. */
static void leaf_back_part(int64_t n, int64_t all, int64_t width, const leaf_t *l, const leaf_back_t *to, const real block[LEAF][LEAF],
                           int log, int64_t k) {
    vec in[3][LEAF], out[3][LEAF];
    real *const into[3] = {to->dx, to->dy, to->dg};
    const int64_t rows[3] = {n, all, all}, add[3] = {to->add_x, to->add_y, to->add_g};
    leaf_rows(in[0], l->f, n, width, k), leaf_rows(in[1], l->x, n, width, k), leaf_rows(in[2], l->y, n, width, k);
    const leaf_t padded = {(const real *)in[0], (const real *)in[1], (const real *)in[2], LANES};
    leaf_back(LEAF, &padded, &(leaf_back_t){(real *)out[0], (real *)out[1], (real *)out[2], 0, 0, 0}, block, log, 0);
    for (int i = 0; i < 3; i++)
        for (int64_t t = 0; into[i] && t < rows[i]; t++) {
            real *const here = into[i] + t * l->apart + k;
            if (add[i]) out[i][t] += part(here, width - k);
            put_part(here, out[i][t], width - k);
        }
}

/* The cotangents of sums over pairs within runs of LEAF tokens. */
static void leaves_pull(const meet_t *m, int64_t count, real *dg, const levels_t *d) {
    const int64_t C = d->C, D = d->D, late = d->strict;
    for (int64_t i = 0; i < count; i++) {
        const int add_x = x_before(m, i), add_y = y_before(m, i);
        for (int64_t from = 0; from < C; from += LEAF) {
            const int64_t all = least(LEAF, C - from), n = all - late, at = from * D;
            const leaf_t leaf = {d->f + at, m[i].x + at + late * D, m[i].y + at, D};
            const leaf_back_t to = {m[i].dx ? m[i].dx + at + late * D : NULL, m[i].dy ? m[i].dy + at : NULL, dg + at, add_x, add_y, i > 0};
            real block[LEAF][LEAF];
            leaf_block(block, m[i].ct + from * C + from, all, late, C);
            if (late && m[i].dx && !add_x) fill(m[i].dx + at, 0, D);
            int64_t k = 0;
            if (all == LEAF && !late)
                for (; k + LANES <= D; k += LANES) leaf_back(LEAF, &leaf, &to, block, d->log, k);
            else if (all == LEAF) {
                for (; k + LANES <= D; k += LANES) leaf_back(LEAF - 1, &leaf, &to, block, d->log, k);
                if (to.dy && !add_y) fill(to.dy + n * D, 0, k);
                if (!i) fill(to.dg + n * D, 0, k);
            }
            for (; k < D; k += LANES) leaf_back_part(n, all, D, &leaf, &to, block, d->log, k);
        }
    }
}

static UNUSED int64_t meet_pull_room(int64_t C, int64_t X) {
    return 5 * C * X + X + 2 * C * C + C;
}

/* `meet_pull` of one decay a token. */
static void meet_pull_one(const meet_t *m, int64_t count, real *dg, int64_t X, levels_t *d, real *w) {
    const int64_t C = d->C;
    real *every = w + C * C, *one = every + C * C;
    for (int64_t i = 0; i < count; i++) {
        if (m[i].dx || m[i].dy) times(w, m[i].ct, pairs_of(d), C * C);
        if (m[i].dx) gemm(C, X, C, w, C, 1, m[i].y, X, 1, m[i].dx, X, 1, LOWER_A, x_before(m, i));
        if (m[i].dy) gemm(C, X, C, w, 1, C, m[i].x, X, 1, m[i].dy, X, 1, UPPER_A, y_before(m, i));
        if (!dg) continue;
        gemm(C, C, X, m[i].x, X, 1, m[i].y, 1, X, w, C, 1, LOWER_OUT, 0);
        times(i ? w : every, w, m[i].ct, C * C);
        if (i) add_to(every, w, C * C);
    }
    if (!dg) return;
    matrix_pull(one, every, d, w);
    fill(dg, 0, C * X);
    for (int64_t t = 0; t < C; t++) dg[t * X] = one[t];
}

/* Of the cotangents `back` of x times what decays it, for tokens from .. end - 1: adds to those of x, and to those of the decays on
   `side`. */
static void settle(real *dx, real *dg, real *back, const real *decayed, const real *x, int64_t from, int64_t end, int side,
                   const levels_t *d, real *sum) {
    const int64_t D = d->D, late = d->strict;
    int64_t k = 0;
    for (; d->log && k + LANES <= D; k += LANES) {
        vec all = {0};
        for (int64_t i = from; i < end; i++) {
            const int64_t t = side == UP ? end - 1 - (i - from) : i, at = t * D + k, own = side == UP ? t - late : t + 1;
            const vec pulled = *(const vec *)(back + at) * *(const vec *)(decayed + at);
            if (dx) *(vec *)(dx + at) += pulled;
            all += pulled * *(const vec *)(x + at);
            if (dg && own >= from && own < end) *(vec *)(dg + own * D + k) += all;
        }
    }
    for (int64_t t = from; t < end && k < D; t++)
        for (int64_t i = t * D + k; i < (t + 1) * D; i++) {
            if (dx) dx[i] += decayed[i] * back[i];
            back[i] *= x[i];
        }
    if (dg && k < D && side == UP) up_pull(dg, back, decayed, from, end, k, d, sum);
    if (dg && k < D && side == DOWN) down_pull(dg, back, decayed, from, end, k, d, sum);
}

/* Cotangents of sums over pairs with the same decays: of x and y [C][X], where two of them go to one place their sum, and of the
   decays; results may be NULL. For one decay a token it is dg's sum over channels that counts: it stands in the first of them. */
static DEVICE void meet_pull(const meet_t *m, int64_t count, real *dg, int64_t X, levels_t *d, real *w) {
    const int64_t C = d->C, D = d->D, size = C * D;
    if (D == 1) {
        meet_pull_one(m, count, dg, X, d, w);
        return;
    }
    real *met = w + 2 * size, *back = met + size, *sum = back + size;
    const real *up = d->up, *down = d->down;
    real *const decays = dg;
    leaves_pull(m, count, dg ? dg : sum + D, d);
    const real *totals = d->totals;
    for (int64_t run = LEAF; run < C; totals += runs_of(C, run) * D, run *= 2) {
        for (int64_t left = 0; left + run < C; left += 2 * run) {
            const int64_t right = left + run, n = least(run, C - right), end = right + n, l = left * D, r = right * D;
            for (int64_t i = 0; i < count; i++) { /* neighbours of the same x, or y, are summed by their products */
                const meet_t *const own = m + i, *const next = i + 1 < count ? own + 1 : NULL;
                const real *block = own->ct + right * C + left;
                const int x_same = i && own->x == own[-1].x && own->dx == own[-1].dx;
                const int y_same = i && own->y == own[-1].y && own->dy == own[-1].dy;
                if (!i || own->y != own[-1].y) times(met + l, own->y + l, down + l, run * D);
                if (!i || own->x != own[-1].x) times(met + r, own->x + r, up + r, n * D);
                gemm(n, D, run, block, C, 1, met + l, D, 1, back + r, D, 1, WHOLE, x_same);
                gemm(run, D, n, block, 1, C, met + r, D, 1, back + l, D, 1, WHOLE, y_same);
                if (!next || next->x != own->x || next->dx != own->dx)
                    settle(own->dx, decays, back, up, own->x, right, end, UP, d, sum);
                if (!next || next->y != own->y || next->dy != own->dy)
                    settle(own->dy, decays, back, down, own->y, left, right, DOWN, d, sum);
            }
        }
        if (2 * run < C) {
            grow(w, up, UP, d, totals, run), grow(w + size, down, DOWN, d, totals, run);
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
    if (dy || dg) meet_pull(&(meet_t){a, ct, y, NULL, dy}, 1, dg, X, d, w);
}
