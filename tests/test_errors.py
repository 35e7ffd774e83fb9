"""Every diagnostic: its page, the specs that get it, and the rendering beside each of them.

After a change of wording, `LACC_UPDATE=1 pytest tests/test_errors.py` writes the renderings anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from lacc import driver
from lacc.diagnostics import (
    Diagnostic,
    LaccError,
    Note,
    Source,
    Span,
    codes,
    entry,
    error,
    explain,
    render,
    suggest,
    warning,
)

CASES = sorted((ROOT / "tests" / "errors").glob("*.la"))
ELSEWHERE = {
    "LA0130": "test_embedded",
    "LA0131": "test_embedded",
    "LA0132": "test_embedded",
    "LA0133": "test_embedded",
    "LA0505": "test_verify",
    "LA0702": "test_cli",
}
"""Codes that no spec gets by itself, and the test that has them: decorated Python, drawn inputs,
what a machine lacks."""

ADDITIVE = """variant additive
dim K = 4, V = 4
input q, k : [K]
input v : [V]
state S : [K, V]
output o : [V]
S[t] = S[t-1] + k @ v.T
o = S[t].T @ q
"""
LATE = ADDITIVE.replace("+ k @ v.T", "+ tanh(S[t-1]) + k @ v.T").replace("= S[t]", "= S[T]")
ARRAYS = (np.ones((1, 4)),) * 3
REQUESTS: dict[str, Callable[[], object]] = {
    "LA0701": lambda: driver.compile(ADDITIVE, "nunpy"),
    "LA0704": lambda: driver.compile(LATE, "numpy"),
    "LA0703": lambda: driver.compile(ADDITIVE, "reference")(*ARRAYS, mode="chunk"),
}
"""Codes that answer a request, not a spec: what is asked for."""

NO_EXAMPLE = {"LA0101", "LA0130", "LA0131", "LA0132", "LA0133", "LA0505"}
"""Codes whose page shows no spec."""


def diagnose(given: Path | str) -> list[Diagnostic]:
    """Everything that is said about a spec; in it, lines `# -D NAME=VALUE` are overrides and lines
    `# mode NAME` ask for a mode (or for the step).
    """
    text = given if isinstance(given, str) else given.read_text(encoding="utf-8", errors="ignore")
    overrides = {k: float(v) for k, v in re.findall(r"^# -D (\w+)=(\S+)$", text, re.MULTILINE)}
    found: list[Diagnostic] = []
    try:
        spec = driver.load(given, overrides, found)
    except LaccError as fault:
        return [*fault.diagnostics]
    found += driver.lints(spec)
    for mode in re.findall(r"^# mode (\w+)$", text, re.MULTILINE):
        found.append(driver.compile(spec, "numpy").missing[mode])
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_wrong_spec_gets_its_diagnostics(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    found = diagnose(Path(path.name))
    assert path.name[:6] in {d.code for d in found}
    golden = path.with_suffix(".txt")
    if os.environ.get("LACC_UPDATE"):
        golden.write_text(render(found) + "\n", encoding="utf-8")
    assert render(found) + "\n" == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("code", REQUESTS)
def test_a_request_that_cannot_be_served_gets_its_diagnostic(code: str) -> None:
    with pytest.raises(LaccError) as caught:
        REQUESTS[code]()
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_what_has_no_lowering_is_refused_in_a_promise_too() -> None:
    text = ADDITIVE.replace("v : [V]", "v : [V] where sum(attend(v, v, v)) <= 1e6", 1)
    with pytest.raises(LaccError) as caught:
        driver.compile(text, "numpy")
    assert caught.value.code == "LA0704"


def test_every_code_has_a_case_and_every_rendering_a_spec() -> None:
    covered = {path.name[:6] for path in CASES}
    assert covered | REQUESTS.keys() | ELSEWHERE.keys() == set(codes())
    for code, test in ELSEWHERE.items():
        assert code in (ROOT / "tests" / f"{test}.py").read_text(encoding="utf-8")
    assert {p.stem for p in CASES} == {p.stem for p in CASES[0].parent.glob("*.txt")}


@pytest.mark.parametrize("code", codes())
def test_a_page_shows_the_mistake_and_what_to_write_instead(code: str) -> None:
    page = explain(code)
    assert page.startswith(f"{code}: {entry(code).title}\n\n")
    assert re.findall("^## (.*)$", page, re.MULTILINE) == (
        [] if code in NO_EXAMPLE else ["Example", "Instead"]
    )
    blocks = re.findall(r"## (\w+)\n\n```la\n(.*?)```", page, re.DOTALL)
    if not blocks:
        return
    assert [name for name, _ in blocks] == ["Example", "Instead"]
    wrong, right = (text if code == "LA0109" else whole(text) for _, text in blocks)
    assert code in {d.code for d in diagnose(wrong)}
    assert code not in {d.code for d in diagnose(right)}


FRAME = {
    "variant": "variant example",
    "K": "dim K = 4",
    "V": "dim V = 4",
    "q": "input q : [K]",
    "k": "input k : [K]",
    "v": "input v : [V]",
    "S": "state S : [K, V]",
    "o": "output o : [V]",
    "": "",
    "S[t]": "S[t] = S[t-1] + k @ v.T",
    "o =": "o = S[t].T @ q",
}
"""The statements that a page leaves out, by what they define; its own stand at the empty line."""


DECLARES = re.compile("(variant|dim|const|input|param|buffer|state|output|feature|gate|use)[^:=]*")


def whole(page: str) -> str:
    """A page's spec with the statements that it leaves out."""
    lines = page.splitlines()
    own = {""}
    for line in lines:
        head = DECLARES.match(line)
        own |= set(re.findall(r"[^\W\d]\w*", head[0] if head else ""))
        own |= {"S[t]"} if re.match(r"S\s*\[", line) or line.startswith(("S =", "S_t =")) else set()
        own |= {"o ="} if re.match(r"o\s*[=\[]", line) else set()
    first = [line for line in lines if line.startswith("variant")][:1]
    rest = page if not first else "\n".join(line for line in lines if line not in first)
    kept = [
        rest if not name else line for name, line in FRAME.items() if not name or name not in own
    ]
    return "\n".join([*first, *kept]) + "\n"


def test_every_code_in_the_sources_is_in_the_catalogue_and_back() -> None:
    used: set[str] = set()
    for folder in ("lacc", "frontends", "backends"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(r'"(LA\d{4})"', path.read_text(encoding="utf-8")))
    assert used == set(codes())


# ---- rendering


def shown(text: str, start: int, end: int) -> list[str]:
    """The excerpt of characters ``start`` to ``end`` of a text."""
    span = Span(Source("x.la", text), start, end)
    return error("LA0122", span, sign="<").render().splitlines()[1:-1]


def test_the_excerpt_of_the_language_page() -> None:
    text = "variant x\n" * 6 + "S[t] = S[t-1] + v @ k.T\n"
    found = error("LA0122", Span(Source("x.la", text), 67, 83), sign="+")
    assert found.render().splitlines()[1:5] == [
        " --> x.la:7:8",
        "  |",
        "7 | S[t] = S[t-1] + v @ k.T",
        "  |        ^^^^^^^^^^^^^^^^",
    ]


@pytest.mark.parametrize(
    ("text", "start", "end", "line", "marks"),
    [
        ("a\tb", 2, 3, "a   b", "    ^"),
        ("中文 = k", 5, 6, "中文 = k", "       ^"),
        ("k\u0302 = x", 5, 6, "k\u0302 = x", "    ^"),
        ("a\x1b[31m", 1, 2, "a␛[31m", " ^"),
        ("a\u202eb", 2, 3, "a�b", "  ^"),
        ("\ufeffab", 2, 3, "ab", " ^"),
        ("ab", 2, 2, "ab", "  ^"),
        ("", 0, 0, "", "^"),
        ("x" * 50 + "!" + "y" * 100, 50, 51, f"…{'x' * 24}!{'y' * 71}…", " " * 25 + "^"),
    ],
)
def test_columns_of_the_terminal(text: str, start: int, end: int, line: str, marks: str) -> None:
    assert shown(text, start, end)[2:] == [f"1 | {line}".rstrip(), f"  | {marks}"]


def test_a_place_of_many_lines_shows_the_first_of_them() -> None:
    text = "\n".join(f"  line {number}" for number in range(9, 20))
    assert shown(text, 2, 19) == [
        " --> x.la:1:3",
        "  |",
        "1 |   line 9",
        "  |   ^^^^^^",
        "2 |   line 10",
        "  |   ^^^^^^^",
    ]
    assert shown(text, 0, len(text))[-1] == "   | …"


def test_line_ends_of_every_system_count_once() -> None:
    source = Source("x.la", "a\r\nb\rc\nd")
    assert [source.position(i) for i in (0, 3, 5, 7)] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert [source.line(n) for n in (1, 2, 3, 4)] == ["a", "b", "c", "d"]


def test_notes_and_severities() -> None:
    source = Source("x.la", "a = 1\na = 2\n")
    notes = [Note("first here", Span(source, 0, 1)), Note("and so on")]
    text = warning("LA0122", Span(source, 6, 7), notes=notes, sign="<").render()
    assert text.splitlines()[0].startswith("warning[LA0122]: ")
    assert "note: first here\n --> x.la:1:1\n  |\n1 | a = 1\n  | -\n  = note: and so on\n" in text
    assert "\x1b[1;33mwarning[LA0122]\x1b[0m" in warning("LA0122", None, sign="<").render(True)


def test_text_of_a_spec_is_no_template() -> None:
    assert "`{0.__class__}`" in error("LA0122", None, sign="{0.__class__}").message


def test_the_exception_speaks_for_its_first_error() -> None:
    fault = LaccError([warning("LA0122", None, sign="<"), error("LA0116", None)])
    assert fault.code == "LA0116"
    assert str(fault) == render(fault.diagnostics)
    assert "warning[LA0122]" in str(fault)


def test_near_misses() -> None:
    assert suggest("inptu", ["output", "input"]) == "did you mean `input`?"
    assert suggest("k", ["K", "V"]) == "did you mean `K`?"
    assert suggest("alpha", ["K", "V"]) == ""


def test_a_code_that_is_none_is_refused() -> None:
    for code in ("LA9999", "../../pyproject", "LA0122/../LA0122", ""):
        with pytest.raises(KeyError):
            explain(code)
