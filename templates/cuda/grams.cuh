/* Sums over the pairs of tokens of a chunk, each pair weighted by what decays between them. Pairs in
   one run of LEAF tokens multiply factor by factor, in registers; pairs in neighbouring runs are
   products of what was multiplied by up and by down as it is staged. */

/* For tokens in the right of two neighbouring runs of m x up, in the left one x down. */
struct grown {
    const levels_t &d;
    const real *x;
    int m;
    bool right;

    /* The tokens of one leaf and a channel: those from `from` on, `count` of them, 0 where not of the side. */
    template <int N>
    __device__ __forceinline__ void read(real (&out)[N], int from, int k) const {
        const int leaf = from / LEAF * LEAF, D = d.D, end = least(leaf + LEAF, d.C);
        const bool mine = leaf < d.C && k < D && ((leaf & m) != 0) == right;
        real factor = mine ? edge(d, leaf, k, m, !right) : R(0);
        if (!mine) {
#pragma unroll
            for (int e = 0; e < N; e++) out[e] = 0;
        } else if (right) {
            for (int t = leaf; t < least(from, end); t++) factor *= d.f[t * D + k];
#pragma unroll
            for (int e = 0; e < N; e++) {
                const int t = from + e;
                const real own = t < end ? d.f[t * D + k] : R(0);
                if (!d.strict) factor *= own;
                out[e] = t < end ? x[t * D + k] * factor : R(0);
                if (d.strict) factor *= own;
            }
        } else {
            for (int t = end - 1; t >= from + N; t--) factor *= d.f[t * D + k];
#pragma unroll
            for (int e = N - 1; e >= 0; e--) {
                const int t = from + e;
                out[e] = t < end ? x[t * D + k] * factor : R(0);
                factor = t < end ? factor * d.f[t * D + k] : factor;
            }
        }
    }
};

/* Rows of a panel: tokens from `first` on, along k channels from there on; lanes side by side write
   entries side by side. */
template <int P>
INLINE void stage_tokens(chunk *panel, int rows, const grown &x, int first, int k) {
    enum { N = operand<P>::CHUNK, EACH = P < TF32X3 ? 2 : 1 };
    const int at = threadIdx.x % LANES * EACH;
    for (int leaf = threadIdx.x / LANES; leaf < rows / LEAF && at < operand<P>::SLAB; leaf += WARPS) {
        real entries[EACH][LEAF];
#pragma unroll
        for (int e = 0; e < EACH; e++) x.read(entries[e], first + leaf * LEAF, k + at + e);
#pragma unroll
        for (int t = 0; t < LEAF; t++) {
            chunk *const to = place(panel, leaf * LEAF + t, at / N);
            if constexpr (P == PLAIN)
                ((reals *)to)->x[at % N] = entries[0][t];
            else {
                const real both[2] = {entries[0][t], entries[EACH - 1][t]};
                to->word[at % N / EACH] = rounded<P>(both);
            }
        }
    }
}

/* Rows of a panel: channels from `first` on, along k tokens from there on, each by its own side. */
template <int P>
INLINE void stage_channels(chunk *panel, int rows, const grown &left, const grown &right, int first, int k) {
    enum { N = operand<P>::CHUNK };
    for (int i = threadIdx.x; i < (rows + LANES - 1) / LANES * LANES * CHUNKS; i += THREADS) {
        const int row = i / (LANES * CHUNKS) * LANES + i % LANES, c = i / LANES % CHUNKS, from = k + c * N;
        if (row >= rows) continue;
        real entries[N];
        (from & left.m ? right : left).read(entries, from, first + row);
        pack<P>(place(panel, row, c), entries);
    }
}

/* Each lane's own one of 32 sums over the lanes. */
INLINE real own_sum(real (&v)[LANES]) {
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int step = 0; step < 5; step++) {
        const int n = LANES / 2 >> step;
        const bool high = lane & n;
#pragma unroll
        for (int i = 0; i < LANES / 2; i++) /* bounds that are known, so that v lies in registers */
            if (i < n) {
                const real sent = across(high ? v[i] : v[i + n], n);
                v[i] = (high ? v[i + n] : v[i]) + sent;
            }
    }
    return v[0];
}

/* A of `gram` within runs of LEAF tokens: a warp each, lanes along channels. */
INLINE void gram_leaves(real *a, const real *x, const real *y, const levels_t &d) {
    const int C = d.C, D = d.D, late = d.strict, lane = threadIdx.x % LANES;
    for (int from = threadIdx.x / LANES * LEAF; from < C; from += WARPS * LEAF) {
        const int n = least(LEAF, C - from);
        real dots[2][LANES] = {};
        for (int k = lane; k < D; k += LANES) {
            real f[LEAF], xs[LEAF];
#pragma unroll
            for (int t = 0; t < LEAF; t++) {
                f[t] = t < n ? d.f[(from + t) * D + k] : R(0);
                xs[t] = t + late < n ? x[(from + t + late) * D + k] : R(0);
            }
#pragma unroll
            for (int s = 0; s < LEAF; s++) {
                real w = s < n ? y[(from + s) * D + k] : R(0);
                dots[s / 4][s % 4 * LEAF + s] += w * xs[s];
#pragma unroll
                for (int t = s + 1; t < LEAF; t++) {
                    w *= f[t];
                    dots[t / 4][t % 4 * LEAF + s] += w * xs[t];
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = half * 4 + lane / LEAF, s = lane % LEAF, row = (t + late) % LEAF;
            const real dot = own_sum(dots[half]);
            if (row < n && s < n) a[(from + row) * C + from + s] = s <= t && t + late < LEAF ? dot : R(0);
        }
    }
}

/* Whether rows from one on and columns from another on, 16 each, meet at runs of m. */
INLINE bool meeting(int row, int column, int m) {
    return row / (2 * m) == column / (2 * m) && (m < UNIT || (row & m && !(column & m)));
}

/* A of `gram` between runs of LEAF tokens, all lengths in one sum; 0 above the diagonal. */
template <int P>
INLINE void gram_runs(real *a, const real *x, const real *y, const levels_t &d) {
    const int C = d.C;
    bool staged = false;
    each_block(C, C, [&](const block &b) {
        sums<P> s(b);
        const int row = b.row + s.row;
        for (int m = LEAF; m < C; m *= 2)
            for (int k = 0; k < d.D; k += operand<P>::SLAB) {
                if (staged) barrier();
                staged = true;
                stage_tokens<P>(row_panel(), b.rows, grown{d, x, m, true}, b.row, k);
                stage_tokens<P>(column_panel(), b.columns, grown{d, y, m, false}, b.column, k);
                barrier();
                s.add(range{0, least(operand<P>::SLAB, d.D - k)}, [&](int column) { return meeting(row, b.column + column, m); });
            }
        s.each([&](int i, int j, real sum) {
            const int t = b.row + i, other = b.column + j;
            if (t < C && other < C && t / LEAF != other / LEAF) a[t * C + other] = other < t ? sum : R(0);
        });
    });
}

ROOM int64_t meet_room(int64_t C, int64_t X) {
    return 2 * C + 0 * X;
}

/* A[t, s] = sum_k x[t, k] y[s, k] P[t, s, k] [C][C], 0 where t does not see s; and x prefix, y suffix [C][X]. X: the channels of x
   and y, D or, for one decay a token, any number. Results may be null. */
DEVICE void meet(real *a, real *ups, real *downs, const real *x, const real *y, int X, levels_t *d, real *w) {
    const int C = d->C, D = d->D;
    if (a && D == 1) {
        const real *p = pairs_of(d);
        product<PRECISION>(C, C, strided{x, X, 1}, strided{y, X, 1}, X, shaped{LOWER_OUT, X}, [=](int t, int s, real sum) {
            a[t * C + s] = s <= t ? sum * p[t * C + s] : R(0);
        });
    } else if (a) {
        gram_leaves(a, x, y, *d);
        gram_runs<PRECISION>(a, x, y, *d);
    }
    if (D > 1) {
        for (int i = threadIdx.x; ups && i < C * D; i += THREADS) ups[i] = x[i] * up(*d, i / D, i % D, C);
        for (int i = threadIdx.x; downs && i < C * D; i += THREADS) downs[i] = y[i] * down(*d, i / D, i % D, C);
    } else if (ups || downs) {
        if (ups) prefix(w, d);
        if (downs) suffix(w + C, d);
        barrier();
        for (int i = threadIdx.x; ups && i < C * X; i += THREADS) ups[i] = x[i] * w[i / X];
        for (int i = threadIdx.x; downs && i < C * X; i += THREADS) downs[i] = y[i] * w[C + i / X];
    }
}

ROOM int64_t gram_room(int64_t C, int64_t X) {
    return meet_room(C, X);
}

INLINE void gram(real *a, const real *x, const real *y, int X, levels_t *d, real *w) {
    meet(a, nullptr, nullptr, x, y, X, d, w);
}

/* The entries [t, s] of a where t and s are in neighbouring runs of m: those with t in the right one,
   or of the transpose as well. */
struct between {
    const real *a;
    int C, m;
    bool both;

    __device__ __forceinline__ bool along() const {
        return true;
    }

    template <int N>
    __device__ __forceinline__ void read(real (&out)[N], int row, int k, int count) const {
        const bool right = row & m, mine = row / (2 * m) == k / (2 * m) && (right || both) && ((k & m) == 0) == right;
#pragma unroll
        for (int e = 0; e < N; e++) out[e] = !mine || e >= count ? R(0) : right ? a[row * C + k + e] : a[(k + e) * C + row];
    }
};

/* O of `decayed` through runs of LEAF tokens and more: the sums that up of a leaf is still to multiply.
   From the longest runs down, what there is grows by the totals between. */
template <int P>
INLINE void decayed_runs(real *out, const real *a, const real *y, const levels_t &d) {
    enum { SLAB = operand<P>::SLAB };
    const int C = d.C, D = d.D, count = lengths(C);
    bool staged = false;
    each_block(C, D, [&](const block &b) {
        sums<P> s(b);
        const int row = b.row + s.row;
        for (int level = count - 1; level >= 0; level--) {
            const int m = LEAF << level, from = row / (2 * m) * (2 * m), all = least(b.row + b.rows, C);
            const range own = m < UNIT || row & m ? range{from, from + m} : range{0, 0};
            for (int k = b.row / (2 * m) * (2 * m) / SLAB * SLAB; k < all; k += SLAB) {
                if (staged) barrier();
                staged = true;
                stage<P>(row_panel(), b.rows, between{a, C, m, false}, b.row, C, k, C);
                stage_channels<P>(column_panel(), b.columns, grown{d, y, m, false}, grown{d, y, m, true}, b.column, k);
                barrier();
                s.add(range{own.from - k, own.to - k}, [](int) { return true; });
            }
            if (level) s.each([&](int i, int j, real &sum) {
                const int n = m / 2, t = b.row + i, k = b.column + j;
                if (t < C && k < D && t & n) sum *= totals_of(d, n)[(t / n - 1) * D + k];
            });
        }
        s.each([&](int i, int j, real sum) {
            if (b.row + i < C && b.column + j < D) out[(b.row + i) * D + b.column + j] = sum;
        });
    });
}

ROOM int64_t decayed_room(int64_t C, int64_t X) {
    return 0 * C * X;
}

/* O[t, k] = sum_s a[t, s] y[s, k] P[t, s, k] over the s that t sees [C][X]. */
DEVICE void decayed(real *out, const real *a, const real *y, int X, levels_t *d, real *) {
    const int C = d->C, D = d->D;
    if (D == 1) {
        const weighted left = {a, pairs_of(d), C, 1};
        product<PRECISION>(C, X, left, strided{y, 1, X}, C, shaped{LOWER_A, C}, [=](int t, int k, real sum) {
            out[t * X + k] = sum;
        });
        return;
    }
    decayed_runs<PRECISION>(out, a, y, *d);
    barrier();
    for (int i = threadIdx.x; i < runs_of(C, LEAF) * D; i += THREADS) {
        const int from = i / D * LEAF, k = i % D;
        real w[LEAF], factor = 1; /* y of each token of the leaf, decayed; up */
#pragma unroll
        for (int t = 0; t < LEAF; t++) {
            const int at = from + t;
            if (at >= C) break;
            const real own = d->f[at * D + k], in = y[at * D + k];
            w[t] = in;
            if (!d->strict) factor *= own;
            real sum = factor * out[at * D + k];
#pragma unroll
            for (int s = 0; s < t; s++) {
                if (!d->strict) w[s] *= own;
                sum += a[at * C + from + s] * w[s];
                if (d->strict) w[s] *= own;
            }
            if (!d->strict) sum += a[at * C + at] * in;
            if (d->strict) factor *= own;
            out[at * D + k] = sum;
        }
    }
}
