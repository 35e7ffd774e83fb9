"""The whole matrix: every check on every mode of every example, with the table that it gives.

`pytest -m full` proves it again; `LACC_UPDATE=1 pytest -m full tests/test_matrix.py` writes the
tables of `tests/matrix/` anew. Errors differ from machine to machine, so a table is compared
without its numbers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT

from lacc import driver

TABLES = ROOT / "tests" / "matrix"


def without_numbers(table: str) -> list[str]:
    """Rows, columns and verdict of a table."""
    return [" ".join(re.sub(r"\d\S*", "0", line).split()) for line in table.splitlines()]


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_check_of_an_example(path: Path) -> None:
    report = driver.verify(path, "numpy", full=True)
    assert report.passed, str(report)
    table, text = TABLES / f"{path.stem}.txt", f"{report}\n"
    if os.environ.get("LACC_UPDATE"):
        table.parent.mkdir(exist_ok=True)
        table.write_text(text, "utf-8")
    assert without_numbers(table.read_text("utf-8")) == without_numbers(text)


def test_every_example_has_its_table() -> None:
    assert {p.stem for p in TABLES.glob("*.txt")} == {p.stem for p in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_example_grows_beyond_what_is_compared(path: Path) -> None:
    rows = (TABLES / f"{path.stem}.txt").read_text("utf-8").splitlines()
    compared = [row for row in rows if row.startswith(("lengths ", "initial state "))]
    assert len(compared) == 2
    for row in compared:
        assert "grows" not in row and re.search(r" / ", row), row
