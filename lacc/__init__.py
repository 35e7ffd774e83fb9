"""Out come the public names of lacc, each imported when first asked for: ``import lacc`` is free.

    gla = lacc.compile("gla.la", target="numpy")
    o, state = gla(q, k, v, g)

Specs go in as paths, source text or decorated functions; see `lacc.driver`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lacc.diagnostics import LaccError as LaccError
    from lacc.driver import analyse as analyse
    from lacc.driver import compile as compile
    from lacc.driver import load as load
    from lacc.driver import targets as targets
    from lacc.frontends.embedded import variant as variant

_HOME = {
    "LaccError": "lacc.diagnostics",
    "analyse": "lacc.driver",
    "compile": "lacc.driver",
    "load": "lacc.driver",
    "targets": "lacc.driver",
    "variant": "lacc.frontends.embedded",
}

__all__ = ["LaccError", "__version__", "analyse", "compile", "load", "targets", "variant"]


def __getattr__(name: str) -> object:
    """The public ``name``, from the module it lives in."""
    if name not in _HOME:
        raise AttributeError(f"module 'lacc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
