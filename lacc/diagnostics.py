"""From a catalogue code and a place in a source comes a diagnostic: text that a user can act on.

The catalogue is `lacc/errors`: one page per code, read when the code is first needed. A page holds
the message, the help and the explanation, so that nobody formats a message elsewhere:

    raise LaccError([error("LA0301", span, left=left, right=right)])

A new code is a new page and a case in `tests/errors`.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

MAX_BYTES = 64 * 1024
"""Largest spec that is read; the longest of the published variants takes 2 kB."""

WIDTH = 96
"""Characters of a long line that an excerpt shows."""

TAB = 4
MAX_LINES = 4

CANDIDATES = 200
"""Names that are compared with one that is unknown: those of about its length."""

Paint = Callable[[str, str], str]


@dataclass(frozen=True, eq=False)
class Source:
    """A spec's text; ``name`` is what an error shows as its place: a path, or ``<spec>``."""

    name: str
    text: str = field(repr=False)

    @staticmethod
    def read(path: Path, name: str | None = None, limit: int = MAX_BYTES) -> Source:
        """The UTF-8 file at ``path``, of at most ``limit`` bytes.

        Raises LaccError where it is too large or not UTF-8, OSError where it cannot be read.
        """
        name = str(path) if name is None else name
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise LaccError([error("LA0102", None, what=name, limit=f"{limit} bytes")])
        try:
            return Source(name, data.decode())
        except UnicodeDecodeError as fault:
            good = Source(name, data[: fault.start].decode())
            here = Span(good, len(good.text), len(good.text))
            raise LaccError([error("LA0101", here, byte=f"0x{data[fault.start]:02x}")]) from None

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each line starts; lines end in LF, CRLF or CR."""
        return (0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", self.text)))

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1, columns in code points."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of line ``number`` (from 1), without its end."""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to ``end`` of ``source``, half open, counted in code points."""

    source: Source = field(repr=False)
    start: int
    end: int

    @property
    def text(self) -> str:
        """What stands there."""
        return self.source.text[self.start : self.end]

    @property
    def words(self) -> str:
        """What stands there, on one line."""
        return " ".join(self.text.split())

    def to(self, other: Span) -> Span:
        """From the start of this one to the end of ``other``."""
        return Span(self.source, self.start, max(self.end, other.end))

    def __str__(self) -> str:
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the catalogue: ``message`` and ``help`` are templates, ``page`` is Markdown."""

    code: str
    title: str
    message: str
    help: str
    page: str


@dataclass(frozen=True, slots=True)
class Note:
    """A second remark of a diagnostic, at a place of its own or at none."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One remark: ``severity`` is "error", "warning" or "note"; ``span`` is None where it has no
    place."""

    code: str
    severity: str
    message: str
    span: Span | None
    help: str | None = None
    notes: tuple[Note, ...] = ()

    def render(self, color: bool = False) -> str:
        """What a user sees: message, place, excerpt with carets, notes, help; no last newline."""
        paint = _paint if color else _plain
        head = paint(self.severity, f"{self.severity}[{self.code}]")
        out = [f"{head}{paint('bold', ': ' + _visible(self.message))}"]
        gutter = 1 if self.span is None else _gutter(self.span)
        if self.span is not None:
            out += _excerpt(self.span, gutter, "^", self.severity, paint)
        for note in self.notes:
            if note.span is None:
                out.append(" " * gutter + f" {paint('gutter', '=')} note: {_visible(note.message)}")
            else:
                out.append(f"{paint('bold', 'note')}: {_visible(note.message)}")
                out += _excerpt(note.span, _gutter(note.span), "-", "gutter", paint)
        if self.help:
            first, *rest = _visible(self.help).split("\n")
            out.append(" " * gutter + f" {paint('gutter', '=')} {paint('bold', 'help')}: {first}")
            out += [" " * (gutter + 9) + more for more in rest]
        return "\n".join(out)

    def __str__(self) -> str:
        return self.render()


class LaccError(Exception):
    """A spec, or a request, that cannot be served: every diagnostic of the run, warnings included.

    ``code`` is the first error's; ``str()`` is the rendered text.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        errors = [d for d in self.diagnostics if d.severity == "error"]
        self.code = (errors or self.diagnostics)[0].code
        super().__init__(self.code)

    def __str__(self) -> str:
        return render(self.diagnostics)


def error(
    code: str, span: Span | None, /, *, notes: Sequence[Note] = (), **values: object
) -> Diagnostic:
    """An error of the catalogue; ``values`` fill the templates of its message and help."""
    return _diagnostic("error", code, span, notes, values)


def warning(
    code: str, span: Span | None, /, *, notes: Sequence[Note] = (), **values: object
) -> Diagnostic:
    """A warning of the catalogue; ``values`` fill the templates of its message and help."""
    return _diagnostic("warning", code, span, notes, values)


def note(
    code: str, span: Span | None, /, *, notes: Sequence[Note] = (), **values: object
) -> Diagnostic:
    """A note of the catalogue; ``values`` fill the templates of its message and help."""
    return _diagnostic("note", code, span, notes, values)


def _diagnostic(
    severity: str, code: str, span: Span | None, notes: Sequence[Note], values: dict[str, object]
) -> Diagnostic:
    row = entry(code)
    help = row.help.format(**values)
    return Diagnostic(
        code, severity, row.message.format(**values), span, help or None, tuple(notes)
    )


def render(diagnostics: Iterable[Diagnostic], color: bool = False) -> str:
    """All of them, a blank line between two."""
    return "\n\n".join(diagnostic.render(color) for diagnostic in diagnostics)


def suggest(name: str, known: Iterable[str]) -> str:
    """``did you mean `beta`?`` where something close to ``name`` is ``known``, else nothing."""
    known = sorted(set(known) - {name}, key=lambda other: (abs(len(other) - len(name)), other))
    same = [other for other in known if other.casefold() == name.casefold()]
    known = known[:CANDIDATES]
    close = same or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


@cache
def entry(code: str) -> Entry:
    """The row of ``code``. Raises KeyError where the catalogue has none."""
    page = files("lacc.errors") / f"{code}.md"
    if not re.fullmatch(r"LA\d{4}", code) or not page.is_file():
        raise KeyError(code)
    _, head, body = page.read_text(encoding="utf-8").split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    help = fields.get("help", "").replace("\\n", "\n")
    return Entry(code, fields["title"], fields["message"], help, body.strip())


def codes() -> list[str]:
    """Every code of the catalogue, in order."""
    pages = (item.name for item in files("lacc.errors").iterdir())
    return sorted(name.removesuffix(".md") for name in pages if name.endswith(".md"))


def explain(code: str) -> str:
    """The page of a code, as `lacc explain LA0301` prints it; KeyError where there is none."""
    row = entry(code)
    return f"{code}: {row.title}\n\n{row.page}\n"


# ---- rendering

_COLORS = {"error": "1;31", "warning": "1;33", "note": "1;36", "gutter": "1;34", "bold": "1"}


def _paint(style: str, text: str) -> str:
    return f"\x1b[{_COLORS[style]}m{text}\x1b[0m"


def _plain(style: str, text: str) -> str:
    return text


def _visible(text: str) -> str:
    """``text`` with what a terminal would act on replaced by a visible sign of the same width."""
    return "".join(map(_glyph, text))


def _glyph(char: str) -> str:
    if char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return char
    return chr(0x2400 + ord(char)) if ord(char) < 32 else "�"


def _cell(char: str, at: int) -> tuple[str, int]:
    """What a terminal gets for ``char`` in column ``at``, and how many columns that takes."""
    if char == "\t":
        width = TAB - at % TAB
        return " " * width, width
    if char == "\ufeff":
        return "", 0
    if unicodedata.category(char) in ("Mn", "Me"):
        return char, 0
    return _glyph(char), 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _gutter(span: Span) -> int:
    return len(str(_lines(span)[-1]))


def _lines(span: Span) -> range:
    first = span.source.position(span.start)[0]
    return range(first, span.source.position(max(span.start, span.end - 1))[0] + 1)


def _excerpt(span: Span, gutter: int, mark: str, style: str, paint: Paint) -> list[str]:
    """The place and its lines, each underlined where the span covers it; at most `MAX_LINES`."""
    lines = _lines(span)
    bar = paint("gutter", "|")
    out = [f"{' ' * gutter}{paint('gutter', '-->')} {_visible(str(span))}", f"{' ' * gutter} {bar}"]
    for number in lines[:MAX_LINES]:
        line, begin = span.source.line(number), span.source.starts[number - 1]
        indent = len(line) - len(line.lstrip()) if number != lines[0] else 0
        start = max(span.start - begin, indent)
        end = max(min(span.end - begin, len(line)), start + 1)
        shown, left, right = _window(line, start, end)
        out.append(f"{paint('gutter', f'{number:>{gutter}} |')} {shown}".rstrip())
        if line.strip() or number == lines[0]:
            out.append(f"{' ' * gutter} {bar} {' ' * left}{paint(style, mark * (right - left))}")
    if len(lines) > MAX_LINES:
        out.append(f"{' ' * gutter} {bar} …")
    return out


def _window(line: str, start: int, end: int) -> tuple[str, int, int]:
    """A line as a terminal shows it, and the columns of characters ``start`` to ``end`` in it."""
    if len(line) > WIDTH:
        cut = max(0, min(start - WIDTH // 4, len(line) - WIDTH))
        before, after = "…" if cut else "", "…" if cut + WIDTH < len(line) else ""
        line = before + line[cut : cut + WIDTH] + after
        start = start - cut + len(before)
        end = min(end - cut + len(before), len(line))
    shown, columns = "", [0]
    for char in line:
        cell, width = _cell(char, columns[-1])
        shown += cell
        columns.append(columns[-1] + width)
    columns += range(columns[-1] + 1, columns[-1] + 1 + max(0, end - len(line)))
    return shown, columns[start], max(columns[end], columns[start] + 1)
