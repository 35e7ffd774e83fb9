"""A derived spec and the entries of its compiled passes in, the Python part of an emitted C target
out: a file that compiles NAME.c beside it and offers the variant for arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from lacc import __version__
from lacc.backends import base, paste
from lacc.backends.base import call_code, environment, tuple_text, unused
from lacc.backends.c_text import free_dims
from lacc.backends.numpy_host import axes_code, host_functions, host_values
from lacc.backends.numpy_names import (
    CALLS,
    EXPONENTS,
    PLAN,
    SAMPLERS,
    SCALARS,
    TILES,
    WALK,
)
from lacc.backends.rounding import delicate
from lacc.plan.plan import Plan
from lacc.runtime.contract import Signature
from lacc.spec.model import Spec
from lacc.spec.shapes import Size
from lacc.tile.derive import Derived

BUILDING = ("lacc.runtime.caching", "lacc.runtime.building")
HOST = (*WALK, "lacc.runtime.core", *BUILDING, "lacc.runtime.native")
"""Modules that are pasted whole between the calling convention and the library."""
PUBLIC = (
    "lacc.runtime.stepping",
    *(
        f"lacc.runtime.native_{part}"
        for part in (
            *("direct", "direct_back", "keeping", "transforms", "operators", "stepping", "torch"),
        )
    ),
)
"""Modules that are pasted whole between the library and the public functions."""
ATTENDING = "lacc.runtime.native_attention"
MODULES = (*CALLS, *HOST, ATTENDING, *PUBLIC, EXPONENTS, PLAN, *TILES, SCALARS)


@dataclass(frozen=True, slots=True)
class Emitted:
    """The texts of a compiled variant: NAME.c, NAME.h and NAME_c.py."""

    name: str
    c: str
    h: str
    py: str

    @property
    def files(self) -> dict[str, str]:
        """The texts by file name, the one that reads the others last."""
        return {f"{self.name}.c": self.c, f"{self.name}.h": self.h, f"{self.name}_c.py": self.py}


def first_line(spec: Spec) -> str:
    """The first line of NAME.c, by which NAME_c.py knows it."""
    written = f"Written by lacc {__version__} for C from variant {spec.ascii}"
    return f"/* {written}; sha256 {spec.digest} */"


def native_entry(
    number: str,
    *,
    reverse: bool = False,
    inputs: Iterable[str] = (),
    fixed: Iterable[str] = (),
    last: Iterable[str] = (),
    states: Iterable[str] = (),
    outputs: Iterable[str] = (),
    linear: bool = False,
    stored: Mapping[str, tuple[Size, ...]] | None = None,
) -> str:
    """The entry of a pass whose functions are NAME_forward_NUMBER and NAME_backward_NUMBER, names
    in the order of their arrays; ``stored`` are the shapes of those outputs that later passes
    read."""
    shapes = ", ".join(f'"{name}": {axes_code(shape)}' for name, shape in (stored or {}).items())
    return call_code(
        "Native",
        {
            "library": "LIBRARY",
            "number": f'"{number}"',
            "reverse": reverse,
            "inputs": tuple_text(inputs),
            "fixed": tuple_text(fixed),
            "last": tuple_text(last),
            "states": tuple_text(states),
            "outputs": tuple_text(outputs),
            "linear": linear,
            "stored": f"{{{shapes}}}",
        },
    )


def python_text(
    derived: Derived, plan: Plan, signature: Signature, passes: list[str], token: str | None
) -> str:
    """The text of NAME_c.py: ``NAME(...)``, ``NAME_step(...)``, ``NAME_vjp(...)``. ``passes`` and
    ``token`` are entries of the table: `native_entry`, `attention_entry` of a NativeAttention."""
    public = public_name(signature)
    functions = host_functions(derived)
    values = host_values(derived, plan, signature, public, passes, token, functions)
    attends = any(entry.startswith("NativeAttention(") for entry in passes)
    template = environment().get_template("c_python.py.j2")
    return template.render(
        **values | {"mixes": not delicate(derived)},
        imports=paste.imports(*MODULES),
        host=[paste.body(module) for module in (*HOST, *([ATTENDING] if attends else []))],
        dims=free_dims(derived.spec),
        public_modules=[paste.body(module) for module in PUBLIC],
        first_line=first_line(derived.spec),
        unshadowed=unused("HOST", [a.ascii for a in derived.spec.args]),
    )


def public_name(signature: Signature) -> str:
    """NAME: of the files, and of the emitted functions."""
    return base.public_name(signature.name, taken())


@cache
def taken() -> frozenset[str]:
    """Names that the Python file may define, generated ones aside."""
    return frozenset({"LIBRARY", "HOST"}).union(*map(paste.names, (*MODULES, SAMPLERS)))
