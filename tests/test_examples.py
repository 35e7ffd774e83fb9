"""Every example is checked against its own `# expect` lines, its source is named, its twin agrees.

# expect class: S diagonal                  what the analysis makes of each recurrence
# expect modes: recurrent chunk parallel    which modes exist
# expect o[0,4,1,:3]: 0.12 -0.5 1.3         the reference's numbers, float64, for the arrays that
                                            `draw` gives for B=1, T=8, H=2 and seed 0
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT

from lacc import driver
from lacc.diagnostics import Diagnostic
from lacc.spec.names import is_memory
from lacc.trial import draw_arguments
from lacc.views import class_of

SHAPE = {"B": 1, "T": 8, "H": 2}
TWINS = sorted((ROOT / "examples" / "python").glob("*.py"))
NUMBERS = re.compile(r"(\w+)\[(\d+),(\d+),(\d+),:(\d+)\]")

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def numbers(given: driver.Given, key: str) -> list[float]:
    """The reference's output at ``name[b,t,h,:n]``."""
    found = NUMBERS.fullmatch(key)
    assert found, key
    name, *at, count = found.groups()
    kernel = driver.compile(given, "reference")
    outputs, _ = kernel(**draw_arguments(kernel, SHAPE, dtype="float64", seed=0))
    output = outputs if len(kernel.spec.outputs) == 1 else getattr(outputs, name)
    return output[tuple(map(int, at))].ravel()[: int(count)].tolist()


def class_and_modes(path: Path) -> tuple[str, str]:
    """``S scalar; z identity`` and ``chunk parallel recurrent step``."""
    found = driver.analyse(driver.load(path))
    classes = (
        f"{', '.join(own)} {class_of(r)}"
        for r in found.recurrences
        if (own := [name for name in r.states if not is_memory(name)])
    )
    modes = (mode for mode, obstacle in found.modes.items() if obstacle is None)
    return "; ".join(classes), " ".join(modes)


@each_example
def test_an_example_is_fine_and_names_its_source(path: Path) -> None:
    warnings: list[Diagnostic] = []
    spec = driver.load(path, warnings=warnings)
    assert not warnings
    assert spec.name == path.stem
    assert re.search(r"arXiv:\d{4}\.\d{5}", spec.doc)


@each_example
def test_an_example_gives_the_numbers_it_expects(path: Path) -> None:
    expected = [(k, v) for k, v in driver.load(path).expects if NUMBERS.fullmatch(k)]
    assert expected, "an example needs a line such as `# expect o[0,4,1,:3]: ...`"
    for key, value in expected:
        np.testing.assert_allclose(
            numbers(path, key), [*map(float, value.split())], rtol=2e-6, atol=1e-9
        )


@each_example
def test_an_example_has_the_class_and_modes_it_expects(path: Path) -> None:
    expected = dict(driver.load(path).expects)
    assert (expected.get("class", ""), expected["modes"]) == class_and_modes(path)


@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.stem)
def test_a_python_twin_means_the_same(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    twin = getattr(module, path.stem)
    key = "o[0,7,1,:8]"
    assert numbers(twin, key) == numbers(ROOT / "examples" / f"{path.stem}.la", key)


def test_the_character_model_trains_and_decodes_as_it_trains() -> None:
    program = ROOT / "examples" / "apps" / "char_lm.py"
    done = subprocess.run(
        [sys.executable, str(program), "--steps", "4"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    losses = [float(x) for x in re.findall(r"([\d.]+) bits a character", done.stdout)]
    apart = re.search(r"logits differ by (\S+),", done.stdout)
    assert losses[-1] < losses[0]
    assert apart and float(apart[1]) < 1e-3


@pytest.mark.parametrize(
    ("spec", "why"), [("performer_noncausal", "causal"), ("nothing", "No such file")]
)
def test_the_character_model_refuses_before_it_trains(spec: str, why: str) -> None:
    program = ROOT / "examples" / "apps" / "char_lm.py"
    done = subprocess.run(
        [sys.executable, str(program), str(ROOT / "examples" / f"{spec}.la")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert why in done.stderr and "Traceback" not in done.stderr and not done.stdout
