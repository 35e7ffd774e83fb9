"""`lacc fmt`, `new`, `completion`: what they write, print and refuse."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT
from test_cli import Run, lacc  # noqa: F401

from lacc import library, starting
from lacc.diagnostics import Source
from lacc.driver import load, parse

MESSY = "variant x\ninput q:[K]  # kept\n\n\ndim K=4\n"
NEAT = "variant x\n\ninput q : [K]                         # kept\n\ndim K = 4\n"

# ruff: noqa: F811


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    path = tmp_path / "x.la"
    path.write_text(MESSY)
    return path


# ---- fmt


def test_fmt_writes_the_file_and_is_done(lacc: Run, messy: Path) -> None:
    messy.chmod(0o640)
    assert lacc("fmt", str(messy)) == (0, f"{messy}: laid out\n", "")
    assert messy.read_text() == NEAT
    assert stat.S_IMODE(messy.stat().st_mode) == 0o640
    assert lacc("fmt", str(messy)) == (0, "", "")
    assert [path.name for path in messy.parent.iterdir()] == ["x.la"]


def test_fmt_follows_a_link(lacc: Run, messy: Path) -> None:
    link = messy.with_name("link.la")
    link.symlink_to(messy)
    assert lacc("fmt", str(link))[0] == 0
    assert link.is_symlink() and messy.read_text() == NEAT


def test_fmt_check_and_diff_write_nothing(lacc: Run, messy: Path) -> None:
    code, out, _ = lacc("fmt", "--check", str(messy))
    assert (code, out) == (1, f"{messy}: would change\n")
    code, out, _ = lacc("fmt", "--diff", str(messy))
    assert code == 0 and "-input q:[K]  # kept\n" in out and "+input q : [K]   " in out
    assert lacc("fmt", "--check", "--diff", str(messy))[0] == 1
    assert messy.read_text() == MESSY
    messy.write_text(NEAT)
    assert lacc("fmt", "--check", str(messy)) == (0, "", "")


def test_fmt_of_standard_input(lacc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSY.encode())))
    assert lacc("fmt", "-") == (0, NEAT, "")


def test_fmt_reports_what_does_not_parse_and_goes_on(lacc: Run, messy: Path) -> None:
    broken = messy.with_name("broken.la")
    broken.write_text("variant y\n\nS[t] = (a\n")
    code, out, err = lacc("fmt", str(broken), str(messy))
    assert code == 1
    assert "LA0105" in err and "laid out" in out
    assert broken.read_text() == "variant y\n\nS[t] = (a\n" and messy.read_text() == NEAT


def test_fmt_in_ascii(lacc: Run, messy: Path) -> None:
    messy.write_text("variant x\n\ninput β : scalar\n")
    assert lacc("fmt", "--ascii", str(messy))[0] == 0
    assert messy.read_text() == "variant x\n\ninput beta : scalar\n"
    code, _, err = lacc("fmt", "--ascii", "--check", str(ROOT / "examples" / "kda.la"))
    assert code == 0 and "α, β stay" in err


def test_fmt_of_what_is_no_spec_is_a_matter_of_usage(lacc: Run, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    for given in ("none.la", "x.py", "."):
        code, out, err = lacc("fmt", str(tmp_path / given))
        assert (code, out) == (2, "") and "Error" in err


def test_the_examples_are_laid_out(lacc: Run) -> None:
    assert lacc("fmt", "--check", str(ROOT / "examples")) == (0, "", "")


# ---- new


@pytest.mark.parametrize("example", [None, "gla", "kda", "hedgehog"])
def test_a_new_spec_checks(
    lacc: Run, example: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = lacc("new", "mine", *(["--from", example] if example else []))
    assert code == 0 and "lacc check -v mine.la" in out
    text = Path("mine.la").read_text(encoding="utf-8")
    assert "\nvariant mine\n" in text and "# expect" not in text
    code, _, err = lacc("check", "mine.la")
    assert (code, err) == (0, "")
    assert lacc("fmt", "--check", "mine.la")[0] == 0


def test_a_new_spec_keeps_the_words_of_the_example() -> None:
    words = [line for line in library.text("gla").splitlines() if "##" in line]
    assert all(line in starting.started("mine", library.text("gla")) for line in words)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_beginning(path: Path) -> None:
    file, problems = parse(Source("x.la", starting.started("mine", library.text(path.stem))))
    assert file is not None and not problems and file.base is None and file.name.text == "mine"
    assert library.variants() == sorted(path.stem for path in EXAMPLES)


def test_a_new_spec_of_several_files_means_what_the_example_does() -> None:
    spec, mine = (
        load(ROOT / "examples" / "kda.la"),
        load(starting.started("mine", library.text("kda"))),
    )
    assert [(a.ascii, a.per) for a in mine.args] == [(a.ascii, a.per) for a in spec.args]


def test_a_spec_extends_an_example_from_anywhere_and_a_file_beside_it_first(tmp_path: Path) -> None:
    mine = tmp_path / "mine.la"
    mine.write_text("variant mine extends gla\ninput s : scalar\ngate α = exp(g) * sigmoid(s)\n")
    assert [a.ascii for a in load(mine).args] == ["q", "k", "v", "g", "s"]
    (tmp_path / "gla.la").write_text(
        "variant gla\ninput x, g : scalar\nstate h : scalar\noutput o : scalar\n"
        "gate α = exp(g)\nh[t] = α * h[t-1] + x\no = h[t]\n"
    )
    assert [a.ascii for a in load(mine).args] == ["x", "g", "s"]


def test_new_refuses(lacc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.la").write_text("mine")
    for words, said in (
        (["my-gate"], "no name"),
        (["../x"], "no name"),
        (["3x"], "no name"),
        (["x", "--from", "glaa"], "did you mean `gla`?"),
        (["there"], "-o names another"),
        (["x", "-o", "none/x.la"], "there is no folder none"),
    ):
        code, out, err = lacc("new", *words)
        assert (code, out) == (2, "") and said in " ".join(err.replace("│", " ").split())
    assert Path("there.la").read_text() == "mine"
    assert lacc("new", "x", "-o", "other.la")[0] == 0 and Path("other.la").exists()


# ---- completion


def completed(folder: Path, *words: str) -> list[str]:
    """What a shell that has ``words`` gets for the last of them."""
    asked = {"COMP_WORDS": " ".join(["lacc", *words]), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [sys.executable, "-m", "lacc"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "_LACC_COMPLETE": "complete_bash"} | asked,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def test_words_complete(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "one.la").write_text("")
    (tmp_path / "two.la").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert completed(tmp_path, "ver") == ["verify"]
    assert completed(tmp_path, "check", "t") == ["two.la"]
    assert completed(tmp_path, "check", "s") == ["specs/"]
    assert completed(tmp_path, "verify", "specs/o") == ["specs/one.la"]
    assert completed(tmp_path, "compile", "two.la", "--target", "n") == ["numpy"]
    assert completed(tmp_path, "run", "two.la", "--mode", "ch") == ["chunk"]
    assert completed(tmp_path, "new", "x", "--from", "gated_d") == [
        "gated_deltanet",
        "gated_deltanet_raw",
        "gated_deltaproduct",
    ]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(lacc: Run, tmp_path: Path) -> None:
    code, script, _ = lacc("completion", "bash")
    assert code == 0
    (tmp_path / "lacc").write_text(f'#!/bin/sh\nexec {sys.executable} -m lacc "$@"\n')
    (tmp_path / "lacc").chmod(0o755)
    (tmp_path / "two.la").write_text("")
    ask = "COMP_WORDS=(lacc check t); COMP_CWORD=2; _lacc_completion lacc; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["two.la"], done.stderr


def test_completion_knows_its_shells(lacc: Run) -> None:
    for shell in ("zsh", "fish", "powershell"):
        assert "lacc" in lacc("completion", shell)[1]
    assert lacc("completion", "tcsh")[0] == 2
