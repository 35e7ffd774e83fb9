"""The kernel of a step in CUDA, emulated: matrix states in registers, blocks that take sequences
and heads in turn."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import kernel_cases
import torch

import lacc
from lacc import driver
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_building import nvrtc_missing
from lacc.runtime.cuda_emulation import COMPILER, Emulated
from lacc.runtime.kernel import load
from lacc.verify.cases import Case
from lacc.verify.checks import Check
from lacc.verify.harness import verify
from lacc.verify.subject import Finding, Subject

emulating = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")

FOURS = {"K": 12, "V": 16}
"""Rows of whole pieces."""
CLASSES: dict[str, dict[str, int]] = {
    "linear_transformer": FOURS,
    "simple_gla": {"K": 17, "V": 6},
    "gla": FOURS,
    "gated_deltanet": {"K": 40, "V": 68},  # more values than one block has
    "rwkv7": {"K": 12, "V": 7},
    "kda": FOURS,
    "mamba2": {"P": 8, "N": 20},
    "mlstm": FOURS,
    "gsa": {"K": 8, "V": 20, "M": 12},
    "mom": FOURS,
    "momentum_delta": {},
    "nonlinear_delta": {},
    "slstm": {},
    "hgrn": {},
    "lru": {},
}
REGISTERS = ("linear_transformer", "simple_gla", "gla", "gated_deltanet", "rwkv7", "kda", "mamba2")
REGISTERS += ("mlstm", "gsa", "mom")
QUICK = ("gated_deltanet",)


@pytest.fixture(params=["one block", "a block each"])
def device(request: Any, monkeypatch: Any) -> str:
    """Files that are loaded meanwhile find a device on which one block has all programs, or each
    has one."""
    stock, few = cuda_calls.load, request.param == "one block"

    def loaded(name: str, source: str, path: Path) -> dict[str, Any]:
        module = stock(name, source, path)
        module["multiprocessors"] = lambda device: 0 if few else 132
        return module

    monkeypatch.setattr(cuda_calls, "load", loaded)
    return str(request.param)


def tokens(subject: Subject) -> Iterator[Finding]:
    """Three tokens of five sequences, from a state that others left."""
    case = Case(T=3, B=5, started=True, seed=1)
    yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


CHECKS: Mapping[str, Check] = {
    "tokens": kernel_cases.of(tokens, "step", "recurrent"),
    "in place": kernel_cases.in_place,
}


@emulating
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in CLASSES]
)
def test_steps_are_the_recurrence(name: str, device: str) -> None:
    spec = lacc.load(kernel_cases.EXAMPLES / f"{name}.la", CLASSES[name])
    with cuda_calls.emulated(Emulated("shuffled")):
        kernel = lacc.compile(spec, "cuda")
        report = verify(lacc.compile(spec, "reference"), [kernel], checks=CHECKS)
    assert not report.failures


def text_of(name: str) -> str:
    """The step's kernel."""
    source = driver.compile(kernel_cases.EXAMPLES / f"{name}.la", "cuda").source
    assert source is not None
    return source[source.index("namespace forward_token") :].partition("\n}\n#endif")[0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in (*QUICK, "mamba2", "gsa", "hgrn") else pytest.mark.full)
        for n in CLASSES
    ],
)
def test_matrices_that_blocks_share_stay_in_registers(name: str) -> None:
    text = text_of(name)
    if name not in REGISTERS:
        assert "take_spread" not in text and "return 0;" in text.partition("_together")[2]
        assert "A block has one sequence and head: " in text
        return
    assert "Blocks take sequences and heads in turn." in text
    whole = name == "gsa"  # one of its two matrices is of every block
    assert whole or ("gemm" not in text and ", 0);" in text.partition("tiles()")[2])
    begun, steps, ended = re.split(r"for \(int64_t step = .*\n|\n        }\n", text, maxsplit=2)
    assert "take_spread" in begun and "store_spread" in ended
    assert set(re.findall(r"\w+_spread", steps)) <= {"store_spread"}  # what gradients need
    loads = [
        line.split(", ")[1].split(" ")[0] for line in steps.splitlines() if "load_tile" in line
    ]
    assert len(loads) == len(set(loads))


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing())
@pytest.mark.parametrize("name", ["gla", "gated_deltanet"])
def test_nvrtc_takes_emitted_files(name: str) -> None:
    """Without a GPU, and by the file's own way."""
    files = driver.compile(kernel_cases.EXAMPLES / f"{name}.la", "cuda").files
    assert files is not None
    from lacc.runtime.compiled import placed

    module = load(name, files[f"{name}_cuda.py"], placed(name, files) / f"{name}_cuda.py")
    for kernel in ("forward_token", "forward_0a"):
        macros = ("D_K=32", "D_V=32", "BLOCK=16", "LACC_ONLY", f"LACC_ONLY_{kernel}")
        wanted = module["Wanted"](name, f"{name}_{kernel}", files, macros, 128)
        cubin = module["Nvrtc"]().cubin(wanted, "sm_90").read_bytes()
        assert cubin[:4] == b"\x7fELF" and f"{name}_{kernel}_needs".encode() in cubin


@emulating
def test_rows_of_a_pool_in_turn() -> None:
    """States of other rows are as they were, and what comes next is read from the right ones."""
    spec = lacc.load(kernel_cases.EXAMPLES / "gla.la", FOURS)
    files = lacc.compile(spec, "cuda").files
    assert files is not None
    from lacc.runtime.compiled import placed

    module = load("gla", files["gla_cuda.py"], placed("gla", files) / "gla_cuda.py")
    cuda_calls.emulate(module, Emulated("descending"))
    torch.manual_seed(0)
    q, k, g = (torch.randn(4, 3, 12) for _ in range(3))
    v, pool = torch.randn(4, 3, 16), torch.randn(9, 3, 12, 16)
    rows = torch.tensor([7, 0, 8, 3])
    one = {"q": q, "k": k, "v": v, "g": -g.abs()}
    begun = pool.clone()
    want, ended = module["gla_step"](**one, state=pool[rows].contiguous())
    module["multiprocessors"] = lambda device: 0
    got, state = module["gla_step"](**one, state=pool, out=pool, state_indices=rows)
    assert state is pool and torch.equal(got, want) and torch.equal(pool[rows], ended.S)
    others = [n for n in range(9) if n not in rows.tolist()]
    assert torch.equal(pool[others], begun[others])
