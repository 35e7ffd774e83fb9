"""The kernel of a chunk in, a C function that goes through the chunks of a sequence and head out.
Several threads may share these: only what the next state is made of waits for the chunk before."""

from __future__ import annotations

from collections.abc import Sequence

from lacc.backends.c_body import Piece
from lacc.backends.c_kernel import TIMED, Carried, CKernel, indented, text_of
from lacc.backends.c_turns import changed, in_turns


class ChunkKernel(CKernel):
    """The text of a function that computes chunk after chunk."""

    rows, longest = "C", "run->chunk"
    chunks = "(run->tokens + run->chunk - 1) / run->chunk"

    def _ordered(self, kind: str) -> Sequence[int]:
        self.changed = changed(self.program, kind)
        self.program, *turns = in_turns(self.program, kind, self.changed)
        return turns

    def pieces(self) -> list[Piece]:
        """The pieces of the workspace, with those of states that no chunk changes."""
        held = [s for name, s in self.carried.items() if name not in self.changed]
        return [*super().pieces(), *((s.before, [f"{s.name}_even"]) for s in held)]

    def _shared(self) -> list[Piece]:
        """A tile more of each state than there are threads; and sums."""
        found = [(f"ring * round_up({s.size})", [f"{s.name}_ring"]) for s in self._changing()]
        sums = self.sums.items()
        return found + [(f"round_up({self._sum(label)})", [name]) for label, (name, _) in sums]

    def _changing(self) -> list[Carried]:
        return [s for name, s in self.carried.items() if name in self.changed]

    def _walk(self) -> list[str]:
        shared = self._shared()
        chunk = [
            f"const int64_t c = {'chunks - 1 - i' if self.backward else 'i'};",
            "const int64_t at = c * L, C = least(L, run->tokens - at);",
            *self._past("at"),
            *(line for s in self._changing() for line in self._slots(s)),
            *self._ahead(),
            *self._once(),
            *self._computed(),
            *self._summed(),
            *self._ended(),
        ]
        return [
            *(["const int64_t ring = by->ring;"] if self.changed else []),
            *(["real *all = by->shared;"] if shared else []),
            *(f"real *const {name} = take(&all, {size});" for size, (name,) in shared),
            f"const int64_t chunks = {self.chunks.replace('run->chunk', 'L')};",
            *self.body.declarations(),
            *text_of(self.body.before),
            *(
                f"UNUSED real *const {s.name} = {s.from_begun(f'{s.name}_even')};"
                for name, s in self.carried.items()
                if name not in self.changed
            ),
            *(["int64_t known = -1;"] if self.body.once else []),
            "for (int64_t i = next_chunk(by, -1); i < chunks; i = next_chunk(by, i)) {",
            *indented(chunk),
            "}",
            *self._without_tokens(),
        ]

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
        """Says what the next chunk of the thread loads and what this one writes."""
        there, at, group = "c + by->members < chunks", "at + by->members * L", "c + by->members"
        rows = f"least(L, run->tokens - ({at}))"
        if self.backward:
            there, at, group = "c >= by->members", "at - by->members * L", "c - by->members"
            rows = "L"
        loads, stores = [], []
        for inst in self.program.body:
            if inst.op == "load" and inst.value[0] in (*TIMED, "kept"):
                array, width = self._array(*inst.value), self._width(inst.axes)
                span = f"{at}, {rows}" if inst.value[0] in TIMED else f"{group}, 1"
                loads.append(f"want(&{array}, n, h, {span}, {width}, 0);")
        for label, n in self.program.outs.items():
            if array := self._given(label):
                stores.append(f"want(&{array}, n, h, at, C, {self._width(self._axes(n))}, 1);")
        return ["want_nothing();", f"if ({there}) {{", *indented(loads), "}", *stores]

    def _computed(self) -> list[str]:
        """What needs no state, the next states in turn, then the rest."""
        first, last = self.body.turns
        lines = text_of(self.body.each[:first])
        if self.changed:
            lines += ["wait_for(by, &by->queue->state, i);", *text_of(self.body.each[first:last])]
            for state in self.carried:
                lines += self._next(state) if state in self.changed else []
            lines.append("give_turn(by, &by->queue->state, i);")
        lines += text_of(self.body.each[last:])
        for s in (s for s in self.carried.values() if s.start):
            lines.append(f"if ({s.start}.data)")
            lines.append(f"    store_tile(&{s.start}, n, h, c, {s.name}, 1, {s.before});")
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

    def _without_tokens(self) -> list[str]:
        """Without a token states end as they began, and sums are 0."""
        lines = []
        for name, s in self.carried.items():
            if s.ended:
                tile = f"{s.name}_ring" if name in self.changed else f"{s.name}_even"
                lines.append(f"state_end(&{s.ended}, n, h, {s.from_begun(tile)}, {s.size});")
        lines += [*self._empty_sums(), *self._stored_sums()]
        return ["if (!chunks) {", *indented(lines), "}"] if lines else []
