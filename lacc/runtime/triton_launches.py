"""One run of the passes in, how its Triton kernels are launched out.

This module stands alone (torch and Triton only): its text is pasted into emitted Triton files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from lacc.runtime.launching import (
    TUNED,
    Launch,
    Workload,
    bucket,
    chunk_of,
    launch,
    slower,
    sparing,
    too_large,
    total,
)
from lacc.runtime.torch_rooms import block
from lacc.runtime.torch_run import Support, on_device
from lacc.runtime.torch_walk import power_from, precision_of
from lacc.tile.fit import Fit

SUPPORT = Support(
    {torch.float32: tl.float32, torch.float64: tl.float64},
    "--target numpy, or this file where TRITON_INTERPRET=1 is set from the start",
    bool(triton.knobs.runtime.interpret),
)
"""Triton's kernels: the interpreter runs them on the CPU, too."""


@cache
def level_masks(C: int, device: torch.device) -> torch.Tensor:
    """[3, levels, C, C] of `masked`, 0 and 1 in bfloat16."""
    every, steps = range(C), [1 << level for level in range((C - 1).bit_length())]
    meet = [[[t & -m ^ m == s & -m for s in every] for t in every] for m in steps]
    cross = [
        [[t & -m == s & -m and (s >= t if t & m else s < t) for s in every] for t in every]
        for m in steps
    ]
    strict = [[[x and s != t for s, x in enumerate(row)] for t, row in enumerate(a)] for a in cross]
    return torch.tensor([meet, cross, strict], dtype=torch.bfloat16, device=device)


def sized(dims: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Every dim, sorted by name."""
    return tuple((name, int(size)) for name, size in sorted(dims.items()))


def call_of(run: Any) -> Workload:
    """What the launches of a run depend on. Sequences, tokens and chunks are rounded up to powers
    of two: no plan is made anew for every length, and `torch.compile` may leave it open."""
    return Workload(
        sized(run.dims),
        power_from(run.N, 1),
        int(run.H),
        power_from(run.B * run.T, 1),
        block(run.C, 16),
        power_from(run.chunks, 1),
        run.out_dtype.itemsize,
        run.PRECISION,
        device_name(run.device),
        run.sms,
    )


_PLANNED: dict[tuple[str, Workload], int] = {}
_ALONE: dict[tuple[str, Workload], bool] = {}


def planned_chunk(fits_: Mapping[str, Fit], longest: int, args: Any, T: int) -> int:
    """The plan's choice of tokens of a chunk, for all kernels of a spec, which are laid out for the
    ``longest``."""
    if not fits_:
        return 16
    key = (" ".join(fits_), call_for(args, T))
    if key not in _PLANNED:
        _PLANNED[key] = chunk_of(fits_, key[1], longest)
    return _PLANNED[key]


def planned_alone(fits_: Mapping[str, Fit], token: Mapping[str, Fit], args: Any, T: int) -> bool:
    """Whether the plan takes one token after another, not chunks."""
    if not fits_:
        return False
    key = (" ".join(fits_), call_for(args, T))
    if key not in _ALONE:
        _ALONE[key] = slower(fits_, token, key[1])
    return _ALONE[key]


def call_for(args: Any, T: int) -> Workload:
    """What plans depend on, before there is a run."""
    return Workload(
        sized(args.dims),
        power_from(args.sizes["#B"], 1),
        int(args.sizes["#H"]),
        power_from(args.sizes["#B"] * T, 1),
        16,
        1,
        args.out_dtype.itemsize,
        precision_of(args),
        device_name(args.device),
    )


@cache
def device_name(device: torch.device) -> str:
    """The name of a device as profiles have it; "" where kernels are interpreted."""
    if not on_device(device):
        return ""
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", "").partition(":")[0]
    return arch or f"sm_{properties.major}{properties.minor}"


TRIES = 4
"""Launches of a kernel that are compiled at most, to find one that spills no register."""
_SETTLED: dict[tuple[str, Workload], Launch] = {}


def called(*arguments: Any, **constants: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a kernel."""
    return arguments, constants


def launched(
    name: str,
    kernel: Any,
    fit: Fit,
    run: Any,
    programs: int,
    arguments: Callable[[Launch], tuple[tuple[Any, ...], dict[str, Any]]],
) -> None:
    """Launches ``programs`` of a kernel, each with all its blocks or a block of the axis that is
    split; nothing where there are none."""
    if not programs or run.dry:
        return
    call = call_of(run)
    config = _SETTLED.get((name, call))
    if config is None:
        config = settled(name, kernel, fit, call, programs, arguments)
        _SETTLED[name, call] = config
    given, constants = arguments(config)
    kernel[grid_of(fit, config, programs)](
        *given, **constants, num_warps=config.warps, num_stages=config.stages
    )


def grid_of(fit: Fit, config: Launch, programs: int) -> tuple[int, int]:
    """The grid of a launch."""
    return programs, 1 if fit.looped else config.blocks


def settled(
    name: str,
    kernel: Any,
    fit: Fit,
    call: Workload,
    programs: int,
    arguments: Callable[[Launch], tuple[tuple[Any, ...], dict[str, Any]]],
) -> Launch:
    """How a kernel is launched: as the model says, or, where a binary spills registers that the
    model has not seen, as the next best that does not, of `TRIES`: with less loaded ahead, then in
    other blocks."""
    first = launch(name, fit, call)
    if not call.device or (name, bucket(call)) in TUNED:
        return first
    spills: dict[Launch, int] = {}
    others = [x for x in sparing(fit, call) if x != first]
    others.sort(key=lambda x: (x.block, x.warps) != (first.block, first.warps))
    for config in [first, *others][:TRIES]:
        given, constants = arguments(config)
        options = {"num_warps": config.warps, "num_stages": config.stages}
        grid = grid_of(fit, config, programs)
        try:
            spills[config] = spills_of(kernel.warmup(*given, grid=grid, **constants, **options))
        except triton.OutOfResources:
            continue
        if not spills[config]:
            return config
    if not spills:
        raise ValueError(too_large(name, fit, call))
    return min(spills, key=spills.__getitem__)


def spills_of(compiled: Any) -> int:
    """Registers that a compiled kernel spills."""
    if getattr(compiled, "n_spills", None) is None:
        compiled.run  # noqa: B018  loads the binary, which tells
    return int(compiled.n_spills)


def in_one(one: Mapping[str, Fit], several: Mapping[str, Fit], run: Any) -> bool:
    """Whether a forward takes one kernel: where it should take no longer than ``several``."""
    call = call_of(run)
    return total(one.values(), call) <= total(several.values(), call)
