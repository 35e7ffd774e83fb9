"""``lacc fmt``, ``new`` and ``completion``: files and text of every day come out."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from lacc import report
from lacc.cli.answer import Answer, Json, answering
from lacc.cli.app import app
from lacc.cli.options import out_option
from lacc.cli.words import examples, spec_files
from lacc.diagnostics import MAX_BYTES, LaccError, Source, suggest


@app.command()
def fmt(
    specs: Annotated[
        list[Path],
        typer.Argument(
            metavar="SPEC...",
            help="Files, folders of .la files, or - for standard input to standard output.",
            autocompletion=spec_files,
        ),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 where a file would change.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Write nothing; show what would change.")
    ] = False,
    ascii_: Annotated[
        bool, typer.Option("--ascii", help="Names and signs in ASCII: β as beta, ⊙ as *.")
    ] = False,
    json: Json = False,
) -> None:
    """Lay specs out; comments stay, and each reads as before."""
    with answering("fmt", json) as answer:
        rows: list[dict[str, object]] = []
        answer.result["files"] = rows
        failed = False
        for path in _files(specs):
            try:
                rows.append(_formatted(answer, path, check or diff, diff, ascii_))
            except LaccError as problem:
                answer.show(problem.diagnostics)
                rows.append({"file": str(path), "changed": False})
                failed = True
        changed = [row for row in rows if row["changed"]]
        if failed or (check and changed):
            raise typer.Exit(1)


def _files(specs: list[Path]) -> list[Path]:
    """Each file that is named or in a folder that is."""
    found: list[Path] = []
    for path in specs:
        if path.is_dir():
            found += sorted(path.glob("*.la"))
        elif str(path) != "-" and not path.exists():
            raise typer.BadParameter(f"there is no file {path}")
        elif path.suffix == ".py":
            raise typer.BadParameter(f"{path} is Python, fmt lays out .la files")
        else:
            found.append(path)
    if not found:
        raise typer.BadParameter(f"there are no .la files in {', '.join(map(str, specs))}")
    return found


def _formatted(
    answer: Answer, path: Path, dry: bool, diff: bool, ascii_: bool
) -> dict[str, object]:
    """Formats one file; what became of it."""
    from lacc.formatting import formatted

    through = str(path) == "-"
    source = _stdin() if through else _source(path)
    text, kept = formatted(source, ascii_)
    changed = text != source.text
    row: dict[str, object] = {"file": source.name, "changed": changed, "kept_names": kept}
    if kept:
        names = ", ".join(kept)
        row["note"] = f"{names} stay: other files that it extends or uses have these names"
        if not answer.json:
            report.complain(f"{source.name}: {row['note']}")
    if diff and changed:
        lines = difflib.unified_diff(
            source.text.splitlines(), text.splitlines(), source.name, source.name, lineterm=""
        )
        row["diff"] = "\n".join(lines)
        answer.say(str(row["diff"]))
    if dry:
        if changed and not diff:
            answer.say(f"{source.name}: would change")
    elif through:
        row["text"] = text
        answer.say(text.removesuffix("\n"))
    elif changed:
        try:
            report.write_over(path, text)
        except OSError as problem:
            raise typer.BadParameter(f"cannot write {path}: {problem.strerror}") from None
        answer.say(f"{path}: laid out")
    return row


def _source(path: Path) -> Source:
    try:
        return Source.read(path)
    except OSError as problem:
        raise typer.BadParameter(f"cannot read {path}: {problem.strerror}") from None


def _stdin() -> Source:
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        return Source("<stdin>", data.decode())
    except UnicodeDecodeError:
        raise typer.BadParameter("standard input is not UTF-8") from None


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the variant.")],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="EXAMPLE",
            help="Begin with this published variant; with a template if absent.",
            autocompletion=examples,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_option("Where to write; NAME.la if absent."),
    ] = None,
    json: Json = False,
) -> None:
    """Begin a spec from an example or a template."""
    from lacc import library, starting

    with answering("new", json) as answer:
        if not name.isidentifier():
            raise typer.BadParameter(f"{name!r} is no name: letters, digits and _")
        path = Path(f"{name}.la") if out is None else out
        if path.is_dir():
            path = path / f"{name}.la"
        if not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}")
        try:
            text = starting.started(name, None if begin is None else library.text(begin))
        except KeyError:
            hint = suggest(begin or "", library.variants()) or "see examples/README.md"
            raise typer.BadParameter(f"there is no example {begin}; {hint}") from None
        try:
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            raise typer.BadParameter(f"{path} is there; -o names another file") from None
        except OSError as problem:
            raise typer.BadParameter(f"cannot write {path}: {problem.strerror}") from None
        steps = [f"lacc check -v {path}", f"lacc run {path}", f"lacc verify {path}"]
        answer.result |= {"file": str(path), "variant": name, "from": begin, "next": steps}
        answer.say(f"{path}: {len(text.splitlines())} lines; edit them, then")
        answer.say("\n".join(f"  {step}" for step in steps))


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], typer.Argument()],
) -> None:
    """Print a script that completes commands, options, specs and targets."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    report.say(get_completion_script(prog_name="lacc", complete_var="_LACC_COMPLETE", shell=shell))
