"""The program of a kernel in, the same as C functions compute it out: operands laid out as device
functions take them, products that are added to something computed where that lies, and products of
which only the lower half is read computed just there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lacc.tile.program import TIME, Axes, Inst, Program, Tiles
from lacc.tile.rebuild import rebuild


def for_c(program: Program) -> Program:
    """An equal program with ``accumulate``: x + a b of (x, a, b), over the axes of its value; and
    with ``lower``: the entries [t, s] of a product of which s <= t, the others 0."""
    body = program.body
    uses = Counter(i for inst in body for i in inst.ins) + Counter(program.outs.values())

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op == "add":
            return _accumulated(program, uses, f, inst, new)
        if inst.op in ("mask", "mul"):
            return _halved(program, uses, f, inst, new)
        if inst.op in ("chain_parts", "tropical"):
            ins = tuple(f.arrange(new(i), inst.axes) for i in inst.ins)
            return f.emit(replace(inst, ins=ins))
        if inst.op == "dense_solve":
            return _solved(program, f, inst, new)
        return None

    return rebuild(program, rule)


def levels_once(program: Program) -> Program:
    """An equal program in which decays that differ only in who sees them are computed together: a
    ``levels`` takes the one before it as its second operand."""
    first: dict[tuple[int, bool], int] = {}
    body = []
    for n, inst in enumerate(program.body):
        if inst.op == "levels":
            known = first.setdefault((inst.ins[0], inst.value[0]), n)
            inst = inst if known == n else replace(inst, ins=(inst.ins[0], known))
        body.append(inst)
    return Program(tuple(body), program.outs, program.sizes)


def _accumulated(
    program: Program, uses: Mapping[int, int], f: Tiles, inst: Inst, new: Callable[[int], int]
) -> int | None:
    for base, product in (inst.ins, inst.ins[::-1]):
        term = program.body[product]
        if term.op != "contract" or uses[product] > 1 or set(term.axes) != set(inst.axes):
            continue
        a, b = term.ins
        if is_product(program.body[a].axes, program.body[b].axes, term.value):
            ins = (f.arrange(new(base), inst.axes), new(a), new(b))
            return f.emit(Inst("accumulate", ins, term.value, inst.axes, inst.name, inst.line))
    return None


def _halved(
    program: Program, uses: Mapping[int, int], f: Tiles, inst: Inst, new: Callable[[int], int]
) -> int | None:
    """A product that is masked, or times what is 0 above its diagonal."""
    body, ins = program.body, inst.ins

    def half(n: int) -> int | None:
        """Value ``n``, of which only what is not above the diagonal is read."""
        whole = body[n]
        if uses[n] > 1 or whole.axes != TIME:
            return None
        if whole.op in ("mul", "neg"):
            return part(whole)
        if whole.op != "contract":
            return None
        a, b = sorted(whole.ins, key=lambda i: "s" in body[i].axes)
        if "s" in body[a].axes or "t" in body[b].axes:
            return None
        return f.emit(replace(whole, op="lower", ins=(new(a), new(b))))

    def part(whole: Inst) -> int | None:
        """An entrywise value with one of its operands halved."""
        for i in whole.ins:
            if (less := half(i)) is not None:
                others = tuple(less if k == i else new(k) for k in whole.ins)
                return f.emit(replace(whole, ins=others))
        return None

    for product, others in ((ins[0], ins[1:]), (ins[-1], ins[:-1])):
        if all(triangular(body, i) for i in others) and (less := half(product)) is not None:
            if inst.op == "mask" and not inst.value and f.body[less].op == "lower":
                return less
            ins = tuple(less if i == product else new(i) for i in ins)
            return f.emit(replace(inst, ins=ins))
    return None


def triangular(body: Sequence[Inst], n: int) -> bool:
    """Whether the entries [t, s] of a value are 0 for s > t."""
    inst = body[n]
    if not {*TIME} <= set(inst.axes):
        return False
    match inst.op:
        case "mask" | "gram" | "matrix" | "inverse" | "lower":
            return True
        case "pick":
            return body[inst.ins[0]].op == "meet" and inst.value == 0
        case "mul":
            return any(triangular(body, i) for i in inst.ins)
        case "div" | "neg":
            return triangular(body, inst.ins[0])
        case "add" | "sub":
            return all(triangular(body, i) for i in inst.ins)
    return False


def _solved(program: Program, f: Tiles, inst: Inst, new: Callable[[int], int]) -> int:
    """A dense system with its rows and columns last."""
    row, column = inst.value
    system, right = inst.ins
    rest = tuple(x for x in program.body[system].axes if x not in (row, column))
    each = tuple(x for x in inst.axes if x not in (*rest, column))
    a = f.arrange(new(system), (*rest, row, column))
    b = f.arrange(new(right), (*rest, row, *each))
    solved = f.emit(replace(inst, ins=(a, b), axes=(*rest, column, *each)))
    return f.arrange(solved, inst.axes)


def multiplies(program: Program, inst: Inst) -> bool:
    """Whether an instruction is a product of matrices, or one that is added to something."""
    if inst.op not in ("contract", "accumulate", "lower"):
        return False
    a, b = (program.body[i].axes for i in inst.ins[-2:])
    return is_product(a, b, inst.value)


def is_product(a: Axes, b: Axes, over: Axes) -> bool:
    """Whether a contraction is of matrices, or of a matrix and a vector."""
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    both = [x for x in a if x in b and x not in over]
    return bool(rows and columns) or (bool(rows or columns) and not both)
