"""One kernel in, where its arrays stand out: pointers, strides, addresses, and the parameters and
arguments that bring them in.

What a caller gives has strides of its own; everything else is contiguous: [B, T, H, *axes] with
tokens, [N, H, *axes] for states, [chunks, H, *axes] for what chunks have one each of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lacc.backends.base import lead
from lacc.backends.device_arrays import Places
from lacc.backends.device_kernel import KernelSpec
from lacc.backends.triton_frame import Frame
from lacc.spec.model import Spec
from lacc.spec.shapes import ONE, Size
from lacc.tile.lower import Naming
from lacc.tile.program import Axes


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array stands: the pointer moved to a program's part of it, strides of axes (that of
    tokens under "t"), and the variable that says which token."""

    pointer: str
    strides: Mapping[str, str]
    token: str = ""

    def part(self, old: str, new: str, start: str, step: int = 1) -> Place:
        """Every ``step``-th entry along axis ``old`` from ``start`` on, as axis ``new``."""
        stride = self.strides[old]
        by = stride if step == 1 else f"{step} * {stride}"
        moved = "" if start == "0" else f" + {start}{'' if stride == '1' else f' * {stride}'}"
        return Place(f"{self.pointer}{moved}", {**self.strides, new: by}, self.token)


class Arrays(Frame, Places[Place]):
    """``parameters`` of the kernel and arguments of its ``call``, a line for each array."""

    def __init__(self, spec: Spec, what: KernelSpec) -> None:
        super().__init__(spec, what)
        self.parameters: list[str] = []
        self.call: list[str] = []
        self.grouped = False
        self.remade: dict[str, str] = {}
        self._places: dict[tuple[str, str], Place] = {}

    def _strided(self, kind: str, name: str, axes: Axes) -> Place:
        """What a caller gives: moved to a program's head and row by its strides."""
        arg = self.arguments.get(name.partition("@")[0]) if kind != "cotangent" else None
        table = kind in ("param", "buffer")
        output = None
        if arg is None:
            output = {o.ascii: o.shape for o in self.spec.outputs}.get(name)
            shape = output if output is not None else [self.program.sizes[a] for a in _dims(axes)]
            first: tuple[str, ...] = ("B", "T", "H")
        else:
            shape = arg.shape
            first = lead(arg) if arg.per != "position" else ("B", "T")
        source = "dy" if kind == "cotangent" else "x"
        name = name.removeprefix("stored:")
        stem = f"d{name}" if kind == "cotangent" else name
        pointer = self.name(f"{stem}_ptr")
        letters = {"B": "b", "T": "t", "H": "h", "G": "h"}
        strides = [self.name(f"{stem}_{letters[a]}") for a in first]
        strides += [self.name(f"{stem}_{n}") for n in range(len(shape))]
        self.parameters.append(", ".join([pointer, *strides]))
        self.call.append(f'{source}["{name}"], *strides({source}["{name}"], {len(strides)})')
        start = {"B": "batch", "H": "head", "G": "(head // (H // G))"}
        if "G" in first:
            self.grouped = True
        moves = [f"{start[a]} * {stride}" for a, stride in zip(first, strides) if a in start]
        if moves:
            self._moves(pointer, " + ".join(moves), optional=self.may_be_none(kind, name))
        found = {"t": strides[1]} if not table else {}
        named = iter(
            Naming(self.spec).axes(tuple(shape)) if arg or kind == "cotangent" else _dims(axes)
        )
        for size, stride in zip(shape, strides[len(first) :]):
            if size != ONE:
                found[next(named)] = stride
        return Place(pointer, found, "" if table else "token")

    def may_be_none(self, kind: str, name: str) -> bool:
        return kind in ("cotangent", "dx") or name.partition("@")[0] in self.what.optional

    def _moves(self, pointer: str, by: str, optional: bool) -> None:
        """A pointer moved to the part of its array that a program has."""
        if optional:
            self.before.append(f"if {pointer} is not None:")
        self.before.append(f"{'    ' if optional else ''}{pointer} += {by}")

    def _per_sequence(self, kind: str, name: str) -> Place:
        """A state of every sequence and head."""
        pointer = self.name(f"{name}_{kind}")
        self.parameters.append(pointer)
        self.call.append(f'{kind}["{name}"]')
        row = {"begun": "begin_row", "ended": "end_row"}.get(kind, "sequence")
        row = row if self.by_token and not self.what.backward else "sequence"
        shape = self.states[name].shape
        by = " * ".join([f"({row} * H + head)", *map(self.length, _literal(shape))])
        self._moves(pointer, by, optional=kind in ("begun", "dended"))
        axes = Naming(self.spec).axes(shape)
        return Place(pointer, self.standard(axes, "1"))

    def _per_token(self, kind: str, name: str, axes: Axes) -> Place:
        """A contiguous array [B, T, H, *axes]; pairs of tokens are [B, T, H, BT]."""
        pointer = self.name(
            f"{'d' if kind == 'dx' else ''}{name}_{'ptr' if kind != 'kept' else 'kept'}"
        )
        self.parameters.append(pointer)
        self.call.append(f'{kind}["{name}"]')
        strides = self.standard(axes, "H")
        whole = (
            [self.entries(a) for a in axes[1:] if axes]
            if ("t" in axes or "s" in axes)
            else [self.entries(a) for a in axes]
        )
        self._moves(pointer, " * ".join(["head", *whole]), optional=kind == "dx")
        return Place(pointer, strides, "flat")

    def per_chunk(self, kind: str, name: str, axes: Axes) -> Place:
        """A contiguous array [chunks, H, *axes]."""
        pointer = self.name(f"{name}_kept")
        self.parameters.append(pointer)
        self.call.append(f'{kind}["{name}"]')
        strides = self.standard(axes, "1")
        whole = " * ".join(self.entries(a) for a in axes) or "1"
        return Place(f"{pointer} + (chunk * H + head) * ({whole})", strides)

    def _partial(self, name: str) -> Place:
        """Sums of a program of the gradient of a param [P, H, *axes]."""
        pointer = self.name(f"d{name}_ptr")
        self.parameters.append(pointer)
        self.call.append(f'dfixed["{name}"]')
        shape = self.arguments[name].shape
        part = "chunk" if self.what.kind == "chunk" else "sequence"
        by = " * ".join([f"({part} * H + head)", *map(self.length, _literal(shape))])
        self._moves(pointer, by, optional=name in self.what.optional)
        return Place(pointer, self.standard(Naming(self.spec).axes(shape), "1"))

    def standard(self, axes: Axes, between: str) -> dict[str, str]:
        """Strides of contiguous axes; ``between`` stands between the tokens and the rest."""
        strides, rest = {}, ""
        time = axes[0] if axes and axes[0] in ("t", "s") else ""
        for axis in reversed([a for a in axes if a != time]):
            strides[axis] = rest or "1"
            rest = f"{self.entries(axis)} * {rest}" if rest else self.entries(axis)
        strides["t"] = f"{between} * {rest}" if rest else between
        return strides

    def address(self, place: Place, axes: Axes) -> tuple[str, str]:
        """The addresses of a tile, and the mask of its entries as a further argument."""
        time = next((a for a in axes if a in ("t", "s")), "") if place.token else ""
        terms = [place.pointer]
        if place.token and not time:
            terms.append(f"{place.token} * {place.strides['t']}")
        for axis in axes:
            at = place.token if axis == time else self.index[axis].at
            stride = place.strides["t" if axis == time else axis]
            lay = _slots(axis, axes)
            terms.append(f"{at}{lay}" if stride == "1" else f"{at}{lay} * {stride}")
        inside = " & ".join(f"{self.index[a].inside}{_slots(a, axes)}" for a in axes)
        return " + ".join(terms), inside


def _dims(axes: Axes) -> Axes:
    return tuple(a for a in axes if a not in ("t", "s"))


def _literal(shape: Iterable[Size]) -> list[Size]:
    return [size for size in shape if size != ONE]


def _slots(axis: str, want: Axes) -> str:
    """The subscript that lays a vector over one axis out in ``want``."""
    if len(want) == 1:
        return ""
    return f"[{', '.join(':' if a == axis else 'None' for a in want)}]"


def load_mask(inside: str) -> str:
    """The mask of a load as further arguments; what is outside is 0."""
    return f", {inside}, 0.0" if inside else ""


def store_mask(inside: str) -> str:
    """The mask of a store as a further argument."""
    return f", {inside}" if inside else ""
