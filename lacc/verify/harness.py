"""Kernels of a spec and its reference go in; a report of every check on every mode comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lacc.runtime.kernel import Kernel
from lacc.verify.cases import SCALE, Bench, Scale
from lacc.verify.checks import CHECKS, Check
from lacc.verify.report import Cell, Report
from lacc.verify.subject import CALL, Finding, Guarded, KernelFault, Subject

Progress = Callable[[int, int, str], None]


def verify(
    reference: Kernel,
    kernels: Sequence[Kernel],
    *,
    full: bool = False,
    progress: Progress | None = None,
    checks: Mapping[str, Check] = CHECKS,
    scale: Scale = SCALE,
    notes: tuple[str, ...] = (),
) -> Report:
    """Every check on every mode of ``kernels``, against ``reference``, all of one spec.

    ``full`` draws more, cases are as long as ``scale`` says, the report starts with ``notes``.
    ``progress`` is called with checks done, their number and the next one.
    """
    bench = Bench(reference.spec, reference, scale)
    subjects = {
        f"{kernel.target} {mode}": Subject(bench, Guarded(kernel), mode, full)
        for kernel in kernels
        for mode in (*kernel.modes, *(() if kernel.signature.no_step else ("step",)))
    }
    cells: dict[tuple[str, str], Cell] = {}
    total = len(checks) * len(subjects)
    for row, check in checks.items():
        for column, subject in subjects.items():
            if progress is not None:
                progress(len(cells), total, f"{row}, {column}")
            cells[row, column] = _cell(check, subject)
    absent = tuple(
        f"{kernel.target}: {why.message}" for kernel in kernels for why in kernel.missing.values()
    )
    said = (*notes, *absent, *_unchecked(checks, tuple(subjects), cells))
    return Report(reference.spec.name, tuple(checks), tuple(subjects), cells, said)


UNCHECKED = {
    "bounds": "no argument promises a bound, so that all are drawn from N(0, 1), gates too",
    "strong gates": "no argument promises a bound, so that all are drawn from N(0, 1), gates too",
    "weak gates": "no argument promises a bound, so that all are drawn from N(0, 1), gates too",
    "hard resets": "no input that is bounded above is read as exp(input) alone, as a log is; a "
    "gate in linear space is reset at its own bound, 0",
    "defaults": "no argument is optional",
}
"""Why a check may find nothing to do on any mode."""


def _unchecked(
    checks: Iterable[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Cell]
) -> Iterator[str]:
    """Why rows are empty."""
    why: dict[str, list[str]] = {}
    for row in checks:
        empty = all(cells[row, c].worst is None and not cells[row, c].growth for c in columns)
        if columns and empty and row in UNCHECKED:
            why.setdefault(UNCHECKED[row], []).append(row)
    for reason, rows in why.items():
        yield f"nothing to check in {', '.join(rows)}: {reason}"


def _cell(check: Check, subject: Subject) -> Cell:
    """All that a check found; what the kernel raises is a finding too."""
    findings: list[Finding] = []
    try:
        findings.extend(check(subject))
    except KernelFault as fault:
        findings.append(Finding(CALL, math.inf, 0.0, str(fault)))
    return Cell.of(findings)
