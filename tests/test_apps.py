"""Applications run: small, to the end, and say what they lack before they begin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

IMAGES = ROOT / "examples" / "apps" / "autoregressive_images.py"


def run(program: Path, *words: str, without: Path) -> subprocess.CompletedProcess[str]:
    """What a program says where the modules in ``without`` hide those of their name."""
    return subprocess.run(
        [sys.executable, str(program), *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(without), str(ROOT)])},
        capture_output=True,
        text=True,
    )


def hide(folder: Path, name: str) -> None:
    """A module that cannot be imported."""
    (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('none', name={name!r})\n")


def test_images_are_drawn_and_decoding_is_compared(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    hide(tmp_path, "matplotlib")
    done = run(IMAGES, "--quick", "--out", str(tmp_path / "images.png"), without=tmp_path)
    assert done.returncode == 0, done.stderr
    for model in ("linear", "softmax"):
        bits = [float(x) for x in re.findall(rf"{model}: step \d+, ([\d.]+) bits", done.stdout)]
        assert bits[-1] < bits[0]
    apart = re.findall(r"steps and a forward differ by (\S+)", done.stdout)
    assert len(apart) == 2 and all(float(x) < 1e-4 for x in apart)
    held = re.findall(r"^linear, step +\d+ +\S+ +(\S+) KiB", done.stdout, re.M)
    assert len(held) == 3 and len(set(held)) == 1
    assert "matplotlib is not installed" in done.stdout
    assert not (tmp_path / "images.png").exists()


@pytest.mark.parametrize(
    ("words", "hidden", "why"),
    [
        ((), "sklearn", "needs sklearn: pip install"),
        (("--out", "nowhere/images.png"), "matplotlib", "there is no folder nowhere"),
        (("--steps", "0"), "matplotlib", "--steps takes a positive number"),
    ],
)
def test_images_say_what_is_wrong_at_once(
    tmp_path: Path, words: tuple[str, ...], hidden: str, why: str
) -> None:
    pytest.importorskip("sklearn")
    hide(tmp_path, hidden)
    done = run(IMAGES, "--quick", *words, without=tmp_path)
    assert done.returncode and why in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
