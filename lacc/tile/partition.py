"""A tile program that goes chunk after chunk in, the programs of the kernels that compute it out.

A kernel is of kind "loop", which takes the chunks of a sequence in order and carries states from
each to the next, or of kind "chunk", which takes every chunk by itself. Phases (`lacc.tile.split`)
say what must go in order. What crosses from one kernel to a later one is *kept* in memory or
computed again: a minimum cut finds the values to keep, at the fewest bytes a token, where computing
counts as the bytes that could be moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from lacc.ir.graph import Uncuttable, cheapest_cut
from lacc.ir.ops import OPS
from lacc.spec.shapes import Size
from lacc.tile.features import Phases, features_apart
from lacc.tile.free_axes import free_axes
from lacc.tile.operands import only_products
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import Inst, Program, Tiles, prune
from lacc.tile.split import FIXED, phases

WIDTH = 128
"""The size that a dim without a default is weighed by."""

FLOPS_A_BYTE = 100.0
"""What tensor cores compute while a byte moves."""

IN_ORDER = (2.0, 4.0)
"""How much more a flop counts in a loop, which few programs go through: more where the loop does
not fit on the chip otherwise."""

OPAQUE = ("levels", "meet", "meet_pull", "decayed_pull", "chain_parts", "solve_parts")
"""Values that are not tiles and cannot be kept."""

SERIAL = {
    **dict.fromkeys(("inverse", "solve", "solve_parts", "dense_solve"), 2048.0),
    **dict.fromkeys(("scan", "scan_back", "tropical", "chain_parts", "running"), 16.0),
    **dict.fromkeys(("gram", "decayed", "meet", "meet_pull", "decayed_pull", "matrix_pull"), 12.0),
}
"""How many times their flops count what goes level by level or row by row; none of it is computed
again in a loop, so that what is fixed counts as part of each chunk."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel: its ``program`` loads ("kept", name) what an earlier one gave out as
    "kept:name"; ``carries`` names the states that a loop carries."""

    kind: str
    program: Program
    carries: tuple[str, ...] = ()


Tight = Callable[[Part], float]
"""What a kernel holds at once, as parts of what a chip has."""

Partitioner = Callable[
    [Program, str, Mapping[str, int], Collection[str], int, Tight], tuple[Part, ...]
]
"""`partition`, or what cuts otherwise."""


def in_one_loop(program: Program, carried: str, starts: Collection[str]) -> tuple[Part, ...]:
    """All of it in one kernel; ``starts`` are states that are kept as each chunk finds them."""
    states = _carried(program, carried)
    if not states:
        return (Part("chunk", program),)
    loads = program.loads(carried)
    outs = {**program.outs, **{f"kept:{start_name(s)}": loads[s] for s in starts if s in loads}}
    return (Part("loop", Program(program.body, outs, program.sizes), states),)


def partition(
    program: Program,
    carried: str,
    dims: Mapping[str, int],
    starts: Collection[str],
    chunk: int = 64,
    tight: Tight = lambda part: 0.0,
) -> tuple[Part, ...]:
    """Loops over the carried states alone, everything else for all chunks at once; what does not
    fit on the chip at once, where a kernel is more than 1 ``tight``, in several kernels."""
    return Partition(program, carried, dims, starts, chunk, tight).parts()


def start_name(state: str, carried: str = "state") -> str:
    """The kept value that holds a state, or its cotangent, as every chunk finds it."""
    return f"{state}_start" if carried == "state" else f"d{state}_end"


def from_starts(program: Program) -> Program:
    """A reverse program that takes the states before each chunk as kept by the forward."""
    body = tuple(
        Inst("load", (), ("kept", start_name(i.value[1])), i.axes, start_name(i.name), i.line)
        if i.op == "load" and i.value[0] == "state"
        else i
        for i in program.body
    )
    return Program(body, program.outs, program.sizes)


def has_products(program: Program) -> bool:
    """Whether matrices are multiplied, or pairs of tokens formed: else one loop is as fast."""
    return any("t" in inst.axes and "s" in inst.axes for inst in program.body)


def _carried(program: Program, carried: str) -> tuple[str, ...]:
    outs = (n.removeprefix("state:") for n in program.outs if n.startswith("state:"))
    return tuple(dict.fromkeys((*program.loads(carried), *outs)))


def with_features_apart(
    program: Program,
    carried: str,
    dims: Mapping[str, int],
    starts: Collection[str],
    chunk: int = 64,
    tight: Tight = lambda part: 0.0,
) -> tuple[Part, ...]:
    """As `partition`, features and their gradients in kernels of their own; `Uncuttable` where
    there are none."""
    return _FeaturesApart(program, carried, dims, starts, chunk, tight).parts()


class Partition:
    def __init__(
        self,
        program: Program,
        carried: str,
        dims: Mapping[str, int],
        starts: Collection[str],
        chunk: int,
        tight: Tight,
    ) -> None:
        self.program, self.body, self.carried = program, program.body, carried
        self.dims, self.chunk, self.tight = dims, chunk, tight
        self.in_order = IN_ORDER[0]
        found, self.loops, self.apart = self._phases(program, carried)
        self.phase = found
        for n, inst in enumerate(self.body):
            late = inst.op in SERIAL or any(self.phase[i] != FIXED for i in inst.ins)
            if self.phase[n] == FIXED and late:
                self.phase[n] = 0
            if inst.op == "pick":
                self.phase[n] = self.phase[inst.ins[0]]
        self.last = 2 * len(self.loops)
        loads = program.loads(carried)
        self.names: dict[int, str] = {loads[s]: start_name(s, carried) for s in loads}
        self.roots: dict[int, dict[str, int]] = {}
        for name, n in program.outs.items():
            self.roots.setdefault(self._home(name, n), {})[name] = n
        for s in starts:
            if s in loads:
                self.roots.setdefault(self.phase[loads[s]], {})[f"kept:{start_name(s)}"] = loads[s]

    def _home(self, name: str, n: int) -> int:
        """The kernel that gives an output: the loop that carries it, else the last one that may."""
        for number, group in enumerate(self.loops):
            if name.removeprefix("state:") in group and name.startswith("state:"):
                return 2 * number + 1
        if self.phase[n] % 2 and self.phase[n] != FIXED:
            return self.phase[n]
        return max(self.phase[n], self.last - 2 * (self.loops[-1:] == ((),)))

    def _phases(self, program: Program, carried: str) -> Phases:
        found, loops = phases(program, carried)
        return [*found], loops, frozenset()

    def parts(self) -> tuple[Part, ...]:
        """Every kernel in order; what a later one needs is asked of the earlier ones first."""
        found: list[Part] = []
        for phase in reversed(range(self.last + 1)):
            if roots := self.roots.get(phase, {}):
                found += self._of_phase(phase, roots)
        return tuple(reversed(found))

    def _of_phase(self, phase: int, roots: dict[str, int]) -> list[Part]:
        """The kernels of a phase, the last one first."""
        for self.in_order in IN_ORDER:
            part, kept = self._try(phase, roots, self._needed_now(phase, roots))
            if phase % 2 == 0 or self.tight(part) <= 1:
                break
        groups = (
            [roots] if phase % 2 or self.tight(part) <= 1 else self._groups(part.program, roots)
        )
        if len(groups) == 1:
            self._asked(phase, kept, None)
            return [part]
        found = []
        while groups:
            last = groups.pop()
            own = set(last.values()) if groups else self._needed_now(phase, last)
            part, kept = self._try(phase, last, own, [n for g in groups for n in g.values()])
            self._asked(phase, kept, groups[-1] if groups else None)
            found.append(part)
        return [part for part in found if part.program.outs]

    def _try(
        self,
        phase: int,
        roots: Mapping[str, int],
        own: Collection[int],
        before: Collection[int] = (),
    ) -> tuple[Part, set[int]]:
        """The kernel of ``roots``, and what it takes from those before it."""
        kept = self._kept(phase, roots, own, before)
        group = self.loops[phase // 2] if phase % 2 else ()
        new = {k: n for k, n in roots.items() if n not in kept or not k.startswith("kept:")}
        return Part("loop" if group else "chunk", self._built(new, kept), group), kept

    def _asked(self, phase: int, kept: Iterable[int], before: dict[str, int] | None) -> None:
        """Asks for what is to be kept: of the kernel ``before`` in the same phase, or of the phase
        that a value belongs to where that has kernels anyway."""
        for n in sorted(kept):
            here = before if self._here(n, phase) else None
            home = self.roots.setdefault(self.phase[n], {}) if here is None else here
            home[f"kept:{self._name(n)}"] = n

    def _here(self, n: int, phase: int) -> bool:
        """Whether a value is made by the kernels of a phase, if at all before the last of them."""
        return self.phase[n] == phase or self._alone(n)

    def _alone(self, n: int) -> bool:
        """Whether a value belongs to a phase between loops that has no kernel else."""
        return self.phase[n] % 2 == 0 and not self.roots.get(self.phase[n])

    def _groups(self, program: Program, roots: Mapping[str, int]) -> list[dict[str, int]]:
        """Outputs that may be cut along the same axis together, those along none with those they
        share most with; small ones first, and none by themselves that take no products."""
        groups: dict[str, dict[str, int]] = {}
        needs = {}
        for name, n in roots.items():
            alone = prune(Program(program.body, {name: program.outs[name]}, program.sizes))
            groups.setdefault(next(iter(free_axes(alone)), ""), {})[name] = n
            needs[name] = self._products([n])
        loose = groups.pop("", {}) if len(groups) > 1 else {}
        for name, n in loose.items():
            best = max(
                groups.values(), key=lambda g: max(len(needs[name] & needs[other]) for other in g)
            )
            best[name] = n
        found = sorted(groups.values(), key=lambda g: max(len(needs[name]) for name in g))
        while len(found) > 1 and not any(needs[name] for name in found[0]):
            small = found.pop(0)
            found[0] = small | found[0]
        return found

    def _products(self, roots: Collection[int]) -> set[int]:
        """The products that values take."""
        return {i for i in self._below(roots, ()) if self.body[i].op in ("contract", *SERIAL)}

    def _name(self, n: int) -> str:
        """A name for a kept value that no other has."""
        if n not in self.names:
            stem = self.body[n].name or self.body[n].op
            name, k = stem, 1
            while name in self.names.values():
                k += 1
                name = f"{stem}{k}"
            self.names[n] = name
        return self.names[n]

    def _built(self, roots: Mapping[str, int], kept: Collection[int]) -> Program:
        """The program of one kernel: what it needs of the whole, kept values as loads."""
        f = Tiles(self.program.sizes)
        new: dict[int, int] = {}
        for n in self._below(roots.values(), kept):
            inst = self.body[n]
            if n in kept:
                value = f.load("kept", self._name(n), inst.axes)
            else:
                ins = tuple(new[i] for i in inst.ins)
                value = f.emit(Inst(inst.op, ins, inst.value, inst.axes, inst.name, inst.line))
            new[n] = value
        return f.finish({name: new[n] for name, n in roots.items()})

    def _below(self, roots: Collection[int], stop: Collection[int]) -> list[int]:
        """What ``roots`` need, in order; of what is to ``stop`` at, nothing more."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n not in found:
                found.add(n)
                if n not in stop:
                    stack.extend(self.body[n].ins)
        return sorted(found)

    # ---- what to keep ------------------------------------------------------------------------

    def _kept(
        self,
        phase: int,
        roots: Mapping[str, int],
        own: Collection[int],
        before: Collection[int] = (),
        barred: Collection[int] = (),
    ) -> set[int]:
        """The values of earlier kernels that a kernel which computes ``own`` takes from memory,
        those that it is ``barred`` from making in any case; kernels ``before`` it in the same phase
        have roots of their own.

        Each value is *made* here, or not; and *had*, if need be from memory, which counts what an
        earlier kernel has to do only for that. One in the same phase does nothing only for that: it
        was cut off to hold less.
        """
        barred = {*barred, *(n for n in self.apart if self.phase[n] < phase)}
        asked = {n for p, r in self.roots.items() if p < phase for n in r.values()}
        known = set(self._below([*before, *asked, *self._serial_before(phase)], ()))
        wanted = {i for n in own for i in self.body[n].ins if i not in own}
        wanted |= {n for n in roots.values() if n not in own}
        edges: dict[tuple[object, object], float] = {}
        for n in self._below(wanted, ()):
            here, there = (n, "made"), (n, "had")
            edges[here, there] = self._bytes(n, n in asked)
            if not self._is_load(n):
                apart = bool(before) and n not in known and self._here(n, phase)
                edges[here, there] += inf if apart else self._only_for(n, known)
            edges["memory", here] = inf if n in barred else self._price(n, phase)
            for i in self.body[n].ins:
                edges[(i, "had"), here] = inf
            if n in wanted:
                edges[there, "kernel"] = inf
        left = cheapest_cut(edges, "memory", "kernel")
        return {
            n
            for n in self._below(wanted, ())
            if (n, "made") in left and (n, "had") not in left and not self._is_load(n)
        }

    def _only_for(self, n: int, known: Collection[int]) -> float:
        """What an earlier kernel reads and computes for a value alone, as bytes."""
        below = [i for i in self._below([n], known) if i not in known]
        reads = sum(self._bytes(i) for i in below if self._is_load(i))
        return reads + sum(self._price(i, 0) for i in below if self.body[i].op != "load")

    def _needed_now(self, phase: int, roots: Mapping[str, int]) -> set[int]:
        """Values that are computed in the kernel of a phase because they can nowhere else."""
        found: set[int] = set()
        stack = list(roots.values())
        while stack:
            n = stack.pop()
            if n not in found and self.phase[n] == phase:
                found.add(n)
                stack.extend(self.body[n].ins)
        return found

    def _serial_before(self, phase: int) -> set[int]:
        """What loops up to a phase need and do not compute themselves: it is made before them."""
        found: set[int] = set()
        for loop in range(1, phase + 1, 2):
            ends = [n for n in self.roots.get(loop, {}).values() if self.phase[n] == loop]
            needed = self._below(ends, ())
            found |= {n for n in needed if self.body[n].op in SERIAL and self.phase[n] < loop}
        return found

    def _is_load(self, n: int) -> bool:
        """Whether a value stands in memory from the start."""
        inst = self.body[n]
        return inst.op == "load" and inst.value[0] != self.carried

    def _size(self, n: int) -> float:
        """Entries of a value, for each token."""
        found = 1.0
        for axis in self.body[n].axes:
            found *= self.chunk if axis in ("t", "s") else self._length(self.program.sizes[axis])
        return found / self.chunk

    def _length(self, size: Size) -> float:
        return float(size.evaluate({dim: self.dims.get(dim) or WIDTH for dim in size.dims}))

    def _bytes(self, n: int, there: bool = False) -> float:
        """What a kernel moves to have a value from memory: what is not ``there`` is written too."""
        inst = self.body[n]
        if inst.op in OPAQUE:
            return inf
        if self.phase[n] == FIXED:
            return 0.0 if inst.op == "load" else inf
        wide = 2 if self._is_load(n) or only_products(self.program, n) else 4
        return wide * self._size(n) * (1 if there or self._is_load(n) else 2)

    def _price(self, n: int, phase: int) -> float:
        """What computing a value again costs, as bytes."""
        inst = self.body[n]
        if inst.op == "load":
            return inf
        serial = SERIAL.get(inst.op, 1.0)
        if serial > 1 and phase % 2:
            return inf
        axes = {*inst.axes}.union(*(self.body[i].axes for i in inst.ins))
        points = 1.0
        for axis in axes:
            points *= self.chunk if axis in ("t", "s") else self._length(self.program.sizes[axis])
        row = OPS.get(inst.op)
        flops = row.flops if row is not None else TILE_OPS[inst.op].flops
        weight = self.in_order if phase % 2 else 1.0
        return points / self.chunk * flops * serial / FLOPS_A_BYTE * weight


class _FeaturesApart(Partition):
    def _phases(self, program: Program, carried: str) -> Phases:
        found = features_apart(program, carried)
        if found is None:
            raise Uncuttable
        return found
