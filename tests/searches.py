"""Searches of `lacc tune` for tests: a small kernel in, what was measured of it out; also wrong and
interrupted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from lacc import driver
from lacc.runtime.kernel import Kernel
from lacc.tuning.calls import Calls
from lacc.tuning.search import RUNGS, Search

RETNET = ROOT / "examples" / "retnet.la"
SHAPE = {"B": 1, "T": 64, "H": 2}
ROUNDS = sum(rounds for rounds, _ in RUNGS)
NEVER = float("inf")


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and turns that are short."""
    monkeypatch.setenv("LACC_CACHE", str(folder / "cache"))
    monkeypatch.setattr("lacc.tuning.calls.SLOT", 1e-4)
    return folder / "cache"


def small() -> Kernel:
    return driver.compile(RETNET, "numpy", K=8, V=8)


def quiet(done: int, total: int, current: str) -> None:
    assert current


def searched(kernel: Kernel, way: str = "forward", deadline: float = NEVER) -> Search:
    found = Search(kernel, SHAPE, "float32", way)
    found.run(deadline, quiet)
    return found


def broken(kernel: Kernel, choice: tuple[str, int], from_tokens: int = 0) -> Kernel:
    """A kernel that is wrong for one choice, in calls of at least so many tokens."""

    def forward(arguments: Any, **options: Any) -> Any:
        outputs, state = kernel(**arguments, **options)
        asked = options["mode"], options.get("chunk") or 1
        if asked == choice and outputs.shape[1] >= from_tokens:
            outputs = outputs.copy()
            outputs[:, -1] += 1
        return outputs, state

    functions = (forward, kernel._step, kernel._vjp)
    return Kernel(
        kernel.spec,
        kernel.target,
        kernel.signature,
        functions,
        missing=kernel.missing,
        verify=kernel.verify,
        plan=kernel.plan,
    )


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C in the turn after so many."""
    seconds, turns = Calls.seconds, []

    def interrupted(self: Calls, choice: tuple[str, int]) -> float:
        if len(turns) == after:
            raise KeyboardInterrupt
        turns.append(choice)
        return seconds(self, choice)

    monkeypatch.setattr(Calls, "seconds", interrupted)
