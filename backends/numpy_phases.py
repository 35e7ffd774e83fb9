"""One direction of a pass in, the lines of its function out, phase by phase (`lacc.tile.split`):
sections for all chunks at once, and loops over them.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass

from lacc.backends.base import Variables, tuple_code
from lacc.backends.numpy_lines import Writer, unpack
from lacc.backends.numpy_names import (
    RESERVED,
    Names,
    all_dims,
    dim_lines,
    identifier,
    lengths,
    taken,
)
from lacc.backends.numpy_text import ELEMENTWISE, LAID
from lacc.backends.text import ATOM, Text
from lacc.spec.model import Spec
from lacc.tile.program import Program, numbers
from lacc.tile.split import FIXED, phases


@dataclass(frozen=True, slots=True)
class Given:
    """What the functions of a pass take and give, by name; ``token``: they run one token, not
    chunks; ``skips``: the states are of use without the outputs."""

    inputs: tuple[str, ...]
    fixed: tuple[str, ...]
    last: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    token: bool
    skips: bool

    def locals(self, dims: set[str]) -> Names:
        """The variables of one function, where ``dims`` are variables too."""
        found = Names({*RESERVED, *taken(), *dims, *keyword.kwlist})
        for name in self.inputs:
            found.take("input", name, identifier(name))
        for name in self.fixed:
            found.take("param", name, name)
        for name in self.last:
            found.take("last", name, f"last_{identifier(name)}")
        for name in self.states:
            label = identifier(name)
            found.take("state", name, label, "_at")
            found.take("start", name, f"{label}_start")
            found.take("dstate", name, f"d{label}", "_at")
        for name in self.outputs:
            found.take("cotangent", name, f"d{identifier(name)}")
        return found


class Direction:
    """One direction of a pass: its lines by phase."""

    def __init__(self, spec: Spec, given: Given, program: Program, carried: str) -> None:
        self.spec = spec
        self.given = given
        self.program = program
        self.carried = carried
        found, self.loops = phases(program, carried)
        self.phase = [min(p, 0) for p in found] if given.token else list(found)
        for n, inst in enumerate(program.body):
            if inst.op == "pick":
                self.phase[n] = self.phase[inst.ins[0]]
        self.last = 0 if given.token else 2 * len(self.loops)
        if carried == "state":
            self._read_last()
        self.local = given.locals(all_dims(program))
        self.names = Variables(program, [*self.local.used])
        for n, inst in enumerate(program.body):
            if inst.op == "load":
                self.names[n] = self._loaded(*inst.value)
        self.numbers = numbers(program)
        used: dict[int, set[int]] = {n: set() for n in range(len(program.body))}
        for n, inst in enumerate(program.body):
            for i in inst.ins:
                used[i].add(self.phase[n])
        for name, n in program.outs.items():
            carry = name.startswith("state:") and not given.token
            used[n].add(self._loop_of(name.removeprefix("state:")) if carry else self.last)
        self.crossing = frozenset(
            n for n, where in used.items() if where - {self.phase[n]} and n not in self.numbers
        )

    def _read_last(self) -> None:
        """What no state needs goes behind all loops, where a call for the states alone ends."""
        body, outs = self.program.body, self.program.outs
        carry = {n for name, n in outs.items() if name.startswith("state:")}
        for n in reversed(range(len(body))):
            if n in carry or (self.phase[n] % 2 and self.phase[n] != FIXED):
                carry |= {n, *body[n].ins}
        for n, inst in enumerate(body):
            if n not in carry and self.phase[n] != FIXED and inst.op not in ("load", "pick"):
                self.phase[n] = self.last
        for n, inst in enumerate(body):
            if inst.op == "pick":
                self.phase[n] = self.phase[inst.ins[0]]

    def _loop_of(self, state: str) -> int:
        return 2 * next(n for n, group in enumerate(self.loops) if state in group) + 1

    def _loaded(self, kind: str, name: str) -> str:
        if kind == "cotangent":
            name = name.removeprefix("stored:")
        if kind == "state" and self.carried == "dstate":
            kind = "start"
        kind = {
            "stored": "input",
            "index": "input" if name == "t" else "param",
            "buffer": "param",
        }.get(kind, kind)
        return self.local[kind, name]

    def _of(self, phase: int) -> list[int]:
        return [n for n, p in enumerate(self.phase) if p == phase]

    def _writer(self) -> Writer:
        return Writer(self.spec, self.program, self.names, lengths(self.program))

    def prepared(self) -> tuple[list[str], list[str]]:
        """Lines of the fixed phase, and what other phases use of it."""
        writer = self._writer()
        lines = []
        for n in self._of(FIXED):
            if self.program.body[n].op == "load":
                writer.texts[n] = Text(self.names[n])
            else:
                lines += writer.lines([n], crossing=self.crossing, aliased=frozenset((n,)))
        for n in self._kept():
            if writer.texts[n].code.isidentifier():
                self.names[n] = writer.texts[n].code
        return lines, [writer.texts[n].code for n in self._kept()]

    def _kept(self) -> list[int]:
        return [n for n in self._of(FIXED) if n in self.crossing]

    def lines(self, comments: bool) -> list[str]:
        """The body of the function."""
        writer = self._writer()
        for n, inst in enumerate(self.program.body):
            if inst.op == "load" and self.phase[n] != FIXED:
                writer.texts[n] = Text(self.names[n])
            elif n in self.numbers:
                writer.lines([n])
        for n in self._kept():
            writer.texts[n] = Text(self.names[n])
        local = self.local
        head = unpack([local["input", n] for n in self.given.inputs], "inputs")
        carried = [local[self.carried, n] for n in self.given.states]
        if self.carried == "state":
            head += unpack(carried, "states")
        else:
            head += unpack([local["start", n] for n in self.given.states], "starts")
            head += unpack([local["cotangent", n] for n in self.given.outputs], "cotangents")
            head += unpack(carried, "dstates")
        head += unpack([self.names[n] for n in self._kept()], "constants")
        if self.given.token:
            head += [f"{name} = {name}[:, :, None]" for name in carried]
        else:
            head += [f"{name} = packed({name}, dtype)" for name in self._by_rows(writer)]
        self._direct(writer)
        body = self._section(writer, 0, comments)
        for number in range(self.last // 2):
            body += self._loop(writer, number, comments)
            if self.carried == "state" and 2 * number + 2 == self.last:
                body += self._states_alone(carried)
            body += self._section(writer, 2 * number + 2, comments)
        body.append(self._result(writer, carried))
        return [*head, *dim_lines(self.program, body), *body]

    def _states_alone(self, carried: list[str]) -> list[str]:
        """The end of a call that asks for no outputs, where no later pass reads any."""
        if not self.given.skips:
            return []
        starts = tuple_code([f"{name}_at" for name in carried])
        return ["if not outputs:", f"    return (), {tuple_code(carried)}, {starts}"]

    def _by_rows(self, writer: Writer) -> list[str]:
        """What is given, its rows apart, and read often or on the right of a product, where that is
        slow."""
        body = self.program.body
        given = {
            n
            for n, inst in enumerate(body)
            if inst.op == "load"
            and inst.value[0] in ("input", "stored", "cotangent")
            and len(inst.axes) > 1
            and not any(n in u.ins for u in body if u.op in ("default", "omitted"))
        }

        def roots(n: int) -> set[int]:
            moved = body[n].op in ELEMENTWISE or body[n].op in LAID
            return {n} & given | {r for i in body[n].ins if moved for r in roots(i)}

        found = {n for n in given if writer.uses[n] > 2}
        for inst in body:
            if inst.op == "contract":
                axes = [body[i].axes for i in inst.ins]
                right = writer.formats.right(inst, axes)
                if right is not None and axes[right][0] in inst.value:
                    found |= roots(inst.ins[right])
        return [self.names[n] for n in sorted(found)]

    def _section(self, writer: Writer, phase: int, comments: bool) -> list[str]:
        wanted = [n for n in self._of(phase) if self.program.body[n].op != "load"]
        return writer.lines(wanted, comments, self.crossing, frozenset(wanted))

    def _loop(self, writer: Writer, number: int, comments: bool) -> list[str]:
        """The loop over the block's chunks that carries one group of states, and what it leaves for
        every chunk."""
        phase, body = 2 * number + 1, self.program.body
        states = self.loops[number]
        given = {s: n for s, n in self.program.loads(self.carried).items() if s in states}
        loads = {n: self.local[self.carried, s] for s, n in given.items()}
        for n in loads:
            del writer.texts[n]  # not what it is in the loop
        inner = self._writer()
        inner.outer = writer
        inner.line = writer.line
        for n, text in writer.texts.items():
            at = "0" if self.phase[n] == FIXED else "c"
            inner.texts[n] = text if text.number else Text(f"{text.within(ATOM)}[:, :, {at}]")
        inner.texts.update({n: Text(name) for n, name in loads.items()})
        outs = {s: self.program.outs.get(f"state:{s}") for s in states}
        wanted = [n for n in self._of(phase) if body[n].op != "load"]
        kept = {s: self.local[self.carried, s] for s in states if self.carried == "state"}
        kept |= {s: self.local[self.carried, s] for s, n in given.items() if n in self.crossing}
        here, after = ("c", "c + 1") if self.carried == "state" else ("c + 1", "c")
        direct = {i: n for i in writer.into for n in outs.values() if n and i in body[n].ins}
        for s, name in kept.items():
            out = outs[s]
            if out in wanted and list(outs.values()).count(out) == 1:
                inner.into[out] = f"{name}_at[:, :, {after}]"
        inner.texts.update({i: Text(inner.into[n]) for i, n in direct.items()})
        shown = [n for n in wanted if n in self.crossing and n not in outs.values()]
        shown += [
            n
            for n in outs.values()
            if n is not None and n not in loads and self._read_after(n, phase)
        ]
        stacked = {n: self.names.another(f"{self.names[n]}_at") for n in shown}
        into = {
            n: self.names[n]
            for n in shown
            if n not in inner.into and body[n].op not in ("pick", "load")
        }
        inner.into |= into
        lines = [f"{name} = {name}_at[:, :, {here}]" for name in kept.values()]
        lines += [f"{name} = {stacked[n]}[:, :, c]" for n, name in into.items()]
        lines += inner.lines(wanted, comments, self.crossing)
        lines += [
            f"{name}[:, :, c] = {inner.texts[n].code}"
            for n, name in stacked.items()
            if n not in into
        ]
        moves = []
        for s in states:
            name, out = self.local[self.carried, s], outs[s]
            value = f"np.zeros_like({name})" if out is None else inner.texts[out].code
            if s not in kept:
                moves += [(name, value)] if value != name else []
            elif out not in inner.into:
                lines.append(f"{name}_at[:, :, {after}] = {'0' if out is None else value}")
        if moves:
            lines.append(f"{', '.join(m[0] for m in moves)} = {', '.join(m[1] for m in moves)}")
        result = writer.ahead()
        ready = {s for s, n in outs.items() if n in direct.values()}
        result += [self._room(name) for s, name in kept.items() if s not in ready]
        like = self.local[self.carried, states[0]]
        for n, name in stacked.items():
            shape = ["n", *(writer.formats.lengths[a] for a in body[n].axes)]
            result.append(f"{name} = slots({like}, {', '.join(shape)})")
        result.append(f"for c in {'range(n)' if here == 'c' else 'reversed(range(n))'}:")
        result += [f"    {line}" for line in lines]
        last, rest = ("-1", ":-1") if here == "c" else ("0", "1:")
        for name in kept.values():
            result.append(f"{name}, {name}_at = {name}_at[:, :, {last}], {name}_at[:, :, {rest}]")
        writer.texts.update({n: Text(f"{name}_at") for n, name in loads.items()})
        writer.texts.update({n: Text(name) for n, name in stacked.items()})
        return result if lines else []

    def _room(self, name: str) -> str:
        return f"{name}_at = room({name}, n, {'0' if self.carried == 'state' else 'n'})"

    def _direct(self, writer: Writer) -> None:
        """Products that are only added to what a state keeps go to where the next state will be."""
        body, program = self.program.body, self.program
        loads = program.loads(self.carried)
        for s, name in ((s, self.local[self.carried, s]) for group in self.loops for s in group):
            out = program.outs.get(f"state:{s}")
            kept = self.carried == "state" or loads.get(s) in self.crossing
            if out is None or body[out].op != "add" or not kept:
                continue
            for i in body[out].ins:
                ins = [body[x].axes for x in body[i].ins]
                product = body[i].op == "contract" and self.phase[i] == self.phase[out] - 1
                alone = writer.uses[i] == 1 and body[i].axes == body[out].axes
                if product and alone and writer.formats.right(body[i], ins) is not None:
                    places = "1:" if self.carried == "state" else ":-1"
                    writer.into[i] = f"{name}_at[:, :, {places}]"
                    writer.before[i] = self._room(name)
                    break

    def _read_after(self, n: int, phase: int) -> bool:
        """Whether a later phase reads the value, beside its being carried on."""
        return any(
            n in inst.ins and self.phase[u] > phase for u, inst in enumerate(self.program.body)
        )

    def _result(self, writer: Writer, carried: list[str]) -> str:
        given, outs = self.given, self.program.outs

        def value(name: str) -> str:
            return writer.texts[outs[name]].code if name in outs else "None"

        if given.token:
            states = [
                f"{value(f'state:{s}')}[:, :, 0]"
                if f"state:{s}" in outs
                else f"np.zeros_like({c}[:, :, 0])"
                for s, c in zip(given.states, carried)
            ]
        else:
            states = list(carried)
        if self.carried == "state":
            outputs = [value(name if name in outs else f"stored:{name}") for name in given.outputs]
            starts = "()" if given.token else tuple_code([f"{name}_at" for name in carried])
            return f"return {tuple_code(outputs)}, {tuple_code(states)}, {starts}"
        inputs = [
            value(f"input:{n}" if f"input:{n}" in outs else f"stored:{n}") for n in given.inputs
        ]
        fixed = [value(f"param:{n}") for n in given.fixed]
        last = [value(f"last:{n}") for n in given.last]
        return f"return {', '.join(map(tuple_code, (inputs, fixed, last, states)))}"
