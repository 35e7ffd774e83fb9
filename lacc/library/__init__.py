"""What ships with the compiler: a name goes in, the text of a library spec or a sampler comes out.

`feature_maps.la` holds the feature maps that a spec may `use`; `samplers` draw buffers that are not
given.
"""

from __future__ import annotations

from importlib.resources import files

SAMPLERS = (
    "orthogonal_gaussian",
    "gaussian",
    "uniform",
    "rademacher",
    "orthogonal",
)
"""Samplers that a `buffer` may name; each is the function of that name in
`lacc.library.samplers`.
"""


def modules() -> list[str]:
    """Names of the library's specs."""
    names = (item.name for item in files(__name__).iterdir())
    return sorted(name.removesuffix(".la") for name in names if name.endswith(".la"))


def text(module: str) -> str:
    """The text of the library spec ``module``."""
    return (files(__name__) / f"{module}.la").read_text(encoding="utf-8")
