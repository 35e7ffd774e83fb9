"""A tile program in, the same program out for tiles that are padded: no padding reaches a result.

Tokens behind the last one and channels behind the last one of an axis are loaded as 0, which lifted
values (decays, features) no longer are. What every value holds where some of its axes are padding
is worked out by `lacc.tile.held`; ``within`` is inserted where that may reach a result. So masks
come after lifting, and only where nothing proves them idle.
"""

from __future__ import annotations

import math

from lacc.tile.held import ANY, ENTRYWISE, PAIRED, Held, subsets, theirs
from lacc.tile.program import Axes, Inst, Program, Tiles, prune

PULLS = ("prefix_pull", "suffix_pull", "whole_pull", "matrix_pull", "meet_pull", "decayed_pull")
IDENTITY = {"sum": 0.0, "largest": -math.inf, "smallest": math.inf}
KNOWN = frozenset(
    {
        *("load", "const", "size", "rename", "expand", "eye", "age", "mask", "within", "pooled"),
        *("default", "omitted", "instead", "through_time", "pick"),
        *("levels", "prefix", "suffix", "whole", "matrix", "meet"),
        *("solve", "solve_parts", "inverse", "dense_solve"),
        *("row", "place_row", "shift", "before"),
        *("scan", "scan_back", "chain_parts", "tropical", "running"),
        *("take", "put", "concat", "roll", "fold", "unfold"),
        *(*PAIRED, *PULLS, *IDENTITY),
        *ENTRYWISE,
    }
)
"""Ops that padded tiles may have: all but those of axes that `unroll` takes apart."""


def fill_padding(program: Program) -> Program:
    """Inserts ``within`` where padding would reach a state, or an output inside its lengths; all
    ops of the program are `KNOWN`."""
    return _Padder(program).program()


class _Padder:
    def __init__(self, source: Program) -> None:
        self.source = source
        self.f = Tiles(source.sizes)
        self.held = Held(self.f.body)

    def program(self) -> Program:
        """The new program; its states are 0 in the padding, as the loop over chunks takes them."""
        new: list[int] = []
        for inst in self.source.body:
            ins = self._guarded(inst, [new[i] for i in inst.ins])
            new.append(
                self.f.emit(Inst(inst.op, tuple(ins), inst.value, inst.axes, inst.name, inst.line))
            )
        outs = {name: new[n] for name, n in self.source.outs.items()}
        for name, n in outs.items():
            if name.startswith("state:"):
                outs[name] = self._within(n, self.f.axes(n))
        return prune(Program(tuple(self.f.body), outs, self.source.sizes))

    def _within(self, n: int, axes: Axes, fill: float = 0.0) -> int:
        """``n`` with ``fill`` in the padding of those ``axes`` where it may hold other things."""
        inst, held = self.f.body[n], self.held.of(n)
        if inst.op == "within" and inst.value[1] == fill:
            return self._within(inst.ins[0], (*inst.value[0], *axes), fill)
        wrong = tuple(
            a for a in dict.fromkeys(axes) if any(a in p and x != fill for p, x in held.items())
        )
        return self.f.op("within", (n,), (wrong, fill)) if wrong else n

    def _zeroed(self, n: int, axis: str) -> int:
        return self._within(n, (axis,))

    def _calm(self, n: int, *axes: str) -> int:
        """``n`` with 0 in the padding where it may hold what is not finite."""
        bad = [p for p, x in self.held.of(n).items() if p and x == ANY]
        return self._within(n, tuple(a for a in axes if any(a in p for p in bad)))

    def _damped(self, n: int) -> int:
        """``n`` with 0 in the rows of tokens that are not there, unless a product of any number of
        them is bounded."""
        rows = [x for p, x in self.held.of(n).items() if "t" in p]
        bounded = all(isinstance(x, float) and abs(x) <= 1 for x in rows)
        return n if bounded else self._within(n, ("t",))

    def _guarded(self, inst: Inst, ins: list[int]) -> list[int]:
        """The operands, masked where the instruction needs it."""
        assert inst.op in KNOWN, f"{inst.op} in a tile that is padded"
        f, held = self.f, self.held
        match inst.op:
            case "sum" | "largest" | "smallest":
                over, identity = inst.value, IDENTITY[inst.op]
                if all(held.at(ins[0], p) == identity for p in subsets(over) if p):
                    return ins
                return [self._within(ins[0], over, identity)]
            case "contract" | "gram" | "decayed":
                return self._paired(inst, ins)
            case "meet":
                return self._paired(Inst("gram", inst.ins, None, inst.axes), ins)
            case "levels":
                log, _ = inst.value
                return [self._within(ins[0], f.axes(ins[0]), 0.0 if log else 1.0)]
            case "inverse":
                return [self._system(ins[0])]
            case "solve" | "solve_parts":
                n, transposed = inst.value if inst.op == "solve_parts" else (1, inst.value)
                side = self._zeroed if transposed else self._calm
                return [
                    *map(self._system, ins[:-n]),
                    *(side(r, "t") for r in ins[-n:]),
                ]
            case "dense_solve":
                row, column = inst.value
                return [self._within(ins[0], (row, column)), self._within(ins[1], (row,))]
            case "scan_back":
                return [self._damped(ins[0]), self._within(ins[1], ("t",))]
            case "chain_parts" if inst.value[1]:
                n = inst.value[0]
                return [*map(self._damped, ins[:-n]), *(self._within(b, ("t",)) for b in ins[-n:])]
            case "shift" if inst.value:
                return [self._within(ins[0], ("t",))]
        if inst.op in PULLS:
            cotangent, *others, decays = ins
            calm = [self._calm(n, *f.axes(n)) for n in others]
            return [self._within(cotangent, f.axes(cotangent)), *calm, decays]
        return ins

    def _system(self, n: int) -> int:
        """Nothing in the rows of tokens that are not there."""
        return self._calm(self._within(n, ("t",)), "s")

    def _paired(self, inst: Inst, ins: list[int]) -> list[int]:
        """Nothing added up from padding, with a mask on one side where that is enough."""
        over, ins = self.held.over(inst, ins[0]), list(ins)
        for side in (1, 0):
            if not all(self.held.term(inst, ins, p) == 0.0 for p in subsets(over) if p):
                own = tuple(theirs(over) if side and inst.op != "contract" else over)
                ins[side] = self._within(ins[side], own)
        return ins
