"""A signature and a caller's tensors in, the same tensors checked out, with all sizes.

This module stands alone (torch only): its text is pasted into emitted files of torch.
Whatever it raises, a TypeError or a ValueError, names the argument, what was expected and what
came. It looks at shapes, dtypes and devices, never at what a tensor holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from lacc.runtime.contract import Axis, Signature, Value, axes_of, axes_text, size_of
from lacc.runtime.torch_run import Support, Tensors, on_device

WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def name_of(dtype: Any) -> str:
    """``float32`` of torch.float32."""
    return str(dtype).removeprefix("torch.")


def tensor_of(name: str, x: Any) -> Any:
    """``x`` as a tensor: one of torch, or anything with DLPack, whose memory it shares."""
    if isinstance(x, torch.Tensor):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{name}: expected a tensor of torch or with DLPack, got {type(x)}")
    try:
        return from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as problem:
        raise TypeError(f"{name}: DLPack gives no tensor: {problem}") from None


class Arguments:
    """Those of one call, of one token with ``step``: ``x`` by name (None: omitted), ``sizes``, and
    the dtypes of states and of outputs."""

    def __init__(
        self, signature: Signature, support: Support, arguments: Tensors, step: bool = False
    ) -> None:
        self.signature, self.support, self.step = signature, support, step
        self.sizes: dict[str, int] = {name: signature.dims[name] for name in signature.pinned}
        self.source = dict.fromkeys(self.sizes, "the compilation")
        self.x: Tensors = dict(arguments)
        given = [a for a in signature.arguments if self.x[a.name] is not None]
        if not given:
            raise TypeError(f"{signature.name}: no input was given")
        self.device = self.x[given[0].name].device
        sums = [any(isinstance(axis, tuple) for axis in a.axes) for a in given]
        for _, a in sorted(zip(sums, given), key=lambda pair: pair[0]):  # dims before their sums
            self.floats(a.name, self.x[a.name])
            self.fit(a.name, axes_of(a, step), self.x[a.name], learn=True)
        if "#B" not in self.sizes:
            raise TypeError(f"{signature.name}: no input was given")
        heads = self.sizes.setdefault("#H", self.sizes.get("#G", 1))
        if heads % self.sizes.setdefault("#G", 1):
            groups = self.sizes["#G"]
            raise ValueError(f"{self.source['#G']}: G = {groups} does not divide H = {heads}")
        self.sizes = {"#T": 1, "#N": self.sizes["#B"], **signature.dims, **self.sizes}
        self.dims = {name: self.sizes[name] for name in signature.dims}
        wide = any(self.x[a.name].dtype == torch.float64 for a in given)
        self.dtype = torch.float64 if wide else torch.float32
        self.out_dtype = self.x[given[0].name].dtype

    def floats(self, name: str, x: Any) -> Any:
        """``x``, of a float dtype and where the kernels run."""
        if x.dtype not in self.support.dtypes:
            floats = ", ".join(map(name_of, self.support.dtypes))
            raise TypeError(f"{name}: expected dtype {floats}, got {name_of(x.dtype)}")
        self.placed(name, x)
        return x

    def placed(self, name: str, x: Any) -> None:
        """Checks the device of a tensor, and that its entries lie in memory."""
        if x.layout != torch.strided:
            raise TypeError(f"{name}: expected a strided tensor, got {x.layout}")
        if not self.support.everywhere and not on_device(x.device):
            raise ValueError(
                f"{name}: expected a CUDA tensor, got one on {x.device}; a CPU runs what lacc emits"
                f" with {self.support.instead}"
            )
        if x.device != self.device:
            raise ValueError(f"{name}: expected one on {self.device}, got one on {x.device}")

    def fit(self, name: str, axes: Sequence[Axis], x: Any, learn: bool = False) -> None:
        """Checks a shape against the known sizes; ``learn`` takes those that are not known yet."""
        sizes, shape = self.sizes if learn else dict(self.sizes), tuple(x.shape)
        if x.ndim != len(axes):
            raise ValueError(f"{name}: expected {axes_text(*axes)}, got shape {shape}")
        for axis, size in zip(axes, shape):
            terms = axis if isinstance(axis, tuple) else ((1, axis),) if axis else ()
            names = list(dict.fromkeys(n for m in terms for n in m[1:] if isinstance(n, str)))
            unknown = [n for n in names if n not in sizes]
            if axis is None or len(unknown) > 1:
                continue
            for n in unknown:
                sizes[n], self.source[n] = size, name
                if isinstance(axis, tuple):  # of K in 1 + K*K, the number that fits
                    fits = (i for i in range(size + 1) if size_of(axis, {**sizes, n: i}) == size)
                    sizes[n] = next(fits, 0)
                if n not in ("#B", "#T") and sizes[n] < 1:
                    least = f"{n.lstrip('#')} >= 1"
                    raise ValueError(f"{name}: {least} does not fit {axes_text(*axes)} = {shape}")
            if size_of(axis, sizes) != size:
                whence = ((n.lstrip("#"), sizes[n], self.source.get(n, "the call")) for n in names)
                known = " and ".join(f"{n} = {value} from {who}" for n, value, who in whence)
                want = axes_text(*axes) + (known and f" with {known}")
                raise ValueError(f"{name}: expected {want}, got shape {shape}")

    def fields(self, what: str, given: Mapping[str, Any], pool: bool = False) -> Tensors:
        """The given fields of a state, checked; of a pool, any number of rows."""
        found: Tensors = {}
        for s in self.signature.states:
            x, name = given.get(s.name), f"{what}.{s.name}"
            if x is None:
                continue
            if s.role != "position":
                self.floats(name, x)
            elif x.dtype not in WHOLE:
                raise TypeError(f"{name}: expected integers [N] of at least 0, got {x.dtype}")
            else:
                self.placed(name, x)
            axes = axes_of(s)
            pooled = pool and x.ndim == len(axes)
            self.fit(name, axes, x[:1].expand(self.sizes["#N"], *x.shape[1:]) if pooled else x)
            found[s.name] = x
        return found

    def shape(self, value: Value) -> list[int]:
        """The shape that a caller sees, all tokens given."""
        return [size_of(axis, self.sizes) for axis in axes_of(value)]

    def axes(self, value: Value) -> list[int]:
        """The sizes of its own axes."""
        return [size_of(axis, self.sizes) for axis in value.axes]

    # ---- levels: one entry for every head, group or layer

    def copies(self, value: Value) -> int:
        """How many heads share one entry of ``value``."""
        heads = self.sizes["#H"]
        return {"head": 1, "group": heads // self.sizes["#G"]}.get(value.level, heads)

    def spread(self, value: Value, x: Any, axis: int) -> Any:
        """``x`` repeated to all heads, the ``axis`` of the result; a view unless 1 < G < H."""
        if value.level in ("layer", "position"):
            x = x.unsqueeze(axis)
        if x.shape[axis] > 1:
            copies = self.copies(value)
            return x.repeat_interleave(copies, axis) if copies > 1 else x
        return x.expand(*x.shape[:axis], self.sizes["#H"], *x.shape[axis + 1 :])

    def firsts(self, value: Value, x: Any, axis: int) -> Any:
        """The first copy of each entry of ``value``, the heads being ``axis`` of ``x``."""
        if value.level == "head":
            return x
        if value.level == "group":
            return x[(slice(None),) * axis + (slice(None, None, self.copies(value)),)].contiguous()
        return x.select(axis, 0).contiguous()

    def total(self, value: Value, x: Any, axis: int) -> Any:
        """The sum of the copies, back at the level of ``value``."""
        if value.level == "head":
            return x
        copies = self.copies(value)
        if value.level == "group":
            return x if copies == 1 else x.unflatten(axis, (-1, copies)).sum(axis + 1)
        return x.sum(axis)

    def first(self, value: Value, x: Any, axis: int) -> Any:
        """``x`` in the first copy and zeros in the others: the transpose of `firsts`."""
        if value.level == "head":
            return x
        tail = x.shape[axis + (value.level == "group") :]
        full = x.new_zeros(*x.shape[:axis], self.sizes["#H"], *tail)
        copies = self.copies(value) if value.level == "group" else self.sizes["#H"]
        place = x if value.level == "group" else x.unsqueeze(axis)
        full[(slice(None),) * axis + (slice(None, None, copies),)] = place
        return full
