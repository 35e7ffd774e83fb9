"""Two records go in; what became slower or faster from the first to the second comes out.

A change counts where the interval of the ratio of the medians leaves out 1: the rest is noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from lacc import report
from lacc.bench import stats
from lacc.bench.record import Record
from lacc.bench.stats import Estimate


@dataclass(frozen=True)
class Change:
    """A contestant in a case of both records: the second time over the first."""

    title: str
    who: str
    ours: bool
    before: float
    after: float
    ratio: Estimate

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, or nothing where it is within the noise."""
        if self.ratio.low > 1:
            return "slower"
        return "faster" if self.ratio.high < 1 else ""


def changes(before: Record, after: Record) -> list[Change]:
    """Every contestant that was timed in the same case of both."""
    first = {case.key: case for case in before.cases}
    found = []
    for case in after.cases:
        same = first.get(case.key)
        if same is None:
            continue
        old = {entry.who: entry for entry in same.entries if entry.samples}
        for entry in case.entries:
            if entry.samples and entry.who in old:
                had, has = old[entry.who].samples, entry.samples
                ratio = stats.ratio_apart(has, had)
                before_, after_ = stats.median(had).value, stats.median(has).value
                found.append(Change(case.title, entry.who, entry.ours, before_, after_, ratio))
    return found


def slower(found: list[Change], percent: float) -> list[Change]:
    """Those of ours that became slower by more than ``percent``, with all of the interval."""
    return [c for c in found if c.ours and c.ratio.low > 1 + percent / 100]


def text(found: list[Change]) -> str:
    """A table, by case."""
    titles = dict.fromkeys(change.title for change in found)
    parts = []
    for title in titles:
        rows = [
            (
                c.who,
                f"{c.before * 1e3:.4g}",
                f"{c.after * 1e3:.4g}",
                f"{c.ratio.value:.3f}",
                f"{c.ratio.low:.3f}-{c.ratio.high:.3f}",
                c.verdict,
            )
            for c in found
            if c.title == title
        ]
        header = ("who", "ms before", "ms after", "ratio", "95 %", "")
        parts.append(f"{title}\n{report.table(header, rows)}")
    return "\n\n".join(parts)
