"""The CUDA emitter: where threads wait for one another, where tiles lie, which kernels there are,
and that barriers which are missing are seen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from conftest import ROOT

from lacc import driver
from lacc.backends.cuda_barriers import Block, Step, Touch, place_barriers, steps, stretches, text
from lacc.backends.cuda_library import staging
from lacc.runtime import cuda_calls
from lacc.runtime.compiled import placed
from lacc.runtime.cuda_emulation import COMPILER, Emulated
from lacc.runtime.kernel import load

emulating = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")

CLASSES = {
    "linear_transformer": "an accumulator",
    "retnet": "a scalar transition",
    "gla": "a diagonal one",
    "gated_deltanet": "a low-rank one",
    "rwkv7": "diagonal and low rank",
    "hgrn": "a scan",
    "mlstm": "max-plus",
    "lru": "coupled entries",
    "momentum_delta": "coupled states",
    "nonlinear_delta": "token by token",
    "token_shift": "earlier tokens",
    "linear_transformer_noncausal": "two passes",
    "bidirectional": "backward in time",
    "fox": "an attention",
}

QUICK = ("gla", "nonlinear_delta", "bidirectional")


# ---- barriers


def reads(place: str, own: bool = False) -> Step:
    return Step([f"reads {place}"], (Touch(place, False, own),))


def writes(place: str, own: bool = False) -> Step:
    return Step([f"writes {place}"], (Touch(place, True, own),))


def waiting(*items: Step | Block) -> list[bool]:
    place_barriers(items)
    return [step.waits for step in steps(items)]


@pytest.mark.parametrize("first", [reads, writes])
@pytest.mark.parametrize("second", [reads, writes])
def test_what_is_written_and_read_waits(first: Any, second: Any) -> None:
    assert waiting(first("x"), second("x")) == [False, not first is second is reads]
    assert waiting(first("x"), second("y")) == [False, False]


def test_what_a_thread_has_written_itself_does_not_wait() -> None:
    assert waiting(writes("x", own=True), reads("x", own=True)) == [False, False]
    assert waiting(writes("x", own=True), reads("x")) == [False, True]
    assert waiting(writes("x"), reads("x", own=True)) == [False, True]


def test_a_barrier_serves_all_that_was_before_it() -> None:
    assert waiting(writes("x"), writes("y"), reads("x"), reads("y")) == [False, False, True, False]


def test_a_loop_ends_with_a_barrier_and_waits_for_what_was_before() -> None:
    loop = Block("for (;;)", [reads("x"), writes("x")])
    items = [writes("x"), loop, reads("x")]
    assert waiting(*items) == [False, False, True, False]
    assert loop.waits
    assert list(text(items))[-4:] == ["    writes x", "    barrier();", "}", "reads x"]


def test_a_loop_whose_last_step_is_a_loop_ends_with_one_barrier() -> None:
    inner = Block("for (;;)", [reads("x"), writes("x")])
    outer = Block("for (;;)", [writes("x"), inner])
    assert waiting(outer, reads("x")) == [False, False, True, False]
    assert inner.waits and inner.ends and not outer.ends
    lines = list(text([outer]))
    assert lines[-3:] == ["        barrier();", "    }", "}"]


def test_a_loop_may_not_run() -> None:
    loop = Block("for (;;)", [reads("y")])
    assert waiting(writes("x"), loop, reads("x")) == [False, False, True]
    assert not loop.waits


def test_a_condition_may_not_hold() -> None:
    inside = Block("if (x)", [reads("x"), writes("y")], loop=False)
    assert waiting(writes("x"), inside, reads("x"), reads("y")) == [False, True, False, True, False]


def test_tiles_are_held_between_barriers() -> None:
    items = [writes("a"), reads("a"), writes("b"), reads("b"), writes("c")]
    place_barriers(items)
    assert stretches(items) == {"a": (0, 1), "b": (1, 2), "c": (2, 2)}


def test_what_stages_operands_is_found_in_the_library() -> None:
    assert {"gemm", "gemm_onto", "gram", "meet_pull", "inverse", "solve"} <= staging()
    assert staging().isdisjoint({"load_tile", "fill", "levels", "prefix", "scan"})


# ---- kernels


def kernels(name: str, target: str) -> set[str]:
    source = driver.compile(ROOT / "examples" / f"{name}.la", target).source
    assert source is not None
    if target == "triton":
        return set(re.findall(r"^@triton.jit\ndef ((?:fused|forward|backward)\w*)\(", source, re.M))
    return set(re.findall(r"__global__ void .*?\) \w+?_((?:fused|forward|backward)_\w+)\(", source))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=said, marks=() if name in QUICK else pytest.mark.full)
        for name, said in CLASSES.items()
    ],
)
def test_there_are_no_more_kernels_than_triton_has(name: str) -> None:
    cuda, triton = kernels(name, "cuda"), kernels(name, "triton")
    assert 0 < len(cuda) <= len(triton), (cuda, triton)


def kernel_of(source: str, name: str) -> tuple[int, int]:
    """Where the body of a kernel is."""
    start = source.index(f"{name}(const {name}_args a)")
    return start, source.index("\n}\n", start)


@emulating
@pytest.mark.parametrize(
    "names",
    ["q_t q q_b S_h g", "decltype int64_t errno S uint32_t", "and_eq char16_t real typeid a"],
)
def test_names_of_a_spec_are_none_of_the_languages_or_of_strides(names: str) -> None:
    q, k, v, S, g = names.split()
    spec = f"""variant vv
dim K = 4, V = 5
input {q}, {k} : [K]
input {v} : [V]
input {g} : scalar where {g} <= 0
state {S} : [K, V]
output o : [V]
{S}[t] = exp({g}) * {S}[t-1] + {k} @ {v}.T
o = {S}[t].T @ {q}
"""
    rng = np.random.default_rng(0)
    sizes = {q: (4,), k: (4,), v: (5,), g: ()}
    given = {name: -abs(rng.standard_normal((1, 20, 2, *size))) for name, size in sizes.items()}
    want = driver.compile(spec, "numpy")(**given)[0]
    with cuda_calls.emulated(Emulated()):
        got = driver.compile(spec, "cuda")(**given, chunk=16)[0]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_lines_of_the_spec_stand_above_what_they_become() -> None:
    source = driver.compile(ROOT / "examples" / "gla.la", "cuda").source
    assert source is not None
    start, end = kernel_of(source, "gla_fused_0")
    said = [line.strip() for line in source[start:end].splitlines() if "//" in line]
    assert "// S[t] = diag(α) @ S[t-1] + k @ v.T" in said
    assert "// o = K**-0.5 * S[t].T @ q" in said


# ---- barriers that are left out


def called(files: Mapping[str, str], order: str) -> Any:
    """gla's outputs and gradients as ``files`` have them, threads in some order."""
    module = load("gla", files["gla_cuda.py"], placed("gla", files) / "gla_cuda.py")
    cuda_calls.emulate(module, Emulated(order, seed=3))
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(1, 37, 1, 20, generator=generator) for _ in range(4))
    return module["gla"](q, k, v, -g.abs(), chunk=16)[0]


def without(files: Mapping[str, str], kernel: str, number: int) -> dict[str, str]:
    """The files without a barrier of a kernel."""
    source = files["gla.cu"]
    start, end = kernel_of(source, kernel)
    at = [m.span() for m in re.finditer(r"barrier\(\);", source[start:end])][number]
    return {**files, "gla.cu": source[: start + at[0]] + ";" + source[start + at[1] :]}


@emulating
@pytest.mark.parametrize(("name", "number"), [("gla_forward_0a", 1), ("gla_forward_0a", 5)])
def test_a_barrier_that_is_left_out_is_seen(name: str, number: int) -> None:
    """In any order of threads, by the lines that race."""
    kernel = driver.compile(ROOT / "examples" / "gla.la", "cuda")
    assert kernel.files is not None
    right = called(kernel.files, "ascending")
    assert torch.equal(called(kernel.files, "shuffled"), right)
    cut = without(kernel.files, name, number)
    for order in ("ascending", "descending"):
        said = r"thread \d+ (reads|writes) .* `.*` \(line \d+\).*, and no barrier lies between"
        with pytest.raises(RuntimeError, match=said):
            called(cut, order)


@emulating
def test_rows_behind_the_last_token_are_not_read() -> None:
    """Nothing writes there, and what is read is not used."""
    kernel = driver.compile(ROOT / "examples" / "gla.la", "cuda")
    assert kernel.files is not None
    start, end = kernel_of(kernel.files["gla.cu"], "gla_forward_0b")
    source = kernel.files["gla.cu"]
    text = source[start:end].replace("a.q_0, C, C, K);", "a.q_0, L, L, K);")
    assert text != source[start:end]
    said = r"reads \d+ bytes of global memory, \d+ bytes behind the end of q, at `.*` \(line \d+\)"
    with pytest.raises(RuntimeError, match=said):
        called({**kernel.files, "gla.cu": source[:start] + text + source[end:]}, "ascending")
