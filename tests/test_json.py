"""`--json`: one document on standard output, whatever becomes of the command; docs/json.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from test_cli import GLA, SMALL, WRONG, Run, lacc  # noqa: F401
from typer.main import get_group

from lacc import findings
from lacc.cli import app

# ruff: noqa: F811

PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
TOP = ["format", "lacc", "command", "exit", "diagnostics", "result"]
DIAGNOSTIC = ["code", "severity", "message", "hint", "span", "notes"]
SPAN = ["file", "line", "column", "end_line", "end_column", "start", "end", "text"]


def answer(run: Run, *words: str) -> dict[str, Any]:
    """The document that a command prints, which is all it prints."""
    code, out, _ = run(*words, "--json")
    found: dict[str, Any] = json.loads(out)
    assert list(found) == TOP
    assert found["exit"] == code and found["format"] == findings.FORMAT
    for diagnostic in found["diagnostics"]:
        assert list(diagnostic) == DIAGNOSTIC
        assert diagnostic["span"] is None or list(diagnostic["span"]) == SPAN
    return found


COMMANDS: dict[str, list[str]] = {
    "check": ["check", GLA],
    "explain": ["explain", GLA],
    "explain a code": ["explain", "LA0301"],
    "verify": ["verify", GLA, *SMALL],
    "run": ["run", GLA, *SMALL, "--shape", "T=8"],
    "targets": ["targets"],
    "fmt": ["fmt", "--check", GLA],
    "new": ["new", "mine"],
    "derive": ["derive", GLA],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_answers_with_one_document(
    lacc: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = answer(lacc, *COMMANDS[name])
    assert found["exit"] == 0 and found["command"] == COMMANDS[name][0]
    section = PAGE[PAGE.index(f"## {found['command']}") :].split("\n## ")[0]
    documented = set(re.findall(r"`(?:\w+\[\]\.)?(\w+)`", section))
    result: dict[str, Any] = found["result"]
    rows = [row for value in result.values() if isinstance(value, list) for row in value]
    shown = {*result, *(key for row in rows if isinstance(row, dict) for key in row)}
    assert shown and shown - {"specs"} <= documented


def test_every_command_that_finds_something_has_it() -> None:
    commands = get_group(app).commands
    for name in {words[0] for words in COMMANDS.values()}:
        assert any("--json" in option.opts for option in commands[name].params), name


def test_an_option_that_takes_a_file_asks_for_no_document(lacc: Run) -> None:
    code, out, err = lacc("bench", "none.la", "--json", "x.json", "--bogus")
    assert code == 2 and out == "" and "bogus" in err


def test_diagnostics_have_code_place_message_and_hint(lacc: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.la"
    wrong.write_text(WRONG)
    found = answer(lacc, "check", str(wrong), GLA)
    assert found["exit"] == 1
    shapes, unknown = found["diagnostics"]
    assert shapes["code"] == "LA0301" and shapes["severity"] == "error"
    assert shapes["message"].startswith("shapes differ")
    assert shapes["hint"]
    span = shapes["span"]
    assert (span["file"], span["line"], span["column"]) == (str(wrong), 7, 8)
    assert WRONG[span["start"] : span["end"]] == span["text"] == "S[t-1] + v @ k.T"
    assert unknown["span"]["text"] == "qq"
    assert [spec["fine"] for spec in found["result"]["specs"]] == [False, True]


def test_warnings_are_in_the_document(lacc: Run) -> None:
    found = answer(lacc, "check", str(ROOT / "examples" / "growing_gate.la"))
    assert found["exit"] == 0
    assert [d["severity"] for d in found["diagnostics"]] == ["warning"]


def test_errors_are_documents_with_their_exit_codes(lacc: Run, tmp_path: Path) -> None:
    for words, code, error in (
        (["verify", GLA, "-t", "nunpy"], 3, "LA0701"),
        (["check", str(tmp_path / "none.la")], 2, "usage"),
        (["check"], 2, "usage"),
        (["check", GLA, "--bogus"], 2, "usage"),
        (["run", GLA, "--chunk", "x"], 2, "usage"),
        (["chekc", GLA], 2, "usage"),
        (["explain", "bogus"], 2, "usage"),
        (["check", GLA, "-D", "Q=3"], 1, "LA0401"),
    ):
        found = answer(lacc, *words)
        assert (found["exit"], found["diagnostics"][0]["code"]) == (code, error), words


def test_an_internal_error_is_a_document(lacc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("of ours")

    monkeypatch.setattr("lacc.driver.load", broken)
    found = answer(lacc, "check", GLA)
    assert found["exit"] == 70
    assert found["diagnostics"][0]["code"] == "internal"
    Path(found["diagnostics"][0]["hint"].rpartition(" ")[2]).unlink()


def test_what_json_has_no_number_for_is_text() -> None:
    text = findings.document("x", 0, [], {"a": float("nan"), "b": [float("-inf"), 1.5]})
    assert json.loads(text)["result"] == {"a": "nan", "b": ["-inf", 1.5]}
