"""A tile program in, an equal one without axes of ranks ("#…") and of coupled states ("@…") out.

These axes have a few entries, known beforehand. A value over them becomes one value for each tuple
of indices: what a target computes that holds tiles of time and channels in registers. Solves over
ranks and chains over states become ops of several operands and results, the others several of
their own. Entries that are plainly 0 are left out of sums and products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from itertools import product

from lacc.ir.ops import OPS
from lacc.tile.program import Axes, Inst, Program, Tiles, prune

ENTRYWISE = frozenset(name for name, op in OPS.items() if op.entrywise)
OF_ZERO = frozenset({"neg", "mask", "shift", "row", "place_row", "pooled", "rename"})
"""Ops of one operand that give 0 for 0."""
JOINED = {"sum": "add", "largest": "max", "smallest": "min"}
Index = Mapping[str, int]
"""The entry of each axis that is unrolled."""


def unroll(program: Program) -> Program:
    """The program with its axes of ranks and of coupled states taken apart, which no output has;
    the program itself where it has none."""
    if not any(_few(inst.axes) for inst in program.body):
        return program
    return _Unroller(program).program()


def _few(axes: Iterable[str]) -> Axes:
    """The axes among these that are unrolled."""
    return tuple(a for a in axes if a[0] in "#@")


def _others(axes: Iterable[str]) -> Axes:
    """Those that are kept."""
    return tuple(a for a in axes if a[0] not in "#@")


class _Unroller:
    def __init__(self, source: Program) -> None:
        self.source = source
        self.f = Tiles({a: size for a, size in source.sizes.items() if not _few((a,))})
        self.parts: list[dict[tuple[int, ...], int]] = []

    def program(self) -> Program:
        """The new program; its outputs have none of the axes."""
        for inst in self.source.body:
            self.f.line = inst.line
            few = _few(inst.axes)
            part = self._rule(inst)
            self.parts.append({})
            for at in product(*(range(self._size(a)) for a in few)):
                value = self.f.arrange(part(dict(zip(few, at))), _others(inst.axes))
                name = "_".join(filter(None, (inst.name, "".join(map(str, at)))))
                self.parts[-1][at] = self.f.named(value, name if inst.name else "")
        outs = {name: self.parts[n][()] for name, n in self.source.outs.items()}
        return prune(Program(tuple(self.f.body), outs, self.f.sizes))

    def _size(self, axis: str) -> int:
        size = self.source.sizes[axis].constant
        assert size is not None, f"{axis} has no constant size"
        return int(size)

    def _entries(self, axes: Axes) -> list[Index]:
        return [dict(zip(axes, at)) for at in product(*(range(self._size(a)) for a in axes))]

    def _part(self, n: int, at: Index) -> int:
        """The part of value ``n`` of the source; of an index, what its axes need."""
        return self.parts[n][tuple(at[a] for a in _few(self.source.body[n].axes))]

    def _zero(self, v: int) -> bool:
        inst = self.f.body[v]
        return self._zero(inst.ins[0]) if inst.op == "expand" else self._constant(v, 0.0)

    def _constant(self, v: int, value: float) -> bool:
        return self.f.body[v].op == "const" and self.f.body[v].value == value

    def _rule(self, inst: Inst) -> Callable[[Index], int]:
        """What gives the part of ``inst`` at an index."""
        f = self.f
        match inst.op:
            case "stack":
                return lambda at: self._part(inst.ins[at[inst.value]], at)
            case "entry":
                axis, n = inst.value
                return lambda at: self._part(inst.ins[0], {**at, axis: n})
            case "eye" if _few(inst.axes):
                row, column = inst.axes
                return lambda at: f.const(float(at[row] == at[column]))
            case "expand":
                return lambda at: f.expand(self._part(inst.ins[0], at), _others(inst.axes))
            case "rename":
                return lambda at: self._renamed(inst, at)
            case "contract" if _few(inst.value):
                return lambda at: self._contracted(inst, at)
            case "sum" | "largest" | "smallest" if _few(inst.value):
                return lambda at: self._reduced(inst, at)
            case "solve" if _few(self.source.body[inst.ins[0]].axes):
                return self._solved(inst)
            case "chain" | "chain_back":
                return self._chained(inst)
        return lambda at: self._same(inst, [self._part(i, at) for i in inst.ins])

    def _same(self, inst: Inst, ins: list[int]) -> int:
        """The same op of the parts."""
        f, axes = self.f, _others(inst.axes)
        none = [self._zero(i) for i in ins]
        if (inst.op in OF_ZERO and all(none)) or (inst.op == "contract" and any(none)):
            return f.expand(f.const(0.0), axes)
        if inst.op in ENTRYWISE and any(map(self._plain, ins)):
            return f.ew(inst.op, *ins)
        return f.emit(Inst(inst.op, tuple(ins), inst.value, axes))

    def _plain(self, v: int) -> bool:
        inst = self.f.body[v]
        return inst.op == "const" or (inst.op == "expand" and self._plain(inst.ins[0]))

    def _renamed(self, inst: Inst, at: Index) -> int:
        old = {new: old for old, new in inst.value}
        part = self._part(inst.ins[0], {old.get(a, a): n for a, n in at.items()})
        if self._zero(part):
            return self.f.expand(self.f.const(0.0), _others(inst.axes))
        kept = {o: new for new, o in old.items() if _others((o,))}
        return self.f.rename(part, kept)

    def _contracted(self, inst: Inst, at: Index) -> int:
        """Σ over the entries of the axes that are unrolled, of products over the others."""
        f, over = self.f, _others(inst.value)
        terms = []
        for entry in self._entries(_few(inst.value)):
            a, b = (self._part(i, {**at, **entry}) for i in inst.ins)
            if not (self._zero(a) or self._zero(b)):
                terms.append(f.contract(a, b, over) if over else f.mul(a, b))
        return self._joined("add", terms) if terms else f.const(0.0)

    def _reduced(self, inst: Inst, at: Index) -> int:
        f, over = self.f, _others(inst.value)
        parts = [self._part(inst.ins[0], {**at, **e}) for e in self._entries(_few(inst.value))]
        value = self._joined(JOINED[inst.op], parts)
        return f.op(inst.op, (value,), over) if over else value

    def _joined(self, op: str, parts: list[int]) -> int:
        return reduce(lambda a, b: self.f.ew(op, a, b), parts)

    def _solved(self, inst: Inst) -> Callable[[Index], int]:
        """A system of the ranks in the roles of rows and of columns."""
        system, right = inst.ins
        rows, columns = _few(self.source.body[system].axes)
        pairs = [self._part(system, e) for e in self._entries((rows, columns))]
        value = (self._size(rows), inst.value)
        return self._results("solve_parts", value, pairs, right, rows, _others(inst.axes))

    def _chained(self, inst: Inst) -> Callable[[Index], int]:
        steps, added = inst.ins
        row, column = inst.value
        matrix = [self._part(steps, e) for e in self._entries((row, column))]
        value = (self._size(row), inst.op == "chain_back")
        return self._results("chain_parts", value, matrix, added, row, _others(inst.axes))

    def _results(
        self,
        op: str,
        value: tuple[int, bool],
        matrix: list[int],
        right: int,
        row: str,
        axes: Axes,
    ) -> Callable[[Index], int]:
        """The parts of all results of ``op``: those of ``right`` along ``row`` go in, as many come
        out."""

        def part(at: Index) -> int:
            sides = [self._part(right, {**at, row: r}) for r in range(value[0])]
            sides = [self.f.arrange(side, axes) for side in sides]
            every = self.f.op(op, (*matrix, *sides), value)
            like = sides[at[row]]
            return self.f.emit(Inst("pick", (every, like), at[row], self.f.axes(like)))

        return part
