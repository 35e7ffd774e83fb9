"""``lacc lab``: specs go in, a table and a page on what small models learn with them come out."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacc import report
from lacc.cli.app import app
from lacc.cli.options import Defines, load, writable
from lacc.cli.words import spec_files

if TYPE_CHECKING:
    from lacc.lab.trials import Contestant, Settings

QUICK = 40


@app.command()
def lab(
    specs: Annotated[
        list[Path],
        typer.Argument(metavar="SPEC...", help="One or more .la files.", autocompletion=spec_files),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="NAME,...",
            help="Examples to compare with, '' for none; examples/baselines.txt if absent.",
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Some of recall,copying,parity,S3,text.")
    ] = None,
    define: Defines = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of training.")] = 500,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Models of each kind.")] = 3,
    width: Annotated[int, typer.Option("--width", min=8, help="Of the models.")] = 64,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Models at once; one a processor if absent.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed and few steps: to see that all works.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="lab_NAME.html if absent.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Writes the record.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that lacc did not write.")
    ] = False,
) -> None:
    """Train tiny models with a spec and with baselines; say what each can keep."""
    import json as text_of
    from dataclasses import asdict
    from datetime import datetime
    from importlib.util import find_spec

    from lacc.lab import page, trials

    if find_spec("torch") is None:
        raise typer.BadParameter("lab trains models with torch, which is not installed")
    if width % trials.NARROW:
        raise typer.BadParameter(f"--width takes a multiple of {trials.NARROW}, got {width}")
    settings = _settings(tasks, QUICK if quick else steps, 1 if quick else seeds, width)
    contestants = _contestants(specs, define, against)
    out = html if html is not None else Path(f"lab_{contestants[0].name}.html")
    for path in (out, json):
        if path is not None:
            writable(path, force)
    count = jobs or os.cpu_count() or 1
    with report.counting("training small models") as progress:
        try:
            outcomes, decoding = trials.run(contestants, settings, jobs=count, progress=progress)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None
    words = sys.argv[1:] if sys.argv[1:2] == ["lab"] else ["lab", *map(str, specs)]
    record = trials.Record(
        contestants,
        settings,
        outcomes,
        decoding,
        datetime.now().isoformat(timespec="minutes"),
        _machine(),
        shlex.join(["lacc", *words]),
    )
    rows = [[text for text, _ in cells] for _, cells in page.rows(record)]
    report.say(report.table(page.header(record), rows))
    asked = len(trials.trials(contestants, settings))
    if len(outcomes) < asked:
        report.say(f"interrupted: of {asked} models {len(outcomes)} are in the report")
    for outcome in (o for o in outcomes if o.failed):
        report.say(f"{outcome.name} on {outcome.task}, seed {outcome.seed}: {outcome.failed}")
    texts = {out: page.html(record)}
    if json is not None:
        mark = {"written by": f"{report.MARK} lab"}
        texts[json] = text_of.dumps(mark | asdict(record)) + "\n"
    try:
        report.write_whole(texts)
    except OSError as problem:
        raise typer.BadParameter(f"cannot write: {problem.strerror}") from None
    report.say(f"{out}: the report")
    if len(outcomes) < asked:
        raise typer.Exit(130)


def _settings(tasks: str | None, steps: int, seeds: int, width: int) -> Settings:
    from lacc.diagnostics import suggest
    from lacc.lab.tasks import TASKS
    from lacc.lab.trials import Settings

    names = tuple(TASKS) if tasks is None else tuple(dict.fromkeys(tasks.split(",")))
    for name in names:
        if name not in TASKS:
            hint = suggest(name, TASKS) or f"there are {', '.join(TASKS)}"
            raise typer.BadParameter(f"--tasks: no task is called {name!r}; {hint}")
    return Settings(width=width, steps=steps, seeds=seeds, tasks=names)


def _contestants(
    specs: list[Path], define: list[str] | None, against: str | None
) -> tuple[Contestant, ...]:
    """The given specs, then the baselines that are not among them."""
    from lacc import library, starting
    from lacc.diagnostics import suggest
    from lacc.lab.trials import Contestant

    found: dict[str, Contestant] = {}
    for path in specs:
        spec = load(path, define)
        if spec.ascii in found:
            raise typer.BadParameter(f"two specs are called {spec.name}")
        found[spec.ascii] = Contestant(spec.ascii, spec.text, spec.overrides)
    names = starting.baselines() if against is None else filter(None, against.split(","))
    for name in names:
        if name not in library.variants():
            hint = suggest(name, library.variants()) or "see examples/README.md"
            raise typer.BadParameter(f"--against: no example is called {name!r}; {hint}")
        if name not in found:
            found[name] = Contestant(name, library.text(name), given=False)
    return tuple(found.values())


def _machine() -> dict[str, str]:
    from lacc.bench.record import machine, versions

    return machine() | versions()
