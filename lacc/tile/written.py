"""A state that holds what its token writes in, its values at all tokens of a chunk out: those of
what is written, and a token later the same."""

from __future__ import annotations

from lacc.tile.carried import Entrywise


class Written(Entrywise):
    """S[t] does without S[t-1], so that reading it back is a shift along time."""

    def after(self, name: str) -> int:
        state = self.spec.state(name)
        value = self.f.expand(self.lower(state.update), ("t", *self.axes_of(name)))
        return self.f.named(value, state.ascii)
