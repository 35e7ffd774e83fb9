"""The text of C files in, the shared library that a compiler of this machine makes of them out.

This module stands alone (standard library only): its text is also pasted into emitted files. The
library is kept in a cache folder, $LACC_CACHE or `lacc` in $XDG_CACHE_HOME or ~/.cache, by the
digest of all that it comes from; its own digest is in its name, so one that is not whole is never
loaded.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FLAGS = (
    *("-O3", "-std=c11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-fPIC", "-shared"),
)
OPENMP = "-fopenmp"
X86, ARM = ("x86_64", "amd64", "i686"), ("aarch64", "arm64")
NATIVE = {"-march=native": X86, "-mprefer-vector-width=512": X86, "-mcpu=native": ARM}
"""The flags for this very processor, where compilers have some."""
FULL = (errno.ENOSPC, errno.EDQUOT)
SHOWN = 12  # lines of what a compiler said


class BuildError(RuntimeError):
    """A library that cannot be made here: why, and the way out."""


def compiler() -> tuple[str, ...]:
    """The command of the C compiler: $CC, else the first of cc, gcc, clang and ziglang that is
    there. Raises BuildError where there is none."""
    if given := shlex.split(os.environ.get("CC", "")):
        if shutil.which(given[0]) is None:
            raise BuildError(f"CC={shlex.join(given)}: there is no such compiler")
        return tuple(given)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    if find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    raise BuildError(
        "there is no C compiler: neither cc, gcc nor clang is on the PATH; install one, "
        "or `pip install ziglang`, or set CC"
    )


@cache
def compiler_version(command: tuple[str, ...]) -> str:
    """The first line that a compiler says of itself. Raises BuildError where it fails."""
    done = compiled([*command, "--version"], None)
    if done.returncode:
        raise BuildError(failure(done))
    return done.stdout.partition("\n")[0]


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


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """What a run of the compiler that failed says."""
    said = done.stdout.strip().splitlines()
    how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else "failed"
    lines = [f"the C compiler {how}: {shlex.join(done.args)}", *said[:SHOWN]]
    lines += [f"... and {len(said) - SHOWN} more lines"] if len(said) > SHOWN else []
    return "\n  ".join([*lines, "another compiler may do: set CC"])


@cache
def processor() -> str:
    """This machine's processor with all that sets it apart from others for a compiler."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = platform.processor()
    first = text.partition("\n\n")[0].splitlines()
    named = ("model name", "flags", "Features", "CPU part", "isa", "uarch")
    told = [line for line in first if line.startswith(named)] or [platform.processor()]
    return "\n".join([platform.system(), platform.machine(), *told])


@cache
def cache_folder() -> Path:
    """Where libraries are kept; a folder that goes with this process where that cannot be."""
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


def kept(name: str, key: str) -> Path | None:
    """The library ``name`` of ``key``, if it is there and whole; what is not whole is removed."""
    for path in sorted(cache_folder().glob(f"{name}-{key}-*.so")):
        try:
            if path.stem.rpartition("-")[2] == digest(path.read_bytes()):
                return path
            path.unlink()
        except OSError:
            continue  # another process was faster, or it cannot be read
    return None


def digest(*parts: bytes) -> str:
    """A short digest of bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:20]


def library(name: str, files: Mapping[str, str], defines: Sequence[str] = ()) -> Path:
    """The library of ``files``, texts by file name, of which ``name``.c is compiled with
    ``defines`` and the flags of $CFLAGS. Raises BuildError where it cannot be made: no compiler,
    one that fails, a disk that is full."""
    command = compiler()
    native = [flag for flag, names in NATIVE.items() if platform.machine().lower() in names]
    flags = [*FLAGS, *native, *defines, *shlex.split(os.environ.get("CFLAGS", ""))]
    made_of = [*(part for pair in sorted(files.items()) for part in pair), *command, *flags]
    made_of += [compiler_version(command), processor()]
    key = digest(*(part.encode() for part in made_of))
    if found := kept(name, key):
        return found
    folder = cache_folder()
    try:
        with passing_folder(folder) as work:
            for file, text in files.items():
                (work / file).write_text(text, "utf-8")
            built = work / f"{name}.so"
            build([*command, *flags, f"{name}.c", "-o", built.name, "-lm"], work)
            path = folder / f"{name}-{key}-{digest(built.read_bytes())}.so"
            os.replace(built, path)
            return path
    except OSError as problem:
        raise BuildError(full(folder, problem)) from None


def build(command: Sequence[str], folder: Path) -> None:
    """Runs the compiler, without OpenMP where it has none."""
    first = compiled([*command, OPENMP], folder)
    if not first.returncode:
        return
    second = compiled(command, folder)
    if second.returncode:
        raise BuildError(failure(second))
    warnings.warn(
        f"compiled without OpenMP, for one thread; with it, {failure(first)}",
        RuntimeWarning,
        stacklevel=2,
    )


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
