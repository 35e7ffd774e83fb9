"""A derived spec and the entries of its passes in, what every file with a NumPy host says of it
out: values for the template `numpy_program.py.j2`, and plain functions of arrays.
"""

from __future__ import annotations

from dataclasses import replace
from pprint import pformat
from typing import Any

from lacc import __version__
from lacc.backends import paste
from lacc.backends.base import Variables, public_arguments, tuple_code, unused
from lacc.backends.numpy_lines import Function, Writer
from lacc.backends.numpy_names import (
    CALLS,
    EXPONENTS,
    PLAN,
    RESERVED,
    SAMPLERS,
    SCALARS,
    TILES,
    dim_lines,
    lengths,
    taken,
    words,
)
from lacc.backends.tables import rows_entry, unit_axes
from lacc.backends.text import Text, size_text
from lacc.plan.plan import Plan
from lacc.runtime.contract import Signature
from lacc.spec.model import Spec
from lacc.spec.shapes import ONE, Size
from lacc.tile.derive import Derived
from lacc.tile.program import Program

WIDTH = 96
INITIAL = "States before the first token, where they are not 0."
INITIAL_PULL = "The cotangents of params from those of the states before the first token."
PROMISED = "Where each promise of the spec holds."


def host_functions(derived: Derived) -> list[Function]:
    """What the spec computes beside its passes: initial, initial_pull, promised."""
    spec, found = derived.spec, []
    if derived.initial is not None:
        found.append(plain(spec, derived.initial.forward, "initial(fixed, dims, dtype)", INITIAL))
        head = "initial_pull(fixed, dstates, dims, dtype)"
        found.append(plain(spec, derived.initial.backward, head, INITIAL_PULL))
    if derived.promises is not None:
        head = "promised(x, fixed, C, dims, dtype)"
        found.append(plain(spec, derived.promises, head, PROMISED))
    return found


def host_values(
    derived: Derived,
    plan: Plan,
    signature: Signature,
    public: str,
    passes: list[str],
    token: str | None,
    functions: list[Function],
) -> dict[str, Any]:
    """What templates take. ``passes`` are the entries of the table, ``token`` that of the program
    of one token, ``functions`` all that stand in the file."""
    spec = derived.spec
    body = "\n".join(line for f in functions for line in (f.head, *f.lines))
    return {
        "spec": spec,
        "version": __version__,
        "plan": plan,
        "plan_text": _pretty(replace(plan, why=())),
        "tuned": {"forward": plan.tuned, "backward": plan.back.tuned if plan.back else {}},
        "public": public,
        "call": _unshadowed(spec),
        "signature": _pretty(signature),
        "arguments": public_arguments(spec),
        "functions": functions,
        "passes": passes,
        "token": token,
        "initial": derived.initial is not None,
        "promises": derived.promises is not None,
        "promised": list(derived.promised),
        "params": [a.ascii for a in spec.args if a.role != "input" and a.per != "position"],
        "kept": [rows_entry(rows) for rows in derived.kept],
        "outputs": {o.ascii: axes_code(o.shape) for o in spec.outputs},
        "states": {s.ascii: axes_code(s.shape) for s in spec.states},
        "pasts": derived.chains,
        "exponents": derived.exponents,
        "units": _units(derived),
        "mixes": False,
        "counts": derived.counts,
        "draws": sorted({a.draw for a in spec.args if a.draw}),
        "kernels": [paste.chosen(module, words(body)) for module in TILES],
        "scalars": paste.chosen(SCALARS, words(body)),
        "samplers": paste.chosen(SAMPLERS, [a.draw for a in spec.args if a.draw]),
        "planning": paste.body(PLAN),
        "exponent_fields": paste.body(EXPONENTS),
        "calls": [paste.body(module) for module in CALLS],
    }


def axes_code(shape: tuple[Size, ...]) -> str:
    """The lengths of a tile's axes by dims, as code."""
    return f"lambda dims: {tuple_code(size_text(size, size.dims) for size in shape if size != ONE)}"


def _unshadowed(spec: Spec) -> dict[str, str]:
    """Names that the public functions use, under others where an argument has that name."""
    arguments = {a.ascii for a in spec.args}
    names = ("forward", "step", "vjp", "SIGNATURE", "CORE")
    return {name: unused(name, arguments) for name in names}


def _units(derived: Derived) -> dict[str, tuple[int, ...]]:
    """Which axes, counted from the last, are a literal 1."""
    spec = derived.spec
    shapes = {a.ascii: a.shape for a in spec.args}
    shapes |= {rows.past.name: rows.shape for rows in derived.kept}
    shapes |= {o.ascii: o.shape for o in spec.outputs}
    shapes |= {s.ascii: s.shape for s in spec.states}
    return unit_axes(shapes)


def _pretty(signature: Signature | Plan) -> str:
    return pformat(signature, width=WIDTH, sort_dicts=False)


def plain(spec: Spec, program: Program, head: str, doc: str) -> Function:
    """A function without phases: arrays by name in, arrays by name of output out."""
    names = Variables(program, [*RESERVED, *taken(), *spec.dims, "C", "x"])
    writer = Writer(spec, program, names, lengths(program))
    source = {"input": "x", "dstate": "dstates"}
    for n, inst in enumerate(program.body):
        if inst.op == "load":
            kind, name = inst.value
            kind = "input" if (kind, name) == ("index", "t") else kind
            writer.texts[n] = Text(f'{source.get(kind, "fixed")}["{name}"]')
    lines = writer.lines([n for n, inst in enumerate(program.body) if inst.op != "load"])
    outs = ", ".join(
        f'"{name.rpartition(":")[2]}": {writer.texts[n].code}' for name, n in program.outs.items()
    )
    return Function(
        f"def {head}:", doc, (*dim_lines(program, [*lines, outs]), *lines, f"return {{{outs}}}")
    )
