"""Tiles in registers in, tiles out: device functions that the emitted Triton kernels call.

Never imported by lacc: emitted files hold copies of what they use. Notation: C tokens of a chunk
on axis 0, D channels, all powers of two from 16 on. A decay is given for each token, [C] or [C, D],
as its logarithm <= 0 (LOG) or as the factor itself, of any sign; behind the last token there is
none. P[t, s] is the product of the factors after s up to t (up to t - 1 where STRICT). Products
over long runs are exponentials of sums, those inside a chunk are multiplied up; none is a quotient
or the exponential of a difference of running sums, so a factor of 0 is exact and nothing overflows
that the result does not. PRECISION is what matrix products round their operands to: "ieee" (not at
all), "tf32" or "bf16".
"""

import triton
import triton.language as tl


@triton.constexpr_function
def halvings(n):
    """How often n tokens can be halved."""
    return (n - 1).bit_length()


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a @ b, accumulated in the wide dtype."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def moved(decay, STEP: tl.constexpr, LOG: tl.constexpr):
    """Row t + STEP of decay in row t, no decay where there is none."""
    C: tl.constexpr = decay.shape[0]
    t = tl.arange(0, C)
    if len(decay.shape) == 2:
        t = tl.broadcast_to(t[:, None], decay.shape)
    there = t + STEP
    kept = (there >= 0) & (there < C)
    none: tl.constexpr = 0.0 if LOG else 1.0
    return tl.where(kept, tl.gather(decay, tl.where(kept, there, t), 0), none)


@triton.jit
def running(decay, LOG: tl.constexpr, REVERSE: tl.constexpr):
    """Products of the rows up to each one, or from it on."""
    if LOG:
        return tl.exp(tl.cumsum(decay, 0, reverse=REVERSE))
    else:
        return tl.cumprod(decay, 0, reverse=REVERSE)


@triton.jit
def prefix(decay, LOG: tl.constexpr, STRICT: tl.constexpr):
    """The product from the chunk's start to each token."""
    return running(moved(decay, -1, LOG) if STRICT else decay, LOG, False)


@triton.jit
def suffix(decay, LOG: tl.constexpr):
    """The product after each token to the chunk's end."""
    return running(moved(decay, 1, LOG), LOG, True)


@triton.jit
def whole(decay, LOG: tl.constexpr):
    """The product of the whole chunk, [D] or a number."""
    if LOG:
        return tl.exp(tl.sum(decay, 0))
    else:
        last = tl.arange(0, decay.shape[0]) == decay.shape[0] - 1
        if len(decay.shape) == 2:
            last = last[:, None]
        return tl.sum(tl.where(last, tl.cumprod(decay, 0), 0.0), 0)


@triton.jit
def matrix(decay, LOG: tl.constexpr, STRICT: tl.constexpr):
    """P [C, C] of one decay a token, 0 above the diagonal (on it too where STRICT)."""
    C: tl.constexpr = decay.shape[0]
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    first = s + 1 if STRICT else s
    steps = (moved(decay, -1, LOG) if STRICT else decay)[:, None]
    none: tl.constexpr = 0.0 if LOG else 1.0
    return tl.where(t >= first, running(tl.where(t > first, steps, none), LOG, False), 0.0)


@triton.jit
def gram(x, y, decay, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr):
    """A[t, s] = sum_d x[t, d] y[s, d] P[t, s, d], 0 above the diagonal: [C, C].

    By recursive halving: t and s meet where t lies in the right and s in the left of two
    neighbouring runs of m tokens. ``up`` multiplies a run from its start to t, ``before`` to t - 1,
    ``down`` from after s to its end.
    """
    C: tl.constexpr = x.shape[0]
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    at = tl.broadcast_to(t, decay.shape)
    up, down = tl.exp(decay) if LOG else decay, tl.full(decay.shape, 1.0, decay.dtype)
    before = down
    pairs = tl.zeros([C, C], decay.dtype)
    if not STRICT:
        pairs = tl.where(t == s, tl.sum(x * y, 1)[:, None], pairs)
    for level in range(halvings(C)):
        m = 1 << level
        right = (at & m) != 0
        run = tl.where(right, before if STRICT else up, down)
        meet = (t > s) & ((t ^ s) >> level == 1)
        pairs = tl.where(meet, dot(x * run, tl.trans(y * run), PRECISION), pairs)
        neighbour = tl.gather(up, (at ^ m) | (m - 1), 0)
        up = tl.where(right, up * neighbour, up)
        before = tl.where(right, before * neighbour, before)
        down = tl.where(right, down, down * neighbour)
    return pairs


@triton.jit
def decayed(a, y, decay, PRECISION: tl.constexpr, LOG: tl.constexpr, STRICT: tl.constexpr):
    """O[t, d] = sum_s a[t, s] y[s, d] P[t, s, d] over s <= t (s < t where STRICT): [C, D].

    By the same halving as `gram`.
    """
    C: tl.constexpr = y.shape[0]
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    at = tl.broadcast_to(t, decay.shape)
    up, down = tl.exp(decay) if LOG else decay, tl.full(decay.shape, 1.0, decay.dtype)
    before = down
    out = tl.zeros(y.shape, y.dtype)
    if not STRICT:
        out += tl.sum(tl.where(t == s, a, 0.0), 1)[:, None] * y
    for level in range(halvings(C)):
        m = 1 << level
        right = (at & m) != 0
        meet = (t > s) & ((t ^ s) >> level == 1)
        read = dot(tl.where(meet, a, 0.0), y * down, PRECISION)
        out += tl.where(right, before if STRICT else up, 0.0) * read
        neighbour = tl.gather(up, (at ^ m) | (m - 1), 0)
        up = tl.where(right, up * neighbour, up)
        before = tl.where(right, before * neighbour, before)
        down = tl.where(right, down, down * neighbour)
    return out


@triton.jit
def solve(a, r, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr):
    """X with (I + tril(a, -1)) X = r, or with the transpose: r and X [C, D]."""
    EXACT: tl.constexpr = "ieee" if PRECISION == "ieee" else "tf32x3"
    x = inverse(a, EXACT)
    return dot(tl.trans(x) if TRANSPOSED else x, r, EXACT)


@triton.jit
def inverse(a, PRECISION: tl.constexpr):
    """(I + tril(a, -1))⁻¹ [C, C]: substitution inside blocks of 16 rows, all at once, then merges.

    Two neighbouring blocks with inverses X, Y and the coupling L below merge to X, Y and -Y L X.
    """
    C: tl.constexpr = a.shape[0]
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    column = tl.arange(0, 16)[None, :]
    start, row = t & -16, t & 15
    own = tl.gather(a, start + column, 1)
    x = tl.where(column == row, 1.0, 0.0).to(a.dtype)
    for i in range(15):
        factor = tl.sum(tl.where(column == i, own, 0.0), 1)[:, None]
        solved = tl.gather(x, tl.broadcast_to(start + i, x.shape), 0)
        x = x - tl.where(row > i, factor * solved, 0.0)
    x = tl.gather(x, tl.broadcast_to(s & 15, a.shape), 1)
    x = tl.where(t >> 4 == s >> 4, x, 0.0)
    for level in range(4, halvings(C)):
        meet = (t > s) & ((t ^ s) >> level == 1)
        x = x - dot(x, dot(tl.where(meet, a, 0.0), x, PRECISION), PRECISION)
    return x


@triton.jit
def power(x, N: tl.constexpr):
    """x to a whole number."""
    y = tl.full(x.shape, 1.0, x.dtype)
    for _ in tl.static_range(N):
        y = y * x
    return y


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
