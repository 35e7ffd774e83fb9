"""The device library of CUDA files in, its texts and names out, and which of its functions stage
operands of products in shared memory."""

from __future__ import annotations

import re
from functools import cache

from lacc.backends.base import environment

PIECES = (
    *("primitives", "base", "tiles", "math", "products", "places", "spread", "scans", "solves"),
    *("decays", "grams", "pulls"),
)
"""Pieces of `templates/cuda`, each after those that it uses."""

STAGE = ("row_panel", "column_panel")
"""The functions that give the memory which operands are staged in."""

DEFINED = re.compile(r"(?:INLINE|DEVICE|ROOM|struct|enum|static)\b[^;{=]*?\b(\w+)\s*[({]")
CALLED = re.compile(r"\b(\w+)(?:<[\w:, ]*>)?\(")
BEGINS = re.compile(r"^(?=(?:INLINE|DEVICE|ROOM|template|struct|static|enum)\b)", re.M)


def pieces(*more: str) -> list[str]:
    """The texts of the device library and of ``more`` pieces, in order."""
    loader = environment()
    assert loader.loader is not None
    every = (*PIECES, *more)
    return [loader.loader.get_source(loader, f"cuda/{piece}.cuh")[0] for piece in every]


@cache
def names() -> frozenset[str]:
    """Names that the device library gives things."""
    return frozenset(word for text in pieces("attention") for word in DEFINED.findall(text))


@cache
def staging() -> frozenset[str]:
    """The functions that stage operands, themselves or by what they call."""
    uses: dict[str, set[str]] = {}
    for text in pieces():
        for part in BEGINS.split(re.sub(r"/\*.*?\*/", "", text, flags=re.S)):
            if found := DEFINED.search(part):
                uses.setdefault(found[1], set()).update(CALLED.findall(part[found.end() :]))
    found_ = {*STAGE}
    while new := {name for name, words in uses.items() if words & found_} - found_:
        found_ |= new
    return frozenset(found_)
