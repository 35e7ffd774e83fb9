"""Compiled C kernels against the recurrence: one example of each class by default, every example
with ``-m full``.

`LACC_UPDATE=1 pytest -m full tests/test_c_matrix.py` writes `tests/matrix/c.md`, a row as soon as
its example is done (``-k`` chooses examples). Errors differ from machine to machine, so it is
compared without its numbers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT

from lacc import driver
from lacc.verify.report import Report

TABLE = ROOT / "tests" / "matrix" / "c.md"
SOME = (
    *("simple_gla", "gla", "hgrn", "gated_deltanet", "deltaproduct", "momentum_delta", "lru"),
    *("mamba1", "mlstm", "slstm", "sliding_window", "bidirectional", "retnet", "token_shift"),
)
"""One example of each class of transition, and of what passes do beside."""

COLUMNS = ("chunk", "parallel", "recurrent", "step")
HEAD = f"""\
Compiled C kernels against the recurrence, by `lacc verify --target c`: of all checks in float64 the
worst error and its limit, by mode; in float32 and bfloat16 those of all modes; – is what an example
has not.

| example | {" | ".join((*COLUMNS, "float32", "bfloat16"))} |
|{"---|" * (len(COLUMNS) + 3)}
"""

pytestmark = pytest.mark.skipif(
    bool(driver.targets()["c"]), reason=f"target c: {driver.targets()['c']}"
)


def row(name: str, report: Report) -> str:
    """An example as a row of the table."""
    narrow = ("float32", "bfloat16")
    wide = [r for r in report.rows if r not in narrow]
    each = [
        worst(report, wide, [f"c {mode}"]) if f"c {mode}" in report.columns else "–"
        for mode in COLUMNS
    ]
    each += [worst(report, [precision], report.columns) for precision in narrow]
    return f"| {' | '.join((name, *each))} |\n"


def worst(report: Report, rows: list[str], columns: tuple[str, ...] | list[str]) -> str:
    """The finding nearest to its limit."""
    cells = (report.cells[r, c] for r in rows for c in columns)
    found = [cell.worst for cell in cells if cell.worst is not None and cell.worst.limit > 0]
    if not found:
        return "–"
    least = max(found, key=lambda finding: finding.error / finding.limit)
    return f"{least.error:.0e} / {least.limit:.0e}"


def committed() -> dict[str, str]:
    """Rows of the table by example."""
    text = TABLE.read_text("utf-8") if TABLE.exists() else ""
    rows = [line for line in text.splitlines(keepends=True) if re.match(r"\| \w+ \|.* / ", line)]
    return {line.split(" | ")[0].strip("| "): line for line in rows}


def without_numbers(line: str) -> str:
    """A row with a 0 for each number."""
    return re.sub(r"\d\S*e\S+", "0", line)


@pytest.mark.parametrize("name", SOME)
def test_compiled_kernels_are_the_recurrence(name: str) -> None:
    report = driver.verify(ROOT / "examples" / f"{name}.la", "c")
    assert report.passed, str(report)


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_compiled(path: Path) -> None:
    report = driver.verify(path, "c")
    assert report.passed, str(report)
    line, rows = row(path.stem, report), committed()
    if os.environ.get("LACC_UPDATE"):
        rows[path.stem] = line
        TABLE.write_text(HEAD + "".join(rows[name] for name in sorted(rows)), encoding="utf-8")
    assert without_numbers(rows[path.stem]) == without_numbers(line)


def test_every_example_has_its_row() -> None:
    assert set(committed()) == {path.stem for path in EXAMPLES}
