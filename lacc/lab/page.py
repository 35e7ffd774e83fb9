"""A record goes in, one HTML page that needs nothing else comes out: who learnt what."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lacc.bench import svg
from lacc.bench.page import rendered
from lacc.bench.svg import Plot, Point, Series
from lacc.lab.tasks import TASKS, Task
from lacc.lab.trials import HEADS, NARROW, SOLVED, Mean, Record, mean

MARKS = ("circle", "square", "diamond", "triangle")


def html(record: Record) -> str:
    """The page."""
    return rendered(
        "lab.html.j2",
        record=record,
        solved=SOLVED,
        given=[c.name for c in record.contestants if c.given],
        header=header(record),
        rows=rows(record),
        failures=[o for o in record.outcomes if o.failed],
        plots=list(filter(None, plots(record))),
        pictures=list(pictures(record)),
        about=[
            (TASKS[name].name, TASKS[name].about, _judged(TASKS[name])) for name in _tasks(record)
        ],
    )


def header(record: Record) -> list[str]:
    """Over the columns of `rows`."""
    units = ("bits" if TASKS[name].bits else "accuracy" for name in _tasks(record))
    return ["", *(f"{name}, {unit}" for name, unit in zip(_tasks(record), units)), "state"]


def rows(record: Record) -> list[tuple[bool, list[tuple[str, bool]]]]:
    """For each contestant whether it was asked about, and its cells: (text, whether it is best)."""
    found = []
    for contestant in record.contestants:
        cells = [(contestant.name, False)]
        for name in _tasks(record):
            values = {c.name: _reached(record, c.name, TASKS[name]) for c in record.contestants}
            mine = values[contestant.name]
            if mine is None:
                cells.append(("–", False))
                continue
            worth = [(-v.value if TASKS[name].bits else v.value) for v in values.values() if v]
            own = -mine.value if TASKS[name].bits else mine.value
            cells.append((str(mine), own == max(worth)))
        states = [o.state for o in record.outcomes if o.name == contestant.name]
        several = dict.fromkeys((min(states), max(states))) if states else ("–",)
        cells.append((" to ".join(map(str, several)), False))
        found.append((contestant.given, cells))
    return found


def _tasks(record: Record) -> tuple[str, ...]:
    return record.settings.tasks


def _judged(task: Task) -> str:
    if task.bits:
        return f"bits a byte on text that was held out, trained on {task.train} bytes"
    return f"accuracy at {task.train} tokens, as trained; guessing gives {task.chance:.3f}"


def _reached(record: Record, name: str, task: Task) -> Mean | None:
    """What a contestant reached at the length that it was trained on."""
    values = [o.reached[task.train] for o in record.of(name, task.name)]
    return mean(values) if values else None


def plots(record: Record) -> Iterator[str]:
    """Loss, accuracy against length and against state, steps, gradients."""
    for name in _tasks(record):
        task = TASKS[name]
        curves = [
            (n, [(o.every, o.losses) for o in record.of(c.name, name)])
            for n, c in enumerate(record.contestants)
        ]
        bits = 1 / math.log(2) if task.bits else 1
        series = (_curve(record, n, runs, bits) for n, runs in curves if runs)
        what = "loss, bits a byte" if task.bits else "loss, nats"
        yield _plot(f"{name}: {task.about}", "step", what, series, linear="xy")
        lengths = (_over_lengths(record, n, name) for n in range(len(record.contestants)))
        unit = "bits a byte" if task.bits else "accuracy"
        title = f"{name}: lengths beyond {task.train}, what was trained"
        yield _plot(title, "tokens", unit, lengths, linear="y", ticks=task.test, chance=task.chance)
    if "recall" in _tasks(record):
        states = (_over_states(record, n) for n in range(len(record.contestants)))
        title = "recall: accuracy against what a layer keeps of a sequence"
        chance = TASKS["recall"].chance
        yield _plot(title, "numbers", "accuracy", states, linear="y", chance=chance)
    steps = (
        _series(record, n, [Point(t, 1e6 * s) for t, s in record.decoding[c.name].items()])
        for n, c in enumerate(record.contestants)
        if c.name in record.decoding
    )
    yield _plot("one more token, after others (width 256, 4 heads)", "tokens before", "µs", steps)
    for name in dict.fromkeys((_tasks(record)[0], _tasks(record)[-1])):
        norms = (
            _curve(record, n, [(o.every, o.norms) for o in record.of(c.name, name)], 1)
            for n, c in enumerate(record.contestants)
            if record.of(c.name, name)
        )
        yield _plot(f"{name}: norm of the gradient", "step", "norm", norms, linear="x")


def _plot(
    title: str,
    x: str,
    y: str,
    series: Iterator[Series],
    linear: str = "",
    ticks: tuple[float, ...] = (),
    chance: float = 0,
) -> str:
    """``chance``: the accuracy of guessing, where y is one; "" where there is nothing to draw."""
    kept = tuple(s for s in series if s.points)
    if not kept:
        return ""
    level = (chance, "guessing") if chance else None
    span = (0.0, 1.0) if chance else None
    return svg.drawn(Plot(title, x, y, kept, level, ticks=ticks, linear=linear, span=span))


def _series(record: Record, n: int, points: Sequence[Point], marked: bool = True) -> Series:
    contestant = record.contestants[n]
    return Series(
        contestant.name,
        tuple(points),
        n % len(svg.LIGHT),
        mark=MARKS[n % len(MARKS)] if marked else "",
        strong=contestant.given,
    )


def _curve(record: Record, n: int, runs: Sequence[tuple[int, list[float]]], unit: float) -> Series:
    """The mean of all seeds at each step, those that ended as they were at their end."""
    every, most = runs[0][0], max(len(values) for _, values in runs)
    columns = zip(*([*values, *values[-1:] * (most - len(values))] for _, values in runs))
    points = [
        Point((i + 1) * every, unit * sum(column) / len(column)) for i, column in enumerate(columns)
    ]
    return _series(record, n, points, marked=False)


def _over_lengths(record: Record, n: int, name: str) -> Series:
    found = record.of(record.contestants[n].name, name)
    each = {t: mean([o.reached[t] for o in found]) for t in TASKS[name].test} if found else {}
    most = math.inf if TASKS[name].bits else 1.0
    return _series(record, n, [_point(t, m, most) for t, m in each.items()])


def _over_states(record: Record, n: int) -> Series:
    """From small states to large ones."""
    train = TASKS["recall"].train
    points = []
    for heads in (NARROW, HEADS):
        if found := record.of(record.contestants[n].name, "recall", heads):
            points.append(_point(found[0].state, mean([o.reached[train] for o in found]), 1.0))
    return _series(record, n, sorted(points, key=lambda p: p.x))


def _point(x: float, y: Mean, most: float) -> Point:
    """A mean and its interval, as far as values can be: above 0, up to ``most``."""
    half = y.half or 0.0
    return Point(x, y.value, max(y.value - half, 1e-6), min(y.value + half, most))


def pictures(record: Record) -> Iterator[tuple[str, str]]:
    """Name and image of what each trained contestant still remembers."""
    for outcome in record.outcomes:
        if outcome.influence:
            yield f"{outcome.name}, {outcome.task}", picture(outcome.influence)


def picture(influence: Sequence[Sequence[float]], scale: int = 6) -> str:
    """An image as a data address: a row a token, a column an earlier one, dark where its influence
    is as large as that of the token itself, on a log scale of three decades."""
    x = np.asarray(influence, float)
    largest = np.maximum(x.max(1, keepdims=True), 1e-30)
    strength = np.clip(1 + np.log10(np.maximum(x / largest, 1e-9)) / 3, 0, 1)
    strength[np.triu_indices(len(x), 1)] = 0
    low, high = np.array([245, 247, 250]), np.array([18, 52, 120])
    colours = (low + strength[..., None] * (high - low)).astype(np.uint8)
    return png(np.repeat(np.repeat(colours, scale, 0), scale, 1))


def png(pixels: np.ndarray[Any, Any]) -> str:
    """[rows, columns, 3] of bytes as the address of a PNG image."""
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def part(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = part(b"IHDR", head) + part(b"IDAT", zlib.compress(lines, 9)) + part(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
