"""A spec, a target and the shape of a call in, the fastest way to run it on this machine out.

Candidates are the modes and chunk lengths that a plan has, ranked by its prices. Each is compared
with the float64 reference before its time counts. They take turns round by round, fewer from rung
to rung; what each round took is kept at once, so that a search that is broken off goes on later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from lacc import driver
from lacc.plan.plan import Choice, Plan, bucket
from lacc.runtime import entries, machines, tuned
from lacc.runtime.contract import Signature
from lacc.runtime.kernel import Kernel
from lacc.runtime.tuned import Record, named
from lacc.tuning.calls import Calls, drawn, largest_error, of_reference

MOST = 12
"""Candidates that are measured at most."""
HOPELESS = 10.0
"""How many times as long as the best a candidate may seem to take and yet be tried."""
CHUNKS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
RUNGS = ((1, 6), (2, 4), (3, 2), (5, 1))
"""Rounds, and how many candidates then stay beside the model's choice."""
SHORT = 96
"""Tokens of the call that is compared with the reference."""
LIMITS = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 0.05, "float16": 0.01}
"""Errors relative to the largest value above which a candidate is wrong, by what is computed in."""

Progress = Callable[[int, int, str], None]


class OutOfTime(Exception):
    """The budget is used up."""


def candidates(
    plan: Plan, T: int, heads: int, dims: Mapping[str, int], longest: int | None
) -> dict[Choice, float]:
    """The candidates of a call with the seconds that the plan's prices say, the best first."""
    found = {model(plan, T, heads, dims)}
    for mode in plan.modes:
        if mode == "chunk":
            lengths = {C for C in (*CHUNKS, *plan.chunks) if C < T}
            found |= {(mode, C) for C in lengths if longest is None or longest >= C}
        else:
            found.add((mode, 1))
    costs = {choice: plan.cost(choice, T, heads, dims) * 1e-9 for choice in sorted(found)}
    ranked = dict(sorted(costs.items(), key=lambda one: one[1])[:MOST])
    least = min(ranked.values(), default=0.0)
    return {choice: cost for choice, cost in ranked.items() if cost <= HOPELESS * least}


def model(plan: Plan, T: int, heads: int, dims: Mapping[str, int]) -> Choice:
    """What the plan's prices choose, whatever was measured."""
    mode, tokens = replace(plan, tuned={}).choose(T, heads, dims)
    return mode, tokens if mode == "chunk" else 1


class Search:
    """The search for one way (forward, or backward: a call for gradients) of calls of a shape.

    ``record`` is what is known, ``candidates`` what is tried with the seconds that the plan says
    each takes; ``fresh`` rounds were added by `run`, which ``early`` says why it ended before all
    were; ``unkept`` is why the record could not be written.
    """

    def __init__(
        self, kernel: Kernel, shape: Mapping[str, int], dtype: str, way: str = "forward"
    ) -> None:
        """``shape`` has B, T and H, maybe G. Raises LaccError where the spec has no such plan."""
        self.kernel, self.shape, self.dtype, self.way = kernel, shape, dtype, way
        spec, plan = kernel.spec, kernel.plan
        plan = plan.back if way == "backward" else plan
        T, heads = shape["T"], shape["B"] * _heads(kernel.signature, shape)
        dims = {name: spec.dims[name].default for name in kernel.signature.dims}
        self.candidates = candidates(plan, T, heads, dims, kernel.signature.longest)
        chosen = model(plan, T, heads, dims)
        key = tuned.key_of(spec, kernel.target, dtype)
        device = machines.device_label(kernel.target)
        self.record = Record(key, way, bucket(T, heads, dims), dict(shape), device, chosen)
        if found := tuned.read(self.record.name):
            self.record = found
        self.fresh, self.early, self.unkept = 0, "", ""
        self.like: tuple[Choice, dict[str, Any]] | None = None

    def run(self, deadline: float, progress: Progress) -> None:
        """Measures until nothing is left to be told apart, ``time.perf_counter()`` is ``deadline``
        or a keyboard interrupt comes: what is known by then is kept."""
        try:
            if not self.record.done and len(self.candidates) > 1:
                for live in self._rounds():
                    self._round(live, deadline, progress)
                self.record.done = True
                self._keep()
        except OutOfTime:
            self.early = "the budget was used up"
        except KeyboardInterrupt:
            self.early = "interrupted"

    def _rounds(self) -> Iterator[list[Choice]]:
        """The candidates of each round that is still to be done."""
        live, at = list(self.candidates), 0
        if self.record.rounds:
            yield [choice for choice in live if not self.record.times(choice)]
        for rounds, stay in RUNGS:
            for _ in range(rounds):
                if at >= len(self.record.rounds):
                    yield live
                at += 1
            ranked = [choice for choice in self.record.relative() if choice in live]
            live = [c for c in ranked if c in ranked[:stay] or c == self.record.yardstick]

    def _round(self, live: Sequence[Choice], deadline: float, progress: Progress) -> None:
        """A turn of each that is not wrong, and of the yardstick first; what was measured is kept
        even where time ends within it."""
        first = self.record.yardstick or self.record.model
        live = [choice for choice in live if choice not in self.record.wrong]
        if not live:
            return
        live = [first, *(choice for choice in live if choice != first)]
        taken: dict[Choice, float] = {}
        done = sum(map(len, self.record.rounds))
        try:
            for choice in live:
                if time.perf_counter() >= deadline:
                    raise OutOfTime
                progress(done + len(taken), self._turns(), self._so_far(choice))
                if self._right(choice):
                    taken[choice] = self.calls.seconds(choice)
        finally:
            if taken:
                self.record.rounds.append(taken)
                self.fresh += 1
            self._keep()

    def _turns(self) -> int:
        """How many turns there will have been, about."""
        stay = [len(self.candidates), *(stay + 1 for _, stay in RUNGS)]
        return sum(rounds * n for (rounds, _), n in zip(RUNGS, stay))

    def _so_far(self, choice: Choice) -> str:
        best = named(self.record.best)
        said = f", {best} {self.record.gain:.2f}x so far" if self.record.rounds else ""
        return f"{self.way}, {named(choice)}{said}"

    def _right(self, choice: Choice) -> bool:
        """Whether a candidate computes what the reference does on a short call, and on the call
        itself what the first that was found right does."""
        record = self.record
        if choice not in record.errors:
            limit = LIMITS[self.dtype]
            short, truth = self.short
            error, of = largest_error(short.results(choice), truth), "the reference"
            tokens = self.tokens
            if error <= limit:
                got = self.calls.results(choice)
                first, like = self.like = self.like or (choice, got)
                long = largest_error(got, like)
                if not long <= limit:
                    error, of, tokens = long, named(first), self.shape["T"]
            if not error <= limit:
                record.wrong[choice] = f"{error:.1e} off {of} at T = {tokens}"
            record.errors[choice] = error
        return choice not in record.wrong

    @property
    def tokens(self) -> int:
        """Of the short call."""
        return min(SHORT, self.shape["T"])

    @cached_property
    def calls(self) -> Calls:
        """Of the shape that is tuned."""
        return drawn(self.kernel, self.shape, self.dtype, self.way == "backward")

    @cached_property
    def short(self) -> tuple[Calls, dict[str, Any]]:
        """Calls that the reference can do as well, and what it gives."""
        groups = self.shape.get("G", 1)
        heads = groups if groups > 1 else min(2, self.shape["H"])
        sizes = {"B": 1, "T": self.tokens, "H": heads, "G": groups}
        calls = drawn(self.kernel, sizes, self.dtype, self.way == "backward")
        reference = driver.compile(self.kernel.spec, "reference")
        return calls, of_reference(reference, calls).results()

    def _keep(self) -> None:
        """Puts what is known, if anything is, where the next search finds it."""
        if not self.record.errors:
            return
        self.record.when = datetime.now().strftime("%Y-%m-%d %H:%M")
        try:
            self.record = tuned.save(self.record)
        except OSError as problem:
            self.unkept = f"cannot write to {entries.folder(tuned.KIND)}: {problem.strerror}"


def _heads(signature: Signature, shape: Mapping[str, int]) -> int:
    """Heads of a call: those of arguments that are per head, or per group."""
    levels = {argument.level for argument in signature.arguments}
    return shape["H"] if "head" in levels else shape.get("G", 1) if "group" in levels else 1
