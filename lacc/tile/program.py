"""Tile programs: a flat SSA list over tiles with named axes; built, printed and verified here.

Notation: axis ``t`` is the token within a chunk, ``s`` the same tokens in the role of columns,
other axes are dims of the spec (``K``, ``V``; a second axis of the same size is ``K'``). A value is
a tile over a set of axes, per sequence, head and chunk. Products of tiles contract axes by name, so
there are no transposes and no layouts in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lacc.ir.ops import OPS
from lacc.spec.shapes import Size

Axes = tuple[str, ...]
TIME: Axes = ("t", "s")
PAST = Size.of("#past")
"""How many earlier tokens an attention without a window sees."""


@dataclass(frozen=True, slots=True)
class Inst:
    """One instruction: value ``n`` of a program is what ``body[n]`` computes.

    ``value`` is what the op needs besides tiles (see `lacc.tile.ops`), ``name`` a hint for emitted
    code and ``line`` the line of the spec it comes from (0: none).
    """

    op: str
    ins: tuple[int, ...]
    value: Any
    axes: Axes
    name: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Program:
    """``body`` in order, ``outs`` by name, and the size of every axis but t and s."""

    body: tuple[Inst, ...]
    outs: Mapping[str, int]
    sizes: Mapping[str, Size]

    def loads(self, kind: str) -> dict[str, int]:
        """Loaded values of one kind, by name.

        Given with a call are "input", "param" and "buffer"; "state" is the state before the first
        token, "last" that after the last one, "stored" what an earlier pass gives, "index" a
        position or a count; "cotangent" and "dstate" come to a reverse.
        """
        return {
            i.value[1]: n for n, i in enumerate(self.body) if i.op == "load" and i.value[0] == kind
        }

    def __str__(self) -> str:
        lines = []
        for n, inst in enumerate(self.body):
            ins = ", ".join(f"%{i}" for i in inst.ins)
            value, said = shown(inst.op, inst.value), inst.name
            said = "" if said and value.endswith(f" {said}") else said
            name = f"  # {said}" if said else ""
            taken = ", ".join(part for part in (ins, value) if part)
            lines.append(f"%{n}: [{' '.join(inst.axes)}] = {inst.op}({taken}){name}")
        lines.extend(f"out {name} = %{n}" for name, n in self.outs.items())
        return "\n".join(lines)


def side_by_side(program: Program) -> frozenset[int]:
    """Values that are only stored and put together of parts: each part is stored where it belongs,
    and no kernel holds the whole."""
    used = {i for inst in program.body for i in inst.ins}
    return frozenset(
        n for n in program.outs.values() if program.body[n].op == "concat" and n not in used
    )


def taken_apart(program: Program) -> frozenset[int]:
    """Kept values of which parts are taken and nothing else: each part is loaded by itself."""
    users: dict[int, set[str]] = {}
    for inst in program.body:
        for i in inst.ins:
            users.setdefault(i, set()).add(inst.op)
    return frozenset(n for n in program.loads("kept").values() if users.get(n) == {"take"}) - {
        *program.outs.values()
    }


def shown(op: str, value: Any) -> str:
    """What an op needs besides tiles, in words: axes, names and numbers; "" for nothing."""
    match op, value:
        case _, None:
            return ""
        case "load", (kind, name):
            return f"{kind} {name}"
        case "rename", pairs:
            return ", ".join(f"{old} as {new}" for old, new in pairs)
        case "levels", (logs, strict):
            return ", ".join(word for word, yes in (("logs", logs), ("strict", strict)) if yes)
        case (("contract" | "sum"), axes):
            return f"over {' '.join(axes)}"
    if isinstance(value, tuple):
        return ", ".join(shown("", part) for part in value)
    return str(value)


def rank_axes(n: int) -> tuple[str, str]:
    """The axes of ``n`` low-rank terms of a token, in the roles of rows and of columns."""
    return f"#{n}", f"#{n}'"


def state_axes(n: int) -> tuple[str, str, str]:
    """The axes of ``n`` states that need one another: rows, columns, those at the start."""
    return f"@{n}i", f"@{n}j", f"@{n}k"


def ordered(axes: Iterable[str]) -> Axes:
    """Axes without repeats: ranks, time, coupled states, the others in order of appearance."""
    seen = dict.fromkeys(axes)
    ranks, states = (sorted(a for a in seen if a[0] == kind) for kind in "#@")
    first = (*ranks, *(a for a in TIME if a in seen), *states)
    return (*first, *(a for a in seen if a not in first))


class Tiles:
    """Builds a program. Equal instructions are one value. Elementwise methods are the rows of the
    op table, so gradient rules written for arrays build tiles here (``f.mul(ct, y)``, numbers for
    constants)."""

    def __init__(self, sizes: Mapping[str, Size], body: Iterable[Inst] = ()) -> None:
        self.sizes = dict(sizes)
        self.body: list[Inst] = list(body)
        self._known: dict[tuple[object, ...], int] = {}
        for n, inst in enumerate(self.body):
            self._known.setdefault(self._key(inst), n)
        self.line = 0
        self.guarded = False

    @staticmethod
    def _key(inst: Inst) -> tuple[object, ...]:
        return (inst.op, inst.ins, type(inst.value), inst.value, inst.axes)

    def emit(self, inst: Inst) -> int:
        """The value of ``inst``, new or known."""
        key = self._key(inst)
        if key not in self._known:
            self._known[key] = len(self.body)
            self.body.append(inst if inst.line else replace(inst, line=self.line))
        return self._known[key]

    def axes(self, v: int) -> Axes:
        """The axes of a value."""
        return self.body[v].axes

    def named(self, v: int, name: str) -> int:
        """The same value, with a name for emitted code unless it has one."""
        if not self.body[v].name and self.body[v].op != "const":
            self.body[v] = replace(self.body[v], name=name)
        return v

    def finish(self, outs: Mapping[str, int]) -> Program:
        """The program computing ``outs``, without what they do not need."""
        return prune(Program(tuple(self.body), dict(outs), dict(self.sizes)))

    # ---- leaves
    # ----------------------------------------------------------------------------------------------

    def load(self, kind: str, name: str, axes: Axes, called: str = "") -> int:
        """What comes from outside, under ``name``; ``called`` something else in emitted code."""
        return self.emit(Inst("load", (), (kind, name), ordered(axes), called or name))

    def const(self, value: float) -> int:
        """A number."""
        return self.emit(Inst("const", (), float(value), ()))

    def size(self, size: Size) -> int:
        """A size as a number."""
        constant = size.constant
        return (
            self.const(constant) if constant is not None else self.emit(Inst("size", (), size, ()))
        )

    # ---- elementwise
    # -----------------------------------------------------------------------------------------

    def ew(self, op: str, *xs: int | float) -> int:
        """An elementwise row of the op table; axes align by name."""
        ins = tuple(x if isinstance(x, int) else self.const(x) for x in xs)
        folded = self._identity(op, ins)
        if folded is not None:
            return folded
        return self.emit(Inst(op, ins, None, ordered(a for i in ins for a in self.axes(i))))

    def _identity(self, op: str, ins: tuple[int, ...]) -> int | None:
        """x·1, x+0, --x and the like: the value they are."""
        number = [self.body[i].value if self.body[i].op == "const" else None for i in ins]
        match op, number:
            case ("mul" | "div", [_, 1.0]) | ("add" | "sub", [_, 0.0]):
                return ins[0]
            case ("mul", [1.0, _]) | ("add", [0.0, _]):
                return ins[1]
            case ("mul", [-1.0, _]):
                return self.ew("neg", ins[1])
            case ("mul", [_, -1.0]):
                return self.ew("neg", ins[0])
            case ("mul", [float(a), float(b)]):
                return self.const(a * b)
            case ("mul", [0.0, _]) | ("mul", [_, 0.0]):
                return self.expand(self.const(0.0), self.axes(ins[0]) + self.axes(ins[1]))
            case ("add", [float(a), float(b)]):
                return self.const(a + b)
            case ("neg", [float(a)]):
                return self.const(-a)
        if op == "add":
            first, second = (self.body[i] for i in ins)
            if first.op == second.op == "stack" and first.value == second.value:
                return self.stack(list(map(self.add, first.ins, second.ins)), first.value)
        if op == "neg" and self.body[ins[0]].op == "neg":
            return self.body[ins[0]].ins[0]
        if op in ("mul", "add", "sub", "div"):
            for n, v in enumerate(ins):
                plain = self._unexpanded(v, ins[1 - n])
                if plain != v:
                    return self.ew(op, *((plain, ins[1]) if n == 0 else (ins[0], plain)))
        return None

    def _unexpanded(self, v: int, other: int) -> int:
        """What ``v`` expands, where ``other`` has the axes anyway."""
        inst = self.body[v]
        if inst.op == "expand" and set(inst.axes) <= set(self.axes(other)) | set(
            self.axes(inst.ins[0])
        ):
            return inst.ins[0]
        return v

    def pull(self, ct: int, d: int | float) -> int:
        """ct · d; below a choice and where d may be infinite (``guarded``) 0 wherever ct is 0, so
        that neither a branch not taken nor a root of 0 that nobody asks for leaks a NaN."""
        product = self.ew("mul", ct, d)
        if self.guarded and isinstance(d, int) and self.body[d].op != "const":
            return self.ew("where", self.ew("eq", ct, 0.0), 0.0, product)
        return product

    def __getattr__(self, op: str) -> Callable[..., int]:
        if op.startswith("_") or op not in OPS or not OPS[op].entrywise:
            raise AttributeError(op)
        return lambda *xs: self.ew(op, *xs)

    # ---- axes --------------------------------------------------------------------------------

    def rename(self, v: int, names: Mapping[str, str]) -> int:
        """The same tile with axes under other names (a change of role, no data moves)."""
        names = {old: new for old, new in names.items() if old in self.axes(v) and old != new}
        if not names:
            return v
        inst = self.body[v]
        if inst.op == "rename":
            first: dict[str, str] = dict(inst.value)
            inner = inst.ins[0]
            joined = {a: names.get(first.get(a, a), first.get(a, a)) for a in self.axes(inner)}
            return self.rename(inner, joined)
        axes = tuple(names.get(a, a) for a in inst.axes)
        return self.emit(Inst("rename", (v,), tuple(sorted(names.items())), ordered(axes)))

    def expand(self, v: int, axes: Iterable[str]) -> int:
        """Broadcast over the axes of ``axes`` that ``v`` lacks."""
        more = tuple(a for a in ordered(axes) if a not in self.axes(v))
        if not more:
            return v
        inst = self.body[v]
        if inst.op == "expand":
            return self.expand(inst.ins[0], (*inst.axes, *more))
        return self.emit(Inst("expand", (v,), more, ordered((*self.axes(v), *more))))

    def arrange(self, v: int, axes: Iterable[str]) -> int:
        """The same tile, broadcast to and laid out in exactly these axes (time first)."""
        axes = ordered(axes)
        v = self.expand(v, axes)
        return v if self.axes(v) == axes else self.emit(Inst("rename", (v,), (), axes))

    def contract(self, a: int, b: int, over: Iterable[str]) -> int:
        """Σ over axes of a · b; the other axes stay."""
        over = tuple(x for x in ordered(over) if x in self.axes(a) or x in self.axes(b))
        for x in over:
            if x not in self.axes(a):
                return self.contract(a, self.sum(b, (x,)), [o for o in over if o != x])
            if x not in self.axes(b):
                return self.contract(self.sum(a, (x,)), b, [o for o in over if o != x])
        if not over:
            return self.ew("mul", a, b)
        axes = ordered(x for x in (*self.axes(a), *self.axes(b)) if x not in over)
        return self.emit(Inst("contract", (a, b), over, axes))

    def sum(self, v: int, over: Iterable[str]) -> int:
        """Σ over axes; an axis that ``v`` lacks multiplies by nothing and must not be asked for."""
        over = tuple(x for x in ordered(over) if x in self.axes(v))
        if not over:
            return v
        return self.emit(Inst("sum", (v,), over, tuple(a for a in self.axes(v) if a not in over)))

    def stack(self, parts: Sequence[int], axis: str) -> int:
        """Tiles as the entries of a new axis; they broadcast."""
        size = Size.of(len(parts))
        assert self.sizes.setdefault(axis, size) == size, f"{axis} has another size"
        return self.op("stack", tuple(parts), axis)

    def entry(self, v: int, axis: str, n: int) -> int:
        """Entry ``n`` of an axis; of a stack, what stands there."""
        inst = self.body[v]
        if inst.op == "stack" and inst.value == axis:
            return self.expand(inst.ins[n], (a for a in inst.axes if a != axis))
        return self.op("entry", (v,), (axis, n))

    def op(self, op: str, ins: tuple[int, ...], value: object = None) -> int:
        """Any other row of `lacc.tile.ops`; its type rule gives the axes."""
        from lacc.tile.ops import TILE_OPS

        axes = TILE_OPS[op].axes(value, *(self.axes(i) for i in ins))
        return self.emit(Inst(op, ins, value, ordered(axes)))


def cone(program: Program, roots: Iterable[int]) -> set[int]:
    """The values that ``roots`` are made of, themselves among them."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(program.body[n].ins)
    return found


def prune(program: Program) -> Program:
    """The program without instructions that no output needs."""
    live = cone(program, program.outs.values())
    new = {n: k for k, n in enumerate(sorted(live))}
    body = tuple(
        replace(program.body[n], ins=tuple(new[i] for i in program.body[n].ins))
        for n in sorted(live)
    )
    return Program(body, {name: new[n] for name, n in program.outs.items()}, program.sizes)


def numbers(program: Program) -> frozenset[int]:
    """Values that are plain numbers wherever they are computed: made of constants and sizes alone,
    entry by entry."""
    found: set[int] = set()
    for n, inst in enumerate(program.body):
        made = inst.op in OPS and not inst.axes and found.issuperset(inst.ins)
        if made or inst.op in ("const", "size"):
            found.add(n)
    return frozenset(found)


def verify(program: Program) -> Program:
    """The program itself, if it is well formed: operands come first, axes are those the type rules
    give, a new name of an axis has its size."""
    from lacc.tile.ops import TILE_OPS

    for n, inst in enumerate(program.body):
        assert all(i < n for i in inst.ins), f"%{n} uses a later value"
        ins = [program.body[i].axes for i in inst.ins]
        if inst.op == "load":
            assert not ins, f"%{n}: a load has no operands"
        elif inst.op in TILE_OPS:
            expected = set(TILE_OPS[inst.op].axes(inst.value, *ins))
            assert set(inst.axes) == expected, f"%{n} {inst.op}: axes {inst.axes}, not {expected}"
        else:
            assert inst.op in OPS, f"%{n}: no op {inst.op}"
            assert set(inst.axes) == {a for axes in ins for a in axes}, f"%{n} {inst.op}: axes"
        assert all(a in TIME or a in program.sizes for a in inst.axes), (
            f"%{n}: an axis without size"
        )
        for old, new in inst.value if inst.op == "rename" else ():
            same = old in TIME or program.sizes[old] == program.sizes[new]
            assert same, f"%{n}: {old} and {new} differ in size"
    return program
