"""Pieces of a kernel's work and the tiles that they make and read in, the order in which the least
is held at once out, with what is cheap made again where it would be held for long otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, count, islice, permutations

Measure = Callable[[Sequence[int]], tuple[int, int]]
"""How much an order holds; less is better."""

ROUNDS = 2
"""How often every piece of work is tried at other places."""
ENDS = 720
"""How many orders of what comes out are tried."""
AGAIN, FULL = 32, 4
"""How many tiles are made again at most; of how many pieces where the most is held one is eased."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What writes the tiles ``makes`` from those that it ``reads``, in ``room`` numbers of its
    own; ``cheap``: it may be done again, a ``product`` of matrices only where tiles would not lie
    on the chip otherwise."""

    makes: frozenset[str]
    reads: frozenset[str]
    room: int = 0
    cheap: bool = False
    product: bool = False


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

    def profile(self, order: Sequence[int] | None = None, again: bool = False) -> list[int]:
        """The numbers that are held at each piece of work; as if what is cheap were made ``again``
        for every piece that reads it."""
        order = range(len(self.works)) if order is None else order
        touched, sizes, cheap = self._touched
        first, last = [-1] * len(sizes), [0] * len(sizes)
        changes = [0] * (len(order) + 1)
        for at, k in enumerate(order):
            for tile in touched[k]:
                if again and cheap[tile]:
                    changes[at] += sizes[tile]
                    changes[at + 1] -= sizes[tile]
                    continue
                last[tile] = at
                if first[tile] < 0:
                    first[tile] = at
        for begin, end, size in zip(first, last, sizes):
            if begin >= 0:
                changes[begin] += size
                changes[end + 1] -= size
        now, found = 0, []
        for at, k in enumerate(order):
            now += changes[at]
            found.append(now + self.works[k].room)
        return found

    @cached_property
    def _touched(self) -> tuple[list[list[int]], list[int], list[bool]]:
        """The numbers of the tiles that each piece touches and that take memory, their sizes, and
        whether they are cheap: counted so, since `profile` is asked for thousands of orders."""
        numbers = dict[str, int]()
        touched = [
            [
                numbers.setdefault(tile, len(numbers))
                for tile in sorted(work.makes | work.reads)
                if self.sizes.get(tile)
            ]
            for work in self.works
        ]
        cheap = {tile for work in self.works if work.cheap for tile in work.makes}
        return touched, [self.sizes[x] for x in numbers], [x in cheap for x in numbers]


def ordered(needs: Needs, measure: Measure) -> list[int]:
    """The order of pieces of work, of those tried, that is the least by a ``measure``."""
    before = needs.before()
    plain = list(range(len(needs.works)))
    orders = map(tuple, (plain, _greedy(needs, before), *_by_ends(needs, before)))
    best = [*min(dict.fromkeys(orders), key=measure)]
    return _improved(before, best, measure)


def _improved(before: Sequence[frozenset[int]], order: list[int], measure: Measure) -> list[int]:
    """An order in which pieces of work stand elsewhere where that is less."""
    least = measure(order)
    for _ in range(ROUNDS):
        start = least
        for k in range(len(order)):
            order, least = _moved(before, order, least, k, measure)
        if least == start:
            break
    return order


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
    before: Sequence[frozenset[int]],
    order: list[int],
    least: tuple[int, int],
    k: int,
    measure: Measure,
) -> tuple[list[int], tuple[int, int]]:
    """The best of the orders in which piece ``k`` stands elsewhere."""
    rest = [j for j in order if j != k]
    first = max((n + 1 for n, j in enumerate(rest) if j in before[k]), default=0)
    end = min((n for n, j in enumerate(rest) if k in before[j]), default=len(rest))
    for at in range(first, end + 1):
        trial = [*rest[:at], k, *rest[at:]]
        if (found := measure(trial)) < least:
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
    """A piece of work that is done: the ``number`` of that in `Needs`, the tiles that it has under
    other names, and all that it ``makes`` and ``reads`` by these."""

    number: int
    names: Mapping[str, str]
    makes: frozenset[str]
    reads: frozenset[str]


def placed(needs: Needs, number: int, names: Mapping[str, str]) -> Placed:
    """A piece of work that has tiles under other names."""
    work = needs.works[number]
    makes, reads = (frozenset(names.get(x, x) for x in own) for own in (work.makes, work.reads))
    return Placed(number, names, makes, reads)


Plan = tuple[list[Placed], dict[str, str]]
"""Pieces of work in order, and of which tiles others are copies."""


def planned(needs: Needs, goal: int, most: float) -> Plan:
    """The order in which the least is held at once; where that is more than ``goal`` numbers, with
    pieces of work that are done again, so that it is no more, as far as that goes. Where it is more
    than the ``most`` that the chip has room for, products are done again, too."""

    def apart(order: Sequence[int]) -> tuple[int, int]:
        held = needs.profile(order, again=True)
        return sum(max(0, x - goal) for x in held), sum(held)

    works = [replace(work, cheap=work.cheap and not work.product) for work in needs.works]
    first = ordered(needs, needs.held)
    best = made_again(replace(needs, works=works), first, goal, 1)
    if max(_profile(needs, best)) > most:
        plans = best, *(made_again(needs, x, goal, FULL) for x in (first, ordered(needs, apart)))
        best = min(plans, key=lambda x: (max(_profile(needs, x)), _over(needs, x, goal)))
    return _named(needs, best)


def made_again(needs: Needs, order: Sequence[int], goal: int, full: int) -> Plan:
    """An order with pieces of work that are done again, so that no more than ``goal`` numbers are
    held at once, as far as that goes: each for one of the ``full`` pieces where the most is."""
    found: Plan = ([placed(needs, k, {}) for k in order], {})
    least = _over(needs, found, goal)
    for _ in range(AGAIN):
        if not least[0]:
            break
        trials = [(_over(needs, trial, goal), trial) for trial in _trials(needs, found, goal, full)]
        over, best = min(trials, key=lambda trial: trial[0], default=(least, found))
        if over >= least:
            break
        least, found = over, best
    return found


def _profile(needs: Needs, given: Plan) -> list[int]:
    """The numbers that are held at each piece of a plan."""
    plan, copies = given
    first, last = dict[str, int](), dict[str, int]()
    for at, one in enumerate(plan):
        for tile in one.makes | one.reads:
            first.setdefault(tile, at)
            last[tile] = at
    changes = [0] * (len(plan) + 1)
    for tile, at in first.items():
        size = needs.sizes.get(copies.get(tile, tile), 0)
        changes[at] += size
        changes[last[tile] + 1] -= size
    rooms = (needs.works[one.number].room for one in plan)
    return [held + room for held, room in zip(accumulate(changes), rooms)]


def _over(needs: Needs, given: Plan, goal: int) -> tuple[int, int]:
    """What is held above the goal, summed up, and how much work there is."""
    held = _profile(needs, given)
    return sum(x - goal for x in held if x > goal), len(held)


def _trials(needs: Needs, given: Plan, goal: int, full: int) -> Iterator[Plan]:
    """Plans in which one tile, that waits where more than ``goal`` is held, one of the ``full``
    pieces where the most is, is made again before it is used next; alone, or with what it is made
    from."""
    plan = given[0]
    made, read = dict[str, list[int]](), dict[str, list[int]]()
    for k, one in enumerate(plan):
        for tile in one.makes:
            made.setdefault(tile, []).append(k)
        for tile in one.reads:
            read.setdefault(tile, []).append(k)
    cheap = {x: k for x, (k, *more) in made.items() if not more and _cheap(needs, plan[k])}
    tried = set[tuple[str, int]]()
    held = _profile(needs, given)
    above = sorted((k for k, x in enumerate(held) if x > goal), key=lambda k: -held[k])
    for now in above[:full]:
        for tile in sorted(x for x, k in cheap.items() if k < now):
            at = next((k for k in read.get(tile, ()) if k > now), None)
            if at is None or tile in plan[now].reads or (tile, at) in tried:
                continue
            tried.add((tile, at))
            found = [_again(needs, given, tile, at, now, deep) for deep in (False, True)]
            yield found[0]
            if len(found[1][0]) > len(found[0][0]) or found[1][1] != found[0][1]:
                yield found[1]


def _cheap(needs: Needs, one: Placed) -> bool:
    return needs.works[one.number].cheap


def _again(needs: Needs, given: Plan, tile: str, at: int, now: int, deep: bool) -> Plan:
    """The plan in which a tile is made again before piece ``at``, and, if ``deep``, what it is made
    from and nothing needs from piece ``now`` on until then."""
    plan, copies = given
    new, more = dict(copies), list[Placed]()

    def again(tile: str) -> str:
        (made,) = (p for p in plan if tile in p.makes)
        names = dict(made.names)
        of = copies.get(tile, tile)
        copy = next(name for n in count(2) if (name := f"{of}_{n}") not in new)
        new[copy] = of
        for read in sorted(needs.works[made.number].reads):
            own = made.names.get(read, read)
            makers = [p for p in plan if own in p.makes]
            uses = [k for k, p in enumerate(plan) if own in p.reads and k > now]
            single = len(makers) == 1 and _cheap(needs, makers[0])
            if deep and single and (not uses or uses[0] >= at):
                names[read] = again(own)
        names[of] = copy
        more.append(placed(needs, made.number, names))
        return copy

    copy, of = again(tile), copies.get(tile, tile)
    found = [*plan[:at], *more]
    for one in plan[at:]:
        mine = tile in one.makes | one.reads
        found.append(placed(needs, one.number, {**one.names, of: copy}) if mine else one)
    return _used(needs, found, new)


def _used(needs: Needs, plan: list[Placed], copies: dict[str, str]) -> Plan:
    """A plan without the pieces that make what nothing reads any more."""
    read, found = set[str](), list[Placed]()
    for one in reversed(plan):
        if not _cheap(needs, one) or one.makes & read:
            read |= one.reads
            found.append(one)
    return found[::-1], {copy: of for copy, of in copies.items() if copy in read}


def _named(needs: Needs, given: Plan) -> Plan:
    """A plan in which the first of several copies of a tile has its name, the second one number 2,
    and so on."""
    plan, copies = given
    seen, names = Counter[str](), dict[str, str]()
    for tile in dict.fromkeys(x for one in plan for x in sorted(one.makes)):
        of = copies.get(tile, tile)
        seen[of] += 1
        names[tile] = of if seen[of] == 1 else f"{of}_{seen[of]}"
    found = []
    for one in plan:
        work = needs.works[one.number]
        new = {x: one.names.get(x, x) for x in work.makes | work.reads}
        new = {x: names.get(name, name) for x, name in new.items()}
        found.append(placed(needs, one.number, {x: name for x, name in new.items() if name != x}))
    return found, {name: copies.get(x, x) for x, name in names.items() if name != copies.get(x, x)}
