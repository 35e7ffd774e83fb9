"""Arrays of a call and a pass of a compiled C file in, its results in the call's arrays out.

This module stands alone (NumPy and the standard library): its text is also pasted into the Python
part of emitted C files, behind `walk.py` and `building.py`. Arrays go as they are where their axes
behind the heads are packed, whatever their other strides: nothing is converted.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock, local
from typing import Any, Protocol

import numpy as np

from lacc.runtime.building import library, processor
from lacc.runtime.caching import BuildError
from lacc.runtime.contract import Array, Arrays
from lacc.runtime.walk import LINE, Call

EVERY = 64  # tokens between two states that the backward pass by token starts from
KINDS = {"f": 0, "d": 1, "e": 3, "l": 4, "q": 4}
"""``lacc_dtype`` by NumPy's letters; bfloat16, which has none of NumPy's own, is `BF16`."""
BF16 = 2
HELD = 1 << 27  # bytes of workspace that a thread keeps from call to call
RECYCLED = 31 << 20
"""Bytes of a block that is freed once: glibc's malloc then keeps twice as many of freed arrays for
the next ones. Else it gives results back to the system, which clears their pages for each call."""


class Described(ctypes.Structure):
    """``lacc_array``: where the elements of an array are, strides counted in elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sequence", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
    )


REST = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""What has threads of GCC's and LLVM's OpenMP that have nothing to do sleep after about as long as
it takes to wake them. Else they keep processors from others for 10 and 200 ms."""


@contextmanager
def resting() -> Iterator[None]:
    """OpenMP that is loaded in here has threads that `REST`, where the caller has not said how they
    are to wait. One that has been loaded before, as with torch, is what it is."""
    mine = {} if "OMP_WAIT_POLICY" in os.environ else REST
    mine = {name: value for name, value in mine.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]


FORKED: list[bool] = []
"""Filled in a child of a process that had loaded a library: OpenMP's threads are not there, and a
call that waits for them would do so for ever."""


@cache
def processors() -> int:
    """How many threads to use: $LACC_THREADS, else the processors that this process may use; one in
    a forked child."""
    if FORKED:
        return 1
    given = os.environ.get("LACC_THREADS", "")
    if given and not (given.isdecimal() and int(given)):
        raise ValueError(f"LACC_THREADS: expected a positive number, got {given!r}")
    may = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return int(given) if given else len(may(0))


def alone() -> None:
    """From now on one thread."""
    FORKED.append(True)
    processors.cache_clear()


BY_TILES, BY_VECTORS = 4.0, 1.25
"""How many times faster products of matrices in chunks are with factors of bfloat16: in tile
registers, and in vectors that are as fast with these (measured on a Xeon, and on a Zen 5)."""


@cache
def may_mix() -> float:
    """How many times faster this processor is with factors of bfloat16; 0 where it is not, as C
    finds too: it has no tiles, and no vectors or some that are half as fast with these."""
    features = set(processor().split())
    if sys.platform == "linux" and "amx_bf16" in features:
        return BY_TILES
    return BY_VECTORS if "avx512_bf16" in features and "avx512_fp16" not in features else 0.0


def mixes(x: Mapping[str, Any]) -> float:
    """How many times faster products are that round their factors in a call with these arguments; 0
    where they do not: they do where the first of these, and so what comes out, is of bfloat16."""
    first = next((y for y in x.values() if y is not None), None)
    return may_mix() if first is not None and first.dtype.char not in KINDS else 0.0


@cache
def mind_forks() -> None:
    """Children of this process are `alone`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=alone)


class Along(Call):
    """A call whose passes keep what its gradient needs beside the outputs, not in their place."""


class Library:
    """The functions of ``name``.c, which lies in the folder ``home`` with ``name``.h and begins
    with the line ``head``; ``dims`` are those of the spec, in the order of its struct. It is
    compiled for a dtype when that is first used, as `building.library` says, which raises."""

    def __init__(self, name: str, dims: tuple[str, ...], head: str, home: Path) -> None:
        self.name, self.dims, self.head, self.home = name, dims, head, home
        sizes = ("N", "T", "H", "chunk", "threads", "past", "products")
        fields = [*((size, ctypes.c_int64) for size in sizes), ("workspace", ctypes.c_void_p)]
        fields += [("room", ctypes.c_int64), *((f"dim_{dim}", ctypes.c_int64) for dim in dims)]
        self.Run: Any = type("Run", (ctypes.Structure,), {"_fields_": fields})
        self.loaded: dict[str, Any] = {}
        self.functions: dict[tuple[str, Any], Callable[..., int]] = {}
        self.lock, self.mine = Lock(), local()

    def load(self, kind: str) -> ctypes.CDLL:
        """The library for f32 or f64."""
        with self.lock:
            if kind not in self.loaded:
                files = {}
                for file in (f"{self.name}.c", f"{self.name}.h"):
                    try:
                        files[file] = (self.home / file).read_text("utf-8")
                    except OSError as problem:
                        raise BuildError(
                            f"cannot read {self.home / file}: {problem.strerror}"
                        ) from None
                if files[f"{self.name}.c"].partition("\n")[0] != self.head:
                    raise BuildError(
                        f"{self.home / self.name}.c is not what its Python file was written with; "
                        "compile the spec again"
                    )
                mind_forks()
                np.empty(RECYCLED, np.uint8)
                path = library(self.name, files, ["-DLACC_DOUBLE"] if kind == "f64" else [])
                try:
                    with resting():
                        self.loaded[kind] = ctypes.CDLL(str(path))
                except OSError as problem:
                    raise BuildError(
                        f"cannot load {path}: {problem}; set LACC_CACHE to a folder of a disk that "
                        "programs may be run from"
                    ) from None
        found: ctypes.CDLL = self.loaded[kind]
        return found

    def function(self, what: str, dtype: Any) -> Callable[..., int]:
        """The function called ``what`` for arrays of ``dtype``."""
        if (what, dtype) not in self.functions:
            kind = "f64" if dtype == np.float64 else "f32"
            found = getattr(self.load(kind), f"{self.name}_{what}_{kind}")
            found.restype = ctypes.c_int64 if what == "room" else ctypes.c_int
            self.functions[what, dtype] = found
        return self.functions[what, dtype]

    def sized(self, call: Call, past: int | None = None) -> Any:
        """The sizes of a call, after ``past`` tokens (None: those of the call)."""
        run, past = call.run, call.past if past is None else past
        chunk = EVERY if call.by_token else call.C
        products = BF16 if call.mixed else 0
        sizes = (run.B, run.T, run.H, chunk, processors(), past or 0, products, None, 0)
        return self.Run(*sizes, *(run.dims[dim] for dim in self.dims))

    def run(self, what: str, call: Call, arrays: Any, past: int | None = None) -> None:
        """Calls a function, after ``past`` tokens. Raises MemoryError."""
        sizes, dtype = self.sized(call, past), call.run.dtype
        self.call(what, self.function(what, dtype), sizes, self.room(sizes, dtype), arrays)

    def room(self, sizes: Any, dtype: Any) -> int:
        """Bytes of workspace that a call of these sizes takes."""
        return self.function("room", dtype)(ctypes.byref(sizes))

    def lent(self, shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[Array]:
        """Arrays in memory that the thread keeps, for as long as no others are lent."""
        sizes = [prod(shape) * np.dtype(dtype).itemsize for shape in shapes]
        room = sum(-(-size // LINE) * LINE for size in sizes) + LINE
        space = getattr(self.mine, "lent", None)
        if space is None or len(space) < room:
            space = np.empty(room, np.uint8)
            self.mine.lent = space if room <= HELD else None
        at, found = -space.ctypes.data % LINE, []
        for size, shape in zip(sizes, shapes):
            found.append(space[at : at + size].view(dtype).reshape(shape))
            at += -(-size // LINE) * LINE
        return found

    def call(
        self, what: str, function: Callable[..., int], sizes: Any, room: int, arrays: Any
    ) -> None:
        """Calls ``function`` with a workspace that the thread keeps. Raises MemoryError."""
        space: Array | None
        space, sizes.workspace, sizes.room = getattr(self.mine, "space", (None, 0, 0))
        if sizes.room < room:
            space = np.empty(room, np.uint8)
            sizes.workspace, sizes.room = space.ctypes.data, room
            self.mine.space = (space, space.ctypes.data, room) if room <= HELD else (None, 0, 0)
        if function(ctypes.byref(sizes), arrays):
            raise MemoryError(f"{self.name}: there is no room for the workspace of {what}")


class Table:
    """Arrays in the order in which a function takes them."""

    def __init__(self, sequences: int, heads: int) -> None:
        self.sequences, self.heads = sequences, heads
        self.rows: list[Any] = []
        self.held: list[Array | None] = []
        self.names: list[str] = []

    def put(self, x: Array | None, lead: int = 3, reverse: bool = False, *, name: str = "") -> None:
        """Adds ``x``, which has ``lead`` axes before those of a value: [B, T, H] or [B, H]."""
        self.names.append(name)
        if x is None:
            self.rows.append(())
            self.held.append(None)
            return
        size = x.itemsize
        if not (x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative):
            x = packed(x, lead)
        strides = x.strides
        sequence = strides[0] // size if self.sequences == x.shape[0] else 0
        head = strides[lead - 1] // size if self.heads == x.shape[lead - 1] else 0
        token, data = 0, x.ctypes.data
        if lead == 3:
            token = strides[1] // size
            if reverse:
                data += (x.shape[1] - 1) * strides[1]
                token = -token
        kind = KINDS.get(x.dtype.char, BF16)
        self.rows.append((data, sequence, token, head, kind))
        self.held.append(x)  # as long as the function runs

    def from_head(self, first: int) -> Table:
        """The same for heads from ``first`` on, but for states that chunks start from, which lie in
        memory that groups of heads have in turn."""
        found = Table(self.sequences, self.heads)
        found.names, found.held = self.names, self.held
        for row, x, name in zip(self.rows, self.held, self.names):
            if x is not None and not name.startswith("start "):
                row = (row[0] + first * row[3] * x.itemsize, *row[1:])
            found.rows.append(row)
        return found

    def described(self) -> Any:
        """The array of structs."""
        return (Described * len(self.rows))(*self.rows)


def packed(x: Array, lead: int) -> Array:
    """``x`` itself where C can read it: aligned, the axes behind ``lead`` packed; else a copy."""
    as_is, step = x.flags.aligned and x.dtype.isnative, x.itemsize
    for length, stride in zip(x.shape[: lead - 1 : -1], x.strides[: lead - 1 : -1]):
        as_is = as_is and (length == 1 or stride == step)
        step *= length
    if as_is and all(stride % x.itemsize == 0 for stride in x.strides[:lead]):
        return x
    return np.ascontiguousarray(x, x.dtype.newbyteorder("="))


class Compiled(Protocol):
    """A `Walk` by the functions of a library, of which ``way`` goes forward."""

    @property
    def library(self) -> Library: ...

    @property
    def way(self) -> str: ...

    @property
    def ends(self) -> tuple[str, ...]: ...

    def taken(self, call: Call, ended: Arrays, starts: list[Array]) -> Table: ...


@dataclass(frozen=True)
class Native:
    """A `Walk` by the functions ``number`` of a library. ``inputs``, ``fixed``, ``last``,
    ``states`` and ``outputs`` are in the order in which these take them; ``stored`` has the shape
    of each output that is a stored value, by dims. With ``reverse`` the last token is the first.
    Where it is ``linear``, it can find the gradient of its initial state alone."""

    library: Library
    number: str
    reverse: bool
    inputs: tuple[str, ...]
    fixed: tuple[str, ...]
    last: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    linear: bool
    stored: Mapping[str, Callable[[Mapping[str, int]], tuple[int, ...]]]

    @property
    def way(self) -> str:
        """The function that goes forward."""
        return f"forward_{self.number}"

    @property
    def ends(self) -> tuple[str, ...]:
        """The fields of a state that `taken` fills."""
        return self.states

    @property
    def overwrites(self) -> bool:
        """The functions write zeros where there is no cotangent."""
        return True

    def run(self, call: Call) -> list[Array]:
        """Outputs and states, and the states that chunks start from where these are kept."""
        run, chunk = call.run, EVERY if call.by_token else call.C
        ended = {name: np.empty(self.ended(call, name), run.dtype) for name in self.states}
        starts = []
        if call.keep:
            lead = (run.B, -(-run.T // chunk), run.H)
            shapes = [(*lead, *x.shape[2:]) for x in ended.values()]
            if len(call.passes) == 1 and not isinstance(call, Along):  # its way back is next
                starts = self.library.lent(shapes, run.dtype)
            else:
                starts = [np.empty(shape, run.dtype) for shape in shapes]
        table = self.taken(call, ended, starts)
        way = "keep" if call.keep and not isinstance(call, Along) else "forward"
        self.library.run(f"{way}_{self.number}", call, table.described())
        call.state.update(ended)
        return starts

    def taken(self, call: Call, ended: Arrays, starts: list[Array]) -> Table:
        """All that the way there takes: states go where they have ``ended``, and to ``starts``
        where chunks find them."""
        table = self.given(call)
        for name in self.states:
            table.put(call.state[name], 2, name=f"begun {name}")
        for name in self.outputs:
            into = call.into(name, self.stored[name](call.run.dims) if name in self.stored else ())
            wanted = not call.keep or isinstance(call, Along) or name in self.stored
            table.put(into if wanted else None, 3, self.reverse, name=f"out {name}")
        for name in self.states:
            table.put(ended[name], 2, name=f"ended {name}")
        for n, name in enumerate(self.states):
            table.put(starts[n] if starts else None, name=f"start {name}")
        return table

    def pull(self, call: Call, kept: list[Array]) -> None:
        """Cotangents of what the pass takes, from those of what it gives."""
        run, douts = call.run, call.dx | call.cotangents
        later, dx = [], {name: call.dx.get(name) for name in self.inputs}
        for name, d in dx.items():
            if d is not None and name in call.written:
                dx[name] = np.zeros_like(d)
                later.append((name, dx[name]))
        call.written.update(self.inputs)
        lead = (run.B, run.H)
        dfixed = {
            name: np.zeros((*lead, *call.fixed[name].shape[3:]), run.dtype)
            for name in self.fixed
            if name in call.dparams
        }
        before = {name: np.zeros_like(call.state[name]) for name in self.last}
        before |= {name: np.zeros(call.start[name].shape, run.dtype) for name in self.states}
        table = self.back(call, kept, douts, call.dstate, dx, dfixed, before)
        self.library.run(f"backward_{self.number}", call, table.described())
        for name, d in later:
            call.dx[name] += d
        for name, d in dfixed.items():
            call.add(name, d[:, :, None])
        for name in self.last:
            call.dstate[name] = call.dstate[name] + before[name]
        call.dstate.update((name, before[name]) for name in self.states)

    def back(
        self,
        call: Call,
        starts: Sequence[Array | None],
        douts: Arrays,
        dended: Arrays,
        dx: Arrays,
        dfixed: Arrays,
        before: Arrays,
    ) -> Table:
        """All that the way back takes: what chunks start from, cotangents of outputs and of states
        behind the call, then where gradients go, last those of states ``before`` it."""
        table = self.given(call)
        for name, start in zip(self.states, starts, strict=True):
            table.put(start, name=f"start {name}")
        for name in self.outputs:
            table.put(douts[name], 3, self.reverse, name=f"dout {name}")
        for name in self.states:
            table.put(dended[name], 2, name=f"dended {name}")
        for name in self.inputs:
            table.put(dx[name], 3, self.reverse, name=f"d {name}")
        for name in self.fixed:
            table.put(dfixed.get(name), 2, name=f"d {name}")
        for name in (*self.last, *self.states):
            table.put(before[name], 2, name=f"dbegun {name}")
        return table

    def given(self, call: Call) -> Table:
        """A table that begins with all that the pass takes but the states."""
        table = Table(call.run.B, call.run.H)
        for name in self.inputs:
            table.put(call.x[name], 3, self.reverse, name=name)
        for name in self.fixed:
            own = name in call.program.params  # in the caller's dtype
            x = call.x[name] if own else call.fixed[name]
            table.put(x if x is None else x[None] if own else x[:, :, 0], 2, name=name)
        for name in self.last:
            table.put(call.state[name], 2, name=f"ended {name}")
        return table

    def ended(self, call: Call, name: str) -> tuple[int, ...]:
        """The shape of a state behind the call: one that holds all tokens grows."""
        shape: tuple[int, ...] = call.state[name].shape
        if name in call.growing:
            return (*shape[:2], shape[2] + call.run.T, *shape[3:])
        return shape
