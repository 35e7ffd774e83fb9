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
NUMBERS = {"fp32": np.float32, "fp64": np.float64, "int32": np.int32, "int64": np.int64}
FLOATS, INTEGERS = {"fp32", "fp64"}, {"int32", "int64"}
PLAIN = {"fp16", "bf16", *NUMBERS}
"""dtypes by Triton's names: those that a number joins, and those that are one numpy dtype."""

LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or}


def install(interpreter: Any, tl: Any) -> None:
    """Patches ``triton.language`` for the interpreter, once and for all launches."""
    _install_language(interpreter, tl)
    _install_tensors(interpreter, tl)


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


def _install_tensors(interpreter: Any, tl: Any) -> None:
    """Tensors that are cheap to make, and operators on two of one type."""
    Tensor, Handle = tl.tensor, interpreter.TensorHandle
    templates: dict[str, dict[str, Any]] = {}
    blocks: dict[Any, dict[str, Any]] = {}
    types: dict[Any, dict[str, Any]] = {}
    semantic = interpreter.interpreter_semantic
    made, stock_getitem, stock_where = Tensor.__init__, Tensor.__getitem__, semantic.where
    stock_type = tl.core.block_type.__init__

    def initialised(self: Any, handle: Any, type: Any) -> None:
        template = templates.get(type.name)
        if template is None:
            made(self, handle, type)
            self.is_block = type.is_block()
            templates[type.name] = {n: x for n, x in vars(self).items() if n != "handle"}
        else:
            vars(self).update(template)
            self.handle = handle

    def tensor(data: Any, dtype: Any, block: bool) -> Any:
        """A tensor of an array; scalars are arrays too."""
        found, held = object.__new__(Tensor), object.__new__(Handle)
        held.data, held.dtype, held.attr = data, dtype, {}
        key = dtype.name, data.shape if block else None
        template = blocks.get(key)
        if template is None:
            initialised(found, held, tl.block_type(dtype, list(data.shape)) if block else dtype)
            blocks[key] = {n: x for n, x in vars(found).items() if n != "handle"}
        else:
            vars(found).update(template)
            found.handle = held
        return found

    def agree(x: Any, y: Any) -> bool:
        """Whether numpy broadcasts two tensors as Triton does."""
        both = x.is_block and y.is_block
        return not both or x.handle.data.ndim == y.handle.data.ndim

    def number(x: Any, y: Any) -> Any:
        """A number with the dtype of the tensor it meets, None where they promote."""
        kind = type(y)
        if kind is int or (kind is float and x.dtype.name in FLOATS):
            to = NUMBERS.get(x.dtype.name)
            return None if to is None else to(y)
        return None

    def fast(name: str, ufunc: Any, dtypes: Set[str], result: Any) -> None:
        slow = getattr(Tensor, name)
        adds = ufunc is np.add

        def method(self: Any, other: Any) -> Any:
            if type(other) is Tensor:
                x, y = self.dtype, other.dtype
                if x is y and x.name in dtypes and agree(self, other):
                    data = ufunc(self.handle.data, other.handle.data)
                    return tensor(data, result or x, self.is_block or other.is_block)
                if adds and x.is_ptr() and y.name in INTEGERS and agree(self, other):
                    step = max(1, x.element_ty.primitive_bitwidth // 8)
                    offsets = other.handle.data.astype(np.int64) * step
                    data = self.handle.data + offsets.view(np.uint64)
                    return tensor(data, x, self.is_block or other.is_block)
            elif (y := number(self, other)) is not None:
                data = ufunc(self.handle.data, y)
                return tensor(data, result or self.dtype, self.is_block)
            return slow(self, other)

        setattr(Tensor, name, method)

    def reflected(name: str, ufunc: Any) -> None:
        slow = getattr(Tensor, name)

        def method(self: Any, other: Any) -> Any:
            if (y := number(self, other)) is not None:
                return tensor(ufunc(y, self.handle.data), self.dtype, self.is_block)
            return slow(self, other)

        setattr(Tensor, name, method)

    def getitem(self: Any, places: Any) -> Any:
        if type(places) is tuple and self.is_block:
            new = sum(place is None for place in places)
            whole = sum(type(place) is slice and place == slice(None) for place in places)
            if new + whole == len(places) and whole == self.handle.data.ndim:
                return tensor(self.handle.data[places], self.dtype, True)
        return stock_getitem(self, places)

    def broadcast(x: Any, y: Any) -> tuple[Any, Any]:
        if not x.is_block and not y.is_block:
            return x, y
        a, b = x.handle.data, y.handle.data
        if x.is_block and y.is_block:
            shape = a.shape if a.shape == b.shape else np.broadcast_shapes(a.shape, b.shape)
        else:
            shape = a.shape if x.is_block else b.shape
        return whole(x, shape), whole(y, shape)

    def whole(x: Any, shape: tuple[int, ...]) -> Any:
        """A tensor as a block of a shape that it broadcasts to."""
        if x.is_block and x.handle.data.shape == shape:
            return x
        data = np.empty(shape, x.handle.data.dtype)
        data[...] = x.handle.data
        return tensor(data, x.dtype, True)

    def where(condition: Any, x: Any, y: Any) -> Any:
        a, b = (z.handle.data if type(z) is Tensor else None for z in (x, y))
        dtype = (x if b is None else y).dtype if a is not None or b is not None else None
        if a is None and b is not None:
            a = number(y, x)
        elif b is None and a is not None:
            b = number(x, y)
        elif dtype is not None and x.dtype is not y.dtype:
            a = None
        parts = [z for z in (condition, x, y) if type(z) is Tensor]
        ranks = {z.handle.data.ndim for z in parts if z.is_block}
        if a is None or b is None or condition.dtype.name != "int1" or len(ranks) > 1:
            return stock_where(condition, x, y)
        return tensor(np.where(condition.handle.data, a, b), dtype, len(ranks) == 1)

    def typed(self: Any, element: Any, shape: Any) -> None:
        key = element.name, *(getattr(n, "value", n) for n in shape)
        template = types.get(key)
        if template is None:
            stock_type(self, element, shape)
            types[key] = dict(vars(self))
        else:
            vars(self).update(template)

    Tensor.__init__, Tensor.__getitem__ = initialised, getitem
    tl.core.block_type.__init__ = typed
    semantic.broadcast_impl_value, semantic.where = broadcast, where
    for name, ufunc in ARITHMETIC.items():
        fast(f"__{name}__", ufunc, PLAIN, None)
        reflected(f"__r{name}__", ufunc)
    for name, ufunc in COMPARISONS.items():
        fast(f"__{name}__", ufunc, PLAIN, tl.int1)
    for name, ufunc in LOGIC.items():
        fast(f"__{name}__", ufunc, {"int1", *INTEGERS}, None)
