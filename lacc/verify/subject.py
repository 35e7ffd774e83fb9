"""A kernel in one mode goes in; findings come out: its quantities against the reference's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.runtime.kernel import Kernel
from lacc.verify.cases import (
    Arrays,
    Bench,
    Case,
    Quantities,
    cut,
    errors,
    grows,
    largest_error,
    quantities,
)

EXACT = 1e-9
"""float64, relative to max|reference|."""

CALL = "call"
"""The quantity of a finding that a call raised."""


@dataclass(frozen=True)
class Finding:
    """One comparison: the error, its limit, and how to see it again. ``growth`` is the size of the
    reference where that is beyond what can be compared."""

    quantity: str
    error: float
    limit: float
    case: str
    growth: float = 0.0

    @property
    def passed(self) -> bool:
        return bool(self.error <= self.limit) or self.growth > 0


class KernelFault(Exception):
    """What a kernel under test raised, in words."""


@dataclass(frozen=True)
class Guarded:
    """A kernel under test: whatever it raises is its failure, a `KernelFault`."""

    kernel: Kernel

    def __call__(self, **arguments: Any) -> Any:
        return self._try(self.kernel, arguments)

    def step(self, **arguments: Any) -> Any:
        return self._try(self.kernel.step, arguments)

    def vjp(self, **arguments: Any) -> Any:
        return self._try(self.kernel.vjp, arguments)

    def _try(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        try:
            return function(**arguments)
        except Exception as fault:
            said = f"{type(fault).__name__}: {fault}"
            raise KernelFault(f"{said}, called with {_shown(arguments)}") from fault


@dataclass(frozen=True)
class Subject:
    """What is verified: a kernel in one of its modes, or in mode "step"."""

    bench: Bench
    kernel: Guarded
    mode: str
    full: bool = False

    @property
    def options(self) -> dict[str, Any]:
        asked = min(self.chunk, self.longest)
        return {"mode": self.mode} | ({"chunk": asked} if self.mode == "chunk" else {})

    @property
    def chunk(self) -> int:
        """Tokens of a chunk, by which the lengths of sequences go too."""
        return self.bench.scale.chunk

    @property
    def longest(self) -> int:
        """The most tokens of a chunk that are worth trying."""
        return self.kernel.kernel.signature.longest or 200

    def run(self, case: Case, arrays: Arrays | None = None) -> Quantities:
        """The quantities that the kernel gives, token by token in mode "step"."""
        arrays = self.bench.arrays(case) if arrays is None else arrays
        if self.mode != "step":
            return self.bench.run(self.kernel, case, arrays, self.options)
        outputs, state = self.steps(arrays, self.bench.start(case), case.T)
        return quantities(self.bench.spec, outputs, state)

    def forward(self, arrays: Arrays, start: Any = None, **options: Any) -> tuple[Any, Any]:
        """Outputs and state of whole sequences, in every mode but "step"."""
        outputs, state = self.kernel(**arrays, initial_state=start, **self.options, **options)
        return outputs, state

    def steps(self, arrays: Arrays, state: Any, count: int) -> tuple[Any, Any]:
        """Outputs and state, one token after another."""
        spec = self.bench.spec
        found = []
        for t in range(count):
            outputs, state = self.kernel.step(**cut(spec, arrays, t), state=state)
            found.append(outputs)
        if len(spec.outputs) == 1:
            return np.stack(found, 1), state
        return type(found[0])(*(np.stack(parts, 1) for parts in zip(*found))), state

    def compare(
        self, got: Quantities, truth: Quantities, case: Case, note: str = ""
    ) -> Iterator[Finding]:
        """A finding for each quantity that ``got`` has, in float64. Where what adds up cancels, so
        that the recurrence itself has fewer digits, no more of them are asked."""
        growth = grows(truth)
        known = truth if self.mode != "step" else {n: x for n, x in truth.items() if n in got}
        said = f"{case}{', ' + note if note else ''}"
        found = errors(got, known, largest_error)
        lost = self.bench.lost(case) if any(e > EXACT for e in found.values()) else {}
        for name, error in found.items():
            yield Finding(name, error, max(EXACT, 20 * lost.get(name, 0.0)), said, growth)


def _shown(arguments: dict[str, Any]) -> str:
    """The arguments of a call: shapes of arrays, other things as they are."""
    return ", ".join(
        f"{n} {list(x.shape)}" if isinstance(x, np.ndarray) else f"{n}={x!r}"
        for n, x in arguments.items()
        if x is not None and not isinstance(x, tuple)
    )
