"""What every backend uses: the one Jinja environment, and names for the values of a tile
program."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from lacc.spec.model import Arg, Spec
from lacc.tile.program import Program

STEMS = {
    "add": "added",
    "contract": "product",
    "decayed": "read",
    "div": "ratio",
    "exp": "raised",
    "accumulate": "summed",
    "expand": "wide",
    "gram": "pairs",
    "inverse": "inverted",
    "largest": "top",
    "levels": "decay",
    "lower": "pairs",
    "mask": "pairs",
    "matrix": "between",
    "mul": "scaled",
    "neg": "negated",
    "pooled": "gradient",
    "pow": "power",
    "prefix": "up",
    "pulled": "gradient",
    "rename": "tile",
    "scan": "scanned",
    "solve": "solved",
    "sub": "difference",
    "suffix": "down",
    "sum": "summed",
    "whole": "total",
}


PICKED = {
    "meet": ("pairs", "from_start", "to_end"),
    "meet_pull": ("part",) * 3,
    "decayed_pull": ("part",) * 3,
}
"""Ops with several results, and what these are called."""


def environment() -> Environment:
    """The Jinja environment of all templates."""
    found = Environment(
        loader=PackageLoader("lacc.templates", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    found.filters.update(
        tuple_text=tuple_text,
        shape_table=shape_table,
        tuned_table=tuned_table,
        parameters=parameters,
        pair=lambda n: f'"{n}": {n}',
    )
    return found


def tuple_code(values: Iterable[str]) -> str:
    """A tuple of code as Python."""
    listed = list(values)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


def tuple_text(names: Iterable[str]) -> str:
    """A tuple of strings as Python."""
    return tuple_code(f'"{name}"' for name in names)


def call_code(function: str, arguments: Mapping[str, object]) -> str:
    """A call by keywords as Python, a line each."""
    lines = "".join(f"    {name}={code},\n" for name, code in arguments.items())
    return f"{function}(\n{lines})"


def unused(wish: str, taken: Container[str]) -> str:
    """``wish``, with underscores behind it where it is taken."""
    while wish in taken:
        wish += "_"
    return wish


def public_name(variant: str, taken: Container[str]) -> str:
    """The name of an emitted function: the variant's, with underscores behind it where it, or it
    with `_step` or `_vjp`, has a meaning in Python or is ``taken``."""
    known = {*keyword.kwlist, *dir(builtins)}
    while any(n in known or n in taken for n in (variant, f"{variant}_step", f"{variant}_vjp")):
        variant += "_"
    return variant


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a public function: what it is for callers, ``axes`` as in ``[B, T, H, K]``,
    whether it may be omitted, and where it stands in the spec."""

    name: str
    role: str
    axes: str
    doc: str
    omitted: bool
    arg: Arg


def public_arguments(spec: Spec) -> list[Parameter]:
    """The parameters of a public function, in order: inputs, params, buffers."""
    return [
        Parameter(
            a.ascii,
            a.role,
            f"[{', '.join([*lead(a), *map(str, a.shape)])}]",
            a.doc,
            a.default is not None or a.draw is not None,
            a,
        )
        for role in ("input", "param", "buffer")
        for a in spec.args
        if a.role == role
    ]


def lead(arg: Arg) -> tuple[str, ...]:
    """Names of an argument's leading axes; those of a table by position are P."""
    level = {"head": ("H",), "group": ("G",), "layer": (), "position": ("P",)}[arg.per]
    return ("B", "T", *level) if arg.role == "input" else level


def shape_table(shapes: Mapping[str, str]) -> str:
    """A dict from names to code as Python, a line each."""
    return "{\n" + "".join(f'    "{name}": {code},\n' for name, code in shapes.items()) + "}"


def tuned_table(choices: Mapping[object, object]) -> str:
    """A dict of choices by bucket as Python, a line each."""
    lines = "".join(f"    {bucket}: {choice},\n" for bucket, choice in choices.items())
    return f"{{\n{lines}}}" if lines else "{}"


def parameters(arguments: Iterable[Parameter]) -> str:
    """The parameter list of a public function; once one may be omitted, all that follow have None
    as default."""
    found, omitted = [], False
    for argument in arguments:
        omitted = omitted or argument.omitted
        found.append(f"{argument.name}=None" if omitted else argument.name)
    return ", ".join(found)


class Variables(dict[int, str]):
    """Names of a program's values, given when first asked for: the hint or the op, numbered where
    that is taken."""

    def __init__(self, program: Program, taken: Iterable[str]) -> None:
        """``taken`` is added to where it is a set, for what else takes names of it."""
        super().__init__()
        self._program = program
        self._used = taken if isinstance(taken, set) else {*taken}
        self._used |= {*keyword.kwlist, *dir(builtins)}
        for out, n in program.outs.items():
            if program.body[n].name.isidentifier() and not out.startswith("state:"):
                self[n]  # what a program gives has its name first; of states, what it begins from

    def another(self, stem: str) -> str:
        """A name like ``stem`` that is not taken."""
        name, k = stem, 1
        while name in self._used:
            k += 1
            name = f"{stem}_{k}" if stem[-1].isdigit() else f"{stem}{k}"
        self._used.add(name)
        return name

    def __missing__(self, n: int) -> str:
        inst = self._program.body[n]
        stem = inst.name if inst.name.isidentifier() else STEMS.get(inst.op, inst.op)
        if inst.op == "pick" and not inst.name:
            several = PICKED.get(self._program.body[inst.ins[0]].op)
            stem = dict(enumerate(several or ())).get(inst.value, "part")
        self[n] = self.another(stem)
        return self[n]
