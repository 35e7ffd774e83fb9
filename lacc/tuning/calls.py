"""A kernel and the shape of a call in, what the call gives in a mode and how long it takes out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.plan.plan import Choice
from lacc.runtime.kernel import Kernel
from lacc.trial import by_name, draw_arguments, relative_error, true_state

SLOT = 0.02
"""Seconds for which a call is repeated in its turn; the fastest counts."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a kernel with the same arguments: forward, or with a ``cotangent`` for gradients."""

    kernel: Kernel
    arguments: Mapping[str, Any]
    cotangent: Any = None

    def __call__(self, choice: Choice | None = None) -> Any:
        """One call, as a choice says."""
        mode, tokens = choice or ("auto", 1)
        options: dict[str, Any] = {} if choice is None else {"mode": mode}
        if mode == "chunk":
            options["chunk"] = tokens
        if self.cotangent is not None:
            return self.kernel.vjp(**self.arguments, cotangent=self.cotangent, **options)
        return self.kernel(**self.arguments, **options)

    def results(self, choice: Choice | None = None) -> dict[str, Any]:
        """Gradients by name, or outputs and states, scaled ones as what they stand for."""
        found = self(choice)
        if self.cotangent is not None:
            return dict(found)
        outputs, state = found
        spec = self.kernel.spec
        return by_name(spec.outputs, outputs) | true_state(spec, state, state)

    def seconds(self, choice: Choice) -> float:
        """What a call takes: the least of those that fit into a turn, behind one to warm up. Each
        is as long as the clock says, or as all threads have worked if that is less: where others
        have the processors, the clock tells more of them."""
        self(choice)
        times: list[float] = []
        until = time.perf_counter() + SLOT
        while not times or time.perf_counter() < until:
            clock, worked = time.perf_counter(), time.process_time()
            self(choice)
            times.append(min(time.perf_counter() - clock, time.process_time() - worked))
        return min(times)


def drawn(kernel: Kernel, shape: Mapping[str, int], dtype: str, gradients: bool) -> Calls:
    """Calls with arguments that keep the spec's promises."""
    arguments = draw_arguments(kernel, shape, dtype=dtype, seed=0)
    if not gradients:
        return Calls(kernel, arguments)
    rng = np.random.default_rng(1)
    outputs, _ = kernel(**arguments)
    if isinstance(outputs, tuple):
        normal = [rng.standard_normal(o.shape).astype(o.dtype) for o in outputs]
        return Calls(kernel, arguments, type(outputs)(*normal))
    return Calls(kernel, arguments, rng.standard_normal(outputs.shape).astype(outputs.dtype))


def of_reference(reference: Kernel, calls: Calls) -> Calls:
    """The same calls of the reference, in float64."""
    given = {name: np.asarray(x).astype(np.float64) for name, x in calls.arguments.items()}
    cotangent = calls.cotangent
    if isinstance(cotangent, tuple):
        cotangent = type(cotangent)(*(x.astype(np.float64) for x in cotangent))
    elif cotangent is not None:
        cotangent = cotangent.astype(np.float64)
    return Calls(reference, given, cotangent)


def largest_error(got: Mapping[str, Any], want: Mapping[str, Any]) -> float:
    """The worst of all results, relative to the largest value of each; NaN where one is."""
    return max((relative_error(got[n], want[n]) for n in want), key=lambda e: (np.isnan(e), e))
