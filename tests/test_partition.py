"""Kernels that `lacc.tile.partition` and `lacc.tile.cuts` make of a program, and what crosses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from conftest import ROOT

from lacc.driver import analyse, load
from lacc.ir.graph import Uncuttable
from lacc.tile.cuts import cut
from lacc.tile.partition import Part, from_starts, partition
from lacc.tile.program import Program
from lacc.tile.rewrite import for_kernels
from lacc.tile.rounds import rounds
from lacc.tile.unroll import unroll


def backward(name: str) -> Program:
    stage = analyse(load(ROOT / "examples" / f"{name}.la")).passes[0]
    return from_starts(unroll(for_kernels(stage.backward, "dstate")))


def products(part: Part) -> int:
    return sum(inst.op == "contract" for inst in part.program.body)


@pytest.mark.parametrize("name", ["gla", "deltanet", "gated_deltanet"])
@pytest.mark.parametrize("most", [10, 16])
def test_kernels_that_hold_too_much_take_values_from_memory(name: str, most: int) -> None:
    program = backward(name)
    whole = partition(program, "dstate", {}, ())
    parts = cut(program, "dstate", {}, (), 64, lambda part: products(part) / most)
    if max(map(products, whole)) > most:
        assert max(map(products, parts)) < max(map(products, whole))
    given: set[str] = set()
    ends: list[str] = []
    for part in parts:
        starts = {"S_start", *given}
        assert part.program.loads("kept").keys() <= starts
        given |= {n.removeprefix("kept:") for n in part.program.outs if n.startswith("kept:")}
        ends += [n for n in part.program.outs if not n.startswith("kept:")]
    assert sorted(ends) == sorted(program.outs)


@pytest.mark.parametrize("axis", ["K", "V"])
def test_rounds_compute_every_value_before_its_use(axis: str) -> None:
    for part in partition(backward("gated_deltanet"), "dstate", {}, ()):
        if part.kind != "chunk":
            continue
        body, done = part.program.body, set[int]()
        for each in rounds(part.program, axis, spare=True):
            done |= {*each.before}
            assert all(i in done | {*each.before} for n in each.before for i in body[n].ins)
            for n in each.inside:
                assert all(i in done or i in each.inside for i in body[n].ins)
            done |= each.joined
            assert len({bool({*body[n].axes} >= {"t", "s"}) for n in each.joined}) < 2
        assert all(
            a < b
            for each in rounds(part.program, axis, spare=True)
            for a, b in pairwise(each.inside)
        )


def test_kernels_that_cannot_hold_less_are_refused() -> None:
    with pytest.raises(Uncuttable):
        cut(backward("gla"), "dstate", {}, (), 64, lambda part: 2.0)
