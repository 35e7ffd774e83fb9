"""Passes, kept rows and shapes of a spec in, entries of an emitted file's tables out, as code."""

from __future__ import annotations

from collections.abc import Mapping

from lacc.backends.base import call_code
from lacc.spec.shapes import ONE, Shape
from lacc.tile.attention_pass import AttentionPass, TokenRows


def rows_entry(rows: TokenRows) -> str:
    """Values of earlier tokens that a state keeps."""
    past = rows.past
    return f'Rows("{rows.source}", "{past.name}", {past.length}, {_quoted(past.state)})'


def attention_entry(p: AttentionPass, kind: str = "Attention", **functions: str) -> str:
    """An attention of class ``kind``; ``functions`` are what else it takes, by name."""
    return call_code(
        kind,
        {
            "query": _quoted(p.query),
            "keys": rows_entry(p.keys),
            "values": rows_entry(p.values),
            "sink": _quoted(p.sink),
            "output": _quoted(p.output),
            "window": p.window,
            **functions,
        },
    )


def unit_axes(shapes: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
    """Which axes of each array, counted from the last, are a literal 1."""
    found = {
        name: tuple(n - len(shape) for n, size in enumerate(shape) if size == ONE)
        for name, shape in shapes.items()
    }
    return {name: units for name, units in found.items() if units}


def _quoted(name: str | None) -> str:
    return "None" if name is None else f'"{name}"'
