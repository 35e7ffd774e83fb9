"""What calls of emitted CUDA files take on a GPU, read off binaries, as it was; no GPU is needed.

`LACC_UPDATE=1 pytest -m full tests/test_cuda_static.py` writes `tests/static/cuda.md`.
"""

from __future__ import annotations

import os

import pytest
from conftest import ROOT

pytest.importorskip("torch")

from lacc import driver, views
from lacc.runtime import cuda_building
from lacc.static import cuda_capture
from lacc.static.launches import MIB

TABLE = ROOT / "tests" / "static" / "cuda.md"
BUILDS = {"gla": {"B": 1, "T": 4096, "H": 16, "K": 64, "V": 64}}
"""Examples and the shapes of their calls, for sm_90 in bfloat16."""


def test_what_ptxas_says_is_read() -> None:
    said = """\
ptxas info    : Compiling entry function 'gla_fused_0' for 'sm_90a'
ptxas info    : Function properties for gla_fused_0
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Function properties for copy
    0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
"""
    found = cuda_capture.resources(said)
    assert (found.registers, found.spill) == (128, 12)


def test_memory_that_a_launch_fills_is_written_once() -> None:
    import torch

    from lacc.static.architectures import ARCHITECTURES
    from lacc.static.binary import Resources

    recorder = cuda_capture.CudaRecorder(ARCHITECTURES["sm_90"])
    kernel = cuda_capture.Measured(recorder, "k", 4, Resources(64, 0), {}, 1 << 10, 0)
    x, y = torch.zeros(MIB // 4), torch.zeros(MIB // 4)
    recorder.know([x])
    for _ in range(2):
        recorder._tensors, recorder._programs = [x, y, x[:5]], 3
        recorder.add(kernel, 3, 2)
    first, second = recorder.launches
    assert (first.read, first.written) == (MIB, MIB)
    assert (second.read, second.written) == (2 * MIB, 0)
    assert first.grid == (3, 2, 1) and first.issued is None


@pytest.mark.full
@pytest.mark.skipif(not cuda_building.nvcc(), reason="needs nvcc")
def test_binaries_are_as_they_were() -> None:
    reports = [
        views.of_figures(
            driver.build_report(
                ROOT / "examples" / f"{name}.la", "cuda", shape=shape, dtype="bfloat16"
            )
        )
        for name, shape in BUILDS.items()
    ]
    text = "\n\n".join(f"```\n{report.rstrip()}\n```" for report in reports) + "\n"
    if os.environ.get("LACC_UPDATE"):
        TABLE.write_text(text, "utf-8")
    assert TABLE.read_text("utf-8") == text
