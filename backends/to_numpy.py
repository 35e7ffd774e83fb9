"""Derived tile programs and a plan in, one stand-alone NumPy file out.

Its first part is the spec's own: for each pass what is prepared once, and the chunk functions
forward and backward, each in the phases of `lacc.tile.split`. Below stand the kernels that these
use and the runtime, pasted from the modules that define them.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass, replace
from pprint import pformat

from lacc import __version__
from lacc.backends import paste
from lacc.backends.base import Variables, environment
from lacc.backends.numpy_text import ATOM, ELEMENTWISE, Formats, Text, size_text
from lacc.plan.plan import Plan
from lacc.runtime.contract import Signature
from lacc.spec.model import Spec
from lacc.spec.shapes import Size
from lacc.tile.derive import Derived, Pass, Token
from lacc.tile.program import Inst, Program
from lacc.tile.rewrite import free_carry_of_solves, meet_once
from lacc.tile.split import FIXED, phases

CONTRACT, BLOCKS = "lacc.runtime.contract", "lacc.runtime.blocks"
PLAN = "lacc.plan.plan"
KERNELS, SCALARS, SAMPLERS = "lacc.tile.kernels", "lacc.ir.scalars", "lacc.library.samplers"
RESERVED = (
    "np",
    "inputs",
    "states",
    "constants",
    "starts",
    "fixed",
    "last",
    "cotangents",
    "dstates",
    "dims",
    "dtype",
    "C",
    "n",
    "c",
)
WIDTH = 96
INITIAL = "States before the first token, where they are not 0."
INITIAL_PULL = "The cotangents of params from those of the states before the first token."
PROMISED = "Where each promise of the spec holds."


@dataclass(frozen=True, slots=True)
class Function:
    """A generated function: signature, docstring and lines of its body."""

    head: str
    doc: str
    lines: tuple[str, ...]


def to_numpy(
    spec: Spec, derived: Derived, plan: Plan, signature: Signature, reserved: int = 0
) -> str:
    """The text of the module: ``NAME(...)``, ``NAME_step(...)``, ``NAME_vjp(...)``."""
    functions: list[Function] = []
    passes = []
    for n, stage in enumerate(derived.passes):
        emitted = _Pass(spec, stage, str(n), reverse=stage.stage.direction == "backward")
        functions += emitted.functions()
        passes.append(emitted.entry())
    token = None
    if derived.token is not None:
        emitted = _Pass(spec, derived.token, "token", token=True)
        functions += emitted.functions()
        token = emitted.entry()
    if derived.initial is not None:
        functions.append(
            _plain(spec, derived.initial.forward, "initial(fixed, dims, dtype)", INITIAL)
        )
        head = "initial_pull(fixed, dstates, dims, dtype)"
        functions.append(_plain(spec, derived.initial.backward, head, INITIAL_PULL))
    if derived.promises is not None:
        functions.append(
            _plain(spec, derived.promises, "promised(x, fixed, C, dims, dtype)", PROMISED)
        )
    body = "\n".join(line for f in functions for line in (f.head, *f.lines))
    public = signature.name
    while public in _taken():
        public += "_"
    template = environment().get_template("numpy.py.j2")
    return template.render(
        spec=spec,
        version=__version__,
        plan=plan,
        plan_text=_pretty(replace(plan, why=())),
        public=public,
        signature=_pretty(signature),
        arguments=_arguments(spec),
        functions=functions,
        passes=passes,
        token=token,
        initial=derived.initial is not None,
        promises=derived.promises is not None,
        promised=list(derived.promised),
        params=[a.ascii for a in spec.args if a.role != "input" and a.per != "position"],
        delays=derived.delays,
        outputs={o.ascii: _shape(o.shape) for o in spec.outputs},
        states={s.ascii: _shape(s.shape) for s in spec.states if s.direction != "value"},
        counts=derived.counts,
        draws=sorted({a.draw for a in spec.args if a.draw}),
        imports=paste.imports(CONTRACT, BLOCKS, PLAN, KERNELS, SCALARS),
        kernels=paste.chosen(KERNELS, _words(body)),
        scalars=paste.chosen(SCALARS, _words(body)),
        samplers=paste.chosen(SAMPLERS, [a.draw for a in spec.args if a.draw]),
        planning=paste.body(PLAN),
        blocks=paste.body(BLOCKS),
        contract=paste.body(CONTRACT),
    )


def _taken() -> set[str]:
    return set().union(*map(paste.names, (CONTRACT, BLOCKS, PLAN, KERNELS, SCALARS, SAMPLERS)))


def _words(text: str) -> set[str]:
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return set("".join(c if c.isalnum() or c == "_" else " " for c in code).split())


def _shape(shape: tuple[Size, ...]) -> str:
    sizes = [_by_dims(size) for size in shape]
    return f"lambda dims: ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _by_dims(size: Size) -> str:
    constant = size.constant
    if constant is not None:
        return str(constant)
    text = size_text(size)
    for name in sorted(size.dims, key=len, reverse=True):
        text = " ".join(
            word.replace(name, f'dims["{name}"]') if word.strip("()") == name else word
            for word in text.split(" ")
        )
    return text


def _pretty(signature: Signature | Plan) -> str:
    return pformat(signature, width=WIDTH, sort_dicts=False)


def _arguments(spec: Spec) -> list[dict[str, object]]:
    lead = {
        ("input", "head"): "B, T, H",
        ("input", "group"): "B, T, G",
        ("input", "layer"): "B, T",
        ("param", "head"): "H",
        ("param", "group"): "G",
        ("param", "position"): "P",
    }
    found: list[dict[str, object]] = []
    for role in ("input", "param", "buffer"):
        for a in spec.args:
            if a.role == role:
                first = lead.get((role if role == "input" else "param", a.per), "")
                axes = ", ".join(part for part in (first, *map(str, a.shape)) if part)
                omitted = a.default is not None or a.draw is not None
                found.append(
                    {
                        "name": a.ascii,
                        "axes": f"[{axes}]",
                        "doc": a.doc,
                        "role": role,
                        "omitted": omitted,
                    }
                )
    return found


class _Writer:
    """Writes the values of one program as lines of Python."""

    def __init__(
        self, spec: Spec, program: Program, names: Variables, lengths: dict[str, str], lead: int
    ) -> None:
        self.spec = spec
        self.program = program
        self.names = names
        self.formats = Formats(lengths, "dtype")
        self.lead = lead
        self.uses = [0] * len(program.body)
        for inst in program.body:
            for i in inst.ins:
                self.uses[i] += 1
        for n in program.outs.values():
            self.uses[n] += 2
        self.texts: dict[int, Text] = {}
        self.line = 0

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
            inst = self.program.body[n]
            text = self.text(inst)
            alias = text.code.isidentifier() and n in aliased
            if (n not in crossing or alias) and self._inlined(n, inst, text):
                self.texts[n] = text
                continue
            if comments and inst.line and inst.line != self.line and not self._is_cheap(inst):
                self.line = inst.line
                source = self.spec.file.source.text.splitlines()
                if inst.line <= len(source):
                    found.append(f"# {source[inst.line - 1].split('##')[0].strip()}")
            found.append(f"{self.names[n]} = {text.code}")
            self.texts[n] = Text(self.names[n])
        return found

    def _is_cheap(self, inst: Inst) -> bool:
        return inst.op in ("load", "expand", "rename")

    def _inlined(self, n: int, inst: Inst, text: Text) -> bool:
        if text.number:
            return True
        if inst.op in ("rename", "stop_gradient"):
            return self.uses[n] < 2 or text.code.isidentifier()
        if inst.op == "expand":
            return self.uses[n] < 2
        simple = inst.op in ELEMENTWISE or inst.op in ("contract", "mask", "sum", "row")
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
        f = self.formats
        if inst.op in ELEMENTWISE:
            return f.elementwise(inst, ins, axes)
        match inst.op:
            case "contract":
                return f.contract(inst, ins, axes)
            case "sum":
                return f.reduce("sum")(inst, ins, axes)
            case "largest":
                return f.reduce("max")(inst, ins, axes)
            case "smallest":
                return f.reduce("min")(inst, ins, axes)
            case "expand":
                return f.expand(inst, ins, axes)
            case "rename":
                return f.rename(inst, ins, axes)
        return f.other(inst, ins, axes)


def _dim_lines(program: Program, code: list[str]) -> list[str]:
    """Names of dims that lines use, read from ``dims``."""
    used = _words("\n".join(code))
    found = sorted({d for size in program.sizes.values() for d in size.dims} & used)
    if not found:
        return []
    got = ", ".join(f'dims["{d}"]' for d in found)
    return [f"{', '.join(found)} = {got}"]


def _lengths(program: Program) -> dict[str, str]:
    return {"t": "C", "s": "C", **{axis: size_text(size) for axis, size in program.sizes.items()}}


def _unpack(names: list[str], source: str) -> list[str]:
    if not names:
        return []
    return [f"({', '.join(names)}{',' if len(names) == 1 else ''}) = {source}"]


def _pack(values: list[str]) -> str:
    return f"({', '.join(values)}{',' if len(values) == 1 else ''})"


class _Pass:
    """The functions of one pass over time (or of one token)."""

    def __init__(
        self,
        spec: Spec,
        stage: Pass | Token,
        number: str,
        *,
        reverse: bool = False,
        token: bool = False,
    ) -> None:
        self.spec = spec
        self.token = token
        self.number = number
        self.reverse = reverse
        self.forward = meet_once(free_carry_of_solves(stage.forward, "state"))
        self.backward = meet_once(free_carry_of_solves(stage.backward, "dstate"))
        both = (self.forward, self.backward)

        def loaded(*kinds: str) -> list[str]:
            return list(dict.fromkeys(n for p in both for kind in kinds for n in p.loads(kind)))

        self.inputs = [*loaded("input", "stored")]
        index = loaded("index")
        self.inputs += [n for n in index if n == "t"]
        self.fixed = [*loaded("param", "buffer"), *(n for n in index if n != "t")]
        self.last = loaded("last")
        self.states = [
            n.removeprefix("state:") for n in self.forward.outs if n.startswith("state:")
        ]
        self.outputs = [
            n.removeprefix("stored:") for n in self.forward.outs if not n.startswith("state:")
        ]

    def entry(self) -> dict[str, object]:
        """What the table of passes says of it."""
        return {
            "reverse": self.reverse,
            "number": self.number,
            "inputs": self.inputs,
            "fixed": self.fixed,
            "last": self.last,
            "states": self.states,
            "outputs": self.outputs,
        }

    def functions(self) -> list[Function]:
        """prepare, forward and backward."""
        forward = _Body(self, self.forward, "state")
        backward = _Body(self, self.backward, "dstate")
        what = "one token" if self.token else "n chunks of C tokens"
        order = ", last to first" if self.reverse else ""
        return [
            Function(
                f"def prepare_{self.number}(C, dims, dtype, fixed, last):",
                f"What {'a token needs' if self.token else 'chunks need'} and no token changes.",
                tuple(self._prepare(forward, backward)),
            ),
            Function(
                f"def forward_{self.number}(inputs, states, constants, n, C, dims, dtype):",
                f"Outputs and next state of {what}{order}.",
                tuple(forward.lines(comments=True)),
            ),
            Function(
                f"def backward_{self.number}(inputs, starts, constants, cotangents, dstates, n, C, "
                "dims, dtype):",
                f"Cotangents of the inputs and states of forward_{self.number} from those it gives.",
                tuple(backward.lines(comments=False)),
            ),
        ]

    def _prepare(self, forward: _Body, backward: _Body) -> list[str]:
        lines, returned = [], []
        for body in (forward, backward):
            more, packed = body.prepared()
            lines += more
            returned.append(packed)
        local = forward.local
        head = _unpack([local["param", n] for n in self.fixed], "fixed")
        head += _unpack([local["last", n] for n in self.last], "last")
        dims = _dim_lines(self.forward, lines) + [
            line
            for line in _dim_lines(self.backward, lines)
            if line not in _dim_lines(self.forward, lines)
        ]
        return [
            *(head if lines or any(r != "()" for r in returned) else []),
            *dims,
            *lines,
            f"return {returned[0]}, {returned[1]}",
        ]


class _Body:
    """One direction of a pass: its lines by phase."""

    def __init__(self, owner: _Pass, program: Program, carried: str) -> None:
        self.owner = owner
        self.program = program
        self.carried = carried
        found, self.loops = phases(program, carried)
        self.phase = [min(p, 0) for p in found] if owner.token else list(found)
        self.last = 0 if owner.token else 2 * len(self.loops)
        self.local = _locals(owner, {d for s in program.sizes.values() for d in s.dims})
        self.names = Variables(program, self.local.used)
        for n, inst in enumerate(program.body):
            if inst.op == "load":
                self.names[n] = self._loaded(*inst.value)
        self.numbers = _numbers(program)
        used: dict[int, set[int]] = {n: set() for n in range(len(program.body))}
        for n, inst in enumerate(program.body):
            for i in inst.ins:
                used[i].add(self.phase[n])
        for name, n in program.outs.items():
            carry = name.startswith("state:") and not owner.token
            used[n].add(self._loop_of(name.removeprefix("state:")) if carry else self.last)
        self.crossing = frozenset(
            n for n, where in used.items() if where - {self.phase[n]} and n not in self.numbers
        )

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

    def _writer(self) -> _Writer:
        return _Writer(self.owner.spec, self.program, self.names, _lengths(self.program), 3)

    def prepared(self) -> tuple[list[str], str]:
        """Lines of the fixed phase and the tuple of what other phases use of it."""
        writer = self._writer()
        for n in self._of(FIXED) if self.carried == "dstate" else ():
            if self.program.body[n].op != "load" and n in self.crossing:
                writer.names[n] = f"{self.names[n]}_"
        lines = []
        for n in self._of(FIXED):
            if self.program.body[n].op == "load":
                writer.texts[n] = Text(self.names[n])
            else:
                lines += writer.lines([n], crossing=self.crossing)
        return lines, _pack([writer.texts[n].code for n in self._kept()])

    def _kept(self) -> list[int]:
        return [n for n in self._of(FIXED) if n in self.crossing]

    def lines(self, comments: bool) -> list[str]:
        """The body of the function."""
        writer = self._writer()
        owner = self.owner
        for n, inst in enumerate(self.program.body):
            if inst.op == "load" and self.phase[n] != FIXED:
                writer.texts[n] = Text(self.names[n])
            elif n in self.numbers:
                writer.lines([n])
        for n in self._kept():
            writer.texts[n] = Text(self.names[n])
        which = 0 if self.carried == "state" else 1
        local = self.local
        head = _unpack([local["input", n] for n in owner.inputs], "inputs")
        carried = [local[self.carried, n] for n in owner.states]
        if self.carried == "state":
            head += _unpack(carried, "states")
        else:
            head += _unpack([local["start", n] for n in owner.states], "starts")
            head += _unpack([local["cotangent", n] for n in owner.outputs], "cotangents")
            head += _unpack(carried, "dstates")
        head += _unpack([self.names[n] for n in self._kept()], f"constants[{which}]")
        if owner.token:
            head += [f"{name} = {name}[:, :, None]" for name in carried]
        body = self._section(writer, 0, comments)
        for number in range(self.last // 2):
            body += self._loop(writer, number, comments)
            body += self._section(writer, 2 * number + 2, comments)
        body.append(self._result(writer, carried))
        return [*head, *_dim_lines(self.program, body), *body]

    def _section(self, writer: _Writer, phase: int, comments: bool) -> list[str]:
        wanted = [n for n in self._of(phase) if self.program.body[n].op != "load"]
        return writer.lines(wanted, comments, self.crossing, frozenset(wanted))

    def _loop(self, writer: _Writer, number: int, comments: bool) -> list[str]:
        """The loop over the block's chunks that carries one group of states, and what it leaves for
        every chunk."""
        phase, body = 2 * number + 1, self.program.body
        inner = self._writer()
        inner.line = writer.line
        for n, text in writer.texts.items():
            at = "0" if self.phase[n] == FIXED else "c"
            inner.texts[n] = text if text.number else Text(f"{text.within(ATOM)}[:, :, {at}]")
        states = self.loops[number]
        loads = {
            n: self.local[self.carried, s]
            for s, n in self.program.loads(self.carried).items()
            if s in states
        }
        inner.texts.update({n: Text(name) for n, name in loads.items()})
        outs = {s: self.program.outs.get(f"state:{s}") for s in states}
        wanted = [n for n in self._of(phase) if body[n].op != "load"]
        lines = inner.lines(wanted, comments, self.crossing)
        kept = {self.local[self.carried, s] for s in states if self.carried == "state"}
        kept |= {name for n, name in loads.items() if n in self.crossing}
        shown = [n for n in wanted if n in self.crossing and n not in outs.values()]
        shown += [
            n
            for n in outs.values()
            if n is not None and n not in loads and self._read_after(n, phase)
        ]
        every = "range(n)" if self.carried == "state" else "reversed(range(n))"
        stacked = [*sorted(kept), *(self.names[n] for n in shown)]
        result = [f"{name}_at = [None] * n" for name in stacked]
        result += [f"for c in {every}:"]
        result += [f"    {name}_at[c] = {name}" for name in sorted(kept)]
        result += [f"    {line}" for line in lines]
        result += [f"    {self.names[n]}_at[c] = {inner.texts[n].code}" for n in shown]
        moves = []
        for s in states:
            name, out = self.local[self.carried, s], outs[s]
            after = f"np.zeros_like({name})" if out is None else inner.texts[out].code
            moves += [(name, after)] if after != name else []
        if moves:
            result.append(
                f"    {', '.join(m[0] for m in moves)} = {', '.join(m[1] for m in moves)}"
            )
        result += [f"{name}_at = np.stack({name}_at, 2)" for name in stacked]
        writer.texts.update({n: Text(f"{name}_at") for n, name in loads.items()})
        writer.texts.update({n: Text(f"{self.names[n]}_at") for n in shown})
        return result if stacked or lines or moves else []

    def _read_after(self, n: int, phase: int) -> bool:
        """Whether a later phase reads the value, beside its being carried on."""
        return any(
            n in inst.ins and self.phase[u] > phase for u, inst in enumerate(self.program.body)
        )

    def _result(self, writer: _Writer, carried: list[str]) -> str:
        owner, outs = self.owner, self.program.outs

        def value(name: str) -> str:
            return writer.texts[outs[name]].code if name in outs else "None"

        if owner.token:
            states = [
                f"{value(f'state:{s}')}[:, :, 0]"
                if f"state:{s}" in outs
                else f"np.zeros_like({c}[:, :, 0])"
                for s, c in zip(owner.states, carried)
            ]
        else:
            states = list(carried)
        if self.carried == "state":
            outputs = [value(name if name in outs else f"stored:{name}") for name in owner.outputs]
            starts = "()" if owner.token else _pack([f"{name}_at" for name in carried])
            return f"return {_pack(outputs)}, {_pack(states)}, {starts}"
        inputs = [
            value(f"input:{n}" if f"input:{n}" in outs else f"stored:{n}") for n in owner.inputs
        ]
        fixed = [value(f"param:{n}") for n in owner.fixed]
        last = [value(f"last:{n}") for n in owner.last]
        return f"return {_pack(inputs)}, {_pack(fixed)}, {_pack(last)}, {_pack(states)}"


class _Names(dict[tuple[str, str], str]):
    """Variables for what a pass is given, by (kind, name); ``used`` holds all names that are
    taken."""

    def __init__(self, used: set[str]) -> None:
        super().__init__()
        self.used = used

    def take(self, kind: str, name: str, wish: str) -> None:
        """Gives ``wish``, with underscores behind it where it is taken."""
        while wish in self.used:
            wish += "_"
        self.used.add(wish)
        self[kind, name] = wish


def _locals(owner: _Pass, dims: set[str]) -> _Names:
    found = _Names({*RESERVED, *_taken(), *dims, *keyword.kwlist})
    for name in owner.inputs:
        found.take("input", name, identifier(name))
    for name in owner.fixed:
        found.take("param", name, name)
    for name in owner.last:
        found.take("last", name, f"last_{name}")
    for name in owner.states:
        found.take("state", name, name)
        found.take("start", name, f"{name}_start")
        found.take("dstate", name, f"d{name}")
        found.used |= {f"{found[kind, name]}_at" for kind in ("state", "dstate")}
    for name in owner.outputs:
        found.take("cotangent", name, f"d{identifier(name)}")
    return found


def _numbers(program: Program) -> frozenset[int]:
    """Values that are plain numbers: made of constants and sizes alone."""
    found: set[int] = set()
    for n, inst in enumerate(program.body):
        elementwise = inst.op in ELEMENTWISE and not inst.axes and inst.op != "where"
        if inst.op in ("const", "size") or (elementwise and all(i in found for i in inst.ins)):
            found.add(n)
    return frozenset(found)


def _plain(spec: Spec, program: Program, head: str, doc: str) -> Function:
    """A function without phases: arrays by name in, arrays by name of output out."""
    names = Variables(program, [*RESERVED, *_taken(), *spec.dims, "C", "x"])
    writer = _Writer(spec, program, names, _lengths(program), 3)
    source = {"input": "x", "dstate": "dstates"}
    for n, inst in enumerate(program.body):
        if inst.op == "load":
            kind, name = inst.value
            kind = "input" if (kind, name) == ("index", "t") else kind
            writer.texts[n] = Text(f'{source.get(kind, "fixed")}["{name}"]')
    lines = writer.lines([n for n, inst in enumerate(program.body) if inst.op != "load"])
    outs = ", ".join(
        f'"{name.rpartition(":")[2]}": {writer.texts[n].code}' for name, n in program.outs.items()
    )
    return Function(
        f"def {head}:", doc, (*_dim_lines(program, [*lines, outs]), *lines, f"return {{{outs}}}")
    )


def identifier(label: str) -> str:
    """A load's name as a variable: ``k@-2`` is k_2_ago, the stored ``0.1`` is stored0_1."""
    name, _, offset = label.partition("@")
    if offset:
        return f"{name}_{offset.lstrip('-')}_ago"
    return label if label.isidentifier() else f"stored{label.replace('.', '_')}"
