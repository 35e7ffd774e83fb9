"""Modules that an emitted NumPy file holds and the programs in it in, names out: those that are
taken, and those of dims, of loads and of what a pass is given.
"""

from __future__ import annotations

import builtins
import keyword
from functools import cache

from lacc.backends import paste
from lacc.backends.text import size_text
from lacc.tile.program import Program

CALLS = (
    *("lacc.runtime.contract", "lacc.runtime.segments"),
    *("lacc.runtime.arguments", "lacc.runtime.calls"),
)
EXPONENTS = "lacc.runtime.exponents"
WALK = ("lacc.runtime.passes", "lacc.runtime.walk")
BLOCKS = (*WALK, "lacc.runtime.blocks", "lacc.runtime.core")
PLAN = "lacc.plan.plan"
KERNELS, LAYOUT = "lacc.tile.kernels", "lacc.tile.layout"
DENSE, TRIANGULAR, SCANS = "lacc.tile.dense", "lacc.tile.triangular", "lacc.tile.scans"
TILES = (KERNELS, TRIANGULAR, LAYOUT, DENSE, SCANS)
ATTENTION, ATTENDING = "lacc.tile.attention_kernels", "lacc.runtime.attending"
SCALARS, SAMPLERS = "lacc.ir.scalars", "lacc.library.samplers"
MODULES = (
    *(*CALLS, *BLOCKS, EXPONENTS, PLAN),
    *(*TILES, ATTENTION, ATTENDING, SCALARS),
)
"""Modules that are pasted, whole or in parts, samplers aside."""
RESERVED = (
    "np",
    "inputs",
    "states",
    "constants",
    "starts",
    "fixed",
    "last",
    "cotangents",
    "dstates",
    "dims",
    "dtype",
    "C",
    "n",
    "c",
)


@cache
def taken() -> frozenset[str]:
    """Names that the pasted modules define."""
    return frozenset().union(*map(paste.names, (*MODULES, SAMPLERS)))


def words(text: str) -> set[str]:
    """The words of code, comments aside."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return set("".join(c if c.isalnum() or c == "_" else " " for c in code).split())


def dim_lines(program: Program, code: list[str]) -> list[str]:
    """Names of dims that lines use, read from ``dims``."""
    used = words("\n".join(code))
    found = sorted((all_dims(program) & used) - unnamed(program))
    if not found:
        return []
    got = ", ".join(f'dims["{d}"]' for d in found)
    return [f"{', '.join(found)} = {got}"]


def all_dims(program: Program) -> set[str]:
    """The dims of axes, and of sizes that are numbers."""
    numbers = [inst.value for inst in program.body if inst.op == "size"]
    return {d for size in (*program.sizes.values(), *numbers) for d in size.dims}


def unnamed(program: Program) -> set[str]:
    """Dims that no variable is named after, for that name is taken."""
    dims, used = all_dims(program), {*RESERVED, *taken(), *keyword.kwlist, *dir(builtins)}
    return {d for d in dims if d in used or not d.isidentifier()}


def lengths(program: Program) -> dict[str, str]:
    """How long each axis is, as code."""
    quoted = unnamed(program)
    sizes = {axis: size_text(size, quoted) for axis, size in program.sizes.items()}
    return {"t": "C", "s": "C", **sizes}


class Names(dict[tuple[str, str], str]):
    """Variables for what a pass is given, by (kind, name); ``used`` holds all names that are
    taken."""

    def __init__(self, used: set[str]) -> None:
        super().__init__()
        self.used = used

    def take(self, kind: str, name: str, wish: str, *endings: str) -> None:
        """Gives ``wish``, with underscores behind it where it, or it with one of ``endings``, is
        taken."""
        while not self.used.isdisjoint({wish, *(wish + ending for ending in endings)}):
            wish += "_"
        self.used |= {wish, *(wish + ending for ending in endings)}
        self[kind, name] = wish


def identifier(label: str) -> str:
    """A load's name as a variable: ``k@-2`` and ``k@2`` are k_2_ago, ``S@log`` is S_log, the stored
    ``0.1`` is stored0_1."""
    name, _, offset = label.partition("@")
    if offset == "log":
        return f"{name}_log"
    if offset:
        return f"{name}_{offset.lstrip('-')}_ago"
    return label if label.isidentifier() else f"stored{label.replace('.', '_')}"
