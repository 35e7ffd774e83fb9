/* Fibers in, blocks of threads that wait for one another out: barriers, instructions of all lanes of a
   warp, and the order in which threads run. */

#pragma once
#include "races.h"

#include <cmath>

namespace emulation {

/* ---- what threads do together */

inline void wait_all(int line) {
    const aside here;
    if (line == all.skipped) return;
    all.self->at = AT_BARRIER, all.self->line = line;
    leave();
}

/* An instruction of all lanes of a warp: the last to arrive acts on the slots of all. */
template <class Act>
inline slot together(const char *instruction, int line, const slot &mine, const Act &act) {
    const aside here;
    const int own = number_of(*all.self), first = own / WARP * WARP;
    warp &w = all.warps[own / WARP];
    w.slots[own % WARP] = mine;
    all.self->instruction = instruction, all.self->line = line;
    if (++w.arrived < WARP) {
        all.self->at = AT_INSTRUCTION;
        leave();
        return w.slots[own % WARP];
    }
    for (int i = first; i < first + WARP; i++) {
        thread &t = all.threads[i];
        if (t.instruction != instruction || t.line != line)
            fail("threads %d and %d of a warp are at different instructions, %s and %s", i, own, t.instruction, instruction);
        t.at = READY;
    }
    w.arrived = 0;
    act(w.slots);
    return w.slots[own % WARP];
}

inline void wait_warp(int line) {
    if (line == all.skipped) return;
    warp &own = all.warps[number_of(*all.self) / WARP];
    together("warp_barrier", line, slot{}, [&own, line](slot *) { pass(own.waited, line); });
}

/* ---- the schedule */

inline std::vector<int> ordered(int n) {
    std::vector<int> order(n);
    for (int i = 0; i < n; i++) order[i] = all.order == 1 ? n - 1 - i : i;
    for (int i = n - 1; i > 0 && all.order == 2; i--) {
        all.random = all.random * 6364136223846793005u + 1442695040888963407u;
        const int k = (int)((all.random >> 33) % (i + 1)), kept = order[i];
        order[i] = order[k], order[k] = kept;
    }
    return order;
}

inline void run_warp(int w) {
    const std::vector<int> lanes = ordered(WARP);
    for (bool ran = true; ran;) {
        ran = false;
        for (int lane : lanes) {
            thread &t = all.threads[w * WARP + lane];
            if (t.at != READY) continue;
            ran = true;
            enter(&t);
            if (all.message[0]) return;
        }
    }
}

/* Whether all threads are at one barrier; else none may be left. */
inline bool at_barrier() {
    const thread &first = all.threads[0];
    bool left = false;
    for (const thread &t : all.threads) {
        if (t.at == AT_INSTRUCTION) describe("thread %d waits in vain for its warp at %s", number_of(t), t.instruction);
        if (t.at != first.at || (t.at == AT_BARRIER && t.line != first.line)) {
            const thread &one = t.at == AT_BARRIER ? t : first, &other = t.at == AT_BARRIER ? first : t;
            if (other.at == AT_BARRIER)
                describe("threads %d and %d wait at different barriers, in lines %d and %d", number_of(one), number_of(other), one.line,
                         other.line);
            else
                describe("thread %d waits at the barrier in line %d, but thread %d has ended", number_of(one), one.line, number_of(other));
        }
        left = left || t.at == AT_BARRIER;
    }
    return left && !all.message[0];
}

inline void run_block() {
    memset(all.shared, 0xff, all.bytes);
    all.waited = waits{later(), all.now, -1};
    all.began = all.now;
    for (thread &t : all.threads) {
        t.at = READY, t.group = t.depth = 0, t.call = nullptr, t.copies.clear();
        prepare(t);
    }
    for (warp &w : all.warps) w.arrived = 0;
    for (bool on = true; on;) {
        for (int w : ordered((int)all.warps.size())) {
            run_warp(w);
            if (all.message[0]) return;
        }
        on = at_barrier();
        if (on) pass(all.waited, all.threads[0].line);
        for (thread &t : all.threads)
            if (on) t.at = READY;
    }
}

inline void fence(bool check) {
    unsigned char *sides[] = {all.shared - FENCE, all.shared + all.bytes};
    for (unsigned char *side : sides) {
#if defined(__SANITIZE_ADDRESS__)
        ASAN_UNPOISON_MEMORY_REGION(side, FENCE);
#endif
        for (int i = 0; i < FENCE; i++)
            if (!check)
                side[i] = i % 4 ? 0xff : 0xa5;
            else if (side[i] != (i % 4 ? 0xff : 0xa5))
                describe("shared memory was written %s its %ld bytes", side < all.shared ? "before" : "behind", (long)all.bytes);
#if defined(__SANITIZE_ADDRESS__)
        if (!check) ASAN_POISON_MEMORY_REGION(side, FENCE);
#endif
    }
}

/* One launch after another. */
struct locked {
    locked() {
        pthread_mutex_lock(&all.mutex);
    }
    ~locked() {
        pthread_mutex_unlock(&all.mutex);
    }
};

inline int run(unsigned columns, unsigned rows, unsigned count, int64_t bytes, void (*kernel)(const void *), const void *args) {
    const locked lock;
    if (!columns || !rows || rows > 65535 || !count || count > 1024 || count % WARP || bytes > SHARED_MOST) return INVALID_VALUE;
    if (all.order < 0) {
        const char *order = getenv("LACC_ORDER");
        all.order = !order ? 0 : !strcmp(order, "descending") ? 1 : !strcmp(order, "shuffled") ? 2 : 0;
    }
    all.message[0] = 0;
    all.random = (uint64_t)all.seed;
    if (all.stacked < count) {
        if (all.stacks) munmap(all.stacks, all.stacked * STACK);
        all.stacks = (char *)mmap(nullptr, (size_t)count * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all.stacks == MAP_FAILED) abort();
        all.stacked = count;
        for (unsigned i = 0; i < count; i++) mprotect(all.stacks + (size_t)i * STACK, 4096, PROT_NONE);
    }
    all.threads.assign(count, thread());
    all.warps.assign(count / WARP, warp());
    for (unsigned i = 0; i < count; i++) all.threads[i].index = index{i, 0, 0};
    std::vector<unsigned char> memory(bytes + 3 * FENCE);
    all.shared = memory.data() + FENCE;
    all.shared += FENCE - (uintptr_t)all.shared % FENCE, all.bytes = bytes;
    all.kernel = kernel, all.args = args;
    all.grid = index{columns, rows, 1}, all.extent = index{count, 1, 1};
    fence(false);
    begin_races();
    for (unsigned y = 0; y < rows && !all.message[0]; y++)
        for (unsigned x = 0; x < columns && !all.message[0]; x++) {
            all.block = index{x, y, 0};
            run_block();
        }
    fence(true);
    return all.message[0] ? LAUNCH_FAILURE : 0;
}

} // namespace emulation

extern "C" {
__attribute__((used)) inline const char *emulation_message() {
    return emulation::all.message;
}

/* 0: ascending, 1: descending, 2: shuffled. */
__attribute__((used)) inline void emulation_order(int order, int seed) {
    emulation::all.order = order, emulation::all.seed = seed;
}

/* The arrays of the next launches, by their places, disjoint: names, first bytes, and those behind the last. */
__attribute__((used)) inline void emulation_arrays(int count, const char *const *names, const uintptr_t *begins, const uintptr_t *ends) {
    emulation::all.count = count < emulation::ARRAYS ? count : 0;
    for (int i = 0; i < emulation::all.count; i++) {
        emulation::array &x = emulation::all.arrays[i];
        x.begin = begins[i], x.end = ends[i];
        snprintf(x.name, sizeof x.name, "%s", names[i]);
    }
}

/* Leaves a barrier out, none for -1. */
__attribute__((used)) inline void emulation_skip(int line) {
    emulation::all.skipped = line;
}
}
