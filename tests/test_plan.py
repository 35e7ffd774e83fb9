"""Plans: counts are the closed forms, the choice is the cheapest, every choice has its reason."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT
from test_split import CLASSES

from lacc import driver
from lacc.plan import cost
from lacc.plan.choose import CHUNKS, choose
from lacc.plan.explain import Spoken, explain, order_of
from lacc.plan.machine import DEFAULT, MACHINES
from lacc.plan.plan import Plan
from lacc.runtime.kernel import load
from lacc.tile.derive import Derived
from lacc.tile.rewrite import free_carry_of_solves, meet_once
from lacc.trial import draw_arguments

C, K, V = 64, 48, 80
HEADS, LONG = Spoken().heads, Spoken().tokens


@cache
def derived(name: str, **dims: int) -> Derived:
    return driver.analyse(driver.load(ROOT / "examples" / f"{name}.la", dims))


@cache
def plan(name: str, dtype: str = "float32", target: str = "numpy") -> Plan:
    return choose(derived(name), dtype=dtype, machine=MACHINES[target][DEFAULT])


def defaults(name: str) -> dict[str, int]:
    return {d.name: d.default for d in derived(name).spec.dims.values()}


# ---- counts

ADDITIVE = (2 * (C * (K + V) + 2 * K * V), 2 * (3 * C * K + 2 * C * V + 4 * K * V))
DELTA = (2 * (2 * C * K + 2 * C * V + 3 * K * V), 2 * (7 * C * K + 5 * C * V + 7 * K * V))
UNMERGED = (2 * 4 * (C * K + C * V + K * V), 2 * (13 * C * K + 10 * C * V + 9 * K * V))
SPLIT = 2 * C * K
"""Products of a token: forward, and backward with all but the states computed again. A solve counts
as the product with its inverse; one more of K columns is what the carry is freed with."""


@pytest.mark.parametrize(
    ("name", "forward", "backward", "split"),
    [
        ("scalar", *ADDITIVE, 0),
        ("rows", *ADDITIVE, 0),
        ("low rank", *DELTA, SPLIT),
        ("low rank, decayed", *DELTA, SPLIT),
        ("low rank, unmerged", *UNMERGED, SPLIT),
    ],
)
def test_products_are_those_of_the_closed_form(
    name: str, forward: int, backward: int, split: int
) -> None:
    (stage,) = driver.analyse(driver.load(CLASSES[name])).passes
    at = {"#C": C, "#log C": np.log2(C), "K": K, "V": V}

    def products(program: cost.Program) -> float:
        return cost.evaluate(cost.from_state(program).products, at) / C

    assert products(stage.forward) == forward
    assert (
        products(meet_once(free_carry_of_solves(stage.forward, "state"), "state"))
        == forward + split
    )
    assert products(free_carry_of_solves(stage.backward, "dstate")) == backward


@pytest.mark.parametrize("name", ["scalar", "rows", "low rank", "low rank, unmerged"])
def test_work_by_phase_adds_up_and_the_carry_has_what_needs_the_state(name: str) -> None:
    (stage,) = driver.analyse(driver.load(CLASSES[name])).passes
    program = free_carry_of_solves(stage.forward, "state")
    work = cost.work(program, "state")
    assert set(work) == {"fixed", "local", "carry", "output"}
    assert cost.total(work.values()) == cost.from_state(program)
    at = {"#C": C, "#log C": np.log2(C), "K": K, "V": V}
    carry = cost.evaluate(work["carry"].products, at)
    assert carry == (4 * C * K * V if name.startswith("low") else 0)


@pytest.mark.parametrize(
    ("name", "crossover"),
    [
        ("scalar", C + 2 * K * V / (K + V)),
        ("rows", C + 2 * K * V / (K + V)),
        ("low rank", C + (3 * K * V + C * K) / (2 * (K + V))),
    ],
)
def test_the_quadratic_order_pays_up_to_the_crossover_of_the_closed_form(
    name: str, crossover: float
) -> None:
    (stage,) = driver.analyse(driver.load(CLASSES[name])).passes
    program = free_carry_of_solves(stage.forward, "state")

    def at(size: cost.Size, tokens: int) -> float:
        return (
            cost.evaluate(size, {"#C": tokens, "#log C": np.log2(tokens), "K": K, "V": V}) / tokens
        )

    state = at(cost.from_state(program).products, C)
    pairs = cost.from_nothing(program).products
    below, above = int(np.floor(crossover)), int(np.floor(crossover)) + 1
    assert at(pairs, below) <= state < at(pairs, above)


# ---- choices


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_choice_is_the_cheapest_of_the_modes_that_exist(path: object) -> None:
    name = path.stem  # type: ignore[attr-defined]
    p, dims = plan(name), defaults(name)
    assert set(p.modes) == {
        m for m in ("parallel", "chunk", "recurrent") if derived(name).modes[m] is None
    }
    for T in (0, 1, 2, 15, 16, 17, 64, 100, 1000, LONG):
        mode, tokens = p.choose(T, HEADS, dims)
        assert mode in p.modes
        assert tokens == {"parallel": max(T, 1), "recurrent": 1}.get(mode, tokens)
        every = (
            [p.by_chunk(c, T, HEADS, dims) for c in CHUNKS if c <= T] if "chunk" in p.modes else []
        )
        every += [p.by_chunk(T, T, HEADS, dims)] if T and "parallel" in p.modes else []
        every += [p.by_token(T, HEADS, dims)] if "recurrent" in p.modes else []
        chosen = (
            p.by_token(T, HEADS, dims)
            if mode == "recurrent"
            else p.by_chunk(tokens, T, HEADS, dims)
        )
        assert chosen <= min(every, default=0.0) * (1 + 1e-12)


def test_the_choice_depends_on_the_dims_of_the_call_and_on_its_heads() -> None:
    p = plan("gated_deltanet")
    dims, heads = ({"K": n, "V": n} for n in (8, 64, 256)), (1, 8, 64)
    every = {p.choose(LONG, h, d) for d in dims for h in heads}
    assert len(every) > 1
    assert (
        p.by_chunk(64, LONG, 1, {"K": 8, "V": 8}) > p.by_chunk(64, LONG, 64, {"K": 8, "V": 8}) / 64
    )


def test_a_mode_or_chunk_that_is_asked_for_is_the_only_choice() -> None:
    one = choose(derived("gla"), mode="recurrent")
    assert one.choose(LONG, HEADS, {"K": 64, "V": 64}) == ("recurrent", 1)
    fixed = choose(derived("gla"), chunk=24)
    assert fixed.choose(LONG, HEADS, {"K": 64, "V": 64}) == ("chunk", 24)
    assert plan("gla").choose(100, 1, {"K": 8, "V": 8}, "parallel") == ("parallel", 100)
    assert plan("gla").choose(LONG, 1, {"K": 8, "V": 8}, "chunk")[0] == "chunk"


def test_blocks_stay_in_cache_and_hold_at_least_one_chunk() -> None:
    p = plan("gla")
    for heads in (1, 8, 1000):
        for tokens in CHUNKS:
            n = p.together(tokens, heads, {"K": 64, "V": 64})
            floats = n * heads * (tokens**2 + 3 * tokens * (3 * 64 + 64))
            assert n == 1 or floats <= p.block


def test_double_precision_halves_the_block() -> None:
    assert plan("gla", "float64").block * 2 == plan("gla").block


def test_a_plan_is_for_a_named_machine_and_comes_out_the_same() -> None:
    assert choose(derived("gla")) == choose(derived("gla")) == plan("gla")
    slow = replace(MACHINES["numpy"][DEFAULT], name="slow calls", call=1e-3)
    p = choose(derived("gla"), machine=slow)
    assert p.machine == "slow calls"
    assert p.choose(LONG, 1, defaults("gla"))[1] > plan("gla").choose(LONG, 1, defaults("gla"))[1]


def test_an_emitted_file_makes_the_choice_of_the_plan() -> None:
    kernel = driver.compile(ROOT / "examples" / "gla.la", K=16, V=16)
    assert kernel.source is not None
    assert "PLAN = Plan(" in kernel.source
    for reason in kernel.plan.why:
        assert reason in kernel.source


def test_what_a_call_could_do_is_a_table_with_the_choice_marked() -> None:
    for name, T in (("gla", 4096), ("hgrn", 0), ("gated_deltanet", 1)):
        p = plan(name)
        choices, *phases = explain(derived(name), p, {"B": 1, "T": T, "H": HEADS})
        (chosen,) = (row for row in choices.rows if row[-1] == "chosen")
        assert (chosen[0], int(chosen[1])) == p.choose(T, HEADS, defaults(name))
        assert bool(phases) == (chosen[0] != "recurrent")
        assert all(len(row) == len(t.header) for t in (choices, *phases) for row in t.rows)


def test_what_has_no_mode_says_why_and_has_no_table() -> None:
    text = (ROOT / "examples" / "bidirectional.la").read_text("utf-8")
    text = re.sub(r"R\[t\+1\]", "tanh(R[t+1])", text)
    found = driver.analyse(driver.load(text))
    p = choose(found)
    assert p.modes == ()
    assert sum(reason.startswith("no mode") for reason in p.why) == 2
    assert explain(found, p, {"T": 64}) == ()


def test_a_call_for_gradients_has_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = driver.compile(ROOT / "examples" / "gla.la", K=4, V=4)
    assert kernel.source is not None
    module = load("gla", kernel.source)
    p, dims = module["PROGRAM"].plan, {"K": 4, "V": 4}
    assert repr(p) == repr(replace(kernel.plan, why=()))
    assert p.back.by_chunk(64, LONG, HEADS, dims) > 2 * p.by_chunk(64, LONG, HEADS, dims)
    asked, choose_ = [], module["Plan"].choose
    monkeypatch.setattr(
        module["Plan"], "choose", lambda self, *call: asked.append(self) or choose_(self, *call)
    )
    x = draw_arguments(kernel, {"B": 1, "T": 40, "H": 1}, dtype="float64", seed=0)
    module["gla"](**x)
    module["gla_vjp"](**x)
    assert asked == [p, p.back]


# ---- reasons


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_choice_has_a_reason_with_numbers_and_what_was_not_chosen(path: object) -> None:
    name = path.stem  # type: ignore[attr-defined]
    why = plan(name).why
    for mode in ("chunk", "recurrent"):
        if derived(name).modes[mode] is not None:
            assert any(f"no mode {mode}: " in reason for reason in why)
    if "chunk" in plan(name).modes:
        forward, back = (reason for reason in why if "tokens a chunk:" in reason)
        assert back.startswith("with gradients")
        for reason in (forward, back):
            assert len(re.findall(r"\d with \d", reason)) == len(CHUNKS) - 1


@pytest.mark.parametrize("T", [64, 8192])
def test_reasons_of_a_call_agree_with_its_table(T: int) -> None:
    """Where the plan chooses chunks, the first reason names those; thresholds go no further."""
    spec = driver.load(ROOT / "examples" / "gla.la", {"K": 64, "V": 64})
    p, (candidates, *_) = driver.explain_plan(spec, {"B": 1, "T": T, "H": 2}, "c")
    (chosen,) = (row for row in candidates.rows if row[-1] == "chosen")
    lengths = {row[1] for row in candidates.rows if row[0] == "chunk"}
    first = next(reason for reason in p.why if "tokens a chunk:" in reason)
    if chosen[0] == "chunk":
        assert first.startswith(f"{chosen[1]} tokens a chunk")
    assert lengths <= {*re.findall(r"\d+(?= tokens a chunk)|(?<=with )\d+", first)}
    for reason in p.why:
        assert all(int(until) < T for until in re.findall(r"up to T = (\d+)", reason))


# ---- the table of choices

GOLDEN = ROOT / "tests" / "plans.txt"
LENGTHS = (1, 64, 512, 8192)
EXPLAINED = (
    *("efficient_attention", "gated_deltanet", "gla", "hgrn", "retnet"),
    *("mesa", "softmax_attention"),
)


def choice(name: str, T: int, target: str) -> str:
    """Mode, chunk and order for 8 heads at the dims of the file."""
    p, dims = plan(name, target=target), defaults(name)
    mode, tokens = p.choose(T, HEADS, dims)
    order = order_of(derived(name), mode)
    return " ".join(filter(None, (mode, str(tokens) if mode == "chunk" else "", order)))


def table() -> str:
    """Every example at every length, and the reasons of a few, for each target's machine."""
    lines = []
    for target in MACHINES:
        lengths = ", ".join(map(str, LENGTHS))
        lines.append(f"# {target}, {HEADS} heads: T = {lengths}; with gradients T = {LONG}")
        for path in EXAMPLES:
            every = [choice(path.stem, T, target) for T in LENGTHS]
            back = plan(path.stem, target=target).back
            assert back is not None
            mode, tokens = back.choose(LONG, HEADS, defaults(path.stem))
            lines.append(f"{path.stem}: {'; '.join(every)}; gradients {mode} {tokens}")
        for name in EXPLAINED:
            lines += ["", f"# {target}: why {name}", *plan(name, target=target).why]
    return "\n".join(lines) + "\n"


def test_choices_and_reasons_are_those_of_the_table() -> None:
    """After a change that is meant, `LACC_UPDATE=1 pytest tests/test_plan.py` writes it anew."""
    text = table()
    if os.environ.get("LACC_UPDATE"):
        GOLDEN.write_text(text, "utf-8")
    assert GOLDEN.read_text("utf-8") == text
