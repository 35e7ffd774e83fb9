"""Passes over time in, those that C computes out: one that only scales what is attended to, or only
gives on what was, becomes part of the attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lacc.backends.c_text import elementwise, number, size
from lacc.backends.text import ATOM, Text
from lacc.ir.ops import OPS
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import ChunkPass, Derived
from lacc.tile.program import Program

Passes = Mapping[int, ChunkPass | AttentionPass]


@dataclass(frozen=True, slots=True)
class Folded:
    """The passes that are left, by number, and by what the queries of attentions are scaled, as
    C."""

    passes: Passes
    scales: Mapping[int, str]


def folded(derived: Derived) -> Folded:
    """The passes of a spec, numbered as they were."""
    passes: dict[int, ChunkPass | AttentionPass] = dict(enumerate(derived.passes))
    scales: dict[int, str] = {}
    for n, stage in [*passes.items()]:
        if isinstance(stage, AttentionPass) or len(stage.forward.outs) != 1:
            continue
        ((out, value),) = stage.forward.outs.items()
        readers = _readers(passes, out.removeprefix("stored:"))
        found = _scaled(stage.forward, value)
        if found and (attentions := _only_queries(readers, out)):
            for m, attention in attentions.items():
                passes[m], scales[m] = replace(attention, query=found[0]), found[1]
            del passes[n]
        elif given := _given_on(passes, stage.forward, value, out):
            m, attention = given
            passes[m] = replace(attention, output=out)
            del passes[n]
    return Folded(passes, scales)


def _readers(passes: Passes, name: str) -> Passes:
    """The passes that read a stored value."""
    return {
        n: p
        for n, p in passes.items()
        if name in (p.sources if isinstance(p, AttentionPass) else _stored(p))
    }


def _stored(p: ChunkPass) -> set[str]:
    return {*p.forward.loads("stored"), *p.backward.loads("stored")}


def _only_queries(readers: Passes, out: str) -> dict[int, AttentionPass]:
    """``readers`` where ``out`` is stored, and all that they do is to attend with it; else none."""
    name = out.removeprefix("stored:")
    found = {
        n: p
        for n, p in readers.items()
        if isinstance(p, AttentionPass) and p.query == name and p.sources.count(name) == 1
    }
    return found if name != out and len(found) == len(readers) else {}


def _scaled(program: Program, n: int) -> tuple[str, str] | None:
    """The input of which value ``n`` is a multiple, and the factor."""
    inst = program.body[n]
    for factor, x in ((0, 1), (1, 0)) if inst.op == "mul" else ():
        load, text = program.body[inst.ins[x]], _number(program, inst.ins[factor])
        if text and load.op == "load" and load.value[0] == "input" and load.axes == inst.axes:
            return load.value[1], text.within(ATOM)
    return None


def _number(program: Program, n: int) -> Text | None:
    """What is a number as C, by dims."""
    inst = program.body[n]
    if inst.axes:
        return None
    if inst.op == "const":
        return number(inst.value)
    if inst.op == "size":
        return Text(f"(real)({size(inst.value).code})")
    ins = [_number(program, i) for i in inst.ins]
    known = [text for text in ins if text is not None]
    if inst.op not in OPS or not OPS[inst.op].entrywise or len(known) < len(ins) or not ins:
        return None
    return elementwise(inst.op, known)


def _given_on(
    passes: Passes, program: Program, n: int, out: str
) -> tuple[int, AttentionPass] | None:
    """The attention whose output the output ``out`` is, where no other pass reads it."""
    inst = program.body[n]
    if ":" in out or inst.op != "load" or inst.value[0] != "stored":
        return None
    for m, p in passes.items():
        if isinstance(p, AttentionPass) and p.output == inst.value[1]:
            return (m, p) if len(_readers(passes, p.output)) == 1 else None
    return None
