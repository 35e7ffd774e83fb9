"""What calls of emitted CUDA files take on a GPU, read off binaries, as it was; no GPU is needed.

`LACC_UPDATE=1 pytest -m full tests/test_cuda_static.py` writes `tests/static/cuda.md`, the report
of one example, and rows of `tests/static/cuda_kernels.md`, one for each kernel of `BUILT`.
"""

from __future__ import annotations

import os

import pytest
from conftest import ROOT

pytest.importorskip("torch")

import lacc
from lacc import driver, views
from lacc.runtime import cuda_building
from lacc.static import cuda_capture
from lacc.static.launches import MIB

REPORT = ROOT / "tests" / "static" / "cuda.md"
TABLE = ROOT / "tests" / "static" / "cuda_kernels.md"
SIZES = {"B": 1, "T": 4096, "H": 16}
BUILT = [
    ("gla", 64, "sm_90"),
    *(
        (name, 128, architecture)
        for name in ("gla", "gated_deltanet", "simple_gla", "mamba2", "kda", "rwkv7")
        for architecture in ("sm_80", "sm_90", "sm_100")
    ),
]
"""Example, the width of its dims, architecture: what the table has rows of."""
HEAD = """\
What nvcc makes of the kernels of a call with B = 1, T = 4096, H = 16 in bfloat16, dims as wide as
is said, read off the binaries: nothing has run. The launches are those that the file chooses for
the architecture. spill: bytes of a thread in local memory; shared, scratch: KB of a block; MiB: the
tensors that a launch reads and writes, each once, and scratch memory twice.

| of | dims | for | call | kernel | grid | threads | registers | spill | shared | scratch | MiB |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def start_of(build: tuple[str, int, str]) -> str:
    """What the rows of a build begin with."""
    return "| {} | {} | {} |".format(*build)


def rows(name: str, width: int, architecture: str) -> list[str]:
    """The lines of the table of one build."""
    path = ROOT / "examples" / f"{name}.la"
    shape = SIZES | dict.fromkeys(lacc.load(path).dims, width)
    found = driver.build_report(
        path, "cuda", architecture=architecture, shape=shape, dtype="bfloat16"
    )
    lines = []
    for call in found.calls:
        if call.name == "forward":
            continue  # as inference, with states
        for x in call.launches:
            cells = (
                *(name, width, architecture, call.name, x.kernel),
                *("×".join(map(str, x.grid[:2])), 32 * x.warps, x.registers, x.spill),
                *(f"{x.shared / 1024:.0f}", f"{x.scratch / 1024:.0f}"),
                f"{(x.read + x.written) / MIB:.1f}",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |\n")
    return lines


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


def test_rows_of_the_table_are_of_the_builds_and_spill_nothing() -> None:
    lines = TABLE.read_text("utf-8").removeprefix(HEAD).splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert [*dict.fromkeys((row[0], int(row[1]), row[2]) for row in cells)] == BUILT
    assert [row[8] for row in cells] == ["0"] * len(cells)


@pytest.mark.full
@pytest.mark.skipif(not cuda_building.nvcc(), reason="needs nvcc")
def test_the_report_of_an_example_is_as_it_was() -> None:
    shape = SIZES | {"K": 64, "V": 64}
    path = ROOT / "examples" / "gla.la"
    report = views.of_figures(driver.build_report(path, "cuda", shape=shape, dtype="bfloat16"))
    text = f"```\n{report.rstrip()}\n```\n"
    if os.environ.get("LACC_UPDATE"):
        REPORT.write_text(text, "utf-8")
    assert REPORT.read_text("utf-8") == text


@pytest.mark.full
@pytest.mark.skipif(not cuda_building.nvcc(), reason="needs nvcc")
@pytest.mark.parametrize(("name", "width", "architecture"), BUILT)
def test_binaries_are_as_they_were(name: str, width: int, architecture: str) -> None:
    lines = TABLE.read_text("utf-8").removeprefix(HEAD).splitlines(keepends=True)
    known = {build: [x for x in lines if x.startswith(start_of(build))] for build in BUILT}
    new, build = rows(name, width, architecture), (name, width, architecture)
    if os.environ.get("LACC_UPDATE"):
        known[build] = new
        TABLE.write_text(HEAD + "".join(x for found in known.values() for x in found), "utf-8")
    assert known[build] == new
