"""A tile program in, the program of its vector-Jacobian product out: one reverse walk over the
rules of the op tables.

Loads of the given kinds get cotangents; the cotangent of output ``x`` is loaded as ("cotangent",
"x"), or ("dstate", "S") for the state that leaves as output "state:S".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lacc.ir.ops import OPS
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import Inst, Program, Tiles, ordered
from lacc.tile.split import shared


def differentiate(
    program: Program,
    seeds: dict[str, tuple[str, str]],
    kinds: Iterable[str],
    gradient_name: Callable[[str, str], str],
) -> Program:
    """The vjp. ``seeds``: output name -> (kind, name) of the load of its cotangent; an output
    without one counts as 0.

    The result's outputs are ``gradient_name(kind, name)`` for each load of ``kinds`` that some
    seeded output depends on.
    """
    f = Tiles(program.sizes, program.body)
    below_choice = _below_choice(program)
    cotangents: dict[int, int] = {}

    def add(n: int, ct: int | None) -> None:
        if ct is not None:
            extra = tuple(a for a in f.axes(ct) if a not in program.body[n].axes)
            ct = f.expand(f.sum(ct, extra), program.body[n].axes)
            cotangents[n] = f.ew("add", cotangents[n], ct) if n in cotangents else ct
            if called := _called(program, n):
                f.named(ct, f"d{called}")
                f.named(cotangents[n], f"d{called}")

    same = shared(program)
    for out, (kind, name) in seeds.items():
        n = program.outs[out]
        ct = f.load(kind, name, program.body[n].axes, f"d{name.rpartition(':')[2]}")
        add(n, f.op("pooled", (ct,)) if n in same else ct)
    wanted = _wanted(program, set(kinds))
    for n in reversed(range(len(program.body))):
        inst = program.body[n]
        if n not in cotangents or not inst.ins or n not in wanted:
            continue
        f.line, f.guarded = inst.line, n in below_choice or _steep(program, inst)
        ct = cotangents[n]
        if inst.op in TILE_OPS:
            rule = TILE_OPS[inst.op].grad
            assert rule is not None, f"{inst.op} has no gradient rule"
            pulled = rule(f, ct, n, inst.value, *inst.ins)
        else:
            rule = OPS[inst.op].grad
            assert rule is not None, f"{inst.op} has no gradient rule"
            pulled = _by_table(f, rule, ct, n, inst.ins)
        for i, c in zip(inst.ins, pulled):
            if i in wanted:
                add(i, f.op("pooled", (c,)) if c is not None and i in same and n not in same else c)
    outs = {}
    for n, inst in enumerate(program.body):
        if inst.op == "load" and inst.value[0] in set(kinds) and n in cotangents:
            kind, name = inst.value
            outs[gradient_name(kind, name)] = f.arrange(cotangents[n], inst.axes)
    assert all(ordered(i.axes) == i.axes for i in f.body)
    return f.finish(outs)


def _called(program: Program, n: int) -> str:
    """The name that emitted code has for a value: runs of decays go by that of the decays, whose
    cotangent theirs is."""
    inst = program.body[n]
    return program.body[inst.ins[0]].name if inst.op == "levels" else inst.name


def _steep(program: Program, inst: Inst) -> bool:
    """Whether the value can be finite where its slope is not, as a root is at 0."""
    if inst.op == "pow":
        exponent = program.body[inst.ins[1]]
        return exponent.op != "const" or 0 < exponent.value < 1
    return inst.op == "sqrt"


@dataclass(frozen=True, slots=True)
class _Ref:
    """A value in a rule of the op table, told apart from numbers."""

    value: int


class _Elementwise:
    """The namespace that rules of the op table are written in, building tiles."""

    def __init__(self, f: Tiles) -> None:
        self._f = f

    def _of(self, x: Any) -> int | float:
        return x.value if isinstance(x, _Ref) else float(x)

    def pull(self, ct: _Ref, d: Any) -> _Ref:
        return _Ref(self._f.pull(ct.value, self._of(d)))

    def __getattr__(self, op: str) -> Callable[..., _Ref]:
        return lambda *xs: _Ref(self._f.ew(op, *map(self._of, xs)))


def partials(f: Tiles, op: str, y: int, ins: tuple[int, ...]) -> tuple[int | None, ...]:
    """The derivatives of an elementwise value by its operands, None where there is none."""
    rule = OPS[op].grad
    assert rule is not None, f"{op} has no gradient rule"
    return _by_table(f, rule, f.const(1.0), y, ins)


def _by_table(
    f: Tiles, rule: Callable[..., Any], ct: int, y: int, ins: tuple[int, ...]
) -> tuple[int | None, ...]:
    """The rule of an elementwise op; operands that are numbers go in as numbers."""
    operands = [float(f.body[i].value) if f.body[i].op == "const" else _Ref(i) for i in ins]
    pulled = rule(_Elementwise(f), _Ref(ct), _Ref(y), *operands)
    return tuple(p.value if isinstance(p, _Ref) else None for p in pulled)


def _wanted(program: Program, kinds: set[str]) -> set[int]:
    """Values that depend on a load of ``kinds``."""
    wanted: set[int] = set()
    for n, inst in enumerate(program.body):
        loaded = inst.op == "load" and inst.value[0] in kinds
        if loaded or any(i in wanted for i in inst.ins):
            wanted.add(n)
    return wanted


def _below_choice(program: Program) -> set[int]:
    """Values that reach an output through a branch of a ``where``: their cotangents may be 0 for
    not being chosen."""
    below: set[int] = set()
    for n in reversed(range(len(program.body))):
        inst = program.body[n]
        if inst.op == "where":
            below.update(inst.ins[1:])
        if n in below:
            below.update(inst.ins)
    return below
