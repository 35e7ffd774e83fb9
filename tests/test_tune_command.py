"""`lacc tune` at the command line: what it prints, keeps, and says of wrong use and full disks."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from searches import RETNET, broken, interrupt, own_cache, small
from test_cli import lacc  # noqa: F401  (a fixture)

from lacc import driver
from lacc.runtime.kernel import Kernel

Run = Callable[..., tuple[int, str, str]]
SMALL = ["-D", "K=8", "-D", "V=8", "-t", "numpy", "--shape", "B=1,T=64,H=2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_cache(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return small()


def test_the_command_tunes_lists_exports_and_forgets(
    lacc: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    code, out, err = lacc("tune", str(RETNET), *SMALL, "--both")
    assert (code, err) == (0, "")
    assert out.count("best: ") == 2 and "the model's" in out and "goes on" not in out
    file = tmp_path / "retnet.json"
    code, out, _ = lacc("tune", str(RETNET), *SMALL, "--both", "--export", str(file))
    assert code == 0 and out.count("nothing was measured anew") == 2
    assert file.read_text().startswith('{"by": "Written by lacc')
    assert len(json.loads(file.read_text())["records"]) == 2
    code, out, _ = lacc("tune", "--list")
    assert code == 0 and out.count("retnet") == 2
    code, out, _ = lacc("compile", str(RETNET), *SMALL[:6], "--tuned-from", str(file))
    assert code == 0 and "T up to 64 and heads up to 2 (K = 8, V = 8): " in out
    code, out, _ = lacc("tune", "--forget")
    assert code == 0 and out.startswith("2 removed")
    assert "nothing is kept" in lacc("tune", str(RETNET), "--list")[1]


def test_an_interrupted_command_says_what_it_has(
    lacc: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt(monkeypatch, 12)
    code, out, _ = lacc("tune", str(RETNET), *SMALL)
    assert code == 130
    assert "interrupted after" in out and "best: " in out


def test_a_wrong_candidate_is_named(
    lacc: Run,  # noqa: F811
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "compile", patched(driver.compile, broken(kernel, ("chunk", 16))))
    code, out, _ = lacc("tune", str(RETNET), *SMALL)
    assert code == 0
    assert "warning: chunk 16 computes something else and is out: " in out


def patched(compile: Callable[..., Kernel], instead: Kernel) -> Callable[..., Kernel]:
    return lambda spec, target, **options: (
        compile(spec, target) if target == "reference" else instead
    )


def test_a_spec_without_chunks_has_nothing_to_choose(lacc: Run) -> None:  # noqa: F811
    path = str(ROOT / "examples" / "nonlinear_delta.la")
    code, out, _ = lacc("tune", path, "-t", "numpy", "--shape", "T=16,H=1")
    assert code == 0
    assert "nothing to choose, it runs recurrent only" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "0"], "above 0"),
        (["--budget", "-3s"], "above 0"),
        (["--budget", "soon"], "above 0"),
        (["--shape", "Q=3"], "got Q"),
        (["--shape", "T=0"], "T must be at least 1"),
        (["-t", "triton"], "got triton"),
        (["-t", "reference"], "got reference"),
        (["--export", "/nowhere/x.json"], "no folder"),
    ],
)
def test_wrong_use_is_said(lacc: Run, words: list[str], said: str) -> None:  # noqa: F811
    code, _, err = lacc("tune", str(RETNET), *SMALL, *words)
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split())


def test_without_a_spec_there_is_nothing_to_tune(lacc: Run) -> None:  # noqa: F811
    code, _, err = lacc("tune")
    assert code == 2 and "SPEC" in err


def test_without_a_compiler_c_is_not_tuned(
    lacc: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    code, _, err = lacc("tune", str(RETNET), "-t", "c")
    assert code == 3 and "no-such-compiler" in err


def test_a_cache_that_cannot_be_written_to_is_a_warning(
    lacc: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LACC_CACHE", str(tmp_path / "file"))
    code, out, err = lacc("tune", str(RETNET), *SMALL)
    assert code == 0 and "best: " in out
    assert "nothing of this is kept" in err
    assert lacc("tune", "--list")[0] == 0
    assert lacc("tune", "--forget")[0] == 0


def test_a_full_disk_is_a_warning_and_leaves_nothing_behind(
    lacc: Run,  # noqa: F811
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        code, out, err = lacc("tune", str(RETNET), *SMALL)
    assert code == 0 and "best: " in out
    assert "No space left on device" in err
    assert [path for path in (cache / "tuned").iterdir() if path.name != ".lock"] == []
