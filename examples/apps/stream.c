/* Tokens in, one at a time, outputs out, in constant memory: the C interface of a compiled variant.

       lacc compile examples/gla.la --target c -o build        gla.c, gla.h (and gla_c.py)
       cc -O3 -march=native -fopenmp-simd -fno-math-errno -fno-trapping-math -Ibuild \
           examples/apps/stream.c build/gla.c -lm -o stream

       ./stream [TOKENS [HEADS]]     streams random tokens: tokens a second, a checksum
       ./stream --check FILE         streams those of FILE, compares with the outputs that are there

   FILE: int32 tokens, heads, K, V; then for each token q, k, v, g, o, each float32 [heads][K or V].

   Another variant has other arrays: its header lists them. What fails says so and exits with 1. */

#include "gla.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The numbers of one token, and the state. They stay where they are: tokens come into them. */
typedef struct {
    int64_t heads, K, V;
    float *q, *k, *v, *g, *o, *S; /* [heads][K or V], S [heads][K][V] */
    gla_run run;
    lacc_array arrays[GLA_FORWARD_TOKEN_ARRAYS];
} stream;

static void stop(const char *why)
{
    fprintf(stderr, "stream: %s\n", why), exit(1);
}

static float *numbers(int64_t count)
{
    float *found = calloc((size_t)count, sizeof(float)); /* a state of zeros is a fresh start */
    if (!found)
        stop("there is no memory for the state");
    return found;
}

/* One head lies behind another. With one sequence of one token, other strides do not matter. */
static lacc_array heads_of(float *data, int64_t width)
{
    return (lacc_array){.data = data, .head = width, .dtype = LACC_F32};
}

/* All the memory there will ever be. */
static void begin(stream *s, int64_t heads, int64_t K, int64_t V)
{
    *s = (stream){.heads = heads, .K = K, .V = V};
    s->q = numbers(heads * K), s->k = numbers(heads * K), s->g = numbers(heads * K);
    s->v = numbers(heads * V), s->o = numbers(heads * V), s->S = numbers(heads * K * V);

    s->run = (gla_run){.sequences = 1, .tokens = 1, .heads = heads, .chunk = 1, .threads = 1};
    s->run.dim.K = K, s->run.dim.V = V;
    s->run.room = gla_room_f32(&s->run);
    s->run.workspace = malloc((size_t)s->run.room);
    if (!s->run.workspace)
        stop("there is no memory for the workspace");

    s->arrays[GLA_FORWARD_TOKEN_IN_q] = heads_of(s->q, K);
    s->arrays[GLA_FORWARD_TOKEN_IN_k] = heads_of(s->k, K);
    s->arrays[GLA_FORWARD_TOKEN_IN_v] = heads_of(s->v, V);
    s->arrays[GLA_FORWARD_TOKEN_IN_g] = heads_of(s->g, K);
    s->arrays[GLA_FORWARD_TOKEN_OUT_o] = heads_of(s->o, V);
    /* the state is updated in place; START_S, kept for a gradient, stays NULL */
    s->arrays[GLA_FORWARD_TOKEN_BEGUN_S] = heads_of(s->S, K * V);
    s->arrays[GLA_FORWARD_TOKEN_ENDED_S] = heads_of(s->S, K * V);
}

static void step(stream *s)
{
    if (gla_forward_token_f32(&s->run, s->arrays) != LACC_OK)
        stop("there is no memory for a token");
}

static float uniform(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (float)(1 << 24);
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int run(int64_t tokens, int64_t heads)
{
    stream s;
    uint32_t seed = 1;
    double sum = 0, spent = 0;
    begin(&s, heads, 64, 64);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < heads * s.K; i++) /* g is the log of a gate: the spec says g <= 0 */
            s.q[i] = uniform(&seed) - 0.5f, s.k[i] = uniform(&seed) - 0.5f, s.g[i] = -0.1f * uniform(&seed);
        for (int64_t i = 0; i < heads * s.V; i++)
            s.v[i] = uniform(&seed) - 0.5f;
        const double before = seconds();
        step(&s);
        spent += seconds() - before;
        for (int64_t i = 0; i < heads * s.V; i++)
            sum += fabs((double)s.o[i]);
    }
    sum /= (double)(tokens * heads * s.V);
    printf("%.0f tokens/s, mean |o| %.5f\n", (double)tokens / spent, sum);
    return 0;
}

static int check(const char *path)
{
    FILE *file = fopen(path, "rb");
    int32_t sizes[4];
    if (!file || fread(sizes, sizeof sizes, 1, file) != 1)
        stop("cannot read the file");
    stream s;
    begin(&s, sizes[1], sizes[2], sizes[3]);
    const size_t keys = (size_t)(s.heads * s.K), values = (size_t)(s.heads * s.V);
    float *const wanted = numbers(s.heads * s.V);
    double error = 0, largest = 0;
    for (int32_t t = 0; t < sizes[0]; t++) {
        if (fread(s.q, 4, keys, file) != keys || fread(s.k, 4, keys, file) != keys ||
            fread(s.v, 4, values, file) != values || fread(s.g, 4, keys, file) != keys ||
            fread(wanted, 4, values, file) != values)
            stop("the file ends early");
        step(&s);
        for (size_t i = 0; i < values; i++) {
            const double apart = fabs((double)s.o[i] - (double)wanted[i]);
            error = apart <= error || isnan(error) ? error : apart; /* NaN is the worst */
            largest = fmax(largest, fabs((double)wanted[i]));
        }
    }
    printf("%d tokens, error %.2g of the largest output\n", (int)sizes[0], error / largest);
    return !(error <= 1e-5 * largest);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--check"))
        return check(argv[2]);
    const long tokens = argc > 1 ? strtol(argv[1], NULL, 10) : 100000;
    const long heads = argc > 2 ? strtol(argv[2], NULL, 10) : 4;
    if (tokens < 1 || heads < 1 || heads > 4096)
        stop("usage: stream [TOKENS [HEADS]] | stream --check FILE");
    return run(tokens, heads);
}
