"""A call and the cotangents of its results in, the C calls out that put its gradients where the
caller gets them.

This module stands alone (NumPy only): its text is also pasted into the Python part of emitted C
files, behind `native_direct.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lacc.runtime.arguments import Arguments, chosen
from lacc.runtime.contract import Array, Run
from lacc.runtime.core import without
from lacc.runtime.native import EVERY, Native
from lacc.runtime.native_direct import Direct, Prepared, bound, empty
from lacc.runtime.walk import Call


def prepared_back(
    direct: Direct, asked: tuple[str, int | None], begins: bool, given: list[Any]
) -> Prepared | None:
    """The calls of a spec of one pass without params, None of others. ``given`` are arguments,
    initial states, cotangents of outputs and of final states; results are the gradients of inputs,
    and with ``begins`` of initial states."""
    signature, program, names = direct.signature, direct.program, direct.arguments
    args = Arguments(signature, direct.draws, dict(zip(names, given)), step=False)
    x: dict[str, Any] = {}
    for a in signature.arguments:
        y = args.x[a.name]
        if y is not None and (a.role != "input" or a.level != "head"):
            return None
        x[a.name] = None if y is None else args.spread(a, y, 2)
    mode, chunk = chosen(*asked)
    dims = {name: args.sizes[name] for name in signature.dims}
    batch, tokens, heads = (args.sizes[name] for name in ("#B", "#T", "#H"))
    run: Any = Run(batch, tokens, heads, dims, args.dtype, mode, chunk)
    states = dict.fromkeys(program.states)
    call = Call(program, without(x, program.units), states, run, back=True)
    if direct.attends or len(call.passes) != 1:
        return None
    walk, there = call.passes[0], [name for name in names if x[name] is not None]
    if not isinstance(walk, Native) or walk.last or program.params:
        return None
    if {*walk.states} != program.states.keys() or not {*there} <= {*walk.inputs}:
        return None
    fields = [f"begun {name}" for name in direct.states]
    outs = [f"dout {name}" for name in direct.outputs]
    ends = [f"dended {name}" for name in direct.states]
    taken = dict(zip([*names, *fields, *outs, *ends], given))
    made = {f"d {name}": np.empty(x[name].shape, x[name].dtype) for name in there}
    if begins:
        made |= {f"dbegun {s.name}": empty(args, s, args.dtype) for s in signature.states}
    length = EVERY if call.by_token else call.C
    lead = (batch, -(-tokens // length), heads)

    def named(kind: str, arrays: dict[str, Any], every: tuple[str, ...]) -> dict[str, Any]:
        return without({n: arrays.get(f"{kind} {n}") for n in every}, program.units)

    begun = named("begun", taken, direct.states)
    starts = {
        f"start {name}": np.empty((*lead, *call.state[name].shape[2:]), run.dtype)
        for name in walk.states
    }
    dbegun = named("dbegun", made, direct.states)  # 0 where a field is not given
    call.state = begun
    call.keep = True
    forth = walk.taken(call, dict.fromkeys(walk.states), [*starts.values()])
    back = walk.back(
        call,
        [*starts.values()],
        named("dout", taken, direct.outputs),
        named("dended", taken, direct.states),
        named("d", made, names),
        {},
        {name: d if begun[name] is not None else None for name, d in dbegun.items()},
    )
    arrays: dict[str, Array] = {name: y for name, y in taken.items() if y is not None}
    tables = [(f"keep_{walk.number}", forth), (f"backward_{walk.number}", back)]
    results = [*made]
    ready = bound(walk.library, call, tables, arrays | made | starts, [], results, [*starts])
    if ready is not None:
        unmade = {f"dbegun {name}" for name, x in begun.items() if x is None}
        ready.cleared = frozenset(n for n, name in enumerate(results) if name in unmade)
    return ready
