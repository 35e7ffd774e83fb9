"""A signature and a caller's arrays in, the same arrays checked out, with all sizes, the segments
and the state that a core starts from.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file.
Whatever it raises, a TypeError or a ValueError, names the argument, what was expected and what
came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lacc.runtime.contract import (
    MODES,
    Array,
    Arrays,
    Axis,
    Signature,
    Value,
    axes_of,
    axes_text,
    cast_to,
    floats_of,
    grows,
    size_of,
)
from lacc.runtime.segments import segments, token_count


def chosen(mode: str, chunk: int | None) -> tuple[str, int | None]:
    """Mode and chunk of a call; a chunk given to mode auto asks for mode chunk."""
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if chunk is None:
        return mode, None
    if not isinstance(chunk, int | np.integer) or isinstance(chunk, bool) or chunk < 1:
        raise ValueError(f"chunk: expected a positive integer, got {chunk!r}")
    if mode not in ("auto", "chunk"):
        raise ValueError(f"chunk: expected None in mode {mode}, got {chunk}")
    return "chunk", int(chunk)


class Arguments:
    """Those of one public call, of one token with ``step``; ``draws`` make buffers that are not
    given."""

    def __init__(
        self,
        signature: Signature,
        draws: Mapping[str, Callable[[tuple[int, ...], int], Any]],
        arguments: Arrays,
        step: bool,
    ) -> None:
        self.signature, self.step = signature, step
        self.mode, self.whole = "auto", True  # whole: the one segment is everything
        self.chunk: int | None = None
        self.state: Arrays = {}
        self.given: Arrays = {}
        self.sizes = {name: signature.dims[name] for name in signature.pinned}
        self.source = dict.fromkeys(self.sizes, "the compilation")
        self.x: Arrays = {}
        for a in signature.arguments:
            x = arguments.get(a.name)
            if x is None and not (a.optional or a.draw):
                axes = axes_text(*axes_of(a, step))
                raise TypeError(f"{a.name}: {a.role} {axes} of {signature.name} is missing")
            self.x[a.name] = None if x is None else floats_of(a.name, x)
        given = [a for a in signature.arguments if self.x[a.name] is not None]
        sums = [any(isinstance(axis, tuple) for axis in a.axes) for a in given]
        for _, a in sorted(zip(sums, given), key=lambda pair: pair[0]):  # dims before their sums
            self.fit(a.name, axes_of(a, step), self.x[a.name], learn=True)
        if "#B" not in self.sizes:
            raise TypeError(f"{signature.name}: no input was given")
        heads = self.sizes.setdefault("#H", self.sizes.get("#G", 1))
        if heads % self.sizes.setdefault("#G", 1):
            groups = self.sizes["#G"]
            raise ValueError(f"{self.source['#G']}: G = {groups} does not divide H = {heads}")
        self.sizes = {"#T": 1, "#N": self.sizes["#B"], **signature.dims, **self.sizes}
        wide = any(self.x[a.name].dtype.name == "float64" for a in given)
        self.dtype = np.dtype(np.float64 if wide else np.float32)
        self.out_dtype = self.x[given[0].name].dtype
        for seed, a in enumerate(signature.arguments):
            if a.draw and self.x[a.name] is None:
                shape = tuple(size_of(axis, self.sizes) for axis in axes_of(a))
                self.x[a.name] = np.asarray(draws[a.draw](shape, seed), self.dtype)
        every = slice(0, self.sizes["#B"])
        self.segments: list[Any] = [(every, slice(0, self.sizes["#T"]), every)]

    def fit(self, name: str, axes: Sequence[Axis], x: Array, learn: bool = False) -> None:
        """Checks a shape against the known sizes; ``learn`` takes those that are not known yet."""
        sizes = self.sizes if learn else dict(self.sizes)
        if x.ndim != len(axes):
            raise ValueError(f"{name}: expected {axes_text(*axes)}, got shape {x.shape}")
        for axis, size in zip(axes, x.shape):
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
                if sizes[n] < 1 and n not in ("#B", "#T"):
                    least = f"{n.lstrip('#')} >= 1"
                    raise ValueError(f"{name}: {least} does not fit {axes_text(*axes)} = {x.shape}")
            if size_of(axis, sizes) != size:
                whence = ((n.lstrip("#"), sizes[n], self.source.get(n, "the call")) for n in names)
                known = " and ".join(f"{n} = {value} from {who}" for n, value, who in whence)
                want = axes_text(*axes) + (known and f" with {known}")
                raise ValueError(f"{name}: expected {want}, got shape {x.shape}")

    def begin(
        self, initial_state: Any, mode: str, chunk: int | None, cu_seqlens: Any, valid: Any
    ) -> None:
        """Takes up mode, segments and initial state of whole sequences."""
        self.mode, self.chunk = chosen(mode, chunk)
        if reason := self.signature.modes.get(self.mode, ""):
            raise ValueError(f"mode: {self.signature.name} has no mode {self.mode}: {reason}")
        longest = self.signature.longest
        if self.chunk is not None and longest is not None and self.chunk > longest:
            raise ValueError(f"chunk: expected at most {longest} tokens, got {self.chunk}")
        if initial_state is not None and self.signature.no_initial:
            raise ValueError(f"initial_state: {self.signature.no_initial}")
        found = list(segments(self.sizes["#B"], self.sizes["#T"], cu_seqlens, valid))
        if cu_seqlens is not None or not (valid is None or valid.all()):
            self.sizes["#N"], self.whole = len(found), False
            self.segments = found or [(slice(0, 0),) * 3]
        self.start(self.fields("initial_state", initial_state))

    def fields(self, what: str, state: Any, rows: Any = None) -> Arrays:
        """The given fields of a state, as they came, from any of its forms; with ``rows`` it is a
        pool of which these are checked."""
        names = tuple(s.name for s in self.signature.states)
        declared = [s.name for s in self.signature.states if s.role == "state"]
        if state is None:
            state = {}
        elif isinstance(state, np.ndarray) and len(declared) == 1:
            state = {declared[0]: state}
        elif isinstance(state, tuple):
            if len(state) != len(names) or getattr(state, "_fields", names) != names:
                got = ", ".join(getattr(state, "_fields", (f"{len(state)} entries",)))
                raise ValueError(f"{what}: expected ({', '.join(names)}), got ({got})")
            state = dict(zip(names, state))
        elif not isinstance(state, Mapping):
            some = f"a tuple or dict of {', '.join(names)}"
            raise TypeError(f"{what}: expected {some}, got {type(state)}")
        if unknown := [name for name in state if name not in names]:
            raise ValueError(f"{what}: expected {', '.join(names) or 'none'}, got {unknown[0]!r}")
        given: Arrays = {}
        for s in self.signature.states:
            x, name = state.get(s.name), f"{what}.{s.name}"
            if x is None or (s.role == "position" and what == "state_cotangent"):
                continue
            if s.role != "position":
                x = floats_of(name, x)
            elif not isinstance(x, np.ndarray) or x.dtype.kind not in "iu":
                raise TypeError(f"{name}: expected integers [N] of at least 0, got {x!r}")
            pooled = rows is not None and x.ndim == len(axes_of(s))
            if pooled and rows.max(initial=-1) >= len(x):
                raise ValueError(f"state_indices: expected below {len(x)}, got {rows.max()}")
            mine = x[rows] if pooled else x
            self.fit(name, axes_of(s), mine)
            if s.role == "position" and what != "out" and np.any(mine < 0):
                raise TypeError(f"{name}: expected integers [N] of at least 0, got {mine.tolist()}")
            given[s.name] = x
        return given

    def start(self, given: Arrays) -> None:
        """Takes up the state that a core starts from."""
        self.given = given
        for s in self.signature.states:
            x = given.get(s.name)
            scaled = s.name.removesuffix("_log") in given
            declared = s.role == "state" or (s.optional and not grows(s))
            if x is None and (declared or (s.role == "log" and not scaled)):
                self.state[s.name] = None
            else:
                dtype = np.dtype(np.int64) if s.role == "position" else self.dtype
                x = self.zeros(s, dtype) if x is None else cast_to(x, dtype)
                self.state[s.name] = x if s.role == "position" else self.spread(s, x, 1)
        for a in self.signature.arguments:
            if a.level == "position" and self.x[a.name] is not None:
                seen = self.state["position"]
                ends = [int(p) + token_count(t) for _, t, n in self.segments for p in seen[n]]
                if (rows := len(self.x[a.name])) < max(ends, default=0):
                    raise ValueError(f"{a.name}: expected at least {max(ends)} rows, got {rows}")

    def zeros(self, value: Value, dtype: Any) -> Array:
        """Zeros in the shape that a caller sees."""
        return np.zeros([size_of(axis, self.sizes) for axis in axes_of(value, self.step)], dtype)

    def spread(self, value: Value, x: Array, axis: int) -> Array:
        """``x`` repeated to all heads, the ``axis`` of the result; a view unless 1 < G < H."""
        if value.level in ("layer", "position"):
            x = np.expand_dims(x, axis)
        if x.shape[axis] > 1:
            return np.repeat(x, self.copies(value), axis) if self.copies(value) > 1 else x
        return np.broadcast_to(x, (*x.shape[:axis], self.sizes["#H"], *x.shape[axis + 1 :]))

    def copies(self, value: Value) -> int:
        """How many heads share one entry of ``value``."""
        heads = self.sizes["#H"]
        return {"head": 1, "group": heads // self.sizes["#G"]}.get(value.level, heads)
