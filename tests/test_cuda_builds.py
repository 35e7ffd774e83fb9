"""The CUDA pieces as other compilers see them: nvcc for three architectures, sanitizers; and what
each of their barriers is there for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulated
import numpy as np
import pytest
from cuda_pieces import Pieces, library, wrapper
from decay_calls import DECAYED

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
needs_cxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
ARCHITECTURES = ("80", "90a", "100")
MOST_REGISTERS = 255  # of a thread, where none is spilled


def report(room: Path, text: str, arch: str, *macros: str) -> dict[str, dict[str, int]]:
    """What ptxas says of each function: registers of kernels, bytes of stack and of spills."""
    assert NVCC is not None
    (room / "source.cu").write_text(text)
    command = [NVCC, "-std=c++17", "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-cubin"]
    command += ["-Xptxas", "-v", "-Werror", "all-warnings", *macros, "source.cu", "-o", "out.cubin"]
    said = subprocess.run(command, cwd=room, check=True, capture_output=True, text=True).stderr
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in said.splitlines():
        if match := re.search(r"(?:properties for|entry function) '?(\w+)'?", line):
            name = match[1]
        row = found.setdefault(name, {})
        for count, what in re.findall(r"(\d+) (registers|bytes (?:stack|spill \w+))", line):
            row[what] = int(count)
    return found


def assert_no_spills(room: Path, kernels: str, arch: str, threads: int, precision: int) -> None:
    text = emulated.source(kernels)
    found = report(room, text, arch, f"-DTHREADS={threads}", f"-DPRECISION={precision}")
    registers = [row["registers"] for row in found.values() if "registers" in row]
    assert len(registers) == kernels.count("KERNEL(")
    assert max(registers) <= MOST_REGISTERS
    assert {n: row for n, row in found.items() if any("spill" in w and row[w] for w in row)} == {}


@needs_nvcc
def test_products_do_not_spill(tmp_path: Path) -> None:
    kernels = [
        line for line in wrapper().split("KERNEL") if line.startswith(("(gemm,", "(prefix,"))
    ]
    assert_no_spills(tmp_path, "KERNEL" + "KERNEL".join(kernels), "90a", 128, 0)


@needs_nvcc
@pytest.mark.full
@pytest.mark.parametrize(("threads", "precision"), [*((128, p) for p in range(5)), (256, 0)])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_piece_spills(tmp_path: Path, arch: str, threads: int, precision: int) -> None:
    assert_no_spills(tmp_path, wrapper(), arch, threads, precision)


def exercised(pieces: Pieces) -> list[Any]:
    """Results of all pieces that threads work together on."""
    found: list[Any] = []
    rng = np.random.default_rng(0)

    def run(name: str, results: list[Any], given: list[Any], numbers: list[int]) -> None:
        pieces.run(name, [*results, *given], numbers)
        found.extend(results)

    for M, N, K in ((70, 150, 80), (20, 30, 10)):
        a, b, c = pieces.tile(rng, M, K), pieces.tile(rng, K, N), pieces.empty(M, N)
        pieces.run("gemm", [a, b, c], [M, N, K, K, 1, N, 1, N, 1, 0, 0])
        found.append(c)
    rows = rng.standard_normal((48, 64)).astype(np.float32)
    run("ahead", [pieces.empty(74, 32)], [rows], [64, 1, 5, 16, 32, 0, 0, 32])
    for C, D in ((64, 20), (130, 5)):
        a, r = pieces.tile(rng, C, C) / np.float32(4 * C**0.5), pieces.tile(rng, C, D)
        for name, out, numbers in (
            ("inverse", pieces.empty(C, C), [C]),
            ("solve", pieces.empty(C, D), [C, D, 1]),
        ):
            given = [a] if name == "inverse" else [a, r]
            run(name, [out], [*given, pieces.scratch(name, C, D)], numbers)
    a = pieces.tile(rng, 9, 9)
    w = pieces.scratch("dense_solve", 9, 40)
    run("dense_solve", [pieces.empty(9, 40)], [a, pieces.tile(rng, 9, 40), w], [9, 40])
    for C, D, X in ((70, 1, 40), (70, 40, 40), (70, 130, 130)):
        g = pieces.decays(rng, C, D, True)
        x, y, wide = (pieces.tile(rng, C, X) for _ in range(3))
        square, narrow = pieces.tile(rng, C, C), pieces.tile(rng, C, D)
        tiles = {"ct": narrow, "x": x, "y": y, "a": square}
        shapes = {"a": (C, C), "da": (C, C), "out": (C, X if D > 1 else D)}
        for name, call in DECAYED.items():
            if "matrix" in name and D > 1:
                continue
            outs, ins = (part.split(",") for part in call.split("|"))
            many = name.startswith(("meet", "gram", "decayed"))
            cts = {"meet_pull": square, "decayed_pull": wide, "matrix_pull": square}
            given = [cts.get(name, narrow) if i == "ct" else tiles[i] for i in ins if i in tiles]
            sizes = [shapes.get(o, (C, X)) if many else (C, D) for o in outs]
            if name == "decayed":
                sizes = [(C, X)]
            if name == "matrix":
                sizes = [(C, C)]
            found += pieces.over_decays(name, sizes, given, g, True, False)
    return found


@needs_cxx
def test_every_barrier_is_needed(tmp_path: Path) -> None:
    """Each alone orders accesses of two threads, or is caught when it is left out."""
    pieces = library(tmp_path, 128, 0)
    alone = pieces.run.needed()
    alone[:] = [False] * len(alone)
    exercised(pieces)
    lines = emulated.barriers(emulated.pieces())
    assert len(lines) > 20
    unnoticed = [line for line in lines if not alone[line] and not caught(pieces, line)]
    assert unnoticed == []


def caught(pieces: Pieces, line: int) -> bool:
    """Whether a launch fails without the barrier in a line."""
    pieces.run.library.emulation_skip(line)
    try:
        exercised(pieces)
    except AssertionError:
        return True
    finally:
        pieces.run.library.emulation_skip(-1)
    return False


@needs_cxx
@pytest.mark.full
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """In a process of its own, which the sanitizers must be loaded into first."""
    asan = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    script = (
        "import sys; from pathlib import Path; import test_cuda_builds as t\n"
        "flags = ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']\n"
        "p = t.library(Path(sys.argv[1]), 128, 2, flags)\n"
        "for order in t.emulated.ORDERS: p.run.order(order), t.exercised(p)\n"
    )
    env = {**os.environ, "LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0"}
    env["PYTHONPATH"] = f"{Path(__file__).parent}:{env.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
