"""The texts of a CUDA file in, its kernels for the CPU out: g++ compiles them against a header that
stands in for the machine.

`Emulated` is put where `lacc.runtime.cuda_building.Nvcc` stands; all else is as on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from lacc.runtime.caching import BuildError, compiled, failure, kept, made, version_text

if TYPE_CHECKING:
    from lacc.runtime.cuda_building import Built, Loaded, Wanted

COMPILER = "g++"
SAID = (COMPILER, "kernels of CUDA run on the CPU only where g++ compiles them")
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-x", "c++")
HEADERS = ("emulation.h", "schedule.h", "races.h", "threads.h")
"""The emulation, what each includes behind it."""
RACES = ("-fsanitize=thread", "-g1", "-nodefaultlibs")
"""The compiler tells of accesses to memory; its own runtime stays out."""
LIBRARIES = ("-lstdc++", "-lm", "-lgcc_s", "-lc")
PLACE = re.compile(r"\{(\w+) (\w+)\}")
"""Where in a library an access is, and the call of the kernel that it is in."""
LIMIT = 232448
"""Bytes of shared memory of a block, those of sm_90."""
APART, ALIGNED = 1 << 16, 1 << 12
"""Bytes between arrays; copies lie as far from multiples of ALIGNED as what they are copies of."""
ORDERS = ("ascending", "descending", "shuffled")


@cache
def headers() -> dict[str, str]:
    """The texts of the headers by name."""
    return {name: (files("lacc.emulation") / name).read_text("utf-8") for name in HEADERS}


def fault_of(source: str, library: Any, code: int) -> str:
    """What the last launch did wrong; of places in a library compiled from ``source`` the lines."""
    fault = library["emulation_message"]
    fault.restype = ctypes.c_char_p
    said = (fault() or b"error %d" % code).decode()
    return PLACE.sub(lambda place: line_of(source, library._name, *place.groups()), said)


def line_of(source: str, library: str, *addresses: str) -> str:
    """The line of a source that code of a library comes from, and the line of the kernel that calls
    it, if it is another one; addresses where these cannot be read."""
    places = [f"{int(address, 16) - 1:x}" for address in addresses if address != "0"]
    command = ["addr2line", "-i", "-e", library, *places]
    said = compiled(command, None).stdout if shutil.which(command[0]) else ""
    numbers = [int(n) for n in re.findall(r"\.cu:(\d+)", said)]
    if not numbers:
        return f"{Path(library).name}+{places[0]}"
    lines = source.splitlines()
    found = {n: f"`{lines[n - 1].strip()}` (line {n})" for n in numbers}
    return " of ".join(dict.fromkeys([found[n] for n in numbers[:1] + numbers[-1:]]))


TOKEN = "_token"
"""The end of the names of kernels that go token after token."""

Types = dict[str, str]
"""By macro of a pointer what it points to."""

Span = tuple[str, int, int]
"""A name, the first byte of memory that has it, and the one behind the last."""


class Apart:
    """A kernel whose launches are given copies of their arrays, which lie far apart, so that what
    lies outside of an array is not part of another one."""

    lock = Lock()
    room: Any = b""
    """Where copies lie, of any launch: one after another runs."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded, self.library = loaded, loaded.library
        self.shared, self.scratch = loaded.shared, loaded.scratch
        self.together = loaded.together

    def launch(self, arguments: Any, programs: int, blocks: int, device: Any) -> str:
        """As `Built` says."""
        names = [name for name, _ in arguments._fields_]
        pointers = {name: getattr(arguments, name) for name, _ in zip(names, arguments.tensors)}
        spans = joined(zip(names, map(span, arguments.tensors)))
        with self.lock:
            places = self.places(spans)
            for (_, begin, end), to in zip(spans, places):
                ctypes.memmove(to, begin, end - begin)
                for name, place in pointers.items():
                    if place is not None and begin <= place < end:
                        setattr(arguments, name, to + place - begin)
            copies = [(x[0], to, to + x[2] - x[1]) for x, to in zip(spans, places)]
            tell(self.library, copies)
            wrong = self.loaded.launch(arguments, programs, blocks, device)
            for (_, begin, end), to in zip(spans, places):
                ctypes.memmove(begin, to, end - begin)
        for name, place in pointers.items():
            setattr(arguments, name, place)
        return wrong

    def places(self, spans: Sequence[Span]) -> list[int]:
        """Where copies of stretches of memory begin, amid bytes that make NaN."""
        total = sum(end - begin + APART + ALIGNED for _, begin, end in spans) + APART
        if len(self.room) < total:
            Apart.room = ctypes.create_string_buffer(total)
        at = ctypes.addressof(self.room)
        ctypes.memset(at, 0xFF, total)
        found = []
        for _, begin, end in spans:
            at += APART
            at += (begin - at) % ALIGNED
            found.append(at)
            at += end - begin
        return found


def tell(library: Any, spans: Sequence[Span]) -> None:
    """Says what memory the next launch of a library has."""
    names, begins, ends = zip(*spans) if spans else ((), (), ())
    count = len(spans)
    library["emulation_arrays"](
        count,
        (ctypes.c_char_p * count)(*(name.encode() for name in names)),
        (ctypes.c_size_t * count)(*begins),
        (ctypes.c_size_t * count)(*ends),
    )


def span(x: Any) -> tuple[int, int]:
    """The first byte of a tensor, and the one behind its last; the same where it has none."""
    if x is None or not x.numel():
        return 0, 0
    reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride()))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()


def joined(spans: Iterable[tuple[str, tuple[int, int]]]) -> list[Span]:
    """Stretches of memory in order; as one where they overlap."""
    found: list[Span] = []
    for begin, end, name in sorted((*place, name) for name, place in spans if place[1]):
        if found and begin < found[-1][2]:
            other, first, last = found.pop()
            found.append((f"{other} or {name}", first, max(end, last)))
        else:
            found.append((name, begin, end))
    return found


class Emulated:
    """Makes shared libraries by g++, which run the threads of a block in an ``order`` of `ORDERS`
    (shuffled by ``seed``), and end a launch at the first of its ``races``, or access to memory that
    it has not, if these are looked for; ``more`` are further flags."""

    def __init__(
        self,
        order: str = "ascending",
        seed: int = 1,
        more: Sequence[str] = (),
        races: bool = True,
    ) -> None:
        self.order, self.seed = ORDERS.index(order), seed
        self.more = (*more, *(RACES if races else ()))
        self.libraries, self.races = LIBRARIES if races else (), races
        self.made: dict[tuple[str, tuple[str, ...]], list[Types]] = {}
        """Of a source with some macros the types with which it was compiled."""
        self.types: dict[tuple[str, str], Types] = {}
        """Of a source in a precision the last type that is known of each pointer."""

    def limit(self, device: Any) -> int:
        """As `Builder` says."""
        return LIMIT

    def profile(self, device: Any) -> str:
        """As `Builder` says."""
        return ""

    def built(self, wanted: Wanted, device: Any) -> Built:
        """As `Builder` says."""
        from lacc.runtime import cuda_building

        fault = partial(fault_of, wanted.files[f"{wanted.name}.cu"])
        loaded = cuda_building.Loaded(self.library(wanted), wanted.symbol, lambda _: None, fault)
        order = loaded.library["emulation_order"]
        order.argtypes = (ctypes.c_int, ctypes.c_int)
        order(self.order, self.seed)
        return Apart(loaded) if self.races else loaded

    def together(self, wanted: Wanted) -> Wanted:
        """What has all kernels of the file that go by chunks, or all that go by token, since g++
        compiles several in little more time than one. Pointers of the others have the types that
        they had last in this precision, else that of most of this one's, gradients that of what
        they are of; for types that turn out otherwise it is compiled again."""
        source = wanted.files[f"{wanted.name}.cu"]
        names = re.findall(r"^#ifndef (T_\w+)$", source, re.M)
        said = dict(macro.partition("=")[::2] for macro in wanted.macros)
        types = {x: said[x] for x in names if x in said and x not in wanted.unused}
        by_token = wanted.symbol.endswith(TOKEN)
        only = dict.fromkeys(re.findall(r"LACC_ONLY_\w+", source))
        others = tuple(x for x in wanted.macros if not x.startswith(("T_", "LACC_ONLY")))
        others = (*others, "LACC_ONLY", *(x for x in only if x.endswith(TOKEN) == by_token))
        made = self.made.setdefault((source, others), [])
        found = next((x for x in made if types.items() <= x.items()), None)
        last = self.types.setdefault((source, said["PRECISION"]), {})
        last |= types
        if found is None:
            ((most, _),) = Counter(types.values()).most_common(1) or [("0", 0)]
            found = dict.fromkeys(names, most) | last
            found |= {f"T_d{x[2:]}": kind for x, kind in types.items() if f"T_d{x[2:]}" in names}
            found |= types
            made.append(found)
        macros = (*others, *(f"{name}={kind}" for name, kind in found.items()))
        return replace(wanted, symbol=wanted.name, macros=macros)

    def library(self, wanted: Wanted) -> Path:
        """The library of a kernel. Raises BuildError where it cannot be made."""
        wanted = self.together(wanted)
        texts = {**wanted.files, **headers()}
        flags = [*FLAGS, *self.more, "-include", HEADERS[0], *wanted.defines]
        key = wanted.key(*headers().values(), *flags, version_text([COMPILER], *SAID))

        def make(work: Path) -> Path:
            for file, text in texts.items():
                (work / file).write_text(text, "utf-8")
            path = work / f"{wanted.symbol}.so"
            command = [COMPILER, *flags, f"{wanted.name}.cu", *self.libraries, "-o", path.name]
            done = compiled(command, work)
            if done.returncode:
                raise BuildError(failure(done, *SAID))
            return path

        return kept(wanted.symbol, key) or made(wanted.symbol, key, make)
