"""Triton's language goes in; its operators, without the compiler's bookkeeping where two tiles
agree in type, come out: the same numbers in a fraction of the time.

What is not of the plain kinds (types that differ, ranks that differ, pointers minus pointers) takes
Triton's own way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Set
from typing import Any

import numpy as np

ARITHMETIC: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
COMPARISONS: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}

NUMBERS = {"fp32": np.float32, "fp64": np.float64, "int32": np.int32, "int64": np.int64}
FLOATS, INTEGERS = {"fp32", "fp64"}, {"int32", "int64"}
PLAIN = {"fp16", "bf16", *NUMBERS}
"""dtypes by Triton's names: those that a number joins, and those that are one numpy dtype."""

WIDER = {("int32", "int64"): "int64", ("fp32", "fp64"): "fp64"}
"""What two plain dtypes promote to, in numpy as in Triton."""


def install(interpreter: Any, tl: Any) -> None:
    """Patches ``triton.language`` for the interpreter, once and for all launches."""
    _install_language(interpreter, tl)
    tiles = Tiles(interpreter, tl)
    tiles.install_types()
    for name, ufunc in ARITHMETIC.items():
        tiles.install(f"__{name}__", ufunc, PLAIN, None)
        tiles.install_reflected(f"__r{name}__", ufunc)
    for name, ufunc in COMPARISONS.items():
        tiles.install(f"__{name}__", ufunc, PLAIN, tl.int1)
    for name, ufunc in LOGIC.items():
        tiles.install(f"__{name}__", ufunc, {"int1", *INTEGERS}, None)
    tiles.install("__rshift__", np.right_shift, INTEGERS, None)
    tiles.install_selections()


def _install_language(interpreter: Any, tl: Any) -> None:
    """What Triton itself patches in at every launch and takes out again."""
    semantic = interpreter.interpreter_semantic

    def interpreted(member: Callable[..., Any]) -> Callable[..., Any]:
        function = getattr(member, "__wrapped__", member)

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        return call

    owners = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)
    found = [
        (owner, name, member)
        for owner in owners
        for name, member in inspect.getmembers(owner)
        if tl.core.is_builtin(member)
    ]
    for owner, name, member in found:
        setattr(owner, name, interpreted(member))
    scope = interpreter._LangPatchScope()
    interpreter._patch_lang_tensor(tl.tensor, scope)
    for module in (tl, tl.core):
        interpreter._patch_lang_core(module, scope)


class Tiles:
    """Tensors that are cheap to make: what depends on their type alone is made once a type."""

    def __init__(self, interpreter: Any, tl: Any) -> None:
        self.block_type = tl.block_type
        self.Tensor, self.Handle = tl.tensor, interpreter.TensorHandle
        self.semantic, self.numpy_dtype = (
            interpreter.interpreter_semantic,
            interpreter._get_np_dtype,
        )
        self.made: dict[Any, dict[str, Any]] = {}
        self.wider = {
            pair: getattr(tl, wide.replace("fp", "float"))
            for (a, b), wide in WIDER.items()
            for pair in ((a, b), (b, a))
        }

    def tensor(self, data: Any, dtype: Any, block: bool) -> Any:
        """A tensor of an array; scalars are arrays of one entry."""
        found, held = object.__new__(self.Tensor), object.__new__(self.Handle)
        held.data, held.dtype, held.attr = data, dtype, {}
        key = dtype.name, data.shape if block else None
        template = self.made.get(key)
        if template is None:
            kind = self.block_type(dtype, list(data.shape)) if block else dtype
            found.__init__(held, kind)
            self.made[key] = {n: x for n, x in vars(found).items() if n != "handle"}
        else:
            vars(found).update(template)
            found.handle = held
        return found

    def agree(self, x: Any, y: Any) -> bool:
        """Whether numpy broadcasts two tensors as Triton does."""
        both = x.is_block and y.is_block
        return not both or x.handle.data.ndim == y.handle.data.ndim

    def number(self, x: Any, y: Any) -> Any:
        """A number with the dtype of the tensor it meets, None where they promote."""
        kind = type(y)
        if kind is int or (kind is float and x.dtype.name in FLOATS):
            to = NUMBERS.get(x.dtype.name)
            return None if to is None else to(y)
        return None

    def entries(self, like: Any, x: Any) -> Any:
        """A tensor's array, or a number, of the dtype of ``like``; None where they promote."""
        if type(x) is not self.Tensor:
            return self.number(like, x)
        return x.handle.data if x.dtype is like.dtype else None

    def whole(self, x: Any, shape: tuple[int, ...]) -> Any:
        """A tensor as a block of a shape that it broadcasts to."""
        if x.is_block and x.handle.data.shape == shape:
            return x
        data = np.empty(shape, x.handle.data.dtype)
        data[...] = x.handle.data
        return self.tensor(data, x.dtype, True)

    def moved(self, x: Any, y: Any) -> Any:
        """Pointers and an offset in elements."""
        step = max(1, x.dtype.element_ty.primitive_bitwidth // 8)
        offsets = (y.handle.data.astype(np.int64) * step).view(np.uint64)
        return self.tensor(x.handle.data + offsets, x.dtype, x.is_block or y.is_block)

    def install_types(self) -> None:
        """Block types and tensors as `made`, for all that Triton makes too."""
        types: dict[Any, dict[str, Any]] = {}
        tensors: dict[str, dict[str, Any]] = {}
        stock_type, stock_tensor = self.block_type.__init__, self.Tensor.__init__

        def typed(self: Any, element: Any, shape: Any) -> None:
            key = element.name, *(getattr(n, "value", n) for n in shape)
            template = types.get(key)
            if template is None:
                stock_type(self, element, shape)
                types[key] = dict(vars(self))
            else:
                vars(self).update(template)

        def initialised(self: Any, handle: Any, type: Any) -> None:
            template = tensors.get(type.name)
            if template is None:
                stock_tensor(self, handle, type)
                self.is_block = type.is_block()
                tensors[type.name] = {n: x for n, x in vars(self).items() if n != "handle"}
            else:
                vars(self).update(template)
                self.handle = handle

        self.block_type.__init__, self.Tensor.__init__ = typed, initialised

    def install(self, name: str, ufunc: Any, dtypes: Set[str], result: Any) -> None:
        """An operator on two tensors of one of ``dtypes``, or on one and a number."""
        Tensor, adds, slow = self.Tensor, ufunc is np.add, getattr(self.Tensor, name)
        tensor, agree, number, moved = self.tensor, self.agree, self.number, self.moved
        wider = self.wider if dtypes is PLAIN else {}

        def method(self: Any, other: Any) -> Any:
            if type(other) is Tensor:
                x, y = self.dtype, other.dtype
                if x is y:
                    common = x if x.name in dtypes else None
                else:
                    common = wider.get((x.name, y.name))
                if common is not None and agree(self, other):
                    data = ufunc(self.handle.data, other.handle.data)
                    return tensor(data, result or common, self.is_block or other.is_block)
                if adds and x.is_ptr() and y.name in INTEGERS and agree(self, other):
                    return moved(self, other)
            elif (y := number(self, other)) is not None:
                return tensor(ufunc(self.handle.data, y), result or self.dtype, self.is_block)
            return slow(self, other)

        setattr(Tensor, name, method)

    def install_reflected(self, name: str, ufunc: Any) -> None:
        """An operator on a number and a tensor."""
        tensor, number, slow = self.tensor, self.number, getattr(self.Tensor, name)

        def method(self: Any, other: Any) -> Any:
            if (y := number(self, other)) is not None:
                return tensor(ufunc(y, self.handle.data), self.dtype, self.is_block)
            return slow(self, other)

        setattr(self.Tensor, name, method)

    def install_selections(self) -> None:
        """New axes, broadcasting, casts and `where`."""
        Tensor, semantic = self.Tensor, self.semantic
        stock_getitem = Tensor.__getitem__
        stock_cast, stock_where = semantic.cast, semantic.where
        tensor, entries, whole = self.tensor, self.entries, self.whole
        numpy_dtype = self.numpy_dtype

        def getitem(self: Any, places: Any) -> Any:
            if type(places) is tuple and self.is_block:
                new = sum(place is None for place in places)
                all_ = sum(type(place) is slice and place == slice(None) for place in places)
                if new + all_ == len(places) and all_ == self.handle.data.ndim:
                    return tensor(self.handle.data[places], self.dtype, True)
            return stock_getitem(self, places)

        def broadcast(x: Any, y: Any) -> tuple[Any, Any]:
            if not x.is_block and not y.is_block:
                return x, y
            a, b = x.handle.data.shape, y.handle.data.shape
            if x.is_block and y.is_block:
                shape = a if a == b else np.broadcast_shapes(a, b)
            else:
                shape = a if x.is_block else b
            return whole(x, shape), whole(y, shape)

        def cast(x: Any, to: Any, rounding: Any = None) -> Any:
            source, target = x.dtype, to.scalar
            if source is target:
                return x
            if rounding is None and source.name in PLAIN and target.name in PLAIN:
                return tensor(x.handle.data.astype(numpy_dtype(target)), target, x.is_block)
            return stock_cast(x, to, rounding)

        def where(condition: Any, x: Any, y: Any) -> Any:
            like = x if type(x) is Tensor else y
            tensors = [z for z in (condition, x, y) if type(z) is Tensor]
            ranks = {z.handle.data.ndim for z in tensors if z.is_block}
            if type(like) is Tensor and condition.dtype.name == "int1" and len(ranks) <= 1:
                a, b = entries(like, x), entries(like, y)
                if a is not None and b is not None:
                    data = np.where(condition.handle.data, a, b)
                    return tensor(data, like.dtype, len(ranks) == 1)
            return stock_where(condition, x, y)

        Tensor.__getitem__ = getitem
        semantic.broadcast_impl_value, semantic.cast, semantic.where = broadcast, cast, where
