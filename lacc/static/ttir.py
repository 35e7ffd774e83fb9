"""The text of a kernel in Triton's IR goes in; which arguments it loads and stores through, and how
often the body of each of its loops runs, come out.

Only what those two questions need is read: names, operands, blocks and places in the source. A loop
is known by its *place*, the lines of its ``for`` from the innermost function outwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean

Place = tuple[tuple[str, int], ...]
"""(file, line) in the function itself, then where that function is called, and so on."""

NAME = r"%[\w$.-]+"
_USE = re.compile(rf"{NAME}(?:#\d+)?")
_OP = re.compile(
    rf'(?:({NAME})(?::(\d+))?\s*=\s*)?"?((?:tt|scf|arith|math|ub|llvm|cf)\.[\w.]+)"?(.*)'
)
_PLACE = re.compile(r"loc\((#loc\d*)\)\s*$")
_SAMPLES = 4
"""Programs along each axis of a grid, and iterations of a loop, that stand for all of them."""


@dataclass(slots=True)
class Op:
    """One operation: its results, operands, the rest of its line, and its blocks of operations."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    blocks: list[list[Op]] = field(default_factory=list)
    place: Place = ()

    @property
    def carried(self) -> list[tuple[str, str]]:
        """The carried values of a loop: name in its body, value before it."""
        found = re.search(r"iter_args\((.*?)\)", self.text)
        return re.findall(rf"({NAME}) = ({NAME}(?:#\d+)?)", found[1]) if found else []


@dataclass(frozen=True, slots=True)
class Turns:
    """A loop of the source: its place, the loops around it, how often its body runs in a program
    (the mean over programs)."""

    place: Place
    depth: int
    count: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """The entry function: its arguments by name (the specialised ones are gone) and its body."""

    arguments: tuple[str, ...]
    body: list[Op]


def parse(text: str) -> Kernel:
    """The kernel in the text of a module."""
    places = _places(text)
    arguments: tuple[str, ...] = ()
    body: list[Op] = []
    blocks = [body]
    open_: list[Op | None] = []  # the op whose block it is, None for module and function
    for line in map(str.strip, text.splitlines()):
        if line.startswith("}"):
            owner = open_.pop()
            if owner is None:
                continue
            blocks.pop()
            if line.endswith("{"):  # } else {, } do {
                _enter(owner, blocks, open_)
            elif found := _PLACE.search(line):
                owner.place = places.get(found[1], ())
        elif line.startswith("tt.func"):
            if "public" in line:
                arguments = tuple(re.findall(r"[(,]\s*%([\w$.-]+): ", line))
            open_.append(None)
        elif found := _OP.match(line):
            op = _op(*found.groups())
            blocks[-1].append(op)
            if line.endswith("{") or re.search(r"\(\{\s*$", line):
                _enter(op, blocks, open_)
        elif line.endswith("{"):
            open_.append(None)
    return Kernel(arguments, body)


def _enter(op: Op, blocks: list[list[Op]], open_: list[Op | None]) -> None:
    op.blocks.append([])
    blocks.append(op.blocks[-1])
    open_.append(op)


def _op(result: str | None, count: str | None, name: str, rest: str) -> Op:
    results: tuple[str, ...] = () if result is None else (result,)
    if result is not None and count is not None:
        results = tuple(f"{result}#{n}" for n in range(int(count)))
    values = rest.split(" : ")[0]
    return Op(name, results, tuple(_USE.findall(values)), rest)


def _places(text: str) -> dict[str, Place]:
    """The place behind each location that the text names."""
    given = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))
    found: dict[str, Place] = {}

    def place(name: str) -> Place:
        if name not in found:
            said = given.get(name, "")
            inside = re.findall(r"#loc\d*", said)
            if line := re.match(r'"(.*)":(\d+):\d+', said):
                found[name] = ((line[1], int(line[2])),)
            elif said.startswith("callsite"):
                found[name] = sum(map(place, inside), ())
            else:
                found[name] = place(inside[0]) if inside else ()
        return found[name]

    for name in given:
        place(name)
    return found


# ---- what is loaded and stored -------------------------------------------------------------------


def accesses(kernel: Kernel) -> dict[str, str]:
    """ "r", "w" or "rw" for each argument that is a pointer into memory the kernel touches."""
    roots = {f"%{name}": {name} for name in kernel.arguments}
    found: dict[str, set[str]] = {}

    def of(names: Sequence[str]) -> set[str]:
        return set().union(*(roots.get(name, set()) for name in names))

    def walk(body: list[Op]) -> None:
        for op in body:
            what = op.name.rpartition(".")[2]
            if what in ("load", "gather", "descriptor_load", "descriptor_gather"):
                touched = "r"
            elif what in ("store", "descriptor_store", "descriptor_scatter"):
                touched = "w"
            else:
                touched = "rw" if "atomic" in what or what == "descriptor_reduce" else ""
            if touched and op.name != "tt.gather":
                for root in of(op.operands[:1]):
                    found.setdefault(root, set()).update(touched)
                continue
            for name, before in op.carried:
                roots[name] = of([before])
            for block in op.blocks:
                walk(block)
            yields = [block[-1].operands for block in op.blocks if block]
            if op.name.startswith("scf."):
                for n, result in enumerate(op.results):
                    roots[result] = of([names[n] for names in yields if n < len(names)])
            elif "!tt.ptr" in op.text or "!tt.tensordesc" in op.text:
                roots.update(dict.fromkeys(op.results, of(op.operands)))

    walk(kernel.body)
    return {root: "".join(sorted(how)) for root, how in found.items()}


# ---- how often loops run -------------------------------------------------------------------------


class Unknown(Exception):
    """A loop whose trips do not follow from the arguments; says where it stands."""


_WHOLE: dict[str, Callable[..., int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: _toward_zero(a, b),
    "arith.divui": lambda a, b: a // b,
    "arith.remsi": lambda a, b: a - b * _toward_zero(a, b),
    "arith.remui": lambda a, b: a % b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.floordivsi": lambda a, b: a // b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.minui": min,
    "arith.maxui": max,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.shli": lambda a, b: a << b,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.shrui": lambda a, b: a >> b,
    "arith.extsi": int,
    "arith.extui": int,
    "arith.trunci": int,
    "arith.index_cast": int,
    "arith.select": lambda c, a, b: a if c else b,
}
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def executions(kernel: Kernel, arguments: Mapping[str, object], grid: Sequence[int]) -> list[Turns]:
    """The loops in program order, each before those inside it, counted for programs spread over the
    grid. ``arguments`` are those of the launch. Raises Unknown.
    """
    loops = list(_loops(kernel.body, 0))
    known = {
        f"%{name}": value
        for name in kernel.arguments
        if isinstance(value := arguments.get(name), int)
    }
    counts: list[dict[int, float]] = []
    for program in product(*(_spread(range(size)) for size in grid)):
        ran = {id(op): 0.0 for op, _ in loops}
        _run(kernel.body, dict(known), program, grid, 1.0, ran)
        counts.append(ran)
    return [Turns(op.place, depth, fmean(ran[id(op)] for ran in counts)) for op, depth in loops]


def _loops(body: list[Op], depth: int) -> Iterator[tuple[Op, int]]:
    """Every loop with the number of loops around it."""
    for op in body:
        loop = op.name in ("scf.for", "scf.while")
        if loop:
            yield op, depth
        for block in op.blocks:
            yield from _loops(block, depth + loop)


def _spread(values: range) -> list[int]:
    """Some of the values: all of a few, else evenly spread ones with both ends."""
    if len(values) <= _SAMPLES:
        return list(values)
    return [values[round(n * (len(values) - 1) / (_SAMPLES - 1))] for n in range(_SAMPLES)]


def _run(
    body: list[Op],
    known: dict[str, int],
    program: Sequence[int],
    grid: Sequence[int],
    times: float,
    ran: dict[int, float],
) -> None:
    """Runs the whole numbers of a block, which is entered ``times`` times, and counts its loops."""
    for op in body:
        operands = [known.get(name) for name in op.operands]
        match op.name:
            case "scf.while":
                raise Unknown(f"a while loop at {_text(op.place)}")
            case "scf.for":
                bounds = operands[:4]
                if None in bounds[1:]:
                    raise Unknown(f"the bounds of a loop at {_text(op.place)}")
                _, first, end, step = bounds
                turns = range(first or 0, end or 0, step or 1)
                ran[id(op)] += times * len(turns)
                if turns and any(inner.blocks for inner in op.blocks[0]):
                    shown = _spread(turns)
                    for at in shown:
                        inside = known | {op.operands[0]: at}
                        each = times * len(turns) / len(shown)
                        _run(op.blocks[0], inside, program, grid, each, ran)
            case "scf.if":
                chosen = (
                    op.blocks if operands[0] is None else op.blocks[1 - bool(operands[0]) :][:1]
                )
                for block in chosen:
                    _run(block, known, program, grid, times, ran)
                if operands[0] is not None and chosen and chosen[0]:
                    _bind(op.results, [known.get(y) for y in chosen[0][-1].operands], known)
            case "arith.constant":
                if value := re.match(r"\s*(?:(-?\d+)|(true|false))\b(?!\.)", op.text):
                    known[op.results[0]] = int(value[1] or value[2] == "true")
            case "tt.get_program_id" | "tt.get_num_programs":
                axis = "xyz".index(op.text.split()[0])
                values = program if op.name == "tt.get_program_id" else grid
                known[op.results[0]] = values[axis] if axis < len(values) else 0
            case "arith.cmpi" if None not in operands:
                how = op.text.split(",")[0].strip()
                known[op.results[0]] = int(_COMPARED[how.strip("su")](*operands))  # type: ignore[arg-type]
            case name if name in _WHOLE and operands and None not in operands:
                known[op.results[0]] = _WHOLE[name](*operands)


def _bind(names: Sequence[str], values: Sequence[int | None], known: dict[str, int]) -> None:
    known.update((name, value) for name, value in zip(names, values) if value is not None)


def _text(place: Place) -> str:
    return ", called at ".join(f"line {line}" for _, line in place) or "no line"
