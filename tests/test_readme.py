"""The README runs: shell lines that start with ``lacc``, and its Python blocks as two programs, the
one that imports torch with interpreted kernels."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from typer.main import get_group

import lacc
from lacc import driver
from lacc.cli import app

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)
SHELL = [
    line
    for kind, body in BLOCKS
    if kind in ("bash", "console")
    for line in body.splitlines()
    if line.startswith("lacc ")
]
PYTHON = [body for kind, body in BLOCKS if kind == "python"]
WRITTEN = {"my_gate.la": "lacc new my_gate", "a.json": "--json a.json"}
"""Files that commands take, and what the earlier command that writes each has in its line."""
TORCH = [body for body in PYTHON if body.startswith("import torch\n")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, for commands that write beside it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "gla.la").symlink_to(ROOT / "examples" / "gla.la")
    return folder


def cache(folder: Path) -> dict[str, str]:
    """What commands measure is not that of whoever runs the tests."""
    return {"LACC_CACHE": str(folder / "cache")}


def python(folder: Path, *words: str) -> None:
    """Runs the interpreter in ``folder``, where `lacc` is the checkout's."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", **cache(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", SHELL, ids=lambda line: line.split("#")[0].strip())
def test_a_command_of_the_readme_ends_well(line: str, checkout: Path) -> None:
    for file, words in WRITTEN.items():
        if file in line and words not in line and not (checkout / file).exists():
            writes = next(line for line in SHELL if words in line)
            test_a_command_of_the_readme_ends_well(writes, checkout)
    python(checkout, "-m", "lacc", *shlex.split(line, comments=True)[1:])


def test_the_python_of_the_readme_runs(checkout: Path) -> None:
    program = "\n".join(body for body in PYTHON if body not in TORCH)
    (checkout / "readme.py").write_text(program, encoding="utf-8")
    compiled = next(line for line in SHELL if "--target c -o out" in line)
    test_a_command_of_the_readme_ends_well(compiled, checkout)  # what the program imports
    python(checkout, "readme.py")


def test_the_torch_of_the_readme_runs(checkout: Path) -> None:
    source = lacc.compile(checkout / "gla.la", target="triton").source
    assert source is not None
    (checkout / "gla.py").write_text(source, encoding="utf-8")
    (checkout / "train.py").write_text("\n".join(TORCH), encoding="utf-8")
    python(checkout, "train.py")


def test_the_spec_of_the_readme_is_the_example() -> None:
    (shown,) = (body for kind, body in BLOCKS if kind == "la")
    example = (ROOT / "examples" / "gla.la").read_text(encoding="utf-8")
    kept = (line for line in example.splitlines(keepends=True) if not line.startswith("# expect"))
    assert shown.strip() == "".join(kept).strip()


def test_the_report_of_the_readme_is_what_check_says() -> None:
    (shown,) = (body for kind, body in BLOCKS if kind == "text")
    said = driver.describe(lacc.load(ROOT / "examples" / "gla.la"))
    assert said[said.index("state S") :].strip() == shown.strip()


def test_the_readme_shows_every_command() -> None:
    names = {command.name for command in get_group(app).commands.values()}
    assert names == {line.split()[1] for line in SHELL}


def test_the_readme_has_the_two_commands() -> None:
    assert len(re.findall(r"^pip install -c constraints.txt", TEXT, re.M)) == 2
