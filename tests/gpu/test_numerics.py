"""Every example on a GPU at real sizes, K = V = 128 and a ragged tail of tokens, beside NumPy in
float64: outputs, states, gradients and the step, in float32 and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES
from on_device import OnDevice, Truth, marks, shared, steady, token_inputs

from lacc.verify.cases import Quantities, errors, largest_error, rms_error

pytestmark = marks

NAMES = shared(tuple(path.stem for path in EXAMPLES))


def checked(got: dict[str, float], limits: dict[str, float]) -> None:
    """That every error is within its limit."""
    wrong = {n: f"{e:.1e} > {limits[n]:.1e}" for n, e in got.items() if not e <= limits[n]}
    assert not wrong, wrong


@pytest.mark.parametrize("name", NAMES)
def test_float32(name: str) -> None:
    """20 times the error of the recurrence in float32, or 1e-5."""
    kernel = OnDevice(name, "float32")
    truth, arrays, want = steady(name, "float32")
    single = {n: x.astype(np.float32) for n, x in arrays.items()}
    naive = errors(truth.run(truth.recurrent, single), want, largest_error)
    limits = {n: max(1e-5, 20 * e) for n, e in naive.items()}
    checked(errors(truth.run(kernel, single), want, largest_error), limits)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name: str) -> None:
    """Twice the error of rounding the arguments, or 2⁻⁷, as root mean squares."""
    kernel = OnDevice(name, "bfloat16")
    truth, arrays, want = steady(name, "bfloat16")
    least = errors(want, truth.run(truth.kernel, truth.arrays), rms_error)
    limits = {n: max(2.0**-7, 2 * e) for n, e in least.items()}
    checked(errors(truth.run(kernel, arrays), want, rms_error), limits)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_one_more_token(name: str) -> None:
    kernel, tokens = OnDevice(name, "float32"), token_inputs(name)
    if "step" in kernel.kernel.missing:
        pytest.skip(f"{name} has no step")
    truth, arrays, _ = steady(name, "float32")
    want = ended(truth, *truth.kernel(**arrays))
    before = {n: x[:, :-1] if n in tokens else x for n, x in arrays.items()}
    after = {n: x[:, -1] if n in tokens else x for n, x in arrays.items()}
    got = truth.named(*kernel.step(**after, state=kernel(**before)[1]))
    single = {n: x.astype(np.float32) for n, x in arrays.items()}
    naive = errors(ended(truth, *truth.recurrent(**single)), want, largest_error)
    checked(errors(got, want, largest_error), {n: max(1e-5, 20 * e) for n, e in naive.items()})


def ended(truth: Truth, outputs: Any, state: Any) -> Quantities:
    """The outputs of the last token and the state after it."""
    several = (outputs,) if isinstance(outputs, np.ndarray) else outputs
    last = tuple(y[:, -1] for y in several)
    return truth.named(last[0] if len(last) == 1 else last, state)
