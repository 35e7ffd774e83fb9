"""The affine analysis: what it calls affine is so in numbers, its canonical form is the update."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from chunked import Run
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lacc import driver
from lacc.analysis.transition import Recurrence
from lacc.spec.model import Spec
from lacc.tile.derive import Derived
from lacc.tile.interp import interpret
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify

HEAD = """variant probe
dim K = 4, V = 3
input q, k, a, b, p, f : [K]
input v, c, d, h : [V]
input m : [K, V]
input A : [K, K]
input B : [V, V]
input s, g : scalar
state S : [K, V]
output o : [V]
o = S[t].T @ q
S[t] = """

SCALED = ("{}", "s * {}", "-{}", "{} / 2", "where(g > 0, 1, s) * {}", "where(s > 0, {}, 0 * m)")
KEPT = (
    "S[t-1]",
    "(diag(f) @ S[t-1])",
    "(S[t-1] @ diag(h))",
    "(diag(f) @ S[t-1] @ diag(h))",
    "(diag(f) @ diag(p) @ S[t-1])",
    "(S[t-1].T @ diag(f)).T",
    "((f @ h.T) * S[t-1])",
)
ENTRIES = ("(m * S[t-1])", "(m * m * S[t-1] @ diag(h))")
LEFT = (
    "(a @ (b.T @ S[t-1]))",
    "(a @ (p.T @ S[t-1]))",
    "(p @ (b.T @ S[t-1]))",
    "((a @ a.T) @ S[t-1])",
    "((I - s * k @ k.T) @ S[t-1])",
    "(diag(f) @ (I - a @ a.T) @ S[t-1])",
    "((I - a @ a.T) @ diag(f) @ S[t-1])",
    "((I - a @ a.T) @ (I - g * b @ b.T) @ S[t-1])",
    "((S[t-1].T @ b) @ a.T).T",
    "((diag(f) @ a) @ ((f * b).T @ S[t-1]))",
    "(a @ (S[t-1].T @ (A @ b)).T)",
    "(exp(a) @ (b.T @ S[t-1]))",
)
RIGHT = (
    "((S[t-1] @ c) @ d.T)",
    "(S[t-1] @ (I - s * c @ c.T))",
    "(c @ (d.T @ S[t-1].T)).T",
    "(S[t-1] @ (I - c @ c.T) @ diag(h))",
    "((S[t-1] @ (B @ c)) @ d.T)",
)
WRITES = (
    "(k @ v.T)",
    "(a @ v.T)",
    "((s * k) @ (h * v).T)",
    "m",
    "(m * (k @ v.T))",
    "(A @ k @ v.T)",
)
DENSE = (
    "(A @ S[t-1])",
    "(S[t-1] @ B)",
    "(m * (a @ (b.T @ S[t-1])))",
    "(a @ ((b.T @ S[t-1]) @ diag(h)))",
    "(a @ (b.T @ S[t-1] @ c) @ d.T)",
    "(sum(S[t-1]) * m)",
    "((a.T @ S[t-1] @ c) * m)",
)
BENT = (
    "tanh(S[t-1])",
    "(S[t-1] * S[t-1])",
    "(S[t-1] / (2 + sum(S[t-1] * m)))",
    "where(sum(S[t-1]) > 0, S[t-1], m)",
    "(a @ tanh(b.T @ S[t-1]))",
    "((b.T @ S[t-1] @ c) * S[t-1])",
    "max(S[t-1], m)",
    "(rms(S[t-1]) * m)",
    "abs(S[t-1])",
)
LINEAR = (*KEPT, *ENTRIES, *LEFT, *RIGHT)


@st.composite
def updates(draw: Any, *kinds: tuple[str, ...]) -> str:
    """A sum of terms of the given kinds, one inside another too, at least one with the state."""
    own = [term for kind in kinds for term in kind]
    terms = [draw(st.sampled_from(own))]
    terms += draw(st.lists(st.sampled_from([*own, *WRITES]), max_size=4))
    text = ""
    for n, term in enumerate(terms):
        if draw(st.integers(0, 3)) == 3:
            term = term.replace(
                "S[t-1]", draw(st.sampled_from([t for kind in kinds for t in kind]))
            )
        scaled = draw(st.sampled_from(SCALED)).format(term)
        text += (" + " if n else "") + f"({scaled})"
    return text


SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 1))
"""Of the scalars that choices ask for, token by token."""


class Probe:
    """A spec of one update, and tokens for it."""

    def __init__(self, update: str) -> None:
        self.spec: Spec = driver.load(HEAD + update + "\n")
        self.derived: Derived = driver.analyse(self.spec)
        (self.recurrence,) = self.derived.recurrences
        self.reference = driver.compile(self.spec, "reference")
        self.dims = {name: dim.default for name, dim in self.spec.dims.items()}
        rng = np.random.default_rng(0)
        self.x = {}
        for arg in self.spec.args:
            axes = [size.evaluate(self.dims) for size in arg.shape]
            self.x[arg.ascii] = 0.5 * rng.standard_normal((1, len(SIGNS), 1, *axes))
        for name, signs in zip("sg", zip(*SIGNS)):
            self.x[name] = np.abs(self.x[name]) * np.array(signs)[None, :, None]
        self.states = rng.standard_normal((2, 1, 1, 4, 3))

    def step(self, S: Any) -> Any:
        """The states after each token by itself, by the reference."""
        tokens = {name: x[0] for name, x in self.x.items()}
        every = np.broadcast_to(S, (len(SIGNS), 1, 4, 3))
        return self.reference.step(**tokens, state=every)[1].S

    def is_affine(self) -> bool:
        """Whether the step of a mixture of states is that of the steps."""
        one, two = self.states
        for by in (0.3, -2.0, 5.0):
            mixed = self.step(by * one + (1 - by) * two)
            parts = by * self.step(one) + (1 - by) * self.step(two)
            if np.abs(mixed - parts).max() > 1e-9 * (1 + np.abs(parts).max()):
                return False
        return True

    def canonical(self, S: Any) -> Any:
        """The states after each token by itself, by the canonical form."""
        assert self.derived.token is not None
        loads = {("input", name): x[0] for name, x in self.x.items()}
        program = self.derived.token.forward
        found = interpret(program, {**loads, ("state", "S"): S}, self.dims, 1)["state:S"]
        return np.broadcast_to(found, (len(SIGNS), 1, 4, 3))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(update=updates(LINEAR, LEFT, KEPT, RIGHT))
def test_sums_of_canonical_terms_are_affine_and_their_form_is_the_update(update: str) -> None:
    probe = Probe(update)
    assert probe.recurrence.kind == "affine"
    assert probe.is_affine()
    for S in probe.states:
        np.testing.assert_allclose(probe.canonical(S), probe.step(S), rtol=1e-10, atol=1e-11)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(update=updates(LINEAR, DENSE, BENT))
def test_a_step_is_affine_in_numbers_if_and_only_if_the_analysis_says_so(update: str) -> None:
    assume(sum(update.count(term) for term in BENT) < 2)  # two may cancel
    probe = Probe(update)
    assert (probe.recurrence.kind == "affine") == probe.is_affine()
    if probe.recurrence.form not in ("written", "canonical"):
        assert probe.recurrence.obstacle is not None
    assert np.allclose(probe.canonical(probe.states[0]), probe.step(probe.states[0]), rtol=1e-9)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(update=st.one_of(updates(KEPT), updates(LEFT), updates(RIGHT), updates(ENTRIES)))
def test_the_chunk_form_of_a_random_update_is_the_update(update: str) -> None:
    probe = Probe(update)
    if probe.derived.modes["chunk"] is None:
        S = {"S": probe.states[0]}
        outs, final = probe.reference(**probe.x, initial_state=S)
        run = Run(probe.derived, probe.x, S, 3)
        scale = 1 + np.abs(final.S).max()
        np.testing.assert_allclose(run.state["S"], final.S, rtol=1e-8, atol=1e-9 * scale)
        np.testing.assert_allclose(run.outputs["o"], outs, rtol=1e-8, atol=1e-9 * scale)
    else:
        assert probe.derived.modes["chunk"].reason


# ---- classes


@cache
def found(update: str) -> Recurrence:
    return Probe(update).recurrence


@pytest.mark.parametrize(
    ("update", "transition", "rank"),
    [
        ("S[t-1] + k @ v.T", "identity", 0),
        ("s * S[t-1] + k @ v.T", "scalar", 0),
        ("s * S[t-1] + g * S[t-1]", "scalar", 0),
        ("s * (diag(f) @ S[t-1]) + s * (diag(f) @ S[t-1])", "diagonal (rows)", 0),
        ("where(s > 0, S[t-1], 0 * m) + k @ v.T", "scalar", 0),
        ("diag(f) @ S[t-1] + s * S[t-1]", "diagonal (rows)", 0),
        ("S[t-1] @ diag(h)", "diagonal (columns)", 0),
        ("diag(f) @ S[t-1] @ diag(h)", "diagonal (both sides)", 0),
        ("diag(f) @ S[t-1] @ diag(h) + diag(p) @ S[t-1] @ diag(h)", "diagonal (both sides)", 0),
        ("diag(f) @ S[t-1] + S[t-1] @ diag(h)", "elementwise", 0),
        ("m * S[t-1]", "elementwise", 0),
        ("S[t-1] - a @ (b.T @ S[t-1])", "low rank", 1),
        ("S[t-1] - a @ (b.T @ S[t-1]) - a @ (p.T @ S[t-1])", "low rank", 1),
        ("S[t-1] - a @ (b.T @ S[t-1]) - p @ (b.T @ S[t-1])", "low rank", 1),
        ("S[t-1] - a @ (b.T @ S[t-1]) - p @ (k.T @ S[t-1])", "low rank", 2),
        ("(I - a @ a.T) @ (I - b @ b.T) @ S[t-1]", "low rank", 2),
        ("(a @ b.T + b @ a.T + a @ a.T) @ S[t-1]", "low rank", 2),
        ("(S[t-1] @ c) @ d.T - (S[t-1] @ c) @ h.T", "low rank", 1),
        ("A @ S[t-1]", "dense", 0),
        ("tanh(S[t-1])", "nonlinear", 0),
        ("max(S[t-1], m)", "maxplus", 0),
    ],
)
def test_the_class_and_the_least_rank_are_found(update: str, transition: str, rank: int) -> None:
    assert (found(update).transition, found(update).rank) == (transition, rank)


@pytest.mark.parametrize(
    ("update", "merged"),
    [
        ("S[t-1] - s * k @ (k.T @ S[t-1]) + s * k @ v.T", True),
        ("g * (S[t-1] - s * k @ (k.T @ S[t-1])) + s * k @ v.T", True),
        ("S[t-1] - a @ (b.T @ S[t-1]) + k @ v.T", False),
        ("diag(f) @ (S[t-1] - k @ (k.T @ S[t-1])) + k @ v.T", False),
        ("diag(f) @ S[t-1] - k @ (k.T @ (diag(f) @ S[t-1])) + k @ v.T", True),
    ],
)
def test_an_erase_merges_with_the_write_of_its_column(update: str, merged: bool) -> None:
    recurrence = found(update)
    assert (recurrence.partner(recurrence.erases[0]) is not None) == merged


@pytest.mark.parametrize("update", ["S[t-1] @ B", "m * (a @ (b.T @ S[t-1]))", "tanh(S[t-1])"])
def test_a_refusal_points_at_the_term_that_prevents_it(update: str) -> None:
    recurrence = found(update)
    assert recurrence.obstacle is not None
    span = recurrence.obstacle.expr.span
    assert span.source.text[span.start : span.end] in update


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("s * S[t-1] - M[t]", "g * M[t-1] + k @ v.T + a @ (b.T @ S[t-1])", "affine"),
        ("s * S[t-1] - M[t]", "g * M[t-1] + tanh(S[t-1])", "nonlinear"),
    ],
)
def test_states_that_need_one_another_are_affine_or_not(first: str, second: str, kind: str) -> None:
    text = HEAD.replace("state S", "state M : [K, V]\nstate S") + f"{first}\nM[t] = {second}\n"
    (recurrence,) = driver.analyse(driver.load(text)).recurrences
    assert recurrence.kind == kind
    assert (recurrence.coupling is None) == (recurrence.obstacle is not None) == (kind != "affine")


@pytest.mark.parametrize(
    "read",
    [
        "v * sum(S[t] @ v - s)",
        "v * mean(S[t] @ v + sum(S[t] @ c))",
        "v * ((S[t].T @ k + s).T @ (v - g))",
        "v * sum((S[t].T @ k - mean(S[t].T @ k)) * (S[t].T @ k - mean(S[t].T @ k)))",
        "(S[t] + s).T @ (q - g)",
    ],
)
def test_a_sum_counts_a_scalar_once_for_every_entry(read: str) -> None:
    update = HEAD.replace("o = S[t].T @ q", f"o = {read}") + "diag(f) @ S[t-1] + k @ v.T"
    checks = {"lengths": CHECKS["lengths"]}
    report = verify(driver.compile(update, "reference"), [driver.compile(update)], checks=checks)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ("roll(h[t-1], 1) + tanh(h[t-1])", "the nonlinear function tanh"),
        ("roll(tanh(h[t-1]), 1) + k", "the nonlinear function tanh"),
        ("rotate(k, sum(h[t-1]) * θ)", "the nonlinear function rotate"),
        ("roll(h[t-1], 1) + k", "roll moves entries"),
    ],
)
def test_a_dense_term_does_not_hide_a_nonlinear_one(update: str, reason: str) -> None:
    text = "variant x\ndim K = 4\ninput k : [K]\ninput θ : [2]\nstate h : [K]\noutput o : [K]\n"
    (recurrence,) = driver.analyse(
        driver.load(f"{text}h[t] = {update}\no = h[t] + sum(θ)")
    ).recurrences
    assert recurrence.obstacle and recurrence.obstacle.reason.startswith(reason)
    assert recurrence.kind == ("affine" if "moves" in reason else "nonlinear")
