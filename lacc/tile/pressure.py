"""The program of one kernel in, its `Fit` out: what lives on the chip at once, what is done, moved.

A value is in registers, in float32, from where it is computed to its last use; a load that only
products of matrices use is in shared memory instead. Views and broadcasts take nothing, and an
elementwise value or a product may take the place of an operand whose last use it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product
from math import prod

from lacc.ir.ops import OPS
from lacc.spec.shapes import Size
from lacc.tile.fit import Fit, Lengths, Polynomial, Tile, Tiles, size
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import TIME, Axes, Inst, Program, numbers, side_by_side, taken_apart
from lacc.tile.rounds import Round, rounds

TEMPORARIES: Mapping[str, tuple[float, float]] = {
    "prefix": (1, 0),
    "suffix": (1, 0),
    "matrix": (0, 1),
    "gram": (3.4, 1),
    "meet": (3.4, 1),
    "meet_pull": (16, 1),
    "decayed": (3, 1),
    "decayed_pull": (16, 2),
    "prefix_pull": (4, 0),
    "suffix_pull": (4, 0),
    "matrix_pull": (0, 3),
    "solve": (2, 4),
    "inverse": (0, 8),
    "scan": (1, 0),
    "scan_back": (1, 0),
    "tropical": (1, 0),
    "concat": (3, 0),
    **dict.fromkeys(("fold", "take", "roll"), (1, 0)),
    "unfold": (5, 0),
}
"""Tiles that the device function of an op holds beside its operands and its result: as large as its
largest operand, and of pairs of tokens."""

MEETING = ("gram", "meet", "decayed", "meet_pull", "decayed_pull")
"""Ops that hold one more where pairs are strict: the products before each token."""

WORK: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("prefix", "suffix", "running"), (15, 0)),
    **dict.fromkeys(("prefix_pull", "suffix_pull"), (30, 0)),
    **dict.fromkeys(("scan", "scan_back", "tropical", "chain_parts"), (40, 0)),
    **dict.fromkeys(("gram", "meet", "decayed"), (150, 30)),
    **dict.fromkeys(("meet_pull", "decayed_pull"), (260, 50)),
    "whole": (6, 0),
    "matrix": (0, 30),
    "matrix_pull": (0, 60),
    "inverse": (0, 280),
    "solve": (20, 280),
    "solve_parts": (20, 600),
    "dense_solve": (200, 0),
}
"""Operations of the device function of an op for each entry of its largest operand, and of pairs of
tokens: counted in binaries."""

SAME = ("rename", "expand", "levels", "within", "instead", "through_time", "default", "omitted")
"""Ops whose result is in the registers of their first operand."""

GRID = {"t": (16, 64, 128), "/": (16, 64)}
DIM = (16, 128)
"""Entries along axes, and dims, for which one of several sets of tiles may be the largest."""


def fit(
    program: Program, split: str, kind: str = "loop", looped: bool = False, spare: bool = False
) -> Fit:
    """What the kernel of ``program`` needs whose programs share the axis ``split`` ("" for none),
    or go through its blocks one after another (``looped``, in `rounds`); ``kind`` as in `Fit`. In
    a loop or by token the states of "dstate" loads are carried where there are any, else those of
    "state" loads.
    """
    return _Pressure(program, split, kind, looped, spare).fit()


def pressure(
    program: Program,
    split: str,
    kind: str,
    looped: bool,
    spare: bool,
    tokens: int,
    channels: int,
) -> float:
    """Entries that are in registers at once, at the fullest point, with so many along an axis of
    time, or of a block, and along others; else `fit`'s arguments."""
    return _Pressure(program, split, kind, looped, spare).most(tokens, channels)


def matrix_product(program: Program, inst: Inst) -> bool:
    """Whether an instruction is a product of matrices: both operands have axes of their own."""
    if inst.op != "contract":
        return False
    a, b = ({*program.body[i].axes} for i in inst.ins)
    return bool(a - b and b - a)


class _Pressure:
    def __init__(self, program: Program, split: str, kind: str, looped: bool, spare: bool) -> None:
        self.program = program
        self.rounds = rounds(program, split, spare) if looped else ()
        self.split = split
        self.kind = kind
        self.body = program.body
        self.end = len(program.body)
        self.numbers = numbers(program)
        self.in_parts = side_by_side(program) | taken_apart(program)

    def fit(self) -> Fit:
        """All of it."""
        used = dict.fromkeys(a for inst in self.body for a in inst.axes if a not in TIME)
        sizes = {str(size): polynomial(size) for size in (self.program.sizes[a] for a in used)}
        points = [self._alive(now) for now in range(self.end)]
        return Fit(
            kind=self.kind,
            split=str(self.program.sizes[self.split]) if self.split else "",
            sizes=sizes,
            registers=fullest((registers for registers, _ in points), sizes),
            shared=fullest((shared for _, shared in points), sizes),
            loads=counted((1, self._tile(n)) for n in range(self.end) if self._moved(n)),
            stores=counted((1, self._tile(n)) for n in self._stored),
            products=counted(self._work(True)),
            maps=counted(self._work(False)),
            looped=bool(self.rounds),
        )

    def most(self, tokens: int, channels: int) -> float:
        """Entries that are in registers at the fullest point, of operands those that other values
        need, too."""

        def entries(tile: Tile) -> int:
            return prod(tokens if a in ("t", "/") else channels for a in tile if a != "~")

        own = [*map(entries, self._tiles)]
        only = {n for n in self._operands if all(map(self._multiplies, self._users[n]))}
        return max(
            (
                sum(own[n] for n in self._held[now] - only)
                + sum(count * entries(tile) for count, tile in self._temporary(now))
                for now in range(self.end)
            ),
            default=0.0,
        )

    def _named(self, axes: Axes) -> Tile:
        """Axes as a `Tile` has them."""
        named = {self.split: "/", **dict.fromkeys(TIME, "t")}
        return tuple(sorted(named.get(a) or str(self.program.sizes[a]) for a in axes))

    def _tile(self, n: int) -> Tile:
        return self._tiles[n]

    @cached_property
    def _tiles(self) -> list[Tile]:
        return [self._named(inst.axes) for inst in self.body]

    # ---- where values are ------------------------------------------------------------------------

    @cached_property
    def _carried(self) -> dict[str, int]:
        """The states that go from one chunk or token to the next in registers: their loads."""
        if self.kind == "chunk":
            return {}
        return self.program.loads("dstate") or self.program.loads("state")

    @cached_property
    def _stored(self) -> list[int]:
        """Outputs that are written for every chunk."""
        carried = {f"state:{name}" for name in self._carried}
        return [n for name, n in self.program.outs.items() if name not in carried]

    def _moved(self, n: int) -> bool:
        """Whether a value is read from memory for every chunk."""
        return self.body[n].op == "load" and n not in {*self._carried.values(), *self._fixed}

    @cached_property
    def _fixed(self) -> frozenset[int]:
        """Values that are computed before the loop over chunks or tokens."""
        found: set[int] = set()
        for n, inst in enumerate(self.body):
            own = inst.op != "load" or inst.value[0] in ("param", "buffer")
            if self.kind != "chunk" and own and found.issuperset(inst.ins):
                found.add(n)
        return frozenset(found)

    @cached_property
    def _place(self) -> list[int]:
        """The value in whose registers each value is."""
        place: list[int] = []
        for n, inst in enumerate(self.body):
            same = inst.op in SAME or (inst.op == "pick" and inst.value == 0)
            place.append(place[inst.ins[0]] if same else n)
        return place

    @cached_property
    def _users(self) -> list[list[int]]:
        """What uses the registers of each value, other than to be the same value."""
        users: list[list[int]] = [[] for _ in self.body]
        for n, inst in enumerate(self.body):
            for i in inst.ins:
                if self._place[n] != self._place[i]:
                    users[self._place[i]].append(n)
        return users

    @cached_property
    def _operands(self) -> frozenset[int]:
        """Loads that products of matrices use."""
        return frozenset(
            n
            for n, users in enumerate(self._users)
            if self._moved(n) and any(map(self._multiplies, users))
        )

    def _multiplies(self, n: int) -> bool:
        return n in self._products

    @cached_property
    def _products(self) -> frozenset[int]:
        """Products of matrices."""
        return frozenset(n for n, i in enumerate(self.body) if matrix_product(self.program, i))

    # ---- what lives at once ----------------------------------------------------------------------

    @cached_property
    def _lives(self) -> dict[int, tuple[int, int]]:
        """From where to where each value is held; that of the last use is included only where the
        result cannot take its place."""
        outs = self.program.outs
        kept = {self._place[outs[f"state:{s}"]] for s in self._carried if f"state:{s}" in outs}
        stored = {self._place[n]: n for n in self._stored}
        found = {}
        for n, users in enumerate(self._users):
            if self._place[n] != n or n in self.numbers or n in self.in_parts:
                continue
            last = max([*users, stored.get(n, n)])
            if last != n and self._replaces(last):
                last -= 1
            first = 0 if n in self._carried.values() else n
            found[n] = (first, self.end if n in kept or n in self._fixed else last)
        for part in self.rounds:
            self._through(part, found)
        return found

    @cached_property
    def _held(self) -> list[set[int]]:
        """What is held at each point."""
        return self._spread(self._lives)

    @cached_property
    def _read(self) -> list[set[int]]:
        """The operands that are in registers at each point, for other uses than products."""
        found = {}
        for n in self._operands & self._lives.keys():
            users = [m for m in self._users[n] if not self._multiplies(m)]
            if users:
                last = max(users)
                found[n] = (n, last - self._replaces(last))
        return self._spread(found)

    def _spread(self, lives: Mapping[int, tuple[int, int]]) -> list[set[int]]:
        """The values that live at each point."""
        found: list[set[int]] = [set() for _ in self.body]
        for n, (first, last) in lives.items():
            for now in range(first, min(last + 1, self.end)):
                found[now].add(n)
        return found

    def _through(self, part: Round, lives: dict[int, tuple[int, int]]) -> None:
        """What a loop over blocks adds up is held from its begin, what it needs to its end."""
        if not part.inside:
            return
        begin, end = min(part.inside), max(part.inside)
        needed = {self._place[i] for n in part.inside for i in self.body[n].ins}
        for n in needed - {*part.inside} | part.joined:
            if n in lives:
                first, last = lives[n]
                lives[n] = (min(first, begin), max(last, end))

    def _replaces(self, n: int) -> bool:
        """Whether the result of ``n`` may take the place of an operand."""
        inst = self.body[n]
        return inst.op in OPS or inst.op == "mask" or self._multiplies(n)

    def _alive(self, now: int) -> tuple[Tiles, Tiles]:
        """What is in registers, and in shared memory, while ``now`` is computed."""
        registers = self._held[now] - self._operands | self._read[now]
        shared = [*(self._held[now] & self._operands)]
        inst = self.body[now]
        if self._multiplies(now):
            shared += {*inst.ins} - {*shared}
        temporary = list(self._temporary(now))
        return (
            counted([*((1.0, self._laid[n]) for n in registers), *temporary]),
            counted((1.0, self._tile(n)) for n in shared),
        )

    @cached_property
    def _laid(self) -> list[Tile]:
        """The tile of each value, marked where no product of matrices says who has what."""
        return [
            tile if not self._products.isdisjoint((n, *self._users[n])) else (*tile, "~")
            for n, tile in enumerate(self._tiles)
        ]

    def _temporary(self, n: int) -> Iterator[tuple[float, Tile]]:
        inst = self.body[n]
        if not self.in_parts.isdisjoint((n, *inst.ins)):
            return
        large, pairs = TEMPORARIES.get(inst.op, (0, 0))
        if inst.op in MEETING and self.body[inst.ins[-1]].value[1]:
            large += 1
        yield large, (*self._largest(inst), "~")
        yield pairs, ("t", "t")

    def _in_blocks(self, inst: Inst) -> bool:
        """Whether it is done for every block that a program goes through."""
        return bool(self.rounds) and any(self.split in self.body[i].axes for i in inst.ins)

    def _largest(self, inst: Inst) -> Tile:
        """The largest of operands and result: of those alike one with channels, or the result."""
        every = [inst.axes, *(self.body[i].axes for i in inst.ins)]
        return self._named(max(every, key=lambda axes: (len(axes), len({*axes} - {*TIME}))))

    # ---- what is done ----------------------------------------------------------------------------

    def _work(self, products: bool) -> Iterator[tuple[float, Tile]]:
        """Operations in products of matrices, or in all else, for a chunk."""
        for n, inst in enumerate(self.body):
            row = TILE_OPS.get(inst.op)
            if inst.op in WORK:
                wide, pairs = WORK[inst.op]
                if not products:
                    yield wide, self._largest(inst)
                    yield pairs, ("#", "t", "t") if self._in_blocks(inst) else ("t", "t")
                continue
            free = n in self.numbers or n in self._fixed or (row is not None and row.view)
            if free or self._multiplies(n) != products:
                continue
            axes = dict.fromkeys(a for i in (*inst.ins, n) for a in self.body[i].axes)
            yield float(OPS[inst.op].flops if row is None else row.flops), self._named(tuple(axes))


def polynomial(size: Size) -> Polynomial:
    """A size as plain numbers and names."""
    return tuple(
        (float(c), tuple(name for name, power in monomial for _ in range(power)))
        for monomial, c in size.terms
    )


def counted(given: Iterable[tuple[float, Tile]]) -> Tiles:
    """Tiles, each once, with how many there are of it."""
    total: Counter[Tile] = Counter()
    for count, tile in given:
        total[tile] += count  # type: ignore[assignment]
    return tuple((float(count), tile) for tile, count in sorted(total.items()) if count)


def fullest(points: Iterable[Tiles], sizes: Mapping[str, Polynomial]) -> tuple[Tiles, ...]:
    """Those of the sets of tiles that are the largest for some lengths of their axes, of which
    ``sizes`` says how they follow from dims."""
    every = {tiles: {tile: count for count, tile in tiles} for tiles in points if tiles}
    sets = [
        tiles
        for tiles, own in every.items()
        if not any(own != other and covers(other, own) for other in every.values())
    ]
    names = sorted({a for tiles in sets for _, tile in tiles for a in tile} - {"~"})
    known = {name: sizes[name] for name in names if name not in GRID}
    dims = {dim for terms in known.values() for _, term in terms for dim in term}
    free = sorted(dims | {*names} - known.keys())
    found: dict[Tiles, None] = {}
    for entries in product(*(GRID.get(name, DIM) for name in free)) if sets else ():
        at = dict(zip(free, entries))
        axes = at | {name: max(1, size(terms, at)) for name, terms in known.items()}
        found[max(sets, key=Lengths(axes).entries)] = None
    return tuple(found)


def covers(more: Mapping[Tile, float], less: Mapping[Tile, float]) -> bool:
    """Whether one set of tiles has at least all of another."""
    return all(more.get(tile, 0) >= count for tile, count in less.items())
