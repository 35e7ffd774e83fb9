"""Values of one kernel's program in, the text of what a block of threads does with them together
out: entries of tiles, loops whose entries threads share, calls of device functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lacc.backends.c_ops import JOINED, Ops
from lacc.backends.c_storage import Storage
from lacc.backends.c_text import plus, times, words
from lacc.backends.c_values import RESULTS, Index, Values, View, identity, index_name
from lacc.backends.cuda_barriers import BARRIER
from lacc.backends.text import PRODUCT, Text
from lacc.tile.program import Axes, Inst, Program

PULLS = words("prefix_pull suffix_pull whole_pull matrix_pull")
"""Ops that may add their result to what lies there, as those of `MEETING` may."""

MEETING = words("meet_pull decayed_pull")

COUNTED = re.compile(r"\b(i_\w+|t|s)\b")


@dataclass(frozen=True, slots=True)
class Split:
    """The axis of which a block has a part: how many entries, and how many at most."""

    axis: str = ""
    here: str = ""
    most: str = ""


class CudaValues(Values):
    """Entries of values as text, in a loop over those of tiles with axes ``over``, numbered i."""

    tilewise = MappingProxyType[str, str]({})

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

    def __init__(
        self,
        values: CudaValues,
        storage: Storage,
        grown: Collection[int],
        work: Callable[[int], str],
    ) -> None:
        """``work`` names the tile that a value's function works in."""
        super().__init__(values, storage, grown)
        self.work = work
        self.now = 0
        """The value whose function is called."""
        self.onto: Collection[int] = ()
        """Values that are added to what lies in their tiles."""

    @property
    def room(self) -> str:
        return self.work(self.now)

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
        onto = self._onto_which(n)
        return [*found[:-1], f"{found[-1].removesuffix(');')}, {onto});"] if onto else found

    def _onto_which(self, n: int) -> int:
        """The argument that says which results of a function are added to what lies there."""
        if self.v.body[n].op in RESULTS:
            return sum(1 << k for k in range(3) if self.picks.get((n, k)) in self.onto)
        return int(n in self.onto)

    def given(self, n: int) -> str:
        """How a loop gives an entry of a value."""
        return "+=" if n in self.onto else "="

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
