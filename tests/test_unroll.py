"""Programs without axes of ranks and of coupled states: they mean the same, and none is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import DIMS, SIZES, Loads, arrays, passes, reverse

from lacc import driver
from lacc.spec.shapes import Size
from lacc.tile.derive import ChunkPass
from lacc.tile.interp import interpret
from lacc.tile.program import Axes, Program, Tiles, verify
from lacc.tile.unroll import unroll

SPECS = [*EXAMPLES, *sorted((ROOT / "tests" / "specs").glob("*.la"))]
UNROLLED = {
    *("deltaproduct", "gated_deltaproduct", "erases_of_rank_two", "erases_across_a_decay"),
    *("two_ranks", "gateloop", "lru", "momentum_delta", "s4d", "s5", "titans_memory"),
    "two_groups_of_states",
}
"""Specs of which a program has such axes."""


def few(axes: Axes) -> bool:
    """Whether one of the axes is to be unrolled."""
    return any(a[0] in "#@" for a in axes)


def drawn(program: Program, dims: dict[str, int], tokens: int) -> Loads:
    """Numbers between -1 and 0, which are a decay's logarithm too, for everything loaded."""
    rng = np.random.default_rng(0)
    sizes = {a: size.evaluate(dims) for a, size in program.sizes.items()}
    sizes |= {"t": tokens, "s": tokens}
    return {
        inst.value: -rng.random([sizes[a] for a in inst.axes])
        for inst in program.body
        if inst.op == "load"
    }


def check(program: Program, loads: Loads, dims: dict[str, int], tokens: int) -> bool:
    """The program and the one that is unrolled are equal; whether there was something to do."""
    after = verify(unroll(program))
    assert not any(few(inst.axes) for inst in after.body)
    if not any(few(inst.axes) for inst in program.body):
        assert after is program
        return False
    assert not any(few((axis,)) for axis in after.sizes)
    assert not {"stack", "entry", "chain", "chain_back"} & {inst.op for inst in after.body}
    assert {name: after.body[n].axes for name, n in after.outs.items()} == {
        name: program.body[n].axes for name, n in program.outs.items()
    }
    with np.errstate(all="ignore"):
        want, got = (interpret(p, loads, dims, tokens) for p in (program, after))
    for name, x in want.items():
        scale = np.abs(x).max(initial=1e-3)
        got_ = np.broadcast_to(got[name], np.shape(x))
        np.testing.assert_allclose(got_, x, rtol=1e-12, atol=1e-12 * scale, err_msg=name)
    return True


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_programs_of_specs_mean_the_same(path: Any) -> None:
    derived = driver.analyse(driver.load(path))
    fours = dict.fromkeys(derived.spec.dims, 4)
    dims = {name: dim.size.evaluate(fours) for name, dim in derived.spec.dims.items()}
    pairs = [p for p in (*derived.passes, derived.token) if isinstance(p, ChunkPass)]
    found = [
        check(program, drawn(program, dims, tokens), dims, tokens)
        for pair in pairs
        for program in (pair.lowered, pair.lowered_back)
        for tokens in (1, 5)
    ]
    assert any(found) == (path.stem in UNROLLED)
    if derived.token is not None:
        assert unroll(derived.token.lowered) is derived.token.lowered
        assert unroll(derived.token.lowered_back) is derived.token.lowered_back


@settings(max_examples=60, deadline=None, derandomize=True)
@given(program=passes(), seed=st.integers(0, 99), tokens=st.integers(1, 6))
def test_random_passes_mean_the_same(program: Program, seed: int, tokens: int) -> None:
    for each in (program, reverse(program)):
        check(each, arrays(each, tokens, seed), DIMS, tokens)


@pytest.mark.parametrize("transposed", (False, True))
@pytest.mark.parametrize("axes", (("t",), ("t", "V")), ids=len)
def test_one_solve_of_all_ranks(axes: Axes, transposed: bool) -> None:
    f = Tiles({**SIZES, "#2": Size.of(2), "#2'": Size.of(2)})
    pairs = [[f.load("input", f"a{r}{c}", ("t", "s")) for c in range(2)] for r in range(2)]
    rows = [f.stack([f.op("mask", (a,), True) for a in row], "#2'") for row in pairs]
    right = f.stack([f.load("input", f"r{r}", axes) for r in range(2)], "#2")
    found = f.op("solve", (f.stack(rows, "#2"), right), transposed)
    outs = {f"x{r}": f.entry(found, "#2", r) for r in range(2)}
    program = verify(f.finish(outs))
    assert check(program, arrays(program, 5, 0), DIMS, 5)
    assert [inst.op for inst in unroll(program).body].count("solve_parts") == 1


@pytest.mark.parametrize("over", (("@2i",), ("@2i", "K")), ids=len)
@pytest.mark.parametrize("op", ("sum", "largest", "smallest"))
def test_what_goes_over_all_entries(op: str, over: Axes) -> None:
    f = Tiles({**SIZES, "@2i": Size.of(2), "@2k": Size.of(2)})
    x = f.stack([f.load("input", "x", ("t", "K")), f.load("param", "w", ("K",))], "@2i")
    mixed = f.contract(f.op("eye", (), ("@2i", "@2k")), f.rename(x, {"@2i": "@2k"}), ("@2k",))
    program = verify(f.finish({"y": f.op(op, (f.mul(x, mixed),), over)}))
    assert check(program, arrays(program, 5, 0), DIMS, 5)


def test_entries_that_are_plainly_0_are_left_out() -> None:
    f = Tiles({**SIZES, "@2i": Size.of(2), "@2k": Size.of(2)})
    x = f.stack([f.load("input", name, ("t",)) for name in "xy"], "@2k")
    turned = f.contract(f.op("eye", (), ("@2i", "@2k")), f.tanh(x), ("@2k",))
    after = unroll(f.finish({"y": f.entry(turned, "@2i", 1)}))
    assert [inst.op for inst in after.body] == ["load", "tanh"]
