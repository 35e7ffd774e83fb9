"""Every row of the op table: value and gradient against torch, intervals, linearity, its rule."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc.ir.ops import OPS, F, Op, Site
from lacc.ir.tensors import NORMALIZE_EPS

torch = pytest.importorskip("torch")

POINTS = (-math.inf, -1e3, -90.0, -20.0, -8.0, -2.0, -1.0, -0.3, -1e-4, 0.0)
POINTS += tuple(-x for x in POINTS[-2::-1])
ELEMENTWISE = [op for op in OPS.values() if op.entrywise]
TENSORS = [op for op in OPS.values() if not op.entrywise and op.kind != "time"]

# What torch calls a row, or how it is said there; all others have the same name.
TORCH = {
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.remainder,
    "softplus": lambda x: -torch.nn.functional.logsigmoid(-x),
    "elu1": lambda x: torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0))),
    "stop_gradient": lambda x: x.detach() + 0 * x.nan_to_num(),
    "sum": torch.sum,
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "rms": lambda x: torch.sqrt(torch.mean(x * x)),
    "T": lambda x: x[None] if x.ndim == 1 else x.T[:, 0] if x.shape[0] == 1 else x.T,
    "vec": lambda x: x.reshape(-1),
    "concat": lambda *xs: torch.cat([torch.atleast_1d(x) for x in xs]),
    "roll": lambda x: torch.roll(x, 2),
    "softmax": lambda x: torch.softmax(x, -1),
    "normalize": lambda x: x / torch.sqrt(torch.sum(x * x) + NORMALIZE_EPS),
    "matmul": lambda a, b: torch.matmul(a[:, None] if a.ndim == 1 else a, b).squeeze(),
    "solve": torch.linalg.solve,
}


def reference(op: Op):
    """What torch means by ``op``."""
    for home in (torch, torch.nn.functional):
        if op.name not in TORCH and hasattr(home, op.name):
            return getattr(home, op.name)
    return TORCH[op.name]


def _rotate(x, angle):
    y = x.clone()
    n = 2 * len(angle)
    y[0:n:2] = x[0:n:2] * angle.cos() - x[1:n:2] * angle.sin()
    y[1:n:2] = x[0:n:2] * angle.sin() + x[1:n:2] * angle.cos()
    return y


TORCH["rotate"] = _rotate


def pulled(fn, xs):
    """Value and gradients by torch, the cotangent all ones times a few fixed numbers."""
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in xs]
    y = fn(*leaves)
    if not y.is_floating_point():
        return y.numpy(), None, [np.zeros(np.shape(x)) for x in xs]
    ct = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).reshape(y.shape)
    cts = torch.autograd.grad(y, leaves, ct, allow_unused=True)
    grads = [np.zeros(np.shape(x)) if g is None else g.numpy() for g, x in zip(cts, xs)]
    return y.detach().numpy(), ct.numpy(), grads


def close(ours, theirs, what):
    """Equal to 12 digits wherever torch has a number."""
    theirs = np.asarray(theirs, float)
    ours = np.broadcast_to(np.asarray(0.0 if ours is None else ours, float), theirs.shape)
    known = ~np.isnan(theirs)
    np.testing.assert_allclose(ours[known], theirs[known], rtol=2e-12, atol=2e-14, err_msg=what)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_elementwise_values_and_gradients_are_those_of_torch(op):
    points = POINTS[1:-1] if op.name == "mod" else POINTS
    xs = [np.array(x) for x in zip(*itertools.product(points, repeat=op.arity[0]))]
    if op.name == "where":
        xs[0] = xs[0] > 0
        value, ct, grads = pulled(lambda a, b: torch.where(torch.tensor(xs[0]), a, b), xs[1:])
        grads = [np.zeros(xs[0].shape), *grads]
    else:
        value, ct, grads = pulled(reference(op), xs)
    y = op.numpy(*xs)
    close(y, value, "value")
    for i, (ours, theirs) in enumerate(zip(op.grad(F, ct, y, *xs), grads)):
        close(ours, np.where(np.isnan(value), np.nan, theirs), f"gradient {i}")


def test_a_zero_cotangent_stays_zero_at_every_point():
    for op in ELEMENTWISE:
        xs = [np.array(x) for x in zip(*itertools.product(POINTS, repeat=op.arity[0]))]
        cts = op.grad(F, np.zeros_like(xs[0]), op.numpy(*xs), *xs)
        assert all(np.all(ct == 0) for ct in cts if ct is not None), op.name


VECTORS = ([1.0, -2.0, 0.5, 3.0, 3.0], [-1.0, -1.0], [0.7])
MATRIX = [[1.0, 2.0, -0.5], [2.0, 0.25, 2.0]]
SQUARE = [[2.0, 0.3, -0.1], [0.4, 1.5, 0.2], [0.1, -0.2, 1.0]]
ROW = [[1.0, -0.5, 2.0]]
COLUMN = [0.3, -1.0, 0.8]
CASES = {
    "T": [(v,) for v in VECTORS[:2]] + [(MATRIX,), (ROW,)],
    "vec": [(MATRIX,)],
    "concat": [(2.0, COLUMN, -1.0), (COLUMN,)],
    "rotate": [([1.0, 2.0, -1.0, 0.5, 3.0], [0.3, -2.0]), ([1.0, 2.0], [0.1])],
    "matmul": [(ROW, COLUMN), (COLUMN, ROW), (MATRIX, COLUMN), (MATRIX, SQUARE), (ROW, SQUARE)],
    "solve": [(SQUARE, COLUMN), (SQUARE, np.transpose(MATRIX).tolist())],
}


def cases(op: Op):
    """Argument tuples: those listed, or vectors (and a matrix, where all is reduced)."""
    return CASES.get(op.name, [(v,) for v in VECTORS] + [(MATRIX,)] * (op.kind == "reduce"))


@pytest.mark.parametrize("op", TENSORS, ids=lambda op: op.name)
def test_tensor_values_and_gradients_are_those_of_torch_under_leading_axes(op):
    for case in cases(op):
        xs = [np.array(x) for x in case]
        value, ct, grads = pulled(reference(op), xs)
        site = Site(2, value.shape, tuple(x.ndim for x in xs))
        scales = [np.linspace(0.5, 1.5, 2), np.linspace(-1, 2, 3)]
        led = [
            x
            * scales[i % 2]
            .reshape((2, 1) if i % 2 == 0 else (1, 3))
            .reshape(*((2, 1) if i % 2 == 0 else (1, 3)), *[1] * x.ndim)
            for i, x in enumerate(xs)
        ]
        alone = [x[None, None] for x in xs]
        y = op.numpy(site, *alone)
        close(y[0, 0], value, f"value of {case}")
        for ours, theirs in zip(op.grad(site, ct[None, None], y, *alone), grads):
            close(ours[0, 0], theirs, f"gradient of {case}")
        y = op.numpy(site, *led)
        lead = np.broadcast_shapes(*(x.shape[:2] for x in led))
        cts = op.grad(site, np.broadcast_to(ct, lead + ct.shape), y, *led)
        for at in np.ndindex(*lead):
            one = [x[tuple(min(i, n - 1) for i, n in zip(at, x.shape))] for x in led]
            value, _, grads = pulled(reference(op), one)
            close(y[at], value, f"value of {case} at {at}")
            for ours, theirs in zip(cts, grads):
                close(ours[at], theirs, f"gradient of {case} at {at}")


def test_a_zero_cotangent_takes_nothing_from_an_infinite_matrix():
    a, b = np.array([[1.0, 2.0]]), np.array([[np.inf], [3.0]])
    da, db = OPS["matmul"].grad(Site(None, (1, 1), (2, 2)), np.zeros((1, 1)), None, a, b)
    assert not da.any()
    assert not db.any()


def test_logaddexp_of_two_minus_infinities_has_no_gradient():
    x = np.array([-np.inf])
    y = OPS["logaddexp"].numpy(x, x)
    assert y == -np.inf
    assert [float(d) for d in map(np.squeeze, OPS["logaddexp"].grad(F, np.ones(1), y, x, x))] == [
        0,
        0,
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_elu_plus_one_keeps_its_digits_below_zero(dtype):
    x = np.array([-8.0], dtype)
    for y in (OPS["elu1"].numpy(x), *OPS["elu1"].grad(F, np.ones_like(x), x, x)):
        assert float(y[0]) == pytest.approx(math.exp(-8), rel=2 * float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_single_precision_stays_single(op):
    xs = [np.full(3, 0.7, np.float32) for _ in range(op.arity[0])]
    y = op.numpy(*xs)
    cts = op.grad(F, np.ones(3, np.float32), y, *xs)
    assert {a.dtype for a in (y, *cts) if a is not None} <= {np.dtype(np.float32), np.dtype(bool)}


class Term:
    """Something without arithmetic, to be combined through the namespace alone."""


class Terms:
    """A namespace of terms that has elementwise ops and `pull`."""

    def __getattr__(self, name):
        assert name == "pull" or OPS[name].entrywise, name
        count = 2 if name == "pull" else OPS[name].arity[0]

        def build(*args):
            assert len(args) == count
            assert all(isinstance(arg, Term | int | float) for arg in args)
            return Term()

        return build


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_elementwise_rules_are_written_in_elementwise_ops_alone(op):
    cts = op.grad(Terms(), Term(), Term(), *(Term() for _ in range(op.arity[0])))
    assert len(cts) == op.arity[0]
    assert all(ct is None or isinstance(ct, Term) for ct in cts)


def run(op: Op, *xs):
    """The value of ``op``; of tensors as if they were vectors or what the first case has."""
    if op.entrywise:
        return op.numpy(*xs)
    result = pulled(reference(op), xs)[0]
    return op.numpy(Site(2, result.shape, tuple(x.ndim for x in xs)), *xs)


LINEAR = {
    "sum": lambda n: [tuple(range(n))],
    "each": lambda n: [(i,) for i in range(n)],
    "first": lambda n: [(0,)],
    "second": lambda n: [(1,)],
    "branches": lambda n: [(1, 2)],
}


@pytest.mark.parametrize(
    "op", [op for op in OPS.values() if op.linear != "none"], ids=lambda op: op.name
)
def test_ops_are_linear_in_the_arguments_that_their_row_names(op):
    rng = np.random.default_rng(0)
    example = cases(op)[0] if op in TENSORS else ([0.1, 0.2],) * op.arity[0]
    xs = [np.array(x) for x in example]
    xs = [x > 0.15 if op.name == "where" and i == 0 else x for i, x in enumerate(xs)]
    for moving in LINEAR[op.linear](len(xs)):
        others = [rng.standard_normal(x.shape) if i in moving else x for i, x in enumerate(xs)]
        mixed = [2 * a - 3 * b if i in moving else a for i, (a, b) in enumerate(zip(xs, others))]
        close(run(op, *mixed), 2 * run(op, *xs) - 3 * run(op, *others), op.name)


ENDS = st.one_of(
    st.sampled_from([-math.inf, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, math.inf]),
    st.floats(-50, 50, allow_subnormal=False),
)


@st.composite
def within(draw):
    """Bounds, and a vector of numbers that keeps them."""
    lo, hi = sorted((draw(ENDS) + 0.0, draw(ENDS) + 0.0))
    finite = (max(lo, -60.0), min(hi, 60.0))
    inner = st.floats(*finite, allow_subnormal=False) if finite[0] <= finite[1] else st.just(lo)
    return (lo, hi), draw(st.lists(inner, min_size=6, max_size=6))


INTERVALS = [op for op in OPS.values() if op.interval is not None]


@pytest.mark.parametrize("op", INTERVALS, ids=lambda op: op.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_values_stay_within_the_interval_of_their_row(op, data):
    count = op.arity[0] if op.entrywise else len(cases(op)[0])
    drawn = [data.draw(within()) for _ in range(count)]
    xs = [np.array(x) for _, x in drawn]
    if op.name == "pow" and data.draw(st.booleans()):
        power = float(data.draw(st.integers(-3, 4)))
        drawn[1], xs[1] = ((power, power), []), np.full(6, power)
    if op.name == "where":
        xs[0] = xs[0] > 0
    if op not in ELEMENTWISE:
        shapes = [np.shape(x) for x in cases(op)[0]]
        xs = [np.resize(x, shape) for x, shape in zip(xs, shapes)]
    lo, hi = op.interval(*(bounds for bounds, _ in drawn))
    assert lo <= hi
    y = np.asarray(run(op, *xs), float)
    reached = ~np.isnan(y)
    if op.name in ("div", "pow", "rsqrt"):
        reached &= xs[op.name == "div"] != 0  # a zero has two signs
    y = y[reached]
    slack = 1e-9 * np.clip(np.abs(y), 1, 1e300)
    assert np.all(y >= lo - slack), (lo, y)
    assert np.all(y <= hi + slack), (hi, y)


def test_a_singular_system_has_no_solution_and_spoils_no_other():
    a = np.stack([np.eye(2), np.ones((2, 2))])
    x = OPS["solve"].numpy(Site(None, (2,), (2, 1)), a, np.ones((1, 2)))
    np.testing.assert_array_equal(x, [[1, 1], [np.nan, np.nan]])
