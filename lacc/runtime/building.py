"""The text of C files in, the shared library that a compiler of this machine makes of them out.

This module stands alone (standard library only): its text is also pasted into emitted files, behind
`caching.py`, which keeps the library.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lacc.runtime.caching import BuildError, compiled, digest, failure, kept, made, version_text

FLAGS = (
    *("-O3", "-std=c11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-fPIC", "-shared"),
)
OPENMP = "-fopenmp"
X86, ARM = ("x86_64", "amd64", "i686"), ("aarch64", "arm64")
NATIVE = {"-march=native": X86, "-mprefer-vector-width=512": X86, "-mcpu=native": ARM}
"""The flags for this very processor, where compilers have some."""
SAID = ("the C compiler", "another compiler may do: set CC")
"""What a compiler that fails is called, and the way out."""


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
    return version_text(command, *SAID).partition("\n")[0]


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """What a run of the C compiler that failed says."""
    return failure(done, *SAID)


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

    def make(work: Path) -> Path:
        for file, text in files.items():
            (work / file).write_text(text, "utf-8")
        built = work / f"{name}.so"
        build([*command, *flags, f"{name}.c", "-o", built.name, "-lm"], work)
        return built

    return made(name, key, make)


def build(command: Sequence[str], folder: Path) -> None:
    """Runs the compiler, without OpenMP where it has none."""
    first = compiled([*command, OPENMP], folder)
    if not first.returncode:
        return
    second = compiled(command, folder)
    if second.returncode:
        raise BuildError(failed(second))
    warnings.warn(
        f"compiled without OpenMP, for one thread; with it, {failed(first)}",
        RuntimeWarning,
        stacklevel=2,
    )
