"""Emitted C files on processors that are not this one: built by a cross compiler, run by an
emulator, they give what they give here. Where a tool is missing, what is skipped says which; in CI
(CI is set) it fails.

Debian: gcc-aarch64-linux-gnu gcc-riscv64-linux-gnu libc6-dev-arm64-cross libc6-dev-riscv64-cross
qemu-user; Node for WebAssembly, and its compiler from `pip install ziglang`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from replayed import SOURCES, recorded

import lacc
from lacc.runtime.compiled import missing

FLAGS = ("-std=c11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
STRICT = ("-Wall", "-Wextra", "-Werror")
ZIG = (sys.executable, "-m", "ziglang", "cc")
CLASSES = (
    "gla",
    "gated_deltanet",
    "simple_gla",
    "mamba1",
    "lru",
    "rwkv4",
    "mlstm",
    "slstm",
    "softmax_attention",
)
"""Examples, one of each class of recurrence."""

Made = Callable[[str], tuple[Path, float]]

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@dataclass(frozen=True)
class Machine:
    """How to build for a machine, and how to run what was built from the folder it lies in."""

    compiler: tuple[str, ...]
    runner: tuple[str, ...] = ()

    def lacks(self) -> str:
        """What is not there, "" where nothing."""
        tools = [c[0] for c in (self.compiler, self.runner) if c and not shutil.which(c[0])]
        if "ziglang" in self.compiler and not find_spec("ziglang"):
            tools.append("ziglang")
        return " and ".join(tools)

    def require(self) -> None:
        """Ends a test where it cannot be built or run."""
        if lacks := self.lacks():
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"there is no {lacks}")

    def build(self, folder: Path, *given: str) -> None:
        """Makes ``folder``/program. A warning is an error."""
        command = [*self.compiler, *FLAGS, *STRICT, f"-I{folder}", *given, "-lm", "-o", "program"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run(self, folder: Path, *given: str) -> str:
        """What the program prints. It sees the folder."""
        command = [*self.runner, *(() if "node" in self.runner else ("./program",)), *given]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


NODE = ("node", "--no-warnings", str(SOURCES / "wasi.mjs"), "program", ".")
ARM, RISCV, WASM = MACHINES = (
    Machine(
        ("aarch64-linux-gnu-gcc", "-fopenmp"), ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
    ),
    Machine(("riscv64-linux-gnu-gcc", "-static", "-fopenmp-simd"), ("qemu-riscv64",)),
    Machine((*ZIG, "-target", "wasm32-wasi", "-mcpu=generic+simd128", "-fopenmp-simd"), NODE),
)
CLANG = Machine((*ZIG, "-march=native", "-fopenmp-simd"))
CHECKED = Machine(
    ("gcc", "-fopenmp", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder with the C files of an example and its record, made once, and the largest error
    that calls in float32 may have."""
    made: dict[str, tuple[Path, float]] = {}

    def of(name: str) -> tuple[Path, float]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder, recorded(ROOT / "examples" / f"{name}.la", folder)
        return made[name]

    return of


def replay(machine: Machine, name: str, record: Made, *, double: bool, level: str) -> None:
    machine.require()
    folder, single = record(name)
    more, limit = (("-DLACC_DOUBLE",), 1e-9) if double else ((), single)
    source = str(SOURCES / "replay.c")
    machine.build(folder, level, *more, source, str(folder / f"{name}.c"))
    said = machine.run(folder, "record", str(limit))
    assert "forward" in said and "backward" in said


@pytest.mark.parametrize("name", CLASSES[:2])
@pytest.mark.parametrize("machine", MACHINES, ids=("arm64", "riscv64", "wasm"))
def test_calls_on_another_machine(machine: Machine, name: str, record: Made) -> None:
    replay(machine, name, record, double=False, level="-O1")


@pytest.mark.full
@pytest.mark.parametrize("double", [False, True], ids=("f32", "f64"))
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("machine", [*MACHINES, CLANG], ids=("arm64", "riscv64", "wasm", "clang"))
def test_calls_of_every_class(machine: Machine, name: str, double: bool, record: Made) -> None:
    replay(machine, name, record, double=double, level="-O2")


@pytest.mark.full
@pytest.mark.parametrize("double", [False, True], ids=("f32", "f64"))
@pytest.mark.parametrize("name", CLASSES)
def test_memory_and_arithmetic_are_sound(name: str, double: bool, record: Made) -> None:
    """Under the sanitizers of addresses and of undefined behaviour."""
    replay(CHECKED, name, record, double=double, level="-O1")


def streamed(path: Path) -> None:
    """What examples/apps/stream.c compares with: tokens of gla, outputs of the reference."""
    spec = lacc.load(ROOT / "examples" / "gla.la")
    rng = np.random.default_rng(5)
    T, H, K, V = 50, 3, 18, 11
    q, k = rng.standard_normal((2, 1, T, H, K), np.float32)
    v = rng.standard_normal((1, T, H, V), np.float32)
    g = -rng.random((1, T, H, K), np.float32)
    o, _ = lacc.compile(spec, target="reference")(*(x.astype(np.float64) for x in (q, k, v, g)))
    tokens = [x.reshape(T, -1).astype(np.float32) for x in (q, k, v, g, o)]
    path.write_bytes(np.array([T, H, K, V], "<i4").tobytes() + np.hstack(tokens).tobytes())


@pytest.mark.parametrize(
    "machine",
    [Machine(("cc", "-fopenmp-simd")), *MACHINES],
    ids=("here", "arm64", "riscv64", "wasm"),
)
def test_a_stream_of_tokens(machine: Machine, tmp_path: Path) -> None:
    machine.require()
    for file, text in lacc.compile(ROOT / "examples" / "gla.la", target="c").files.items():
        (tmp_path / file).write_text(text, "utf-8")
    streamed(tmp_path / "tokens")
    machine.build(tmp_path, "-O1", str(ROOT / "examples/apps/stream.c"), str(tmp_path / "gla.c"))
    assert machine.run(tmp_path, "--check", "tokens").startswith("50 tokens, error ")
    assert "tokens/s" in machine.run(tmp_path, "20", "2")
