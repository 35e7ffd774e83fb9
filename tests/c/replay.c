/* A record of calls of an emitted C file in (tests/replayed.py writes it), the largest error of each
   of its functions out: exit code 1 where one is beyond its limit, 2 where there is none to trust.

   Usage: replay RECORD LIMIT

   calls.h gives: run_t, functions[], names[], ROOM. Results are full of NaN before a call, so an
   entry that is not written is seen; every other call has a workspace of its own, with its end
   watched. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

#ifdef LACC_DOUBLE
typedef double real;
enum { REAL = LACC_F64 };
static const double CANCELLED = 1e-5; /* of a call's largest result: less has lost its digits */
#else
typedef float real;
enum { REAL = LACC_F32 };
static const double CANCELLED = 1e-3;
#endif

enum { COUNT = sizeof(functions) / sizeof(*functions), WATCHED = 64 };

typedef struct {
    int64_t result, count, first;
    double *wanted;
    void *data;
} told;

static void fail(const char *why)
{
    fprintf(stderr, "replay: %s\n", why);
    exit(2);
}

static void *room_for(int64_t bytes)
{
    void *found = malloc((size_t)bytes + 1);
    if (!found)
        fail("no memory");
    return found;
}

static void get(FILE *file, void *into, int64_t bytes)
{
    if (bytes && fread(into, (size_t)bytes, 1, file) != 1)
        fail("the record ends early");
}

static int64_t number(FILE *file)
{
    int64_t x;
    get(file, &x, sizeof x);
    return x;
}

enum { OF_REALS, OF_BF16, OF_I64 };

static void put(void *data, int64_t kind, int64_t i, double value)
{
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (kind == OF_I64)
        ((int64_t *)data)[i] = (int64_t)value;
    else if (kind == OF_BF16)
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); /* which holds all of it */
    else
        ((real *)data)[i] = (real)value;
}

static void read_array(FILE *file, lacc_array *x, told *t)
{
    static const int64_t bytes[] = {sizeof(real), 2, 8};
    static const int32_t dtypes[] = {REAL, LACC_BF16, LACC_I64};
    const int64_t given = number(file), kind = number(file);
    t->result = number(file);
    t->count = number(file);
    t->first = number(file);
    x->sequence = number(file);
    x->token = number(file);
    x->head = number(file);
    if (kind < OF_REALS || kind > OF_I64)
        fail("the record has an array of another kind");
    x->dtype = dtypes[kind];
    t->wanted = room_for(t->count * (int64_t)sizeof(double));
    get(file, t->wanted, t->count * (int64_t)sizeof(double));
    t->data = room_for(t->count * bytes[kind]);
    for (int64_t i = 0; i < t->count; i++)
        put(t->data, kind, i, t->result ? (double)NAN : t->wanted[i]);
    x->data = given ? (char *)t->data + t->first * bytes[kind] : NULL;
}

/* The larger one, NaN being the largest of all. */
static double worse(double a, double b)
{
    return a >= b || isnan(a) ? a : b;
}

/* max|found - wanted| relative to max|wanted| + floor; NaN where an entry is missing that
   is not NaN in the record. */
static double error_of(const told *t, double floor)
{
    double most = 0, scale = floor;
    for (int64_t i = 0; i < t->count; i++) {
        const double found = ((const real *)t->data)[i], wanted = t->wanted[i];
        const double apart = found == wanted || isnan(wanted) ? 0 : fabs(found - wanted);
        most = worse(most, apart);
        scale = isfinite(wanted) ? fmax(scale, fabs(wanted)) : scale;
    }
    return most == 0 ? 0 : most / scale;
}

static double call(FILE *file, int64_t which, int64_t arrays, int own)
{
    run_t run;
    memset(&run, 0, sizeof run);
    run.sequences = number(file);
    run.tokens = number(file);
    run.heads = number(file);
    run.chunk = number(file);
    run.threads = 2;
    run.past = number(file);
    get(file, &run.dim, number(file) * 8);
    lacc_array *x = room_for(arrays * (int64_t)sizeof *x);
    told *t = room_for(arrays * (int64_t)sizeof *t);
    double largest = 0;
    for (int64_t i = 0; i < arrays; i++) {
        read_array(file, &x[i], &t[i]);
        for (int64_t j = 0; t[i].result && j < t[i].count; j++)
            largest = isfinite(t[i].wanted[j]) ? fmax(largest, fabs(t[i].wanted[j])) : largest;
    }
    run.room = ROOM(&run);
    unsigned char *space = room_for(run.room + WATCHED);
    memset(space, 0xff, (size_t)run.room + WATCHED);
    run.workspace = own ? space : NULL;
    if (functions[which](&run, x) != LACC_OK)
        fail("a call found no memory");
    for (int i = 0; i < WATCHED; i++)
        if (space[run.room + i] != 0xff)
            fail("a call wrote behind its workspace");
    double most = 0;
    for (int64_t i = 0; i < arrays; i++) {
        most = worse(most, t[i].result ? error_of(&t[i], CANCELLED * largest) : 0);
        free(t[i].wanted);
        free(t[i].data);
    }
    free(space);
    free(x);
    free(t);
    return most;
}

int main(int argc, char **argv)
{
    double errors[COUNT] = {0};
    int64_t calls[COUNT] = {0};
    FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!file)
        fail("usage: replay RECORD LIMIT");
    const double limit = strtod(argv[2], NULL);
    for (int64_t left = number(file); left > 0; left--) {
        const int64_t which = number(file), arrays = number(file);
        if (which < 0 || which >= COUNT)
            fail("the record is of other functions");
        errors[which] = worse(errors[which], call(file, which, arrays, left % 2));
        calls[which]++;
    }
    fclose(file);
    int bad = 0;
    for (int i = 0; i < COUNT; i++) {
        const int wrong = !(errors[i] <= limit);
        if (calls[i])
            printf("%s %d calls %.2g%s\n", names[i], (int)calls[i], errors[i], wrong ? " WRONG" : "");
        bad |= wrong;
    }
    return bad;
}
