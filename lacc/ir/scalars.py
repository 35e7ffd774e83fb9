"""Elementwise operations: arrays in, arrays out, and their gradient rules; rows of the op table.

Values are careful where the textbook formula is not: no overflow, no cancellation, infinities are
meant. Rules are written in elementwise ops of a namespace ``f`` alone (see `lacc.ir.ops.Op.grad`),
so they run on arrays and on tiles. Notation: ct the cotangent of y = op(*xs).
"""

from __future__ import annotations

import math
from typing import Any

from lacc.ir.late import np

Array = Any

# log(erfc(z) exp(z²) / t) as a Chebyshev series in 2 t - 1, where t = 2 / (2 + z), z ≥ 0.
_ERFC = (
    -1.3026537197817094 / 2,
    0.6419697923564903,
    0.019476473204185837,
    -0.009561514786808632,
    -0.0009465953444820369,
    0.0003668394978527615,
    4.252332480690777e-05,
    -2.0278578112534243e-05,
    -1.6242900046470256e-06,
    1.3036558355805232e-06,
    1.5626441722066143e-08,
    -8.523809591495265e-08,
    6.529054439098851e-09,
    5.059343495551469e-09,
    -9.91364156493033e-10,
    -2.273651222931836e-10,
    9.646791102015527e-11,
    2.3940380830391147e-12,
    -6.88602752649755e-12,
    8.944879273090726e-13,
    3.130921399342958e-13,
    -1.1270822361367253e-13,
    3.810905255189208e-16,
    7.106097613609237e-15,
    -1.5230282014571044e-15,
    -9.457494571291235e-17,
    1.210237189224279e-16,
    -2.8166630877471767e-17,
)


def erf(x: Array) -> Array:
    """The error function of floats of any shape, to 2e-16 absolute in float64."""
    z = np.abs(x)
    t = 2 / (2 + z)
    twice = 4 * t - 2
    b, after = np.zeros_like(t), np.zeros_like(t)
    for c in _ERFC[:0:-1]:
        b, after = c + twice * b - after, b
    tail = t * np.exp(_ERFC[0] + twice / 2 * b - after - z * z)
    return np.sign(x) * (1 - tail)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), with full relative accuracy in the lower tail."""
    e = np.exp(-np.abs(x))
    return np.where(np.greater_equal(x, 0), 1, e) / (1 + e)


def logsigmoid(x: Array) -> Array:
    """log(sigmoid(x)): -log1p(exp(-x)), linear in the lower tail."""
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), linear in the upper tail."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gelu(x: Array) -> Array:
    """x Φ(x), by erf."""
    return x * (0.5 + 0.5 * erf(x * math.sqrt(0.5)))


def elu(x: Array) -> Array:
    """x above 0, exp(x) - 1 below."""
    return np.maximum(x, 0) + np.expm1(np.minimum(x, 0))


def elu1(x: Array) -> Array:
    """elu(x) + 1 without its cancellation: x + 1 above 0, exp(x) below."""
    return np.maximum(x, 0) + np.exp(np.minimum(x, 0))


def grad_div(f: Any, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return f.pull(ct, f.div(1, b)), f.neg(f.pull(ct, f.div(y, b)))


def grad_pow(f: Any, ct: Array, y: Array, x: Array, p: Array) -> tuple[Array, Array | None]:
    """A number as exponent has the rule of school; 0**0 and 0**p have the derivatives of torch."""
    if isinstance(p, int | float):
        return f.pull(ct, f.mul(2, x) if p == 2 else f.mul(p, f.pow(x, p - 1)) if p else 0), None
    slope = f.where(f.eq(p, 0), 0, f.mul(p, f.pow(x, f.sub(p, 1))))
    at_zero = f.where(f.ge(p, 0), 0, f.neg(y))
    return f.pull(ct, slope), f.pull(ct, f.where(f.eq(x, 0), at_zero, f.mul(y, f.log(x))))


def grad_tanh(f: Any, ct: Array, y: Array, x: Array) -> tuple[Array]:
    """1 - y² as 4 σ(2x) σ(-2x), which keeps its digits where y rounds to ±1."""
    twice = f.mul(2, x)
    return (f.pull(ct, f.mul(4, f.mul(f.sigmoid(twice), f.sigmoid(f.neg(twice))))),)


def grad_silu(f: Any, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (f.pull(ct, f.mul(f.sigmoid(x), f.add(1, f.mul(x, f.sigmoid(f.neg(x)))))),)


def grad_gelu(f: Any, ct: Array, y: Array, x: Array) -> tuple[Array]:
    cdf = f.add(0.5, f.mul(0.5, f.erf(f.mul(math.sqrt(0.5), x))))
    pdf = f.mul(1 / math.sqrt(2 * math.pi), f.exp(f.mul(-0.5, f.mul(x, x))))
    return (f.pull(ct, f.add(cdf, f.mul(x, pdf))),)


def grad_erf(f: Any, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (f.pull(ct, f.mul(2 / math.sqrt(math.pi), f.exp(f.neg(f.mul(x, x))))),)


def grad_elu(f: Any, ct: Array, y: Array, x: Array) -> tuple[Array]:
    return (f.pull(ct, f.exp(f.min(x, 0))),)


def grad_max(f: Any, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return _choose(f, ct, f.gt(a, b), f.eq(a, b))


def grad_min(f: Any, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return _choose(f, ct, f.lt(a, b), f.eq(a, b))


def _choose(f: Any, ct: Array, first: Array, tie: Array) -> tuple[Array, Array]:
    half = f.where(tie, f.mul(0.5, ct), 0)
    return f.where(first, ct, half), f.where(first, 0, f.where(tie, half, ct))


def grad_logaddexp(f: Any, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Weights exp(a - y), exp(b - y) as sigmoids of the difference; none at all where y is -inf."""
    tie = f.eq(a, b)
    difference = f.where(tie, 0, f.sub(a, b))
    live = f.where(f.gt(y, -math.inf), ct, 0)
    return f.pull(live, f.sigmoid(difference)), f.pull(live, f.sigmoid(f.neg(difference)))


def grad_mod(f: Any, ct: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return ct, f.pull(ct, f.div(f.sub(y, a), b))
