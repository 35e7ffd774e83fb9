"""From a statement that does not parse comes the diagnostic that says what was probably meant.

The grammar stops at one place; what stands before and after it there tells the usual mistakes
apart. The rules go from the particular to the general, the last one names what was expected.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from lacc.diagnostics import Diagnostic, Span, error, suggest
from lacc.frontends.split import NAME, ROLES

STATEMENTS = ("variant", "use", *ROLES.split("|"))

FOREIGN = {
    "def": "a function is written feature φ(x) = ...",
    "lambda": "a function is written feature φ(x) = ...",
    "for": "S[t] = ... runs over all tokens by itself",
    "while": "S[t] = ... runs over all tokens by itself",
    "if": "a choice is written where(cond, a, b)",
    "elif": "a choice is written where(cond, a, b)",
    "else": "a choice is written where(cond, a, b)",
    "and": "conditions are nested: where(a, where(b, x, y), y)",
    "or": "conditions are nested: where(a, x, where(b, x, y))",
    "not": "exchange the branches of where(cond, a, b)",
    "in": "S[t] = ... runs over all tokens by itself",
    "return": "declare output o : [V] and write o = ...",
    "import": "a library name is written use feature_maps.taylor2 as φ",
    "from": "a library name is written use feature_maps.taylor2 as φ",
    "class": "a file is one variant",
    "let": "a definition is written NAME = ...",
    "print": "lacc run prints the outputs of a spec",
}
"""Words of other languages that start nothing here, and what to write instead."""

CHARACTERS = {
    "×": "write * (elementwise) or @ (matrix product)",
    "·": "write * (elementwise) or @ (matrix product)",
    "⋅": "write * (elementwise) or @ (matrix product)",
    "∗": "write *",
    "∘": "write * or ⊙",
    "⊗": "write outer(a, b) or a @ b.T",
    "−": "write -",
    "–": "write -",
    "—": "write -",
    "÷": "write /",
    "≤": "write <=",
    "≥": "write >=",
    "≠": "a condition is one of < <= > >= ==",
    "!": "a condition is one of < <= > >= ==",
    "&": "conditions are nested: where(a, where(b, x, y), y)",
    "|": "write abs(x); conditions are nested: where(a, x, where(b, x, y))",
    "∞": "write inf",
    "√": "write sqrt(x)",
    "∑": "write sum(x)",
    "%": "write mod(a, b)",
    ";": "write each statement on a line of its own",
    "\\": "a line goes on inside brackets and after an operator",
    "{": "group with ( and )",
    "}": "group with ( and )",
    "$": "write the names alone, as in S[t] = S[t-1] + k @ v.T",
    "@": "decorators belong to Python",
}
"""Signs that are no part of the language, and what to write instead."""

QUOTES = "\"'‘’“”`´"

WORDS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "COMPARE": "a comparison",
    "PER": "`per`",
    "WHERE": "`where`",
    "SCALAR": "`scalar`",
    "EXTENDS": "`extends`",
    "AS": "`as`",
    "$END": "the end of the statement",
}
"""Terminals of the grammar in words; operators are left out."""


NEAR = 200
"""Characters before the place of a mistake that are looked at from their end."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Where a statement stopped parsing: its text ``before`` that place, the ``rest`` after."""

    statement: Span
    place: int
    expected: frozenset[str]

    @property
    def before(self) -> str:
        return self.statement.text[: self.place]

    @property
    def near(self) -> str:
        """The end of ``before``, of a length that is quickly searched."""
        return self.before[-NEAR:]

    @property
    def rest(self) -> str:
        return self.statement.text[self.place :]

    @property
    def first(self) -> str:
        found = re.match(NAME, self.statement.text)
        return found[0] if found else ""

    def behind(self, pattern: str) -> Span | None:
        """What matches just before the place."""
        found = re.search(f"(?:{pattern})$", self.near)
        return self.span(self.place - len(found[0]), self.place) if found else None

    def span(self, start: int, end: int) -> Span:
        """Characters ``start`` to ``end`` of the statement, as far as it goes."""
        origin = self.statement.start
        return Span(self.statement.source, origin + start, min(origin + end, self.statement.end))

    def here(self, pattern: str, back: str = "") -> Span | None:
        """From ``back`` before the place as far as ``pattern`` matches; None without a match."""
        ahead = re.match(pattern, self.rest)
        behind = self.behind(back)
        if ahead is None or behind is None:
            return None
        return behind.to(self.span(self.place, self.place + ahead.end()))


def explain_mistake(statement: Span, stop: UnexpectedInput, start: str) -> Diagnostic:
    """What is wrong with a statement, from where the grammar's ``start`` stopped."""
    place, expected = stop.pos_in_stream or 0, frozenset[str]()
    if isinstance(stop, UnexpectedToken):
        expected = frozenset(stop.expected)
        place = len(statement.text) if stop.token.type == "$END" else place
    elif isinstance(stop, UnexpectedCharacters):
        expected = frozenset(stop.allowed)
    fault = _Fault(statement, place, expected)
    rules = (_word, _sign, _transpose, _clause, _number, _left_side, _time, _type, _stray)
    for rule in (_transpose, _stray) if start == "header" else rules:
        if found := rule(fault):
            return found
    return _general(fault)


def _word(fault: _Fault) -> Diagnostic | None:
    """A word of another language, or a role that is misspelt."""
    here = re.match(NAME, fault.rest)
    before = fault.behind(rf"{NAME}\s*")
    word = before.text.rstrip() if before else ""
    if here and here[0] in FOREIGN:
        span = fault.span(fault.place, fault.place + here.end())
    elif before and word in FOREIGN:
        span = Span(before.source, before.start, before.start + len(word))
    elif fault.first in FOREIGN:
        span = fault.span(0, len(fault.first))
    elif fault.first == "where":
        return error("LA0123", fault.span(0, 5), word="where")
    elif here and word and fault.before.strip() == word and word not in STATEMENTS:
        hint = (
            suggest(fault.first, STATEMENTS) or "a statement declares a name or defines it with ="
        )
        return error("LA0111", fault.span(0, len(fault.first)), word=fault.first, hint=hint)
    else:
        return None
    return error("LA0111", span, word=span.text, hint=FOREIGN[span.text])


def _sign(fault: _Fault) -> Diagnostic | None:
    """`==`, `:=`, `+=` and the like where `=` belongs, `^` for `**`."""
    if "=" not in fault.before[:-1]:
        if found := fault.here("=", "=") or fault.here(r":=|<-|←|≔|\?="):
            return error("LA0112", found, sign=found.text, hint="write =")
        if found := fault.here(r"(\*\*|[-+*/@⊙])="):
            name = fault.before.strip()
            hint = f"write {name} = {name} {found.text[:-1]} ..."
            return error(
                "LA0112", found, sign=found.text, hint=hint.replace("= S[t] ", "= S[t-1] ")
            )
    if (found := fault.here(r"\^")) and not re.match(r"\^\s*[{(]?\s*\\?(T\b|⊤|top)", fault.rest):
        return error("LA0116", found)
    return None


def _transpose(fault: _Fault) -> Diagnostic | None:
    """`k'`, `k^T`, `k.t`, and text in quotes."""
    after_value = fault.behind(r"[\w\])]") is not None
    marked = fault.here(
        r"\^\s*[{(]?\s*\\?(T\b|⊤|top)\s*[})]?|⊤|′|\.(t|mT|transpose)\b(\s*\(\s*\))?"
    )
    if marked or (after_value and (marked := fault.here("['’´]"))):
        return error("LA0119", marked, text=marked.text.strip())
    if quoted := fault.here(f"[{QUOTES}][^{QUOTES}\r\n]*[{QUOTES}]?"):
        return error("LA0120", quoted)
    if after_value and (method := fault.here(rf"\.\s*{NAME}")):
        name = method.text.lstrip(". ")
        return error("LA0104", method, found=f"`{method.text}`", hint=f"write {name}(...) or x.T")
    return None


def _number(fault: _Fault) -> Diagnostic | None:
    """`1e`, `1_000`, `1.2.3`, `2x`: what begins as a number and goes on as none."""
    number = fault.here(r"[\w.]+", r"(?<![\w.])[0-9][\w.]*\s*")
    if number is None:
        return None
    ((digits, rest),) = re.findall(r"^([0-9.]+)\s*(.*)", number.text, re.DOTALL)
    if re.fullmatch("[eE]", rest):
        hint = f"write {digits}e-6, or {digits} * {rest}"
    elif re.fullmatch("_[0-9_]+", rest):
        hint = f"write {number.text.replace('_', '')}"
    elif re.fullmatch(NAME, rest):
        hint = f"write {digits} * {rest}"
    else:
        hint = "numbers are written 64, 0.5 or 1e-6"
    return error("LA0108", number, number=number.text, hint=hint)


def _left_side(fault: _Fault) -> Diagnostic | None:
    """Something other than a name or `S[t]` before the `=`."""
    if "=" in fault.before or fault.first in STATEMENTS or "=" not in fault.rest:
        return None
    if re.match(rf"{NAME}\s*\[[^\]]*$", fault.before):
        return None
    left = fault.before + fault.rest.split("=", 1)[0]
    if re.fullmatch(rf"{NAME}\s*\([^()]*\)\s*", left):
        hint = f"a function is written feature {left.strip()} = ..."
    else:
        hint = "what is defined is a name or, for a state, S[t]"
    return error("LA0115", fault.span(0, len(left.rstrip())), left=left.strip(), hint=hint)


def _time(fault: _Fault) -> Diagnostic | None:
    """Within `S[...]`, something that is no time."""
    if fault.behind(rf"(^|[^:\w\s]\s*){NAME}\s*\[[^\[\]]*") is None:
        return None
    start = fault.before.rindex("[") + 1
    inside = fault.statement.text[start:].split("]", 1)[0]
    return error("LA0114", fault.span(start, start + max(1, len(inside))), index=inside.strip())


def _type(fault: _Fault) -> Diagnostic | None:
    """A declaration without its `: [K]`, or without its role."""
    if found := fault.here(":", rf"^{NAME}\s*"):
        name = found.text.rstrip(": ")
        begun = f"{name} q" if name in STATEMENTS else f"output {name}"
        hint = f"a declaration begins with its role and name: {begun} : [K]"
        return error("LA0104", found, found="`:`", hint=hint)
    role = re.match(r"(input|param|buffer|state|output)\s", fault.statement.text)
    if role is None or re.search(r":\s*(scalar|\[\s*[^\s\[])", fault.before):
        return None
    if fault.behind(r",\s*") or fault.before.strip() == role[1]:
        return None
    names = re.match(r"[^:=\[(]*", fault.before + fault.rest)
    assert names is not None
    span = fault.span(fault.place, fault.place + 1)
    meant = re.fullmatch(rf"[=\[(\s]*({NAME}(?:\s*,\s*{NAME})*)[\])\s]*", fault.rest)
    axes = "K" if meant is None or meant[1] in ("scalar", "where", "per") else meant[1]
    return error("LA0113", span, names=" ".join(names[0].split()), axes=axes)


def _clause(fault: _Fault) -> Diagnostic | None:
    """A clause out of order, or a comparison where none is expected."""
    if found := fault.here(r"(where|per)\b"):
        return error("LA0123", found, word=found.text)
    if found := fault.here("<=|>=|==|<|>"):
        return error("LA0122", found, sign=found.text)
    return None


def _stray(fault: _Fault) -> Diagnostic | None:
    """A character that is no part of the language."""
    char = fault.rest[:1]
    if subscript := fault.here(r"\{[^{}]*\}", rf"{NAME}"):
        name, time = subscript.text.rstrip("}").split("{")
        return error("LA0118", subscript, name=subscript.text, meant=f"{name.rstrip('_')}[{time}]")
    if command := fault.here(r"\\[A-Za-z]+"):
        hint = f"write the letter itself, or {command.text[1:]}"
        return error("LA0103", command, char=command.text, hint=hint)
    if char in CHARACTERS and not (char == "@" and fault.before):
        return error(
            "LA0103", fault.span(fault.place, fault.place + 1), char=char, hint=CHARACTERS[char]
        )
    if superscript := fault.here("[⁰¹²³⁴-⁹]+"):
        power = unicodedata.normalize("NFKC", superscript.text)
        return error("LA0117", superscript, name=superscript.text, power=f"**{power}")
    if not char or re.match(r"[\s\w\[\]()*/+<>=.,:@⊙-]", char):
        return None
    name = unicodedata.name(char, "a control character").lower()
    hint = f"it is {name} (U+{ord(char):04X})"
    plain = unicodedata.normalize("NFKC", char).strip()
    if plain.isascii() and plain:
        hint = f"write {plain}: {hint}"
    return error("LA0103", fault.span(fault.place, fault.place + 1), char=char, hint=hint)


def _general(fault: _Fault) -> Diagnostic:
    """What stands there, and what was expected."""
    ahead = re.match(rf"{NAME}|[0-9.]+|.", fault.rest)
    width = ahead.end() if ahead else 0
    found = f"`{ahead[0]}`" if ahead else "end of the statement"
    span = fault.span(fault.place, fault.place + width)
    if (
        fault.behind(r"[\w\])]\s*")
        and re.match(r"[\w\[(.]", fault.rest)
        and "STAR" in fault.expected
    ):
        return error("LA0104", span, found=found, hint="put an operator between: * or @")
    if fault.before.strip() == fault.first and fault.first in STATEMENTS:
        return error("LA0104", span, found=found, hint=f"{fault.first} is followed by a name")
    words = {WORDS[terminal] for terminal in fault.expected if terminal in WORDS}
    if {"a name", "a number"} <= words:
        words -= {"a name", "a number", "`(`"}
        words.add("an expression")
    listed = sorted(words)
    hint = (
        f"expected {', '.join(listed[:-1])}{' or ' if listed[:-1] else ''}{listed[-1]}"
        if listed
        else ""
    )
    return error("LA0104", span, found=found, hint=hint)
