"""The texts of a CUDA file in, its kernels for the CPU out: g++ compiles them against a header that
stands in for the machine.

`Emulated` is put where `lacc.runtime.cuda_building.Nvcc` stands; all else is as on a GPU.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lacc.runtime.caching import BuildError, compiled, failure, kept, made, version_text

if TYPE_CHECKING:
    from pathlib import Path

    from lacc.runtime.cuda_building import Built, Wanted

COMPILER = "g++"
SAID = (COMPILER, "kernels of CUDA run on the CPU only where g++ compiles them")
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-x", "c++")
HEADER = "emulation.h"
LIMIT = 232448
"""Bytes of shared memory of a block, those of sm_90."""
ORDERS = ("ascending", "descending", "shuffled")


@cache
def header() -> str:
    """The text of the header."""
    return (files("lacc.emulation") / HEADER).read_text("utf-8")


def whole(wanted: Wanted) -> Wanted:
    """What has all kernels of the file, since g++ compiles them in little more time than one: where
    arrays have one type."""
    types = {macro.partition("=")[2] for macro in wanted.macros if macro.startswith("T_")}
    if len(types) > 1:
        return wanted
    names = re.findall(r"^#ifndef (T_\w+)$", wanted.files[f"{wanted.name}.cu"], re.M)
    macros = [macro for macro in wanted.macros if not macro.startswith(("T_", "LACC_ONLY"))]
    macros += [f"{name}={kind}" for name in names for kind in types]
    return replace(wanted, symbol=wanted.name, macros=tuple(macros))


def fault_of(library: Any, code: int) -> str:
    """What the last launch did wrong."""
    fault = library["emulation_message"]
    fault.restype = ctypes.c_char_p
    return (fault() or b"error %d" % code).decode()


class Emulated:
    """Makes shared libraries by g++, which run the threads of a block in an ``order`` of `ORDERS`
    (shuffled by ``seed``); ``more`` are further flags."""

    def __init__(self, order: str = "ascending", seed: int = 1, more: Sequence[str] = ()) -> None:
        self.order, self.seed, self.more = ORDERS.index(order), seed, tuple(more)

    def limit(self, device: Any) -> int:
        """As `Builder` says."""
        return LIMIT

    def built(self, wanted: Wanted, device: Any) -> Built:
        """As `Builder` says."""
        from lacc.runtime.cuda_building import Loaded

        loaded = Loaded(self.library(wanted), wanted.symbol, lambda _: None, fault_of)
        order = loaded.library["emulation_order"]
        order.argtypes = (ctypes.c_int, ctypes.c_int)
        order(self.order, self.seed)
        return loaded

    def library(self, wanted: Wanted) -> Path:
        """The library of a kernel. Raises BuildError where it cannot be made."""
        wanted = whole(wanted)
        texts = {**wanted.files, HEADER: header()}
        flags = [*FLAGS, *self.more, "-include", HEADER, *wanted.defines]
        key = wanted.key(header(), *flags, version_text([COMPILER], *SAID))

        def make(work: Path) -> Path:
            for file, text in texts.items():
                (work / file).write_text(text, "utf-8")
            path = work / f"{wanted.symbol}.so"
            done = compiled([COMPILER, *flags, f"{wanted.name}.cu", "-o", path.name], work)
            if done.returncode:
                raise BuildError(failure(done, *SAID))
            return path

        return kept(wanted.symbol, key) or made(wanted.symbol, key, make)
