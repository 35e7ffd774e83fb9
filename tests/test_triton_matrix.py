"""Emitted Triton kernels, interpreted: every class, mode and way of launching by default, every
check of every example with ``-m full``.

`LACC_UPDATE=1 pytest -m full tests/test_triton_matrix.py` writes `tests/matrix/triton.md` anew;
errors differ from machine to machine, so it is compared without its numbers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_cases

TABLE = ROOT / "tests" / "matrix" / "triton.md"
COLUMNS = ("chunk", "parallel", "recurrent", "step", "float32", "bfloat16")


def work(what: str, *names: str) -> dict[str, Any]:
    """What the worker prints."""
    done = subprocess.run(
        [sys.executable, triton_cases.__file__, what, *names],
        cwd=Path(triton_cases.__file__).parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def classes(path: Path) -> set[str]:
    """What an example says of its recurrences: {"identity", "low rank"}."""
    lines = re.findall(r"^# expect class: (.*)$", path.read_text("utf-8"), re.M)
    parts = [part for line in lines for part in re.sub(r", rank \d+", "", line).split(";")]
    return {" ".join(re.split(r"(?<!,) ", part.strip(), maxsplit=1)[1:]) for part in parts}


@pytest.mark.parametrize("first", (0, 1))
def test_interpreted_kernels_are_the_recurrence(first: int) -> None:
    """Half of the cases in one process."""
    found = work("some", *list(triton_cases.CASES)[first::2])
    assert found
    failures = {case: said for case, said in found.items() if said}
    assert not failures, failures


def test_every_class_has_its_case() -> None:
    cases = {c for path in EXAMPLES if path.stem in triton_cases.CASES for c in classes(path)}
    assert cases >= {c for path in EXAMPLES for c in classes(path)} - {"none"}


@pytest.fixture(scope="module")
def table() -> dict[str, str]:
    """The rows of the table by example, those that a test replaces included."""
    lines = TABLE.read_text("utf-8").splitlines() if TABLE.is_file() else []
    return {line.split("|")[1].strip(): line for line in lines[2:]}


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_check_of_an_example(path: Path, table: dict[str, str]) -> None:
    said, worst, _ = work("all", path.stem)[path.stem]
    assert "every check passed" in said, said
    row = "| " + " | ".join((path.stem, *(worst.get(c, "–") for c in COLUMNS))) + " |"
    if os.environ.get("LACC_UPDATE"):
        table[path.stem] = row
        head = [f"| {' | '.join(('example', *COLUMNS))} |", "|---" * (len(COLUMNS) + 1) + "|"]
        TABLE.write_text("\n".join([*head, *(table[n] for n in sorted(table)), ""]), "utf-8")
    assert re.sub(r"\d\S*", "0", table[path.stem]) == re.sub(r"\d\S*", "0", row)
