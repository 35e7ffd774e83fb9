"""Programs without second names of axes: they mean the same, and what was summed over one has
rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT
from programs import SIZES
from test_unroll import drawn

from lacc import driver
from lacc.spec.shapes import Size
from lacc.tile.derive import ChunkPass
from lacc.tile.interp import interpret
from lacc.tile.plain_axes import plain_axes
from lacc.tile.program import Tiles, verify
from lacc.tile.rounds import round_axes
from lacc.tile.unroll import unroll

SPECS = [*EXAMPLES, *sorted((ROOT / "tests" / "specs").glob("*.la"))]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_programs_of_specs_mean_the_same(path: Path) -> None:
    derived = driver.analyse(driver.load(path))
    fours = dict.fromkeys(derived.spec.dims, 4)
    dims = {name: dim.size.evaluate(fours) for name, dim in derived.spec.dims.items()}
    for pair in (p for p in derived.passes if isinstance(p, ChunkPass)):
        for program in map(unroll, (pair.lowered, pair.lowered_back)):
            after = verify(plain_axes(program))
            loads = drawn(program, dims, 5)
            with np.errstate(all="ignore"):
                want, got = (interpret(p, loads, dims, 5) for p in (program, after))
            for name, x in want.items():
                scale = np.abs(x).max(initial=1e-3)
                np.testing.assert_allclose(got[name], x, rtol=1e-12, atol=1e-12 * scale)


def test_a_sum_over_a_second_name_has_rounds() -> None:
    f = Tiles({**SIZES, "K*": Size.of("K")})
    x, y = (f.load("input", name, ("t", "K")) for name in "xy")
    summed = f.sum(f.mul(*(f.rename(v, {"K": "K*"}) for v in (x, y))), ("K*",))
    program = f.finish({"z": f.mul(x, summed)})
    assert "K" not in round_axes(program)
    after = verify(plain_axes(program))
    assert "K" in round_axes(after) and "rename" not in {inst.op for inst in after.body}


def test_two_names_in_one_value_stay() -> None:
    f = Tiles({**SIZES, "K*": Size.of("K")})
    x = f.load("input", "x", ("t", "K"))
    program = f.finish({"z": f.mul(x, f.rename(x, {"K": "K*"}))})
    assert plain_axes(program) is program
