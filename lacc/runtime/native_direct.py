"""Arrays or tensors like those of an earlier call in, its outputs and states out, with as little as
possible in between: no check that the earlier call has passed, nothing that its sizes decide.

This module stands alone (NumPy; torch only where tensors come in): its text is also pasted into the
Python part of emitted C files, behind `native.py`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from threading import local
from typing import Any

import numpy as np

from lacc.runtime.arguments import Arguments, chosen
from lacc.runtime.contract import Array, Core, Run, Signature, Value, axes_of, size_of
from lacc.runtime.core import Single, without
from lacc.runtime.native import HELD, Compiled, Described, Library, Table, processors
from lacc.runtime.passes import Program
from lacc.runtime.walk import LINE, Call, in_lines

MOST = 256  # calls that a thread remembers
LARGE = 1 << 22  # bytes from which on NumPy asks for large pages
SMALL = 1 << 20  # bytes of values between passes that a remembered call may hold, and of others

HEAD = object.__basicsize__
"""Where CPython and NumPy keep the address of an array's numbers in its struct."""
peek, _probe = ctypes.c_void_p.from_address, np.zeros(1)
PEEKS = sys.implementation.name == "cpython"
PEEKS = PEEKS and peek(id(_probe) + HEAD).value == _probe.ctypes.data


def addresses(arrays: Iterable[Array]) -> list[int]:
    """Where the numbers of arrays begin: what ``x.ctypes.data`` says, in a tenth of its time."""
    if PEEKS:
        return [peek(id(x) + HEAD).value or 0 for x in arrays]
    return [x.ctypes.data for x in arrays]


def array_key(arrays: Iterable[Any]) -> list[Any] | None:
    """What of arrays decides whether a call of them is right; None where one is no plain array."""
    key: list[Any] = []
    for x in arrays:
        if x is None:
            key.append(None)
        elif type(x) is np.ndarray:
            key += (x.shape, x.strides, x.dtype)
        else:
            return None
    return key


def tensor_key(tensors: Iterable[Any]) -> list[Any] | None:
    """What of tensors decides whether a call of them is right; None where one is no plain tensor
    on the CPU, or somebody looks at what becomes of it: autograd, a mode, a transform."""
    torch = sys.modules["torch"]
    grads = torch.is_grad_enabled()
    key: list[Any] = []
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return None
    if torch.autograd.forward_ad._current_level >= 0:
        return None
    for x in tensors:
        if x is None:
            key.append(None)
        elif type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
            return None  # whose class may know better what becomes of it
        elif (grads and x.requires_grad) or x.layout is not torch.strided or not x.is_cpu:
            return None
        else:
            key += (x.shape, x.stride(), x.dtype, x.is_neg())
    return key


def tensor(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An empty tensor; a large one in NumPy's memory, whose pages are large and found faster."""
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_numpy(in_lines((size,), np.uint8)).view(dtype).view(shape)


def span(x: Array) -> tuple[int, int]:
    """The first byte of an array, and the one behind its last, from where it begins."""
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + x.itemsize


@dataclass(slots=True)
class Prepared:
    """The C calls of one public call, whose arrays change place and nothing else: those of the
    caller in order, then the results ``made`` here, of a shape and dtype each, of which those
    ``counted`` are the number of ``tokens``; then what is ``between`` functions. ``written`` are of
    the caller's."""

    library: Any
    dtype: Any
    sizes: Any
    calls: list[tuple[str, Callable[..., int], Any]]
    places: list[tuple[Described, int, int, int]]  # a row, its array, bytes from there, alignment
    made: list[tuple[tuple[int, ...], Any]]
    between: list[int]  # bytes of each of what only the functions see, the last of all arrays
    spans: list[tuple[int, int]]
    written: list[tuple[int, int]]  # an array that is written to, and the one it may lie on
    held: list[Any]
    counted: list[int]
    tokens: int
    cleared: frozenset[int] = frozenset()  # results that begin as zeros
    pools: dict[int, tuple[int, int]] = field(default_factory=dict)  # rows, bytes between them
    threads: int = 0
    room: int = 0

    def run(self, at: list[int], rows: list[int] | None) -> bool:
        """Whether arrays that begin there can be taken where they are; if so, all is computed, by
        the ``rows`` of pools that belong to the batch."""
        if rows is not None:
            least = min(count for count, _ in self.pools.values())
            if not rows or min(rows) < 0 or max(rows) >= least or len({*rows}) < len(rows):
                return False
        for row, n, offset, unaligned in self.places:
            place = at[n]
            if place & unaligned:
                return False
            row.data = place + offset
        for n, same in self.written:
            first, stop = at[n], at[n] + self.spans[n][1]
            for m, (place, (low, high)) in enumerate(zip(at, self.spans)):
                over = place + low < stop and first < place + high
                if over and m != n and (m != same or place != first):
                    return False
        self.refresh()
        if rows is None:
            self.call()
        else:
            self.call_rows(rows)
        return True

    def refresh(self) -> None:
        """Takes as many threads as there are now."""
        if self.threads != processors():
            self.threads = self.sizes.threads = processors()
            self.room = self.library.room(self.sizes, self.dtype)

    def call(self) -> None:
        """Calls the functions."""
        for what, function, table in self.calls:
            self.library.call(what, function, self.sizes, self.room, table)

    def call_rows(self, rows: list[int]) -> None:
        """Calls the functions for rows of pools: at once where they are equally far apart, else for
        one after the other."""
        apart = rows[1] - rows[0] if len(rows) > 1 else 1
        if all(row == rows[0] + n * apart for n, row in enumerate(rows)):
            for place, n, _, unaligned in self.places:
                if n in self.pools:
                    place.data += rows[0] * self.pools[n][1]
                    place.sequence = apart * self.pools[n][1] // (unaligned + 1)
            self.call()
            return
        begun = [place.data for place, *_ in self.places]
        self.sizes.N = 1
        try:
            for i, row in enumerate(rows):
                for (place, n, _, unaligned), data in zip(self.places, begun):
                    if n in self.pools:
                        place.data = data + row * self.pools[n][1]
                    else:
                        place.data = data + i * place.sequence * (unaligned + 1)
                self.call()
        finally:
            self.sizes.N = len(rows)


class Mine(local):
    """What a thread remembers: False where it has seen a call once, True where that must go the
    long way."""

    def __init__(self) -> None:
        self.seen: dict[Any, Prepared | bool] = {}
        self.space = np.empty(0, np.uint8)

    def between(self, sizes: list[int]) -> tuple[list[int], Array]:
        """Where there are so many bytes each, from the start of a cache line on, and what they
        are in: the same from call to call, as long as that is not too much to keep."""
        space, room = self.space, sum(size + LINE for size in sizes)
        if len(space) < room:
            space = np.empty(room, np.uint8)
            self.space = space if room <= HELD else self.space
        at, places = space.ctypes.data if sizes else 0, []
        for size in sizes:
            at += -at % LINE
            places.append(at)
            at += size
        return places, space


class Direct:
    """Calls of a spec whose state is plain: declared states per head that start at 0, and where
    tokens attend to others, calls that begin anew."""

    def __init__(self, signature: Signature, core: Core, program: Program) -> None:
        self.signature, self.program, self.draws = signature, program, core.draws
        self.arguments = tuple(a.name for a in signature.arguments)
        self.outputs = tuple(o.name for o in signature.outputs)
        self.states = tuple(s.name for s in signature.states)
        self.mine = Mine()
        self.attends = bool(program.kept)
        free = ("past", "position") if self.attends else ()
        plain = [
            s.role in free or (s.role == "state" and s.level == "head") for s in signature.states
        ]
        plain += [o.level == "head" for o in signature.outputs]
        plain += [a.level != "position" for a in signature.arguments]
        special = program.exponents or program.pasts or program.initial
        self.possible = all(plain) and not special and (self.attends or not program.counts)

    def call(
        self,
        asked: tuple[Any, ...],
        given: list[Any],
        into: list[Any] | None,
        indices: Any = None,
        placed: Sequence[Any] = (),
    ) -> tuple[Any, list[Any] | None]:
        """A key by which to `remember` the call, None where there is none; and its results, where
        it is known: outputs, and final states unless they go ``into`` others. ``given`` are
        arguments and initial states, ``asked`` is what else decides. A step has ``into``, which
        may be empty; with ``indices`` states are pools, whose rows these are. The first results go
        where they are ``placed``, and are not given back."""
        if not self.possible:
            return None, None
        if self.attends and (into is not None or any(x is not None for x in self.begun(given))):
            return None, None
        tensors = type(given[0]) is not np.ndarray and "torch" in sys.modules
        every = [*given, *(into or ()), *placed]
        looked = every if indices is None else [*every, indices]
        key = tensor_key(looked) if tensors else array_key(looked)
        if key is None:
            return None, None
        one = (*asked, *key)
        ready = self.mine.seen.get(one)
        if type(ready) is not Prepared:
            return one, None
        if tensors:
            torch = sys.modules["torch"]
            made = [tensor(torch, shape, dtype) for shape, dtype in ready.made]
            at = [x.data_ptr() for x in (*every, *made) if x is not None]
            if not all(at):  # nothing in it, or no memory behind it
                return None, None
        else:
            made = [in_lines(shape, dtype) for shape, dtype in ready.made]
            at = addresses([x for x in (*every, *made) if x is not None])
            if not all(x.flags.writeable for x in (*(into or ()), *placed)):
                return None, None
        for n in ready.cleared:
            made[n][...] = 0
        between, _space = self.mine.between(ready.between)  # alive until the functions are done
        if not ready.run(at + between, None if indices is None else indices.tolist()):
            return one, None
        for n in ready.counted:
            made[n][...] = ready.tokens
        return one, made

    def begun(self, given: list[Any]) -> list[Any]:
        """Initial states of all that is given."""
        return given[len(self.arguments) :]

    def remember(self, key: Any, prepare: Callable[[], Prepared | None], tensors: bool) -> None:
        """Has a call that was right known from its second time on, as what ``prepare`` gives then;
        ``tensors``: its results are to be tensors."""
        seen = self.mine.seen
        if key not in seen:
            if len(seen) >= MOST:
                seen.clear()
            seen[key] = False
        elif seen[key] is False:
            ready = prepare()
            if ready is not None and tensors:
                torch = sys.modules["torch"]
                ready.made = [(shape, getattr(torch, dtype.name)) for shape, dtype in ready.made]
            seen[key] = ready or True

    def prepared(
        self,
        asked: tuple[str, int | None] | None,
        given: list[Any],
        into: list[Any] | None,
        pooled: bool = False,
        placed: Sequence[Any] = (),
    ) -> Prepared | None:
        """The calls for a mode and chunk, or None of a step; None where what C takes are not the
        caller's own arrays. With ``pooled`` states are pools; outputs may be ``placed``."""
        signature, program, step = self.signature, self.program, asked is None
        args = Arguments(signature, self.draws, dict(zip(self.arguments, given)), step)
        x = {}
        for a in signature.arguments:
            wide, y = a.role == "input", args.x[a.name]
            y = None if y is None else args.spread(a, y, (1 if step else 2) if wide else 0)
            x[a.name] = y[:, None] if step and wide and y is not None else y
        mode, chunk = chosen(*(asked or ("auto", None)))
        dims = {name: args.sizes[name] for name in signature.dims}
        batch, tokens, heads = (args.sizes[name] for name in ("#B", "#T", "#H"))
        run: Any = Run(batch, tokens, heads, dims, args.dtype, mode, chunk)
        args.start({})
        states = without(args.state, program.units)
        call = Call(program, without(x, program.units), states, Single(run) if step else run)
        walks: list[Compiled] = [*call.passes]  # type: ignore[list-item]
        ending = {name for p in walks for name in p.ends}
        kept = {rows.field for rows in program.kept}
        short = any(tokens < (rows.length or 0) for rows in program.kept)
        if not walks or ending != program.states.keys() | kept or short:
            return None
        if self.attends and call.by_token:
            return None
        made = [*placed] or [empty(args, o, args.out_dtype) for o in signature.outputs]
        ended = into or [empty(args, s, args.dtype) for s in signature.states]
        outputs = dict(zip(self.outputs, (y[:, None] if step else y for y in made)))
        call.outputs = without(outputs, program.units)
        begun = self.begun(given)
        if pooled and not (into and all(x is not None for x in begun)):
            return None
        first = slice(0, batch) if pooled else slice(None)
        starts = [None if x is None else x[first] for x in begun]
        call.state = without(dict(zip(self.states, starts)), program.units)
        final = without({n: x[first] for n, x in zip(self.states, ended)}, program.units)
        tables = []
        for p in walks:
            tables.append((p.way, p.taken(call, final, [])))
            call.state.update((name, final[name]) for name in p.ends)
        names = [*self.arguments, *(f"begun {name}" for name in self.states)]
        ends = [f"ended {name}" for name in self.states]
        outs = [f"out {name}" for name in self.outputs]
        names += [*ends, *outs] if into else [*outs, *ends]
        every = (*given, *ended, *made) if into else (*given, *made, *ended)
        arrays = {name: x for name, x in zip(names, every) if x is not None}
        counted = [n for n, s in enumerate(signature.states) if s.role == "position"]
        counted = [n + (0 if placed else len(self.outputs)) for n in counted]
        between = [f"out {name}" for name in call.outputs if name not in self.outputs]
        if sum(call.outputs[name[4:]].nbytes for name in between) > SMALL:
            arrays |= {name: call.outputs[name[4:]] for name in between}
        else:
            between = []
        results = [*([] if placed else outs), *([] if into else ends)]
        library, into = walks[0].library, [*(ends if into else []), *(outs if placed else [])]
        ready = bound(library, call, tables, arrays, into, results, between)
        if ready is not None:
            ready.counted = counted
            fields = (*ends, *(f"begun {name}" for name in self.states)) if pooled else ()
            pools = {n: arrays[name] for n, name in enumerate(arrays) if name in fields}
            ready.pools = {n: (len(x), x.strides[0]) for n, x in pools.items()}
        return ready


def empty(args: Arguments, value: Value, dtype: Any) -> Array:
    """An array in the shape that a caller sees after all tokens."""
    axes = ("#T" if axis is None else axis for axis in axes_of(value, args.step))
    kind = np.dtype(np.int64) if value.role == "position" else dtype
    return np.empty([size_of(axis, args.sizes) for axis in axes], kind)


def bound(
    library: Library,
    call: Call,
    tables: list[tuple[str, Table]],
    arrays: dict[str, Array],
    into: list[str],
    results: list[str],
    between: list[str],
    heads: int | None = None,
) -> Prepared | None:
    """The calls of functions with ``tables``, whose rows are named as ``arrays``: the caller's, of
    which those ``into`` are written to, then ``results``, and what is ``between`` functions; each
    for some ``heads`` (None: all). None where C would take one from elsewhere than where it is."""
    dtype, index = call.run.dtype, {name: n for n, name in enumerate(arrays)}
    places, calls, held, written = [], [], [], []
    for way, table in tables:
        rows = table.described()
        calls.append((way, library.function(way, dtype), rows))
        for row, x, name in zip(rows, table.held, table.names):
            name = f"out {name}" if name not in arrays and f"out {name}" in arrays else name
            if x is not None and name not in arrays:
                held.append(x)
            elif x is not None and not np.may_share_memory(x, arrays[name]):
                return None
            elif x is not None:
                offset = row.data - arrays[name].ctypes.data
                places.append((row, index[name], offset, x.itemsize - 1))
    for name in into:
        x, begun = arrays[name], name.replace("ended ", "begun ", 1)
        if not ((x.flags.c_contiguous or not name.startswith("ended ")) and x.flags.writeable):
            return None
        y = arrays.get(begun)
        alike = y is not None and y.strides == x.strides and y.dtype == x.dtype
        written.append((index[name], index[begun] if alike else -1))
    if sum({id(x): x.nbytes for x in held}.values()) > 2 * SMALL:
        return None
    made = [(arrays[name].shape, arrays[name].dtype) for name in results]
    inner = [arrays[name].nbytes for name in between]
    spans = [span(x) for x in arrays.values()]
    sizes, tokens = library.sized(call), call.run.T
    sizes.H = sizes.H if heads is None else heads
    given = (calls, places, made, inner, spans, written, held)
    return Prepared(library, dtype, sizes, *given, [], tokens)
