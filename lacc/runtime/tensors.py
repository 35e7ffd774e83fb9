"""In: the tensors that a caller of an emitted Triton file gives; out: sizes, starting states and
launch choices, or an error that names the argument, before anything is launched.

Never imported by lacc: emitted files hold copies of what they use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST = 256  # entries of an axis that a program holds at most

Arrays = dict[str, torch.Tensor]
Axis = str | int | Callable[[Mapping[str, int]], int]


def prepared(
    x: Mapping[str, torch.Tensor],
    initial_state: Any,
    chunk: Any,
    *,
    arguments: Mapping[str, tuple[Axis, ...]],
    states: Mapping[str, tuple[Axis, ...]],
    outputs: Mapping[str, tuple[Axis, ...]],
    pinned: Mapping[str, int],
    defaults: Mapping[str, int],
    interpreted: bool,
) -> tuple[dict[str, int], int, Arrays | None, Arrays, Arrays, Any, str]:
    """What one launch takes: sizes by name, tokens of a chunk, states before the first token (None:
    all 0), room for those after the last and for the outputs, the dtype of tiles, and what products
    round to.

    An axis is a name, a number, or a size that follows from others; a name that no argument shows
    has its default. Raises TypeError or ValueError where an argument is not what it should be.
    """
    n = fit(x, arguments, pinned, defaults, interpreted)
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ValueError(f"chunk: expected a positive integer, got {chunk!r}")
    name, first = next(iter(x.items()))
    dtype, tile_dtype, precision = numerics(x, interpreted)
    shapes = {name: tuple(_size(axis, n) for axis in axes) for name, axes in states.items()}
    begun = starting(initial_state, shapes, first, dtype)
    if not interpreted and not on_device(first):
        raise ValueError(
            f"{name}: expected a CUDA tensor, got one on {first.device}; a CPU runs what lacc "
            "emits with --target numpy, or this file where TRITON_INTERPRET=1 is set from the start"
        )
    ended = {
        name: torch.empty(shape, dtype=dtype, device=first.device) for name, shape in shapes.items()
    }
    y = {
        name: torch.empty([_size(axis, n) for axis in axes], dtype=first.dtype, device=first.device)
        for name, axes in outputs.items()
    }
    return n, min(chunk, max(n["T"], 1)), begun, ended, y, tile_dtype, precision


def on_device(x: torch.Tensor) -> bool:
    """Whether kernels can run where ``x`` lies."""
    return x.device.type == "cuda"


def fit(
    x: Mapping[str, torch.Tensor],
    axes: Mapping[str, tuple[Axis, ...]],
    pinned: Mapping[str, int],
    defaults: Mapping[str, int],
    interpreted: bool,
) -> dict[str, int]:
    """The sizes of all axes by name."""
    for name, given in x.items():
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{name}: expected a torch tensor, got {type(given)}")
        if given.dtype not in FLOATS or (given.dtype == torch.float64 and not interpreted):
            floats = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS[:3])
            raise TypeError(f"{name}: expected dtype {floats}, got {given.dtype}")
        if given.ndim != len(axes[name]):
            raise ValueError(f"{name}: expected {_text(axes[name])}, got shape {(*given.shape,)}")
    sizes = dict(pinned)
    for name, given in x.items():
        for axis, size in zip(axes[name], given.shape):
            if isinstance(axis, str):
                sizes.setdefault(axis, size)
    sizes = {**defaults, "G": 1, "H": sizes.get("G", 1), **sizes}
    like = next(iter(x.values()))
    for name, given in x.items():
        if [*given.shape] != [_size(axis, sizes) for axis in axes[name]]:
            wanted = _text(axes[name], sizes)
            raise ValueError(f"{name}: expected {wanted}, got shape {(*given.shape,)}")
        if given.device != like.device:
            raise ValueError(f"{name}: expected one on {like.device}, got {given.device}")
    if sizes["H"] % max(sizes["G"], 1):
        source = next(name for name in x if "G" in axes[name])
        raise ValueError(f"{source}: G = {sizes['G']} does not divide H = {sizes['H']}")
    return sizes


def _size(axis: Axis, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, str):
        return sizes[axis]
    return axis if isinstance(axis, int) else axis(sizes)


def _text(axes: tuple[Axis, ...], sizes: Mapping[str, int] | None = None) -> str:
    """``[B, T, K]``, or ``[B = 2, T = 5, K = 4]``, for messages."""
    names = ["size" if callable(axis) else str(axis) for axis in axes]
    if sizes is not None:
        names = [f"{name} = {_size(axis, sizes)}" for name, axis in zip(names, axes)]
    return f"[{', '.join(names)}]"


def block(name: str, size: int) -> int:
    """Entries of a tile that holds an axis: a power of two from 16 on."""
    if size > LARGEST:
        raise ValueError(f"{name}: at most {LARGEST} fit in a program, got {size}")
    return max(16, int(triton.next_power_of_2(size)))


def starting(
    given: Any, shapes: Mapping[str, tuple[int, ...]], like: torch.Tensor, dtype: torch.dtype
) -> Arrays | None:
    """The states before the first token by name, zeros where missing; None where none is given."""
    names = tuple(shapes)
    if given is None:
        return None
    if isinstance(given, torch.Tensor) and len(names) == 1:
        given = {names[0]: given}
    elif isinstance(given, tuple):
        if len(given) != len(names) or getattr(given, "_fields", names) != names:
            got = ", ".join(getattr(given, "_fields", (f"{len(given)} entries",)))
            raise ValueError(f"initial_state: expected ({', '.join(names)}), got ({got})")
        given = dict(zip(names, given))
    elif not isinstance(given, Mapping):
        some = f"a tuple or dict of {', '.join(names)}"
        raise TypeError(f"initial_state: expected {some}, got {type(given)}")
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"initial_state: expected {', '.join(names)}, got {unknown[0]!r}")
    found = {}
    for name, shape in shapes.items():
        x = given.get(name)
        if x is None:
            x = torch.zeros(shape, device=like.device)
        elif not isinstance(x, torch.Tensor):
            raise TypeError(f"initial_state.{name}: expected a torch tensor, got {type(x)}")
        if tuple(x.shape) != shape or x.device != like.device:
            wanted, got = f"{[*shape]} on {like.device}", f"shape {(*x.shape,)} on {x.device}"
            raise ValueError(f"initial_state.{name}: expected {wanted}, got {got}")
        found[name] = x.to(dtype).contiguous()
    return found


def numerics(x: Mapping[str, torch.Tensor], interpreted: bool) -> tuple[Any, Any, str]:
    """The dtype of states in torch and in Triton, and what products round their operands to: as
    much as the outputs, which have the first argument's dtype. The interpreter rounds nothing.
    """
    if any(given.dtype == torch.float64 for given in x.values()):
        return torch.float64, tl.float64, "ieee"
    rounded = {torch.bfloat16: "bf16", torch.float16: "tf32"}
    first = next(iter(x.values())).dtype
    return torch.float32, tl.float32, "ieee" if interpreted else rounded.get(first, "ieee")
