"""A derived spec and the entries of its passes in, the host part of an emitted Triton file out: the
runtime in torch, and the public functions with the tables that they run by."""

from __future__ import annotations

import re
from functools import cache
from pprint import pformat

from lacc.backends import base, paste, triton_device
from lacc.backends.base import environment, public_arguments, tuple_code, unused
from lacc.backends.numpy_lines import Function
from lacc.backends.tables import rows_entry, unit_axes
from lacc.backends.text import size_text
from lacc.backends.torch_text import plain
from lacc.backends.triton_frame import PLACES
from lacc.runtime.contract import Signature
from lacc.spec.shapes import Shape
from lacc.tile.derive import Derived

CONTRACT, ROWS = "lacc.runtime.contract", "lacc.runtime.passes"
SHARED = (
    *("Axis", "MODES", "Value", "Signature"),
    *("axes_of", "size_of", "axes_text", "record", "grows"),
)
"""What is the same for arrays of any library."""
SAMPLERS = "lacc.library.samplers"
MODULES = tuple(
    f"lacc.runtime.{name}"
    for name in (
        *("torch_run", "torch_arguments", "torch_sequences", "exponents", "torch_walk"),
        *("torch_rooms", "torch_pull", "torch_core", "torch_operators", "torch_direct"),
        "torch_public",
    )
)
"""Modules that are pasted whole, in this order."""
LAUNCHING = (
    "lacc.plan.devices",
    "lacc.tile.fit",
    "lacc.runtime.launching",
    "lacc.runtime.triton_launches",
)
BUILDING = (
    "lacc.plan.devices",
    *(f"lacc.runtime.{name}" for name in ("cuda_arena", "cuda_choosing", "caching")),
    *(f"lacc.runtime.{name}" for name in ("cuda_building", "cuda_launching")),
)
"""Modules that are pasted whole into files whose kernels are CUDA's."""
ATTENTION = tuple(
    f"lacc.runtime.{name}"
    for name in ("triton_attention_kernels", "torch_attention", "triton_attention")
)
"""Modules that are pasted whole into files whose kernels are generated, or that attend."""
CUDA_ATTENTION = ("lacc.runtime.torch_attention", "lacc.runtime.cuda_attention")
"""Those of files whose kernels are CUDA's that attend."""
IMPORTS = {
    "collections": ["namedtuple"],
    "fractions": ["Fraction"],
    "functools": ["cache"],
    "math": ["prod"],
}
"""What the parts that are pasted by name import."""
GENERATED = re.compile(
    r"(run_)?(fused|split|forward|backward|FUSED|SPLIT|BACK)_(\d+[a-z]*|token)"
    "|initial|initial_pull|promised|SIGNATURE|PROGRAM|HOST_*|KERNELS|WORKS|launched|ATTENTION"
)
"""Names of what is written for the spec."""


@cache
def taken() -> frozenset[str]:
    """Names that emitted files may define, generated ones aside."""
    modules = (*MODULES, CONTRACT, ROWS, SAMPLERS, *LAUNCHING, *BUILDING, *ATTENTION)
    modules += (*CUDA_ATTENTION, PLACES)
    return frozenset(triton_device.names()).union(*map(paste.names, modules))


def host_imports(*more: str) -> list[str]:
    """The import lines of the host part and of ``more`` modules, the standard library's first."""
    lines = filter(None, paste.imports(*MODULES, *more, also=IMPORTS))
    parts: tuple[list[str], list[str]] = ([], [])
    for line in sorted(lines, key=lambda line: (line.startswith("from"), line)):
        parts[line.split()[1].partition(".")[0] in ("torch", "triton")].append(line)
    return [*parts[0], "", *parts[1]]


def host_text(derived: Derived) -> str:
    """The runtime between the public functions and the passes."""
    draws = [a.draw for a in derived.spec.args if a.draw]
    parts = [paste.chosen(CONTRACT, SHARED), paste.chosen(ROWS, ["Rows"])]
    parts += [paste.chosen(SAMPLERS, draws)] if draws else []
    return "\n\n".join([*parts, *map(paste.body, MODULES)])


def host_functions(derived: Derived) -> list[Function]:
    """What the spec computes in torch: initial, initial_pull, promised."""
    found = []
    if derived.initial is not None:
        doc = "States before the first token, where they are not 0."
        found.append(plain(derived.initial.forward, "initial(fixed, dims, dtype)", doc))
        head = "initial_pull(fixed, dstates, dims, dtype)"
        doc = "The cotangents of params from those of the states before the first token."
        found.append(plain(derived.initial.backward, head, doc))
    if derived.promises is not None:
        head = "promised(x, fixed, C, dims, dtype)"
        doc = "Where each promise of the spec holds."
        found.append(plain(derived.promises, head, doc, over_time=True))
    return found


def public_name(signature: Signature) -> str:
    """The name of the emitted function."""
    wish = signature.name
    return base.public_name(f"{wish}_" if GENERATED.fullmatch(wish) else wish, taken())


def api_text(
    derived: Derived,
    signature: Signature,
    passes: list[str],
    token: str | None,
    chunk: str,
    alone: str,
    limit: int,
) -> str:
    """SIGNATURE, PROGRAM and the public functions. ``passes`` are the entries of the table, with
    `attention_entry` of those that attend, ``token`` that of the program of one token where the
    file has one; ``chunk`` and ``alone`` are code: how many tokens a chunk has, and whether the
    program of one token runs instead, in a call of (arguments, T)."""
    spec = derived.spec
    arguments = public_arguments(spec)
    named = {a.name for a in arguments}
    return (
        environment()
        .get_template("triton_api.py.j2")
        .render(
            signature=pformat(signature, width=96, sort_dicts=False),
            passes=passes,
            token=token,
            kept=[rows_entry(rows) for rows in derived.kept],
            outputs=[o.ascii for o in spec.outputs],
            states={s.ascii: _shape(s.shape) for s in spec.states},
            pasts=derived.chains,
            exponents=derived.exponents,
            units=_units(derived),
            counts=derived.counts,
            initial=derived.initial is not None,
            promises=derived.promises is not None,
            promised=derived.promised,
            draws=sorted({a.draw for a in spec.args if a.draw}),
            chunk=chunk,
            alone=alone,
            limit=limit,
            digest=spec.digest,
            arguments=arguments,
            public=public_name(signature),
            call={"HOST": unused("HOST", named)},
        )
    )


def _shape(shape: Shape) -> str:
    """The lengths of a state's axes by dims."""
    names = sorted({d for size in shape for d in size.dims})
    return f"lambda dims: {tuple_code(size_text(size, names) for size in shape)}"


def _units(derived: Derived) -> dict[str, tuple[int, ...]]:
    """Which axes, counted from the last, are a literal 1."""
    spec = derived.spec
    shapes = {a.ascii: a.shape for a in spec.args} | {s.ascii: s.shape for s in spec.states}
    return unit_axes(shapes)
