"""``lacc compile``: a spec goes in, one file, a folder, or stages on the way come out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lacc import report
from lacc.cli.app import app
from lacc.cli.options import (
    Chunk,
    Defines,
    Dtype,
    MachineName,
    ModeName,
    SpecFile,
    Tuned,
    TunedFrom,
    into,
    load,
    measured,
    out_option,
    read_shape,
    together,
    usage,
    writable,
)
from lacc.cli.words import targets

STAGES = ("ast", "ir", "recurrence", "plan", "tile", "code", "report", "layer")
DEFAULTS = {"layer": "c", "report": "triton"}
"""The targets of stages that the NumPy target does not have, where none is given."""

Arch = Literal["sm_80", "sm_90", "sm_100", "gfx942"]


@app.command("compile")
def compile_(
    spec: SpecFile,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="See `lacc targets`; numpy if absent, of a layer c, of a report triton.",
            autocompletion=targets,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_option("Where to write, for C and CUDA a folder; standard output if absent."),
    ] = None,
    define: Defines = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="What to plan for.")] = "float32",
    mode: ModeName = "auto",
    chunk: Chunk = None,
    machine: MachineName = "default",
    tuned: Tuned = False,
    tuned_from: TunedFrom = None,
    emit: Annotated[
        str,
        typer.Option(
            "--emit",
            metavar="STAGE[,STAGE...]",
            help=f"Print these stages: {', '.join(STAGES)}.",
        ),
    ] = "code",
    arch: Annotated[
        Arch | None, typer.Option("--arch", help="Of --emit=report: the GPU; sm_90 if absent.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape", metavar="B=1,T=4096,H=16,K=128", help="Of --emit=report: sizes of the call."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that lacc did not write.")
    ] = False,
) -> None:
    """Compile a spec to one file, or print stages on the way."""
    from lacc import driver, views

    stages = _stages(emit)
    target = target or next((DEFAULTS[stage] for stage in stages if stage in DEFAULTS), "numpy")
    together(mode, chunk)
    if "report" not in stages and (arch or shape):
        raise typer.BadParameter(f"{'--arch' if arch else '--shape'} is for --emit=report")
    folder = driver.target_named(target).folder and stages == ["code"]
    if out is not None and not folder:
        writable(out, force)
    first = measured(tuned, tuned_from)
    with report.working(f"compiling {spec.name} to {target}"), usage():
        loaded = load(spec, define)
        if out is not None and folder:
            kernel = driver.compile(
                loaded, target, dtype=dtype, mode=mode, chunk=chunk, machine=machine, tuned=first
            )
            into(out, kernel.files, force)
            return
        texts = {
            stage: driver.emit(
                loaded,
                stage,
                target,
                dtype=dtype,
                mode=mode,
                chunk=chunk,
                machine=machine,
                tuned=first,
            )
            for stage in stages
            if stage not in ("report", "layer")
        }
        if "layer" in stages:
            from lacc.layers.text import text as layer_text

            kernel = driver.compile(loaded, target, dtype=dtype, mode=mode, chunk=chunk)
            texts["layer"] = layer_text(kernel)
    if "report" in stages:
        sizes = read_shape(shape or "", loaded.dims)
        with report.working(f"compiling the kernels of {loaded.name}"), usage():
            found = driver.build_report(
                loaded,
                target,
                shape=sizes,
                architecture=arch or "sm_90",
                dtype=dtype,
                mode=mode,
                chunk=chunk,
            )
        texts["report"] = views.of_figures(found)
    text = report.sections(texts)
    if out is None:
        report.say(text.rstrip("\n"))
        return
    if stages not in (["code"], ["layer"]):
        text = f"# {report.MARK} from variant {loaded.ascii}: {', '.join(stages)}\n\n{text}"
    try:
        report.write_whole({out: text})
    except OSError as problem:
        raise typer.BadParameter(f"cannot write {out}: {problem.strerror}") from None
    report.say(f"{out}: {len(text.splitlines())} lines, target {target}")


def _stages(text: str) -> list[str]:
    """``recurrence,tile`` as a list."""
    stages = [part.strip() for part in text.split(",")]
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise typer.BadParameter(f"--emit knows {', '.join(STAGES)}, got {unknown[0]!r}")
    return stages
