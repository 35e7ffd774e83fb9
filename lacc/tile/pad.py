"""A tile program in, the same program out for tiles that are padded: no padding reaches a result.

Tokens behind the last one and channels behind the last one of an axis are loaded as 0, which lifted
values (decays, features) no longer are. For every value it is worked out what it holds where some
of its axes are padding; ``within`` is inserted where that may reach a result. So masks come after
lifting, and only where nothing proves them idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations

import numpy as np

from lacc.ir.ops import OPS
from lacc.tile.program import Axes, Inst, Program, Tiles, prune

FINITE, ANY = "finite", "any"
Fill = float | str
"""What a tile holds where exactly some axes are padding: a number, finite ones, or anything."""

FINITE_OF_FINITE = {
    *("add", "sub", "mul", "neg", "abs", "sign", "relu", "max", "min", "where", "stop_gradient"),
    *("sigmoid", "logsigmoid", "softplus", "tanh", "sin", "cos", "elu", "gelu", "erf", "silu"),
}
SUMS = ("contract", "gram", "decayed")
PULLS = ("prefix_pull", "suffix_pull", "whole_pull", "matrix_pull", "meet_pull", "decayed_pull")
IDENTITY = {"sum": 0.0, "largest": -math.inf, "smallest": math.inf}
KNOWN = frozenset(
    {
        *("load", "const", "size", "rename", "expand", "eye", "mask", "within", "pooled"),
        *("levels", "prefix", "suffix", "whole", "matrix", "solve", "pick"),
        *(*SUMS, *PULLS, *IDENTITY),
        *(name for name, op in OPS.items() if op.entrywise),
    }
)
"""Ops that padded tiles may have; the others, those that order tokens or entries one after another
among them, would need to know where the padding begins."""


def subsets(axes: Axes) -> Iterator[frozenset[str]]:
    """Every set of some of the axes, the empty one first."""
    return map(frozenset, chain.from_iterable(combinations(axes, n) for n in range(len(axes) + 1)))


def finite(x: Fill) -> bool:
    """Whether no infinity and no NaN can be in it."""
    return math.isfinite(x) if isinstance(x, float) else x == FINITE


def times(a: Fill, b: Fill) -> Fill:
    """The product of two fills."""
    if not finite(a) or not finite(b):
        return ANY
    if 0.0 in (a, b):
        return 0.0
    return FINITE if FINITE in (a, b) else float(a) * float(b)


def fill_padding(program: Program) -> Program:
    """Inserts ``within`` where padding would reach a state, or an output inside its lengths; all
    ops of the program are `KNOWN`."""
    return _Padder(program).program()


def _theirs(axes: Iterable[str]) -> Iterator[str]:
    """Axes of a pair of tokens as the second one has them."""
    return ("t" if a == "s" else a for a in axes if a != "t")


class _Padder:
    def __init__(self, source: Program) -> None:
        self.source = source
        self.f = Tiles(source.sizes)
        self.fills: dict[int, Mapping[frozenset[str], Fill]] = {}

    def program(self) -> Program:
        """The new program; its states are 0 in the padding, as the loop over chunks takes them."""
        new: list[int] = []
        for inst in self.source.body:
            ins = self._guarded(inst, [new[i] for i in inst.ins])
            n = self.f.emit(Inst(inst.op, tuple(ins), inst.value, inst.axes, inst.name, inst.line))
            if n not in self.fills:
                self.fills[n] = self._fill(self.f.body[n])
            new.append(n)
        outs = {name: new[n] for name, n in self.source.outs.items()}
        for name, n in outs.items():
            if name.startswith("state:"):
                outs[name] = self._within(n, self.f.axes(n))
        return prune(Program(tuple(self.f.body), outs, self.source.sizes))

    def _at(self, n: int, padding: frozenset[str]) -> Fill:
        return self.fills[n][padding & frozenset(self.f.axes(n))]

    def _within(self, n: int, axes: Axes, fill: float = 0.0) -> int:
        """``n`` with ``fill`` in the padding of those ``axes`` where it may hold other things."""
        own = self.f.axes(n)
        wrong = tuple(
            a for a in axes if any(a in p and self.fills[n][p] != fill for p in subsets(own))
        )
        if not wrong:
            return n
        masked = self.f.emit(Inst("within", (n,), (wrong, fill), own))
        self.fills[masked] = {p: fill if p & set(wrong) else x for p, x in self.fills[n].items()}
        return masked

    # ---- what an instruction needs of its operands -----------------------------------------------

    def _guarded(self, inst: Inst, ins: list[int]) -> list[int]:
        assert inst.op in KNOWN, f"{inst.op} in a tile that is padded"
        f = self.f
        if inst.op in IDENTITY:
            over, identity = inst.value, IDENTITY[inst.op]
            idle = all(self._at(ins[0], p) == identity for p in subsets(over) if p)
            return ins if idle else [self._within(ins[0], over, identity)]
        if inst.op == "levels":
            log, _ = inst.value
            return [self._within(ins[0], f.axes(ins[0]), 0.0 if log else 1.0)]
        if inst.op == "solve":
            system, right = (self._calm(n, "t", "s") for n in ins)
            return [system, self._within(right, ("t",)) if inst.value else right]
        if inst.op in PULLS:
            cotangent, *others, decays = ins
            calm = [self._calm(n, *f.axes(n)) for n in others]
            return [self._within(cotangent, f.axes(cotangent)), *calm, decays]
        if inst.op in SUMS:
            over = self._summed(inst, ins[0])
            for side in (1, 0):
                if not all(self._product(inst.op, ins, p) == 0.0 for p in subsets(over) if p):
                    own = tuple(_theirs(over) if side and inst.op != "contract" else over)
                    ins[side] = self._within(ins[side], own)
        return ins

    def _summed(self, inst: Inst, first: int) -> Axes:
        """The axes that a product, with this first operand, sums over."""
        if inst.op == "contract":
            over: Axes = inst.value
            return over
        if inst.op == "decayed":
            return ("s",)
        return tuple(a for a in self.f.axes(first) if a != "t")

    def _product(self, op: str, ins: Sequence[int], p: frozenset[str]) -> Fill:
        """A term of a sum of products; of pairs of tokens the second's t is the pair's s."""
        second = p if op == "contract" else frozenset(_theirs(p))
        return times(self._at(ins[0], p), self._at(ins[1], second))

    def _calm(self, n: int, *axes: str) -> int:
        """``n`` with 0 in the padding where it may hold what is not finite."""
        bad = [p for p, x in self.fills[n].items() if p and x == ANY]
        return self._within(n, tuple(a for a in axes if any(a in p for p in bad)))

    # ---- what an instruction holds in its own padding --------------------------------------------

    def _fill(self, inst: Inst) -> dict[frozenset[str], Fill]:
        return {
            p: self._value(inst, p) if p else self._everywhere(inst) for p in subsets(inst.axes)
        }

    def _everywhere(self, inst: Inst) -> Fill:
        """Where nothing is padding: the number that an instruction is everywhere."""
        if inst.op == "const":
            return float(inst.value)
        if inst.op == "expand" or (inst.op in OPS and inst.ins):
            found = self._value(inst, frozenset())
            return FINITE if found == ANY else found
        return FINITE

    def _value(self, inst: Inst, p: frozenset[str]) -> Fill:
        ins = inst.ins
        match inst.op:
            case "load":
                return 0.0 if inst.value[0] != "index" else FINITE
            case "expand":
                return self._at(ins[0], p)
            case "rename":
                old = {new: old for old, new in inst.value}
                return self._at(ins[0], frozenset(old.get(a, a) for a in p))
            case "eye":
                return 0.0 if len(p) == 1 else FINITE
            case "levels" | "suffix" | "whole":
                return 1.0
            case "prefix":
                return FINITE if "t" in p else 1.0
            case "matrix":
                return 0.0 if p == {"s"} else FINITE
            case "mask":
                held = self._at(ins[0], p)
                return 0.0 if p == {"s"} or held == 0.0 else ANY if held == ANY else FINITE
            case "sum":
                parts = {self._at(ins[0], p | q) for q in subsets(inst.value)}
                return 0.0 if parts == {0.0} else ANY if ANY in parts else FINITE
            case "contract" | "gram" | "decayed":
                if inst.op == "gram" and p == {"s"}:
                    return 0.0
                terms = subsets(self._summed(inst, ins[0]))
                parts = {self._product(inst.op, ins, p | q) for q in terms}
                return 0.0 if parts == {0.0} else ANY if ANY in parts else FINITE
            case "solve":
                right = self._at(ins[1], p)
                alone = inst.value or "t" not in p or self._at(ins[0], frozenset("t")) == 0.0
                return right if right == ANY or (right == 0.0 and alone) else FINITE
        return self._elementwise(inst, p) if inst.op in OPS else ANY

    def _elementwise(self, inst: Inst, p: frozenset[str]) -> Fill:
        held = [self._at(i, p) for i in inst.ins]
        if inst.op == "mul":
            return times(*held)
        meaning = OPS[inst.op].numpy
        if all(isinstance(x, float) for x in held) and meaning is not None:
            with np.errstate(all="ignore"):
                found = float(meaning(*held))
            return ANY if math.isnan(found) else found
        calm = inst.op in FINITE_OF_FINITE and all(map(finite, held))
        return FINITE if calm else ANY
