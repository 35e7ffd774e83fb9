"""Fields of scaled states in, the scaled states that passes carry out, and back; gradients too.

This module stands alone: its text is pasted into emitted files. ``xp`` is the library of arrays
that it computes in, numpy or torch. A field S [B, H, *axes] stands for S · exp(S_log); S_log has
the axes of S, none beside a matrix. The passes keep S · e^m, where the exponent m may be shared by
several states, and has some of the axes of each: ``exponents`` says which state holds it and which
axes these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Arrays = dict[str, Any]
Exponents = Mapping[str, tuple[str, tuple[int, ...]]]


def axes_beside(x: Any, at: tuple[int, ...], rank: int) -> Any:
    """``x`` [B, H, *axes] with axes of length 1 so that its own are those ``at`` of ``rank``."""
    lengths = dict(zip(at, x.shape[2:]))
    return x.reshape(*x.shape[:2], *(lengths.get(axis, 1) for axis in range(rank)))


def field_axes(rank: int) -> tuple[int, ...]:
    """The axes of a state of ``rank`` axes that its field S_log has."""
    return tuple(range(rank)) if rank < 2 else ()


def largest_along(xp: Any, x: Any, at: tuple[int, ...]) -> Any:
    """The maximum of ``x`` [B, H, *axes] over all axes but those ``at``."""
    others = tuple(axis for axis in range(2, x.ndim) if axis - 2 not in at)
    return xp.amax(x, others) if others else x


def field_log(fields: Arrays, name: str) -> Any:
    """The exponent that a field has, broadcastable to it."""
    x = fields[name]
    return axes_beside(fields[f"{name}_log"], field_axes(x.ndim - 2), x.ndim - 2)


def scaled_given(exponents: Exponents, fields: Arrays) -> list[str]:
    """The scaled states that are there."""
    return [name for name in exponents if fields.get(name) is not None]


def scaled_states(xp: Any, exponents: Exponents, fields: Arrays) -> Arrays:
    """What the passes start from; None where no state of an exponent is given."""
    found = {n: x for n, x in fields.items() if n.removesuffix("_log") not in exponents}
    found |= dict.fromkeys([*exponents, *(owner for owner, _ in exponents.values())])
    for name in scaled_given(exponents, fields):
        (owner, at), x = exponents[name], fields[name]
        top = largest_along(xp, xp.broadcast_to(field_log(fields, name), x.shape), at)
        found[owner] = top if found[owner] is None else xp.maximum(found[owner], top)
    for name in scaled_given(exponents, fields):
        found[name] = fields[name] * start_factor(xp, exponents, fields, found, name)
    return found


def start_factor(xp: Any, exponents: Exponents, fields: Arrays, states: Arrays, name: str) -> Any:
    """What a field is multiplied by to be the state that the passes start from."""
    (owner, at), rank = exponents[name], fields[name].ndim - 2
    factor: Any = xp.exp(field_log(fields, name) - axes_beside(states[owner], at, rank))
    return factor


def end_factor(xp: Any, exponents: Exponents, states: Arrays, name: str) -> tuple[Any, Any]:
    """What a state is multiplied by to be a field, and the field's exponent."""
    (owner, at), x = exponents[name], states[name]
    own, rank = field_axes(x.ndim - 2), x.ndim - 2
    m = axes_beside(states[owner], at, rank)
    log = largest_along(xp, xp.broadcast_to(m, x.shape), own)
    return xp.exp(m - axes_beside(log, own, rank)), log


def state_fields(xp: Any, exponents: Exponents, states: Arrays) -> Arrays:
    """The fields of what the passes leave."""
    owners = {owner for owner, _ in exponents.values()}
    found: Arrays = {}
    for name, x in states.items():
        if name in exponents:
            factor, log = end_factor(xp, exponents, states, name)
            found |= {name: x * factor, f"{name}_log": log}
        elif name not in owners:
            found[name] = x
    return found


def state_cotangents(xp: Any, exponents: Exponents, states: Arrays, cotangents: Arrays) -> Arrays:
    """The cotangents of what the passes leave, ``states``, from those of the fields; exponents are
    constants."""
    found = {n: ct for n, ct in cotangents.items() if n.removesuffix("_log") not in exponents}
    for name in scaled_given(exponents, cotangents):
        found[name] = cotangents[name] * end_factor(xp, exponents, states, name)[0]
    return found


def field_gradients(xp: Any, exponents: Exponents, fields: Arrays, gradients: Arrays) -> Arrays:
    """The gradients of the fields, from those of what the passes start from."""
    owners = {owner for owner, _ in exponents.values()}
    found = {name: g for name, g in gradients.items() if name not in owners}
    states = scaled_states(xp, exponents, fields)
    for name in exponents:
        x, log = fields.get(name), fields.get(f"{name}_log")
        if x is not None:
            found[name] = gradients[name] * start_factor(xp, exponents, fields, states, name)
            rest = tuple(range(2 + len(field_axes(x.ndim - 2)), x.ndim))
            found[f"{name}_log"] = (x * found[name]).sum(rest) if rest else x * found[name]
        elif log is not None:
            found[f"{name}_log"] = xp.zeros_like(log)
    return found
