"""What a kernel's tiles are, and from when to when each is held, in; the order out in which they
take the first place that is free so that they need little memory, and where one more barrier lets
some go earlier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lacc.backends.cuda_barriers import Step
from lacc.runtime.cuda_arena import Held, fitted, held, in_numbers

TRIES = 40
"""How often the tile that lies worst gets the first choice, for each order to begin with."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of the workspace: its size in floats, from which to which stretch it is held, whether
    it is spared where shared memory is full."""

    name: str
    size: str
    first: int
    last: int
    spare: bool = False

    def at(self, sizes: Mapping[str, int]) -> Held:
        """The tile at some sizes."""
        return in_numbers((self.size, self.first, self.last), sizes)


def placed(tiles: Sequence[Tile], settings: Sequence[Mapping[str, int]], limit: int) -> list[Tile]:
    """The tiles in the order, of those tried, in which the fewest numbers do not fit into ``limit``
    for some settings of sizes together, and the fewest are needed of those."""
    every = [[tile.at(sizes) for tile in tiles] for sizes in settings]
    least = [(max(0, held(x) - limit), min(limit, held(x))) for x in every]
    best, fewest = [*range(len(tiles))], (1 << 60, 0)
    seen = set[tuple[int, ...]]()
    for order in _orders(every[0]):
        for _ in range(TRIES):
            if (known := tuple(order)) in seen:
                break
            seen.add(known)
            needs, worst = zip(*(_needs([x[k] for k in order], limit) for x in every))
            total = sum(far for far, _ in needs), sum(near for _, near in needs)
            if total < fewest:
                best, fewest = [*order], total
            loses = [(far - f, near - n) for (far, near), (f, n) in zip(needs, least)]
            if max(loses) <= (0, 0):
                return [tiles[k] for k in best]
            at = worst[loses.index(max(loses))]
            order.insert(0, order.pop(at))
    return [tiles[k] for k in best]


def _orders(tiles: Sequence[Held]) -> Iterator[list[int]]:
    """Orders to begin with: as they stand, the large ones first, those that are held for long, that
    are needed first, that are needed last."""
    numbers = range(len(tiles))
    yield [*numbers]
    yield sorted(numbers, key=lambda k: (-tiles[k][0], tiles[k][1] - tiles[k][2]))
    yield sorted(numbers, key=lambda k: (tiles[k][1] - tiles[k][2], -tiles[k][0]))
    yield sorted(numbers, key=lambda k: (-tiles[k][0], tiles[k][1]))
    yield sorted(numbers, key=lambda k: (tiles[k][1], -tiles[k][2]))
    yield sorted(numbers, key=lambda k: (-tiles[k][2], tiles[k][1]))


def _needs(tiles: Sequence[Held], limit: int) -> tuple[tuple[int, int], int]:
    """Numbers that do not fit and that do, and which tile reaches farthest of the former, or of the
    latter where all fit."""
    ends = [(far, at + tile[0]) for (far, at), tile in zip(fitted(tiles, limit), tiles)]
    most = [max((end for is_far, end in ends if is_far == far), default=0) for far in (True, False)]
    return (most[0], most[1]), max(range(len(ends)), key=lambda k: (*ends[k], tiles[k][0]))


def parted(steps: Sequence[Step], tiles: Mapping[str, int], goal: int) -> Step | None:
    """The step before which a barrier lets go most of what is held where that is the most, and
    above ``goal``: of what some ``tiles``, with their numbers, touch; None where none does."""
    first, last = dict[str, int](), dict[str, int]()
    for k, step in enumerate(steps):
        for touch in step.touches:
            if touch.place in tiles:
                first.setdefault(touch.place, k)
                last[touch.place] = k

    def of(begin: int, end: int) -> int:
        """The numbers that are held from one step up to before another one."""
        return sum(
            n for x, n in tiles.items() if x in first and first[x] < end and last[x] >= begin
        )

    begins = [k for k, step in enumerate(steps) if not k or step.waits]
    spans = [*zip(begins, [*begins[1:], len(steps)])]
    begin, end = max(spans, key=lambda span: of(*span))
    most = of(begin, end)
    ways = {k: max(of(begin, k), of(k, end)) for k in range(begin + 1, end)}
    best = min(ways, key=lambda k: (ways[k], k), default=0)
    return steps[best] if most > goal and best and ways[best] < most else None
