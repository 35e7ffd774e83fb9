#include <stdint.h>

typedef struct {
    void *data;
    int64_t sequence, token, head;
    int32_t dtype;
} lacc_array;

typedef struct {
    int64_t N, T, H, chunk, threads, past, products;
    void *workspace;
    int64_t room;
    int64_t K;
} leaky_run;
