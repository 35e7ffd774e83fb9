"""A signature, a core and the caller's arrays in; checked arguments, outputs, states and gradients of the API out.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file. It turns the public call
(any level, any float dtype, packed or padded rows, every form of a state) into calls of a *core*, which sees dense arrays.

Notation: B batch rows, T tokens, H heads, G groups of heads, N states (B, or one per segment of ``cu_seqlens``).

The core is five things (`Core`):

``forward(x, state, run) -> (outputs, final)``
``step(x, state, run) -> (outputs, final)``, one token: as forward without the time axis
``backward(x, state, run, cotangent, state_cotangent) -> (gradients, initial)``
``promises(x, run) -> [(argument, text, holds), ...]``, ``holds`` a bool array: one entry per `where`
``draws``: name of a sampler -> ``fn(shape, seed)``, an array

All are dicts by ASCII name. ``x`` holds inputs [B, T, H, *axes] in the caller's dtype (`run.dtype` is what to compute in;
cast block by block) and params and buffers [H, *axes], all repeated to the H heads; a `per position` table arrives
gathered, as an input does. An omitted optional argument is None. Arrays may be read-only views of any strides.
``state`` holds every field as [B, H, *axes] in ``run.dtype`` (position: int64 [B], tokens seen before), or None for a
state that starts as declared. Outputs are [B, T, H, *axes], ``final`` has every field as ``state`` has it; both fresh
arrays. Cotangents have the shapes of outputs and of states, None for zero. ``gradients`` has an entry for every input
and param in ``x`` that is not None, in its shape there; ``initial`` one for every field of ``state`` that is an array,
position aside. T = 0 occurs (the final state is then the initial one); B = 0 and H = 0 do not reach the core.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]
# A number, a dim, a sum of products such as ((1,), (1, "K"), ("1/2", "K", "K")), or None for any length.
Axis = int | str | tuple[tuple[int | str, ...], ...] | None

FLOATS = ("float16", "bfloat16", "float32", "float64")
MODES = ("auto", "chunk", "parallel", "recurrent")


@dataclass(frozen=True)
class Value:
    """An argument, output or state field. ``role`` is input, param, buffer, output, state, log (the exponent of the state
    ``NAME`` in a field ``NAME_log``), past (delayed values, most recent last along its first axis) or position."""

    name: str
    role: str
    axes: tuple[Axis, ...] = ()
    level: str = "head"  # head, group, layer, position
    optional: bool = False  # has a default that the core evaluates
    draw: str = ""  # the sampler of a buffer


@dataclass(frozen=True)
class Signature:
    """What a caller sees of one variant. ``modes`` maps each mode to "" or to the reason why it does not exist;
    ``no_step`` and ``no_initial`` are such reasons too."""

    name: str
    dims: dict[str, int]  # defaults, for dims that no array shows
    pinned: tuple[str, ...]  # dims whose default is the only value
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[Value, ...]
    modes: dict[str, str]
    no_step: str = ""
    no_initial: str = ""


@dataclass(frozen=True)
class Core:
    """The functions that the module's docstring describes."""

    forward: Callable[..., tuple[Arrays, Arrays]]
    backward: Callable[..., tuple[Arrays, Arrays]]
    step: Callable[..., tuple[Arrays, Arrays]]
    promises: Callable[..., list[tuple[str, str, Any]]]
    draws: Mapping[str, Callable[[tuple[int, ...], int], Any]]


@dataclass(frozen=True)
class Run:
    """One call of a core: sizes of this segment, every dim's value, the dtype to compute in, mode ("auto" too), chunk."""

    B: int
    T: int
    H: int
    dims: dict[str, int]
    dtype: Any
    mode: str = "auto"
    chunk: int | None = None


# The leading axes of a value by role and level; "#" keeps them apart from a spec's own dims.
_TOKEN = {"head": ("#B", "#T", "#H"), "group": ("#B", "#T", "#G"), "layer": ("#B", "#T")}
_TABLE = {"head": ("#H",), "group": ("#G",), "layer": (), "position": (None,)}
_STATE = {"head": ("#N", "#H"), "group": ("#N", "#G"), "layer": ("#N",)}


def _axes(value: Value, step: bool = False) -> tuple[Axis, ...]:
    lead: tuple[str | None, ...]
    if value.role in ("input", "output"):
        lead = tuple(a for a in _TOKEN[value.level] if not (step and a == "#T"))
    else:
        lead = (_TABLE if value.role in ("param", "buffer") else _STATE)[value.level]
    return (*lead, *value.axes)


def _size(axis: Axis, sizes: Mapping[str, int]) -> int:
    """The number of an axis; KeyError where a dim has no value yet."""
    if isinstance(axis, tuple):
        total = Fraction(0)
        for coefficient, *names in axis:
            total += Fraction(coefficient) * int(np.prod([sizes[str(n)] for n in names], dtype=object))
        return int(total)
    return sizes[axis] if isinstance(axis, str) else axis or 0


def _text(axes: Sequence[Axis]) -> str:
    def one(axis: Axis) -> str:
        if isinstance(axis, tuple):
            terms = [[str(f) for i, f in enumerate(m) if i or f != 1 or len(m) == 1] for m in axis]
            return " + ".join("*".join(term) for term in terms)
        return "any" if axis is None else str(axis).lstrip("#")

    return "[" + ", ".join(map(one, axes)) + "]"


def _array(name: str, x: Any) -> Array:
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(f"{name}: expected a NumPy array, got {type(x).__module__}.{type(x).__name__}")
    if x.dtype.name not in FLOATS:
        raise TypeError(f"{name}: expected a float dtype ({', '.join(FLOATS)}), got {x.dtype}")
    return np.asarray(x)


def _fit(name: str, axes: Sequence[Axis], x: Array, sizes: dict[str, int], source: dict[str, str]) -> None:
    """Checks one shape against ``sizes`` and adds the sizes it shows first; ``source`` remembers who showed them."""
    if x.ndim != len(axes):
        raise ValueError(f"{name}: expected {_text(axes)}, {len(axes)} axes, got shape {x.shape}")
    for axis, size in zip(axes, x.shape):
        if isinstance(axis, str) and axis not in sizes:
            if size < 1 and axis[0] != "#":
                raise ValueError(f"{name}: {axis} must be at least 1, got shape {x.shape}")
            sizes[axis], source[axis] = size, name
    for axis, size in zip(axes, x.shape):
        if axis is None:
            continue
        names = {str(n) for m in axis for n in m[1:]} if isinstance(axis, tuple) else {str(axis)}
        unknown = [n for n in names if n not in sizes] if isinstance(axis, tuple) else []
        if len(unknown) == 1:
            fits = (n for n in range(1, size + 1) if _size(axis, {**sizes, unknown[0]: n}) == size)
            sizes[unknown[0]], source[unknown[0]] = next(fits, 0), name
        elif unknown:
            continue
        if _size(axis, sizes) != size:
            known = sorted(n for n in names if n in source)
            whence = "".join(f", {n.lstrip('#')} = {sizes[n]} from {source[n]}" for n in known)
            raise ValueError(
                f"{name}: expected {_text(axes)} with {_text([axis])[1:-1]} = {_size(axis, sizes)}"
                f"{whence}, got shape {x.shape}"
            )


@cache
def record(name: str, fields: tuple[str, ...]) -> Any:
    """The NamedTuple class of a state or of several outputs."""
    return namedtuple(name, fields)


def bind(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arrays:
    """Arguments by name from a call's positional and keyword ones; TypeError as Python's own calls give."""
    names = [a.name for a in signature.arguments]
    if len(args) > len(names):
        raise TypeError(f"{signature.name} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
    bound = dict(zip(names, args))
    for name, x in kwargs.items():
        if name not in names:
            raise TypeError(f"{signature.name} has no argument {name!r}; it takes {', '.join(names)}")
        if name in bound:
            raise TypeError(f"{name}: given twice, by position and by name")
        bound[name] = x
    return bound


class _Call:
    """One public call: everything checked in the constructor, before any core runs."""

    def __init__(
        self,
        signature: Signature,
        core: Core,
        arguments: Arrays,
        initial_state: Any,
        options: Mapping[str, Any],
        step: bool = False,
    ) -> None:
        self.signature, self.core, self.step = signature, core, step
        self.mode, self.chunk = _mode(signature, options.get("mode", "auto"), options.get("chunk"))
        self.x = self._arguments(arguments)
        sizes = self.sizes
        self.dtype = np.dtype(
            np.float64 if any(x is not None and x.dtype == np.float64 for x in self.x.values()) else np.float32
        )
        for i, a in enumerate(signature.arguments):
            if a.draw and self.x[a.name] is None:
                shape = tuple(_size(axis, sizes) for axis in _axes(a))
                self.x[a.name] = np.asarray(core.draws[a.draw](shape, i), self.dtype)
        self.segments = [(slice(0, sizes["#B"]), slice(0, sizes["#T"]), slice(0, sizes["#B"]))]
        cu_seqlens, valid = options.get("cu_seqlens"), options.get("valid")
        if cu_seqlens is not None or valid is not None:
            self.segments = list(_segments(sizes["#B"], sizes["#T"], cu_seqlens, valid))
        self.dense = cu_seqlens is None and valid is None
        sizes["#N"] = sizes["#B"] if cu_seqlens is None else len(cu_seqlens) - 1
        if initial_state is not None and signature.no_initial:
            raise ValueError(f"initial_state: {signature.no_initial}")
        self.given = self.fields("initial_state", initial_state)
        self.state = self._start()
        if options.get("debug"):
            self._check_promises()

    def _arguments(self, arguments: Arrays) -> Arrays:
        """Arrays by name, None where omitted; finds the size of every axis."""
        self.sizes = sizes = {name: self.signature.dims[name] for name in self.signature.pinned}
        source = dict.fromkeys(sizes, "the compilation")
        self.source = source
        x: Arrays = {}
        for a in self.signature.arguments:
            given = arguments.get(a.name)
            if given is None and not (a.optional or a.draw):
                raise TypeError(f"{a.name}: missing; {self.signature.name} needs {a.role} {a.name} "
                                f"{_text(_axes(a, self.step))}")
            x[a.name] = None if given is None else _array(a.name, given)
        for last in (False, True):  # plain dims first, so that expressions of them can be checked
            for a in self.signature.arguments:
                if x[a.name] is not None and last == any(isinstance(s, tuple) for s in a.axes):
                    _fit(a.name, _axes(a, self.step), x[a.name], sizes, source)
        if "#B" not in sizes:
            raise TypeError(f"{self.signature.name}: no input was given")
        sizes.setdefault("#T", 1)
        sizes.setdefault("#H", sizes.get("#G", 1))
        if sizes["#H"] % max(1, sizes.setdefault("#G", 1)):
            raise ValueError(f"{source['#G']}: {sizes['#H']} heads ({source['#H']}) do not divide into "
                             f"{sizes['#G']} groups")
        for name, size in self.signature.dims.items():
            sizes.setdefault(name, size)
        return x

    def fields(self, what: str, state: Any) -> Arrays:
        """The given fields of a state (or its cotangent), [N, ...] as the caller has them: a tuple like the state, a dict,
        a bare array where one state is declared, or None."""
        names = [s.name for s in self.signature.states]
        declared = [s.name for s in self.signature.states if s.role == "state"]
        if state is None:
            state = {}
        elif isinstance(state, np.ndarray):
            if len(declared) != 1:
                raise TypeError(f"{what}: expected a tuple or dict of {', '.join(names)}, got a bare array")
            state = {declared[0]: state}
        elif isinstance(state, tuple):
            if len(state) != len(names) or getattr(state, "_fields", tuple(names)) != tuple(names):
                got = ", ".join(getattr(state, "_fields", ())) or f"{len(state)} entries"
                raise ValueError(f"{what}: expected ({', '.join(names)}), got ({got})")
            state = dict(zip(names, state))
        elif not isinstance(state, Mapping):
            raise TypeError(f"{what}: expected a tuple, dict or array, got {type(state).__name__}")
        if unknown := [n for n in state if n not in names]:
            raise ValueError(f"{what}: no state {unknown[0]!r}; there are {', '.join(names) or 'none'}")
        given: Arrays = {}
        for s in self.signature.states:
            x = state.get(s.name)
            if x is None or (s.role == "position" and what != "initial_state"):
                continue
            if s.role == "position":
                if not isinstance(x, np.ndarray) or x.dtype.kind not in "iu" or (x < 0).any():
                    raise TypeError(f"{what}.{s.name}: expected non-negative integers [N], got {x!r}")
            else:
                x = _array(f"{what}.{s.name}", x)
            _fit(f"{what}.{s.name}", _axes(s), x, dict(self.sizes), {**self.source, "#N": "the call"})
            given[s.name] = x
        return given

    def _start(self) -> Arrays:
        """The state as the core wants it: [N, H, *axes] in the compute dtype, None to start as declared."""
        state: Arrays = {}
        for s in self.signature.states:
            x = self.given.get(s.name)
            if x is None and (s.role == "state" or (s.role == "log" and s.name[:-4] not in self.given)):
                state[s.name] = None
            elif s.role == "position":
                state[s.name] = np.zeros(self.sizes["#N"], np.int64) if x is None else x.astype(np.int64)
            else:
                if x is None:
                    x = np.zeros([_size(axis, self.sizes) for axis in _axes(s)])
                state[s.name] = self.spread(s, x.astype(self.dtype), 1)
        return state

    def spread(self, value: Value, x: Array, axis: int) -> Array:
        """``x`` repeated to all heads: the head axis is ``axis`` afterwards. A view but for 1 < G < H."""
        heads, groups = self.sizes["#H"], self.sizes["#G"]
        if value.level == "head" or (value.level == "group" and groups == heads):
            return x
        if value.level == "group" and groups > 1:
            return np.repeat(x, heads // groups, axis)
        x = x if value.level == "group" else np.expand_dims(x, axis)
        return np.broadcast_to(x, (*x.shape[:axis], heads, *x.shape[axis + 1 :]))

    def gather(self, value: Value, x: Array, axis: int, total: bool) -> Array:
        """The way back from heads to the level of ``value``: the sum of the copies, or the first of each group."""
        if value.level == "head":
            return x
        groups = self.sizes["#G"] if value.level == "group" else 1
        x = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
        x = x.sum(axis + 1) if total else x.take(0, axis + 1)
        return x if value.level == "group" else x.squeeze(axis)

    def first(self, value: Value, x: Array, axis: int) -> Array:
        """``x`` in the first copy of each group of heads and 0 in the others: the transpose of taking the first."""
        if value.level == "head":
            return x
        x = x if value.level == "group" else np.expand_dims(x, axis)
        full = np.zeros((*x.shape[:axis], self.sizes["#H"], *x.shape[axis + 1 :]), x.dtype)
        full[(slice(None),) * axis + (slice(None, None, self.sizes["#H"] // x.shape[axis]),)] = x
        return full

    def calls(self) -> Iterator[tuple[tuple[Any, Any, Any], Arrays, Arrays, Run]]:
        """What each segment hands to the core: where it lies, x, state and run."""
        for rows, tokens, n in self.segments if self.sizes["#B"] and self.sizes["#H"] else ():
            state = {name: None if s is None else s[n] for name, s in self.state.items()}
            x: Arrays = {}
            length = 1
            lead = (rows,) if self.step else (rows, tokens)
            for a in self.signature.arguments:
                if self.x[a.name] is not None and a.role == "input":
                    x[a.name] = self.spread(a, self.x[a.name][lead], len(lead))
                    length = 1 if self.step else x[a.name].shape[1]
            for a in self.signature.arguments:
                if self.x[a.name] is None:
                    x[a.name] = None
                elif a.level == "position":
                    at = self.positions(a, state, length)
                    x[a.name] = self.spread(a, self.x[a.name][at[:, 0] if self.step else at], len(lead))
                elif a.role != "input":
                    x[a.name] = self.spread(a, self.x[a.name], 0)
            dims = {name: self.sizes[name] for name in self.signature.dims}
            batch = rows.stop - rows.start
            run = Run(batch, length, self.sizes["#H"], dims, self.dtype, self.mode, self.chunk)
            yield (rows, tokens, n), {a.name: x[a.name] for a in self.signature.arguments}, state, run

    def positions(self, table: Value, state: Arrays, length: int) -> Array:
        """Rows [B, T] of a `per position` table that a segment reads."""
        at: Array = state["position"][:, None] + np.arange(length)
        if at.size and at.max() >= len(self.x[table.name]):
            raise ValueError(f"{table.name}: has {len(self.x[table.name])} rows, the call reads row {at.max() + 1}")
        return at

    def _check_promises(self) -> None:
        for _, x, _, run in self.calls():
            for name, text, holds in self.core.promises(x, run):
                if not np.all(holds):
                    worst = np.argwhere(~np.asarray(holds))[0].tolist()
                    raise ValueError(f"{name}: the promise {text} is broken at index {worst}")

    def pack(self, parts: list[Arrays], state_dtype: Any) -> Any:
        """The public state from the final fields of all segments."""
        fields: list[Array] = []
        for s in self.signature.states:
            arrays = [part[s.name] for part in parts]
            dtype = np.dtype(np.int64 if s.role == "position" else state_dtype or self.dtype)
            if s.role == "past" and s.axes[0] is None and arrays:  # windows that grow: aligned at the last token
                length = max(a.shape[2] for a in arrays)
                arrays = [np.pad(a, [(0, 0), (0, 0), (length - a.shape[2], 0), *[(0, 0)] * (a.ndim - 3)])
                          for a in arrays]
            if not arrays:
                full = np.zeros([_size(axis, self.sizes) for axis in _axes(s)], dtype)
            else:
                full = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
                full = full if s.role == "position" else self.gather(s, full, 1, total=False)
            fields.append(full.astype(dtype, copy=False))
        return record(f"{self.signature.name}_state", tuple(s.name for s in self.signature.states))(*fields)

    def results(self, outputs: Sequence[Array]) -> Any:
        """One output as it is, several as a NamedTuple."""
        names = tuple(o.name for o in self.signature.outputs)
        return outputs[0] if len(names) == 1 else record(f"{self.signature.name}_outputs", names)(*outputs)

    @property
    def first_dtype(self) -> Any:
        """The dtype of the first input, which is that of the outputs."""
        return next(self.x[a.name].dtype for a in self.signature.arguments if self.x[a.name] is not None)

    def full(self, value: Value, dtype: Any) -> Array:
        """Zeros in the public shape of a value."""
        return np.zeros([_size(axis, self.sizes) for axis in _axes(value, self.step)], dtype)


def _mode(signature: Signature, mode: str, chunk: int | None) -> tuple[str, int | None]:
    """A mode that exists and a chunk that goes with it; a chunk asks for mode chunk."""
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if chunk is not None:
        if not isinstance(chunk, int | np.integer) or isinstance(chunk, bool) or chunk < 1:
            raise ValueError(f"chunk: expected a positive integer, got {chunk!r}")
        if mode not in ("auto", "chunk"):
            raise ValueError(f"chunk: mode {mode} has no chunks, got chunk={chunk}")
        mode, chunk = "chunk", int(chunk)
    if reason := signature.modes.get(mode, ""):
        raise ValueError(f"mode: {signature.name} has no {mode} mode: {reason}")
    return mode, chunk


def _segments(B: int, T: int, cu_seqlens: Any, valid: Any) -> Iterator[tuple[slice, Any, slice]]:
    """Rows, tokens and states of each segment: a row, or what lies between two entries of ``cu_seqlens``. Tokens are those
    that are valid, as a slice where they are neighbours."""
    if valid is not None:
        if not isinstance(valid, np.ndarray) or valid.dtype != np.bool_:
            raise TypeError(f"valid: expected a bool array [B, T], got {getattr(valid, 'dtype', type(valid))}")
        if valid.shape != (B, T):
            raise ValueError(f"valid: expected [B, T] = [{B}, {T}], got shape {valid.shape}")
    bounds = [(b, 0, T) for b in range(B)]
    if cu_seqlens is not None:
        cu = np.asarray(cu_seqlens)
        if cu.dtype.kind not in "iu" or cu.ndim != 1:
            raise TypeError(f"cu_seqlens: expected integers [N + 1], got {cu.dtype} {cu.shape}")
        if B != 1:
            raise ValueError(f"cu_seqlens: packed segments have B = 1, got B = {B}")
        ends = cu.tolist()
        if not ends or ends[0] != 0 or ends[-1] != T or sorted(ends) != ends:
            raise ValueError(f"cu_seqlens: expected to rise from 0 to T = {T}, got {ends}")
        bounds = [(0, start, stop) for start, stop in zip(ends, ends[1:])]
    for n, (b, start, stop) in enumerate(bounds):
        tokens: Any = slice(start, stop)
        if valid is not None:
            kept = start + np.flatnonzero(valid[b, start:stop])
            near = kept.size == 0 or kept[-1] - kept[0] == kept.size - 1
            tokens = (slice(kept[0], kept[-1] + 1) if kept.size else slice(start, start)) if near else kept
        yield slice(b, b + 1), tokens, slice(n, n + 1)


def _cast(x: Array, dtype: Any) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(dtype, copy=False)


def forward(
    signature: Signature,
    core: Core,
    arguments: Arrays,
    *,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    valid: Any = None,
    mode: str = "auto",
    chunk: int | None = None,
    debug: bool = False,
    state_dtype: Any = None,
) -> tuple[Any, Any]:
    """Outputs and final state of all tokens. Raises ValueError or TypeError, naming the argument, before anything runs."""
    options = dict(cu_seqlens=cu_seqlens, valid=valid, mode=mode, chunk=chunk, debug=debug)
    call = _Call(signature, core, arguments, initial_state, options)
    outputs = {} if call.dense else {o.name: call.full(o, call.first_dtype) for o in signature.outputs}
    finals: list[Arrays] = []
    for (rows, tokens, _), x, state, run in call.calls():
        outs, final = core.forward(x, state, run)
        finals.append(final)
        for o in signature.outputs:
            value = _cast(call.gather(o, outs[o.name], 2, total=False), call.first_dtype)
            if call.dense:
                outputs[o.name] = value
            else:
                outputs[o.name][rows, tokens] = value
    found = [outputs[o.name] if finals else call.full(o, call.first_dtype) for o in signature.outputs]
    return call.results(found), call.pack(finals, state_dtype)


def step(
    signature: Signature,
    core: Core,
    arguments: Arrays,
    state: Any = None,
    *,
    out: Any = None,
    state_indices: Any = None,
    debug: bool = False,
    state_dtype: Any = None,
) -> tuple[Any, Any]:
    """Outputs of one token [B, H, *axes] and the state after it. With ``out`` (arrays of the state's shapes; they may be the
    state itself) the new state is written there and ``out`` returned. ``state_indices`` [B] says which rows of ``state``,
    a pool, and of ``out`` belong to this batch."""
    if signature.no_step:
        raise ValueError(f"step: {signature.no_step}")
    if out is not None and state_dtype is not None:
        raise ValueError("state_dtype: out has dtypes of its own")
    call = _Call(signature, core, arguments, None, {"debug": debug}, step=True)
    size = call.sizes["#B"]
    index: Any = slice(None)
    if state_indices is not None:
        index = np.asarray(state_indices)
        if index.dtype.kind not in "iu" or index.shape != (size,):
            raise TypeError(f"state_indices: expected integers [B] = [{size}], got {index.dtype} {index.shape}")
        if len(set(index.tolist())) != size or (index < 0).any():
            raise ValueError(f"state_indices: expected different rows from 0, got {index.tolist()}")
        call.sizes["#N"] = 1 + int(index.max(initial=-1)) if state is None and out is None else -1
    call.given = {name: x[index] for name, x in call.fields("initial_state", state).items()}
    target = call.fields("out", out) if out is not None else {}
    for s in signature.states if out is not None else ():
        if s.name not in target or not target[s.name].flags.writeable:
            raise ValueError(f"out.{s.name}: expected a writable array {_text(_axes(s))}")
    call.sizes["#N"] = size
    call.state = call._start()
    finals: list[Arrays] = []
    outputs = [call.full(o, call.first_dtype) for o in signature.outputs]
    for _, x, start, run in call.calls():
        outs, final = core.step(x, start, run)
        finals.append(final)
        outputs = [_cast(call.gather(o, outs[o.name], 1, total=False), call.first_dtype) for o in signature.outputs]
    new = call.pack(finals, state_dtype)
    for name, x in target.items():
        x[index] = getattr(new, name)
    return call.results(outputs), new if out is None else out


def vjp(
    signature: Signature,
    core: Core,
    arguments: Arrays,
    *,
    cotangent: Any = None,
    state_cotangent: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    valid: Any = None,
    mode: str = "auto",
    chunk: int | None = None,
) -> Arrays:
    """Gradients by argument name, each in its argument's shape and dtype, and ``initial_state`` where one was passed: the
    pullback of ``cotangent`` (one array, or a tuple or dict by output; None is 0) and ``state_cotangent`` (as a state)."""
    options = dict(cu_seqlens=cu_seqlens, valid=valid, mode=mode, chunk=chunk)
    call = _Call(signature, core, arguments, initial_state, options)
    pulled = _cotangents(call, cotangent)
    final = {
        s.name: call.first(s, _cast(x, call.dtype), 1)
        for s in signature.states
        if (x := call.fields("state_cotangent", state_cotangent).get(s.name)) is not None
    }
    learned = [a for a in signature.arguments if a.role != "buffer" and call.x[a.name] is not None]
    learned = [a for a in learned if arguments.get(a.name) is not None]
    total = {a.name: None if call.dense and a.role == "input" else call.full(a, call.dtype) for a in learned}
    initial: dict[str, list[Array]] = {name: [] for name in call.given}
    for (rows, tokens, n), x, state, run in call.calls():
        cts = {o.name: None for o in signature.outputs} | {k: ct[rows, tokens] for k, ct in pulled.items()}
        ends = {s.name: None for s in signature.states} | {k: ct[n] for k, ct in final.items()}
        gradients, before = core.backward(x, state, run, cts, ends)
        for a in learned:
            if a.role == "input":
                value = call.gather(a, gradients[a.name], 2, total=True)
                if call.dense:
                    total[a.name] = value
                else:
                    total[a.name][rows, tokens] = value
            elif a.level == "position":
                at = call.positions(a, state, run.T)
                np.add.at(total[a.name], at, gradients[a.name].sum(2))
            else:
                total[a.name] += call.gather(a, gradients[a.name], 0, total=True)
        for name in initial:
            if name in before:
                initial[name].append(before[name])
    result = {a.name: total[a.name] for a in learned}
    result = {a.name: _cast(result[a.name] if result[a.name] is not None else call.full(a, call.dtype),
                            call.x[a.name].dtype) for a in learned}
    if initial_state is not None:
        fields = [
            call.gather(s, np.concatenate(initial[s.name]), 1, total=True) if initial.get(s.name) else call.full(s, call.dtype)
            for s in signature.states
        ]
        result["initial_state"] = record(f"{signature.name}_state", tuple(s.name for s in signature.states))(*fields)
    return result


def _cotangents(call: _Call, cotangent: Any) -> Arrays:
    """The given cotangents of outputs by name, checked, at the heads."""
    outputs = call.signature.outputs
    if cotangent is None:
        cotangent = {}
    elif isinstance(cotangent, np.ndarray) and len(outputs) == 1:
        cotangent = {outputs[0].name: cotangent}
    elif isinstance(cotangent, tuple) and len(cotangent) == len(outputs):
        cotangent = {o.name: ct for o, ct in zip(outputs, cotangent)}
    elif not isinstance(cotangent, Mapping) or any(k not in [o.name for o in outputs] for k in cotangent):
        names = ", ".join(o.name for o in outputs)
        raise TypeError(f"cotangent: expected one array for each of {names}, got {type(cotangent).__name__}")
    pulled: Arrays = {}
    for o in outputs:
        if (x := cotangent.get(o.name)) is not None:
            x = _array("cotangent" if len(outputs) == 1 else f"cotangent.{o.name}", x)
            _fit(f"cotangent.{o.name}", _axes(o), x, dict(call.sizes), call.source)
            pulled[o.name] = call.first(o, x, 2)
    return pulled
