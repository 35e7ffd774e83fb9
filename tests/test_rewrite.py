"""Rewrites: the same numbers before and after, on random programs and on those of every example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import DIMS, SIZES, arrays, passes, programs, reverse

from lacc import driver
from lacc.spec.model import Spec
from lacc.tile.derive import ChunkPass
from lacc.tile.interp import interpret
from lacc.tile.operands import bare_operands
from lacc.tile.order import scheduled
from lacc.tile.program import Inst, Program, Tiles, verify
from lacc.tile.rebuild import rebuild
from lacc.tile.rewrite import PIPELINE, Rewrite, for_chunks, free_carry_of_solves

REWRITES: dict[str, Rewrite] = {
    "rebuild": lambda program, carried: rebuild(program, lambda f, n, new: None),
    **{rewrite.__name__: rewrite for rewrite, _ in PIPELINE},
    "for_chunks": for_chunks,
    "bare_operands": lambda program, carried: bare_operands(program),
    "scheduled": lambda program, carried: scheduled(program, ""),
}


def same(before: Program, after: Program, tokens: int, seed: int, dims: Any = DIMS) -> None:
    """Equal outputs for random arrays."""
    verify(after)
    loads = arrays(before, tokens, seed) if dims is DIMS else drawn(before, tokens, dims)
    with np.errstate(all="ignore"):
        want, got = (interpret(p, loads, dims, tokens) for p in (before, after))
    assert set(want) == set(got)
    for name, x in want.items():
        scale = max(np.abs(x[np.isfinite(x)]).max(initial=0), 1e-6) if np.size(x) else 1.0
        np.testing.assert_allclose(got[name], x, rtol=1e-8, atol=1e-9 * scale, err_msg=name)


def drawn(program: Program, tokens: int, dims: dict[str, int]) -> dict[tuple[str, str], Any]:
    """Small numbers below 0 for everything that a program of a spec loads."""
    rng = np.random.default_rng(0)
    lengths = {a: size.evaluate(dims) for a, size in program.sizes.items()}
    lengths |= {"t": tokens, "s": tokens}
    return {
        inst.value: -0.5 * rng.random([lengths[a] for a in inst.axes])
        for inst in program.body
        if inst.op == "load"
    }


@st.composite
def solves(draw: Any) -> tuple[Program, bool]:
    """A solve of sums, signs and products that hold the carried state, and whether something in
    it keeps the solve from being split."""
    f = Tiles(SIZES)
    load = f.load
    x, v, g = (
        load("input", "x", ("t", "K")),
        load("input", "y", ("t", "V")),
        load("input", "g", "t"),
    )
    state, other = load("state", "S", ("K", "V")), load("state", "R", ("K", "V"))
    system = f.mul(0.3, f.contract(x, f.rename(f.tanh(x), {"t": "s"}), ("K",)))
    blocked = False

    def right(depth: int) -> int:
        nonlocal blocked
        match draw(st.integers(0, 6 if depth else 3)):
            case 0:
                return f.mul(g, v)
            case 1 | 2:
                return f.contract(f.mul(x, f.sin(g)), draw(st.sampled_from([state, other])), "K")
            case 3:
                bent = draw(st.booleans()) and depth < 2
                blocked |= bent
                read = f.contract(x, state, "K")
                return f.tanh(read) if bent else f.neg(read)
            case 4:
                return f.neg(right(depth - 1))
            case n:
                return f.ew("add" if n == 5 else "sub", right(depth - 1), right(depth - 1))

    solved = f.op("solve", (system, f.arrange(right(3), ("t", "V"))), draw(st.booleans()))
    return f.finish({"o": solved, "state:S": f.contract(x, solved, ("t",))}), blocked


@settings(max_examples=120, deadline=None, derandomize=True)
@given(drawn=solves(), tokens=st.integers(1, 20), seed=st.integers(0, 99))
def test_a_solve_of_carried_values_is_split_unless_they_enter_it_bent(
    drawn: tuple[Program, bool], tokens: int, seed: int
) -> None:
    program, blocked = drawn
    after = free_carry_of_solves(program, "state")
    same(program, after, tokens, seed)
    waits = [_waits(after, inst) for inst in after.body if inst.op == "solve"]
    assert any(waits) <= blocked


def _waits(program: Program, solve: Inst) -> bool:
    """Whether a solve needs a carried state."""
    stack = list(solve.ins)
    while stack:
        inst = program.body[stack.pop()]
        if inst.op == "load" and inst.value[0] == "state":
            return True
        stack.extend(inst.ins)
    return False


RANDOM = {
    "programs": programs(),
    "passes": passes(),
    "solves": solves().map(lambda drawn: drawn[0]),
}


@pytest.mark.parametrize("name", REWRITES)
def test_random_programs_mean_the_same_and_in_some_there_is_something_to_rewrite(name: str) -> None:
    rewrite, fired = REWRITES[name], []

    def check(program: Program, tokens: int, seed: int) -> None:
        for each, carry in ((program, "state"), (reverse(program), "dstate")):
            after = rewrite(each, carry)
            same(each, after, tokens, seed)
            fired.append(after != each)

    for drawn in RANDOM.values():
        run = given(program=drawn, tokens=st.integers(1, 9), seed=st.integers(0, 99))(check)
        settings(max_examples=40, deadline=None, derandomize=True)(run)()
    assert any(fired) == (name != "rebuild")


@pytest.mark.parametrize("kind", RANDOM)
def test_every_step_on_the_way_of_random_programs_means_the_same(kind: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(program=RANDOM[kind], tokens=st.integers(1, 9), seed=st.integers(0, 99))
    def check(program: Program, tokens: int, seed: int) -> None:
        for each, carry in ((program, "state"), (reverse(program), "dstate")):
            step = each
            for rewrite, _ in PIPELINE:
                step = rewrite(step, carry)
                same(each, step, tokens, seed)

    check()


def small(spec: Spec) -> dict[str, int]:
    """Every dim 4, or what is computed from such."""
    fours = dict.fromkeys(spec.dims, 4)
    return {name: dim.size.evaluate(fours) for name, dim in spec.dims.items()}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_programs_of_examples_mean_the_same(path: Any) -> None:
    derived = driver.analyse(driver.load(path))
    dims = small(derived.spec)
    for stage in (p for p in derived.passes if isinstance(p, ChunkPass)):
        for program, carried in ((stage.forward, "state"), (stage.backward, "dstate")):
            step = program
            for rewrite, _ in PIPELINE:
                after = rewrite(step, carried)
                same(step, after, 5, 0, dims)
                same(program, rewrite(program, carried), 5, 0, dims)
                step = after
            same(step, scheduled(bare_operands(step), ""), 5, 0, dims)
