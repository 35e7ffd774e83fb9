"""Every tile op as a Triton kernel of one instruction: interpreted numbers, compiled binaries.

Both come from `triton_ops.py`, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from lacc.backends.triton_text import WRITTEN_BY_KERNEL
from lacc.tile.pad import KNOWN

pytest.importorskip("torch")
pytest.importorskip("triton")

WORKER = Path(__file__).with_name("triton_ops.py")
OPS = sorted(KNOWN - WRITTEN_BY_KERNEL)
LOOSE = {"dense_solve": 1e-3, "whole": 5e-6, "whole_pull": 5e-6}
"""Float32 errors that the matrices, or products of 41 factors, make larger than 2e-6."""


def work(*what: str, **environment: str) -> dict[str, Any]:
    """What the worker prints."""
    paths = f"{ROOT}{os.pathsep}{WORKER.parent}"
    done = subprocess.run(
        [sys.executable, str(WORKER), *what],
        env={**os.environ, "PYTHONPATH": paths, "TRITON_DEFAULT_FP_FUSION": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_interpreted_kernels_mean_what_numpy_does() -> None:
    """All in one computation: worst errors of each op in float64 and float32."""
    numbers = work("numbers", TRITON_INTERPRET="1")
    assert {*numbers} == {*OPS}
    assert not {
        op: errors
        for op, errors in numbers.items()
        if not (errors[0] <= 1e-11 and errors[1] <= LOOSE.get(op, 2e-6))
    }


def test_kernels_compile_for_sm_90() -> None:
    assert set(work("binaries", "90").values()) == {""}


@pytest.mark.full
@pytest.mark.parametrize("arch", ["80", "100", "gfx942"])
def test_kernels_compile_for_other_devices(arch: str) -> None:
    assert set(work("binaries", arch).values()) == {""}
