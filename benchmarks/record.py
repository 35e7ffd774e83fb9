"""Samples and rows go in, medians, tables and files come out: what all benchmarks share."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
RESULTS = ROOT / "benchmarks" / "results"


def versions(*packages: str) -> dict[str, str]:
    """Of the packages, those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The processor's name, as the system tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def in_turns(
    functions: Mapping[str, Callable[[], Any]],
    sample: Callable[[str, Callable[[], Any]], float],
    rounds: int,
) -> dict[str, list[float]]:
    """Samples of each function, one a round, the functions taking turns."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(sample(name, function))
    return samples


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4)
    return low, middle, high


def ratios(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of the ratios of samples of the same round."""
    return quartiles([a / b for a, b in zip(over, under, strict=True)])


def geometric_mean(values: Iterable[float]) -> float:
    """Of at least one value."""
    return math.exp(statistics.fmean(map(math.log, values)))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, ending in a newline."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write(path: Path, text: str) -> None:
    """Puts a file into place as a whole: who reads it meanwhile sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
