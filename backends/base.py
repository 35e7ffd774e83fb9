"""What every backend uses: the one Jinja environment, and names for the values of a tile program."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from lacc.tile.program import Program

_FROM_OP = {
    "contract": "product",
    "levels": "decay",
    "prefix": "up",
    "suffix": "down",
    "whole": "total",
    "matrix": "between",
    "gram": "pairs",
    "decayed": "read",
    "solve": "solved",
    "scan": "scanned",
    "mask": "pairs",
}


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
        tuple_text=tuple_text, shape_table=shape_table, parameters=parameters, pair=lambda n: f'"{n}": {n}'
    )
    return found


def tuple_text(names: Iterable[str]) -> str:
    """A tuple of strings as Python."""
    quoted = [f'"{name}"' for name in names]
    return f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"


def shape_table(shapes: Mapping[str, str]) -> str:
    """A dict from names to code as Python, a line each."""
    return "{\n" + "".join(f'    "{name}": {code},\n' for name, code in shapes.items()) + "}"


def parameters(arguments: Iterable[Mapping[str, object]]) -> str:
    """The parameter list of a public function; once one may be omitted, all that follow have None as default."""
    found, omitted = [], False
    for argument in arguments:
        omitted = omitted or bool(argument["omitted"])
        found.append(f"{argument['name']}=None" if omitted else str(argument["name"]))
    return ", ".join(found)


def variable_names(program: Program, taken: Iterable[str]) -> list[str]:
    """A name for every value: its hint or its op, numbered where that is taken."""
    used = {*taken, *keyword.kwlist}
    names = []
    for inst in program.body:
        stem = inst.name if inst.name.isidentifier() else _FROM_OP.get(inst.op, inst.op)
        stem = stem if stem.isidentifier() and not keyword.iskeyword(stem) else "x"
        name, n = stem, 1
        while name in used:
            n += 1
            name = f"{stem}{n}" if not stem[-1].isdigit() else f"{stem}_{n}"
        used.add(name)
        names.append(name)
    return names
