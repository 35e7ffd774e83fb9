/* Tiles in, tiles out, entry by entry: set, copied, added to. */

DEVICE void fill(real *out, real value, int n) {
    for (int i = threadIdx.x; i < n; i += THREADS) out[i] = value;
}

DEVICE void copy(real *out, const real *x, int n) {
    for (int i = threadIdx.x; i < n; i += THREADS) out[i] = x[i];
}

DEVICE void add_to(real *out, const real *x, int n) {
    for (int i = threadIdx.x; i < n; i += THREADS) out[i] += x[i];
}
