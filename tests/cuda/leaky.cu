#include "leaky.h"

#ifndef D_K
#define D_K 4
#endif
#ifndef BLOCK
#define BLOCK 16
#endif
#ifndef THREADS
#define THREADS 128
#endif
#if !defined(LACC_EMULATED) && !defined(__CUDACC_RTC__)
template <class Args>
static int launch(void (*kernel)(Args), int64_t programs, int64_t blocks, int threads, int64_t shared, void *stream,
                  const Args &args) {
    kernel<<<dim3((unsigned)programs, (unsigned)blocks), threads, shared, (cudaStream_t)stream>>>(args);
    return cudaGetLastError();
}
#endif
#ifndef T_x
#define T_x 0
#endif
#ifndef T_w
#define T_w 0
#endif
#ifndef T_o
#define T_o 0
#endif
#ifndef T_d_o
#define T_d_o 0
#endif
#ifndef T_dx
#define T_dx 0
#endif
#ifdef LACC_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* Entries of arrays by T_<pointer>: bfloat16 is 2 bytes, cut off from a float. */
struct bf16 {
    unsigned short bits;
};
template <int number>
struct element {
    typedef real type;
};
template <>
struct element<1> {
    typedef bf16 type;
};

static __device__ real get(const real *x) {
    return *x;
}
static __device__ real get(const bf16 *x) {
    const unsigned bits = (unsigned)x->bits << 16;
    return (real) * (const float *)&bits;
}
static __device__ void put(real *x, real value) {
    *x = value;
}
static __device__ void put(bf16 *x, real value) {
    const float rounded = (float)value;
    unsigned bits = *(const unsigned *)&rounded;
    bits += 0x7fff + (bits >> 16 & 1);
    x->bits = (unsigned short)(bits >> 16);
}

/* Where a sequence stands: its first token and how many it has. */
static __device__ void place(int64_t n, int64_t T, const int64_t *cu, int64_t *batch, int64_t *first, int64_t *tokens) {
    *batch = cu ? 0 : n;
    *first = cu ? cu[n] : 0;
    *tokens = cu ? cu[n + 1] - cu[n] : T;
}

#if !defined(LACC_ONLY) || defined(LACC_ONLY_forward)
extern "C" __global__ void leaky_forward(const leaky_forward_args a) {
    const int64_t program = a.program0 + blockIdx.x, n = program / a.H, h = program % a.H;
    const int64_t row = a.rows ? ((const int64_t *)a.rows)[n] : n;
    int64_t batch, first, tokens;
    place(n, a.T, (const int64_t *)a.cu, &batch, &first, &tokens);
    for (int64_t i = threadIdx.x; i < BLOCK; i += THREADS) {
        const int64_t k = (int64_t)blockIdx.y * BLOCK + i;
        if (k >= D_K) continue;
        const element<T_x>::type *x = (const element<T_x>::type *)a.x + batch * a.x_batch + first * a.x_token + h * a.x_head + k * a.x_K;
        element<T_o>::type *o = (element<T_o>::type *)a.o + ((batch * a.T + first) * a.H + h) * D_K + k;
        const real w = get((const element<T_w>::type *)a.w + h * D_K + k);
        real s = a.begun ? ((const real *)a.begun)[(row * a.H + h) * D_K + k] : 0;
        for (int64_t t = 0; t < tokens; t++) {
            s = w * s + get(x + t * a.x_token);
            put(o + t * a.H * D_K, s);
            if (a.kept) ((real *)a.kept)[((batch * a.T + first + t) * a.H + h) * D_K + k] = s;
        }
        ((real *)a.ended)[((a.into ? row : n) * a.H + h) * D_K + k] = s;
    }
}

#ifdef __CUDACC_RTC__
extern "C" __device__ long long leaky_forward_needs[3] = {0, 0, 0};
#else
extern "C" int64_t leaky_forward_shared(void) { return 0; }
extern "C" int64_t leaky_forward_scratch(void) { return 0; }
extern "C" int64_t leaky_forward_together(void) { return 0; }
extern "C" int leaky_forward_launch(const leaky_forward_args *a, int64_t programs, int64_t blocks, void *stream) {
    return launch(leaky_forward, programs, blocks, THREADS, 0, stream, *a);
}
#endif
#endif

#if !defined(LACC_ONLY) || defined(LACC_ONLY_backward)
extern "C" __global__ void leaky_backward(const leaky_backward_args a) {
    const int64_t program = a.program0 + blockIdx.x, n = program / a.H, h = program % a.H;
    int64_t batch, first, tokens;
    place(n, a.T, (const int64_t *)a.cu, &batch, &first, &tokens);
    for (int64_t i = threadIdx.x; i < BLOCK; i += THREADS) {
        const int64_t k = (int64_t)blockIdx.y * BLOCK + i;
        if (k >= D_K) continue;
        const int64_t state = (n * a.H + h) * D_K + k, token = ((batch * a.T + first) * a.H + h) * D_K + k;
        const real w = get((const element<T_w>::type *)a.w + h * D_K + k);
        const real *s = (const real *)a.kept + token;
        const element<T_d_o>::type *d = (const element<T_d_o>::type *)a.d_o + batch * a.d_batch + first * a.d_token + h * a.d_head + k * a.d_K;
        element<T_dx>::type *dx = (element<T_dx>::type *)a.dx + token;
        real ds = a.dended ? ((const real *)a.dended)[state] : 0, dw = 0;
        for (int64_t t = tokens - 1; t >= 0; t--) {
            if (a.d_o) ds += get(d + t * a.d_token);
            put(dx + t * a.H * D_K, ds);
            dw += ds * (t ? s[(t - 1) * a.H * D_K] : a.begun ? ((const real *)a.begun)[state] : 0);
            ds *= w;
        }
        if (a.dw) ((real *)a.dw)[state] = dw;
        ((real *)a.dbegun)[state] = ds;
    }
}

#ifdef __CUDACC_RTC__
extern "C" __device__ long long leaky_backward_needs[3] = {0, 0, 0};
#else
extern "C" int64_t leaky_backward_shared(void) { return 0; }
extern "C" int64_t leaky_backward_scratch(void) { return 0; }
extern "C" int64_t leaky_backward_together(void) { return 0; }
extern "C" int leaky_backward_launch(const leaky_backward_args *a, int64_t programs, int64_t blocks, void *stream) {
    return launch(leaky_backward, programs, blocks, THREADS, 0, stream, *a);
}
#endif
#endif
