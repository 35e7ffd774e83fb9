"""A grid and the arguments of an interpreted kernel go in; its programs run, one after another."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import numpy as np

from lacc.interpreter.checking import active
from lacc.interpreter.memory import Memory

_running: list[Memory] = []


def memory() -> Memory:
    """That of the launch that runs."""
    return _running[-1]


def install(interpreter: Any, tl: Any) -> None:
    """Puts our launch, loads and stores into the module ``triton.runtime.interpreter``."""
    builder, Function = interpreter.InterpreterBuilder, interpreter.InterpretedFunction
    Handle, numpy_dtype = interpreter.TensorHandle, interpreter._get_np_dtype
    stock_argument = interpreter._implicit_cvt

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            launch(interpreter, self, args, kwargs, grid)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    def argument(x: Any, name: str = "a tensor") -> Any:
        if hasattr(x, "data_ptr"):
            kind = tl.str_to_ty(interpreter.triton.runtime.jit.mangle_type(x), None)
            held = memory().place(name, interpreter._unwrap_tensor(x))
            return tl.tensor(Handle(np.array([held], np.uint64), kind), kind)
        return stock_argument(x)

    def load(self: Any, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        kind = ptrs.get_element_ty()
        on, fill = (None if h is None else h.data for h in (mask, other))
        return Handle(memory().load(ptrs.data, on, fill, numpy_dtype(kind)), kind)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        kind = numpy_dtype(ptrs.get_element_ty())
        memory().store(ptrs.data, None if mask is None else mask.data, value.data, kind)

    def barrier(self: Any) -> None:
        memory().barrier()

    def real(ptr: Any, mask: Any) -> Any:
        size = numpy_dtype(ptr.get_element_ty()).itemsize
        return Handle(memory().real(ptr.data, mask, size), ptr.dtype)

    stock_rmw, stock_cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *how: Any) -> Any:
        if not mask.data.any():
            return value
        return stock_rmw(self, op, real(ptr, mask.data), value, mask, *how)

    def cas(self: Any, ptr: Any, *how: Any) -> Any:
        return stock_cas(self, real(ptr, np.ones(ptr.data.shape, bool)), *how)

    Function.run, Function.__call__ = run, call
    interpreter._implicit_cvt = argument
    builder.create_masked_load, builder.create_masked_store = load, store
    builder.create_load = lambda self, ptr, *_: load(self, ptr, None, None)
    builder.create_store = lambda self, ptr, value, *_: store(self, ptr, value, None)
    builder.create_barrier = barrier
    builder.create_atomic_rmw, builder.create_atomic_cas = rmw, cas
    _install_counts(builder)


def _install_counts(builder: Any) -> None:
    """Counts products and exponentials of the session, where one is active."""
    dot, unary = builder.create_dot, builder.unary_op
    counted = {np.exp, np.exp2, np.log, np.log2}

    def counting_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if session := active():
            session.counts.dots += 1
            session.counts.dot_flops += 2 * a.data.size * b.data.shape[-1]
        return dot(self, a, b, *rest)

    def counting_unary(self: Any, x: Any, op: Any) -> Any:
        if op in counted and (session := active()):
            session.counts.exponentials += x.data.size
        return unary(self, x, op)

    builder.create_dot, builder.unary_op = counting_dot, counting_unary


def launch(
    interpreter: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
) -> None:
    """Runs every program of ``grid``. Raises what the kernel does, and MemoryFault."""
    function = kernel.rewrite()
    signature = inspect.signature(kernel.fn)
    known = {name: x for name, x in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **known)
    bound.apply_defaults()
    for hook in kernel.pre_run_hooks:
        hook(*args, **known)
    session, name = active(), kernel.fn.__name__
    space = Memory(name, session is not None, session is not None and session.poison)
    _running.append(space)
    try:
        values = {
            n: x if _is_constant(signature.parameters[n]) else _value(interpreter, x, n)
            for n, x in bound.arguments.items()
        }
        sizes = tuple(grid(values) if callable(grid) else grid)
        sizes = (*sizes, *(1,) * (3 - len(sizes)))
        programs = list(product(*map(range, sizes)))
        order: Any = range(len(programs))
        if session is not None:
            order, session.counts = session.permuted(order), session.report.of(name)
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*sizes)
        for number in order:
            builder.set_grid_idx(*programs[number])
            space.enter(number)
            try:
                function(**values)
            except Exception as fault:
                fault.add_note(f"in program {programs[number]} of {name}, grid {sizes}")
                raise
    finally:
        _running.pop()
    if session is not None:
        read, written = space.touched
        counts = session.counts
        counts.launches += 1
        counts.programs += len(programs)
        counts.load_bytes += space.loaded
        counts.store_bytes += space.stored
        counts.read_bytes += read
        counts.written_bytes += written


def _is_constant(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a tl.constexpr, which a kernel takes as it is."""
    kind = parameter.annotation
    return "constexpr" in (kind if isinstance(kind, str) else getattr(kind, "__name__", ""))


def _value(interpreter: Any, x: Any, name: str) -> Any:
    convert = interpreter._implicit_cvt
    return convert(x, name) if hasattr(x, "data_ptr") else convert(x)
