"""``lacc verify``: a spec goes in, how its kernels or somebody's own function differ from the
reference comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lacc import findings, report
from lacc.cli.answer import Answer, Json, answering
from lacc.cli.app import app
from lacc.cli.options import Defines, Dtype, SpecFile, TargetName, load


@app.command()
def verify(
    spec: SpecFile,
    target: TargetName = "numpy",
    define: Defines = None,
    full: Annotated[bool, typer.Option("--full", help="Every case, not a selection.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FILE.py:FN",
            help="Compare the function FN of your file, which is run, with the spec.",
        ),
    ] = None,
    torch: Annotated[
        bool, typer.Option("--torch", help="Of --against: give it tensors, compare gradients.")
    ] = False,
    dtype: Annotated[
        Dtype | None,
        typer.Option("--dtype", help="Of --against: of its arrays; float64 if absent."),
    ] = None,
    json: Json = False,
) -> None:
    """Check all modes and gradients against the reference."""
    from lacc import driver

    with answering("verify", json) as answer:
        if against is not None:
            _against(answer, spec, define, against, torch, dtype or "float64")
            return
        if torch or dtype:
            raise typer.BadParameter(f"{'--torch' if torch else '--dtype'} is for --against")
        driver.prepare(target)
        loaded = load(spec, define, answer.show)
        with report.counting(f"verifying {loaded.name} on {target}") as progress:
            result = driver.verify(loaded, target, full=full, progress=progress)
        answer.result |= {"target": target, **findings.of_verified(result)}
        answer.say(str(result))
        if not result.passed:
            raise typer.Exit(1)


def _against(
    answer: Answer, spec: Path, define: list[str] | None, named: str, torch: bool, dtype: str
) -> None:
    """Compares somebody's function with the reference."""
    from importlib.util import find_spec

    from lacc import driver
    from lacc.verify.against import Theirs, against, own_function

    file, _, name = named.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise typer.BadParameter(f"--against takes FILE.py:FN, got {named!r}")
    if not Path(file).is_file():
        raise typer.BadParameter(f"there is no file {file}")
    if torch and find_spec("torch") is None:
        raise typer.BadParameter("--torch needs torch, which is not installed")
    loaded = load(spec, define, answer.show)
    reference = driver.compile(loaded, "reference")
    try:
        with report.working(f"comparing {named} with {loaded.name}"), answer.quiet():
            result = against(reference, own_function(Path(file), name), tensors=torch, dtype=dtype)
    except Theirs as fault:
        answer.result |= {"passed": False, "trace": fault.trace}
        answer.fault("against", str(fault), fault.trace)
        raise typer.Exit(1) from None
    answer.result |= findings.of_comparison(result)
    answer.say(str(result))
    if not result.passed:
        raise typer.Exit(1)
