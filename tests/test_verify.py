"""Inputs within promises, and a harness that passes right kernels and fails wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lacc
from lacc.diagnostics import LaccError
from lacc.verify.inputs import REGIMES, CannotDraw, Sizes, draw, log_gates

PROMISES = """variant promises
dim K = 4, V = 3
input q, k : [K] where sum(k * k) <= 1
input v : [V]
input w : [K] where sum(w) == 1, w >= 0
input a : scalar per group where 0 <= a <= 1
input b : scalar where a + b <= 1, b >= 0
input c : [K] where -1 < c < 1, rms(c) <= 0.2
input n : [K] per layer where sum(n * n) == 1
input u : scalar where u >= 5 + a * a
param A : scalar where A < 0
input g : scalar where g <= 0
state S : [K, V]
output o : [V]
S[t] = a * exp(g) * S[t-1] + (k + w + c + n) @ v.T
o = A * b * u * S[t].T @ q
"""


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_draws_keep_every_promise(regime: str, dtype: Any) -> None:
    spec = lacc.load(PROMISES)
    sizes = Sizes(B=2, T=40, H=4, G=2)
    x = draw(spec, sizes, regime=regime, dtype=dtype)
    assert all(array.dtype == dtype for array in x.values())
    near = 20 * np.finfo(dtype).eps
    exact = {name: array.astype(np.float64) for name, array in x.items()}
    assert (np.square(exact["k"]).sum(-1) <= 1).all()
    assert np.abs(exact["w"].sum(-1) - 1).max() <= near
    assert (exact["w"] >= 0).all()
    assert ((exact["a"] >= 0) & (exact["a"] <= 1)).all()
    assert (np.repeat(exact["a"], 2, 2) + exact["b"] <= 1).all()
    assert (np.abs(exact["c"]) < 1).all()
    assert (np.sqrt(np.square(exact["c"]).mean(-1)) <= 0.2).all()
    assert np.abs(np.square(exact["n"]).sum(-1) - 1).max() <= near
    assert (exact["A"] < 0).all()
    assert log_gates(spec) == {"g"}
    assert np.isneginf(exact["g"]).any() == (regime == "reset")
    assert np.isfinite(exact["A"]).all()
    if regime == "boundary":
        assert (exact["a"] == 0).any()
        assert (exact["a"] == 1).any()
        assert (exact["g"] == 0).any()
        assert (np.square(exact["k"]).sum(-1) > 1 - 1e-6).any()
    if regime == "strong":
        assert (exact["g"] == -1000).any()
        assert (exact["g"] == -20).any()
    again = draw(spec, sizes, regime=regime, dtype=dtype)
    assert all(np.array_equal(x[name], again[name]) for name in x)


def test_unpromised_inputs_are_normal() -> None:
    x = draw(lacc.load(PROMISES), Sizes(T=2000, H=2, G=2))["q"]
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05


def test_a_promise_that_cannot_be_kept_is_an_error() -> None:
    spec = lacc.load(PROMISES.replace("sum(k * k) <= 1", "sum(k * k) <= -1"))
    with pytest.raises(CannotDraw, match=r"no input k .*sum\(k \* k\) <= -1"):
        draw(spec, Sizes())


assert LaccError
