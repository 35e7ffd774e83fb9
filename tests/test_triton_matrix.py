"""Emitted Triton kernels, interpreted: every class, mode and way of launching by default, every
example with ``-m full``.

`LACC_UPDATE=1 pytest -m full tests/test_triton_matrix.py` writes `tests/matrix/triton.md`, a row as
soon as its example is done (``-k`` chooses examples); errors differ from machine to machine, so it
is compared without its numbers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_cases

TABLE = ROOT / "tests" / "matrix" / "triton.md"
COLUMNS = ("chunk", "split", "parallel", "recurrent", "step", "float32", "bfloat16", "seconds")
HEAD = """\
Emitted Triton kernels, interpreted and watched, against the recurrence: the worst error of outputs,
states and gradients. In float64 by mode, `chunk` in one kernel, `split` the same in several; `step`
has no gradients; – is what an example has not. float32 (limit: 20 times the recurrence's own error)
and bfloat16 (rms, limit: twice what rounding the inputs does) in the first mode. Processor seconds.

"""


COMMAND = [sys.executable, triton_cases.__file__]
WHERE: dict[str, Any] = {
    "cwd": Path(triton_cases.__file__).parent,
    "env": {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
    "text": True,
}


def work(what: str, *names: str) -> dict[str, Any]:
    """What the worker prints."""
    done = subprocess.run([*COMMAND, what, *names], capture_output=True, **WHERE)
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


def test_kernels_go_through_blocks_of_an_axis() -> None:
    failures = {case: said for case, said in work("blocks").items() if said}
    assert not failures, failures


@pytest.fixture(scope="module")
def worker() -> Iterator[subprocess.Popen[str]]:
    """One process for all examples: a name in, a line out."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "each"], stdin=pipe, stdout=pipe, **WHERE) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def table() -> dict[str, str]:
    """The rows of the table by example, those that a test replaces included."""
    lines = TABLE.read_text("utf-8").splitlines() if TABLE.is_file() else []
    rows = [line for line in lines if line.startswith("|")]
    return {line.split("|")[1].strip(): line for line in rows[2:]}


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example(path: Path, worker: subprocess.Popen[str], table: dict[str, str]) -> None:
    assert worker.stdin is not None and worker.stdout is not None
    print(path.stem, file=worker.stdin, flush=True)
    found: dict[str, str] = json.loads(worker.stdout.readline())
    assert not found.get("failed"), found["failed"]
    cells = [found["refused"]] if "refused" in found else [found.get(c, "–") for c in COLUMNS]
    row = f"| {' | '.join((path.stem, *cells))} |"
    if os.environ.get("LACC_UPDATE"):
        table[path.stem] = row
        head = [f"| {' | '.join(('example', *COLUMNS))} |", "|---" * (len(COLUMNS) + 1) + "|"]
        rows = [table[name] for name in sorted(table)]
        TABLE.write_text(HEAD + "\n".join([*head, *rows, ""]), "utf-8")
    assert re.sub(r"\d\S*", "0", table[path.stem]) == re.sub(r"\d\S*", "0", row)
