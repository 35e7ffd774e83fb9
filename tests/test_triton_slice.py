"""The Triton slice without a GPU: interpreted numbers, compiled binaries, masks, refusals, misuse.

Numbers and binaries come from `triton_worker.py`, each in a process of its own. The interpreter's
bfloat16 truncates where a GPU rounds to nearest, and its products round nothing, so the bfloat16
cases show loads and stores, not the rounding of operands: that is left to `tests/gpu`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_worker as worker

import lacc
from lacc import LaccError
from lacc.backends.to_triton import free_axis, lacks, to_triton
from lacc.runtime.contract import axes_of
from lacc.tile.pad import fill_padding
from lacc.tile.program import Program

NUMBERS = [name for name, _ in worker.numbers()]
BINARIES = [name for name, _ in worker.binaries()]


def work(what: str, **environment: str) -> dict[str, Any]:
    """What the worker prints."""
    done = subprocess.run(
        [sys.executable, worker.__file__, what],
        cwd=Path(worker.__file__).parent,
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


@pytest.fixture(scope="module")
def binaries() -> dict[str, dict[str, int]]:
    return work("binaries", TRITON_INTERPRET="0")


def allowed(case: str) -> float:
    """The numerics contract: causality is exact; float64, bfloat16, and float32 by default."""
    kinds = {"causal": 0.0, "float64": 1e-9, "bfloat16": 2.0**-7}
    return kinds.get(case.split()[-1], 1e-5)


@pytest.mark.parametrize("case", NUMBERS)
def test_interpreted_numbers_are_those_of_the_oracle(case: str, numbers: dict[str, float]) -> None:
    assert numbers[case] <= allowed(case)


@pytest.mark.parametrize("case", BINARIES)
def test_kernels_compile_for_sm_90(case: str, binaries: dict[str, dict[str, int]]) -> None:
    found = binaries[case]
    assert found["reg"] <= 255
    assert found["stack"] <= 64, "registers spill"
    assert found["shared"] <= 227 << 10


def forward(name: str) -> Program:
    """The forward of an example."""
    return lacc.analyse(lacc.load(ROOT / "examples" / f"{name}.la")).passes[0].forward


def masks(name: str) -> list[tuple[str, tuple[str, ...]]]:
    """(the op that is masked, in which axes) for each mask of an example's forward."""
    body = fill_padding(forward(name)).body
    return [(body[i.ins[0]].op, i.value[0]) for i in body if i.op == "within"]


def test_masks_stand_only_where_padding_would_reach_a_result() -> None:
    assert masks("gla") == masks("gated_deltanet") == masks("deltanet") == []
    assert masks("retnet") == [("expand", ("t",))]  # a constant decay goes on behind the last token
    assert masks("rwkv6") == [("neg", ("t", "K"))]  # -exp(0) is not 0
    assert masks("mamba2") == [("mul", ("t",))]  # neither is softplus(bias)
    ones = masks("linear_transformer")  # elu(0) + 1 is 1
    assert {op for op, _ in ones} == {"rename", "elu1", "add"}


def test_only_an_axis_that_nothing_sums_over_is_split() -> None:
    def split(name: str) -> str:
        return free_axis(
            lacc.analyse(lacc.load(ROOT / "examples" / f"{name}.la")).passes[0].forward
        )

    assert split("gla") == split("linear_transformer") == "V"
    assert split("mamba2") == "P"


def test_a_state_that_no_kernel_carries_is_named() -> None:
    def why(name: str) -> str:
        spec = lacc.load(ROOT / "examples" / f"{name}.la")
        return lacks(spec, lacc.analyse(spec))

    for name in ("deltaproduct", "lru", "mlstm_by_hand", "mamba1", "hgrn"):
        assert "no Triton format" not in why(name) and "which is not lowered yet" in why(name)
    head = "variant x\ndim K = 4\ninput k : [K]\nstate S : [K] (stabilized)\noutput o : [K]\n"
    spec = lacc.load(head + "S[t] = S[t-1] + exp(k)\no = S[t] / sum(S[t])")
    assert lacks(spec, lacc.analyse(spec)).startswith("the state S is (stabilized)")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_emitted_or_refused_with_a_reason(path: Path) -> None:
    spec = lacc.load(path)
    derived = lacc.analyse(spec)
    reason = lacks(spec, derived)
    if reason:
        assert path.stem not in worker.SLICE
        with pytest.raises(LaccError) as raised:
            lacc.compile(spec, "triton")
        assert raised.value.code == "LA0704" and reason in str(raised.value)
        return
    source = to_triton(spec, derived)
    compile(source, path.stem, "exec")
    assert source == to_triton(spec, derived)
    assert spec.digest in source and "# Plan: fused" in source
    assert not re.search(
        r"^(from|import) (?!torch|triton|__future__|collections|typing)", source, re.M
    )


def test_what_is_not_lowered_is_refused() -> None:
    kernel = lacc.compile(ROOT / "examples" / "gla.la", "triton", K=4, V=4)
    x = {name: np.zeros((1, 3, 2, 4), np.float32) for name in "qkvg"}
    for call in (
        lambda: kernel(**x, mode="recurrent"),
        lambda: kernel(**x, cu_seqlens=np.array([0, 3])),
        lambda: kernel(**x, valid=np.ones((1, 3), bool)),
        lambda: kernel.step(**{name: a[:, 0] for name, a in x.items()}),
        lambda: kernel.vjp(**x),
        lambda: kernel.verify(),
    ):
        with pytest.raises(LaccError) as raised:
            call()
        assert raised.value.code == "LA0703"


def test_a_cpu_is_sent_to_numpy() -> None:
    import torch

    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("kernels run here")
    kernel = lacc.compile(ROOT / "examples" / "gla.la", "triton")
    x = {name: torch.zeros(1, 3, 2, 4) for name in "qkvg"}
    with pytest.raises(ValueError, match=r"q: expected a CUDA tensor.*--target numpy"):
        kernel(**x)


def test_misuse_names_the_argument() -> None:
    import torch

    kernel = lacc.compile(ROOT / "examples" / "gla.la", "triton", K=4)
    x = {name: torch.zeros(1, 3, 2, 4) for name in "qkvg"}
    for wrong, kind, said in (
        ({"v": [1.0]}, TypeError, "v: expected a torch tensor, got .*list"),
        ({"g": x["g"].int()}, TypeError, "g: expected dtype float16, bfloat16, float32"),
        ({"k": x["k"][0]}, ValueError, r"k: expected \[B, T, H, K\], got shape \(3, 2, 4\)"),
        ({"k": x["k"][:, :2]}, ValueError, r"k: expected \[B = 1, T = 3, H = 2, K = 4\]"),
        ({"q": torch.zeros(1, 3, 2, 5)}, ValueError, "q: expected .* K = 4"),
        ({"v": x["v"].to("meta")}, ValueError, "v: expected one on cpu, got meta"),
        ({"chunk": 0}, ValueError, "chunk: expected a positive integer, got 0"),
        ({"initial_state": [1.0]}, TypeError, "initial_state: expected a tuple or dict of S, got"),
        ({"initial_state": (None, None)}, ValueError, r"expected \(S\), got \(2 entries\)"),
        ({"initial_state": {"Z": None}}, ValueError, "initial_state: expected S, got 'Z'"),
        ({"initial_state": x["q"]}, ValueError, r"initial_state.S: expected \[1, 2, 4, 4\]"),
    ):
        with pytest.raises(kind, match=said):
            kernel(**{**x, **wrong})


def test_heads_are_whole_groups() -> None:
    import torch

    kernel = lacc.compile(ROOT / "examples" / "mamba2.la", "triton", N=4, P=4)
    x = {
        a.name: torch.zeros(
            [{"#B": 1, "#T": 3, "#H": 3, "#G": 2}.get(axis, 4) for axis in axes_of(a)]
        )
        for a in kernel.signature.arguments
    }
    with pytest.raises(ValueError, match="G = 2 does not divide H = 3"):
        kernel(**x)
