"""Functions on plain numbers agree with NumPy's, and checking a spec does not load NumPy."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT

from lacc import driver
from lacc.analysis.classify import recurrences
from lacc.analysis.ranges import Ranges
from lacc.analysis.stability import stability
from lacc.ir.late import NUMBERS
from lacc.ir.late import np as late

SAMPLES = (-math.inf, -800.0, -2.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 3.0, 800.0, math.inf, math.nan)
SINGLE = ("abs", "cos", "exp", "expm1", "log", "log1p", "negative", "sign", "sin", "sqrt", "tanh")
ARITY = {1: SINGLE, 3: ("where",)}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_function_of_numbers_is_numpys(name: str) -> None:
    arity = next((n for n, names in ARITY.items() if name in names), 2)
    for xs in itertools.product(SAMPLES, repeat=arity):
        with np.errstate(all="ignore"):
            want = getattr(np, name)(*map(np.float64, xs))
        got = getattr(late, name)(*xs)
        assert type(got) in (float, int, bool)
        np.testing.assert_allclose(got, want, rtol=1e-15, err_msg=f"{name}{xs}")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_check_loads_no_numpy(path: Path) -> None:
    """Unless no proof of stability is found and an input that grows is looked for."""
    spec = driver.load(path)
    ranges = Ranges(spec)
    if any(stability(spec, r, ranges).verdict != "proved" for r in recurrences(spec)):
        return
    program = (
        "import sys, lacc.driver as d; s = d.load(sys.argv[1]); d.lints(s); "
        "sys.exit('numpy' in sys.modules)"
    )
    words = [sys.executable, "-c", program, str(path)]
    assert subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode == 0
