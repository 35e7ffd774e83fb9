"""The program of one kernel in, the C statements of a chunk out: what is stored, loops that compute
neighbours together, and a workspace whose tiles take the place of those that are done with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lacc.backends.base import Variables
from lacc.backends.c_ops import DENSE, RESULTS, Ops, identity, loop
from lacc.backends.c_text import RESERVED, plus, times
from lacc.backends.c_values import DEAR, MEMORY, MOVES, Values
from lacc.ir.ops import OPS
from lacc.tile.program import TIME, Axes, Inst, Program, Tiles
from lacc.tile.rebuild import rebuild
from lacc.tile.split import VARYING


@dataclass(slots=True)
class Statement:
    """Lines of C that compute ``makes`` from stored values ``reads``."""

    lines: list[str]
    makes: tuple[int, ...]
    reads: frozenset[int]


@dataclass(slots=True)
class Group:
    """Values over the same axes that one loop computes."""

    axes: Axes
    values: list[int] = field(default_factory=list)


def for_c(program: Program) -> Program:
    """The program with the operands of device functions laid out as these take them."""

    uses = Counter(i for inst in program.body for i in inst.ins) + Counter(program.outs.values())

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = program.body[n]
        if inst.op == "add":
            return _accumulated(program, uses, f, n, new)
        axes = [program.body[i].axes for i in inst.ins]
        want: list[Axes] | None = None
        if inst.op in ("chain_parts", "tropical"):
            want = [inst.axes] * len(axes)
        elif inst.op == "dense_solve":
            row, column = inst.value
            rest = tuple(x for x in axes[0] if x not in (row, column))
            each = tuple(x for x in inst.axes if x not in (*rest, column))
            want = [(*rest, row, column), (*rest, row, *each)]
            ins = tuple(f.arrange(new(i), w) for i, w in zip(inst.ins, want))
            solved = f.emit(replace(inst, ins=ins, axes=(*rest, column, *each)))
            return f.arrange(solved, inst.axes)
        if want is None or want == axes:
            return None
        ins = tuple(f.arrange(new(i), w) for i, w in zip(inst.ins, want))
        return f.emit(replace(inst, ins=ins))

    return rebuild(program, rule)


def _accumulated(
    program: Program, uses: Mapping[int, int], f: Tiles, n: int, new: Callable[[int], int]
) -> int | None:
    """x + a b as one value that a product is added to in place."""
    body = program.body
    inst = body[n]
    for base, product in (inst.ins, inst.ins[::-1]):
        term = body[product]
        if term.op != "contract" or uses[product] > 1 or set(term.axes) != set(inst.axes):
            continue
        if is_product(*(body[i].axes for i in term.ins), term.value):
            start = new(base)
            start = f.arrange(start, inst.axes)
            ins = (start, *map(new, term.ins))
            return f.emit(Inst("accumulate", ins, term.value, inst.axes, inst.name, inst.line))
    return None


def is_product(a: Axes, b: Axes, over: Axes) -> bool:
    """Whether a contraction is of matrices, or of a matrix and a vector."""
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    both = [x for x in a if x in b and x not in over]
    return bool(rows and columns) or (bool(rows or columns) and not both)


class Body:
    """The statements of ``program``. ``arrays`` names the array of each load, ``pointers`` the
    variables of values that are not in the workspace (states, and tiles that a caller gives);
    ``into`` are values that are written into memory that is there, with its name."""

    def __init__(
        self,
        program: Program,
        arrays: Mapping[int, str],
        pointers: Mapping[int, str],
        into: Mapping[int, str],
        load: Callable[[int, str], str],
        taken: set[str],
    ) -> None:
        """``load(n, name)`` is the line that fills the tile ``name`` of a load."""
        self.program, self.body, self.load = program, program.body, load
        self.v = Values(program, arrays)
        self.pointers = pointers
        self.variables = Variables(_ascii(program), taken)
        self.users: list[list[int]] = [[] for _ in self.body]
        for n, inst in enumerate(self.body):
            for i in inst.ins:
                self.users[i].append(n)
        self.outs = set(program.outs.values())
        self.fixed, self.alike = self._alike()
        self._store()
        self.grown: dict[int, int] = {}
        """Values that lie where what is added to them does."""
        self.into = {n: name for n, name in into.items() if n in self.v.stored}
        for n in sorted(self.v.stored):
            self.v.names[n] = pointers.get(n) or self.into.get(n) or self.variables[n]
        for n in sorted(self.v.stored, reverse=True):
            if self.body[n].op == "accumulate" and self._grows(self.body[n].ins[0], n):
                self.v.names[self.body[n].ins[0]] = self.v.names[n]
                self.grown[self.body[n].ins[0]] = n
        self.ops = Ops(self.v, self.triangular)
        self.ops.grown = self.grown
        self.ops.halves = frozenset(n for n in self.v.stored if self._half(n))
        for n, inst in enumerate(self.body):
            if inst.op == "pick":
                name = self.v.names[n] if inst.axes else f"&{self.v.names[n]}"
                self.ops.results[inst.ins[0], inst.value] = name
        self.before = self._statements([n for n in self._order() if n in self.fixed])
        self.once = self._statements([n for n in self._order() if n in self.alike])
        rest = [n for n in self._order() if n not in self.fixed and n not in self.alike]
        self.each = self._statements(rest)
        self.slots = self._slots()

    # ---- what is stored --------------------------------------------------------------------------

    def _alike(self) -> tuple[set[int], set[int]]:
        """Values that are the same for all chunks, and those that are so for all of one length."""
        fixed: set[int] = set()
        alike: set[int] = set()
        for n, inst in enumerate(self.body):
            own = inst.op == "load" and (inst.value[0] in VARYING or inst.value == ("index", "t"))
            sizes = [self.program.sizes[x] for x in inst.axes if x not in TIME]
            sizes += [inst.value] if inst.op == "size" else []
            if own or any("#past" in size.dims for size in sizes):
                continue
            if all(i in fixed for i in inst.ins) and not {*inst.axes} & {*TIME}:
                fixed.add(n)
            elif all(i in fixed or i in alike for i in inst.ins):
                alike.add(n)
        return fixed, alike

    def _store(self) -> None:
        """Decides what is stored: results of functions, what they take, what would be computed
        more than once, and what comes out."""
        v = self.v
        for n, inst in enumerate(self.body):
            if inst.op in MEMORY and inst.op not in RESULTS:
                v.stored.add(n)
            elif inst.op in RESULTS:
                continue
            if inst.op in ("contract", "accumulate"):
                a, b = inst.ins[-2:]
                if is_product(self.body[a].axes, self.body[b].axes, inst.value):
                    self._needs(a, v.view(a) is not None)
                    self._needs(b, v.view(b) is not None)
            elif inst.op in DENSE or inst.op in RESULTS:
                for i in inst.ins:
                    if self.body[i].op != "levels":
                        self._needs(i, v.is_dense(i, self.body[i].axes))
            elif inst.op in ("scan", "scan_back"):
                for i in inst.ins:
                    self._needs(i, self._strided(i))
            if inst.op in MOVES:
                for i in inst.ins:
                    self._needs(i, v.work(i) < 1 and not self._moved(i))
            for i in inst.ins:
                wider = set(self.body[i].axes) < set(inst.axes)
                if v.work(i) >= (DEAR if wider else 1e9):
                    self._needs(i, False)
            if inst.op in RESULTS:
                continue
            if not inst.axes and n in self.fixed and inst.op not in ("const", "size"):
                self._needs(n, not OPS[inst.op].entrywise if inst.op in OPS else True)
            if len(self.users[n]) > 1 and v.work(n) >= 2:
                self._needs(n, False)
            for known in (self.fixed, self.alike):
                if n in known and any(u not in known for u in self.users[n]) and v.work(n) > 0:
                    self._needs(n, False)
        for n in self.outs:
            self._needs(n, v.is_dense(n, self.body[n].axes))
        # results that are taken apart by functions with several results
        for n, inst in enumerate(self.body):
            if inst.op in RESULTS:
                for i in inst.ins:
                    if self.body[i].op != "levels":
                        self._needs(i, v.is_dense(i, self.body[i].axes))

    def _needs(self, n: int, there: bool) -> None:
        if not there:
            self.v.stored.add(n)

    def _moved(self, n: int) -> bool:
        """Whether an entry that is not stored is chosen among several."""
        if n in self.v.stored:
            return False
        inst = self.body[n]
        return inst.op in MOVES or any(map(self._moved, inst.ins))

    def _strided(self, n: int) -> bool:
        view = self.v.view(n)
        if view is None:
            return False
        rest = [a for a in self.body[n].axes if a != "t"]
        return len(rest) <= 2 and (not rest or view.strides[rest[-1]] in ("0", "1"))

    def triangular(self, n: int) -> bool:
        """Whether the entries [t, s] of a value are 0 for s > t."""
        inst = self.body[n]
        if not {"t", "s"} <= set(inst.axes):
            return False
        if inst.op in ("mask", "gram", "matrix", "inverse"):
            return True
        if inst.op == "pick":
            return self.body[inst.ins[0]].op == "meet" and inst.value == 0
        if inst.op in ("mul", "div"):
            return self.triangular(inst.ins[0]) or (
                inst.op == "mul" and self.triangular(inst.ins[1])
            )
        if inst.op in ("add", "sub"):
            return all(map(self.triangular, inst.ins))
        return inst.op == "neg" and self.triangular(inst.ins[0])

    def _grows(self, base: int, n: int) -> bool:
        """Whether a product can be added to ``base`` where it lies."""
        inst = self.body[base]
        return (
            base in self.v.stored
            and base not in self.pointers
            and base not in self.into
            and base not in self.outs
            and len(self.users[base]) == 1
            and inst.op not in ("load", "pick")
            and inst.axes == self.body[n].axes
            and self.alike_kind(base) == self.alike_kind(n)
        )

    def alike_kind(self, n: int) -> int:
        """When a value is computed: once, once for a length, or for each chunk."""
        return 0 if n in self.fixed else 1 if n in self.alike else 2

    def _half(self, n: int) -> bool:
        inst = self.body[n]
        users = self.users[n]
        return (
            inst.op == "contract"
            and inst.axes == ("t", "s")
            and bool(users)
            and n not in self.outs
            and all(self.body[u].op == "mask" for u in users)
        )

    # ---- statements ------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        return [
            n
            for n, inst in enumerate(self.body)
            if (n in self.v.stored and n not in self.pointers) or inst.op in RESULTS
        ]

    def _leaves(self, n: int) -> list[tuple[int, Mapping[str, str]]]:
        """The stored values that a statement reads, and which entries."""
        inst = self.body[n]
        index = identity(inst.axes)
        if inst.op in MEMORY or inst.op in RESULTS:
            found = []
            ins = [
                *inst.ins,
                *(self.body[i].ins[0] for i in inst.ins if self.body[i].op == "levels"),
            ]
            for i in ins:
                if i in self.v.stored or self.body[i].op in RESULTS:
                    found.append((i, {}))
                else:
                    found += [(k, {}) for k, _ in self.v.leaves(i, identity(self.body[i].axes))]
            return found
        return list(self.v.leaves(n, index))

    def _statements(self, order: list[int]) -> list[Statement]:
        found: list[Statement] = []
        pending: list[Group] = []

        def flush(group: Group) -> None:
            pending.remove(group)
            for other in [g for g in pending if g is not group]:
                made = set(other.values)
                if any(k in made for n in group.values for k, _ in self._leaves(n)):
                    if other in pending:
                        flush(other)
            found.append(self._loop(group))

        def settle(reads: Iterable[int]) -> None:
            wanted = set(reads)
            for group in [g for g in pending if wanted & set(g.values)]:
                if group in pending:
                    flush(group)

        for n in order:
            inst = self.body[n]
            leaves = self._leaves(n)
            opaque = inst.op in MEMORY or inst.op in RESULTS
            if opaque:
                settle(k for k, _ in leaves)
                makes: tuple[int, ...] = (n,)
                if inst.op in RESULTS:
                    picks = (u for u in self.users[n] if self.body[u].op == "pick")
                    makes = tuple(dict.fromkeys(picks))
                elif inst.op == "pick":
                    continue
                if inst.op == "load":
                    name = self.v.names[n] if inst.axes else f"&{self.v.names[n]}"
                    lines = [self.load(n, name)]
                else:
                    lines = self.ops.lines(n)
                found.append(Statement(lines, makes, frozenset(k for k, _ in leaves)))
                continue
            home = next((g for g in pending if set(g.axes) == set(inst.axes)), None)
            for group in list(pending):
                made = set(group.values)
                touched = [(k, at) for k, at in leaves if k in made]
                same = all(dict(at) == identity(self.body[k].axes) for k, at in touched)
                if touched and (group is not home or not same) and group in pending:
                    flush(group)
            home = home if home in pending else None
            if home is None:
                home = Group(inst.axes)
                pending.append(home)
            home.values.append(n)
        for group in list(pending):
            if group in pending:
                flush(group)
        return found

    def _loop(self, group: Group) -> Statement:
        """One loop over all values of a group; those that nothing else reads have no memory."""
        v, inside = self.v, set(group.values)
        index = identity(group.axes)
        reads: set[int] = set()
        lines: list[str] = []
        for n in group.values:
            reads |= {k for k, _ in self._leaves(n)} - inside
            v.stored.discard(n)
            text = v.at(n, index).code
            v.stored.add(n)
            outside = n in self.outs or any(
                self._reads_outside(u, n, inside) for u in self.users[n]
            )
            if not group.axes:
                lines.append(f"{v.names[n]} = {text};")
                continue
            if not outside or self._used_inside(n, inside):
                v.locals[n] = f"{self.variables[n]}_"
                lines.append(f"const real {v.locals[n]} = {text};")
                text = v.locals[n]
            if outside:
                strides = v.dense(self.body[n].axes)
                spot = plus(*(times(index[a], strides[a]) for a in self.body[n].axes))
                lines.append(f"{v.names[n]}[{spot}] = {text};")
        for n in group.values:
            v.locals.pop(n, None)
        for depth, axis in enumerate(reversed(group.axes)):
            head = ["#pragma omp simd"] if depth == 0 else []
            lines = [*head, loop(axis, v.length(axis)) + " {", *(f"    {x}" for x in lines), "}"]
        return Statement(lines, tuple(group.values), frozenset(reads))

    def _used_inside(self, n: int, inside: set[int]) -> bool:
        return any(n in {k for k, _ in self._leaves(m)} for m in inside if m != n)

    def _reads_outside(self, user: int, n: int, inside: set[int]) -> bool:
        """Whether ``n`` is read, by ``user`` or by what stands for it, outside a loop."""
        if user in inside:
            return False
        if user in self.v.stored or self.body[user].op in RESULTS:
            return True
        return user in self.outs or any(self._reads_outside(u, n, inside) for u in self.users[user])

    # ---- the workspace ---------------------------------------------------------------------------

    def _slots(self) -> list[tuple[str, list[str]]]:
        """The sizes of pieces of the workspace, in reals, and the names of the tiles in each."""
        last: dict[int, int] = {}
        fixed = {n for s in (*self.before, *self.once) for n in s.makes}
        for k, s in enumerate(self.each):
            for n in (*s.reads, *s.makes):
                last[n] = k
        for n in self.outs:
            for k in self._roots(n):
                last[k] = len(self.each)
        found: list[tuple[str, list[str]]] = []
        free: dict[str, list[int]] = {}
        for n in sorted(fixed):
            self._place(n, found)
        ending: dict[int, list[int]] = {}
        spot: dict[int, int] = {}
        for n, k in last.items():
            ending.setdefault(k, []).append(n)
        for k, s in enumerate(self.each):
            for n in s.makes:
                size = self._size(n)
                if size is None:
                    continue
                if self.body[n].op == "accumulate" and self.body[n].ins[0] in self.grown:
                    spot[n] = spot.pop(self.body[n].ins[0])
                    continue
                if free.get(size):
                    spot[n] = free[size].pop()
                    found[spot[n]][1].append(self.v.names[n])
                else:
                    spot[n] = len(found)
                    found.append((size, [self.v.names[n]]))
            for n in ending.get(k, ()):
                if n in spot and n not in fixed:
                    free.setdefault(found[spot[n]][0], []).append(spot[n])
        return found

    def _roots(self, n: int) -> set[int]:
        """The stored values that an output lies in."""
        if n in self.v.stored:
            return {n}
        return {k for k, _ in self.v.leaves(n, identity(self.body[n].axes))}

    def _place(self, n: int, found: list[tuple[str, list[str]]]) -> None:
        size = self._size(n)
        if size is not None:
            found.append((size, [self.v.names[n]]))

    def _size(self, n: int) -> str | None:
        """The reals that a stored value takes; None where it is a plain variable, or lies
        elsewhere."""
        inst = self.body[n]
        if inst.op == "levels":
            width = self.v.entries(tuple(a for a in inst.axes if a != "t"), True)
            return f"levels_room(L, {width})"
        home = n
        while home in self.grown:
            home = self.grown[home]
        if n in self.pointers or home in self.into or not inst.axes:
            return None
        return self.v.entries(inst.axes, True)

    def declarations(self) -> list[str]:
        """Plain variables of values without axes, and of decays."""
        found = []
        for s in (*self.before, *self.once, *self.each):
            for n in s.makes:
                inst = self.body[n]
                if inst.op == "levels":
                    found.append(f"levels_t {self.v.names[n]};")
                elif not inst.axes and n not in self.pointers and n not in self.into:
                    found.append(f"real {self.v.names[n]};")
        return list(dict.fromkeys(found))


def _ascii(program: Program) -> Program:
    """The program with hints of names that C takes."""
    body = tuple(
        i if i.name.isidentifier() and i.name.isascii() else replace(i, name="")
        for i in program.body
    )
    return Program(body, program.outs, program.sizes)


def taken_names() -> set[str]:
    """Names that values may not take."""
    ops = {f"f_{name}" for name in OPS}
    device = (
        "gemm fill copy add_to swap least most round_up allocate scan scan_back tropical running chain_parts solve solve_parts inverse "
        "dense_solve levels prefix suffix whole matrix gram meet decayed meet_pull decayed_pull "
        "prefix_pull suffix_pull whole_pull matrix_pull load_tile store_tile add_tile sum"
    )
    return {*RESERVED, *ops, *device.split()}
