"""Attention in CUDA, emulated, against the NumPy kernels: the cases that Triton's attention has."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton_attention_worker as worker

from lacc import driver, targets
from lacc.backends.cuda_host import cuda_texts
from lacc.backends.to_cuda import to_cuda
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_emulation import COMPILER, ORDERS, Emulated
from lacc.runtime.kernel import load

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
FEW = ("plain", "past and window", "groups by head", "segments with all", "large logits")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    spec = driver.load(ROOT / "examples" / "softmax_attention.la")
    derived = driver.analyse(spec)
    _, signature = targets.offered(spec, "cuda", derived, None)
    made = to_cuda(derived, signature)
    room = tmp_path_factory.mktemp("attention")
    texts = cuda_texts(derived, signature, made)
    for file, text in texts.items():
        (room / file).write_text(text, "utf-8")
    file = f"{made.name}_cuda.py"
    return load(made.name, texts[file], room / file)


@pytest.fixture(autouse=True)
def attention(module: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels in the worker's place of Triton's, for sizes that all cases have room in."""
    cuda_calls.emulate(module, Emulated())
    kernels = module["ATTENTION"]
    run_of = worker.Case.run

    def run(case: worker.Case, dtype: Any) -> Any:
        more = {"dims": {"K": 70, "V": 130}, "C": 64, "device": torch.device("cpu")}
        return SimpleNamespace(**vars(run_of(case, dtype)), **more)

    def by_kernels(case: worker.Case, x: dict[str, Any], ct: Any, dtype: Any) -> list[Any]:
        given, made = [x[name] for name in worker.NAMES], case.run(dtype)
        o, kept = kernels.forward(*given, case.window, made, True)
        return [o, *kernels.backward(*given, case.window, o, kept, ct, made)]

    monkeypatch.setattr(worker.Case, "run", run)
    monkeypatch.setattr(worker, "by_kernels", by_kernels)
    monkeypatch.setattr(worker, "host", SimpleNamespace(attend_forward=kernels.forward))
    return kernels


@pytest.mark.parametrize(
    "name",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.full) for n in worker.CASES],
)
def test_output_and_gradients_are_those_of_the_numpy_kernels(name: str) -> None:
    assert worker.compare(worker.CASES[name], torch.float64) <= 1e-10


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in worker.CASES if n != "large logits"])
def test_in_float(name: str) -> None:
    assert worker.compare(worker.CASES[name], torch.float32) <= 1e-5


@pytest.mark.parametrize("order", ORDERS)
def test_by_products_of_tensor_cores(module: dict[str, Any], order: str) -> None:
    cuda_calls.emulate(module, Emulated(order))
    case = worker.Case(past=9, seen=(4, 20), K=16, V=16, precision="tf32x3", sunk=True)
    assert worker.compare(case, torch.float32) <= 2e-5


def test_short_floats() -> None:
    mixed = worker.Case(past=9, seen=(4, 20), K=16, V=16, precision="bf16", sunk=True)
    assert worker.compare(mixed, torch.float32, torch.bfloat16) <= 2**-6


def test_what_is_not_seen_changes_nothing() -> None:
    everything = worker.Case(past=9, seen=(4, 20), sunk=True, window=30)
    assert worker.apart(everything, torch.float64) <= 1e-10
    assert worker.strided(everything, torch.float64) == 0
    assert worker.unseen(worker.Case(), torch.float32) == 0
    assert worker.causal(worker.Case(T=70, sunk=True), torch.float32) == 0
