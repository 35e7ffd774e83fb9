"""A tile program in, counts of what one chunk of it does out, by phase, over C and the spec's dims.

Notation: C the tokens of a chunk ("#C" in a size), K and V dims. An op works on every point of the
axes that its operands and its result have together: C K V points for a product of [C, K] and
[K, V], at its row's flops a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from lacc.ir.ops import OPS
from lacc.spec.shapes import ONE, Size
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import TIME, Inst, Program
from lacc.tile.split import FIXED, phases

TOKENS = Size.of("#C")
LEVELS = Size.of("#log C")
"""Sizes beside the dims: the tokens of a chunk, and how often it halves."""

ZERO = Size.of(0)
VIEWS = {
    *("load", "rename", "expand", "take", "row", "default", "omitted", "fold", "unfold"),
    *("stop_gradient", "prefix", "suffix", "whole"),
}
"""Ops that move nothing."""

PRODUCTS = {
    *("contract", "gram", "decayed", "decayed_back", "gram_pull", "solve", "matrix", "matrix_pull")
}
"""Ops whose points are those of products of matrices."""


STEP_CALLS = 20
"""Calls into NumPy that a step by a token takes beside those of its program."""


@dataclass(frozen=True, slots=True)
class Runs:
    """How a kernel over runs of tokens works: passes over its tiles, matrices, calls, by level."""

    passes: float
    matrices: float
    calls: float


RUNS = {
    "levels": Runs(3, 0, 9),
    "gram": Runs(2, 1, 6),
    "decayed": Runs(2, 1, 7),
    "decayed_back": Runs(2, 1, 7),
    "gram_pull": Runs(8, 2, 25),
    "prefix_pull": Runs(5, 0, 18),
    "suffix_pull": Runs(5, 0, 18),
    "whole_pull": Runs(5, 0, 18),
    "matrix": Runs(1, 0, 6),
    "matrix_pull": Runs(8, 0, 25),
}


@dataclass(frozen=True, slots=True)
class Work:
    """Flops in products of matrices, flops in elementwise work, entries of tiles that pass through
    memory, matrices multiplied, calls into NumPy."""

    products: Size = ZERO
    maps: Size = ZERO
    entries: Size = ZERO
    matrices: Size = ZERO
    calls: Size = ZERO

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products,
            self.maps + other.maps,
            self.entries + other.entries,
            self.matrices + other.matrices,
            self.calls + other.calls,
        )

    @property
    def flops(self) -> Size:
        """All floating-point operations."""
        return self.products + self.maps


def phase_name(number: int, loops: int) -> str:
    """``fixed``, ``local`` (before the first loop over chunks), ``carry`` (in one), ``output``."""
    if number == FIXED:
        return "fixed"
    if number % 2:
        return "carry"
    return "output" if number and loops else "local"


def work(program: Program, carried: str) -> dict[str, Work]:
    """The counts of a chunk (of a token, in a program without time) by the name of the phase."""
    found, loops = phases(program, carried)
    total = dict.fromkeys(("fixed", "local", "carry", "output"), Work())
    for n, phase in enumerate(found):
        name = phase_name(phase, len(loops))
        total[name] = total[name] + of_instruction(program, n)
    return total


def total(works: Iterable[Work]) -> Work:
    """The sum of counts."""
    found = Work()
    for one in works:
        found = found + one
    return found


def of_instruction(program: Program, n: int) -> Work:
    """The counts of one instruction."""
    inst = program.body[n]
    if inst.op in VIEWS or _number(program, inst):
        return Work()
    operands = [program.body[i].axes for i in inst.ins]
    points = extent(program, dict.fromkeys(a for axes in (*operands, inst.axes) for a in axes))
    row = TILE_OPS[inst.op] if inst.op in TILE_OPS else OPS[inst.op]
    flops = _scaled(points, row.flops)
    if inst.op == "levels":
        return Work(maps=flops, entries=_runs(program, inst), calls=_calls("levels"))
    tiles = [axes for axes, i in zip(operands, inst.ins) if program.body[i].op != "levels"]
    entries = _sum(extent(program, axes) for axes in (*tiles, inst.axes))
    matrices, calls = (ONE if inst.op in PRODUCTS else ZERO), ONE
    if inst.op in RUNS:
        entries = entries + _runs(program, inst)
        matrices, calls = _scaled(TOKENS, RUNS[inst.op].matrices), _calls(inst.op)
    elif inst.op == "solve":
        matrices, calls = _scaled(TOKENS, 3 / 16), Size.of(60)
    elif inst.op in ("scan", "scan_back"):
        calls = _scaled(TOKENS, 3)
    if inst.op in PRODUCTS:
        return Work(products=flops, entries=entries, matrices=matrices, calls=calls)
    return Work(maps=flops, entries=entries, calls=calls)


def from_state(program: Program) -> Work:
    """The counts of a chunk that starts from a state, and leaves one."""
    return total(of_instruction(program, n) for n in range(len(program.body)))


def from_nothing(program: Program) -> Work:
    """The counts of the outputs alone where the state before is 0: the quadratic form."""
    zero: set[int] = set()
    for n, inst in enumerate(program.body):
        if inst.op == "load":
            if inst.value[0] == "state":
                zero.add(n)
        elif inst.op in ("mul", "contract", "div", "solve"):
            if inst.ins[inst.op == "solve"] in zero or (inst.op != "div" and inst.ins[1] in zero):
                zero.add(n)
        elif inst.ins and all(i in zero for i in inst.ins):
            zero.add(n)
    live: set[int] = set()
    stack = [n for name, n in program.outs.items() if not name.startswith("state:")]
    while stack:
        n = stack.pop()
        if n not in live and n not in zero:
            live.add(n)
            stack.extend(program.body[n].ins)
    return total(of_instruction(program, n) for n in live)


def held(programs: Iterable[Program]) -> Size:
    """Entries that a chunk works on at a time: its inputs, as much twice over, a tile of pairs."""
    wide, pairs = ZERO, ZERO
    for program in programs:
        for kind in ("input", "stored"):
            loads = program.loads(kind).values()
            wide = wide + _sum(extent(program, program.body[n].axes) for n in loads)
        if any("s" in inst.axes for inst in program.body):
            pairs = TOKENS * TOKENS
    return _scaled(wide, 3) + pairs


def evaluate(size: Size, at: Mapping[str, float]) -> float:
    """The number of a count."""
    return sum(float(c) * prod(at[name] ** power for name, power in m) for m, c in size.terms)


def extent(program: Program, axes: Iterable[str]) -> Size:
    """The number of entries of a tile over ``axes``."""
    size = ONE
    for axis in axes:
        size = size * (TOKENS if axis in TIME else program.sizes[axis])
    return size


def _number(program: Program, inst: Inst) -> bool:
    """Whether a value is a Python number in what is emitted: it comes of numbers alone."""
    if inst.op in ("const", "size"):
        return True
    made = (program.body[i] for i in inst.ins)
    return inst.op in OPS and not inst.axes and all(_number(program, i) for i in made)


def _runs(program: Program, inst: Inst) -> Size:
    axes = [program.body[i].axes for i in inst.ins if "s" not in program.body[i].axes]
    return _scaled(extent(program, axes[-1]) * LEVELS, 2 * RUNS[inst.op].passes)


def _calls(op: str) -> Size:
    return _scaled(LEVELS, RUNS[op].calls)


def _scaled(size: Size, by: float) -> Size:
    return Size(tuple((m, c * Fraction(by)) for m, c in size.terms)) if by else ZERO


def _sum(sizes: Iterable[Size]) -> Size:
    found = ZERO
    for size in sizes:
        found = found + size
    return found
