"""Tile programs of one kernel in, its text out: parameters, lines, and the arguments of its launch.

There are three kinds: one chunk by itself, chunk after chunk, token after token. A program of the
grid has one sequence (or chunk) and head, and along the second axis of the grid a block of the axis
that is split.
"""

from __future__ import annotations

from collections.abc import Iterable

from lacc.backends.device_kernel import KernelSpec
from lacc.backends.text import Text
from lacc.backends.triton_arrays import Arrays, Place, load_mask, store_mask
from lacc.backends.triton_body import Body
from lacc.backends.triton_text import MASKED
from lacc.spec.model import Spec
from lacc.spec.shapes import Size
from lacc.tile.lower import Naming
from lacc.tile.program import Axes, Inst, Program
from lacc.tile.rounds import rounds

BEGUN = {"state": "begun", "dstate": "dended"}
ENDED = {"state": "ended", "dstate": "dbegun"}
"""The arrays of carried states before and after all chunks, forward and backward."""


class KernelText(Arrays):
    """The text of one kernel: ``parameters``, ``lines`` of its body, ``call`` arguments."""

    def __init__(self, spec: Spec, what: KernelSpec) -> None:
        super().__init__(spec, what)
        self.carried = "dstate" if what.backward else "state"
        self.each: list[str] = []
        self.after: list[str] = []
        self.kept_lines: list[str] = []
        self.again: list[str] = []
        self.restored: list[str] = []
        self._write()
        self._scalars()

    @property
    def lines(self) -> list[str]:
        """All lines of its body."""
        return [
            *("sequence_at(), chunk_at(), seen_before()", *self.before, *self.again),
            *(*self.restored, *self.each, *self.after),
        ]

    @property
    def counts(self) -> bool:
        """Whether positions matter."""
        return ("index", "t") in {i.value for i in self.program.body if i.op == "load"}

    # ---- lines -----------------------------------------------------------------------------------

    def _write(self) -> None:
        if self.what.remade is not None:
            self._write_remade(self.what.remade)
        outs = self.program.outs
        self._held = {s: self._started(self.carried, s) for s in self.what.carries}
        body = Body(self, self.program, self.before, self.each)
        if self.what.looped:
            self._write_rounds(body)
            return
        for s, n in self.program.loads(self.carried).items():
            body.texts[n] = Text(self._held[s])
        body.run()
        for name, n in outs.items():
            self._out(name, n, body)
        moves = {self._held[s]: self._moved(s, body) for s in self.what.carries}
        moves = {old: new for old, new in moves.items() if old != new}
        if moves:
            self.each.append(f"{', '.join(moves)} = {', '.join(moves.values())}")
        for s in self.what.carries:
            axes = Naming(self.spec).axes(self.states[s].shape)
            place = self.place(ENDED[self.carried], s, axes)
            self._store(self.after, place, axes, self._held[s])

    def _moved(self, state: str, body: Body) -> str:
        """What a carried state is for the next chunk, 0 where nothing before depends on it."""
        if f"state:{state}" in self.program.outs:
            return body.code(self.program.outs[f"state:{state}"])
        axes = Naming(self.spec).axes(self.states[state].shape)
        return f"tl.zeros({self.shape(axes)}, FLOAT)"

    def _write_rounds(self, body: Body) -> None:
        """Every round over the blocks of an axis: what is before its loop, the loop, its stores."""
        parts = rounds(self.program, self.what.looped, self.what.spare)
        body.in_rounds(parts)
        size = self.length(self.program.sizes[self.what.looped])
        block = self.index[self.what.looped].block
        for part in parts:
            body.each_lines = self.each
            body.run(part.before)
            outs = self.program.outs.items()
            for name, n in outs:
                if n in part.before:
                    self._out(name, n, body)
            if not part.inside:
                continue
            body.each_lines = []
            self.each += body.run_block(part)
            for name in part.outs:
                self._out(name, self.program.outs[name], body, body.each_lines)
            self.each.append(f"for block in range(0, tl.cdiv({size}, {block})):")
            self.each += [f"    {line}" for line in (*self.at_block, *body.each_lines)]
            body.forget(part)
            for name, n in outs:
                if n in part.joined:
                    self._out(name, n, body)

    def _started(self, kind: str, state: str) -> str:
        """The variable of a carried state, as it is before the first chunk."""
        axes = Naming(self.spec).axes(self.states[state].shape)
        variable = self.name(f"{'d' if kind == 'dstate' else ''}{state}")
        place = self.place(BEGUN[kind], state, axes)
        address, inside = self.address(place, axes)
        self.before.append(f"{variable} = tl.zeros({self.shape(axes)}, FLOAT)")
        self.before.append(f"if {place.pointer} is not None:")
        self.before.append(f"    {variable} = tl.load({address}{load_mask(inside)}).to(FLOAT)")
        return variable

    def _write_remade(self, remade: Program) -> None:
        """The states of a backward by token, made again from the last that were kept."""
        body = Body(self, remade, self.before, self.again)
        self.remade = {}
        loads, moves = remade.loads("state"), {}
        for s in self.remade_states:
            axes = Naming(self.spec).axes(self.states[s].shape)
            variable = self.name(f"{s}_before")
            place = self._declare_checkpoint(s, axes)
            address, inside = self.address(place, axes)
            self.kept_lines.append(f"{variable} = tl.load({address}{load_mask(inside)}).to(FLOAT)")
            scratch = self._declare_scratch(s, axes)
            address, inside = self.address(scratch, axes)
            self.again.append(f"tl.store({address}, {variable}{store_mask(inside)})")
            self.remade[s] = variable
            self.restored.append(f"{variable}_at = tl.load({address}{load_mask(inside)}).to(FLOAT)")
            if s in loads:
                body.texts[loads[s]] = Text(variable)
        body.run()
        for s, variable in self.remade.items():
            moves[variable] = body.code(remade.outs[f"state:{s}"])
        moves = {old: new for old, new in moves.items() if old != new}
        if moves:
            self.again.append(f"{', '.join(moves)} = {', '.join(moves.values())}")

    @property
    def remade_states(self) -> list[str]:
        """The states that a backward by token makes again."""
        outs = self.what.remade.outs if self.what.remade is not None else ()
        return [n.removeprefix("state:") for n in outs if n.startswith("state:")]

    def _declare_checkpoint(self, s: str, axes: Axes) -> Place:
        return self.per_chunk("kept", f"{s}_start", axes)

    def _declare_scratch(self, s: str, axes: Axes) -> Place:
        """Room [N, H, CHUNK, *axes] for the states of one stretch of tokens."""
        pointer = self.name(f"{s}_scratch")
        self.parameters.append(pointer)
        self.call.append(f'scratch["{s}"]')
        whole = " * ".join(self.entries(a) for a in axes) or "1"
        place = f"{pointer} + ((sequence * H + head) * CHUNK + step) * ({whole})"
        return Place(place, self.standard(axes, "1"))

    def _out(self, name: str, n: int, body: Body, lines: list[str] | None = None) -> None:
        """What becomes of an output of the program."""
        lines = self.each if lines is None else lines
        kind, _, label = name.rpartition(":")
        axes = self.program.body[n].axes
        if kind == "state" and label in self.what.carries:
            return
        if kind in ("param", "last") and self.what.kind != "chunk":
            total = "dfixed" if kind == "param" else "dlast"
            self._accumulate(total, label, axes, body.code(n))
            return
        forward = {"": "y", "stored": "y", "kept": "kept"}
        backward = {"input": "dx", "stored": "dx", "kept": "kept", "param": "dfixed"}
        array = (backward if self.what.backward else forward)[kind]
        place = self.place(array, label, axes)
        guards = []
        if array in ("dx", "dfixed"):
            guards.append(f"{self._base(place)} is not None")
        if kind == "kept" and n in self.program.loads(self.carried).values():
            guards.append(f"{self._base(place)} is not None")
            if self.by_token:
                guards.append("step % CHUNK == 0")
        if n in body.in_parts:
            self._store_parts(lines, place, self.program.body[n], body, guards)
        else:
            self._store(lines, place, axes, body.code(n), guards)

    def _store_parts(
        self, lines: list[str], place: Place, inst: Inst, body: Body, guards: Iterable[str]
    ) -> None:
        """The parts of a value, one behind the other along an axis."""
        whole, own = inst.value
        start = Size.of(0)
        for i, axis in zip(inst.ins, own):
            have = self.program.body[i].axes
            axes = tuple(axis if a == whole else a for a in inst.axes)
            code = body.formats.wide(body.texts[i], have, axes).code
            part = place.part(whole, axis, body.formats.size(start))
            self._store(lines, part, axes, code, guards)
            start = start + self.program.sizes[axis]

    @staticmethod
    def _base(place: Place) -> str:
        return place.pointer.partition(" ")[0]

    def _accumulate(self, array: str, label: str, axes: Axes, code: str) -> None:
        """A sum over the chunks of a sequence."""
        total = self.name(f"{array}_{label}")
        self.before.append(f"{total} = tl.zeros({self.shape(axes)}, FLOAT)")
        self.each.append(f"{total} += {code}")
        place = self.place(array, label, axes)
        guards = [f"{self._base(place)} is not None"] if array == "dfixed" else []
        self._store(self.after, place, axes, total, guards)

    def _store(
        self, lines: list[str], place: Place, axes: Axes, code: str, guards: Iterable[str] = ()
    ) -> None:
        """What every block of a split computes alike is stored by the first."""
        address, inside = self.address(place, axes)
        missing = self.what.split not in ("", *axes)
        tests = [*guards, *(["tl.program_id(1) == 0"] if missing else [])]
        for depth, test in enumerate(tests):
            lines.append(f"{'    ' * depth}if {test}:")
        lines.append(f"{'    ' * len(tests)}tl.store({address}, {code}{store_mask(inside)})")

    def _scalars(self) -> None:
        sizes = ["T", "H", *(["G"] if self.grouped else [])]
        self.parameters.append(", ".join([*sizes, "cu", "firsts", "table", "position"]))
        numbers = ", ".join(f"run.{size}" for size in sizes)
        self.call.append(f"{numbers}, run.cu, run.firsts, run.table, run.position")
        if self.by_token and not self.what.backward:
            self.parameters.append("state_rows, INTO: tl.constexpr")
            self.call.append("run.rows, run.into is not None")
        if any(inst.op in MASKED for inst in self.program.body):
            self.parameters.append("masks")
            self.call.append("level_masks(block(run.C, 16), run.device)")
        constants = {name: f'n["{dim}"]' for dim, name in self.dims.items()}
        constants |= {"CHUNK": "run.C"}
        if not self.by_token:
            constants["BT"] = "block(run.C, 16)"
        constants |= self.blocks
        constants |= {"FLOAT": "run.FLOAT", "PRECISION": "run.PRECISION"}
        self.parameters += [f"{name}: tl.constexpr" for name in constants]
        self.call += [f"{name}={value}" for name, value in constants.items()]
