"""The tensor arguments of a launch go in; loads and stores of its programs come out, each checked.

Every argument has addresses of its own, far from those of the others, so an address tells whose it
is: what lies outside the argument's view, in a gap between its strides or off an element's boundary
raises `MemoryFault`. Where a session watches, `Shadow` knows who touched each element.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

Array = np.ndarray[Any, Any]

REGION = 40
"""log2 of the addresses of one argument; its storage starts in the middle of them."""


class MemoryFault(Exception):
    """An access that a kernel may not make."""


@dataclass
class Shadow:
    """Who wrote and read each granule (of ``1 << shift`` bytes) of a storage in one launch."""

    size: int
    shift: int

    def __post_init__(self) -> None:
        self.writer = np.full(self.size, NOBODY, np.int32)
        self.reader = np.full(self.size, NOBODY, np.int32)
        self.phase = np.zeros(self.size, np.int32)

    @property
    def touched(self) -> tuple[int, int]:
        """Bytes read and bytes written, each counted once."""
        read, written = (int(np.sum(x != NOBODY)) for x in (self.reader, self.writer))
        return read << self.shift, written << self.shift


NOBODY, SEVERAL = -1, -2


@dataclass
class Argument:
    """One tensor: where its storage begins among the addresses, and which bytes of it are its."""

    name: str
    tensor: Any
    base: int
    first: int = 0
    end: int = 0
    views: dict[Any, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        x = self.tensor
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride())) + 1
        self.first = int(x.storage_offset() * x.element_size())
        self.end = self.first + (reach * x.element_size() if x.numel() else 0)

    @cached_property
    def bytes(self) -> Array:
        import torch

        storage = self.tensor.untyped_storage()
        found: Array = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return found

    @cached_property
    def gaps(self) -> Array | None:
        """Which of the elements between the first and the last are no elements of the view."""
        x = self.tensor
        count = (self.end - self.first) // x.element_size()
        if x.numel() == count:
            return None
        places = np.zeros((), np.int64)
        for n, step in zip(x.shape, x.stride()):
            places = np.add.outer(places, np.arange(n if step else 1) * step)
        between = np.ones(count, bool)
        between[places] = False
        return between if between.any() else None

    def entries(self, dtype: Any) -> Array:
        """The whole storage as elements of ``dtype``."""
        if dtype not in self.views:
            size = self.bytes.size // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.bytes[:size].view(dtype)
        return self.views[dtype]


class Memory:
    """The arguments of one launch; programs load and store by address."""

    def __init__(self, kernel: str, watched: bool, poisoned: bool) -> None:
        self.kernel = kernel
        self.watched = watched
        self.poisoned = poisoned
        self.arguments: list[Argument] = []
        self.program = 0
        self.phase = 0
        self.loaded = self.stored = 0
        self._shadows: dict[int, Shadow] = {}

    def place(self, name: str, tensor: Any) -> int:
        """The address of a tensor's first element."""
        if tensor.device.type != "cpu":
            said = f"{name}: interpreted kernels take CPU tensors, got one on {tensor.device}"
            raise TypeError(said)
        base = (len(self.arguments) << REGION) + (3 << (REGION - 1))
        argument = Argument(name, tensor, base)
        self.arguments.append(argument)
        return base + argument.first

    def enter(self, program: int) -> None:
        """The accesses to come are those of ``program``."""
        self.program, self.phase = program, 0

    def barrier(self) -> None:
        """What was stored before is seen by the whole program from now on."""
        self.phase += 1

    def load(self, addresses: Array, mask: Array | None, other: Array | None, dtype: Any) -> Array:
        """The elements at ``addresses``; ``other`` where masked off, or poison where none is
        given."""
        live = addresses if mask is None else addresses[mask]
        if mask is not None and live.size < addresses.size:
            fill = other if other is not None else poison(dtype) if self.poisoned else 0
            found = np.empty(addresses.shape, dtype)
            found[...] = fill
            if live.size:
                found[mask] = self._read(live, dtype)
            return found
        return self._read(addresses, dtype)

    def _read(self, live: Array, dtype: Any) -> Array:
        argument, offsets = self._find("loads", live, dtype.itemsize)
        if self.watched:
            self._watch_load(argument, offsets)
            self.loaded += live.size * dtype.itemsize
        found: Array = argument.entries(dtype).take(offsets >> _log2(dtype.itemsize))
        return found

    def store(self, addresses: Array, mask: Array | None, value: Array, dtype: Any) -> None:
        """Puts ``value`` where the mask is set."""
        if mask is not None:
            addresses, value = addresses[mask], np.broadcast_to(value, addresses.shape)[mask]
            if not addresses.size:
                return
        argument, offsets = self._find("stores", addresses, dtype.itemsize)
        places = offsets >> _log2(dtype.itemsize)
        entries = argument.entries(dtype)
        entries[places] = value
        if self.watched:
            self._watch_store(argument, offsets)
            self.stored += addresses.size * dtype.itemsize
            kept = entries.take(places)
            if kept.tobytes() != np.broadcast_to(value, kept.shape).astype(dtype).tobytes():
                self._fault(argument, "stores different values at one element", offsets)

    def real(self, addresses: Array, mask: Array, size: int) -> Array:
        """True addresses, for what only the stock interpreter does (atomics)."""
        argument, _ = self._find("updates", addresses[mask], size)
        start = np.int64(argument.tensor.untyped_storage().data_ptr() - argument.base)
        found: Array = (addresses.view(np.int64) + start).view(np.uint64)
        return found

    def _find(self, verb: str, live: Array, size: int) -> tuple[Argument, Array]:
        """The argument that all addresses belong to, and their bytes in its storage."""
        where = live.astype(np.uint64, copy=False).view(np.int64)
        low, high = int(where.min()), int(where.max())
        number = (low >> REGION) - 1
        if not 0 <= number < len(self.arguments):
            said = f"{self.kernel}, program {self.program}: {verb} through no pointer of its own"
            raise MemoryFault(said)
        argument = self.arguments[number]
        offsets = where - argument.base
        if low - argument.base < argument.first or high - argument.base + size > argument.end:
            inside = (offsets >= argument.first) & (offsets + size <= argument.end)
            self._fault(argument, f"{verb} out of bounds", offsets, ~inside)
        if (np.bitwise_or.reduce(offsets, axis=None) - argument.first) & (size - 1):
            skewed = ((offsets - argument.first) & (size - 1)) != 0
            if skewed.any():
                self._fault(argument, f"{verb} off an element's boundary", offsets, skewed)
        if argument.gaps is not None:
            step = argument.tensor.element_size()
            between = argument.gaps[(offsets - argument.first) // step]
            if between.any():
                self._fault(argument, f"{verb} between the elements", offsets, between)
        return argument, offsets

    def _fault(
        self, argument: Argument, what: str, offsets: Array, bad: Array | None = None
    ) -> NoReturn:
        """Raises, with the first bad element."""
        at = int((offsets if bad is None else offsets[bad]).reshape(-1)[0]) - argument.first
        x = argument.tensor
        raise MemoryFault(
            f"{self.kernel}, program {self.program}: {what}, element {at / x.element_size():g} of "
            f"{argument.name} (shape {(*x.shape,)}, strides {x.stride()})"
        )

    def _shadow(self, argument: Argument) -> Shadow:
        storage = argument.tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._shadows:
            sharing = [
                a.tensor.element_size()
                for a in self.arguments
                if a.tensor.untyped_storage().data_ptr() == key
            ]
            shift = _log2(min(sharing))
            self._shadows[key] = Shadow((storage.nbytes() >> shift) + 1, shift)
        return self._shadows[key]

    def _watch_load(self, argument: Argument, offsets: Array) -> None:
        shadow = self._shadow(argument)
        places = offsets >> shadow.shift
        writer = shadow.writer[places]
        if writer.max() != NOBODY:
            others = (writer != NOBODY) & (writer != self.program)
            if others.any():
                self._fault(argument, "races: loads what another program stores", offsets, others)
            fresh = (writer == self.program) & (shadow.phase[places] == self.phase)
            if fresh.any():
                said = "loads what it stored, no tl.debug_barrier() between"
                self._fault(argument, said, offsets, fresh)
        reader = shadow.reader[places]
        alone = (reader == NOBODY) | (reader == self.program)
        shadow.reader[places] = np.where(alone, self.program, SEVERAL)

    def _watch_store(self, argument: Argument, offsets: Array) -> None:
        shadow = self._shadow(argument)
        places = offsets >> shadow.shift
        for said, owner in (("stores", shadow.writer), ("loads", shadow.reader)):
            found = owner[places]
            others = (found != NOBODY) & (found != self.program)
            if others.any():
                what = f"races: stores what another program {said}"
                self._fault(argument, what, offsets, others)
        shadow.writer[places] = self.program
        shadow.phase[places] = self.phase

    @property
    def touched(self) -> tuple[int, int]:
        """Bytes of memory read and written, each counted once: the traffic of perfect caches."""
        pairs = [shadow.touched for shadow in self._shadows.values()]
        return sum(read for read, _ in pairs), sum(written for _, written in pairs)


def poison(dtype: Any) -> Any:
    """What no kernel may use: NaN, or the largest integer."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.nan


def _log2(size: int) -> int:
    return size.bit_length() - 1
