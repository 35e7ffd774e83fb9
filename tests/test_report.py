"""The report says what the compiler found, in the words of papers, whatever the file calls it."""

from __future__ import annotations

import re

import pytest
from conftest import EXAMPLES, ROOT

from lacc import driver
from lacc.analysis.report import report, text
from lacc.spec.model import Spec


def said(spec: Spec | str, title: str) -> list[tuple[str, str]]:
    """The rows of the section whose title starts with ``title``."""
    spec = driver.load(spec) if isinstance(spec, str) else spec
    sections = report(*driver.found(spec))
    return [row for section in sections if section.title.startswith(title) for row in section.rows]


def example(name: str) -> Spec:
    """An example by name."""
    return driver.load(ROOT / "examples" / f"{name}.la")


def gated(declarations: str, equations: str, readout: str = "S[t].T @ q") -> str:
    """A spec with keys, values and a state S [K, V]."""
    return (
        "variant example\ndim K = 5, V = 4\ninput q, k : [K]\ninput v : [V]\n"
        f"{declarations}state S : [K, V]\noutput o : [V]\n{equations}\no = {readout}\n"
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_report_that_fits_a_terminal(path) -> None:
    spec = driver.load(path)
    compiled, modes = driver.found(spec)
    shown = text(report(compiled, modes))
    assert spec.name in shown
    assert max(map(len, shown.splitlines())) <= 100
    for state in spec.states:
        assert re.search(rf"^states? .*\b{state.name} ", shown, re.MULTILINE)
    remember = any(r.form != "written" for r in compiled.recurrences)
    assert ("  stability" in shown) == remember and "\nreadout" in shown


def test_a_gate_is_told_with_its_size_source_range_and_space() -> None:
    assert (
        "gate",
        (
            "α = exp(g): one per channel of K and head, data dependent, in [0, 1], "
            "kept as its log g, in [-inf, 0]"
        ),
    ) in said(example("gla"), "state S")
    assert (
        "gate",
        (
            "γ = 1 - 2**(-5 - head): a scalar per head, fixed, in [0.96875, 1), "
            "kept as its log log(γ), in [-0.0317487, 0)"
        ),
    ) in said(example("retnet"), "state S")
    learned = dict(said(example("rwkv5"), "state S"))
    assert "learned, the same at every token" in learned["gate"]


def test_a_gate_in_linear_space_is_said_to_be_kept_so() -> None:
    rows = dict(
        said(
            gated("input a : [V] per layer\n", "S[t] = S[t-1] @ diag(tanh(a)) + k @ v.T"), "state S"
        )
    )
    assert rows["transition"] == "a diagonal decay on the side of V"
    assert rows["gate"] == (
        "tanh(a): one per channel of V, data dependent, in (-1, 1), kept as it is, in linear space"
    )


def test_a_gate_without_a_promise_is_said_to_be_unbounded() -> None:
    rows = dict(said(gated("input g : scalar\n", "S[t] = exp(g) * S[t-1] + k @ v.T"), "state S"))
    assert rows["gate"].endswith("not bounded by 1")
    assert rows["stability"].startswith("may grow: g = 0.5 multiplies it by 1.65 every token")


@pytest.mark.parametrize(
    "equations",
    [
        "S[t] = (I - β * k @ k.T) @ S[t-1] + β * k @ v.T",
        "S[t] = S[t-1] - β * k @ k.T @ S[t-1] + β * k @ v.T",
        "S[t] = S[t-1] + k @ (β * (v - S[t-1].T @ k)).T",
    ],
)
def test_an_erase_is_told_by_what_it_does_however_it_is_written(equations: str) -> None:
    rows = dict(said(gated("input β : scalar where 0 < β < 1\n", equations), "state S"))
    assert rows["transition"] == "the identity and an erase of rank 1 on the side of K"
    assert rows["erase"].startswith("-k @ ((β * k).T @ S)")
    assert rows["erase"].endswith("what k holds is taken out before the write (delta rule)")
    assert rows["write"] == "β * k @ v.T, rank 1"


def test_an_erase_along_another_direction_says_both() -> None:
    rows = dict(
        said(gated("input p : [K]\n", "S[t] = S[t-1] + p @ k.T @ S[t-1] + k @ v.T"), "state S")
    )
    assert rows["erase"] == "p @ (k.T @ S): reads the state along k, changes it along p"


def test_feature_maps_have_a_size_and_a_sign() -> None:
    assert said(example("linear_transformer"), "feature map") == [
        ("φ(k)", "elu(k) + 1: [K], positive"),
        ("φ(q)", "elu(q) + 1: [K], positive"),
    ]
    (first, _) = said(example("linear_relu"), "feature map")
    assert first[1].endswith("not negative")
    assert "[F]" in said(example("based"), "feature map")[0][1]


def test_a_normalizer_is_told_against_the_state_that_it_normalizes() -> None:
    rows = said(example("linear_transformer"), "normalizer")
    assert rows == [
        ("n", "z[t].T @ φ(q) + 1e-6, at least 1e-06"),
        ("z", "shares decay and keys with S: one more column of it, of ones"),
    ]
    assert ("z", "has a decay of its own, unlike S") in said(
        example("decayed_normalizer"), "normalizer"
    )
    assert said(example("gla"), "normalizer") == []
    assert said(example("linear_transformer_noncausal"), "normalizer")[0][1].endswith("may be 0")


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("gla", "reads S after the update"),
        ("rwkv6", "reads S before the update; plus a term of this token alone"),
        ("linear_transformer_noncausal", "reads S, z at the last token (non-causal)"),
    ],
)
def test_a_readout_says_when_it_reads(name: str, ending: str) -> None:
    ((_, shown),) = said(example(name), "readout")
    assert shown.endswith(ending)


def test_backward_states_and_other_kinds_of_recurrence_are_named() -> None:
    assert dict(said(example("bidirectional"), "state R"))["direction"].startswith("backward")
    maximum = gated(
        "input i : scalar\nstate m : scalar\n",
        ("m[t] = max(m[t-1], i)\nS[t] = exp(m[t-1] - m[t]) * S[t-1] + exp(i - m[t]) * k @ v.T"),
    )
    form = "m[t] = max(m[t-1], i)"
    assert dict(said(maximum, "state m"))["transition"] == f"a running maximum (max-plus), {form}"
    assert dict(said(maximum, "state S"))["stability"].startswith("proved")
    dense = gated("", "S[t] = tanh(S[t-1]) + k @ v.T")
    assert dict(said(dense, "state S"))["transition"] == "nonlinear in the state"


def test_a_mode_that_does_not_exist_names_the_term_and_its_line() -> None:
    rows = dict(said(gated("", "S[t] = tanh(S[t-1]) + k @ v.T"), "modes"))
    assert rows["recurrent"] == "yes"
    assert rows["chunk"].startswith("no: ")
    assert "tanh" in rows["chunk"] and rows["chunk"].endswith("(line 7)")


def test_a_reason_that_names_the_term_does_not_name_it_twice() -> None:
    rows = dict(said(example("linear_transformer_noncausal"), "modes"))
    assert rows["step"].startswith("no: it reads S[T], the last state (line")


@pytest.mark.parametrize(
    ("update", "cure"),
    [
        ("S[t-1] + k @ (v - tanh(S[t-1].T @ k)).T", "without the tanh, or with it where the state"),
        ("S[t-1] / (1 + sum(S[t-1])) + k @ v.T", "without the division, or"),
        ("exp(S[t-1] * sigmoid(S[t-1])) + k @ v.T", "with this term computed without `S`, the re"),
    ],
)
def test_what_a_recurrence_would_have_chunks_without_is_said(update: str, cure: str) -> None:
    rows = dict(said(gated("", f"S[t] = {update}"), "state S"))
    assert cure in rows["no chunks"]
    assert rows["no chunks"].endswith("the recurrence is affine and has chunks")
