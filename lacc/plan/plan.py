"""Sizes of a call in, how to run it out: the mode and chunk that cost least at a plan's prices.

This module stands alone: its text is also pasted into every emitted file, which carries its plan.
A price is a sum of products in nanoseconds: ((900,), (0.5, "#C", "K")) is 900 + 0.5 C K for a
chunk of C tokens; "#log C" is log2 C, "#past" how many tokens came before one, on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, prod

Price = tuple[tuple[float | str, ...], ...]


def price_at(price: Price, sizes: Mapping[str, float]) -> float:
    """The number that a price is at ``sizes``."""
    return sum(float(rate) * prod(sizes[str(n)] for n in names) for rate, *names in price)


@dataclass(frozen=True)
class Plan:
    """What to choose from, and what it costs on one machine.

    ``modes`` that auto chooses among and ``chunks``, the lengths to choose from. ``block`` floats
    stay in cache, of which a chunk and head take ``tile``; it moves ``moved`` floats through memory
    at ``near`` nanoseconds each, at ``far`` where ``cached`` floats are not enough. Other prices:
    ``chunk`` of a chunk and head, ``token`` of a token and head by itself; ``block_calls``,
    ``chunk_calls`` and ``token_calls`` of the calls that these take, whatever the number of heads.
    ``back`` is the plan of calls for gradients. ``why``: the reasons, a sentence each.
    """

    machine: str
    modes: tuple[str, ...]
    chunks: tuple[int, ...]
    block: int
    cached: int
    near: float
    far: float
    tile: Price
    moved: Price = ()
    chunk: Price = ()
    chunk_calls: Price = ()
    block_calls: Price = ()
    token: Price = ()
    token_calls: Price = ()
    back: Plan | None = None
    why: tuple[str, ...] = ()

    def together(self, C: int, heads: int, dims: Mapping[str, int]) -> int:
        """How many chunks of C tokens of every head make a block."""
        floats = heads * price_at(self.tile, sizes(C, dims))
        return max(1, min(int(self.block // max(floats, 1)), 16))

    def by_chunk(self, C: int, T: int, heads: int, dims: Mapping[str, int], past: int = 0) -> float:
        """Nanoseconds for T tokens of every head in chunks of C, behind ``past`` others."""
        whole, tail = divmod(T, C)
        at, n = sizes(C, dims, past + T / 2), self.together(C, heads, dims)
        fits = heads * price_at(self.tile, at) <= self.cached
        moved = price_at(self.moved, at) * (self.near if fits else self.far)
        each = heads * (price_at(self.chunk, at) + moved) + price_at(self.chunk_calls, at)
        blocks = -(-whole // n) * price_at(self.block_calls, at)
        rest = self.by_chunk(tail, tail, heads, dims, T - tail) if tail else 0.0
        return whole * each + blocks + rest

    def by_token(self, T: int, heads: int, dims: Mapping[str, int]) -> float:
        """Nanoseconds for T tokens of every head, one at a time."""
        at = sizes(1, dims, T / 2)
        return T * (heads * price_at(self.token, at) + price_at(self.token_calls, at))

    def choose(
        self, T: int, heads: int, dims: Mapping[str, int], mode: str = "auto"
    ) -> tuple[str, int]:
        """The mode, or the one given, and the tokens of a chunk: T in mode parallel."""
        found = []
        T = max(T, 1)
        for m in self.modes if mode == "auto" else (mode,):
            if m == "recurrent":
                found.append((self.by_token(T, heads, dims), m, 1))
            else:
                lengths = {T} if m == "parallel" else {min(C, T) for C in self.chunks}
                found += [(self.by_chunk(C, T, heads, dims), m, C) for C in lengths]
        return min(found, key=lambda one: one[0])[1:]


def sizes(C: int, dims: Mapping[str, int], past: float = 0) -> dict[str, float]:
    """What prices name."""
    return {**dims, "#C": C, "#log C": log2(C), "#past": past}
