/* ---- threads that share the chunks of one sequence and head: each takes the next that is left. What
   a chunk needs of the state waits for the chunk before it; all else does not, so what comes out is
   the same, bit by bit, for any number of threads. */

#ifdef _OPENMP
#include <sched.h>
#endif

typedef struct {
    int64_t value;
    char line[LINE - sizeof(int64_t)];
} counter;

/* Whose turn it is to change the state; the chunk that may end next; chunks taken; whether threads
   stand in each other's way (1), and one has gone on alone (2). */
typedef struct {
    counter state, done, taken, alone;
} queue;

/* A thread's place among `members`; ring: the tiles of each state, one more than members; heads that it
   takes together. */
typedef struct {
    int64_t members, ring, heads;
    real *shared;
    queue *queue;
    int alone;
    double since, waited, late;
} turns;

/* SPINS: tens of microseconds, after which a thread that waits lets others run. */
enum { TURNS = sizeof(queue) / sizeof(real), SPINS = 1 << 9 };

#define PATIENCE 0.5e-3 /* seconds that a thread waits for others that have no processor */

/* Threads of a call: groups of as many members, of which each takes `heads` of one sequence at a time. */
typedef struct {
    int64_t threads, members, groups, heads;
} crew;

enum { TOGETHER = 1 << 20 }; /* bytes of states that stay near a processor while their heads take turns */

/* The tiles of a state that changes where it is as long as nobody else reads it. */
static UNUSED int64_t ring_of(int64_t ring) { return ring > 2 ? ring : 1; }

static inline int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/* How many heads a thread takes together, `most_of` at most: what has the last thread done soonest. */
static inline int64_t heads_for(int64_t sequences, int64_t heads, int64_t threads, int64_t most_of) {
    int64_t best = 1, least_work = parts_of(sequences * heads, threads);
    for (int64_t n = 2; n <= least(heads, most_of); n++) {
        const int64_t work = parts_of(sequences * parts_of(heads, n), threads) * n;
        if (work <= least_work) best = n, least_work = work;
    }
    return best;
}

/* At most `threads` for all sequences and heads, several for each of `chunks` where these are few;
   state: bytes of a head. */
static inline crew crew_for(int64_t sequences, int64_t heads, int64_t threads, int64_t chunks, int64_t state) {
    const int64_t count = sequences * heads, members = count ? least(threads / count, chunks) : 1;
    if (members > 1) return (crew){members * count, members, count, 1};
    const int64_t alone = most(1, least(threads, count));
    return (crew){alone, 1, alone, heads_for(sequences, heads, alone, TOGETHER / most(1, state))};
}

/* Whether the heads of an array lie side by side, as they do with [sequences, tokens, heads, width]. */
static inline int side_by_side(const lacc_array *x) {
    return x && x->data && llabs(x->head) < llabs(x->token);
}

static inline int64_t threads_here(void) {
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

#ifdef _OPENMP
/* Waits until all chunks before i have given their turn. */
static UNUSED void wait_for(turns *by, const counter *of, int64_t i) {
    if (by->members == 1 || __atomic_load_n(&of->value, __ATOMIC_ACQUIRE) == i) return;
    const double start = omp_get_wtime();
    for (int64_t spins = 0; __atomic_load_n(&of->value, __ATOMIC_ACQUIRE) != i; spins++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
        if (spins > SPINS) sched_yield();
    }
    by->waited += omp_get_wtime() - start;
}

static inline void give_turn(const turns *by, counter *of, int64_t i) {
    if (by->members > 1) __atomic_store_n(&of->value, i + 1, __ATOMIC_RELEASE);
}

/* The chunk that this thread takes after `last`, -1 at first. Others change the state in no more than
   what it took itself for all of its chunk: a wait of more than that each is one for a processor, as
   where more threads run than there are. Then one goes on alone, and there is none for the others. */
static UNUSED int64_t next_chunk(turns *by, int64_t last) {
    if (by->members == 1) return last + 1;
    const double now = omp_get_wtime(), busy = now - by->since - by->waited;
    const double late = by->waited - (double)by->members * busy;
    if (last >= 0 && late > 0) by->late += late;
    by->since = now;
    by->waited = 0;
    int64_t *const alone = &by->queue->alone.value, none = 0, wanted = 1;
    if (by->late > PATIENCE)
        __atomic_compare_exchange_n(alone, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (!by->alone && __atomic_load_n(alone, __ATOMIC_ACQUIRE)) {
        by->alone = __atomic_compare_exchange_n(alone, &wanted, 2, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        if (!by->alone) return INT64_MAX;
    }
    return __atomic_fetch_add(&by->queue->taken.value, 1, __ATOMIC_ACQ_REL);
}
#else
#define wait_for(by, of, i) ((void)0)
#define give_turn(by, of, i) ((void)0)
#define next_chunk(by, last) ((last) + 1)
#endif
