"""`lacc calibrate`: constants of this machine, where they are kept, and plans that take them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from test_cli import lacc  # noqa: F401  (a fixture)

from lacc import driver
from lacc.plan.machine import CACHES, DEFAULT, LOCAL, MACHINES, RATES, SECONDS
from lacc.runtime import building, entries, machines
from lacc.tuning import calibrate
from lacc.tuning.calibrate import IN_CACHE, SMALL, WORK, Probe

Run = Callable[..., tuple[int, str, str]]
RETNET = ROOT / "examples" / "retnet.la"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("LACC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quiet(done: int, total: int, current: str) -> None:
    assert done < total and current


# ---- probes


def test_constants_are_those_of_a_machine_whose_times_are_known() -> None:
    flops, worked, moved, matrix, call, far = 50e9, 4e9, 40e9, 2e-7, 3e-7, 7e9
    times = {f"product {(m, n, k)}": 2 * m * n * k / flops for m, n, k in WORK}
    times["small product"] = 2 * SMALL**3 / flops + matrix
    times["exp"] = IN_CACHE * (8 / worked + 8 / moved)
    times["mul"] = IN_CACHE * (1 / worked + 12 / moved)
    times |= {"copy": 8 / far, "call": call}
    found = calibrate.machine_of("numpy", times)
    want = {"flops": flops, "map": worked, "near": moved, "far": far}
    want |= {"matrix": matrix, "call": call}
    for name, value in want.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.01)
    assert found.name == LOCAL


def test_times_that_fit_no_machine_give_constants_above_zero() -> None:
    times = dict.fromkeys((f"product {shape}" for shape in WORK), 1e-6)
    for exp, mul in ((1e-9, 1e-3), (1e-3, 1e-9)):
        rest = {"small product": 1e-12, "exp": exp, "mul": mul, "copy": 1e-9, "call": 1e-9}
        found = calibrate.machine_of("c", times | rest)
        assert all(getattr(found, name) > 0 for name in (*RATES, *SECONDS, *CACHES))


def test_a_probe_is_timed_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.process_time", lambda: clock[0])

    def run(times: int) -> None:
        clock[0] += times * 1e-3

    assert calibrate.fastest(Probe(run, parts=4), 0.1) == pytest.approx(2.5e-4)


@pytest.mark.parametrize("target", ["numpy", "c"])
def test_this_machine_has_constants(target: str) -> None:
    found = calibrate.calibrate(target, 0.05, quiet)
    assert all(getattr(found, name) > 0 for name in (*RATES, *SECONDS, *CACHES))
    assert found.flops > 1e8 and found.near > 1e8
    assert found.apart == MACHINES[target][DEFAULT].apart


# ---- families


def test_every_target_has_constants_for_every_family() -> None:
    (families,) = {tuple(known) for known in MACHINES.values()}
    assert families == (DEFAULT, "avx512", "avx2", "neon", "plain")
    for known in MACHINES.values():
        for machine in known.values():
            assert all(getattr(machine, name) > 0 for name in (*RATES, *SECONDS, *CACHES))
            assert machine.far < machine.near and machine.L2 < machine.L3


@pytest.mark.parametrize(
    ("machine", "words", "family"),
    [
        ("x86_64", "flags : sse2 avx avx2 avx512f", "avx512"),
        ("x86_64", "flags : sse2 avx avx2", "avx2"),
        ("x86_64", "flags : sse2", "plain"),
        ("aarch64", "Features : fp asimd", "neon"),
        ("arm64", "Apple M2", "neon"),
        ("riscv64", "isa : rv64imafdc", "plain"),
    ],
)
def test_the_family_of_a_processor(
    machine: str, words: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "processor", lambda: words)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert machines.family() == family


# ---- plans


def measured(target: str = "numpy") -> None:
    """Constants that make every other choice of this spec's plan."""
    known = MACHINES[target][DEFAULT]
    calibrate.keep(target, replace(known, flops=1e15, call=1e-3, name=LOCAL))


def test_plans_take_what_was_measured_only_where_they_are_asked_to(cache: Path) -> None:
    before = driver.compile(RETNET, K=8, V=8)
    measured()
    after = driver.compile(RETNET, K=8, V=8)
    assert after.source == before.source and after.plan == before.plan
    local = driver.compile(RETNET, machine="local", K=8, V=8)
    dims = {"K": 8, "V": 8}
    assert local.plan.choose(4096, 2, dims) != before.plan.choose(4096, 2, dims)
    said = local.plan.why[-1]
    assert said.startswith("constants that `lacc calibrate` measured on 20")
    assert "1e+06 Gflop/s in products" in said
    assert local.plan.machine == LOCAL


def test_where_nothing_was_measured_the_family_counts_and_that_is_said() -> None:
    known = MACHINES["numpy"][machines.family()]
    machine, said = machines.machine_for("numpy", "local")
    assert machine == known
    assert "nothing was measured on this machine" in said
    local = driver.compile(RETNET, machine="local", K=8, V=8)
    assert said in local.plan.why


def test_a_family_can_be_planned_for_anywhere() -> None:
    plan = driver.compile(RETNET, "c", machine="neon", K=8, V=8).plan
    assert plan.machine == "neon"
    assert plan.why[-1] == "constants of processors with neon, not measured"


def test_a_machine_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of default, .*, local, got 'vax'"):
        driver.compile(RETNET, machine="vax")
    with pytest.raises(driver.LaccError, match="neon"):
        driver.compile(RETNET, "reference", machine="neon")


def test_what_was_measured_is_of_one_target_processor_and_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [machines.entry_name("numpy"), machines.entry_name("c")]
    here = machines.device("numpy")
    for name in ("processor", "threads", "lacc", "numpy"):
        monkeypatch.setattr(machines, "device", lambda _, name=name: here | {name: "another"})
        names.append(machines.entry_name("numpy"))
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", ["", "{}", '{"entry": {"constants": {}}, "digest": ""}'])
def test_a_corrupted_entry_is_a_miss_that_is_said(text: str, cache: Path) -> None:
    measured()
    (path,) = (cache / "machines").glob("*.json")
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="is left out"):
        machine, said = machines.machine_for("numpy", "local")
    assert "nothing was measured" in said and machine.name == machines.family()


def test_an_entry_of_another_form_is_a_miss() -> None:
    entries.change(machines.KIND, machines.entry_name("numpy"), lambda _: {"when": "once"})
    assert "nothing was measured" in machines.machine_for("numpy", "local")[1]


# ---- the command


def test_the_command_measures_shows_and_forgets(
    lacc: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lacc("calibrate", "--show")[1].count("nothing was measured") == 2
    monkeypatch.setattr(
        calibrate, "calibrate", lambda target, *_: replace(MACHINES[target][DEFAULT], flops=42e9)
    )
    code, out, err = lacc("calibrate", "--seconds", "0.1")
    assert (code, err) == (0, "")
    assert (
        len(re.findall(r"^flops +Gflop/s +42 ", out, re.M)) == 2
        and "default" in out
        and "--machine local" in out
    )
    code, out, _ = lacc("calibrate", "--show", "-t", "c")
    assert code == 0 and "measured on 20" in out and "42" in out
    assert "Gflop/s in products" in lacc("explain", str(RETNET), "--machine", "local")[1]
    code, out, _ = lacc("calibrate", "--forget")
    assert code == 0 and out.startswith("2 removed")


def test_without_a_compiler_c_is_not_measured(
    lacc: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    machines.device.cache_clear()
    try:
        for words in ([], ["--show"]):
            code, _, err = lacc("calibrate", "-t", "c", *words)
            assert code == 3 and "no-such-compiler" in err
    finally:
        machines.device.cache_clear()


def test_a_cache_that_cannot_be_written_to_is_a_warning(
    lacc: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LACC_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(calibrate, "calibrate", lambda target, *_: MACHINES[target][DEFAULT])
    code, out, err = lacc("calibrate")
    assert code == 0 and "flops" in out
    assert "cannot keep anything" in err and "set LACC_CACHE" in err


def test_a_machine_that_there_is_not_is_wrong_use(lacc: Run) -> None:  # noqa: F811
    code, _, err = lacc("explain", str(RETNET), "--machine", "vax")
    assert code == 2 and "vax" in err


def test_constants_that_no_machine_has_are_not_kept(
    lacc: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = MACHINES["numpy"][calibrate.family()]
    assert calibrate.doubtful("numpy", known) == ()
    slow = replace(known, flops=known.flops / 300, far=known.far / 2)
    assert calibrate.doubtful("numpy", slow) == ("flops",)
    monkeypatch.setattr(calibrate, "calibrate", lambda target, *_: slow)
    code, out, err = lacc("calibrate", "-t", "numpy")
    assert code == 0 and "numpy: flops not kept" in err and "try again when it is idle" in err
    kept, said = machines.local("numpy")
    assert "measured on 20" in said and "--machine local" in out
    assert (kept.flops, kept.far) == (known.flops, slow.far)
