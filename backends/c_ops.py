"""A stored value in, the C statements that compute it out: calls of device functions, and loops for
products and sums that are no products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lacc.backends.c_text import plus, times
from lacc.backends.c_values import Values, View
from lacc.backends.text import PRODUCT
from lacc.tile.program import TIME, Axes, Inst

RESULTS = ("meet", "meet_pull", "decayed_pull", "chain_parts", "solve_parts")
"""Ops with several results, to be picked."""

DENSE = frozenset(
    ["tropical", "running", "solve", "solve_parts", "inverse", "dense_solve", "chain_parts", "levels", "prefix_pull", "suffix_pull", "whole_pull", "matrix_pull", "gram", "meet", "decayed", "meet_pull", "decayed_pull"]
)
"""Ops that take their operands as dense tiles in the order of their axes."""

JOINED = {
    "sum": ("R(0)", "{} += {}"),
    "contract": ("R(0)", "{} += {}"),
    "largest": ("R(-INFINITY)", "{0} = f_max({0}, {1})"),
    "smallest": ("R(INFINITY)", "{0} = f_min({0}, {1})"),
}

SPELT = {"'": "_p", "*": "_x", "<": "_l", "|": "_o", "/": "_d", "+": "_a", "-": "_m"}
"""Characters of axes in names of variables."""

TROPICAL = {"max": "TROPICAL_MAX", "min": "TROPICAL_MIN", "logaddexp": "TROPICAL_LOGADDEXP"}


def index_name(axis: str) -> str:
    """The loop variable of an axis: one of its own for each."""
    if axis in TIME:
        return axis
    return "i_" + "".join(c if c.isascii() and c.isalnum() else SPELT.get(c, "_") for c in axis)


def identity(axes: Iterable[str]) -> dict[str, str]:
    """Each axis by its own loop variable."""
    return {a: index_name(a) for a in axes}


def loop(axis: str, length: str) -> str:
    """The head of a loop over an axis."""
    i = index_name(axis)
    return f"for (int64_t {i} = 0; {i} < {length}; {i}++)"


class Ops:
    """Statements over ``values``. ``scratch`` collects what the functions need, in reals."""

    def __init__(self, values: Values, triangular: Callable[[int], bool]) -> None:
        self.v, self.triangular = values, triangular
        self.scratch: list[str] = []
        self.results: dict[tuple[int, int], str] = {}
        """The names of the results of ops that have several."""
        self.grown: Mapping[int, int] = {}
        """Values that lie where a product is added to them."""
        self.halves: frozenset[int] = frozenset()
        """Products of which only the pairs t >= s are wanted."""

    def lines(self, n: int) -> list[str]:
        """The statements that compute ``n``; none for what computes with another value."""
        inst = self.v.body[n]
        if inst.op == "contract":
            return self._contract(n, inst, inst.ins, False)
        if inst.op == "accumulate":
            base, *factors = inst.ins
            first = [] if base in self.grown else self._copied(n, inst, base)
            return [*first, *self._contract(n, inst, tuple(factors), True)]
        if inst.op in JOINED:
            return self._reduce(n, inst, inst.ins, inst.value)
        return METHODS[inst.op](self, n, inst)

    def _pointers(self, ins: Iterable[int]) -> list[str]:
        return [self.v.pointer(i) for i in ins]

    def _width(self, axes: Axes, most: bool = False) -> str:
        return self.v.entries(tuple(a for a in axes if a != "t"), most)

    def _room(self, function: str, *sizes: str) -> None:
        self.scratch.append(f"{function}_room({', '.join(sizes)})")

    # ---- products --------------------------------------------------------------------------------

    def _copied(self, n: int, inst: Inst, base: int) -> list[str]:
        """A loop that computes ``base`` where ``n`` lies."""
        value = self.v.at(base, identity(inst.axes)).code
        if not inst.axes:
            return [f"{self.v.names[n]} = {value};"]
        lines = [f"{self._spot(n, inst)} = {value};"]
        for depth, axis in enumerate(reversed(inst.axes)):
            simd = ["#pragma omp simd"] if depth == 0 else []
            lines = [*simd, loop(axis, self.v.length(axis)) + " {", *_in(lines), "}"]
        return lines

    def _spot(self, n: int, inst: Inst) -> str:
        strides = self.v.dense(inst.axes)
        spot = plus(*(times(index_name(x), strides[x]) for x in inst.axes))
        return f"{self.v.names[n]}[{spot}]"

    def _contract(self, n: int, inst: Inst, ins: tuple[int, ...], add: bool) -> list[str]:
        a, b = ins
        axes = [self.v.body[i].axes for i in ins]
        both = [x for x in axes[0] if x in axes[1] and x not in inst.value]
        rows = [x for x in axes[0] if x not in axes[1]]
        columns = [x for x in axes[1] if x not in axes[0]]
        if not (rows and columns) and (both or not (rows or columns)):
            return self._reduce(n, inst, ins, inst.value)
        first, second = self.v.view(a), self.v.view(b)
        assert first is not None and second is not None
        out = View(
            self.v.names[n] if inst.axes else f"&{self.v.names[n]}", "0", self.v.dense(inst.axes)
        )
        over = list(inst.value)
        if self.triangular(b) and not self.triangular(a):
            first, second, rows, columns, a, b = second, first, columns, rows, b, a
        groups = [rows, columns, over]
        outer = [(x, False) for x in both]
        views = (first, second, out)
        for group in groups:
            while len(group) > 1 and not self._flat(group, views):
                outer.append((group.pop(0), group is over))
        summed = any(again for _, again in outer)
        offsets = [v.offset for v in views]
        for axis, _ in outer:
            for k, v in enumerate(views):
                offsets[k] = plus(offsets[k], times(index_name(axis), v.strides.get(axis, "0")))
        base = [v.base if o == "0" else f"{v.base} + {o}" for v, o in zip(views, offsets)]
        m, w, k = (self.v.entries(tuple(g)) for g in groups)

        def stride(v: View, group: list[str]) -> str:
            return v.strides.get(group[-1], "0") if group else "0"

        shape = "WHOLE"
        if self.triangular(a) and (rows, over) == (["t"], ["s"]):
            shape = "LOWER_A"
        elif self.triangular(a) and (rows, over) == (["s"], ["t"]):
            shape = "UPPER_A"
        elif n in self.halves and (rows, columns) == (["t"], ["s"]):
            shape = "LOWER_OUT"
        call = (
            f"gemm({m}, {w}, {k}, {base[0]}, {stride(first, rows)}, {stride(first, over)}, "
            f"{base[1]}, {stride(second, over)}, {stride(second, columns)}, "
            f"{base[2]}, {stride(out, rows)}, {stride(out, columns)}, {shape}, {int(summed or add)});"
        )
        lines = [call]
        for axis, _ in reversed(outer):
            lines = [f"{loop(axis, self.v.length(axis))} {{", *_in(lines), "}"]
        if summed and not add:
            lines.insert(0, f"fill({self.v.names[n]}, R(0), {self.v.entries(inst.axes)});")
        return lines

    def _flat(self, group: list[str], views: Iterable[View]) -> bool:
        """Whether the axes of a group are one in memory."""
        for v in views:
            if group[0] not in v.strides:
                continue
            for x, y in zip(group, group[1:]):
                if v.strides[x] != times(self.v.length(y), v.strides[y]):
                    return False
        return True

    # ---- sums ------------------------------------------------------------------------------------

    def _reduce(self, n: int, inst: Inst, ins: tuple[int, ...], over: Axes) -> list[str]:
        """A loop over all axes: the sum (or the largest) of products of the operands' entries."""
        axes = tuple(dict.fromkeys(x for i in ins for x in self.v.body[i].axes))
        widest = max((self.v.body[i].axes for i in ins), key=len)
        axes = (*(x for x in axes if x not in widest), *widest)
        start, join = JOINED[inst.op]
        index = identity(axes)
        term = " * ".join(self.v.at(i, index).within(PRODUCT) for i in ins)
        v, out = self.v, f"{self.v.names[n]}"
        if inst.axes:
            strides = v.dense(inst.axes)
            out += f"[{plus(*(times(index_name(x), strides[x]) for x in inst.axes))}]"
        kept = [x for x in axes if x not in over]
        if axes[-1] in over:
            inner = [x for x in axes if x in over]
            operator = {"sum": "+", "contract": "+"}.get(inst.op)
            simd = [f"#pragma omp simd reduction({operator}:sum)"] if operator else []
            lines = [f"{join.format('sum', term)};"]
            for depth, x in enumerate(reversed(inner)):
                lines = [
                    *(simd if depth == 0 else []),
                    loop(x, v.length(x)) + " {",
                    *_in(lines),
                    "}",
                ]
            if inst.axes:
                lines = [f"real sum = {start};", *lines, f"{out} = sum;"]
            else:
                lines = [f"real sum = {start};", *lines, f"{out} = sum;"]
            for x in reversed(kept):
                lines = [loop(x, v.length(x)) + " {", *_in(lines), "}"]
            if not kept:
                lines = ["{", *_in(lines), "}"]
            return lines
        fill = f"fill({v.names[n]}, {start}, {v.entries(inst.axes)});"
        lines = [f"{join.format(out, term)};"]
        for depth, x in enumerate(reversed(axes)):
            simd = ["#pragma omp simd"] if depth == 0 else []
            lines = [*simd, loop(x, v.length(x)) + " {", *_in(lines), "}"]
        return [fill, *lines]

    # ---- device functions ------------------------------------------------------------------------

    def _scan(self, n: int, inst: Inst) -> list[str]:
        rest = tuple(x for x in inst.axes if x != "t")
        v = self.v
        columns = rest[-1:]
        rows = rest[:-1]
        call = [v.names[n], v.length("t"), v.entries(rows), v.entries(columns)]
        for k, i in enumerate(inst.ins):
            view = v.view(i)
            assert view is not None
            strides = [view.strides.get(g[-1], "0") if g else "0" for g in (("t",), rows, columns)]
            strides = strides[1:] if k == 2 else strides
            call += [v.pointer(i), f"(const int64_t[]){{{', '.join(strides)}}}"]
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
        results = ", ".join(self.results.get((n, k), "0") for k in range(count))
        pointers = self._pointers(inst.ins)
        matrix, sides = pointers[: count * count], pointers[count * count :]
        lists = [f"(real *const[]){{{results}}}"]
        lists += [f"(const real *const[]){{{', '.join(p)}}}" for p in (matrix, sides)]
        tail = f"{count}, {int(flag)}, C, {size}"
        if inst.op == "solve_parts":
            self._room("solve_parts", str(count), "L", most)
            tail += ", scratch"
        return [f"{inst.op}({', '.join(lists)}, {tail});"]

    def _solve(self, n: int, inst: Inst) -> list[str]:
        a, r = self._pointers(inst.ins)
        self._room("solve", "L", self._width(inst.axes, True))
        size = self._width(inst.axes)
        return [f"solve({self.v.names[n]}, {a}, {r}, C, {size}, {int(inst.value)}, scratch);"]

    def _inverse(self, n: int, inst: Inst) -> list[str]:
        self._room("inverse", "L")
        return [f"inverse({self.v.names[n]}, {self.v.pointer(inst.ins[0])}, C, scratch);"]

    def _dense_solve(self, n: int, inst: Inst) -> list[str]:
        row, column = inst.value
        a, b = self._pointers(inst.ins)
        v, (have, _) = self.v, (v_axes(self.v, i) for i in inst.ins)
        rest = tuple(x for x in have if x not in (row, column))
        each = tuple(x for x in inst.axes if x not in (*rest, column))
        size, width = v.length(row), v.entries(each)
        self._room("dense_solve", size, width)
        offsets = [times(_flat_index(v, rest), s) for s in (times(size, width), times(size, size))]
        out, system, right = (
            f"{base} + {o}" if o != "0" else base
            for base, o in zip((v.names[n], a, b), (offsets[0], offsets[1], offsets[0]))
        )
        lines = [f"dense_solve({out}, {system}, {right}, {size}, {width}, scratch);"]
        for x in reversed(rest):
            lines = [loop(x, v.length(x)) + " {", *_in(lines), "}"]
        return lines

    def _levels(self, n: int, inst: Inst) -> list[str]:
        log, strict = inst.value
        g = self.v.pointer(inst.ins[0])
        name, size = self.v.names[n], self._width(inst.axes)
        return [f"levels(&{name}, {g}, C, {size}, {int(log)}, {int(strict)}, {name}_room);"]

    def _of_levels(self, n: int, inst: Inst) -> list[str]:
        (d,) = (self.v.names[i] for i in inst.ins)
        name = self.v.names[n] if inst.axes else f"&{self.v.names[n]}"
        return [f"{inst.op}({name}, &{d});"]

    def _pull_of_levels(self, n: int, inst: Inst) -> list[str]:
        ct, d = inst.ins
        most = self._width(v_axes(self.v, d), True)
        self._room(inst.op, "L", most)
        return [f"{inst.op}({self.v.names[n]}, {self.v.pointer(ct)}, &{self.v.names[d]}, scratch);"]

    def _met(self, n: int, inst: Inst) -> list[str]:
        """The ops on two tiles and the decays between their tokens."""
        *tiles, d = inst.ins
        x_axes = v_axes(self.v, tiles[-1])
        size, most = self._width(x_axes), self._width(x_axes, True)
        if inst.op in RESULTS:
            given = [self.results.get((n, k), "0") for k in range(3)]
        else:
            given = [self.v.names[n]]
        self._room(inst.op, "L", most)
        call = [*given, *self._pointers(tiles), size, f"&{self.v.names[d]}", "scratch"]
        return [f"{inst.op}({', '.join(call)});"]

    def _nothing(self, n: int, inst: Inst) -> list[str]:
        return []


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
    "pick": Ops._nothing,
    "load": Ops._nothing,
}


def v_axes(values: Values, n: int) -> Axes:
    """The axes of a value."""
    return values.body[n].axes


def _flat_index(values: Values, axes: Axes) -> str:
    strides = values.dense(axes)
    return plus(*(times(index_name(a), strides[a]) for a in axes))


def _in(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
