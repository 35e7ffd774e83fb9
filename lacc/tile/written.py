"""A state that holds what its token writes in, its values at all tokens of a chunk out: those of
what is written, and a token later the same."""

from __future__ import annotations

from functools import cached_property

from lacc.tile.carried import Carried


class Written(Carried):
    """S[t] does without S[t-1], so that reading it back is a shift along time."""

    @cached_property
    def _after(self) -> int:
        """S[t] at all tokens."""
        (name,) = self.recurrence.states
        state = self.spec.state(name)
        value = self.f.expand(self.lower(state.update), ("t", *self.axes_of(name)))
        return self.f.named(value, state.ascii)

    def shown(self, name: str, strict: bool) -> int:
        return self.before(name, self._after) if strict else self._after

    def next(self, name: str) -> int:
        return self.f.op("row", (self._after,), True)
