"""The programs of one kernel in, their statements out: what they load, and where the states that
they carry lie."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lacc.backends.c_ready import for_c
from lacc.backends.c_text import dim, size, times
from lacc.backends.c_values import View
from lacc.backends.cuda_arrays import CudaArrays, Place
from lacc.backends.cuda_body import CudaBody
from lacc.backends.cuda_ops import Split
from lacc.backends.cuda_reads import read_there
from lacc.backends.device_kernel import KernelSpec
from lacc.spec.model import Spec
from lacc.tile.lower import Naming
from lacc.tile.program import TIME, Axes, Program

NUMBERS = {"t": "R(seen + place + 1)", "T": "R(its.tokens)", "head": "R(head)", "H": "R(H)"}
"""Positions and counts."""


class CudaBodies(CudaArrays):
    """The programs of one kernel as statements, and the tiles that states lie in."""

    def __init__(self, spec: Spec, what: KernelSpec, library: Iterable[str]) -> None:
        here = Split()
        if what.split:
            label = re.sub(r"\W", "", what.split, flags=re.ASCII) or "axis"
            here = Split(what.split, f"{label}_here", f"{label}_most")
        super().__init__(spec, what, here, library)
        self.taken |= {here.here, here.most, *map(dim, spec.dims)}
        self.carried = "dstate" if what.backward else "state"
        self.program = self.ordered(for_c(what.program))
        self.ahead: dict[str, tuple[str, str]] = {}
        """By array the tile that its next rows wait in, and the size of that."""
        self.room: dict[str, str] = {}
        """Tiles that are held as long as the kernel runs, and their sizes."""
        self.then: dict[str, str] = {}
        """The states that the way back finds at a token, from memory."""
        self.found: dict[str, str] = {}
        self.left: dict[str, str] = {}
        """Those that are made again, as a token finds and as it leaves them."""
        self.again = self._body_again(what.remade) if what.remade is not None else None
        self.held = {
            s: self._state_tile(s, f"{'d' if what.backward else ''}{s}") for s in what.carries
        }
        self.next: dict[str, str] = {}
        self._find_next()
        self.body = self._body(self.program, self.held, self.next, self.taken)

    def _state_tile(self, state: str, wish: str) -> str:
        """The tile of a state, held as long as the kernel runs."""
        tile = self.name(wish)
        axes = Naming(self.spec).axes(self.states[state].shape)
        self.room[tile] = times(*self._lengths(axes, most=True))
        return tile

    def _lengths(self, axes: Axes, most: bool = False) -> list[str]:
        """The entries of a tile along its axes."""
        found = []
        for axis in axes:
            if axis in TIME:
                found.append("L" if most else "C")
            elif axis == self.split.axis:
                found.append(self.split.most if most else self.split.here)
            else:
                found.append(size(self.what.program.sizes[axis]).code)
        return found

    def _body(
        self, program: Program, held: Mapping[str, str], next_: Mapping[str, str], taken: set[str]
    ) -> CudaBody:
        """The statements of a program that carries states in tiles ``held``, which it leaves in
        those, or in the tiles ``next_`` where they have one."""
        arrays, pointers, lying = {}, {}, dict[int, View]()
        carried = "state" if program is not self.program else self.carried
        for n, inst in enumerate(program.body):
            if inst.op != "load":
                continue
            kind, label = inst.value
            if kind == carried and label in held:
                pointers[n] = entry_of(held[label], inst.axes)
            elif kind == "state":
                pointers[n] = entry_of(self.then[label], inst.axes)
            elif kind == "index" and not inst.axes:
                pointers[n] = NUMBERS[label]
            elif kind != "index":
                place = self.place(kind, label, inst.axes)
                arrays[n] = self.pointer(kind, label)
                if self.lies(program, n):
                    steps = {a: self.step(place, a, inst.axes) for a in inst.axes}
                    lying[n] = View(place.first, "0", steps)
        into: dict[int, str] = {}
        for label, n in program.outs.items():
            state = label.removeprefix("state:")
            if state != label and state in held and n not in into and n not in pointers:
                into[n] = entry_of(next_.get(state, held[state]), program.body[n].axes)

        def load(n: int, address: str) -> list[str]:
            return self._load(program, n, address)

        source = self.spec.file.source.text.splitlines()
        return self.body_of(
            program,
            arrays,
            pointers,
            into,
            load,
            taken,
            self.split,
            lying,
            source,
            self.what.kind == "chunk",
        )

    body_of: type[CudaBody] = CudaBody

    def ordered(self, program: Program) -> Program:
        """A program in the order of its statements."""
        return states_last(program)

    def lies(self, program: Program, n: int) -> bool:
        """Whether an input is read where a caller has it."""
        return 0 < len(program.body[n].axes) <= 2 and read_there(
            program, n, self.what.kind == "chunk"
        )

    def _load(self, program: Program, n: int, address: str) -> list[str]:
        """The lines that load a value."""
        inst = program.body[n]
        kind, label = inst.value
        if kind == "index":
            sign = "-" if self.what.reverse else "+"
            line = f"{address}[i] = R(seen + place {sign} i + 1);"
            return ["for (int i = threadIdx.x; i < C; i += THREADS)", f"    {line}"]
        place = self.place(kind, label, inst.axes)
        if not inst.axes:
            value = f"real_of(*({place.first}))"
            name = address.removeprefix("&")
            return [f"{name} = {f'{place.base} ? {value} : R(0)' if place.optional else value};"]
        lengths = self._lengths(inst.axes)
        rows = self._rows(place, inst.axes, lengths)
        if self.what.kind == "loop" and inst.axes[0] == "t" and rows is not None:
            count, width, row, step = rows
            if count == "C":
                return [self._ahead(kind, label, address, place, inst.axes, width, row, step)]
        return self.load(address, place, inst.axes, lengths)

    def _ahead(
        self,
        kind: str,
        label: str,
        address: str,
        place: Place,
        axes: Axes,
        width: str,
        row: str,
        step: str,
    ) -> str:
        """The call that loads the rows of a chunk, and sends for those of the next one."""
        pointer = self.pointer(kind, label)
        if pointer not in self.ahead:
            entries = f"sizeof(element<T_{pointer}>::type) / sizeof(real)"
            size = times("L", *self._lengths(axes[1:], most=True))
            self.ahead[pointer] = self.name(f"{pointer}_ahead"), f"{size} * {entries}"
        by = f"{'-' if self.what.backward else ''}L * ({row})"
        then = re.sub(r"\bC\b", "C_next", width)  # a row for each token of a chunk is as wide as it
        sizes = ("C", width, "C_next", then)
        call = [address, self.ahead[pointer][0], place.first, by, row, step, *sizes, "number == 0"]
        return f"load_ahead<others>({', '.join(call)});"

    def _find_next(self) -> None:
        """Gives those states a second tile that cannot be changed where they are."""
        apart = {s: f"{tile}_next" for s, tile in self.held.items()}
        trial = self._body(self.program, self.held, apart, set(self.taken))
        for state, tile in self.held.items():
            if not self._changes_in_place(trial, state, apart[state]):
                self.next[state] = self._state_tile(state, f"{tile}_next")

    def _changes_in_place(self, body: CudaBody, state: str, apart: str) -> bool:
        """Whether nothing reads a state once its next one is written, but at the entry that is."""
        outs = self.program.outs
        load, out = self.program.loads(self.carried).get(state), outs.get(f"state:{state}")
        if load is None or out is None or load == out:
            return True
        for label, n in outs.items():
            other = label != f"state:{state}" and not label.startswith("kept:")
            if other and load in body.behind(n):
                return False
        entry = entry_of(apart, self.program.body[out].axes)
        if body.into.get(out) != entry:
            return load not in body.behind(out)
        makes = [any(body.v.names[n] == entry for n in s.makes) for s in body.each]
        first = makes.index(True)
        if any(load in s.reads for s in body.each[first + 1 :]):
            return False
        statement = body.each[first]
        said = re.findall(r"\w+", " ".join(statement.lines))
        onto = statement.lines[0].startswith("gemm_onto(") and said.count(self.held[state]) == 1
        written = max(k for k, line in enumerate(statement.lines) if apart in line)
        after = re.findall(r"\w+", " ".join(statement.lines[written + 1 :]))
        alone = self.held[state] not in after
        own = alone and load in statement.own and bool(self.program.body[load].axes)
        return load not in statement.reads or own or onto

    def _body_again(self, program: Program) -> CudaBody:
        """What makes the states of a stretch of tokens again."""
        program = states_last(for_c(program))
        states = [n.removeprefix("state:") for n in program.outs]
        self.then = {s: self._state_tile(s, f"{s}_then") for s in states}
        self.found = {s: self._state_tile(s, f"{s}_before") for s in states}
        next_ = {s: self._state_tile(s, f"{s}_after") for s in states}
        self.left = next_
        return self._body(program, self.found, next_, self.taken)

    @property
    def bodies(self) -> list[CudaBody]:
        """The programs of the kernel."""
        return [body for body in (self.again, self.body) if body is not None]

    @property
    def counts(self) -> bool:
        """Whether positions matter."""
        return ("index", "t") in {i.value for i in self.program.body if i.op == "load"}


def entry_of(tile: str, axes: Axes) -> str:
    """The variable of a tile, which is its only entry where it has no axes."""
    return tile if axes else f"{tile}[0]"


def states_last(program: Program, loads_first: bool = False) -> Program:
    """The program with what only the next states need behind all else, so that these may take the
    place of the states that it reads; if asked with ``loads_first``."""
    wanted: set[int] = set()
    stack = [n for label, n in program.outs.items() if not label.startswith("state:")]
    while stack:
        n = stack.pop()
        if n not in wanted:
            wanted.add(n)
            stack.extend(program.body[n].ins)

    def turn(n: int) -> tuple[bool, bool]:
        return not (loads_first and program.body[n].op == "load"), n not in wanted

    order = sorted(range(len(program.body)), key=turn)
    new = {n: k for k, n in enumerate(order)}
    moved = tuple(
        replace(program.body[n], ins=tuple(new[i] for i in program.body[n].ins)) for n in order
    )
    return Program(moved, {label: new[n] for label, n in program.outs.items()}, program.sizes)
