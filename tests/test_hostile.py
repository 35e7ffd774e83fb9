"""Files that are no specs: each ends in diagnostics, soon, and nothing of it is ever run."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from conftest import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc.diagnostics import MAX_BYTES, LaccError, Source, render
from lacc.driver import load
from lacc.frontends.la import parse

HEAD = "variant x\ndim K = 4\ninput k : [K]\noutput o : [K]\n"
LIMIT = 5.0
"""Seconds."""

HOSTILE = {
    "nothing": "",
    "a long line": HEAD + "o = " + "k + " * 2_500_000 + "k\n",
    "a long name": HEAD + "o = " + "k" * 60_000,
    "a long number": HEAD + "o = k * " + "9" * 60_000,
    "many dots": HEAD + "o = k * " + "1." * 20_000,
    "parentheses": HEAD + "o = " + "(" * 10_000 + "k" + ")" * 10_000,
    "open parentheses": HEAD + "o = " + "(" * 60_000,
    "closing parentheses": HEAD + "o = " + ")" * 60_000,
    "brackets": HEAD + "o = " + "k[" * 20_000,
    "a long sum": HEAD + "o = " + " + ".join(["k"] * 16_000),
    "signs": HEAD + "o = " + "-" * 60_000 + "k",
    "transposes": HEAD + "o = k" + ".T" * 20_000,
    "a tower": HEAD + "dim M = 9**9**9**9\no = k",
    "a high tower": HEAD + "const c = " + "9**" * 150 + "9\no = c * k",
    "calls": HEAD + "o = " + "exp(" * 10_000 + "k" + ")" * 10_000,
    "many arguments": HEAD + "o = max(" + "k, " * 20_000 + "k)",
    "many statements": HEAD + "a = k\n" * 10_000,
    "many names": HEAD + "".join(f"a{i} = k\n" for i in range(490)) + "o = k",
    "many mistakes": HEAD + "a b\n" * 400,
    "unknown names": HEAD + "".join(f"a{i} = b{i} + c{i}\n" for i in range(480)) + "o = k",
    "doubling": HEAD + "a0 = k\n" + "".join(f"a{i + 1} = a{i} + a{i}\n" for i in range(480)),
    "doubling features": HEAD
    + "feature f0(x) = x\n"
    + "".join(f"feature f{i + 1}(x) = f{i}(f{i}(x))\n" for i in range(100))
    + "o = f100(k)",
    "features of many": HEAD
    + "feature f0(x) = x * x\n"
    + "".join(f"feature f{i + 1}(x) = f{i}(x) * f{i}(x + 1)\n" for i in range(23))
    + "o = f23(k)",
    "a feature of itself": HEAD + "feature f(x) = f(x)\no = f(k)",
    "NUL": HEAD + "o = k\0\0",
    "binary": bytes(range(1, 32)).decode() * 100,
    "escapes": HEAD + "o = \x1b]0;title\x07\x1b[31mk",
    "a template": HEAD + "o = {{ 7*7 }}",
    "a format": HEAD + "o = {0.__class__.__mro__}",
    "an import": HEAD + "o = __import__('os').system('true')",
    "a dunder": HEAD + "o = __builtins__\n__class__ = k",
    "a path": HEAD + "use ../../x as y\no = k",
    "a base that is a path": "variant x extends ../../etc/passwd\n",
    "a base that is itself": "variant x extends x\n",
    "quotes": HEAD + 'o = """' + "'" * 10_000,
    "comments": "#" * 60_000 + "\n" + "## " * 10_000,
    "expectations": "# expect " + "a[" * 20_000 + ":\n" + "# expect a" + " " * 20_000 + "b\n",
    "blanks": HEAD + "o" + " " * 60_000 + "k",
    "newlines": "variant\n" + "\n" * 60_000 + "x",
    "carriage returns": "\r" * 60_000,
    "right to left": HEAD + "o = k \u202e+ k\u2066",
    "wide": HEAD + "o = " + "字" * 50 + " × " + "🙂" * 60,
    "combining": HEAD + "o = k" + "\u0301" * 20_000,
    "lookalikes": HEAD + "о = k",
    "surrogates": HEAD + "o = \ud800",
    "NFKC grows": HEAD + "o = " + "ﷺ" * 1_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_ends_in_diagnostics_soon(text: str) -> None:
    start = time.perf_counter()
    try:
        load(text + "\n")
    except LaccError as fault:
        shown = render(fault.diagnostics)
        assert len(shown) < 200_000
        assert not set(map(chr, [*range(10), *range(11, 32), 0x202E, 0x2066])) & set(shown)
    assert time.perf_counter() - start < LIMIT


def test_a_hostile_file_ends_in_diagnostics_soon(tmp_path: Path) -> None:
    for data in (b"\0" * 1000, b"\xff\xfe" + "variant x".encode("utf-16-le"), b"a" * 10_000_000):
        path = tmp_path / "x.la"
        path.write_bytes(data)
        start = time.perf_counter()
        with pytest.raises(LaccError):
            load(path)
        assert time.perf_counter() - start < LIMIT


def test_the_largest_file_that_is_read_is_read_soon() -> None:
    line = "o = exp(k * (k + 1))**2 @ k.T\n"
    text = HEAD + line * 400 + "#" * (MAX_BYTES - len(HEAD) - 400 * len(line))
    start = time.perf_counter()
    assert parse(Source("x.la", text))[0] is not None
    assert time.perf_counter() - start < LIMIT


PIECES = [
    *"\n ()[]=,:.*@-<^'\"#{\\²0tk\0\r\t字αᵀ",
    *(
        "==",
        ".T",
        "**",
        "##",
        "1e",
        "S[t]",
        "S_t",
        "per ",
        "where ",
        "variant x\n",
        "dim ",
        "input ",
    ),
    *("state ", "gate ", "feature ", "use ", "extends ", "def ", "if ", "lambda ", "\ufeff"),
]


def well_behaved(text: str) -> None:
    """Whatever the text, its diagnostics have places in it and can be shown."""
    source = Source("x.la", text)
    _, problems = parse(source)
    for problem in problems:
        assert problem.span is not None
        assert 0 <= problem.span.start <= problem.span.end <= len(text)
        assert problem.render() and problem.render(color=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_sequence_of_pieces_is_read(text: str) -> None:
    well_behaved(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read(text: str) -> None:
    well_behaved(text)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(EXAMPLES), st.randoms(use_true_random=False))
def test_an_example_with_slips_is_checked(path: Path, draw: random.Random) -> None:
    text = path.read_text(encoding="utf-8")
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice([*PIECES, ""]) + text[at + draw.choice([0, 1, 3]) :]
    well_behaved(text)
    try:
        load(text + "\n")
    except LaccError as fault:
        assert fault.diagnostics and str(fault)
