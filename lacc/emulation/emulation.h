/* CUDA source in, a program of the CPU out: g++ -std=c++17 -include emulation.h -x c++ NAME.cu compiles the
   file that nvcc gets. Blocks run one after another, a fiber for each thread, a warp as far as it comes
   before the next one: in ascending, descending or shuffled order (LACC_ORDER, or emulation_order).

   What hardware leaves undefined shows: shared memory is NaN when a block starts and is fenced; what is
   copied asynchronously is NaN until it is waited for; barriers and instructions of a warp that not all
   of its threads reach end the launch with an error, of which emulation_message tells. Barriers are
   numbered; emulation_skip leaves one out. */

#pragma once
#define LACC_EMULATED

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <math.h>
#include <mutex>
#include <numeric>
#include <random>
#include <stdint.h>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict

namespace emulation {

struct index {
    unsigned x = 0, y = 0, z = 0;
};

enum { WARP = 32, WORDS = 12, STACK = 1 << 18, FENCE = 512, SHARED_MOST = 232448 };
enum state { READY, AT_BARRIER, AT_INSTRUCTION, ENDED };
enum { INVALID_VALUE = 1, LAUNCH_FAILURE = 719 };

struct copy {
    void *to;
    const void *from;
    int bytes, group;
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
    int number = 0, group = 0; /* of what it waits at; of copies */
    std::vector<copy> copies;
#if defined(__x86_64__)
    void *stack = nullptr;
#else
    ucontext_t context;
#endif
    void *fake = nullptr;
};

struct warp {
    slot slots[WARP];
    int arrived = 0;
};

struct machine {
    std::mutex mutex;
    std::vector<thread> threads;
    std::vector<warp> warps;
    std::function<void()> kernel;
    char *stacks = nullptr;
    size_t stacked = 0;
    unsigned char *shared = nullptr;
    int64_t bytes = 0;
    int order = -1, skipped = -1, seed = 1;
    std::mt19937 random;
    char message[400] = "";
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
inline thread *self = nullptr;
inline index block, grid, threads;

/* ---- fibers */

#if defined(__x86_64__)
/* Registers that a call keeps go to the stack that is left, those of the other one come from it. */
__attribute__((naked, noinline, noipa)) inline void swap_stacks(void **, void *) {
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}
#endif

inline char *stack_of(const thread &t) {
    return all.stacks + (&t - all.threads.data()) * STACK;
}

inline void enter(thread *t) {
    self = t;
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

inline void leave() {
    thread *const t = self;
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

inline void begin() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &all.bottom, &all.size);
#endif
    all.kernel();
    self->at = ENDED;
    leave();
}

inline void prepare(thread &t) {
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

inline void describe(const char *form, ...) {
    if (all.message[0]) return;
    va_list args;
    va_start(args, form);
    const int n = snprintf(all.message, sizeof all.message, "block (%u, %u): ", block.x, block.y);
    vsnprintf(all.message + n, sizeof all.message - n, form, args);
    va_end(args);
}

template <class... Args>
inline void fail(const char *form, Args... args) {
    describe(form, args...);
    for (;;) leave();
}

inline int number_of(const thread &t) {
    return (int)(&t - all.threads.data());
}

inline void *in_shared(const void *at, int bytes, int aligned, const char *what) {
    const unsigned char *p = (const unsigned char *)at;
    if (p < all.shared || p + bytes > all.shared + all.bytes)
        fail("thread %d: %s outside of the %ld bytes of shared memory, at %ld", number_of(*self), what, (long)all.bytes,
             (long)(p - all.shared));
    if ((p - all.shared) % aligned)
        fail("thread %d: %s at %ld, which is no multiple of %d", number_of(*self), what, (long)(p - all.shared), aligned);
    return (void *)at;
}

/* ---- what threads do together */

inline void wait_all(int number) {
    if (number == all.skipped) return;
    self->at = AT_BARRIER, self->number = number;
    leave();
}

/* An instruction of all lanes of a warp: the last to arrive acts on the slots of all. */
template <class Act>
inline slot together(const char *instruction, int number, const slot &mine, const Act &act) {
    const int own = number_of(*self), first = own / WARP * WARP;
    warp &w = all.warps[own / WARP];
    w.slots[own % WARP] = mine;
    self->instruction = instruction, self->number = number;
    if (++w.arrived < WARP) {
        self->at = AT_INSTRUCTION;
        leave();
        return w.slots[own % WARP];
    }
    for (int i = first; i < first + WARP; i++) {
        thread &t = all.threads[i];
        if (t.instruction != instruction || t.number != number)
            fail("threads %d and %d of a warp are at different instructions, %s and %s", i, own, t.instruction, instruction);
        t.at = READY;
    }
    w.arrived = 0;
    act(w.slots);
    return w.slots[own % WARP];
}

inline void wait_warp(int number) {
    if (number != all.skipped) together("warp_barrier", number, slot{}, [](slot *) {});
}

/* ---- the schedule */

inline std::vector<int> ordered(int n) {
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    if (all.order == 1) std::reverse(order.begin(), order.end());
    if (all.order == 2) std::shuffle(order.begin(), order.end(), all.random);
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
        if (t.at != first.at || (t.at == AT_BARRIER && t.number != first.number)) {
            const thread &one = t.at == AT_BARRIER ? t : first, &other = t.at == AT_BARRIER ? first : t;
            if (other.at == AT_BARRIER)
                describe("threads %d and %d wait at different barriers, %d and %d", number_of(one), number_of(other), one.number,
                         other.number);
            else
                describe("thread %d waits at barrier %d, but thread %d has ended", number_of(one), one.number, number_of(other));
        }
        left = left || t.at == AT_BARRIER;
    }
    return left && !all.message[0];
}

inline void run_block() {
    memset(all.shared, 0xff, all.bytes);
    for (thread &t : all.threads) {
        t.at = READY, t.group = 0, t.copies.clear();
        prepare(t);
    }
    for (warp &w : all.warps) w.arrived = 0;
    for (bool on = true; on;) {
        for (int w : ordered((int)all.warps.size())) {
            run_warp(w);
            if (all.message[0]) return;
        }
        on = at_barrier();
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

inline int run(unsigned columns, unsigned rows, unsigned count, int64_t bytes, std::function<void()> kernel) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (!columns || !rows || rows > 65535 || !count || count > 1024 || count % WARP || bytes > SHARED_MOST) return INVALID_VALUE;
    if (all.order < 0) {
        const char *order = getenv("LACC_ORDER");
        all.order = !order ? 0 : !strcmp(order, "descending") ? 1 : !strcmp(order, "shuffled") ? 2 : 0;
    }
    all.message[0] = 0;
    all.random.seed(all.seed);
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
    all.kernel = kernel;
    grid = index{columns, rows, 1}, threads = index{count, 1, 1};
    fence(false);
    for (unsigned y = 0; y < rows && !all.message[0]; y++)
        for (unsigned x = 0; x < columns && !all.message[0]; x++) {
            block = index{x, y, 0};
            run_block();
        }
    fence(true);
    if (all.message[0]) fprintf(stderr, "%s\n", all.message);
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

/* Leaves a barrier out, none for -1. */
__attribute__((used)) inline void emulation_skip(int number) {
    emulation::all.skipped = number;
}
}

/* ---- what primitives.cuh has for the machine */

#define threadIdx (emulation::self->index)
#define blockIdx (emulation::block)
#define blockDim (emulation::threads)
#define gridDim (emulation::grid)
#define barrier() emulation::wait_all(__COUNTER__)
#define warp_barrier() emulation::wait_warp(__COUNTER__)

static inline unsigned char *shared_memory() {
    return emulation::all.shared;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

template <class T>
static inline T across(T x, int mask) {
    emulation::slot mine;
    memcpy(mine.word, &x, sizeof x);
    mine.word[2] = (uint32_t)(threadIdx.x % emulation::WARP ^ mask) % emulation::WARP;
    mine = emulation::together("shuffle", 0, mine, [](emulation::slot *s) {
        for (int i = 0; i < emulation::WARP; i++) memcpy(s[i].word + 4, s[s[i].word[2]].word, sizeof(T));
    });
    memcpy(&x, mine.word + 4, sizeof x);
    return x;
}

static inline float from_fp16(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
    return float_of((magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : finite) | sign);
}

static inline uint32_t emulated_bf16(float x) {
    const uint32_t u = bits_of(x);
    return x != x ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

static inline uint32_t emulated_fp16(float x) {
    const uint32_t u = bits_of(x) & 0x7fffffffu, sign = bits_of(x) >> 16 & 0x8000u;
    const uint32_t normal = (u - (112u << 23) + 0xfffu + (u >> 13 & 1)) >> 13;
    const uint32_t small = bits_of(float_of(u) + 0.5f) - bits_of(0.5f); /* the sum rounds */
    return x != x ? 0x7fffu : (u >= 0x477ff000u ? 0x7c00u : u < 0x38800000u ? small : normal) | sign;
}

static inline uint32_t pair_bf16(float low, float high) {
    return emulated_bf16(high) << 16 | emulated_bf16(low);
}

static inline uint32_t pair_fp16(float low, float high) {
    return emulated_fp16(high) << 16 | emulated_fp16(low);
}

static inline uint32_t tf32_of(float x) {
    const uint32_t u = bits_of(x);
    return x - x == 0 ? (u + 0x1000u) & ~0x1fffu : u;
}

static inline void load_matrices(uint32_t (&out)[4], const void *row) {
    emulation::slot mine;
    mine.address = emulation::in_shared(row, 16, 16, "ldmatrix");
    mine = emulation::together("ldmatrix", 0, mine, [](emulation::slot *s) {
        const uint32_t *rows[emulation::WARP];
        for (int i = 0; i < emulation::WARP; i++) rows[i] = (const uint32_t *)s[i].address;
        for (int i = 0; i < emulation::WARP; i++)
            for (int n = 0; n < 4; n++) memcpy(s[i].word + n, rows[n * 8 + i / 4] + i % 4, 4);
    });
    std::copy(mine.word, mine.word + 4, out);
}

/* c += a b of a warp: of each pair of words of a and b `per` numbers, which `number(word, which)` gives. */
template <class Number>
static inline void emulated_multiply(const char *name, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int per,
                                     const Number &number) {
    emulation::slot mine;
    std::copy(a, a + 4, mine.word);
    mine.word[4] = b0, mine.word[5] = b1;
    std::copy(c, c + 4, mine.real + 6);
    mine = emulation::together(name, 0, mine, [=](emulation::slot *s) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < emulation::WARP; lane++)
            for (int w = 0; w < 4; w++)
                for (int e = 0; e < per; e++) {
                    const int k = (lane % 4) * per + e + w / 2 * 4 * per;
                    left[lane / 4 + w % 2 * 8][k] = number(s[lane].word[w], e);
                    if (w % 2 == 0) right[k][lane / 4] = number(s[lane].word[4 + w / 2], e);
                }
        for (int i = 0; i < 16; i++) {
            float sum[8] = {};
            for (int k = 0; k < 8 * per; k++)
                for (int j = 0; j < 8; j++) sum[j] += left[i][k] * right[k][j];
            for (int j = 0; j < 8; j++) s[i % 8 * 4 + j / 2].real[6 + i / 8 * 2 + j % 2] += sum[j];
        }
    });
    std::copy(mine.real + 6, mine.real + 10, c);
}

static inline void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated_multiply("mma bf16", c, a, b0, b1, 2, [](uint32_t w, int e) { return float_of(e ? w & 0xffff0000u : w << 16); });
}

static inline void multiply_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated_multiply("mma fp16", c, a, b0, b1, 2, [](uint32_t w, int e) { return from_fp16((uint16_t)(w >> 16 * e)); });
}

static inline void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated_multiply("mma tf32", c, a, b0, b1, 1, [](uint32_t w, int) { return float_of(w & ~0x1fffu); });
}

template <int bytes>
static inline void copy_later(void *to, const void *from) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    emulation::in_shared(to, bytes, bytes, "cp.async");
    if ((uintptr_t)from % bytes) emulation::fail("thread %d: cp.async from an address that is no multiple of %d",
                                                 emulation::number_of(*emulation::self), bytes);
    memset(to, 0xff, bytes);
    emulation::self->copies.push_back({to, from, bytes, emulation::self->group});
}

static inline void end_group() {
    emulation::self->group++;
}

template <int pending>
static inline void wait_groups() {
    std::vector<emulation::copy> left;
    for (const emulation::copy &c : emulation::self->copies)
        if (c.group < emulation::self->group - pending)
            memcpy(c.to, c.from, c.bytes);
        else
            left.push_back(c);
    emulation::self->copies.swap(left);
}

template <class Args>
static inline int launch(void (*kernel)(Args), int64_t programs, int64_t blocks, int threads, int64_t shared, void *,
                         const Args &args) {
    return emulation::run((unsigned)programs, (unsigned)blocks, (unsigned)threads, shared, [&] { kernel(args); });
}
