"""The `Fit` of a kernel and the sizes of a call in, how the kernel is launched out; no benchmark.

Emitted files hold a copy of this module, below `lacc.tile.fit` and `lacc.plan.devices`. Use:

    call = Workload(dims, sequences, heads, tokens, chunk, chunks, element, precision, device, sms)
    config = launch("carry_0", FITS["carry_0"], call)
    carry_0[(call.sequences * call.heads, config.blocks)](
        ..., BV=config.block, num_warps=config.warps, num_stages=config.stages)

At most `CANDIDATES` launches fit a kernel's registers and shared memory and are compared by the
time that they should take; `TUNED` is asked first. `chunk_of` chooses the tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lacc.plan.devices import Device, device_named
from lacc.tile.fit import Fit, lengths, power_of_two, registers, shared, size

CANDIDATES = 10
BLOCKS = (16, 32, 64, 128)
WARPS = (4, 8, 2, 1, 16)
CHUNKS = (16, 32, 64)
ENTRIES = 1 << 20
"""Entries of a tile that Triton takes at most."""


@dataclass(frozen=True)
class Workload:
    """What the launches of a call depend on.

    dims        every dim, sorted by name
    sequences   of the batch
    heads       of each
    tokens      of all sequences together
    chunk       tokens of a chunk, a power of two >= 16
    chunks      of all sequences together
    element     bytes of an entry of the inputs
    precision   what products round their operands to: "bf16", "fp16", "tf32", "tf32x3", "ieee"
    device      "sm_90", "gfx942", …, or "" where kernels are interpreted
    multiprocessors  of the device, 0 where the profile says how many
    """

    dims: tuple[tuple[str, int], ...]
    sequences: int
    heads: int
    tokens: int
    chunk: int
    chunks: int
    element: int = 2
    precision: str = "bf16"
    device: str = "sm_90"
    multiprocessors: int = 0


@dataclass(frozen=True)
class Launch:
    """``blocks`` programs share the axis that is split, with ``block`` entries each; ``warps`` of
    a program; ``stages`` of its loop are loaded ahead.
    """

    block: int
    blocks: int
    warps: int
    stages: int


MARGIN, SPILLED = 1.5, 16
"""How many times the shared memory of a device, and the registers of a thread, a kernel may seem to
need: beyond it is refused."""
DOUBTFUL = 2.0
"""How many times the registers of a thread a kernel may seem to need and yet have enough, since a
model may err."""
ROOM = 1.0
"""The part of a thread's registers up to which fewer are no better: the rest is for what the model
does not see."""
TUNED: dict[tuple[str, Workload], Launch] = {}
"""Launches that were measured: by kernel and `bucket` of the call."""
REMEMBERED = 4096
"""Launches that are remembered; with one more, all are forgotten."""
_CHOSEN: dict[tuple[str, Workload], Launch] = {}


def bucket(call: Workload) -> Workload:
    """The call that stands for all whose launches are tuned together: counts are rounded up to
    powers of two.
    """
    counts = (call.sequences, call.heads, call.tokens, call.chunks)
    sequences, heads, tokens, chunks = (power_of_two(max(1, n)) for n in counts)
    return replace(call, sequences=sequences, heads=heads, tokens=tokens, chunks=chunks)


def launch(kernel: str, fit: Fit, call: Workload) -> Launch:
    """How ``kernel`` is launched in a call. ValueError where nothing fits the device: names the
    sizes and the limit.
    """
    found = _CHOSEN.get((kernel, call)) or TUNED.get((kernel, bucket(call)))
    if found is None:
        each = candidates(fit, call) or spilling(fit, call)
        if not each:
            raise ValueError(too_large(kernel, fit, call))
        found = each[0]
    if len(_CHOSEN) >= REMEMBERED:
        _CHOSEN.clear()
    _CHOSEN[kernel, call] = found
    return found


def candidates(fit: Fit, call: Workload) -> list[Launch]:
    """At most `CANDIDATES` launches that spill nothing, the one that should be fastest first."""
    device = device_of(call)
    fitting = [x for x in every(fit, call) if fits(fit, call, x, device)]
    return sorted(fitting, key=lambda x: seconds(fit, call, x))[:CANDIDATES]


def tightness(fit: Fit, call: Workload) -> float:
    """The part of a thread's registers that the launch which needs the fewest takes; infinite where
    none fits the device."""
    device = device_of(call)
    found = [(x, *needs(fit, call, x, device)) for x in every(fit, call)]
    held = (used / most_of(x, device) for x, used, memory in found if memory <= device.shared)
    return min(held, default=float("inf"))


def sparing(fit: Fit, call: Workload) -> list[Launch]:
    """All launches that the device can hold and that may spill nothing after all, those that need
    the fewest registers first, and of those alike the faster."""
    device = device_of(call)
    found = {x: needs(fit, call, x, device) for x in every(fit, call)}
    able = [
        x
        for x, (used, memory) in found.items()
        if memory <= device.shared and used <= DOUBTFUL * most_of(x, device)
    ]

    def key(x: Launch) -> tuple[float, float]:
        return round(found[x][0] / most_of(x, device), 1), seconds(fit, call, x)

    return sorted(able, key=key)


def spilling(fit: Fit, call: Workload) -> list[Launch]:
    """Launches that spill registers, where none does not: the one that spills least first. Behind
    them, since a model may err, those that seem to need more shared memory than there is, up to
    `MARGIN` times as much.
    """
    device = device_of(call)
    over = {x: needs(fit, call, x, device) for x in every(fit, call)}

    def key(x: Launch) -> tuple[float, float, float]:
        used, memory = over[x]
        return max(memory, device.shared), used / most_of(x, device), seconds(fit, call, x)

    able = (
        x
        for x, (used, memory) in over.items()
        if memory <= MARGIN * device.shared and used <= SPILLED * most_of(x, device)
    )
    return sorted(able, key=key)[:CANDIDATES]


def total(fits_: Iterable[Fit], call: Workload) -> float:
    """Seconds that kernels should take one after another, infinite where one does not fit."""
    found = 0.0
    for fit in fits_:
        each = candidates(fit, call) or spilling(fit, call)
        found += seconds(fit, call, each[0]) if each else float("inf")
    return found


def every(fit: Fit, call: Workload) -> list[Launch]:
    """All launches with tiles that Triton takes, whether they fit the device or not."""
    return [x for x in _every(fit, call) if entries(fit, call, x) <= ENTRIES]


def entries(fit: Fit, call: Workload, x: Launch) -> int:
    """Entries of the largest tile."""
    at = lengths(fit, dict(call.dims), call.chunk, x.block)
    tiles = (*fit.registers, *fit.shared, fit.loads, fit.stores)
    return max((at.of(tile) for each in tiles for _, tile in each), default=1)


def _every(fit: Fit, call: Workload) -> list[Launch]:
    whole = 1
    if fit.split:
        whole = size(fit.sizes[fit.split], dict(call.dims))
    padded = power_of_two(max(whole, 16 if fit.products and fit.split else 1))
    blocks = sorted({min(block, padded) for block in (*BLOCKS, padded)}) if fit.split else [1]
    stages = (3, 2, 1) if fit.kind == "loop" else (1,)
    warps = tuple(w for w in WARPS if w >= 4 or not fit.products)
    return [
        Launch(block, -(-whole // block), w, ahead)
        for block in blocks
        for w in warps
        for ahead in stages
    ]


def device_of(call: Workload) -> Device:
    """The profile of the call's device. Interpreted kernels have no limits."""
    found = device_named(call.device or "sm_90")
    if not call.device:
        found = replace(found, most=1 << 30, registers=1 << 60, shared=1 << 60, shared_all=1 << 60)
    return replace(found, multiprocessors=call.multiprocessors or found.multiprocessors)


def needs(fit: Fit, call: Workload, x: Launch, device: Device) -> tuple[float, float]:
    """Registers of a thread and bytes of shared memory of a program."""
    at = lengths(fit, dict(call.dims), call.chunk, x.block)
    element = 2 if call.precision in ("bf16", "fp16") else 4
    used = registers(fit, at, x.warps, device.lanes, call.precision)
    return used, shared(fit, at, element, x.stages)


def fits(fit: Fit, call: Workload, x: Launch, device: Device) -> bool:
    """Whether a launch needs no more than the device has, so that no register is spilled."""
    used, memory = needs(fit, call, x, device)
    return used <= most_of(x, device) and memory <= device.shared


def most_of(x: Launch, device: Device) -> int:
    """Registers that a thread may have."""
    return min(device.most, device.registers // (x.warps * device.lanes))


def seconds(fit: Fit, call: Workload, x: Launch) -> float:
    """The time that a kernel should take: waves of programs, each as long as the most that it does:
    products, instructions, bytes, or waiting for one step after another.
    """
    device = device_of(call)
    used, memory = needs(fit, call, x, device)
    whole = x.block * x.blocks if fit.looped else x.block
    at = lengths(fit, dict(call.dims), call.chunk, whole, x.blocks)
    shares = 1 if fit.looped else x.blocks
    threads = x.warps * device.lanes
    at_once = min(
        device.warps // x.warps,
        int(device.registers // (threads * max(used, 32))),
        int(device.shared_all // (memory + 1024)),
    )
    lanes = {"chunk": call.chunks, "loop": call.sequences, "token": call.sequences}[fit.kind]
    programs = max(1, lanes * call.heads * shares)
    trips = {"chunk": 1, "loop": call.chunks, "token": call.tokens}[fit.kind] / max(
        1, 1 if fit.kind == "chunk" else call.sequences
    )
    rows = min(1.0, call.chunk / 64) * min(1.0, x.warps / 4)
    products = at.entries(fit.products) / (device.flops * max(rows, 1 / 8))
    spilled = 4 * max(0.0, used - most_of(x, device)) * threads
    issue = (at.entries(fit.maps) + spilled) / device.lanes / device.issue
    moved = call.element * (at.entries(fit.loads) + at.entries(fit.stores))
    bytes_ = moved / (device.bandwidth / device.multiprocessors)
    resident = min(max(1, at_once), -(-programs // device.multiprocessors))
    waves = -(-programs // (device.multiprocessors * resident))
    wait = LATENCY * (len(fit.products) + 1) / min(x.stages, 2)
    wait *= x.blocks if fit.looped else 1
    return waves * trips * max(wait, resident * (max(products, bytes_) + issue))


LATENCY = 0.4e-6
"""Seconds that a step waits for memory or a product before the next one can begin."""


def chunk_of(fits_: Mapping[str, Fit], call: Workload, longest: int = CHUNKS[-1]) -> int:
    """Tokens of a chunk for all kernels, at most the ``longest`` that they are laid out for: the
    most of those that take about the least time, spills counted; the call's own are not looked at.
    ValueError where none fits.
    """
    times = {c: total(fits_.values(), x) for c, x in in_chunks(call).items() if c <= longest}
    least = min(times.values())
    fitting = [c for c, time in times.items() if time <= ABOUT * least < float("inf")]
    best = max(fitting, default=min(times))
    for name, fit in fits_.items():
        launch(name, fit, in_chunks(call)[best])
    return best


ABOUT = 1.1
"""Times that a model tells apart: longer chunks keep fewer states."""


UNDERRATED = 1.5
"""How much longer chunks that spill take than a model says, at least: binaries of longhorn and
mamba1 for sm_90, whose loops hold twice what there is, issue 1.6 and 1.8 times as much."""


def slower(fits_: Mapping[str, Fit], token: Mapping[str, Fit], call: Workload) -> bool:
    """Whether chunks of any length spill registers, or do not fit at all, and take longer than one
    token after another."""
    calls = in_chunks(call)
    if any(all(candidates(fit, c) for fit in fits_.values()) for c in calls.values()):
        return False
    least = min(total(fits_.values(), c) for c in calls.values())
    return total(token.values(), call) < UNDERRATED * least


def in_chunks(call: Workload) -> dict[int, Workload]:
    """The call in chunks of each length."""
    calls = {}
    for chunk in CHUNKS:
        chunks = call.sequences * -(-call.tokens // (chunk * max(1, call.sequences)))
        calls[chunk] = replace(call, chunk=chunk, chunks=max(1, chunks))
    return calls


def too_large(kernel: str, fit: Fit, call: Workload) -> str:
    """Why nothing fits: the sizes, and the limit of the device that the smallest launch exceeds."""
    device = device_of(call)
    least = min(_every(fit, call), key=lambda x: (needs(fit, call, x, device)[1], -x.warps))
    used, memory = needs(fit, call, least, device)
    where = ", ".join(f"{name} = {n}" for name, n in call.dims)
    if (tile := entries(fit, call, least)) > ENTRIES:
        when = "" if fit.kind == "token" else f" in chunks of {call.chunk} tokens"
        return f"{kernel} with {where} needs a tile of {tile} entries{when}; Triton takes {ENTRIES}"
    if memory > device.shared:
        return (
            f"{kernel} with {where} needs {memory / 1024:.0f} KiB of shared memory in chunks of "
            f"{call.chunk} tokens; {device.name} has {device.shared >> 10} KiB a program"
        )
    return (
        f"{kernel} with {where} needs {used:.0f} registers a thread in chunks of {call.chunk} "
        f"tokens; {device.name} has {device.most}"
    )
