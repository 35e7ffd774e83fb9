"""What a command has to say goes in; text as it is said, or one JSON document at its end, comes
out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

import click
import typer
from typer.main import get_group

from lacc import findings, report
from lacc.diagnostics import Diagnostic, LaccError, render

Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output: docs/json.md.")
]


class Answer:
    """Of one command: ``result`` is what a JSON document holds, ``say`` and ``show`` are for
    people."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.result: dict[str, Any] = {}
        self.diagnostics: list[findings.Data] = []

    def say(self, text: str) -> None:
        """Text on standard output, where no JSON goes there."""
        if not self.json:
            report.say(text)

    def show(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Diagnostics, on standard error or in the document."""
        if self.json:
            self.diagnostics += map(findings.of_diagnostic, diagnostics)
        elif diagnostics := tuple(diagnostics):
            report.complain(render(diagnostics, color=report.colored(sys.stderr)) + "\n")

    def fault(self, code: str, message: str, more: str = "") -> None:
        """An error that is none of a spec; ``more`` is text to stand below it."""
        if self.json:
            self.diagnostics.append(findings.of_fault(code, message))
        else:
            report.complain(f"error: {message}")
            if more:
                report.complain(more)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What others print while the body runs goes to standard error, where JSON goes out."""
        if not self.json:
            yield
            return
        with redirect_stdout(sys.stderr):
            yield


@contextmanager
def answering(command: str, json: bool) -> Iterator[Answer]:
    """What the body answers with; what it raises is part of a JSON document, and its exit code."""
    answer = Answer(json)
    if not json:
        yield answer
        return
    code = 0
    try:
        yield answer
    except LaccError as problem:
        answer.show(problem.diagnostics)
        code = findings.exit_code(problem)
    except click.UsageError as problem:
        said = problem.message or problem.format_message()
        answer.diagnostics.append(findings.of_fault("usage", said))
        code = problem.exit_code
    except typer.Exit as end:
        code = end.exit_code
    report.say(findings.document(command, code, answer.diagnostics, answer.result))
    if code:
        raise typer.Exit(code)


def asks_for_json(app: typer.Typer, words: list[str]) -> bool:
    """Whether standard output is for one document: ``--json`` is there, and no option of the
    command that takes a file."""
    if "--json" not in words:
        return False
    command = get_group(app).commands.get(words[0])
    options = command.params if command is not None else ()
    return all(getattr(o, "is_flag", False) for o in options if "--json" in o.opts)


def run(app: typer.Typer, words: list[str]) -> int:
    """Runs the command that ``words`` are, and returns its exit code; where they ask for JSON,
    what cannot be read of them is a document too."""
    if not asks_for_json(app, words):
        app(words, prog_name="lacc")
        return 0
    try:
        return int(app(words, prog_name="lacc", standalone_mode=False) or 0)
    except click.ClickException as problem:
        fault = findings.of_fault("usage", problem.format_message())
        report.say(findings.document(words[0], problem.exit_code, [fault], {}))
        return problem.exit_code
    except click.Abort:
        return 1
