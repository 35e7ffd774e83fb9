"""`(stabilized)` states: the same numbers as without, at any size of the exponents, whatever the
exponent that stands beside a value."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from test_golden import CASES, arrays, off

import lacc
from lacc import driver
from lacc.spec.model import Spec
from lacc.verify.cases import factors
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify
from lacc.verify.inputs import Sizes, draw

HEAD = "variant x\ndim K = 4, V = 3\n"
DIMS = {"K": 4, "V": 3}

SPECS = {
    "mlstm": """
input q, k : [K]
input v : [V]
input i, f : scalar
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
S[t] = sigmoid(f) * S[t-1] + exp(i) * k @ v.T
n[t] = sigmoid(f) * n[t-1] + exp(i) * k
o = S[t].T @ q / max(abs(n[t].T @ q), 1)
""",
    "a channel each": """
input k, v, u : [K]
param w : [K]
state a, b : [K] (stabilized)
output o : [K]
a[t] = exp(-exp(w)) * a[t-1] + exp(k) * v
b[t] = exp(-exp(w)) * b[t-1] + exp(k)
o = (a[t-1] + exp(u + k) * v) / (b[t-1] + exp(u + k))
""",
    "features": """
input q, k : [K]
input v : [V]
state S : [K, V] (stabilized)
state z : [K] (stabilized)
output o : [V]
S[t] = S[t-1] + exp(k) @ v.T
z[t] = z[t-1] + exp(k)
o = S[t].T @ exp(q) / (z[t].T @ exp(q) + 1e-3)
""",
    "columns": """
input q, k : [K]
input s, w : [V]
state S : [K, V] (stabilized)
state n : [V] (stabilized)
output o : [K]
S[t] = 0.9 * S[t-1] + k @ exp(s).T
n[t] = 0.9 * n[t-1] + exp(s)
o = S[t] @ softmax(S[t].T @ q / n[t] + w) / sum(n[t])
""",
    "rows and columns": """
input a, q : [K]
input b : [V]
input g : [K] where g <= 0
state S : [K, V] (stabilized)
output o : [V]
S[t] = diag(exp(g)) @ S[t-1] + exp(a) @ exp(b).T
o = log(abs(S[t].T @ exp(q)) + 1)
""",
    "gates in linear space": """
input q, k : [K]
input v : [V]
input a : scalar where 0 <= a <= 1
input r : [K] where 0 <= r <= 1
input i : scalar
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
S[t] = a * S[t-1] + exp(i) * k @ v.T
n[t] = r * n[t-1] + exp(k + i)
u = S[t-1].T @ q
o = u / (sum(n[t]) + sum(abs(u)))
""",
    "an erase": """
input q, k : [K]
input v : [V]
input i, f, b : scalar
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
u = normalize(k)
S[t] = sigmoid(f) * (I - sigmoid(b) * u @ u.T) @ S[t-1] + exp(i) * u @ v.T
n[t] = sigmoid(f) * n[t-1] + exp(i) * abs(k)
o = S[t].T @ q / (1e-3 + sum(n[t]))
""",
    "erases beside a decay of each channel": """
input q, k, w : [K]
input v : [V]
input g : [K] where g <= 0
input i : scalar
input b : scalar where 0 <= b <= 1
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
u = normalize(k)
p = normalize(w)
S1 = (I - b * u @ u.T) @ diag(exp(g)) @ S[t-1] + exp(i) * u @ v.T
S[t] = (I - b * p @ p.T) @ S1 + exp(2 * i) * p @ v.T
n[t] = exp(g) * n[t-1] + exp(i) + exp(2 * i)
o = (S[t].T @ q + S[t-1].T @ k) / (1e-3 + sum(n[t]))
""",
    "an erase with a weight of its own": """
input q, k : [K]
input v : [V]
input i, b : scalar
input a, c : scalar where 0 <= a <= 1
state S : [K, V] (stabilized)
state x : [K] (stabilized)
output o : [V]
u = normalize(k)
S[t] = a * S[t-1] - exp(b - 2) * (S[t-1] @ v) @ v.T + exp(i) * k @ v.T
x[t] = c * (x[t-1] - u * (u.T @ x[t-1])) + exp(i) * k
o = S[t].T @ q / (1 + abs(x[t-1].T @ q))
""",
    "backward": """
input q, k : [K]
input v : [V]
input i : scalar
input g : [K] where g <= 0
state S : [K, V] (stabilized)
output o : [V]
S[t] = diag(exp(g)) @ S[t+1] + exp(i) * k @ v.T
o = S[t].T @ q
""",
    "the last value": """
input k, v : [K]
state a, b : [K] (stabilized)
output o : [K]
a[t] = a[t-1] + exp(k) * v
b[t] = b[t-1] + exp(k)
o = a[T] / b[T] + a[t] / b[t]
""",
    "one feeds another, and one that is plain": """
input q, k : [K]
input v : [V]
input i, f : scalar
state n : [K] (stabilized)
state S : [K, V] (stabilized)
state R : [K, V]
output o : [V]
n[t] = sigmoid(f) * n[t-1] + exp(i) * abs(k)
S[t] = sigmoid(n[t].T @ k) * S[t-1] + (n[t] / sum(n[t])) @ v.T
R[t] = exp(-1 / (1 + sum(n[t]))) * R[t-1] + k @ (S[t].T @ q).T
o = R[t].T @ q
""",
    "a start, a delay, a scalar": """
input k : [K]
input i, f : scalar
param p : [K]
state a : [K] (stabilized) = p
state c : scalar (stabilized)
state P : [K]
output o : [K]
P[t] = a[t-1]
a[t] = sigmoid(f) * a[t-1] + exp(i) * k
c[t] = sigmoid(f) * c[t-1] + exp(i)
o = P[t-2] / (1 + c[t] + c[t-1]) + a[t]
""",
}

FAR = {
    "mlstm": {"i": 200, "f": 200},
    "a channel each": {"k": 100},
    "features": {"k": 100, "q": 50},
    "columns": {"s": 100},
    "gates in linear space": {"i": 200},
    "an erase": {"i": 200, "f": 200},
    "erases beside a decay of each channel": {"i": 100},
    "the last value": {"k": 100},
}


def stabilized(name: str) -> str:
    return HEAD + SPECS[name]


def unstabilized(name: str) -> str:
    return stabilized(name).replace(" (stabilized)", "")


def drawn(spec: Spec, T: int = 13, **options: Any) -> dict[str, Any]:
    return draw(spec, Sizes(B=2, T=T, H=2, dims=DIMS), **options)


def true(spec: Spec, state: Any) -> dict[str, Any]:
    """What the fields of a state stand for."""
    scale = factors(spec, state)
    fields = {n: x for n, x in state._asdict().items() if n.removesuffix("_log") not in scale}
    return {**fields, **{n: getattr(state, n) * factor for n, factor in scale.items()}}


def everything(kernel: Any, x: dict[str, Any], start: Any, ends: Any, **options: Any) -> Any:
    """Outputs, true states and gradients of a call, ``ends`` the cotangents of true states."""
    rng = np.random.default_rng(5)
    o, state = kernel(**x, initial_state=start, **options)
    scale = factors(kernel.spec, state)
    cts = {n: ct * scale.get(n, 1.0) for n, ct in ends.items()}
    found = kernel.vjp(
        **x,
        initial_state=start,
        cotangent=rng.normal(size=o.shape),
        state_cotangent=cts,
        **options,
    )
    initial = found.pop("initial_state", None)
    found |= {} if initial is None else {f"d0 {n}": g for n, g in initial._asdict().items()}
    return {"o": o, **true(kernel.spec, state), **found}


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    for name, want in theirs.items():
        scale = np.abs(want).max(initial=0) + 1e-6
        assert np.abs(ours[name] - want).max(initial=0) <= tolerance * scale, name


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


# ---- how it is built -----------------------------------------------------------------------------


def test_states_of_equal_exponents_share_one_and_the_weights_of_pairs() -> None:
    derived = driver.analyse(driver.load(stabilized("mlstm")))
    assert derived.exponents == {"S": ("S@log", ()), "n": ("S@log", ())}
    ops = [inst.op for inst in derived.passes[0].forward.body]
    assert ops.count("matrix") == 1 and ops.count("tropical") == 1


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("a channel each", {"a": (0,), "b": (0,)}),
        ("features", {"S": (0,), "z": (0,)}),
        ("columns", {"S": (1,), "n": (0,)}),
        ("rows and columns", {"S": ()}),
    ],
)
def test_an_exponent_has_the_axis_that_the_weights_are_on(name: str, axes: Any) -> None:
    derived = driver.analyse(driver.load(stabilized(name)))
    assert {n: at for n, (_, at) in derived.exponents.items()} == axes


REFUSED = {
    "the nonlinear function tanh of the state": "S[t] = tanh(S[t-1]) + exp(i) * k @ v.T",
    "a dense transition: one factor on both sides": "S[t] = W @ S[t-1] + k @ v.T",
    "it needs other states that need it": "S[t] = S[t-1] + R[t-1]\nR[t] = R[t-1] - S[t-1]",
    "it is a running maximum": "S[t] = max(S[t-1] + i, k @ v.T)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_sum_of_decays_erases_and_writes_is_refused_and_said_so(why: str) -> None:
    other = "state R : [K, V]\n" if "R[t]" in REFUSED[why] else "param W : [K, K]\n"
    text = HEAD + (
        "input q, k : [K]\ninput v : [V]\ninput i : scalar\nstate S : [K, V] (stabilized)\n"
        f"{other}output o : [V]\n{REFUSED[why]}\no = S[t].T @ q + i * v"
    )
    reason = f"the (stabilized) state S has no scaled form ({why})"
    with pytest.raises(lacc.LaccError, match=re.escape(reason)):
        driver.compile(text, "numpy")
    (note,) = [d for d in driver.lints(driver.load(text)) if d.code == "LA0603"]
    assert "`S`" in note.message and "no mode remains" in note.notes[-1].message
    assert why in note.message
    driver.compile(text, "reference")


def test_an_erase_beside_a_decay_of_the_axis_that_it_leaves_has_no_chunks() -> None:
    text = HEAD + (
        "input q, k : [K]\ninput v : [V]\ninput i : scalar\ninput g : [V] where -1 <= g <= 0\n"
        "state S : [K, V] (stabilized)\noutput o : [V]\nu = normalize(k)\n"
        "S[t] = (I - u @ u.T) @ S[t-1] @ diag(exp(g)) + exp(i) * u @ v.T\no = S[t].T @ q"
    )
    kernel = driver.compile(text, "numpy")
    assert kernel.modes == ("recurrent",)
    (note,) = driver.lints(kernel.spec)
    assert "with the exponent of S" in note.message
    report = verify(driver.compile(text, "reference"), [kernel])
    assert report.passed, str(report)
    assert driver.compile(text.replace(" (stabilized)", ""), "numpy").modes[0] == "chunk"


def test_the_recurrences_that_are_shown_are_those_that_are_compiled() -> None:
    shown = driver.emit(stabilized("mlstm"), "recurrence")
    assert "S_log: maxplus" in shown and "@" not in shown
    assert "exp(i - stop_gradient(S_log[t]))" in shown


# ---- readouts ------------------------------------------------------------------------------------

SCALARS = ("(n[t].T @ q)", "sum(exp(q + n[t] * 0))", "exp(i)", "c[t]", "i", "1", "c[t-1]")
VECTORS = ("n[t]", "q", "exp(q)", "n[t-1]", "w[t] * q", "w[t]")
MAPS = (
    "abs({})",
    "-{}",
    "relu({})",
    "sqrt(abs({}) + 1)",
    "({})**2",
    "tanh({})",
    "log(abs({}) + 1)",
)


@st.composite
def readouts(draw: Any, depth: int = 3) -> str:
    """A scalar made of scaled states, exps and plain values."""

    def vector(depth: int) -> str:
        if not depth:
            return draw(st.sampled_from(VECTORS))
        form = draw(
            st.sampled_from(
                (
                    "{v} * {s}",
                    "{v} + {w}",
                    "max({v}, {w})",
                    "{v} / (1 + abs({s}))",
                    "where({v} > {w}, {v}, {w})",
                    "abs({v})",
                    "{v} * {w}",
                )
            )
        )
        return (
            "(" + form.format(v=vector(depth - 1), w=vector(depth - 1), s=scalar(depth - 1)) + ")"
        )

    def scalar(depth: int) -> str:
        if not depth:
            return draw(st.sampled_from(SCALARS))
        inner = scalar(depth - 1)
        match draw(st.integers(0, 7)):
            case 0:
                return f"({inner} + {scalar(depth - 1)})"
            case 1:
                return f"({inner} * {scalar(depth - 1)})"
            case 2:
                return f"({inner} / (abs({scalar(depth - 1)}) + 1))"
            case 3:
                return f"max({inner}, {scalar(depth - 1)})"
            case 4:
                return f"({vector(depth - 1)}).T @ {vector(0).join(('(', ')'))}"
            case 5:
                return (
                    draw(st.sampled_from(("sum", "max", "mean", "rms", "min")))
                    + f"({vector(depth - 1)})"
                )
            case 6:
                return f"where({inner} > {scalar(depth - 1)}, {inner}, {scalar(0)})"
            case _:
                return "(" + draw(st.sampled_from(MAPS)).format(inner) + ")"

    return scalar(depth)


@settings(max_examples=12, deadline=None)
@given(readout=readouts())
def test_any_readout_has_the_value_and_the_gradient_that_it_has_without(readout: str) -> None:
    text = HEAD + (
        "input q, k : [K]\ninput i, f : scalar\nstate n : [K] (stabilized)\n"
        "state w : [K] (stabilized)\nstate c : scalar (stabilized)\noutput o : scalar\n"
        "n[t] = sigmoid(f) * n[t-1] + exp(i) * k\nw[t] = w[t-1] + exp(k)\n"
        "c[t] = 0.9 * c[t-1] + exp(2 * i)\n"
        f"o = {readout} + 0 * (sum(w[t]) + c[t] + sum(n[t]) + sum(q))"
    )
    plain, scaled = (
        driver.compile(given, "numpy") for given in (text.replace(" (stabilized)", ""), text)
    )
    x = draw(plain.spec, Sizes(B=1, T=5, H=1, dims=DIMS))
    truth = everything(plain, x, None, {})
    if all(np.abs(value).max() < 1e9 for value in truth.values()):
        close(everything(scaled, x, None, {}, mode="chunk", chunk=2), truth, 1e-9)
