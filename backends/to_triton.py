"""Derived tile programs in, one stand-alone file of torch and Triton out: the forward of one pass.

The kernel is *fused*: a program holds the state of one sequence, head and block of columns on the
chip and goes through the chunks in order. Its body is the tile program, a line or so a value.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from functools import cached_property

from lacc import __version__
from lacc.backends import paste
from lacc.backends.base import Variables, environment
from lacc.backends.numpy_text import ATOM, Text, size_text
from lacc.backends.triton_text import ELEMENTWISE, Formats, Index, obstacle
from lacc.spec.model import Arg, Spec
from lacc.spec.shapes import ONE, Size
from lacc.tile.derive import Derived
from lacc.tile.lower import Naming
from lacc.tile.pad import fill_padding
from lacc.tile.program import Axes, Inst, Program
from lacc.tile.split import VARYING

DEVICE, HOST = "lacc.runtime.triton_kernels", "lacc.runtime.tensors"
RESERVED = (
    *("tl", "torch", "triton", "kernel", "launch", "T", "H", "G", "CHUNK", "BT"),
    *("FLOAT", "PRECISION", "STARTED", "sequence", "batch", "head", "group", "t", "start", "token"),
    "live",
)
CHUNK, BLOCK, WARPS = 32, 64, 8
SHORT = 60
"""Characters up to which a value that is used once is written where it is used."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is laid over the device; ``split`` is the axis of which a program holds
    ``block`` entries ("" where it holds all), ``why`` gives the reasons."""

    chunk: int
    split: str
    block: int
    warps: int
    why: tuple[str, ...]


def lacks(spec: Spec, derived: Derived) -> str:
    """Why there is no Triton forward of a spec, "" where there is."""
    if len(derived.passes) != 1:
        return f"it takes {len(derived.passes)} passes over time, and one is lowered so far"
    if derived.passes[0].stage.direction == "backward":
        return "it runs backward in time, which is not lowered yet"
    for arg in spec.args:
        if arg.default is not None or arg.draw is not None:
            return f"{arg.ascii} may be omitted, which is not lowered yet"
        if arg.per == "position":
            return f"{arg.ascii} is a table by position, which is not lowered yet"
    if derived.counts:
        return "it counts tokens, which is not lowered yet"
    if derived.delays:
        return f"it reads {next(iter(derived.delays))} with a delay, which is not lowered yet"
    if derived.initial is not None:
        return "a state that does not start at 0 is not lowered yet"
    for value in (*spec.states, *spec.outputs):
        if value.per != "head":
            return f"{value.ascii} is per {value.per}, which is not lowered yet"
    return obstacle(derived.passes[0].forward)


def to_triton(spec: Spec, derived: Derived, chunk: int | None = None) -> str:
    """The text of the module with ``NAME(...)``; `lacks` must have nothing to say."""
    program = fill_padding(derived.passes[0].forward)
    launch = plan(program, chunk)
    kernel = _Kernel(spec, program, launch)
    body = "\n".join([*kernel.before, *kernel.chunk, *kernel.after])
    public = spec.ascii
    while public in {*RESERVED, *paste.names(DEVICE), *paste.names(HOST)} or keyword.iskeyword(public):
        public += "_"
    return environment().get_template("triton.py.j2").render(
        spec=spec,
        version=__version__,
        launch=launch,
        public=public,
        k=kernel,
        device=paste.chosen(DEVICE, re.findall(r"\w+", body)),
        host=paste.body(HOST),
        arguments=[_argument(a) for role in ("input", "param", "buffer") for a in spec.args if a.role == role],
        pinned={d.name: d.default for d in spec.dims.values() if d.pinned},
        defaults={"H": 1, "G": 1, **{d.name: d.default for d in spec.dims.values() if d.size == Size.of(d.name)}},
        states={s.ascii: _shape("B H", s.shape) for s in spec.states if s.direction != "value"},
        outputs={o.ascii: _shape("B T H", o.shape) for o in spec.outputs},
    )


def plan(program: Program, chunk: int | None = None) -> Launch:
    """The layout of the fused kernel, with its reasons."""
    split = free_axis(program)
    why = ["fused: the state stays on the chip, inputs and outputs are touched once"]
    if split:
        why.append(f"blocks of {BLOCK} of {split}, which nothing sums over: more programs, smaller states")
    else:
        why.append("a program holds the whole state, since every axis of it is summed over")
    why.append(f"{chunk or CHUNK} tokens a chunk" + ("" if chunk else ": tiles of 64 spill registers"))
    return Launch(chunk or CHUNK, split, BLOCK, WARPS, tuple(why))


def free_axis(program: Program) -> str:
    """An axis of a carried state that may be cut into blocks, as each column of it is computed alone;
    "" where there is none."""
    bound: set[str] = set()
    for inst in program.body:
        operands = [a for i in inst.ins for a in program.body[i].axes]
        match inst.op:
            case "contract" | "sum" | "largest" | "smallest":
                bound.update(inst.value)
            case "gram":
                bound.update(operands)
            case "rename":
                bound.update(a for pair in inst.value for a in pair)
            case "eye":
                bound.update(inst.axes)
    states = [program.body[n].axes for name, n in program.outs.items() if name.startswith("state:")]
    return next((a for axes in states if len(axes) == 2 for a in reversed(axes) if a not in bound), "")


def _host(size: Size) -> str:
    """A size as Python over the sizes ``n`` by name."""
    return re.sub(r"[^\W\d]\w*", lambda name: f'n["{name[0]}"]', size_text(size))


def _shape(lead: str, shape: tuple[Size, ...]) -> str:
    return f"({', '.join([*(f'n[{name!r}]'.replace(chr(39), chr(34)) for name in lead.split()), *map(_host, shape)])})"


def _lead(arg: Arg) -> tuple[str, ...]:
    """Names of an argument's leading axes."""
    level = {"head": ("H",), "group": ("G",), "layer": ()}[arg.per]
    return ("B", "T", *level) if arg.role == "input" else level


def _argument(arg: Arg) -> dict[str, str]:
    axes = [f'"{a}"' for a in _lead(arg)]
    for size in arg.shape:
        plain = size_text(size)
        axes.append(f'"{plain}"' if plain.isidentifier() else plain if plain.isdigit() else f"lambda n: {_host(size)}")
    return {
        "name": arg.ascii,
        "role": arg.role,
        "axes": f"[{', '.join([*_lead(arg), *map(str, arg.shape)])}]",
        "doc": arg.doc,
        "shape": f"({', '.join(axes)}{',' if len(axes) == 1 else ''})",
    }


class _Names:
    """Identifiers, each given once."""

    def __init__(self, taken: set[str]) -> None:
        self.used = taken

    def take(self, wish: str) -> str:
        """``wish``, with underscores behind it where it is taken."""
        while wish in self.used or keyword.iskeyword(wish):
            wish += "_"
        self.used.add(wish)
        return wish


class _Kernel:
    """The kernel's text: parameters, lines before, in and after the loop over chunks, and its launch."""

    def __init__(self, spec: Spec, program: Program, launch: Launch) -> None:
        self.spec = spec
        self.program = program
        self.launch = launch
        self.naming = Naming(spec)
        self.states = [s for s in spec.states if s.direction != "value"]
        self.parameters: list[str] = []
        self.call: list[str] = []
        self.before: list[str] = []
        self.chunk: list[str] = []
        self.after: list[str] = []
        self.names = _Names({*RESERVED, *paste.names(DEVICE)})
        self.dims = {d: self.names.take(d) for d in sorted({d for size in self._sizes() for d in size.dims})}
        self.index = {"t": Index("t", "live", "BT"), "s": Index("t", "live", "BT")}
        self.blocks: dict[str, str] = {}
        self._axes()
        self.strides = {name: self._array(spec_arg) for name, spec_arg in self._loaded().items()}
        self.pointers = {name: self._pointer(name) for name in self._written()}
        self._scalars()
        self.formats = Formats(program, self.index, self._length)
        self.vars = Variables(program, self.names.used)
        self.texts: dict[int, Text] = {}
        self.assigned: dict[str, str] = {}
        self.line = 0
        self._write()

    @property
    def doc(self) -> str:
        """One sentence for the kernel's docstring."""
        outs = ", ".join(o.ascii for o in self.spec.outputs)
        return f"{outs} of every token and the last {', '.join(s.ascii for s in self.states)}."

    @property
    def grid(self) -> str:
        """Programs along the second axis of the grid."""
        if not self.launch.split:
            return "1"
        size = _host(self.program.sizes[self.launch.split])
        return f"triton.cdiv({size}, {self._block(self.launch.split)})"

    # ---- what the kernel is given ----------------------------------------------------------------

    def _sizes(self) -> list[Size]:
        used = {a for inst in self.program.body for a in inst.axes}
        sizes = [size for axis, size in self.program.sizes.items() if axis in used]
        sizes += [inst.value for inst in self.program.body if inst.op == "size"]
        return [*sizes, *(size for s in (*self.states, *self.spec.outputs) for size in s.shape)]

    def _length(self, size: Size) -> str:
        """A size as an operand in the kernel."""
        text = re.sub(r"[^\W\d]\w*", lambda name: self.dims[name[0]], size_text(size))
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _axes(self) -> None:
        """An index for every axis: equal sizes share one, the axis that is split has its own."""
        shared: dict[object, Index] = {}
        for axis in dict.fromkeys(a for inst in self.program.body for a in inst.axes):
            if axis in self.index:
                continue
            size = self.program.sizes[axis]
            cut = axis == self.launch.split
            key = axis if cut else size
            if key not in shared:
                label = re.sub(r"\W", "", size_text(size))
                index = Index(*(self.names.take(f"{stem}{label}") for stem in ("at_", "in_", "B")))
                shared[key] = index
                self.blocks[index.block] = self._block(axis)
                first = f"tl.program_id(1) * {index.block} + " if cut else ""
                self.before.append(f"{index.at} = {first}tl.arange(0, {index.block})")
                self.before.append(f"{index.inside} = {index.at} < {self._length(size)}")
            self.index[axis] = shared[key]

    def _block(self, axis: str) -> str:
        """The entries of a tile along an axis, for the launch."""
        size = self.program.sizes[axis]
        whole = _host(size)
        if axis == self.launch.split:
            return f'block("{axis}", min({whole}, {self.launch.block}))'
        return f'block("{size}", {whole})'

    def _loaded(self) -> dict[str, Arg]:
        by_name = {a.ascii: a for a in self.spec.args}
        kinds = ("input", "param", "buffer")
        return {name: by_name[name] for kind in kinds for name in self.program.loads(kind)}

    def _array(self, arg: Arg) -> dict[str, str]:
        """Declares an argument's pointer and strides; where it starts for a program's head and row."""
        name, lead = arg.ascii, _lead(arg)
        pointer = self.names.take(f"{name}_ptr")
        letters = {"B": "b", "T": "t", "H": "h", "G": "h"}
        strides = [self.names.take(f"{name}_{letters[a]}") for a in lead]
        strides += [self.names.take(f"{name}_{n}") for n in range(len(arg.shape))]
        self.parameters.append(", ".join([pointer, *strides]))
        self.call.append(f'x["{name}"], *x["{name}"].stride()')
        start = {"B": "batch", "H": "head", "G": "(head // (H // G))"}
        moves = [f"{start[a]} * {stride}" for a, stride in zip(lead, strides) if a in start]
        if moves:
            self.before.append(f"{pointer} += {' + '.join(moves)}")
        named = dict(zip(lead, strides))
        axes = iter(self.naming.axes(arg.shape))
        found = {next(axes): stride for size, stride in zip(arg.shape, strides[len(lead) :]) if size != ONE}
        return {"": pointer, **({"t": named["T"]} if "T" in named else {}), **found}

    def _written(self) -> list[str]:
        """Names of pointers to whole arrays in standard layout: states before and after, outputs."""
        states = [f"{s.ascii}:{when}" for s in self.states for when in ("begun", "ended")]
        return [*states, *(o.ascii for o in self.spec.outputs)]

    def _pointer(self, key: str) -> str:
        name, _, when = key.partition(":")
        pointer = self.names.take(f"{name}_{when}" if when else f"{name}_ptr")
        self.parameters.append(pointer)
        shape = next(v.shape for v in (*self.states, *self.spec.outputs) if v.ascii == name)
        size = " * ".join(["", *(self._length(s) for s in shape)])
        if when:
            self.before.append(f"{pointer} += sequence{size}")
            self.call.append(f'(begun or ended)["{name}"]' if when == "begun" else f'ended["{name}"]')
        else:
            self.before.append(f"{pointer} += (batch * T * H + head){size}")
            self.call.append(f'y["{name}"]')
        return pointer

    def _scalars(self) -> None:
        grouped = any(arg.per == "group" for arg in self._loaded().values())
        sizes = ["T", "H", *(["G"] if grouped else [])]
        self.parameters.append(", ".join(sizes))
        self.call.append(", ".join(f'n["{size}"]' for size in sizes))
        constants = {name: f'n["{dim}"]' for dim, name in self.dims.items()}
        constants |= {"CHUNK": "chunk", "BT": 'max(16, triton.next_power_of_2(chunk))', **self.blocks}
        constants |= {"STARTED": "begun is not None", "FLOAT": "FLOAT", "PRECISION": "PRECISION"}
        self.parameters += [f"{name}: tl.constexpr" for name in constants]
        self.call += [f"{name}={value}" for name, value in constants.items()]

    # ---- its lines -------------------------------------------------------------------------------

    def _write(self) -> None:
        body, outs = self.program.body, self.program.outs
        carried = self.program.loads("state")
        for state in self.states:
            if state.ascii in carried:
                self._begin(carried[state.ascii], state.ascii)
        for n, inst in enumerate(body):
            if inst.op == "load" and inst.value[0] == "state":
                continue
            self._value(n, self.before if n in self._fixed else self.chunk)
        for out in self.spec.outputs:
            if out.ascii in outs:
                self._store(self.chunk, self.pointers[out.ascii], outs[out.ascii])
        moves = [(self.vars[n], self.texts[outs[f"state:{name}"]].code) for name, n in carried.items()]
        moves = [(old, new) for old, new in moves if old != new]
        if moves:
            self.chunk.append(f"{', '.join(m[0] for m in moves)} = {', '.join(m[1] for m in moves)}")
        for state in self.states:
            n = carried.get(state.ascii, outs[f"state:{state.ascii}"])
            self._store(self.after, self.pointers[f"{state.ascii}:ended"], n)

    @cached_property
    def _fixed(self) -> frozenset[int]:
        """Values that no token enters, nor where the last one stands: before the loop."""
        found: set[int] = set()
        for n, inst in enumerate(self.program.body):
            token = inst.op == "load" and inst.value[0] in VARYING
            masked = inst.op == "within" and set(inst.value[0]) & {"t", "s"}
            if not token and not masked and all(i in found for i in inst.ins):
                found.add(n)
        return frozenset(found)

    @cached_property
    def _uses(self) -> list[int]:
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
        text = self._load(inst) if inst.op == "load" else self.formats.text(inst, [self.texts[i] for i in inst.ins])
        simple = inst.op in ELEMENTWISE or inst.op in ("rename", "within", "expand", "mask", "contract", "sum")
        once = self._uses[n] < 2 and simple and len(text.code) < SHORT
        if text.number or once or text.code.isidentifier():
            self.texts[n] = text
            return
        if text.code in self.assigned:
            self.texts[n] = Text(self.assigned[text.code])
            return
        if inst.line and inst.line != self.line and inst.op not in ("load", "expand", "rename"):
            self.line = inst.line
            source = self.spec.file.source.text.splitlines()
            if inst.line <= len(source):
                lines.append(f"# {source[inst.line - 1].split('##')[0].strip()}")
        name = self.vars[n]
        lines.append(f"{name} = {text.code}")
        self.assigned[text.code] = name
        self.texts[n] = Text(name)

    def _load(self, inst: Inst) -> Text:
        kind, name = inst.value
        if kind == "index":
            return Text(f"tl.zeros([], FLOAT) + {name}", 3)
        strides = self.strides[name]
        if not inst.axes:
            return Text(f"tl.load({strides['']}).to(FLOAT)", ATOM)
        inside = self.formats.inside(inst.axes, inst.axes).code
        offset = self.formats.offset(strides, inst.axes, {"t": "token"})
        return Text(f"tl.load({strides['']} + {offset}, {inside}, 0.0).to(FLOAT)", ATOM)

    def _standard(self, axes: Axes) -> dict[str, str]:
        """Strides of a state, or of an output whose heads stand between tokens."""
        strides, after = {}, ""
        for axis in reversed([a for a in axes if a != "t"]):
            strides[axis] = after or "1"
            length = self._length(self.program.sizes[axis])
            after = f"{length} * {after}" if after else length
        return {**strides, "t": f"H * {after}" if after else "H"}

    def _begin(self, n: int, name: str) -> None:
        axes, var = self.program.body[n].axes, self.vars[n]
        zeros = self.formats.shape(axes)
        pointer, inside = self.pointers[f"{name}:begun"], self.formats.inside(axes, axes).code
        offset = self.formats.offset(self._standard(axes), axes, {})
        self.before.append(f"{var} = tl.zeros({zeros}, FLOAT)")
        self.before.append("if STARTED:")
        self.before.append(f"    {var} = tl.load({pointer} + {offset}, {inside}, 0.0)" if axes else f"    {var} = tl.load({pointer})")
        self.texts[n] = Text(var)

    def _store(self, lines: list[str], pointer: str, n: int) -> None:
        axes = self.program.body[n].axes
        where = self.formats.offset(self._standard(axes), axes, {"t": "token"})
        place = f"{pointer} + {where}" if axes else pointer
        mask = f", {self.formats.inside(axes, axes).code}" if axes else ""
        line = f"tl.store({place}, {self.texts[n].code}{mask})"
        if self.launch.split and self.launch.split not in axes:
            lines.append("if tl.program_id(1) == 0:")
            line = f"    {line}"
        lines.append(line)
