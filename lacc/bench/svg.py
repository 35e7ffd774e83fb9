"""Series of points go in, a plot comes out as SVG text: axes with round ticks, linear or log, lines
with error bars, labels at the ends of lines that do not overlap.

Colours are classes (`STYLE`), so that a plot is light or dark with what shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 74, 216, 44, 52
LABEL_HEIGHT = 15

LIGHT = ("#1d5fd1", "#0a8f5b", "#c2570c", "#b3246b", "#6d3fc4", "#0e7c93", "#8a6d00", "#5b6675")
DARK = ("#79a8ff", "#3ecf8e", "#ff9d4d", "#ff7ab6", "#b79aff", "#4fd0e6", "#e3c23c", "#a7b1bf")


def _colours(colours: Sequence[str], ink: str, soft: str, grid: str, paper: str) -> str:
    each = "".join(f".c{n}{{stroke:{c};fill:none}}.f{n}{{fill:{c}}}" for n, c in enumerate(colours))
    return (
        f".paper{{fill:{paper}}}.ink{{fill:{ink}}}.soft{{fill:{soft}}}.grid{{stroke:{grid}}}"
        f".axis{{stroke:{soft}}}.floor{{stroke:{soft};fill:none}}.halo{{stroke:{paper}}}{each}"
    )


STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    + _colours(LIGHT, "#1c2430", "#66707f", "#e4e8ee", "#ffffff")
    + "@media (prefers-color-scheme:dark){"
    + _colours(DARK, "#e8ecf2", "#98a2b3", "#2b3340", "#151a21")
    + "}"
)


@dataclass(frozen=True)
class Point:
    """A value at x, and the interval that it lies in."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points under a name. ``colour`` is a number, of which eight are told apart; ``dashed``: a
    limit, not a measurement; ``line``: whether points are joined; ``mark`` is circle, square,
    diamond, triangle, down or none ("")."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0
    dashed: bool = False
    line: bool = True
    mark: str = "circle"
    strong: bool = False


@dataclass(frozen=True)
class Plot:
    """What is drawn. ``linear`` names the axes that are no log scales ("x", "y" or "xy"), ``span``
    is what the y axis shows. ``level`` is a horizontal line with a label, ``notes`` are texts at
    points that are circled, ``texts`` stand below and right of a place."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    level: tuple[float, str] | None = None
    notes: tuple[tuple[float, float, str], ...] = ()
    ticks: tuple[float, ...] = ()
    texts: tuple[tuple[float, float, str], ...] = ()
    linear: str = ""
    span: tuple[float, float] | None = None


@dataclass
class _Axis:
    """A scale from values to pixels, with its ticks (``given`` ones, else round numbers)."""

    low: float
    high: float
    start: float
    end: float
    given: tuple[float, ...] = ()
    linear: bool = False
    ticks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.given:
            self.ticks = [t for t in self.given if self.low <= t <= self.high]
            return
        if self.linear:
            self.ticks = self._evenly()
            return
        decades = math.log10(self.high / self.low)
        steps = (1, 2, 5) if decades < 2.6 else (1, 3) if decades < 4 else (1,)
        for power in range(math.floor(math.log10(self.low)), math.floor(math.log10(self.high)) + 1):
            for step in steps:
                if self.low * 0.999 <= (tick := step * 10.0**power) <= self.high * 1.001:
                    self.ticks.append(tick)
        if len(self.ticks) < 3:
            self.ticks = self._evenly()

    def _evenly(self) -> list[float]:
        """Round numbers that are equally far apart."""
        rough = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(n * step, 12) for n in range(first, last + 1)]

    def at(self, value: float) -> float:
        if self.linear:
            part = (value - self.low) / (self.high - self.low)
        else:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def number(value: float) -> str:
    """``2048``, ``0.05``, ``1.2k``: short, for a tick."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


def drawn(plot: Plot) -> str:
    """The plot, with its style: a file, or an element of a page."""
    points = [p for s in plot.series for p in s.points]
    ys = [v for p in points for v in (p.y, p.low, p.high) if v]
    ys += [plot.level[0]] if plot.level else []
    xs = [p.x for p in points]
    x_axis = _axis(xs, LEFT, WIDTH - RIGHT, plot.ticks, linear="x" in plot.linear)
    y_axis = _axis(plot.span or ys, HEIGHT - BOTTOM, TOP, linear="y" in plot.linear)
    body = [_frame(plot, x_axis, y_axis)]
    if plot.level:
        body.append(_level(plot.level, y_axis))
    body += [_drawn(series, x_axis, y_axis) for series in plot.series]
    body.append(_labels(plot.series, x_axis, y_axis))
    for n, (x, y, text) in enumerate(plot.notes):
        at, height = x_axis.at(x), y_axis.at(y)
        side, away = ("end", -10) if n % 2 == 0 else ("start", 10)
        body.append(
            _text(
                at + away,
                height + (away * 1.2 if n % 2 == 0 else 18),
                text,
                "ink",
                over=True,
                anchor=side,
                bold=True,
            )
        )
        body.append(f'<circle class="c2" stroke-width="2" cx="{at:.1f}" cy="{height:.1f}" r="6"/>')
    for x, y, text in plot.texts:
        body.append(_text(x_axis.at(x) + 6, y_axis.at(y) + 18, text, "soft", over=True))
    return _svg(WIDTH, HEIGHT, plot.title, "".join(body))


def _svg(width: float, height: float, title: str, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>"
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>{body}</svg>'
    )


def _axis(
    values: Sequence[float],
    start: float,
    end: float,
    ticks: tuple[float, ...] = (),
    linear: bool = False,
) -> _Axis:
    low, high = min(values), max(values)
    if linear:
        rest = 0.04 * (high - low) or abs(high) or 1.0
        return _Axis(low - rest, high + rest, start, end, ticks, True)
    room = max((high / low) ** 0.06, 1.12)
    return _Axis(low / room, high * room, start, end, ticks)


def _frame(plot: Plot, x_axis: _Axis, y_axis: _Axis) -> str:
    """Title, grid, ticks and what the axes show."""
    found = [_text(LEFT - 58, 22, plot.title, "ink", size=15, bold=True)]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        found.append(_line(LEFT, y, right, y, "grid"))
        found.append(_text(LEFT - 8, y + 4, number(tick), "soft", anchor="end"))
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        found.append(_line(x, TOP, x, bottom, "grid"))
        found.append(_text(x, bottom + 18, number(tick), "soft", anchor="middle"))
    found.append(_line(LEFT, bottom, right, bottom, "axis"))
    found.append(_text((LEFT + right) / 2, HEIGHT - 12, plot.x, "soft", anchor="middle"))
    middle = (TOP + bottom) / 2
    found.append(
        f'<text class="soft" font-size="12" text-anchor="middle" '
        f'transform="translate(18 {middle:.0f}) rotate(-90)">{escape(plot.y)}</text>'
    )
    return "".join(found)


def _level(level: tuple[float, str], y_axis: _Axis) -> str:
    y = y_axis.at(level[0])
    line = _line(LEFT, y, WIDTH - RIGHT, y, "axis", dashed=True)
    return line + _text(WIDTH - RIGHT - 6, y - 6, level[1], "soft", anchor="end")


def _drawn(series: Series, x_axis: _Axis, y_axis: _Axis) -> str:
    """The line, error bars and marks of a series."""
    placed = [(x_axis.at(p.x), y_axis.at(p.y)) for p in series.points]
    found = []
    if series.line and len(placed) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        style = "floor" if series.dashed else stroke(series.colour)
        dash = ' stroke-dasharray="6 5"' if series.dashed else ""
        width = 3 if series.strong else 1.8
        found.append(
            f'<polyline class="{style}" stroke-width="{width}" stroke-linejoin="round"{dash} '
            f'points="{path}"/>'
        )
    for point, (x, y) in zip(series.points, placed):
        if point.low and point.high and not series.dashed:
            low, high = y_axis.at(point.low), y_axis.at(point.high)
            found.append(
                f'<path class="{stroke(series.colour)}" stroke-width="1.4" d="M{x:.1f} {low:.1f}'
                f'V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"/>'
            )
        if series.mark and not series.dashed:
            found.append(mark(series.mark, x, y, series.colour, 4.6 if series.strong else 3.6))
    return "".join(found)


def stroke(colour: int) -> str:
    """The class of lines in a colour."""
    return f"c{colour % len(LIGHT)}"


def fill(colour: int) -> str:
    """The class of what is filled with a colour."""
    return f"f{colour % len(LIGHT)}"


def mark(kind: str, x: float, y: float, colour: int, r: float) -> str:
    """A filled mark around a place."""
    if kind == "circle":
        return f'<circle class="{fill(colour)}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        "triangle": ((0, -1.3), (1.25, 1), (-1.25, 1)),
        "down": ((0, 1.3), (1.25, -1), (-1.25, -1)),
    }[kind]
    path = " ".join(f"{x + r * dx:.1f},{y + r * dy:.1f}" for dx, dy in corners)
    return f'<polygon class="{fill(colour)}" points="{path}"/>'


def _labels(series: Sequence[Series], x_axis: _Axis, y_axis: _Axis) -> str:
    """Names at the ends of lines, moved apart where they would overlap."""
    named = [s for s in series if s.name and s.points]
    ends = sorted(((y_axis.at(s.points[-1].y), s) for s in named), key=lambda end: end[0])
    places = spread([y for y, _ in ends], LABEL_HEIGHT, TOP + 4, HEIGHT - BOTTOM - 2)
    found = []
    for place, (y, s) in zip(places, ends):
        x = x_axis.at(s.points[-1].x)
        start = WIDTH - RIGHT + 8
        if s.line:
            style = "floor" if s.dashed else stroke(s.colour)
            bend = f"M{x + 6:.1f} {y:.1f}L{start:.1f} {y:.1f}L{start + 14:.1f} {place:.1f}"
            found.append(f'<path class="{style}" stroke-width="0.8" opacity="0.7" d="{bend}"/>')
        else:
            found.append(mark(s.mark, start + 10, place, s.colour, 4))
        style = "soft" if s.dashed else fill(s.colour)
        found.append(_text(start + 18, place + 4, s.name, style, bold=s.strong))
    return "".join(found)


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places in ascending order, ``apart`` at least, each near where it is wanted."""
    places = list(wanted)
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + apart)
    over = places[-1] - high if places else 0.0
    if over > 0:
        places[-1] -= over
        for n in range(len(places) - 2, -1, -1):
            places[n] = min(places[n], places[n + 1] - apart)
    return [max(place, low) for place in places] if len(places) == 1 else places


def _line(x: float, y: float, x2: float, y2: float, style: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="3 4"' if dashed else ""
    return (
        f'<line class="{style}" stroke-width="1"{dash} x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" '
        f'y2="{y2:.1f}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    style: str,
    *,
    size: int = 12,
    anchor: str = "start",
    bold: bool = False,
    over: bool = False,
) -> str:
    """A text; ``over``: with a rim that keeps lines below it away."""
    weight = ' font-weight="600"' if bold else ""
    rest = (
        f'font-size="{size}" text-anchor="{anchor}"{weight} x="{x:.1f}" y="{y:.1f}">'
        f"{escape(text)}</text>"
    )
    around = f'<text class="halo" stroke-width="4" fill="none" {rest}' if over else ""
    return f'{around}<text class="{style}" {rest}'


ROW, NAMES = 26, 150
"""The height of a row of `dots`, and the width of its names."""


@dataclass(frozen=True)
class Row:
    """A row of `dots`: a name, and (value, who, colour, mark) of each dot."""

    name: str
    dots: tuple[tuple[float, str, int, str], ...]


def dots(title: str, x: str, rows: Sequence[Row]) -> str:
    """A row of dots for each name, on one log scale; who each dot is stands in a legend below."""
    legend = {who: (colour, kind) for row in rows for _, who, colour, kind in row.dots}
    columns = 3
    lines = -(-len(legend) // columns)
    bottom = TOP + 4 + ROW * len(rows)
    height = bottom + 56 + 20 * lines
    axis = _axis([value for row in rows for value, *_ in row.dots], NAMES + 20, WIDTH - 24)
    body = [_text(16, 22, title, "ink", size=15, bold=True)]
    for tick in axis.ticks:
        at = axis.at(tick)
        body.append(_line(at, TOP, at, bottom, "grid"))
        body.append(_text(at, bottom + 16, number(tick), "soft", anchor="middle"))
    for n, row in enumerate(rows):
        y = TOP + 4 + ROW * (n + 0.5)
        values = [value for value, *_ in row.dots]
        body.append(_text(NAMES + 8, y + 4, row.name, "ink", anchor="end"))
        body.append(_line(axis.at(min(values)), y, axis.at(max(values)), y, "axis"))
        for value, _who, colour, kind in reversed(row.dots):
            body.append(mark(kind, axis.at(value), y, colour, 5.5 if kind == "diamond" else 4.6))
    body.append(_text((NAMES + WIDTH) / 2, bottom + 34, x, "soft", anchor="middle"))
    for n, (who, (colour, kind)) in enumerate(legend.items()):
        at = 24 + (n % columns) * (WIDTH - 40) / columns
        y = bottom + 58 + 20 * (n // columns)
        body.append(mark(kind, at, y - 4, colour, 4.6))
        body.append(_text(at + 12, y, who, "ink", bold=kind == "diamond"))
    return _svg(WIDTH, height, title, "".join(body))
