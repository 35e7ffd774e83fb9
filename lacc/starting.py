"""A name, and an example to begin from, go in; the text of a new spec comes out."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files

from lacc import driver
from lacc.diagnostics import LaccError, Source
from lacc.library import EXAMPLES
from lacc.spec.check import check
from lacc.spec.format import unparse
from lacc.spec.load import Loader

TEMPLATE = """\
## What this is, and the paper it is from.
variant {name}

dim K = 64, V = 64                    ## sizes; a call takes its own from the arrays
input q, k : [K]                      ## one value for each token and head
input v : [V]
input g : scalar where g <= 0         ## log of the forget gate; `where` is a promise
gate α = exp(g)
state S : [K, V]                      ## what is remembered; it starts at 0
output o : [V]

S[t] = α * S[t-1] + k @ v.T           # the recurrence, as the paper has it
o = K**-0.5 * S[t].T @ q              # the readout
"""


def baselines() -> list[str]:
    """The examples that a spec is measured against unless others are asked for."""
    return (files(EXAMPLES) / "baselines.txt").read_text(encoding="utf-8").split()


def started(name: str, begin: str | None = None) -> str:
    """The spec ``name``: a template with comments, or the text ``begin`` of an example under that
    name, its bases merged in, its expectations left out. Raises LaccError where the name is none of
    a variant."""
    text = TEMPLATE.format(name=name)
    if begin is not None:
        text = re.sub(r"^# expect .*\n?", "", begin, flags=re.M).rstrip() + "\n"
        text = re.sub(r"^(variant\s+)\w+", rf"\g<1>{name}", text, count=1, flags=re.M)
    file, problems = driver.parse(Source(f"{name}.la", text))
    if file is None:
        raise LaccError(problems)
    whole = check(file, None, Loader(driver.parse, None), problems).spec.file
    return text if file.base is None else unparse(replace(whole, expects=()))
