"""Pieces of a kernel's work and the tiles that they make and read in, the order in which the least
is held at once out, with what is cheap made again where it would be held for long otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, permutations

ROUNDS = 2
"""How often every piece of work is tried at other places."""
ENDS = 720
"""How many orders of what comes out are tried."""
AGAIN = 32
"""How many tiles are made again at most."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What writes the tiles ``makes`` from those that it ``reads``, in ``room`` numbers of its
    own; ``cheap``: it may be done again."""

    makes: frozenset[str]
    reads: frozenset[str]
    room: int = 0
    cheap: bool = False


@dataclass(frozen=True)
class Needs:
    """What pieces of work hold of tiles of some ``sizes``; those of ``sums`` are added up in any
    order."""

    works: Sequence[Piece]
    sizes: Mapping[str, int]
    sums: frozenset[str]

    def before(self) -> list[frozenset[int]]:
        """The pieces that must come before each, of those in front of it."""
        found = []
        for k, work in enumerate(self.works):
            touched, makes = work.makes | work.reads, work.makes
            found.append(
                frozenset(
                    j
                    for j, other in enumerate(self.works[:k])
                    if other.makes & (touched - (self.sums & makes)) or other.reads & makes
                )
            )
        return found

    def held(self, order: Sequence[int]) -> tuple[int, int]:
        """The most numbers that are held at once in an order, and the sum over all its pieces."""
        found = self.profile(order)
        return max(found), sum(found)

    def profile(self, order: Sequence[int] | None = None) -> list[int]:
        """The numbers that are held at each piece of work."""
        order = range(len(self.works)) if order is None else order
        touched, sizes = self._touched
        first, last = [-1] * len(sizes), [0] * len(sizes)
        for at, k in enumerate(order):
            for tile in touched[k]:
                last[tile] = at
                if first[tile] < 0:
                    first[tile] = at
        changes = [0] * (len(order) + 1)
        for begin, end, size in zip(first, last, sizes):
            changes[begin] += size
            changes[end + 1] -= size
        now, found = 0, []
        for at, k in enumerate(order):
            now += changes[at]
            found.append(now + self.works[k].room)
        return found

    @cached_property
    def _touched(self) -> tuple[list[list[int]], list[int]]:
        """The numbers of the tiles that each piece touches and that take memory, and their sizes:
        counted so, since `profile` is asked for thousands of orders."""
        numbers = dict[str, int]()
        touched = [
            [
                numbers.setdefault(tile, len(numbers))
                for tile in sorted(work.makes | work.reads)
                if self.sizes.get(tile)
            ]
            for work in self.works
        ]
        return touched, [self.sizes[tile] for tile in numbers]


def ordered(needs: Needs) -> list[int]:
    """The order of pieces of work in which the least is held at once, of those tried."""
    before = needs.before()
    plain = list(range(len(needs.works)))
    orders = map(tuple, (plain, _greedy(needs, before), *_by_ends(needs, before)))
    best = [*min(dict.fromkeys(orders), key=needs.held)]
    least = needs.held(best)
    for _ in range(ROUNDS):
        start = least
        for k in plain:
            best, least = _moved(needs, before, best, least, k)
        if least == start:
            break
    return best


def _by_ends(needs: Needs, before: Sequence[frozenset[int]]) -> list[list[int]]:
    """Orders in which all that one end needs comes before what only the next ones do, for the
    orders of the ends."""
    ends = [k for k in range(len(before)) if not any(k in others for others in before)]
    found = []
    for several in islice(permutations(ends), ENDS):
        order = dict[int, None]()
        for end in several:
            _needed(end, before, order)
        found.append([*order])
    return found


def _needed(k: int, before: Sequence[frozenset[int]], order: dict[int, None]) -> None:
    if k not in order:
        for j in sorted(before[k]):
            _needed(j, before, order)
        order[k] = None


def _moved(
    needs: Needs, before: Sequence[frozenset[int]], order: list[int], least: tuple[int, int], k: int
) -> tuple[list[int], tuple[int, int]]:
    """The best of the orders in which piece ``k`` stands elsewhere."""
    rest = [j for j in order if j != k]
    first = max((n + 1 for n, j in enumerate(rest) if j in before[k]), default=0)
    end = min((n for n, j in enumerate(rest) if k in before[j]), default=len(rest))
    for at in range(first, end + 1):
        trial = [*rest[:at], k, *rest[at:]]
        if (found := needs.held(trial)) < least:
            order, least = trial, found
    return order, least


def _greedy(needs: Needs, before: Sequence[frozenset[int]]) -> list[int]:
    """Each time the piece that leaves the least held."""
    users: dict[str, set[int]] = {}
    for k, work in enumerate(needs.works):
        for tile in work.makes | work.reads:
            users.setdefault(tile, set()).add(k)
    left, order = set(range(len(needs.works))), list[int]()
    begun = set[str]()

    def grows(k: int) -> int:
        work = needs.works[k]
        touched = work.makes | work.reads
        new = sum(needs.sizes.get(x, 0) for x in touched - begun)
        return new - sum(needs.sizes.get(x, 0) for x in touched if users[x] & left == {k})

    while left:
        ready = [k for k in sorted(left) if not before[k] & left]
        best = min(ready, key=lambda k: (grows(k), k))
        begun |= needs.works[best].makes | needs.works[best].reads
        left.remove(best)
        order.append(best)
    return order


@dataclass(frozen=True, slots=True)
class Placed:
    """A piece of work that is done: the ``number`` of that in `Needs`, and the tiles that it has
    under other names."""

    number: int
    names: Mapping[str, str]


Plan = tuple[list[Placed], dict[str, str]]
"""Pieces of work in order, and of which tiles others are copies."""


def made_again(needs: Needs, order: Sequence[int], goal: int) -> Plan:
    """An order with pieces of work that are done again, so that no more than ``goal`` numbers are
    held at once, as far as that goes."""
    plan, copies = [Placed(k, {}) for k in order], dict[str, str]()
    least = _over(needs, (plan, copies), goal)
    for _ in range(AGAIN):
        if not least[0]:
            break
        trials = _trials(needs, (plan, copies))
        if not trials:
            break
        found = min(trials, key=lambda trial: _over(needs, trial, goal))
        if _over(needs, found, goal) >= least:
            break
        least, (plan, copies) = _over(needs, found, goal), found
    return plan, copies


def _touched(needs: Needs, placed: Placed) -> tuple[set[str], set[str]]:
    work = needs.works[placed.number]
    return (
        {placed.names.get(x, x) for x in work.makes},
        {placed.names.get(x, x) for x in work.reads},
    )


def _of(needs: Needs, given: Plan) -> Needs:
    """What a plan holds."""
    plan, copies = given
    works = []
    for placed in plan:
        makes, reads = _touched(needs, placed)
        works.append(Piece(frozenset(makes), frozenset(reads), needs.works[placed.number].room))
    sizes = {**needs.sizes, **{x: needs.sizes.get(of, 0) for x, of in copies.items()}}
    return Needs(works, sizes, needs.sums)


def _over(needs: Needs, given: Plan, goal: int) -> tuple[int, int]:
    """What is held above the goal, summed up, and how much work there is."""
    held = _of(needs, given).profile()
    return sum(max(0, x - goal) for x in held), len(held)


def _trials(needs: Needs, given: Plan) -> list[Plan]:
    """Plans in which one tile, that waits where the most is held, is made again before it is used
    next; alone, or with what it is made from."""
    plan = given[0]
    works = _of(needs, given).works
    held = _of(needs, given).profile()
    full = held.index(max(held))
    found = list[Plan]()
    for tile in sorted({x for work in works[:full] for x in work.makes}):
        made = [k for k, work in enumerate(works) if tile in work.makes]
        later = [k for k, work in enumerate(works) if tile in work.reads and k > full]
        now = tile in works[full].makes | works[full].reads
        if now or len(made) != 1 or not later or not needs.works[plan[made[0]].number].cheap:
            continue
        for deep in (False, True):
            trial = _again(needs, given, tile, later[0], full, deep)
            if trial not in found:
                found.append(trial)
    return found


def _again(needs: Needs, given: Plan, tile: str, at: int, full: int, deep: bool) -> Plan:
    """The plan in which a tile is made again before piece ``at``, and, if ``deep``, what it is made
    from and nothing needs in between."""
    plan, copies = given
    new, more = dict(copies), list[Placed]()

    def again(tile: str) -> str:
        (made,) = (p for p in plan if tile in _touched(needs, p)[0])
        names = dict(made.names)
        of = copies.get(tile, tile)
        copy = f"{of}_{sum(x == of for x in new.values()) + 2}"
        new[copy] = of
        for read in sorted(needs.works[made.number].reads):
            own = made.names.get(read, read)
            makers = [p for p in plan if own in _touched(needs, p)[0]]
            uses = [k for k, p in enumerate(plan) if own in _touched(needs, p)[1] and k > full]
            single = len(makers) == 1 and needs.works[makers[0].number].cheap
            if deep and single and (not uses or uses[0] >= at):
                names[read] = again(own)
        names[of] = copy
        more.append(Placed(made.number, names))
        return copy

    copy, of = again(tile), copies.get(tile, tile)
    found = [*plan[:at], *more]
    for placed in plan[at:]:
        work = needs.works[placed.number]
        mine = of in work.makes | work.reads and placed.names.get(of, of) == tile
        names = {**placed.names, of: copy} if mine else placed.names
        found.append(replace(placed, names=names))
    return found, new
