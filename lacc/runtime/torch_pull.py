"""A call and the cotangents of what it gave in, the gradients of what it took out.

This module stands alone (torch only): its text is pasted into emitted files of torch.
Sums over heads, sequences and partial sums run in a fixed order: there are no atomics.
"""

from __future__ import annotations

from typing import Any

import torch

from lacc.runtime.exponents import field_gradients, state_cotangents
from lacc.runtime.passes import Rows
from lacc.runtime.torch_run import Attention, Pass, Tensors
from lacc.runtime.torch_sequences import by_heads, by_tokens
from lacc.runtime.torch_walk import Walk, dense, restored, wide, without


class Pull:
    """The backward of ``walk``, of which ``crossed`` and ``kept`` are what its forward gave to
    keep. ``dx`` holds gradients over tokens at the level of their argument."""

    def __init__(self, walk: Walk, crossed: list[Any], kept: list[list[Any]]) -> None:
        self.walk, self.kept = walk, kept
        values, states = walk.crossing()
        walk.x.update(zip(values, crossed))
        self.finals = dict(zip(states, crossed[len(values) :]))
        self.dx: Tensors = {}
        self.dparams: Tensors = {}
        self.dstate: Tensors = {}
        self.dpast: Tensors = {}
        self.dstart: Tensors = {}

    def gradients(self, cotangents: Tensors, ends: Tensors) -> tuple[Tensors, Tensors]:
        """Of arguments, as they were given, and of the given fields of the initial state.
        ``cotangents`` of outputs [B, T, H, *axes], ``ends`` of final fields; None or absent: 0."""
        walk, program = self.walk, self.walk.program
        self._ends(ends)
        for rows in program.kept:
            if ends.get(rows.field) is not None:
                self._window(rows, ends[rows.field])
        for number, p in reversed(list(enumerate(walk.passes))):
            if isinstance(p, Pass):
                self._pass(p, self.kept[number], cotangents)
            else:
                self._attention(p, self.kept[number])
        for label in [label for label in self.dx if "@" in label]:
            self._delay(label)
        for name, d in self.dstart.items():
            self._add(self.dstate, name, d)
        initial = self._initial()
        return self._arguments(), initial

    def _ends(self, ends: Tensors) -> None:
        """The cotangents of what the passes leave."""
        walk, program = self.walk, self.walk.program
        own: Tensors = {}
        for s in walk.signature.states:
            d = ends.get(s.name)
            if d is not None and s.role in ("state", "log"):
                own[s.name] = walk.args.first(s, d.to(walk.dtype), 1)
        finals = self.finals if walk.passes else walk.state
        scaled = {n: x for n, x in own.items() if finals.get(n) is not None}
        self.dstate = own | state_cotangents(torch, program.exponents, finals, scaled)
        whole = {rows.field for rows in program.kept}
        for field, names in program.pasts.items():
            d = ends.get(field)
            if d is not None and field not in whole:
                d = walk.args.first(walk.fields[field], d.to(walk.dtype), 1)
                for n, name in enumerate(reversed(names)):
                    self.dstate[name] = d[:, :, -1 - n]

    def _window(self, rows: Rows, d: Any) -> None:
        """The cotangent of the rows that the final state keeps."""
        walk, field = self.walk, self.walk.fields[rows.field]
        level = walk.level(rows.source)
        d = by_tokens(d if field.level == level else walk.args.first(field, d, 1), level)
        x = walk.x[rows.source] if walk.passes else walk._blank(rows)
        if rows.source not in self.dx:
            self.dx[rows.source] = torch.zeros_like(x, dtype=walk.dtype)
        more = int(rows.state is not None)
        count = self.walk.count(rows.field)
        pulled = walk.sequences.pull_window(d.to(walk.dtype), self.dx[rows.source], count, more)
        self._add(self.dpast, rows.field, pulled[0])
        if rows.state is not None:
            self._add(self.dstart, rows.state, pulled[1])

    def _add(self, into: Tensors, name: str, d: Any) -> None:
        old = into.get(name)
        into[name] = d if old is None else old + d

    def _pass(self, p: Pass, kept: list[Any], cotangents: Tensors) -> None:
        """Adds what one pass pulls back."""
        walk, program = self.walk, self.walk.program
        dvalues = {n: (cotangents if n in program.outputs else self.dx).get(n) for n in p.outputs}
        dfinals = {name: dense(self.dstate.get(name)) for name in p.states}
        last = {name: self.finals[name] for name in p.last}
        dx, dfixed, dlast, dstates = p.backward(
            walk.taken(p), last, tuple(kept), walk.run, dvalues, dfinals
        )
        for name, d in dx.items():
            if d is not None:
                self._token(name, d)
        for name, d in dfixed.items():
            if d is not None:
                self._add(self.dparams, name, d.sum(0))
        for name, d in dlast.items():
            if d is not None:
                self._add(self.dstate, name, d)
        self.dstate.update(dict.fromkeys(p.states) | dstates)

    def _token(self, name: str, d: Any) -> None:
        """Adds a gradient over tokens, per head, at the level of its argument."""
        value = self.walk.values.get(name.partition("@")[0])
        self._add(self.dx, name, d if value is None else self.walk.args.total(value, d, 2))

    def _attention(self, p: Attention, kept: list[Any]) -> None:
        """Adds what an attention pulls back."""
        walk, ct = self.walk, self.dx.get(p.output)
        if ct is None:
            return
        query, keys, values, sink, *pasts = walk.attended(p)
        output = walk.x[p.output]
        given = (query, keys, values, sink, *pasts, p.window, output, tuple(kept), wide(ct))
        dq, dk, dv, dsink, *dpasts = p.backward(*given, walk.run)
        of = ((p.query, dq), (p.keys.source, dk), (p.values.source, dv), (p.sink, dsink))
        for name, d in of:
            if name is not None and d is not None:
                x = walk.x[name]
                d = d.squeeze(2) if walk.level(name) == "layer" else d
                self._add(self.dx, name, d.reshape(x.shape).to(walk.dtype))
        for rows, d in zip((p.keys, p.values), dpasts):
            if d is not None:
                d = d.squeeze(1) if walk.level(rows.source) == "layer" else d.movedim(2, 1)
                self._attended_past(rows, d.to(walk.dtype))

    def _attended_past(self, rows: Rows, d: Any) -> None:
        """Adds the gradient of what was attended to before the first token [N, P, E, D]."""
        walk, count = self.walk, d.shape[1]
        if rows.state is not None and walk.position is not None:
            count -= 1
            state = walk.start_of(rows)
            self._add(self.dstart, rows.state, d[:, count].reshape(state.shape))
        past = walk.past.get(rows.field)
        if past is not None:
            self._add(self.dpast, rows.field, d[:, :count].reshape(past.shape))

    def _delay(self, label: str) -> None:
        """A delayed input's gradient, taken back to the input and its past."""
        walk = self.walk
        name, offset = label.split("@")
        rows = next(r for r in walk.program.kept if r.field == f"{name}_past")
        dx, dpast = walk.sequences.pull_delayed(
            self.dx.pop(label).to(walk.dtype), self.walk.count(rows.field), -int(offset)
        )
        self._add(self.dx, name, dx)
        if self.walk.count(rows.field):
            self._add(self.dpast, rows.field, dpast)

    def _initial(self) -> Tensors:
        """Gradients of the given fields; those of declared states go to their params."""
        walk, program = self.walk, self.walk.program
        whole = {rows.field: rows for rows in program.kept}
        pasts: Tensors = {}
        for field, names in program.pasts.items():
            each = torch.stack([self._of_state(name) for name in names], 1)
            if field in whole:
                self._chain(whole[field], each)
            else:
                pasts[field] = each.movedim(1, 2)
        self._declared()
        found = field_gradients(torch, program.exponents, walk.own, self._all_states())
        result: Tensors = {}
        for s in walk.signature.states:
            if s.name not in walk.given or s.role == "position":
                continue
            if s.role in ("state", "log"):
                result[s.name] = walk.args.total(s, found[s.name], 1)
            elif s.name in whole:
                d, level = self.dpast.get(s.name), walk.level(whole[s.name].source)
                if d is None:
                    result[s.name] = torch.zeros_like(walk.given[s.name], dtype=walk.dtype)
                else:
                    d = by_heads(d, level)
                    result[s.name] = d if s.level == level else walk.args.total(s, d, 1)
            else:
                result[s.name] = walk.args.total(s, pasts[s.name], 1)
        return result

    def _chain(self, rows: Rows, d: Any) -> None:
        """Adds the cotangents of the states that make a past [N, length, H, *axes] to it."""
        walk, have = self.walk, self.walk.count(rows.field)
        value = walk.values.get(rows.source)
        d = d if value is None else walk.args.total(value, d, 2)
        kept = min(have, d.shape[1])
        padded = d.new_zeros(d.shape[0], have - kept, *d.shape[2:])
        self._add(self.dpast, rows.field, torch.cat([padded, d[:, d.shape[1] - kept :]], 1))

    def _of_state(self, name: str) -> Any:
        d = self.dstate.get(name)
        return self.walk._zero_state(name) if d is None else d

    def _all_states(self) -> Tensors:
        return {name: self._of_state(name) for name in self.walk.program.states}

    def _declared(self) -> None:
        """Adds what params get by the states that they declare."""
        walk, program = self.walk, self.walk.program
        if program.initial_pull is None:
            return
        made = {
            n: self._of_state(n) if n in walk.started else walk._zero_state(n)
            for n in program.states
        }
        for field, n in walk.unfilled.items():
            if (d := self.dpast.get(field)) is not None:
                made[n] = made[n] + d.sum(1)
        made = {n: without(d, program.units.get(n, ())) for n, d in made.items()}
        pulled = program.initial_pull(walk.tables(), made, walk.run.dims, walk.dtype)
        for name, d in pulled.items():
            if d is not None and walk.args.x.get(name) is not None:
                d = restored(d, program.units.get(name, ()))
                d = d.expand(d.shape[0], walk.run.H, *d.shape[2:]).sum(0)
                self._add(self.dparams, name, d)

    def _arguments(self) -> Tensors:
        """Gradients of inputs and params, in their shapes and dtypes."""
        walk = self.walk
        found: Tensors = {}
        for a in walk.signature.arguments:
            x = walk.args.x[a.name]
            if x is None or a.role == "buffer":
                continue
            if a.level == "position" or a.role == "input":
                d = self.dx.get(a.name)
                if d is None:
                    d = torch.zeros_like(x)
                elif a.level == "position":
                    d = walk._table_gradient(a.name, d.to(walk.dtype))
                else:
                    d = walk.sequences.unpack(d)
                    d = d.squeeze(1) if walk.args.step else d
            elif (d := self.dparams.get(a.name)) is None:
                d = torch.zeros_like(x)
            else:
                d = walk.args.total(a, d, 0)
            found[a.name] = d.to(x.dtype)
        return found
