"""Libraries of emitted C files: built once and kept whole, and what is said where none can be."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from lacc.runtime import building, caching
from lacc.runtime.compiled import missing

SOURCE = {"seven.c": '#include "seven.h"\nint seven(void) { return SEVEN; }\n'}
FILES = {**SOURCE, "seven.h": "#define SEVEN 7\n"}
BUILD = f"""
import ctypes, sys
from lacc.runtime.building import library
print(ctypes.CDLL(str(library("seven", {FILES!r}))).seven())
"""

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv("LACC_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    caching.cache_folder.cache_clear()
    building.compiler_version.cache_clear()


def seven(path: Path) -> int:
    found: int = ctypes.CDLL(str(path)).seven()
    return found


def script(path: Path, lines: str) -> Path:
    """A compiler made of shell lines, which has the real one as $REAL."""
    path.write_text(f"#!/bin/sh\nREAL={shutil.which(building.compiler()[0])}\n{lines}\n")
    path.chmod(0o755)
    return path


def left(folder: Path) -> list[str]:
    """What is in a cache beside libraries."""
    return [path.name for path in folder.iterdir() if path.suffix != ".so"]


def child(**more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_library_is_built_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = folder.parent / "log"
    counting = script(folder.parent / "counting", f'echo "$@" >> {log}\nexec $REAL "$@"')
    monkeypatch.setenv("CC", str(counting))
    first = building.library("seven", FILES)
    assert seven(first) == 7
    assert building.library("seven", FILES) == first
    runs = [line for line in log.read_text().splitlines() if "--version" not in line]
    assert len(runs) == 1
    assert left(folder) == []


def test_libraries_of_other_text_or_flags_are_others(folder: Path) -> None:
    first = building.library("seven", FILES)
    header = building.library("seven", {**FILES, "seven.h": "#define SEVEN 8\n"})
    flags = building.library("seven", FILES, ["-DSEVEN_TOO"])
    assert len({first, header, flags}) == 3
    assert (seven(first), seven(header)) == (7, 8)


def test_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"no C compiler: .* `pip install ziglang`, or set CC"):
        building.library("seven", FILES)
    assert missing().startswith("there is no C compiler")
    monkeypatch.setattr(building, "find_spec", lambda name: name)
    assert building.compiler()[1:] == ("-m", "ziglang", "cc")


def test_a_compiler_that_is_named_but_not_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "ccache nothing-like-it")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(RuntimeError, match="CC=ccache nothing-like-it: there is no such compiler"):
        building.library("seven", FILES)


def test_a_compiler_that_fails_is_quoted(folder: Path) -> None:
    broken = {**FILES, "seven.c": "int seven(void) { return wrong; }\n"}
    with pytest.raises(RuntimeError) as problem:
        building.library("seven", broken)
    said = str(problem.value)
    assert said.startswith("the C compiler failed: ")
    assert "-O3" in said and "seven.c" in said and "wrong" in said
    assert said.endswith("another compiler may do: set CC")
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("kill -9 $$", "was killed by signal 9"),
        ('case "$@" in *--version*) exit 3;; esac', "failed: .* --version"),
        ("seq 40 >&2; exit 1", r"(?s)\b1\n.*\b12\n.* and 28 more lines"),
    ],
)
def test_a_compiler_that_ends_badly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str, words: str
) -> None:
    monkeypatch.setenv("CC", str(script(folder.parent / "bad", lines)))
    with pytest.raises(RuntimeError, match=words):
        building.library("seven", FILES)
    assert [*folder.glob("*.so")] == []


def test_a_compiler_that_cannot_be_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = script(folder.parent / "bad", "")
    bad.write_text("#!/no/such/shell\n")
    monkeypatch.setenv("CC", str(bad))
    with pytest.raises(RuntimeError, match=f"cannot start {bad}"):
        building.library("seven", FILES)


def test_a_compiler_without_openmp(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = 'case "$*" in *-fopenmp*) echo "cannot find -lomp" >&2; exit 1;; esac\nexec $REAL "$@"'
    monkeypatch.setenv("CC", str(script(folder.parent / "plain", lines)))
    with pytest.warns(RuntimeWarning, match="(?s)without OpenMP, for one thread.*-lomp"):
        assert seven(building.library("seven", FILES)) == 7


def test_a_cache_that_cannot_be_written_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    folder.parent.joinpath("file").write_text("")
    monkeypatch.setenv("LACC_CACHE", str(folder.parent / "file" / "cache"))
    path = building.library("seven", FILES)
    assert seven(path) == 7
    (warning,) = recwarn.list
    assert "no cache of compiled kernels" in str(warning.message)
    assert "set LACC_CACHE" in str(warning.message)
    assert building.library("seven", FILES) == path
    shutil.rmtree(path.parent)


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LACC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    given = (("HOME", ".cache/lacc"), ("XDG_CACHE_HOME", "lacc"), ("LACC_CACHE", "."))
    for variable, path in given:  # each goes before those that came before it
        monkeypatch.setenv(variable, str(tmp_path / variable))
        forget()
        assert caching.cache_folder() == tmp_path / variable / path
    forget()


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(caching.os, "replace", refuse)
        with pytest.raises(RuntimeError, match="No space left on device; make room, or set LACC_"):
            building.library("seven", FILES)
    assert [*folder.iterdir()] == []
    caching.cache_folder.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(caching.tempfile, "TemporaryFile", refuse)
        with pytest.raises(RuntimeError, match="No space left on device; make room"):
            building.library("seven", FILES)


def test_processes_that_build_the_same(folder: Path) -> None:
    children = [child() for _ in range(3)]
    for one in children:
        out, err = one.communicate(timeout=120)
        assert (out, one.returncode) == ("7\n", 0), err
    assert left(folder) == []


def test_a_killed_build_leaves_nothing_that_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = folder.parent / "slow"  # while it is there, the compiler stops half-way
    half = 'for out in "$@"; do case $out in *.so) printf "\\177ELF half" > $out;; esac; done'
    lines = f'if [ -e {slow} ] && [ "$2" ]; then {half}; exec sleep 60; fi; exec $REAL "$@"'
    command = str(script(folder.parent / "half", lines))
    slow.write_text("")
    killed = child(CC=command)
    while not [*folder.glob(".building-*/seven.so")]:
        time.sleep(0.02)
        assert killed.poll() is None, killed.communicate()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    slow.unlink()
    assert [*folder.glob("*.so")] == []
    monkeypatch.setenv("CC", command)
    assert seven(building.library("seven", FILES)) == 7
    (rest,) = left(folder)  # it may be a build that goes on; a day later it is none
    os.utime(folder / rest, (time.time() - 1e5,) * 2)
    building.library("seven", {**FILES, "seven.h": "#define SEVEN 9\n"})
    assert left(folder) == []


@pytest.mark.parametrize("harm", ["truncated", "changed", "empty"])
def test_a_library_that_is_not_whole_is_built_again(folder: Path, harm: str) -> None:
    path = building.library("seven", FILES)
    bytes_ = path.read_bytes()
    middle = len(bytes_) // 2
    spoiled = {
        "truncated": bytes_[:middle],
        "changed": bytes_[:middle] + bytes([bytes_[middle] ^ 1]) + bytes_[middle + 1 :],
        "empty": b"",
    }
    path.write_bytes(spoiled[harm])
    again = building.library("seven", FILES)
    assert again.read_bytes() == bytes_
    assert seven(again) == 7
