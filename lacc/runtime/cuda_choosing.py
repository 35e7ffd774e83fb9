"""What the CUDA kernels of a file do and a call in, tokens of a chunk, entries of a block and
threads out, by what the call should take; no benchmark.

This module stands alone: its text is pasted into emitted files, behind `lacc.plan.devices` and
`cuda_arena.py`. The time of a kernel is the longer one of two:

    memory      the bytes of its arrays, those of states that chunks keep among them, and twice
                those of scratch memory, at the device's bandwidth
    rounds      as many times as all blocks fill the device: what the blocks on a multiprocessor
                issue and multiply together, or what one of them waits for, whichever is more;
                blocks that lie side by side there hide each other's waits
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lacc.plan.devices import Device, device_named
from lacc.runtime.cuda_arena import Tile, arena, evaluated

TOKENS = (64, 32, 16)
BLOCKS = (128, 64, 32, 16)
THREADS = (128, 256)
"""Tokens of a chunk, entries of the axis that blocks share, and threads of a block."""
LATENCY = 0.4e-6
"""Seconds that the threads of a block wait for one another and for memory, from one barrier to
the next."""
LAUNCH = 3e-6
"""Seconds that a launch takes."""
BUSY = 8
"""Warps that keep a multiprocessor busy."""
MULTIPLY = 4096.0 / 4
"""Flops of a product for each instruction of a warp, operands staged."""
REGISTERS = 200
"""Registers of a thread, about."""
FAR = 4.0
"""How much longer work on tiles in scratch memory takes."""
ABOUT = 1.1
"""Times that a model tells apart."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a kernel does, sizes as C in the names of dims and ``L``, the tokens of a chunk.

    kind       "chunk": a block has one; "loop", "token": one after another, of a sequence
    tiles      the tiles of a block
    stretches  from barrier to barrier, for a chunk
    products   flops of products of matrices of a block for a chunk, by their size
    entries    operations entry by entry, in the same way
    token      entries of arrays for each token, chunk: for each chunk
    split      the axis that blocks share: the name of the entries of a block, and its size; or two
               times ""
    """

    kind: str
    tiles: tuple[Tile, ...]
    stretches: int
    products: Mapping[str, float]
    entries: Mapping[str, float]
    token: str
    chunk: str
    split: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Load:
    """A call: its dims, sequences, heads of each, tokens of all sequences; bytes of an entry of its
    inputs; the device, and its multiprocessors (0: as its profile says)."""

    dims: tuple[tuple[str, int], ...]
    sequences: int
    heads: int
    tokens: int
    element: int = 2
    device: str = "sm_90"
    multiprocessors: int = 0


@dataclass(frozen=True)
class Choice:
    """How a kernel is launched, and what that takes: ``resident`` blocks are on a multiprocessor at
    once."""

    block: int
    threads: int
    shared: int
    scratch: int
    resident: int
    moved: float
    memory: float
    rounds: float

    @property
    def seconds(self) -> float:
        """What the kernel takes."""
        return max(self.memory, self.rounds) + LAUNCH


@lru_cache(maxsize=4096)
def choice(work: Work, load: Load, tokens: int) -> Choice:
    """The launch of a kernel that should take the least time, in chunks of so many ``tokens``."""
    return min(_choices(work, load, tokens), key=lambda x: (x.seconds, -x.block))


def _choices(work: Work, load: Load, tokens: int) -> Iterator[Choice]:
    device = device_named(load.device)
    most, size = work.split
    sizes = {**dict(load.dims), "L": tokens}
    whole = evaluated(size, sizes) if size else 1
    for block in BLOCKS if size else BLOCKS[-1:]:
        if block >= 2 * whole and block > BLOCKS[-1]:
            continue
        here = sizes | ({most: min(block, whole)} if size else {})
        shared, scratch = arena(work.tiles, here, device.shared)
        for threads in THREADS if load.device else THREADS[:1]:
            yield _cost(work, load, device, here, (block, threads, shared, scratch), whole)


def _cost(
    work: Work,
    load: Load,
    device: Device,
    sizes: Mapping[str, int],
    launch: tuple[int, int, int, int],
    whole: int,
) -> Choice:
    block, threads, shared, scratch = launch
    each = sizes["L"]
    chunks = max(load.sequences, -(-load.tokens // each))
    single = work.kind == "chunk"
    blocks = (chunks if single else load.sequences) * load.heads * -(-whole // block)
    after = 1 if single else -(-chunks // load.sequences)
    warps = threads // device.lanes
    multiprocessors = load.multiprocessors or device.multiprocessors
    resident = min(
        device.shared_all // (shared + 1024),
        device.registers // (REGISTERS * threads),
        device.warps // warps,
    )
    resident = max(1, min(resident, -(-blocks // multiprocessors)))
    flops = sum(n * evaluated(size, sizes) for size, n in work.products.items())
    operations = sum(n * evaluated(size, sizes) for size, n in work.entries.items())
    issued = (operations / device.lanes + flops / MULTIPLY) / device.issue
    busy = max(issued, flops / device.flops)
    alone = busy * max(1.0, BUSY / warps) + work.stretches * LATENCY
    rounds = -(-blocks // (multiprocessors * resident)) * after * max(resident * busy, alone)
    rounds *= 1 + (FAR - 1) * scratch / (shared + scratch)
    moved = evaluated(work.token, sizes) * load.tokens + evaluated(work.chunk, sizes) * chunks
    moved = moved * load.heads * load.element + 2 * scratch * blocks
    memory = moved / device.bandwidth
    return Choice(block, threads, shared, scratch, resident, moved, memory, rounds)


def total(works: Iterable[Work], load: Load, tokens: int) -> float:
    """Seconds that kernels take one after another."""
    return sum(choice(work, load, tokens).seconds for work in works)


def chunk_of(works: Mapping[str, Work], load: Load) -> int:
    """Tokens of a chunk for all kernels: of those that take about the least time the ones that move
    the least, the most of these."""
    every = {n: [choice(work, load, n) for work in works.values()] for n in TOKENS}
    times = {n: sum(x.seconds for x in chosen) for n, chosen in every.items()}
    near = [n for n, time in times.items() if time <= ABOUT * min(times.values())]
    return min(near, key=lambda n: (sum(x.moved for x in every[n]), -n))


def spoken(works: Mapping[str, Work], load: Load) -> list[str]:
    """What is chosen for a call, and why."""
    chosen = chunk_of(works, load)
    sizes = ", ".join(f"{name} = {size}" for name, size in load.dims)
    found = [
        f"{load.sequences} x {load.tokens // load.sequences} tokens, {load.heads} heads"
        f"{', ' if sizes else ''}{sizes}, on {load.device}: chunks of {chosen} tokens"
    ]
    for tokens in TOKENS:
        every = [choice(work, load, tokens) for work in works.values()]
        moved = sum(x.moved for x in every) / (1 << 20)
        micros = 1e6 * sum(x.seconds for x in every)
        found.append(f"chunks of {tokens}: {micros:.0f} us, {moved:.0f} MiB moved")
    for name, work in works.items():
        x = choice(work, load, chosen)
        part = f"{x.block} entries of the shared axis a block, " if work.split[1] else ""
        far = f" and {x.scratch >> 10} of scratch" if x.scratch else ""
        found.append(
            f"{name}: {part}{x.threads} threads, {x.shared >> 10} KiB of shared memory{far}, "
            f"{x.resident} on a multiprocessor; memory {1e6 * x.memory:.0f} us, "
            f"rounds {1e6 * x.rounds:.0f} us"
        )
    return found
