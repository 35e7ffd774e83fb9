"""`benchmarks/gpu.py` and `tests/gpu` without a GPU: what they do on one, interpreted, on tiny
shapes; the benchmark beside a stand-in for fla-core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu
import gpu_cases
import peers
import record

STANDIN = '''
"""GLA token by token, under the names of fla-core; wrong for three tokens."""
import torch

def chunk_gla(q, k, v, g, output_final_state=False, initial_state=None):
    return fused_recurrent_gla(q, k, v, g, initial_state, output_final_state)

def fused_recurrent_gla(q, k, v, gk, initial_state=None, output_final_state=False):
    B, T, H, K = q.shape
    zero = torch.zeros(B, H, K, v.shape[-1])
    S, o = zero if initial_state is None else initial_state, []
    for t in range(T):
        kv = k[:, t, :, :, None].float() * v[:, t, :, None].float()
        S = gk[:, t].exp()[..., None] * S + kv
        o.append((q[:, t, :, :, None].float() * S).sum(2) * K**-0.5)
    return torch.stack(o, 1).to(v.dtype) * (1.1 if T == 3 else 1), S
'''


def smoke(tmp_path: Path, *shapes: str) -> tuple[str, dict[str, Any], str]:
    """What is printed, gpu.json and gpu.md."""
    folder = tmp_path / "fla" / "ops" / "gla"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(STANDIN)
    for package in (folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    command = [sys.executable, gpu.__file__, "--smoke", "--variants", "gla", "--shapes"]
    command += [*shapes, "--results", str(tmp_path)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "gpu.json").read_text())
    return done.stdout, kept, (tmp_path / "gpu.md").read_text()


@pytest.mark.full
def test_everything_is_checked_timed_and_kept(tmp_path: Path) -> None:
    shapes = "B2_T19_H2_D8", "B1_T3_H1_D8"
    said, kept, page = smoke(tmp_path, *shapes)
    assert [line["mode"] for line in kept["rows"]] == [*gpu.MODES, *gpu.MODES]
    right, wrong = kept["rows"][: len(gpu.MODES)], kept["rows"][len(gpu.MODES) :]
    for line in right:
        assert set(line["seconds"]) == {"lacc", "fla-core"}
        assert line["times_as_fast"][1] > 0 and line["floor"] > 0
        ours, theirs = line["errors"]["lacc"], line["errors"]["fla-core"]
        quantities = {"o", "d q", "d k", "d v", "d g", "decode o"}
        assert ours.keys() == quantities | {"state.S", "o without gradients"}
        assert theirs.keys() == quantities | {"o from ours"}
        assert 0 < max(ours.values()) < gpu_cases.GRADIENT
    assert page in said and "| gla | training | 2 |" in page
    assert all(line["seconds"].keys() == {"lacc"} for line in wrong)
    assert "fla-core was not timed on gla B1_T3_H1_D8: o is off by 1.0e-01" in page
    assert gpu_cases.wrong({"o": 0.001, "d q": float("nan")}) == "d q is off by nan"

    said, again, _ = smoke(tmp_path, *shapes)
    assert "2 cases are there already, 0 to go" in said and again == kept


def test_floors_are_of_what_must_move_or_be_computed() -> None:
    case = gpu_cases.Case("simple_gla", "B2_T64_H3_D16", "cpu")
    values, gates = 2 * 64 * 3 * 16 * 2, 2 * 64 * 3 * 4
    assert case.floor("forward", 1e3, 1e18) == pytest.approx((4 * values + gates) / 1e3)
    assert case.floor("training", 1e3, 1e18) == pytest.approx((11 * values + 3 * gates) / 1e3)
    assert case.floor("forward", 1e18, 1e3) == pytest.approx(4 * 16 * 16 * 2 * 64 * 3 / 1e3)
    moved = (4 * values + gates) / 64 + 8 * 2 * 3 * 16 * 16
    assert case.floor("decode", 1e3, 1e18) == pytest.approx(moved / 1e3)
    with pytest.raises(ValueError, match="expected a shape such as"):
        gpu_cases.sizes_of("B2_T64")


def test_every_variant_has_its_arguments_and_its_peer() -> None:
    import lacc

    assert {*gpu.VARIANTS} == {*gpu_cases.ARGUMENTS} == {*peers.PEERS} == {*gpu_cases.FLOPS}
    for variant in gpu.VARIANTS:
        spec = lacc.load(record.EXAMPLES / f"{variant}.la")
        assert [a.ascii for a in spec.args] == [*gpu_cases.ARGUMENTS[variant]]


def test_results_are_summed_up() -> None:
    assert record.geometric_mean([1, 4]) == pytest.approx(2)
    assert record.quartiles([3.0]) == (3, 3, 3)
    assert record.ratios([2, 4, 6], [1, 2, 3]) == (2, 2, 2)
    assert record.markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


def test_the_tests_of_a_gpu_run_interpreted_too() -> None:
    names = ("test_numerics.py::test_float32", "test_numerics.py::test_a_step_is_one_more_token")
    names += ("test_calls.py::test_packed_sequences_are_sequences",)
    names += ("test_calls.py::test_steps_of_some_rows_of_a_pool",)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/gpu/{name}[gla]" for name in names)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "LACC_SHARE": "1/1"},
        capture_output=True,
        text=True,
    )
    assert f"{len(names)} passed" in done.stdout, done.stdout
