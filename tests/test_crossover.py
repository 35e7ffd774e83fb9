"""From which T on a spec costs less than softmax attention: the number is where the model's costs
meet, and what it is made of is shown."""

from __future__ import annotations

from functools import cache

import pytest
from conftest import ROOT

from lacc import driver
from lacc.plan.choose import choose
from lacc.plan.crossover import BOTH, FORWARD, FUSED, MEMORY, TOKEN, Case, cases, total
from lacc.plan.machine import DEFAULT, MACHINES

HEADS = 8


@cache
def found(name: str, target: str = "c", **dims: int) -> dict[tuple[str, str], Case]:
    derived = driver.analyse(driver.load(ROOT / "examples" / f"{name}.la", dims))
    machine = MACHINES[target][DEFAULT]
    plan = choose(derived, machine=machine)
    return {(c.name, c.against): c for c in cases(derived, plan, machine, target, HEADS, 4)[1]}


@pytest.mark.parametrize("target", ["c", "numpy"])
@pytest.mark.parametrize("kind", [FORWARD, BOTH, TOKEN])
def test_costs_meet_at_the_crossover(target: str, kind: str) -> None:
    size = 256 if kind == TOKEN else 64
    case = found("gla", target, K=size, V=size)[kind, FUSED.name]
    T = case.crossover()
    assert T is not None and T > 1
    assert case.costs_less(T) and not case.costs_less(T - 1)
    assert all(case.costs_less(longer) for longer in (2 * T, 3 * T + 1, 50 * T))


def test_wider_heads_meet_later() -> None:
    forward = [found("gla", K=size, V=size)[FORWARD, FUSED.name] for size in (64, 256)]
    narrow, wide = (case.crossover() for case in forward)
    assert narrow is not None and wide is not None and narrow < wide


def test_memory_of_decoding_is_the_state_against_the_cache() -> None:
    """A cache row is K + V entries, a state K V: T = 64 x 64 / 128 = 32 is even."""
    (case,) = [c for c in found("gla", K=64, V=64).values() if c.name == MEMORY]
    assert case.crossover() == 33
    assert case.spec(1) == case.spec(10**6)
    assert total(case.spec(1)) / 1e9 == HEADS * 64 * 64 * 4


def test_attention_keeps_what_attention_keeps() -> None:
    every = found("softmax_attention")
    (memory,) = [c for c in every.values() if c.name == MEMORY]
    assert memory.crossover() is None
    windowed = found("sliding_window")
    (memory,) = [c for c in windowed.values() if c.name == MEMORY]
    assert memory.crossover() is not None


def test_what_does_not_decode_has_no_row_of_decoding() -> None:
    assert {name for name, _ in found("bidirectional")} == {FORWARD, BOTH}


def test_work_of_attention_is_quadratic_and_its_memory_linear() -> None:
    softmax = found("gla", K=64, V=64)[FORWARD, FUSED.name].softmax
    short, long = ({t.name: t.amount for t in softmax(T)} for T in (4096, 8192))
    assert 3.8 < long["products"] / short["products"] < 4.1
    assert long["through memory"] == 2 * short["through memory"]


def test_explain_shows_the_crossover_and_its_terms() -> None:
    spec = driver.load(ROOT / "examples" / "gla.la", {"K": 64, "V": 64})
    for T in (16, 65536):
        _, tables = driver.explain_plan(spec, {"B": 1, "T": T, "H": HEADS}, "c")
        (table,) = [t for t in tables if "from which T on" in t.title]
        expected = found("gla", K=64, V=64)[FORWARD, FUSED.name].crossover()
        assert (FORWARD, FUSED.name, f"T = {expected:,}") in [row[:3] for row in table.rows]
        (terms,) = [t for t in tables if t.title.startswith("terms") and FUSED.name in t.title]
        assert {row[0] for row in terms.rows} == {"the spec", "softmax"}
