"""``lacc bench``: a spec and sizes go in, a table, a record and a page come out; or two records go
in, and what became slower comes out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacc import report
from lacc.cli.app import app
from lacc.cli.options import Defines, Dtype, load, read_shape

if TYPE_CHECKING:
    from lacc.bench.contestants import Contestant, Found

THREADS = ("LACC_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@app.command()
def bench(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="A .la file.")] = None,
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="c,numpy", help="Targets to measure.")
    ] = "c",
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="sdpa,torch,fla,hf,MODULE:FUNCTION=q,k,v",
            help="Softmax attention; the spec token by token in torch; functions of a package that "
            "compute the spec; one function (ends the list).",
        ),
    ] = "sdpa",
    peer: Annotated[
        list[Path] | None,
        typer.Option("--peer", metavar="FILE.py", help="Runs it and takes its list PEERS."),
    ] = None,
    define: Defines = None,
    tokens: Annotated[
        str, typer.Option("-T", metavar="128,512", help="Lengths, separated by commas.")
    ] = "128,512,2048",
    shape: Annotated[
        str, typer.Option("--shape", metavar="B=1,H=8", help="Sizes of a call beside T.")
    ] = "B=1,H=8",
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="forward,train,decode,cold",
            help="Whole sequences; with gradients; one token; one token that finds no warm cache.",
        ),
    ] = "forward",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of the arrays.")] = "float32",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Of every contestant.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each, at most.")] = 11,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, help="For each in a case, after three rounds.")
    ] = 2.0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Writes the record.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Writes a page with plots.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A.json B.json", help="What B changed against A."),
    ] = None,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower",
            metavar="10%",
            help="Of --compare: exit code 1 if one of ours became so much slower.",
        ),
    ] = None,
) -> None:
    """Measure a spec beside the machine's floor and beside others."""
    if compare is not None:
        if spec is not None:
            raise typer.BadParameter("--compare takes two records and no spec")
        _compare(*compare, _percent(fail_if_slower))
        return
    if fail_if_slower is not None:
        raise typer.BadParameter("--fail-if-slower is for --compare")
    if spec is None:
        raise typer.BadParameter("give a .la file, or --compare A.json B.json")
    for path in (json, html):
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}")
    _hold(threads)

    from lacc.bench import page
    from lacc.bench.case import Case
    from lacc.bench.measure import Effort, of_rates, run
    from lacc.bench.rates import rates
    from lacc.bench.record import Record, text, to_json
    from lacc.bench.record import write as write_files
    from lacc.runtime.caching import BuildError

    loaded = load(spec, define)
    sizes = read_shape(shape)
    if "T" in sizes:
        raise typer.BadParameter("--shape takes no T here: lengths go to -T")
    lengths, modes = _lengths(tokens), _modes(mode)
    cases = [
        Case(
            loaded,
            each,
            sizes.get("B", 1),
            T,
            sizes.get("H", 8),
            sizes.get("G", 1),
            dtype,
            threads,
        )
        for each in modes
        for T in lengths
    ]
    everybody = _everybody(target, against, peer or [])
    record = Record(_command(), {loaded.ascii: loaded.text})
    try:
        with report.working("measuring what the machine can do"):
            found = rates(threads)
        record.rates[str(threads)] = dict(of_rates(found))
    except BuildError as problem:
        report.complain(f"warning: no floors: {problem}")
        found = None
    with report.counting(f"measuring {loaded.name}") as progress:
        try:
            record.cases = run(cases, everybody, found, Effort(rounds, seconds), progress)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None
    report.say(text(record))
    texts: dict[Path, str] = {}
    if json is not None:
        texts[json] = to_json(record)
    if html is not None:
        texts[html] = page.html(record)
    try:
        write_files(texts)
    except OSError as problem:
        raise typer.BadParameter(f"cannot write: {problem.strerror}") from None


def _hold(threads: int) -> None:
    """Holds every library of this process to as many threads; what NumPy and torch read when they
    are loaded is set before they are."""
    for name in THREADS:
        os.environ[name] = str(threads)
    os.environ.pop("OPENBLAS_CORETYPE", None)  # it would pin a kernel for another processor


def _everybody(target: str, against: str, files: list[Path]) -> list[Contestant | Found]:
    from lacc.bench import contestants

    try:
        found: list[Contestant | Found] = [*contestants.targets(_words(target))]
        found += contestants.against(_listed(against))
        for path in files:
            found += contestants.from_file(path)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    return found


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _listed(text: str) -> list[str]:
    """The words of ``--against``; a function takes the arguments behind its ``=`` with it."""
    found: list[str] = []
    for word in _words(text):
        if found and "=" in found[-1] and ":" not in word:
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def _lengths(text: str) -> list[int]:
    words = _words(text)
    if not words or not all(w.isdigit() and 0 < int(w) < 10**9 for w in words):
        raise typer.BadParameter(f"-T takes lengths such as 128,512, got {text!r}")
    return [int(w) for w in words]


def _modes(text: str) -> list[str]:
    from lacc.bench.case import MODES
    from lacc.diagnostics import suggest

    for word in (words := _words(text)):
        if word not in MODES:
            hint = suggest(word, MODES)
            raise typer.BadParameter(
                f"--mode knows {', '.join(MODES)}, got {word!r}" + (f"; {hint}" if hint else "")
            )
    if not words:
        raise typer.BadParameter(f"--mode takes some of {', '.join(MODES)}")
    return words


def _percent(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise typer.BadParameter(f"--fail-if-slower takes 10%, got {text!r}") from None


def _command() -> str:
    import shlex

    words = sys.argv[1:] if sys.argv[1:2] == ["bench"] else ["bench", "..."]
    return shlex.join(["lacc", *words])


def _compare(before: Path, after: Path, percent: float | None) -> None:
    from lacc.bench import compare
    from lacc.bench.record import Unreadable, read

    try:
        found = compare.changes(read(before), read(after))
    except Unreadable as problem:
        raise typer.BadParameter(str(problem)) from None
    if not found:
        raise typer.BadParameter(f"{before} and {after} have no case in common")
    report.say(compare.text(found))
    if percent is None:
        return
    worse = compare.slower(found, percent)
    for change in worse:
        more = (change.ratio.value - 1) * 100
        report.complain(f"error: {change.who} became {more:.0f} % slower: {change.title}")
    if worse:
        raise typer.Exit(1)
