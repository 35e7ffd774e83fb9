"""``lacc check``, ``explain``, ``verify``, ``run``, ``targets``: text and an exit code come out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lacc import report
from lacc.cli.app import app
from lacc.cli.options import (
    Chunk,
    Defines,
    Dtype,
    ModeName,
    Shape,
    SpecFile,
    TargetName,
    load,
    read_shape,
    show,
    together,
)
from lacc.diagnostics import LaccError


@app.command()
def check(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC...", help="One or more .la files.")],
    define: Defines = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say what was found in each.")
    ] = False,
) -> None:
    """Report every problem in one spec or more."""
    failed = False
    for path in specs:
        try:
            spec = load(path, define)
        except LaccError as problem:
            show(problem.diagnostics)
            failed = True
            continue
        if hidden := report.ignored_by_git(path):
            report.complain(f"warning: git ignores {path} ({hidden})")
            report.complain("  = help: add the line `!*.la` to .gitignore")
        from lacc import driver

        show(driver.lints(spec))
        report.say(f"{path}: {spec.name} is fine")
        if verbose:
            report.say(driver.describe(spec))
    if failed:
        raise typer.Exit(1)


@app.command()
def explain(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="SPEC|CODE|NAME",
            help="A .la file, an error code (LA0301), a function (softplus) or a library name "
            "(feature_maps, feature_maps.taylor2).",
        ),
    ],
    shape: Shape = "B=1,T=4096,H=16",
    define: Defines = None,
    target: TargetName = "numpy",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="What to plan for.")] = "float32",
) -> None:
    """Explain a plan, an error code, a function or a library name."""
    from lacc import driver

    if Path(thing).is_file() or thing.endswith(".la"):
        with report.working(f"planning {thing}"):
            spec = load(Path(thing), define)
            text = driver.explain_plan(spec, read_shape(shape), target, dtype=dtype)
    else:
        try:
            text = driver.explain(thing.upper() if thing[:2].upper() == "LA" else thing)
        except KeyError as fault:
            (hint,) = fault.args
            raise typer.BadParameter(
                f"{thing} is no spec, no code such as LA0301, no function and no library name"
                + (f"; {hint}" if hint else "")
            ) from None
    report.say(text.rstrip("\n"))


@app.command()
def verify(
    spec: SpecFile,
    target: TargetName = "numpy",
    define: Defines = None,
    full: Annotated[bool, typer.Option("--full", help="Every case, not a selection.")] = False,
) -> None:
    """Check all modes and gradients against the reference."""
    from lacc import driver

    driver.prepare(target)
    loaded = load(spec, define)
    with report.counting(f"verifying {loaded.name} on {target}") as progress:
        result = driver.verify(loaded, target, full=full, progress=progress)
    report.say(str(result))
    if not result.passed:
        raise typer.Exit(1)


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
) -> None:
    """Run a spec once and compare with the reference."""
    from lacc import driver, views
    from lacc.trial import trial

    together(mode, chunk)
    driver.usable(target)
    loaded = load(spec, define)
    arrays = None if input_ is None else _arrays(input_, context)
    with report.working(f"compiling {loaded.name} to {target}"):
        kernel = driver.compile(loaded, target, mode=mode, chunk=chunk, dtype=dtype)
    with report.working(f"running {loaded.name}"):
        reference = None if target == "reference" else driver.compile(loaded, "reference")
        try:
            result = trial(kernel, reference, arrays, read_shape(shape), dtype=dtype, seed=seed)
        except (ValueError, TypeError) as problem:
            raise typer.BadParameter(str(problem)) from None
    report.say(f"{loaded.name} on {target}")
    rows = result.rows()
    if kernel.plan is not None:
        asked = "chunk" if mode == "auto" and chunk is not None else mode
        rows.append(("plan", views.of_choice(kernel.plan, result.dims, result.shape, asked)))
    report.say(report.pairs(rows))


@app.command()
def targets() -> None:
    """List the targets and what each lacks here."""
    from lacc import driver

    rows = [(t.name, t.missing() or "ready", t.about) for t in driver.TARGETS.values()]
    report.say(report.table(("target", "here", "emits"), rows))


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
