"""``lacc calibrate`` and ``lacc tune``: what this machine measures goes into the cache, tables and
an exit code come out.

A search that is interrupted ends with 130, and its best so far is kept."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lacc import report
from lacc.cli.app import app
from lacc.cli.options import Defines, Dtype, Shape, load, read_shape, writable
from lacc.cli.words import spec_files
from lacc.diagnostics import LaccError, error

if TYPE_CHECKING:
    from lacc.plan.machine import Machine
    from lacc.runtime.tuned import Record
    from lacc.spec.model import Spec
    from lacc.tuning.search import Search

Measured = Literal["c", "numpy", "all"]


@app.command()
def calibrate(
    target: Annotated[
        Measured, typer.Option("--target", "-t", help="Whose constants; all: of both.")
    ] = "all",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=600.0, help="To measure, for each target.")
    ] = 2.0,
    show: Annotated[
        bool, typer.Option("--show", help="Print what is kept, measure nothing.")
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what is kept.")] = False,
) -> None:
    """Measure the constants of this machine for `--machine local`.

    A rate that is under a tenth of what such a processor does stays as declared, with a warning;
    the others are kept."""
    from lacc.runtime import entries, machines
    from lacc.runtime.caching import BuildError
    from lacc.tuning import calibrate as probing

    if forget:
        with _kept("remove"):
            report.say(f"{entries.forget(machines.KIND)} removed from {_folder(machines.KIND)}")
        return
    for name in ("numpy", "c") if target == "all" else (target,):
        try:
            if show:
                machine, said = machines.local(name)
                report.say(f"{name}: {said}\n{_constants(name, machine)}\n")
                continue
            with report.counting("measuring") as progress:
                machine = probing.calibrate(name, seconds, progress)
            where = machines.device_label(name)
        except BuildError as problem:
            raise LaccError([error("LA0702", None, name=name, reason=str(problem))]) from None
        report.say(f"{name} on {where}\n{_constants(name, machine)}\n")
        if slow := probing.doubtful(name, machine):
            report.complain(
                f"warning: {name}: {', '.join(slow)} not kept but as declared, under a tenth of "
                "what such a processor does: others have it, or threads of NumPy's BLAS wait for "
                "one another"
            )
            report.complain("  = help: try again when it is idle, or with OPENBLAS_NUM_THREADS=1")
        with _kept("keep"):
            probing.keep(name, probing.sound(name, machine))
    if not show:
        report.say('plans take these with --machine local, or machine="local" in Python')


UNITS = {
    "flops": (1e9, "Gflop/s"),
    "map": (1e9, "Gflop/s"),
    "near": (1e9, "GB/s"),
    "far": (1e9, "GB/s"),
    "matrix": (1e-6, "µs"),
    "call": (1e-6, "µs"),
    "L2": (1 << 20, "MiB"),
    "L3": (1 << 20, "MiB"),
}


def _constants(target: str, machine: Machine) -> str:
    """What was measured beside what is declared."""
    from lacc.plan.machine import DEFAULT, MACHINES
    from lacc.runtime.machines import family

    machines = (machine, MACHINES[target][DEFAULT], MACHINES[target][family()])
    rows = [
        (name, unit, *(f"{getattr(m, name) / of:.3g}" for m in machines))
        for name, (of, unit) in UNITS.items()
    ]
    return report.table(("constant", "unit", "here", "default", family()), rows)


@app.command()
def tune(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="SPEC", help="A .la file.", autocompletion=spec_files),
    ] = None,
    target: Annotated[str, typer.Option("--target", "-t", help="c or numpy.")] = "c",
    define: Defines = None,
    shape: Shape = "B=1,T=2048,H=8",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of the arrays.")] = "float32",
    budget: Annotated[
        str, typer.Option("--budget", metavar="60s", help="Time for all of it: 30s, 5m.")
    ] = "60s",
    backward: Annotated[
        bool, typer.Option("--backward", help="Calls for gradients, not forward.")
    ] = False,
    both: Annotated[bool, typer.Option("--both", help="Forward, and calls for gradients.")] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write what is known of SPEC as JSON."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that lacc did not write.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Print what is kept of SPEC, or all.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove what is kept of SPEC, or all.")
    ] = False,
) -> None:
    """Measure which mode and chunk are the fastest for a shape, for `--tuned`."""
    from lacc import driver
    from lacc.runtime import tuned

    allowed = _seconds(budget)
    start = time.perf_counter()
    loaded = None if spec is None else load(spec, define)
    if list_ or forget:
        (_forget if forget else _list)(loaded)
        return
    if loaded is None:
        raise typer.BadParameter("Missing argument 'SPEC'.")
    if not driver.target_named(target).planned:
        raise typer.BadParameter(
            f"tune measures on c and numpy, got {target}: its kernels have no plan to choose from"
            + (" (its launches come from a model, or from TUNED)" if target == "triton" else "")
        )
    if export is not None:
        writable(export, force)
    driver.usable(target)
    sizes = {"B": 1, "T": 2048, "H": 8} | read_shape(shape)
    if small := [name for name, size in sizes.items() if size < 1]:
        raise typer.BadParameter(f"--shape: {small[0]} must be at least 1 to be measured")
    ways = tuned.WAYS if both else tuned.WAYS[backward:][:1]
    interrupted = _search(loaded, target, sizes, dtype, ways, start, allowed)
    if export is not None:
        key = tuned.key_of(loaded, target, dtype)
        records = [record for record in tuned.kept(key.begins) if record.rounds]
        try:
            report.write_whole({export: tuned.table_text(records, key)})
        except OSError as problem:
            raise typer.BadParameter(f"cannot write {export}: {problem.strerror}") from None
        report.say(f"{export}: {len(records)} of {loaded.name}, for --tuned-from")
    if interrupted:
        raise typer.Exit(130)


def _search(
    spec: Spec,
    target: str,
    sizes: Mapping[str, int],
    dtype: str,
    ways: tuple[str, ...],
    start: float,
    allowed: float,
) -> bool:
    """Searches each of ``ways`` in an equal part of the time that is left, and prints what comes
    of it. Returns whether it was interrupted."""
    from lacc import driver
    from lacc.tuning.search import Search

    try:
        with report.working(f"compiling {spec.name} to {target}"):
            kernel = driver.compile(spec, target, dtype=dtype)
        for n, way in enumerate(ways):
            search = Search(kernel, sizes, dtype, way)
            now = time.perf_counter()
            deadline = now + (start + allowed - now) / (len(ways) - n)
            with report.counting(f"tuning {spec.name} on {target}") as progress:
                search.run(deadline, progress)
            report.say(_outcome(search, target))
            if search.unkept:
                report.complain(f"warning: nothing of this is kept: {search.unkept}")
            if search.early == "interrupted":
                return True
    except KeyboardInterrupt:
        report.complain("interrupted before anything was measured")
        return True
    return False


def _outcome(search: Search, target: str) -> str:
    """What is known after a search."""
    from lacc.runtime.tuned import named, sizes

    record = search.record
    title = f"{record.key.variant} on {target}, {search.way}, {sizes(record.bucket)}"
    if len(search.candidates) < 2:
        only = "".join(map(named, search.candidates))
        return f"{title}: there is nothing to choose, it runs {only} only"
    lines = [f"{title}, {record.key.dtype}, {record.device}", _table(search), *_wrong(record)]
    if search.early:
        n, again = len(record.rounds), "the same command goes on from here"
        lines.append(f"{search.early} after {n} round{'s' * (n != 1)}; {again}")
    elif not search.fresh:
        lines.append(f"measured on {record.when}: nothing was measured anew")
    if not record.rounds:
        lines.append("nothing was measured, the model's choice stands")
    elif record.best == record.model:
        lines.append(f"best: {named(record.best)}, which is the model's choice")
    else:
        than = record.yardstick or record.model
        lines.append(
            f"best: {named(record.best)}, {record.gain:.2f} times as fast as {named(than)}"
        )
    return "\n".join(lines)


def _table(search: Search) -> str:
    """A row a candidate: what the model says, what was measured, and what was made of it."""
    from statistics import median

    from lacc.runtime.tuned import named

    record, rows = search.record, []
    relative = record.relative()
    ranked = [*relative, *(c for c in search.candidates if c not in relative)]
    for choice in ranked:
        times = record.times(choice)
        modelled = search.candidates.get(choice)
        marks = ["best"] * (choice == record.best) + ["the model's"] * (choice == record.model)
        marks += ["wrong"] * (choice in record.wrong)
        rows.append(
            (
                named(choice),
                "" if modelled is None else f"{modelled * 1e3:.3g}",
                f"{median(times) * 1e3:.3g}" if times else "-",
                f"{relative[choice]:.2f}" if choice in relative else "-",
                str(len(times)),
                f"{record.errors[choice]:.0e}" if choice in record.errors else "-",
                ", ".join(marks),
            )
        )
    header = ("candidate", "model ms", "ms", "relative", "rounds", "error", "")
    return report.table(header, rows)


def _wrong(record: Record) -> Iterator[str]:
    from lacc.runtime.tuned import named

    for choice, why in record.wrong.items():
        yield f"warning: {named(choice)} computes something else and is out: {why}"


def _list(spec: Spec | None) -> None:
    from lacc.runtime import tuned
    from lacc.runtime.tuned import named, sizes

    rows = []
    for record in tuned.kept("" if spec is None else f"{spec.ascii}-"):
        state = "" if record.done else f"{len(record.rounds)} rounds so far"
        if record.key.emitter != tuned.emitter():
            state = "of another lacc"
        key = record.key
        what = (key.variant, key.target, key.dtype, record.way, sizes(record.bucket))
        rows.append((*what, named(record.best), f"{record.gain:.2f}", record.when, state))
    if not rows:
        report.say(f"nothing is kept in {_folder(tuned.KIND)}")
        return
    header = ("variant", "target", "dtype", "way", "calls", "best", "x model", "measured", "")
    report.say(report.table(header, rows))


def _forget(spec: Spec | None) -> None:
    from lacc.runtime import entries, tuned

    with _kept("remove"):
        gone = entries.forget(tuned.KIND, "" if spec is None else f"{spec.ascii}-")
        report.say(f"{gone} removed from {_folder(tuned.KIND)}")


def _folder(kind: str) -> Path:
    from lacc.runtime import entries

    return entries.folder(kind)


@contextmanager
def _kept(what: str) -> Iterator[None]:
    """A cache that cannot be written to is said so, and is no failure."""
    try:
        yield
    except OSError as problem:
        report.complain(
            f"warning: cannot {what} anything: {problem.filename or ''} {problem.strerror}; "
            "set LACC_CACHE to a folder that can be written to"
        )


def _seconds(text: str) -> float:
    """``90``, ``90s`` or ``1.5m`` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|)", text.strip())
    seconds = float(found[1]) * (60 if found[2] == "m" else 1) if found else 0.0
    if not seconds:
        raise typer.BadParameter(f"--budget takes a time above 0 such as 60s or 5m, got {text!r}")
    return seconds
