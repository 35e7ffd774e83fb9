"""What a compiled file comes from in, the file in a cache folder out: made once, and kept whole.

This module stands alone (standard library only): its text is also pasted into emitted files. The
folder is $LACC_CACHE, or `lacc` in $XDG_CACHE_HOME or ~/.cache. A file is kept there by the digest
of all that it comes from; its own digest is in its name, so one that is not whole is never loaded.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
SHOWN = 12  # lines of what a compiler said


class BuildError(RuntimeError):
    """What cannot be made here: why, and the way out."""


@cache
def cache_folder() -> Path:
    """Where files are kept; a folder that goes with this process where that cannot be."""
    given, home = os.environ.get("LACC_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(given) if given else Path(home or Path.home() / ".cache") / "lacc"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError) as problem:  # RuntimeError: no home
        if isinstance(problem, OSError) and problem.errno in FULL:
            raise BuildError(full(folder, problem)) from None
        passing = Path(tempfile.mkdtemp(prefix="lacc-"))
        atexit.register(shutil.rmtree, passing, ignore_errors=True)
        warnings.warn(
            f"no cache of compiled kernels ({problem}): each process compiles them anew, in "
            f"{passing}; set LACC_CACHE to a folder that can be written to",
            RuntimeWarning,
            stacklevel=2,
        )
        return passing


def full(folder: Path, problem: OSError) -> str:
    return f"cannot write to {folder}: {problem.strerror}; make room, or set LACC_CACHE to another"


def digest(*parts: bytes) -> str:
    """A short digest of bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:20]


def kept(name: str, key: str, ending: str = ".so") -> Path | None:
    """The file ``name`` of ``key``, if it is there and whole; what is not whole is removed."""
    for path in sorted(cache_folder().glob(f"{name}-{key}-*{ending}")):
        try:
            if path.stem.rpartition("-")[2] == digest(path.read_bytes()):
                return path
            path.unlink()
        except OSError:
            continue  # another process was faster, or it cannot be read
    return None


def made(name: str, key: str, make: Callable[[Path], Path]) -> Path:
    """The file ``name`` of ``key``, which ``make`` gives: it takes a folder to work in. Raises
    BuildError where the disk is full."""
    folder = cache_folder()
    try:
        with passing_folder(folder) as work:
            built = make(work)
            path = folder / f"{name}-{key}-{digest(built.read_bytes())}{built.suffix}"
            os.replace(built, path)
            return path
    except OSError as problem:
        raise BuildError(full(folder, problem)) from None


@contextmanager
def passing_folder(folder: Path) -> Iterator[Path]:
    """A folder in ``folder`` to build in; those that killed builds left a day ago go too."""
    for old in folder.glob(".building-*"):
        try:
            if old.stat().st_mtime < time.time() - 86400:
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            continue  # another process was faster
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compiled(command: Sequence[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
    """The end of a compiler's run. Raises BuildError where it cannot be started."""
    try:
        return subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as problem:
        raise BuildError(f"cannot start {command[0]}: {problem.strerror}") from None


def failure(done: subprocess.CompletedProcess[str], compiler: str, cure: str) -> str:
    """What a run of a compiler that failed says."""
    how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else "failed"
    return "\n  ".join([f"{compiler} {how}: {shlex.join(done.args)}", *shown(done.stdout), cure])


def shown(said: str) -> list[str]:
    """The first lines of what a compiler said, and how many more there are."""
    lines = said.strip().splitlines()
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"... and {more} more lines"] if more > 0 else [])]


def version_text(command: Sequence[str], compiler: str, cure: str) -> str:
    """All that a compiler says of itself. Raises BuildError where it fails."""
    done = compiled([*command, "--version"], None)
    if done.returncode:
        raise BuildError(failure(done, compiler, cure))
    return done.stdout
