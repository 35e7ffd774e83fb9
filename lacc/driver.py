"""The whole pipeline on one screen: a spec's path or text goes in, a compiled kernel comes out.

    spec = load("gla.la", {"K": 64})
    kernel = compile(spec, target="numpy")

The only module that sees frontends and backends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lacc.diagnostics import Diagnostic, LaccError, Source
from lacc.frontends.la import parse
from lacc.spec.check import check

if TYPE_CHECKING:
    from lacc.spec.model import Spec
    from lacc.spec.syntax import File

Given = "str | os.PathLike[str] | File | Spec"


def load(
    spec: str | os.PathLike[str],
    overrides: Mapping[str, float] | None = None,
    warnings: list[Diagnostic] | None = None,
) -> Spec:
    """The checked spec of a path or of source text (a text has more than one line).

    Warnings are added to ``warnings``. Raises LaccError with every problem of the file, OSError where there is no file.
    """
    source = _source(spec)
    file, problems = parse(source)
    if file is None or any(p.severity == "error" for p in problems):
        problems += _checked_too(file, overrides)
        raise LaccError(problems)
    checked = check(file, overrides)
    if warnings is not None:
        warnings += problems + checked.warnings
    return checked.spec


def _checked_too(file: File | None, overrides: Mapping[str, float] | None) -> list[Diagnostic]:
    """What the checker finds in the statements that did parse."""
    if file is None:
        return []
    try:
        return check(file, overrides).warnings
    except LaccError as more:
        return list(more.diagnostics)


def _source(spec: str | os.PathLike[str]) -> Source:
    if isinstance(spec, str) and "\n" in spec:
        return Source("<spec>", spec)
    return Source.read(Path(spec))
