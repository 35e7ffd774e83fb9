"""Instructions of a tile program in, what each of them holds in the padding of its axes out: for
tiles with more tokens and channels than there are.

What a target's code for an op must do with padding is written here; where it may do anything, the
rule says `ANY`. Nothing else is promised, so code may do as is easiest. Values that are there are
taken for finite: of an infinite one only what selects it away may be padded.

    load                0 in all padding, but for positions
    row, place_row      the last row is that of the last token, not of the tile; the others are 0,
                        those of padding too
    shift, before       move rows by one, whatever they hold
    scan*, chain*,      go over all rows of a tile, whatever they hold
    tropical, running
    take, put, concat,  move entries by true sizes; `put` is 0 wherever nothing is put. Entries
    roll, fold, unfold  behind the true size of an axis they move may be anything
    age                 counts from the true size
    solve*, inverse     read of a system the pairs t > s alone
    dense_solve         eliminates true rows alone; gives 0 behind them, for right sides that are 0
    mask, gram, matrix  0 where no pair is, by selection
    *_pull              0 in padding for cotangents that are 0 there, but in that of tokens for
                        `suffix_pull` and `whole_pull`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations

import numpy as np

from lacc.ir.ops import OPS
from lacc.tile.program import Axes, Inst

FINITE, ANY = "finite", "any"
Fill = float | str
"""What a tile holds where exactly some axes are padding: a number, finite ones, or anything."""
Padding = frozenset[str]
"""The axes that are."""
Fills = Mapping[Padding, Fill]

ENTRYWISE = frozenset(name for name, op in OPS.items() if op.entrywise)
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq"})
FINITE_OF_FINITE = {
    *("add", "sub", "mul", "neg", "abs", "sign", "relu", "max", "min", "where", "stop_gradient"),
    *("sigmoid", "logsigmoid", "softplus", "tanh", "sin", "cos", "elu", "elu1", "gelu", "erf"),
    *("silu", "logaddexp"),
}
PAIRED = frozenset({"contract", "gram", "decayed"})
"""Sums of products of two operands."""


def subsets(axes: Iterable[str]) -> Iterator[Padding]:
    """Every set of some of the axes, the empty one first."""
    every = tuple(axes)
    found = chain.from_iterable(combinations(every, n) for n in range(len(every) + 1))
    return map(frozenset, found)


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


def either(*fills: Fill) -> Fill:
    """What is one of these."""
    if len(set(fills)) == 1:
        return fills[0]
    return FINITE if all(map(finite, fills)) else ANY


def summed(*fills: Fill) -> Fill:
    """Sums of numbers of these, or multiples of them."""
    found = either(0.0, *fills)
    return found if found in (0.0, ANY) else FINITE


def theirs(axes: Iterable[str]) -> Iterator[str]:
    """Axes of a pair of tokens as the second one has them."""
    return ("t" if a == "s" else a for a in axes if a != "t")


class Held:
    """What the values of ``body``, a program that may grow, hold in their padding."""

    def __init__(self, body: Sequence[Inst]) -> None:
        self.body = body
        self._fills: list[Fills] = []

    def of(self, n: int) -> Fills:
        """For every set of axes of value ``n``: what it holds where they are padding and its
        other axes are not."""
        while len(self._fills) <= n:
            inst = self.body[len(self._fills)]
            self._fills.append({p: self._fill(inst, p) for p in subsets(inst.axes)})
        return self._fills[n]

    def at(self, n: int, padding: Padding) -> Fill:
        """What value ``n`` holds in that padding, of which it may lack axes."""
        return self.of(n)[padding & frozenset(self.body[n].axes)]

    def term(self, inst: Inst, ins: Sequence[int], p: Padding) -> Fill:
        """A term of one of `PAIRED` with operands ``ins``; of pairs of tokens the second's t is
        the pair's s."""
        second = p if inst.op == "contract" else frozenset(theirs(p))
        return times(self.at(ins[0], p), self.at(ins[1], second))

    def over(self, inst: Inst, first: int) -> Axes:
        """The axes that one of `PAIRED`, with this first operand, sums over."""
        if inst.op == "contract":
            axes: Axes = inst.value
            return axes
        if inst.op == "decayed":
            return ("s",)
        return tuple(a for a in self.body[first].axes if a != "t")

    def _fill(self, inst: Inst, p: Padding) -> Fill:
        if p:
            return self._value(inst, p)
        if inst.op == "const":
            return float(inst.value)
        if inst.op == "expand" or (inst.op in ENTRYWISE):
            found = self._value(inst, p)
            return FINITE if found == ANY else found
        return FINITE

    def _value(self, inst: Inst, p: Padding) -> Fill:
        ins = inst.ins
        match inst.op:
            case "load":
                return 0.0 if inst.value[0] != "index" else FINITE
            case "within":
                axes, fill = inst.value
                return float(fill) if p & set(axes) else self.at(ins[0], p)
            case "expand" | "row" | "instead" | "through_time":
                return self.at(ins[0], p)
            case "rename":
                old = {new: old for old, new in inst.value}
                return self.at(ins[0], frozenset(old.get(a, a) for a in p))
            case "eye":
                return 0.0 if len(p) == 1 else FINITE
            case "age":
                return FINITE
            case "default":
                return either(self.at(ins[0], p), self.at(ins[1], p))
            case "omitted":
                return either(0.0, self.at(ins[0], p))
            case "pooled":
                return summed(self.at(ins[0], p))
            case "mask":
                if "s" in p and "t" not in p:
                    return 0.0
                return either(0.0, self.at(ins[0], p))
            case "sum":
                return summed(*(self.at(ins[0], p | q) for q in subsets(inst.value)))
            case "contract" | "gram" | "decayed":
                return self._product(inst, p)
            case "pick":
                return self._picked(self.body[ins[0]], inst.value, p)
            case "dense_solve":
                return self._eliminated(inst, p)
            case "inverse":
                return FINITE if p == {"t", "s"} else 0.0
            case "solve":
                return self._solved(ins[1:], p)
        if inst.op in ENTRYWISE:
            return self._elementwise(inst, p)
        found = self._decays(inst, p)
        return self._moved(inst, p) if found is None else found

    def _product(self, inst: Inst, p: Padding) -> Fill:
        if inst.op == "gram" and p == {"s"}:
            return 0.0
        terms = subsets(self.over(inst, inst.ins[0]))
        return summed(*(self.term(inst, inst.ins, p | q) for q in terms))

    def _elementwise(self, inst: Inst, p: Padding) -> Fill:
        held = [self.at(i, p) for i in inst.ins]
        match inst.op, held:
            case "mul", [a, b]:
                return times(a, b)
            case "where", [float(chosen), a, b]:
                return a if chosen else b
            case "div", [a, float(b)] if b:
                return times(a, 1.0 / b)
        meaning = OPS[inst.op].numpy
        if all(isinstance(x, float) for x in held) and meaning is not None:
            with np.errstate(all="ignore"):
                found = float(meaning(*map(np.float64, held)))
            return ANY if math.isnan(found) else found
        calm = inst.op in FINITE_OF_FINITE and all(map(finite, held))
        return FINITE if calm or inst.op in COMPARISONS else ANY

    def _eliminated(self, inst: Inst, p: Padding) -> Fill:
        """Operands are 0 in the padding of rows and columns."""
        (a, b), (_, column) = inst.ins, inst.value
        side = self.at(b, p - {column})
        if p - {column} & set(self.body[a].axes) or side == ANY:
            return ANY
        return 0.0 if column in p else summed(side)

    def _solved(self, sides: Sequence[int], p: Padding) -> Fill:
        """Systems are 0 in the rows of padding, right sides are finite there (0 where transposed);
        every row of one counts in products, if only with 0."""
        found = summed(*(self.at(n, p - {"t"}) for n in sides))
        if found == ANY or "t" not in p:
            return found
        return either(*(self.at(n, p) for n in sides))

    # ---- along time ------------------------------------------------------------------------------

    def _decays(self, inst: Inst, p: Padding) -> Fill | None:
        """Runs of decays, which are 1 in padding, and pulls of what is 0 there."""
        match inst.op:
            case "levels" | "suffix" | "whole":
                return 1.0
            case "prefix":
                return FINITE if "t" in p else 1.0
            case "matrix":
                return 0.0 if p == {"s"} else FINITE
            case "prefix_pull" | "matrix_pull":
                return 0.0
            case "suffix_pull" | "whole_pull":
                return FINITE if p == {"t"} else 0.0
        return None

    def _picked(self, every: Inst, k: int, p: Padding) -> Fill:
        ins = every.ins
        match every.op, k:
            case "meet", 0:
                return 0.0 if p == {"s"} else self._product(Inst("gram", ins, None, ("t", "s")), p)
            case "meet", _:
                end = FINITE if "t" in p and k == 1 else 1.0
                return times(self.at(ins[k - 1], p), end)
            case "meet_pull", _:
                pulled = (self.at(ins[n], p) for n in (1, 2) if k in (2, 2 - n))
                return 0.0 if "t" in p or 0.0 in pulled else FINITE
            case "decayed_pull", _:
                return 0.0
            case "solve_parts", _:
                n, _ = every.value
                return self._solved(ins[-n:], p)
            case "chain_parts", _:
                n, back = every.value
                return self._carried(ins[:-n], ins[-n:], back, p)
        raise AssertionError(f"a pick of {every.op}")

    def _carried(self, steps: Sequence[int], added: Sequence[int], back: bool, p: Padding) -> Fill:
        """h[t] = step · h[t-1] + added: 0 where only zeros come in. Rows of padding may grow
        beyond all bounds, those of a walk back are 0."""
        if back and "t" in p:
            return 0.0
        rows = (p, p - {"t"})
        every = [self.at(n, q) for n in added for q in rows]
        if not all(finite(x) for x in (*every, *(self.at(n, q) for n in steps for q in rows))):
            return ANY
        if set(every) == {0.0}:
            return 0.0
        return ANY if "t" in p else FINITE

    def _moved(self, inst: Inst, p: Padding) -> Fill:
        """What goes from row to row, or from entry to entry."""
        ins, value = inst.ins, inst.value
        behind = p - {"t"}
        match inst.op:
            case "place_row":
                return 0.0 if "t" in p else either(0.0, self.at(ins[0], p))
            case "shift":
                if "t" in p:
                    return 0.0 if value else either(self.at(ins[0], p), self.at(ins[0], behind))
                return either(0.0, self.at(ins[0], p))
            case "before":
                first = self.at(ins[0 if "t" in p else 1], behind)
                return either(first, self.at(ins[0], p))
            case "scan":
                return self._carried(ins[:1], ins[1:], False, p)
            case "scan_back":
                return self._carried(ins[:1], ins[1:], True, p)
            case "tropical":
                calm = all(finite(self.at(i, q)) for i in ins for q in (p, behind))
                return FINITE if calm else ANY
            case "running":
                return summed(self.at(ins[0], p), self.at(ins[0], behind))
            case "take":
                return ANY if value[1] in p else self.at(ins[0], p)
            case "put":
                return ANY if value[0] in p else either(0.0, self.at(ins[0], p))
            case "concat":
                return (
                    ANY
                    if value[0] in p
                    else either(*(self.at(i, p - {axis}) for i, axis in zip(ins, value[1])))
                )
            case "roll":
                return ANY if value[0] in p else self.at(ins[0], p)
            case "fold":
                return ANY if value[2] in p else self.at(ins[0], p)
            case "unfold":
                return ANY if p & set(value[:2]) else self.at(ins[0], p)
        return ANY
