"""Attention on Triton without a GPU: interpreted numbers against the NumPy kernels, and compiled
binaries. Both come from `triton_attention_worker.py`, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton_attention_worker as worker

from lacc.runtime import triton_attention


def work(*what: str, **environment: str) -> dict[str, Any]:
    """What the worker prints."""
    done = subprocess.run(
        [sys.executable, worker.__file__, *what],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def numbers() -> dict[str, float]:
    return work("numbers", TRITON_INTERPRET="1")


@pytest.mark.parametrize("case", worker.CASES)
def test_output_and_gradients_are_those_of_the_numpy_kernels(
    case: str, numbers: dict[str, float]
) -> None:
    assert numbers[f"{case} float64"] <= 1e-10
    assert numbers.get(f"{case} float32", 0) <= 1e-5


def test_short_floats(numbers: dict[str, float]) -> None:
    assert numbers["bfloat16"] <= 2**-6
    assert numbers["float16"] <= 2**-11


def test_arguments_may_be_views(numbers: dict[str, float]) -> None:
    assert numbers["strided"] == 0


def test_later_tokens_change_no_bit(numbers: dict[str, float]) -> None:
    assert numbers["causal"] == 0


def test_a_past_that_never_was_and_other_sequences_are_not_used(numbers: dict[str, float]) -> None:
    assert numbers["apart"] <= 1e-10


def test_a_token_that_sees_nothing_gives_zero(numbers: dict[str, float]) -> None:
    assert numbers["unseen"] == 0


def test_axes_that_do_not_fit_are_refused() -> None:
    run = SimpleNamespace(PRECISION="bf16")
    device = torch.device("cpu")
    with pytest.raises(ValueError, match=r"queries of 2000 .* a kernel takes at most"):
        triton_attention.attend_tiles("keys", 2000, 3, False, device, run)


def compiled(case: str, device: str) -> dict[str, dict[str, int]]:
    found = work("binaries", case, device, TRITON_INTERPRET="0")
    for kernel, takes in found.items():
        assert takes["shared"] <= worker.TARGETS[device][1], kernel
        assert takes.get("columns", 0) <= 512, kernel  # of tensor memory: all that there are
    return found


def test_kernels_compile_for_sm_90_without_spills() -> None:
    found = compiled("128", "sm_90")
    assert set(found) == {"forward", "queries", "keys"}
    for kernel, takes in found.items():
        assert takes["stack"] == 0 and takes["wgmma"] > 0, (kernel, takes)


@pytest.mark.full
@pytest.mark.parametrize("device", worker.TARGETS)
@pytest.mark.parametrize("case", worker.BINARIES)
def test_kernels_compile_for_every_device(case: str, device: str) -> None:
    found = compiled(case, device)
    if device == "sm_90" and case in ("64", "128", "128 with all", "few", "256"):
        assert {kernel: takes["stack"] for kernel, takes in found.items()} == dict.fromkeys(
            found, 0
        )
