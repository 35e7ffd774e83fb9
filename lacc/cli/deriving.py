"""``lacc derive``: a spec goes in, its derivation comes out, for a terminal or an appendix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lacc import findings, report
from lacc.cli.answer import Json, answering
from lacc.cli.app import app
from lacc.cli.options import Defines, SpecFile, load, out_option, writable
from lacc.diagnostics import LaccError

Format = Literal["text", "latex", "md"]
LIMIT = 1e-9
MARKS = {"text": "# {}\n\n", "latex": "% {}\n", "md": "<!-- {} -->\n\n"}
"""The first line of a file, by which lacc knows it as its own."""


@app.command()
def derive(
    spec: SpecFile,
    define: Defines = None,
    format_: Annotated[
        Format, typer.Option("--format", help="text for a terminal; latex, md for a paper.")
    ] = "text",
    out: Annotated[
        Path | None,
        out_option("Where to write; standard output if absent."),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Of latex: a whole document, not an appendix.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that lacc did not write.")
    ] = False,
    json: Json = False,
) -> None:
    """Derive the chunk, backward and decode forms, step by step."""
    from lacc import driver
    from lacc.derivation import written
    from lacc.derivation.checking import check
    from lacc.derivation.derive import derive

    with answering("derive", json) as answer:
        if standalone and format_ != "latex":
            raise typer.BadParameter("--standalone is for --format latex")
        if out is not None:
            writable(out, force)
        loaded = load(spec, define, answer.show)
        derivation = derive(loaded, *driver.found(loaded))
        errors: dict[str, dict[str, float]] = {}
        with report.working(f"checking the equations of {loaded.name}"):
            try:
                errors = check(derivation, driver.compile(loaded, "reference"))
                proof = written.proof(errors)
            except LaccError as problem:
                proof = f"Not checked: {problem.diagnostics[0].message}."
        if wrong := {t: e for t, e in errors.items() if not max(e.values()) <= LIMIT}:
            raise AssertionError(f"the equations are off: {wrong}")
        answer.result |= {**findings.of_derivation(derivation, errors), "proof": proof}
        match format_:
            case "text":
                text = written.as_text(derivation, proof)
            case "md":
                text = f"{written.as_markdown(derivation)}\n{proof}\n"
            case "latex":
                text = written.as_latex(derivation, proof, standalone)
        if out is None:
            answer.say(text.removesuffix("\n"))
            return
        try:
            report.write_whole({out: MARKS[format_].format(report.MARK) + text})
        except OSError as problem:
            raise typer.BadParameter(f"cannot write {out}: {problem.strerror}") from None
        answer.result["file"] = str(out)
        answer.say(f"{out}: {len(text.splitlines())} lines")
