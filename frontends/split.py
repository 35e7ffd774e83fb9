"""From the text of a spec come its statements, with their documentation, and its `# expect` lines.

A newline ends a statement, except inside brackets, before an infix operator, and after an infix
operator, `=` or `,`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lacc.diagnostics import Diagnostic, Note, Source, Span, error

MAX_DEPTH = 200
"""Deepest nesting of an expression, in brackets or in operators."""

MAX_LENGTH = 10_000
"""Most characters of a statement."""

MAX_NAME = 80
"""Most characters of a name."""

NAME = r"[^\W\dᵀ](?:[^\Wᵀ]|[\u0300-\u036f\u20d0-\u20ff])*"
ROLES = "use|dim|const|input|param|buffer|state|output|feature|gate|normalizer"

_TOKEN = re.compile(
    r"(?P<newline>\r\n|\n|\r)|(?P<blank>[^\S\r\n]+)|(?P<comment>#[^\r\n]*)"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<infix>\*\*|<=|>=|==|[-+*/@⊙<>])|(?P<comma>,)|(?P<equal>=)"
    rf"|(?P<word>{NAME})|(?P<other>.)",
    re.DOTALL,
)
_EXPECT = re.compile(rf"#\s*expect\s+({NAME}(?:\[[^\]]*\])?)\s*:\s*(.*)")
_STATEMENT = re.compile(rf"(?:variant|{ROLES})[^\S\r\n]+{NAME}")
_EQUATION = re.compile(rf"{NAME}(?:[^\S\r\n]*\[[^\]\r\n]*\])?[^\S\r\n]*=(?!=)")


@dataclass(slots=True)
class Piece:
    """One statement: where it stands, its documentation, and what is wrong with its brackets."""

    span: Span
    docs: list[str] = field(default_factory=list)
    problem: Diagnostic | None = None

    @property
    def doc(self) -> str:
        """The documentation, one line for each comment."""
        return "\n".join(self.docs)


def split(source: Source) -> tuple[list[Piece], list[tuple[str, str]]]:
    """The statements of ``source`` and its expectations, (KEY, VALUE) in order."""
    pieces: list[Piece] = []
    expects: list[tuple[str, str]] = []
    docs: list[str] = []
    brackets: list[Span] = []
    current: Piece | None = None
    last = ""  # the kind of the last token of the current statement
    fresh = True  # no token on this line yet

    for found in _TOKEN.finditer(source.text, 1 if source.text.startswith("\ufeff") else 0):
        kind, text = str(found.lastgroup), found[0]
        span = Span(source, found.start(), found.end())
        if kind == "newline":
            fresh = True
        elif kind == "comment":
            if expect := _EXPECT.fullmatch(text.rstrip()):
                expects.append((expect[1], expect[2]))
            elif re.match("##(?!#)", text):
                (docs if fresh or current is None else current.docs).append(text[2:].strip())
        elif kind != "blank":
            if fresh and current is not None and _ends(source.text, found, last, brackets):
                if brackets:
                    current.problem = current.problem or _unclosed(brackets[-1])
                    brackets = []
                current = None
            if current is None:
                current = Piece(span)
                pieces.append(current)
            current.docs += docs
            current.span = current.span.to(span)
            docs, last, fresh = [], kind, False
            if kind == "word" and len(text) > MAX_NAME:
                what, limit = "a name", f"{MAX_NAME} letters"
                current.problem = current.problem or error("LA0102", span, what=what, limit=limit)
            elif kind == "open":
                brackets.append(span)
                if len(brackets) > MAX_DEPTH and current.problem is None:
                    current.problem = error("LA0107", span, limit=MAX_DEPTH)
            elif kind == "close":
                opened = brackets.pop() if brackets else None
                if opened is None or opened.text + text not in ("()", "[]"):
                    current.problem = current.problem or _mismatch(span, opened)
    if current is not None and brackets:
        current.problem = current.problem or _unclosed(brackets[-1])
    for piece in pieces:
        if piece.span.end - piece.span.start > MAX_LENGTH:
            what, limit = "a statement", f"{MAX_LENGTH} characters"
            piece.problem = error("LA0102", piece.span, what=what, limit=limit)
    return pieces, expects


def _ends(text: str, found: re.Match[str], last: str, brackets: list[Span]) -> bool:
    """Whether the statement before ends where this first token of a line begins.

    Inside brackets and after an operator it does not, unless a new statement evidently starts:
    then something was left open.
    """
    if _STATEMENT.match(text, found.start()):
        return True
    if found.lastgroup == "infix":
        return False
    equation = _EQUATION.match(text, found.start()) is not None
    if brackets:  # there, `NAME =` may be a keyword argument
        return equation and last not in ("open", "comma")
    return equation if last in ("infix", "equal") else last != "comma"


def _unclosed(opened: Span) -> Diagnostic:
    close = ")" if opened.text == "(" else "]"
    return error("LA0105", opened, bracket=opened.text, close=close)


def _mismatch(close: Span, opened: Span | None) -> Diagnostic:
    if opened is None:
        return error("LA0106", close, bracket=close.text, hint="remove it")
    note = Note(f"`{opened.text}` is open", opened)
    fitting = ")" if opened.text == "(" else "]"
    return error("LA0106", close, notes=[note], bracket=close.text, hint=f"write `{fitting}`")
