"""The host part of emitted Triton files, with passes by the interpreter of tile programs: what it
gives is what the NumPy kernels give, in every form of a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).resolve().parent / "torch_worker.py"
AGREE = (
    *("gla", "linear_transformer", "mamba2", "rwkv6", "gated_deltanet_raw", "bidirectional"),
    *("sliding_window", "mlstm", "token_shift", "mamba3", "hgrn", "performer", "linformer"),
    *("titans_linear", "fox"),
)
"""Normalizer, groups, params, two directions, attention, scaled states, delays and chains of them,
scans, buffers, tables by position, declared states, windows that grow."""


def worker(*arguments: str, interpreted: bool = True) -> Any:
    env = {**os.environ, "TRITON_INTERPRET": str(int(interpreted))}
    run = subprocess.run(
        [sys.executable, WORKER, "host", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_agrees_with_numpy() -> None:
    found = worker("agree", *AGREE)
    assert set(found) == set(AGREE)
    for name, checks in found.items():
        assert len(checks) > 14, name
        wrong = {check: error for check, error in checks.items() if not error < 1e-9}
        assert not wrong, (name, wrong)


def test_refuses_what_numpy_refuses_in_its_words() -> None:
    for name, (theirs, ours) in worker("refused").items():
        assert theirs != "no error", name
        assert ours == theirs, name


def test_operators_are_sound_and_compile() -> None:
    found = worker("operators", "gla", "mlstm", "sliding_window")
    for name, checks in found.items():
        for how in ("dense", "packed", "masked"):
            assert checks[how] == ["SUCCESS"], (name, how)
        assert checks["compiled static"] == checks["compiled dynamic"] == 0.0, name


def test_what_a_caller_sees() -> None:
    found = worker("surface")
    doubled = "RuntimeError: gla: its gradients have no gradients (double backward)"
    assert found.pop("double backward") == doubled
    assert "at most 128, which is what a kernel holds on chip" in found.pop("parallel")
    assert found.pop("lists").startswith("TypeError: q: expected a tensor of torch or with DLPack")
    low = "torch.bfloat16"
    assert found.pop("dtypes") == [low, low, low, "torch.float32"]
    assert all(found.values()), found


def test_a_cpu_tensor_is_sent_to_another_target() -> None:
    found = worker("compiled", interpreted=False)
    assert found.startswith("ValueError: q: expected a CUDA tensor, got one on cpu")
    assert "--target numpy" in found


@pytest.mark.full
def test_every_example_agrees_with_numpy() -> None:
    names = sorted(p.stem for p in (WORKER.parent.parent / "examples").glob("*.la"))
    found = worker("agree", *(name for name in names if name != "deltaformer"))
    wrong = {
        (name, check): error
        for name, checks in found.items()
        for check, error in checks.items()
        if not error < 1e-9
    }
    assert not wrong
