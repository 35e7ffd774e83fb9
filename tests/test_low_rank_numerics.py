"""Delta rules in float32 where their triangular systems are at their worst: errors beside those of
the naive recurrence in float32.

Keys that are alike make the inverse of a chunk's system a difference of large numbers for whoever
sums a series of its powers; keys with β |k|² = 2 reflect and forget nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import lacc

DELTA = """
variant delta
dim K = 32, V = 16
input q, k : [K]
input v : [V]
input g : {gate} where g <= 0
input β : scalar
state S : [K, V]
output o : [V]
S[t] = {decay} @ (I - β * k @ k.T) @ S[t-1] + β * k @ v.T
o = S[t].T @ q
"""
SPECS = {
    "scalar": DELTA.format(gate="scalar", decay="(exp(g) * I)"),
    "channels": DELTA.format(gate="[K]", decay="diag(exp(g))"),
}
K, V, HEADS, T = 32, 16, 2, 512
CHUNKS = (16, 32, 64, 256)


@cache
def kernel(gate: str) -> Any:
    return lacc.compile(SPECS[gate])


def alike(rng: np.random.Generator, tokens: int, cosine: float) -> Any:
    """Unit keys, any two at about this cosine."""
    one, others = rng.standard_normal((HEADS, K)), rng.standard_normal((tokens, HEADS, K))
    one /= np.linalg.norm(one, axis=-1, keepdims=True)
    others /= np.linalg.norm(others, axis=-1, keepdims=True)
    k = np.sqrt(cosine) * one + np.sqrt(1 - cosine) * others
    return k / np.linalg.norm(k, axis=-1, keepdims=True)


def drawn(case: str, tokens: int = T) -> tuple[str, tuple[Any, ...]]:
    """The kind of gate of a case, and its inputs in float32."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((tokens, HEADS, K)) / np.sqrt(K)
    v = rng.standard_normal((tokens, HEADS, V))
    g, beta, gate = np.full((tokens, HEADS), -0.01), np.ones((tokens, HEADS)), "scalar"
    kind, _, by = case.partition(" ")
    match kind:
        case "alike":
            cosine, strength = map(float, by.split())
            k, beta = alike(rng, tokens, cosine), np.full_like(beta, strength)
        case "edge":  # β |k|² = 2, keys of any length
            k = rng.standard_normal((tokens, HEADS, K)) * np.exp(rng.standard_normal((HEADS, 1)))
            beta = 2 / (k * k).sum(-1)
        case "channel":  # one forgets at once, the others slowly
            k, gate = alike(rng, tokens, 0.5), "channels"
            g = np.full((tokens, HEADS, K), -0.01)
            g[..., 3] = float(by)
        case _:
            k = alike(rng, tokens, 0.0)
            beta = rng.random((tokens, HEADS))
    return gate, tuple(x.astype(np.float32)[None] for x in (q, k, v, g, beta))


def recurrence(xs: tuple[Any, ...], dtype: Any) -> Any:
    """o and the last state by the definition, a token at a time."""
    q, k, v, g, beta = (x[0].astype(dtype) for x in xs)
    decay = np.exp(g if g.ndim == 3 else g[..., None])
    state, found = np.zeros((HEADS, K, V), dtype), []
    for t in range(len(q)):
        known = k[t][:, None] @ state
        column = (beta[t][:, None] * k[t])[..., None]
        state = decay[t][..., None] * (state - column * known) + column * v[t][:, None]
        found.append((q[t][:, None] @ state)[:, 0])
    return np.stack(found)[None], state[None]


def error(got: Any, true: Any) -> float:
    """The largest error, relative to the largest entry."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, true))


CASES = (
    *(f"alike {cosine} {beta}" for cosine in (1.0, 0.99, 0.9) for beta in (1.0, 2.0)),
    *("edge", "channel -20", "channel -inf", "channel 0", "spread"),
)


@pytest.mark.parametrize("case", CASES)
def test_errors_in_float32_are_of_the_size_that_the_recurrence_has(case: str) -> None:
    gate, xs = drawn(case)
    true = recurrence(xs, np.float64)
    naive = error(recurrence(xs, np.float32), true)
    for chunk in CHUNKS:
        got = kernel(gate)(*xs, mode="chunk", chunk=chunk)
        assert error((got[0], got[1].S), true) <= max(1e-5, 10 * naive), chunk


@pytest.mark.parametrize("case", ["alike 1.0 2.0", "alike 0.9 2.0", "edge", "channel -20"])
def test_gradients_in_float32_are_near_those_in_float64(case: str) -> None:
    gate, xs = drawn(case)
    ct = np.random.default_rng(1).standard_normal(xs[2].shape)
    wide = tuple(x.astype(np.float64) for x in xs)
    true = kernel(gate).vjp(*wide, cotangent=ct, mode="recurrent")
    naive = kernel(gate).vjp(*xs, cotangent=ct.astype(np.float32), mode="recurrent")
    got = kernel(gate).vjp(*xs, cotangent=ct.astype(np.float32), mode="chunk", chunk=32)
    for name in ("q", "k", "v", "g", "beta"):
        of = [error([d[name]], [true[name]]) for d in (naive, got)]
        assert of[1] <= max(1e-5, 20 * of[0]), name


@pytest.mark.parametrize("case", ["alike 0.9 2.0", "spread"])
def test_a_long_sequence_drifts_no_more_than_the_recurrence(case: str) -> None:
    gate, xs = drawn(case, 100_000)
    true, naive = recurrence(xs, np.float64), recurrence(xs, np.float32)
    got = kernel(gate)(*xs, mode="chunk")
    for last in (slice(0, 1000), slice(-1000, None)):
        apart = error([got[0][:, last]], [true[0][:, last]])
        assert apart <= max(1e-5, 2 * error([naive[0][:, last]], [true[0][:, last]]))
    assert error([got[1].S], true[1:]) <= max(1e-5, 2 * error(naive[1:], true[1:]))
