"""The tiles of a CUDA kernel and the sizes of a call in, the bytes of shared memory and of scratch
memory that a block of it needs out: what `templates/cuda/places.cuh` does at compile time.

This module stands alone: its text is pasted into emitted files.
"""

from __future__ import annotations

import ast
import operator
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from typing import Any

REAL, ALIGNED = 4, 32
"""Bytes of a number of a tile, and the numbers that the places of tiles are multiples of."""
OPERANDS = (64 + 128) * 128
"""Bytes that products stage their operands in."""
LEAF = 8
"""Tokens that decays multiply one by one."""

STRIP = 64
"""Channels whose gradients come back at once."""

Tile = tuple[str, int, int]
"""The size of a tile in numbers, as C, and the stretches between barriers from which to which it
is held."""

Held = tuple[int, int, int]
"""The same with its size as a number, which is a multiple of ALIGNED."""


def largest(a: int, b: int) -> int:
    return max(a, b)


def lengths(C: int) -> int:
    """How many lengths of runs meet: LEAF, 2 LEAF, ... below C."""
    return max(0, (max(C, 1) - 1).bit_length() - 3)


def all_runs(C: int) -> int:
    return 1 + sum(-(-C // (LEAF << n)) for n in range(lengths(C)))


def levels_room(C: int, D: int) -> int:
    return (C + all_runs(C)) * D + ((C + 2 * lengths(C)) * C if D == 1 else 0)


def meet_room(C: int, X: int) -> int:
    return 2 * C


def none(*_: int) -> int:
    return 0


def meet_pull_room(C: int, X: int, D: int) -> int:
    return C * (2 * C + 1) if D == 1 else C * min(X, STRIP)


def rows(C: int, X: int) -> int:
    return C * X


def matrix_pull_room(C: int, X: int) -> int:
    return C * max(C, X)


def inverse_room(C: int) -> int:
    return C * C


def solve_room(C: int, D: int) -> int:
    return C * C + C * max(C, D)


def dense_solve_room(n: int, m: int) -> int:
    return n * n


ROOMS: dict[str, Callable[..., int]] = {
    "largest": largest,
    "levels_room": levels_room,
    "meet_room": meet_room,
    "gram_room": meet_room,
    "decayed_room": none,
    "meet_pull_room": meet_pull_room,
    "decayed_pull_room": meet_pull_room,
    "prefix_pull_room": rows,
    "suffix_pull_room": rows,
    "whole_pull_room": none,
    "matrix_pull_room": matrix_pull_room,
    "inverse_room": inverse_room,
    "solve_room": solve_room,
    "solve_parts_room": none,
    "dense_solve_room": dense_solve_room,
}
"""What the device library's functions work in, in numbers, as they say it themselves."""

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


def evaluated(size: str, sizes: Mapping[str, int]) -> int:
    """A size as C in names of ``sizes`` as a number."""
    return _number(ast.parse(size, mode="eval").body, sizes)


def _number(x: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(x, ast.Constant):
        return int(str(x.value))
    if isinstance(x, ast.Name):
        return sizes[x.id]
    if isinstance(x, ast.BinOp):
        return OPERATORS[type(x.op)](_number(x.left, sizes), _number(x.right, sizes))
    assert isinstance(x, ast.Call) and isinstance(x.func, ast.Name), ast.dump(x)
    return ROOMS[x.func.id](*(_number(arg, sizes) for arg in x.args))


def in_numbers(tile: Tile, sizes: Mapping[str, int]) -> Held:
    """A tile at some sizes."""
    size, first, last = tile
    return -(-evaluated(size, sizes) // ALIGNED) * ALIGNED, first, last


def fitted(tiles: Sequence[Held], limit: int) -> list[tuple[bool, int]]:
    """Whether each tile lies far, as it does not fit into ``limit`` numbers, and where: each at the
    first place that is free as long as it is held; the first tiles have the choice."""
    found: list[tuple[bool, int]] = []
    lies: tuple[list[tuple[int, int, int, int]], ...] = ([], [])  # place, its end; from, to when
    for many, first, last in tiles:
        for far in (False, True):
            place = 0
            for at, end, begins, ends in lies[far]:
                if at >= place + many:
                    break
                if place < end and begins <= last and first <= ends:
                    place = end
            if far or place + many <= limit:
                insort(lies[far], (place, place + many, first, last))
                found.append((far, place))
                break
    return found


def held(tiles: Sequence[Held]) -> int:
    """The most numbers that are held at once."""
    begins = {first for _, first, _ in tiles}
    return max((sum(n for n, f, t in tiles if f <= at <= t) for at in begins), default=0)


def arena(tiles: Sequence[Tile], sizes: Mapping[str, int], limit: int) -> tuple[int, int]:
    """Bytes of shared and of scratch memory of a block, of which no more than ``limit`` are
    shared."""
    numbers = [in_numbers(tile, sizes) for tile in tiles]
    places = fitted(numbers, (limit - OPERANDS) // REAL)
    ends = [(far, at + many) for (far, at), (many, _, _) in zip(places, numbers)]
    near, far = (
        max((end for is_far, end in ends if is_far == x), default=0) for x in (False, True)
    )
    return OPERANDS + near * REAL, far * REAL
