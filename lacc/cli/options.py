"""What commands share: the options that several take, and what becomes of a word given to one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lacc import report
from lacc.cli.words import spec_files, targets
from lacc.diagnostics import Diagnostic, render

if TYPE_CHECKING:
    from lacc.spec.model import Spec

Mode = Literal["auto", "chunk", "parallel", "recurrent"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]

Show = Callable[[Iterable[Diagnostic]], None]

SpecFile = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC",
        help="A .la file, or file.py:name for a decorated function.",
        autocompletion=spec_files,
    ),
]
SpecFiles = Annotated[
    list[Path],
    typer.Argument(metavar="SPEC...", help="One or more .la files.", autocompletion=spec_files),
]
Defines = Annotated[
    list[str] | None,
    typer.Option("-D", "--define", metavar="NAME=VALUE", help="Sets a dim or a const."),
]
TargetName = Annotated[
    str, typer.Option("--target", "-t", help="See `lacc targets`.", autocompletion=targets)
]
ModeName = Annotated[Mode, typer.Option("--mode", help="How to run; auto is the plan's choice.")]
Chunk = Annotated[int | None, typer.Option("--chunk", min=1, help="Tokens in a chunk.")]
Shape = Annotated[str, typer.Option("--shape", metavar="B=1,T=4096,H=16", help="Sizes of a call.")]
MachineName = Annotated[
    str,
    typer.Option(
        "--machine",
        metavar="default|local|avx512|...",
        help="Whose constants to plan with; local: what `lacc calibrate` measured here.",
    ),
]
Tuned = Annotated[
    bool, typer.Option("--tuned", help="Choose what `lacc tune` measured here, where it did.")
]
TunedFrom = Annotated[
    Path | None,
    typer.Option(
        "--tuned-from", metavar="FILE", help="The same from what `lacc tune --export` wrote."
    ),
]


def measured(tuned: bool, file: Path | None) -> bool | str:
    """What `driver.compile` takes of both options."""
    return str(file) if file is not None else tuned


@contextmanager
def usage() -> Iterator[None]:
    """A ValueError of the body as a wrong use of the command."""
    try:
        yield
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def together(mode: str, chunk: int | None) -> None:
    """Refuses a chunk for a mode that has none."""
    from lacc.runtime.arguments import chosen

    with usage():
        chosen(mode, chunk)


def show(diagnostics: Iterable[Diagnostic]) -> None:
    """Diagnostics on standard error."""
    if diagnostics := tuple(diagnostics):
        report.complain(render(diagnostics, color=report.colored(sys.stderr)) + "\n")


def named_spec(text: str) -> bool:
    """Whether ``text`` names a spec by its form: a .la file, or a function of a Python file."""
    return text.endswith((".la", ".py")) or re.search(r"\.py:\w+$", text) is not None


def load(path: Path, define: list[str] | None, show: Show = show) -> Spec:
    """The checked spec of a file; its warnings are shown. Raises LaccError, or a usage error."""
    from lacc import driver

    overrides = dict(map(_definition, define or ()))
    file = Path(re.sub(r"(?<=\.py):\w+$", "", str(path)))
    if not file.exists():
        raise typer.BadParameter(f"there is no file {file}")
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder")
    warnings: list[Diagnostic] = []
    try:
        spec = driver.load(path, overrides, warnings)
    except OSError as problem:
        raise typer.BadParameter(f"cannot read {file}: {problem.strerror}") from None
    show(warnings)
    return spec


def _definition(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), int(value) if re.fullmatch(r"\s*\d+\s*", value) else float(value)
    except ValueError:
        raise typer.BadParameter(f"-D takes NAME=VALUE with a number, got {text!r}") from None


def read_shape(text: str, dims: Iterable[str] = ()) -> dict[str, int]:
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


def out_option(said: str) -> Any:
    """The option -o, which says where to write."""
    return typer.Option("-o", "--out", metavar="PATH", parser=_out_path, help=said)


def _out_path(text: str) -> Path:
    """Where to write; an empty text, which a variable of a shell that is not set gives, would be
    the current folder."""
    if not text:
        raise typer.BadParameter("it is empty; . is the current folder")
    return Path(text)


def writable(path: Path, force: bool) -> None:
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder")
    if not force and report.foreign(path):
        raise typer.BadParameter(
            f"{path} is there and no file that lacc compiled; --force overwrites it"
        )


def into(folder: Path, files: Mapping[str, str], force: bool) -> None:
    """Writes the files of a target that has several."""
    if not folder.is_dir():
        if folder.exists() or folder.suffix:
            raise typer.BadParameter(f"{folder} is no folder, and {', '.join(files)} go into one")
        if not folder.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {folder.parent}")
    try:
        folder.mkdir(exist_ok=True)
        for name in files:
            writable(folder / name, force)
        report.write_whole({folder / name: text for name, text in files.items()})
    except OSError as problem:
        raise typer.BadParameter(f"cannot write to {folder}: {problem.strerror}") from None
    for name, text in files.items():
        report.say(f"{folder / name}: {len(text.splitlines())} lines")
