"""Values of a tile program in, lines of Python out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lacc.backends.base import PICKED, Variables, tuple_code
from lacc.backends.numpy_names import unnamed
from lacc.backends.numpy_text import ELEMENTWISE, LAID, Formats
from lacc.backends.text import ATOM, Text
from lacc.ir.ops import OPS
from lacc.spec.model import Spec
from lacc.tile.program import Axes, Inst, Program
from lacc.tile.split import VARYING

IN_PLACE = {"add": "+", "sub": "-", "mul": "*"}
INTO = {"add": "np.add", "sub": "np.subtract", "mul": "np.multiply"}


@dataclass(frozen=True, slots=True)
class Function:
    """A generated function: signature, docstring and lines of its body."""

    head: str
    doc: str
    lines: tuple[str, ...]


class Writer:
    """Writes the values of one program as lines of Python."""

    def __init__(
        self, spec: Spec, program: Program, names: Variables, lengths: dict[str, str]
    ) -> None:
        self.spec = spec
        self.program = program
        self.names = names
        self.formats = Formats(lengths, "dtype", unnamed(program))
        self.uses = [0] * len(program.body)
        for inst in program.body:
            for i in inst.ins:
                self.uses[i] += 1
        for n in program.outs.values():
            self.uses[n] += 2
        self.texts: dict[int, Text] = {}
        self.into: dict[int, str] = {}
        """Values that are written into an array that is there, and where."""
        self.before: dict[int, str] = {}
        """What makes these arrays."""
        self.line = 0
        self.outer: Writer | None = None
        self._turned: dict[int, Text] = {}
        self._rows: set[str] = set()
        self._ahead: list[str] = []
        self._owned: set[int] = set()
        self._begun: set[int] = set()
        self._unnamed: set[int] = set()
        self._full = _full(program)

    def lines(
        self,
        wanted: list[int],
        comments: bool = False,
        crossing: frozenset[int] = frozenset(),
        aliased: frozenset[int] = frozenset(),
    ) -> list[str]:
        """Assignments of the values ``wanted``, in order; what is used once is written where it is
        used.

        Values that cross to another phase have a name, those of ``aliased`` not where they are
        another name already.
        """
        found: list[str] = []
        for n in wanted:
            if n in self.texts:
                continue
            inst = self.program.body[n]
            if n in self.into:
                found += [*self._comment(inst, comments), *self._written(n, inst)]
                continue
            if n not in crossing and self._fresh(n):
                self._name_as_grown(n)
            grown = self._in_place(n, inst)
            text = self.text(inst) if grown is None else Text(grown[0])
            alias = text.code.isidentifier() and n in aliased
            if grown is None and (n not in crossing or alias) and self._inlined(n, inst, text):
                self.texts[n] = text
                self._unnamed.add(n)
                continue
            found += [*self._comment(inst, comments), *self.ahead()]
            if inst.op in PICKED:
                found.append(f"{self._picked(n)} = {text.code}")
                continue
            name = self.names[n]
            if grown is not None:
                name, *updates = grown
                found += updates
            else:
                found.append(f"{name} = {text.code}")
            self.texts[n] = Text(name)
            if self.uses[n] < 2 and n not in crossing and self._fresh(n):
                self._owned.add(n)
        return found

    def _name_as_grown(self, n: int) -> None:
        """Gives a value the name of the result that may come to lie where it does, by sums and
        products that each have the one before as an operand of theirs alone."""
        grown, body = n, self.program.body
        while grown not in self.names and self.uses[grown] < 2:
            user = next((u for u in range(grown + 1, len(body)) if grown in body[u].ins), None)
            if user is None or body[user].op not in IN_PLACE:
                return
            grown = user
        if grown in self.names and grown not in self._begun and grown != n:
            self._begun.add(grown)
            self.names[n] = self.names[grown]

    def ahead(self) -> list[str]:
        """Statements that wait for the next one written."""
        found, self._ahead = self._ahead, []
        return found

    def _fresh(self, n: int) -> bool:
        """Whether a value is an array of its own, as long and wide as the block."""
        inst = self.program.body[n]
        computed = inst.op in ELEMENTWISE and OPS[inst.op].kind == "elementwise"
        return (
            n in self._full and inst.op != "stop_gradient" and (computed or inst.op == "contract")
        )

    def _written(self, n: int, inst: Inst) -> list[str]:
        """The statements that write a value of ``into``, and what waits for it."""
        place, text = self.into[n], self.text(inst)
        axes = [self.program.body[i].axes for i in inst.ins]
        ins = [self.formats.aligned(self.texts[i], x, inst.axes) for i, x in zip(inst.ins, axes)]
        product = self._product_into(place, inst) if inst.op == "contract" else None
        lines = [f"{place}{'[...]' if place.isidentifier() else ''} = {text.code}"]
        if product is not None:
            lines = [product]
        elif inst.op == "add" and place in (ins[0].code, ins[1].code):
            lines = [f"{place} += {ins[ins[0].code == place].code}"]
        elif inst.op in INTO and not text.number:
            lines = [f"{INTO[inst.op]}({ins[0].code}, {ins[1].code}, out={place})"]
            for at, i in enumerate(inst.ins) if inst.op == "add" else ():
                term = self.program.body[i]
                own = i in self._unnamed and term.op == "contract" and term.axes == inst.axes
                first = self._product_into(place, term) if own else None
                if first is not None:
                    lines = [first, f"{place} += {ins[1 - at].code}"]
                    break
        self.texts[n] = Text(place)
        before = [self.before[n]] if n in self.before else []
        return [*self.ahead(), *before, *lines]

    def _product_into(self, place: str, inst: Inst) -> str | None:
        """The statement that writes a product of two matrices; None where it is no such."""
        axes = [self.program.body[i].axes for i in inst.ins]
        ins = [self.texts[i] for i in inst.ins]
        self._right_operand(inst, ins, axes)
        factors = self.formats.factors(inst, ins, axes)
        if factors is None:
            return None
        return f"np.matmul({factors[0].code}, {factors[1].code}, out={place})"

    def _in_place(self, n: int, inst: Inst) -> list[str] | None:
        """Name and statements of a value that grows in the array of an operand nobody else needs:
        ``x = a @ b`` then ``x += c``. None where there is no such operand."""
        if inst.op not in IN_PLACE or n not in self._full:
            return None
        for at, i in enumerate(inst.ins):
            own = i in self._owned
            begun = i in self._unnamed and i in self._full and self.program.body[i].op == "contract"
            if (
                (own or begun)
                and self.program.body[i].axes == inst.axes
                and (not at or inst.op != "sub")
            ):
                rest = inst.ins[1 - at]
                other = self.formats.aligned(
                    self.texts[rest], self.program.body[rest].axes, inst.axes
                )
                name = self.texts[i].code if own else self.names[n]
                start = [] if own else [f"{name} = {self.texts[i].code}"]
                self._owned.discard(i)
                return [name, *start, f"{name} {IN_PLACE[inst.op]}= {other.code}"]
        return None

    def _turns_cheaply(self, inst: Inst) -> bool:
        """Whether at most one operand of an elementwise op is still to be turned for it."""
        wide = [i for i in inst.ins if len(self.program.body[i].axes) == 2]
        return len([i for i in wide if i not in self._turned]) < 2

    def turned(self, n: int) -> Text:
        """A value over two axes with these exchanged, laid out anew: faster in a product than a
        view with its rows and columns exchanged."""
        if n in self._turned:
            return self._turned[n]
        inst = self.program.body[n]
        text = self.texts[n]
        if self.outer is not None and n in self.outer.texts:
            at = text.code[text.code.rindex("[") :] if text.code.endswith("]") else ""
            text = Text(f"{self.outer.turned(n).within(ATOM)}{at}")
        elif n in self._unnamed and inst.op in ELEMENTWISE and self._turns_cheaply(inst):
            ins, axes = [], []
            for i in inst.ins:
                have = self.program.body[i].axes
                both = len(have) == 2
                ins.append(self.turned(i) if both else self.texts[i])
                axes.append(have[::-1] if both else have)
            text = self.formats.elementwise(replace(inst, axes=inst.axes[::-1]), ins, axes)
        elif n in self._unnamed and inst.op == "rename" and inst.value:
            text = self.turned(inst.ins[0])
        else:
            name = self.names.another(f"{self.names[n]}_T")
            self._ahead.append(f"{name} = turned({text.code})")
            text = Text(name)
        self._turned[n] = text
        return text

    def _right_operand(self, inst: Inst, ins: list[Text], axes: list[Axes]) -> None:
        """Lays out the right operand of a matrix product, row by row; on the left any order will
        do."""
        right = self.formats.right(inst, axes)
        if right is None:
            return
        n = inst.ins[right]
        if axes[right][0] not in inst.value:
            ins[right], axes[right] = self.turned(n), axes[right][::-1]
            return
        code = self.texts[n].code
        if code not in self._rows and self.outer is None and self._scattered(n):
            ins[right] = Text(f"np.ascontiguousarray({code})")
            if code.isidentifier():
                self._ahead.append(f"{code} = {ins[right].code}")
                self._rows.add(code)
                ins[right] = Text(code)

    def _scattered(self, n: int) -> bool:
        """Whether the rows of a tile over time may lie apart, as those of runs of tokens do."""
        inst = self.program.body[n]
        if "t" not in inst.axes and "s" not in inst.axes:
            return False
        moved = inst.op in ELEMENTWISE or inst.op in LAID
        return inst.op == "pick" or (moved and any(map(self._scattered, inst.ins)))

    def _comment(self, inst: Inst, wanted: bool) -> list[str]:
        """The line of the spec that an instruction comes from, where that is another one."""
        if not wanted or inst.op in ("load", *LAID) or inst.line in (0, self.line):
            return []
        self.line = inst.line
        source = self.spec.file.source.text.splitlines()
        return [f"# {source[inst.line - 1].split('##')[0].strip()}"]

    def _picked(self, n: int) -> str:
        """Names for the results of an op that has several; those that nothing picks are _."""
        picks = {
            i.value: u for u, i in enumerate(self.program.body) if i.op == "pick" and i.ins[0] == n
        }
        for u in picks.values():
            scalar = len(self.program.body[u].axes) < 2
            self.texts[u] = Text(f"{self.names[u]}[..., 0]" if scalar else self.names[u])
        return ", ".join(
            self.names[picks[k]] if k in picks else "_"
            for k, _ in enumerate(PICKED[self.program.body[n].op])
        )

    def _inlined(self, n: int, inst: Inst, text: Text) -> bool:
        if text.number:
            return True
        if inst.op in ("rename", "stop_gradient"):
            return self.uses[n] < 2 or text.code.isidentifier()
        if inst.op == "expand":
            return self.uses[n] < 2
        simple = inst.op in ELEMENTWISE or inst.op in ("contract", "mask", "sum", "row", "entry")
        repeated = any(
            self.program.body[user].op == "silu"
            for user in range(n + 1, len(self.program.body))
            if n in self.program.body[user].ins
        )
        return self.uses[n] < 2 and simple and not repeated and len(text.code) < 56

    def text(self, inst: Inst) -> Text:
        """The expression of one instruction over what stands already."""
        ins = [self.texts[i] for i in inst.ins]
        axes = [self.program.body[i].axes for i in inst.ins]
        if inst.op == "contract":
            self._right_operand(inst, ins, axes)
        return self.formats.text(inst, ins, axes)


def _full(program: Program) -> frozenset[int]:
    """Values with an entry for every sequence, head and chunk, as what is given has."""
    found: set[int] = set()
    for n, inst in enumerate(program.body):
        given = inst.op == "load" and inst.value[0] in VARYING
        if given or any(i in found for i in inst.ins):
            found.add(n)
    return frozenset(found)


def unpack(names: list[str], source: str) -> list[str]:
    """The line that gives each entry of a tuple its name; none for an empty one."""
    return [f"{tuple_code(names)} = {source}"] if names else []
