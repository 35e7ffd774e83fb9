"""Specs, baselines and settings go in; what small models learnt with each of them comes out.

A *trial* is one model trained on one task from one seed. Trials are independent of one another and
of their order; several run at once, each on one thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from lacc.lab.tasks import TASKS

HEADS = 2
NARROW = 8
"""Heads of the models, and of those whose smaller state recall is tried with, too."""

T_QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Of Student's t, two sided, 95 %, for 1 to 10 degrees of freedom."""

LATELY, SOLVED = 20, 0.01
"""Steps over which a mean loss (nats) below this ends training: there is nothing left to learn."""

DECODED_AFTER = (64, 256, 1024, 4096)
SHOWN = 48
"""Tokens after which steps are timed; tokens of the picture of what is forgotten."""


@dataclass(frozen=True)
class Contestant:
    """A spec under the name that the report has for it. ``given``: asked about, not a baseline."""

    name: str
    source: str
    overrides: Mapping[str, float] = field(default_factory=dict)
    given: bool = True


@dataclass(frozen=True)
class Settings:
    """How models are made and trained; the same for all."""

    width: int = 64
    depth: int = 2
    steps: int = 500
    tokens: int = 1024  # of a step
    rate: float = 5e-3
    seeds: int = 3
    tasks: tuple[str, ...] = tuple(TASKS)


@dataclass(frozen=True)
class Trial:
    """One model: whose, on what, with how many heads, from which seed."""

    contestant: Contestant
    task: str
    heads: int
    seed: int


@dataclass
class Outcome:
    """What came of a trial. ``losses`` (nats) and ``norms`` (of gradients) are means of
    ``every`` steps; ``reached`` has accuracies, or bits a token, by length; ``state`` are the
    numbers that one layer keeps of a sequence after the task's length; ``influence`` is
    [token][earlier token]. ``failed`` says why there is nothing. What is solved has fewer means
    than the others."""

    name: str
    task: str
    heads: int
    seed: int
    every: int = 1
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    reached: dict[int, float] = field(default_factory=dict)
    state: int = 0
    seconds: float = 0.0
    influence: list[list[float]] = field(default_factory=list)
    failed: str = ""


@dataclass
class Record:
    """All that a report is made of. ``decoding`` has, by contestant and by tokens before, the
    median seconds of one layer's step of processor time."""

    contestants: tuple[Contestant, ...]
    settings: Settings
    outcomes: list[Outcome]
    decoding: dict[str, dict[int, float]]
    when: str
    machine: dict[str, str]
    command: str

    def of(self, name: str, task: str, heads: int = HEADS) -> list[Outcome]:
        """What the seeds of one contestant gave on a task, those that failed left out."""
        return [
            o
            for o in self.outcomes
            if (o.name, o.task, o.heads) == (name, task, heads) and not o.failed
        ]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and half the width of its 95 % interval by Student's t (None of one)."""

    value: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if self.half is None else f" ± {self.half:.3f}")


def mean(values: Sequence[float]) -> Mean:
    """The mean of at least one value."""
    if len(values) == 1:
        return Mean(values[0], None)
    free = min(len(values) - 1, len(T_QUANTILES))
    spread = statistics.stdev(values) / len(values) ** 0.5
    return Mean(statistics.fmean(values), T_QUANTILES[free - 1] * spread)


def trials(contestants: Iterable[Contestant], settings: Settings) -> list[Trial]:
    """Every trial, seeds outermost: an interrupted run has whole rounds."""
    found = []
    several = tuple(contestants)
    for seed in range(settings.seeds):
        for task in settings.tasks:
            for heads in (HEADS, NARROW) if task == "recall" else (HEADS,):
                found += [Trial(contestant, task, heads, seed) for contestant in several]
    return found


def run(
    contestants: Sequence[Contestant],
    settings: Settings,
    *,
    jobs: int = 1,
    progress: Callable[[int, int, str], None],
) -> tuple[list[Outcome], dict[str, dict[int, float]]]:
    """Outcomes of all trials, and how long steps take; of those that are done, and no steps, where
    it is interrupted (KeyboardInterrupt). Raises LaccError and ValueError where a spec cannot stand
    in a layer."""
    for contestant in contestants:
        _layer(contestant)(settings.width, HEADS)
    asked = trials(contestants, settings)
    outcomes = []
    interrupted = False
    try:
        for done, outcome in enumerate(_outcomes(asked, settings, jobs), 1):
            outcomes.append(outcome)
            told = f"{outcome.name} on {outcome.task}"
            progress(done, len(asked) + len(contestants), told)
    except KeyboardInterrupt:
        if not outcomes:
            raise
        interrupted = True
    order = {(t.contestant.name, t.task, t.heads, t.seed): n for n, t in enumerate(asked)}
    outcomes.sort(key=lambda o: order[o.name, o.task, o.heads, o.seed])
    decoding: dict[str, dict[int, float]] = {}
    for n, contestant in enumerate(() if interrupted else contestants):
        progress(len(asked) + n, len(asked) + len(contestants), f"steps of {contestant.name}")
        decoding[contestant.name] = _decoding(contestant)
    return outcomes, decoding


def _outcomes(asked: Sequence[Trial], settings: Settings, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        _one_thread()
        for trial in asked:
            yield attempt(trial, settings)
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # a fork would share torch's threads
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread)
    try:
        for future in as_completed([pool.submit(attempt, trial, settings) for trial in asked]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def attempt(trial: Trial, settings: Settings) -> Outcome:
    """One trial. What goes wrong numerically is said in the outcome."""
    import math
    import time

    from lacc.lab import model

    task = TASKS[trial.task]
    layer = _layer(trial.contestant)
    outcome = Outcome(trial.contestant.name, trial.task, trial.heads, trial.seed)
    outcome.every = every = max(1, settings.steps // 100)
    outcome.state = model.state_size(layer, settings.width, trial.heads, task.train)
    begun = time.process_time()
    losses: list[float] = []
    norms: list[float] = []
    made = model.untrained(layer, task, settings.width, trial.heads, settings.depth, trial.seed)
    rows, rate = task.rows(settings.tokens), settings.rate
    trained = model.trained(made, task, steps=settings.steps, rows=rows, rate=rate, seed=trial.seed)
    for step, (loss, norm) in enumerate(trained):
        losses.append(loss)
        norms.append(norm)
        if not math.isfinite(loss) or not math.isfinite(norm):
            outcome.failed = f"the loss or its gradient is no number from step {step} on"
            break
        if step >= LATELY and statistics.fmean(losses[-LATELY:]) < SOLVED:
            break
    outcome.seconds = time.process_time() - begun
    outcome.losses = _means(losses, every)
    outcome.norms = _means(norms, every)
    if outcome.failed:
        return outcome
    for length in task.test:
        outcome.reached[length] = model.reached(made, task, length, trial.seed)
    if trial.seed == 0 and trial.task == _pictured(settings.tasks) and trial.heads == HEADS:
        outcome.influence = model.influence(made, task, SHOWN, trial.seed).tolist()
    return outcome


def _pictured(tasks: Sequence[str]) -> str:
    """The task whose models' memory is drawn: text, where it is among them."""
    return "text" if "text" in tasks else tasks[0]


def _means(values: Sequence[float], every: int) -> list[float]:
    parts = (values[i : i + every] for i in range(0, len(values), every))
    return [float(f"{statistics.fmean(part):.5g}") for part in parts]


def _layer(contestant: Contestant) -> Any:
    from lacc import driver

    spec = driver.load(contestant.source, contestant.overrides)
    return driver.compile(spec, target="auto").layer


def _decoding(contestant: Contestant) -> dict[int, float]:
    from lacc.lab.model import decoding

    layer = _layer(contestant)
    return {n: statistics.median(decoding(layer, 256, 4, n)) for n in DECODED_AFTER}


def _one_thread() -> None:
    import os

    import torch

    os.environ["LACC_THREADS"] = "1"
    torch.set_num_threads(1)
