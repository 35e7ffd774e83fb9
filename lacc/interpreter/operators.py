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
    made, stock_getitem = Tensor.__init__, Tensor.__getitem__

    def initialised(self: Any, handle: Any, type: Any) -> None:
        template = templates.get(type.name)
        if template is None:
            made(self, handle, type)
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

    def is_block(x: Any) -> bool:
        return len(x.shape) > 0

    def agree(x: Any, y: Any) -> bool:
        """Whether numpy broadcasts two tensors as Triton does."""
        a, b = len(x.shape), len(y.shape)
        return a == b or not a or not b

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
                    return tensor(data, result or x, is_block(self) or is_block(other))
                if adds and x.is_ptr() and y.name in INTEGERS and agree(self, other):
                    step = max(1, x.element_ty.primitive_bitwidth // 8)
                    offsets = other.handle.data.astype(np.int64) * step
                    data = self.handle.data + offsets.view(np.uint64)
                    return tensor(data, x, is_block(self) or is_block(other))
            elif (y := number(self, other)) is not None:
                data = ufunc(self.handle.data, y)
                return tensor(data, result or self.dtype, is_block(self))
            return slow(self, other)

        setattr(Tensor, name, method)

    def reflected(name: str, ufunc: Any) -> None:
        slow = getattr(Tensor, name)

        def method(self: Any, other: Any) -> Any:
            if (y := number(self, other)) is not None:
                return tensor(ufunc(y, self.handle.data), self.dtype, is_block(self))
            return slow(self, other)

        setattr(Tensor, name, method)

    def getitem(self: Any, places: Any) -> Any:
        if type(places) is tuple and is_block(self):
            new = sum(place is None for place in places)
            whole = sum(type(place) is slice and place == slice(None) for place in places)
            if new + whole == len(places) and whole == len(self.shape):
                return tensor(self.handle.data[places], self.dtype, True)
        return stock_getitem(self, places)

    def broadcast(x: Any, y: Any) -> tuple[Any, Any]:
        if not is_block(x) and not is_block(y):
            return x, y
        a, b = x.handle.data, y.handle.data
        if is_block(x) and is_block(y):
            if a.shape == b.shape:
                return x, y
            shape = np.broadcast_shapes(a.shape, b.shape)
        else:
            shape = a.shape if is_block(x) else b.shape
        x, y = (
            z
            if is_block(z) and c.shape == shape
            else tensor(np.broadcast_to(c, shape), z.dtype, True)
            for z, c in ((x, a), (y, b))
        )
        return x, y

    Tensor.__init__, Tensor.__getitem__ = initialised, getitem
    interpreter.interpreter_semantic.broadcast_impl_value = broadcast
    for name, ufunc in ARITHMETIC.items():
        fast(f"__{name}__", ufunc, PLAIN, None)
        reflected(f"__r{name}__", ufunc)
    for name, ufunc in COMPARISONS.items():
        fast(f"__{name}__", ufunc, PLAIN, tl.int1)
    for name, ufunc in LOGIC.items():
        fast(f"__{name}__", ufunc, {"int1", *INTEGERS}, None)
