"""`lacc tune`: what is measured, kept and chosen, and what becomes of all that can go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from searches import (
    NEVER,
    RETNET,
    ROUNDS,
    SHAPE,
    broken,
    interrupt,
    own_cache,
    quiet,
    searched,
    small,
)

from lacc import driver
from lacc.plan.plan import bucket
from lacc.runtime import entries, tuned
from lacc.runtime.kernel import Kernel, load
from lacc.runtime.launching import Workload
from lacc.runtime.launching import bucket as bucket_of_launches
from lacc.runtime.tuned import Record
from lacc.tuning import search
from lacc.tuning.calls import Calls
from lacc.tuning.search import Search, candidates

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_cache(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return small()


# ---- candidates


def test_candidates_are_ranked_by_the_model_and_few(kernel: Kernel) -> None:
    dims = {"K": 8, "V": 8}
    for T in (1, 2, 64, 5000):
        found = candidates(kernel.plan, T, 2, dims, None)
        assert list(found.values()) == sorted(found.values())
        assert len(found) <= search.MOST
        assert all(C < T for mode, C in found if mode == "chunk" and T > 1)
        assert search.model(kernel.plan, T, 2, dims) in found
    plan = replace(kernel.plan, modes=("chunk", "recurrent"), chunks=(16, 32))
    bounded = candidates(plan, 5000, 2, dims, 40)
    assert max(C for mode, C in bounded if mode == "chunk") == 32


def test_what_seems_hopeless_is_not_tried(kernel: Kernel) -> None:
    found = candidates(kernel.plan, 1 << 16, 2, {"K": 8, "V": 8}, None)
    assert found
    assert ("parallel", 1) not in found


# ---- a search


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_search_ends_and_its_second_start_measures_nothing(
    kernel: Kernel, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = searched(kernel, way)
    record = first.record
    assert record.done and not first.early and not record.wrong
    assert len(record.rounds) == ROUNDS
    assert set(record.rounds[0]) == set(first.candidates)
    assert len(record.rounds[-1]) < len(record.rounds[0])
    assert all(record.model in taken for taken in record.rounds)
    monkeypatch.setattr(Calls, "seconds", None)
    second = searched(kernel, way)
    assert second.record == record and not second.fresh


def test_forward_and_backward_are_kept_apart(kernel: Kernel) -> None:
    searched(kernel)
    assert not Search(kernel, SHAPE, "float32", "backward").record.rounds


@pytest.mark.parametrize("from_tokens", [0, 150], ids=["short", "long"])
def test_a_wrong_candidate_is_out_before_its_time_counts(kernel: Kernel, from_tokens: int) -> None:
    shape = {"B": 1, "T": 160, "H": 2}
    good = Search(kernel, shape, "float32")
    bad = next(c for c in list(good.candidates)[1:] if c[0] == "chunk" and c != good.record.model)
    found = Search(broken(kernel, bad, from_tokens), shape, "float32")
    found.run(NEVER, quiet)
    assert set(found.record.wrong) == {bad}
    assert not found.record.times(bad)
    assert found.record.best != bad
    said = found.record.wrong[bad]
    assert ("reference at T = 96" in said) != bool(from_tokens)
    assert ("T = 160" in said) == bool(from_tokens)


def test_where_the_models_choice_is_wrong_another_is_the_yardstick(kernel: Kernel) -> None:
    model = Search(kernel, SHAPE, "float32").record.model
    found = searched(broken(kernel, model))
    assert set(found.record.wrong) == {model}
    assert found.record.yardstick not in (None, model)
    assert found.record.best != model


@pytest.mark.parametrize("after", [0, 1, 7, 20])
def test_an_interrupted_search_goes_on_where_it_was(
    kernel: Kernel, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        first = searched(kernel)
    assert first.early == "interrupted" and not first.record.done
    kept = tuned.read(first.record.name)
    assert sum(map(len, kept.rounds if kept else [])) == after
    before = kept.rounds if kept else []
    second = searched(kernel)
    assert second.record.done and not second.early
    assert second.record.rounds[: len(before)] == before
    assert len(second.record.rounds) == ROUNDS
    assert all(second.record.times(choice) for choice in second.candidates)


def test_a_budget_that_is_used_up_keeps_what_there_is(kernel: Kernel) -> None:
    none = searched(kernel, deadline=time.perf_counter())
    assert none.early == "the budget was used up" and not none.record.rounds
    assert none.record.best == none.record.model
    assert searched(kernel).record.done


def test_waiting_for_the_processor_does_not_count() -> None:
    class Waiting:
        def __call__(self, mode: str) -> None:
            time.sleep(0.05)

    calls = Calls(Waiting(), {})  # type: ignore[arg-type]
    assert calls.seconds(("recurrent", 1)) < 0.02


# ---- records


def record(kernel: Kernel, **changed: Any) -> Record:
    """One where chunks of 24 tokens take half of what the model's choice does."""
    found = Search(kernel, SHAPE, "float32").record
    rounds = [{found.model: 1.0 + n, ("chunk", 24): 0.5 + n / 2} for n in range(3)]
    return replace(found, rounds=rounds, when="2026-01-02 03:04", **changed)


def test_ratios_are_taken_within_rounds(kernel: Kernel) -> None:
    found = record(kernel)
    model = found.model
    found.rounds = [{model: 1.0, ("chunk", 24): 0.9}, {model: 9.0, ("chunk", 24): 8.1}]
    found.rounds.append({("chunk", 24): 1.0})
    assert found.best == ("chunk", 24)
    assert found.gain == pytest.approx(1 / 0.9)


def test_a_small_gain_or_few_rounds_do_not_give_the_model_up(kernel: Kernel) -> None:
    found = record(kernel)
    model = found.model
    found.rounds = [{model: 1.0, ("chunk", 24): 0.99}] * 4
    assert found.best == model and found.gain == 1
    found.rounds = [{model: 1.0, ("chunk", 24): 0.5}, *[{model: 1.0}] * 3]
    assert found.best == model


def test_a_record_comes_back_as_it_was(kernel: Kernel) -> None:
    found = record(kernel, wrong={("chunk", 8): "off"}, errors={("parallel", 1): 1e-7}, done=True)
    tuned.save(found)
    assert tuned.read(found.name) == found


def test_a_record_is_of_one_spec_target_dtype_and_bucket(kernel: Kernel) -> None:
    def name(given: Kernel = kernel, dtype: str = "float32", **shape: int) -> str:
        return Search(given, SHAPE | shape, dtype).record.name

    other = driver.compile(RETNET, "numpy", K=16, V=8)
    names = {name(), name(T=128), name(H=4), name(dtype="float64"), name(other)}
    assert len(names) == 5
    assert name(T=33) == name(T=64) == name()
    assert name(B=2, H=1) == name()


@pytest.mark.parametrize(("B", "H", "T"), [(1, 8, 2048), (3, 5, 1000), (1, 1, 1), (2, 16, 4097)])
def test_buckets_are_those_of_launches(B: int, H: int, T: int) -> None:
    launches = bucket_of_launches(Workload((("K", 8),), B * H, H, T, 64, 1))
    assert bucket(T, B * H, {"K": 8}) == (launches.tokens, launches.sequences, ("K", 8))


def test_another_emitter_does_not_see_what_was_measured(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Search(kernel, SHAPE, "float32").record.name
    monkeypatch.setattr(tuned, "emitter", lambda: "another")
    assert Search(kernel, SHAPE, "float32").record.name != before


# ---- entries


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"entry": 1}', '{"entry": {}, "digest": "0"}', "\x00" * 64]
)
def test_a_corrupted_entry_is_a_miss_that_is_said(kernel: Kernel, text: str, cache: Path) -> None:
    found = record(kernel)
    tuned.save(found)
    path = cache / "tuned" / f"{found.name}.json"
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="is left out"):
        assert tuned.read(found.name) is None
    with pytest.warns(RuntimeWarning):
        tuned.save(found)
    assert tuned.read(found.name) == found


def test_every_changed_byte_is_noticed(kernel: Kernel, cache: Path) -> None:
    found = record(kernel)
    tuned.save(found)
    path = cache / "tuned" / f"{found.name}.json"
    path.write_text(path.read_text().replace("0.5", "0.1"))
    with pytest.warns(RuntimeWarning, match="not what was written"):
        assert tuned.read(found.name) is None


HAMMER = """
import sys
from lacc.runtime import entries
def more(entry):
    seen = (entry or {}).get("seen", [])
    return {"seen": [*seen, [int(sys.argv[1]), len(seen)]], "filling": "x" * 20000}
for _ in range(25):
    entries.change("tuned", "one", more)
    assert entries.read("tuned", "one") is not None
"""


def test_many_processes_lose_nothing_of_one_another(cache: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", HAMMER]
    running = [subprocess.Popen([*command, str(n)], cwd=ROOT) for n in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    entry = entries.read("tuned", "one")
    assert entry is not None
    assert [at for _, at in entry["seen"]] == list(range(100))
    assert sorted(who for who, _ in entry["seen"]) == sorted([*range(4)] * 25)
    assert [path.name for path in (cache / "tuned").glob("*.part")] == []


def test_two_searches_join_their_rounds(kernel: Kernel) -> None:
    one = record(kernel)
    other = replace(one, rounds=[{one.model: 2.5}], wrong={("chunk", 8): "off"})
    tuned.save(one)
    both = tuned.save(other)
    assert both.rounds == [*one.rounds, *other.rounds] and both.wrong
    assert tuned.save(one).rounds == both.rounds


ENDLESS = """
import sys
from lacc import driver
from lacc.tuning import search
from lacc.tuning.search import Search
search.RUNGS = ((100000, 4),)
Search(driver.compile(sys.argv[1], "numpy", K=8, V=8), {shape}, "float32").run(1e9, lambda *_: None)
"""


def test_a_killed_search_leaves_a_cache_that_works(kernel: Kernel) -> None:
    name = Search(kernel, SHAPE, "float32").record.name
    program = ENDLESS.format(shape=SHAPE)
    process = subprocess.Popen([sys.executable, "-c", program, str(RETNET)], cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while tuned.read(name) is None and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    kept = tuned.read(name)
    assert kept is not None and kept.rounds and not kept.done
    assert searched(kernel).record.done


# ---- plans that take it


def test_without_the_flag_nothing_changes_and_with_it_the_plan_says_so(kernel: Kernel) -> None:
    found = record(kernel)
    tuned.save(found)
    plain = driver.compile(RETNET, "numpy", K=8, V=8)
    assert plain.source == kernel.source and plain.plan == kernel.plan
    taken = driver.compile(RETNET, "numpy", tuned=True, K=8, V=8)
    dims = {"K": 8, "V": 8}
    assert taken.plan.choose(64, 2, dims) == ("chunk", 24) != plain.plan.choose(64, 2, dims)
    assert taken.plan.choose(20, 2, dims) == plain.plan.choose(20, 2, dims)
    assert taken.plan.choose(33, 2, dims, "parallel") == ("parallel", 33)
    why = taken.plan.why[-1]
    assert "chunk 24, 2.00 times as fast as" in why and "measured on 2026-01-02" in why
    assert taken.source is not None and why in taken.source
    module = load("tuned", taken.source)
    assert module["TUNED"] == {"forward": {found.bucket: ("chunk", 24)}, "backward": {}}
    assert module["PLAN"].choose(64, 2, dims) == ("chunk", 24)


def test_calls_run_by_what_was_measured(kernel: Kernel) -> None:
    for way in tuned.WAYS:
        tuned.save(replace(record(kernel), way=way))
    taken = driver.compile(RETNET, "numpy", tuned=True, K=8, V=8)
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((1, 64, 2, 8)) for _ in range(3)]
    o, _ = taken(*x)
    assert np.array_equal(o, kernel(*x, chunk=24)[0])
    assert not np.array_equal(o, kernel(*x)[0])
    of_tuned = taken.vjp(*x, cotangent=o)
    of_chunks = kernel.vjp(*x, cotangent=o, chunk=24)
    assert all(np.array_equal(of_tuned[name], of_chunks[name]) for name in of_chunks)


def test_a_c_file_holds_the_table_and_runs_by_it() -> None:
    kernel = driver.compile(RETNET, "c", K=8, V=8)
    for way in tuned.WAYS:
        tuned.save(replace(record(kernel), way=way))
    taken = driver.compile(RETNET, "c", tuned=True, K=8, V=8)
    assert "    \"forward\": {\n        (64, 2, ('K', 8)" in taken.files["retnet_c.py"]
    assert '    "forward": {},\n' in kernel.files["retnet_c.py"]
    assert taken.source == kernel.source
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((1, 64, 2, 8)) for _ in range(3)]
    for _ in range(2):  # the second call goes the way of the first
        o, _ = taken(*x)
        assert np.array_equal(o, kernel(*x, chunk=24)[0])
        assert not np.array_equal(o, kernel(*x, chunk=16)[0])
    of_tuned = taken.vjp(*x, cotangent=o)
    of_chunks = kernel.vjp(*x, cotangent=o, chunk=24)
    assert all(np.array_equal(of_tuned[name], of_chunks[name]) for name in of_chunks)


def test_a_chunk_that_was_asked_for_goes_before_what_was_measured(kernel: Kernel) -> None:
    tuned.save(record(kernel))
    taken = driver.compile(RETNET, "numpy", tuned=True, chunk=16, K=8, V=8)
    assert not taken.plan.tuned


def test_where_nothing_was_measured_the_plan_says_that() -> None:
    taken = driver.compile(RETNET, "numpy", tuned=True, K=8, V=8)
    assert "nothing was measured of this spec on this machine" in taken.plan.why[-1]


def test_targets_without_a_plan_take_no_table() -> None:
    for target in ("reference", "triton"):
        with pytest.raises(driver.LaccError, match="measured"):
            driver.compile(RETNET, target, tuned=True)


def test_a_table_that_was_exported_is_taken_on_another_machine(
    kernel: Kernel, tmp_path: Path
) -> None:
    found = record(kernel)
    path = tmp_path / "retnet.json"
    path.write_text(tuned.table_text([found], replace(found.key, device="elsewhere")))
    taken = driver.compile(RETNET, "numpy", tuned=str(path), K=8, V=8)
    assert taken.plan.tuned == {found.bucket: ("chunk", 24)}
    for given, message in (
        ({"K": 16, "V": 8}, "another spec, retnet"),
        ({"dtype": "float64", "K": 8, "V": 8}, "dtype float32"),
    ):
        with pytest.raises(ValueError, match=message):
            driver.compile(RETNET, "numpy", tuned=str(path), **given)  # type: ignore[arg-type]
    path.write_text("{}")
    with pytest.raises(ValueError, match="no table"):
        driver.compile(RETNET, "numpy", tuned=str(path), K=8, V=8)
    with pytest.raises(ValueError, match="cannot read"):
        driver.compile(RETNET, "numpy", tuned=str(tmp_path / "none"), K=8, V=8)
