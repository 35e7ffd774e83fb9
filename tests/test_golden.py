"""Numbers of other people's code, in `golden/`: outputs, final states and every gradient."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import lacc
from lacc.verify.cases import factors

FOLDER = ROOT / "tests" / "golden"
CASES = {c["case"]: c for c in json.loads((FOLDER / "manifest.json").read_text("utf-8"))["cases"]}


@dataclass(frozen=True)
class Spelling:
    """How a variant of the data is written as a spec: the file, what is set from outside, the names
    it has for the data's, and whether the data has no axis of heads."""

    path: str
    overrides: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    headless: bool = False


SPELLINGS = {
    "linear": Spelling("examples/linear.la"),
    # The scale of the data multiplies both sides of the fraction, so it divides epsilon: K = 16.
    "linear_elu1": Spelling("examples/linear_transformer.la", {"eps": 4e-10}),
    "linear_elu1_noncausal": Spelling("examples/linear_transformer_noncausal.la"),
    "retention": Spelling("examples/retnet.la"),
    "gla": Spelling("examples/gla.la"),
    "mamba2": Spelling(
        "examples/mamba2.la", names={"Bm": "B", "Dskip": "D", "o": "y", "S": "h", "S0": "h"}
    ),
    "mamba1": Spelling(
        "examples/mamba1.la",
        names={"Bm": "B", "Dskip": "skip", "o": "y", "h0": "h"},
        headless=True,
    ),
    "rwkv6": Spelling("examples/rwkv6.la"),
    "rwkv7": Spelling("examples/rwkv7.la"),
    "hgrn": Spelling("examples/hgrn.la", names={"h0": "h"}, headless=True),
    "gated_deltanet": Spelling("examples/gated_deltanet.la"),
    "deltanet": Spelling("examples/deltanet.la"),
    "mlstm": Spelling("examples/mlstm.la", names={"S": "C", "S0": "C", "o": "h"}),
    "softmax": Spelling("examples/softmax_attention.la"),
}


@cache
def kernel(variant: str, target: str) -> Any:
    """The variant's spec, compiled."""
    spelling = SPELLINGS[variant]
    return lacc.compile(ROOT / spelling.path, target=target, **spelling.overrides)


# Where the head axis goes in data without one; of all others behind batch and time.
HEAD_AXES = {"A": 0, "Dskip": 0, "dt_bias": 0, "h": 1, "h0": 1}


def arrays(case: str) -> tuple[dict[str, dict[str, Any]], Any]:
    """The arrays of a case by kind (in, out, do, grad) and by the spec's names, and its segments if
    it is packed. Initial states are of the kinds "in0" and "grad0", final ones "out0" and "do0"."""
    spelling = SPELLINGS[CASES[case]["variant"]]
    found: dict[str, dict[str, Any]] = {}
    with np.load(FOLDER / f"{case}.npz") as file:
        for key in file.files:
            kind, _, name = key.partition("_")
            if key == "cu_seqlens":
                continue
            x = file[key].astype(np.float64)
            if spelling.headless:
                x = np.expand_dims(x, HEAD_AXES.get(name, 2))
            state = name.endswith("0") if kind in ("in", "grad") else name != "o"
            spelled = spelling.names.get(name, name.removesuffix("0"))
            found.setdefault(kind + "0" * state, {})[spelled] = x
        return found, file["cu_seqlens"] if "cu_seqlens" in file.files else None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["reference", "numpy"])
def test_outputs_states_and_gradients_are_those_of_others(target: str, case: str) -> None:
    run = kernel(CASES[case]["variant"], target)
    for mode in ("auto", *run.modes):
        for what, error, tolerance in errors(run, mode, case):
            assert error <= tolerance, f"{mode}: {what}"


def errors(run: Any, mode: str, case: str) -> Iterator[tuple[str, float, float]]:
    """Of each output, final state and gradient of a kernel in a mode: its name, its error relative
    to the largest number of the data, and the case's tolerance."""
    data, cu_seqlens = arrays(case)
    tolerance = CASES[case]["tolerance"]
    (output,) = (o.name for o in run.signature.outputs)
    options = {"initial_state": data.get("in0"), "cu_seqlens": cu_seqlens, "mode": mode}
    o, state = run(**data["in"], **options)
    yield output, off(o, data["out"][output]), tolerance["float64"]
    scale = factors(run.spec, state)
    for name, x in data.get("out0", {}).items():
        true = getattr(state, name) * scale.get(name, 1.0)
        yield name, off(true, x), tolerance["float64"]
    (cotangent,) = data["do"].values()
    ends = {name: ct * scale.get(name, 1.0) for name, ct in data.get("do0", {}).items()}
    gradients = run.vjp(**data["in"], **options, cotangent=cotangent, state_cotangent=ends)
    for name, x in data["grad"].items():
        yield f"d {name}", off(gradients[name], x), tolerance["gradients"]
    for name, x in data.get("grad0", {}).items():
        error = off(getattr(gradients["initial_state"], name), x)
        yield f"d initial_state.{name}", error, tolerance["gradients"]


def off(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest number."""
    if ours.shape != theirs.shape:
        return math.inf
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
