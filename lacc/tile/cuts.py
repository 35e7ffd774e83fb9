"""A tile program that goes chunk after chunk in, the programs of kernels out of which none holds
more than fits on a chip, or as little more as pays.

The kernels of each phase are those of `lacc.tile.partition` at first. One that holds too much is
barred from making a value, which an earlier kernel, if need be a new one, gives it through memory:
one value after another, each time the one that costs the least, for as long as it costs less than
what is held too much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lacc.ir.graph import Uncuttable
from lacc.ir.ops import OPS
from lacc.tile.partition import OPAQUE, SERIAL, Part, Partition, Tight
from lacc.tile.program import Program

TIGHT = 10000.0
"""The bytes a token that it is worth to hold as much less as fits on the chip."""

CANDIDATES = 12
"""Values at most, those of the fewest bytes first, that a kernel may be barred from at once."""

FAR, MOST = 2.9, 1.2
"""What a kernel may hold before it is cut, and after, as parts of what fits: searching for cuts of
more takes long and finds none."""

LAUNCH = 500.0
"""The bytes a token that it costs to have one kernel more."""


def cut(
    program: Program,
    carried: str,
    dims: Mapping[str, int],
    starts: Collection[str],
    chunk: int,
    tight: Tight,
) -> tuple[Part, ...]:
    """Loops over the carried states alone, everything else for all chunks at once; kernels that are
    more than 1 ``tight`` are cut wherever that costs the least. `Uncuttable` where one holds too
    much all the same."""
    return _Cut(program, carried, dims, starts, chunk, tight).parts()


@dataclass(frozen=True, slots=True)
class Group:
    """Outputs of one kernel of a phase, values that it is ``barred`` from making, and those that it
    ``makes`` as later ones are barred from them."""

    roots: dict[str, int]
    barred: frozenset[int] = frozenset()
    makes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel, its group, all ``roots`` that it gives out, the values ``kept`` that it takes from
    earlier ones, and those of them that kernels of earlier phases are ``asked`` for."""

    part: Part
    group: Group
    roots: dict[str, int]
    kept: frozenset[int]
    asked: frozenset[int]


class _Cut(Partition):
    def __init__(
        self,
        program: Program,
        carried: str,
        dims: Mapping[str, int],
        starts: Collection[str],
        chunk: int,
        tight: Tight,
    ) -> None:
        super().__init__(program, carried, dims, starts, chunk, tight)
        self._known: dict[object, float] = {}

    def _of_phase(self, phase: int, roots: dict[str, int]) -> list[Part]:
        made = self._made(phase, [Group(roots)])
        if phase % 2 == 0 and self._over(made):
            groups = self._groups(made[0].part.program, roots)
            if len(groups) > 1:
                made = min(self._made(phase, [Group(g) for g in groups]), made, key=self._cost)
        self._require(made, FAR)
        made = self._barred(phase, made)
        self._require(made, MOST)
        for one in made:
            for n in sorted(one.asked):
                self.roots.setdefault(self.phase[n], {})[f"kept:{self._name(n)}"] = n
        return [one.part for one in made if one.part.program.outs]

    def _made(self, phase: int, groups: list[Group]) -> list[Made]:
        """The kernels of groups of outputs, the last one first, which asks those before it for what
        it takes."""
        found: list[Made] = []
        near: dict[str, int] = {}
        for k in reversed(range(len(groups))):
            group = groups[k]
            roots = {**group.roots, **near}
            before = [n for g in groups[:k] for n in (*g.roots.values(), *g.makes)]
            known = set(self._below(before, ()))
            own = {n for name, n in roots.items() if n not in known or name in group.roots}
            if not k:
                own = self._needed_now(phase, roots) | (own if len(groups) > 1 else set())
            kept = self._kept(phase, roots, own, before, group.barred)
            states = self.loops[phase // 2] if phase % 2 else ()
            new = {k: n for k, n in roots.items() if n not in kept or not k.startswith("kept:")}
            part = Part("loop" if states else "chunk", self._built(new, kept), states)
            here = {n for n in kept if k and self._here(n, phase)}
            near = {f"kept:{self._name(n)}": n for n in sorted(here)}
            found.append(Made(part, group, new, frozenset(kept), frozenset(kept - here)))
        return found

    def _alone(self, n: int) -> bool:
        """No value belongs to the kernels of a phase alone that loops need from before them."""
        own = self.phase[n]
        return super()._alone(n) and not any(
            self.phase[i] == own for i in self._serial_before(self.last)
        )

    def _barred(self, phase: int, made: list[Made]) -> list[Made]:
        """The same where kernels that hold too much take values from memory instead of making them,
        one after another, for as long as that pays."""
        while self._over(made):
            worst = max(made, key=self._tight)
            groups = [one.group for one in reversed(made)]
            at = groups.index(worst.group)
            ways: list[list[Made]] = []
            for own in self._ways(phase, worst, groups[:at]):
                with suppress(Uncuttable):
                    ways.append(self._made(phase, [*groups[:at], *own, *groups[at + 1 :]]))
            best = made
            for way in sorted(ways, key=self._moved):
                if self._moved(way) >= self._cost(best):
                    break
                best = min((best, way), key=self._cost)
            if best is made:
                break
            made = best
        return made

    def _ways(self, phase: int, one: Made, before: list[Group]) -> Iterator[list[Group]]:
        """How a kernel may be barred from making a value: it comes from one before it, if need be
        from a new one, which gives out what takes no more products than the value."""
        below = self._below(one.roots.values(), one.kept)
        inner = [n for n in below if n not in one.kept]
        known = self._below([n for g in before for n in (*g.roots.values(), *g.makes)], ())
        ends = dict.fromkeys(self._end(n, inner) for n in inner if self._large(n))
        for n in sorted(ends, key=self._bytes)[:CANDIDATES]:
            if n in one.roots.values() and self.phase[n] == phase and phase % 2:
                continue
            barred = one.group.barred | {n}
            if n in known or not self._here(n, phase):
                yield [Group(one.group.roots, barred, one.group.makes)]
            elif phase % 2 == 0:
                needs = self._products([n])
                roots = one.group.roots
                first = {m: r for m, r in roots.items() if self._products([r]) <= needs}
                last = {m: r for m, r in roots.items() if m not in first}
                if last or one.roots.keys() - roots.keys():
                    yield [
                        Group(first, one.group.barred, one.group.makes | {n}),
                        Group(last, barred),
                    ]

    def _large(self, n: int) -> bool:
        """Whether a value is worth to be kept and may be: one of two axes, or a sum."""
        inst = self.body[n]
        summed = inst.op == "contract" or inst.op in SERIAL
        return len(inst.axes) > (0 if summed else 1) and inst.op not in (*OPAQUE, "load", "rename")

    def _end(self, n: int, inner: list[int]) -> int:
        """The last of the values that a value is made into, entry by entry, for one use."""
        users = [k for k in inner if n in self.body[k].ins]
        while len(users) == 1 and self.body[users[0]].op in OPS:
            if {*self.body[users[0]].axes} != {*self.body[n].axes}:
                break
            n = users[0]
            users = [k for k in inner if n in self.body[k].ins]
        return n

    def _cost(self, made: list[Made]) -> float:
        """Bytes that kernels move for each token, and what they hold too much as bytes."""
        return self._moved(made) + TIGHT * self._over(made)

    def _moved(self, made: list[Made]) -> float:
        """Bytes that kernels move for each token, and what it costs to have them."""
        moved = 0.0
        for one in made:
            below = [n for n in self._below(one.roots.values(), one.kept) if n not in one.kept]
            given = [n for name, n in one.roots.items() if name.startswith("kept:")]
            moved += sum(self._bytes(n) for n in below if self._is_load(n))
            moved += sum(self._bytes(n) / 2 for n in (*one.kept, *given, *one.asked))
        return moved + LAUNCH * len(made)

    def _require(self, made: list[Made], most: float) -> None:
        """`Uncuttable` where a kernel holds more than the ``most``."""
        if any(self._tight(one) > most for one in made):
            raise Uncuttable

    def _over(self, made: list[Made]) -> float:
        """By how much kernels hold more than fits."""
        return sum(max(0.0, self._tight(one) - 1) for one in made)

    def _tight(self, one: Made) -> float:
        """The part of the chip that a kernel needs."""
        key = (frozenset(one.roots.items()), one.kept)
        if key not in self._known:
            self._known[key] = self.tight(one.part)
        return self._known[key]
