/* Products of matrices in: tiles of any size and stride in, C (+)= A B out. Blocks of ROWS rows by
   VECTORS vectors of columns are summed in registers; columns of b are packed where they are no
   vectors yet. A single row or column goes through the matrix just once, as fast as memory gives it. */

enum { WHOLE, LOWER_OUT, LOWER_A, UPPER_A };

#if defined(__AVX512F__)
enum { ROWS = 4, VECTORS = 4 }; /* of 32 registers 16 sums, four vectors of b and one of a */
#elif defined(__aarch64__)
enum { ROWS = 6, VECTORS = 4 }; /* of 32 registers 24 sums, four vectors of b and one of a */
#else
enum { ROWS = 6, VECTORS = 2 }; /* of 16 registers 12 sums, two vectors of b and one of a */
#endif
enum { TALL = 8, LOW = 4, DEPTH = 128, WIDE = VECTORS * LANES }; /* TALL rows where half the vectors do */

typedef word lanes __attribute__((vector_size(VECTOR_BYTES)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (lanes){__VA_ARGS__})
#endif

/* A rule's value for each lane, to choose from 2 LANES: those of x, then those of y. */
#if VECTOR_BYTES == 64 && !defined(LACC_DOUBLE)
#define EACH(rule, n) EIGHT(rule, 0, n), EIGHT(rule, 8, n)
#elif VECTOR_BYTES == 64 || (VECTOR_BYTES == 32 && !defined(LACC_DOUBLE))
#define EACH(rule, n) EIGHT(rule, 0, n)
#elif VECTOR_BYTES == 32 || !defined(LACC_DOUBLE)
#define EACH(rule, n) FOUR(rule, 0, n)
#else
#define EACH(rule, n) rule(0, n), rule(1, n)
#endif
#define FOUR(rule, i, n) rule((i), n), rule((i) + 1, n), rule((i) + 2, n), rule((i) + 3, n)
#define EIGHT(rule, i, n) FOUR(rule, i, n), FOUR(rule, i + 4, n)
#define ZIP(i, n) ((n) * LANES / 2 + (i) / 2 + (i) % 2 * LANES)         /* one half of x and of y, in turns */
#define OWN(i, n) ((i) + ((i) & (n) ? LANES : 0))                       /* x, and y where bit n of the lane is set */
#define OTHER(i, n) (((i) ^ (n)) % LANES + ((i) & (n) ? LANES : 0))     /* the same of the lanes n away */

/* out [LANES rows, os apart] = the transpose of `rows` rows at x, xs apart, and zeros below them. */
INLINE void transposed(real *out, int64_t os, const real *x, int64_t xs, int64_t rows) {
    vec from[LANES], to[LANES];
    UNROLL for (int i = 0; i < LANES; i++) from[i] = i < rows ? *(const vec *)(x + i * xs) : (vec){0};
    UNROLL for (int n = LANES; n > 1; n /= 2) {
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            to[2 * i] = SHUFFLE(from[i], from[i + LANES / 2], EACH(ZIP, 0));
            to[2 * i + 1] = SHUFFLE(from[i], from[i + LANES / 2], EACH(ZIP, 1));
        }
        UNROLL for (int i = 0; i < LANES; i++) from[i] = to[i];
    }
    UNROLL for (int i = 0; i < LANES; i++) *(vec *)(out + i * os) = from[i];
}

/* panel [k][wide] = `width` columns of b with stride 1, and what lies behind them up to
   whole vectors: the row's neighbours as far as b reaches, then zeros. */
static void pack_rows(real *restrict panel, int64_t wide, int64_t k, int64_t width, const real *restrict b, int64_t bk) {
    const int64_t end = width + (bk > 0 ? (k - 1) * bk : 0);
    for (int64_t p = 0; p < k; p++, panel += wide)
        if (p * bk + wide <= end)
            for (int64_t j = 0; j < wide; j += LANES) *(vec *)(panel + j) = *(const vec *)(b + p * bk + j);
        else
            for (int64_t j = 0; j < wide; j++) panel[j] = j < width ? b[p * bk + j] : 0;
}

/* panel [k][wide] = `width` columns of b, zeros behind them up to whole vectors. */
static void pack(real *restrict panel, int64_t wide, int64_t k, int64_t width, const real *restrict b, int64_t bk, int64_t bn) {
    for (int64_t from = 0; from < width; from += LANES, b += LANES * bn, panel += LANES) {
        const int64_t columns = width - from < LANES ? width - from : LANES;
        int64_t p = 0;
        if (bk == 1 && columns == LANES)
            for (; p + LANES <= k; p += LANES) transposed(panel + p * wide, wide, b + p, bn, LANES);
        else if (bk == 1)
            for (; p + LANES <= k; p += LANES) transposed(panel + p * wide, wide, b + p, bn, columns);
        for (; p < k; p++)
            for (int64_t j = 0; j < LANES; j++) panel[p * wide + j] = j < columns ? b[p * bk + j * bn] : 0;
    }
}

/* `count` blocks of C, one below the other, each scale[row sm] base + a b, or a b alone where base is
   NULL; base lies as C does. From one to the next a and b go on by so much, and the sum is of `k_on`
   terms more, `k_most` at most; `lines` of what is wanted are asked for. */
typedef struct {
    const real *a, *b;
    real *c;
    const real *base, *scale;
    int64_t am, ak, bk, cm, sm, count, a_on, b_on, k, k_on, k_most, lines;
    ahead_t *ahead;
} strip_t;

/* Blocks of so many rows and vectors, their sums in registers. */
INLINE void sums(const int rows, const int vecs, const strip_t *x) {
    const int64_t am = x->am, ak = x->ak, bk = x->bk, cm = x->cm, sm = x->sm;
    const real *left = x->a, *right = x->b, *base = x->base, *scale = x->scale;
    real *c = x->c;
    for (int64_t n = x->count, k = x->k; n > 0; n--, k += x->k_on) {
        const real *a = left, *b = right;
        vec sum[TALL][VECTORS];
        if (x->lines) ask(x->ahead, x->lines);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < vecs; v++) sum[i][v] = (vec){0};
        for (int64_t p = k < x->k_most ? k : x->k_most; p > 0; p--, a += ak, b += bk) {
            vec row[VECTORS];
            UNROLL for (int v = 0; v < vecs; v++) row[v] = in_register(b + v * LANES);
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int v = 0; v < vecs; v++) sum[i][v] += a[i * am] * row[v];
        }
        if (base) {
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int v = 0; v < vecs; v++) sum[i][v] += scale[i * sm] * *(const vec *)(base + i * cm + v * LANES);
            base += rows * cm, scale += rows * sm;
        }
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < vecs; v++) *(vec *)(c + i * cm + v * LANES) = sum[i][v];
        left += x->a_on, right += x->b_on, c += rows * cm;
    }
}

INLINE void sums_of(const int rows, int vecs, const strip_t *x) {
    if (vecs == 1)
        sums(rows, 1, x);
    else if (vecs == 2)
        sums(rows, 2, x);
    else if (vecs == VECTORS - 1)
        sums(rows, VECTORS - 1, x);
    else
        sums(rows, VECTORS, x);
}

static DEVICE void strip(int64_t rows, int vecs, const strip_t *x) {
    x->ahead->work += rows * vecs * x->k * x->count;
    if (rows == TALL && vecs == 1)
        sums(TALL, 1, x);
    else if (rows == TALL)
        sums(TALL, VECTORS / 2, x);
    else if (rows == ROWS)
        sums_of(ROWS, vecs, x);
    else if (rows == LOW)
        sums_of(LOW, vecs, x);
    else
        sums_of(1, vecs, x);
}

/* c (+)= tile [rows][width]; of row i only what lies before column last + 1 + i counts. */
INLINE void put(real *restrict c, int64_t cm, int64_t cn, const real *restrict tile, int64_t rows, int64_t width, int64_t last,
                int add) {
    for (int64_t i = 0; i < rows; i++, c += cm, tile += WIDE) {
        const int64_t wanted = last + 1 + i < 0 ? 0 : last + 1 + i < width ? last + 1 + i : width;
        if (add)
            for (int64_t j = 0; j < wanted; j++) c[j * cn] += tile[j];
        else
            for (int64_t j = 0; j < width; j++) c[j * cn] = j < wanted ? tile[j] : 0;
    }
}

/* What a product is added to, laid out as C: base, or a factor of each row or column times it. */
typedef struct {
    const real *base, *scale;
    int64_t sm, sn;
} onto_t;

/* c [rows][width] from row i and column j on = what the product is added to. */
INLINE void begin(const onto_t *onto, real *c, int64_t cm, int64_t cn, int64_t i, int64_t j, int64_t rows, int64_t width) {
    static const real one = 1;
    const int64_t sm = onto->scale ? onto->sm : 0, sn = onto->scale ? onto->sn : 0;
    const real *scale = (onto->scale ? onto->scale : &one) + i * sm + j * sn, *x = onto->base + i * cm + j * cn;
    c += i * cm + j * cn;
    for (int64_t r = 0; r < rows; r++, c += cm, x += cm, scale += sm)
        if (cn == 1 && sn == 0) {
            const real factor = scale[0];
#pragma omp simd
            for (int64_t q = 0; q < width; q++) c[q] = factor * x[q];
        } else {
#pragma omp simd
            for (int64_t q = 0; q < width; q++) c[q * cn] = scale[q * sn] * x[q * cn];
        }
}

/* The first n numbers of x, and zeros. */
INLINE vec first_of(vec x, int64_t n) {
    lanes at;
    UNROLL for (int i = 0; i < LANES; i++) at[i] = (word)i;
    return (vec)((lanes)x & (lanes)(at < (word)(n < 0 ? 0 : n < LANES ? n : LANES)));
}

/* Zeros in rows of c where row i has columns from seen + i on, of `vecs` vectors. */
INLINE void clear_above(real *c, int64_t cm, int64_t rows, int64_t seen, int vecs) {
    for (int64_t i = 0; i < rows; i++, c += cm)
        for (int v = 0; v < vecs; v++) {
            vec *const x = (vec *)(c + v * LANES);
            *x = first_of(*x, seen + i - v * LANES);
        }
}

/* All rows of C by `width` columns from j on; b holds just these. */
static void columns(int64_t m, int64_t j, int64_t width, int64_t from, int64_t to, const real *a, int64_t am, int64_t ak,
                    const real *b, int64_t bk, real *c, int64_t cm, int64_t cn, int shape, int add, const onto_t *onto) {
    static const real one = 1;
    _Alignas(VECTOR_BYTES) real tile[TALL * WIDE];
    const int all = (int)((width + LANES - 1) / LANES);
    ahead_t *const asked = &ahead; /* looked up once: where a thread keeps it takes a call to find */
    const int64_t each = work_per_line(asked);
    const int onto_rows = onto && onto->sn == 0, direct = cn == 1 && width == all * LANES && (shape != LOWER_OUT || !add);
    for (int64_t i = 0, rows, count; i < m; i += rows * count) {
        const int64_t left = m - i, seen = shape == LOWER_OUT ? i - j : width; /* columns before the first row's last */
        const int half = all <= VECTORS / 2 || seen + TALL <= VECTORS / 2 * LANES;
        rows = left >= TALL && half ? TALL : left >= ROWS ? ROWS : left >= LOW ? LOW : 1, count = 1;
        const int vecs = seen + rows >= width ? all : seen + rows <= 0 ? 1 : (int)((seen + rows + LANES - 1) / LANES);
        const int64_t first = shape == UPPER_A && i > from ? i : from;
        const int64_t end = shape == LOWER_A && i + rows < to ? i + rows : to;
        const int64_t depth = first < end && seen + rows > 0 ? end - first : 0;
        strip_t x = {.a = a + i * am + first * ak, .b = b + (first - from) * bk, .c = c + i * cm, .scale = &one, .count = 1};
        x.ahead = asked, x.am = am, x.ak = ak, x.bk = bk, x.cm = cm, x.k = x.k_most = depth, x.a_on = rows * am;
        if (each) x.lines = rows * vecs * depth < each * ASKED ? rows * vecs * depth / each : ASKED;
        if (direct && onto_rows && !from) {
            x.base = onto->base + i * cm + j;
            if (onto->scale) x.scale = onto->scale + i * onto->sm, x.sm = onto->sm;
        } else {
            if (onto && !from) begin(onto, c - j * cn, cm, cn, i, j, rows, width);
            if (add && !depth) continue;
            if (add) x.base = x.c;
        }
        if (!direct) {
            x.c = tile, x.cm = WIDE, x.base = NULL;
            strip(rows, vecs, &x);
            if (cn == 1)
                put(c + i * cm, cm, 1, tile, rows, width, seen, add);
            else
                put(c + i * cm, cm, cn, tile, rows, width, seen, add);
            continue;
        }
        if (depth && !(onto && !onto_rows)) { /* those below are alike */
            const int64_t alike = seen + 1 >= width ? left : vecs * LANES - seen;
            if (shape == LOWER_A) x.k_on = rows, x.k_most = to - from;
            if (shape == UPPER_A && i >= from) x.a_on += rows * ak, x.b_on = rows * bk, x.k_on = -rows;
            if (shape != UPPER_A || i >= from) x.count = count = alike < rows ? 1 : (alike < left ? alike : left) / rows;
        }
        strip(rows, vecs, &x);
        if (seen + 1 < width) clear_above(x.c, cm, rows * count, seen + 1, all);
    }
}

/* out [width] = x b for four vectors of columns, two rows of b at a time. */
INLINE void row_sums(real *out, int vecs, int64_t k, const real *a, int64_t ak, const real *b, int64_t bk) {
    vec sum[2][4];
    UNROLL for (int v = 0; v < vecs; v++) sum[0][v] = sum[1][v] = (vec){0};
    int64_t p = 0;
    for (; p + 2 <= k; p += 2)
        UNROLL for (int v = 0; v < vecs; v++) {
            sum[0][v] += a[p * ak] * *(const vec *)(b + p * bk + v * LANES);
            sum[1][v] += a[(p + 1) * ak] * *(const vec *)(b + (p + 1) * bk + v * LANES);
        }
    if (p < k)
        UNROLL for (int v = 0; v < vecs; v++) sum[0][v] += a[p * ak] * *(const vec *)(b + p * bk + v * LANES);
    UNROLL for (int v = 0; v < vecs; v++) *(vec *)(out + v * LANES) = sum[0][v] + sum[1][v];
}

/* The sums of pairs of lanes n apart, of x and of y side by side: a blend and a shuffle. */
#define FOLD(x, y, n) (SHUFFLE(x, y, EACH(OWN, n)) + SHUFFLE(x, y, EACH(OTHER, n)))

/* The sum of each of LANES vectors. */
INLINE vec lane_sums(vec v[LANES]) {
    if (LANES > 8)
        UNROLL for (int i = 0; i < 8; i++) v[i] = FOLD(v[i], v[(i + 8) % LANES], 8);
    if (LANES > 4)
        UNROLL for (int i = 0; i < 4; i++) v[i % LANES] = FOLD(v[i % LANES], v[(i + 4) % LANES], 4);
    if (LANES > 2)
        UNROLL for (int i = 0; i < 2; i++) v[i] = FOLD(v[i], v[(i + 2) % LANES], 2);
    return FOLD(v[0], v[1], 1);
}

/* out [LANES] = products of x [k] with that many rows of b, bn apart. */
INLINE void dots(real *out, int64_t k, const real *x, const real *b, int64_t bn) {
    vec sum[LANES];
    UNROLL for (int j = 0; j < LANES; j++) sum[j] = (vec){0};
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES)
        UNROLL for (int j = 0; j < LANES; j++) sum[j] += *(const vec *)(x + p) * *(const vec *)(b + j * bn + p);
    *(vec *)out = lane_sums(sum);
    for (; p < k; p++)
        UNROLL for (int j = 0; j < LANES; j++) out[j] += x[p] * b[j * bn + p];
}

/* c [n] (+)= a b for one row a. */
static void row_product(int64_t n, int64_t k, const real *a, int64_t ak, const real *b, int64_t bk, int64_t bn, real *c,
                        int64_t cn, int add) {
    real out[4 * LANES];
    for (int64_t j = 0, width; j < n; j += width, b += width * bn) {
        width = 1;
        if (bn == 1 && n - j >= 4 * LANES) {
            row_sums(out, 4, k, a, ak, b, bk);
            width = 4 * LANES;
        } else if (bn == 1 && n - j >= LANES) {
            row_sums(out, 1, k, a, ak, b, bk);
            width = LANES;
        } else if (bk == 1 && ak == 1 && n - j >= LANES) {
            dots(out, k, a, b, bn);
            width = LANES;
        } else {
            real sum = 0;
            for (int64_t p = 0; p < k; p++) sum += a[p * ak] * b[p * bk];
            out[0] = sum;
        }
        for (int64_t i = 0; i < width; i++) c[(j + i) * cn] = add ? c[(j + i) * cn] + out[i] : out[i];
    }
}

enum { FOLDED = 16, EDGE = 4 }; /* sums that are folded together, what registers hold: a block of EDGE rows and columns */

INLINE void fold(real out[FOLDED], vec v[FOLDED]) {
    UNROLL for (int i = 0; i < FOLDED; i += LANES) *(vec *)(out + i) = lane_sums(v + i);
}

/* Whether C is made of rows of a and columns of b as they lie: so few columns are not worth packing. */
INLINE int few_columns(int64_t m, int64_t n, int64_t k, int64_t ak, int64_t bk, int64_t cn, int shape) {
    const int64_t few = shape == LOWER_OUT ? k / 4 : shape == WHOLE ? k / 8 : 0;
    return ak == 1 && bk == 1 && cn == 1 && n <= few && m % EDGE == 0 && n % EDGE == 0 && k % LANES == 0;
}

/* C = A B then, of WHOLE or LOWER_OUT. */
static DEVICE void inner_products(int64_t m, int64_t n, int64_t k, const real *a, int64_t am, const real *b, int64_t bn, real *c,
                                  int64_t cm, int shape) {
    for (int64_t i = 0; i < m; i += EDGE, a += EDGE * am, c += EDGE * cm) {
        const int64_t end = shape == LOWER_OUT && i + EDGE < n ? i + EDGE : n;
        for (int64_t j = 0; j < end; j += EDGE) {
            vec sum[FOLDED];
            real out[FOLDED];
            UNROLL for (int q = 0; q < FOLDED; q++) sum[q] = (vec){0};
            for (int64_t p = 0; p < k; p += LANES) {
                vec y[EDGE];
                UNROLL for (int s = 0; s < EDGE; s++) y[s] = in_register(b + (j + s) * bn + p);
                UNROLL for (int t = 0; t < EDGE; t++) {
                    const vec x = in_register(a + t * am + p);
                    UNROLL for (int s = 0; s < EDGE; s++) sum[t * EDGE + s] += x * y[s];
                }
            }
            fold(out, sum);
            for (int t = 0; t < EDGE; t++) memcpy(c + t * cm + j, out + t * EDGE, EDGE * sizeof(real));
        }
        for (int64_t t = 0; shape == LOWER_OUT && t < EDGE; t++)
            for (int64_t j = i + t + 1; j < n; j++) c[t * cm + j] = 0;
    }
}

/* `gemm_exact`, or with `onto` C = that + A B. */
static DEVICE void multiply(int64_t m, int64_t n, int64_t k, const real *a, int64_t am, int64_t ak, const real *b, int64_t bk,
                            int64_t bn, real *c, int64_t cm, int64_t cn, int shape, int add, const onto_t *onto) {
    onto_t flipped;
    const int flat = m > 1 && cm == 1 && cn != 1, thin = n < LANES && n < m;
    if (n == 1 && shape != LOWER_OUT) shape = WHOLE;
    if (shape == WHOLE && (flat || thin)) {
        const real *left = a;
        const int64_t rows = m, lm = am, lk = ak, down = cm;
        m = n, am = bn, ak = bk, a = b, cm = cn;
        n = rows, bn = lm, bk = lk, b = left, cn = down;
        if (onto) flipped = *onto, flipped.sm = onto->sn, flipped.sn = onto->sm, onto = &flipped;
    }
    if (shape == WHOLE && m == 1) {
        if (onto) begin(onto, c, cm, cn, 0, 0, 1, n);
        row_product(n, k, a, ak, b, bk, bn, c, cn, add);
        return;
    }
    if (!add && few_columns(m, n, k, ak, bk, cn, shape)) {
        inner_products(m, n, k, a, am, b, bn, c, cm, shape);
        return;
    }
    _Alignas(VECTOR_BYTES) real panel[DEPTH * WIDE];
    int64_t from = 0;
    do {
        const int64_t to = k - from < DEPTH ? k : from + DEPTH;
        for (int64_t j = 0; j < n; j += WIDE) {
            const int64_t width = n - j < WIDE ? n - j : WIDE;
            const real *right = b + from * bk + j * bn;
            const int64_t wide = (width + LANES - 1) / LANES * LANES;
            const int packed = bn != 1 || width < wide;
            if (bn != 1)
                pack(panel, wide, to - from, width, right, bk, bn);
            else if (packed)
                pack_rows(panel, wide, to - from, width, right, bk);
            columns(m, j, width, from, to, a, am, ak, packed ? panel : right, packed ? wide : bk, c + j * cn, cm, cn, shape,
                    add || from > 0, onto);
        }
        from = to;
    } while (from < k);
}

/* C[i cm + j cn] (+)= sum over p of a[i am + p ak] b[p bk + j bn]: added where `add`, else written.
   LOWER_OUT: only j <= i is wanted, the rest is written as 0, or left alone where `add`. LOWER_A,
   UPPER_A: a is 0 for p > i, p < i. */
static DEVICE void gemm_exact(int64_t m, int64_t n, int64_t k, const real *a, int64_t am, int64_t ak, const real *b, int64_t bk,
                              int64_t bn, real *c, int64_t cm, int64_t cn, int shape, int add) {
    multiply(m, n, k, a, am, ak, b, bk, bn, c, cm, cn, shape, add, NULL);
}

/* The sum of products of n numbers each. */
static UNUSED real dot(const real *a, const real *b, int64_t n) {
    vec sums[4];
    UNROLL for (int i = 0; i < 4; i++) sums[i] = (vec){0};
    int64_t k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES)
        UNROLL for (int i = 0; i < 4; i++) sums[i] += *(const vec *)(a + k + i * LANES) * *(const vec *)(b + k + i * LANES);
    for (; k + LANES <= n; k += LANES) sums[0] += *(const vec *)(a + k) * *(const vec *)(b + k);
    sums[0] += sums[1], sums[2] += sums[3], sums[0] += sums[2];
    real sum = 0;
    for (int i = 0; i < LANES; i++) sum += sums[0][i];
    for (; k < n; k++) sum += a[k] * b[k];
    return sum;
}

/* out [n] = the sums of products of the rows of a and b [n][width]; those of LANES rows are folded together. */
static UNUSED DEVICE void row_dots(real *out, const real *a, const real *b, int64_t n, int64_t width) {
    int64_t t = 0;
    for (; t + LANES <= n && width % LANES == 0; t += LANES, a += LANES * width, b += LANES * width) {
        vec sums[LANES];
        UNROLL for (int i = 0; i < LANES; i++) sums[i] = (vec){0};
        for (int64_t k = 0; k < width; k += LANES)
            UNROLL for (int i = 0; i < LANES; i++) sums[i] += *(const vec *)(a + i * width + k) * *(const vec *)(b + i * width + k);
        *(vec *)(out + t) = lane_sums(sums);
    }
    for (; t < n; t++, a += width, b += width) out[t] = dot(a, b, width);
}
