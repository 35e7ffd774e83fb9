"""The CUDA pieces on a GPU beside their emulation: instructions bit by bit, pieces within what
their products round."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import emulated
import numpy as np
import pytest
from cuda_pieces import ERRORS, Pieces, library, wrapper
from test_cuda_builds import exercised
from test_cuda_emulation import KERNELS, empty, numbers

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
]


class OnDevice(emulated.Emulated):
    """Kernels of a library that nvcc made, on copies of NumPy arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.shared = library, 24576

    @property
    def message(self) -> str:
        return "an error of CUDA"

    def order(self, name: str) -> None:
        """Threads have none."""

    def launch(
        self, name: str, pointers: Sequence[Any], numbers: Sequence[int] = (), blocks: int = 1
    ) -> int:
        given = {id(x): torch.from_numpy(x.copy()).cuda() for x in pointers if x is not None}
        args = emulated.Arguments()
        for k, x in enumerate(pointers):
            args.p[k] = None if x is None else given[id(x)].data_ptr()
        for k, n in enumerate(numbers):
            args.n[k] = int(n)
        sizes = ctypes.c_int64(blocks), ctypes.c_int64(self.shared)
        error = int(getattr(self.library, f"{name}_run")(ctypes.byref(args), *sizes))
        torch.cuda.synchronize()
        for x in pointers:
            if x is not None:
                np.copyto(x, given[id(x)].cpu().numpy())
        return error


def on_device(room: Path, text: str, *macros: str) -> OnDevice:
    """What nvcc makes of a source."""
    (room / "source.cu").write_text(text)
    command = ["nvcc", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC", *macros]
    subprocess.run([*command, "source.cu", "-o", "source.so"], cwd=room, check=True)
    return OnDevice(ctypes.CDLL(str(room / "source.so")))


def test_instructions(tmp_path: Path) -> None:
    text = emulated.source(KERNELS, ("primitives",))
    (tmp_path / "emulated").mkdir()
    pair = (
        on_device(tmp_path, text, "-DTHREADS=128"),
        emulated.built(tmp_path / "emulated", text, {"THREADS": 128}),
    )
    lanes = np.arange(128, dtype=np.float32)
    x = np.random.default_rng(0).standard_normal(4000) * 10.0 ** (np.arange(4000) % 12 - 6)
    many = np.append(x, [0, -0.0, 65519, 65520, 2.0**-25, 1 + 2.0**-8]).astype(np.float32)
    calls: list[tuple[str, list[Any], tuple[int, ...], list[int]]] = [
        ("matrices", [lanes], (4, 32), []),
        ("shuffles", [lanes[:32]], (2, 32), [5]),
        ("multiply_bf16", [numbers(16, 16), numbers(16, 8), numbers(16, 8)], (16, 8), []),
        ("multiply_fp16", [numbers(16, 16), numbers(16, 8), numbers(16, 8)], (16, 8), []),
        ("multiply_tf32", [numbers(16, 8), numbers(8, 8), numbers(16, 8)], (16, 8), []),
        ("rounding", [many], (3, len(many)), [len(many)]),
    ]
    for name, given, shape, sizes in calls:
        found = [empty(*shape) for _ in pair]
        for machine, out in zip(pair, found):
            assert machine.launch(name, [out, *given], sizes) == 0, name
        np.testing.assert_array_equal(*found, err_msg=name)


@pytest.mark.parametrize(("threads", "precision"), [(128, 0), (256, 0), (128, 2), (128, 4)])
def test_pieces(tmp_path: Path, threads: int, precision: int) -> None:
    (tmp_path / "emulated").mkdir()
    macros = f"-DTHREADS={threads}", f"-DPRECISION={precision}"
    device = Pieces(on_device(tmp_path, emulated.source(wrapper()), *macros), precision)
    emulation = library(tmp_path / "emulated", threads, precision)
    for got, want in zip(exercised(device), exercised(emulation), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=0, atol=ERRORS[precision] * scale)
