"""A padded tile program and a launch in, the text of one fused Triton kernel out.

Parameters, lines before, in and after the loop over chunks, and the arguments of its launch; what a
line holds is written by the formats of `lacc.backends.triton_text`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lacc.backends import triton_device
from lacc.backends.base import Variables, lead, unused
from lacc.backends.text import SUM, Text, size_text
from lacc.backends.triton_layout import Index
from lacc.backends.triton_text import ELEMENTWISE, Formats
from lacc.spec.model import Arg, Output, Spec, State
from lacc.spec.shapes import ONE, Size
from lacc.tile.lower import Naming
from lacc.tile.program import Axes, Inst, Program
from lacc.tile.split import VARYING

RESERVED = (
    *("tl", "torch", "triton", "kernel", "launch", "State", "Outputs", "INTERPRETED"),
    *("T", "H", "G", "CHUNK", "BT", "FLOAT", "PRECISION", "STARTED"),
    *("sequence", "batch", "head", "t", "start", "token", "live"),
)
SHORT = 60
"""Characters up to which a value that is used once is written where it is used."""

INLINED = {*ELEMENTWISE, "rename", "within", "expand", "mask", "contract", "sum"}
WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is laid over the device: tokens of a ``chunk``, the axis ``split`` of which a
    program holds ``block`` entries ("" where it holds all), warps, and the reasons.
    """

    chunk: int
    split: str
    block: int
    warps: int
    why: tuple[str, ...]


def host_size(size: Size) -> str:
    """A size as Python over the sizes ``n`` by name."""
    return WORD.sub(lambda name: f'n["{name[0]}"]', size_text(size))


class Kernel:
    """The text of one kernel."""

    def __init__(self, spec: Spec, program: Program, launch: Launch) -> None:
        self.spec = spec
        self.program = program
        self.launch = launch
        self.states = [s for s in spec.states if s.direction != "value"]
        self.parameters: list[str] = []
        self.call: list[str] = []
        self.before: list[str] = []
        self.chunk: list[str] = []
        self.after: list[str] = []
        self._used = {*RESERVED, *triton_device.names(), *keyword.kwlist}
        self._dims = {dim: self._name(dim) for dim in self._dims_used()}
        self._blocks: dict[str, str] = {}
        self._index = self._indices()
        by_name = {a.ascii: a for a in spec.args}
        kinds = ("input", "param", "buffer")
        self._args = [by_name[name] for kind in kinds for name in program.loads(kind)]
        self._strides = {arg.ascii: self._array(arg) for arg in self._args}
        self._begun = {s.ascii: self._state(s, "begun") for s in self.states}
        self._ended = {s.ascii: self._state(s, "ended") for s in self.states}
        self._pointers = {o.ascii: self._output(o) for o in spec.outputs}
        self._scalars()
        self._formats = Formats(program, self._index, self._length)
        self._variables = Variables(program, self._used)
        self._texts: dict[int, Text] = {}
        self._assigned: dict[str, Text] = {}
        self._line = 0
        self._write()

    @property
    def doc(self) -> str:
        """One sentence for the kernel's docstring."""
        outs = ", ".join(o.ascii for o in self.spec.outputs)
        return f"{outs} of every token and the last {', '.join(s.ascii for s in self.states)}."

    @property
    def grid(self) -> str:
        """Programs along the second axis of the grid."""
        split = self.launch.split
        if not split:
            return "1"
        return f"triton.cdiv({host_size(self.program.sizes[split])}, {self._block(split)})"

    # ---- what the kernel is given ----------------------------------------------------------------

    def _name(self, wish: str) -> str:
        """``wish``, with underscores behind it where it is taken."""
        name = unused(wish, self._used)
        self._used.add(name)
        return name

    def _dims_used(self) -> list[str]:
        body = self.program.body
        sizes = [self.program.sizes[a] for i in body for a in i.axes if a in self.program.sizes]
        sizes += [inst.value for inst in body if isinstance(inst.value, Size)]
        sizes += [size for s in self.states for size in s.shape]
        sizes += [size for o in self.spec.outputs for size in o.shape]
        return sorted({dim for size in sizes for dim in size.dims})

    def _length(self, size: Size) -> str:
        """A size as an operand in the kernel."""
        text = WORD.sub(lambda name: self._dims[name[0]], size_text(size))
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _indices(self) -> dict[str, Index]:
        """An index for every axis: equal sizes share one, the axis that is split has its own."""
        found = {axis: Index("t", "live", "BT") for axis in ("t", "s")}
        shared: dict[object, Index] = {}
        for axis in dict.fromkeys(a for inst in self.program.body for a in inst.axes):
            if axis in found:
                continue
            size, cut = self.program.sizes[axis], axis == self.launch.split
            key = axis if cut else size
            if key not in shared:
                label = re.sub(r"\W", "", size_text(size))
                index = Index(*(self._name(f"{stem}{label}") for stem in ("at_", "in_", "B")))
                shared[key] = index
                self._blocks[index.block] = self._block(axis)
                first = f"tl.program_id(1) * {index.block} + " if cut else ""
                self.before.append(f"{index.at} = {first}tl.arange(0, {index.block})")
                self.before.append(f"{index.inside} = {index.at} < {self._length(size)}")
            found[axis] = shared[key]
        return found

    def _block(self, axis: str) -> str:
        """The entries of a tile along an axis, for the launch."""
        size = self.program.sizes[axis]
        whole = host_size(size)
        if axis == self.launch.split:
            whole = f"min({whole}, {self.launch.block})"
        return f'block("{size}", {whole})'

    def _array(self, arg: Arg) -> dict[str, str]:
        """Declares an argument, moved to a program's head and row: its pointer under "" and the
        strides of its axes.
        """
        name, first = arg.ascii, lead(arg)
        pointer = self._name(f"{name}_ptr")
        letters = {"B": "b", "T": "t", "H": "h", "G": "h"}
        strides = [self._name(f"{name}_{letters[a]}") for a in first]
        strides += [self._name(f"{name}_{n}") for n in range(len(arg.shape))]
        self.parameters.append(", ".join([pointer, *strides]))
        self.call.append(f'x["{name}"], *x["{name}"].stride()')
        start = {"B": "batch", "H": "head", "G": "(head // (H // G))"}
        moves = [f"{start[a]} * {stride}" for a, stride in zip(first, strides) if a in start]
        if moves:
            self.before.append(f"{pointer} += {' + '.join(moves)}")
        found = {"": pointer}
        if "T" in first:
            found["t"] = strides[1]
        axes = iter(Naming(self.spec).axes(arg.shape))
        for size, stride in zip(arg.shape, strides[len(first) :]):
            if size != ONE:
                found[next(axes)] = stride
        return found

    def _state(self, state: State, when: str) -> str:
        """Declares the array of a state before or after all tokens; its pointer."""
        pointer = self._name(f"{state.ascii}_{when}")
        self.parameters.append(pointer)
        held = "(begun or ended)" if when == "begun" else "ended"
        self.call.append(f'{held}["{state.ascii}"]')
        self.before.append(
            f"{pointer} += {' * '.join(['sequence', *map(self._length, state.shape)])}"
        )
        return pointer

    def _output(self, output: Output) -> str:
        """Declares the array of an output; its pointer."""
        pointer = self._name(f"{output.ascii}_ptr")
        self.parameters.append(pointer)
        self.call.append(f'y["{output.ascii}"]')
        first = ["(batch * T * H + head)", *map(self._length, output.shape)]
        self.before.append(f"{pointer} += {' * '.join(first)}")
        return pointer

    def _scalars(self) -> None:
        grouped = any(arg.per == "group" for arg in self._args)
        sizes = ["T", "H", *(["G"] if grouped else [])]
        self.parameters.append(", ".join(sizes))
        self.call.append(", ".join(f'n["{size}"]' for size in sizes))
        constants = {name: f'n["{dim}"]' for dim, name in self._dims.items()}
        constants |= {"CHUNK": "chunk", "BT": 'block("chunk", chunk)'}
        constants |= self._blocks
        constants |= {"STARTED": "begun is not None", "FLOAT": "FLOAT", "PRECISION": "PRECISION"}
        self.parameters += [f"{name}: tl.constexpr" for name in constants]
        self.call += [f"{name}={value}" for name, value in constants.items()]

    # ---- its lines -------------------------------------------------------------------------------

    def _write(self) -> None:
        outs, carried = self.program.outs, self.program.loads("state")
        for name, n in carried.items():
            self._begin(n, self._begun[name])
        for n in range(len(self.program.body)):
            if n not in self._texts:
                self._value(n, self.before if n in self._fixed else self.chunk)
        for name, pointer in self._pointers.items():
            self._store(self.chunk, pointer, outs[name])
        moves = {
            self._variables[n]: self._texts[outs[f"state:{name}"]].code
            for name, n in carried.items()
        }
        moves = {old: new for old, new in moves.items() if old != new}
        if moves:
            self.chunk.append(f"{', '.join(moves)} = {', '.join(moves.values())}")
        for name, pointer in self._ended.items():
            self._store(self.after, pointer, carried.get(name, outs[f"state:{name}"]))

    @cached_property
    def _fixed(self) -> frozenset[int]:
        """Values that neither a token enters nor where the last one stands: before the loop."""
        found: set[int] = set()
        for n, inst in enumerate(self.program.body):
            token = inst.op == "load" and inst.value[0] in VARYING
            last = inst.op == "within" and {"t", "s"} & set(inst.value[0])
            if not token and not last and found.issuperset(inst.ins):
                found.add(n)
        return frozenset(found)

    @cached_property
    def _uses(self) -> list[int]:
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
        if inst.op == "load":
            text = self._load(inst)
        else:
            text = self._formats.text(inst, [self._texts[i] for i in inst.ins])
        once = self._uses[n] < 2 and inst.op in INLINED and len(text.code) < SHORT
        if text.number or once or text.code.isidentifier():
            self._texts[n] = text
        elif text.code in self._assigned:
            self._texts[n] = self._assigned[text.code]
        else:
            self._comment(inst, lines)
            lines.append(f"{self._variables[n]} = {text.code}")
            self._texts[n] = self._assigned[text.code] = Text(self._variables[n])

    def _comment(self, inst: Inst, lines: list[str]) -> None:
        """The line of the spec where a new one begins."""
        source = self.spec.file.source.text.splitlines()
        if inst.op in ("load", "expand", "rename") or not 0 < inst.line <= len(source):
            return
        said = source[inst.line - 1].split("##")[0].strip()
        if inst.line != self._line and not said.startswith("const "):
            self._line = inst.line
            lines.append(f"# {said}")

    def _load(self, inst: Inst) -> Text:
        kind, name = inst.value
        if kind == "index":
            return Text(f"tl.zeros([], FLOAT) + {name}", SUM)
        strides = self._strides[name]
        place, inside = self._place(strides[""], strides, inst.axes)
        return Text(f"tl.load({place}{inside and f'{inside}, 0.0'}).to(FLOAT)")

    def _place(self, pointer: str, strides: Mapping[str, str], axes: Axes) -> tuple[str, str]:
        """Where a tile stands in memory, and the mask of its entries as a further argument."""
        if not axes:
            return pointer, ""
        offset = self._formats.offset(strides, axes, {"t": "token"})
        return f"{pointer} + {offset}", f", {self._formats.inside(axes, axes).code}"

    def _standard(self, axes: Axes) -> dict[str, str]:
        """Strides of a contiguous state, or of an output, whose heads stand between tokens."""
        strides, rest = {}, ""
        for axis in reversed([a for a in axes if a != "t"]):
            strides[axis] = rest or "1"
            length = self._length(self.program.sizes[axis])
            rest = f"{length} * {rest}" if rest else length
        return {**strides, "t": f"H * {rest}" if rest else "H"}

    def _begin(self, n: int, pointer: str) -> None:
        """The state before the first chunk."""
        axes, name = self.program.body[n].axes, self._variables[n]
        place, inside = self._place(pointer, self._standard(axes), axes)
        self.before.append(f"{name} = tl.zeros({self._formats.shape(axes)}, FLOAT)")
        self.before.append("if STARTED:")
        self.before.append(f"    {name} = tl.load({place}{inside and f'{inside}, 0.0'})")
        self._texts[n] = Text(name)

    def _store(self, lines: list[str], pointer: str, n: int) -> None:
        """What every block of a split computes alike is stored by the first."""
        axes = self.program.body[n].axes
        place, inside = self._place(pointer, self._standard(axes), axes)
        line = f"tl.store({place}, {self._texts[n].code}{inside})"
        if self.launch.split and self.launch.split not in axes:
            lines.append("if tl.program_id(1) == 0:")
            line = f"    {line}"
        lines.append(line)
