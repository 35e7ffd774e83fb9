"""The program of one kernel in, the C statements of a chunk out: loops that compute neighbours
together, and a workspace whose tiles take the place of those that are done with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lacc.backends.base import Variables
from lacc.backends.c_ops import Ops
from lacc.backends.c_storage import FOR_A_LENGTH, FOR_EACH, ONCE, Storage
from lacc.backends.c_text import plain_name
from lacc.backends.c_values import KEPT, MEMORY, RESULTS, Index, Values, identity
from lacc.tile.program import Axes, Program

Piece = tuple[str, list[str]]
"""A piece of the workspace: its size in reals, and the tiles that lie in it one after another."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Lines of C that compute ``makes`` from stored values ``reads``; those of ``own`` entry by
    entry, in the order in which they lie. ``values`` is all that a call, or a loop, computes, with
    what nothing else reads."""

    lines: list[str]
    values: tuple[int, ...]
    makes: tuple[int, ...]
    reads: frozenset[int]
    own: frozenset[int] = frozenset()


@dataclass(slots=True)
class Group:
    """Values over the same axes that one loop computes."""

    axes: Axes
    values: list[int] = field(default_factory=list)


class Body:
    """The statements of ``program``: those ``before`` the first chunk, those run ``once`` for all
    chunks of a length, those for ``each`` chunk; and the ``pieces`` that these take."""

    def __init__(
        self,
        program: Program,
        arrays: Mapping[int, str],
        pointers: Mapping[int, str],
        into: Mapping[int, str],
        load: Callable[[int, str], list[str]],
        taken: set[str],
        turns: Sequence[int] = (),
        by_head: bool = False,
        heirs: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """``arrays`` names the array of each load, ``pointers`` the variables of values that lie
        outside the workspace, ``into`` where values go that have their place there. ``load(n,
        name)`` are the lines that fill the tile ``name``. ``turns``: values from which on nothing
        is computed together with what was before. ``by_head``: plain variables that are not
        computed for each chunk are fields of ``kept``, if they differ from head to head. ``heirs``:
        where the next state goes, for each load of one that changes."""
        self.program, self.body, self.load = program, program.body, load
        self.pointers, self.cuts = pointers, turns
        self.turns: list[int] = []
        """The statements for each chunk that begin behind these."""
        self.v = self._values(arrays)
        self.storage = Storage(self.v)
        self.variables = Variables(_ascii(program), taken)
        stored = sorted(self.v.stored)
        self.into = {n: name for n, name in into.items() if n in self.v.stored}
        self.home: dict[int, int] = {}
        """Where values lie to which a product is added in place: as which value."""
        for n in stored:
            self.v.names[n] = pointers.get(n) or self.into.get(n) or self._named(n)
            if by_head and self._is_plain(n) and self._of_a_head(n):
                self.v.names[n] = KEPT + self.v.names[n]
        for n in reversed(stored):
            added = self.body[n].op == "accumulate"
            if added and self.storage.grows(n, {*pointers, *self.into}):
                base = self.body[n].ins[0]
                self.home[base] = self.home.get(n, n)
                self.v.names[base] = self.v.names[n]
        self.ops = self._operations()
        self.before, self.once, self.each = (
            self._statements(when) for when in (ONCE, FOR_A_LENGTH, FOR_EACH)
        )
        self.heirs = heirs
        self.either = self._either() if self.turns else (0, 0, 0)
        """Statements from the first to the second, which change the states, and from there to the
        third, which are all that read them from there on, may change places: then states change
        where they are. Of nothing, where that is not so."""
        self.pieces = self._pieces()

    def _values(self, arrays: Mapping[int, str]) -> Values:
        return Values(self.program, arrays)

    def _operations(self) -> Ops:
        return Ops(self.v, self.storage, frozenset(self.home))

    def _named(self, n: int) -> str:
        """The variable of a stored value."""
        return self.variables[n]

    # ---- statements ------------------------------------------------------------------------------

    def _statements(self, when: int) -> list[Statement]:
        """Statements in order. A value that a loop can compute waits for others of its axes, until
        something reads it otherwise than entry by entry."""
        found: list[Statement] = []
        waiting: list[Group] = []

        def settle(reads: Iterable[int]) -> None:
            wanted = set(reads)
            for group in list(waiting):
                if group in waiting and not wanted.isdisjoint(group.values):
                    waiting.remove(group)
                    settle(k for n in group.values for k, _ in self._reads(n))
                    found.append(self._loop(group))

        def turn(n: int) -> None:
            for _ in range(self.cuts.count(n)):
                settle([k for group in waiting for k in group.values])
                self.turns.append(len(found))

        for n, inst in enumerate(self.body):
            if when == FOR_EACH:
                turn(n)
            mine = n in self.v.stored or inst.op in RESULTS
            if not mine or self.storage.when[n] != when or n in self.pointers or inst.op == "pick":
                continue
            reads = self._reads(n)
            if self._lies_there(n):
                settle(k for k, _ in reads)
                continue
            if inst.op in MEMORY or inst.op in RESULTS or self.v.tile_function(n):
                settle(k for k, _ in reads)
                found.append(self._call(n))
                continue
            home = next((g for g in waiting if self._alike(n, g)), None)
            inside = home.values if home is not None else []
            settle(k for k, at in reads if k not in inside or at != identity(self.body[k].axes))
            if home is None or home not in waiting:
                home = Group(inst.axes)
                waiting.append(home)
            home.values.append(n)
        if when == FOR_EACH:
            turn(len(self.body))
        settle([n for group in waiting for n in group.values])
        return found

    def _lies_there(self, n: int) -> bool:
        """Whether a value needs no statement, as what it reads makes it."""
        return False

    def _alike(self, n: int, group: Group) -> bool:
        """Whether a group has the axes of a value, and is computed as often."""
        of_a_head = self._of_a_head(group.values[0]) == self._of_a_head(n)
        return of_a_head and set(group.axes) == set(self.body[n].axes)

    def _reads(self, n: int) -> list[tuple[int, Index]]:
        """The stored values that a value is computed from, and which entries; none where it takes
        them whole."""
        inst = self.body[n]
        if inst.op not in MEMORY and inst.op not in RESULTS:
            return list(self.v.leaves(n, identity(inst.axes)))
        found: list[tuple[int, Index]] = []
        for i in inst.ins:
            if i in self.v.stored:
                found.append((i, {}))
            elif self.body[i].op not in RESULTS:
                found += [(k, {}) for k, _ in self.v.leaves(i, identity(self.body[i].axes), False)]
            if self.body[i].op == "levels" and self._keeps(i):
                found += [(k, {}) for k, _ in self._reads(i)]
        return found

    def _keeps(self, n: int) -> bool:
        """Whether decays are read where they came from, not from their own memory."""
        return True

    def _call(self, n: int) -> Statement:
        inst = self.body[n]
        makes: tuple[int, ...] = (n,)
        if inst.op in RESULTS:
            picks = (u for u in self.storage.users[n] if self.body[u].op == "pick")
            makes = tuple(dict.fromkeys(picks))
        lines = self.load(n, self.v.address(n)) if inst.op == "load" else self.ops.lines(n)
        return Statement(lines, (n,), makes, frozenset(k for k, _ in self._reads(n)))

    def _loop(self, group: Group) -> Statement:
        """One loop over all values of a group; those that nothing else reads have no memory."""
        v, inside = self.v, set(group.values)
        reads = {n: {k for k, _ in self._reads(n)} for n in group.values}
        within = set[int]().union(*reads.values()) & inside
        lines: list[str] = []
        written: list[int] = []
        for n in group.values:
            text = v.computed(n, identity(group.axes)).code
            if n in within and self._has_local(n):
                v.locals[n] = self._local(n)
                lines.append(f"const real {v.locals[n]} = {text};")
                text = v.locals[n]
            if not group.axes or n not in within or self.storage.read_outside(n, inside):
                lines.append(self._written(n, text))
                written.append(n)
        v.locals.clear()
        lines = self.ops.loop(lines, group.axes)
        others = set[int]().union(*reads.values()) - inside
        return Statement(
            lines, tuple(group.values), tuple(written), frozenset(others), self._own(group)
        )

    def _local(self, n: int) -> str:
        """The variable of each entry of a value in its loop."""
        return self.variables.another(f"{self.variables[n]}_")

    def _has_local(self, n: int) -> bool:
        """Whether a value of a loop that others of it read is a variable of each entry."""
        return bool(self.body[n].axes)

    def _written(self, n: int, text: str) -> str:
        """The line that stores an entry of a value."""
        return f"{self.v.entry(n)} = {text};"

    def _own(self, group: Group) -> frozenset[int]:
        """The values that a loop touches only at its own entry."""
        reads = [(k, at) for n in group.values for k, at in self._reads(n)]
        moved = {
            k for k, at in reads if self.body[k].axes != group.axes or at != identity(group.axes)
        }
        found = {n for n in group.values if self.body[n].axes == group.axes}
        return frozenset({*found, *(k for k, _ in reads)} - moved)

    # ---- states that change where they are -------------------------------------------------------

    def _either(self) -> tuple[int, int, int]:
        """As `either` says; what reads states goes before the others of its turn."""
        first, last = self.turns
        states = set(self.heirs)
        start = next((k for k in range(first, last) if self._written_by(self.each[k])), last)
        changes, behind = self.each[start:last], self.each[last:]
        reading: list[Statement] = []
        for s in reversed(behind):
            if s.reads & states or any(not r.reads.isdisjoint(s.makes) for r in reading):
                reading.insert(0, s)
        made = {n for s in changes for n in s.makes}
        given = {k for n in self.storage.outs if self._heir(n) is None for k in self._parts(n)}
        if not self._in_place(changes) or given & states or any(s.reads & made for s in reading):
            return (0, 0, 0)
        self.each[last:] = [*reading, *(s for s in behind if s not in reading)]
        return start, last, last + len(reading)

    def _heir(self, n: int) -> str | None:
        """The next state that a value is, or becomes."""
        return self.into.get(self.home.get(n, n))

    def _written_by(self, s: Statement) -> set[str]:
        return {heir for n in s.makes if (heir := self._heir(n)) is not None}

    def _parts(self, n: int) -> set[int]:
        """The stored values that a value is, or is made of."""
        return {k for k, _ in self.v.leaves(n, identity(self.body[n].axes), False)}

    def _in_place(self, changes: Iterable[Statement]) -> bool:
        """Whether no state is read once it is written, but by what writes it entry by entry."""
        written: set[str] = set()
        for s in changes:
            own = self._written_by(s)
            for n in s.reads & set(self.heirs):
                heir = self.heirs[n]
                if heir in written or (heir in own and not self._entry_by_entry(s, n)):
                    return False
            written |= own
        return True

    def _entry_by_entry(self, s: Statement, state: int) -> bool:
        """Whether a statement reads each entry of a state no later than it writes the next."""
        last = s.values[-1]
        if self.body[last].op == "accumulate":
            called = len(s.lines) == 1 and s.lines[0].startswith("gemm_onto(")
            return called and all(state not in self._parts(i) for i in self.body[last].ins[1:])
        at = next(k for k, n in enumerate(s.values) if self._heir(n) == self.heirs[state])
        later = (k for n in s.values[at + 1 :] for k, _ in self._reads(n))
        return {state, s.values[at]} <= s.own and state not in later

    # ---- the workspace ---------------------------------------------------------------------------

    def _pieces(self) -> list[Piece]:
        """Pieces for each chunk; a tile takes the place of one of its size that is done with."""
        found: list[Piece] = []
        free: dict[str, list[int]] = {}
        spot: dict[int, int] = {}
        last = self._last_reads()
        start, _, end = self.either
        done: dict[int, None] = {}
        for k, s in enumerate(self.each):
            for n in s.makes:
                size, base = self._size(n), self.body[n].ins[:1]
                if size is None:
                    continue
                if self.body[n].op == "accumulate" and base[0] in self.home:
                    spot[n] = spot.pop(base[0])
                elif free.get(size):
                    spot[n] = free[size].pop()
                    found[spot[n]][1].append(self._tile(n))
                else:
                    spot[n] = len(found)
                    found.append((size, [self._tile(n)]))
            done |= dict.fromkeys(n for n in (*s.reads, *s.makes) if n in spot and last[n] == k)
            if not start <= k < end - 1:  # in whatever order
                for n in done:
                    free.setdefault(found[spot[n]][0], []).append(spot.pop(n))
                done.clear()
        return found

    def kept(self, statements: Iterable[Statement]) -> list[Piece]:
        """Pieces of what ``statements`` make that are not run for each chunk."""
        made = (n for s in statements for n in s.makes)
        return [(size, [self._tile(n)]) for n in made if (size := self._size(n)) is not None]

    def _tile(self, n: int) -> str:
        return self.v.room(n) if self.body[n].op == "levels" else self.v.names[n]

    def _last_reads(self) -> dict[int, int]:
        """The last statement that makes or reads each value; what comes out is read behind all."""
        last = {n: k for k, s in enumerate(self.each) for n in (*s.makes, *s.reads)}
        for n in self.storage.outs:
            for k, _ in self.v.leaves(n, identity(self.body[n].axes), False):
                last[k] = len(self.each)
        return last

    def _size(self, n: int) -> str | None:
        """The reals that a stored value takes; None where it is a plain variable, or lies
        elsewhere."""
        inst = self.body[n]
        if inst.op == "levels":
            width = self.v.entries(tuple(a for a in inst.axes if a != "t"), True)
            return f"levels{'_beside' * (len(inst.ins) > 1)}_room(L, {width})"
        if n in self.pointers or self.home.get(n, n) in self.into or not inst.axes:
            return None
        return self.v.entries(inst.axes, True)

    def _is_plain(self, n: int) -> bool:
        """Whether a stored value is a plain variable: one without axes, or decays."""
        inst, elsewhere = self.body[n], n in self.pointers or self.home.get(n, n) in self.into
        return inst.op == "levels" or (not inst.axes and not elsewhere)

    def _of_a_head(self, n: int) -> bool:
        when = self.storage.when[n]
        return when == FOR_A_LENGTH or (when == ONCE and self.storage.sees[n])

    def is_common(self, s: Statement) -> bool:
        """Whether a statement is the same for all heads."""
        return not any(map(self._of_a_head, s.makes))

    def declarations(self, kept: bool = False) -> list[str]:
        """Plain variables, of each head or not."""
        found = []
        for n in (n for s in (*self.before, *self.once, *self.each) for n in s.makes):
            name = self.v.names[n]
            if self._is_plain(n) and name.startswith(KEPT) == kept:
                kind = "levels_t" if self.body[n].op == "levels" else "real"
                found.append(f"{kind} {name.removeprefix(KEPT)};")
        return list(dict.fromkeys(found))


def _ascii(program: Program) -> Program:
    """The program with hints of names that C takes."""
    body = tuple(
        replace(i, name=plain_name(i.name) if i.name.isidentifier() and i.name.isascii() else "")
        for i in program.body
    )
    return Program(body, program.outs, program.sizes)
