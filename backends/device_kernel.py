"""What a kernel of a device is, before any of its text is written: its program, and how it goes
through chunks or tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lacc.backends.text import size_text
from lacc.spec.shapes import Size
from lacc.tile.program import Program

WORD = re.compile(r"[^\W\d]\w*")


def host_size(size: Size) -> str:
    """A size as Python over the sizes ``n`` by name."""
    return WORD.sub(lambda name: f'n["{name[0]}"]', size_text(size))


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What one kernel is: ``program`` (and the program ``remade`` whose states a backward by token
    needs), the kind ("chunk", "loop", "token"), whether it goes ``backward`` through the chunks,
    whether the pass runs from the last token to the first (``reverse``), the states it carries, and
    the arguments that may be omitted. Programs share the axis ``split`` in blocks, or each goes
    through blocks of the axis ``looped`` ("" for none), in rounds that may be ``spare``."""

    name: str
    doc: str
    kind: str
    program: Program
    split: str = ""
    looped: str = ""
    backward: bool = False
    reverse: bool = False
    carries: tuple[str, ...] = ()
    remade: Program | None = None
    optional: frozenset[str] = frozenset()
    spare: bool = False
