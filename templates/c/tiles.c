/* ---- tiles and workspaces */

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define R(x) ((real)(x))
#define REALS(type) ((int64_t)((sizeof(type) + sizeof(real) - 1) / sizeof(real))) /* that hold one */

/* What a thread is started for: reals of workspace, once a token of a chunk. In chunks of 64 they take
   0.2 ms (lru) to 1 ms (gated_deltanet), several times what waking a thread takes. */
enum { WORTH_A_THREAD = 1 << 25 };

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The reals that a tile takes of a workspace: whole cache lines. */
static inline int64_t round_up(int64_t reals) { return (reals + 15) / 16 * 16; }

/* A tile of a workspace, which begins behind it then. */
static UNUSED real *take(real **w, int64_t reals) {
    real *const first = *w;
    *w += round_up(reals);
    return first;
}

static UNUSED void fill(real *out, real value, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = value;
}

static UNUSED void copy(real *out, const real *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
}

static UNUSED void add_to(real *out, const real *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] += x[i];
}

/* ---- states, which are where a caller has them as long as that will do */

/* Whether the entries of a head are reals one after another. */
static inline int is_real(const lacc_array *x) { return x->data && x->dtype == LACC_REAL; }

/* Where a state is: the caller's entries, or a tile of copies. */
static UNUSED real *state_there(const lacc_array *x, int64_t n, int64_t h, real *tile) {
    return is_real(x) ? (real *)place(x, n, h, 0) : tile;
}

/* The same, once they are copied. */
static UNUSED real *state_from(const lacc_array *x, int64_t n, int64_t h, real *tile, int64_t size) {
    if (!is_real(x)) load_tile(tile, x, n, h, 0, 1, size);
    return state_there(x, n, h, tile);
}

/* Where the last state is written: the caller's entries, or a tile where these are those that it
   starts from, or are no reals. */
static UNUSED real *state_into(const lacc_array *x, const lacc_array *begun, int64_t n, int64_t h, real *tile) {
    return is_real(x) && x->data != begun->data ? (real *)place(x, n, h, 0) : tile;
}

/* A state as chunk c found it: where these are, or a copy. */
static UNUSED const real *start_from(const lacc_array *x, int64_t n, int64_t h, int64_t c, real *tile, int64_t size) {
    if (is_real(x)) return (const real *)place(x, n, h, c);
    load_tile(tile, x, n, h, c, 1, size);
    return tile;
}

enum { NEAR = 1 << 18 }; /* reals that are still near a processor when all of them are written */

/* Keeps a state for the way back. Where there are many it goes past the caches, which would read first
   what it replaces. */
static UNUSED void keep_tile(const lacc_array *x, int64_t n, int64_t h, int64_t c, const real *tile, int64_t size, int far) {
    if (!far || !is_real(x)) {
        store_tile(x, n, h, c, tile, 1, size);
        return;
    }
    real *const out = (real *)place(x, n, h, c);
    int64_t i = 0;
    for (; i < size && (uintptr_t)(out + i) % VECTOR_BYTES; i++) out[i] = tile[i];
    for (; i + LANES <= size; i += LANES) STREAM(out + i, *(const vec *)(tile + i));
    for (; i < size; i++) out[i] = tile[i];
}

/* Lets other threads see what went past the caches. */
static UNUSED void kept_all(void) {
#ifdef __SSE__
    __builtin_ia32_sfence();
#endif
}

/* Stores the last state where it is not yet. */
static UNUSED void state_end(const lacc_array *x, int64_t n, int64_t h, const real *state, int64_t size) {
    if (!is_real(x) || (const real *)place(x, n, h, 0) != state) store_tile(x, n, h, 0, state, 1, size);
}

/* Memory that starts at a cache line; NULL where there is none. */
static real *allocate(int64_t reals) {
    return aligned_alloc(64, (size_t)most(round_up(reals), 16) * sizeof(real));
}

/* The same in memory of the caller's, of which a part of a line is left over: NULL where there is too little. */
static real *allocated(void *memory, int64_t bytes, int64_t reals) {
    const int64_t before = (int64_t)(-(uintptr_t)memory % LINE);
    return bytes < reals * (int64_t)sizeof(real) + LINE ? NULL : (real *)((char *)memory + before);
}

static inline int64_t thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* x86 takes a hundred times as long where a result lies below the smallest normal number, as
   products of decays do: these are 0 while a kernel runs. Numbers it is given count as they are. */
static inline unsigned flush_results(void) {
#ifdef __SSE__
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8000u);
    return mode;
#else
    return 0;
#endif
}

static inline void restore_mode(unsigned mode) {
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(mode);
#else
    (void)mode;
#endif
}
