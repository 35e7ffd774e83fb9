"""Text of Triton kernels in, the text of the device functions that they call out."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lacc.backends import paste

MODULES = tuple(
    f"lacc.runtime.triton_{name}" for name in ("math", "axes", "scans", "decays", "pulls", "solves")
)
"""Modules of device functions; each uses those on its left."""


def names() -> set[str]:
    """Names that emitted files may define this way."""
    return {name for module in MODULES for name in paste.names(module)}


def device(wanted: Iterable[str]) -> str:
    """The definitions of ``wanted`` names that are device functions, and of what they use."""
    wanted = set(wanted)
    pieces = []
    for module in reversed(MODULES):
        piece = paste.chosen(module, wanted)
        wanted.update(re.findall(r"\w+", piece))
        pieces.append(piece.strip("\n"))
    return "\n\n\n".join(piece for piece in reversed(pieces) if piece) + "\n"
