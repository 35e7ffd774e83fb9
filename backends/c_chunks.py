"""The kernel of a chunk in, a C function that goes through the chunks of a sequence out, with heads
that lie side by side innermost: rows of all of them are read as they lie. Several threads may share
a single head: only what the next state is made of waits for the chunk before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lacc.backends.base import unused
from lacc.backends.c_body import Piece, Statement
from lacc.backends.c_kernel import TIMED, Carried, CKernel, entry_of, indented, text_of
from lacc.backends.c_text import identifier, plain_name, whole
from lacc.backends.c_turns import changed, in_turns


@dataclass(frozen=True, slots=True)
class Found:
    """A state that ``array`` has as each chunk finds it: the variable that points to it."""

    name: str
    size: str
    array: str

    @property
    def there(self) -> str:
        """Has the state where it is kept, or a copy of that."""
        where = f"start_from(&{self.array}, n, h, c, {self.name}_tile, {self.size})"
        return f"const real *const {self.name} = {where};"


class ChunkKernel(CKernel):
    """The text of a function that computes chunk after chunk."""

    rows, longest, head, by_head = "C", "run->chunk", "first", True
    chunks = "(run->tokens + run->chunk - 1) / run->chunk"

    def _ordered(self, kind: str) -> Sequence[int]:
        self.changed = changed(self.program, kind)
        self.program, *turns = in_turns(self.program, kind, self.changed)
        return turns

    @property
    def together(self) -> str:
        """Its first array by the token."""
        timed = (i.value for i in self.program.body if i.op == "load" and i.value[0] in TIMED)
        return next((f"&{self._array(*value)}" for value in timed), "NULL")

    def _places(self, carried: str) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
        """As for all kernels; states that an earlier call kept are read where they are."""
        arrays, pointers, into = super()._places(carried)
        self.found: list[Found] = []
        for n, inst in enumerate(self.program.body):
            if inst.op == "load" and inst.value[0] == "kept":
                name = unused(plain_name(identifier(inst.value[1])), self.taken)
                self.taken |= {name, f"{name}_tile"}
                found = Found(name, self._width(inst.axes), self._array(*inst.value))
                self.found.append(found)
                pointers[n] = entry_of(name, inst.axes)
        return arrays, pointers, into

    # ---- what is computed when, and where it lies ------------------------------------------------

    def _before(self, common: bool) -> list[Statement]:
        """What is computed before the first chunk, for all heads or for each."""
        found: dict[bool, list[Statement]] = {True: [], False: []}
        made: set[int] = set()
        for s in self.body.before:
            alike = s.reads <= made and self.body.is_common(s)
            found[alike].append(s)
            made |= {*s.makes} if alike else set()
        return found[common]

    def _types(self) -> list[str]:
        """What a head keeps beside tiles."""
        fields = self.body.declarations(kept=True)
        return (
            ["typedef struct {", *indented(fields), f"}} {self.name}_kept;", ""] if fields else []
        )

    def pieces(self) -> list[Piece]:
        """The pieces of the workspace that heads have in turn."""
        found = [(s.size, [f"{s.name}_tile"]) for s in self.found]
        return [*self.body.kept(self._before(common=True)), *super().pieces(), *found]

    def _kept(self) -> list[Piece]:
        """What is computed once for a head, and states that no chunk changes."""
        held = [s for name, s in self.carried.items() if name not in self.changed]
        return [
            *self.body.kept([*self._before(common=False), *self.body.once]),
            *((s.before, [f"{s.name}_even"]) for s in held),
            *([(f"REALS({self.name}_kept)", ["kept"])] if self._types() else []),
        ]

    def _shared(self) -> list[Piece]:
        """A tile more of each state than there are threads; and sums."""
        ring = "ring_of(ring)" if self.body.either[2] else "ring"
        found = [(f"{ring} * round_up({s.size})", [f"{s.name}_ring"]) for s in self._changing()]
        sums = self.sums.items()
        return found + [(f"round_up({self._sum(label)})", [name]) for label, (name, _) in sums]

    def _changing(self) -> list[Carried]:
        return [s for name, s in self.carried.items() if name in self.changed]

    def _of_heads(self) -> tuple[list[str], list[str]]:
        """Memory of all heads, and which of it a head has."""
        every, one = [], []
        kept = [("&w", f"round_up({size})", names) for size, names in self._kept()]
        for where, size, (name,) in [*kept, *(("&all", *piece) for piece in self._shared())]:
            first = unused(f"{name}_all", self.taken)
            every.append(f"real *const {first} = take({where}, by->heads * {size});")
            kind, own = "real", f"{first} + (h - first) * {size}"
            if name == "kept":
                kind = f"{self.name}_kept"
                own = f"({kind} *)({own})"
            one.append(f"{kind} *const {name} = {own};")
        return every, one

    # ---- text ------------------------------------------------------------------------------------

    def _walk(self) -> list[str]:
        every, one = self._of_heads()
        own = text_of(self._before(common=False))
        known = bool(own or self.body.once) or len(self.changed) < len(self.carried)
        head = [
            *one,
            *(["if (known < 0) {", *indented(own), "}"] if own else []),
            *(line for s in self._changing() for line in self._slots(s)),
            *(
                line
                for name, s in self.carried.items()
                if name not in self.changed
                for line in self._held(s)
            ),
            *(s.there for s in self.found),
            *self._ahead(),
            *self._once(),
            *self._computed(),
            *self._summed(),
            *self._ended(),
        ]
        chunk = [
            f"const int64_t c = {'chunks - 1 - i' if self.backward else 'i'};",
            "const int64_t at = c * L, C = least(L, run->tokens - at);",
            *self._past("at"),
            *self._heads(head),
            *(["known = C;"] if known else []),
        ]
        without = self._without_tokens()
        ring = "ring_of(by->ring)" if self.body.either[2] else "by->ring"
        words = set(re.findall(r"\w+", " ".join(without)))
        named = [line for line in one if words & set(re.findall(r"const (\w+) =", line))]
        return [
            *([f"const int64_t ring = {ring};"] if self.changed else []),
            *(["real *all = by->shared;"] if self._shared() else []),
            *every,
            f"const int64_t chunks = {self.chunks.replace('run->chunk', 'L')};",
            *self.body.declarations(),
            *text_of(self._before(common=True)),
            *(["int64_t known = -1;"] if known else []),
            "for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {",
            *indented(chunk),
            "}",
            *(["kept_all();"] if any(s.start for s in self.carried.values()) else []),
            *(
                ["if (!chunks) {", *indented(self._heads([*named, *without])), "}"]
                if without
                else []
            ),
        ]

    def _heads(self, lines: list[str]) -> list[str]:
        """A loop over the heads taken together."""
        return [
            "for (int64_t h = first; h < first + by->heads; h++) {",
            *indented(lines),
            "}",
        ]

    def _held(self, s: Carried) -> list[str]:
        """A state that no chunk changes: where the caller has it, or a copy of that."""
        there = f"state_there(&{s.begun}, n, h, {s.name}_even)"
        begun = s.from_begun(f"{s.name}_even")
        return [f"UNUSED real *const {s.name} =", f"    known < 0 ? {begun} : {there};"]

    def _slots(self, s: Carried) -> list[str]:
        """Where the state of a chunk is, and where the next one goes: the last of them to the
        caller."""
        size = f"round_up({s.size})"
        lines = [
            f"UNUSED real *{s.name} = {s.name}_ring + i % ring * {size};",
            f"real *{s.name}_next = {s.name}_ring + (i + 1) % ring * {size};",
            f"if (i == 0) {s.name} = {s.from_begun(s.name)};",
        ]
        return lines + ([f"if (i + 1 == chunks) {s.last}"] if s.ended else [])

    def _ahead(self) -> list[str]:
        """Says what is written here, and what is loaded next: for the next head, or by the first
        in the next chunk of the thread."""
        loads, stores = [], []
        for inst in self.program.body:
            if inst.op == "load" and inst.value[0] in (*TIMED, "kept"):
                array, width = self._array(*inst.value), self._width(inst.axes)
                span = "to * L, least(L, run->tokens - to * L)"
                span = span if inst.value[0] in TIMED else "to, 1"
                loads.append(f"want(&{array}, n, beside, {span}, {width}, 0);")
        for label, n in self.program.outs.items():
            if array := self._given(label):
                stores.append(f"want(&{array}, n, h, at, C, {self._width(self._axes(n))}, 1);")
        there = [
            "const int64_t other = h + 1 < first + by->heads, beside = other ? h + 1 : first;",
            "const int64_t then = other ? i : i + by->members;",
            f"const int64_t to = {'chunks - 1 - then' if self.backward else 'then'};",
            "if (then < chunks) {",
            *indented(loads),
            "}",
        ]
        return ["want_nothing();", *stores, *(there if loads else [])]

    def _computed(self) -> list[str]:
        """What needs no state, the next states in turn, then the rest."""
        first, last = self.body.turns
        start, _, end = self.body.either
        each, keeping = self.body.each, []
        for s in (s for s in self.carried.values() if s.start):
            far = f"chunks * by->heads * {whole(s.before)} > NEAR"
            keeping.append(f"if ({s.start}.data)")
            keeping.append(f"    keep_tile(&{s.start}, n, h, c, {s.name}, {s.before}, {far});")
        nexts = [line for s in self.carried if s in self.changed for line in self._next(s)]
        given = "give_turn(by, &by->queue->state, i);"
        lines = text_of(each[:first])
        if self.changed:
            lines.append("wait_for(by, &by->queue->state, i);")
        if end:
            lines += [
                *text_of(each[first:start]),
                "for (int step = 0; step < 2; step++)",
                "    if (step == (by->members == 1)) { /* alone, once the state is read */",
                *indented(indented([*text_of(each[start:last]), *nexts, given])),
                "    } else {",
                *indented(indented([*text_of(each[last:end]), *keeping])),
                "    }",
                *text_of(each[end:]),
            ]
        else:
            lines += text_of(each[first:last])
            lines += [*nexts, given] if self.changed else []
            lines += [*text_of(each[last:]), *keeping]
        for label, n in self.program.outs.items():
            lines += [] if label in self.sums else self._out(label, n)
        return lines

    def _summed(self) -> list[str]:
        """Adds up what is summed over chunks, in their order; then the chunk is done."""
        lines = ["wait_for(by, &by->queue->done, i);"]
        if self.sums:
            lines += ["if (i == 0) {", *indented(self._empty_sums()), "}"]
        for label in self.sums:
            lines += self._out(label, self.program.outs[label])
        return [*lines, "give_turn(by, &by->queue->done, i);"]

    def _ended(self) -> list[str]:
        """Stores what the last chunk leaves, once all are done."""
        lines = []
        for name, s in self.carried.items():
            if s.ended:
                left = f"{s.name}_next" if name in self.changed else s.name
                lines.append(f"state_end(&{s.ended}, n, h, {left}, {s.size});")
        lines += self._stored_sums()
        return ["if (i + 1 == chunks) {", *indented(lines), "}"] if lines else []

    def _once(self) -> list[str]:
        """What is computed once for all chunks of a length."""
        lines = text_of(self.body.once)
        return ["if (C != known) {", *indented(lines), "}"] if lines else []

    def _without_tokens(self) -> list[str]:
        """Without a token states end as they began, and sums are 0."""
        lines = []
        for name, s in self.carried.items():
            if s.ended:
                tile = f"{s.name}_ring" if name in self.changed else f"{s.name}_even"
                lines.append(f"state_end(&{s.ended}, n, h, {s.from_begun(tile)}, {s.size});")
        return [*lines, *self._empty_sums(), *self._stored_sums()]
