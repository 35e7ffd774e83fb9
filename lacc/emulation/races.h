/* Accesses to memory in, races out: two threads touch the same bytes, one of them writes, and no barrier
   lies between (nor a barrier of the warp that both are of; blocks of a launch have none). It takes one
   run in any order of threads. Where the compiler tells of accesses (-fsanitize=thread; its own runtime
   is not used), each is compared with the last write and the last reads of the bytes. A launch ends with
   its first race.

   Where it is known which arrays a launch has (emulation_arrays), an access to other memory ends it, too.

   Time is counted in barriers. Reads are kept as the last one and as one more, of another block or warp
   while there is one that no barrier orders before what comes next, else of another thread. */

#pragma once
#include "threads.h"

#include <dlfcn.h>

#if defined(__SANITIZE_THREAD__)
extern "C" __attribute__((visibility("hidden"))) void *__dso_handle;
extern "C" __attribute__((visibility("hidden"))) char _end; /* of the library */
#endif

namespace emulation {

ASIDE inline uint32_t later() {
    return ++all.now;
}

ASIDE inline void pass(waits &waited, int line) {
    if (line != waited.line) waited.before = waited.since;
    waited.since = later(), waited.line = line;
}

/* While one is there, accesses are those of the emulation. */
struct aside {
    const bool watched = all.watched;
    ASIDE aside() {
        all.watched = false;
    }
    ASIDE ~aside() {
        all.watched = watched;
    }
};

#if defined(__SANITIZE_THREAD__)

enum { READS, WRITES, SENDS, ARRIVES };
enum { PAGE = 1 << 12, SHARED_GRAIN = 4, GRAIN = 2, TABLE = 1 << 14, LINES = 1 << 14 };

struct access {
    uint32_t at = 0, block = 0;
    uint16_t thread = 0;
    bool sent = false;
    uint32_t from = 0, call = 0; /* in the library: the access, and the call of the kernel that it is in */
};

struct cell {
    access written, read, other;
};

struct page {
    uintptr_t number;
    page *next;
    cell cells[PAGE / GRAIN];
};

struct shadow {
    cell shared[(SHARED_MOST + SHARED_GRAIN - 1) / SHARED_GRAIN];
    page *pages[TABLE];
    page *recent;
    size_t count;
    uintptr_t base; /* of the library that runs */
};

inline shadow *seen = nullptr;
inline bool needed[LINES]; /* by line: what accesses have been that it alone orders */

ASIDE inline void begin_races() {
    if (!seen || seen->count > 1000 || all.now > 1u << 31) {
        for (size_t i = 0; seen && i < TABLE; i++)
            for (page *p = seen->pages[i], *next; p; p = next) next = p->next, free(p);
        free(seen);
        seen = (shadow *)calloc(1, sizeof(shadow));
        if (!seen) abort();
        all.now = 0;
    }
    all.launched = later();
    Dl_info info;
    seen->base = dladdr(&__dso_handle, &info) ? (uintptr_t)info.dli_fbase : 0;
}

ASIDE inline cell *cells_of(uintptr_t at) {
    const uintptr_t number = at / PAGE;
    page *found = seen->recent;
    if (!found || found->number != number) {
        page **slot = seen->pages + number % TABLE;
        for (found = *slot; found && found->number != number;) found = found->next;
        if (!found) {
            found = (page *)calloc(1, sizeof(page));
            if (!found) abort();
            found->number = number, found->next = *slot, *slot = found, seen->count++;
        }
        seen->recent = found;
    }
    return found->cells + at % PAGE / GRAIN;
}

ASIDE inline bool of_one_warp(const access &a, const access &b) {
    return a.block == b.block && a.thread / WARP == b.thread / WARP;
}

/* Whether an access is one of another thread that nothing orders before one of now, or on its way. */
ASIDE inline bool open(const access &old, const access &now, uint32_t floor) {
    if (old.at < floor) return false;
    if (old.block != now.block || old.sent) return true;
    if (old.thread == now.thread || old.at < all.waited.since) return false;
    return !of_one_warp(old, now) || old.at >= all.warps[now.thread / WARP].waited.since;
}

/* Finds the barrier that alone orders an access of another thread of the block before one of now. */
ASIDE inline void order(const access &old, const access &now) {
    if (old.at < all.began || old.block != now.block || old.thread == now.thread) return;
    const waits &warp = all.warps[now.thread / WARP].waited;
    const bool together = of_one_warp(old, now) && old.at < warp.since;
    const bool apart = old.at < all.waited.since;
    const waits &by = together ? warp : all.waited;
    if (together != apart && old.at >= by.before && by.line < LINES) needed[by.line] = true;
}

/* Whether a thread does what it did, and nothing was waited for since: what is to be said was said. */
ASIDE inline bool again(const access &old, const access &now) {
    return old.at == now.at && old.thread == now.thread && old.block == now.block;
}

ASIDE inline void tell(const access &old, const char *did, const access &now, int kind, const void *at, bool shared) {
    static const char *const does[] = {"reads", "writes", "sends for", ""};
    char place[40] = "global memory", whose[60] = "";
    if (shared) snprintf(place, sizeof place, "byte %ld of shared memory", (long)((unsigned char *)at - all.shared));
    if (old.block != now.block) snprintf(whose, sizeof whose, " of block (%u, %u)", old.block % all.grid.x, old.block / all.grid.x);
    fail("thread %d %s %s at {%x %x}, which thread %d%s %s at {%x %x}, and no barrier lies between", now.thread, does[kind], place,
         now.from, now.call, old.thread, whose, old.sent ? "has sent for and not waited for" : did, old.from, old.call);
}

/* Ends a launch that touches global memory outside of all arrays. */
ASIDE inline void inside(const thread &t, uintptr_t at, int bytes, int kind, const access &now) {
    int low = 0, high = all.count;
    while (low < high) {
        const int middle = (low + high) / 2;
        (all.arrays[middle].end > at ? high : low) = middle + (all.arrays[middle].end <= at);
    }
    const array *const behind = low ? all.arrays + low - 1 : nullptr;
    if (low < all.count && all.arrays[low].begin <= at && at + bytes <= all.arrays[low].end) return;
    if (at >= seen->base && at < (uintptr_t)&_end) return; /* a constant */
    const array *const before = low < all.count ? all.arrays + low : nullptr;
    const bool last = behind && (!before || at - behind->end < before->begin - at);
    const array *const near = last ? behind : before;
    fail("thread %d %s %d bytes of global memory, %ld bytes %s %s, at {%x %x}", number_of(t), kind == READS ? "reads" : "writes", bytes,
         (long)(last ? at - behind->end : before->begin - at), last ? "behind the end of" : "before", near->name, now.from, now.call);
}

/* An access of a thread, `from` some place of the code. */
ASIDE inline void watch(const thread &t, const void *at, int bytes, int kind, const void *from) {
    const uintptr_t p = (uintptr_t)at;
    const bool shared = p - (uintptr_t)all.shared < (size_t)all.bytes;
    if (!shared && (p - (uintptr_t)all.stacks < all.stacked * STACK || p - (uintptr_t)&all < sizeof all ||
                    p - (uintptr_t)all.threads.data() < all.threads.size() * sizeof(thread)))
        return;
    access now;
    now.at = all.now, now.block = all.block.y * all.grid.x + all.block.x, now.thread = (uint16_t)number_of(t);
    now.sent = kind == SENDS, now.from = (uint32_t)((uintptr_t)from - seen->base);
    now.call = t.call ? (uint32_t)((uintptr_t)t.call - seen->base) : 0;
    if (!shared && all.count) inside(t, p, bytes, kind, now);
    const uint32_t floor = shared ? all.began : all.launched;
    const int grain = shared ? SHARED_GRAIN : GRAIN;
    for (uintptr_t q = p / grain * grain; q < p + bytes; q += grain) {
        cell &c = shared ? seen->shared[(q - (uintptr_t)all.shared) / SHARED_GRAIN] : *cells_of(q);
        access &last = kind == READS ? c.read : c.written;
        if (kind <= WRITES && again(last, now) && !c.written.sent) continue;
        if (kind != ARRIVES && open(c.written, now, floor)) tell(c.written, "wrote", now, kind, (void *)q, shared);
        order(c.written, now);
        if (kind == READS) {
            const bool stays = open(c.other, now, floor) && !of_one_warp(c.other, now) &&
                               (c.other.block != now.block || of_one_warp(c.read, now));
            if ((c.read.thread != now.thread || c.read.block != now.block) && !stays) c.other = c.read;
        } else {
            order(c.read, now), order(c.other, now);
            if (open(c.read, now, floor)) tell(c.read, "read", now, kind, (void *)q, shared);
            if (open(c.other, now, floor)) tell(c.other, "read", now, kind, (void *)q, shared);
        }
        last = now;
    }
}

ASIDE inline void watch(const void *at, int bytes, int kind, const void *from) {
    if (all.watched) watch(*all.self, at, bytes, kind, from);
}

#else

enum { READS, WRITES, SENDS, ARRIVES };

inline void begin_races() {}

inline void watch(const thread &, const void *, int, int, const void *) {}

#endif

} // namespace emulation

#if defined(__SANITIZE_THREAD__)

/* What the compiler calls. */
#define HOOK(...) __attribute__((used, visibility("hidden"), no_sanitize("thread"))) void __VA_ARGS__
#define CALLER __builtin_return_address(0)
#define ACCESSES(name, bytes)                                       \
    HOOK(__tsan_read##name(void *at)) {                             \
        emulation::watch(at, bytes, emulation::READS, CALLER);      \
    }                                                               \
    HOOK(__tsan_write##name(void *at)) {                            \
        emulation::watch(at, bytes, emulation::WRITES, CALLER);     \
    }

extern "C" {
/* Whether the barrier in each line alone has ordered accesses so far. */
__attribute__((used)) inline bool *emulation_needed() {
    return emulation::needed;
}

ACCESSES(1, 1)
ACCESSES(2, 2)
ACCESSES(4, 4)
ACCESSES(8, 8)
ACCESSES(16, 16)

HOOK(__tsan_read_range(void *at, size_t bytes)) {
    emulation::watch(at, (int)bytes, emulation::READS, CALLER);
}

HOOK(__tsan_write_range(void *at, size_t bytes)) {
    emulation::watch(at, (int)bytes, emulation::WRITES, CALLER);
}

HOOK(__tsan_func_entry(void *call)) {
    if (emulation::all.watched && emulation::all.self->depth++ == 1) emulation::all.self->call = call;
}

HOOK(__tsan_func_exit()) {
    if (emulation::all.watched && --emulation::all.self->depth == 1) emulation::all.self->call = nullptr;
}

HOOK(__tsan_init()) {}

HOOK(__tsan_vptr_update(void **, void *)) {}
}

#endif
