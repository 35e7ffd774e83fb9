"""A typed spec in, its meaning out: the token-by-token interpreter, with exact gradients.

This is the definition that every mode of every target must reproduce, and the target "reference".
It shares the op table with the compiler and nothing else: no analysis, no lowering, no chunks. A
`(stabilized)` state has the value of its recurrence as written; only its field is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lacc.ir.apply import compare
from lacc.ir.graph import waits_for_the_end
from lacc.runtime.contract import Arrays, Core, Run, slack
from lacc.runtime.evaluate import Evaluation
from lacc.runtime.schedule import Schedule
from lacc.spec.model import Spec

BLOCK = 256  # tokens whose values are held at once, where a spec is causal

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
        self.whole = waits_for_the_end(spec) is not None
        self.timed = {
            a.ascii: 3 + len(a.shape) for a in spec.args if a.role == "input" or a.per == "position"
        }
        self.schedules: dict[tuple[int, ...], Schedule] = {}

    def core(self, draws: Mapping[str, Sampler]) -> Core:
        return Core(self.forward, self.step, self.backward, self.promises, draws)

    def _evaluation(self, x: Arrays, state: Arrays, run: Run, taped: bool = False) -> Evaluation:
        sizes = tuple(run.dims[name] for name in sorted(run.dims))
        if sizes not in self.schedules:
            self.schedules[sizes] = Schedule(self.spec, run.dims)
        return Evaluation(self.schedules[sizes], x, state, run, taped)

    def _blocks(self, run: Run) -> list[tuple[slice, Run]]:
        """The tokens of a call in pieces that follow one another, where what is causal allows."""
        size = run.T if self.whole else BLOCK
        starts = range(0, run.T, size) if run.T else (0,)
        spans = [slice(start, min(start + size, run.T)) for start in starts]
        return [(span, replace(run, T=span.stop - span.start)) for span in spans]

    def _cut(self, x: Arrays, span: slice) -> Arrays:
        """Arguments of the tokens of a block."""
        return {n: a[:, span] if a is not None and n in self.timed else a for n, a in x.items()}

    def forward(self, x: Arrays, state: Arrays, run: Run) -> tuple[Arrays, Arrays]:
        """Outputs of all tokens and the final state."""
        outputs: dict[str, list[Any]] = {o.ascii: [] for o in self.spec.outputs}
        for span, part in self._blocks(run):
            found, state = self._forward(self._cut(x, span), state, part)
            for name, y in found.items():
                outputs[name].append(y)
        return {name: np.concatenate(parts, axis=1) for name, parts in outputs.items()}, state

    @np.errstate(all="ignore")
    def _forward(self, x: Arrays, state: Arrays, run: Run) -> tuple[Arrays, Arrays]:
        evaluation = self._evaluation(x, state, run)
        evaluation.recur()
        outputs = {}
        for o in self.spec.outputs:
            y = evaluation.full(evaluation.schedule.outputs[o.name], evaluation.shape(o.shape))
            outputs[o.ascii] = np.swapaxes(y, 0, 1)
        return outputs, evaluation.final()

    def step(self, x: Arrays, state: Arrays, run: Run) -> tuple[Arrays, Arrays]:
        """Outputs of one token and the state after it."""
        outputs, final = self.forward(self._as_sequence(x), state, run)
        return {name: y[:, 0] for name, y in outputs.items()}, final

    def _as_sequence(self, x: Arrays) -> Arrays:
        """The arguments of one token as those of a sequence."""
        return {
            n: a[:, None] if a is not None and a.ndim == self.timed.get(n, a.ndim) - 1 else a
            for n, a in x.items()
        }

    def backward(
        self, x: Arrays, state: Arrays, run: Run, cotangent: Arrays, state_cotangent: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Gradients of arguments and state from the cotangents of outputs and final state."""
        blocks, states = self._blocks(run), [state]
        for span, part in blocks[:-1]:
            states.append(self._forward(self._cut(x, span), states[-1], part)[1])
        timed: dict[str, list[Any]] = {}
        total: Arrays = {}
        ends = state_cotangent
        for (span, part), start in zip(reversed(blocks), reversed(states)):
            cts = {n: None if ct is None else ct[:, span] for n, ct in cotangent.items()}
            found, ends = self._backward(self._cut(x, span), start, part, cts, ends)
            for name, ct in found.items():
                if name in self.timed:
                    timed.setdefault(name, []).insert(0, ct)
                else:
                    total[name] = total[name] + ct if name in total else ct
        return total | {n: np.concatenate(cts, axis=1) for n, cts in timed.items()}, ends

    @np.errstate(all="ignore")
    def _backward(
        self, x: Arrays, state: Arrays, run: Run, cotangent: Arrays, state_cotangent: Arrays
    ) -> tuple[Arrays, Arrays]:
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
                found[a.ascii] = np.swapaxes(ct, 0, 1) if a.ascii in self.timed else ct[0, 0]
        return found

    @np.errstate(all="ignore")
    def promises(self, x: Arrays, run: Run) -> list[tuple[str, str, Any]]:
        """Each `where`: its argument, its text, and where it holds; equations up to rounding."""
        evaluation = self._evaluation(self._as_sequence(x), {}, run)
        found = []
        for name, promise, *sides in evaluation.schedule.promises:
            rank = max(len(side.shape) for side in sides)
            left, right = (evaluation.padded(side, rank) for side in sides)
            holds = compare(promise.cmp, left, right, slack(x.values()))
            found.append((name, promise.span.words, np.swapaxes(holds, 0, 1)))
        return found
