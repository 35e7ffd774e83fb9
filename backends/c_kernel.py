"""One kernel in, a C function that goes through the chunks of a sequence and head out, with the
function that says how much workspace it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lacc.backends.base import unused
from lacc.backends.c_body import Body, Statement, for_c, taken_names
from lacc.backends.c_text import dim, identifier, plus, size, times
from lacc.tile.partition import Part
from lacc.tile.program import Axes, Program
from lacc.tile.rewrite import meet_once


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a call: ``role`` says what it is of (in, fixed, last, begun, out, ended, start,
    cotangent, gradient, …), ``label`` its name."""

    role: str
    label: str


class CKernel:
    """The text of the function ``name`` of ``part``; ``arrays`` are those of the call, by what they
    are, ``dims`` names those of the spec."""

    def __init__(
        self,
        name: str,
        run: str,
        part: Part,
        arrays: Mapping[Array, str],
        dims: Sequence[str],
        *,
        needed: Sequence[str] = (),
        backward: bool = False,
        remade: Program | None = None,
        taken: set[str] | None = None,
    ) -> None:
        """``needed`` are states that are kept as each chunk finds them, ``remade`` makes the states again that the backward of a token program needs."""
        self.name, self.run, self.arrays, self.dims, self.needed = name, run, arrays, dims, needed
        self.backward, self.by_token = backward, part.kind == "token"
        carried = "dstate" if part.program.loads("dstate") else "state"
        self.program = for_c(meet_once(part.program, carried))
        self.taken = taken_names() | {dim(d) for d in dims} if taken is None else taken
        self.carried = self._carried(part.carries, "d" if backward else "")
        self.remade: CKernel | None = None
        if remade is not None:
            states = tuple(n.removeprefix("state:") for n in remade.outs)
            again = Part("token", remade, states)
            self.remade = CKernel(f"{name}_again", run, again, arrays, dims, taken=self.taken)
        self.body = self._body(self.program)

    # ---- what the program takes and gives --------------------------------------------------------

    def _carried(self, states: Sequence[str], prefix: str) -> dict[str, str]:
        """The variable of each carried state."""
        found = {}
        for s in states:
            found[s] = unused(f"{prefix}{identifier(s)}", self.taken)
            self.taken |= {found[s], f"{found[s]}_next", f"{found[s]}_begun"}
        return found

    def _array(self, kind: str, label: str) -> str:
        role = {
            "input": "in",
            "stored": "in",
            "param": "fixed",
            "buffer": "fixed",
            "last": "last",
            "state": "begun",
            "dstate": "dended",
            "kept": "start",
            "cotangent": "dout",
        }.get(kind, "in" if label == "t" else "fixed")
        label = label.removesuffix("_start") if kind == "kept" else label.removeprefix("stored:")
        return self.arrays[Array(role, label)]

    def _body(self, program: Program) -> Body:
        arrays, pointers = {}, {}
        kind = "dstate" if self.backward else "state"
        for n, inst in enumerate(program.body):
            if inst.op != "load":
                continue
            if inst.value[0] == kind and inst.value[1] in self.carried:
                name = self.carried[inst.value[1]]
                pointers[n] = name if inst.axes else f"{name}[0]"
            elif self.remade is not None and inst.value[0] == "state":
                name = f"{self.remade.carried[inst.value[1]]}_at"
                pointers[n] = name if inst.axes else f"{name}[0]"
            else:
                arrays[n] = self._array(*inst.value)
        into: dict[int, str] = {}
        for label, n in program.outs.items():
            state = label.removeprefix("state:")
            if state != label and state in self.carried and n not in into and n not in pointers:
                next_ = f"{self.carried[state]}_next"
                into[n] = next_ if program.body[n].axes else f"{next_}[0]"
        return Body(program, arrays, pointers, into, self._load, self.taken)

    def _load(self, n: int, name: str) -> str:
        inst = self.program.body[n]
        kind, label = inst.value
        array = self._array(kind, label)
        width = self.width(inst.axes)
        timed = kind in ("input", "stored", "cotangent") or label == "t"
        if timed:
            at, rows = "at", "1" if self.by_token else "C"
        else:
            at, rows = "c" if kind == "kept" else "0", "1"
        if kind in ("input", "stored", "cotangent") and not self.by_token and "t" not in inst.axes:
            raise AssertionError(f"{label} has no tokens")
        return f"load_tile({name}, &{array}, n, h, {at}, {rows}, {width});"

    def width(self, axes: Axes) -> str:
        """The entries of a token of a tile."""
        return times(*(self._length(a) for a in axes if a != "t"))

    def _length(self, axis: str) -> str:
        return "C" if axis == "s" else size(self.program.sizes[axis]).code

    # ---- text ------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """The function and the one that gives its workspace."""
        if self.remade is not None:
            return self._framed(self._by_group(self.remade))
        inside = self._chunk()
        order = "int64_t c = 0; c < chunks; c++"
        if self.backward:
            order = "int64_t c = chunks - 1; c >= 0; c--"
        body = [
            *self._dims(),
            *self._workspace(),
            *self.body.declarations(),
            *_text(self.body.before),
            *self._begin(),
            *(["int64_t known = -1;"] if self.body.once else []),
            f"for ({order}) {{",
            *(f"    {line}" for line in inside),
            "}",
            *self._end(),
        ]
        return self._framed(body)

    def _framed(self, body: list[str]) -> list[str]:
        head = (
            f"static void {self.name}(const {self.run} *run, const lacc_array *x, "
            "int64_t n, int64_t h, real *w)"
        )
        return [
            f"static int64_t {self.name}_room(const {self.run} *run)",
            "{",
            *(f"    {line}" for line in [*self._dims(False), f"return {plus(*self._rooms())};"]),
            "}",
            "",
            head,
            "{",
            *(f"    {line}" for line in body),
            "}",
        ]

    def _by_group(self, again: CKernel) -> list[str]:
        """From the last group of tokens to the first: states made again, then the way back."""
        restart, keep, there = [], [], []
        for s, name in again.carried.items():
            size, array = again._state_size(s), self.arrays[Array("start", s)]
            restart.append(f"load_tile({name}, &{array}, n, h, c, 1, {size});")
            keep.append(f"copy({name}_kept + p * ({size}), {name}, {size});")
            there.append(f"real *const {name}_at = {name}_kept + p * ({size});")
        forward = ["const int64_t at = first + p;", *self._past(), *keep, *again._steps()]
        back = ["const int64_t at = first + p;", *self._past(), *there, *self._steps()]
        return [
            *self._dims(False),
            *self._workspace(),
            *again.body.declarations(),
            *self.body.declarations(),
            *_text(again.body.before),
            *_text(self.body.before),
            *(
                f"real *{name} = {name}_even, *{name}_next = {name}_odd;"
                for name in again.carried.values()
            ),
            *self._begin(),
            "for (int64_t c = (run->tokens + KEPT - 1) / KEPT - 1; c >= 0; c--) {",
            "    const int64_t first = c * KEPT, count = least(KEPT, run->tokens - first);",
            *(f"    {line}" for line in restart),
            "    for (int64_t p = 0; p < count; p++) {",
            *(f"        {line}" for line in forward),
            "    }",
            "    for (int64_t p = count - 1; p >= 0; p--) {",
            *(f"        {line}" for line in back),
            "    }",
            "}",
            *self._end(),
        ]

    def _past(self) -> list[str]:
        if any("past" in line for line in self._all_lines()):
            return ["const int64_t past = run->past + at;"]
        return []

    def _dims(self, chunks: bool = True) -> list[str]:
        lines = [f"UNUSED const int64_t {dim(d)} = run->dim.{dim(d)};" for d in self.dims]
        if any("#past" in length.dims for length in self.program.sizes.values()):
            lines.append("UNUSED const int64_t past = run->past + run->tokens;")
        lines.append(f"UNUSED const int64_t L = {'1' if self.by_token else 'run->chunk'};")
        if chunks:
            count = "run->tokens" if self.by_token else "(run->tokens + L - 1) / L"
            lines.append(f"const int64_t chunks = {count};")
        return lines

    def _pieces(self) -> list[tuple[str, list[str]]]:
        """The pieces of the workspace: the tiles of the program, states, sums over chunks."""
        found = list(self.body.slots)
        if self.remade is not None:
            found += self.remade._pieces()
            for s, name in self.remade.carried.items():
                found.append((times("KEPT", self.remade._state_size(s)), [f"{name}_kept"]))
        for s, name in self.carried.items():
            size = self._state_size(s)
            found += [(size, [f"{name}_even"]), (size, [f"{name}_odd"])]
        found += [(size, [name]) for _, name, size, _ in self._sums()]
        if self.body.ops.scratch:
            whole = self.body.ops.scratch[0]
            for more in dict.fromkeys(self.body.ops.scratch[1:]):
                whole = f"most({whole}, {more})" if more != whole else whole
            found.append((whole, ["scratch"]))
        scratch = [size for size, names in found if names == ["scratch"]]
        if len(scratch) > 1:
            found = [piece for piece in found if piece[1] != ["scratch"]]
            found.append((f"most({scratch[0]}, {scratch[1]})", ["scratch"]))
        return found

    def _rooms(self) -> list[str]:
        return [f"round_up({size})" for size, _ in self._pieces()]

    def _workspace(self) -> list[str]:
        lines = []
        for size, names in self._pieces():
            names = [n if not self._levels(n) else f"{n}_room" for n in names]
            lines.append(f"real *const {names[0]} = w;")
            lines.append(f"w += round_up({size});")
            lines += [f"real *const {name} = {names[0]};" for name in names[1:]]
        return [*lines, "(void)w;"]

    def _levels(self, name: str) -> bool:
        names = self.body.v.names
        return any(self.program.body[n].op == "levels" and names[n] == name for n in names)

    def _state_size(self, state: str) -> str:
        for label, n in self.program.outs.items():
            if label == f"state:{state}":
                return self.width(self.program.body[n].axes)
        for kind in ("state", "dstate"):
            loads = self.program.loads(kind)
            if state in loads:
                return self.width(self.program.body[loads[state]].axes)
        raise AssertionError(state)

    def _sums(self) -> list[tuple[int, str, str, str]]:
        """Outputs that are summed over chunks: value, variable, entries and array."""
        found = []
        for label, n in self.program.outs.items():
            kind, _, name = label.partition(":")
            if kind in ("param", "last") and name:
                array = self.arrays[Array("dfixed" if kind == "param" else "dlast", name)]
                variable = f"d{''.join(c if c.isalnum() else '_' for c in name)}_sum"
                found.append((n, variable, self.width(self.program.body[n].axes), array))
        return found

    def _begin(self) -> list[str]:
        """The states before the first chunk, and sums of nothing."""
        lines = []
        role = "dended" if self.backward else "begun"
        for s, name in self.carried.items():
            size, array = self._state_size(s), self.arrays[Array(role, s)]
            lines.append(f"load_tile({name}_even, &{array}, n, h, 0, 1, {size});")
            lines.append(f"real *{name} = {name}_even, *{name}_next = {name}_odd;")
        lines += [f"fill({name}, R(0), {size});" for _, name, size, _ in self._sums()]
        return lines

    def _chunk(self) -> list[str]:
        lines = (
            ["const int64_t at = c;"]
            if self.by_token
            else ["const int64_t at = c * L, C = least(L, run->tokens - at);"]
        )
        lines += self._past()
        if not self.backward:
            for s, name in self.carried.items():
                if s in self.needed:
                    array = self.arrays[Array("start", s)]
                    size = self._state_size(s)
                    store = f"store_tile(&{array}, n, h, {'c / KEPT' if self.by_token else 'c'}, {name}, 1, {size});"
                    lines.append(f"if ({array}.data{' && c % KEPT == 0' if self.by_token else ''})")
                    lines.append(f"    {store}")
        return [*lines, *self._steps()]

    def _steps(self) -> list[str]:
        """The work of one chunk, from loads to what it gives and carries."""
        lines = []
        if self.body.once:
            lines.append("if (C != known) {")
            lines += [f"    {line}" for line in [*_text(self.body.once), "known = C;"]]
            lines.append("}")
        lines += _text(self.body.each)
        for label, n in self.program.outs.items():
            lines += self._out(label, n)
        for s, name in self.carried.items():
            lines += self._next(s, name)
        return lines

    def _all_lines(self) -> list[str]:
        return _text([*self.body.before, *self.body.once, *self.body.each])

    def _out(self, label: str, n: int) -> list[str]:
        kind, _, name = label.partition(":")
        axes = self.program.body[n].axes
        if kind in ("state", "kept") and name:
            return []
        if kind in ("param", "last") and name:
            variable, size = next(
                (v, s) for k, v, s, a in self._sums() if k == n and self._named(label, a)
            )
            lines = (
                [f"{variable}[0] += {self.body.v.at(n, {}).code};"]
                if not axes
                else [f"add_to({variable}, {self.body.v.pointer(n)}, {size});"]
            )
            return lines
        if not kind or not name:
            role, name = ("out", label)
        else:
            role = "din" if self.backward else "out"
            role = "out" if kind == "stored" and not self.backward else role
        array = self.arrays[Array(role, name)]
        rows = "1" if self.by_token else "C"
        pointer = self.body.v.pointer(n)
        return [f"store_tile(&{array}, n, h, at, {pointer}, {rows}, {self.width(axes)});"]

    def _named(self, label: str, array: str) -> bool:
        kind, _, name = label.partition(":")
        return self.arrays[Array("dfixed" if kind == "param" else "dlast", name)] == array

    def _next(self, state: str, name: str) -> list[str]:
        n = self.program.outs.get(f"state:{state}")
        if n is None:
            return []
        lines = []
        if self.body.into.get(n) not in (f"{name}_next", f"{name}_next[0]"):
            if n in self.body.pointers and self.body.pointers[n].removesuffix("[0]") == name:
                return []
            size = self._state_size(state)
            lines.append(f"copy({name}_next, {self.body.v.pointer(n)}, {size});")
        return [*lines, f"swap(&{name}, &{name}_next);"]

    def _end(self) -> list[str]:
        role = "dbegun" if self.backward else "ended"
        lines = [
            f"store_tile(&{self.arrays[Array(role, s)]}, n, h, 0, {name}, 1, {self._state_size(s)});"
            for s, name in self.carried.items()
            if f"state:{s}" in self.program.outs
        ]
        return lines + [
            f"store_tile(&{array}, n, h, 0, {name}, 1, {size});"
            for _, name, size, array in self._sums()
        ]


def _text(statements: Sequence[Statement]) -> list[str]:
    return [line for s in statements for line in s.lines]
