"""Emitted text as people see it: the part of a file that is a spec's own, beside its snapshot.

After a change that is meant, `LACC_UPDATE=1 pytest tests/test_emitted.py` writes the snapshots
anew. Numbers are proved elsewhere; these files are for the eye of whoever reviews a change.
"""

from __future__ import annotations

import os

import pytest
from conftest import ROOT

import lacc
from lacc import driver

SNAPSHOTS = ROOT / "tests" / "emitted"
KINDS = ("retnet", "gla", "gated_deltanet", "rglru", "linear_transformer_noncausal")
"""A scalar, a diagonal and a low-rank transition, a scan, and two passes."""


def own_part(source: str) -> str:
    """From the spec's first function to the kernels that all files share."""
    return source[source.index("# ---- ") : source.index("# ---- kernels")].rstrip() + "\n"


def own_c(source: str) -> str:
    """The functions of a spec for one sequence and head."""
    start = source.index("*/", source.index(", for one sequence and head")) + 2
    return source[start : source.index("/* ---- for all sequences")].strip() + "\n"


def compare(text: str, name: str) -> None:
    """Writes a snapshot, or finds it as it was."""
    path = SNAPSHOTS / name
    if os.environ.get("LACC_UPDATE"):
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text


@pytest.mark.parametrize("name", KINDS)
def test_emitted_numpy_is_the_snapshot(name: str) -> None:
    source = lacc.compile(ROOT / "examples" / f"{name}.la", target="numpy").source
    compare(own_part(source), f"{name}.numpy.py")


@pytest.mark.parametrize("name", KINDS[:3])
def test_emitted_c_is_the_snapshot(name: str) -> None:
    kernel = driver.compile(ROOT / "examples" / f"{name}.la", "c")
    assert kernel.source is not None
    compare(own_c(kernel.source), f"{name}.c")


def test_emitted_cuda_is_the_snapshot() -> None:
    source = driver.compile(ROOT / "examples" / "gla.la", "cuda").source
    assert source is not None
    start = source.index("/* ---- gla: kernels */")
    compare(source[start:].strip() + "\n", "gla.cu")


@pytest.mark.parametrize("name", KINDS)
def test_the_same_spec_gives_the_same_bytes(name: str) -> None:
    path = ROOT / "examples" / f"{name}.la"
    assert lacc.compile(path).source == lacc.compile(path).source


@pytest.mark.parametrize("name", KINDS)
def test_emitted_lines_are_short(name: str) -> None:
    source = lacc.compile(ROOT / "examples" / f"{name}.la").source
    assert [line for line in own_part(source).splitlines() if len(line) > 120] == []
