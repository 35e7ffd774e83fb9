"""The statements of one kernel in, everything that it does out: steps over chunks and tokens, from
the states before the first to what is stored behind the last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from lacc.backends.c_body import Statement
from lacc.backends.c_text import times
from lacc.backends.cuda_barriers import Block, Step, Touch
from lacc.backends.cuda_bodies import CudaBodies, entry_of
from lacc.backends.cuda_body import CudaBody
from lacc.backends.cuda_order import Needs, Piece, planned
from lacc.backends.device_kernel import KernelSpec
from lacc.plan.devices import device_named
from lacc.runtime.cuda_arena import OPERANDS as STAGED
from lacc.runtime.cuda_arena import REAL, evaluated
from lacc.spec.model import Spec
from lacc.tile.lower import Naming
from lacc.tile.program import Axes, Program

TOKENS, BLOCK = 64, 64
"""What kernels are laid out for: tokens of a chunk, entries of an axis that blocks share."""

GOAL = 48000
"""Numbers that are held at once, if that can be had by making some again."""

DEVICE = "sm_90"
"""The device in whose shared memory tiles should fit."""

MOST = (device_named(DEVICE).shared - STAGED) // REAL
"""Numbers of tiles that fit there beside what products are staged in."""

BEGUN = {"state": "begun", "dstate": "dended"}
ENDED = {"state": "ended", "dstate": "dbegun"}
"""The arrays of carried states before and after all chunks, forward and backward."""

OUTS = {"": "y", "stored": "y", "kept": "kept", "input": "dx", "param": "dfixed", "last": "dlast"}
"""The arrays of what comes out, by the kind of its name."""


@dataclass(slots=True)
class Draft:
    """Work on a chunk before its tiles have their names: what it touches, ``said`` of it, and what
    writes its lines; the ``statement`` that it is, None of what comes out."""

    touches: tuple[Touch, ...]
    write: Callable[[], list[str]]
    said: tuple[str, ...] = ()
    statement: Statement | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """The tiles that it has under other names."""
    onto: Collection[int] = ()
    """Values that are added to what lies in their tiles."""

    def called(self, names: Mapping[str, str]) -> tuple[Touch, ...]:
        """What it touches, by other names of tiles."""
        found = (replace(t, place=names.get(t.place, t.place)) for t in self.touches)
        return tuple(dict.fromkeys(found))


class CudaSteps(CudaBodies):
    """The steps of one kernel, ``items``."""

    def __init__(self, spec: Spec, what: KernelSpec, library: Iterable[str]) -> None:
        super().__init__(spec, what, library)
        self.sums: dict[str, str] = {}
        self.items = self._items()

    def _items(self) -> list[Step | Block]:
        """Everything the kernel does."""
        items: list[Step | Block] = [*self._begin()]
        inside = self._of_tokens() if self.by_token else self._of_chunk()
        match self.what.kind:
            case "chunk":
                items += [Step(self._at_chunk("index")), *inside]
            case "loop":
                index = "chunks - 1 - number" if self.what.backward else "number"
                head = [f"const int64_t index = {index}, chunk = its.chunk + index;"]
                if self.ahead:
                    left = "index * L" if self.what.backward else "its.tokens - (index + 1) * L"
                    head.append(f"const int C_next = (int)({left} < L ? {left} : L);")
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
            yield Step(lines, (Touch(tile, True), Touch(f"{state} in memory", False)))
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
        if self.what.kind == "chunk":
            return [*self._once(self.body), *self._in_order()]
        return [
            *self._starts(),
            *self._once(self.body),
            *self.body.steps(self.body.each),
            *self._outs(),
            *self._moves(self.body, self.program, self.held, self.next),
        ]

    def _in_order(self) -> list[Step]:
        """What is done for a chunk by itself, in the order in which the least is held at once."""
        body, sizes = self.body, self.sizes_at(TOKENS, BLOCK)
        drafts = [self._drafted(statement) for statement in body.each]
        works = [body.piece(statement, sizes) for statement in body.each]
        for n, draft in self._outputs():
            drafts.append(draft)
            places = frozenset(t.place for t in draft.touches) | body.places(body.behind(n))
            works.append(Piece(frozenset(), places))
        made = [n for s in body.each for n in s.makes]
        numbers = {body.tile(n): evaluated(body.size(n), sizes) for n in made if body.tile(n)}
        needs = Needs(works, numbers, frozenset(body.sums))
        most = inf if self.split.axis else MOST  # blocks that share an axis can have less of it
        plan, copies = planned(needs, GOAL, most)
        called = {copy: self.name(copy) for copy in copies}
        for copy, tile in copies.items():
            numbers[called[copy]] = numbers[tile]
            body.rooms[called[copy]] = next(body.size(n) for n in made if body.tile(n) == tile)
        begun, found = set[str](), list[Draft]()
        for placed in plan:
            draft = drafts[placed.number]
            names = {tile: called.get(name, name) for tile, name in placed.names.items()}
            makes = draft.statement.makes if draft.statement is not None else ()
            sums = {n: body.tile(n) for n in makes if body.tile(n) in body.sums}
            onto = {n for n, tile in sums.items() if tile in begun}
            begun.update(sums.values())
            found.append(replace(draft, touches=draft.called(names), names=names, onto=onto))
            drafts[placed.number] = replace(draft, said=())
        moved = self._in_place(found, numbers)
        steps = [self._step(draft, moved) for draft in found]
        body.moved(moved)
        return steps

    def _drafted(self, statement: Statement) -> Draft:
        body = self.body

        def write() -> list[str]:
            return body.lines(statement)

        return Draft(body.touches(statement), write, tuple(body.said(statement)), statement)

    def _step(self, draft: Draft, moved: Mapping[str, str]) -> Step:
        """A draft as lines, where some tiles lie in others."""
        names = {tile: moved.get(name, name) for tile, name in draft.names.items()}
        names = {**moved, **names}
        with self.body.named(names, draft.onto):
            return Step([*draft.said, *draft.write()], draft.touches)

    def _in_place(self, drafts: list[Draft], sizes: Mapping[str, int]) -> dict[str, str]:
        """Has loops write where they read what nothing reads later, entry by entry: which tiles lie
        in which others."""
        last = {t.place: k for k, draft in enumerate(drafts) for t in draft.touches}
        first: dict[str, int] = {}
        for k, draft in enumerate(drafts):
            for touch in draft.touches:
                first.setdefault(touch.place, k)
        lasting = {self.body.tile(n) for s in self.body.once for n in s.makes}
        moved: dict[str, str] = {}
        for k, draft in enumerate(drafts):
            makes = [t.place for t in draft.touches if t.writes and t.own]
            reads = [t.place for t in draft.touches if not t.writes and t.own]
            for new in (x for x in makes if first[x] == k):
                for old in reads:
                    able = last.get(old) == k and old not in lasting and old in sizes
                    if not able or sizes[old] != sizes.get(new):
                        continue
                    if self._reads_later(draft, new, old, moved):
                        continue
                    moved[new] = old
                    for other in drafts:
                        other.touches = other.called({new: old})
                    last[old] = last.pop(new)
                    first[old] = first.get(old, k)
                    break
        return moved

    def _reads_later(self, draft: Draft, new: str, old: str, moved: Mapping[str, str]) -> bool:
        """Whether a loop reads a tile once it has written an entry of another one."""
        body, statement = self.body, draft.statement
        assert statement is not None

        def tile(n: int) -> str:
            name = draft.names.get(body.tile(n), body.tile(n))
            return moved.get(name, name)

        written = next(n for n in statement.makes if tile(n) == new)
        return old in map(tile, body.read_after(statement, written))

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
            yield Step(self.load(tile, kept, axes, lengths), (Touch(tile, True),))
            room = self.place("scratch", state, axes)
            touches = (
                Touch(tile, False),
                Touch(f"{state} of a stretch", True),
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
                Touch(tile, True),
                Touch(f"{state} of a stretch", False),
            )
            yield Step(self.load(tile, room, axes, self._lengths(axes)), touches)

    def _starts(self) -> Iterable[Step]:
        """Keeps states as a chunk, or a stretch of tokens, finds them."""
        loads = self.program.loads(self.carried).values()
        for label, n in self.program.outs.items():
            if label.startswith("kept:") and n in loads:
                lines = self._stored(label, n)()
                if self.by_token:
                    lines = ["if (step % L == 0) {", *(f"    {line}" for line in lines), "}"]
                yield Step(lines, tuple(self.body.read(n)))

    def _outs(self) -> Iterable[Step]:
        """What comes out of a chunk or token."""
        return (Step(draft.write(), draft.touches) for _, draft in self._outputs())

    def _outputs(self) -> Iterable[tuple[int, Draft]]:
        """The value that each piece of what comes out is."""
        loads = self.program.loads(self.carried).values()
        for label, n in self.program.outs.items():
            kind, _, name = label.rpartition(":")
            if (kind == "state" and name in self.held) or (kind == "kept" and n in loads):
                continue
            if label in self.sums:
                axes, tile = self.program.body[n].axes, self.sums[label]
                length = times(*self._lengths(axes))
                line = f"add_to({tile}, {self.body.v.pointer(n)}, {length});"
                touches = (Touch(tile, True, True), *self.body.read(n, own=True))
                yield n, Draft(touches, [line].copy)
            else:
                yield n, Draft(tuple(self.body.read(n)), self._stored(label, n))

    def _stored(self, label: str, n: int) -> Callable[[], list[str]]:
        """What writes the lines that store an output, in an array that is declared now."""
        kind, _, name = label.rpartition(":")
        axes = self.program.body[n].axes
        array = "dx" if kind == "stored" and self.what.backward else OUTS[kind]
        place, lengths = self.place(array, name, axes), self._lengths(axes)

        def write() -> list[str]:
            return self._by_one(self.store(self.body.v.pointer(n), place, axes, lengths), axes)

        return write

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
                touches = (own[1], *body.read(out, own=True))
                line = self.copied(left, body.v.pointer(out), length)
                ready.append(Step([line], touches))
            if left != tile:
                last.append(Step([self.copied(tile, left, length)], own))
        yield from (*ready, *last)

    def copied(self, to: str, source: str, length: str) -> str:
        """The line that copies a tile."""
        return f"copy({to}, {source}, {length});"

    def _end(self) -> Iterable[Step]:
        """Stores what is left after the last token."""
        for state, tile in self.held.items():
            axes = Naming(self.spec).axes(self.states[state].shape)
            place = self.place(ENDED[self.carried], state, axes)
            lines = self._by_one(self.store(tile, place, axes, self._lengths(axes)), axes)
            yield Step(lines, (Touch(tile, False), Touch(f"{state} in memory", True)))
        for label, tile in self.sums.items():
            kind, _, name = label.rpartition(":")
            axes = self.program.body[self.program.outs[label]].axes
            place = self.place(OUTS[kind], name, axes)
            lines = self._by_one(self.store(tile, place, axes, self._lengths(axes)), axes)
            yield Step(lines, (Touch(tile, False),))
