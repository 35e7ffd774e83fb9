"""How CUDA kernels are launched: what a block is taken to hold is what the compiler places, and
chunks, blocks and threads follow the call and the device."""

from __future__ import annotations

import ctypes
import shutil
from functools import cache
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("torch")

from lacc import driver
from lacc.backends.cuda_barriers import Step, Touch
from lacc.backends.cuda_order import Needs, Piece, planned
from lacc.backends.cuda_places import Tile, parted
from lacc.backends.cuda_places import placed as placed_tiles
from lacc.plan.devices import device_named
from lacc.runtime.compiled import placed
from lacc.runtime.cuda_arena import OPERANDS, arena, held
from lacc.runtime.cuda_building import Wanted
from lacc.runtime.cuda_emulation import COMPILER, Emulated
from lacc.runtime.kernel import load


@cache
def texts(name: str) -> dict[str, str]:
    """The files of an example."""
    files = driver.compile(ROOT / "examples" / f"{name}.la", "cuda").files
    assert files is not None
    return dict(files)


@cache
def module(name: str) -> dict[str, Any]:
    """The names of its Python file."""
    files = texts(name)
    return load(name, files[f"{name}_cuda.py"], placed(name, files) / f"{name}_cuda.py")


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
@pytest.mark.parametrize("name", [pytest.param("gla", marks=pytest.mark.full), "gated_deltanet"])
def test_a_block_holds_what_choices_take_it_to(name: str) -> None:
    """In so little shared memory that some tiles lie in scratch memory."""
    here, dims, tokens, block, limit = module(name), {"K": 40, "V": 72}, 32, 32, 40 << 10
    macros = {f"D_{axis}": size for axis, size in dims.items()} | {"CHUNK_L": tokens}
    macros |= {"BLOCK": block, "SHARED_LIMIT": limit, "PRECISION": 0}
    said = tuple(f"{macro}={value}" for macro, value in macros.items())
    wanted = Wanted(name, name, {k: x for k, x in texts(name).items() if k[-2:] != "py"}, said, 128)
    library = ctypes.CDLL(str(Emulated(more=("-O0",), races=False).library(wanted)))
    far = 0
    for kernel, work in here["WORKS"].items():
        most, size = work.split
        sizes = {**dims, "L": tokens}
        if size:
            sizes[most] = min(block, here["evaluated"](size, sizes))
        found = [library[f"{name}_{kernel}_{memory}"] for memory in ("shared", "scratch")]
        for function in found:
            function.restype = ctypes.c_int64
        shared, scratch = here["arena"](work.tiles, sizes, limit)
        far += scratch
        assert found[1]() == scratch, kernel
        if work.kind == "chunk":
            assert found[0]() == shared, kernel
        else:  # rows of the next chunk have what is left
            assert shared <= found[0]() <= limit, kernel
    assert far


def call(name: str, width: int, tokens: int, heads: int, device: str) -> Any:
    """A call of one sequence in bfloat16."""
    return module(name)["Load"]((("K", width), ("V", width)), 1, heads, tokens, 2, device)


def chunk(name: str, asked: Any) -> int:
    """Tokens of a chunk for it."""
    here = module(name)
    works = {kernel: here["WORKS"][kernel] for kernel in here["launched"].planned}
    found: int = here["chunk_of"](works, asked)
    return found


def test_blocks_have_no_more_shared_memory_than_the_device() -> None:
    here = module("gated_deltanet")
    for device in ("sm_80", "sm_90", "sm_100"):
        for width in (64, 256):
            asked = call("gated_deltanet", width, 4096, 16, device)
            for work in here["WORKS"].values():
                for tokens in (16, 32, 64):
                    found = here["choice"](work, asked, tokens)
                    assert found.shared <= device_named(device).shared
                    assert found.block in (16, 32, 64, 128) and found.threads in (128, 256)


def test_chunks_are_shorter_where_tiles_would_not_fit() -> None:
    assert chunk("kda", call("kda", 128, 4096, 16, "sm_90")) == 64
    assert chunk("kda", call("kda", 128, 4096, 16, "sm_80")) == 32


def test_of_chunks_that_take_about_as_long_those_are_taken_that_move_less() -> None:
    asked = call("rwkv7", 128, 4096, 16, "sm_90")
    here = module("rwkv7")
    works = [here["WORKS"][kernel] for kernel in here["launched"].planned]
    long, short = ([here["choice"](work, asked, n) for work in works] for n in (64, 32))
    seconds, moved = (
        [sum(getattr(x, of) for x in found) for found in (long, short)]
        for of in ("seconds", "moved")
    )
    assert max(seconds) < 1.1 * min(seconds) and moved[1] < moved[0]
    assert chunk("rwkv7", asked) == 32


def test_products_are_made_again_where_tiles_would_not_fit() -> None:
    """One that waits while the most is held, and what is added up, which is made once."""
    works = [
        Piece(frozenset("p"), frozenset(), cheap=True, product=True),
        Piece(frozenset("a"), frozenset("p")),
        Piece(frozenset("b"), frozenset("a"), room=4),
        Piece(frozenset("c"), frozenset("bp")),
        Piece(frozenset(), frozenset("c")),
    ]
    needs = Needs(works, dict.fromkeys("pabc", 2), frozenset())
    for most, numbers in ((10, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 0, 3, 4])):
        plan, copies = planned(needs, 8, most)
        assert [placed.number for placed in plan] == numbers
        assert copies == ({} if most == 10 else {"p_2": "p"})
    assert plan[3].makes == {"p_2"} and plan[4].reads == {"b", "p_2"}


def test_tiles_take_no_more_room_than_is_held_at_once() -> None:
    """In the order in which they are given the last one would fit into neither gap."""
    spans = {"a": (1, 0, 3), "b": (1, 0, 1), "c": (1, 2, 5), "d": (2, 4, 5)}
    tiles = [Tile(name, f"{32 * n}", *span) for name, (n, *span) in spans.items()]
    given = [tile.at({}) for tile in tiles]
    assert arena([(t.size, t.first, t.last) for t in tiles], {}, 1 << 60)[0] == OPERANDS + 4 * 128
    found = placed_tiles(tiles, [{}], 1 << 20)
    assert sorted(found, key=lambda t: t.name) == tiles
    needed = arena([(t.size, t.first, t.last) for t in found], {}, 1 << 60)[0]
    assert needed == OPERANDS + 4 * held(given) == OPERANDS + 4 * 96


def test_a_barrier_lets_tiles_go_where_the_most_is_held() -> None:
    def step(*names: str) -> Step:
        return Step([], tuple(Touch(name, True) for name in names))

    steps = [step("a"), step("a", "b"), step("b", "c"), step("c", "d")]
    sizes = dict.fromkeys("abcd", 8)
    assert parted(steps, sizes, 32) is None
    assert parted(steps, sizes, 31) is steps[2]
    steps[2].waits = True
    assert parted(steps, sizes, 16) is steps[3]
    steps[3].waits = True
    assert parted(steps, sizes, 8) is None


def test_tiles_of_an_erase_fit_into_shared_memory() -> None:
    here = module("gated_deltanet")
    asked = call("gated_deltanet", 128, 4096, 16, "sm_90")
    assert {here["choice"](work, asked, 64).scratch for work in here["WORKS"].values()} == {0}


def test_blocks_are_narrower_where_there_is_little_to_do() -> None:
    here = module("gated_deltanet")
    work = here["WORKS"]["backward_0a"]
    assert work.split[1] == "V"
    little = here["choice"](work, call("gated_deltanet", 128, 256, 1, "sm_90"), 64)
    much = here["choice"](work, call("gated_deltanet", 128, 4096, 16, "sm_90"), 64)
    assert little.block == 16 and much.block == 128
