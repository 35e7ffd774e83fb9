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
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import ChunkPass, Derived
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import PAST, TIME, Inst, Program, numbers
from lacc.tile.split import FIXED, phases

TOKENS = Size.of("#C")
LEVELS = Size.of("#log C")
"""Sizes beside the dims: the tokens of a chunk, and how often it halves. A third, `PAST`, is on
average how many tokens came before one."""

ZERO = Size.of(0)
BLOCK_CALLS = 20
"""Calls into NumPy that a block of chunks, or a token by itself, takes beside those of its program:
tiles taken out of arrays and put into them."""
TILE_CALLS = 4
"""The same where a chunk of one head is a function's own: tiles read and written."""


INVERSE_CALLS = Size.of(64)
"""Calls into NumPy where a unit lower triangle is inverted by halves."""


CALLS = Size.of(30)
"""Calls into NumPy that a block of queries takes."""


@dataclass(frozen=True, slots=True)
class Runs:
    """How a kernel over runs of tokens works, at each of its levels: passes over a tile of its
    decays, products of matrices, calls."""

    passes: float
    products: float
    calls: float


RUNS = {
    "levels": Runs(1, 0, 8),
    "gram": Runs(2, 1, 8),
    "meet": Runs(2, 1, 8),
    "meet_pull": Runs(10, 2, 40),
    "decayed": Runs(4, 1, 10),
    "decayed_pull": Runs(12, 3, 50),
    "prefix_pull": Runs(6, 0, 25),
    "suffix_pull": Runs(6, 0, 25),
    "whole_pull": Runs(6, 0, 25),
    "matrix": Runs(2, 0, 8),
    "matrix_pull": Runs(10, 0, 40),
}


@dataclass(frozen=True, slots=True)
class Work:
    """Flops in products of matrices, flops in elementwise work, entries of tiles that pass through
    memory, matrices multiplied, calls into NumPy, calls for one token of many."""

    products: Size = ZERO
    maps: Size = ZERO
    entries: Size = ZERO
    matrices: Size = ZERO
    calls: Size = ZERO
    steps: Size = ZERO

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products,
            self.maps + other.maps,
            self.entries + other.entries,
            self.matrices + other.matrices,
            self.calls + other.calls,
            self.steps + other.steps,
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
    for phase, each in zip(found, of_instructions(program)):
        name = phase_name(phase, len(loops))
        total[name] = total[name] + each
    return total


def total(works: Iterable[Work]) -> Work:
    """The sum of counts."""
    found = Work()
    for one in works:
        found = found + one
    return found


def of_instructions(program: Program) -> list[Work]:
    """The counts of each instruction; a number is at hand."""
    at_hand = numbers(program)
    return [
        Work() if n in at_hand else _of_instruction(program, inst)
        for n, inst in enumerate(program.body)
    ]


def _of_instruction(program: Program, inst: Inst) -> Work:
    if inst.op == "stop_gradient" or (inst.op in TILE_OPS and TILE_OPS[inst.op].view):
        return Work()
    operands = [program.body[i] for i in inst.ins]
    axes = dict.fromkeys(a for tile in (*operands, inst) for a in tile.axes)
    row = TILE_OPS[inst.op] if inst.op in TILE_OPS else OPS[inst.op]
    flops = _scaled(extent(program, axes), row.flops)
    tiles = [tile for tile in (*operands, inst) if tile.op != "levels"]
    entries = _sum(extent(program, tile.axes) for tile in tiles)
    if inst.op in RUNS:
        runs = RUNS[inst.op]
        decays = inst if inst.op == "levels" else operands[-1]
        passes = _scaled(extent(program, decays.axes) * LEVELS, 2 * runs.passes)
        calls = _scaled(LEVELS + ONE, runs.calls)
        if runs.products:
            matrices = _scaled(TOKENS, runs.products)
            return Work(flops, ZERO, entries + passes, matrices, calls)
        return Work(ZERO, flops, entries + passes, ZERO, calls)
    match inst.op:
        case "contract":
            return Work(flops, ZERO, entries, ONE, ONE)
        case "solve":
            return Work(flops, ZERO, entries, TOKENS, INVERSE_CALLS)
        case "inverse":
            pairs = extent(program, inst.axes)
            products = _scaled(pairs * TOKENS, 2 / 3)
            return Work(products, _scaled(pairs, 4), _scaled(pairs, 8), TOKENS, INVERSE_CALLS)
        case "dense_solve":
            eliminated = extent(program, operands[0].axes) * program.sizes[inst.value[0]]
            return Work(flops + _scaled(eliminated, 2 / 3), ZERO, entries, TOKENS, ONE)
        case "scan" | "scan_back" | "tropical":
            return Work(ZERO, flops, entries, steps=_scaled(TOKENS, 3))
        case "chain" | "chain_back":
            products = _scaled(extent(program, axes), 2)
            return Work(ZERO, flops, entries + products, steps=_scaled(TOKENS, 4))
    return Work(ZERO, flops, entries, ZERO, ONE)


def lowered(derived: Derived, back: bool = False) -> list[Program]:
    """The programs of all passes, forward or ``back``, as they run."""
    passes = [p for p in derived.passes if isinstance(p, ChunkPass)]
    return [p.lowered_back if back else p.lowered for p in passes]


def attended(derived: Derived, back: bool = False) -> Work:
    """The counts of all attentions for the queries of one chunk, or of their gradients."""
    found = Work()
    for p in derived.passes:
        if isinstance(p, AttentionPass):
            found = found + attention(p, back)
    return found


def attention(p: AttentionPass, back: bool = False) -> Work:
    """The queries of a chunk see one another, and the tokens before that are in sight."""
    seen = PAST + _scaled(TOKENS, 0.5) if p.window is None else TOKENS + Size.of(p.window - 1)
    pairs = TOKENS * seen
    wide = prod(p.keys.shape, start=ONE), prod(p.values.shape, start=ONE)
    read = seen * (wide[0] + wide[1])
    if back:
        products = pairs * (_scaled(wide[0], 6) + _scaled(wide[1], 4))
        return Work(products, _scaled(pairs, 12), _scaled(pairs, 14) + _scaled(read, 3), ONE, CALLS)
    products = _scaled(pairs * (wide[0] + wide[1]), 2)
    return Work(products, _scaled(pairs, 12), _scaled(pairs, 8) + read, ONE, CALLS)


def from_state(program: Program) -> Work:
    """The counts of a chunk that starts from a state, and leaves one."""
    return total(of_instructions(program))


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
    return total(each for n, each in enumerate(of_instructions(program)) if n in live)


def held(derived: Derived) -> Size:
    """Entries that a chunk works on at a time: its inputs, as much twice over, a tile of pairs, and
    states and matrices of each of its tokens that are scanned or solved."""
    wide, pairs, matrices = ZERO, ZERO, ZERO
    if any(isinstance(p, AttentionPass) for p in derived.passes):
        pairs = TOKENS * TOKENS
    for program in lowered(derived):
        for kind in ("input", "stored"):
            loads = program.loads(kind).values()
            wide = wide + _sum(extent(program, program.body[n].axes) for n in loads)
        if any("s" in inst.axes for inst in program.body):
            pairs = TOKENS * TOKENS
        solved = (
            program.body[i.ins[0]].axes for i in program.body if i.op in ("dense_solve", "scan")
        )
        matrices = matrices + _scaled(_sum(extent(program, axes) for axes in solved), 6)
    return _scaled(wide, 3) + pairs + matrices


def kept(derived: Derived, apart: bool) -> Size:
    """Entries that a chunk's states take up on the way forward and back: written, read, and laid
    out anew for products each way; in functions of their own also those of the adjoint, which is
    read and laid out there as well, so much as C was measured to gain with longer chunks."""
    found = ZERO
    for stage in derived.passes:
        if isinstance(stage, AttentionPass):
            continue
        for n in stage.forward.loads("state").values():
            found = found + extent(stage.forward, stage.forward.body[n].axes)
    return _scaled(found, 8 if apart else 4)


def evaluate(size: Size, at: Mapping[str, float]) -> float:
    """The number of a count."""
    return sum(float(c) * prod(at[name] ** power for name, power in m) for m, c in size.terms)


def extent(program: Program, axes: Iterable[str]) -> Size:
    """The number of entries of a tile over ``axes``."""
    size = ONE
    for axis in axes:
        size = size * (TOKENS if axis in TIME else program.sizes[axis])
    return size


def _scaled(size: Size, by: float) -> Size:
    return Size(tuple((m, c * Fraction(by)) for m, c in size.terms)) if by else ZERO


def _sum(sizes: Iterable[Size]) -> Size:
    found = ZERO
    for size in sizes:
        found = found + size
    return found
