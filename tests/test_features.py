"""Features in kernels of their own: what the kernels compute together, what each of them holds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import ROOT
from test_unroll import drawn

from lacc import driver
from lacc.ir.graph import Uncuttable
from lacc.spec.shapes import Size
from lacc.tile.derive import ChunkPass
from lacc.tile.fit import Tiles as Held
from lacc.tile.interp import interpret
from lacc.tile.partition import Part, from_starts, has_products, with_features_apart
from lacc.tile.pressure import fullest, matrix_product, polynomial
from lacc.tile.program import Program, Tiles, side_by_side, taken_apart
from lacc.tile.rewrite import for_kernels
from lacc.tile.unroll import unroll

WITH = ("dpfp", "performer", "rebased", "token_shift")


def programs(name: str) -> tuple[tuple[Program, str], ...]:
    stage = driver.analyse(driver.load(ROOT / "examples" / f"{name}.la")).passes[0]
    assert isinstance(stage, ChunkPass)
    forward, backward = (
        unroll(for_kernels(program, carried))
        for program, carried in ((stage.forward, "state"), (stage.backward, "dstate"))
    )
    return (forward, "state"), (from_starts(backward), "dstate")


def multiplies(part: Part) -> bool:
    return has_products(part.program) or any(
        matrix_product(part.program, inst) and {"state", "dstate", "kept"} & _kinds(part, inst.ins)
        for inst in part.program.body
    )


def _kinds(part: Part, ins: tuple[int, ...]) -> set[str]:
    return {part.program.body[i].value[0] for i in ins if part.program.body[i].op == "load"}


@pytest.mark.parametrize("name", WITH)
def test_kernels_compute_together_what_the_program_does(name: str) -> None:
    """One chunk, so that a loop finds the states, or their cotangents, as the program does."""
    every = driver.load(ROOT / "examples" / f"{name}.la").dims
    dims = {n: dim.size.evaluate(dict.fromkeys(every, 4)) for n, dim in every.items()}
    for program, carried in programs(name):
        loads = drawn(program, dims, 5)
        want = interpret(program, loads, dims, 5)
        got: dict[str, np.ndarray] = {}
        for part in with_features_apart(program, carried, {}, ()):
            kept = {
                ("kept", n): got[f"kept:{n}"]
                for n in part.program.loads("kept")
                if f"kept:{n}" in got
            }
            got |= interpret(part.program, loads | kept, dims, 5)
        for out, x in want.items():
            np.testing.assert_allclose(got[out], x, rtol=1e-9, atol=1e-12, err_msg=out)


@pytest.mark.parametrize("name", ("based", "rebased", "dpfp"))
def test_no_kernel_both_makes_features_and_multiplies(name: str) -> None:
    for program, carried in programs(name):
        parts = with_features_apart(program, carried, {}, ())
        assert sum(map(multiplies, parts)) > 1
        for part in filter(multiplies, parts):
            ops = {inst.op for inst in part.program.body}
            assert ops.isdisjoint(("concat", "fold", "unfold", "take", "roll"))


def test_without_features_there_is_nothing_to_take_apart() -> None:
    for program, carried in programs("gla"):
        with pytest.raises(Uncuttable):
            with_features_apart(program, carried, {}, ())


def test_parts_go_to_memory_and_come_from_it_by_themselves() -> None:
    f = Tiles(
        {
            "K": Size.of("K"),
            "K|1": Size.of("K"),
            "K|2": Size.of("K"),
            "F": Size.of("K") + Size.of("K"),
        }
    )
    x = f.load("input", "x", ("t", "K"))
    parts = [f.rename(x, {"K": f"K|{n}"}) for n in (1, 2)]
    whole = f.op("concat", tuple(parts), ("F", ("K|1", "K|2")))
    assert side_by_side(f.finish({"kept:a": whole})) != set()
    assert not side_by_side(f.finish({"kept:a": whole, "kept:b": f.neg(whole)}))
    kept = f.load("kept", "c", ("t", "F"))
    taken = f.op("take", (kept,), ("F", "K", Size.of("K"), 1))
    assert taken_apart(f.finish({"y": taken})) != set()
    assert not taken_apart(f.finish({"y": taken, "z": f.neg(kept)}))


def test_kernels_of_features_gather_nothing() -> None:
    source = driver.compile(ROOT / "examples" / "based.la", "triton").source
    assert source is not None
    kernels = re.findall(r"\ndef ((?:forward|backward)_0\w)\(([\s\S]*?)\n\n\n", source)
    assert len(kernels) > 8
    assert not [name for name, text in kernels if "tl.gather" in text]


def test_the_fullest_point_is_of_sizes_that_go_together() -> None:
    """1 + K entries are never fewer than K."""
    sizes = {str(size): polynomial(size) for size in (Size.of("K"), Size.of(1) + Size.of("K"))}
    one, other = (((1.0, (name, "t")),) for name in sizes)
    points: list[Held] = [one, other]
    assert fullest(points, sizes) == (other,)
