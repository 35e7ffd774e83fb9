"""Derived tile programs in, a stand-alone C file, its header and the Python file that calls them
out."""

from __future__ import annotations

import re

from lacc import __version__
from lacc.backends.base import environment
from lacc.backends.c_attention import CAttention
from lacc.backends.c_folded import Folded, folded
from lacc.backends.c_host import Emitted, first_line, native_entry, public_name, python_text
from lacc.backends.c_pass import CPass
from lacc.backends.c_text import dim, free_dims
from lacc.backends.rounding import delicate
from lacc.backends.tables import attention_entry
from lacc.plan.plan import Plan
from lacc.runtime.contract import Signature
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived

PIECES = (
    *("base", "tiles", "turns", "math", "products", "mixed", "scans", "solves"),
    *("decays", "grams", "pulls", "attention"),
)
"""Pieces of `templates/c`, each after those that it uses."""

NEEDS = {"grams": ("decays",), "pulls": ("decays", "grams")}
KEPT = 64
"""Tokens between two states that the backward of a token program starts from."""


def passes(derived: Derived, left: Folded, prefix: str) -> list[CPass]:
    """The passes over time that are left, and the one of a token, as C functions."""
    found = []
    for n, stage in left.passes.items():
        if not isinstance(stage, AttentionPass):
            reverse = stage.stage.direction == "backward"
            found.append(CPass(derived.spec, stage, str(n), prefix, reverse=reverse))
    if derived.token is not None:
        found.append(CPass(derived.spec, derived.token, "token", prefix))
    return found


def to_c(derived: Derived, plan: Plan, signature: Signature) -> Emitted:
    """The texts of NAME.c, NAME.h and NAME_c.py."""
    name = public_name(signature)
    left = folded(derived)
    every = passes(derived, left, name)
    c, h = c_text(derived, left, name, every)
    entries, token, number = [], None, 0
    by_number = {one.number: one for one in every}
    for number, stage in left.passes.items():
        if isinstance(stage, AttentionPass):
            given = {"library": "LIBRARY", "number": f'"{number}"'}
            entries.append(attention_entry(stage, "NativeAttention", **given))
        else:
            entries.append(_entry(by_number[str(number)]))
    if "token" in by_number:
        token = _entry(by_number["token"])
    return Emitted(name, c, h, python_text(derived, plan, signature, entries, token))


def _entry(one: CPass) -> str:
    stored = {
        label: tuple(one.forward.sizes[a] for a in one.forward.body[n].axes if a != "t")
        for name, n in one.forward.outs.items()
        if (label := name.removeprefix("stored:")) != name
    }
    return native_entry(
        one.number,
        reverse=one.reverse,
        inputs=one.inputs,
        fixed=one.fixed,
        last=one.last,
        states=one.states,
        outputs=one.outputs,
        linear=one.linear,
        stored=stored,
    )


def c_text(derived: Derived, left: Folded, prefix: str, all_passes: list[CPass]) -> tuple[str, str]:
    """The text of the C file and of its header."""
    spec = derived.spec
    functions = [f for one in all_passes for f in one.functions()]
    kernels = [f.kernel.lines() for f in functions]
    words = set(re.findall(r"\w+", "\n".join(line for k in kernels for line in k)))
    attentions = [
        CAttention(prefix, n, stage, left.scales.get(n, "1"))
        for n, stage in left.passes.items()
        if isinstance(stage, AttentionPass)
    ]
    words |= {"attend"} if attentions else set()
    about = [line.replace("*/", "* /") for line in spec.text.strip().splitlines()]
    values = {
        "spec": spec,
        "version": __version__,
        "prefix": prefix,
        "guard": f"LACC_{prefix.upper()}_H",
        "head": first_line(spec),
        "about": about,
        "dims": [dim(name) for name in free_dims(spec)],
        "functions": functions,
        "kernels": kernels,
        "attentions": attentions,
        "pieces": _pieces(words),
        "kept": KEPT,
        "exact": delicate(derived),
    }
    env = environment()
    return tuple(env.get_template(t).render(values) for t in ("c.c.j2", "c.h.j2"))  # type: ignore[return-value]


def _pieces(words: set[str]) -> list[str]:
    """The pieces that have a function among ``words``, and what these need."""
    loader = environment()
    wanted = {"base", "tiles", "turns", "math", "products", "mixed"}
    for piece in PIECES:
        assert loader.loader is not None
        source = loader.loader.get_source(loader, f"c/{piece}.c")[0]
        if words & set(re.findall(r"^static[^(=;]*?(\w+)\(", source, re.M)):
            wanted |= {piece, *NEEDS.get(piece, ())}
    return [piece for piece in PIECES if piece in wanted]
