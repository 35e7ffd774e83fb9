"""Steps of a kernel and what they touch in memory in, where the threads of a block must wait for
one another out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

BARRIER = "barrier();"


@dataclass(frozen=True, slots=True)
class Touch:
    """A piece of memory that a step reads or writes. ``own``: each thread touches only the entries
    whose numbers leave its own when divided by that of the threads, so that it finds what it has
    written itself."""

    place: str
    writes: bool
    own: bool = False

    def meets(self, other: Touch) -> bool:
        """Whether one must be seen, or done, before the other."""
        same = self.place == other.place and (self.writes or other.writes)
        return same and not (self.own and other.own)


@dataclass(slots=True)
class Step:
    """Lines that touch memory; ``waits`` where there is a barrier before them, in ``stretch`` of
    the kernel, which begins anew with each barrier."""

    lines: list[str]
    touches: tuple[Touch, ...] = ()
    waits: bool = False
    stretch: int = 0


@dataclass(slots=True)
class Block:
    """Steps that run any number of times, or on a condition, behind a ``head`` that is the same for
    all threads. A loop ``waits`` where there is a barrier before it, and ``ends`` with one where
    memory was touched behind the last one inside."""

    head: str
    items: list[Step | Block] = field(default_factory=list)
    loop: bool = True
    waits: bool = False
    ends: bool = True


Items = Sequence[Step | Block]
Pending = tuple[Touch, ...]
"""What was touched since the last barrier."""


def place_barriers(items: Items) -> None:
    """Says of every step and loop whether it waits, and the stretch of each step; those that wait
    already do."""
    _placed(items, (), 0)


def _placed(items: Items, pending: Pending, stretch: int) -> tuple[Pending, int]:
    for item in items:
        if isinstance(item, Step):
            item.waits |= any(a.meets(b) for a in item.touches for b in pending)
            if item.waits:
                pending, stretch = (), stretch + 1
            item.stretch = stretch
            pending = (*pending, *(t for t in item.touches if t not in pending))
            continue
        if not item.loop:
            after, _ = _placed(item.items, pending, stretch)
            pending = (*pending, *(t for t in after if t not in pending))
            continue
        last, inside = _placed(item.items, (), stretch + 1)
        item.ends = bool(last)
        item.waits = any(a.meets(b) for a in _first(item.items) for b in pending)
        pending, stretch = () if item.waits else pending, inside + 1
    return pending, stretch


def _first(items: Items) -> list[Touch]:
    """What is touched before the first barrier that is there in any case."""
    found: list[Touch] = []
    for item in items:
        if item.waits:
            return found
        if isinstance(item, Step):
            found += item.touches
        else:
            found += _first(item.items)
    return found


def steps(items: Items) -> Iterator[Step]:
    """All steps, in order."""
    for item in items:
        if isinstance(item, Step):
            yield item
        else:
            yield from steps(item.items)


def stretches(items: Iterable[Step]) -> dict[str, tuple[int, int]]:
    """The first and the last stretch that touches each piece of memory."""
    found: dict[str, tuple[int, int]] = {}
    for step in items:
        for touch in step.touches:
            first, last = found.get(touch.place, (step.stretch, step.stretch))
            found[touch.place] = min(first, step.stretch), max(last, step.stretch)
    return found


def text(items: Items) -> Iterator[str]:
    """The lines, with barriers."""
    for item in items:
        if isinstance(item, Step):
            yield from ([BARRIER] if item.waits else [])
            yield from item.lines
            continue
        yield from ([BARRIER] if item.waits else [])
        yield f"{item.head} {{"
        yield from (f"    {line}" for line in text(item.items))
        yield from ([f"    {BARRIER}"] if item.loop and item.ends else [])
        yield "}"
