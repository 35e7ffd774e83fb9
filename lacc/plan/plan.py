"""Sizes of a call in, how to run it out: the mode and chunk that cost least at a plan's prices.

This module stands alone: its text is also pasted into every emitted file, which carries its plan.
A price is a sum of products in nanoseconds: ((900,), (0.5, "#C", "K")) is 900 + 0.5 C K for a
chunk of C tokens; "#log C" is log2 C, "#past" how many tokens came before one, on average.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import log2, prod

Price = tuple[tuple[float | str, ...], ...]
Bucket = tuple[int | tuple[str, int], ...]
Choice = tuple[str, int]
"""A mode and the tokens of a chunk."""


CALLS_KNOWN = 1024
"""Calls of which a plan remembers what it chose, at most."""

WIDE = 32
"""The least tokens of a chunk for which products of matrices may round their factors to
bfloat16."""


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
    With ``apart`` heads go one after another, each with calls and tiles of its own. ``back`` is the
    plan of calls for gradients. ``products`` is what of ``chunk`` goes into products of matrices;
    in chunks of `WIDE` tokens on, the part ``saved`` of it is not taken (`mixed`). ``why``: the
    reasons, a sentence each. ``tuned`` are choices that were measured, by `bucket` of the call.
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
    products: Price = ()
    chunk_calls: Price = ()
    block_calls: Price = ()
    token: Price = ()
    token_calls: Price = ()
    apart: bool = False
    saved: float = 0.0
    back: Plan | None = None
    why: tuple[str, ...] = ()
    tuned: Mapping[Bucket, Choice] = field(default_factory=dict, repr=False)
    _chosen: dict[Hashable, Choice] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def mixed(self, faster: float) -> Plan:
        """This plan for products that are so many times faster with factors of bfloat16."""
        return replace(self, saved=1 - 1 / faster)

    def together(self, C: int, heads: int, dims: Mapping[str, int]) -> int:
        """How many chunks of C tokens of every head make a block."""
        if self.apart:
            return 1
        floats = heads * price_at(self.tile, sizes(C, dims))
        return max(1, min(int(self.block // max(floats, 1)), 16))

    def by_chunk(self, C: int, T: int, heads: int, dims: Mapping[str, int], past: int = 0) -> float:
        """Nanoseconds for T tokens of every head in chunks of C, behind ``past`` others."""
        whole, tail = divmod(T, C)
        at, n = sizes(C, dims, past + T / 2), self.together(C, heads, dims)
        times = heads if self.apart else 1
        fits = (1 if self.apart else heads) * price_at(self.tile, at) <= self.cached
        moved = price_at(self.moved, at) * (self.near if fits else self.far)
        saved = self.saved * price_at(self.products, at) if C >= WIDE and self.saved else 0.0
        chunk = price_at(self.chunk, at) - saved + moved
        each = heads * chunk + times * price_at(self.chunk_calls, at)
        blocks = -(-whole // n) * times * price_at(self.block_calls, at)
        rest = self.by_chunk(tail, tail, heads, dims, T - tail) if tail else 0.0
        return whole * each + blocks + rest

    def by_token(self, T: int, heads: int, dims: Mapping[str, int]) -> float:
        """Nanoseconds for T tokens of every head, one at a time."""
        at, times = sizes(1, dims, T / 2), heads if self.apart else 1
        return T * (heads * price_at(self.token, at) + times * price_at(self.token_calls, at))

    def cost(self, choice: Choice, T: int, heads: int, dims: Mapping[str, int]) -> float:
        """Nanoseconds for T tokens of every head by a choice."""
        mode, C = choice
        if mode == "recurrent":
            return self.by_token(T, heads, dims)
        return self.by_chunk(T if mode == "parallel" else C, T, heads, dims)

    def choose(self, T: int, heads: int, dims: Mapping[str, int], mode: str = "auto") -> Choice:
        """The mode, or the one given, and the tokens of a chunk: T in mode parallel. Remembered for
        the calls that were last."""
        call = (T, heads, mode, *dims.items())
        best = self._chosen.get(call)
        if best is None:
            if len(self._chosen) >= CALLS_KNOWN:
                self._chosen.clear()
            best = self._chosen[call] = self._best(max(T, 1), heads, dims, mode)
        return best

    def _best(self, T: int, heads: int, dims: Mapping[str, int], mode: str) -> Choice:
        modes = self.modes if mode == "auto" else (mode,)
        best = self.tuned.get(bucket(T, heads, dims))
        if best is not None and best[0] in modes:
            return best[0], T if best[0] == "parallel" else min(best[1], T)
        found: list[Choice] = []
        for m in modes:
            lengths = {"recurrent": {1}, "parallel": {T}}.get(m) or {min(C, T) for C in self.chunks}
            found += [(m, C) for C in lengths]
        return min(found, key=lambda choice: self.cost(choice, T, heads, dims))

    def measured(self, tuned: Mapping[str, Mapping[Bucket, Choice]]) -> Plan:
        """This plan with the choices that were measured "forward" and "backward"."""
        back = self.back and replace(self.back, tuned=tuned["backward"])
        return replace(self, tuned=tuned["forward"], back=back)


def bucket(T: int, heads: int, dims: Mapping[str, int]) -> Bucket:
    """What stands for all calls that are tuned together: tokens and heads of all sequences, rounded
    up to powers of two, and the dims, sorted."""
    return *(1 << max(n - 1, 0).bit_length() for n in (T, heads)), *sorted(dims.items())


def sizes(C: int, dims: Mapping[str, int], past: float = 0) -> dict[str, float]:
    """What prices name."""
    return {**dims, "#C": C, "#log C": log2(C), "#past": past}
