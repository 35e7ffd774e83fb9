"""From the words after ``lacc`` come calls of the driver, and from their results text, files and an
exit code.

Exit codes: 0 fine, 1 spec error or failed verify, 2 usage, 3 target not usable here, 70 internal
error."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lacc import report
from lacc.diagnostics import Diagnostic, LaccError, render

if TYPE_CHECKING:
    from lacc.spec.model import Spec

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    suggest_commands=False,  # click has its own suggestion
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The compiler for linear attention: from a paper's recurrence to verified kernels.",
)

Mode = Literal["auto", "chunk", "parallel", "recurrent"]
STAGES = ("ast", "ir", "recurrence", "plan", "tile", "code", "report")
Arch = Literal["sm_80", "sm_90", "sm_100", "gfx942"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A .la file.")]
Defines = Annotated[
    list[str] | None,
    typer.Option("-D", "--define", metavar="NAME=VALUE", help="Sets a dim or a const."),
]
TargetName = Annotated[str, typer.Option("--target", "-t", help="See `lacc targets`.")]
ModeName = Annotated[Mode, typer.Option("--mode", help="How to run; auto is the plan's choice.")]
Chunk = Annotated[int | None, typer.Option("--chunk", min=1, help="Tokens in a chunk.")]
Shape = Annotated[str, typer.Option("--shape", metavar="B=1,T=4096,H=16", help="Sizes of a call.")]


@app.callback(invoke_without_command=True)
def lacc(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """The compiler for linear attention."""
    if version:
        from lacc import __version__

        report.say(f"lacc {__version__}")
        raise typer.Exit


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
            spec = _load(path, define)
        except LaccError as problem:
            _show(problem.diagnostics)
            failed = True
            continue
        if hidden := report.ignored_by_git(path):
            report.complain(f"warning: git ignores {path} ({hidden})")
            report.complain("  = help: add the line `!*.la` to .gitignore")
        from lacc import driver

        _show(driver.lints(spec))
        report.say(f"{path}: {spec.name} is fine")
        if verbose:
            report.say(driver.describe(spec))
    if failed:
        raise typer.Exit(1)


@app.command("compile")
def compile_(
    spec: SpecFile,
    target: TargetName = "numpy",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Where to write, for C a folder; standard output if absent.",
        ),
    ] = None,
    define: Defines = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="What to plan for.")] = "float32",
    mode: ModeName = "auto",
    chunk: Chunk = None,
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
    _together(mode, chunk)
    if "report" not in stages and (arch or shape):
        raise typer.BadParameter(f"{'--arch' if arch else '--shape'} is for --emit=report")
    folder = driver.target_named(target).folder and stages == ["code"]
    if out is not None and not folder:
        _writable(out, force)
    with report.working(f"compiling {spec.name} to {target}"):
        loaded = _load(spec, define)
        if out is not None and folder:
            files = driver.files(loaded, target, dtype=dtype, mode=mode, chunk=chunk)
            _into(out, files, force)
            return
        texts = {
            stage: driver.emit(loaded, stage, target, dtype=dtype, mode=mode, chunk=chunk)
            for stage in stages
            if stage != "report"
        }
    if "report" in stages:
        sizes = _shape(shape or "", loaded.dims)
        with report.working(f"compiling the kernels of {loaded.name}"):
            try:
                found = driver.build_report(
                    loaded,
                    target,
                    shape=sizes,
                    architecture=arch or "sm_90",
                    dtype=dtype,
                    mode=mode,
                    chunk=chunk,
                )
            except ValueError as problem:
                raise typer.BadParameter(str(problem)) from None
        texts["report"] = views.of_figures(found)
    text = report.sections(texts)
    if out is None:
        report.say(text.rstrip("\n"))
        return
    if stages != ["code"]:
        text = f"# {report.MARK} from variant {loaded.ascii}: {', '.join(stages)}\n\n{text}"
    try:
        report.write_whole({out: text})
    except OSError as problem:
        raise typer.BadParameter(f"cannot write {out}: {problem.strerror}") from None
    report.say(f"{out}: {len(text.splitlines())} lines, target {target}")


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
            spec = _load(Path(thing), define)
            text = driver.explain_plan(spec, _shape(shape), target, dtype=dtype)
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
    loaded = _load(spec, define)
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

    _together(mode, chunk)
    driver.usable(target)
    loaded = _load(spec, define)
    arrays = None if input_ is None else _arrays(input_, context)
    with report.working(f"compiling {loaded.name} to {target}"):
        kernel = driver.compile(loaded, target, mode=mode, chunk=chunk, dtype=dtype)
    with report.working(f"running {loaded.name}"):
        reference = None if target == "reference" else driver.compile(loaded, "reference")
        try:
            result = trial(kernel, reference, arrays, _shape(shape), dtype=dtype, seed=seed)
        except (ValueError, TypeError) as problem:
            raise typer.BadParameter(str(problem)) from None
    report.say(f"{loaded.name} on {target}")
    rows = result.rows()
    if kernel.plan is not None:
        asked = "chunk" if mode == "auto" and chunk is not None else mode
        rows.append(("plan", views.of_choice(kernel.plan, result.dims, result.shape, asked)))
    report.say(report.pairs(rows))


def _together(mode: str, chunk: int | None) -> None:
    """Refuses a chunk for a mode that has none."""
    from lacc.runtime.arguments import chosen

    try:
        chosen(mode, chunk)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


@app.command()
def targets() -> None:
    """List the targets and what each lacks here."""
    from lacc import driver

    rows = [(t.name, t.missing() or "ready", t.about) for t in driver.TARGETS.values()]
    report.say(report.table(("target", "here", "emits"), rows))


def _load(path: Path, define: list[str] | None) -> Spec:
    """The checked spec of a file; its warnings are shown. Raises LaccError, or a usage error."""
    from lacc import driver

    overrides = dict(map(_definition, define or ()))
    if not path.exists():
        raise typer.BadParameter(f"there is no file {path}")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder")
    if path.suffix == ".py":
        raise typer.BadParameter(f"{path} is Python: there, lacc.compile takes the function")
    warnings: list[Diagnostic] = []
    try:
        spec = driver.load(path, overrides, warnings)
    except OSError as problem:
        raise typer.BadParameter(f"cannot read {path}: {problem.strerror}") from None
    _show(warnings)
    return spec


def _definition(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), int(value) if re.fullmatch(r"\s*\d+\s*", value) else float(value)
    except ValueError:
        raise typer.BadParameter(f"-D takes NAME=VALUE with a number, got {text!r}") from None


def _stages(text: str) -> list[str]:
    """``recurrence,tile`` as a list."""
    stages = [part.strip() for part in text.split(",")]
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise typer.BadParameter(f"--emit knows {', '.join(STAGES)}, got {unknown[0]!r}")
    return stages


def _shape(text: str, dims: Iterable[str] = ()) -> dict[str, int]:
    """``B=1,T=4096,H=16`` as a dict; ``dims`` are names that may stand there too."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not re.fullmatch(r"\d{1,12}", value.strip()):
            raise typer.BadParameter(f"--shape takes B=1,T=4096,H=16, got {text!r}")
        found[name.strip()] = int(value)
    if unknown := set(found) - {"B", "T", "H", "G", *dims}:
        others = f"and the dims {', '.join(dims)}" if dims else "(dims go to -D)"
        raise typer.BadParameter(f"--shape knows B, T, H and G {others}, got {min(unknown)}")
    return found


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


def _writable(path: Path, force: bool) -> None:
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder")
    if not force and report.foreign(path):
        raise typer.BadParameter(
            f"{path} is there and no file that lacc compiled; --force overwrites it"
        )


def _into(folder: Path, files: Mapping[str, str], force: bool) -> None:
    """Writes the files of a target that has several."""
    if not folder.is_dir():
        if folder.exists() or folder.suffix:
            raise typer.BadParameter(f"{folder} is no folder, and {', '.join(files)} go into one")
        if not folder.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {folder.parent}")
    try:
        folder.mkdir(exist_ok=True)
        for name in files:
            _writable(folder / name, force)
        report.write_whole({folder / name: text for name, text in files.items()})
    except OSError as problem:
        raise typer.BadParameter(f"cannot write to {folder}: {problem.strerror}") from None
    for name, text in files.items():
        report.say(f"{folder / name}: {len(text.splitlines())} lines")


def _show(diagnostics: Iterable[Diagnostic]) -> None:
    if diagnostics := tuple(diagnostics):
        report.complain(render(diagnostics, color=report.colored(sys.stderr)) + "\n")
