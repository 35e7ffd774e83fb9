"""Kernels along time against what they mean: products over runs, their true gradients, solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lacc.tile import kernels, triangular

torch = pytest.importorskip("torch")

TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
D = 3
INFINITE = -np.inf

each_space = pytest.mark.parametrize("log", [True, False], ids=["log", "linear"])
each_kind = pytest.mark.parametrize("strict", [True, False], ids=["strict", "inclusive"])


def gates(tokens: int, log: bool, seed: int, lead: tuple[int, ...] = (2,)) -> Any:
    """Decays with hard resets: logs with -inf, or factors of both signs with zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*lead, tokens, D))
    hard = rng.random(x.shape)
    if log:
        return np.where(hard < 0.2, INFINITE, np.where(hard > 0.9, -30.0, -np.abs(x)))
    return np.where(hard < 0.2, 0.0, np.where(hard > 0.9, 1.0, np.tanh(2 * x)))


def direct(g: Any, log: bool, strict: bool) -> Any:
    """P[t, s] by one product after another, differentiable: [..., T, S, D]."""
    factor = torch.exp(g) if log else g
    tokens = g.shape[-2]
    rows = []
    for t in range(tokens):
        row = []
        for s in range(tokens):
            run = torch.ones_like(factor[..., 0, :])
            for u in range(s + 1, t + 1 - strict):
                run = run * factor[..., u, :]
            row.append(run if s <= t - strict else torch.zeros_like(run))
        rows.append(torch.stack(row, -2))
    return torch.stack(rows, -3)


def ends(g: Any, log: bool, strict: bool) -> tuple[Any, Any, Any]:
    """Decays from the chunk's start, to its end, and of all of it."""
    factor = torch.exp(g) if log else g
    one = torch.ones_like(factor[..., :1, :])
    up, down = [one[..., 0, :]], [one[..., 0, :]]
    for t in range(g.shape[-2]):
        up.append(up[-1] * factor[..., t, :])
        down.append(down[-1] * factor[..., g.shape[-2] - 1 - t, :])
    prefix = torch.stack(up[:-1] if strict else up[1:], -2)
    return prefix, torch.stack(down[:-1][::-1], -2), up[-1]


def grown(fn: Callable[..., Any], *xs: Any) -> tuple[Any, list[Any], Any]:
    """Value, gradients and cotangent by torch."""
    leaves = [torch.tensor(x, requires_grad=True) for x in xs]
    y = fn(*leaves) + sum(0 * x.nan_to_num(neginf=0).sum() for x in leaves)
    ct = torch.linspace(-1, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    grads = torch.autograd.grad(y, leaves, ct)
    return y.detach().numpy(), [x.numpy() for x in grads], ct.numpy()


def close(ours: Any, theirs: Any) -> None:
    assert np.isfinite(theirs).all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


@each_space
@each_kind
@pytest.mark.parametrize("tokens", TOKENS)
def test_decays_of_ends_are_direct_products_with_their_true_gradients(
    tokens: int, strict: bool, log: bool
) -> None:
    g = gates(tokens, log, tokens)
    d = kernels.levels(g, log, strict)
    found = (kernels.prefix(d), kernels.suffix(d), kernels.whole(d))
    pulls = (kernels.prefix_pull, kernels.suffix_pull, kernels.whole_pull)
    for n, (ours, pull) in enumerate(zip(found, pulls)):
        value, (dg,), ct = grown(lambda x, n=n: ends(x, log, strict)[n], g)
        close(ours, value)
        close(pull(ct, d), dg)


@each_space
@each_kind
@pytest.mark.parametrize("tokens", TOKENS)
def test_pairs_are_direct_products_with_their_true_gradients(
    tokens: int, strict: bool, log: bool
) -> None:
    rng = np.random.default_rng(tokens)
    g = gates(tokens, log, tokens + 50)
    x, y = rng.standard_normal((2, 2, tokens, D))
    a = np.tril(rng.standard_normal((2, tokens, tokens)))
    d = kernels.levels(g, log, strict)

    def gram(x: Any, y: Any, g: Any) -> Any:
        return torch.einsum("btd,bsd,btsd->bts", x, y, direct(g, log, strict))

    def decayed(a: Any, y: Any, g: Any) -> Any:
        return torch.einsum("bts,bsd,btsd->btd", a, y, direct(g, log, strict))

    value, grads, ct = grown(gram, x, y, g)
    met, up, down = kernels.meet(x, y, d)
    close(met, value)
    close(kernels.gram(x, y, d), value)
    close(up, x * kernels.prefix(d))
    close(down, y * kernels.suffix(d))
    for ours, theirs in zip(kernels.meet_pull(ct, x, y, d), grads):
        close(ours, theirs)
    value, grads, ct = grown(decayed, a, y, g)
    close(kernels.decayed(a, y, d), value)
    for ours, theirs in zip(kernels.decayed_pull(ct, a, y, d), grads):
        close(ours, theirs)
    scalar = kernels.levels(g[..., :1], log, strict)
    value, (dg,), ct = grown(lambda g: direct(g, log, strict)[..., 0], g[..., :1])
    close(kernels.between(scalar), value)
    close(kernels.between_pull(ct, scalar), dg)


@each_kind
@pytest.mark.parametrize("strength", [1e-4, 1.0, 20.0, 200.0])
def test_single_precision_gradients_of_gates_keep_their_digits_at_any_strength(
    strength: float, strict: bool
) -> None:
    rng = np.random.default_rng(0)
    g = -strength * rng.random((16, 2))
    x, y, ct = rng.standard_normal((3, 16, 2))
    ct = ct @ ct.T
    narrow = [z.astype(np.float32) for z in (ct, x, y)]
    wide = [z.astype(np.float64) for z in narrow]
    g32 = g.astype(np.float32)
    ours = kernels.meet_pull(*narrow, kernels.levels(g32, True, strict))[2]
    true = kernels.meet_pull(*wide, kernels.levels(g32.astype(np.float64), True, strict))[2]
    assert ours.dtype == np.float32
    terms = kernels.meet_pull(
        *map(np.abs, wide), kernels.levels(g32.astype(np.float64), True, strict)
    )[2]
    assert np.all(np.abs(ours - true) <= 1e-6 * (1 + 16 * strength / 200) * terms + 1e-37)


def test_runs_reach_no_token_outside_of_them() -> None:
    rng = np.random.default_rng(0)
    g = -rng.random((13, D))
    x, y = rng.standard_normal((2, 13, D))
    a = np.tril(rng.standard_normal((13, 13)))
    moved = g.copy()
    moved[7:] = -3 * rng.random((6, D))
    for log in (True, False):
        before, after = (
            kernels.levels(np.exp(z) if not log else z, log, False) for z in (g, moved)
        )
        for of in (
            kernels.prefix,
            lambda d: kernels.gram(x, y, d),
            lambda d: kernels.decayed(a, y, d),
        ):
            assert np.array_equal(of(before)[:7], of(after)[:7])
        assert np.array_equal(
            kernels.suffix(before)[8:],
            kernels.suffix(
                kernels.levels(
                    np.concatenate([moved[:7], g[7:]])
                    if log
                    else np.exp(np.concatenate([moved[:7], g[7:]])),
                    log,
                    False,
                )
            )[8:],
        )


def test_positive_logs_work_while_every_product_is_finite() -> None:
    g = np.array([[300.0], [-600.0], [500.0], [-100.0]])
    d = kernels.levels(g, True, False)
    one = np.ones((4, 1))
    close(kernels.gram(one, one, d), direct(torch.tensor(g), True, False)[..., 0].numpy())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tokens", [*range(1, 20), 31, 32, 33, 48, 65])
def test_a_solve_is_that_of_the_unit_lower_triangle(tokens: int, transposed: bool) -> None:
    rng = np.random.default_rng(tokens)
    a = rng.standard_normal((2, 1, tokens, tokens)) * 0.4
    r = rng.standard_normal((3, tokens, 2))
    system = np.tril(a, -1) + np.eye(tokens)
    system = system.swapaxes(-1, -2) if transposed else system
    x = triangular.solve(a, r, transposed)
    assert x.shape == (2, 3, tokens, 2)
    np.testing.assert_allclose(x, np.linalg.solve(system, np.broadcast_to(r, x.shape)), rtol=1e-9)


@pytest.mark.parametrize("tokens", [*range(1, 10), 16, 17, 33])
def test_an_inverse_is_that_of_the_strict_lower_part_whatever_stands_above(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    a = rng.standard_normal((2, 3, tokens, tokens)) * 0.4
    system = np.tril(a, -1) + np.eye(tokens)
    above = np.where(np.tri(tokens, k=-1) > 0, a, np.nan)
    np.testing.assert_allclose(triangular.inverse(above), np.linalg.inv(system), atol=1e-12)
    assert triangular.inverse(a.astype(np.float32)).dtype == np.float32


def test_a_solve_survives_keys_that_are_all_alike() -> None:
    rng = np.random.default_rng(0)
    k = rng.standard_normal(32) + 0.05 * rng.standard_normal((64, 32))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    a, r = np.tril(1.9 * k @ k.T, -1), rng.standard_normal((64, 8))
    x = triangular.solve(a.astype(np.float32), r.astype(np.float32), False)
    assert x.dtype == np.float32
    true = np.linalg.solve(a + np.eye(64), r)
    assert np.abs(x - true).max() <= 3e-5 * np.abs(true).max()


def test_a_scan_runs_along_time_and_its_adjoint_back() -> None:
    rng = np.random.default_rng(0)
    a, b, ct = rng.standard_normal((3, 9, 2))
    h, back = np.zeros(2), np.zeros(2)
    states, adjoint = [], []
    start = h
    for t in range(9):
        h = a[t] * h + b[t]
        states.append(h)
    for t in reversed(range(9)):
        back = ct[t] + (a[t + 1] * back if t < 8 else 0)
        adjoint.insert(0, back)
    np.testing.assert_allclose(kernels.scan(a, b, start, 0), states)
    back = kernels.scan_back(a, ct, 0)
    np.testing.assert_allclose(back, adjoint)
    from_nothing = kernels.scan(a, b, np.zeros_like(start), 0)
    assert np.vdot(from_nothing, ct) == pytest.approx(np.vdot(b, back))
    turned = kernels.scan(np.moveaxis(a, 0, -1), np.moveaxis(b, 0, -1), start, -1)
    np.testing.assert_array_equal(np.moveaxis(turned, -1, 0), kernels.scan(a, b, start, 0))
