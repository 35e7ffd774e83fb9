"""A record goes in, one HTML page that needs nothing else comes out: plots, tables, the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from lacc.bench import stats, svg
from lacc.bench.record import HEADER, Entry, Measured, Record, cells
from lacc.bench.svg import Plot, Point, Row, Series

MARKS = {"forward": "circle", "train": "square", "decode": "triangle", "cold": "diamond"}


def html(record: Record) -> str:
    """The page."""
    return rendered(
        "bench.html.j2",
        record=record,
        plots=list(plots(record)),
        tables=[_table(case) for case in record.cases],
        header=HEADER,
        rates=[_rate(threads, found) for threads, found in record.rates.items()],
    )


def rendered(template: str, **values: Any) -> str:
    """A page of the package's templates, its values escaped unless they say that they are safe."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lacc.templates", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    return environment.get_template(template).render(**values)


def plots(record: Record) -> Iterator[str]:
    """Every plot that the record has the numbers for."""
    colours = _colours(record)
    if len({case.spec for case in record.cases}) > 1:
        yield from summaries(record)
    else:
        for cases in _groups(record):
            yield from _of_group(cases, colours)
    if (roof := roofline(record, colours)) is not None:
        yield svg.drawn(roof)


def _of_group(cases: Sequence[Measured], colours: dict[str, int]) -> Iterator[str]:
    """Those over T, of one mode."""
    if len(cases) < 2:
        return
    mode = cases[0].mode
    lengths = tuple(float(case.shape["T"]) for case in cases)
    of = f"{cases[0].spec}, {mode}"
    before = "tokens before" if mode in ("decode", "cold") else "tokens T"
    times = _series(cases, colours, _time)
    least = [(c.shape["T"], c.floor_seconds) for c in cases]
    floor = tuple(Point(T, s * 1e3) for T, s in least if s)
    if floor:
        times.append(Series("floor", floor, dashed=True))
    if times:
        yield svg.drawn(Plot(f"Time of a call: {of}", before, "ms", tuple(times), ticks=lengths))
    memory = _series(cases, colours, _memory)
    if memory:
        title = f"Memory of a call beyond its arguments: {of}"
        yield svg.drawn(Plot(title, before, "MiB", tuple(memory), ticks=lengths))
    if (crossed := crossover(cases, colours, of, before)) is not None:
        yield svg.drawn(crossed)


def _time(case: Measured, entry: Entry) -> Point | None:
    if not entry.samples:
        return None
    middle = stats.median(entry.samples)
    return Point(case.shape["T"], middle.value * 1e3, middle.low * 1e3, middle.high * 1e3)


def _memory(case: Measured, entry: Entry) -> Point | None:
    if not entry.samples or not entry.memory:
        return None
    return Point(case.shape["T"], entry.memory / 2**20)


def _series(cases: Sequence[Measured], colours: dict[str, int], point: Any) -> list[Series]:
    found: dict[str, list[Point]] = {}
    ours = set()
    for case in cases:
        for entry in case.entries:
            at = point(case, entry)
            if at is not None:
                found.setdefault(entry.who, []).append(at)
            if entry.ours:
                ours.add(entry.who)
    return [
        Series(who, tuple(points), colours[who], mark=_mark(colours[who]), strong=who in ours)
        for who, points in found.items()
    ]


def crossover(
    cases: Sequence[Measured], colours: dict[str, int], of: str, before: str
) -> Plot | None:
    """How many times as long as ours the contestants take that one would use instead; None where
    there are none."""
    found: dict[tuple[str, str], list[Point]] = {}
    for case in cases:
        timed = [e for e in case.entries if e.samples]
        for other in (e for e in timed if e.instead):
            for own in (e for e in timed if e.ours):
                r = stats.ratio(other.samples, own.samples)
                point = Point(case.shape["T"], r.value, r.low, r.high)
                found.setdefault((other.who, own.who), []).append(point)
    if not found:
        return None
    series, notes = [], []
    for (theirs, mine), points in found.items():
        name = f"{theirs} / {mine}"
        series.append(Series(name, tuple(points), colours[mine], strong=True))
        if (at := crossing(points)) is not None:
            notes.append((at, 1.0, f"T ≈ {at:.0f}"))
    ticks = tuple(float(case.shape["T"]) for case in cases)
    title = f"Softmax attention over ours: {of}"
    level = (1.0, "the same")
    return Plot(title, before, "times as long", tuple(series), level, tuple(notes), ticks)


def crossing(points: Sequence[Point]) -> float | None:
    """Where the line through points on log scales passes 1 upwards, for the last time."""
    for a, b in reversed(list(pairwise(points))):
        if a.y < 1 <= b.y:
            part = math.log(1 / a.y) / math.log(b.y / a.y)
            return float(a.x * (b.x / a.x) ** part)
    return None


def roofline(record: Record, colours: dict[str, int]) -> Plot | None:
    """Flops a second of each contestant (those that the floor counts) over flops a byte, at the
    largest T, under what the machine can do; None without rates."""
    rates = record.rates.get("1") or next(iter(record.rates.values()), None)
    found: dict[tuple[str, str], list[Point]] = {}
    for cases in _groups(record):
        case = cases[-1]
        if not case.floor.get("flops") or not case.floor.get("bytes"):
            continue
        intensity = case.floor["flops"] / case.floor["bytes"]
        for e in case.entries:
            if e.samples and not e.instead:
                speed = case.floor["flops"] / stats.median(e.samples).value / 1e9
                found.setdefault((e.who, case.mode), []).append(Point(intensity, speed))
    if rates is None or not found:
        return None
    xs = [p.x for points in found.values() for p in points]
    low, high = min(xs) / 30, max(max(xs) * 4, 40.0)
    peak = rates["flops"] / 1e9
    series, texts = [], []
    bandwidth = {int(size): rate / 1e9 for size, rate in rates["bandwidth"].items()}
    for size, where in ((min(bandwidth), "first cache"), (max(bandwidth), "memory")):
        rate = bandwidth[size]
        xs_ = [low, *([peak / rate] if low < peak / rate < high else []), high]
        roof = tuple(Point(x, min(peak, rate * x)) for x in xs_)
        series.append(Series("", roof, dashed=True))
        texts.append((low, min(peak, rate * low), f"{where}, {rate:.0f} GB/s"))
    for (who, mode), points_ in found.items():
        several = len({m for _, m in found}) > 1
        name = f"{who}, {mode}" if several else who
        series.append(Series(name, tuple(points_), colours[who], line=False, mark=MARKS[mode]))
    title = f"Roofline: {peak:.0f} GFLOP/s of multiply-adds"
    y = "GFLOP/s that the floor counts"
    return Plot(title, "flops a byte", y, tuple(series), texts=tuple(texts))


def summaries(record: Record) -> Iterator[str]:
    """For each mode and size a row of dots for every spec: times the floor."""
    colours = _colours(record)
    groups: dict[str, list[Measured]] = {}
    for case in record.cases:
        size = "×".join(str(n) for n in case.dims.values())
        where = f"{case.mode}, {size}, T = {case.shape['T']}, {case.dtype}"
        where += f", {case.threads} threads" if case.threads > 1 else ""
        groups.setdefault(where, []).append(case)
    for where, cases in groups.items():
        rows = []
        for case in cases:
            least = case.floor_seconds
            timed = [e for e in case.entries if e.samples and not e.instead]
            if not least or not timed:
                continue
            each = sorted((stats.median(e.samples).value / least, e) for e in timed)
            found = tuple(
                (
                    value,
                    e.who,
                    colours[e.who],
                    "diamond" if e.ours else _mark(colours[e.who]),
                )
                for value, e in each
            )
            rows.append(Row(case.spec, found))
        if rows:
            yield svg.dots(f"Times the floor: {where}", "times the floor (log scale)", rows)


def _groups(record: Record) -> list[list[Measured]]:
    """Cases that differ in T alone."""
    found: dict[tuple[Any, ...], list[Measured]] = {}
    for case in record.cases:
        sizes = tuple(sorted((n, v) for n, v in case.shape.items() if n != "T"))
        key = (case.spec, case.mode, sizes, tuple(case.dims.items()), case.dtype, case.threads)
        found.setdefault(key, []).append(case)
    return [sorted(cases, key=lambda c: c.shape["T"]) for cases in found.values()]


def _mark(n: int) -> str:
    """The mark of contestant ``n``: another one for each that has the same colour."""
    colours = len(svg.LIGHT)
    return ("circle", "square", "triangle", "down")[(n // colours + n % colours) % 4]


def _colours(record: Record) -> dict[str, int]:
    """A number for each contestant, ours first."""
    everybody = dict.fromkeys(
        e.who for own in (True, False) for c in record.cases for e in c.entries if e.ours is own
    )
    return {who: n for n, who in enumerate(everybody)}


def _table(case: Measured) -> dict[str, Any]:
    ratios = case.ratios()
    timed = sorted(
        (e for e in case.entries if e.samples), key=lambda e: stats.median(e.samples).value
    )
    least = case.floor_seconds
    return {
        "title": case.title,
        "floor": f"{least * 1e3:.4g} ms, by {case.bound}" if least else "",
        "rows": [(e.ours, cells(case, e, ratios)) for e in timed],
        "notes": [(e.who, e.why) for e in case.entries if e.why],
    }


def _rate(threads: str, found: dict[str, Any]) -> str:
    sizes = sorted((int(size), rate) for size, rate in found["bandwidth"].items())
    bandwidth = ", ".join(f"{n >> 10} KiB {rate / 1e9:.0f}" for n, rate in sizes)
    return (
        f"{threads} thread{'s' if threads != '1' else ''}: {found['flops'] / 1e9:.0f} GFLOP/s of "
        f"float32 multiply-adds, {found['exps'] / 1e9:.2f} G exps a second, GB/s read and written "
        f"by working set: {bandwidth}"
    )
