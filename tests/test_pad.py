"""Padded tiles: no padding reaches a result, and no mask is there that could be left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from padded import Padded
from programs import DIMS, Loads, arrays, gradient, passes, programs, reverse

from lacc import driver
from lacc.tile.derive import Pair
from lacc.tile.interp import interpret
from lacc.tile.pad import fill_padding
from lacc.tile.program import Program, prune, verify
from lacc.tile.rewrite import for_chunks
from lacc.tile.unroll import unroll

TOKENS = 5
MASKED = ("mamba2", "rwkv7", "mingru", "rglru", "gateloop", "mesa", "momentum_delta", "fox")
MASKED += ("retnet_rotated", "ttt_linear")
"""Examples that cannot do without masks."""
SPECS = [*EXAMPLES, *sorted((ROOT / "tests" / "specs").glob("*.la"))]


def lowered(path: Any) -> list[tuple[Program, dict[str, int]]]:
    """All programs of a spec as a target of padded tiles takes them, and the sizes of its dims."""
    derived = driver.analyse(driver.load(path))
    fours = dict.fromkeys(derived.spec.dims, 4)
    dims = {name: dim.size.evaluate(fours) for name, dim in derived.spec.dims.items()}
    pairs = [p for p in (*derived.passes, derived.token) if isinstance(p, Pair)]
    programs = (unroll(each) for p in pairs for each in (p.lowered, p.lowered_back))
    return [(program, {**dims, "#past": 3}) for program in programs]


def drawn(program: Program, dims: dict[str, int], sign: float = -1.0) -> Loads:
    """Numbers of a sign and below 1, for everything loaded; what is below 0 is a decay's logarithm
    too. Tokens and heads are counted."""
    rng = np.random.default_rng(0)
    sizes = {a: size.evaluate(dims) for a, size in program.sizes.items()} | {"t": TOKENS}
    found: Loads = {}
    for inst in program.body:
        if inst.op == "load":
            shape = [sizes[a] for a in inst.axes]
            counted = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
            found[inst.value] = counted if inst.value[0] == "index" else sign * rng.random(shape)
    return found


def somehow(program: Program, dims: dict[str, int]) -> Loads:
    """Numbers of which the program makes numbers, of either sign."""
    for sign in (-1.0, 1.0):
        loads = drawn(program, dims, sign)
        with np.errstate(all="ignore"):
            outs = interpret(program, loads, dims, TOKENS)
        if all(np.isfinite(x).all() for x in outs.values()):
            return loads
    raise AssertionError("no finite results")


def wrong(filled: Program, loads: Loads, dims: Any, want: Any, without: int | None = None) -> str:
    """The first result that padding reached, "" where it reached none."""
    run = Padded(filled, loads, dims, TOKENS, without)
    for name, x in run.outputs().items():
        y = np.broadcast_to(want[name], x.shape)
        scale = np.abs(y[np.isfinite(y)]).max(initial=1e-6)
        if not np.allclose(x, y, rtol=1e-8, atol=1e-9 * scale, equal_nan=True):
            return name
        if name.startswith("state:"):
            for p, part in run.paddings(filled.outs[name]):
                if part.any():
                    return f"{name} in the padding of {p}"
    return ""


def check(program: Program, loads: Loads, dims: Any) -> Program:
    """Nothing reached, and the masks are all that are needed."""
    filled = verify(fill_padding(program))
    assert fill_padding(filled) == filled
    with np.errstate(all="ignore"):
        want = interpret(program, loads, dims, TOKENS)
    assert not wrong(filled, loads, dims, want)
    return filled


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_padding_reaches_no_result(path: Any) -> None:
    for program, dims in lowered(path):
        check(program, somehow(program, dims), dims)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(program=programs(), seed=st.integers(0, 99))
def test_padding_reaches_no_result_of_random_programs(program: Program, seed: int) -> None:
    for each in (program, gradient(program), for_chunks(program, "state")):
        check(each, arrays(each, TOKENS, seed), DIMS)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(program=passes(), seed=st.integers(0, 99))
def test_padding_reaches_no_result_of_random_passes(program: Program, seed: int) -> None:
    for each in (program, reverse(program)):
        unrolled = unroll(each)
        check(unrolled, arrays(unrolled, TOKENS, seed), DIMS)


@pytest.mark.parametrize("name", MASKED)
def test_no_mask_could_be_left_out(name: str) -> None:
    masks = 0
    for program, dims in lowered(ROOT / "examples" / f"{name}.la"):
        loads = somehow(program, dims)
        filled = check(program, loads, dims)
        with np.errstate(all="ignore"):
            want = interpret(program, loads, dims, TOKENS)
        for n, inst in enumerate(filled.body):
            if inst.op == "within":
                assert wrong(filled, loads, dims, want, without=n), f"%{n} masks nothing"
                masks += 1
    assert masks


@pytest.mark.parametrize("name", ("gla", "gated_deltanet", "kda", "simple_gla", "deltaproduct"))
def test_where_padding_is_0_all_along_no_mask_is_needed(name: str) -> None:
    for program, _ in lowered(ROOT / "examples" / f"{name}.la"):
        assert fill_padding(program) == prune(program)
