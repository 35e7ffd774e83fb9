"""A call and the cotangents of its results in, the C calls out that put its gradients where the
caller gets them.

This module stands alone (NumPy only): its text is also pasted into the Python part of emitted C
files, behind `native_direct.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lacc.runtime.arguments import Arguments, chosen
from lacc.runtime.contract import Array, Run
from lacc.runtime.core import without
from lacc.runtime.native import EVERY, HELD, Native, processors
from lacc.runtime.native_direct import Direct, Prepared, bound, empty
from lacc.runtime.walk import Call


def one_pass(
    direct: Direct, asked: tuple[str, int | None], given: list[Any]
) -> tuple[Arguments, Call, Native] | None:
    """The arguments of a call with gradients, the call, and the pass that is all of it; None where
    that is not so. ``given`` begins with arguments."""
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
    call.keep = True
    return args, call, walk


def named(
    direct: Direct, kind: str, arrays: dict[str, Any], every: tuple[str, ...]
) -> dict[str, Any]:
    """Those of ``arrays`` that are of one kind, as C takes them."""
    return without({n: arrays.get(f"{kind} {n}") for n in every}, direct.program.units)


def taken(direct: Direct, given: list[Any]) -> dict[str, Array]:
    """What a call and its cotangents are given, by kind and name."""
    fields = [f"begun {name}" for name in direct.states]
    outs = [f"dout {name}" for name in direct.outputs]
    ends = [f"dended {name}" for name in direct.states]
    every = zip([*direct.arguments, *fields, *outs, *ends], given)
    return {name: x for name, x in every if x is not None}


def heads_together(size: int, heads: int) -> int:
    """How many heads go there and back at a time, where the states that chunks of all start from
    take ``size`` bytes: all, unless a thread would not keep so much memory from call to call."""
    fit = [n for n in range(1, heads + 1) if heads % n == 0 and size // heads * n <= HELD // 4]
    return heads if size <= HELD // 2 else max([*fit, gcd(heads, processors())])


def prepared_back(
    direct: Direct,
    asked: tuple[str, int | None],
    begins: bool,
    given: list[Any],
    placed: Sequence[Any] = (),
    kept: Sequence[Any] = (),
) -> Prepared | None:
    """The calls of a spec of one pass without params, None of others. ``given`` are arguments,
    initial states, cotangents of outputs and of final states, and what the call has ``kept``;
    results are the gradients of inputs, which may be ``placed``, and with ``begins`` of initial
    states."""
    found = one_pass(direct, asked, given)
    if found is None:
        return None
    args, call, walk = found
    arrays, run = taken(direct, given), call.run
    there = [name for name in direct.arguments if args.x[name] is not None]
    made = {f"d {name}": np.empty(args.x[name].shape, args.x[name].dtype) for name in there}
    into = [*made] if placed else []
    made |= dict(zip(into, placed))
    if begins:
        every = direct.signature.states
        made |= {f"dbegun {s.name}": empty(args, s, args.dtype) for s in every}
    begun = named(direct, "begun", arrays, direct.states)
    shapes = chunks(call, walk)
    heads = heads_together(sum(map(prod, shapes.values())) * run.dtype.itemsize, run.H)
    memory = {n: np.empty((*s[:2], heads, *s[3:]), run.dtype) for n, s in shapes.items()}
    if kept:
        if [x.shape for x in kept] != [*shapes.values()]:
            return None
        heads, memory = run.H, dict(zip(shapes, kept))
    starts = {n: as_strided(x, shapes[n], x.strides) for n, x in memory.items()}
    dbegun = named(direct, "dbegun", made, direct.states)  # 0 where a field is not given
    call.state = begun
    forth = walk.taken(call, dict.fromkeys(walk.states), [*starts.values()])
    back = walk.back(
        call,
        [*starts.values()],
        named(direct, "dout", arrays, direct.outputs),
        named(direct, "dended", arrays, direct.states),
        named(direct, "d", made, direct.arguments),
        {},
        {name: d if begun[name] is not None else None for name, d in dbegun.items()},
    )
    both = [(f"keep_{walk.number}", forth)] if not kept else []
    both.append((f"backward_{walk.number}", back))
    firsts = range(0, run.H, heads)
    tables = [(way, table.from_head(first)) for first in firsts for way, table in both]
    results = [name for name in made if name not in into]
    lying = arrays | memory | made if kept else arrays | made | memory
    between = [] if kept else [*memory]
    ready = bound(walk.library, call, tables, lying, into, results, between, heads)
    if ready is not None:
        unmade = {f"dbegun {name}" for name, x in begun.items() if x is None}
        ready.cleared = frozenset(n for n, name in enumerate(results) if name in unmade)
    return ready


def chunks(call: Call, walk: Native) -> dict[str, tuple[int, ...]]:
    """The shapes of the states that chunks start from."""
    length, run = EVERY if call.by_token else call.C, call.run
    lead = (run.B, -(-run.T // length), run.H)
    return {f"start {name}": (*lead, *call.state[name].shape[2:]) for name in walk.states}


def prepared_kept(
    direct: Direct, asked: tuple[str, int | None], given: list[Any], placed: Sequence[Any]
) -> Prepared | None:
    """The call of a spec of one pass whose gradient is next, None of others: outputs are
    ``placed``, results are final states, then those that chunks start from. ``given`` are arguments
    and initial states."""
    found = one_pass(direct, asked, given)
    if found is None:
        return None
    args, call, walk = found
    arrays = taken(direct, given) | {f"out {n}": x for n, x in zip(direct.outputs, placed)}
    made = {f"ended {s.name}": empty(args, s, args.dtype) for s in direct.signature.states}
    shapes, call.keep = chunks(call, walk), False  # outputs are wanted here
    starts = {name: np.empty(shape, call.run.dtype) for name, shape in shapes.items()}
    call.outputs = named(direct, "out", arrays, direct.outputs)
    call.state = named(direct, "begun", arrays, direct.states)
    forth = walk.taken(call, named(direct, "ended", made, direct.states), [*starts.values()])
    into, results = [f"out {name}" for name in direct.outputs], [*made, *starts]
    every = arrays | made | starts
    return bound(walk.library, call, [(walk.way, forth)], every, into, results, [])


def prepared_end(
    direct: Direct, asked: tuple[str, int | None], given: list[Any]
) -> Prepared | None:
    """The call that gives the final state alone, None where there is none. ``given`` are arguments
    and initial states."""
    found = one_pass(direct, asked, given)
    if found is None:
        return None
    args, call, walk = found
    arrays = taken(direct, given)
    made = {f"ended {s.name}": empty(args, s, args.dtype) for s in direct.signature.states}
    call.state = named(direct, "begun", arrays, direct.states)
    forth = walk.taken(call, named(direct, "ended", made, direct.states), [])
    tables = [(f"keep_{walk.number}", forth)]
    return bound(walk.library, call, tables, arrays | made, [], [*made], [])


def prepared_begin(
    direct: Direct, asked: tuple[str, int | None], given: list[Any]
) -> Prepared | None:
    """The call that gives the gradient of the initial state alone, None where there is none.
    ``given`` is as in `prepared_back`."""
    found = one_pass(direct, asked, given)
    if found is None or found[1].by_token or not found[2].linear:
        return None
    args, call, walk = found
    arrays = taken(direct, given)
    made = {f"dbegun {s.name}": empty(args, s, args.dtype) for s in direct.signature.states}
    call.state = named(direct, "begun", arrays, direct.states)
    back = walk.back(
        call,
        [None] * len(walk.states),
        named(direct, "dout", arrays, direct.outputs),
        named(direct, "dended", arrays, direct.states),
        dict.fromkeys(walk.inputs),
        {},
        named(direct, "dbegun", made, direct.states),
    )
    tables = [(f"adjoint_{walk.number}", back)]
    return bound(walk.library, call, tables, arrays | made, [], [*made], [])
