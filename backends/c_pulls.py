"""The program of a way back in, an equal one out where cotangents of decays that are added up come
from few functions: those of pairs with the same decays from one, and those of what decays from the
start, to the end, and over the whole of a chunk from another, which goes on from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce

from lacc.backends.c_ready import triangular
from lacc.tile.program import TIME, Inst, Program, Tiles
from lacc.tile.rebuild import rebuild

MOST = 4
"""Sums over pairs whose cotangents one function finds; as `pulls.c` has it."""

OF_DECAYS = {"prefix_pull": "prefix", "suffix_pull": "suffix", "whole_pull": ""}
"""The cotangents that `pulled` joins, and the value that each comes back through."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Several ``meet_pull``, and which result each of their picks is: a cotangent that is the sum
    of two is one."""

    members: tuple[int, ...]
    results: dict[tuple[int, int], int]

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The results of each member."""
        return tuple((self.results[m, 0], self.results[m, 1]) for m in self.members)


def joined_pulls(program: Program) -> Program:
    """An equal program with ``pulled``: a base and the cotangents of decays, of (decays, base,
    cotangent and value of the prefix, of the suffix, cotangent of the whole), value: which of these
    there are; and with ``meets_pull`` of one or more (cotangent, x, y), value: the results that
    each gives, the decays' behind these."""
    body, users = program.body, program_users(program)
    sums = {n: terms(program, users, n) for n in roots(program, users)}
    pairs = {
        m: p for found in sums.values() for p in _pairs(program, users, found) for m in p.members
    }
    twice: set[int] = set()
    first: set[tuple[int, int]] = set()
    for m in sorted(pairs):
        for u in users[m]:
            result = pairs[m].members[0], pairs[m].results[m, body[u].value]
            twice |= {u} if result in first else set()
            first.add(result)

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op == "meet_pull":
            members: tuple[int, ...] = (n,)
            places: tuple[tuple[int, int], ...] = ((0, 1),)
            if n in pairs:
                members, places = pairs[n].members, pairs[n].places
            tiles = [new(i) for m in members for i in body[m].ins[:3]]
            every = (*tiles, new(inst.ins[3]))
            return f.emit(Inst("meets_pull", every, places, inst.axes, inst.name))
        if inst.op == "pick" and inst.ins[0] in pairs:
            ins = tuple(map(new, inst.ins))
            result = pairs[inst.ins[0]].results[inst.ins[0], inst.value]
            return f.emit(Inst("pick", ins, result, inst.axes, inst.name))
        if inst.op in OF_DECAYS:
            return _pulled(program, f, [n], None, new)
        if n in sums:
            return _summed(program, f, n, sums[n], twice, new)
        return None

    return rebuild(program, rule)


def lower_halves(program: Program) -> Program:
    """An equal program with ``lower`` in place of products of pairs [t, s] of which nothing reads
    what is above the diagonal."""
    body, users = program.body, program_users(program)
    known: dict[int, bool] = {}

    def unread(n: int) -> bool:
        if n not in known:
            known[n] = all(u >= 0 and skips(u, n) for u in users[n])
        return known[n]

    def skips(user: int, n: int) -> bool:
        """Whether a value reads no more of ``n`` than the lower half, or nobody more of it."""
        inst = body[user]
        if inst.op in ("meet_pull", "matrix_pull"):
            return n not in inst.ins[1:]
        if inst.op == "mul" and any(triangular(body, i) for i in inst.ins if i != n):
            return True
        return inst.op == "mask" or (inst.op in ("mul", "add", "sub", "neg") and unread(user))

    def rule(f: Tiles, n: int, new: Callable[[int], int]) -> int | None:
        inst = body[n]
        if inst.op != "contract" or inst.axes != TIME or not unread(n):
            return None
        a, b = sorted(inst.ins, key=lambda i: "s" in body[i].axes)
        if "s" in body[a].axes or "t" in body[b].axes:
            return None
        return f.emit(replace(inst, op="lower", ins=(new(a), new(b))))

    return rebuild(program, rule)


def program_users(program: Program) -> list[list[int]]:
    """What reads each value; -1 for what comes out."""
    users: list[list[int]] = [[] for _ in program.body]
    for n, inst in enumerate(program.body):
        for i in inst.ins:
            users[i].append(n)
    for n in program.outs.values():
        users[n].append(-1)
    return users


def roots(program: Program, users: list[list[int]]) -> Iterable[int]:
    """Sums that are no part of another."""
    return (
        n
        for n, inst in enumerate(program.body)
        if inst.op == "add" and not _inner(program, users, n)
    )


def _inner(program: Program, users: list[list[int]], n: int) -> bool:
    """Whether a sum is but a part of another of its axes."""
    body = program.body
    (user, *others) = users[n] or [-1]
    alone = not others and user >= 0 and body[user].op == "add"
    return alone and body[user].axes == body[n].axes


def terms(program: Program, users: list[list[int]], root: int) -> list[int]:
    """The values that a sum adds up."""
    found: list[int] = []
    for i in program.body[root].ins:
        inner = program.body[i].op == "add" and _inner(program, users, i)
        found += terms(program, users, i) if inner else [i]
    return found


def _pairs(program: Program, users: list[list[int]], found: list[int]) -> Iterable[Pairs]:
    """The ``meet_pull`` of which the cotangents of the same decays are in a sum."""
    body = program.body
    alone = [n for n in found if users[n].count(-1) == 0 and len(users[n]) == 1]
    picks = [n for n in alone if body[n].op == "pick" and body[body[n].ins[0]].op == "meet_pull"]
    decays: dict[int, list[int]] = {}
    for n in picks:
        if body[n].value == 2:
            decays.setdefault(body[body[n].ins[0]].ins[3], []).append(body[n].ins[0])
    for members in decays.values():
        for k in range(0, len(members), MOST):
            group = members[k : k + MOST]
            if len(group) > 1 and not _depends(program, group):
                yield _results(program, users, group)


def _depends(program: Program, group: list[int]) -> bool:
    """Whether one of some values is made of another."""
    seen: set[int] = set()
    stack = [i for n in group for i in program.body[n].ins]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack.extend(program.body[n].ins)
    return not seen.isdisjoint(group)


def _results(program: Program, users: list[list[int]], group: list[int]) -> Pairs:
    """Cotangents of the same value that are added to each other are one result."""
    body = program.body
    known: dict[tuple[int, int, int], int] = {}
    results: dict[tuple[int, int], int] = {}
    for m in group:
        for k in (0, 1):
            picks = [u for u in users[m] if body[u].value == k]
            sum_ = _sum_of(program, users, picks[0]) if len(picks) == 1 else -1
            key = (k, body[m].ins[1 + k], sum_ if sum_ >= 0 else -m - 2)
            results[m, k] = known.setdefault(key, len(known))
    for m in group:
        results[m, 2] = len(known)
    return Pairs(tuple(group), results)


def _sum_of(program: Program, users: list[list[int]], n: int) -> int:
    """The sum that a value is a term of, and nothing else; -1 where it is not so."""
    if len(users[n]) != 1 or users[n][0] < 0:
        return -1
    n = users[n][0]
    if program.body[n].op != "add":
        return -1
    while _inner(program, users, n):
        (n,) = users[n]
    return n


def _summed(
    program: Program,
    f: Tiles,
    root: int,
    found: list[int],
    twice: set[int],
    new: Callable[[int], int],
) -> int | None:
    """A sum of terms, of which those in ``twice`` are in another one's result; None where it stays
    as it is."""
    body, axes = program.body, program.body[root].axes
    pulls = [n for n in found if body[n].op in OF_DECAYS and body[n].axes == axes]
    if not pulls and twice.isdisjoint(found):
        return None
    rest = [new(n) for n in found if n not in pulls and n not in twice]
    total = reduce(f.add, rest) if rest else None
    for decays in dict.fromkeys(body[n].ins[1] for n in pulls):
        each = [n for n in pulls if body[n].ins[1] == decays]
        total = _pulled(program, f, each, total, new)
    assert total is not None
    return total


def _pulled(
    program: Program, f: Tiles, pulls: list[int], base: int | None, new: Callable[[int], int]
) -> int:
    """The sum of a base and cotangents of the same decays, one of each kind at a time."""
    body = program.body
    (decays,) = {body[n].ins[1] for n in pulls}
    axes = body[decays].axes
    while pulls:
        kinds = {body[n].op: n for n in pulls}
        pulls = [n for n in pulls if n not in kinds.values()]
        ins = [new(decays)]
        if base is not None:
            ins.append(f.arrange(base, axes))
        for op, value in OF_DECAYS.items():
            if op in kinds:
                ct = new(body[kinds[op]].ins[0])
                ins.append(f.arrange(ct, axes if value else [a for a in axes if a != "t"]))
                ins += [f.op(value, (ins[0],))] if value else []
        which = (base is not None, *(op in kinds for op in OF_DECAYS))
        base = f.emit(Inst("pulled", tuple(ins), which, axes))
    assert base is not None
    return base
