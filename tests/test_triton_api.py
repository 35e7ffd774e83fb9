"""Emitted Triton files as their users call them, interpreted: autograd, operators, packed and
masked calls, steps in place, tensors of any strides, and calls that are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

TESTS = Path(__file__).resolve().parent
CALLS = ("gla", "gated_deltanet_raw", "mamba1", "mlstm", "token_shift", "fox", "bidirectional")
"""Decays, erases, scans, scaled states, delays and params, attention, two directions."""
SLOW = ("titans_memory", "performer", "sliding_window", "linformer", "mamba3", "hgrn")


def worker(name: str, *arguments: str, interpreted: bool = True) -> Any:
    env = {**os.environ, "TRITON_INTERPRET": str(int(interpreted)), "PYTHONPATH": str(TESTS.parent)}
    run = subprocess.run(
        [sys.executable, TESTS / f"{name}.py", *arguments], env=env, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def agrees(*names: str) -> None:
    found = worker("torch_worker", "file", "calls", *names)
    assert set(found) == set(names)
    for name, checks in found.items():
        assert len(checks) > 8, name
        wrong = {check: error for check, error in checks.items() if not error < 1e-9}
        assert not wrong, (name, wrong)


def test_calls_agree_with_numpy() -> None:
    agrees(*CALLS)


@pytest.mark.full
def test_calls_of_more_kinds_agree_with_numpy() -> None:
    agrees(*SLOW)


def sound(*names: str) -> None:
    for name, checks in worker("torch_worker", "file", "operators", *names).items():
        for how in ("dense", "packed", "masked"):
            assert checks[how] == ["SUCCESS"], (name, how)
        assert checks["compiled static"] == checks["compiled dynamic"] == 0.0, name


def test_operators_are_sound_and_compile() -> None:
    sound("gla")


@pytest.mark.full
def test_operators_of_more_kinds_are_sound_and_compile() -> None:
    sound("gated_deltanet_raw", "mamba1", "mlstm", "fox", "bidirectional", "titans_memory")


def test_what_a_caller_sees() -> None:
    found = worker("torch_worker", "file", "surface")
    doubled = "RuntimeError: gla: its gradients have no gradients (double backward)"
    assert found.pop("double backward") == doubled
    assert "at most 128, which is what a kernel holds on chip" in found.pop("parallel")
    assert found.pop("lists").startswith("TypeError: q: expected a tensor of torch or with DLPack")
    low = "torch.bfloat16"
    assert found.pop("dtypes") == [low, low, low, "torch.float32"]
    assert all(found.values()), found


@pytest.fixture(scope="module")
def found() -> Any:
    return worker("triton_api_worker")


@pytest.mark.parametrize("what", ["names", "strides"])
def test_names_and_strides_are_any(found: Any, what: str) -> None:
    assert found[what] and not {how: error for how, error in found[what].items() if error > 1e-9}


def test_pools_are_read_and_written_in_their_dtype(found: Any) -> None:
    """Errors are shares of what rounding may do."""
    pools = found["pools"]
    assert pools.keys() == {"torch.float32", "torch.bfloat16"} and max(pools.values()) < 1


def test_refuses_what_numpy_refuses_in_its_words() -> None:
    for name, (theirs, ours) in worker("torch_worker", "file", "refused").items():
        assert theirs != "no error" and ours == theirs, name


def test_refuses_what_no_kernel_takes(found: Any) -> None:
    refused = dict(found["refused"])
    tile = "Triton takes 1048576"
    sizes = "with K = 262144, V = 5 needs a tile of"
    for name, (start, said) in {
        "device": ("ValueError: k: ", "expected one on cpu, got one on meta"),
        "state device": ("ValueError: initial_state.S: ", "expected one on cpu, got one on meta"),
        "dtype": (
            "TypeError: q: ",
            "expected dtype float16, bfloat16, float32, float64, got int32",
        ),
        "layout": ("TypeError: q: ", "expected a strided tensor, got torch.sparse_coo"),
        "rows": ("TypeError: state_indices: ", "expected integers [B] = [2], got <class 'list'>"),
        "cu past T": (
            "ValueError: cu_seqlens: ",
            "expected to rise from 0 to T = 9, got [0, 4, 12]",
        ),
        "chunk": ("ValueError: chunk: ", "expected a positive integer, got 2.5"),
        "K chunk": (f"ValueError: forward_0b {sizes} 4194304 entries in chunks of 16 ", tile),
        "long chunk": ("ValueError: ", f"entries in chunks of 2048 tokens; {tile}"),
        "K recurrent": (f"ValueError: forward_token {sizes} 2097152 entries; ", tile),
        "K step": (f"ValueError: forward_token {sizes} 2097152 entries; ", tile),
        "K attend": ("ValueError: attend: queries of 2001 ", "a kernel takes at most 1024"),
    }.items():
        text = refused.pop(name)
        assert text.startswith(start) and text.endswith(said), name
    assert not refused


def test_a_cpu_tensor_is_sent_to_another_target() -> None:
    found = worker("torch_worker", "file", "compiled", interpreted=False)
    assert found.startswith("ValueError: q: expected a CUDA tensor, got one on cpu")
    assert "--target numpy" in found
