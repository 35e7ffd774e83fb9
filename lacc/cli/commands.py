"""``lacc check``, ``explain``, ``run``, ``targets``: text or JSON and an exit code come out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lacc import findings, report
from lacc.cli.answer import Json, answering
from lacc.cli.app import app
from lacc.cli.options import (
    Chunk,
    Defines,
    Dtype,
    MachineName,
    ModeName,
    Shape,
    SpecFile,
    SpecFiles,
    TargetName,
    Tuned,
    load,
    named_spec,
    read_shape,
    together,
    usage,
)
from lacc.cli.words import spec_files
from lacc.diagnostics import LaccError


@app.command()
def check(
    specs: SpecFiles,
    define: Defines = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say what was found in each.")
    ] = False,
    json: Json = False,
) -> None:
    """Report every problem in one spec or more."""
    with answering("check", json) as answer:
        found: list[findings.Data] = []
        answer.result["specs"] = found
        for path in specs:
            row: findings.Data = {"file": str(path), "fine": False}
            found.append(row)
            try:
                spec = load(path, define, answer.show)
            except LaccError as problem:
                answer.show(problem.diagnostics)
                continue
            row["fine"] = True
            if hidden := report.ignored_by_git(path):
                row["ignored_by_git"] = hidden
                if not json:
                    report.complain(f"warning: git ignores {path} ({hidden})")
                    report.complain("  = help: add the line `!*.la` to .gitignore")
            from lacc import driver

            answer.show(driver.lints(spec))
            answer.say(f"{path}: {spec.name} is fine")
            if verbose:
                answer.say(driver.describe(spec))
            if json:
                row |= findings.of_spec(spec, *driver.found(spec))
        if not all(row["fine"] for row in found):
            raise typer.Exit(1)


@app.command()
def explain(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="SPEC|CODE|NAME",
            help="A .la file, an error code (LA0301), a function (softplus) or a library name "
            "(feature_maps, feature_maps.taylor2).",
            autocompletion=spec_files,
        ),
    ],
    shape: Shape = "B=1,T=4096,H=16",
    define: Defines = None,
    target: TargetName = "numpy",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="What to plan for.")] = "float32",
    machine: MachineName = "default",
    tuned: Tuned = False,
    json: Json = False,
) -> None:
    """Explain a plan, an error code, a function or a library name."""
    from lacc import driver, views

    with answering("explain", json) as answer:
        if Path(thing).is_file() or named_spec(thing):
            with report.working(f"planning {thing}"), usage():
                spec = load(Path(thing), define, answer.show)
                plan, tables = driver.explain_plan(
                    spec, read_shape(shape), target, dtype=dtype, machine=machine, tuned=tuned
                )
            answer.result |= {"variant": spec.name, "target": target, "dtype": dtype}
            answer.result |= {"shape": read_shape(shape), **findings.of_plan(plan, tables)}
            answer.say(views.of_explained(plan, tables))
            return
        name = thing.upper() if thing[:2].upper() == "LA" else thing
        try:
            text = driver.explain(name)
        except KeyError as fault:
            (hint,) = fault.args
            raise typer.BadParameter(
                f"{thing} is no spec, no code such as LA0301, no function and no library name"
                + (f"; {hint}" if hint else "")
            ) from None
        answer.result |= {"name": name, "text": text}
        answer.say(text.rstrip("\n"))


@app.command()
def run(
    context: typer.Context,
    spec: SpecFile,
    target: TargetName = "numpy",
    define: Defines = None,
    shape: Shape = "B=2,T=256,H=4",
    input_: Annotated[
        Path | None,
        typer.Option("--input", metavar="X.npz", help="Arrays by name instead of drawn ones."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of the arrays drawn.")] = "float32",
    mode: ModeName = "auto",
    chunk: Chunk = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the arrays drawn.")] = 0,
    machine: MachineName = "default",
    tuned: Tuned = False,
    json: Json = False,
) -> None:
    """Run a spec once and compare with the reference."""
    from lacc import driver, views
    from lacc.trial import trial

    with answering("run", json) as answer:
        together(mode, chunk)
        driver.usable(target)
        loaded = load(spec, define, answer.show)
        arrays = None if input_ is None else _arrays(input_, context)
        with report.working(f"compiling {loaded.name} to {target}"), usage():
            kernel = driver.compile(
                loaded, target, mode=mode, chunk=chunk, dtype=dtype, machine=machine, tuned=tuned
            )
        with report.working(f"running {loaded.name}"):
            reference = None if target == "reference" else driver.compile(loaded, "reference")
            try:
                result = trial(kernel, reference, arrays, read_shape(shape), dtype=dtype, seed=seed)
            except (ValueError, TypeError) as problem:
                raise typer.BadParameter(str(problem)) from None
        answer.say(f"{loaded.name} on {target}")
        rows = result.rows()
        answer.result |= {"variant": loaded.name, "target": target, **findings.of_trial(result)}
        if kernel.plan is not None:
            asked = "chunk" if mode == "auto" and chunk is not None else mode
            choice = views.of_choice(kernel.plan, result.dims, result.shape, asked)
            answer.result["plan"] = choice
            rows.append(("plan", choice))
        answer.say(report.pairs(rows))


@app.command()
def targets(json: Json = False) -> None:
    """List the targets and what each lacks here."""
    from lacc import driver

    with answering("targets", json) as answer:
        rows = [(t.name, t.missing(), t.about) for t in driver.TARGETS.values()]
        answer.result["targets"] = [
            {"name": name, "ready": not missing, "missing": missing, "emits": about}
            for name, missing, about in rows
        ]
        table = [(name, missing or "ready", about) for name, missing, about in rows]
        answer.say(report.table(("target", "here", "emits"), table))


def _arrays(path: Path, context: typer.Context) -> dict[str, object]:
    """The arrays of a file; options that say what to draw are refused."""
    import zipfile
    import zlib

    import numpy as np

    for name in ("shape", "dtype", "seed"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name} is for arrays that are drawn, --input gives them")
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise typer.BadParameter(f"{path} is no .npz file, as np.savez writes it")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as problem:
        raise typer.BadParameter(f"{path} is not a readable .npz file: {problem}") from None
