"""Emitted CUDA kernels, emulated: what each of their barriers orders, and sanitizers of addresses
and of undefined behaviour.

`LACC_UPDATE=1 pytest -m full tests/test_cuda_faults.py` writes `tests/matrix/cuda_barriers.md`.
"""

from __future__ import annotations

import os
import re
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

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")

TABLE = ROOT / "tests" / "matrix" / "cuda_barriers.md"
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "gla": ({"K": 24, "V": 20}, {"K": 16, "V": 16}),
    "hgrn": ({"D": 24}, {"D": 160}),
    "softmax_attention": ({"K": 24, "V": 20}, {"K": 16, "V": 16}),
    "gated_deltanet": ({"K": 24, "V": 20}, {"K": 16, "V": 16}),
    "kda": ({"K": 24, "V": 20}, {"K": 16, "V": 16}),
    "rwkv7": ({"K": 24, "V": 20}, {"K": 16, "V": 16}),
    "mlstm": ({"K": 24, "V": 20}, {"K": 16, "V": 16}),
}
"""Examples whose barriers are tried, and with what: rows of whole pieces of 16 bytes and others."""
OWN = re.compile(r"\w+_(fused|forward|backward)_\w+|attended|pulled_(queries|keys)")
"""The functions whose barriers are tried: kernels, and what those of attention are."""
HEAD = """\
Barriers of emitted CUDA kernels that order nothing: without each of these alone no two threads
touch the same bytes, one of them writing, unordered, in any call by chunk or by token, forward or
backward, of 37, 17, 1 and 0 tokens in chunks of 16, in float32 and bfloat16, with rows that are
whole pieces of 16 bytes and rows that are not. Each of the others alone orders such accesses.
Accesses are recorded, so this does not hang on an order of threads or on numbers.

What stays here is in the text because it cannot be known when that is written: a loop may run once
or not at all; how threads share a tile that moves by pieces hangs on types and addresses; a piece
of the library may have waited itself before it writes; tiles may share memory or not, by their
sizes; of two barriers with nothing that any call needs between, each does for the other.
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


@pytest.mark.full
@pytest.mark.parametrize("name", SIZES)
def test_each_barrier_orders_accesses_or_is_known(name: str) -> None:
    trial = cuda_faults.Trial(name, SIZES[name])
    count, left = trial.redundant(lambda function: bool(OWN.fullmatch(function)))
    assert count
    lines = [f"{name}: {len(left)} of {count}", ""]
    lines += [f"- {b.function}, before `{b.behind}`" for b in left]
    section = "\n".join(lines).rstrip()
    parts = TABLE.read_text("utf-8").split("## ")[1:]
    known = {part.partition(":")[0]: part.rstrip() for part in parts}
    if os.environ.get("LACC_UPDATE"):
        known[name] = section
        sections = [f"## {known[n]}\n" for n in SIZES if n in known]
        TABLE.write_text("\n".join([HEAD, *sections]), "utf-8")
    assert known[name] == section


@pytest.mark.full
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
