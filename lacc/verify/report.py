"""What the checks found goes in; a table comes out, and each failure with how to see it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lacc.verify.subject import CALL, Finding

LEGEND = "worst error of outputs, states and gradients / its limit; – where nothing is to check"


@dataclass(frozen=True)
class Cell:
    """One check on one mode: the finding nearest to (or furthest beyond) its limit, the failures,
    and how far the reference grew where it did."""

    worst: Finding | None
    failures: tuple[Finding, ...] = ()
    growth: float = 0.0

    @staticmethod
    def of(findings: Sequence[Finding]) -> Cell:
        """The cell of all findings of a check."""
        failures = tuple(f for f in findings if not f.passed)
        compared = [f for f in findings if not f.growth]
        worst = max(compared, key=_strain, default=None)
        return Cell(worst, failures, max((f.growth for f in findings), default=0.0))

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __str__(self) -> str:
        if self.worst is None:
            return "grows" if self.growth else "–"
        mark = "" if self.passed else "FAIL "
        if self.worst.quantity == CALL:
            return f"{mark}raises"
        if self.worst.limit == 0:
            return "exact" if self.passed else f"{mark}not exact"
        numbers = f"{_short(self.worst.error)} / {_short(self.worst.limit)}"
        return f"{mark}{numbers}{', grows' if self.growth else ''}"


def _short(x: float) -> str:
    return f"{x:.0e}" if x else "0"


def _strain(finding: Finding) -> float:
    if finding.limit == 0:
        return 0.0 if finding.error == 0 else float("inf")
    return finding.error / finding.limit


@dataclass(frozen=True)
class Report:
    """``cells`` by (check, mode of a target); each is the worst error and its limit.
    ``notes`` say what is not there to be checked."""

    spec: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed on every mode."""
        return all(cell.passed for cell in self.cells.values())

    @property
    def failures(self) -> tuple[str, ...]:
        """Each failed cell in one line: check, mode, quantity, error and the case to draw again."""
        lines = []
        for (row, column), cell in self.cells.items():
            for f in sorted(cell.failures, key=_strain, reverse=True)[:1]:
                more = f" (and {len(cell.failures) - 1} more)" if len(cell.failures) > 1 else ""
                off = f"{f.quantity} off by {f.error:.1e} against {f.limit:.1e} at {f.case}"
                lines.append(f"{row}, {column}: {f.case if f.quantity == CALL else off}{more}")
        return tuple(lines)

    @property
    def growths(self) -> tuple[str, ...]:
        """What was not compared, the reference being too large."""
        return tuple(
            f"{row}, {column}: the reference grows to {cell.growth:.0e}, which is not compared"
            for (row, column), cell in self.cells.items()
            if cell.growth
        )

    def __str__(self) -> str:
        body = [(row, *(str(self.cells[row, c]) for c in self.columns)) for row in self.rows]
        table = [(self.spec, *self.columns), *body]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths)).rstrip() for row in table]
        lines.insert(1, "  ".join("-" * w for w in widths))
        verdict = "every check passed" if self.passed else f"{len(self.failures)} checks failed"
        said = (*self.notes, *self.growths, verdict, *(f"  {line}" for line in self.failures))
        return "\n".join([*lines, LEGEND, "", *said])
