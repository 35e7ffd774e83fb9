"""Emitted CUDA kernels, emulated: their barriers left out one after another, and sanitizers of
addresses and of undefined behaviour.

`LACC_UPDATE=1 pytest -m full tests/test_cuda_faults.py` writes `tests/matrix/cuda_barriers.md`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("torch")

import cuda_faults
import kernel_cases

from lacc.runtime.cuda_emulation import COMPILER

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}"),
]

TABLE = ROOT / "tests" / "matrix" / "cuda_barriers.md"
SIZES = {"gla": {"K": 24, "V": 20}}
"""Examples whose barriers are tried, with tiles of more entries than threads of a block."""
HEAD = """\
Barriers of emitted CUDA kernels that no call misses: without each of these alone, all results of
calls by chunk and by token, gradients too, are the same to the bit in six orders of threads (and no
fault is seen). Without each of the others they are not. Two barriers that follow each other with
nothing between that needs both (the end of a loop and what is behind it) are both here.
"""

SANITIZED = """
import sys
import cuda_cases, kernel_cases
from lacc.runtime.cuda_emulation import Emulated
name, *flags = sys.argv[1:]
found = cuda_cases.failures(
    name, kernel_cases.CASES[name], cuda_cases.SOME, Emulated("shuffled", more=flags, races=False)
)
sys.exit("; ".join(found) or 0)
"""
SANITIZERS = {
    "address": ("-fsanitize=address", "-g1"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-g1"),
}


def test_each_barrier_is_missed_or_known() -> None:
    lines = [HEAD]
    for name, dims in SIZES.items():
        count, left = cuda_faults.unnoticed(name, dims)
        lines.append(f"## {name}: {len(left)} of {count}\n")
        lines += [f"- {b.kernel}, before `{b.behind}`" for b in left]
    text = "\n".join([*lines, ""])
    if os.environ.get("LACC_UPDATE"):
        TABLE.write_text(text, "utf-8")
    assert TABLE.read_text("utf-8") == text


@pytest.mark.parametrize("name", kernel_cases.CASES)
@pytest.mark.parametrize("kind", SANITIZERS)
def test_sanitizers_find_nothing(kind: str, name: str, tmp_path: Path) -> None:
    flags = SANITIZERS[kind]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    env |= {"LACC_CACHE": str(tmp_path), "ASAN_OPTIONS": "detect_leaks=0"}
    if kind == "address":
        found = [COMPILER, "-print-file-name=libasan.so"]
        said = subprocess.run(found, capture_output=True, text=True, check=True)
        env["LD_PRELOAD"] = said.stdout.strip()
    command = [sys.executable, "-c", SANITIZED, name, *flags]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
