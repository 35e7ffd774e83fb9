"""`(stabilized)` states: the same numbers as without, at any size of the exponents, whatever the
exponent that stands beside a value."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT
from scaled import FAR, SPECS, close, drawn, everything, stabilized, unstabilized
from test_golden import CASES, arrays, off

import lacc
from lacc import driver
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify
from lacc.verify.inputs import Sizes, draw


@pytest.mark.parametrize("name", SPECS)
def test_the_numbers_are_those_without(name: str) -> None:
    plain, scaled = (driver.compile(f(name), "numpy") for f in (unstabilized, stabilized))
    x = drawn(plain.spec)
    rng = np.random.default_rng(1)
    no_start = plain.signature.no_initial
    _, state = plain(**x)
    fields = [n for n in state._asdict() if n in {s.ascii for s in plain.spec.states}]
    start = None if no_start else {n: rng.normal(size=getattr(state, n).shape) for n in fields}
    ends = {n: rng.normal(size=getattr(state, n).shape) for n in fields}
    for begin in (None, start):
        truth = everything(plain, x, begin, ends)
        assert set(scaled.modes) >= {"chunk", "parallel"}
        for mode in scaled.modes:
            options = {"mode": mode} | ({"chunk": 4} if mode == "chunk" else {})
            close(everything(scaled, x, begin, ends, **options), truth, 1e-11)


@pytest.mark.parametrize("name", [n for n in SPECS if n != "the last value"])
def test_nothing_depends_on_the_exponents_that_come_in(name: str) -> None:
    kernel = driver.compile(stabilized(name), "numpy")
    x, rng = drawn(kernel.spec), np.random.default_rng(2)
    _, state = kernel(**x)
    own = [s.ascii for s in kernel.spec.states if s.ascii in state._fields]
    values = {n: rng.normal(size=getattr(state, n).shape) for n in own}
    ends = {n: rng.normal(size=getattr(state, n).shape) for n in own}
    calls = []
    for by in (0.0, 3.0, -40.0):
        start = {}
        for m, (n, value) in enumerate(values.items()):
            log = np.full(getattr(state, f"{n}_log", value).shape, by * (1 + m))
            if f"{n}_log" in state._fields:
                start |= {f"{n}_log": log, n: value * np.exp(-by * (1 + m))}
            else:
                start[n] = value
        found = everything(kernel, x, start, ends)
        for m, n in enumerate(own):  # the gradient of a field is that of its value, scaled
            if f"{n}_log" in state._fields:
                found[f"d0 {n}"] = found[f"d0 {n}"] * np.exp(-by * (1 + m))
        calls.append(found)
    for other in calls[1:]:
        close(other, calls[0], 1e-10)


@pytest.mark.parametrize("name", SPECS)
def test_every_check_passes(name: str) -> None:
    kernel = driver.compile(stabilized(name), "numpy")
    rows = ("initial state", "strong gates", "hard resets", "split", "packed", "padded")
    checks = {row: CHECKS[row] for row in (*rows, "causal", "empty")}
    report = verify(driver.compile(stabilized(name), "reference"), [kernel], checks=checks)
    assert report.passed, str(report)


@pytest.mark.parametrize("mode", ["chunk", "parallel"])
@pytest.mark.parametrize("name", FAR)
def test_exponents_of_hundreds_are_finite_in_single_precision(name: str, mode: str) -> None:
    """Against the reference in double; the error is that of rounding the exponents."""
    kernel, rng = driver.compile(stabilized(name), "numpy"), np.random.default_rng(3)
    x = drawn(kernel.spec, T=70)
    for argument, size in FAR[name].items():
        x[argument] = x[argument] + size * rng.integers(-1, 2, x[argument].shape)
    single = {n: a.astype(np.float32) for n, a in x.items()}
    wide = {n: a.astype(np.float64) for n, a in single.items()}
    truth = driver.compile(stabilized(name), "reference")
    want, _ = truth(**wide)
    assert np.isfinite(want).all()
    got, state = kernel(**single, mode=mode)
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert all(np.isfinite(field).all() for field in state)
    ct = rng.normal(size=want.shape)
    exact = truth.vjp(**wide, cotangent=ct)
    ours = kernel.vjp(**single, cotangent=ct.astype(np.float32), mode=mode)
    for n, g in exact.items():
        assert np.abs(ours[n] - g).max() <= 3e-4 * np.abs(g).max(), n


def test_tokens_one_by_one_are_finite_too() -> None:
    kernel = lacc.compile(ROOT / "examples" / "rwkv4.la", D=4)
    rng = np.random.default_rng(4)
    k = (100 * rng.integers(-1, 2, (1, 30, 1, 4)) + rng.normal(size=(1, 30, 1, 4))).astype("f4")
    v = rng.normal(size=k.shape).astype("f4")
    w, u = rng.normal(size=(2, 1, 4)).astype("f4")
    whole, _ = kernel(k, v, w, u)
    state, rows = None, []
    for t in range(30):
        o, state = kernel.step(k[:, t], v[:, t], w, u, state)
        rows.append(o)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(np.stack(rows, 1), whole, rtol=1e-5, atol=1e-5)


def test_an_exponent_keeps_its_digits_beside_a_value_of_sixteen_bits() -> None:
    kernel = lacc.compile(stabilized("mlstm"))
    x = {n: a.astype(np.float32) for n, a in drawn(kernel.spec).items()}
    x["i"] = x["i"] + np.float32(200.3)
    _, state = kernel(**x, state_dtype="float16")
    _, whole = kernel(**x)
    assert (state.S.dtype, state.S_log.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(state.S_log, whole.S_log)


# ---- written by hand, and other people's ---------------------------------------------------------


def test_the_running_maximum_by_hand_is_the_derived_one() -> None:
    derived, by_hand = (
        lacc.compile(ROOT / "examples" / f"{name}.la") for name in ("mlstm", "mlstm_by_hand")
    )
    x = draw(derived.spec, Sizes(B=2, T=70, H=2, dims={"K": 6, "V": 5}))
    x["i"] = 30 * x["i"]
    ct = np.random.default_rng(0).normal(size=(2, 70, 2, 5))
    close({"h": derived(**x)[0]}, {"h": by_hand(**x)[0]})
    close(derived.vjp(**x, cotangent=ct), by_hand.vjp(**x, cotangent=ct), 1e-9)


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("mlstm")])
def test_golden_numbers_of_mlstm_by_hand(case: str) -> None:
    """Those of the derived maximum are in test_golden.py."""
    kernel = lacc.compile(ROOT / "examples" / "mlstm_by_hand.la")
    data, cu_seqlens = arrays(case)
    for mode in kernel.modes:
        options = {"initial_state": data.get("in0"), "cu_seqlens": cu_seqlens, "mode": mode}
        h, state = kernel(**data["in"], **options)
        assert off(h, data["out"]["h"]) <= 1e-9
        values = {
            n: np.exp(state.m).reshape(state.m.shape + (1,) * (x.ndim - 2))
            for n, x in data["out0"].items()
        }
        for n, x in data["out0"].items():
            assert off(getattr(state, n) * values[n], x) <= 1e-9
        ends = {n: x * values[n] for n, x in data["do0"].items()}
        ends["m"] = sum(
            (getattr(state, n) * x).sum(tuple(range(2, x.ndim))) for n, x in ends.items()
        )
        found = kernel.vjp(**data["in"], **options, cotangent=data["do"]["h"], state_cotangent=ends)
        for n, x in data["grad"].items():
            assert off(found[n], x) <= 1e-8, n
        for n, x in data.get("grad0", {}).items():
            assert off(getattr(found["initial_state"], n), x) <= 1e-8, n
