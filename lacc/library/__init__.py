"""What ships with the compiler: a name goes in, the text of a library spec or a sampler comes out.

`feature_maps.la` holds the feature maps that a spec may `use`; the examples are variants that a
spec may extend; `samplers` draw buffers that are not given.
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


EXAMPLES = "lacc.examples"


def modules() -> list[str]:
    """Names of the specs that a spec may `use`."""
    return _specs(__name__)


def variants() -> list[str]:
    """Names of the examples."""
    return _specs(EXAMPLES)


def text(name: str) -> str:
    """The text of the library spec or the example ``name``. Raises KeyError where there is none."""
    for package in (__name__, EXAMPLES):
        if name in _specs(package):
            return (files(package) / f"{name}.la").read_text(encoding="utf-8")
    raise KeyError(name)


def _specs(package: str) -> list[str]:
    names = (item.name for item in files(package).iterdir())
    return sorted(name.removesuffix(".la") for name in names if name.endswith(".la"))
