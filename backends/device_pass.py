"""A pass over time in, the kernels that compute it on a device and the two functions that launch
them out: what targets with kernels share.

Forward there are two ways, one kernel for all (*fused*) or loops that carry the states alone
between kernels of single chunks (*split*); backward there is the one that partition finds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from string import ascii_lowercase
from typing import Generic, Protocol, TypeVar

from lacc.backends.base import call_code, tuple_code, tuple_text
from lacc.backends.device_kernel import KernelSpec, host_size
from lacc.ir.graph import Uncuttable
from lacc.spec.model import Spec
from lacc.spec.shapes import Shape, Size
from lacc.tile.derive import DIFFERENTIATED, Pair
from lacc.tile.lower import Naming
from lacc.tile.operands import only_products
from lacc.tile.partition import (
    Part,
    Partitioner,
    from_starts,
    has_products,
    in_one_loop,
    partition,
    start_name,
)
from lacc.tile.program import Program, prune
from lacc.tile.rewrite import for_kernels
from lacc.tile.split import led_by
from lacc.tile.unroll import unroll


class Kernel(Protocol):
    """The text of a kernel, and what it is of."""

    @property
    def what(self) -> KernelSpec:
        """Its name, kind and program."""


K = TypeVar("K", bound=Kernel)


class DevicePass(ABC, Generic[K]):
    """The kernels of one pass over time, or of one token (``number`` "token")."""

    chunks: tuple[int, ...]
    """The tokens of a chunk that kernels may be laid out for, the most first."""

    may: float = 1.0
    """How tight a kernel may be and about fit: enough not to be made otherwise."""

    pairs: str
    """The entries of a token that are kept of a tile of pairs, as Python."""

    def __init__(
        self,
        spec: Spec,
        pair: Pair,
        number: str,
        *,
        reverse: bool = False,
        shared: Collection[str] = (),
        fine: bool = False,
    ) -> None:
        """``shared`` are the arguments that other passes take, too; ``fine``: products round less
        than bfloat16 does."""
        self.spec, self.number, self.reverse = spec, number, reverse
        self.shared, self.fine = shared, fine
        self.way: Partitioner = partition
        self.chunk = self.chunks[0]
        self.by_token = number == "token"
        self.dims = {name: int(dim.default or 0) for name, dim in spec.dims.items()}
        self.shapes: dict[str, Shape] = {s.ascii: s.shape for s in spec.states}
        self.optional = frozenset(a.ascii for a in spec.args if a.default is not None)
        forward, backward = pair.forward, pair.backward
        self.forward_program = unroll(for_kernels(forward, "state"))
        self.backward_program = unroll(for_kernels(backward, "dstate"))
        self.states = tuple(
            n.removeprefix("state:") for n in self.forward_program.outs if n.startswith("state:")
        )
        self.starts = tuple(s for s in self.states if s in self.backward_program.loads("state"))
        if self.by_token:
            self._token()
        else:
            self._chunks()

    # ---- kernels ---------------------------------------------------------------------------------

    def _chunks(self) -> None:
        """Kernels by the first way in which all may fit, else by that in which they hold the least
        too much, in shorter chunks if they do alike."""
        program, back = self.forward_program, from_starts(self.backward_program)
        least = inf
        for way in self.ways:
            self.way, self.chunk = way
            with suppress(Uncuttable):
                split_ = self._partitioned(program, "state") if program.loads("state") else ()
                parts_ = self._partitioned(back, "dstate")
                most = max(map(self._tight, (*split_, *parts_)))
                if most <= least:
                    least, split, parts, best = most, split_, parts_, way
                if most <= self.may:
                    break
        self.way, self.chunk = best
        self.fused = self._kernels(in_one_loop(program, "state", self.starts), "fused", False)
        self.split = self._kernels(split, "forward", False) if len(split) > 1 else []
        self.back = self._kernels(parts, "backward", True)

    @property
    def ways(self) -> tuple[tuple[Partitioner, int], ...]:
        """What may cut a program into kernels, and for chunks of how many tokens."""
        return tuple((partition, chunk) for chunk in self.chunks)

    def _partitioned(self, program: Program, carried: str) -> tuple[Part, ...]:
        """Kernels for each phase, or one where there is nothing to gain: where no matrices are
        multiplied, and where sums over all chunks of a sequence come out."""
        whole = any(n.startswith("last:") for n in program.outs)
        starts = self.starts if carried == "state" else ()
        if has_products(program) and not whole:
            return self.way(program, carried, self.dims, starts, self.chunk, self._tight)
        parts = in_one_loop(program, carried, starts)
        return tuple(replace(part, kind="loop") for part in parts) if whole else parts

    @abstractmethod
    def _fits(self, part: Part) -> bool:
        """Whether a kernel has all that it holds at once on the chip."""

    def _tight(self, part: Part) -> float:
        """What a kernel holds at once, as parts of what the chip has; without end where that is
        not known."""
        return 0.0 if self._fits(part) else inf

    @abstractmethod
    def _kernel(self, name: str, part: Part, *, backward: bool, remade: Program | None = None) -> K:
        """The text of a kernel."""

    @abstractmethod
    def _launch(self, way: str, kernel: K) -> list[str]:
        """The lines that launch a kernel of a way ("FUSED", "SPLIT", "BACK")."""

    @abstractmethod
    def _takes_one(self) -> str:
        """Whether a forward takes one kernel for all, as Python."""

    def _token(self) -> None:
        program, back = self.forward_program, self.backward_program
        loads = program.loads("state")
        self.starts = tuple(s for s in self.states if s in led_by(program, self.starts))
        outs = {
            **program.outs,
            **{f"kept:{start_name(s)}": loads[s] for s in self.starts if s in loads},
        }
        part = Part("token", Program(program.body, outs, program.sizes), self.states)
        self.fused = self._kernels((part,), "", False)
        self.split = []
        remade = None
        if self.starts:
            outs = {f"state:{s}": program.outs[f"state:{s}"] for s in self.starts}
            remade = prune(Program(program.body, outs, program.sizes))
        carries = tuple(
            s for s in self.states if f"state:{s}" in back.outs or s in back.loads("dstate")
        )
        self.back = self._kernels((Part("token", back, carries),), "", True, remade)

    def _kernels(
        self, parts: tuple[Part, ...], stem: str, backward: bool, remade: Program | None = None
    ) -> list[K]:
        found = []
        for n, part in enumerate(parts):
            way = "backward" if backward else "forward"
            name = f"{way}_token" if self.by_token else f"{stem}_{self.number}"
            if len(parts) > 1:
                name = f"{stem}_{self.number}{_letters(n)}"
            found.append(self._kernel(name, part, backward=backward, remade=remade))
        return found

    def _doc(self, part: Part, program: Program, backward: bool) -> str:
        what = {"chunk": "of one chunk", "loop": "chunk after chunk", "token": "token after token"}
        given = (n.rpartition(":") for n in program.outs if not n.startswith("state:"))
        outs = ", ".join(
            f"d{name}" if backward and kind in DIFFERENTIATED else name for kind, _, name in given
        )
        states = ", ".join(part.carries)
        carried = f" carrying {states}" if states else ""
        return f"{outs or states}, {what[part.kind]}{carried}."

    # ---- the functions that launch ---------------------------------------------------------------

    @property
    def kernels(self) -> list[K]:
        """Every kernel of the pass."""
        return [*self.fused, *self.split, *self.back]

    def entry(self) -> str:
        """What the table of passes says of it, as code."""
        both = (self.forward_program, self.backward_program)

        def loaded(*kinds: str) -> list[str]:
            return list(dict.fromkeys(n for p in both for kind in kinds for n in p.loads(kind)))

        outs = [n for n in self.forward_program.outs if not n.startswith("state:")]
        return call_code(
            "Pass",
            {
                "reverse": self.reverse,
                "inputs": tuple_text(loaded("input", "stored")),
                "fixed": tuple_text(loaded("param", "buffer")),
                "last": tuple_text(loaded("last")),
                "states": tuple_text(self.states),
                "outputs": tuple_text(n.removeprefix("stored:") for n in outs),
                "forward": f"run_forward_{self.number}",
                "backward": f"run_backward_{self.number}",
            },
        )

    def functions(self) -> Iterator[tuple[str, list[str]]]:
        """The heads and lines of the functions that launch the kernels, forward and backward."""
        yield (
            f"def run_forward_{self.number}(x, begun, last, run, keep):",
            [*self._forward_rooms(), *self._forward_launches(), self._forward_result()],
        )
        yield (
            f"def run_backward_{self.number}(x, last, given, run, dy, dended):",
            [
                *self._backward_rooms(),
                *self._launches("BACK", self.back),
                "return dx, dfixed, dlast, dbegun",
            ],
        )

    def _run_lines(self) -> list[str]:
        found = ["run = finer(run)"] if self.fine else []
        return [*found, "n = run.dims"]

    def _forward_rooms(self) -> list[str]:
        lines = self._run_lines()
        outputs = {o.ascii: o.shape for o in self.spec.outputs}
        rooms = []
        for name, i in self.forward_program.outs.items():
            label = name.removeprefix("stored:")
            if name.startswith("state:"):
                continue
            if name in outputs:
                rooms.append(f'"{label}": token_room(run, run.out_dtype{_shape(outputs[name])})')
            else:
                axes = [self._size(a) for a in self.forward_program.body[i].axes if a != "t"]
                rooms.append(f'"{label}": token_room(run, run.dtype{_shape(axes)})')
        lines.append(f"y = {_dict(rooms)}")
        ends = [f'"{s}": state_room(run{_shape(self.shapes[s])})' for s in self.states]
        into = "run.into or " if self.by_token else ""
        if self.by_token and (whole := [*self._read_by_all()]):
            lines.append(f"begun = apart(begun, run, {tuple_text(whole)})")
        lines.append(f"ended = {into}{_dict(ends)}")
        lines.append("kept = dict.fromkeys(" + tuple_text(map(start_name, self.starts)) + ")")
        if self.starts:
            starts = [
                self._kept_room(start_name(s), self.shapes[s], self._starts_rounded)
                for s in self.starts
            ]
            lines.append("if keep:")
            lines.append(f"    kept = {_dict(starts)}")
        return lines

    def _read_by_all(self) -> Iterator[str]:
        """The states of which every program that shares an axis has the whole, and one stores it
        when others may not have read it."""
        naming = Naming(self.spec)
        for kernel in self.fused:
            split = kernel.what.split
            for state in kernel.what.carries:
                if split and split not in naming.axes(self.shapes[state]):
                    yield state

    @property
    def _starts_rounded(self) -> frozenset[str]:
        """States whose copies at the start of a chunk only products take."""
        if self.by_token:
            return frozenset()
        users = [k.what.program for k in (*self.split, *self.back)]
        names = map(start_name, self.starts)
        return frozenset(name for name in names if rounds(users, name))

    def _kept_room(self, name: str, shape: Iterable[Size | str], rounded: frozenset[str]) -> str:
        dtype = "operand_dtype(run)" if name in rounded else "run.dtype"
        return f'"{name}": chunk_room(run, {dtype}{_shape(shape)})'

    def _forward_launches(self) -> list[str]:
        fused = self._launches("FUSED", self.fused)
        if not self.split:
            return fused
        return [
            f"if not {self._takes_one()}:",
            *(
                f"    {line}"
                for line in [
                    *self._between(self.split, self.starts),
                    *self._launches("SPLIT", self.split),
                ]
            ),
            "else:",
            *(f"    {line}" for line in fused),
        ]

    def _forward_result(self) -> str:
        kept = tuple_code(f'kept["{start_name(s)}"]' for s in self.starts)
        return f"return y, ended, {kept} if keep else ()"

    def _between(self, kernels: list[K], given: Iterable[str] = ()) -> list[str]:
        """Room for what crosses from kernel to kernel."""
        lines = []
        programs = [k.what.program for k in kernels]
        had = set(map(start_name, given))
        for kernel in kernels:
            for name, i in kernel.what.program.outs.items():
                if not name.startswith("kept:"):
                    continue
                label, axes = name.removeprefix("kept:"), kernel.what.program.body[i].axes
                needed = any(label in p.loads("kept") for p in programs)
                if label in had and not needed:
                    continue
                dtype = "operand_dtype(run)" if rounds(programs, label) else "run.dtype"
                if label in had:
                    dtype = "operand_dtype(run)" if label in self._starts_rounded else "run.dtype"
                room = "token_room" if {"t", "s"} & set(axes) else "chunk_room"
                rest = axes[1:] if room == "token_room" else axes
                sizes = [self.pairs if a in ("t", "s") else self._size(a) for a in rest]
                line = f'kept["{label}"] = {room}(run, {dtype}{_shape(sizes)})'
                if label in had:
                    lines += [f'if kept["{label}"] is None:', f"    {line}"]
                else:
                    lines.append(line)
        return lines

    def _backward_rooms(self) -> list[str]:
        program, by_name = self.backward_program, {a.ascii: a for a in self.spec.args}
        lines = self._run_lines()
        starts = tuple_text(map(start_name, self.starts))
        lines.append(f"kept = dict(zip({starts}, given))")
        rooms: dict[str, list[str]] = {"dx": [], "dfixed": [], "dlast": [], "dbegun": []}
        for name, i in program.outs.items():
            kind, _, label = name.rpartition(":")
            axes = program.body[i].axes
            arg = by_name.get(label.partition("@")[0])
            shape = arg.shape if arg else [self._size(a) for a in axes if a != "t"]
            if kind == "input":
                plain = arg is not None and arg.per == "head" and label not in self.shared
                level = '"head"' if plain else '""'
                rooms["dx"].append(
                    f'"{label}": gradient_room(run, x["{label}"], {level}{_shape(shape)})'
                )
            elif kind == "stored":
                rooms["dx"].append(f'"{label}": token_room(run, run.dtype{_shape(shape)})')
            elif kind == "param":
                parts = self._parts(label)
                rooms["dfixed"].append(
                    f'"{label}": partial_room(run, x["{label}"], {parts}{_shape(shape)})'
                )
            elif kind == "last":
                rooms["dlast"].append(f'"{label}": state_room(run{_shape(self.shapes[label])})')
        carried = dict.fromkeys(s for k in self.back for s in k.what.carries)
        rooms["dbegun"] = [f'"{s}": state_room(run{_shape(self.shapes[s])})' for s in carried]
        lines += [f"{name} = {_dict(made)}" for name, made in rooms.items()]
        if self.by_token and self.starts:
            scratch = [f'"{s}": scratch_room(run{_shape(self.shapes[s])})' for s in self.starts]
            lines.append(f"scratch = {_dict(scratch)}")
        return [*lines, *self._between(self.back)]

    def _parts(self, label: str) -> str:
        """How many partial sums there are of a param's gradient."""
        for kernel in self.back:
            if f"param:{label}" in kernel.what.program.outs:
                return "run.chunks" if kernel.what.kind == "chunk" else "run.N"
        raise AssertionError(label)

    def _size(self, axis: str) -> Size:
        return self.forward_program.sizes.get(axis) or self.backward_program.sizes[axis]

    def _launches(self, way: str, kernels: Iterable[K]) -> list[str]:
        return [line for kernel in kernels for line in self._launch(way, kernel)]


def _letters(n: int) -> str:
    """a, b, …, z, aa, ab, …"""
    return ("" if n < 26 else _letters(n // 26 - 1)) + ascii_lowercase[n % 26]


def rounds(programs: Iterable[Program], name: str) -> bool:
    """Whether products alone take a kept value, which round their operands anyway."""
    loads = [(p, p.loads("kept")) for p in programs]
    return all(only_products(p, kept[name]) for p, kept in loads if name in kept)


def _shape(shape: Iterable[Size | str]) -> str:
    """Sizes, or their code, as further arguments."""
    return "".join(f", {x if isinstance(x, str) else host_size(x)}" for x in shape)


def _dict(entries: Iterable[str]) -> str:
    return "{" + ", ".join(entries) + "}"
