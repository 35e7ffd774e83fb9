"""Tile programs: every op's gradient, random programs, what `verify` refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import DIMS, SIZES, arrays, check_gradient, gradient, passes, programs

from lacc.ir.ops import OPS
from lacc.spec.shapes import Size
from lacc.tile.interp import interpret
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import Inst, Program, Tiles, verify
from lacc.tile.rewrite import meet_once, solve_by_inverse

TOKENS = (1, 2, 3, 4, 5, 8, 9, 17)
Case = tuple[str, Callable[..., int]]


def build(case: Case) -> Program:
    """The program of a case: the axes of its loads, and what is made of them."""
    axes, make = case
    f = Tiles(SIZES)
    loads = [f.load("input", f"x{n}", tuple(a.split())) for n, a in enumerate(axes.split(","))]
    return verify(f.finish({"y": make(f, *loads)}))


def decays(op: str, axes: str, *others: str) -> list[Case]:
    """Cases of an op over decays, from logs and as factors of any sign, strict and not."""

    def case(log: bool, strict: bool) -> Case:
        def make(f: Any, g: int, *ins: int) -> int:
            g = f.neg(f.softplus(g)) if log else f.tanh(g)
            return f.op(op, (*ins, f.op("levels", (g,), (log, strict))))

        return ",".join((axes, *others)), make

    return [case(log, strict) for log in (True, False) for strict in (True, False)]


def apart(f: Any, a: int) -> int:
    """Matrices that are far from singular."""
    return int(f.add(a, f.mul(4.0, f.op("eye", (), ("K", "K'")))))


def coupled(f: Any, op: str, n: int, a: int, b: int) -> int:
    """A chain of n states, with a 0 and both signs in its matrices and what is added."""
    states = range(n)
    a = f.expand(a, ("t",))
    rows = [f.stack([f.mul(a, 0.3 * (i - j)) for j in states], "@0j") for i in states]
    added = f.stack([f.mul(b, 1.0 - i) for i in states], "@0i")
    return f.op(op, (f.stack(rows, "@0i"), added), ("@0i", "@0j"))


def _recurred(f: Tiles, a: int, i: int) -> int:
    """z[t] = logaddexp(z[t-1] + a, i), its values by one op and its gradient by another."""
    axes = f.axes(a)
    whole = f.logaddexp(f.op("tropical", (a, i), "logaddexp"), f.sub(f.op("running", (a,)), 50.0))
    before = f.op("shift", (f.stop_gradient(whole),), False)
    start = f.op("place_row", (f.expand(f.const(-50.0), axes[1:]),), False)
    moved = f.add(f.add(before, start), a)
    slope = f.sigmoid(f.sub(moved, i))
    return f.op("instead", (whole, f.op("through_time", (f.logaddexp(moved, i), slope))))


FOLD = ("K", "V", "(K V)")
SOLVED = ("t s,t", "t s,t V")
ENDS = ("t", "t K")
CASES: dict[str, list[Case]] = {
    "rename": [("t K", lambda f, x: f.rename(x, {"t": "s", "K": "K'"}))],
    "expand": [("K", lambda f, x: f.expand(x, ("t", "V"))), ("", lambda f, x: f.expand(x, "K"))],
    "contract": [
        ("t K,K V", lambda f, x, y: f.contract(x, y, ("K",))),
        ("t K V,K V", lambda f, x, y: f.contract(x, y, ("K", "V"))),
        ("t K,s K,t K", lambda f, x, y, z: f.contract(f.contract(x, y, "K"), z, "t")),
    ],
    "sum": [("t K V", lambda f, x: f.sum(x, ("t", "V")))],
    "largest": [("t K", lambda f, x: f.op("largest", (x,), ("K",)))],
    "smallest": [("t K", lambda f, x: f.op("smallest", (x,), ("t",)))],
    "mask": [("t s", lambda f, x, v=v: f.op("mask", (x,), v)) for v in (True, False)],
    "within": [("t K", lambda f, x: f.op("within", (x,), (("K",), 0.0)))],
    "row": [("t K V", lambda f, x, v=v: f.op("row", (x,), v)) for v in (True, False)],
    "place_row": [("K", lambda f, x, v=v: f.op("place_row", (x,), v)) for v in (True, False)],
    "shift": [("t K", lambda f, x, v=v: f.op("shift", (x,), v)) for v in (True, False)],
    "before": [("t K,K", lambda f, x, start: f.op("before", (x, start)))],
    "scan": [
        (axes, lambda f, a, b, start: f.op("scan", (a, b, start)))
        for axes in ("t K,t K,K", "t,t K V,K V", "t K,t V,V K")
    ],
    "chain": [
        (axes, lambda f, a, b, n=n: coupled(f, "chain", n, a, b))
        for n in (2, 3)
        for axes in ("t,t K", "t K,t", "t K,t K V", "K,t s")
    ],
    "chain_back": [
        (axes, lambda f, a, b, n=n: coupled(f, "chain_back", n, a, b))
        for n in (2, 3)
        for axes in ("t,t K", "t K,t")
    ],
    "stack": [("t,t K,K", lambda f, *xs: f.stack(xs, "@0i"))],
    "entry": [
        ("t,t K", lambda f, *xs, n=n: f.entry(f.tanh(f.stack(xs, "@0i")), "@0i", n)) for n in (0, 1)
    ],
    "through_time": [(axes, _recurred) for axes in ("t K,t K", "t,t")],
    "instead": [("t K", lambda f, x: f.op("instead", (f.exp(x), f.exp(x))))],
    "solve": [
        (axes, lambda f, a, r, v=v: f.op("solve", (f.mul(0.3, a), r), v))
        for axes in SOLVED
        for v in (True, False)
    ],
    "dense_solve": [
        (axes, lambda f, a, b: f.op("dense_solve", (apart(f, a), b), ("K", "K'")))
        for axes in ("t K K',t K", "K K',t K V", "t K K',K")
    ],
    "prefix": [case for axes in ENDS for case in decays("prefix", axes)],
    "suffix": [case for axes in ENDS for case in decays("suffix", axes)],
    "whole": [case for axes in ENDS for case in decays("whole", axes)],
    "matrix": decays("matrix", "t"),
    "gram": decays("gram", "t K", "t K", "t K"),
    "decayed": decays("decayed", "t V", "t s", "t V"),
    "take": [("t K", lambda f, x: f.op("take", (x,), ("K", "P", Size.of(1), 2)))],
    "put": [("t P", lambda f, x: f.op("put", (x,), ("K", "P", Size.of(1), 2)))],
    "concat": [
        ("t K,t V", lambda f, x, y: f.op("concat", (x, y), ("K+V", ("K", "V")))),
        ("K,t V", lambda f, x, y: f.op("concat", (x, y), ("K+V", ("K", "V")))),
    ],
    "roll": [("t K", lambda f, x: f.op("roll", (x,), ("K", 3)))],
    "default": [("t K,K", lambda f, x, y: f.op("default", (x, f.expand(y, "t"))))],
    "fold": [("K t V", lambda f, x: f.op("fold", (x,), FOLD))],
    "unfold": [("t K V", lambda f, x: f.op("unfold", (f.op("fold", (f.tanh(x),), FOLD),), FOLD))],
}
CASES["levels"] = CASES["prefix"]
LEAVES = {"load", "const", "size", "eye", "age"}
UNROLLED = {"chain_parts", "solve_parts"}
"""What `unroll` makes of others, tested with it."""


def test_every_row_with_a_gradient_has_a_case_and_every_other_row_is_used() -> None:
    rules = {name for name, row in TILE_OPS.items() if row.grad is not None}
    assert set(CASES) == rules
    used: set[str] = set()
    for name, cases in CASES.items():
        for case in cases:
            program = build(case)
            assert name in {inst.op for inst in program.body}
            f = Tiles(program.sizes, program.body)
            ends = [n for n, inst in enumerate(program.body) if inst.op == "gram"]
            for n in ends:  # what is walked once needs a use of the ends
                x, _, d = program.body[n].ins
                f.emit(Inst("mul", (x, f.op("prefix", (d,))), None, f.axes(x)))
            met = f.finish({"y": len(f.body) - 1, "a": ends[0]}) if ends else program
            rewritten = meet_once(met, "state"), solve_by_inverse(program, "state")
            for p in (program, gradient(program), *rewritten):
                used |= {inst.op for inst in p.body}
    f = Tiles(SIZES)
    same = f.tanh(f.load("param", "w", ("K",)))
    pooled = gradient(f.finish({"y": f.mul(same, f.load("input", "x", ("t", "K")))}))
    used |= {inst.op for inst in pooled.body}
    assert used | LEAVES | UNROLLED >= set(TILE_OPS)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("op", CASES)
def test_the_gradient_of_every_op_is_that_of_central_differences(op: str, tokens: int) -> None:
    for n, case in enumerate(CASES[op]):
        check_gradient(build(case), tokens, seed=n)


@pytest.mark.parametrize(
    "op", [op.name for op in OPS.values() if op.kind == "elementwise" and op.grad is not None]
)
def test_elementwise_gradients_of_tiles_are_those_of_central_differences(op: str) -> None:
    f = Tiles(SIZES)
    count = OPS[op].arity[0]
    axes = (("t", "K"), ("K",), ("t",))
    xs = [f.load("input", f"x{n}", axes[n]) for n in range(count)]
    if op == "where":
        xs[0] = f.gt(xs[0], 0.4)
    program = f.finish({"y": f.ew(op, *xs)})
    loads = {key: 0.7 + 0.2 * np.tanh(x) for key, x in arrays(program, 3, 0).items()}
    if op in ("sign", "stop_gradient"):
        loads = {**loads, ("cotangent", "y"): np.ones((3, 4))}
        assert not any(x.any() for x in interpret(gradient(program), loads, DIMS, 3).values())
        return
    check_gradient(program, 3, loads=loads)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(program=st.one_of(programs(), passes()), tokens=st.integers(1, 9), seed=st.integers(0, 99))
def test_random_programs_run_and_have_the_gradient_of_central_differences(
    program: Program, tokens: int, seed: int
) -> None:
    check_gradient(program, tokens, seed)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(program=programs(), seed=st.integers(0, 99))
def test_leading_axes_are_so_many_programs(program: Program, seed: int) -> None:
    backward = gradient(program)
    for p in (program, backward):
        loads = arrays(p, 5, seed, (2, 3))
        shared = {key: x[0, 0] if key[0] == "param" else x for key, x in loads.items()}
        every = interpret(p, shared, DIMS, 5)
        one = interpret(
            p, {k: x if k[0] == "param" else x[1, 2] for k, x in shared.items()}, DIMS, 5
        )
        for name, x in one.items():
            all_of = np.broadcast_to(every[name], (2, 3, *np.shape(x)))
            np.testing.assert_allclose(all_of[1, 2], x, rtol=1e-9, atol=1e-11)


def test_a_branch_not_taken_leaks_no_nan() -> None:
    f = Tiles(SIZES)
    x = f.load("input", "x", ("t",))
    program = f.finish({"y": f.where(f.gt(x, 0.0), f.sqrt(f.log(x)), 0.0)})
    loads = {("input", "x"): np.array([-1.0, 0.0, np.e]), ("cotangent", "y"): np.ones(3)}
    with np.errstate(all="ignore"):
        grads = interpret(gradient(program), loads, DIMS, 3)
    np.testing.assert_allclose(grads["input:x"], [0.0, 0.0, 0.5 / np.e])


@pytest.mark.parametrize("root", [lambda f, x: f.sqrt(x), lambda f, x: f.pow(x, 0.25)])
def test_a_root_of_zero_that_nothing_asks_for_leaks_no_nan(root: Callable[..., int]) -> None:
    f = Tiles(SIZES)
    x = f.load("input", "x", ("t",))
    program = f.finish({"y": f.mul(root(f, f.mul(x, x)), x)})
    loads = {("input", "x"): np.array([0.0, 1.0]), ("cotangent", "y"): np.array([1.0, 0.0])}
    with np.errstate(all="ignore"):
        grads = interpret(gradient(program), loads, DIMS, 2)
    np.testing.assert_array_equal(grads["input:x"], [0.0, 0.0])


def test_an_omitted_argument_stands_for_its_default_and_pulls_on_it() -> None:
    program = build(CASES["default"][0])
    default, ct = np.arange(4.0), np.ones((3, 4))
    for x, pulled in ((None, 3.0), (np.ones((3, 4)), 0.0)):
        loads = {("input", "x0"): x, ("input", "x1"): default}
        y = interpret(program, loads, DIMS, 3)["y"]
        np.testing.assert_array_equal(y, np.tile(default, (3, 1)) if x is None else x)
        grads = interpret(gradient(program), {**loads, ("cotangent", "y"): ct}, DIMS, 3)
        np.testing.assert_array_equal(grads["input:x1"], np.full(4, pulled))


def test_equal_instructions_are_one_value_and_what_nobody_needs_is_dropped() -> None:
    f = Tiles(SIZES)
    x = f.load("input", "x", ("t", "K"))
    assert f.tanh(x) == f.tanh(x)
    assert f.neg(f.neg(x)) == f.mul(1.0, x) == f.add(x, 0.0) == x
    f.exp(x)
    assert [inst.op for inst in f.finish({"y": f.tanh(x)}).body] == ["load", "tanh"]


def test_a_program_is_printed_in_words() -> None:
    f = Tiles(SIZES)
    k, v = f.load("input", "k", ("t", "K")), f.load("input", "v", ("t", "V"))
    levels = f.op("levels", (f.load("input", "g", ("t", "K")),), (True, False))
    kept = f.named(f.contract(f.mul(k, f.op("suffix", (levels,))), v, ("t",)), "kept")
    lines = str(f.finish({"state:S": kept})).splitlines()
    assert any(line.endswith("] = load(input k)") for line in lines)
    assert any(line.endswith(", logs)") for line in lines)
    assert any(line.endswith(", over t)  # kept") for line in lines)
    assert not any(sign in line for line in lines for sign in "{}'")


@pytest.mark.parametrize(
    "inst",
    [
        Inst("tanh", (0,), None, ("K",)),
        Inst("tanh", (9,), None, ("t", "K")),
        Inst("contract", (0, 0), ("K",), ("t", "K")),
        Inst("tanh", (0,), None, ("t", "Z")),
        Inst("no_such_op", (0,), None, ("t", "K")),
    ],
)
def test_verify_refuses_programs_that_are_not_well_formed(inst: Inst) -> None:
    f = Tiles(SIZES)
    program = f.finish({"y": f.load("input", "x", ("t", "K"))})
    verify(program)
    with pytest.raises(AssertionError):
        verify(replace(program, body=(*program.body, inst), outs={"y": 1}))
