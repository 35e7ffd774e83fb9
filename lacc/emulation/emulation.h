/* CUDA source in, a program of the CPU out: g++ -std=c++17 -include emulation.h -x c++ NAME.cu compiles the
   file that nvcc gets. Blocks run one after another, a fiber for each thread, a warp as far as it comes
   before the next one: in ascending, descending or shuffled order (LACC_ORDER, or emulation_order).

   What hardware leaves undefined shows: shared memory is NaN when a block starts and is fenced; what is
   copied asynchronously is NaN until it is waited for; barriers and instructions of a warp that not all
   of its threads reach end the launch with an error, of which emulation_message tells; so does
   a race (races.h). A barrier goes by its line; emulation_skip leaves one out. */

#pragma once
#define LACC_EMULATED

#include "schedule.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict

/* ---- what primitives.cuh has for the machine */

#define threadIdx (emulation::all.self->index)
#define blockIdx (emulation::all.block)
#define blockDim (emulation::all.extent)
#define gridDim (emulation::all.grid)
#define barrier() emulation::wait_all(__LINE__)
#define warp_barrier() emulation::wait_warp(__LINE__)

/* That an address of shared memory is one, and aligned. */
static inline void in_shared(const void *at, int bytes, int aligned, const char *what) {
    const unsigned char *p = (const unsigned char *)at;
    if (p < emulation::all.shared || p + bytes > emulation::all.shared + emulation::all.bytes)
        emulation::fail("thread %d: %s outside of the %ld bytes of shared memory, at %ld", threadIdx.x, what,
                        (long)emulation::all.bytes, (long)(p - emulation::all.shared));
    if ((p - emulation::all.shared) % aligned)
        emulation::fail("thread %d: %s at %ld, which is no multiple of %d", threadIdx.x, what, (long)(p - emulation::all.shared),
                        aligned);
}


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

static __noinline__ void load_matrices(uint32_t (&out)[4], const void *row) {
    emulation::slot mine;
    in_shared(row, 16, 16, "ldmatrix");
    mine.address = row;
    const emulation::thread *const first = emulation::all.self - threadIdx.x % emulation::WARP;
    const void *const here = __builtin_return_address(0);
    mine = emulation::together("ldmatrix", 0, mine, [=](emulation::slot *s) {
        const uint32_t *rows[emulation::WARP];
        for (int i = 0; i < emulation::WARP; i++) rows[i] = (const uint32_t *)s[i].address;
        for (int i = 0; i < emulation::WARP; i++)
            for (int n = 0; n < 4; n++) {
                const uint32_t *const at = rows[n * 8 + i / 4] + i % 4;
                emulation::watch(first[i], at, 4, emulation::READS, here);
                memcpy(s[i].word + n, at, 4);
            }
    });
    memcpy(out, mine.word, sizeof out);
}

/* c += a b of a warp: of each pair of words of a and b `per` numbers, which `number(word, which)` gives. */
template <class Number>
static inline void emulated_multiply(const char *name, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int per,
                                     const Number &number) {
    emulation::slot mine;
    memcpy(mine.word, a, sizeof a);
    mine.word[4] = b0, mine.word[5] = b1;
    memcpy(mine.real + 6, c, sizeof c);
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
    memcpy(c, mine.real + 6, sizeof c);
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
static __noinline__ void copy_later(void *to, const void *from) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    const emulation::aside here;
    emulation::thread &self = *emulation::all.self;
    const void *const at = __builtin_return_address(0);
    in_shared(to, bytes, bytes, "cp.async");
    if ((uintptr_t)from % bytes)
        emulation::fail("thread %d: cp.async from an address that is no multiple of %d", emulation::number_of(self), bytes);
    emulation::watch(self, from, bytes, emulation::READS, at);
    emulation::watch(self, to, bytes, emulation::SENDS, at);
    memset(to, 0xff, bytes);
    self.copies.push_back({to, from, bytes, self.group, at});
}

static inline void end_group() {
    emulation::all.self->group++;
}

template <int pending>
static inline void wait_groups() {
    const emulation::aside here;
    emulation::thread &self = *emulation::all.self;
    std::vector<emulation::copy> left;
    for (const emulation::copy &c : self.copies)
        if (c.group < self.group - pending) {
            emulation::watch(self, c.from, c.bytes, emulation::READS, c.at);
            emulation::watch(self, c.to, c.bytes, emulation::ARRIVES, c.at);
            memcpy(c.to, c.from, c.bytes);
        } else
            left.push_back(c);
    self.copies.swap(left);
}

/* A kernel and its arguments. */
template <class Args>
struct call {
    void (*kernel)(Args);
    const Args &args;

    ASIDE static void run(const void *of) {
        const call &own = *(const call *)of;
        emulation::all.watched = true;
        own.kernel(own.args);
        emulation::all.watched = false;
    }
};

template <class Args>
static inline int launch(void (*kernel)(Args), int64_t programs, int64_t blocks, int threads, int64_t shared, void *,
                         const Args &args) {
    const call<Args> own = {kernel, args};
    return emulation::run((unsigned)programs, (unsigned)blocks, (unsigned)threads, shared, own.run, &own);
}
