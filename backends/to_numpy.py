"""Derived tile programs and a plan in, one stand-alone NumPy file out.

Its first part is the spec's own: for each pass what is prepared once, and the chunk functions
forward and backward, each in the phases of `lacc.tile.split`. Below stand the kernels that these
use and the runtime, pasted from the modules that define them.
"""

from __future__ import annotations

from dataclasses import replace
from pprint import pformat

from lacc import __version__
from lacc.backends import base, paste
from lacc.backends.base import (
    Variables,
    environment,
    public_arguments,
    tuple_code,
    unused,
)
from lacc.backends.numpy_lines import Function, Writer
from lacc.backends.numpy_names import (
    ATTENDING,
    ATTENTION,
    BLOCKS,
    CALLS,
    EXPONENTS,
    MODULES,
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
from lacc.backends.numpy_pass import PassText
from lacc.backends.tables import attention_entry, rows_entry, unit_axes
from lacc.backends.text import Text, size_text
from lacc.plan.plan import Plan
from lacc.runtime.contract import Signature
from lacc.spec.model import Spec
from lacc.spec.shapes import ONE, Size
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived
from lacc.tile.program import Program

WIDTH = 96
INITIAL = "States before the first token, where they are not 0."
INITIAL_PULL = "The cotangents of params from those of the states before the first token."
PROMISED = "Where each promise of the spec holds."


def to_numpy(derived: Derived, plan: Plan, signature: Signature) -> str:
    """The text of the module: ``NAME(...)``, ``NAME_step(...)``, ``NAME_vjp(...)``."""
    spec = derived.spec
    functions: list[Function] = []
    passes = []
    for n, stage in enumerate(derived.passes):
        if isinstance(stage, AttentionPass):
            passes.append(attention_entry(stage))
            continue
        emitted = PassText(spec, stage, str(n), reverse=stage.stage.direction == "backward")
        functions += emitted.functions()
        passes.append(emitted.entry())
    token = None
    if derived.token is not None:
        emitted = PassText(spec, derived.token, "token", token=True)
        functions += emitted.functions()
        token = emitted.entry()
    if derived.initial is not None:
        functions.append(
            _plain(spec, derived.initial.forward, "initial(fixed, dims, dtype)", INITIAL)
        )
        head = "initial_pull(fixed, dstates, dims, dtype)"
        functions.append(_plain(spec, derived.initial.backward, head, INITIAL_PULL))
    if derived.promises is not None:
        functions.append(
            _plain(spec, derived.promises, "promised(x, fixed, C, dims, dtype)", PROMISED)
        )
    attends = any(isinstance(p, AttentionPass) for p in derived.passes)
    body = "\n".join(line for f in functions for line in (f.head, *f.lines))
    template = environment().get_template("numpy.py.j2")
    return template.render(
        spec=spec,
        version=__version__,
        plan=plan,
        plan_text=_pretty(replace(plan, why=())),
        public=public_name(signature),
        call=_unshadowed(spec),
        signature=_pretty(signature),
        arguments=public_arguments(spec),
        functions=functions,
        passes=passes,
        token=token,
        initial=derived.initial is not None,
        promises=derived.promises is not None,
        promised=list(derived.promised),
        params=[a.ascii for a in spec.args if a.role != "input" and a.per != "position"],
        kept=[rows_entry(rows) for rows in derived.kept],
        outputs={o.ascii: _shape(o.shape) for o in spec.outputs},
        states={s.ascii: _shape(s.shape) for s in spec.states},
        pasts=derived.chains,
        exponents=derived.exponents,
        units=_units(derived),
        counts=derived.counts,
        draws=sorted({a.draw for a in spec.args if a.draw}),
        imports=paste.imports(*MODULES),
        kernels=[
            *(paste.chosen(module, words(body)) for module in TILES),
            *([paste.body(ATTENTION)] if attends else []),
        ],
        attending=paste.body(ATTENDING) if attends else "",
        scalars=paste.chosen(SCALARS, words(body)),
        samplers=paste.chosen(SAMPLERS, [a.draw for a in spec.args if a.draw]),
        planning=paste.body(PLAN),
        exponent_fields=paste.body(EXPONENTS),
        blocks=[paste.body(module) for module in BLOCKS],
        calls=[paste.body(module) for module in CALLS],
    )


def public_name(signature: Signature) -> str:
    """The name of the emitted function."""
    return base.public_name(signature.name, taken())


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


def _shape(shape: tuple[Size, ...]) -> str:
    """The lengths of a tile's axes."""
    return f"lambda dims: {tuple_code(size_text(size, size.dims) for size in shape if size != ONE)}"


def _pretty(signature: Signature | Plan) -> str:
    return pformat(signature, width=WIDTH, sort_dicts=False)


def _plain(spec: Spec, program: Program, head: str, doc: str) -> Function:
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
