/* Functions of numbers in: reals in, reals out, with the meaning NumPy gives them. NaN goes
   through, infinities and subnormals are meant. Within a few units in the last place. */

INLINE real f_exp(real x) {
    return exp(x);
}

INLINE real f_log(real x) {
    return log(x);
}

INLINE real f_abs(real x) {
    return fabs(x);
}

INLINE real f_sqrt(real x) {
    return sqrt(x);
}

INLINE real f_rsqrt(real x) {
    return 1 / sqrt(x);
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
    const real e = exp(-fabs(x));
    return (x >= 0 ? R(1) : e) / (1 + e);
}

INLINE real f_logsigmoid(real x) {
    return f_min(x, 0) - log1p(exp(-fabs(x)));
}

INLINE real f_softplus(real x) {
    return f_max(x, 0) + log1p(exp(-fabs(x)));
}

INLINE real f_silu(real x) {
    return x * f_sigmoid(x);
}

INLINE real f_tanh(real x) {
    return tanh(x);
}

INLINE real f_elu(real x) {
    return x > 0 ? x : expm1(x);
}

INLINE real f_elu1(real x) {
    return f_max(x, 0) + exp(f_min(x, 0));
}

INLINE real f_logaddexp(real a, real b) {
    const real apart = a == b ? R(0) : fabs(a - b);
    return f_max(a, b) + log1p(exp(-apart));
}

INLINE real f_erf(real x) {
    return erf(x);
}

INLINE real f_gelu(real x) {
    return x * (R(0.5) + R(0.5) * erf(x * R(0.70710678118654752)));
}

INLINE real f_sin(real x) {
    return sin(x);
}

INLINE real f_cos(real x) {
    return cos(x);
}

INLINE real f_pow(real x, real p) {
    return pow(x, p);
}

/* a modulo b, with the sign of b. */
INLINE real f_mod(real a, real b) {
    const real rest = fmod(a, b);
    if (rest == 0) return copysign(R(0), b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
}
