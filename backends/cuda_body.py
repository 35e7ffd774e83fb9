"""The program of one kernel in, the steps of a block of threads out: loops whose entries threads
share, calls of device functions that they make together, and what each touches in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lacc.backends.c_body import Body, Group, Statement
from lacc.backends.c_ops import JOINED, Ops
from lacc.backends.c_text import plus, times, words
from lacc.backends.c_values import (
    ALIASES,
    MEMORY,
    RESULTS,
    Index,
    Values,
    View,
    identity,
    index_name,
)
from lacc.backends.cuda_barriers import BARRIER, Step, Touch
from lacc.backends.cuda_library import staging
from lacc.backends.cuda_order import Piece
from lacc.backends.text import PRODUCT, Text
from lacc.ir.ops import OPS
from lacc.runtime.cuda_arena import evaluated
from lacc.tile.program import Axes, Inst, Program

OPERANDS = "operands"
"""The shared memory that products stage their operands in."""

READING = words("prefix suffix whole prefix_pull suffix_pull whole_pull")
"""What does without pairs of tokens; others of decays may add these to them."""

PULLS = words("prefix_pull suffix_pull whole_pull matrix_pull")
"""Ops that may add their result to what lies there, as those of `MEETING` may."""

CHEAP = words("load prefix suffix")
"""Ops whose results are made again rather than held, as what is computed entry by entry is."""

MEETING = words("meet_pull decayed_pull")

CALLED = re.compile(r"\b(\w+)(?:<\d+>)?\(")
COUNTED = re.compile(r"\b(i_\w+|t|s)\b")


@dataclass(frozen=True, slots=True)
class Split:
    """The axis of which a block has a part: how many entries, and how many at most."""

    axis: str = ""
    here: str = ""
    most: str = ""


class CudaValues(Values):
    """Entries of values as text, in a loop over those of tiles with axes ``over``, numbered i."""

    def __init__(
        self,
        program: Program,
        arrays: Mapping[int, str],
        split: Split,
        lying: Mapping[int, View],
    ) -> None:
        """``lying`` are loads that are read where a caller has them, and how these lie."""
        super().__init__(program, arrays)
        self.split, self.lying = split, lying
        self.over: Axes = ()
        self.within: set[int] = set()
        """Terms of sums that lie where another one does, to which they are added."""

    def given(self, n: int) -> str:
        return f"a.{self.arrays[n]}"

    def length(self, axis: str, most: bool = False) -> str:
        if axis == self.split.axis:
            return self.split.most if most else self.split.here
        return super().length(axis, most)

    def view(self, n: int) -> View | None:
        return self.lying[n] if n in self.lying else super().view(n)

    def computed(self, n: int, index: Index) -> Text:
        if self.body[n].op == "add":
            left = [i for i in self.body[n].ins if not self._is_within(i)]
            if len(left) == 1:
                return self.at(left[0], index)
        return super().computed(n, index)

    def _is_within(self, n: int) -> bool:
        """Whether all of a value is part of what another term of a sum gives."""
        inst = self.body[n]
        if n in self.stored:
            return n in self.within
        return inst.op == "add" and all(map(self._is_within, inst.ins))

    def entry(self, n: int, index: Index | None = None) -> str:
        axes = self.body[n].axes
        if n in self.lying:
            view, at = self.lying[n], index or identity(axes)
            offset = plus(view.offset, *(times(at[a], view.strides[a]) for a in axes))
            return f"there({self.given(n)}, {view.base}, {offset})"
        if axes and axes == self.over and (index is None or _plain(index, axes)):
            return f"{self.names[n]}[i]"
        return super().entry(n, index)


def _plain(index: Index, axes: Axes) -> bool:
    return all(index[a] == index_name(a) for a in axes)


class CudaOps(Ops):
    """Statements that all threads of a block run together."""

    v: CudaValues
    between = (BARRIER,)

    def loop(self, lines: list[str], axes: Iterable[str], simd: str = "") -> list[str]:
        """A loop whose entries the threads share, numbered i in the order of the axes."""
        axes = tuple(axes)
        if not axes:
            return lines
        head = f"for (int i = threadIdx.x; i < {self.v.entries(axes)}; i += THREADS) {{"
        return [head, *(f"    {x}" for x in (*self._indices(lines, axes, "i"), *lines)), "}"]

    def _indices(self, lines: Iterable[str], axes: Axes, number: str) -> list[str]:
        """The indices of axes that lines use, from the number of an entry."""
        used = {word for line in lines for word in COUNTED.findall(line)}
        found = []
        for k, axis in enumerate(axes):
            if index_name(axis) in used:
                behind = self.v.entries(axes[k + 1 :])
                at = number if behind == "1" else f"{number} / {_factor(behind)}"
                at = f"{at} % {_factor(self.v.length(axis))}" if k else at
                found.append(f"const int {index_name(axis)} = {at};")
        return found

    def _calls(self, lines: list[str], axes: Iterable[str]) -> list[str]:
        for axis in reversed(tuple(axes)):
            i = index_name(axis)
            head = f"for (int {i} = 0; {i} < {self.v.length(axis)}; {i}++) {{"
            if BARRIER not in lines:
                lines = [*lines, BARRIER]
            lines = [head, *(f"    {line}" for line in lines), "}"]
        return lines

    def _steps(self, strides: Iterable[str]) -> str:
        return f"{{{', '.join(strides)}}}"

    def _tiles(self, pointers: Iterable[str], constant: str = "const ") -> str:
        return f"{{{', '.join(pointers)}}}"

    def lines(self, n: int) -> list[str]:
        found, inst = super().lines(n), self.v.body[n]
        if inst.op in MEETING:
            width = self._width(self.v.body[inst.ins[-1]].axes, True)
            self.scratch[-1] = f"{self.scratch[-1].removesuffix(')')}, {width})"
        return found

    def _several(self, n: int, inst: Inst) -> list[str]:
        (line,) = super()._several(n, inst)
        return [line.replace("(", f"<{inst.value[0]}>(", 1)]

    def _started(self, n: int, inst: Inst, base: int) -> list[str]:
        return self._over(inst.axes, lambda: super(CudaOps, self)._started(n, inst, base))

    def _over(self, axes: Axes, written: Callable[[], list[str]]) -> list[str]:
        self.v.over = axes
        lines = written()
        self.v.over = ()
        return lines

    def _joined(self, n: int, inst: Inst, ins: tuple[int, ...]) -> list[str]:
        """Sums (or the largest) of products: a thread for each where those of neighbours lie side
        by side, else a warp."""
        start, join = JOINED.get(inst.op, JOINED["sum"])
        widest = max((self.v.body[i].axes for i in ins), key=len)
        axes = [x for i in ins for x in self.v.body[i].axes if x not in widest]
        every = tuple(dict.fromkeys([*axes, *widest]))
        over = tuple(x for x in every if x in inst.value)
        self.v.over = inst.axes
        out = self.v.entry(n)
        self.v.over = ()
        term = " * ".join(self.v.at(i, identity(every)).within(PRODUCT) for i in ins)
        joined = f"{join.format('sum', term)};"
        count = self.v.entries(over)
        if every[-1] in over:
            inside = [*self._indices([joined], over, "j"), joined]
            each = [
                f"real sum = {start};",
                f"for (int j = threadIdx.x % LANES; j < {count}; j += LANES) {{",
                *(f"    {line}" for line in inside),
                "}",
                "for (int mask = LANES / 2; mask > 0; mask /= 2)",
                f"    {join.format('sum', 'across(sum, mask)')};",
                f"if (threadIdx.x % LANES == 0) {out} = sum;",
            ]
            head = (
                f"for (int i = threadIdx.x / LANES; i < {self.v.entries(inst.axes)}; i += WARPS) {{"
            )
            each = [*self._indices(each, inst.axes, "i"), *each]
            return [head, *(f"    {line}" for line in each), "}"]
        inside = [*self._indices([joined], over, "j"), joined]
        each = [
            f"real sum = {start};",
            f"for (int j = 0; j < {count}; j++) {{",
            *(f"    {line}" for line in inside),
            "}",
            f"{out} = sum;",
        ]
        return self.loop(each, inst.axes)


def _factor(code: str) -> str:
    return code if re.fullmatch(r"\w+", code) else f"({code})"


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
        return CudaOps(self.v, self.storage, frozenset(self.home))

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
        line = super()._written(n, text)
        alone = self.tile(n) and not self.body[n].axes
        return f"if (threadIdx.x == 0) {line}" if alone else line

    def _call(self, n: int) -> Statement:
        """As it is for a thread, with a tile of its own to work in."""
        before = len(self.ops.scratch)
        found = super()._call(n)
        if rooms := self.ops.scratch[before:]:
            name = self.variables.another("work")
            self.rooms[name] = _largest(rooms)
            lines = [re.sub(r"\bscratch\b", name, line) for line in found.lines]
            found = replace(found, lines=lines)
        return found

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
            lines = [*self._said(statement), *statement.lines]
            yield Step(lines, tuple(self._touches(statement)))

    def _said(self, statement: Statement) -> Iterator[str]:
        """The line of the spec where a new one begins."""
        for inst in (self.body[n] for n in statement.makes):
            if inst.op == "load" or not 0 < inst.line <= len(self.source):
                continue
            said = self.source[inst.line - 1].split("##")[0].strip()
            if inst.line != self.line and not said.startswith("const "):
                self.line = inst.line
                yield f"// {said}"
            return

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
        said = {word for line in statement.lines for word in re.findall(r"\w+", line)}
        if called & staging():
            yield Touch(OPERANDS, True)
        yield from (Touch(name, True) for name in self.rooms if name in said)

    def piece(self, statement: Statement, sizes: Mapping[str, int]) -> Piece:
        """What a statement makes, reads and has to itself, at some sizes."""
        said = {word for line in statement.lines for word in re.findall(r"\w+", line)}
        room = sum(evaluated(size, sizes) for name, size in self.rooms.items() if name in said)
        makes = self.places(statement.makes)
        ops = {self.body[n].op for n in statement.makes}
        cheap = bool(ops & CHEAP) or not ops & (MEMORY | RESULTS)
        alone = len(makes) == 1 and not makes & self.sums and all(map(self.tile, statement.makes))
        return Piece(makes, self.places(statement.reads), room, cheap and alone)

    def places(self, values: Iterable[int]) -> frozenset[str]:
        """The tiles of values, and the variables of those that each thread has for itself."""
        return frozenset(self.tile(n) or self.v.names[n] for n in values if n not in self.lying)

    def added(self, step: Step, begun: set[str]) -> None:
        """Has the results of a step added where these tiles are ``begun``."""
        makes = [t.place for t in step.touches if t.writes and t.place in self.sums]
        for tile in (x for x in makes if x in begun):
            for k, line in enumerate(step.lines):
                step.lines[k] = line.replace(f" {tile}[i] = ", f" {tile}[i] += ")
        head, _, given = step.lines[-1].partition("(")
        onto = sum(1 << k for k, x in enumerate(given.split(", ")[:3]) if x in makes and x in begun)
        begun.update(makes)
        if onto:
            several = onto if head in MEETING else 1
            step.lines[-1] = f"{step.lines[-1].removesuffix(');')}, {several});"

    def renamed(self, old: str, new: str) -> None:
        """Has the values of a tile lie in another one."""
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
