"""The kernel of a token in, a C function that goes through the tokens of a sequence and head out,
one after the other."""

from __future__ import annotations

from lacc.backends.c_body import Piece
from lacc.backends.c_kernel import CKernel, entry_of, indented, largest, text_of
from lacc.backends.c_text import times


class TokenKernel(CKernel):
    """The text of a function that computes token after token. On the way back it makes the states
    of a group of tokens again, from the one that is kept."""

    rows = longest = "1"

    @property
    def weight(self) -> int:
        """Forward it takes all of its workspace with each token; on the way back, little of it."""
        return 1 if self.backward else 4

    def pieces(self) -> list[Piece]:
        """The pieces of the workspace, with those of states, which take turns, and of sums."""
        body = self.body
        found = [*body.kept([*body.before, *body.once]), *body.pieces]
        for state in self.carried.values():
            found += state.pieces
        found += [(self._sum(label), [name]) for label, (name, _) in self.sums.items()]
        scratch = dict.fromkeys(self.body.ops.scratch)
        if self.again is not None:
            more = self.again.pieces()
            found += [piece for piece in more if piece[1] != ["scratch"]]
            scratch |= dict.fromkeys(size for size, names in more if names == ["scratch"])
            for state in self.again.carried.values():
                found.append((times("KEPT", state.size), [f"{state.name}_kept"]))
        return [*found, (largest(scratch), ["scratch"])] if scratch else found

    def _walk(self) -> list[str]:
        """The work on all chunks."""
        if isinstance(self.again, TokenKernel):
            return self._by_group(self.again)
        order = "int64_t c = 0; c < chunks; c++"
        if self.backward:
            order = "int64_t c = chunks - 1; c >= 0; c--"
        chunk = ["const int64_t at = c;", *self._past("at"), *self._keep(), *self._last()]
        return [
            "const int64_t chunks = run->tokens;",
            *self._begin(),
            *(["int64_t known = -1;"] if self.body.once else []),
            f"for ({order}) {{",
            *indented([*chunk, *self.token()]),
            "}",
            *self._end(),
        ]

    def _by_group(self, again: TokenKernel) -> list[str]:
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
            *indented([*at, *forward, *again.token()]),
            "}",
            "for (int64_t p = count - 1; p >= 0; p--) {",
            *indented([*at, *back, *self.token()]),
            "}",
        ]
        return [
            *again.body.declarations(),
            *text_of(again.body.before),
            *(s.tiles for s in states),
            *self._begin(),
            "for (int64_t c = (run->tokens + KEPT - 1) / KEPT - 1; c >= 0; c--) {",
            *indented(group),
            "}",
            *self._end(),
        ]

    def _begin(self) -> list[str]:
        """What is computed once, the states before the first chunk, and sums of nothing."""
        lines = [*self.body.declarations(), *text_of(self.body.before)]
        states = list(self.carried.values())
        lines += [f"real *{s.name} = {s.name}_even;" for s in states]
        lines += self._with_past(
            "run->tokens - 1" if self.backward else "0", [s.taken_up for s in states]
        )
        lines += [f"real *{s.name}_next = {s.spare};" for s in states]
        return [*lines, *self._empty_sums()]

    def _with_past(self, at: str, lines: list[str]) -> list[str]:
        """Lines that see the lengths at a token."""
        past = self._past(at) if lines else []
        return ["{", *indented([*past, *lines]), "}"] if past else lines

    def _keep(self) -> list[str]:
        """Stores the states that the way back starts from."""
        found = []
        for s in (s for s in self.carried.values() if s.start):
            found.append(f"if ({s.start}.data && c % KEPT == 0)")
            found.append(f"    store_tile(&{s.start}, n, h, c / KEPT, {s.name}, 1, {s.before});")
        return found

    def _last(self) -> list[str]:
        """Has the last token write states where they go."""
        lines = [s.last for s in self.carried.values() if s.ended]
        final = "c == 0" if self.backward else "c + 1 == chunks"
        return [f"if ({final}) {{", *indented(lines), "}"] if lines else []

    def token(self) -> list[str]:
        """The work on one token, from loads to what it gives and carries."""
        lines = [*self._once(), *text_of(self.body.each)]
        for label, n in self.program.outs.items():
            lines += self._out(label, n)
        states = [state for state in self.carried if self._changes(state)]
        for state in states:
            lines += self._next(state)
        for state in states:  # once all are copied: one may be what another was
            lines += self.carried[state].advance
        return lines

    def _changes(self, state: str) -> bool:
        """Whether the chunk leaves another state than it found."""
        n, s = self.program.outs.get(f"state:{state}"), self.carried[state]
        return n is not None and self.body.pointers.get(n) != entry_of(s.name, self._axes(n))

    def _end(self) -> list[str]:
        """Stores the last states, and sums."""
        stores = [
            f"state_end(&{s.ended}, n, h, {s.name}, {s.size});"
            for s in self.carried.values()
            if s.ended
        ]
        lines = self._with_past("0" if self.backward else "run->tokens - 1", stores)
        return [*lines, *self._stored_sums()]
