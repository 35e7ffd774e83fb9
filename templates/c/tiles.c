/* ---- tiles and workspaces */

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define R(x) ((real)(x))

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The reals that a tile takes of a workspace: whole cache lines. */
static inline int64_t round_up(int64_t reals) { return (reals + 15) / 16 * 16; }

static inline void fill(real *out, real value, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = value;
}

static inline void copy(real *out, const real *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
}

static UNUSED void add_to(real *out, const real *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] += x[i];
}

static UNUSED void swap(real **a, real **b) {
    real *const first = *a;
    *a = *b;
    *b = first;
}

/* Memory that starts at a cache line; NULL where there is none. */
static real *allocate(int64_t reals) {
    return aligned_alloc(64, (size_t)most(round_up(reals), 16) * sizeof(real));
}

static inline int64_t thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
