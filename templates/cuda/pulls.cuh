/* Cotangents of what decays.cuh and grams.cuh compute. Sums of products only, as accurate as their
   terms: what comes back to the factor of a token is summed over the pairs of tokens around it, those
   before it once decayed up to it and those behind it back to it. From logs it is that of the factor
   times the factor. */

/* Adds to dg [C][D] of channel k what comes back through up of a run of tokens: `own` are the
   cotangents of up, a token a step apart, and scratch. A thread's work. */
INLINE void up_pull(real *dg, real *own, int step, const levels_t &d, int from, int end, int k) {
    const int D = d.D;
    real sum = 0;
    for (int t = end - 1; t >= from; t--) { /* own[t]: of the factor of t, but for those before it */
        const real here = own[t * step], next = t + 1 < end ? d.f[(t + 1) * D + k] : R(0);
        if (d.strict) {
            own[t * step] = sum;
            sum = sum * d.f[t * D + k] + here;
        } else
            own[t * step] = sum = sum * next + here;
    }
    real before = 1;
    for (int t = from; t < end; t++) {
        const real f = d.f[t * D + k];
        dg[t * D + k] += own[t * step] * before * (d.log ? f : R(1));
        before *= f;
    }
}

/* The same of down, where that of s holds the factors of the tokens after s. */
INLINE void down_pull(real *dg, real *own, int step, const levels_t &d, int from, int end, int k) {
    const int D = d.D;
    real sum = 0;
    for (int t = from; t < end; t++) {
        const real here = own[t * step];
        own[t * step] = sum;
        sum = sum * d.f[t * D + k] + here;
    }
    real behind = 1;
    for (int t = end - 1; t >= from; t--) {
        const real f = d.f[t * D + k];
        dg[t * D + k] += own[t * step] * behind * (d.log ? f : R(1));
        behind *= f;
    }
}

/* Results of the functions below are added to what lies there where `onto` says so: of several
   results the bits of those, 1 << k. */

ROOM int64_t prefix_pull_room(int64_t C, int64_t X) {
    return C * X;
}

DEVICE void prefix_pull(real *dg, const real *ct, const levels_t *d, real *w, int onto = 0) {
    for (int k = threadIdx.x; k < d->D; k += THREADS) {
        for (int t = 0; t < d->C; t++) {
            w[t * d->D + k] = ct[t * d->D + k];
            if (!onto) dg[t * d->D + k] = 0;
        }
        up_pull(dg, w + k, d->D, *d, 0, d->C, k);
    }
}

ROOM int64_t suffix_pull_room(int64_t C, int64_t X) {
    return C * X;
}

DEVICE void suffix_pull(real *dg, const real *ct, const levels_t *d, real *w, int onto = 0) {
    for (int k = threadIdx.x; k < d->D; k += THREADS) {
        for (int t = 0; t < d->C; t++) {
            w[t * d->D + k] = ct[t * d->D + k];
            if (!onto) dg[t * d->D + k] = 0;
        }
        down_pull(dg, w + k, d->D, *d, 0, d->C, k);
    }
}

ROOM int64_t whole_pull_room(int64_t C, int64_t X) {
    return 0 * C * X;
}

/* ct [D]: each factor's cotangent holds the factors before and after it. */
DEVICE void whole_pull(real *dg, const real *ct, const levels_t *d, real *, int onto = 0) {
    const int C = d->C, D = d->D;
    for (int i = threadIdx.x; i < C * D; i += THREADS) {
        const int t = i / D, k = i % D;
        const real before = t ? up(*d, t - 1, k, C) * (d->strict ? d->f[i - D] : R(1)) : R(1);
        const real own = ct[k] * before * down(*d, t, k, C) * (d->log ? d->f[i] : R(1));
        dg[i] = onto ? dg[i] + own : own;
    }
}

ROOM int64_t matrix_pull_room(int64_t C, int64_t X) {
    return C * (C > X ? C : X);
}

/* dg [C][1] from ct [C][C] of P. */
DEVICE void matrix_pull(real *dg, const real *ct, levels_t *d, real *w, int onto = 0) {
    const int C = d->C, late = d->strict, lane = threadIdx.x % LANES;
    const real *p = pairs_of(d);
    for (int s = threadIdx.x; s < C; s += THREADS) {
        real sum = 0;
        for (int t = C - 1; t > s; t--) { /* w[t, s]: what comes back to t from the pairs (t.., s) */
            const real next = t + 1 < C ? d->f[t + 1] : R(0);
            sum = sum * next + (t + late < C ? ct[(t + late) * C + s] : R(0));
            w[t * C + s] = sum;
        }
    }
    barrier();
    for (int t = threadIdx.x / LANES; t < C; t += WARPS) {
        real sum = 0;
        for (int s = lane; s < t; s += LANES) sum += w[t * C + s] * (t + late ? p[(t + late - 1) * C + s] : R(0));
        sum = lane_sum(sum);
        sum *= d->log ? d->f[t] : R(1);
        if (lane == 0) dg[t] = onto ? dg[t] + sum : sum;
    }
}

INLINE void set_or_add(real *out, real x, bool onto) {
    *out = onto ? *out + x : x;
}

/* dx, dy, dg of `gram` within runs of LEAF tokens; results may be null. */
INLINE void leaves_pull(real *dx, real *dy, real *dg, const real *ct, const real *x, const real *y, const levels_t &d, int onto) {
    const int C = d.C, D = d.D, late = d.strict;
    for (int i = threadIdx.x; i < runs_of(C, LEAF) * D; i += THREADS) {
        const int from = i / D * LEAF, k = i % D, all = least(LEAF, C - from), n = all - late;
        real f[LEAF], xs[LEAF], xd[LEAF], fd[LEAF];
#pragma unroll
        for (int t = 0; t < LEAF; t++) {
            f[t] = t < all ? d.f[(from + t) * D + k] : R(0);
            xs[t] = t < n ? x[(from + t + late) * D + k] : R(0);
            xd[t] = fd[t] = 0;
        }
#pragma unroll
        for (int s = 0; s < LEAF; s++) {
            if (s >= all) break;
            const real *column = ct + (from + late) * C + from + s;
            const real own = y[(from + s) * D + k];
            real w[LEAF], back = 0;
            w[s] = own;
#pragma unroll
            for (int t = s + 1; t < LEAF; t++) w[t] = w[t - 1] * f[t];
#pragma unroll
            for (int t = LEAF - 1; t >= s; t--) {
                const real c = t < n ? column[t * C] : R(0);
                xd[t] += c * w[t];
                back += c * xs[t];
                if (t > s) fd[t] += back * w[t - 1], back *= f[t];
            }
            if (dy) set_or_add(dy + (from + s) * D + k, back, onto & 2);
        }
#pragma unroll
        for (int t = 0; t < LEAF; t++) {
            if (dx && t < n) set_or_add(dx + (from + t + late) * D + k, xd[t], onto & 1);
            if (dx && late && t == 0) set_or_add(dx + from * D + k, R(0), onto & 1);
            if (dg && t < all) set_or_add(dg + (from + t) * D + k, fd[t] * (d.log ? f[t] : R(1)), onto & 4);
        }
    }
}

/* Channels that come back at once. */
enum { STRIP = 64 };

/* For each token what comes back to it, decayed up to its run of m or from behind it, for `many` channels from `first`
   on: back [C][many], which is written behind a barrier. */
template <int P>
INLINE void pulled_runs(real *back, const real *ct, const real *x, const real *y, const levels_t &d, int m, int first, int many) {
    enum { SLAB = operand<P>::SLAB };
    const int C = d.C;
    bool staged = false;
    each_block(C, many, [&](const block &b) {
        sums<P> s(b);
        const int row = b.row + s.row, pair = row / (2 * m) * (2 * m), end = (b.row + b.rows - 1) / (2 * m) * (2 * m) + 2 * m;
        const range own = m < UNIT ? range{pair, pair + 2 * m} : row & m ? range{pair, pair + m} : range{pair + m, pair + 2 * m};
        for (int k = b.row / (2 * m) * (2 * m) / SLAB * SLAB; k < least(end, C); k += SLAB) {
            if (staged) barrier();
            staged = true;
            stage<P>(row_panel(), b.rows, between{ct, C, m, true}, b.row, C, k, C);
            stage_channels<P>(column_panel(), b.columns, grown{d, y, m, false}, grown{d, x, m, true}, first + b.column, k);
            barrier();
            s.add(range{own.from - k, own.to - k}, [](int) { return true; });
        }
        s.each([&](int i, int j, real sum) {
            if (b.row + i < C && b.column + j < many) back[(b.row + i) * many + b.column + j] = sum;
        });
    });
}

/* D: the channels of the decays. */
ROOM int64_t meet_pull_room(int64_t C, int64_t X, int64_t D) {
    return D == 1 ? C * (2 * C + 1) : C * (X < STRIP ? X : (int64_t)STRIP);
}

/* `meet_pull` of one decay a token. */
INLINE void shared_pull(real *dx, real *dy, real *dg, const real *ct, const real *x, const real *y, int X, levels_t *d, real *w, int onto) {
    const int C = d->C;
    const real *p = pairs_of(d);
    if (dx)
        product<PRECISION>(C, X, weighted{ct, p, C, 1}, strided{y, 1, X}, C, shaped{LOWER_A, C}, [=](int t, int k, real sum) {
            set_or_add(dx + t * X + k, sum, onto & 1);
        });
    if (dx && dy) barrier();
    if (dy)
        product<PRECISION>(C, X, weighted{ct, p, 1, C}, strided{x, 1, X}, C, shaped{UPPER_A, C}, [=](int t, int k, real sum) {
            set_or_add(dy + t * X + k, sum, onto & 2);
        });
    if (!dg) return;
    real *const weights = w + C, *const room = weights + C * C;
    if (dx || dy) barrier();
    product<PRECISION>(C, C, strided{x, X, 1}, strided{y, X, 1}, X, shaped{LOWER_OUT, X}, [=](int t, int s, real sum) {
        weights[t * C + s] = s <= t ? sum * ct[t * C + s] : R(0);
    });
    barrier();
    matrix_pull(w, weights, d, room);
    barrier();
    for (int i = threadIdx.x; i < C * X; i += THREADS) set_or_add(dg + i, i % X ? R(0) : w[i / X], onto & 4);
}

/* Cotangents of x, y and the decays [C][X] from that of A of `meet`; results may be null. For one decay a token it is dg's sum over
   channels that counts: it stands in the first of them. */
DEVICE void meet_pull(real *dx, real *dy, real *dg, const real *ct, const real *x, const real *y, int X, levels_t *d, real *w, int onto = 0) {
    const int C = d->C, D = d->D;
    if (D == 1) {
        shared_pull(dx, dy, dg, ct, x, y, X, d, w, onto);
        return;
    }
    leaves_pull(dx, dy, dg, ct, x, y, *d, onto);
    for (int first = 0; first < D; first += STRIP)
        for (int m = LEAF; m < C; m *= 2) {
            const int many = least(STRIP, D - first);
            pulled_runs<PRECISION>(w, ct, x, y, *d, m, first, many);
            barrier();
            for (int i = threadIdx.x; i < runs_of(C, m) * many; i += THREADS) {
                const int from = i / many * m, end = least(from + m, C), k = first + i % many;
                const bool right = from & m;
                if (!right && from + m >= C) continue;
                real *const own = w + i % many;
                real factor = 1;
                for (int n = from; n < end; n++) {
                    const int t = right ? n : end - 1 - (n - from), at = t * D + k;
                    if (right && !d->strict) factor *= d->f[at];
                    real *const out = right ? dx : dy;
                    if (out) out[at] += factor * own[t * many];
                    own[t * many] *= right ? x[at] : y[at];
                    if (!right || d->strict) factor *= d->f[at];
                }
                if (dg && right) up_pull(dg, own, many, *d, from, end, k);
                if (dg && !right) down_pull(dg, own, many, *d, from, end, k);
            }
        }
}

ROOM int64_t decayed_pull_room(int64_t C, int64_t X, int64_t D) {
    return meet_pull_room(C, X, D);
}

/* Cotangents of a, y and the decays from that of `decayed`, as those of `meet_pull`; that of a is never added to what is there. */
DEVICE void decayed_pull(real *da, real *dy, real *dg, const real *ct, const real *a, const real *y, int X, levels_t *d, real *w, int onto = 0) {
    if (da) gram(da, ct, y, X, d, w);
    if (da && (dy || dg)) barrier();
    if (dy || dg) meet_pull(nullptr, dy, dg, a, ct, y, X, d, w, onto);
}
