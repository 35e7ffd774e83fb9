"""The application that every command of ``lacc`` is registered with."""

from __future__ import annotations

from typing import Annotated

import typer

from lacc import report

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    suggest_commands=False,  # click has its own suggestion
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The compiler for linear attention: from a paper's recurrence to verified kernels.",
)


@app.callback(invoke_without_command=True)
def lacc(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """The compiler for linear attention."""
    if version:
        from lacc import __version__

        report.say(f"lacc {__version__}")
        raise typer.Exit
