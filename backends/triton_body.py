"""A tile program in a kernel in, its lines out: about one for a value, each below the line of the
spec that it comes from."""

from __future__ import annotations

from collections.abc import Iterable

from lacc.backends.base import Variables
from lacc.backends.text import SUM, Text
from lacc.backends.triton_arrays import Arrays, load_mask
from lacc.backends.triton_text import ELEMENTWISE, Formats, results
from lacc.tile.program import Axes, Inst, Program, side_by_side, taken_apart
from lacc.tile.rounds import SUMMED, Round
from lacc.tile.split import VARYING

SHORT = 60
"""Characters up to which a value that is used once is written where it is used."""

INLINED = {*ELEMENTWISE, "rename", "within", "expand", "mask", "contract", "sum"}


class Body:
    """The lines of one program: ``fixed`` those that no token changes, ``each`` the others."""

    def __init__(self, kernel: Arrays, program: Program, fixed: list[str], each: list[str]) -> None:
        self.kernel, self.program = kernel, program
        self.fixed_lines, self.each_lines = fixed, each
        self.formats = Formats(program, kernel.index, kernel.length)
        self.texts: dict[int, Text] = {}
        self._variables = Variables(program, kernel.used)
        self._assigned: dict[str, Text] = {}
        self._parts: dict[int, list[str]] = {}
        self._line = 0
        self._taken_apart = taken_apart(program)
        self.in_parts = side_by_side(program) | self._taken_apart
        self._fixed = self._find_fixed()
        self._uses = self._find_uses()

    def code(self, n: int) -> str:
        """The text of a value."""
        return self.texts[n].code

    def run(self, values: Iterable[int] | None = None) -> None:
        """Writes these values, or every one."""
        for n in range(len(self.program.body)) if values is None else values:
            if n not in self.texts and n not in self.in_parts:
                self._value(n, self.fixed_lines if n in self._fixed else self.each_lines)

    def in_rounds(self, parts: Iterable[Round]) -> None:
        """The program goes through rounds: nothing is written before the rest, and what a loop over
        blocks uses stands before it."""
        self._fixed = frozenset()
        self._uses = self._find_uses()
        for part in parts:
            for part_of in (part.before, part.inside):
                for n in part_of:
                    for i in self.program.body[n].ins:
                        self._uses[i] += 2 * (i not in part_of)

    def run_block(self, part: Round) -> list[str]:
        """Writes what a round does with a block; the lines before its loop, where what is joined
        over all blocks begins."""
        begun = []
        self._assigned.clear()
        for n in part.inside:
            inst = self.program.body[n]
            if n not in part.joined:
                self._value(n, self.each_lines)
                continue
            text = self.formats.text(inst, [self.texts[i] for i in inst.ins])
            name, join = self._variables[n], SUMMED[inst.op]
            shape = self.kernel.shape(inst.axes)
            if join == "+":
                begun.append(f"{name} = tl.zeros({shape}, FLOAT)")
                self.each_lines.append(f"{name} += {text.code}")
            else:
                least = '"-inf"' if join == "maximum" else '"inf"'
                begun.append(f"{name} = tl.full({shape}, float({least}), FLOAT)")
                self.each_lines.append(f"{name} = tl.{join}({name}, {text.code})")
            self.texts[n] = Text(name)
        return begun

    def forget(self, part: Round) -> None:
        """Takes back what was written for a block."""
        for n in part.inside:
            if n not in part.joined:
                self.texts.pop(n, None)
        self._assigned.clear()

    def _find_fixed(self) -> frozenset[int]:
        """Values that neither a token enters nor where the last one stands."""
        found: set[int] = set()
        for n, inst in enumerate(self.program.body):
            token = inst.op == "load" and (inst.value[0] in VARYING or inst.value == ("index", "t"))
            last = inst.op in ("within", "row", "place_row") or {"t", "s"} & set(inst.axes)
            if not token and not last and found.issuperset(inst.ins):
                found.add(n)
        return frozenset(found)

    def _find_uses(self) -> list[int]:
        """How often each value is used; in the loop as often as it runs."""
        uses = [0] * len(self.program.body)
        for n, inst in enumerate(self.program.body):
            for i in inst.ins:
                uses[i] += 1 if (i in self._fixed) == (n in self._fixed) else 2
        for n in self.program.outs.values():
            uses[n] += 2
        return uses

    def _value(self, n: int, lines: list[str]) -> None:
        """Assigns a value, or keeps its text for the one place that uses it."""
        inst = self.program.body[n]
        match inst.op:
            case "load":
                text = self._load(inst)
                if inst.value[0] != "cotangent" and self.kernel.may_be_none(*inst.value):
                    self.texts[n] = text  # of use below a test that it is there
                    return None
            case "take" if inst.ins[0] in self._taken_apart:
                text = self._load_part(inst)
            case "default":
                return self._default(n, inst, lines)
            case "omitted":
                return self._omitted(n, inst, lines)
            case "pick":
                self.texts[n] = Text(self._parts[inst.ins[0]][inst.value])
                return None
            case _:
                text = self.formats.text(inst, [self.texts[i] for i in inst.ins])
        if (many := results(inst)) > 1:
            self._comment(inst, lines)
            self._parts[n] = self._picked(n, many)
            lines.append(f"{', '.join(self._parts[n])} = {text.code}")
            return None
        once = self._uses[n] < 2 and inst.op in INLINED and len(text.code) < SHORT
        if text.number or once or text.code.isidentifier():
            self.texts[n] = text
        elif text.code in self._assigned and inst.op != "load":
            self.texts[n] = self._assigned[text.code]
        else:
            self._comment(inst, lines)
            lines.append(f"{self._variables[n]} = {text.code}")
            self.texts[n] = self._assigned[text.code] = Text(self._variables[n])
        return None

    def _picked(self, n: int, many: int) -> list[str]:
        """Names of the results of an op that has several; each has its own, since in a loop no name
        may change its type."""
        picks = {
            i.value: u for u, i in enumerate(self.program.body) if i.op == "pick" and i.ins[0] == n
        }
        return [
            self._variables[picks[k]] if k in picks else self._variables.another("unused")
            for k in range(many)
        ]

    def _comment(self, inst: Inst, lines: list[str]) -> None:
        """The line of the spec where a new one begins."""
        source = self.kernel.spec.file.source.text.splitlines()
        if inst.op in ("load", "expand", "rename") or not 0 < inst.line <= len(source):
            return
        said = source[inst.line - 1].split("##")[0].strip()
        if inst.line != self._line and not said.startswith("const "):
            self._line = inst.line
            lines.append(f"# {said}")

    def _load(self, inst: Inst) -> Text:
        kind, name = inst.value
        k = self.kernel
        if kind == "index":
            said = {"t": "seen + place + 1", "T": "tokens", "head": "head", "H": "H"}[name]
            return Text(f"tl.zeros({k.shape(inst.axes)}, FLOAT) + ({said})", SUM)
        if kind == "state":
            return Text(f"{k.remade[name]}_at")
        place = k.place(kind, name, inst.axes)
        address, inside = k.address(place, inst.axes)
        loaded = f"tl.load({address}{load_mask(inside)}).to(FLOAT)"
        if kind == "cotangent":
            zero = f"tl.zeros({k.shape(inst.axes)}, FLOAT)"
            return Text(f"{loaded} if {place.pointer} is not None else {zero}", 0)
        return Text(loaded)

    def _load_part(self, inst: Inst) -> Text:
        """What is taken along an axis, from memory."""
        old, new, start, step = inst.value
        whole = self.program.body[inst.ins[0]]
        k, (kind, name) = self.kernel, whole.value
        part = k.place(kind, name, whole.axes).part(old, new, self.formats.size(start), step)
        address, inside = k.address(part, inst.axes)
        return Text(f"tl.load({address}{load_mask(inside)}).to(FLOAT)")

    def _default(self, n: int, inst: Inst, lines: list[str]) -> None:
        """An argument, or what stands for it where it is omitted."""
        given, other = inst.ins
        pointer = self._pointer(given)
        variable = self._variables[n]
        other_text = self.formats.aligned(self.texts[other], self._axes(other), inst.axes).code
        wide = f"tl.zeros({self.kernel.shape(inst.axes)}, FLOAT) + {other_text}"
        lines.append(f"if {pointer} is not None:")
        lines.append(f"    {variable} = {self.code(given)}")
        lines.append("else:")
        lines.append(f"    {variable} = {wide}")
        self.texts[n] = Text(variable)

    def _omitted(self, n: int, inst: Inst, lines: list[str]) -> None:
        """A cotangent where the argument was omitted, else 0."""
        ct, given = inst.ins
        variable = self._variables[n]
        lines.append(f"{variable} = {self.code(ct)}")
        lines.append(f"if {self._pointer(given)} is not None:")
        lines.append(f"    {variable} = tl.zeros({self.kernel.shape(inst.axes)}, FLOAT)")
        self.texts[n] = Text(variable)

    def _axes(self, n: int) -> Axes:
        return self.program.body[n].axes

    def _pointer(self, n: int) -> str:
        inst = self.program.body[n]
        kind, name = inst.value
        return self.kernel.place(kind, name, inst.axes).pointer
