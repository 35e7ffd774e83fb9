"""The host of CUDA files with a variant written by hand: calls as they are made on a GPU, emulated,
what is built for them, and what is said where nothing can be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from cuda_leaky import leaky

from lacc import LaccError, driver
from lacc.runtime import caching, cuda_building, cuda_calls
from lacc.runtime.cuda_building import Nvcc, Nvrtc, Wanted
from lacc.runtime.cuda_emulation import COMPILER, Emulated
from lacc.runtime.kernel import load

SPEC, NAME, FILES = leaky()
emulating = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
with_nvcc = pytest.mark.skipif(not cuda_building.nvcc(), reason="needs nvcc")
with_nvrtc = pytest.mark.skipif(
    bool(cuda_building.nvrtc_missing()), reason=cuda_building.nvrtc_missing()
)
B, T, H, K = 2, 5, 3, 4


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of its own."""
    before = os.environ.get("LACC_CACHE")
    folder = tmp_path_factory.mktemp("cache")
    os.environ["LACC_CACHE"] = str(folder)
    caching.cache_folder.cache_clear()
    yield folder
    if before is None:
        del os.environ["LACC_CACHE"]
    else:
        os.environ["LACC_CACHE"] = before
    caching.cache_folder.cache_clear()


class Fake:
    """A builder whose kernels do nothing but say what is ``wrong``; keeps what it was asked."""

    def __init__(self, shared: int = 0, scratch: int = 0, wrong: str = "") -> None:
        self.shared, self.scratch, self.together, self.wrong = shared, scratch, 0, wrong
        self.wanted: list[Wanted] = []
        self.launches: list[tuple[int, int, int]] = []

    def limit(self, device: Any) -> int:
        return 100 << 10

    def profile(self, device: Any) -> str:
        return ""

    def built(self, wanted: Wanted, device: Any) -> Fake:
        self.wanted.append(wanted)
        return self

    def launch(self, arguments: Any, programs: int, blocks: int, device: Any) -> str:
        self.launches.append((arguments.program0, programs, blocks))
        return self.wrong


def placed(builder: Any = None, files: Mapping[str, str] = FILES) -> dict[str, Any]:
    """The loaded file, with a builder that takes tensors of the CPU where one is given."""
    from lacc.runtime.compiled import placed

    module = load(NAME, files["leaky_cuda.py"], placed(NAME, files) / "leaky_cuda.py")
    if builder is not None:
        cuda_calls.emulate(module, builder)
    return module


def given(dtype: Any = torch.float64, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    x, w = torch.randn(B, T, H, K, dtype=dtype), torch.rand(H, K, dtype=dtype)
    return {"x": x, "w": w, **more}


def wanted(**files: str) -> Wanted:
    """The forward kernel, or that of other texts."""
    texts = {"leaky.cu": FILES["leaky.cu"], "leaky.h": FILES["leaky.h"]} | files
    macros = ("D_K=4", "THREADS=128", "BLOCK=16", "LACC_ONLY", "LACC_ONLY_forward")
    return Wanted("leaky", "leaky_forward", texts, macros, 128)


# ---- calls


@emulating
def test_calls_and_gradients_are_numpys() -> None:
    module, numpy = placed(Emulated()), driver.compile(SPEC, "numpy")
    x = given()
    arrays = {name: y.numpy() for name, y in x.items()}
    (o, state), (want, end) = module["leaky"](**x), numpy(**arrays)
    np.testing.assert_allclose(o, want, 1e-12)
    np.testing.assert_allclose(state.S, end.S, 1e-12)
    begun = torch.randn(B, H, K, dtype=torch.float64).requires_grad_()
    leaves = {name: y.requires_grad_() for name, y in x.items()}
    o, state = module["leaky"](**leaves, initial_state=begun)
    (o.sum() + (state.S * 2).sum()).backward()
    ct = {"cotangent": np.ones(o.shape), "state_cotangent": np.full(end.S.shape, 2.0)}
    pulled = numpy.vjp(**arrays, **ct, initial_state=begun.detach().numpy())
    for leaf, d in ((leaves["x"], "x"), (leaves["w"], "w")):
        np.testing.assert_allclose(leaf.grad, pulled[d], 1e-12)
    np.testing.assert_allclose(begun.grad, pulled["initial_state"].S, 1e-12)


@emulating
def test_steps_write_rows_of_a_pool() -> None:
    module = placed(Emulated())
    x = given()
    pool = torch.zeros(4, H, K, dtype=torch.float64)
    rows = torch.tensor([3, 1])
    whole, _ = module["leaky"](**x)
    for t in range(T):
        one = {"x": x["x"][:, t], "w": x["w"]}
        o, state = module["leaky_step"](**one, state=pool, out=pool, state_indices=rows)
        assert state is pool
        torch.testing.assert_close(o, whole[:, t])
    assert not pool[0].any() and pool[1].any()


@emulating
def test_arrays_of_numpy_and_of_dlpack() -> None:
    forward, _, _ = cuda_calls.functions(NAME, FILES)
    arrays = {name: x.numpy() for name, x in given().items()}
    with cuda_calls.emulated(Emulated()):
        o, state = forward(arrays)
    assert isinstance(o, np.ndarray) and isinstance(state.S, np.ndarray)
    (tensor, _) = placed(Emulated())["leaky"](**arrays)  # DLPack
    assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), o)


# ---- what is launched


def test_a_kernel_is_built_for_sizes_and_dtypes_and_once() -> None:
    fake = Fake()
    module = placed(fake)
    x = given(torch.bfloat16)
    for _ in range(2):
        module["leaky"](**x)
    (kernel,) = fake.wanted
    macros = {*kernel.macros}
    assert macros >= {"D_K=4", "T_x=1", "T_o=1", "T_w=1", "T_ended=0", "PRECISION=0", "BLOCK=16"}
    assert macros >= {"LACC_ONLY", "LACC_ONLY_forward", f"SHARED_LIMIT={100 << 10}"}
    assert "LACC_DOUBLE" not in macros
    assert fake.launches == [(0, B * H, 1)] * 2
    module["leaky"](**given())
    assert "LACC_DOUBLE" in fake.wanted[1].macros and "T_x=3" in fake.wanted[1].macros


def test_programs_come_in_waves_where_scratch_memory_is_large() -> None:
    fake = Fake(scratch=1 << 20)
    module = placed(fake)
    module["ROOM"] = 4 << 20
    module["leaky"](**given())
    assert fake.launches == [(0, 4, 1), (4, 2, 1)]


def test_blocks_that_take_programs_in_turn_are_as_many_as_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake()
    module = placed(fake)
    monkeypatch.setitem(module, "multiprocessors", lambda device: 2)
    for fake.together, fake.scratch, blocks in ((2, 0, 4), (9, 0, B * H), (9, 1 << 26, 4)):
        module["leaky"](**given())
        assert fake.launches.pop() == (0, blocks, 1)
        assert not fake.launches


# ---- what cannot be


def test_a_tensor_of_the_cpu_is_sent_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"x: expected a CUDA tensor, got .*; .*--target c"):
        placed()["leaky"](**given(torch.float32))


def test_tensors_on_two_devices() -> None:
    module = placed(Fake())
    x = given(torch.float32)
    with pytest.raises(ValueError, match="w: expected one on cpu, got one on meta"):
        module["leaky"](x["x"], x["w"].to("meta"))


def test_shared_memory_that_is_not_there() -> None:
    module = placed(Fake(shared=200 << 10))
    said = r"leaky_forward with K = 4 needs 200 KiB of shared memory .* cpu has 100 KiB a block"
    with pytest.raises(ValueError, match=said):
        module["leaky"](**given())


def test_what_cuda_says_is_named() -> None:
    module = placed(Fake(wrong="an illegal memory access was encountered"))
    said = r"leaky_forward, 6 x 1 blocks of 128 threads: an illegal memory access"
    with pytest.raises(RuntimeError, match=said):
        module["leaky"](**given())


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_building.shutil, "which", lambda _: None)
    monkeypatch.setattr(cuda_building, "nvrtc_missing", lambda: "there is no package cuda-bindings")
    monkeypatch.delenv("NVCC", raising=False)
    with pytest.raises(caching.BuildError, match="neither nvcc nor NVRTC: install the CUDA toolk"):
        cuda_building.builder()
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    with pytest.raises(caching.BuildError, match="NVCC=/nowhere/nvcc: there is no such compiler"):
        cuda_building.builder()


def test_a_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(caching.BuildError, match=r"T4 has compute capability 7.5; kernels nee"):
        cuda_building.architecture(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert cuda_building.architecture(torch.device("cuda")) == "sm_90a"


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12040, raising=False)
    cuda_building.check_driver((12, 9), "nvcc")
    said = "the driver takes what CUDA 12.4 and older compile; nvcc is of CUDA 13.0: update the"
    with pytest.raises(caching.BuildError, match=said):
        cuda_building.check_driver((13, 0), "nvcc")


@emulating
def test_text_of_another_file() -> None:
    files = {**FILES, "leaky.cu": "/* something else */"}
    forward, _, _ = cuda_calls.functions(NAME, files)
    with cuda_calls.emulated(Emulated()), pytest.raises(LaccError) as refused:
        forward(given())
    (problem,) = refused.value.diagnostics
    assert problem.code == "LA0702"
    assert "is not what its Python file was written with" in problem.message


# ---- what is built


@with_nvcc
def test_nvcc_builds_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    log = cache / "log"
    counting = cache / "counting"
    (real,) = cuda_building.nvcc()
    counting.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n')
    counting.chmod(0o755)
    monkeypatch.setenv("NVCC", str(counting))
    nvcc = Nvcc(cuda_building.nvcc())
    first = nvcc.library(wanted(), "sm_90a")
    assert nvcc.library(wanted(), "sm_90a") == first
    built = [line for line in log.read_text().splitlines() if "--version" not in line]
    assert len(built) == 1 and "-arch=sm_90a" in built[0]
    loaded = cuda_building.Loaded(first, "leaky_forward", lambda _: None, lambda *_: "")
    assert (loaded.shared, loaded.scratch) == (0, 0)
    with pytest.raises(caching.BuildError, match=r'nvcc failed: .*\n.*"oops" is undefined'):
        nvcc.library(wanted(**{"leaky.cu": "int x = oops;"}), "sm_90a")


@with_nvrtc
def test_nvrtc_builds_cubins(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Nvrtc().cubin(wanted(), "sm_90a")
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert b"leaky_forward_needs" in path.read_bytes()
    with pytest.raises(caching.BuildError, match=r'NVRTC: .*\n.*"oops" is undefined'):
        Nvrtc().cubin(wanted(**{"leaky.cu": "int x = oops;"}), "sm_90a")
