"""One kernel in, a C function that goes through the chunks of a sequence and head out, with the
function that says how much workspace it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lacc.backends.base import unused
from lacc.backends.c_body import Body, Piece, Statement
from lacc.backends.c_ready import for_c
from lacc.backends.c_text import RESERVED, dim, identifier, size, times, unlike_macro
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
        args = f"&{self.begun}, n, h, {self.name}_even, {self.before}"
        return f"{self.name} = state_from({args});"

    @property
    def last(self) -> list[str]:
        """Has the last chunk leave the state where it goes."""
        if not self.ended:
            return []
        into = f"state_into(&{self.ended}, &{self.begun}, n, h, {self.name}_next)"
        return [f"    {self.name}_next = {into};"]

    @property
    def advance(self) -> list[str]:
        """Makes the next state the state."""
        return [f"{self.name} = {self.name}_next;", f"{self.name}_next = {self.spare};"]


class CKernel:
    """The text of the function ``name`` of ``part``."""

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
        self.backward, self.by_token, self.again = backward, part.kind == "token", again
        kind = "dstate" if backward else "state"
        self.program = for_c(meet_once(part.program, kind))
        self.taken: set[str] = again.taken if again else {*RESERVED, *map(dim, dims)}
        self.carried = {s: self._carried(s, needed) for s in part.carries}
        self.body = Body(self.program, *self._places(kind), self._load, self.taken)
        self.sums = self._sums()

    # ---- what the program takes and gives --------------------------------------------------------

    def _carried(self, state: str, needed: Sequence[str]) -> Carried:
        name = unused(
            f"{'d' if self.backward else ''}{unlike_macro(identifier(state))}", self.taken
        )
        self.taken |= {name, f"{name}_next", f"{name}_even", f"{name}_odd", f"{name}_kept"}
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
                pointers[n] = _entry(self.carried[label].name, inst.axes)
            elif kind == "state" and self.again is not None:
                pointers[n] = _entry(f"{self.again.carried[label].name}_at", inst.axes)
            else:
                arrays[n] = self._array(kind, label)
        into: dict[int, str] = {}
        for label, n in self.program.outs.items():
            state = label.removeprefix("state:")
            if state != label and state in self.carried and n not in into and n not in pointers:
                next_ = f"{self.carried[state].name}_next"
                into[n] = _entry(next_, self.program.body[n].axes)
        return arrays, pointers, into

    def _array(self, kind: str, label: str) -> str:
        role = ROLES.get(kind, "in" if label == "t" else "fixed")
        label = label.removesuffix("_start") if kind == "kept" else label
        return self.arrays[Array(role, label.removeprefix("stored:"))]

    def _load(self, n: int, address: str) -> str:
        inst = self.program.body[n]
        kind, label = inst.value
        at, rows = "c" if kind == "kept" else "0", "1"
        if kind in TIMED or label == "t":
            at, rows = "at", "1" if self.by_token else "C"
        width = self._width(inst.axes)
        return f"load_tile({address}, &{self._array(kind, label)}, n, h, {at}, {rows}, {width});"

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
        """The function, behind the one that gives its workspace."""
        dims = [f"UNUSED const int64_t {dim(d)} = run->dim.{dim(d)};" for d in self.dims]
        dims += self._past("run->tokens")
        dims.append(f"UNUSED const int64_t L = {'1' if self.by_token else 'run->chunk'};")
        pieces = self.pieces()
        work = [*self._workspace(pieces), *self._walk()]
        if not self.program.outs:
            work = ["(void)x, (void)n, (void)h, (void)w;"]
        rooms = [
            f"    room += {f'{count} * ' if count > 1 else ''}round_up({length});"
            for length, count in Counter(length for length, _ in pieces).items()
        ]
        return [
            f"static int64_t {self.name}_room(const {self.run} *run)",
            "{",
            *_in([*dims, "int64_t room = 0;"]),
            *rooms,
            "    return room;",
            "}",
            "",
            f"static void {self.name}(const {self.run} *run, const lacc_array *x, int64_t n, "
            "int64_t h, real *w)",
            "{",
            *_in([*dims, *work]),
            "}",
        ]

    def pieces(self) -> list[Piece]:
        """The pieces of the workspace: tiles, states, sums over chunks, and what functions take."""
        found = [*self.body.pieces]
        for state in self.carried.values():
            found += state.pieces
        for label, (variable, _) in self.sums.items():
            axes = self.program.body[self.program.outs[label]].axes
            found.append((self._width(axes), [variable]))
        scratch = dict.fromkeys(self.body.ops.scratch)
        if self.again is not None:
            more = self.again.pieces()
            found += [piece for piece in more if piece[1] != ["scratch"]]
            scratch |= dict.fromkeys(size for size, names in more if names == ["scratch"])
            for state in self.again.carried.values():
                found.append((times("KEPT", state.size), [f"{state.name}_kept"]))
        if scratch:
            found.append((_largest(scratch), ["scratch"]))
        return found

    def _workspace(self, pieces: Iterable[Piece]) -> list[str]:
        decays = self._decays() | (self.again._decays() if self.again is not None else set())
        lines = []
        for length, names in pieces:
            first, *others = (f"{name}_room" if name in decays else name for name in names)
            lines.append(f"real *const {first} = take(&w, {length});")
            lines += [f"real *const {name} = {first};" for name in dict.fromkeys(others)]
        return lines

    def _decays(self) -> set[str]:
        names = self.body.v.names
        return {names[n] for n in names if self.program.body[n].op == "levels"}

    def _walk(self) -> list[str]:
        """The work on all chunks."""
        if self.again is not None:
            return self._by_group(self.again)
        count = "run->tokens" if self.by_token else "(run->tokens + L - 1) / L"
        order = "int64_t c = 0; c < chunks; c++"
        if self.backward:
            order = "int64_t c = chunks - 1; c >= 0; c--"
        at = "const int64_t at = c * L, C = least(L, run->tokens - at);"
        chunk = [
            "const int64_t at = c;" if self.by_token else at,
            *self._past("at"),
            *self._keep(),
            *([] if self.by_token else self._ahead()),
            *self._last(),
            *self.chunk(),
        ]
        return [
            f"const int64_t chunks = {count};",
            *self._begin(),
            *(["int64_t known = -1;"] if self.body.once else []),
            f"for ({order}) {{",
            *_in(chunk),
            "}",
            *self._end(),
        ]

    def _by_group(self, again: CKernel) -> list[str]:
        """From the last group of tokens to the first: states made again, then the way back."""
        states = again.carried.values()
        at = ["const int64_t at = first + p;", *self._past("at")]
        forward = [f"copy({s.name}_kept + p * ({s.before}), {s.name}, {s.before});" for s in states]
        back = [f"real *const {s.name}_at = {s.name}_kept + p * ({s.before});" for s in states]
        group = [
            "const int64_t first = c * KEPT, count = least(KEPT, run->tokens - first);",
            *self._past("first"),
            *(
                f"load_tile({s.name}, &{self._array('kept', state)}, n, h, c, 1, {s.before});"
                for state, s in again.carried.items()
            ),
            "for (int64_t p = 0; p < count; p++) {",
            *_in([*at, *forward, *again.chunk()]),
            "}",
            "for (int64_t p = count - 1; p >= 0; p--) {",
            *_in([*at, *back, *self.chunk()]),
            "}",
        ]
        return [
            *again.body.declarations(),
            *_text(again.body.before),
            *(s.tiles for s in states),
            *self._begin(),
            "for (int64_t c = (run->tokens + KEPT - 1) / KEPT - 1; c >= 0; c--) {",
            *_in(group),
            "}",
            *self._end(),
        ]

    def _begin(self) -> list[str]:
        """What is computed once, the states before the first chunk, and sums of nothing."""
        lines = [*self.body.declarations(), *_text(self.body.before)]
        states = list(self.carried.values())
        lines += [f"real *{s.name} = {s.name}_even;" for s in states]
        lines += self._with_past(
            "run->tokens - 1" if self.backward else "0", [s.taken_up for s in states]
        )
        lines += [f"real *{s.name}_next = {s.spare};" for s in states]
        for label, (variable, _) in self.sums.items():
            axes = self.program.body[self.program.outs[label]].axes
            lines.append(f"fill({variable}, R(0), {self._width(axes)});")
        return lines

    def _past(self, at: str) -> list[str]:
        """How many tokens came before the one ``at``, where the length of a tile depends on it."""
        if any("#past" in length.dims for length in self.program.sizes.values()):
            return [f"UNUSED const int64_t past = run->past + {at};"]
        return []

    def _with_past(self, at: str, lines: list[str]) -> list[str]:
        """Lines that see the lengths at a token."""
        past = self._past(at) if lines else []
        return ["{", *_in([*past, *lines]), "}"] if past else lines

    def _keep(self) -> list[str]:
        """Stores the states that the way back starts from."""
        group, when = ("c / KEPT", " && c % KEPT == 0") if self.by_token else ("c", "")
        found = []
        for s in (s for s in self.carried.values() if s.start):
            found.append(f"if ({s.start}.data{when})")
            found.append(f"    store_tile(&{s.start}, n, h, {group}, {s.name}, 1, {s.before});")
        return found

    def _last(self) -> list[str]:
        """Has the last chunk write states where they go."""
        lines = [line for s in self.carried.values() for line in s.last]
        final = "c == 0" if self.backward else "c + 1 == chunks"
        return [f"if ({final}) {{", *lines, "}"] if lines else []

    def _ahead(self) -> list[str]:
        """Says what the next chunk loads and what this one writes."""
        if self.backward:
            there, at, group, rows = "c > 0", "at - L", "c - 1", "L"
        else:
            there, at, group = "c + 1 < chunks", "at + L", "c + 1"
            rows = "least(L, run->tokens - at - L)"
        loads, stores = [], []
        for inst in self.program.body:
            if inst.op == "load" and inst.value[0] in (*TIMED, "kept"):
                timed = inst.value[0] in TIMED
                array, width = self._array(*inst.value), self._width(inst.axes)
                span = f"{at}, {rows}" if timed else f"{group}, 1"
                loads.append(f"want(&{array}, n, h, {span}, {width}, 0);")
        for label, n in self.program.outs.items():
            array = self._given(label)
            if array:
                width = self._width(self.program.body[n].axes)
                stores.append(f"want(&{array}, n, h, at, C, {width}, 1);")
        return ["want_nothing();", f"if ({there}) {{", *_in(loads), "}", *stores]

    def chunk(self) -> list[str]:
        """The work on one chunk, from loads to what it gives and carries."""
        lines = []
        if self.body.once:
            once = [*_text(self.body.once), "known = C;"]
            lines += ["if (C != known) {", *_in(once), "}"]
        lines += _text(self.body.each)
        for label, n in self.program.outs.items():
            lines += self._out(label, n)
        changed = [state for state in self.carried if self._changes(state)]
        for state in changed:
            lines += self._next(state)
        for state in changed:  # once all are copied: one may be what another was
            lines += self.carried[state].advance
        return lines

    def _given(self, label: str) -> str:
        """The array that an output of a chunk is stored in, "" where there is none."""
        kind, colon, name = label.partition(":")
        if label in self.sums or (colon and kind in ("state", "kept")):
            return ""
        return self.arrays[Array("din" if self.backward else "out", name if colon else label)]

    def _out(self, label: str, n: int) -> list[str]:
        """Stores what comes out of a chunk, or adds it to that of the others."""
        axes, pointer = self.program.body[n].axes, self.body.v.pointer(n)
        if label in self.sums:
            return [f"add_to({self.sums[label][0]}, {pointer}, {self._width(axes)});"]
        array, rows = self._given(label), "1" if self.by_token else "C"
        return (
            [f"store_tile(&{array}, n, h, at, {pointer}, {rows}, {self._width(axes)});"]
            if array
            else []
        )

    def _changes(self, state: str) -> bool:
        """Whether the chunk leaves another state than it found."""
        n, s = self.program.outs.get(f"state:{state}"), self.carried[state]
        return n is not None and self.body.pointers.get(n) != _entry(s.name, self._axes(n))

    def _next(self, state: str) -> list[str]:
        """Puts what the chunk left where the next state is, unless it was computed there."""
        n, s = self.program.outs[f"state:{state}"], self.carried[state]
        if self.body.into.get(n) == _entry(f"{s.name}_next", self._axes(n)):
            return []
        return [f"copy({s.name}_next, {self.body.v.pointer(n)}, {s.size});"]

    def _axes(self, n: int) -> Axes:
        return self.program.body[n].axes

    def _end(self) -> list[str]:
        """Stores the last states, and sums."""
        stores = [
            f"state_end(&{s.ended}, n, h, {s.name}, {s.size});"
            for s in self.carried.values()
            if s.ended
        ]
        lines = self._with_past("0" if self.backward else "run->tokens - 1", stores)
        for label, (variable, array) in self.sums.items():
            axes = self.program.body[self.program.outs[label]].axes
            lines.append(f"store_tile(&{array}, n, h, 0, {variable}, 1, {self._width(axes)});")
        return lines


def _summed(kind: str) -> str:
    return "fixed" if kind == "param" else kind


def _entry(pointer: str, axes: Axes) -> str:
    """The variable of a tile, which is its only entry where it has no axes."""
    return pointer if axes else f"{pointer}[0]"


def _largest(sizes: Iterable[str]) -> str:
    first, *others = sizes
    for size_ in others:
        first = f"most({first}, {size_})"
    return first


def _text(statements: Iterable[Statement]) -> list[str]:
    return [line for s in statements for line in s.lines]


def _in(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]
