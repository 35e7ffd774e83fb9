/* The threads of a block in, fibers on stacks of their own out; and how a launch ends where the first
   mistake is. */

#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* Functions in which no access is a thread's of the kernel. */
#define ASIDE __attribute__((no_sanitize("thread")))

namespace emulation {

struct index {
    unsigned x = 0, y = 0, z = 0;
};

enum { WARP = 32, WORDS = 12, STACK = 1 << 18, FENCE = 512, SHARED_MOST = 232448, ARRAYS = 128 };
enum state { READY, AT_BARRIER, AT_INSTRUCTION, ENDED };
enum { INVALID_VALUE = 1, LAUNCH_FAILURE = 719 };

struct copy {
    void *to;
    const void *from;
    int bytes, group;
    const void *at; /* of the code */
};

/* What a lane gives to an instruction of its warp, and gets. */
union slot {
    float real[WORDS];
    uint32_t word[WORDS];
    const void *address;
};

struct thread {
    emulation::index index;
    state at = READY;
    const char *instruction = "";
    int line = 0, group = 0; /* of what it waits at; of copies */
    std::vector<copy> copies;
    int depth = 0; /* of calls that it is in, and the one that the kernel has made */
    const void *call = nullptr;
#if defined(__x86_64__)
    void *stack = nullptr;
#else
    ucontext_t context;
#endif
    void *fake = nullptr;
};

/* When threads last waited for one another, at which barrier, and when they last did at another one. */
struct waits {
    uint32_t since = 0, before = 0;
    int line = -1;
};

struct warp {
    slot slots[WARP];
    int arrived = 0;
    waits waited;
};

/* Global memory that a launch is given. */
struct array {
    uintptr_t begin, end;
    char name[40];
};

struct machine {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    std::vector<thread> threads;
    std::vector<warp> warps;
    void (*kernel)(const void *) = nullptr;
    const void *args = nullptr;
    char *stacks = nullptr;
    size_t stacked = 0;
    unsigned char *shared = nullptr;
    int64_t bytes = 0;
    int order = -1, skipped = -1, seed = 1;
    uint64_t random = 1;
    char message[1000] = "";
    thread *self = nullptr;
    emulation::index block, grid, extent;
    waits waited;
    uint32_t now = 0, began = 0, launched = 0; /* in waits; when the block did, and the launch */
    bool watched = false;                      /* whether the kernel is at work */
    array arrays[ARRAYS];                      /* by their places, with what else has one; none: all is allowed */
    int count = 0;
#if defined(__x86_64__)
    void *scheduler = nullptr;
#else
    ucontext_t scheduler;
#endif
    void *fake = nullptr;
    const void *bottom = nullptr;
    size_t size = 0;
};

inline machine all;

/* ---- fibers */

#if defined(__x86_64__)
/* Registers that a call keeps go to the stack that is left, those of the other one come from it. */
ASIDE __attribute__((naked, noinline, noipa)) inline void swap_stacks(void **, void *) {
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}
#endif

ASIDE inline char *stack_of(const thread &t) {
    return all.stacks + (&t - all.threads.data()) * STACK;
}

ASIDE inline void enter(thread *t) {
    all.self = t;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&all.fake, stack_of(*t), STACK);
#endif
#if defined(__x86_64__)
    swap_stacks(&all.scheduler, t->stack);
#else
    swapcontext(&all.scheduler, &t->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(all.fake, nullptr, nullptr);
#endif
}

ASIDE inline void leave() {
    thread *const t = all.self;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(t->at == ENDED ? nullptr : &t->fake, all.bottom, all.size);
#endif
#if defined(__x86_64__)
    swap_stacks(&t->stack, all.scheduler);
#else
    swapcontext(&t->context, &all.scheduler);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(t->fake, &all.bottom, &all.size);
#endif
}

ASIDE inline void begin() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &all.bottom, &all.size);
#endif
    all.kernel(all.args);
    all.self->at = ENDED;
    leave();
}

ASIDE inline void prepare(thread &t) {
    char *const low = stack_of(t);
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(low, STACK);
#endif
#if defined(__x86_64__)
    void **top = (void **)(low + STACK);
    *--top = nullptr;
    *--top = (void *)begin;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    t.stack = top;
#else
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = low;
    t.context.uc_stack.ss_size = STACK;
    makecontext(&t.context, begin, 0);
#endif
}

/* ---- errors: the launch ends where the first one is */

ASIDE inline void describe(const char *form, ...) {
    if (all.message[0]) return;
    va_list args;
    va_start(args, form);
    const int n = snprintf(all.message, sizeof all.message, "block (%u, %u): ", all.block.x, all.block.y);
    vsnprintf(all.message + n, sizeof all.message - n, form, args);
    va_end(args);
}

template <class... Args>
ASIDE inline void fail(const char *form, Args... args) {
    all.watched = false;
    describe(form, args...);
    for (;;) leave();
}

ASIDE inline int number_of(const thread &t) {
    return (int)(&t - all.threads.data());
}

} // namespace emulation
