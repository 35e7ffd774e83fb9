"""The program of one token in, the text of the kernel that steps through tokens with its matrix
states in registers out.

Each thread keeps entries of its own of every matrix that blocks share along an axis, from the load
of a state to its store; sums over rows or columns go through registers, then across threads. A
block takes sequences and heads in turn: while it works on one, the states of its next one are on
their way into shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lacc.backends.c_body import Group, Statement
from lacc.backends.c_storage import Storage
from lacc.backends.c_text import times
from lacc.backends.c_values import MEMORY, RESULTS, Index, identity, index_name
from lacc.backends.cuda_arrays import Place
from lacc.backends.cuda_barriers import BARRIER, Block, Step, steps
from lacc.backends.cuda_bodies import states_last
from lacc.backends.cuda_body import CudaBody
from lacc.backends.cuda_kernel import CudaKernel
from lacc.backends.cuda_ops import CudaOps, CudaValues, Split
from lacc.backends.cuda_places import Tile
from lacc.backends.device_kernel import KernelSpec, host_size
from lacc.backends.text import PRODUCT
from lacc.spec.model import Spec
from lacc.tile.lower import Naming
from lacc.tile.program import Axes, Inst, Program

SUMS = ("contract", "accumulate", "sum")
"""Ops that sum over an axis of a matrix."""

KEPT = 4096
"""Entries of matrices that a block keeps in registers at most: 32 of a thread."""

NAMES = ("e", "part", "programs", "more", "next", "ahead", "first")
"""Words of these kernels' text."""


class SpreadValues(CudaValues):
    """Values of which those over the axes of ``layouts`` that are no inputs are spread over the
    registers of threads; ``layouts`` may be cut down once it is known what is stored."""

    layouts: tuple[Axes, ...] = ()

    def spread(self, n: int) -> bool:
        """Whether a stored value is."""
        inst = self.body[n]
        there = n in self.stored and inst.axes in self.layouts
        return there and (inst.op != "load" or inst.value[0] == "state")

    def entry(self, n: int, index: Index | None = None) -> str:
        return f"{self.names[n]}[e]" if self.spread(n) else super().entry(n, index)


def layouts_of(program: Program, split: str) -> tuple[Axes, ...]:
    """The axes of the matrices that stay in registers: of states that blocks share along ``split``,
    where every reader takes the entry at hand, or sums over an axis."""
    values = SpreadValues(program, {}, Split(split), {})
    Storage(values)
    states = {program.body[n].axes for n in program.loads("state").values()}
    values.layouts = tuple(sorted(a for a in states if len(a) == 2 and split in a))
    bad: set[Axes] = set()
    for n, inst in enumerate(program.body):
        if n not in values.stored and inst.op not in RESULTS:
            continue
        if values.spread(n) and inst.op in MEMORY and inst.op != "load":
            bad.add(inst.axes)
        together = inst.op in MEMORY or inst.op in RESULTS
        for i in inst.ins if together else (n,):
            for k, at in values.leaves(i, identity(program.body[i].axes), not together):
                axes = program.body[k].axes
                entry = set(inst.axes) == set(axes) and not together
                if values.spread(k) and not (
                    at == identity(axes) and (entry or _sums(program, inst, axes))
                ):
                    bad.add(axes)
    for n in program.outs.values():
        for k, at in values.leaves(n, identity(program.body[n].axes), False):
            axes = program.body[k].axes
            if values.spread(k) and (program.body[n].axes != axes or at != identity(axes)):
                bad.add(axes)
    return tuple(a for a in values.layouts if a not in bad)


def _sums(program: Program, inst: Inst, axes: Axes) -> bool:
    """Whether an op sums products of entries of a matrix over one of its axes."""
    factors = inst.ins[1:] if inst.op == "accumulate" else inst.ins
    inside = all({*program.body[i].axes} <= {*axes} for i in factors)
    return inst.op in SUMS and inside and {*inst.value, *inst.axes} == {*axes} != {*inst.axes}


class SpreadOps(CudaOps):
    """Statements of which those over matrices in registers are loops over a thread's own
    entries."""

    v: SpreadValues

    def layout(self, axes: Iterable[str]) -> Axes | None:
        """The layout of a matrix over some axes, in any order."""
        return next((a for a in self.v.layouts if {*a} == {*axes}), None)

    def loop(self, lines: list[str], axes: Iterable[str], simd: str = "") -> list[str]:
        axes = tuple(axes)
        layout = self.layout(axes)
        return super().loop(lines, axes, simd) if layout is None else self._each(lines, layout)

    def _each(self, lines: list[str], layout: Axes) -> list[str]:
        """A loop over the entries of a thread."""
        name, at = layout_name(layout), ("row", "column")
        used = {word for line in lines for word in re.findall(r"\w+", line)}
        held = ", ".join(self.v.length(a) for a in layout)
        return [
            f"#pragma unroll {name}::UNROLL",
            f"for (int e = 0; e < {name}::EACH; e++) {{",
            f"    if (!{name}::holds(e, {held})) continue;",
            *(
                f"    const int {index_name(a)} = {name}::{way}(e);"
                for a, way in zip(layout, at)
                if index_name(a) in used
            ),
            *(f"    {line}" for line in lines),
            "}",
        ]

    def lines(self, n: int) -> list[str]:
        inst = self.v.body[n]
        matrix = {*inst.axes, *inst.value} if inst.op in SUMS else ()
        layout = self.layout(matrix)
        return super().lines(n) if layout is None else self._sum(n, inst, layout)

    def _sum(self, n: int, inst: Inst, layout: Axes) -> list[str]:
        """A sum over the rows or columns of a matrix: of a thread's own entries, then of all
        threads that have others of the same column or row."""
        name, (row, column) = layout_name(layout), layout
        down = inst.value == (row,)
        factors = inst.ins[1:] if inst.op == "accumulate" else inst.ins
        term = " * ".join(self.v.at(i, identity(layout)).within(PRODUCT) for i in factors)
        out, of = self.v.entry(n), f"e % {name}::WIDE" if down else f"e / {name}::WIDE"
        given = f"{out} = "
        if inst.op == "accumulate":
            base = inst.ins[0]
            first = out if base in self.grown else self.v.at(base, identity(inst.axes)).code
            given = f"{out} = {first} + "
        begun = [
            f"real part[{name}::{'WIDE' if down else 'TURNS'}] = {{}};",
            *self._each([f"part[{of}] += {term};"], layout),
        ]
        if down:
            width = self.v.length(column)
            self.scratch.append(times("WARPS", self.v.length(column, True)))
            sums = f"of_warps({self.room}, {width}, {index_name(column)})"
            lines = [
                *begun,
                f"add_down<{name}>({self.room}, {width}, part);",
                BARRIER,
                *super().loop([f"{given}{sums};"], (column,)),
            ]
        else:
            i = index_name(row)
            lines = [
                *begun,
                f"#pragma unroll {name}::UNROLL",
                f"for (int t = 0; t < {name}::TURNS; t++) {{",
                f"    const int {i} = {name}::row(t * {name}::WIDE);",
                f"    const real sum = add_across<{name}>(part[t]);",
                f"    if (threadIdx.x % {name}::ACROSS == 0 && {i} < {self.v.length(row)}) "
                f"{given}sum;",
                "}",
            ]
        return ["{", *(f"    {line}" for line in lines), "}"]


def layout_name(layout: Axes) -> str:
    """The type that says which thread has which entry."""
    return "by_" + "_".join(index_name(a).removeprefix("i_") for a in layout)


class SpreadBody(CudaBody):
    """The statements of a program with matrices in registers."""

    v: SpreadValues
    ops: SpreadOps

    def _values(self, arrays: Mapping[int, str]) -> SpreadValues:
        return SpreadValues(self.program, arrays, self.split, self.lying)

    def _operations(self) -> SpreadOps:
        self.v.layouts = layouts_of(self.program, self.split.axis)
        return SpreadOps(self.v, self.storage, frozenset(self.home), self.work)

    def _loop(self, group: Group) -> Statement:
        if self.ops.layout(group.axes) is None:
            return super()._loop(group)
        found = super(CudaBody, self)._loop(group)
        return replace(found, own=frozenset(n for n in found.own if self.v.spread(n)))

    def tile(self, n: int) -> str:
        return "" if self.v.spread(n) else super().tile(n)

    def variable(self, n: int) -> str:
        name = super().variable(n)
        return f"{name}[{layout_name(self.body[n].axes)}::EACH]" if self.v.spread(n) else name

    def _size(self, n: int) -> str | None:
        return None if self.v.spread(n) else super()._size(n)


class CudaDecode(CudaKernel):
    """The text of a kernel whose matrix states stay in registers."""

    body: SpreadBody

    def __init__(self, spec: Spec, what: KernelSpec, library: Iterable[str]) -> None:
        self.registers: dict[str, Axes] = {}
        """Matrices of states, and their axes."""
        self.raw: dict[str, str] = {}
        """Where those that are next wait, by the state."""
        super().__init__(spec, what, {*library, *NAMES})

    body_of = SpreadBody

    @property
    def layouts(self) -> tuple[Axes, ...]:
        """The axes of matrices that stay in registers."""
        return layouts_of(self.program, self.what.split)

    def ordered(self, program: Program) -> Program:
        return states_last(program, loads_first=True)

    def lies(self, program: Program, n: int) -> bool:
        """All inputs are sent for at once, and each is read once."""
        return False

    def _state_tile(self, state: str, wish: str) -> str:
        axes = Naming(self.spec).axes(self.states[state].shape)
        if axes not in self.layouts:
            return super()._state_tile(state, wish)
        tile = self.name(wish)
        self.registers[tile] = axes
        return tile

    # ---- steps -----------------------------------------------------------------------------------

    def _items(self) -> list[Step | Block]:
        """What threads have in registers is touched by them alone."""
        items = super()._items()
        for step in steps(items):
            step.touches = tuple(t for t in step.touches if t.place not in self.registers)
        return items

    def load(self, tile: str, place: Place, axes: Axes, lengths: Sequence[str]) -> list[str]:
        if tile not in self.registers:
            return super().load(tile, place, axes, lengths)
        raw = self.raw[tile] = self.name(f"{tile}_raw")
        entries = times(*(self._entries(a) for a in axes))
        following = f"more ? moved({place.base}, {times('ahead', entries)}) : nullptr"
        at = [self.step(place, a, axes) for a in axes]
        call = [tile, raw, place.base, following, *at, *lengths, "first"]
        return [f"take_spread<{layout_name(axes)}>({', '.join(call)});"]

    def store(self, tile: str, place: Place, axes: Axes, lengths: Sequence[str]) -> list[str]:
        spread = {self.body.v.names[n] for n in self.body.v.stored if self.body.v.spread(n)}
        if tile not in spread | {*self.registers}:
            return super().store(tile, place, axes, lengths)
        at = [self.step(place, a, axes) for a in axes]
        call = [place.first, *at, tile, *lengths]
        return [f"store_spread<{layout_name(axes)}>({', '.join(call)});"]

    def copied(self, to: str, source: str, length: str) -> str:
        if to not in self.registers:
            return super().copied(to, source, length)
        name = layout_name(self.registers[to])
        return f"for (int e = 0; e < {name}::EACH; e++) {to}[e] = {source}[e];"

    # ---- text ------------------------------------------------------------------------------------

    def _tiles(self) -> list[Tile]:
        last = max((step.stretch for step in steps(self.items)), default=0)
        waiting = []
        for tile, raw in self.raw.items():
            state = next(s for s, held in self.held.items() if held == tile)
            each = f"sizeof(element<T_{self.pointer('begun', state)}>::type) / sizeof(real)"
            size = f"{layout_name(self.registers[tile])}::EACH * THREADS * {each}"
            waiting.append(Tile(raw, size, 0, last, True))
        return [*super()._tiles(), *waiting]

    def lines(self) -> list[str]:
        """The body of the function: sequences and heads in turn."""
        programs = times(self.number("N", "sequences", "run.N"), "a.H")
        inside = super().lines()
        before = len(self._declared())
        return [
            *inside[:before],
            f"const int64_t programs = {programs};",
            "for (int64_t program = blockIdx.x + a.program0; program < programs; "
            "program += gridDim.x) {",
            *(f"    {line}" for line in inside[before:]),
            f"    {BARRIER}",
            "}",
        ]

    def _declared(self) -> list[str]:
        names = [f"{n}[{layout_name(axes)}::EACH]" for n, axes in self.registers.items()]
        lines = super()._declared()
        return [*lines, *(line for n in names if (line := f"real {n};") not in lines)]

    def _found_at(self) -> list[str]:
        return [*self._in_turn()]

    def _in_turn(self) -> Iterator[str]:
        _, *found = super()._found_at()
        yield "const int64_t H = a.H, head = program % H, next = program + gridDim.x;"
        yield "const bool first = program == blockIdx.x + a.program0, more = next < programs;"
        yield from found
        yield "/* states from those of this program to those of the next one */"
        row = "a.state_rows ? a.state_rows[next / H] : next / H"
        yield f"const int64_t next_row = !more ? begin_row : {row};"
        yield "const int64_t ahead = (next_row - begin_row) * H + next % H - head;"

    def sizes(self) -> list[str]:
        found = []
        for axes in self.layouts:
            most = ", ".join(self._lengths(axes, most=True))
            found.append(f"typedef spread<{most}> {layout_name(axes)};")
        return [*super().sizes(), *found]

    @property
    def programs(self) -> str:
        """As many as a device runs at once do: blocks take programs in turn."""
        return "N * H, or fewer, which take all in turn"

    @property
    def together(self) -> str:
        """Blocks that a multiprocessor runs at once."""
        kept = " + ".join(f"{layout_name(axes)}::EACH" for axes in self.matrices)
        return f"together(tiles().shared, {kept})"

    @property
    def widest(self) -> str:
        """As many as leave a thread registers for all its matrices."""
        sizes = self.what.program.sizes
        other = [
            host_size(sizes[a]) for axes in self.matrices for a in axes if a != self.what.split
        ]
        return f"{KEPT} // ({' + '.join(other)})"

    @property
    def matrices(self) -> list[Axes]:
        """The axes of each matrix in registers."""
        found = dict(self.registers)
        for n in self.body.v.stored:
            if self.body.v.spread(n):
                found.setdefault(self.body.v.names[n], self.body.body[n].axes)
        return list(found.values())
