"""What a kernel keeps on the chip, does and moves, and the sizes of a call in; registers, shared
memory, flops and bytes of one of its programs out. Plain Python: emitted files hold a copy.

Notation: a *tile* is a product of axes. Axis "t" is the tokens of a chunk, "/" the block of the
axis that is split among programs, every other one is named by its size ("K", "K + V") and rounded
up to a power of two. "#" counts the blocks that a program goes through; "~" marks a tile that no
product of matrices holds. `Tiles` are tiles with how many there are of each:
((2, ("K", "t")), (1, ("/", "K"))).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

Tile = tuple[str, ...]
Tiles = tuple[tuple[float, Tile], ...]
Polynomial = tuple[tuple[float, tuple[str, ...]], ...]
"""A size as its terms, a coefficient and the dims that are multiplied: ((1, ("K",)), (2, ()))."""


@dataclass(frozen=True)
class Cost:
    """Registers of a thread: ``fixed``, ``each`` matrix that is loaded or stored (addresses and
    masks, which a loop keeps), and the ``share`` of what lives at once that is not spread out in
    time.
    """

    fixed: float
    each: float
    share: float


COSTS = {"chunk": Cost(60, 0, 0.72), "loop": Cost(70, 15, 1.0), "token": Cost(60, 0, 1.0)}
"""By kind of kernel; fitted to what the compiler gives for sm_90."""
COPIES = {"bf16": 1.0, "fp16": 1.0, "tf32": 2.0, "tf32x3": 4.5, "bf16x6": 4.5, "ieee": 4.5}
"""How much more lives at once where operands of products keep more than 16 bits: they are in
registers, in parts whose products are added."""

LOOPED = 20
"""Registers of a thread beside those for what lives at once where a program goes through blocks:
addresses and masks of each, which stay from one to the next."""

ROWS = 16
"""Rows of a product of matrices that one warp has at least; others hold copies."""
VECTOR = 16
"""Threads over which the entries of a vector are spread; others hold copies."""


@dataclass(frozen=True)
class Fit:
    """One kernel, before any size is known.

    kind       "chunk": a program works on one chunk; "loop": on all chunks of a sequence, one after
               another; "token": on all tokens, one after another
    split      the size of the axis that programs share ("" where one program holds all of it)
    sizes      the size of every axis but "t" and "/", over the dims
    registers  what lives in registers at once, at each point that may be the fullest: float32
    shared     the same of operands of products, which are in shared memory
    loads      what a chunk reads; what has no "/" is read again by every block
    stores     what a chunk writes
    products   flops in products of matrices
    maps       operations in elementwise work
    """

    kind: str
    split: str
    sizes: Mapping[str, Polynomial]
    registers: tuple[Tiles, ...]
    shared: tuple[Tiles, ...]
    loads: Tiles
    stores: Tiles
    products: Tiles
    maps: Tiles
    looped: bool = False


@dataclass(frozen=True)
class Lengths:
    """Entries along the axes of tiles, "t" and "/" among them."""

    axes: Mapping[str, int]

    def of(self, tile: Tile) -> int:
        """Entries of a tile."""
        return prod(self.axes[a] for a in tile if a != "~")

    def entries(self, tiles: Tiles) -> float:
        """Entries of all the tiles together."""
        return sum(count * self.of(tile) for count, tile in tiles)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, which is at least 1."""
    return 1 << (n - 1).bit_length()


def size(polynomial: Polynomial, dims: Mapping[str, int]) -> int:
    """A size under ``dims``."""
    return int(sum(c * prod(dims[d] for d in names) for c, names in polynomial))


def lengths(fit: Fit, dims: Mapping[str, int], chunk: int, block: int, blocks: int = 1) -> Lengths:
    """The axes of a kernel's tiles in chunks of ``chunk`` tokens, ``blocks`` blocks of ``block``
    entries."""
    axes = {name: power_of_two(max(1, size(p, dims))) for name, p in fit.sizes.items()}
    return Lengths({**axes, "t": chunk, "/": block, "#": blocks})


def registers(fit: Fit, at: Lengths, warps: int, lanes: int = 32, precision: str = "bf16") -> float:
    """Registers that a thread needs, of 4 bytes."""
    cost = COSTS[fit.kind]
    moved = sum(count for count, tile in (*fit.loads, *fit.stores) if len(tile) > 1)
    live = max(
        (sum(c * held(tile, at, warps, lanes) for c, tile in tiles) for tiles in fit.registers),
        default=0.0,
    )
    share = cost.share * (COPIES[precision] if fit.products else 1.0)
    fixed = cost.fixed + (LOOPED if fit.looped else 0)
    return fixed + cost.each * moved + share * live


def held(tile: Tile, at: Lengths, warps: int, lanes: int) -> float:
    """Entries of a tile in one thread."""
    entries = at.of(tile)
    if len([a for a in tile if a != "~"]) < 2:
        return entries / min(entries, VECTOR)
    if "t" in tile and "~" not in tile:
        warps = min(warps, max(1, at.axes["t"] // ROWS))
    return max(1.0, entries / (lanes * warps))


def shared(fit: Fit, at: Lengths, element: int, stages: int) -> float:
    """Bytes of shared memory that a program takes: what its loop loads ahead, and operands."""
    ahead = max(0, stages - 1) if fit.kind == "loop" else 0
    matrices = tuple((c, tile) for c, tile in fit.loads if len(tile) > 1)
    operands = max((at.entries(tiles) for tiles in fit.shared), default=0.0)
    return element * (ahead * at.entries(matrices) + operands)
