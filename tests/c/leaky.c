/* S[t] = w * S[t-1] + x, o = S[t], written by hand: what the Python host of a C file calls. */
#include "leaky.h"
#include <string.h>

#ifdef LACC_DOUBLE
typedef double real;
#define NAME(x) x##_f64
#else
typedef float real;
#define NAME(x) x##_f32
#endif

static double get(const lacc_array *x, int64_t n, int64_t t, int64_t h, int64_t i)
{
    int64_t at = n * x->sequence + t * x->token + h * x->head + i;
    if (x->dtype == 1)
        return ((const double *)x->data)[at];
    if (x->dtype == 0)
        return ((const float *)x->data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)x->data)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void put(const lacc_array *x, int64_t n, int64_t t, int64_t h, int64_t i, double value)
{
    if (x->data)
        ((real *)x->data)[n * x->sequence + t * x->token + h * x->head + i] = (real)value;
}

static void walk(const leaky_run *run, const lacc_array *x, int64_t n, int64_t h, int64_t i)
{
    const lacc_array *w = x + 1, *start = x + 2, *o = x + 3, *end = x + 4, *starts = x + 5;
    double S = start->data ? get(start, n, 0, h, i) : 0;
    for (int64_t t = 0; t < run->T; t++) {
        if (t % run->chunk == 0)
            put(starts, n, t / run->chunk, h, i, S);
        S = get(w, n, 0, h, i) * S + get(x, n, t, h, i);
        put(o, n, t, h, i, S);
    }
    put(end, n, 0, h, i, S);
}

static void back(const leaky_run *run, const lacc_array *x, int64_t n, int64_t h, int64_t i)
{
    const lacc_array *w = x + 1, *starts = x + 2, *ct = x + 3, *dend = x + 4;
    double decay = get(w, n, 0, h, i), dw = 0, d = dend->data ? get(dend, n, 0, h, i) : 0;
    for (int64_t t = run->T - 1; t >= 0; t--) {
        int64_t first = t / run->chunk;
        double S = get(starts, n, first, h, i);
        for (int64_t s = first * run->chunk; s < t; s++)
            S = decay * S + get(x, n, s, h, i);
        d += ct->data ? get(ct, n, t, h, i) : 0;
        put(x + 5, n, t, h, i, d);
        dw += d * S;
        d *= decay;
    }
    put(x + 6, n, 0, h, i, dw);
    put(x + 7, n, 0, h, i, d);
}

static int each(void (*one)(const leaky_run *, const lacc_array *, int64_t, int64_t, int64_t),
                const leaky_run *run, const lacc_array *x)
{
    if (run->room < 64)
        return 1;
    for (int64_t n = 0; n < run->N; n++)
        for (int64_t h = 0; h < run->H; h++)
            for (int64_t i = 0; i < run->K; i++)
                one(run, x, n, h, i);
    return 0;
}

int64_t NAME(leaky_room)(const leaky_run *run) { return 64 * run->threads; }
int NAME(leaky_forward_0)(const leaky_run *run, const lacc_array *x) { return each(walk, run, x); }
int NAME(leaky_keep_0)(const leaky_run *run, const lacc_array *x) { return each(walk, run, x); }
int NAME(leaky_backward_0)(const leaky_run *run, const lacc_array *x) { return each(back, run, x); }

int NAME(leaky_keep_token)(const leaky_run *run, const lacc_array *x) { return each(walk, run, x); }

int NAME(leaky_forward_token)(const leaky_run *run, const lacc_array *x) { return each(walk, run, x); }
int NAME(leaky_backward_token)(const leaky_run *run, const lacc_array *x) { return each(back, run, x); }
