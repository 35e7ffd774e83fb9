"""Emitted CUDA kernels, emulated on the CPU: every class, mode and way of launching by default,
every example, sanitizers and compilers with ``-m full``.

`LACC_UPDATE=1 pytest -m full tests/test_cuda.py -k every_example` writes `tests/matrix/cuda.md`, a
row as soon as its example is done; errors differ from machine to machine, so a row that is there is
compared without its numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT

pytest.importorskip("torch")

import cuda_cases
import kernel_cases
import torch

import lacc
from lacc.diagnostics import LaccError
from lacc.layers import text as layers
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_building import Built, Wanted
from lacc.runtime.cuda_emulation import COMPILER, ORDERS, Emulated

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")

CASES = kernel_cases.CASES
SLOW = ("mlstm_by_hand", "gla_outer")
"""Examples whose like is there in another one that takes less time."""
REFUSED = "deltaformer"
"""It attends and has no chunks."""
TABLE = ROOT / "tests" / "matrix" / "cuda.md"
COLUMNS = ("chunk", "split", "parallel", "recurrent", "step", "float32", "bfloat16", "seconds")
HEAD = """\
Emitted CUDA kernels, emulated with shuffled threads, against the recurrence: the worst error of
outputs, states and gradients. In float64 by mode, `chunk` in one kernel, `split` the same in
several; `step` has no gradients; – is what an example has not. float32 (limit: 20 times the
recurrence's own error) and bfloat16 (rms, limit: twice what rounding the inputs does) in the first
mode, with products as on tensor cores. Processor seconds, compilers apart.

"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=pytest.mark.full if name in SLOW else (), id=name)
        for n, name in enumerate(CASES)
    ],
)
def test_emulated_kernels_are_the_recurrence(number: int) -> None:
    """Threads run in one order, and in another one for the next example."""
    name, dims = [*CASES.items()][number]
    builder = Emulated(ORDERS[number % len(ORDERS)])
    assert not cuda_cases.failures(name, dims, cuda_cases.SOME, builder)


@pytest.mark.parametrize("name", cuda_cases.SHORT)
def test_products_of_tensor_cores(name: str) -> None:
    assert not cuda_cases.failures(name, CASES[name], cuda_cases.SHORT[name], Emulated("shuffled"))


def test_rows_as_wide_as_a_chunk_are_sent_for_by_the_next_ones_width() -> None:
    """An inverse, which crosses from kernel to kernel where dims are large; a chunk is short."""
    checks = {"split": {"once": kernel_cases.of(kernel_cases.once, "chunk")}}
    assert not cuda_cases.failures("gated_deltanet", {}, checks, Emulated("shuffled"))


def test_a_state_that_is_read_behind_its_next_value_stays_until_then() -> None:
    """Its scale in logs, which what is added next to it asks for, too."""
    checks = {"fused": {"once": kernel_cases.of(kernel_cases.once, "recurrent")}}
    assert not cuda_cases.failures("rwkv4", {}, checks, Emulated())


def test_a_layer_runs_on_the_kernels(tmp_path: Path) -> None:
    """As around those of the C target: in memory, and as a file beside the emitted ones."""
    kernel = lacc.compile(ROOT / "examples" / "gla.la", target="cuda")
    for file, text in {**kernel.files, "own.py": layers.text(kernel)}.items():
        (tmp_path / file).write_text(text, "utf-8")
    how: Any = {"conv_size": 3, "dtype": torch.float64}
    known = lacc.compile(ROOT / "examples" / "gla.la", target="c").layer(8, 2, **how)
    x, mask = torch.randn(2, 7, 8, dtype=torch.float64), torch.ones(2, 7, dtype=torch.bool)
    mask[1, :2] = False

    def found(layer: Any) -> list[torch.Tensor]:
        layer.load_state_dict(known.state_dict())
        y, cache = layer(x[:, :6], attention_mask=mask[:, :6])
        gradients = torch.autograd.grad(y.square().sum(), [*layer.parameters()])
        with torch.no_grad():
            z, after = layer.step(x[:, 6], cache.detach())
            last, _ = layer.step(x[:, 0], after, in_place=True)
        return [y, *gradients, cache.state.S, z, last]

    with cuda_calls.emulated(Emulated("shuffled")):
        ours = found(kernel.layer(8, 2, **how))
    torch.testing.assert_close(ours, found(known))
    sys.path.insert(0, str(tmp_path))
    try:
        file, host = import_module("own"), import_module("gla_cuda")
        cuda_calls.emulate(vars(host), Emulated())
        torch.testing.assert_close(found(file.GlaLayer(8, 2, **how)), ours)
    finally:
        sys.path.remove(str(tmp_path))
        for name in ("own", "gla_cuda"):
            sys.modules.pop(name, None)


def test_blocks_of_as_many_threads_as_a_gpu_should_have() -> None:
    found = set()

    class Profiled(Emulated):
        """Launches are chosen for a device."""

        def profile(self, device: Any) -> str:
            return "sm_90"

        def built(self, wanted: Wanted, device: Any) -> Built:
            found.add(wanted.threads)
            return super().built(wanted, device)

    checks = {"split": {"once": kernel_cases.of(kernel_cases.once, "chunk")}}
    dims = CASES["gated_deltanet"]
    assert not cuda_cases.failures("gated_deltanet", dims, checks, Profiled("shuffled"))
    assert 256 in found


def test_a_number_of_a_chunk_is_stored_once_it_is_computed() -> None:
    """Each thread has it for itself, so no tile says who needs whom."""
    kernel = lacc.compile(kernel_cases.EXAMPLES / "kda_raw.la", "cuda")
    bodies = [x for x in kernel.source.split("__global__") if "(dA_log_at, 0, 0, &dA_log," in x]
    assert bodies
    for body in bodies:
        assert body.index("dA_log = ") < body.index("store_tile(dA_log_at, 0, 0, &dA_log,")


def test_the_same_spec_gives_the_same_bytes() -> None:
    """In processes in which sets have other orders; `rfa` has tiles that are made again."""
    path = kernel_cases.EXAMPLES / "rfa.la"
    code = f"import lacc, sys; sys.stdout.write(lacc.compile({str(path)!r}, 'cuda').source)"
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "2")
    ]
    assert texts[0] == texts[1] != b""


def test_attention_token_by_token_is_refused() -> None:
    with pytest.raises(LaccError) as refused:
        lacc.compile(kernel_cases.EXAMPLES / f"{REFUSED}.la", "cuda")
    assert refused.value.diagnostics[0].code == "LA0704"
    assert "numpy compiles it" in str(refused.value)
    assert lacc.compile(kernel_cases.EXAMPLES / f"{REFUSED}.la", "numpy").source


@pytest.fixture(scope="module")
def table() -> dict[str, str]:
    """The rows of the table by example, those that a test replaces included."""
    lines = TABLE.read_text("utf-8").splitlines() if TABLE.is_file() else []
    rows = [line for line in lines if line.startswith("|")]
    return {line.split("|")[1].strip(): line for line in rows[2:]}


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example(path: Path, table: dict[str, str]) -> None:
    try:
        found = cuda_cases.row(path.stem, Emulated("shuffled"))
        cells = [found.get(column, "–") for column in COLUMNS]
    except LaccError as refused:
        found, cells = {}, [refused.diagnostics[0].message]
    assert not found.get("failed"), found["failed"]
    row = f"| {' | '.join((path.stem, *cells))} |"
    if os.environ.get("LACC_UPDATE"):
        table[path.stem] = row
        head = [f"| {' | '.join(('example', *COLUMNS))} |", "|---" * (len(COLUMNS) + 1) + "|"]
        rows = [table[name] for name in sorted(table)]
        TABLE.write_text(HEAD + "\n".join([*head, *rows, ""]), "utf-8")
    if path.stem in table:
        assert re.sub(r"\d\S*", "0", table[path.stem]) == re.sub(r"\d\S*", "0", row)
