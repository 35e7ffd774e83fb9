"""Tasks are what they say, models learn, means have their intervals, and a run of the command ends
in a page that needs nothing else.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from typer.testing import CliRunner

from lacc import driver, report
from lacc.cli import app
from lacc.cli.lab import _contestants
from lacc.lab import page
from lacc.lab import trials as trials_module
from lacc.lab.tasks import ASK_NOTHING, FILLER, KEYS, SYMBOLS, TASKS
from lacc.lab.trials import (
    Contestant,
    Mean,
    Outcome,
    Record,
    Settings,
    Trial,
    attempt,
    mean,
    trials,
)

GLA = Contestant("gla", (ROOT / "examples" / "gla.la").read_text())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [5, 32, 65])
def test_tasks_stay_within_their_vocabulary_and_repeat(name: str, length: int) -> None:
    task = TASKS[name]
    tokens, targets = task.draw(np.random.default_rng(1), 3, length, False)
    assert tokens.shape == targets.shape == (3, length)
    assert tokens.min() >= 0 and tokens.max() < task.vocabulary
    assert targets.min() >= ASK_NOTHING and targets.max() < task.classes
    assert (targets != ASK_NOTHING).any()
    again, _ = task.draw(np.random.default_rng(1), 3, length, False)
    other, _ = task.draw(np.random.default_rng(2), 3, length, False)
    assert np.array_equal(tokens, again) and not np.array_equal(tokens, other)


def test_recall_asks_what_was_said() -> None:
    tokens, targets = TASKS["recall"].draw(np.random.default_rng(0), 4, 64, False)
    for row, asked in zip(tokens, targets):
        said = dict(zip(row[0:32:2], row[1:32:2] - KEYS))
        places = np.flatnonzero(asked != ASK_NOTHING)
        assert len(places) == 16 and (places >= 32).all()
        assert all(said[row[p]] == asked[p] for p in places)
        assert (row[32:][asked[32:] == ASK_NOTHING] == FILLER).all()


def test_copying_asks_for_the_next_symbol() -> None:
    tokens, targets = TASKS["copying"].draw(np.random.default_rng(0), 4, 64, False)
    assert (tokens[:, 32] == SYMBOLS).all()
    assert np.array_equal(targets[:, 32:], tokens[:, :32])
    assert np.array_equal(tokens[:, 33:], targets[:, 32:-1])


def test_states_are_tracked() -> None:
    bits, odd = TASKS["parity"].draw(np.random.default_rng(0), 4, 40, False)
    assert all(odd[r, t] == bits[r, : t + 1].sum() % 2 for r in range(4) for t in range(40))
    tokens, targets = TASKS["S3"].draw(np.random.default_rng(0), 4, 40, False)
    elements = list(permutations(range(3)))
    for row, asked in zip(tokens, targets):
        things = (0, 1, 2)
        for token, element in zip(row, asked):
            things = tuple(elements[token][i] for i in things)
            assert things == elements[element]


def test_text_that_is_asked_about_was_not_learnt() -> None:
    rng = np.random.default_rng
    learnt, held = (TASKS["text"].draw(rng(0), 8, 128, out)[0] for out in (False, True))
    assert not {bytes(x.astype(np.uint8)) for x in learnt} & {
        bytes(x.astype(np.uint8)) for x in held
    }


def test_means_have_students_interval() -> None:
    assert mean([0.5]) == Mean(0.5, None)
    found = mean([1.0, 2.0, 3.0])
    assert found.value == 2 and found.half == pytest.approx(4.303 / 3**0.5)
    assert str(found) == "2.000 ± 2.484"


def test_every_seed_is_a_whole_round() -> None:
    asked = trials([GLA, GLA], Settings(seeds=2, tasks=("recall", "parity")))
    assert [t.seed for t in asked] == [0] * 6 + [1] * 6
    assert {t.heads for t in asked if t.task == "recall"} == {2, 8}


def test_a_model_learns_and_what_it_keeps_is_counted() -> None:
    pytest.importorskip("torch")
    settings = Settings(width=32, depth=1, steps=30, tokens=512, tasks=("copying",))
    outcome = attempt(Trial(GLA, "copying", 2, 0), settings)
    assert outcome.failed == "" and outcome.losses[-1] < outcome.losses[0]
    assert outcome.state == 2 * 16 * 16
    assert set(outcome.reached) == {32, 64, 128}
    assert all(0 <= x <= 1 for x in outcome.reached.values())
    moved = np.array(outcome.influence)
    assert (
        moved.shape == (48, 48) and (np.triu(moved, 1) == 0).all() and (moved.diagonal() > 0).all()
    )
    assert attempt(Trial(GLA, "copying", 2, 0), settings).losses == outcome.losses


def test_training_ends_where_nothing_is_left_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its curve goes on beside the others' as it was then."""
    pytest.importorskip("torch")
    monkeypatch.setattr(trials_module, "SOLVED", 100.0)
    settings = Settings(width=16, depth=1, steps=200, tokens=64, tasks=("parity",))
    found = attempt(Trial(GLA, "parity", 2, 0), settings)
    assert found.every == 2 and len(found.losses) == 11  # of 21 steps
    record = Record((GLA,), settings, [found], {}, "", {}, "")
    points = page._curve(record, 0, [(2, [3.0, 1.0]), (2, [1.0, 1.0, 0.5])], 1.0).points
    assert [(p.x, p.y) for p in points] == [(2, 2.0), (4, 1.0), (6, 0.75)]


def test_a_gate_may_extend_a_file_beside_it(tmp_path: Path) -> None:
    """Models are made from its text, where that file is no longer beside it."""
    (tmp_path / "near.la").write_text(GLA.source.replace("variant gla", "variant near"))
    spec = tmp_path / "mine.la"
    spec.write_text("variant mine extends near\n\ngate α = exp(2 * g)\n")
    (mine,) = _contestants([spec], None, "")
    (tmp_path / "near.la").unlink()
    again = driver.load(mine.source, mine.overrides)
    assert "exp(2 * g)" in again.text and [s.name for s in again.states] == ["S"]


def test_what_is_left_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a minute where there is no terminal: 30 of 72 after five minutes leave seven."""
    times = iter([0.0, 30.0, *[300.0] * 2])
    monkeypatch.setattr(report, "monotonic", lambda: next(times))
    with report.counting("training") as progress:
        progress(3, 72, "gla on recall")
        progress(30, 72, "gla on text")
    assert capsys.readouterr().err == "training: 30 of 72, gla on text; about 7 min left\n"


def test_a_loss_that_is_no_number_is_said() -> None:
    pytest.importorskip("torch")
    source = GLA.source.replace("K**-0.5 * S[t].T @ q", "sqrt(-1 - k.T @ k) * S[t].T @ q")
    settings = Settings(width=16, depth=1, steps=3, tokens=64, tasks=("parity",))
    outcome = attempt(Trial(Contestant("x", source), "parity", 2, 0), settings)
    assert outcome.failed == "the loss or its gradient is no number from step 0 on"
    assert not outcome.reached


def test_a_picture_is_a_png_that_shows_what_is_remembered() -> None:
    image = base64.b64decode(page.picture([[1.0, 0.0], [1e-6, 2.0]], scale=1).split(",")[1])
    assert image.startswith(b"\x89PNG")
    start = image.index(b"IDAT") + 4
    lines = zlib.decompress(image[start : image.index(b"IEND") - 8])
    dark, light = bytes([18, 52, 120]), bytes([245, 247, 250])
    assert lines == b"\0" + dark + light + b"\0" + light + dark


class Outside(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and not str(value).startswith("data:"):
                self.found.append(str(value))
        self.open += tag == "svg"


def test_the_command_writes_a_page_that_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "mine.la"
    spec.write_text(GLA.source.replace("variant gla", "variant mine"))
    words = f"lab {spec} --against gla --tasks parity,text --quick --steps 5 --width 16 --jobs 1"
    monkeypatch.setattr("lacc.cli.lab.QUICK", 4)
    monkeypatch.setattr("lacc.lab.trials.DECODED_AFTER", (4, 8))
    done = CliRunner().invoke(app, [*words.split(), "--json", "lab.json"])
    assert done.exit_code == 0, done.output
    assert re.search(r"mine +0\.\d{3} +\d\.\d{3} +128 *$", done.output, re.MULTILINE)
    text = (tmp_path / "lab_mine.html").read_text()
    parser = Outside()
    parser.feed(text)
    assert parser.found == [] and parser.open == 7
    assert text.count("<img src=") == 2 and "<script" not in text
    record = json.loads((tmp_path / "lab.json").read_text())
    assert [c["name"] for c in record["contestants"]] == ["mine", "gla"]
    assert record["outcomes"][0]["losses"] == record["outcomes"][1]["losses"]  # the same recurrence


def test_what_is_done_is_reported_where_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lacc.cli.lab.QUICK", 2)
    monkeypatch.setattr(trials_module, "attempt", interrupted_at(2))
    spec = ROOT / "examples" / "gla.la"
    words = f"lab {spec} --against simple_gla --tasks parity,S3 --quick --width 16 --jobs 1"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 130 and "of 4 models 1 are in the report" in done.output
    assert "lab_gla.html" in done.output and (tmp_path / "lab_gla.html").exists()


def interrupted_at(time: int) -> Callable[..., Outcome]:
    """`attempt`, which is interrupted when it is called for that time."""
    calls = iter(range(1, time + 1))

    def run(trial: Trial, settings: Settings) -> Outcome:
        if next(calls) == time:
            raise KeyboardInterrupt
        return attempt(trial, settings)

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tasks recal", "did you mean `recall`"),
        ("--against glaa", "did you mean `gla`"),
        ("--width 12", "a multiple of 8, got 12"),
        ("--html nowhere/x.html", "there is no folder nowhere"),
    ],
)
def test_mistakes_are_answered(words: str, said: str) -> None:
    pytest.importorskip("torch")
    path = ROOT / "examples" / "gla.la"
    done = CliRunner().invoke(app, ["lab", str(path), *words.split()])
    assert done.exit_code == 2
    assert said in re.sub(r"[│\s]+", " ", done.output)


def test_a_spec_that_no_layer_holds_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "placed.la"
    path.write_text(
        GLA.source.replace("gate α", "param p : [K] per position\ngate α").replace(
            "@ q", "@ (q + p)"
        )
    )
    done = CliRunner().invoke(
        app, ["lab", str(path), "--against", "", "--html", f"{tmp_path}/x.html"]
    )
    assert done.exit_code == 2 and "positions: gla has tables of positions" in done.output
