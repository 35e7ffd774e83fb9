"""Results go in; text on a terminal and files on disk come out: tables, progress, fault reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TextIO

MARK = "Written by lacc"
"""What the first line of a file that lacc wrote contains; other files are not overwritten."""


def colored(stream: TextIO) -> bool:
    """Whether to colour what goes to ``stream``: a terminal, and no ``NO_COLOR``."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """One text to standard output, as it is."""
    print(text)


def complain(text: str) -> None:
    """One text to standard error, as it is."""
    print(text, file=sys.stderr)


def pairs(rows: Sequence[tuple[str, str]], indent: int = 2) -> str:
    """Label and text in two columns; lines of a longer text stand below its first."""
    width = max((len(label) for label, _ in rows), default=0) + 2
    out = []
    for label, text in rows:
        first, *rest = text.split("\n") or [""]
        out.append(" " * indent + f"{label:<{width}}{first}".rstrip())
        out += [" " * (indent + width) + line for line in rest]
    return "\n".join(out)


def sections(texts: Mapping[str, str]) -> str:
    """Texts under their headings; a single one as it is."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    parts = (f"# ---- {heading}\n\n{text.rstrip()}\n" for heading, text in texts.items())
    return "\n".join(parts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table; columns of numbers are flush right."""
    columns = list(zip(header, *rows))
    widths = [max(map(len, column)) for column in columns]
    right = [
        bool(rows) and all(cell[:1].isdigit() or cell[:1] in "-+<." for cell in column[1:])
        for column in columns
    ]
    lines = []
    for cells in (header, *rows):
        fitted = (
            f"{cell:>{width}}" if flush else f"{cell:<{width}}"
            for cell, width, flush in zip(cells, widths, right)
        )
        lines.append("  ".join(fitted).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on the terminal while the body runs, once that has taken a second."""
    if not sys.stderr.isatty():
        yield
        return
    import threading

    done = threading.Event()

    def spin() -> None:
        if done.wait(1.0):
            return
        from rich.console import Console

        with Console(stderr=True, no_color=not colored(sys.stderr)).status(what):
            done.wait()

    spinner = threading.Thread(target=spin, daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on the terminal's standard error, moved by (done, of how many, what is next); a line a
    minute where that is no terminal. Both say how long the rest takes, should it go on so."""
    if not sys.stderr.isatty():
        begun = said = monotonic()

        def line(done: int, total: int, current: str) -> None:
            nonlocal said
            if monotonic() - said > 60:
                said = monotonic()
                rest = (said - begun) / max(done, 1) * (total - done) / 60
                left = f"about {rest:.0f} min left" if done else "just begun"
                complain(f"{what}: {done} of {total}, {current}; {left}")

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, no_color=not colored(sys.stderr))
    with Progress(console=console, transient=True, speed_estimate_period=3600) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int, current: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{what}: {current}")

        yield advance


def foreign(path: Path) -> bool:
    """Whether ``path`` is there and was not written by lacc."""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return MARK.encode() not in file.readline(400)


def write_whole(texts: Mapping[Path, str]) -> None:
    """Each text in its file, all of them or, where writing fails, nothing. Raises OSError."""
    import tempfile

    mask = os.umask(0)
    os.umask(mask)
    written: dict[str, Path] = {}
    try:
        for path, text in texts.items():
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            written[name] = path
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~mask)
        for name in list(written):
            os.replace(name, written[name])
            del written[name]
    finally:
        for name in written:
            os.unlink(name)


def write_over(path: Path, text: str) -> None:
    """``text`` in the file that is at ``path``, whole or not at all; its mode stays, and a link
    stays a link. Raises OSError."""
    path = path.resolve()
    mode = path.stat().st_mode
    write_whole({path: text})
    path.chmod(mode & 0o7777)


def ignored_by_git(path: Path) -> str:
    """The rule that hides ``path`` from git, as ``.gitignore:12: *.la``; "" where none does."""
    path = path.absolute()
    if not any((folder / ".git").exists() for folder in path.parents):
        return ""
    import subprocess

    try:
        found = subprocess.run(
            ["git", "check-ignore", "--verbose", "--", path.name],
            cwd=path.parent,
            capture_output=True,
            text=True,
            timeout=2,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    rule = found.stdout.split("\t")[0]
    file, _, pattern = rule.rpartition(":")
    return "" if found.returncode or pattern.startswith("!") else f"{file}: {pattern}"


def fault(arguments: Sequence[str], specs: Sequence[Path], trace: str) -> Path:
    """A file with all that is needed to see an internal error again. Returns where it is."""
    import platform
    import shlex
    import tempfile

    from lacc import __version__

    command = shlex.join(["lacc", *arguments])
    parts = [
        f"lacc {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"in {Path.cwd()}:\n{command}",
        trace,
    ]
    for spec in specs:
        parts.append(f"---- {spec} ----\n{spec.read_text(encoding='utf-8', errors='replace')}")
    handle, name = tempfile.mkstemp(prefix="lacc-fault-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("\n\n".join(parts))
    return Path(name)
