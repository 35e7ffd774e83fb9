/* What the machine does in, small functions out: threads that wait for one another, what the lanes of
   a warp exchange, products of small matrices, copies that arrive later. All else of a file is plain
   C++ over these. Macros choose what is built: THREADS of a block (whole warps), PRECISION of the
   operands of products, LACC_DOUBLE for double instead of float. */

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#else
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#ifndef LACC_EMULATED
#include <cuda_runtime.h>
#endif
#endif

#ifndef THREADS
#define THREADS 128
#endif
#ifndef PRECISION
#define PRECISION 2
#endif

/* Operands of products: 16 bits; float as the sum of two tf32 (three products); tf32; as they are. */
enum { BF16, FP16, TF32X3, TF32, PLAIN };
enum { LANES = 32, WARPS = THREADS / LANES };
static_assert(THREADS % LANES == 0 && THREADS <= 1024, "THREADS is not a number of whole warps");

#ifdef LACC_DOUBLE
typedef double real;
static_assert(PRECISION == PLAIN, "operands of products in double are what they are");
#else
typedef float real;
#endif
#define R(x) ((real)(x))

#define DEVICE [[maybe_unused]] static __device__ __noinline__
#define INLINE [[maybe_unused]] static __device__ __forceinline__
#define ROOM [[maybe_unused]] static constexpr __host__ __device__

#ifndef LACC_EMULATED

#define barrier() __syncthreads()
#define warp_barrier() __syncwarp()

/* The dynamic shared memory of the block. */
INLINE unsigned char *shared_memory() {
    extern __shared__ __align__(128) unsigned char memory[];
    return memory;
}

INLINE float float_of(uint32_t bits) {
    return __uint_as_float(bits);
}

INLINE uint32_t bits_of(float x) {
    return __float_as_uint(x);
}

/* x of the lane whose number differs from this one's in the bits of mask. */
template <class T>
INLINE T across(T x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
}

INLINE float from_fp16(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

/* Two numbers, rounded to the nearest, as 16 bits each. */
INLINE uint32_t pair_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

INLINE uint32_t pair_fp16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* The nearest number of 11 bits, the larger one of two. */
INLINE uint32_t tf32_of(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* Four matrices of 8 rows of 16 bytes in shared memory, each lane with the address of one row: lane l
   gets word l % 4 of row l / 4 of each. */
INLINE void load_matrices(uint32_t (&out)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

#define MULTIPLY(instruction, c, a, b0, b1)                                                                           \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

/* c [16][8] += a b, spread over the lanes of a warp; 16 or 8 terms a sum. */
INLINE void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MULTIPLY("m16n8k16.row.col.f32.bf16.bf16.f32", c, a, b0, b1);
}

INLINE void multiply_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32", c, a, b0, b1);
}

INLINE void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MULTIPLY("m16n8k8.row.col.f32.tf32.tf32.f32", c, a, b0, b1);
}

/* Bytes (4, 8 or 16, at addresses that are multiples of it) on their way into shared memory. */
template <int bytes>
INLINE void copy_later(void *shared, const void *global) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(global), "n"(bytes) : "memory");
}

/* Copies begun by this thread since the last call are a group. */
INLINE void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups of this thread but the last few. */
template <int pending>
INLINE void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#ifndef __CUDACC_RTC__
/* Starts programs times blocks blocks, if there are any; the error, or 0. */
template <class Args>
static int launch(void (*kernel)(Args), int64_t programs, int64_t blocks, int threads, int64_t shared, void *stream,
                  const Args &args) {
    if (programs < 1 || blocks < 1) return 0;
    if (programs > 0x7fffffff || blocks > 0xffff) return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess) return error;
    kernel<<<dim3((unsigned)programs, (unsigned)blocks), threads, shared, (cudaStream_t)stream>>>(args);
    return cudaGetLastError();
}
#endif

#endif
