"""`lacc bench`: who is wrong is caught, floors are those of the recurrences, records and pages are
whole, two records are compared right. Nothing here says how long anything takes."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from typer.testing import CliRunner

from lacc import driver
from lacc.bench import compare, page, stats, svg
from lacc.bench.case import Case, Unfit, data
from lacc.bench.contestants import Bound, Contestant, against, from_file, targets
from lacc.bench.floors import floor
from lacc.bench.found import _sources
from lacc.bench.loop import token_loop
from lacc.bench.measure import Effort, measure, run
from lacc.bench.rates import Rates
from lacc.bench.record import Entry, Measured, Record, Unreadable, read, text, to_json
from lacc.bench.softmax import softmax, widths
from lacc.cli import app
from lacc.cli.benching import THREADS


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command holds its process to some threads; this one goes on afterwards."""
    for name in (*THREADS, "OPENBLAS_CORETYPE"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))


QUICK = Effort(rounds=3, seconds=0.0)
RATES = Rates(1, 2e11, 4e9, {1 << 14: 2e11, 1 << 27: 2e10})


def case(name: str = "gla", mode: str = "forward", **sizes: int) -> Case:
    """A small case of an example."""
    dims = {d: 8 for d in ("K", "V", "D", "N", "P") if d in _dims(name)}
    spec = driver.load(ROOT / "examples" / f"{name}.la", dims)
    return replace(Case(spec, mode, B=1, T=24, H=2), **sizes)


def _dims(name: str) -> set[str]:
    return set(driver.load(ROOT / "examples" / f"{name}.la").dims)


FLOPS = {
    "linear": 4,
    "retnet": 4,
    "simple_gla": 4,
    "gla": 4,
    "mamba1": 4,
    "mamba2": 4,
    "deltanet": 6,
    "gated_deltanet": 6,
    "kda": 6,
    "rwkv7": 8,
    "hgrn": 2,
}
"""Flops a token and entry of the state."""


@pytest.mark.parametrize(("name", "flops"), FLOPS.items())
def test_the_floor_is_that_of_the_recurrence(name: str, flops: int) -> None:
    each = case(name, T=10, H=3, B=2)
    (state,) = each.spec.states
    entries = np.prod([size.evaluate(each.dims) for size in state.shape])
    found = floor(each)
    assert found is not None
    assert found.flops == flops * entries * 10 * 3 * 2
    trained = floor(replace(each, mode="train"))
    assert trained is not None and trained.flops == 3 * found.flops


def test_the_floor_counts_exps_and_bytes() -> None:
    each = case("mamba1", T=10, H=3, B=2)
    found = floor(each)
    assert found is not None
    D, N, calls = 8, 8, 10 * 3 * 2
    assert found.bytes == 4 * calls * (3 * D + 2 * N + D)
    assert found.exps >= calls * D * N  # one for the decay of each entry
    token = floor(replace(each, mode="decode"))
    assert token is not None
    assert token.bytes == 4 * 3 * 2 * (3 * D + 2 * N + D) + 2 * 4 * 3 * 2 * D * N


def test_the_floor_of_attention_grows_with_what_came_before() -> None:
    found = [floor(case("softmax_attention", T=T)) for T in (16, 32)]
    assert all(found)
    K = V = 8
    assert [f.flops / 2 / f_T for f, f_T in zip(found, (16, 32))] == [  # type: ignore[union-attr]
        2 * (K + V) * (T + 1) / 2 for T in (16, 32)
    ]


def test_a_spec_without_tokens_has_no_floor() -> None:
    assert floor(case("bidirectional")) is None


def test_targets_are_checked_and_timed() -> None:
    found = measure(case(), targets(["numpy", "c"]), RATES, QUICK)
    assert [e.who for e in found.entries] == ["lacc numpy", "lacc c"]
    for entry in found.entries:
        assert not entry.why and len(entry.samples) == 3 and all(s > 0 for s in entry.samples)
        assert entry.error is not None and 0 < entry.error < 1e-5
    assert found.floor_seconds is not None and found.bound in ("flops", "exps", "bytes")


@pytest.mark.parametrize("mode", ["train", "decode", "cold"])
def test_gradients_and_tokens_are_checked_and_timed(mode: str) -> None:
    found = measure(case("gated_deltanet", mode), targets(["numpy"]), RATES, QUICK)
    (entry,) = found.entries
    assert not entry.why and len(entry.samples) == 3
    assert entry.error is not None and entry.error < 1e-5


def wrong(change: float, after: int = 0) -> Contestant:
    """The NumPy target, its output changed behind the first ``after`` tokens of a call."""
    right = targets(["numpy"])[0]

    def bind(case: Case, given: Any) -> Bound:
        bound = right.bind(case, given)

        def results(found: Any) -> dict[str, Any]:
            outputs = {n: np.array(x) for n, x in bound.results(found).items()}
            for x in outputs.values():
                x[:, after:] += change
            return outputs

        return Bound(bound.call, results)

    return Contestant("liar", bind, ours=True)


def test_who_is_wrong_is_reported_and_not_timed() -> None:
    found = measure(case(), [wrong(0.5), *targets(["numpy"])], RATES, QUICK)
    liar, right = found.entries
    assert liar.why.startswith("wrong: o is off by") and not liar.samples
    assert liar.error is not None and liar.error > 0.01
    assert right.samples and "liar: wrong" in text(Record("", {}, [found]))


def test_nan_is_wrong() -> None:
    (liar,) = measure(case(), [wrong(np.nan)], RATES, QUICK).entries
    assert liar.why.startswith("wrong") and not liar.samples


def test_who_is_wrong_only_in_a_long_call_is_caught() -> None:
    long = case(T=200)
    right = targets(["numpy"])[0]

    def bind(case: Case, given: Any) -> Bound:
        return (wrong(0.5) if case.T == 200 else right).bind(case, given)

    (liar,) = measure(long, [Contestant("liar", bind)], RATES, QUICK).entries
    assert liar.why.startswith("wrong") and not liar.samples


def test_who_raises_or_cannot_is_reported() -> None:
    def fails(case: Case, given: Any) -> Bound:
        raise RuntimeError("no such kernel\nand more")

    def cannot(case: Case, given: Any) -> Bound:
        raise Unfit("needs K = V")

    found = measure(case(), [Contestant("a", fails), Contestant("b", cannot)], RATES, QUICK)
    assert [e.why for e in found.entries] == ["RuntimeError: no such kernel", "needs K = V"]


def test_softmax_is_of_the_sizes_of_the_state() -> None:
    assert widths(case("mamba2")) == (8, 8)
    spec = driver.load(ROOT / "examples" / "mamba2.la", {"P": 4, "N": 6})
    assert widths(Case(spec, "forward")) == (6, 4)
    with pytest.raises(Unfit):
        widths(case("hgrn"))


@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
def test_softmax_and_the_loop_in_torch_are_right(mode: str) -> None:
    pytest.importorskip("torch")
    found = measure(case("gated_deltanet", mode), [softmax(), token_loop()], RATES, QUICK)
    for entry in found.entries:
        assert not entry.why and entry.samples, entry
        assert entry.error is not None and entry.error < 1e-4
    assert [e.instead for e in found.entries] == [True, False]


@pytest.mark.parametrize("name", ["mamba1", "rwkv6", "linear_transformer", "rglru", "deltaproduct"])
def test_the_loop_in_torch_computes_many_specs(name: str) -> None:
    pytest.importorskip("torch")
    (entry,) = measure(case(name), [token_loop()], None, Effort(1, 0.0)).entries
    assert not entry.why and entry.samples, entry.why


def test_arguments_of_others_are_found_by_their_names() -> None:
    assert _sources(("query", "key", "value"), {"q", "k", "v", "g"}) == {
        "query": "q",
        "key": "k",
        "value": "v",
    }
    assert _sources(("q", "k", "v", "beta"), {"q", "k", "v", "g"}) is None


def test_functions_of_a_package_are_found_by_what_they_compute() -> None:
    pytest.importorskip("fla")
    pytest.importorskip("torch")
    everybody = [*against(["fla"])]
    (found,) = run([case("simple_gla", T=64)], everybody, None, Effort(1, 0.0))
    named = {e.who for e in found.entries if e.samples}
    assert "fla naive_chunk_simple_gla" in named
    (found,) = run([case("hgrn")], everybody, None, Effort(1, 0.0))
    assert [e.who for e in found.entries] == ["fla"] and "no function" in found.entries[0].why


def test_a_package_that_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from lacc.bench import found as module

    monkeypatch.setitem(module.PACKAGES, "nothing", ("lacc_has_no_such_package", "*.py"))
    monkeypatch.setattr(module, "torch_for", lambda case: None)
    (found,) = run([case()], [*against(["nothing"])], None, QUICK)
    assert found.entries[0].why == "nothing is not installed"


PEER = """
from lacc.bench.contestants import Contestant, targets
PEERS = [Contestant("mine", targets(["numpy"])[0].bind)]
"""


def test_contestants_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "peers.py"
    path.write_text(PEER)
    (mine,) = from_file(path)
    assert measure(case(), [mine], None, QUICK).entries[0].samples
    path.write_text("PEERS = 3")
    with pytest.raises(ValueError, match="no list PEERS"):
        from_file(path)
    with pytest.raises(ValueError, match="there is no file"):
        from_file(tmp_path / "other.py")


def record(scale: float = 1.0, count: int = 9) -> Record:
    """A made-up record: two lengths, ours, another, softmax, one that is missing."""
    rng = np.random.default_rng(3)
    cases = []
    for T in (128, 512):

        def samples(seconds: float) -> list[float]:
            return list(seconds * (1 + 0.01 * rng.standard_normal(count)))

        entries = [
            Entry("lacc c", True, samples=samples(1e-3 * T * scale), error=1e-7, memory=T * 1000),
            Entry("peer <1>", samples=samples(4e-3 * T), error=1e-6, memory=T * 5000),
            Entry("sdpa", instead=True, samples=samples(2e-5 * T * T / 5), memory=T * T * 4),
            Entry("absent", why="absent is not installed"),
        ]
        floors = {"flops": 16384.0 * T, "exps": 1.0 * T, "bytes": 1024.0 * T}
        least = {"flops": 1e-4 * T, "exps": 1e-6 * T, "bytes": 5e-5 * T}
        shape, dims = {"B": 1, "T": T, "H": 8}, {"K": 64, "V": 64}
        cases.append(Measured("mine", "forward", shape, dims, "float32", 1, floors, least, entries))
    rates = {"1": {"flops": 2e11, "exps": 4e9, "bandwidth": {"16384": 2e11, "134217728": 2e10}}}
    return Record("lacc bench mine.la", {"mine": "variant mine"}, cases, rates)


def test_a_record_goes_through_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(to_json(record()))
    assert to_json(read(path)) == path.read_text()
    assert read(path).cases[0].ratios()["lacc c"].value == 1.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x | {"format": "lacc-bench 9"}, "of the format 'lacc-bench 9'"),
        (lambda x: {"cases": []}, "no record of lacc bench"),
        (lambda x: {n: y for n, y in x.items() if n != "cases"}, "not a whole record"),
        (lambda x: x | {"more": 1}, "not a whole record"),
        (lambda x: [], "no record"),
    ],
)
def test_other_json_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(change(json.loads(to_json(record())))))
    with pytest.raises(Unreadable, match=re.escape(said)):
        read(path)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(to_json(record())[:300])
    with pytest.raises(Unreadable, match="is no JSON"):
        read(path)
    with pytest.raises(Unreadable, match="cannot read"):
        read(tmp_path / "b.json")


def test_medians_have_intervals() -> None:
    found = stats.median([3.0, 1.0, 2.0, 4.0, 5.0])
    assert found.value == 3.0 and 1.0 <= found.low <= 3.0 <= found.high <= 5.0
    assert stats.median([2.0]) == stats.Estimate(2.0, 2.0, 2.0)
    slow = [1.0, 9.0, 1.0]  # the same noise for both
    assert stats.ratio([2 * s for s in slow], slow) == stats.Estimate(2.0, 2.0, 2.0)


def test_comparing_finds_what_changed_and_only_that() -> None:
    found = compare.changes(record(), record(1.25))
    assert len(found) == 6  # three that were timed, in two cases
    by_name = {(c.who, c.title): c for c in found}
    for (who, _), change in by_name.items():
        if who == "lacc c":
            assert abs(change.ratio.value - 1.25) < 0.03 and change.verdict == "slower"
            assert change.ratio.low <= change.ratio.value <= change.ratio.high
        else:
            assert change.ratio.value == 1.0 and change.verdict == ""
    assert {c.who for c in compare.slower(found, 10)} == {"lacc c"}
    assert not compare.slower(found, 40)
    assert not compare.slower(compare.changes(record(1.25), record()), 0)
    assert all(c.verdict == "faster" for c in compare.changes(record(), record(0.5)) if c.ours)


def test_comparing_on_the_command_line(tmp_path: Path) -> None:
    before, after, other = (tmp_path / f"{n}.json" for n in "abc")
    before.write_text(to_json(record()))
    after.write_text(to_json(record(1.25)))
    other.write_text(to_json(Record("", {})))

    def ran(*words: object) -> Any:
        return CliRunner().invoke(app, ["bench", "--compare", *map(str, words)])

    assert ran(before, after).exit_code == 0
    worse = ran(before, after, "--fail-if-slower", "10%")
    assert worse.exit_code == 1 and "slower" in worse.output
    assert ran(after, before, "--fail-if-slower", "10%").exit_code == 0
    assert ran(before, after, "--fail-if-slower", "40").exit_code == 0
    assert ran(before, after, "--fail-if-slower", "some").exit_code == 2
    nothing = ran(before, other)
    assert nothing.exit_code == 2


VOID = {"meta", "link", "br", "hr", "img", "input"}


class Nesting(HTMLParser):
    """Holds that every element is closed in order, and collects addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [v or "" for n, v in attrs if n in ("src", "href") or tag == "script"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>"


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    made = page.html(record())
    parser = Nesting()
    parser.feed(made)
    assert not parser.open and not parser.loads
    without = made.replace("http://www.w3.org/2000/svg", "")  # a name, which nobody loads
    assert "http" not in without and "url(" not in made and "@import" not in made
    assert "peer &lt;1&gt;" in made and "absent is not installed" in made
    assert made.count("<svg") == 4  # time, memory, crossover, roofline
    assert "lacc bench mine.la" in made and "variant mine" in made


def test_plots_are_well_formed_and_show_every_contestant() -> None:
    made = record()
    for plot in page.plots(made):
        ElementTree.fromstring(plot)
    time, memory, crossed, roof = page.plots(made)
    for who in ("lacc c", "peer &lt;1&gt;", "sdpa", "floor"):
        assert who in time
    assert "peer &lt;1&gt;" in memory and "sdpa / lacc c" in crossed and "GB/s" in roof


def test_several_specs_are_shown_in_rows() -> None:
    made = record()
    made.cases.append(replace(made.cases[1], spec="other"))
    plots = [*page.plots(made)]
    assert any("other" in plot and "Times the floor" in plot for plot in plots)
    for plot in plots:
        ElementTree.fromstring(plot)


def test_the_crossover_is_where_both_take_as_long() -> None:
    points = [svg.Point(100, 0.5), svg.Point(400, 2.0), svg.Point(1600, 8.0)]
    assert page.crossing(points) == pytest.approx(200)
    assert page.crossing(points[1:]) is None


def test_an_axis_has_a_few_round_numbers() -> None:
    """Of a narrow range, too, where powers of ten have one or none."""
    ticks = {(low, high): svg._Axis(low, high, 0, 1).ticks for low, high in RANGES}
    assert ticks[1, 100] == [1, 2, 5, 10, 20, 50, 100]
    assert ticks[800, 2300] == [1000, 1500, 2000]
    for (low, high), found in ticks.items():
        assert 3 <= len(found) <= 9 and all(low <= tick <= high for tick in found)


RANGES = ((1, 100), (800, 2300), (0.2, 0.6), (32, 512), (3, 3.5), (1e-3, 1e3))


def test_labels_keep_apart() -> None:
    places = svg.spread([10, 11, 12, 90], 15, 0, 100)
    assert all(b - a >= 15 for a, b in pairwise(places)) and places[-1] <= 100


def test_a_run_writes_a_record_and_a_page(tmp_path: Path) -> None:
    spec = ROOT / "examples" / "gla.la"
    words = ["bench", str(spec), "-D", "K=8", "-D", "V=8", "-T", "16,32", "--shape", "H=2"]
    words += ["--target", "numpy", "--against", "", "--rounds", "2", "--seconds", "0"]
    words += ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "lacc numpy" in done.output and "floor" in done.output
    found = read(tmp_path / "a.json")
    assert [c.shape["T"] for c in found.cases] == [16, 32] and found.rates["1"]["flops"] > 0
    assert "<svg" in (tmp_path / "a.html").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--against", "sdpaa"], "did you mean `sdpa`?"),
        (["--mode", "forwards"], "did you mean `forward`?"),
        (["-T", "12x"], "-T takes lengths"),
        (["--shape", "B=1,T=4"], "lengths go to -T"),
        (["--shape", "H=3,G=2", "--against", ""], "3 heads are not 2 groups"),
        (["--peer", "nowhere.py"], "there is no file nowhere.py"),
        (["--json", "nowhere/a.json"], "there is no folder nowhere"),
        (["--against", "lacc.nowhere:f"], "is no function here"),
        (["--fail-if-slower", "10%"], "is for --compare"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str) -> None:
    spec = ROOT / "examples" / "mamba2.la"
    done = CliRunner().invoke(app, ["bench", str(spec), "--target", "numpy", *words])
    shown = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and said in shown, shown


def test_an_unknown_target_is_refused() -> None:
    from lacc.diagnostics import LaccError

    with pytest.raises(LaccError, match="LA0701"):
        targets(["nunpy"])


def test_data_of_a_token_has_the_state_of_a_prefix() -> None:
    each = case("gla", "decode")
    given = data(each)
    assert given.arguments["q"].shape == (1, 2, 8)
    assert given.state.S.shape == (1, 2, 8, 8) and np.abs(given.state.S).max() > 0


def test_contestants_are_told_apart() -> None:
    looks = {(n % len(svg.LIGHT), page._mark(n)) for n in range(32)}
    assert len(looks) == 32
    for _, kind in looks:
        ElementTree.fromstring(svg.mark(kind, 10, 10, 0, 4))
