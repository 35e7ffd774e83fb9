"""A recurrence and the reader of its chunk in, the tile values that speak of its states out: what
every way of carrying a state through a chunk can answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from lacc.analysis.decay import Decay
from lacc.analysis.transition import Recurrence
from lacc.tile.program import Axes
from lacc.tile.reads import Reader


@dataclass(frozen=True, slots=True)
class Treatment:
    """How the builder treats one recurrence: its form, its decays, and whether it is read by
    contraction."""

    recurrence: Recurrence
    decays: tuple[Decay, ...]
    contracted: bool


class Carried(ABC):
    """One recurrence within a chunk, built into the program of ``reader``.

    A state is read by contraction (`read_by`), where its form allows that, or entry by entry
    (`shown`); `next` is the state that leaves the chunk.
    """

    def __init__(self, reader: Reader, treatment: Treatment) -> None:
        self.reader = reader
        self.spec, self.f, self.lower = reader.spec, reader.f, reader.lower
        self.treatment, self.recurrence = treatment, treatment.recurrence

    def axes_of(self, name: str) -> Axes:
        """The axes of a state."""
        return self.reader.axes_of(name)

    def start(self, name: str) -> int:
        """The state that the chunk starts from."""
        return self.f.load("state", self.spec.state(name).ascii, self.axes_of(name))

    def before(self, name: str, after: int) -> int:
        """S[t-1] for all tokens, from S[t]."""
        return self.f.op("before", (after, self.start(name)))

    def summed(self, pairs: int, written: int | None) -> int:
        """Σ over s of pairs[t, s] · written[s]; None: a vector state's writes, that are all in the
        pairs."""
        if written is None:
            return self.f.sum(pairs, ("s",))
        return self.f.contract(pairs, self.f.rename(written, {"t": "s"}), ("s",))

    def read_by(self, name: str, axis: int, query: int, strict: bool) -> int:
        """Σ over ``axis`` of query · S[t] (S[t-1] where ``strict``), for all tokens of the
        chunk."""
        return self.f.contract(query, self.shown(name, strict), (self.axes_of(name)[axis],))

    @abstractmethod
    def shown(self, name: str, strict: bool) -> int:
        """S[t] (S[t-1] where ``strict``) for all tokens of the chunk, entry by entry."""

    @abstractmethod
    def next(self, name: str) -> int:
        """S1."""


class Entrywise(Carried):
    """States whose every entry is known at every token of the chunk."""

    def __init__(self, reader: Reader, treatment: Treatment) -> None:
        super().__init__(reader, treatment)
        self._known: dict[str, int] = {}

    def shown(self, name: str, strict: bool) -> int:
        if name not in self._known:
            self._known[name] = self.after(name)
        after = self._known[name]
        return self.before(name, after) if strict else after

    def next(self, name: str) -> int:
        return self.f.op("row", (self.shown(name, strict=False),), True)

    @abstractmethod
    def after(self, name: str) -> int:
        """S[t] at all tokens."""
