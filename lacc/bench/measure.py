"""Cases and contestants go in, a record comes out: each result is checked, then all take turns.

Round by round every contestant is timed once, so that whatever slows the machine down slows all of
them down. Whose numbers are off is reported and never timed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lacc.bench.case import PREFIX, Arrays, Case, Truth, Unfit, data, first_tokens
from lacc.bench.contestants import Bound, Contestant, Found
from lacc.bench.floors import floor
from lacc.bench.found import FAILURES, matching
from lacc.bench.rates import Rates
from lacc.bench.record import Entry, Measured
from lacc.diagnostics import LaccError
from lacc.trial import relative_error

TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 4e-2, "float16": 1e-2}
"""How far results may be off, relative to the largest number that they should be."""

SAMPLE = 0.02
"""Seconds that one sample takes at least: shorter calls are repeated."""

COLD_CALLS = 5
FLUSHED = 96 << 20
"""Bytes that are written before a call that finds nothing in a cache."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Effort:
    """At most ``rounds`` samples; after three of them no more than ``seconds`` for a contestant in
    a case; who takes longer than ``longest`` for a call is timed once."""

    rounds: int = 11
    seconds: float = 2.0
    longest: float = 20.0


def run(
    cases: Sequence[Case],
    contestants: Iterable[Contestant | Found],
    rates: Rates | None,
    effort: Effort,
    progress: Progress = lambda done, total, what: None,
) -> list[Measured]:
    """Every case; packages are searched once for each spec. Raises LaccError or ValueError where
    the arrays of a case do not exist."""
    everybody, found = list(contestants), []
    known: dict[str, tuple[list[Contestant], list[Entry]]] = {}
    for n, case in enumerate(cases):
        progress(n, len(cases), f"{case}")
        if case.spec.digest not in known:
            known[case.spec.digest] = resolved(everybody, case)
        present, absent = known[case.spec.digest]

        def say(what: str, n: int = n, case: Case = case) -> None:
            progress(n, len(cases), f"{case}, {what}")

        measured = measure(case, present, rates, effort, say)
        measured.entries += absent
        found.append(measured)
    return found


def measure(
    case: Case,
    contestants: Iterable[Contestant],
    rates: Rates | None,
    effort: Effort,
    progress: Callable[[str], None] = lambda what: None,
    seed: int = 0,
) -> Measured:
    """Everything about one case. Raises LaccError or ValueError where its arrays do not exist."""
    shape = {"B": case.B, "T": case.T, "H": case.H} | ({"G": case.G} if case.G > 1 else {})
    spec = case.spec.ascii
    found = Measured(spec, case.mode, shape, case.dims, case.dtype, case.threads)
    _put_floor(found, case, rates)
    check = Checker(case, seed)
    given = check.given
    ready: list[tuple[Entry, Bound, int]] = []
    for contestant in contestants:
        entry = Entry(contestant.name, contestant.ours, contestant.truth is not None)
        found.entries.append(entry)
        progress(f"checking {contestant.name}")
        try:
            entry.error = check(contestant)
            bound = contestant.bind(case, given)
            entry.memory, seconds = _first_calls(bound, case)
            check.prefix(contestant, bound)
        except Wrong as problem:
            entry.error = problem.error
            entry.why = str(problem)
        except (Unfit, LaccError, MemoryError, *FAILURES) as problem:
            entry.why = said(problem)
        else:
            ready.append((entry, bound, max(1, round(SAMPLE / max(seconds, 1e-7)))))
    _rounds(case, ready, effort, progress)
    return found


def resolved(
    contestants: Iterable[Contestant | Found], case: Case
) -> tuple[list[Contestant], list[Entry]]:
    """All who take part, those of packages that compute the spec too; of a package without any, an
    entry that says so."""
    present, absent = [], []
    for contestant in contestants:
        if isinstance(contestant, Contestant):
            present.append(contestant)
            continue
        try:
            present += matching(contestant.package, case)
        except (Unfit, *FAILURES) as problem:
            absent.append(Entry(contestant.package, why=said(problem)))
    return present, absent


def said(problem: BaseException) -> str:
    """What an error says in one line."""
    if isinstance(problem, LaccError):
        return problem.diagnostics[0].message
    first = (str(problem).strip().splitlines() or [""])[0][:200]
    return first if isinstance(problem, Unfit) else f"{type(problem).__name__}: {first}"


class Wrong(Exception):
    """A result that is not what it should be."""

    def __init__(self, name: str, error: float) -> None:
        self.error = error
        super().__init__(f"wrong: {name} is off by {error:.1e} relative to the float64 reference")


class Checker:
    """Holds results of one case against what they should be; the reference runs once."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.given = data(case, seed)
        self.small = case if case.by_token else case.small
        self.small_given = self.given if case.by_token else data(self.small, seed)
        self.truth = Truth(self.small, self.small_given)
        self.head: Truth | None = None

    def __call__(self, contestant: Contestant) -> float:
        """The largest error of a small call (of the call itself, in `decode`). Raises Wrong."""
        bound = contestant.bind(self.small, self.small_given)
        want: Arrays = self.truth.results
        if contestant.truth is not None:
            want = contestant.truth(self.small, self.small_given)
        return self._held(contestant, bound.results(bound.call()), want)

    def prefix(self, contestant: Contestant, bound: Bound) -> None:
        """The first tokens of the full-sized call, where those do not depend on later ones."""
        case = self.case
        waits = any(state.direction == "backward" for state in case.spec.states)
        if contestant.truth or case.mode != "forward" or waits or case.T <= self.small.T:
            return
        if self.head is None:
            self.head = Truth(*first_tokens(case, self.given, PREFIX))
        found = bound.results(bound.call())
        self._held(contestant, {n: x[:, :PREFIX] for n, x in found.items()}, self.head.results)

    def _held(self, contestant: Contestant, got: Arrays, want: Arrays) -> float:
        most = max(TOLERANCES[self.case.dtype], contestant.tolerance)
        worst = 0.0
        shared = [name for name in want if name in got]
        if not shared or (self.case.mode != "train" and len(shared) < len(want)):
            raise Unfit(f"it gives {', '.join(got) or 'nothing'}, not {', '.join(want)}")
        for name in shared:
            if got[name].shape != want[name].shape:
                raise Unfit(f"{name} has the shape {got[name].shape}, not {want[name].shape}")
            error = relative_error(got[name], want[name])
            if not error <= most:
                raise Wrong(name, error)
            worst = max(worst, error)
        return worst


def _put_floor(found: Measured, case: Case, rates: Rates | None) -> None:
    least = floor(case)
    if least is None:
        return
    found.floor = {"flops": least.flops, "exps": least.exps, "bytes": least.bytes}
    if rates is not None:
        far = max(rates.bandwidth)
        touched = far if case.mode == "cold" else least.bytes
        bandwidth = rates.bytes(touched)
        found.least = least.seconds(rates.flops, rates.exps, bandwidth)


def _first_calls(bound: Bound, case: Case) -> tuple[int | None, float]:
    """Peak memory of a call beyond what was there, and seconds of the next one."""
    peak = peak_memory(bound.call)
    start = time.perf_counter()
    bound.call()
    return peak, time.perf_counter() - start


def peak_memory(call: Callable[[], Any]) -> int | None:
    """Bytes that this process had more of during a call than before it; None where the system does
    not tell."""
    gc.collect()
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        base = _resident("VmRSS")
        kept = call()
        peak = _resident("VmHWM")
    except (OSError, AttributeError):
        call()
        return None
    del kept
    return max(0, peak - base)


def _resident(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {what}")


def _rounds(
    case: Case,
    ready: Sequence[tuple[Entry, Bound, int]],
    effort: Effort,
    progress: Callable[[str], None],
) -> None:
    clock = time.process_time if case.threads == 1 else time.perf_counter
    spent: dict[str, float] = {}
    flush = np.zeros(FLUSHED, np.uint8) if case.mode == "cold" else None
    for turn in range(effort.rounds):
        progress(f"round {turn + 1} of {effort.rounds}")
        for entry, bound, repeats in ready:
            used = spent.get(entry.who, 0.0)
            if used > effort.seconds and (turn >= 3 or used > effort.longest):
                continue
            start = time.perf_counter()
            entry.samples.append(_sample(bound.call, repeats, clock, flush))
            spent[entry.who] = used + time.perf_counter() - start


def _sample(call: Callable[[], Any], repeats: int, clock: Callable[[], float], flush: Any) -> float:
    """Seconds of one call, the mean of several."""
    if flush is None:
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats
    total = 0.0
    for _ in range(COLD_CALLS):
        flush += 1
        start = clock()
        call()
        total += clock() - start
    return total / COLD_CALLS


def of_rates(rates: Rates) -> Mapping[str, Any]:
    """Rates as a record keeps them."""
    return {
        "flops": rates.flops,
        "exps": rates.exps,
        "bandwidth": {str(size): rate for size, rate in rates.bandwidth.items()},
    }
