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

Axis = str | int | Callable[[Mapping[str, int]], int]


def fit(
    x: Mapping[str, torch.Tensor],
    axes: Mapping[str, tuple[Axis, ...]],
    pinned: Mapping[str, int],
    defaults: Mapping[str, int],
    interpreted: bool,
) -> dict[str, int]:
    """The sizes of all axes by name.

    An axis is a name, a number, or a size that follows from others; a name that no argument shows
    has its default. Raises TypeError or ValueError where an argument is not what it should be.
    """
    for name, given in x.items():
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{name}: expected a torch tensor, got {type(given).__name__}")
        if given.dtype not in FLOATS or (given.dtype == torch.float64 and not interpreted):
            raise TypeError(f"{name}: expected float16, bfloat16 or float32, got {given.dtype}")
        if given.ndim != len(axes[name]):
            raise ValueError(f"{name}: expected {len(axes[name])} axes, got {list(given.shape)}")
    sizes = dict(pinned)
    for name, given in x.items():
        for axis, size in zip(axes[name], given.shape):
            if isinstance(axis, str):
                sizes.setdefault(axis, size)
    sizes = {**defaults, **sizes}
    first, like = next(iter(x.items()))
    for name, given in x.items():
        wanted = [_size(axis, sizes) for axis in axes[name]]
        if list(given.shape) != wanted:
            named = (a if isinstance(a, str) else "size" for a in axes[name])
            text = ", ".join(f"{axis} = {size}" for axis, size in zip(named, wanted))
            raise ValueError(f"{name}: expected [{text}], got {list(given.shape)}")
        if given.device != like.device:
            raise ValueError(f"{name}: expected one on {like.device}, got {given.device}")
    if not interpreted and like.device.type != "cuda":
        raise ValueError(
            f"{first}: expected a CUDA tensor, got one on {like.device}; a CPU runs what lacc "
            "emits with --target numpy, or this file where TRITON_INTERPRET=1 is set from the start"
        )
    if sizes["H"] % max(sizes["G"], 1):
        raise ValueError(f"{sizes['H']} heads are not whole groups of {sizes['G']}")
    return sizes


def _size(axis: Axis, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, str):
        return sizes[axis]
    return axis if isinstance(axis, int) else axis(sizes)


def block(name: str, size: int) -> int:
    """Entries of a tile that holds an axis: a power of two from 16 on."""
    if size > LARGEST:
        raise ValueError(f"{name}: at most {LARGEST} fit in a program, got {size}")
    return max(16, int(triton.next_power_of_2(size)))


def starting(
    given: Any, shapes: Mapping[str, tuple[int, ...]], like: torch.Tensor, dtype: torch.dtype
) -> dict[str, torch.Tensor] | None:
    """The states before the first token by name, zeros where missing; None where none is given."""
    if given is None:
        return None
    if isinstance(given, torch.Tensor):
        if len(shapes) != 1:
            raise ValueError(f"initial_state: expected fields {', '.join(shapes)}, got one tensor")
        given = dict(zip(shapes, [given]))
    given = given._asdict() if hasattr(given, "_asdict") else dict(given)
    if unknown := given.keys() - shapes.keys():
        raise ValueError(f"initial_state: expected fields {', '.join(shapes)}, got {min(unknown)}")
    found = {}
    for name, shape in shapes.items():
        x = given.get(name)
        if x is None:
            x = torch.zeros(shape, device=like.device)
        if tuple(x.shape) != shape or x.device != like.device:
            wanted, got = f"{list(shape)} on {like.device}", f"{list(x.shape)} on {x.device}"
            raise ValueError(f"initial_state: expected {name} {wanted}, got {got}")
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
