"""`(stabilized)` states: how they are built and told of, and readouts of any form."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaled import DIMS, HEAD, close, everything, stabilized

import lacc
from lacc import driver
from lacc.verify.harness import verify
from lacc.verify.inputs import Sizes, draw

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
