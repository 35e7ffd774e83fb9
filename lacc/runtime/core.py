"""A program and the arrays of its core in, what the core gives out: outputs, states and gradients
as `contract.py` says.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file, where
it makes the `Core`. Fields of a state become what the blocks take, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lacc.runtime.contract import Array, Arrays
from lacc.runtime.exponents import field_gradients, scaled_states, state_cotangents, state_fields
from lacc.runtime.passes import Program
from lacc.runtime.walk import Call, tiles


def apart(program: Program, fields: Arrays, cotangents: bool = False) -> Arrays:
    """The fields of a state as what a call takes: each past as the states that make it, and without
    axes of a literal 1. A past that is kept is taken as it is too; its cotangent is taken once."""
    whole = {rows.field for rows in program.kept}
    found = {name: x for name, x in fields.items() if name not in program.pasts or name in whole}
    for field, names in program.pasts.items():
        past = None if cotangents and field in whole else fields.get(field)
        for n, name in enumerate(reversed(names)):
            there = past is not None and n < past.shape[2]
            found[name] = past[:, :, -1 - n] if past is not None and there else None
    return without(found, program.units)


def together(program: Program, states: Arrays, cotangents: bool = False) -> Arrays:
    """The fields of a state, from what a call gives."""
    found = restored(states, program.units)
    for field, names in program.pasts.items():
        past = np.stack([found[name] for name in names], 2)
        if field not in found:
            found[field] = past
        elif cotangents:
            length = min(past.shape[2], found[field].shape[2])
            found[field][:, :, found[field].shape[2] - length :] += past[
                :, :, len(names) - length :
            ]
    return found


def without(arrays: Arrays, units: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Arrays without their axes of a literal 1, which tiles do not have."""
    return {
        name: np.squeeze(x, units[name]) if name in units and x is not None else x
        for name, x in arrays.items()
    }


def restored(arrays: Arrays, units: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Arrays with their axes of a literal 1 again."""
    return {name: np.expand_dims(x, units.get(name, ())) for name, x in arrays.items()}


def run_forward(program: Program, x: Arrays, state: Arrays, run: Any) -> tuple[Arrays, Arrays]:
    """Outputs [B, T, H, *axes] and the final state, as the contract's core gives them."""
    units = program.units
    with np.errstate(all="ignore"):
        start = apart(program, scaled_states(np, program.exponents, state))
        call = Call(program, without(x, units), start, run)
        outputs, final, _ = call.forward(keep=False)
        fields = state_fields(np, program.exponents, together(program, final))
    return restored(outputs, units), fields


def run_backward(
    program: Program, x: Arrays, state: Arrays, run: Any, cotangents: Arrays, ends: Arrays
) -> tuple[Arrays, Arrays]:
    """Gradients of inputs and params, and of the initial state."""
    units = program.units
    with np.errstate(all="ignore"):
        start = apart(program, scaled_states(np, program.exponents, state))
        call = Call(program, without(x, units), start, run, back=True)
        _, final, kept = call.forward(keep=True)
        left = state_cotangents(np, program.exponents, restored(final, units), ends)
        left = apart(program, left, cotangents=True)
        gradients, initial = call.backward(kept, without(cotangents, units), left)
        initial = together(program, initial, cotangents=True)
        fields = field_gradients(np, program.exponents, state, initial)
    return restored(gradients, units), fields


def run_step(program: Program, x: Arrays, state: Arrays, run: Any) -> tuple[Arrays, Arrays]:
    """One token: as `run_forward` without the time axis, by the program of a token."""
    token = {
        name: value if value is None or name in program.params else value[:, None]
        for name, value in x.items()
    }
    outputs, final = run_forward(program, token, state, Single(run))
    return {name: value[:, 0] for name, value in outputs.items()}, final


def run_promises(
    program: Program,
    said: Sequence[tuple[str, str, str]],
    function: Callable[..., Arrays],
    x: Arrays,
    run: Any,
) -> list[tuple[str, str, Array]]:
    """(argument, text, where it holds) for every `where` whose arguments are there."""
    x = without(x, program.units)
    state: Arrays = {
        rows.field: np.zeros((run.B, run.H, rows.length or 0, *x[rows.source].shape[3:]), run.dtype)
        for rows in program.kept
        if rows.source in x
    }
    state["position"] = np.zeros(run.B, np.int64)
    call = Call(program, x, state, run)
    wide = {
        name: None if a is None else tiles(np.asarray(a, run.dtype), 0, 1, run.T)
        for name, a in call.x.items()
        if name not in program.params
    }
    holds = function(wide, call.fixed, run.T, run.dims, run.dtype)
    found = {name: np.asarray(holds[name]) for name, _, _ in said}
    found = {n: h if h.ndim < 4 else np.swapaxes(h[:, :, 0], 1, 2) for n, h in found.items()}
    return [(argument, text, found[name]) for name, argument, text in said]


class Single:
    """A run of one token, by the token program."""

    def __init__(self, run: Any) -> None:
        self.B, self.T, self.H, self.dims, self.dtype = run.B, 1, run.H, run.dims, run.dtype
        self.mode, self.chunk = "recurrent", None
