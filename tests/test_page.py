"""Every example and every refused spec goes in; `examples/README.md` comes out, and is up to date.

`LACC_UPDATE=1 pytest tests/test_page.py` writes the page, and measures what is new on it; with
`-m full` it measures everything anew. Errors differ from machine to machine, so those on the page
are held against their limits only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT
from test_examples import class_and_modes
from test_golden import CASES, SPELLINGS, errors, kernel

from lacc import driver
from lacc.diagnostics import LaccError, render
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify
from lacc.verify.subject import EXACT

PAGE = ROOT / "examples" / "README.md"
REFUSED = sorted((ROOT / "tests" / "refused").glob("*.la"))
NOTHING = "–"
GRADIENTS = 1e-8
"""The widest tolerance of golden data."""

HEAD = """# Examples

A file for each variant, in the words of its paper. `lacc check -v FILE` says more about any of
them.

- **class**: what the compiler makes of each recurrence. The names of variants play no part in it.
- **modes**: how the NumPy target runs it; where it has none, only the target `reference` does.
- **error**: of the NumPy kernel in float64 against the recurrence itself, token by token. The worst
  of all modes, outputs, final states and gradients, with and without an initial state.
- **others**: the same against numbers of other people's code, where `tests/golden/` has them.

`LACC_UPDATE=1 pytest tests/test_page.py` writes this page, and the test suite keeps it up to date.

| file | variant | class | modes | error | others |
|---|---|---|---|---|---|
"""

REFUSALS = """
## What cannot be expressed

A variant that the language has no words for is refused; nothing else is computed in its place. Here
is an attempt at each, what the compiler says to it, and what is missing. Networks trained as they
read, those of TTT and Titans, are not among them: [ttt_mlp](ttt_mlp.la) runs token by token.
"""

Numbers = dict[str, tuple[str, str]]
"""The last two cells of an example's row."""


def row(path: Path) -> list[str]:
    """The cells of an example that are the same on every machine."""
    doc = " ".join(driver.load(path).doc.split())
    title, *_ = re.split(r"[.:;] ", doc)
    papers = dict.fromkeys(re.findall(r"arXiv:([\d.]+\d)", doc))
    links = ", ".join(f"[{paper}](https://arxiv.org/abs/{paper})" for paper in papers)
    analysed = (found or NOTHING for found in class_and_modes(path))
    return [f"[{path.stem}]({path.name})", f"{title}. {links}", *analysed]


def measured(path: Path) -> tuple[str, str]:
    """The worst errors of an example against the reference and against golden data."""
    return _number(_against_the_reference(path)), _number(_against_others(path))


def _against_the_reference(path: Path) -> Iterator[float]:
    """The error of each mode, within the limit."""
    try:
        compiled = driver.compile(path, "numpy")
    except LaccError:
        return
    checks = {name: CHECKS[name] for name in ("lengths", "initial state")}
    report = verify(driver.compile(path, "reference"), [compiled], checks=checks)
    assert report.passed, str(report)
    yield from (c.worst.error for c in report.cells.values() if c.worst is not None)


def _against_others(path: Path) -> Iterator[float]:
    """The error of each quantity in each mode, within the tolerance of its case."""
    for case, about in CASES.items():
        if ROOT / SPELLINGS[about["variant"]].path != path:
            continue
        try:
            run = kernel(about["variant"], "numpy")
        except LaccError:
            run = kernel(about["variant"], "reference")
        for mode in run.modes:
            for what, error, tolerance in errors(run, mode, case):
                assert error <= tolerance, f"{case}, {mode}: {what}"
                yield error


def _number(found: Iterator[float]) -> str:
    worst = max(found, default=None)
    return NOTHING if worst is None else f"{worst:.0e}" if worst else "0"


def refusal(path: Path) -> str:
    """A spec, what it is and what it lacks, and what the compiler says to it."""
    lines = path.read_text("utf-8").splitlines()
    doc = [line.removeprefix("##").strip() for line in lines if line.startswith("##")]
    spec = "\n".join(lines[len(doc) :])
    about = " ".join(doc).replace(" Missing:", "\n\nMissing:")
    with pytest.raises(LaccError) as caught:
        driver.load(path.name)
    said = render(caught.value.diagnostics)
    return f"\n### {path.stem}\n\n{about}\n\n```la\n{spec}\n```\n\n```text\n{said}\n```\n"


def page(numbers: Numbers) -> str:
    """The whole page; ``numbers`` by name of the example."""
    rows = ("| " + " | ".join([*row(p), *numbers[p.stem]]) + " |\n" for p in EXAMPLES)
    return HEAD + "".join(rows) + REFUSALS + "".join(map(refusal, REFUSED))


def numbers_of(text: str) -> Numbers:
    """The numbers that a page has."""
    rows = re.findall(r"^\| \[(\w+)\].* \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
    return {name: (ours, others) for name, ours, others in rows}


def test_the_page_of_examples_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests" / "refused")
    numbers = numbers_of(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    if os.environ.get("LACC_UPDATE"):
        numbers |= {p.stem: measured(p) for p in EXAMPLES if p.stem not in numbers}
        PAGE.write_text(page(numbers), "utf-8")
    assert numbers.keys() >= {p.stem for p in EXAMPLES}
    assert PAGE.read_text("utf-8") == page(numbers)


def test_the_numbers_of_the_page_are_within_their_limits() -> None:
    for name, found in numbers_of(PAGE.read_text("utf-8")).items():
        for number, limit in zip(found, (EXACT, GRADIENTS)):
            assert number == NOTHING or float(number) <= limit, name


@pytest.mark.full
def test_the_numbers_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests" / "refused")
    numbers = {path.stem: measured(path) for path in EXAMPLES}
    if os.environ.get("LACC_UPDATE"):
        PAGE.write_text(page(numbers), "utf-8")
    known = numbers_of(PAGE.read_text("utf-8"))
    assert {n: _there(x) for n, x in numbers.items()} == {n: _there(x) for n, x in known.items()}


def _there(found: tuple[str, str]) -> list[bool]:
    return [number != NOTHING for number in found]
