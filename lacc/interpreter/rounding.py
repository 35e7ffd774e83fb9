"""Triton's interpreter goes in; one that rounds 16-bit floats and products as a GPU does comes out.

bfloat16 tiles are arrays of `ml_dtypes.bfloat16`, whose arithmetic rounds to nearest even. Sums,
scans and products of 16-bit floats run in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
Array = np.ndarray[Any, Any]


def tf32(x: Array) -> Array:
    """float32 rounded to the 10 mantissa bits of tf32, to nearest even."""
    bits = x.view(np.uint32)
    rounded = (bits + (((bits >> 13) & 1) + np.uint32(0xFFF))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def bfloat16(x: Array) -> Array:
    """float32 rounded to bfloat16."""
    return x.astype(BFLOAT16).astype(np.float32)


def product(a: Array, b: Array, precision: str) -> Array:
    """a @ b of float32 with operands rounded as ``precision`` says: "ieee", "tf32", or split into
    parts that are, "tf32x3", "bf16x3", "bf16x6". NaN that small parts make is left out."""
    if precision == "ieee":
        return a @ b
    rounded, _, parts = precision.partition("x")
    rounds = tf32 if rounded == "tf32" else bfloat16
    pieces = {"": 1, "3": 2, "6": 3}[parts]
    split_a, split_b = _pieces(a, rounds, pieces), _pieces(b, rounds, pieces)
    pairs = [(i, j) for i in range(pieces) for j in range(pieces) if 0 < i + j < pieces]
    small = sum((split_a[i] @ split_b[j] for i, j in reversed(pairs)), np.float32(0))
    found: Array = np.where(np.isnan(small), 0, small) + split_a[0] @ split_b[0]
    return found


def _pieces(x: Array, rounds: Callable[[Array], Array], count: int) -> list[Array]:
    """``count`` rounded arrays whose sum is nearly ``x``."""
    found = [rounds(x)]
    while len(found) < count:
        x = x - found[-1]
        found.append(rounds(x))
    return found


def install(interpreter: Any, tl: Any) -> None:
    """Puts the right arithmetic into the module ``triton.runtime.interpreter``."""
    builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    stock_dtype = interpreter._get_np_dtype
    numpy_dtypes: dict[Any, Any] = {tl.bfloat16: BFLOAT16}
    stock_convert = builder.create_fp_to_fp
    stock_fma, stock_dot = builder.create_fma, builder.create_dot

    def numpy_dtype(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.is_ptr():
            return np.dtype(np.uint64)
        return numpy_dtypes.get(scalar) or numpy_dtypes.setdefault(scalar, stock_dtype(scalar))

    def is_fp8(handle: Any) -> bool:
        return bool(handle.dtype.scalar.is_fp8())

    def cast(self: Any, src: Any, dst: Any) -> Any:
        return Handle(src.data.astype(numpy_dtype(dst)), dst.scalar)

    def convert(self: Any, src: Any, dst: Any, mode: Any) -> Any:
        truncates = mode == interpreter._ir.ROUNDING_MODE.RTZ
        if truncates or is_fp8(src) or dst.scalar.is_fp8():
            return stock_convert(self, src, dst, mode)
        return cast(self, src, dst)

    def rsqrt(self: Any, x: Any) -> Any:
        wide = x.data if x.data.dtype.itemsize > 2 else x.data.astype(np.float32)
        return Handle((1 / np.sqrt(wide)).astype(x.data.dtype), x.dtype.scalar)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype.itemsize > 2:
            return stock_fma(self, x, y, z)
        a, b, c = (h.data.astype(np.float64) for h in (x, y, z))
        return Handle((a * b + c).astype(z.data.dtype), z.dtype.scalar)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if is_fp8(a) or is_fp8(b) or a.data.dtype.kind in "iu":
            return stock_dot(self, a, b, d, precision, imprecise)
        accumulator = np.float64 if d.data.dtype == np.float64 else np.float32
        x, y = a.data.astype(accumulator), b.data.astype(accumulator)
        exact = a.data.dtype.itemsize != 4
        xy = product(x, y, "ieee" if exact else precision.name.lower())
        return Handle((xy + d.data.astype(accumulator)).astype(d.data.dtype), d.dtype.scalar)

    interpreter._get_np_dtype = numpy_dtype
    builder.cast_impl, builder.create_fp_to_fp = cast, convert
    builder.create_rsqrt, builder.create_fma, builder.create_dot = rsqrt, fma, dot
    _install_reductions(interpreter, tl)


def _install_reductions(interpreter: Any, tl: Any) -> None:
    """Reductions and scans: 16-bit floats in float32; any function, a slice at a time."""
    semantic = interpreter.interpreter_semantic
    Reduce, Scan = interpreter.ReduceOps, interpreter.ScanOps

    def widened(stock: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, given: tuple[Any, ...]) -> Any:
            narrow = [x.dtype.is_floating() and x.dtype.primitive_bitwidth == 16 for x in given]
            if not any(narrow):
                return stock(self, given)
            wide = tuple(semantic.cast(x, tl.float32) if n else x for x, n in zip(given, narrow))
            found = stock(self, wide)
            several = found if isinstance(found, (list, tuple)) else [found]
            back = [x.dtype if n else None for x, n in zip(given, narrow)]
            return [semantic.cast(y, d) if d else y for y, d in zip(several, back)]

        return apply

    def slices(self: Any, given: tuple[Any, ...], axis: int) -> list[tuple[Any, ...]]:
        """The inputs entry by entry of an axis, which stays with size 1."""
        data = [x.handle.data for x in given]
        return [
            tuple(self.to_tensor(np.take(x, [i], axis), given[n].dtype) for n, x in enumerate(data))
            for i in range(data[0].shape[axis])
        ]

    def combined(self: Any, before: tuple[Any, ...], entry: tuple[Any, ...]) -> tuple[Any, ...]:
        found = self.combine_fn(*before, *entry)
        return found if isinstance(found, tuple) else (found,)

    def reduce(self: Any, given: tuple[Any, ...]) -> list[Any]:
        if self.axis is None:
            flat = tuple(self.to_tensor(x.handle.data.reshape(-1), x.dtype) for x in given)
        first, *rest = slices(self, given if self.axis is not None else flat, self.axis or 0)
        for entry in rest:
            first = combined(self, first, entry)
        found = []
        for y, x in zip(first, given):
            data = y.handle.data
            if self.axis is None:
                shape: tuple[int, ...] = (1,) * x.handle.data.ndim if self.keep_dims else ()
                data = data.reshape(shape)
            elif not self.keep_dims:
                data = np.squeeze(data, self.axis)
            found.append(self.to_tensor(data if data.shape else data.item(), x.dtype))
        return found

    def scan(self: Any, given: tuple[Any, ...]) -> list[Any]:
        entries = slices(self, given, self.axis)
        for i in range(1, len(entries)):
            entries[i] = combined(self, entries[i - 1], entries[i])
        return [
            self.to_tensor(np.concatenate([e[n].handle.data for e in entries], self.axis), x.dtype)
            for n, x in enumerate(given)
        ]

    Reduce.apply_impl, Scan.apply_impl = widened(Reduce.apply_impl), widened(Scan.apply_impl)
    Reduce.generic_reduce, Scan.generic_scan = reduce, scan
