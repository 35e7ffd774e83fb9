"""How kernels are launched: what lives at once, what fits, what is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import ROOT

from lacc import driver
from lacc.plan.devices import DEVICES, device_named
from lacc.runtime import launching
from lacc.runtime.launching import (
    Launch,
    Workload,
    bucket,
    candidates,
    chunk_of,
    launch,
    slower,
    spilling,
)
from lacc.spec.shapes import Size
from lacc.tile.fit import Fit, lengths, registers
from lacc.tile.free_axes import free_axes
from lacc.tile.pad import fill_padding
from lacc.tile.pressure import fit
from lacc.tile.program import Program, Tiles

CALL = Workload((("K", 64), ("V", 64)), 1, 16, 4096, 32, 128)


def fused(name: str) -> Fit:
    """The forward of an example in one kernel."""
    (only,) = driver.analyse(driver.load(f"examples/{name}.la")).passes
    program = fill_padding(only.forward)
    return fit(program, next(iter(free_axes(program)), ""))


def accumulate() -> Program:
    """S + kᵀ v and q S."""
    f = Tiles({"K": Size.of("K"), "V": Size.of("V")})
    q, k, v = (f.load("input", n, ("t", a)) for n, a in (("q", "K"), ("k", "K"), ("v", "V")))
    S = f.load("state", "S", ("K", "V"))
    return f.finish({"o": f.contract(q, S, ("K",)), "state:S": f.add(S, f.contract(k, v, ("t",)))})


def test_a_state_and_its_sum_live_at_once() -> None:
    """The operands of products are in shared memory, the state beside what is added to it."""
    found = fit(accumulate(), "V")
    assert found.split == "V"
    assert ((2.0, ("/", "K")),) in found.registers
    assert found.loads == ((1.0, ("/", "t")), (2.0, ("K", "t")))
    assert found.stores == ((1.0, ("/", "t")),)
    assert found.products == ((4.0, ("/", "K", "t")),)
    at = lengths(found, {"K": 64, "V": 64}, 32, 64)
    assert registers(found, at, 8) < registers(found, at, 4)


def test_a_chunk_kernel_loads_its_states() -> None:
    """Where nothing is carried, a state is one more operand."""
    found = fit(accumulate(), "V", "chunk")
    assert (1.0, ("/", "K")) in found.loads
    assert (1.0, ("/", "K")) in found.stores


@pytest.mark.parametrize("name", ["simple_gla", "gla", "retnet"])
def test_few_candidates_that_all_fit(name: str) -> None:
    """At most ten, in the same order every time."""
    found = fused(name)
    call = replace(CALL, chunk=16, chunks=256)
    each = candidates(found, call)
    assert 0 < len(each) <= launching.CANDIDATES
    device = launching.device_of(call)
    assert all(launching.fits(found, call, x, device) for x in each)
    assert launch(name, found, call) == each[0]


def test_what_fits_nowhere_spills_the_least() -> None:
    """Up to a limit, rather than be refused."""
    found, call = fused("gated_deltanet"), replace(CALL, dims=(("K", 128), ("V", 128)), chunk=64)
    assert not candidates(found, call)
    first, *others = spilling(found, call)
    device = launching.device_of(call)
    least = launching.needs(found, call, first, device)[0]
    assert all(least <= launching.needs(found, call, x, device)[0] for x in others)
    assert launch("gated_deltanet", found, call) == first


def test_the_error_names_sizes_and_the_limit() -> None:
    """Before anything is compiled."""
    call = replace(CALL, dims=(("K", 4096), ("V", 64)))
    with pytest.raises(ValueError, match=r"carry with K = 4096, V = 64 needs .* sm_90 has"):
        launch("carry", fused("gla"), call)


def test_interpreted_kernels_have_no_limit() -> None:
    """A CPU holds any tile."""
    assert launch("carry", fused("gla"), replace(CALL, device="", dims=(("K", 4096), ("V", 64))))


def test_more_digits_need_more_registers() -> None:
    """So that float32 inputs get smaller blocks or more warps."""
    found, exact = fused("simple_gla"), replace(CALL, element=4, precision="tf32x3")
    device = launching.device_of(CALL)
    for x in launching.every(found, CALL):
        least = launching.needs(found, CALL, x, device)
        assert all(a < b for a, b in zip(least, launching.needs(found, exact, x, device)))
    assert launch("exact", found, exact)


def test_what_was_tuned_comes_first() -> None:
    """For every call of the same bucket."""
    tuned = Launch(16, 4, 2, 1)
    near = replace(CALL, tokens=4000, chunks=125)
    assert bucket(near) == bucket(CALL)
    launching.TUNED["tuned", bucket(CALL)] = tuned
    assert launch("tuned", fused("gla"), near) == tuned


def test_a_chunk_fits_all_kernels() -> None:
    """A power of two, or an error that names the kernel."""
    each = {name: fused(name) for name in ("gla", "simple_gla")}
    assert chunk_of(each, CALL) in launching.CHUNKS
    with pytest.raises(ValueError, match="K = 4096"):
        chunk_of(each, replace(CALL, dims=(("K", 4096), ("V", 64))))


def test_a_token_after_another_where_chunks_spill_and_take_longer() -> None:
    """Not where some chunk spills nothing, nor where no kernel has limits."""
    wide = replace(CALL, dims=(("K", 128), ("V", 128)))
    chunked = {"gated_deltanet": fused("gated_deltanet")}
    quick = {"token": replace(fused("simple_gla"), kind="chunk")}
    assert slower(chunked, quick, wide)
    assert not slower(quick, chunked, wide)
    assert not slower({"gla": fused("gla")}, quick, CALL)
    assert not slower(chunked, quick, replace(wide, device=""))


@pytest.mark.parametrize("name", ["longhorn", "mamba1"])
def test_loops_that_hold_twice_what_there_is_go_by_token(name: str) -> None:
    """A model by which they take a little less than tokens one by one is too low there."""
    source = driver.compile(ROOT / "examples" / f"{name}.la", "triton").source
    assert source is not None
    assert "token after token, forward and backward" in source


def test_what_needs_far_more_registers_than_there_are_is_not_tried_again() -> None:
    """A build of it takes minutes."""
    found, call = fused("gated_deltanet"), replace(CALL, dims=(("K", 128), ("V", 128)), chunk=64)
    device, tried = launching.device_of(call), launching.sparing(found, call)
    every = [x for x in launching.every(found, call) if x not in tried]
    needs = {x: launching.needs(found, call, x, device) for x in every}
    assert every
    assert all(
        used > 2 * launching.most_of(x, device) or memory > device.shared
        for x, (used, memory) in needs.items()
    )


def test_an_unknown_device_is_like_the_last_known_of_its_family() -> None:
    """Or the least of all."""
    assert device_named("sm_103") is DEVICES["sm_100"]
    assert device_named("gfx951") is DEVICES["gfx950"]
    assert device_named("other") is DEVICES["sm_80"]


def test_launches_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_CHOSEN", {})
    monkeypatch.setattr(launching, "REMEMBERED", 2)
    for tokens in (64, 128, 192):
        launch("forward", fused("gla"), replace(CALL, tokens=tokens))
    assert [call.tokens for _, call in launching._CHOSEN] == [192]
