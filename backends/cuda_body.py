"""The program of one kernel in, the steps of a block of threads out: loops whose entries threads
share, calls of device functions that they make together, and what each touches in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from lacc.backends.c_body import Body, Group, Statement
from lacc.backends.c_ready import multiplies
from lacc.backends.c_text import words
from lacc.backends.c_values import ALIASES, MEMORY, RESULTS, View, identity
from lacc.backends.cuda_barriers import Step, Touch
from lacc.backends.cuda_library import staging
from lacc.backends.cuda_ops import MEETING, PULLS, CudaOps, CudaValues, Split
from lacc.backends.cuda_order import Piece
from lacc.ir.ops import OPS
from lacc.runtime.cuda_arena import evaluated
from lacc.tile.program import Axes, Program

OPERANDS = "operands"
"""The shared memory that products stage their operands in."""

READING = words("prefix suffix whole prefix_pull suffix_pull whole_pull")
"""What does without pairs of tokens; others of decays may add these to them."""

CHEAP = words("load prefix suffix contract")
"""Ops whose results are made again rather than held, as what is computed entry by entry is."""

CALLED = re.compile(r"\b(\w+)(?:<\d+>)?\(")


class CudaBody(Body):
    """The statements of a program as steps; ``split`` is the axis that blocks share."""

    v: CudaValues
    ops: CudaOps

    def __init__(
        self,
        program: Program,
        arrays: Mapping[int, str],
        pointers: Mapping[int, str],
        into: Mapping[int, str],
        load: Callable[[int, str], list[str]],
        taken: set[str],
        split: Split,
        lying: Mapping[int, View],
        source: Sequence[str],
        apart: bool = False,
    ) -> None:
        """``lying`` are loads that are read where a caller has them, ``source`` the lines of the
        spec. ``apart``: a loop computes only what has to do with one another."""
        self.apart = apart
        self.split, self.lying, self.source = split, lying, source
        self.line = 0
        self.whole: set[int] = set()
        """Sums that are nothing but their terms' tile."""
        self.sums: set[str] = set()
        """Tiles that several statements add to."""
        there = {n: view.base for n, view in lying.items()}
        self.rooms: dict[str, str] = {}
        """The tiles that statements work in alone, and their sizes."""
        self.works: dict[int, str] = {}
        """Which one a function works in, by what it computes."""
        self.inner: dict[int, str] = {}
        """The variables of entries in loops."""
        super().__init__(program, arrays, {**pointers, **there}, into, load, taken)

    def _values(self, arrays: Mapping[int, str]) -> CudaValues:
        return CudaValues(self.program, arrays, self.split, self.lying)

    def _alike(self, n: int, group: Group) -> bool:
        if not super()._alike(n, group) or not self.v.within.isdisjoint((n, *group.values)):
            return False
        near = set[int]().union(*(self._beside(k) for k in group.values))
        return not self.apart or not near.isdisjoint(self._beside(n) - {*group.values})

    def _beside(self, n: int) -> set[int]:
        """The values that a value is computed from entry by entry."""
        axes = set(self.body[n].axes)
        return {k for k, _ in self._reads(n) if set(self.body[k].axes) == axes}

    def _keeps(self, n: int) -> bool:
        return not self.body[n].value[0]

    def _operations(self) -> CudaOps:
        """Called when all values have names: terms of a sum get that of one of them."""
        for n, inst in enumerate(self.body):
            users = self.storage.users[n]
            inner = len(users) == 1 and self.body[users[0]].op == "add"
            if inst.op != "add" or (n not in self.v.stored and inner):
                continue
            self._add_up(n, [*self._terms(n)])
        return CudaOps(self.v, self.storage, frozenset(self.home), self.work)

    def _add_up(self, n: int, terms: list[int]) -> None:
        """Has terms of a sum lie in one tile where some of them come from functions that add."""
        inst = self.body[n]
        able = [i for i in terms if self._adds(i, inst.axes)]
        if not able:
            return
        if self.apart:
            able += [i for i in terms if i not in self.v.stored and self._is_loop(i, inst.axes)]
        whole = self.apart and n in self.v.stored and n not in {*self.pointers, *self.into}
        if whole and len(able) == len(terms):
            self.v.names[able[0]] = self.v.names[n]
            self.whole.add(n)
        first, *others = able
        for i in others:
            self.v.names[i] = self.v.names[first]
        self.v.stored.update(others)
        self.v.within.update(others)
        if others:
            self.sums.add(self.v.names[first])

    def _is_loop(self, n: int, axes: Axes) -> bool:
        """Whether a term is computed entry by entry, from tiles of its size."""
        inst = self.body[n]
        entrywise = inst.op in OPS and OPS[inst.op].entrywise and inst.op not in ALIASES
        alone = len(self.storage.users[n]) == 1
        return alone and entrywise and inst.axes == axes and bool(self._beside(n))

    def _terms(self, n: int) -> Iterator[int]:
        """The terms of a sum."""
        for i in self.body[n].ins:
            if self.body[i].op == "add" and i not in self.v.stored:
                yield from self._terms(i)
            else:
                yield i

    def _adds(self, n: int, axes: Axes) -> bool:
        """Whether the term ``n`` of a sum over ``axes`` can be added where another one lies."""
        inst, users = self.body[n], self.storage.users[n]
        pulled = inst.op == "pick" and self.body[inst.ins[0]].op in MEETING
        square = pulled and inst.value == 0 and self.body[inst.ins[0]].op == "decayed_pull"
        alone = len(users) == 1 and n not in self.storage.outs and n not in self.pointers
        return (
            alone
            and bool(axes)
            and inst.axes == axes
            and (pulled or inst.op in PULLS)
            and not square
        )

    def _named(self, n: int) -> str:
        """Without axes a variable of each thread, a tile of one entry where threads share the work
        on it."""
        inst = self.body[n]
        together = not inst.axes and inst.op in MEMORY and inst.op != "load"
        return f"{self.variables[n]}[0]" if together else self.variables[n]

    def _has_local(self, n: int) -> bool:
        return super()._has_local(n) or bool(self.tile(n))

    def _written(self, n: int, text: str) -> str:
        line = f"{self.v.entry(n)} {self.ops.given(n)} {text};"
        alone = self.tile(n) and not self.body[n].axes
        return f"if (threadIdx.x == 0) {line}" if alone else line

    def _local(self, n: int) -> str:
        if n not in self.inner:
            self.inner[n] = super()._local(n)
        return self.inner[n]

    def work(self, n: int) -> str:
        """The tile that the function of a value works in."""
        if n not in self.works:
            self.works[n] = self.variables.another("work")
        return self.works[n]

    def _call(self, n: int) -> Statement:
        """As it is for a thread, with a tile of its own to work in."""
        before, self.ops.now = len(self.ops.scratch), n
        found = super()._call(n)
        if rooms := self.ops.scratch[before:]:
            self.rooms[self.work(n)] = _largest(rooms)
        return found

    def lines(self, statement: Statement) -> list[str]:
        """The lines of a statement, by the names that values have now."""
        first, *_ = statement.values
        inst = self.body[first]
        if inst.op in MEMORY or inst.op in RESULTS:
            return self._call(first).lines
        return self._loop(Group(inst.axes, [*statement.values])).lines

    @contextmanager
    def named(self, names: Mapping[str, str], onto: Collection[int]) -> Iterator[None]:
        """While lines are written, tiles have other names, and values ``onto`` are added to what
        lies in theirs."""
        kept = self.v.names
        self.v.names = dict(kept)
        for n, name in kept.items():
            if tile := self.tile(n):
                self.v.names[n] = name.replace(tile, names.get(tile, tile), 1)
        self.ops.onto = onto
        yield
        self.v.names, self.ops.onto = kept, ()

    def _lies_there(self, n: int) -> bool:
        return n in self.whole

    def _loop(self, group: Group) -> Statement:
        self.v.over = group.axes
        found = super()._loop(group)
        self.v.over = ()
        return found

    # ---- what statements touch -------------------------------------------------------------------

    def tile(self, n: int) -> str:
        """The tile that a stored value lies in, "" for a variable of each thread, or what is read
        where a caller has it."""
        name = self.v.names[n]
        if n in self.lying:
            return ""
        if self.body[n].op == "levels":
            return name
        return name.removesuffix("[0]") if self.body[n].axes or name.endswith("[0]") else ""

    def variable(self, n: int) -> str:
        """The declaration of a value that each thread has for itself, without its type."""
        return self.v.names[n]

    def steps(self, statements: Iterable[Statement]) -> Iterator[Step]:
        """Statements as steps."""
        for statement in statements:
            yield Step([*self.said(statement), *statement.lines], self.touches(statement))

    def said(self, statement: Statement) -> Iterator[str]:
        """The line of the spec where a new one begins."""
        for inst in (self.body[n] for n in statement.makes):
            if inst.op == "load" or not 0 < inst.line <= len(self.source):
                continue
            said = self.source[inst.line - 1].split("##")[0].strip()
            if inst.line != self.line and not said.startswith("const "):
                self.line = inst.line
                yield f"// {said}"
            return

    def touches(self, statement: Statement) -> tuple[Touch, ...]:
        """What a statement reads and writes."""
        return tuple(self._touches(statement))

    def _touches(self, statement: Statement) -> Iterator[Touch]:
        called = {word for line in statement.lines for word in CALLED.findall(line)}
        for n in statement.reads:
            if tile := self.tile(n):
                own = n in statement.own and bool(self.body[n].axes)
                yield Touch(tile, False, own)
                if self.body[n].op == "levels" and not called <= READING:
                    yield Touch(f"pairs of {tile}", True)
        for n in statement.makes:
            if tile := self.tile(n):
                own = bool(self.body[n].axes) and n in statement.own
                yield Touch(tile, True, own)
        if called & staging():
            yield Touch(OPERANDS, True)
        yield from (Touch(self.works[n], True) for n in statement.values if n in self.works)

    def piece(self, statement: Statement, sizes: Mapping[str, int]) -> Piece:
        """What a statement makes, reads and has to itself, at some sizes."""
        rooms = [self.rooms[self.works[n]] for n in statement.values if n in self.works]
        room = sum(evaluated(size, sizes) for size in rooms)
        makes = self.places(statement.makes)
        ops = {self.body[n].op for n in statement.makes}
        product = any(multiplies(self.program, self.body[n]) for n in statement.makes)
        cheap = bool(ops & CHEAP) or not ops & (MEMORY | RESULTS)
        alone = len(makes) == 1 and not makes & self.sums and all(map(self.tile, statement.makes))
        return Piece(makes, self.places(statement.reads), room, cheap and alone, product)

    def places(self, values: Iterable[int]) -> frozenset[str]:
        """The tiles of values, and the variables of those that each thread has for itself."""
        return frozenset(self.tile(n) or self.v.names[n] for n in values if n not in self.lying)

    def read_after(self, statement: Statement, n: int) -> set[int]:
        """What a loop reads for the values that it computes behind ``n``."""
        behind = statement.values[statement.values.index(n) + 1 :]
        return {k for m in behind for k, _ in self._reads(m)}

    def moved(self, tiles: Mapping[str, str]) -> None:
        """Has the values of some tiles lie in others."""
        for old, new in tiles.items():
            self.rooms.pop(old, None)
            for n, name in self.v.names.items():
                if name == old:
                    self.v.names[n] = new

    def read(self, n: int, own: bool = False) -> Iterator[Touch]:
        """What reading a value whole, from where it lies, touches; ``own`` where each thread reads
        its own entries."""
        for k in self.behind(n):
            if tile := self.tile(k):
                yield Touch(tile, False, own and k == n and bool(self.body[n].axes))

    def behind(self, n: int) -> list[int]:
        """The stored values whose entries are those of a value."""
        leaves = self.v.leaves(n, identity(self.body[n].axes), False)
        return list(dict.fromkeys(k for k, _ in leaves))

    def size(self, n: int) -> str:
        """The floats of the tile of a value."""
        return self._size(n) or "1"


def _largest(sizes: list[str]) -> str:
    """The largest of some sizes."""
    first, *others = sizes
    for other in others:
        first = f"largest({first}, {other})"
    return first
