"""A program in, which of its values are stored, and what is known of them, out.

Stored are results of device functions, what these take, what would be computed more than once, and
what comes out. The others are written where they are read.
"""

from __future__ import annotations

from collections.abc import Collection

from lacc.backends.c_ready import multiplies
from lacc.backends.c_values import DENSE, MEMORY, MOVES, RESULTS, Values
from lacc.ir.ops import OPS
from lacc.tile.program import TIME, Inst, Program
from lacc.tile.split import VARYING

DEAR = 4.0
"""Flops of an entry from which on a smaller tile is computed once, not for each entry of what it is
broadcast to."""

AGAIN = 2.0
"""Flops of an entry from which on it is not computed twice."""

ONCE, FOR_A_LENGTH, FOR_EACH = range(3)
"""When a value is computed: once, once for chunks of a length, or for each chunk."""


class Storage:
    """What is stored of ``values.program``, added to ``values.stored``."""

    def __init__(self, values: Values) -> None:
        self.v, self.program, self.body = values, values.program, values.body
        self.users: list[list[int]] = [[] for _ in self.body]
        for n, inst in enumerate(self.body):
            for i in inst.ins:
                self.users[i].append(n)
        self.outs = set(self.program.outs.values())
        self.when = _when(self.program)
        self.sees: list[bool] = []
        """Whether a value depends on what is loaded, which differs from head to head."""
        for inst in self.body:
            self.sees.append(inst.op == "load" or any(self.sees[i] for i in inst.ins))
        for n, inst in enumerate(self.body):
            if inst.op in MEMORY or self.v.tile_function(n):
                self.v.stored.add(n)
            self._operands(n, inst)
            if inst.op not in RESULTS and self._shared(n):
                self.v.stored.add(n)
        for n in self.outs:
            self._need(n, self.v.is_dense(n, self.body[n].axes))
        for n, inst in enumerate(self.body):
            if inst.op in RESULTS:  # what they take may have been stored in part since
                self._operands(n, inst)

    def _need(self, n: int, there: bool) -> None:
        if not there:
            self.v.stored.add(n)

    def _operands(self, n: int, inst: Inst) -> None:
        """Stores what a value takes and must find in memory."""
        v = self.v
        if multiplies(self.program, inst):
            for i in inst.ins[-2:]:
                self._need(i, v.view(i) is not None)
        elif inst.op in DENSE:
            for i in inst.ins:
                if self.body[i].op != "levels":
                    self._need(i, v.is_dense(i, self.body[i].axes))
        elif inst.op in ("scan", "scan_back"):
            for i in inst.ins:
                self._need(i, self._in_rows(i))
        elif inst.op in MOVES:
            for i in inst.ins:
                self._need(i, v.work(i) < 1 and not self._moved(i))
        for i in inst.ins:
            if set(self.body[i].axes) < set(inst.axes):
                self._need(i, v.work(i) < DEAR)

    def _shared(self, n: int) -> bool:
        """Whether a value is computed once for all that read it."""
        inst, work = self.body[n], self.v.work(n)
        if inst.op in ("const", "size"):
            return False
        if not inst.axes and self.when[n] == ONCE and inst.op in OPS:
            return True
        earlier = any(self.when[u] > self.when[n] for u in self.users[n])
        return (earlier and work > 0) or (len(self.users[n]) > 1 and work >= AGAIN)

    def _moved(self, n: int) -> bool:
        """Whether an entry that is not stored is chosen among several."""
        inst = self.body[n]
        return n not in self.v.stored and (inst.op in MOVES or any(map(self._moved, inst.ins)))

    def _in_rows(self, n: int) -> bool:
        """Whether a token's entries lie as rows, each with a stride of 0 or 1."""
        view = self.v.view(n)
        rest = [a for a in self.body[n].axes if a != "t"]
        if view is None or len(rest) > 2:
            return False
        return not rest or view.strides[rest[-1]] in ("0", "1")

    # ---- what is known of values -----------------------------------------------------------------

    def grows(self, n: int, elsewhere: Collection[int]) -> bool:
        """Whether the product of an ``accumulate`` can be added where its first operand lies, which
        is not so for ``elsewhere``."""
        base = self.body[n].ins[0]
        own = base in self.v.stored and base not in elsewhere and base not in self.outs
        return (
            own
            and len(self.users[base]) == 1
            and self.body[base].op not in ("load", "pick")
            and self.body[base].axes == self.body[n].axes
            and self.when[base] == self.when[n]
        )

    def read_outside(self, n: int, inside: Collection[int]) -> bool:
        """Whether ``n`` is read by anything but the loop of ``inside``, or comes out."""
        return n in self.outs or any(self._reads(u, inside) for u in self.users[n])

    def _reads(self, user: int, inside: Collection[int]) -> bool:
        if user in inside:
            return False
        if user in self.v.stored or self.body[user].op in RESULTS:
            return True
        return self.read_outside(user, inside)


def _when(program: Program) -> list[int]:
    """When each value can be computed at the earliest."""
    found: list[int] = []
    for inst in program.body:
        own = inst.op == "load" and (inst.value[0] in VARYING or inst.value == ("index", "t"))
        sizes = [program.sizes[x] for x in inst.axes if x not in TIME]
        sizes += [inst.value] if inst.op == "size" else []
        if own or any("#past" in size.dims for size in sizes):
            found.append(FOR_EACH)
        else:
            timed = FOR_A_LENGTH if {*inst.axes} & {*TIME} else ONCE
            found.append(max([timed, *(found[i] for i in inst.ins)]))
    return found
