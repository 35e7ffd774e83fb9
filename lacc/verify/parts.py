"""What calls on parts of a sequence gave goes in; what a call on the whole must give comes out."""

from __future__ import annotations

from typing import Any

import numpy as np

from lacc.verify.cases import Array, Arrays, Bench, Case, Quantities, quantities
from lacc.verify.subject import Guarded


def outputs_of(bench: Bench) -> list[str]:
    """The outputs' names."""
    return [o.ascii for o in bench.spec.outputs]


def part(outputs: Any, tokens: Any, rows: Any = slice(None)) -> Any:
    """Some tokens of one output or of several."""
    if isinstance(outputs, np.ndarray):
        return outputs[rows][:, tokens]
    return type(outputs)(*(x[rows][:, tokens] for x in outputs))


def glued(a: Any, b: Any) -> Any:
    """The outputs of two parts, one after the other."""
    if isinstance(a, np.ndarray):
        return np.concatenate([a, b], 1)
    return type(a)(*(np.concatenate(pair, 1) for pair in zip(a, b)))


def together(bench: Bench, front: Arrays, back: Arrays) -> Arrays:
    """Gradients of the whole from those of two parts."""
    inputs = {a.ascii for a in bench.spec.args if a.role == "input"}
    return {
        n: np.concatenate([front[n], back[n]], 1) if n in inputs else front[n] + back[n]
        for n in front
    }


def fitting(state: Any, like: Any, row: slice) -> Any:
    """A row of a state, its growing windows cut to the length that they have in ``like``."""
    rows = [x[row] for x in state]
    cuts = [
        tuple(slice(have - want, None) for have, want in zip(x.shape, y.shape))
        for x, y in zip(rows, like)
    ]
    return type(state)(*(x[cut] for x, cut in zip(rows, cuts)))


def call(
    bench: Bench, kernel: Guarded, case: Case, arrays: Arrays, first: Any, options: dict[str, Any]
) -> tuple[Quantities, tuple[Any, Any]]:
    """The quantities of one call, and the cotangents it had."""
    outputs, state = kernel(**arrays, initial_state=first, **options)
    pulled, last = bench.cotangents(case, outputs, state)
    gradients = kernel.vjp(
        **arrays,
        cotangent=pulled,
        state_cotangent=bench.of_fields(last, state),
        initial_state=first,
        **options,
    )
    return quantities(bench.spec, outputs, state, gradients), (pulled, last)


def assembled(bench: Bench, parts: list[Quantities]) -> Quantities:
    """The quantities of all segments as those of one call."""
    roles = {f"d {a.ascii}": a.role for a in bench.spec.args}
    found: Quantities = {}
    for name in parts[0]:
        pieces: list[Array] = [part[name] for part in parts]
        if name in outputs_of(bench) or roles.get(name) == "input":
            found[name] = np.concatenate(pieces, 1)
        elif name in roles:
            found[name] = np.sum(pieces, axis=0)
        else:
            shape = [max(sizes) for sizes in zip(*(x.shape[1:] for x in pieces))]
            found[name] = np.concatenate([longer(x, shape) for x in pieces])
    return found


def longer(x: Array, shape: list[int]) -> Array:
    """A growing window with zeros before its first token."""
    return np.pad(x, [(0, 0), *((want - have, 0) for have, want in zip(x.shape[1:], shape))])
