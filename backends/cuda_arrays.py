"""One kernel in, where its arrays stand out: the pointers and numbers of its arguments, what a host
gives for them, and the lines that move tiles between arrays and the workspace.

What a caller gives has strides of its own; everything else is contiguous: [B, T, H, *axes] with
tokens, [N, H, *axes] for states, [chunks, H, *axes] for what chunks have one each of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lacc.backends.base import lead, unused
from lacc.backends.c_text import RESERVED, dim, plain_name, plus, size, times, words
from lacc.backends.c_values import index_name
from lacc.backends.cuda_ops import Split
from lacc.backends.device_arrays import Places
from lacc.backends.device_kernel import KernelSpec
from lacc.runtime.cuda_arena import evaluated
from lacc.spec.model import Spec
from lacc.spec.shapes import ONE, Size
from lacc.tile.lower import Naming
from lacc.tile.partition import WIDTH
from lacc.tile.program import TIME, Axes

KEYWORDS = words(
    "do auto asm template typename class new delete this operator private public protected virtual "
    "friend namespace using try catch throw mutable explicit export and or not xor bitand bitor "
    "compl if else for while switch case default break continue goto return int long short char "
    "float double void signed unsigned const volatile static extern register struct union enum "
    "typedef sizeof bool true false inline and_eq or_eq xor_eq not_eq alignas alignof constexpr "
    "const_cast dynamic_cast reinterpret_cast static_cast decltype noexcept nullptr static_assert "
    "thread_local typeid wchar_t char8_t char16_t char32_t concept requires consteval constinit "
    "co_await co_return co_yield errno int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t "
    "uint64_t uintptr_t size_t"
)
"""Words that are no names in C++20, of its headers those that files take."""

FRAME = KEYWORDS | words(
    "a i j mask program lies known known_again sequence head chunk chunks index number start token "
    "row step at its from seen count place H scratch memory operands begin_row end_row tiles "
    "launch threadIdx blockIdx"
)
"""Words of every kernel's text, and of C++."""


READ, WRITTEN = "const void *", "void *"
"""The types of an array that a kernel only reads, and of one that it may write."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A field of a kernel's arguments: its name, what is said of it, and what the host gives."""

    name: str
    said: str
    call: str
    type: str = WRITTEN

    @property
    def whole(self) -> bool:
        """Whether it is a whole number, or an array of these."""
        return "void" not in self.type


@dataclass(frozen=True, slots=True)
class Place:
    """Where the part of an array lies that a block works on: the ``base`` in C++, the ``by`` that a
    token, chunk or step moves it by, the step of a token and of each axis."""

    base: str
    by: str
    steps: Mapping[str, str]
    optional: bool = False

    @property
    def first(self) -> str:
        """The address of its first entry."""
        if not self.by:
            return self.base
        return f"moved({self.base}, {self.by})" if self.optional else f"{self.base} + {self.by}"


class CudaArrays(Places[Place]):
    """``pointers`` and ``numbers`` of the arguments of ``kernel``; ``before``: lines that find the
    parts of arrays that a block works on."""

    def __init__(self, spec: Spec, what: KernelSpec, split: Split, library: Iterable[str]) -> None:
        """``library`` are names that the kernel's file has otherwise."""
        self.spec, self.what, self.split = spec, what, split
        self.by_token = what.kind == "token"
        self.taken = {*RESERVED, *FRAME, *library}
        self.arguments = {a.ascii: a for a in spec.args}
        self.states = {s.ascii: s for s in spec.states}
        self.fields = set(words("arena program0 T H G N INTO cu firsts table position state_rows"))
        self.fields |= KEYWORDS
        self.pointers: dict[str, Argument] = {}
        self.numbers: dict[str, Argument] = {}
        self.before: list[str] = []
        self.moved: dict[str, list[str]] = {"token": [], "chunk": []}
        """The entries of arrays for each token, and for each chunk."""
        self._places: dict[tuple[str, str], Place] = {}
        self._names: dict[tuple[str, str], str] = {}

    def sizes_at(self, chunk: int, block: int, wide: bool = True) -> dict[str, int]:
        """The names of sizes in the text, where chunks and blocks have some sizes and heads, if
        ``wide``, are twice as wide as is declared, up to `WIDTH`."""
        dims = {name: int(d.default or 0) or WIDTH for name, d in self.spec.dims.items()}
        if wide:
            dims = {n: WIDTH if WIDTH // 2 <= size < WIDTH else size for n, size in dims.items()}
        sizes = {dim(name): size for name, size in dims.items()} | {"L": chunk}
        if self.split.axis:
            whole = size(self.what.program.sizes[self.split.axis]).code
            sizes[self.split.most] = min(block, evaluated(whole, sizes))
        return sizes

    # ---- names -----------------------------------------------------------------------------------

    def name(self, wish: str, taken: set[str] | None = None) -> str:
        """``wish`` as a name that is not ``taken``, those of variables without it."""
        taken = self.taken if taken is None else taken
        plain = plain_name(re.sub(r"\W", "_", wish, flags=re.ASCII))
        found = unused(f"stored_{plain}" if plain[0].isdigit() else plain, taken)
        taken.add(found)
        return found

    def pointer(self, kind: str, name: str) -> str:
        """The argument that is the array of a load or an output; declared with its place."""
        return self._names[kind, name]

    def _point(
        self, kind: str, name: str, wish: str, said: str, call: str, type_: str = WRITTEN
    ) -> str:
        found = self._names[kind, name] = self.name(wish, self.fields)
        self.pointers[found] = Argument(found, said, call, type_)
        return found

    def number(self, name: str, said: str, call: str) -> str:
        """A number that the host gives."""
        if name not in self.numbers:
            self.numbers[name] = Argument(name, said, call, "int64_t ")
        return f"a.{name}"

    # ---- places ----------------------------------------------------------------------------------

    def _declare(self, kind: str, name: str, axes: Axes) -> Place:
        if kind == "scratch":
            return self._stretch(name, axes)
        return super()._declare(kind, name, axes)

    def _strided(self, kind: str, name: str, axes: Axes) -> Place:
        """What a caller gives, with its strides."""
        arg = self.arguments.get(name.partition("@")[0]) if kind != "cotangent" else None
        if arg is None:
            output = {o.ascii: o.shape for o in self.spec.outputs}.get(name)
            shape: Sequence[Size] = (
                output
                if output is not None
                else [self.what.program.sizes[a] for a in axes if a not in TIME]
            )
            first: tuple[str, ...] = ("B", "T", "H")
        else:
            shape = arg.shape
            first = lead(arg) if arg.per != "position" else ("B", "T")
        named_ = arg is not None or kind == "cotangent"
        dims = (
            Naming(self.spec).axes(tuple(shape))
            if named_
            else tuple(a for a in axes if a not in TIME)
        )
        label = name.removeprefix("stored:")
        stem = f"d{label}" if kind == "cotangent" else label
        source = "dy" if kind == "cotangent" else "x"
        whole = f"[{', '.join([*first, *map(str, shape)])}]"
        said = f"cotangent of {label}" if kind == "cotangent" else label
        optional = self.may_be_none(kind, name)
        none = ", or null" if optional else ""
        call = f'{source}["{label}"]'
        pointer = self._point(kind, name, stem, f"{said} {whole}{none}", call, READ)
        letters = {"B": "b", "T": "t", "H": "h", "G": "g"}
        ends = [*(letters[x] for x in first), *range(len(shape))]
        strides = [self.name(f"{pointer}_{end}", self.fields) for end in ends]
        many = f'*strides({source}["{label}"], {len(strides)})'
        for n, stride in enumerate(strides):
            of = (*first, *map(str, shape))[n]
            self.number(stride, f"entries from one {of} to the next", "" if n else many)
        if "T" in first:
            self.moved["token"].append(times(*(size(s).code for s in shape if s != ONE)))
        starts = {"B": "its.batch", "H": "head", "G": "head / (H / a.G)"}
        if "G" in first:
            self.number("G", "groups of heads", "run.G")
        moves = [times(starts[x], f"a.{s}") for x, s in zip(first, strides) if x in starts]
        steps = {"t": f"a.{strides[1]}"} if "T" in first else {}
        named = iter(dims)
        for length, stride in zip(shape, strides[len(first) :]):
            if length != ONE:
                steps[next(named)] = f"a.{stride}"
        return self._found(pointer, moves, steps, "token" if "T" in first else "", optional)

    def may_be_none(self, kind: str, name: str) -> bool:
        """Whether a caller may leave an array out."""
        return kind in ("cotangent", "dx") or name.partition("@")[0] in self.what.optional

    def _found(
        self, pointer: str, moves: list[str], steps: dict[str, str], by: str, optional: bool
    ) -> Place:
        """The place of an array, moved to what a block works on of it."""
        if self.split.axis in steps:
            moves = [*moves, times("from", steps[self.split.axis])]
        base = self.name(f"{pointer}_at")
        self.before.append(
            f"auto *const {base} = entries<T_{pointer}>(a.{pointer}, {plus(*moves)});"
        )
        move = times(by, steps.get("t", "1")) if by else ""
        return Place(base, move, steps, optional)

    def _per_sequence(self, kind: str, name: str) -> Place:
        """A state of every sequence and head."""
        shape = self.states[name].shape
        row = {"begun": "begin_row", "ended": "end_row"}.get(kind, "sequence")
        row = row if self.by_token and not self.what.backward else "sequence"
        said = {
            "last": f"final state {name}",
            "begun": f"state {name} before the first token, or null for 0",
            "ended": f"state {name} after the last token",
            "dended": f"cotangent of the final state {name}, or null for 0",
            "dbegun": f"gradient of the initial state {name}",
            "dlast": f"gradient of the final state {name}",
        }[kind]
        axes = Naming(self.spec).axes(shape)
        pointer = self._point(
            kind, name, f"{name}_{kind}", f"{said} {_shown('N', 'H', *shape)}", f'{kind}["{name}"]'
        )
        moves = [times(f"{row} * H + head", *(size(s).code for s in shape if s != ONE))]
        optional = kind in ("begun", "dended")
        return self._found(pointer, moves, self._standard(axes), "", optional)

    def _per_token(self, kind: str, name: str, axes: Axes) -> Place:
        """A contiguous array [B, T, H, *axes]; pairs of tokens are [B, T, H, L]."""
        said = {"y": name, "dx": f"gradient of {name}", "kept": f"{name}, kept"}[kind]
        rest = axes[1:] if {*TIME} & {*axes} else axes
        shown = ["L" if a in TIME else str(self.what.program.sizes[a]) for a in rest]
        pointer = self._point(
            kind,
            name,
            f"d{name}" if kind == "dx" else name,
            f"{said} [{', '.join(['B', 'T', 'H', *shown])}]{', or null' if kind == 'dx' else ''}",
            f'{kind}["{name}"]',
        )
        steps = self._standard(rest)
        whole = times(*(self._entries(a) for a in rest))
        self.moved["token"].append(whole)
        steps["t"] = times("H", whole)
        return self._found(pointer, [times("head", whole)], steps, "row", kind == "dx")

    def per_chunk(self, kind: str, name: str, axes: Axes) -> Place:
        """A contiguous array [chunks, H, *axes]."""
        shown = [str(self.what.program.sizes[a]) for a in axes]
        said = f"{name} of each chunk {_shown('chunks', 'H', *shown)}, or null"
        pointer = self._point(kind, name, name, said, f'{kind}["{name}"]')
        whole = times(*(self._entries(a) for a in axes))
        self.moved["chunk"].append(whole)
        place = self._found(pointer, [], self._standard(axes), "", True)
        return Place(place.base, times("chunk * H + head", whole), place.steps, True)

    def _stretch(self, name: str, axes: Axes) -> Place:
        """Room [N, H, L, *axes] for the states of one stretch of tokens."""
        said = f"room for states {name} {_shown('N', 'H', 'L', *self.states[name].shape)}"
        pointer = self._point("scratch", name, f"{name}_scratch", said, f'scratch["{name}"]')
        whole = times(*(self._entries(a) for a in axes))
        moves = [times("sequence * H + head", "L", whole)]
        place = self._found(pointer, moves, self._standard(axes), "", False)
        return Place(place.base, times("step", whole), place.steps)

    def _partial(self, name: str) -> Place:
        """Sums of a block of the gradient of a param [P, H, *axes]."""
        shape = self.arguments[name].shape
        said = f"parts of the gradient of {name} {_shown('parts', 'H', *shape)}, or null"
        pointer = self._point("dfixed", name, f"d{name}", said, f'dfixed["{name}"]')
        part = "chunk" if self.what.kind == "chunk" else "sequence"
        moves = [times(f"{part} * H + head", *(size(s).code for s in shape if s != ONE))]
        return self._found(pointer, moves, self._standard(Naming(self.spec).axes(shape)), "", True)

    def _entries(self, axis: str) -> str:
        """How many entries an axis has in memory."""
        return "L" if axis in TIME else size(self.what.program.sizes[axis]).code

    def _standard(self, axes: Axes) -> dict[str, str]:
        """The steps of contiguous axes."""
        return {a: times(*map(self._entries, axes[n + 1 :])) for n, a in enumerate(axes)}

    # ---- tiles -----------------------------------------------------------------------------------

    def load(self, tile: str, place: Place, axes: Axes, lengths: Sequence[str]) -> list[str]:
        """The lines that fill a tile over ``axes`` of some lengths, with 0 where there is no
        array."""
        rows = self._rows(place, axes, lengths)
        if rows is not None:
            count, width, row, step = rows
            call = [tile, place.first, row, step, count, count, width]
            return [f"load_tile({', '.join(call)});"]
        at, entry = self._entry(place, axes, lengths)
        value = f"real_of(({place.first})[{at}])"
        value = f"{place.base} ? {value} : R(0)" if place.optional else value
        return self._loop([*entry, f"{tile}[i] = {value};"], lengths)

    def store(self, tile: str, place: Place, axes: Axes, lengths: Sequence[str]) -> list[str]:
        """The lines that store a tile, where there is an array."""
        rows = self._rows(place, axes, lengths)
        if rows is not None:
            count, width, row, step = rows
            return [f"store_tile({', '.join([place.first, row, step, tile, count, width])});"]
        at, entry = self._entry(place, axes, lengths)
        return self._loop([*entry, f"put({place.first} + ({at}), {tile}[i]);"], lengths)

    def _rows(
        self, place: Place, axes: Axes, lengths: Sequence[str]
    ) -> tuple[str, str, str, str] | None:
        """Rows, their width, and the steps between rows and between entries, if a tile is that."""
        groups: list[tuple[str, str]] = []
        for axis, length in zip(axes, lengths):
            step = self.step(place, axis, axes)
            if groups and groups[-1][1] == times(length, step):
                groups[-1] = (times(groups[-1][0], length), step)
            else:
                groups.append((length, step))
        if len(groups) > 2:
            return None
        groups = [("1", "0")] * (2 - len(groups)) + groups
        (rows, row), (width, step) = groups
        return rows, width, row, step

    def step(self, place: Place, axis: str, axes: Axes) -> str:
        """From an entry of a tile to the next along an axis, in an array."""
        time = next((a for a in axes if a in TIME), "")
        if axis == time:
            step = place.steps["t"]
            return f"-{_factor(step)}" if self.what.reverse else step
        return place.steps["s" if axis in TIME and "s" in place.steps else axis]

    def _entry(self, place: Place, axes: Axes, lengths: Sequence[str]) -> tuple[str, list[str]]:
        """Where an entry of a tile lies, and the lines that find its indices."""
        lines, terms = [], []
        for k, (axis, length) in enumerate(zip(axes, lengths)):
            behind = times(*lengths[k + 1 :])
            at = "i" if behind == "1" else f"i / {_factor(behind)}"
            lines.append(
                f"const int {index_name(axis)} = {at}{f' % {_factor(length)}' if k else ''};"
            )
            terms.append(times(index_name(axis), self.step(place, axis, axes)))
        return plus(*terms), lines

    @staticmethod
    def _loop(lines: list[str], lengths: Sequence[str]) -> list[str]:
        head = f"for (int i = threadIdx.x; i < {times(*lengths)}; i += THREADS) {{"
        return [head, *(f"    {line}" for line in lines), "}"]


def _factor(code: str) -> str:
    return code if re.fullmatch(r"[\w.]+", code) else f"({code})"


def _shown(*axes: Size | str) -> str:
    return f"[{', '.join(map(str, axes))}]"
