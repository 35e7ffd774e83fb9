#ifndef LACC_LEAKY_H
#define LACC_LEAKY_H
#ifndef __CUDACC_RTC__
#include <stdint.h>
#else
typedef long long int64_t;
#endif

typedef struct {
    void *x, *w, *begun, *o, *ended, *kept, *cu, *rows, *arena;
    int64_t x_batch, x_token, x_head, x_K, T, H, into, program0;
} leaky_forward_args;

typedef struct {
    void *x, *w, *begun, *kept, *d_o, *dended, *dx, *dw, *dbegun, *cu, *arena;
    int64_t x_batch, x_token, x_head, x_K, d_batch, d_token, d_head, d_K, T, H, program0;
} leaky_backward_args;

#ifdef __cplusplus
extern "C" {
#endif
int leaky_forward_launch(const leaky_forward_args *a, int64_t programs, int64_t blocks, void *stream);
int64_t leaky_forward_shared(void), leaky_forward_scratch(void), leaky_forward_together(void);
int leaky_backward_launch(const leaky_backward_args *a, int64_t programs, int64_t blocks, void *stream);
int64_t leaky_backward_shared(void), leaky_backward_scratch(void), leaky_backward_together(void);
#ifdef __cplusplus
}
#endif
#endif
