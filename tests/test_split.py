"""Chunk programs: the recurrence at every chunk length, in the phases that `split` gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from chunked import Run
from conftest import EXAMPLES, ROOT

from lacc import driver
from lacc.spec.format import unparse
from lacc.tile.derive import ChunkPass, Derived
from lacc.tile.program import Inst, Program
from lacc.tile.rewrite import free_carry_of_solves
from lacc.tile.split import FIXED, VARYING, phases
from lacc.verify.inputs import Sizes, draw

HEAD = """variant probe
dim K = 5, V = 3
input q, k, b : [K]
input v : [V]
"""
TAIL = """
state S : [K, V]
output o : [V]
o = S[t].T @ q
"""


def probe(*lines: str) -> str:
    """A spec with more inputs and an update."""
    *inputs, update = lines
    return HEAD + "\n".join(inputs) + TAIL + update + "\n"


def example(name: str) -> str:
    """A spec of `examples/` as text, whole where it extends another."""
    return unparse(driver.load(ROOT / "examples" / f"{name}.la").file)


KEYS = "input a : [K] where sum(a * a) <= 1"
CLASSES = {
    "identity": example("linear"),
    "normalized": example("linear_transformer"),
    "scalar": example("simple_gla"),
    "by head": example("retnet"),
    "rows": example("gla"),
    "columns": probe("input f : [V] where f <= 0", "S[t] = S[t-1] @ diag(exp(f)) + k @ v.T"),
    "both sides": probe(
        "input g : [K] where g <= 0",
        "input f : [V] where f <= 0",
        "S[t] = diag(exp(g)) @ S[t-1] @ diag(exp(f)) + k @ v.T",
    ),
    "linear space": probe("input f : [K] where 0 <= f <= 1", "S[t] = diag(f) @ S[t-1] + k @ v.T"),
    "any sign": probe("input f : [K]", "S[t] = diag(tanh(f)) @ S[t-1] + k @ v.T"),
    "before the update": example("rwkv6"),
    "low rank": example("deltanet"),
    "low rank, decayed": example("gated_deltanet"),
    "low rank, unmerged": probe(
        KEYS,
        "input g : [K] where g <= 0",
        "S[t] = diag(exp(g)) @ S[t-1] - a @ (a.T @ S[t-1]) + k @ v.T",
    ),
    "low rank on the right": probe(
        "input c : [V] where sum(c * c) <= 1",
        "input g : scalar where g <= 0",
        "S[t] = exp(g) * S[t-1] @ (I - c @ c.T) + k @ v.T",
    ),
    "several writes": probe("S[t] = 0.9 * S[t-1] + k @ v.T - 0.5 * b @ v.T"),
    "delayed": probe("S[t] = 0.9 * S[t-1] + k[t-1] @ v.T"),
    "entry by entry": example("hgrn"),
    "positions": example("rglru"),
    "elementwise": probe("input g : [K, V] where g <= 0", "S[t] = exp(g) * S[t-1] + k @ v.T"),
    "both directions": example("bidirectional"),
    "last state": example("linear_transformer_noncausal"),
}
CHUNKS = (1, 2, 3, 8, 16, 24, 40)
T = 40


@dataclass(frozen=True)
class Case:
    """A spec at small sizes, arrays for it, and what the reference makes of them."""

    derived: Derived
    x: dict[str, Any]
    state: dict[str, Any]
    outputs: dict[str, Any]
    final: dict[str, Any]
    cotangents: dict[str, Any]
    dstate: dict[str, Any]
    grads: dict[str, Any]


@cache
def case(name: str, tokens: int = T, regime: str = "interior") -> Case:
    text = CLASSES[name]
    named = (("K", 5), ("V", 3), ("D", 4))
    spec = driver.load(text, {d: n for d, n in named if f"dim {d} =" in text or f", {d} =" in text})
    kernel = driver.compile(spec, "reference")
    rng = np.random.default_rng(0)
    sizes = Sizes(B=1, T=tokens, H=2)
    x = draw(spec, sizes, seed=1, regime=regime)
    dims = {d.name: d.default for d in spec.dims.values()}
    state = {
        s.ascii: rng.standard_normal((1, 2, *(n.evaluate(dims) for n in s.shape)))
        for s in spec.states
        if s.direction != "value"
    }
    options = {} if kernel.signature.no_initial else {"initial_state": state}
    if kernel.signature.no_initial:
        state = {n: np.zeros_like(s) for n, s in state.items()}
    outs, final = kernel(**x, **options)
    outputs = {spec.outputs[0].ascii: outs} if len(spec.outputs) == 1 else outs._asdict()
    cts = {n: rng.standard_normal(o.shape) for n, o in outputs.items()}
    dstate = {n: rng.standard_normal(s.shape) for n, s in state.items()}
    ct = cts[spec.outputs[0].ascii] if len(cts) == 1 else cts
    grads = kernel.vjp(**x, cotangent=ct, state_cotangent=dstate, **options)
    return Case(driver.analyse(spec), x, state, outputs, final._asdict(), cts, dstate, grads)


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest number."""
    theirs = np.asarray(theirs)
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-12))


def errors(case: Case, C: int, backward: bool = True, **options: Any) -> dict[str, float]:
    """How far the chunk programs are from the reference."""
    run = Run(case.derived, case.x, case.state, C, **options)
    found = {name: apart(run.outputs[name], o) for name, o in case.outputs.items()}
    found |= {f"{n}, final": apart(run.state[n], case.final[n]) for n in case.state}
    if backward:
        grads, dstate = run.vjp(case.cotangents, case.dstate)
        found |= {f"d{n}": apart(grads[n], g) for n, g in case.grads.items() if n in case.x}
        first = case.grads.get("initial_state")
        if first is not None:
            found |= {f"d{n}, initial": apart(dstate[n], getattr(first, n)) for n in case.state}
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_chunk_programs_are_the_recurrence_at_every_chunk_length(name: str) -> None:
    for C in CHUNKS:
        found = errors(case(name), C)
        assert max(found.values()) <= 1e-9, (C, found)


@pytest.mark.parametrize("name", CLASSES)
def test_one_chunk_of_everything_is_the_parallel_form(name: str) -> None:
    for tokens in (1, 2, 7):
        found = errors(case(name, tokens), tokens)
        assert max(found.values()) <= 1e-9, (tokens, found)


@pytest.mark.parametrize("regime", ["strong", "reset", "weak", "boundary"])
@pytest.mark.parametrize(
    "name", ["scalar", "rows", "both sides", "before the update", "low rank, decayed"]
)
def test_gates_of_any_strength_give_the_recurrence(name: str, regime: str) -> None:
    for C in (3, 16):
        found = errors(case(name, T, regime), C)
        assert max(found.values()) <= 1e-9, (C, found)


# ---- a wrong instruction is noticed

FLIPPED = ("mask", "levels", "solve", "row", "place_row", "shift")
SWAPPED = {"add": "sub", "sub": "add", "prefix": "suffix", "suffix": "prefix"}
SWAPPED |= {"prefix_pull": "suffix_pull", "suffix_pull": "prefix_pull", "neg": "stop_gradient"}
SWAPPED |= {"largest": "smallest"}
IDLE = {
    "levels": {"suffix", "whole", "suffix_pull", "whole_pull"},
    "mask": {"mul", "meet_pull", "matrix_pull", "neg", "mask", "solve"},
}
"""Users that a strict value is the same to: ends of a chunk; what is strict by itself."""


def mutants(program: Program) -> list[tuple[int, Inst]]:
    """Every instruction with its mask, shift, suffix or sign wrong."""
    users: dict[int, set[str]] = {}
    for inst in program.body:
        for i in inst.ins:
            users.setdefault(i, set()).add(inst.op)
    found = []
    for n, inst in enumerate(program.body):
        if inst.op in SWAPPED:
            found.append((n, replace(inst, op=SWAPPED[inst.op])))
        elif inst.op in ("scan", "scan_back"):
            found.append((n, replace(inst, ins=(inst.ins[1], inst.ins[0], *inst.ins[2:]))))
        elif inst.op == "mask" and masked(program, inst.ins[0]):
            continue
        elif inst.op in FLIPPED and not users.get(n, set()) <= IDLE.get(inst.op, set()):
            value = (inst.value[0], not inst.value[1]) if inst.op == "levels" else not inst.value
            found.append((n, replace(inst, value=value)))
    return found


def masked(program: Program, n: int) -> bool:
    """Whether a tile of pairs is masked already."""
    inst = program.body[n]
    return inst.op == "mask" or (
        inst.op in ("neg", "mul") and any(masked(program, i) for i in inst.ins)
    )


def mutated(program: Program, n: int, inst: Inst) -> Program:
    return replace(program, body=(*program.body[:n], inst, *program.body[n + 1 :]))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("scalar", 12),
        ("rows", 10),
        ("both sides", 14),
        ("before the update", 12),
        ("identity", 4),
        ("low rank", 10),
        ("low rank, decayed", 30),
        ("low rank, unmerged", 35),
        ("entry by entry", 5),
    ],
)
def test_a_wrong_mask_shift_suffix_or_sign_is_noticed(name: str, least: int) -> None:
    right = case(name, 12)
    (stage,) = right.derived.passes
    count = 0
    for way in ("forward", "backward"):
        program = getattr(stage, way)
        for n, inst in mutants(program):
            wrong = replace(stage, **{way: mutated(program, n, inst)})
            derived = replace(right.derived, passes=(wrong,))
            found = errors(replace(right, derived=derived), 5, way == "backward")
            assert not max(found.values()) <= 1e-6, f"{way} %{n} {program.body[n]} as {inst}"
            count += 1
    assert count >= least


# ---- phases


def programs_of(text: Any) -> list[tuple[Program, str]]:
    derived = driver.analyse(driver.load(text))
    found = []
    for stage in (p for p in derived.passes if isinstance(p, ChunkPass)):
        found += [(stage.forward, "state"), (stage.backward, "dstate")]
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_phases_can_run_one_after_another_and_need_no_state_too_early(path: Any) -> None:
    for given, carried in programs_of(path):
        for program in (given, free_carry_of_solves(given, carried)):
            found, loops = phases(program, carried)
            of = {name: 2 * n + 1 for n, group in enumerate(loops) for name in group}
            reach: list[set[int]] = []
            varies: list[bool] = []
            for n, inst in enumerate(program.body):
                loaded = inst.op == "load" and inst.value[0] == carried
                reach.append({of[inst.value[1]]} if loaded else set())
                varies.append(inst.op == "load" and inst.value[0] in VARYING)
                varies[n] |= inst.value == ("index", "t") or any(varies[i] for i in inst.ins)
                reach[n] |= {loop for i in inst.ins for loop in reach[i]}
                assert all(found[i] <= found[n] for i in inst.ins)
                assert (found[n] == FIXED) == (not varies[n])
                assert all(loop < found[n] + found[n] % 2 for loop in reach[n])
            for name, n in program.outs.items():
                if name.startswith("state:"):
                    assert found[n] <= of[name.removeprefix("state:")]


def carry(name: str, carried: str) -> list[str]:
    """The ops of the loop over chunks after the solves have left it."""
    (program,) = (p for p, c in programs_of(CLASSES[name]) if c == carried)
    program = free_carry_of_solves(program, carried)
    found, _ = phases(program, carried)
    return [inst.op for inst, phase in zip(program.body, found) if phase % 2 and inst.ins]


@pytest.mark.parametrize("carried", ["state", "dstate"])
def test_the_carry_of_a_low_rank_recurrence_is_two_products_and_no_solve(carried: str) -> None:
    ops = carry("low rank, decayed", carried)
    assert ops.count("contract") == 2
    assert "solve" not in ops


@pytest.mark.parametrize("carried", ["state", "dstate"])
@pytest.mark.parametrize("name", ["scalar", "rows", "before the update", "both sides"])
def test_the_carry_of_a_diagonal_recurrence_has_no_product(name: str, carried: str) -> None:
    assert not {"contract", "gram", "solve", "decayed"} & set(carry(name, carried))
