"""Every spec shown in docs/ is a whole one: it checks without a word and its kernels agree."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

import lacc
from lacc.diagnostics import Diagnostic
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify

SHOWN = {
    re.search(r"^variant (\w+)", body, re.M)[1]: body  # type: ignore[index]
    for page in sorted((ROOT / "docs").glob("*.md"))
    for body in re.findall(r"^```la\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_spec_of_the_docs_is_fine(name: str) -> None:
    warnings: list[Diagnostic] = []
    lacc.load(SHOWN[name], warnings=warnings)
    assert not warnings


@pytest.mark.parametrize("name", SHOWN)
def test_a_spec_of_the_docs_compiles_to_what_it_means(name: str) -> None:
    some = {row: CHECKS[row] for row in ("lengths", "defaults")}
    truth = lacc.compile(SHOWN[name], target="reference")
    report = verify(truth, [lacc.compile(SHOWN[name])], checks=some)
    assert report.passed, str(report)
