"""Checked arguments and a state in, the values of all passes over time and their gradients out.

This module stands alone (torch only): its text is pasted into emitted files of torch. A
value over tokens is [B, T, H, *axes], or as its argument was given where that has fewer heads; a
state is [N, H, *axes]. `Walk` holds those of one call.
"""

from __future__ import annotations

from typing import Any

import torch

from lacc.runtime.contract import Value
from lacc.runtime.exponents import scaled_states
from lacc.runtime.passes import Rows
from lacc.runtime.torch_arguments import Arguments
from lacc.runtime.torch_run import KEPT, Attention, Pass, Program, Run, Tensors
from lacc.runtime.torch_sequences import Sequences, by_heads, by_tokens

# What products round to by the dtype of outputs.
PRODUCTS = {torch.bfloat16: "bf16", torch.float16: "tf32", torch.float32: "tf32x3"}


def precision_of(args: Any) -> str:
    """What products round their operands to: no more than the outputs are."""
    if args.dtype == torch.float64:
        return "ieee"
    wide = args.out_dtype == torch.float32 and torch.version.hip is not None
    return "bf16x6" if wide else PRODUCTS[args.out_dtype]


def power_from(C: int, least: int = 16) -> int:
    """The least power of two that holds C, from ``least`` on."""
    while least < C:
        least *= 2
    return least


def multiprocessors(device: Any) -> int:
    """How many programs run at once."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def without(x: Any, units: tuple[int, ...]) -> Any:
    """``x`` without its axes of a literal 1."""
    return x.squeeze(units) if units else x


def restored(x: Any, units: tuple[int, ...]) -> Any:
    """``x`` with its axes of a literal 1 again."""
    rank = x.ndim + len(units)
    for axis in sorted(rank + unit for unit in units):
        x = x.unsqueeze(axis)
    return x


def dense(x: Any) -> Any:
    """``x`` as kernels take states: contiguous."""
    return None if x is None else x.contiguous()


def wide(x: Any) -> Any:
    """A value of four axes, one of a single entry where it had none."""
    return x if x.ndim > 3 else x.unsqueeze(-1)


def tokens_of(program: Program, mode: str, chunk: int, T: int, run: Any) -> int:
    """How many tokens a chunk has; 0 where the program of a token runs."""
    alone = mode in ("recurrent", "step") or not program.passes
    if program.token is not None and (
        alone or (mode == "auto" and (T == 1 or program.alone(run, T)))
    ):
        return 0
    if mode == "parallel":
        C = power_from(T)
        if program.limit < C:
            most = f"at most {program.limit}, which is what a kernel holds on chip"
            raise ValueError(f"mode: parallel takes all tokens as one chunk, {most}; got T = {T}")
        return C
    if mode in ("recurrent", "step"):
        chunk = 1
    C = chunk or min(program.chunk(run, T), max(T, 1))
    longest: int | None = run.signature.longest
    C = power_from(C)
    while longest is not None and longest < C:
        C //= 2
    return C


class Walk:
    """One call: its passes, what they take by name, and where they start from."""

    def __init__(
        self,
        args: Arguments,
        program: Program,
        sequences: Sequences,
        given: Tensors,
        mode: str,
        chunk: int,
    ) -> None:
        self.args, self.program, self.sequences = args, program, sequences
        self.signature, self.dtype = args.signature, args.dtype
        self.values: dict[str, Value] = {a.name: a for a in self.signature.arguments}
        self.fields: dict[str, Value] = {s.name: s for s in self.signature.states}
        self.given = given
        position = given.get("position")
        self.position = None if position is None else position.to(torch.int64)
        C = tokens_of(program, mode, chunk, sequences.tokens, args)
        self.passes: tuple[Pass | Attention, ...] = program.passes
        if C == 0:
            assert program.token is not None
            self.passes = (program.token,)
        self.run = self._run(C or KEPT)
        if not self.run.T or not self.run.B:
            self.passes = ()
        self.x: Tensors = {}
        for a in self.signature.arguments:
            y = args.x[a.name]
            if y is not None and a.level == "position":
                y = self._table(a, y)
            elif y is not None and a.role == "input":
                y = sequences.pack(y.unsqueeze(1) if args.step else y)
            self.x[a.name] = y
        self._start()
        for label in {n for p in self.passes if isinstance(p, Pass) for n in p.inputs if "@" in n}:
            name, offset = label.split("@")
            past = self.past.get(f"{name}_past")
            self.x[label] = sequences.delayed(self.x[name], past, -int(offset))

    def _run(self, C: int) -> Run:
        args, sequences = self.args, self.sequences
        many, table, firsts = sequences.chunks(C)
        return Run(
            B=sequences.B,
            T=sequences.T,
            H=args.sizes["#H"],
            G=args.sizes["#G"],
            N=sequences.N,
            dims=args.dims,
            dtype=args.dtype,
            out_dtype=args.out_dtype,
            device=args.device,
            FLOAT=self.program.support.floats[args.dtype],
            PRECISION=precision_of(args),
            C=C,
            chunks=many,
            sms=multiprocessors(args.device),
            cu=sequences.cu,
            table=table,
            firsts=firsts,
            position=self.position,
            dry=sequences.dry,
        )

    # ---- tables by position

    def _table(self, a: Value, y: Any) -> Any:
        """The rows of a table by position that each token reads, [B, T, *axes]."""
        sequences, rows = self.sequences, y.shape[0]
        if self.position is None:
            longest = sequences.tokens if rows >= sequences.tokens else sequences.longest()
        elif sequences.dry or not rows:
            longest = sequences.tokens
        else:
            ends = self.position + sequences.lengths()
            longest = int(ends.max()) if ends.numel() else 0
        if rows < longest and not sequences.dry:
            raise ValueError(f"{a.name}: expected at least {longest} rows, got {rows}")
        if self.position is None and sequences.cu is None:
            return y[: sequences.T][None].expand(sequences.B, sequences.T, *y.shape[1:])
        return y[self._rows(rows)]

    def _rows(self, rows: int) -> Any:
        return self.sequences.positions(self.position).clamp(0, max(rows - 1, 0))

    def _table_gradient(self, name: str, d: Any) -> Any:
        """The gradient of a table from that of what each token read."""
        table = self.args.x[name]
        found = d.new_zeros(table.shape)
        if table.shape[0]:
            if self.sequences.cu is not None:
                live = torch.arange(self.run.T, device=d.device) < self.sequences.cu[-1]
                d = torch.where(live.reshape(1, -1, *[1] * (d.ndim - 2)), d, 0)
            found.index_put_((self._rows(table.shape[0]),), d, accumulate=True)
        return found

    # ---- where passes start

    def _start(self) -> None:
        """The states before the first token, None for 0, and the values before it."""
        args, program = self.args, self.program
        own: Tensors = {}
        for s in self.signature.states:
            x = self.given.get(s.name)
            if s.role == "log" and x is None and s.name.removesuffix("_log") in self.given:
                x = torch.zeros(args.shape(s), dtype=self.dtype, device=args.device)
            if s.role in ("state", "log"):
                own[s.name] = None if x is None else args.spread(s, x.to(self.dtype), 1)
        self.own = own
        self.state = scaled_states(torch, program.exponents, own)
        for field, names in program.pasts.items():
            past = self.given.get(field)
            self.state |= dict.fromkeys(names)
            if past is not None:
                past = args.spread(self.fields[field], past.to(self.dtype), 1)
                last = list(reversed(names))[: past.shape[2]]
                self.state |= {name: past[:, :, -1 - n] for n, name in enumerate(last)}
        self.started = {name for name in program.states if self.state.get(name) is None}
        self.past: Tensors = {}
        self.unfilled: dict[str, str] = {}
        for rows in program.kept:
            value, x = self.fields[rows.field], self.given.get(rows.field)
            level = self.level(rows.source)
            if x is not None:
                same = value.level == level
                x = by_tokens(x if same else args.spread(value, x, 1), level if same else "head")
            elif rows.state is not None or rows.field in program.pasts:
                self.unfilled[rows.field] = rows.state or program.pasts[rows.field][0]
            self.past[rows.field] = x
        first: Tensors = {}
        if program.initial is not None and (self.started or self.unfilled):
            first = program.initial(self.tables(), self.run.dims, self.dtype)
            first = {name: self._begun(name, x) for name, x in first.items()}
        for name in self.started:
            self.state[name] = first.get(name)
        for rows in program.kept:
            y = first.get(self.unfilled.get(rows.field, ""))
            if y is not None and rows.length:
                self.past[rows.field] = y[:, None].expand(-1, rows.length, *y.shape[1:])
        growing = [rows.field for rows in program.kept if rows.length is None]
        for name in growing:
            if (count := self.count(name)) != (known := self.count(growing[0])):
                raise ValueError(f"state.{name}: expected {known} rows, got {count}")
        self.first_state = dict(self.state)

    def count(self, field: str) -> int:
        """How many values of a field came before the first token."""
        past = self.past[field]
        return 0 if past is None else int(past.shape[1])

    def tables(self) -> Tensors:
        """Params, buffers and sizes as `Program.initial` takes them: [1, H, *axes]."""
        found: Tensors = {}
        for a in self.signature.arguments:
            if a.role != "input" and a.level != "position":
                y = self.x[a.name]
                y = None if y is None else self.args.spread(a, y.to(self.dtype), 0)[None]
                units = self.program.units.get(a.name, ())
                found[a.name] = None if y is None else without(y, units)
        H, device = self.run.H, self.args.device
        found["head"] = torch.arange(H, dtype=self.dtype, device=device)[None]
        found["H"] = torch.full((1, 1), H, dtype=self.dtype, device=device)
        found["T"] = torch.full((1, 1), self.run.T, dtype=self.dtype, device=device)
        return found

    def _begun(self, name: str, x: Any) -> Any:
        """A declared state for every sequence and head."""
        shape = self.program.states[name](self.run.dims)
        x = torch.as_tensor(x, dtype=self.dtype, device=self.args.device)
        if x.ndim:
            x = restored(x, self.program.units.get(name, ()))
        return x.expand(self.run.N, self.run.H, *shape).contiguous()

    def level(self, name: str) -> str:
        """The level of a value over tokens; stored ones are per head."""
        return self.values[name].level if name in self.values else "head"

    # ---- forward

    def forward(self, keep: bool) -> tuple[Tensors, list[Any], list[list[Any]]]:
        """Outputs [B, T, H, *axes]; what crosses to the backward, and what each pass kept."""
        run, kept = self.run, []
        for p in self.passes:
            if isinstance(p, Pass):
                states = {name: dense(self.state[name]) for name in p.states}
                last = {name: self.state[name] for name in p.last}
                found, finals, more = p.forward(self.taken(p), states, last, run, keep)
                self.x.update(found)
                self.state.update(finals)
            else:
                o, more = p.forward(*self.attended(p), p.window, run, keep)
                self.x[p.output] = o
            kept.append(list(more))
        outputs = {
            name: self.x[name] if self.passes else self._nothing(name)
            for name in self.program.outputs
        }
        values, states_ = self.crossing()
        crossed = [self.x[n] for n in values] + [self.state[n].clone() for n in states_]
        return outputs, crossed if keep else [], kept

    def _nothing(self, name: str) -> Any:
        output = next(o for o in self.signature.outputs if o.name == name)
        shape = (self.run.B, self.run.T, self.run.H, *self.args.axes(output))
        return torch.zeros(shape, dtype=self.args.out_dtype, device=self.args.device)

    def taken(self, p: Pass) -> Tensors:
        """What a pass takes by name."""
        return {name: self.x[name] for name in (*p.inputs, *p.fixed)}

    def crossing(self) -> tuple[list[str], list[str]]:
        """Stored values and final states that the backward needs."""
        values = [n for p in self.passes if isinstance(p, Pass) for n in p.outputs]
        values += [p.output for p in self.passes if not isinstance(p, Pass)]
        stored = [name for name in values if name not in self.program.outputs]
        last = [name for p in self.passes if isinstance(p, Pass) for name in p.last]
        scaled = [n for name, (o, _) in self.program.exponents.items() for n in (name, o)]
        return stored, list(dict.fromkeys([*last, *(scaled if self.passes else ())]))

    def attended(self, p: Attention) -> tuple[Any, ...]:
        """Query, keys, values, sink, and the keys and values before the first token."""
        sink = None if p.sink is None else self._entries(p.sink)
        found = [wide(self._entries(n)) for n in (p.query, p.keys.source, p.values.source)]
        pasts = [self._attended_past(rows) for rows in (p.keys, p.values)]
        return (*found, sink, *pasts)

    def _attended_past(self, rows: Rows) -> Any:
        """What was attended to before the first token [N, E, P, D], None where nothing was: the
        field of past values, then the state that the first token finds."""
        past, level = self.past.get(rows.field), self.level(rows.source)
        if self.position is not None:
            if past is None:
                like = self.x[rows.source]
                past = like.new_zeros(self.run.N, rows.length or 0, *like.shape[2:])
            if rows.state is not None:
                past = torch.cat([past.to(self.dtype), self.start_of(rows)[:, None]], 1)
        if past is None:
            return None
        past = past.unsqueeze(1) if level == "layer" else past.movedim(1, 2)
        return wide(past)

    def _entries(self, name: str) -> Any:
        """A value over tokens [B, T, E, *axes], E heads, groups or 1."""
        x = self.x[name]
        return x.unsqueeze(2) if self.level(name) == "layer" else x

    def windows(self) -> Tensors:
        """The fields of past values after the last token."""
        found: Tensors = {}
        for rows in self.program.kept:
            past = self.past[rows.field]
            state = self.start_of(rows)
            length = rows.length
            if length is None:
                length = self.sequences.longest() + self.count(rows.field)
            x = self.x[rows.source] if self.passes else self._blank(rows)
            y = self.sequences.window(x.to(self.dtype), past, state, length)
            field, level = self.fields[rows.field], self.level(rows.source)
            y = by_heads(y, level)
            found[rows.field] = y if field.level == level else self.args.firsts(field, y, 1)
        return found

    def start_of(self, rows: Rows) -> Any:
        """The state that comes before the first of ``rows``, None where none does."""
        if rows.state is None:
            return None
        x = self.first_state[rows.state]
        return self._zero_state(rows.state) if x is None else x

    def _blank(self, rows: Rows) -> Any:
        """A stored value of no tokens, which no pass gives."""
        if self.x.get(rows.source) is not None:
            return self.x[rows.source]
        axes = self.args.axes(self.fields[rows.field])[1:]
        shape = (self.run.B, self.run.T, self.run.H, *axes)
        return torch.zeros(shape, dtype=self.dtype, device=self.args.device)

    def _zero_state(self, name: str) -> Any:
        shape = (self.run.N, self.run.H, *self.program.states[name](self.run.dims))
        return torch.zeros(shape, dtype=self.dtype, device=self.args.device)
