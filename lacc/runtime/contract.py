"""In: a signature, a core and a caller's arrays; out: checked outputs, states and gradients.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file. It
turns a public call (any level and float dtype, packed or padded rows, any form of a state) into
calls of a *core*, which sees dense arrays only.

Notation: B batch rows, T tokens, H heads, G groups of heads, N states (B, or one per segment).

A core is five things (`Core`), whose arguments and results are dicts by ASCII name:

    forward(x, state, run)  -> (outputs, final)
    step(x, state, run)     -> (outputs, final): one token, as forward without the time axis
    backward(x, state, run, cotangent, state_cotangent) -> (gradients, initial)
    promises(x, run)        -> [(argument, text, holds), ...]: for each `where` a bool array, as
                               [B, T, H, *axes] (1 where it does not vary) or a single bool
    draws                      {sampler: fn(shape, seed) -> array}, for buffers that are not given

``x`` holds inputs [B, T, H, *axes], params and buffers [H, *axes], all repeated to the H heads, in
the caller's dtypes (cast to ``run.dtype`` block by block); a `per position` table arrives gathered,
as an input does. They may be read-only views of any strides. An omitted optional argument is None.
``state`` holds each field as [B, H, *axes] in ``run.dtype`` (position: int64 [B], the tokens seen
before), None for a state that starts as declared. Outputs are [B, T, H, *axes]; ``final`` has every
field, shaped as in ``state``; both are fresh arrays. Cotangents have the shapes of outputs and of
states, None for zero. ``gradients`` has an entry for each input and param that is not None, shaped
as in ``x``; ``initial`` one for each field of ``state`` that is an array, except position. B and T
may be 0; after no token the final state is the initial one.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any

import numpy as np

from lacc.runtime.segments import segments, token_count

Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]
# A number, a dim, a sum of products as in ((1,), (1, "K"), ("1/2", "K", "K")), None for any length.
Axis = int | str | tuple[tuple[int | str, ...], ...] | None

FLOATS = ("float16", "bfloat16", "float32", "float64")
MODES = ("auto", "chunk", "parallel", "recurrent")


@dataclass(frozen=True)
class Value:
    """An argument, output or field of the state. ``role`` is input, param, buffer, output, state,
    log (``NAME_log``, the exponent of the state NAME), past (delayed values, the most recent last
    along the first of ``axes``) or position; ``level`` is head, group, layer or position."""

    name: str
    role: str
    axes: tuple[Axis, ...] = ()
    level: str = "head"
    optional: bool = False  # has a default, which the core evaluates
    draw: str = ""  # the sampler of a buffer


@dataclass(frozen=True)
class Signature:
    """What a caller sees of a variant. ``modes`` maps each mode to the reason why it is missing, or
    to ""; ``no_step`` and ``no_initial`` (no initial state is accepted) are such reasons too."""

    name: str
    dims: dict[str, int]  # their defaults, which count where no array shows the dim
    pinned: tuple[str, ...]  # dims whose default is the only value
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[Value, ...]
    modes: dict[str, str]
    no_step: str = ""
    no_initial: str = ""
    longest: int | None = None  # the most tokens of a chunk


@dataclass(frozen=True)
class Core:
    """What a call runs: functions of dense arrays by name, [B, T, H, *axes]."""

    forward: Callable[..., tuple[Arrays, Arrays]]
    step: Callable[..., tuple[Arrays, Arrays]]
    backward: Callable[..., tuple[Arrays, Arrays]]
    promises: Callable[..., list[tuple[str, str, Any]]]
    draws: Mapping[str, Callable[[tuple[int, ...], int], Any]]


@dataclass(frozen=True)
class Run:
    """One call of a core: sizes, all dims by name, the dtype to compute in, mode and chunk."""

    B: int
    T: int
    H: int
    dims: dict[str, int]
    dtype: Any
    mode: str = "auto"
    chunk: int | None = None


# Leading axes by role and level; "#" keeps them apart from a spec's own dims.
_TOKEN = {"head": ("#B", "#T", "#H"), "group": ("#B", "#T", "#G"), "layer": ("#B", "#T")}
_TABLE = {"head": ("#H",), "group": ("#G",), "layer": (), "position": (None,)}
_STATE = {"head": ("#N", "#H"), "group": ("#N", "#G"), "layer": ("#N",)}


def _axes(value: Value, step: bool = False) -> tuple[Axis, ...]:
    """All axes of a value as a caller sees it."""
    if value.role in ("input", "output"):
        return (*(a for a in _TOKEN[value.level] if not (step and a == "#T")), *value.axes)
    table = _TABLE if value.role in ("param", "buffer") else _STATE
    return (*table[value.level], *value.axes)


def _size(axis: Axis, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, tuple):
        return int(sum(Fraction(c) * prod(sizes[str(n)] for n in names) for c, *names in axis))
    return sizes[axis] if isinstance(axis, str) else axis or 0


def _text(*axes: Axis) -> str:
    """``[B, T, 1 + K*K]``, for messages."""

    def one(axis: Axis) -> str:
        if isinstance(axis, tuple):
            return " + ".join("*".join(map(str, m[m[0] == 1 and len(m) > 1 :])) for m in axis)
        return "any" if axis is None else str(axis).lstrip("#")

    return f"[{', '.join(map(one, axes))}]"


def _floats(name: str, x: Any) -> Array:
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(f"{name}: expected a NumPy array, got {type(x)}")
    if x.dtype.name not in FLOATS:
        raise TypeError(f"{name}: expected dtype {', '.join(FLOATS)}, got {x.dtype}")
    return np.asarray(x)


def _cast(x: Array, dtype: Any) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(dtype, copy=False)


@cache
def record(name: str, fields: tuple[str, ...]) -> Any:
    """The NamedTuple class of a state or of several outputs."""
    return namedtuple(name, fields)


class _Call:
    """One public call: everything is checked before a core runs."""

    def __init__(
        self, signature: Signature, core: Core, arguments: Arrays, *, step: bool = False
    ) -> None:
        self.signature, self.core, self.step = signature, core, step
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
                axes = _text(*_axes(a, step))
                raise TypeError(f"{a.name}: {a.role} {axes} of {signature.name} is missing")
            self.x[a.name] = None if x is None else _floats(a.name, x)
        given = [a for a in signature.arguments if self.x[a.name] is not None]
        sums = [any(isinstance(axis, tuple) for axis in a.axes) for a in given]
        for _, a in sorted(zip(sums, given), key=lambda pair: pair[0]):  # dims before their sums
            self.fit(a.name, _axes(a, step), self.x[a.name], learn=True)
        if "#B" not in self.sizes:
            raise TypeError(f"{signature.name}: no input was given")
        heads = self.sizes.setdefault("#H", self.sizes.get("#G", 1))
        if heads % self.sizes.setdefault("#G", 1):
            groups = self.sizes["#G"]
            raise ValueError(f"{self.source['#G']}: G = {groups} does not divide H = {heads}")
        self.sizes = {"#T": 1, "#N": self.sizes["#B"], **signature.dims, **self.sizes}
        wide = any(self.x[a.name].dtype == np.float64 for a in given)
        self.dtype = np.dtype(np.float64 if wide else np.float32)
        self.out_dtype = self.x[given[0].name].dtype
        for seed, a in enumerate(signature.arguments):
            if a.draw and self.x[a.name] is None:
                shape = tuple(_size(axis, self.sizes) for axis in _axes(a))
                self.x[a.name] = np.asarray(core.draws[a.draw](shape, seed), self.dtype)
        every = slice(0, self.sizes["#B"])
        self.segments: list[Any] = [(every, slice(0, self.sizes["#T"]), every)]

    def fit(self, name: str, axes: Sequence[Axis], x: Array, learn: bool = False) -> None:
        """Checks a shape against the known sizes; ``learn`` takes those that are not known yet."""
        sizes = self.sizes if learn else dict(self.sizes)
        if x.ndim != len(axes):
            raise ValueError(f"{name}: expected {_text(*axes)}, got shape {x.shape}")
        for axis, size in zip(axes, x.shape):
            terms = axis if isinstance(axis, tuple) else ((1, axis),) if axis else ()
            names = list(dict.fromkeys(n for m in terms for n in m[1:] if isinstance(n, str)))
            unknown = [n for n in names if n not in sizes]
            if axis is None or len(unknown) > 1:
                continue
            for n in unknown:
                sizes[n], self.source[n] = size, name
                if isinstance(axis, tuple):  # of K in 1 + K*K, the number that fits
                    fits = (i for i in range(size + 1) if _size(axis, {**sizes, n: i}) == size)
                    sizes[n] = next(fits, 0)
                if sizes[n] < 1 and n not in ("#B", "#T"):
                    least = f"{n.lstrip('#')} >= 1"
                    raise ValueError(f"{name}: {least} does not fit {_text(*axes)} = {x.shape}")
            if _size(axis, sizes) != size:
                whence = ((n.lstrip("#"), sizes[n], self.source.get(n, "the call")) for n in names)
                known = " and ".join(f"{n} = {value} from {who}" for n, value, who in whence)
                want = _text(*axes) + (known and f" with {known}")
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
                x = _floats(name, x)
            elif not isinstance(x, np.ndarray) or x.dtype.kind not in "iu" or np.any(x < 0):
                raise TypeError(f"{name}: expected integers [N] of at least 0, got {x!r}")
            pooled = rows is not None and x.ndim == len(_axes(s))
            if pooled and rows.max(initial=-1) >= len(x):
                raise ValueError(f"state_indices: expected below {len(x)}, got {rows.max()}")
            self.fit(name, _axes(s), x[rows] if pooled else x)
            given[s.name] = x
        return given

    def start(self, given: Arrays) -> None:
        """Takes up the state that a core starts from."""
        self.given = given
        for s in self.signature.states:
            x = given.get(s.name)
            scaled = s.name.removesuffix("_log") in given
            declared = s.role == "state" or (s.optional and not _grows(s))
            if x is None and (declared or (s.role == "log" and not scaled)):
                self.state[s.name] = None
            else:
                dtype = np.dtype(np.int64) if s.role == "position" else self.dtype
                x = self.zeros(s, dtype) if x is None else _cast(x, dtype)
                self.state[s.name] = x if s.role == "position" else self.spread(s, x, 1)
        for a in self.signature.arguments:
            if a.level == "position" and self.x[a.name] is not None:
                seen = self.state["position"]
                ends = [int(p) + token_count(t) for _, t, n in self.segments for p in seen[n]]
                if (rows := len(self.x[a.name])) < max(ends, default=0):
                    raise ValueError(f"{a.name}: expected at least {max(ends)} rows, got {rows}")

    def zeros(self, value: Value, dtype: Any) -> Array:
        """Zeros in the shape that a caller sees."""
        return np.zeros([_size(axis, self.sizes) for axis in _axes(value, self.step)], dtype)

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

    def firsts(self, value: Value, axis: int) -> tuple[Any, ...]:
        """The index of the first copy of each entry of ``value``, the heads being ``axis``."""
        each = slice(None, None, self.copies(value)) if value.level in ("head", "group") else 0
        return (*(slice(None),) * axis, each)

    def total(self, value: Value, x: Array, axis: int) -> Array:
        """The sum of the copies, back at the level of ``value``."""
        if value.level == "head":
            return x
        with np.errstate(invalid="ignore"):
            x = np.add.reduceat(x, range(0, self.sizes["#H"], self.copies(value)), axis)
        return x if value.level == "group" else x.squeeze(axis)

    def first(self, value: Value, x: Array, axis: int) -> Array:
        """``x`` in the first copy and zeros in the others: the transpose of taking the first."""
        if value.level == "head":
            return x
        lead = x.shape[:axis]
        full = np.zeros((*lead, self.sizes["#H"], *x.shape[axis + (value.level == "group") :]))
        full[self.firsts(value, axis)] = x
        return full.astype(x.dtype)

    def runs(self) -> Iterator[tuple[tuple[Any, ...], slice, Arrays, Arrays, Run]]:
        """For each segment: its place in [B, T], its states, and what the core gets."""
        dims = {name: self.sizes[name] for name in self.signature.dims}
        heads = self.sizes["#H"]
        for rows, tokens, n in self.segments:
            place = (rows,) if self.step else (rows, tokens)
            length = token_count(tokens)
            state = {name: None if s is None else s[n] for name, s in self.state.items()}
            x: Arrays = dict.fromkeys(self.x)
            for a in self.signature.arguments:
                if self.x[a.name] is not None:
                    y = self.x[a.name]
                    if a.level == "position":
                        y = y[self.positions(state, length)]
                    elif a.role == "input":
                        y = y[place]
                    across = a.role == "input" or a.level == "position"
                    x[a.name] = self.spread(a, y, len(place) if across else 0)
            batch = rows.stop - rows.start
            run = Run(batch, length, heads, dims, self.dtype, self.mode, self.chunk)
            yield place, n, x, state, run

    def positions(self, state: Arrays, count: int) -> Array:
        """Which rows [B, T] (a step: [B]) of a `per position` table a segment reads."""
        at: Array = state["position"][:, None] + np.arange(count)
        return at[:, 0] if self.step else at

    def put(self, into: Arrays, value: Value, place: Any, x: Array, dtype: Any) -> None:
        """A segment's piece of an output, or of an input's gradient, into its place."""
        if self.whole:
            into[value.name] = _cast(x, dtype)
        else:
            if value.name not in into:
                into[value.name] = self.zeros(value, dtype)
            into[value.name][place] = _cast(x, dtype)

    def results(
        self, function: Callable[..., tuple[Arrays, Arrays]], state_dtype: Any, debug: bool
    ) -> tuple[Any, Any]:
        """Public outputs and state of forward or step of the core over all segments."""
        if state_dtype is not None and np.dtype(state_dtype).name not in FLOATS:
            raise TypeError(f"state_dtype: expected {', '.join(FLOATS)}, got {state_dtype}")
        for _, _, x, _, run in self.runs() if debug else ():
            for name, text, holds in self.core.promises(x, run):
                if not np.all(holds):
                    at = np.argwhere(~np.asarray(holds))[0].tolist()
                    raise ValueError(f"{name}: expected {text}, broken at index {at}")
        outputs: Arrays = {}
        finals: list[Arrays] = []
        for place, _, x, state, run in self.runs():
            produced, final = function(x, state, run)
            finals.append(final)
            for o in self.signature.outputs:
                y = produced[o.name][self.firsts(o, len(place))]
                self.put(outputs, o, place, y, self.out_dtype)
        fields = []
        for s in self.signature.states:
            y = _join(s, [final[s.name] for final in finals])
            if s.role != "position":  # an exponent's rounding would be a factor of the value
                dtype = self.dtype if s.role == "log" else state_dtype or self.dtype
                y = _cast(y[self.firsts(s, 1)], dtype)
            fields.append(y)
        names = tuple(o.name for o in self.signature.outputs)
        several = record(f"{self.signature.name}_outputs", names)(*map(outputs.get, names))
        return several if len(names) > 1 else several[0], self.state_record(fields)

    def state_record(self, fields: Iterable[Any]) -> Any:
        """The public state."""
        names = tuple(s.name for s in self.signature.states)
        return record(f"{self.signature.name}_state", names)(*fields)


def _grows(field: Value) -> bool:
    """Whether a field holds all tokens so far."""
    return field.role == "past" and field.axes[0] is None


def _join(field: Value, parts: list[Array]) -> Array:
    """A field of all segments in one array; windows that grow are aligned at their last token."""
    if _grows(field):
        longest = max(x.shape[2] for x in parts)
        pads = [[(0, 0)] * 2 + [(longest - x.shape[2], 0)] + [(0, 0)] * (x.ndim - 3) for x in parts]
        parts = [np.pad(x, pad) for x, pad in zip(parts, pads)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
) -> Any:
    """(outputs, state) of whole sequences. Every function here raises ValueError or TypeError that
    names the argument, what was expected and what came, before the core runs."""
    call = _Call(signature, core, arguments)
    call.begin(initial_state, mode, chunk, cu_seqlens, valid)
    return call.results(core.forward, state_dtype, debug)


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
) -> Any:
    """(outputs, state) of one token [B, H, *axes]. With ``out``, a state whose arrays are to be
    overwritten (often ``state`` itself), that is what comes back. ``state_indices`` [B] names the
    rows of ``state`` and ``out``, then pools of any length, that belong to the batch."""
    if signature.no_step:
        raise ValueError(f"step: {signature.no_step}")
    if out is not None and state_dtype is not None:
        raise ValueError(f"state_dtype: expected None with out, got {state_dtype}")
    call = _Call(signature, core, arguments, step=True)
    rows = None
    if state_indices is not None:
        rows, size = np.asarray(state_indices), call.sizes["#B"]
        if rows.dtype.kind not in "iu" or rows.shape != (size,):
            got = f"{rows.dtype} {rows.shape}"
            raise TypeError(f"state_indices: expected integers [B] = [{size}], got {got}")
        if len({*rows.tolist()}) < size or rows.min(initial=0) < 0:
            raise ValueError(f"state_indices: expected different rows, got {rows.tolist()}")
    given, target = call.fields("state", state, rows), call.fields("out", out, rows)
    for s in signature.states if out is not None else ():
        if _grows(s):
            raise ValueError(f"out: {s.name} grows with every token, so it has no place to go")
        if s.name not in target or not target[s.name].flags.writeable:
            raise ValueError(f"out.{s.name}: expected a writable array {_text(*_axes(s))}")
    call.start(given if rows is None else {name: x[rows] for name, x in given.items()})
    outputs, new = call.results(core.step, state_dtype, debug)
    for name, x in target.items():
        x[... if rows is None else rows] = _cast(getattr(new, name), x.dtype)
    return outputs, new if out is None else out


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
    """Gradients by name, in their arguments' shapes and dtypes, from the cotangents of the outputs
    (an array; a tuple or dict where there are several) and of the final state (in any form of a
    state). None is zero. "initial_state" is there, a tuple like the state, when one was passed."""
    call = _Call(signature, core, arguments)
    call.begin(initial_state, mode, chunk, cu_seqlens, valid)
    pulled = _cotangents(call, cotangent)
    ends: Arrays = dict.fromkeys(s.name for s in signature.states)
    given = call.fields("state_cotangent", state_cotangent)
    longest = max(token_count(tokens) for _, tokens, _ in call.segments)
    for s in signature.states:
        if s.name in given:
            ends[s.name] = ct = call.first(s, _cast(given[s.name], call.dtype), 1)
            if _grows(s) and ct.shape[2] != call.state[s.name].shape[2] + longest:
                got = given[s.name].shape
                raise ValueError(f"state_cotangent.{s.name}: expected the final shape, got {got}")
    wanted = [a for a in signature.arguments if a.role != "buffer" and call.x[a.name] is not None]
    found: Arrays = {}
    initial: dict[str, list[Array]] = {}
    for place, n, x, state, run in call.runs():
        cts = {name: None if ct is None else ct[place] for name, ct in pulled.items()}
        last = {name: None if ct is None else ct[n] for name, ct in ends.items()}
        for s in signature.states:
            if _grows(s) and (end := last[s.name]) is not None:
                last[s.name] = end[:, :, longest - run.T :]
        gradients, before = core.backward(x, state, run, cts, last)
        for name, g in before.items():
            initial.setdefault(name, []).append(g)
        for a in wanted:
            g = gradients[a.name]
            if a.role == "input":
                g = call.total(a, g, 2)
                call.put(found, a, place, g, call.x[a.name].dtype)
            elif a.level == "position":
                found.setdefault(a.name, np.zeros(call.x[a.name].shape, call.dtype))
                np.add.at(found[a.name], call.positions(state, run.T), g.sum(2))
            else:
                found[a.name] = call.total(a, g, 0) + found.get(a.name, 0)
    result = {a.name: _cast(found[a.name], call.x[a.name].dtype) for a in wanted}
    if initial_state is not None:
        result["initial_state"] = call.state_record(
            call.total(s, np.concatenate(initial[s.name]), 1)
            if s.name in call.given and s.role != "position"
            else call.zeros(s, call.dtype)
            for s in signature.states
        )
    return result


def _cotangents(call: _Call, cotangent: Any) -> Arrays:
    """The cotangent of each output, checked and at the heads; None for zero."""
    outputs = call.signature.outputs
    names = tuple(o.name for o in outputs)
    if isinstance(cotangent, np.ndarray) and len(outputs) == 1:
        cotangent = {names[0]: cotangent}
    elif isinstance(cotangent, tuple) and len(cotangent) == len(outputs):
        cotangent = dict(zip(names, cotangent))
    elif cotangent is None:
        cotangent = {}
    elif not isinstance(cotangent, Mapping) or {*cotangent} - {*names}:
        each = ", ".join(names)
        raise TypeError(f"cotangent: expected an array for each of {each}, got {type(cotangent)}")
    pulled: Arrays = dict.fromkeys(names)
    for o in outputs:
        if (ct := cotangent.get(o.name)) is not None:
            name = "cotangent" if len(outputs) == 1 else f"cotangent.{o.name}"
            ct = _floats(name, ct)
            call.fit(name, _axes(o), ct)
            pulled[o.name] = call.first(o, ct, 2)
    return pulled
