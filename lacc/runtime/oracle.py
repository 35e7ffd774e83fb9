"""A typed spec in, its meaning out: the token-by-token interpreter, with exact gradients.

This is the definition that every mode of every target must reproduce, and the target "reference".
It shares the op table with the compiler and nothing else: no analysis, no lowering, no chunks. A
`(stabilized)` state has the value of its recurrence as written; only its field is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lacc.runtime.contract import Arrays, Core, Run
from lacc.runtime.evaluate import Evaluation
from lacc.runtime.promises import COMPARE, said
from lacc.runtime.schedule import Schedule
from lacc.spec.model import Spec

Sampler = Callable[[tuple[int, ...], int], Any]


def reference(spec: Spec, draws: Mapping[str, Sampler]) -> Core:
    """The core of the target "reference"; ``draws`` are the samplers of buffers.

    Arguments and results of its functions are those of `lacc.runtime.contract`.
    """
    return _Reference(spec).core(draws)


class _Reference:
    """The functions of the core of one spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.schedules: dict[tuple[int, ...], Schedule] = {}

    def core(self, draws: Mapping[str, Sampler]) -> Core:
        return Core(self.forward, self.step, self.backward, self.promises, draws)

    def _evaluation(self, x: Arrays, state: Arrays, run: Run, taped: bool = False) -> Evaluation:
        sizes = tuple(run.dims[name] for name in sorted(run.dims))
        if sizes not in self.schedules:
            self.schedules[sizes] = Schedule(self.spec, run.dims)
        return Evaluation(self.schedules[sizes], x, state, run, taped)

    @np.errstate(all="ignore")
    def forward(self, x: Arrays, state: Arrays, run: Run) -> tuple[Arrays, Arrays]:
        """Outputs of all tokens and the final state."""
        evaluation = self._evaluation(x, state, run)
        evaluation.recur()
        outputs = {}
        for o in self.spec.outputs:
            y = evaluation.full(evaluation.schedule.outputs[o.name], evaluation.shape(o.shape))
            outputs[o.ascii] = np.array(np.swapaxes(y, 0, 1))
        return outputs, evaluation.final()

    def step(self, x: Arrays, state: Arrays, run: Run) -> tuple[Arrays, Arrays]:
        """Outputs of one token and the state after it."""
        outputs, final = self.forward(self._timed(x), state, run)
        return {name: y[:, 0] for name, y in outputs.items()}, final

    def _timed(self, x: Arrays) -> Arrays:
        """The arguments of one token as those of a sequence."""
        timed = {a.ascii: a for a in self.spec.args if a.role == "input" or a.per == "position"}
        return {
            name: a[:, None]
            if a is not None and name in timed and a.ndim == 2 + len(timed[name].shape)
            else a
            for name, a in x.items()
        }

    @np.errstate(all="ignore")
    def backward(
        self, x: Arrays, state: Arrays, run: Run, cotangent: Arrays, state_cotangent: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Gradients of arguments and state from the cotangents of outputs and final state."""
        evaluation = self._evaluation(x, state, run, taped=True)
        evaluation.recur()
        for o in self.spec.outputs:
            root = evaluation.schedule.outputs[o.name]
            evaluation.value(root)
            if cotangent.get(o.ascii) is not None:
                ct = np.asarray(cotangent[o.ascii], run.dtype)
                evaluation.add(root, np.swapaxes(ct, 0, 1))
        evaluation.pull_final(state_cotangent)
        evaluation.walk_back()
        return self._gradients(evaluation), evaluation.carry.gradients(evaluation.tracks)

    def _gradients(self, evaluation: Evaluation) -> Arrays:
        """The gradient of every input and param that was given, in its shape."""
        found: Arrays = {}
        for a in self.spec.args:
            x = evaluation.x.get(a.ascii)
            if x is None or a.role == "buffer":
                continue
            ct = evaluation.param_cts.get(a.name)
            track = evaluation.tracks.get(a.name)
            if a.role == "input":
                ct = None if track is None or track.ct is None else track.ct[track.now]
            if ct is None:
                found[a.ascii] = np.zeros(x.shape, evaluation.run.dtype)
            else:
                timed = a.role == "input" or a.per == "position"
                found[a.ascii] = np.array(np.swapaxes(ct, 0, 1) if timed else ct[0, 0])
        return found

    @np.errstate(all="ignore")
    def promises(self, x: Arrays, run: Run) -> list[tuple[str, str, Any]]:
        """Each `where`: its argument, its text, and where it holds; equations up to rounding."""
        evaluation = self._evaluation(self._timed(x), {}, run)
        slack = float(np.sqrt(np.finfo(run.dtype).eps))
        found = []
        for name, promise, *sides in evaluation.schedule.promises:
            rank = max(len(side.shape) for side in sides)
            left, right = (evaluation.padded(side, rank) for side in sides)
            if promise.cmp == "==":
                holds = np.abs(left - right) <= slack * (1 + np.abs(right))
            else:
                holds = COMPARE[promise.cmp](left, right)
            found.append((name, said(promise), np.swapaxes(holds, 0, 1)))
        return found
