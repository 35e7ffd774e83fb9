"""A spec and sizes go in; what every exact algorithm has to compute and to move for it comes out,
counted on the recurrences that the analysis finds.

Notation: a state is [K, V]. A token writes x yᵀ to it (2 K V flops, a multiply and an add an
entry), reads qᵀ S (2 K V), and for each erase a (bᵀ S) reads it once more (2 K V) and adds what it
read times a (2 K V, or nothing where a write has the column a too: one product serves both). That
is 4 K V for a state that decays, however it decays, 6 K V for a delta rule, 8 K V where erase and
write have columns of their own. Decays, masks and what chunks cost beside are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lacc import driver
from lacc.analysis.transition import Recurrence
from lacc.bench.case import Case
from lacc.ir.ops import OPS
from lacc.plan.cost import evaluate, extent
from lacc.tile.derive import Derived
from lacc.tile.program import Program, cone
from lacc.verify.inputs import as_dtype

TRANSCENDENTAL = 8
"""Flops of an exp in the op table: rows with as many are told apart from adds and multiplies."""

BACKWARD = 2
"""A backward computes twice what a forward does: each product has two operands."""


@dataclass(frozen=True)
class Floor:
    """Of a whole call: flops in multiplies and adds, exps (other functions by their share), bytes
    read and written, by arguments, results and (`decode`) states; the length of a way through
    memory is what a call touches."""

    flops: float
    exps: float
    bytes: float

    def seconds(self, flops: float, exps: float, bandwidth: float) -> dict[str, float]:
        """The least time by each bound, at rates a second."""
        return {
            "flops": self.flops / flops,
            "exps": self.exps / exps,
            "bytes": self.bytes / bandwidth,
        }


def floor(case: Case) -> Floor | None:
    """The floor of a case; None where a token by itself does not exist, or reads its states
    otherwise than by products."""
    derived = driver.analyse(case.spec)
    if derived.token is None:
        return None
    flops = _flops(derived, case)
    exps = _exps(derived.token.forward, case)
    calls = case.B * case.H * (1 if case.by_token else case.T)
    if case.mode == "train":
        flops *= 1 + BACKWARD
    return Floor(flops * calls, exps * calls, _bytes(derived, case))


def _flops(derived: Derived, case: Case) -> float:
    """Of one token and head."""
    assert derived.token is not None
    program, at = derived.token.forward, _sizes(case)
    total = 0.0
    counted: set[int] = set()  # products of states that recurrences account for
    for r in derived.recurrences:
        entries = sum(_entries(derived, name, case) for name in r.states)
        updates = cone(program, [program.outs[f"state:{n}"] for n in _ascii(derived, r)])
        if r.form in ("canonical", "written"):
            total += 2 * entries * _passes(r)
            counted |= updates
        else:
            total += 2 * entries
    holding = _dependents(program, ("state",))
    for n, inst in enumerate(program.body):
        if inst.op == "contract" and not (n in counted and n in holding):
            axes = dict.fromkeys(a for i in (*inst.ins, n) for a in program.body[i].axes)
            total += 2 * evaluate(extent(program, axes), at)
    return total


def _passes(r: Recurrence) -> int:
    """How often a token goes over the state of a recurrence in multiplies and adds, its reads by
    outputs aside."""
    if r.form == "written":
        return 0
    shared = sum(r.partner(erase) is not None for erase in r.erases)
    return len(r.writes) + 2 * len(r.erases) - shared


def _exps(program: Program, case: Case) -> float:
    """Of one token and head; what depends on no input is computed once and for all."""
    varying = _dependents(program, ("input", "state"))
    total = 0.0
    for n, inst in enumerate(program.body):
        if n in varying and inst.op in OPS and OPS[inst.op].flops >= TRANSCENDENTAL:
            points = evaluate(extent(program, inst.axes), _sizes(case))
            total += points * OPS[inst.op].flops / TRANSCENDENTAL
    return total


def _bytes(derived: Derived, case: Case) -> float:
    """Of a call: inputs read and outputs written; with gradients these of outputs read, those of
    inputs written, and inputs read once more; for a token the states read and written."""
    width = as_dtype(case.dtype).itemsize
    given = {a.ascii for a in case.spec.args if a.role == "input"}
    shapes = case.array_shapes()
    inputs = sum(prod(shapes[name]) for name in given)
    tokens = 1 if case.by_token else case.T
    heads = {"head": case.H, "group": case.G, "layer": 1}
    outputs = sum(
        case.B * tokens * heads[o.per] * prod(s.evaluate(case.dims) for s in o.shape)
        for o in case.spec.outputs
    )
    moved = inputs + outputs
    if case.mode == "train":
        moved += 2 * inputs + outputs
    total = float(moved * width)
    if case.by_token:
        states = sum(
            _entries(derived, name, case) for r in derived.recurrences for name in r.states
        )
        total += 2 * case.B * case.H * states * max(width, 4)
        for rows in derived.kept:  # what a token attends to is read
            tokens = case.T if rows.past.length is None else min(case.T, rows.past.length)
            each = prod(size.evaluate(case.dims) for size in rows.shape)
            total += case.B * case.H * tokens * each * width
    return total


def _sizes(case: Case) -> dict[str, float]:
    """What sizes are made of: dims, and how many tokens a query finds before it on average."""
    past = float(case.T) if case.by_token else (case.T - 1) / 2
    return {**case.dims, "#past": past}


def _entries(derived: Derived, name: str, case: Case) -> int:
    """Entries of a state of one head."""
    return prod(size.evaluate(case.dims) for size in derived.spec.state(name).shape)


def _ascii(derived: Derived, r: Recurrence) -> list[str]:
    return [derived.spec.state(name).ascii for name in r.states]


def _dependents(program: Program, kinds: tuple[str, ...]) -> set[int]:
    """The values that depend on what is loaded of some kinds."""
    found: set[int] = set()
    for n, inst in enumerate(program.body):
        loaded = inst.op == "load" and inst.value[0] in kinds
        if loaded or not found.isdisjoint(inst.ins):
            found.add(n)
    return found
