"""Tiles in registers in, tiles out: the elementwise functions that Triton lacks, for emitted Triton
kernels. Never imported by lacc: emitted files hold copies of what they use."""

import triton
import triton.language as tl


@triton.jit
def power(x, N: tl.constexpr):
    """x to a whole number."""
    y = tl.full(x.shape, 1.0, x.dtype)
    for _ in tl.static_range(N):
        y = y * x
    return y


@triton.jit
def pow(x, y):
    """x to the y, both of any value: 1 where y is 0, with the sign of x where y is odd, NaN where x
    is negative and y not a whole number."""
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    odd = tl.abs(y - 2.0 * tl.floor(y / 2.0)) == 1.0
    signed = tl.where(tl.floor(y) == y, tl.where(odd, -size, size), float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, signed, size))


@triton.jit
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))


@triton.jit
def silu(x):
    """x sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def log1p(x):
    """log(1 + x) for x in [0, 1], with full relative accuracy."""
    u = 1.0 + x
    rounded = u == 1.0
    return tl.where(rounded, x, tl.log(u) * x / tl.where(rounded, 1.0, u - 1.0))


@triton.jit
def expm1(x):
    """exp(x) - 1 for x <= 0, with full relative accuracy."""
    u = tl.exp(x)
    plain = (u == 1.0) | (u < 0.25)
    near = (u - 1.0) * x / tl.where(plain, 1.0, tl.log(u))
    return tl.where(plain, tl.where(u == 1.0, x, u - 1.0), near)


@triton.jit
def logsigmoid(x):
    """log(sigmoid(x)), linear in the lower tail."""
    return tl.minimum(x, 0.0) - log1p(tl.exp(-tl.abs(x)))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), linear in the upper tail."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def tanh(x):
    """The hyperbolic tangent, with full relative accuracy near 0."""
    e = expm1(-2.0 * tl.abs(x))
    return sign(x) * (-e / (2.0 + e))


@triton.jit
def gelu(x):
    """x Φ(x), by erf."""
    return x * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))


@triton.jit
def elu(x):
    """x above 0, exp(x) - 1 below."""
    return tl.maximum(x, 0.0) + expm1(tl.minimum(x, 0.0))


@triton.jit
def elu1(x):
    """elu(x) + 1 without its cancellation: x + 1 above 0, exp(x) below."""
    return tl.maximum(x, 0.0) + tl.exp(tl.minimum(x, 0.0))


@triton.jit
def mod(x, y):
    """The remainder with the sign of y."""
    return x - y * tl.floor(x / y)


@triton.jit
def logaddexp(x, y):
    """log(exp(x) + exp(y)), infinities too."""
    top = tl.maximum(x, y)
    apart = tl.where(x == y, 0.0, -tl.abs(x - y))
    return top + log1p(tl.exp(apart))
