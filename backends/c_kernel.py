"""One kernel in, a C function for one sequence and head out, with the functions that say how much
workspace it takes: what kernels of chunks and of tokens share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lacc.backends.base import unused
from lacc.backends.c_body import Body, Piece, Statement
from lacc.backends.c_pulls import joined_pulls, lower_halves
from lacc.backends.c_ready import for_c, levels_once
from lacc.backends.c_text import RESERVED, dim, identifier, plain_name, size, times
from lacc.tile.partition import Part
from lacc.tile.program import Axes
from lacc.tile.rewrite import meet_once

ROLES = {
    "input": "in",
    "stored": "in",
    "param": "fixed",
    "buffer": "fixed",
    "last": "last",
    "state": "begun",
    "dstate": "dended",
    "kept": "start",
    "cotangent": "dout",
}
"""What the arrays of each kind of load are for a call."""

TIMED = ("input", "stored", "cotangent")


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a call: what it is of (a key of `c_pass.SAID`), and its name."""

    role: str
    label: str


@dataclass(frozen=True, slots=True)
class Carried:
    """A state that goes from chunk to chunk: its tile is ``name``, then ``name``_next."""

    name: str
    size: str
    before: str
    """The entries of a state as a token finds it, which are not ``size`` where it grows."""

    begun: str
    """The array that it starts from."""

    ended: str
    """The array that it is stored in, "" where it is not."""

    start: str = ""
    """The array that keeps it as each chunk finds it, "" where none does."""

    def from_begun(self, tile: str) -> str:
        """Where the state starts from: where the caller has it, or a copy in a tile."""
        return f"state_from(&{self.begun}, n, h, {tile}, {self.before})"

    @property
    def pieces(self) -> list[Piece]:
        """Two tiles that take turns."""
        return [(self.size, [f"{self.name}_even"]), (self.size, [f"{self.name}_odd"])]

    @property
    def tiles(self) -> str:
        """The declaration of the tiles."""
        return f"real *{self.name} = {self.name}_even, *{self.name}_next = {self.name}_odd;"

    @property
    def spare(self) -> str:
        """The tile that the state is not in."""
        even, odd = f"{self.name}_even", f"{self.name}_odd"
        return f"{self.name} == {even} ? {odd} : {even}"

    @property
    def taken_up(self) -> str:
        """Has the state where it starts from."""
        return f"{self.name} = {self.from_begun(f'{self.name}_even')};"

    @property
    def last(self) -> str:
        """Has the last state go where the caller wants it, if it wants any."""
        into = f"state_into(&{self.ended}, &{self.begun}, n, h, {self.name}_next)"
        return f"{self.name}_next = {into};"

    @property
    def advance(self) -> list[str]:
        """Makes the next state the state."""
        return [f"{self.name} = {self.name}_next;", f"{self.name}_next = {self.spare};"]


class CKernel(ABC):
    """The text of the function ``name`` of ``part``: what kernels of chunks and of tokens share."""

    rows: str
    """The tokens of a step, in C."""

    longest: str
    """The most that there are."""

    chunks = "1"
    """How many steps of it several threads may share."""

    head = "h"
    """The head, or the first of those that a call takes together."""

    by_head = False
    """Whether heads may be taken together."""

    @property
    def weight(self) -> int:
        """How many times longer than a chunk it is at a real of its workspace, by token."""
        return 1

    def __init__(
        self,
        name: str,
        run: str,
        part: Part,
        arrays: Mapping[Array, str],
        dims: Sequence[str],
        *,
        needed: Sequence[str] = (),
        backward: bool = False,
        again: CKernel | None = None,
    ) -> None:
        """``run`` is the type of a run, ``arrays`` are those of the call by what they are, ``dims``
        those of the spec; ``needed`` are states that are kept as each chunk finds them. ``again``
        makes those again that a way back by token needs."""
        self.name, self.run, self.arrays, self.dims = name, run, arrays, dims
        self.backward, self.again = backward, again
        kind = "dstate" if backward else "state"
        program = lower_halves(for_c(meet_once(part.program, kind)))
        self.program = levels_once(joined_pulls(program))
        turns = self._ordered(kind)
        self.taken: set[str] = again.taken if again else {*RESERVED, *map(dim, dims)}
        self.carried = {s: self._carried(s, needed) for s in part.carries}
        places = self._places(kind)
        loads = self.program.loads(kind)
        heirs = {
            loads[label]: entry_of(f"{s.name}_next", self._axes(loads[label]))
            for label, s in self.carried.items()
            if label in loads and self.program.outs.get(f"state:{label}") != loads[label]
        }
        own = turns, self.by_head, heirs
        self.body = Body(self.program, *places, self._load, self.taken, *own)
        self.sums = self._sums()

    def _ordered(self, kind: str) -> Sequence[int]:
        """Puts the program in order; where parts of it begin that are not computed together."""
        return ()

    @abstractmethod
    def _walk(self) -> list[str]:
        """The work on all chunks, or tokens."""

    def _shared(self) -> list[Piece]:
        """What the threads of a sequence and head share: reals, and the name of the tile."""
        return []

    # ---- what the program takes and gives --------------------------------------------------------

    def _carried(self, state: str, needed: Sequence[str]) -> Carried:
        name = unused(f"{'d' if self.backward else ''}{plain_name(identifier(state))}", self.taken)
        ends = ("", "_next", "_even", "_odd", "_ring", "_kept")
        self.taken |= {f"{name}{end}" for end in ends}
        out = self.program.outs.get(f"state:{state}")
        held = [self.program.loads(kind).get(state) for kind in ("dstate", "state")]
        left = next(n for n in (out, *held) if n is not None)
        found = next(n for n in (*held, out) if n is not None)
        roles = ("dended", "dbegun") if self.backward else ("begun", "ended")
        begun, ended = (self.arrays.get(Array(role, state), "") for role in roles)
        return Carried(
            name,
            self._width(self.program.body[left].axes),
            self._width(self.program.body[found].axes),
            begun,
            ended if out is not None else "",
            self.arrays[Array("start", state)] if state in needed else "",
        )

    def _places(self, carried: str) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
        """The arrays of loads, the variables of states, and where the next states go."""
        arrays, pointers = {}, {}
        for n, inst in enumerate(self.program.body):
            if inst.op != "load":
                continue
            kind, label = inst.value
            if kind == carried and label in self.carried:
                pointers[n] = entry_of(self.carried[label].name, inst.axes)
            elif kind == "state" and self.again is not None:
                pointers[n] = entry_of(f"{self.again.carried[label].name}_at", inst.axes)
            else:
                arrays[n] = self._array(kind, label)
        into: dict[int, str] = {}
        for label, n in self.program.outs.items():
            state = label.removeprefix("state:")
            if state != label and state in self.carried and n not in into and n not in pointers:
                next_ = f"{self.carried[state].name}_next"
                into[n] = entry_of(next_, self.program.body[n].axes)
        return arrays, pointers, into

    def _array(self, kind: str, label: str) -> str:
        role = ROLES.get(kind, "in" if label == "t" else "fixed")
        label = label.removesuffix("_start") if kind == "kept" else label
        return self.arrays[Array(role, label.removeprefix("stored:"))]

    def _load(self, n: int, address: str) -> list[str]:
        inst = self.program.body[n]
        kind, label = inst.value
        at, rows = "c" if kind == "kept" else "0", "1"
        if kind in TIMED or label == "t":
            at, rows = "at", self.rows
        width = self._width(inst.axes)
        return [f"load_tile({address}, &{self._array(kind, label)}, n, h, {at}, {rows}, {width});"]

    def _width(self, axes: Axes) -> str:
        """The entries of a token of a tile."""
        return times(*(size(self.program.sizes[a]).code for a in axes if a != "t"))

    def _sums(self) -> dict[str, tuple[str, str]]:
        """The variable and the array of each output that is summed over chunks."""
        found = {}
        for label in self.program.outs:
            kind, _, name = label.partition(":")
            if kind in ("param", "last") and name:
                variable = unused(f"d{identifier(name)}_sum", self.taken)
                self.taken.add(variable)
                found[label] = (variable, self.arrays[Array(f"d{_summed(kind)}", name)])
        return found

    # ---- text ------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """The function, behind those that give its workspace and what threads share of it."""
        dims = [f"UNUSED const int64_t {dim(d)} = run->dim.{dim(d)};" for d in self.dims]
        dims += self._past("run->tokens")
        dims.append(f"UNUSED const int64_t L = {self.longest};")
        pieces, kept, shared = self.pieces(), self._kept(), self._shared()
        work = [*self._workspace(pieces), *self._walk()]
        if not self.program.outs:
            work = [f"(void)x, (void)n, (void){self.head}, (void)w;"]
        rooms = [(f"round_up({size})", n) for size, n in _counted(pieces)]
        rooms += [(f"heads * round_up({size})", n) for size, n in _counted(kept)]
        lines = self._room("room", ", UNUSED int64_t heads", dims, rooms)
        lines += self._room("shared", ", UNUSED int64_t ring", dims, [(r, 1) for r, _ in shared])
        return [
            *self._types(),
            *lines,
            f"static void {self.name}(const {self.run} *run, const lacc_array *x, int64_t n, "
            f"int64_t {self.head}, real *w, UNUSED turns *by)",
            "{",
            *indented([*dims, *work]),
            "}",
        ]

    def _room(
        self, what: str, more: str, dims: list[str], rooms: Iterable[tuple[str, int]]
    ) -> list[str]:
        """The function that adds up reals."""
        return [
            f"static int64_t {self.name}_{what}(const {self.run} *run{more})",
            "{",
            *indented([*dims, "int64_t room = 0;"]),
            *(f"    room += {f'{n} * ' if n > 1 else ''}{room};" for room, n in rooms),
            "    return room;",
            "}",
            "",
        ]

    def pieces(self) -> list[Piece]:
        """The pieces of the workspace: tiles, and what functions take."""
        found, scratch = [*self.body.pieces], dict.fromkeys(self.body.ops.scratch)
        return [*found, (largest(scratch), ["scratch"])] if scratch else found

    @property
    def together(self) -> str:
        """The array by which it is known whether heads lie side by side and are taken together."""
        return "NULL"

    def _types(self) -> list[str]:
        return []

    def _kept(self) -> list[Piece]:
        """The pieces that each of the heads taken together has for itself."""
        return []

    def _workspace(self, pieces: Iterable[Piece]) -> list[str]:
        lines = []
        for length, (first, *others) in pieces:
            lines.append(f"real *const {first} = take(&w, {length});")
            lines += [f"real *const {name} = {first};" for name in dict.fromkeys(others)]
        return lines

    def _past(self, at: str) -> list[str]:
        """How many tokens came before the one ``at``, where the length of a tile depends on it."""
        if any("#past" in length.dims for length in self.program.sizes.values()):
            return [f"UNUSED const int64_t past = run->past + {at};"]
        return []

    def _given(self, label: str) -> str:
        """The array that an output of a chunk is stored in, "" where there is none."""
        kind, colon, name = label.partition(":")
        if label in self.sums or (colon and kind in ("state", "kept")):
            return ""
        return self.arrays[Array("din" if self.backward else "out", name if colon else label)]

    def _out(self, label: str, n: int) -> list[str]:
        """Stores what comes out of a chunk, or adds it to that of the others."""
        width, pointer = self._width(self._axes(n)), self.body.v.pointer(n)
        if label in self.sums:
            return [f"add_to({self.sums[label][0]}, {pointer}, {width});"]
        array = self._given(label)
        line = f"store_tile(&{array}, n, h, at, {pointer}, {self.rows}, {width});"
        return [line] if array else []

    def _next(self, state: str) -> list[str]:
        """Puts what the chunk left where the next state is, unless it was computed there."""
        n, s = self.program.outs[f"state:{state}"], self.carried[state]
        if self.body.into.get(n) == entry_of(f"{s.name}_next", self._axes(n)):
            return []
        return [f"copy({s.name}_next, {self.body.v.pointer(n)}, {s.size});"]

    def _once(self) -> list[str]:
        """What is computed once for all chunks of a length."""
        if not self.body.once:
            return []
        lines = [*text_of(self.body.once), "known = C;"]
        return ["if (C != known) {", *indented(lines), "}"]

    def _empty_sums(self) -> list[str]:
        return [
            f"fill({name}, R(0), {self._sum(label)});" for label, (name, _) in self.sums.items()
        ]

    def _stored_sums(self) -> list[str]:
        return [
            f"store_tile(&{array}, n, h, 0, {name}, 1, {self._sum(label)});"
            for label, (name, array) in self.sums.items()
        ]

    def _sum(self, label: str) -> str:
        """The entries of a sum."""
        return self._width(self._axes(self.program.outs[label]))

    def _axes(self, n: int) -> Axes:
        return self.program.body[n].axes


def _counted(pieces: Iterable[Piece]) -> Iterable[tuple[str, int]]:
    """How many pieces there are of each size."""
    return Counter(size for size, _ in pieces).items()


def _summed(kind: str) -> str:
    return "fixed" if kind == "param" else kind


def entry_of(pointer: str, axes: Axes) -> str:
    """The variable of a tile, which is its only entry where it has no axes."""
    return pointer if axes else f"{pointer}[0]"


def largest(sizes: Iterable[str]) -> str:
    first, *others = sizes
    for size_ in others:
        first = f"most({first}, {size_})"
    return first


def text_of(statements: Iterable[Statement]) -> list[str]:
    return [line for s in statements for line in s.lines]


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]
