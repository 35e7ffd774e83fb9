"""A stored value in, the C statements that compute it out: calls of device functions, and loops for
products and sums that are no products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from lacc.backends.c_ready import triangular
from lacc.backends.c_storage import Storage
from lacc.backends.c_text import plus, times
from lacc.backends.c_values import RESULTS, Values, View, identity, index_name
from lacc.backends.text import PRODUCT
from lacc.tile.program import Axes, Inst

JOINED = {
    "sum": ("R(0)", "{0} += {1}"),
    "contract": ("R(0)", "{0} += {1}"),
    "largest": ("R(-INFINITY)", "{0} = f_max({0}, {1})"),
    "smallest": ("R(INFINITY)", "{0} = f_min({0}, {1})"),
}
"""What goes over axes: what it starts from, and how a term joins it."""

TROPICAL = {"max": "TROPICAL_MAX", "min": "TROPICAL_MIN", "logaddexp": "TROPICAL_LOGADDEXP"}


def nest(lines: list[str], axes: Iterable[tuple[str, str]], simd: str = "simd") -> list[str]:
    """Lines inside loops over axes of some lengths, the last innermost."""
    pragma = [f"#pragma omp {simd}"] if simd else []
    for axis, length in reversed(list(axes)):
        i = index_name(axis)
        head = f"for (int64_t {i} = 0; {i} < {length}; {i}++) {{"
        lines = [*pragma, head, *(f"    {line}" for line in lines), "}"]
        pragma = []
    return lines


class Ops:
    """Statements over ``values``. Products are added in place to values of ``grown``; ``scratch``
    collects the workspace that functions need, in reals."""

    between: tuple[str, ...] = ()
    """What stands between lines of which the second needs all of the first."""

    def __init__(self, values: Values, storage: Storage, grown: Collection[int]) -> None:
        self.v, self.storage, self.grown = values, storage, grown
        self.scratch: list[str] = []
        self.picks = {
            (inst.ins[0], inst.value): n for n, inst in enumerate(values.body) if inst.op == "pick"
        }

    @property
    def room(self) -> str:
        """What the function that is being called works in."""
        return "scratch"

    def result(self, n: int, k: int) -> str:
        """The address of a result of an op with several, "" where nobody reads it."""
        return self.v.address(self.picks[n, k]) if (n, k) in self.picks else ""

    def lines(self, n: int) -> list[str]:
        """The statements that compute ``n``."""
        inst = self.v.body[n]
        if function := self.v.tile_function(n):
            x, entries = self.v.pointer(inst.ins[0]), self.v.entries(inst.axes)
            return [f"{function}({self.v.address(n)}, {x}, {entries});"]
        if inst.op in ("contract", "lower"):
            return self._product(n, inst, inst.ins)
        if inst.op == "accumulate":
            base, *factors = inst.ins
            if base not in self.grown and (call := self._onto(n, inst, base, tuple(factors))):
                return [call]
            first = [] if base in self.grown else self._started(n, inst, base)
            product = self._product(n, inst, tuple(factors), add=True)
            return [*first, *(self.between if first else ()), *product]
        if inst.op in JOINED:
            return self._joined(n, inst, inst.ins)
        return METHODS[inst.op](self, n, inst)

    def _pointers(self, ins: Iterable[int]) -> list[str]:
        return [self.v.pointer(i) for i in ins]

    def _width(self, axes: Axes, most: bool = False) -> str:
        return self.v.entries(tuple(a for a in axes if a != "t"), most)

    def _room(self, function: str, *sizes: str) -> None:
        self.scratch.append(f"{function}_room({', '.join(sizes)})")

    def loop(self, lines: list[str], axes: Iterable[str], simd: str = "simd") -> list[str]:
        """Lines that compute an entry, for every one of some axes."""
        return nest(lines, [(a, self.v.length(a)) for a in axes], simd)

    def _calls(self, lines: list[str], axes: Iterable[str]) -> list[str]:
        """Calls of device functions, for every entry of some axes."""
        return nest(lines, [(a, self.v.length(a)) for a in axes], "")

    def _steps(self, strides: Iterable[str]) -> str:
        """Strides as an argument."""
        return f"(const int64_t[]){{{', '.join(strides)}}}"

    def _tiles(self, pointers: Iterable[str], constant: str = "const ") -> str:
        """Tiles as an argument."""
        return f"({constant}real *const[]){{{', '.join(pointers)}}}"

    # ---- products --------------------------------------------------------------------------------

    def _started(self, n: int, inst: Inst, base: int) -> list[str]:
        """A loop that computes ``base`` where ``n`` lies."""
        value = self.v.at(base, identity(inst.axes)).code
        return self.loop([f"{self.v.entry(n)} = {value};"], inst.axes)

    def _onto(self, n: int, inst: Inst, base: int, ins: tuple[int, ...]) -> str:
        """The call that adds one product to a tile in memory, or to one of which each row or column
        has a factor; "" where it is not that."""
        found = self._scaled(base, inst.axes)
        if found is None:
            return ""
        tile, factor = found
        call = self._product(n, inst, ins, add=True)
        if len(call) > 1 or not call[0].startswith("gemm(") or "LOWER_OUT" in call[0]:
            return ""
        scale = ["NULL", "0", "0"]
        if factor is not None:
            over = self.v.body[factor].axes
            rows, columns, _ = self._sides(self._ordered(ins))
            view = self.v.view(factor)
            assert view is not None
            if over and (
                set(over) not in (set(rows), set(columns)) or not self._flat(over, (view,))
            ):
                return ""
            step = view.strides[over[-1]] if over else "0"
            scale = [view.pointer, *((step, "0") if set(over) == set(rows) else ("0", step))]
        head = call[0].removeprefix("gemm(").removesuffix(", 1);")
        return f"gemm_onto({', '.join([head, self.v.pointer(tile), *scale])});"

    def _scaled(self, base: int, axes: Axes) -> tuple[int, int | None] | None:
        """The tile over ``axes`` that ``base`` is, or of which it is a multiple, and the factor."""
        if self.v.is_dense(base, axes):
            return base, None
        inst = self.v.body[base]
        if base in self.v.stored or inst.op != "mul":
            return None
        for tile, factor in (inst.ins, inst.ins[::-1]):
            if self.v.is_dense(tile, axes) and self.v.view(factor) is not None:
                return tile, factor
        return None

    def _ordered(self, ins: tuple[int, ...]) -> tuple[int, ...]:
        """The operands of a product, a triangular one first."""
        a, b = ins
        swapped = triangular(self.v.body, b) and not triangular(self.v.body, a)
        return (b, a) if swapped else ins

    def _sides(self, ins: tuple[int, ...]) -> tuple[list[str], list[str], list[str]]:
        """The axes of the first operand alone, of the second alone, and of both."""
        first, second = (self.v.body[i].axes for i in ins)
        rows = [x for x in first if x not in second]
        columns = [x for x in second if x not in first]
        return rows, columns, [x for x in first if x in second]

    def _product(self, n: int, inst: Inst, ins: tuple[int, ...], add: bool = False) -> list[str]:
        """A product of matrices, one for each entry of the axes that are not of these."""
        a, b = self._ordered(ins)
        over = list(inst.value)
        rows, columns, both = self._sides((a, b))
        both = [x for x in both if x not in over]
        if not (rows and columns) and (both or not (rows or columns)):
            return self._joined(n, inst, ins)
        first, second = self.v.view(a), self.v.view(b)
        assert first is not None and second is not None
        out = View(self.v.address(n), "0", self.v.dense(inst.axes))
        views, apart, summed = (first, second, out), both, list[str]()
        for group in (rows, columns, over):
            while len(group) > 1 and not self._flat(group, views):
                (summed if group is over else apart).append(group.pop(0))
        outer = [*apart, *summed]
        at = [
            plus(v.pointer, *(times(index_name(x), v.strides.get(x, "0")) for x in outer))
            for v in views
        ]
        lengths = (self.v.entries(tuple(group)) for group in (rows, columns, over))
        steps = [
            view.strides.get(group[-1], "0") if group else "0"
            for view, groups in zip(views, ((rows, over), (over, columns), (rows, columns)))
            for group in groups
        ]
        operands = [x for k in range(3) for x in (at[k], steps[2 * k], steps[2 * k + 1])]
        shape = self._shape(n, a, rows, columns, over)
        adds = int(add or bool(summed))
        call = f"gemm({', '.join([*lengths, *operands, shape, str(adds)])});"
        lines = self._calls([call], outer)
        if summed and not add:
            zero = f"fill({self.v.address(n)}, R(0), {self.v.entries(inst.axes)});"
            lines = [zero, *self.between, *lines]
        return lines

    def _flat(self, group: Sequence[str], views: Iterable[View]) -> bool:
        """Whether the axes of a group are one in memory."""
        for view in views:
            for x, y in pairwise(group):
                rows = times(self.v.length(y), view.strides.get(y, "0"))
                if view.strides.get(x, "0") != rows:
                    return False
        return True

    def _shape(self, n: int, a: int, rows: list[str], columns: list[str], over: list[str]) -> str:
        """What is known of the entries [t, s] of the first matrix, or wanted of the product."""
        if triangular(self.v.body, a) and (rows, over) == (["t"], ["s"]):
            return "LOWER_A"
        if triangular(self.v.body, a) and (rows, over) == (["s"], ["t"]):
            return "UPPER_A"
        return "LOWER_OUT" if self.v.body[n].op == "lower" else "WHOLE"

    # ---- sums ------------------------------------------------------------------------------------

    def _joined(self, n: int, inst: Inst, ins: tuple[int, ...]) -> list[str]:
        """A loop over all axes: the sum (or the largest) of products of the operands' entries."""
        if call := self._dots(n, inst, ins):
            return [call]
        start, join = JOINED.get(inst.op, JOINED["sum"])
        widest = max((self.v.body[i].axes for i in ins), key=len)
        axes = [x for i in ins for x in self.v.body[i].axes if x not in widest]
        axes = [*dict.fromkeys(axes), *widest]
        term = " * ".join(self.v.at(i, identity(axes)).within(PRODUCT) for i in ins)
        over, out = inst.value, self.v.entry(n)
        if axes[-1] not in over:
            fill = f"fill({self.v.address(n)}, {start}, {self.v.entries(inst.axes)});"
            return [fill, *self.loop([f"{join.format(out, term)};"], axes)]
        simd = "simd reduction(+ : sum)" if "+=" in join else ""
        inner = self.loop([f"{join.format('sum', term)};"], [x for x in axes if x in over], simd)
        lines = [f"real sum = {start};", *inner, f"{out} = sum;"]
        kept = [x for x in axes if x not in over]
        return self.loop(lines, kept, simd="") if kept else ["{", *_in(lines), "}"]

    def _dots(self, n: int, inst: Inst, ins: tuple[int, ...]) -> str:
        """The call that multiplies two tiles row by row; "" where these are no such."""
        if inst.op != "contract":
            return ""
        axes = self.v.body[ins[0]].axes
        rows = inst.axes
        if axes != (*rows, *inst.value) or not all(self.v.is_dense(i, axes) for i in ins):
            return ""
        given = [self.v.address(n), *self._pointers(ins), self.v.entries(rows)]
        return f"row_dots({', '.join([*given, self.v.entries(inst.value)])});"

    # ---- device functions ------------------------------------------------------------------------

    def _scan(self, n: int, inst: Inst) -> list[str]:
        rest = tuple(x for x in inst.axes if x != "t")
        v = self.v
        rows, columns = rest[:-1], rest[-1:]
        call = [v.names[n], v.length("t"), v.entries(rows), v.entries(columns)]
        for k, i in enumerate(inst.ins):
            view = v.view(i)
            assert view is not None
            strides = [view.strides.get(g[-1], "0") if g else "0" for g in (("t",), rows, columns)]
            strides = strides[1:] if k == 2 else strides
            call += [v.pointer(i), self._steps(strides)]
        return [f"{inst.op}({', '.join(call)});"]

    def _tropical(self, n: int, inst: Inst) -> list[str]:
        size = self._width(inst.axes)
        f, i = self._pointers(inst.ins)
        op = TROPICAL[inst.value]
        return [f"tropical({self.v.names[n]}, {op}, C, {size}, {f}, {i});"]

    def _running(self, n: int, inst: Inst) -> list[str]:
        a = self.v.pointer(inst.ins[0])
        return [f"running({self.v.names[n]}, {a}, C, {self._width(inst.axes)});"]

    def _several(self, n: int, inst: Inst) -> list[str]:
        """chain_parts and solve_parts: arrays of pointers."""
        count, flag = inst.value
        size, most = self._width(inst.axes), self._width(inst.axes, True)
        unread = [k for k in range(count) if (n, k) not in self.picks]
        spots = {k: plus(self.room, times(str(m), "C", size)) for m, k in enumerate(unread)}
        results = [self.result(n, k) or spots[k] for k in range(count)]
        pointers = self._pointers(inst.ins)
        matrix, sides = pointers[: count * count], pointers[count * count :]
        lists = [self._tiles(results, ""), self._tiles(matrix), self._tiles(sides)]
        tail, rooms = f"{count}, {int(flag)}, C, {size}", [times(str(len(unread)), "L", most)]
        if inst.op == "solve_parts":
            rooms.append(f"solve_parts_room({count}, L, {most})")
            tail += f", {plus(self.room, times(str(len(unread)), 'C', size))}"
        room = plus(*rooms)
        self.scratch += [room] if room != "0" else []
        return [f"{inst.op}({', '.join(lists)}, {tail});"]

    def _solve(self, n: int, inst: Inst) -> list[str]:
        a, r = self._pointers(inst.ins)
        self._room("solve", "L", self._width(inst.axes, True))
        size = self._width(inst.axes)
        return [f"solve({self.v.names[n]}, {a}, {r}, C, {size}, {int(inst.value)}, {self.room});"]

    def _inverse(self, n: int, inst: Inst) -> list[str]:
        self._room("inverse", "L")
        return [f"inverse({self.v.names[n]}, {self.v.pointer(inst.ins[0])}, C, {self.room});"]

    def _dense_solve(self, n: int, inst: Inst) -> list[str]:
        row, column = inst.value
        a, b = self._pointers(inst.ins)
        v, have = self.v, self.v.body[inst.ins[0]].axes
        rest = tuple(x for x in have if x not in (row, column))
        each = tuple(x for x in inst.axes if x not in (*rest, column))
        size, width = v.length(row), v.entries(each)
        self._room("dense_solve", size, width)
        offsets = [times(_flat_index(v, rest), s) for s in (times(size, width), times(size, size))]
        out, system, right = (
            plus(base, o)
            for base, o in zip((v.names[n], a, b), (offsets[0], offsets[1], offsets[0]))
        )
        call = f"dense_solve({out}, {system}, {right}, {size}, {width}, {self.room});"
        return self._calls([call], rest)

    def _levels(self, n: int, inst: Inst) -> list[str]:
        log, strict = inst.value
        v, size = self.v, self._width(inst.axes)
        g, name = v.pointer(inst.ins[0]), v.names[n]
        if len(inst.ins) > 1:
            first = v.names[inst.ins[1]]
            return [f"levels_beside(&{name}, &{first}, {int(strict)}, {v.room(n)});"]
        return [f"levels(&{name}, {g}, C, {size}, {int(log)}, {int(strict)}, {v.room(n)});"]

    def _of_levels(self, n: int, inst: Inst) -> list[str]:
        (d,) = (self.v.names[i] for i in inst.ins)
        return [f"{inst.op}({self.v.address(n)}, &{d});"]

    def _pull_of_levels(self, n: int, inst: Inst) -> list[str]:
        ct, d = inst.ins
        self._room(inst.op, "L", self._width(self.v.body[d].axes, True))
        given = [self.v.names[n], self.v.pointer(ct), f"&{self.v.names[d]}", self.room]
        return [f"{inst.op}({', '.join(given)});"]

    def _pulled(self, n: int, inst: Inst) -> list[str]:
        """Cotangents of decays, as many as there are, on top of a base."""
        d, *given = inst.ins
        pointers = iter(self._pointers(given))
        base, *kinds = inst.value
        tiles = [next(pointers) if base else "NULL"]
        for there, count in zip(kinds, (2, 2, 1)):
            tiles += [next(pointers) if there else "NULL" for _ in range(count)]
        self._room("pulled", "L", self._width(self.v.body[d].axes, True))
        call = [self.v.names[n], *tiles, f"&{self.v.names[d]}", self.room]
        return [f"pulled({', '.join(call)});"]

    def _meets_pull(self, n: int, inst: Inst) -> list[str]:
        """Cotangents of the operands of sums over pairs."""
        *tiles, d = inst.ins
        places = inst.value
        last = 1 + max(place for both in places for place in both)
        x_axes = self.v.body[tiles[-1]].axes
        size, most = self._width(x_axes), self._width(x_axes, True)
        terms = []
        for k, both in enumerate(places):
            given = self._pointers(tiles[3 * k : 3 * k + 3])
            terms.append(", ".join([*given, *(self.result(n, i) or "0" for i in both)]))
        self._room("meet_pull", "L", most)
        several = "(const meet_t[]){" + ", ".join(f"{{{term}}}" for term in terms) + "}"
        call = [several, str(len(terms)), self.result(n, last) or "0", size]
        return [f"meet_pull({', '.join([*call, f'&{self.v.names[d]}', self.room])});"]

    def _met(self, n: int, inst: Inst) -> list[str]:
        """The ops on two tiles and the decays between their tokens."""
        *tiles, d = inst.ins
        x_axes = self.v.body[tiles[-1]].axes
        size, most = self._width(x_axes), self._width(x_axes, True)
        if inst.op in RESULTS:
            given = [self.result(n, k) or "0" for k in range(3)]
        else:
            given = [self.v.names[n]]
        self._room(inst.op, "L", most)
        call = [*given, *self._pointers(tiles), size, f"&{self.v.names[d]}", self.room]
        return [f"{inst.op}({', '.join(call)});"]


METHODS: dict[str, Callable[[Ops, int, Inst], list[str]]] = {
    "scan": Ops._scan,
    "scan_back": Ops._scan,
    "tropical": Ops._tropical,
    "running": Ops._running,
    "chain_parts": Ops._several,
    "solve_parts": Ops._several,
    "solve": Ops._solve,
    "inverse": Ops._inverse,
    "dense_solve": Ops._dense_solve,
    "levels": Ops._levels,
    **dict.fromkeys(("prefix", "suffix", "whole", "matrix"), Ops._of_levels),
    **dict.fromkeys(
        ("prefix_pull", "suffix_pull", "whole_pull", "matrix_pull"), Ops._pull_of_levels
    ),
    **dict.fromkeys(("gram", "meet", "decayed", "meet_pull", "decayed_pull"), Ops._met),
    "pulled": Ops._pulled,
    "meets_pull": Ops._meets_pull,
}


def _flat_index(values: Values, axes: Axes) -> str:
    strides = values.dense(axes)
    return plus(*(times(index_name(a), strides[a]) for a in axes))


def _in(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
