"""A file that has been read goes in, its text laid out comes out: the same tokens and comments,
with their spaces, blank lines and columns put in order.

Nothing that a scientist decides is touched: brackets, how a number is written, where a long
equation breaks. A line that goes on stands below the `=` where it begins with an operator, and is
indented where it does not. Comments at the end of lines that follow one another share a column.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lacc.spec.names import ascii_spelling, nfkc
from lacc.spec.syntax import File

COLUMN = 38
"""Where the comment at the end of a line begins."""

FARTHEST = 60
"""Characters of a line beyond which the comments of its neighbours do not move with its own."""

INDENT = 4

_NAME = r"[^\W\dᵀ](?:[^\Wᵀ]|[\u0300-\u036f\u20d0-\u20ff])*"
_TOKEN = re.compile(
    r"(?P<newline>\r\n|\n|\r)|(?P<blank>[^\S\r\n]+|\ufeff)|(?P<comment>#[^\r\n]*)"
    r"|(?P<transpose>\.T(?![^\Wᵀ])|ᵀ)"
    r"|(?P<number>(?:[0-9]+(?:\.(?!T)[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    rf"|(?P<name>{_NAME})|(?P<infix>\*\*|<=|>=|==|[-+*/@⊙<>])|(?P<sign>.)",
    re.DOTALL,
)
_EXPECT = re.compile(r"#\s*expect\s")
_PLAIN = {"⊙": "*", "ᵀ": ".T"}
"""Signs that have an ASCII spelling."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


@dataclass(slots=True)
class _Line:
    """One line: its tokens, the comment after them, the statement that it is in (0: none) and
    whether it begins that."""

    tokens: list[_Token] = field(default_factory=list)
    comment: str = ""
    statement: int = 0
    begins: bool = False
    gap: bool = False


def arrange(file: File, names: Mapping[str, str] | None = None) -> str:
    """The text of ``file`` laid out: a fixed point, and it reads as an equal file.

    ``names`` (see `ascii_names`) gives names new spellings; signs are then ASCII, too. Comments
    keep their words; the names in an `# expect` line follow.
    """
    lines = list(_lines(file))
    texts = _statements(lines, names)
    columns = _columns(lines, texts)
    out: list[str] = []
    for number, line in enumerate(lines):
        text = texts[number]
        comment = _comment(line.comment, names)
        if line.gap and number:
            out.append("")
        if text and comment:
            text = f"{text:<{columns[number]}}{comment}"
        elif comment:
            text = " " * (INDENT if line.statement else 0) + comment
        out.append(text)
    return "\n".join(out) + "\n"


def ascii_names(file: File) -> dict[str, str]:
    """The names of a file that are not ASCII, each with its one ASCII spelling."""
    found = [nfkc(t.text) for t in _tokens(file) if t.kind == "name" and not t.text.isascii()]
    return {name: ascii_spelling(name) for name in found}


def written_names(file: File) -> list[str]:
    """Every name in a file, once, as it is compared."""
    return list(dict.fromkeys(nfkc(t.text) for t in _tokens(file) if t.kind == "name"))


def respelled(text: str, names: Mapping[str, str]) -> str:
    """``text`` with the names in it as ``names`` spells them."""
    return re.sub(_NAME, lambda found: names.get(nfkc(found[0]), found[0]), text)


def _tokens(file: File) -> Iterator[_Token]:
    for found in _TOKEN.finditer(file.source.text):
        yield _Token(str(found.lastgroup), found[0], found.start())


def _lines(file: File) -> Iterator[_Line]:
    """The lines that hold something; ``gap``: a blank line stays before it."""
    spans = sorted((s.span.start, s.span.end) for s in file.statements)
    head = file.source.text.rindex("variant", 0, file.name.span.start)
    ends = max(n.span.end for n in (file.name, *(file.base or ())))
    spans = [(head, ends), *spans]
    starts = [start for start, _ in spans]

    def inside(at: int) -> int:
        n = bisect_right(starts, at)
        return n if n and at < spans[n - 1][1] else 0

    line, blank, doc, header = _Line(), False, False, False
    for token in (*_tokens(file), _Token("newline", "", len(file.source.text))):
        if token.kind == "newline":
            if not line.tokens and not line.comment:
                blank = True
                continue
            first = line.tokens[0].start if line.tokens else -1
            line.begins = first in starts
            within = line.statement > 0 and not line.begins
            line.gap = header or (blank and not within and not (doc and line.begins))
            header = line.statement == 1 and first == head
            doc = not line.tokens and re.match("##(?!#)", line.comment) is not None
            yield line
            line, blank = _Line(), False
        elif token.kind == "comment":
            line.comment = token.text
            line.statement = line.statement or inside(token.start)
        elif token.kind != "blank":
            line.tokens.append(token)
            line.statement = inside(token.start)


# ---- within a line


def _statements(lines: list[_Line], names: Mapping[str, str] | None) -> list[str]:
    """The text of each line without its comment."""
    texts, spacing, equal = [], _Spacing(), INDENT
    for line in lines:
        if line.begins:
            spacing, equal = _Spacing(), INDENT
        opened, text, solved = bool(spacing.brackets), "", not line.begins
        for token in line.tokens:
            space = spacing.before(token)
            text += " " * (space and bool(text)) + _spelled(token, names)
            if token.text == "=" and not solved:
                equal, solved = len(text) - 1, True
        if text and not line.begins:
            under = line.tokens[0].kind == "infix" and not opened
            text = " " * (equal if under else INDENT) + text
        texts.append(text)
    return texts


def _spelled(token: _Token, names: Mapping[str, str] | None) -> str:
    if names is None:
        return token.text
    return names.get(nfkc(token.text)) or _PLAIN.get(token.text, token.text)


class _Spacing:
    """Whether a space stands before each token of a statement, given those before it."""

    def __init__(self) -> None:
        self.last = _Token("sign", "", -1)
        self.brackets: list[str] = []
        self.tight = False
        self.calls = False
        """Whether a bracket that follows belongs to the name that was last."""

    def before(self, token: _Token) -> bool:
        """Whether ``token``, the next one, has a space before it."""
        last = self.last
        inner = self.brackets[-1] if self.brackets else ""
        operand = last.kind in ("name", "number", "transpose") or last.text in (")", "]")
        space = not self.tight and self._space(token, inner)
        self.tight = token.text == "=" and inner == "("
        if token.kind == "infix":
            self.tight = token.text == "**" or inner == "time" or not operand
        elif token.text in ("(", "["):
            self.brackets.append("time" if token.text == "[" and self.calls else token.text)
        elif token.text in (")", "]") and self.brackets:
            self.brackets.pop()
        word = last.text == ":" or (token.text == "where" and operand)
        self.calls = token.kind == "name" and not word
        self.last = token
        return space

    def _space(self, token: _Token, inner: str) -> bool:
        if self.last.text in ("", "(", "[", "."):
            return False
        if token.kind == "infix":
            return token.text != "**" and inner != "time"
        match token.text:
            case ")" | "]" | "," | "." | "ᵀ" | ".T":
                return False
            case "(" | "[":
                return not self.calls
            case "=":
                return inner != "("
        return True


# ---- comments


def _comment(text: str, names: Mapping[str, str] | None) -> str:
    """A comment with a space after its signs; names in an expectation follow ``names``."""
    text = re.sub(r"^(#+)(?=\w)", r"\1 ", text.rstrip())
    return respelled(text, names) if names and _EXPECT.match(text) else text


def _columns(lines: list[_Line], texts: list[str]) -> list[int]:
    """Where the comment of each line goes."""
    columns = [COLUMN] * len(lines)
    run: list[int] = []
    for number, line in enumerate((*lines, _Line())):
        if line.tokens and line.comment and not (run and line.gap):
            run.append(number)
            continue
        widths = {n: len(texts[n]) + 2 for n in run}
        shared = max([COLUMN, *(w for w in widths.values() if w <= FARTHEST)])
        for n, width in widths.items():
            columns[n] = max(shared, width)
        run = [number] if line.tokens and line.comment else []
    return columns
