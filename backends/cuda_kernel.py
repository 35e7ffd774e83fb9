"""The program of one kernel in, its text out: its arguments and what a host gives for them, its
tiles, its lines.

There are three kinds: one chunk by itself, chunk after chunk, token after token. A block of threads
has one sequence (or chunk) and head, and along the second axis of the grid a part of the axis that
is split.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lacc.backends.c_ready import for_c
from lacc.backends.c_text import dim, size, times
from lacc.backends.cuda_arrays import Argument, CudaArrays
from lacc.backends.cuda_barriers import (
    Block,
    Step,
    Touch,
    place_barriers,
    steps,
    stretches,
    text,
)
from lacc.backends.cuda_body import CudaBody, Split
from lacc.backends.device_kernel import KernelSpec
from lacc.spec.model import Spec
from lacc.tile.lower import Naming
from lacc.tile.program import TIME, Axes, Program

BEGUN = {"state": "begun", "dstate": "dended"}
ENDED = {"state": "ended", "dstate": "dbegun"}
"""The arrays of carried states before and after all chunks, forward and backward."""

OUTS = {"": "y", "stored": "y", "kept": "kept", "input": "dx", "param": "dfixed", "last": "dlast"}
"""The arrays of what comes out, by the kind of its name."""

NUMBERS = {"t": "R(seen + place + 1)", "T": "R(its.tokens)", "head": "R(head)", "H": "R(H)"}
"""Positions and counts."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of the workspace: its size in floats, from which to which stretch it is held."""

    name: str
    size: str
    first: int
    last: int


class CudaKernel(CudaArrays):
    """The text of one kernel of the file of ``prefix``."""

    def __init__(self, spec: Spec, what: KernelSpec, prefix: str, library: Iterable[str]) -> None:
        here = Split()
        if what.split:
            label = re.sub(r"\W", "", what.split, flags=re.ASCII) or "axis"
            here = Split(what.split, f"{label}_here", f"{label}_most")
        super().__init__(spec, what, here, library)
        self.prefix = prefix
        self.taken |= {here.here, here.most, *map(dim, spec.dims)}
        self.carried = "dstate" if what.backward else "state"
        self.program = _states_last(for_c(what.program))
        self.sums: dict[str, str] = {}
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
        self.items = self._items()
        place_barriers(self.items)
        self.tiles = self._tiles()

    # ---- bodies ----------------------------------------------------------------------------------

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
        arrays, pointers = {}, {}
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
                self.place(kind, label, inst.axes)
                arrays[n] = self.pointer(kind, label)
        into: dict[int, str] = {}
        for label, n in program.outs.items():
            state = label.removeprefix("state:")
            if state != label and state in held and n not in into and n not in pointers:
                into[n] = entry_of(next_.get(state, held[state]), program.body[n].axes)

        def load(n: int, address: str) -> list[str]:
            return self._load(program, n, address)

        return CudaBody(program, arrays, pointers, into, load, taken, self.split)

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
        return self.load(address, place, inst.axes, self._lengths(inst.axes))

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
        own = load in statement.own and bool(self.program.body[load].axes)
        return load not in statement.reads or own or onto

    def _body_again(self, program: Program) -> CudaBody:
        """What makes the states of a stretch of tokens again."""
        program = _states_last(for_c(program))
        states = [n.removeprefix("state:") for n in program.outs]
        self.then = {s: self._state_tile(s, f"{s}_then") for s in states}
        self.found = {s: self._state_tile(s, f"{s}_before") for s in states}
        next_ = {s: self._state_tile(s, f"{s}_after") for s in states}
        self.left = next_
        return self._body(program, self.found, next_, self.taken)

    # ---- steps -----------------------------------------------------------------------------------

    def _items(self) -> list[Step | Block]:
        """Everything the kernel does."""
        inside = self._of_tokens() if self.by_token else self._of_chunk()
        items: list[Step | Block] = [*self._begin()]
        match self.what.kind:
            case "chunk":
                items += [Step(self._at_chunk("index")), *inside]
            case "loop":
                index = "chunks - 1 - number" if self.what.backward else "number"
                head = [f"const int64_t index = {index}, chunk = its.chunk + index;"]
                items.append(
                    Block(
                        "for (int64_t number = 0; number < chunks; number++)",
                        [Step([*head, *self._at_chunk("index")]), *inside],
                    )
                )
            case _:
                items += inside
        return [*items, *self._end()]

    def _begin(self) -> Iterable[Step]:
        """What does not depend on tokens, states before the first one, sums of nothing."""
        for body in self.bodies:
            yield from body.steps(body.before)
        for state, tile in self.held.items():
            axes = Naming(self.spec).axes(self.states[state].shape)
            place = self.place(BEGUN[self.carried], state, axes)
            lines = self.load(tile, place, axes, self._lengths(axes))
            yield Step(
                lines, (Touch(tile, True, own=bool(axes)), Touch(f"{state} in memory", False))
            )
        if self.what.kind != "chunk":
            for label, n in self.program.outs.items():
                kind, _, name = label.rpartition(":")
                if kind in ("param", "last"):
                    tile = self.sums[label] = self.name(f"d{name}_sum")
                    axes = self.program.body[n].axes
                    self.room[tile] = times(*self._lengths(axes, most=True))
                    length = times(*self._lengths(axes))
                    yield Step([f"fill({tile}, R(0), {length});"], (Touch(tile, True, own=True),))

    def _at_chunk(self, index: str) -> list[str]:
        """Where the tokens of a chunk are."""
        lines = [
            f"const int64_t start = {index} * L;",
            "const int C = (int)(its.tokens - start < L ? its.tokens - start : L);",
        ]
        return [*lines, *self._at("start")]

    def _at(self, number: str) -> list[str]:
        """Where a token stands: in its sequence, in its row, among all."""
        place = f"its.tokens - 1 - ({number})" if self.what.reverse else number
        return [
            f"[[maybe_unused]] const int64_t place = {place}, token = its.first + place;",
            "[[maybe_unused]] const int64_t row = its.batch * a.T + token;",
        ]

    def _of_chunk(self) -> list[Step | Block]:
        return [
            *self._starts(),
            *self._once(self.body),
            *self.body.steps(self.body.each),
            *self._outs(),
            *self._moves(self.body, self.program, self.held, self.next),
        ]

    def _of_tokens(self) -> list[Step | Block]:
        """Token after token; on the way back from the last stretch of tokens to the first, with
        the states of each made again where the way back needs them."""
        token: list[Step | Block] = [
            *self._once(self.body),
            *self.body.steps(self.body.each),
            *self._outs(),
            *self._moves(self.body, self.program, self.held, self.next),
        ]
        if not self.what.backward:
            head = [
                "[[maybe_unused]] const int64_t chunk = its.chunk + step / L;",
                *self._at("step"),
            ]
            items: list[Step | Block] = [Step(head), *self._starts(), *token]
            return [Block("for (int64_t step = 0; step < its.tokens; step++)", items)]
        stretch: list[Step | Block] = [
            Step(
                [
                    "const int64_t index = chunks - 1 - number, chunk = its.chunk + index;",
                    "const int64_t start = index * L;",
                    "const int count = (int)(its.tokens - start < L ? its.tokens - start : L);",
                ]
            ),
            *self._made_again(),
        ]
        at = self._at("start + step")
        back = "for (int step = count - 1; step >= 0; step--)"
        stretch.append(Block(back, [Step(at), *self._then(), *token]))
        return [Block("for (int64_t number = 0; number < chunks; number++)", stretch)]

    def _once(self, body: CudaBody) -> list[Step | Block]:
        """What is computed once for all chunks of a length."""
        if not body.once:
            return []
        known = "known_again" if body is self.again else "known"
        items: list[Step | Block] = [*body.steps(body.once), Step([f"{known} = C;"])]
        return [Block(f"if (C != {known})", items, loop=False)]

    def _made_again(self) -> Iterable[Step | Block]:
        """The states that the tokens of a stretch find, from the one that was kept, into memory."""
        again = self.again
        if again is None:
            return
        keeps: list[Step | Block] = []
        for state, tile in self.found.items():
            axes = Naming(self.spec).axes(self.states[state].shape)
            lengths = self._lengths(axes)
            kept = self.place("kept", f"{state}_start", axes)
            yield Step(self.load(tile, kept, axes, lengths), (Touch(tile, True, bool(axes)),))
            room = self.place("scratch", state, axes)
            touches = (
                Touch(tile, False, bool(axes)),
                Touch(f"{state} of a stretch", True, bool(axes)),
            )
            keeps.append(Step(self.store(tile, room, axes, lengths), touches))
        items: list[Step | Block] = [
            Step(self._at("start + step")),
            *keeps,
            *self._once(again),
            *again.steps(again.each),
            *self._moves(again, again.program, self.found, self.left),
        ]
        yield Block("for (int step = 0; step < count; step++)", items)

    def _then(self) -> Iterable[Step]:
        """The states as a token found them, from memory."""
        for state, tile in self.then.items():
            axes = Naming(self.spec).axes(self.states[state].shape)
            room = self.place("scratch", state, axes)
            touches = (
                Touch(tile, True, bool(axes)),
                Touch(f"{state} of a stretch", False, bool(axes)),
            )
            yield Step(self.load(tile, room, axes, self._lengths(axes)), touches)

    def _starts(self) -> Iterable[Step]:
        """Keeps states as a chunk, or a stretch of tokens, finds them."""
        loads = self.program.loads(self.carried).values()
        for label, n in self.program.outs.items():
            if label.startswith("kept:") and n in loads:
                lines = self._stored(label, n)
                if self.by_token:
                    lines = ["if (step % L == 0) {", *(f"    {line}" for line in lines), "}"]
                yield Step(lines, tuple(self.body.read(n)))

    def _outs(self) -> Iterable[Step]:
        """What comes out of a chunk or token."""
        loads = self.program.loads(self.carried).values()
        for label, n in self.program.outs.items():
            kind, _, name = label.rpartition(":")
            if (kind == "state" and name in self.held) or (kind == "kept" and n in loads):
                continue
            if label in self.sums:
                axes, tile = self.program.body[n].axes, self.sums[label]
                length = times(*self._lengths(axes))
                line = f"add_to({tile}, {self.body.v.pointer(n)}, {length});"
                yield Step([line], (Touch(tile, True, True), *self.body.read(n)))
            else:
                yield Step(self._stored(label, n), tuple(self.body.read(n)))

    def _stored(self, label: str, n: int) -> list[str]:
        """The lines that store an output."""
        kind, _, name = label.rpartition(":")
        axes = self.program.body[n].axes
        array = "dx" if kind == "stored" and self.what.backward else OUTS[kind]
        place = self.place(array, name, axes)
        return self._by_one(
            self.store(self.body.v.pointer(n), place, axes, self._lengths(axes)), axes
        )

    def _by_one(self, lines: list[str], axes: Axes) -> list[str]:
        """Of what all blocks of a split compute alike, one stores."""
        if self.what.split in ("", *axes):
            return lines
        return ["if (blockIdx.y == 0) {", *(f"    {line}" for line in lines), "}"]

    def _moves(
        self, body: CudaBody, program: Program, held: Mapping[str, str], next_: Mapping[str, str]
    ) -> Iterable[Step]:
        """Puts the next states where states are."""
        loads = program.loads("state" if body is self.again else self.carried)
        ready, last = [], []
        for state, tile in held.items():
            out = program.outs.get(f"state:{state}")
            if out is None or out == loads.get(state):
                continue
            axes = program.body[out].axes
            length, left = times(*self._lengths(axes)), next_.get(state, tile)
            own = Touch(tile, True, bool(axes)), Touch(left, True, bool(axes))
            if body.into.get(out) != entry_of(left, axes):
                touches = (own[1], *body.read(out))
                line = f"copy({left}, {body.v.pointer(out)}, {length});"
                ready.append(Step([line], touches))
            if left != tile:
                last.append(Step([f"copy({tile}, {left}, {length});"], own))
        yield from (*ready, *last)

    def _end(self) -> Iterable[Step]:
        """Stores what is left after the last token."""
        for state, tile in self.held.items():
            axes = Naming(self.spec).axes(self.states[state].shape)
            place = self.place(ENDED[self.carried], state, axes)
            lines = self._by_one(self.store(tile, place, axes, self._lengths(axes)), axes)
            yield Step(lines, (Touch(tile, False, bool(axes)), Touch(f"{state} in memory", True)))
        for label, tile in self.sums.items():
            kind, _, name = label.rpartition(":")
            axes = self.program.body[self.program.outs[label]].axes
            place = self.place(OUTS[kind], name, axes)
            lines = self._by_one(self.store(tile, place, axes, self._lengths(axes)), axes)
            yield Step(lines, (Touch(tile, False, True),))

    # ---- text ------------------------------------------------------------------------------------

    @property
    def bodies(self) -> list[CudaBody]:
        """The programs of the kernel."""
        return [body for body in (self.again, self.body) if body is not None]

    def _tiles(self) -> list[Tile]:
        """Every tile, those that are touched most first."""
        last = max((step.stretch for step in steps(self.items)), default=0)
        where = stretches(steps(self.items))
        touched = Counter(t.place for step in steps(self.items) for t in step.touches)
        found = {name: Tile(name, size, 0, last) for name, size in self.room.items()}
        scratch: list[str] = []
        for body in self.bodies:
            scratch += body.ops.scratch
            for statement in (*body.before, *body.once, *body.each):
                for n in statement.makes:
                    name, size = body.tile(n), body.size(n)
                    if not name or name in found:
                        continue
                    span = where[name] if statement in body.each else (0, last)
                    found[name] = Tile(name, size, *span)
        if scratch:
            sizes = list(dict.fromkeys(scratch))
            found["scratch"] = Tile("scratch", _largest(sizes), 0, last)
        return sorted(found.values(), key=lambda tile: -touched[tile.name])

    def lines(self) -> list[str]:
        """The body of the function."""
        return [*self._declared(), *self._found_at(), *self.before, *text(self.items)]

    def _declared(self) -> list[str]:
        """Tiles, and variables of each thread."""
        decays = {
            body.tile(n)
            for body in self.bodies
            for n, inst in enumerate(body.body)
            if inst.op == "levels" and n in body.v.names
        }
        lines = ["constexpr auto lies = tiles();"] if self.tiles else []
        for k, tile in enumerate(self.tiles):
            name = f"{tile.name}_room" if tile.name in decays else tile.name
            lines.append(f"real *const {name} = lies.tile({k}, a.arena);")
        lines += [f"levels_t {name};" for name in sorted(decays)]
        for body in self.bodies:
            if body.once:
                lines.append(f"int {'known_again' if body is self.again else 'known'} = -1;")
            names = [
                body.v.names[n]
                for s in (*body.before, *body.once, *body.each)
                for n in s.makes
                if not body.tile(n)
            ]
            lines += [f"real {name};" for name in dict.fromkeys(names)]
        return lines

    def _found_at(self) -> list[str]:
        """The sequence, head and tokens that a block works at."""
        kind, T = self.what.kind, self.number("T", "tokens of a row", "run.T")
        H = self.number("H", "heads", "run.H")
        cu = self._given(
            "cu", "const int64_t *", "where sequences begin [N + 1], or null", "run.cu"
        )
        firsts = self._given(
            "firsts",
            "const int32_t *",
            "the first chunk of each sequence [N + 1], with cu",
            "run.firsts",
        )
        lines = [f"const int64_t program = blockIdx.x + a.program0, H = {H}, head = program % H;"]
        if kind == "chunk":
            table = self._given(
                "table",
                "const int32_t *",
                "the sequence of each chunk and its number there [chunks, 2], with cu",
                "run.table",
            )
            lines += [
                "const int64_t chunk = program / H;",
                f"const auto at = chunk_at(chunk, {T}, {table});",
                "const int64_t sequence = at.sequence, index = at.index;",
            ]
        else:
            lines.append("const int64_t sequence = program / H;")
        lines.append(f"const auto its = sequence_at(sequence, {T}, {cu}, {firsts});")
        if kind == "chunk":
            lines.append("if (index * L >= its.tokens) return; /* behind all tokens */")
        elif kind == "loop" or self.what.backward:
            lines.append("const int64_t chunks = (its.tokens + L - 1) / L;")
        if self.counts:
            position = self._given(
                "position",
                "const int64_t *",
                "tokens before the first one [N], or null",
                "run.position",
            )
            lines.append(f"const int64_t seen = {position} ? {position}[sequence] : 0;")
        if self.by_token and not self.what.backward:
            rows = self._given(
                "state_rows",
                "const int64_t *",
                "the row of each sequence's state [N], or null",
                "run.rows",
            )
            into = self.number(
                "INTO", "whether states are written in those rows", "run.into is not None"
            )
            lines.append(f"const int64_t begin_row = {rows} ? {rows}[sequence] : sequence;")
            lines.append(f"const int64_t end_row = {into} ? begin_row : sequence;")
        if self.split.axis:
            whole, most = self.split_size, self.split.most
            lines.append(f"const int64_t from = blockIdx.y * (int64_t){most};")
            lines.append(
                f"const int {self.split.here} = {whole} % {most} == 0 ? {most} : "
                f"least({most}, {whole} - (int)from);"
            )
        return lines

    def _given(self, name: str, type_: str, said: str, call: str) -> str:
        self.pointers[name] = Argument(name, said, call, type_)
        return f"a.{name}"

    @property
    def programs(self) -> str:
        """How many programs a launch has."""
        return "chunks * H" if self.what.kind == "chunk" else "N * H"

    @property
    def blocks(self) -> str:
        """How many blocks of each."""
        return f"{self.split_size} / BLOCK, rounded up" if self.split.axis else "1"

    @property
    def split_size(self) -> str:
        """The size of the axis that blocks share."""
        return size(self.program.sizes[self.split.axis]).code

    def sizes(self) -> list[str]:
        """Constants of the kernel."""
        dims = [f"{dim(name)} = D_{name}" for name in self.spec.dims]
        lines = [f"constexpr int {', '.join([*dims, 'L = CHUNK_L'])};"]
        if self.split.axis:
            whole = self.split_size
            lines.append(f"constexpr int {self.split.most} = BLOCK < {whole} ? BLOCK : {whole};")
        return lines

    @property
    def counts(self) -> bool:
        """Whether positions matter."""
        return ("index", "t") in {i.value for i in self.program.body if i.op == "load"}


def entry_of(tile: str, axes: Axes) -> str:
    """The variable of a tile, which is its only entry where it has no axes."""
    return tile if axes else f"{tile}[0]"


def _largest(sizes: list[str]) -> str:
    """The largest of some sizes."""
    first, *others = sizes
    for other in others:
        first = f"largest({first}, {other})"
    return first


def _states_last(program: Program) -> Program:
    """The program with what only the next states need behind all else, so that these may take the
    place of the states that it reads."""
    wanted: set[int] = set()
    stack = [n for label, n in program.outs.items() if not label.startswith("state:")]
    while stack:
        n = stack.pop()
        if n not in wanted:
            wanted.add(n)
            stack.extend(program.body[n].ins)
    order = sorted(range(len(program.body)), key=lambda n: n not in wanted)
    new = {n: k for k, n in enumerate(order)}
    moved = tuple(
        replace(program.body[n], ins=tuple(new[i] for i in program.body[n].ins)) for n in order
    )
    return Program(moved, {label: new[n] for label, n in program.outs.items()}, program.sizes)
