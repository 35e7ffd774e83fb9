"""A signature, a core and a caller's arrays in; checked outputs, states and gradients out.

This module stands alone (NumPy only): its text is also pasted into every emitted NumPy file. It
turns a public call (any level and float dtype, packed or padded rows, any form of a state) into
calls of a *core* (`contract.py`), which sees dense arrays only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from lacc.runtime.arguments import Arguments
from lacc.runtime.contract import (
    FLOATS,
    Array,
    Arrays,
    Core,
    Run,
    Signature,
    Value,
    axes_of,
    axes_text,
    cast_to,
    floats_of,
    grows,
    record,
)
from lacc.runtime.segments import token_count


class _Call(Arguments):
    """One public call: everything is checked before the core runs."""

    def __init__(
        self, signature: Signature, core: Core, arguments: Arrays, *, step: bool = False
    ) -> None:
        super().__init__(signature, core.draws, arguments, step)
        self.core = core

    def firsts(self, value: Value, axis: int) -> tuple[Any, ...]:
        """The index of the first copy of each entry of ``value``, the heads being ``axis``."""
        each = slice(None, None, self.copies(value)) if value.level in ("head", "group") else 0
        return (*(slice(None),) * axis, each)

    def total(self, value: Value, x: Array, axis: int) -> Array:
        """The sum of the copies, back at the level of ``value``."""
        if value.level == "head":
            return x
        with np.errstate(invalid="ignore"):
            heads, copies = x.shape[axis], self.copies(value)
            x = x.reshape(*x.shape[:axis], heads // copies, copies, *x.shape[axis + 1 :])
            x = x.sum(axis + 1)
        return x if value.level == "group" else x.squeeze(axis)

    def first(self, value: Value, x: Array, axis: int) -> Array:
        """``x`` in the first copy and zeros in the others: the transpose of taking the first."""
        if value.level == "head":
            return x
        lead = x.shape[:axis]
        full = np.zeros((*lead, self.sizes["#H"], *x.shape[axis + (value.level == "group") :]))
        full[self.firsts(value, axis)] = x
        return full.astype(x.dtype)

    def runs(self) -> Iterator[tuple[tuple[Any, ...], slice, Arrays, Arrays, Run]]:
        """For each segment: its place in [B, T], its states, and what the core gets."""
        dims = {name: self.sizes[name] for name in self.signature.dims}
        heads = self.sizes["#H"]
        for rows, tokens, n in self.segments:
            place = (rows,) if self.step else (rows, tokens)
            length = token_count(tokens)
            state = {name: None if s is None else s[n] for name, s in self.state.items()}
            x: Arrays = dict.fromkeys(self.x)
            for a in self.signature.arguments:
                if self.x[a.name] is not None:
                    y = self.x[a.name]
                    if a.level == "position":
                        y = y[self.positions(state, length)]
                    elif a.role == "input":
                        y = y[place]
                    across = a.role == "input" or a.level == "position"
                    x[a.name] = self.spread(a, y, len(place) if across else 0)
            batch = rows.stop - rows.start
            run = Run(batch, length, heads, dims, self.dtype, self.mode, self.chunk)
            yield place, n, x, state, run

    def positions(self, state: Arrays, count: int) -> Array:
        """Which rows [B, T] (a step: [B]) of a `per position` table a segment reads."""
        at: Array = state["position"][:, None] + np.arange(count)
        return at[:, 0] if self.step else at

    def put(self, into: Arrays, value: Value, place: Any, x: Array, dtype: Any) -> None:
        """A segment's piece of an output, or of an input's gradient, into its place."""
        if self.whole:
            into[value.name] = cast_to(x, dtype)
        else:
            if value.name not in into:
                into[value.name] = self.zeros(value, dtype)
            into[value.name][place] = cast_to(x, dtype)

    def results(
        self, function: Callable[..., tuple[Arrays, Arrays]], state_dtype: Any, debug: bool
    ) -> tuple[Any, Any]:
        """Public outputs and state of forward or step of the core over all segments."""
        if state_dtype is not None and np.dtype(state_dtype).name not in FLOATS:
            raise TypeError(f"state_dtype: expected {', '.join(FLOATS)}, got {state_dtype}")
        for _, _, x, _, run in self.runs() if debug else ():
            for name, text, holds in self.core.promises(x, run):
                if not np.all(holds):
                    at = np.argwhere(~np.asarray(holds))[0].tolist()
                    raise ValueError(f"{name}: expected {text}, broken at index {at}")
        outputs: Arrays = {}
        finals: list[Arrays] = []
        for place, _, x, state, run in self.runs():
            produced, final = function(x, state, run)
            finals.append(final)
            for o in self.signature.outputs:
                y = produced[o.name][self.firsts(o, len(place))]
                self.put(outputs, o, place, y, self.out_dtype)
        fields = []
        for s in self.signature.states:
            y = _join(s, [final[s.name] for final in finals])
            if s.role != "position":  # an exponent's rounding would be a factor of the value
                dtype = self.dtype if s.role == "log" else state_dtype or self.dtype
                y = cast_to(y[self.firsts(s, 1)], dtype)
            fields.append(y)
        names = tuple(o.name for o in self.signature.outputs)
        several = record(f"{self.signature.name}_outputs", names)(*map(outputs.get, names))
        return several if len(names) > 1 else several[0], self.state_record(fields)

    def state_record(self, fields: Iterable[Any]) -> Any:
        """The public state."""
        names = tuple(s.name for s in self.signature.states)
        return record(f"{self.signature.name}_state", names)(*fields)


def _join(field: Value, parts: list[Array]) -> Array:
    """A field of all segments in one array; windows that grow are aligned at their last token."""
    if len(parts) == 1:
        return parts[0]
    if grows(field):
        longest = max(x.shape[2] for x in parts)
        pads = [[(0, 0)] * 2 + [(longest - x.shape[2], 0)] + [(0, 0)] * (x.ndim - 3) for x in parts]
        parts = [np.pad(x, pad) for x, pad in zip(parts, pads)]
    return np.concatenate(parts)


def forward(
    signature: Signature,
    core: Core,
    arguments: Arrays,
    *,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    valid: Any = None,
    mode: str = "auto",
    chunk: int | None = None,
    debug: bool = False,
    state_dtype: Any = None,
) -> Any:
    """(outputs, state) of whole sequences. Every function here raises ValueError or TypeError that
    names the argument, what was expected and what came, before the core runs."""
    call = _Call(signature, core, arguments)
    call.begin(initial_state, mode, chunk, cu_seqlens, valid)
    return call.results(core.forward, state_dtype, debug)


def step(
    signature: Signature,
    core: Core,
    arguments: Arrays,
    state: Any = None,
    *,
    out: Any = None,
    state_indices: Any = None,
    debug: bool = False,
    state_dtype: Any = None,
) -> Any:
    """(outputs, state) of one token [B, H, *axes]. With ``out``, a state whose arrays are to be
    overwritten (often ``state`` itself), that is what comes back. ``state_indices`` [B] names the
    rows of ``state`` and ``out``, then pools of any length, that belong to the batch."""
    if signature.no_step:
        raise ValueError(f"step: {signature.no_step}")
    if out is not None and state_dtype is not None:
        raise ValueError(f"state_dtype: expected None with out, got {state_dtype}")
    call = _Call(signature, core, arguments, step=True)
    rows = None
    if state_indices is not None:
        rows, size = np.asarray(state_indices), call.sizes["#B"]
        if rows.dtype.kind not in "iu" or rows.shape != (size,):
            got = f"{rows.dtype} {rows.shape}"
            raise TypeError(f"state_indices: expected integers [B] = [{size}], got {got}")
        if len({*rows.tolist()}) < size or rows.min(initial=0) < 0:
            raise ValueError(f"state_indices: expected different rows, got {rows.tolist()}")
    given, target = call.fields("state", state, rows), call.fields("out", out, rows)
    for s in signature.states if out is not None else ():
        if grows(s):
            raise ValueError(f"out: {s.name} grows with every token, so it has no place to go")
        if s.name not in target or not target[s.name].flags.writeable:
            raise ValueError(f"out.{s.name}: expected a writable array {axes_text(*axes_of(s))}")
    call.start(given if rows is None else {name: x[rows] for name, x in given.items()})
    outputs, new = call.results(core.step, state_dtype, debug)
    for name, x in target.items():
        x[... if rows is None else rows] = cast_to(getattr(new, name), x.dtype)
    return outputs, new if out is None else out


def vjp(
    signature: Signature,
    core: Core,
    arguments: Arrays,
    *,
    cotangent: Any = None,
    state_cotangent: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    valid: Any = None,
    mode: str = "auto",
    chunk: int | None = None,
) -> Arrays:
    """Gradients by name, in their arguments' shapes and dtypes, from the cotangents of the outputs
    (an array; a tuple or dict where there are several) and of the final state (in any form of a
    state). None is zero. "initial_state" is there, a tuple like the state, when one was passed."""
    call = _Call(signature, core, arguments)
    call.begin(initial_state, mode, chunk, cu_seqlens, valid)
    pulled = _cotangents(call, cotangent)
    ends: Arrays = dict.fromkeys(s.name for s in signature.states)
    given = call.fields("state_cotangent", state_cotangent)
    longest = max(token_count(tokens) for _, tokens, _ in call.segments)
    for s in signature.states:
        if s.name in given:
            ends[s.name] = ct = call.first(s, cast_to(given[s.name], call.dtype), 1)
            if grows(s) and ct.shape[2] != call.state[s.name].shape[2] + longest:
                got = given[s.name].shape
                raise ValueError(f"state_cotangent.{s.name}: expected the final shape, got {got}")
    wanted = [a for a in signature.arguments if a.role != "buffer" and call.x[a.name] is not None]
    found: Arrays = {}
    initial: dict[str, list[Array]] = {}
    for place, n, x, state, run in call.runs():
        cts = {name: None if ct is None else ct[place] for name, ct in pulled.items()}
        last = {name: None if ct is None else ct[n] for name, ct in ends.items()}
        for s in signature.states:
            if grows(s) and (end := last[s.name]) is not None:
                last[s.name] = end[:, :, longest - run.T :]
        gradients, before = core.backward(x, state, run, cts, last)
        for name, g in before.items():
            initial.setdefault(name, []).append(g)
        for a in wanted:
            g = gradients[a.name]
            if a.role == "input":
                g = call.total(a, g, 2)
                call.put(found, a, place, g, call.x[a.name].dtype)
            elif a.level == "position":
                found.setdefault(a.name, np.zeros(call.x[a.name].shape, call.dtype))
                np.add.at(found[a.name], call.positions(state, run.T), g.sum(2))
            else:
                found[a.name] = call.total(a, g, 0) + found.get(a.name, 0)
    result = {a.name: cast_to(found[a.name], call.x[a.name].dtype) for a in wanted}
    if initial_state is not None:
        result["initial_state"] = call.state_record(
            call.total(s, np.concatenate(initial[s.name]), 1)
            if s.name in call.given and s.role != "position"
            else call.zeros(s, call.dtype)
            for s in signature.states
        )
    return result


def _cotangents(call: _Call, cotangent: Any) -> Arrays:
    """The cotangent of each output, checked and at the heads; None for zero."""
    outputs = call.signature.outputs
    names = tuple(o.name for o in outputs)
    if isinstance(cotangent, np.ndarray) and len(outputs) == 1:
        cotangent = {names[0]: cotangent}
    elif isinstance(cotangent, tuple) and len(cotangent) == len(outputs):
        cotangent = dict(zip(names, cotangent))
    elif cotangent is None:
        cotangent = {}
    elif not isinstance(cotangent, Mapping) or {*cotangent} - {*names}:
        each = ", ".join(names)
        raise TypeError(f"cotangent: expected an array for each of {each}, got {type(cotangent)}")
    pulled: Arrays = dict.fromkeys(names)
    for o in outputs:
        if (ct := cotangent.get(o.name)) is not None:
            name = "cotangent" if len(outputs) == 1 else f"cotangent.{o.name}"
            ct = floats_of(name, ct)
            call.fit(name, axes_of(o), ct)
            pulled[o.name] = call.first(o, ct, 2)
    return pulled
