/* Functions of numbers in: floats in, floats out, with the meaning NumPy gives them. NaN goes
   through, infinities and subnormals are meant. Within a few units in the last place. */

#ifdef LACC_DOUBLE
#define expf exp
#define logf log
#define fabsf fabs
#define sqrtf sqrt
#define log1pf log1p
#define tanhf tanh
#define expm1f expm1
#define erff erf
#define sinf sin
#define cosf cos
#define powf pow
#define fmodf fmod
#define copysignf copysign
#endif

INLINE real f_exp(real x) {
    return expf(x);
}

INLINE real f_log(real x) {
    return logf(x);
}

INLINE real f_abs(real x) {
    return fabsf(x);
}

INLINE real f_sqrt(real x) {
    return sqrtf(x);
}

INLINE real f_rsqrt(real x) {
    return 1 / sqrtf(x);
}

INLINE real f_sign(real x) {
    return x > 0 ? R(1) : x < 0 ? R(-1) : x == 0 ? R(0) : x;
}

INLINE real f_relu(real x) {
    return x < 0 ? R(0) : x;
}

INLINE real f_max(real a, real b) {
    return a > b || a != a ? a : b;
}

INLINE real f_min(real a, real b) {
    return a < b || a != a ? a : b;
}

INLINE real f_sigmoid(real x) {
    const real e = expf(-fabsf(x));
    return (x >= 0 ? R(1) : e) / (1 + e);
}

INLINE real f_logsigmoid(real x) {
    return f_min(x, 0) - log1pf(expf(-fabsf(x)));
}

INLINE real f_softplus(real x) {
    return f_max(x, 0) + log1pf(expf(-fabsf(x)));
}

INLINE real f_silu(real x) {
    return x * f_sigmoid(x);
}

INLINE real f_tanh(real x) {
    return tanhf(x);
}

INLINE real f_elu(real x) {
    return x > 0 ? x : expm1f(x);
}

INLINE real f_elu1(real x) {
    return f_max(x, 0) + expf(f_min(x, 0));
}

INLINE real f_logaddexp(real a, real b) {
    const real apart = a == b ? R(0) : fabsf(a - b);
    return f_max(a, b) + log1pf(expf(-apart));
}

INLINE real f_erf(real x) {
    return erff(x);
}

INLINE real f_gelu(real x) {
    return x * (R(0.5) + R(0.5) * erff(x * R(0.70710678118654752)));
}

INLINE real f_sin(real x) {
    return sinf(x);
}

INLINE real f_cos(real x) {
    return cosf(x);
}

INLINE real f_pow(real x, real p) {
    return powf(x, p);
}

/* a modulo b, with the sign of b. */
INLINE real f_mod(real a, real b) {
    const real rest = fmodf(a, b);
    if (rest == 0) return copysignf(0, b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
}
