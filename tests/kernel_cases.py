"""What tests of emitted kernels, interpreted or emulated, have in common: examples, and checks of a
kernel against the reference in few modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lacc.runtime.contract import grows
from lacc.verify.cases import Case, Scale, cut, quantities
from lacc.verify.checks import Check
from lacc.verify.subject import Finding, Subject

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCALE = Scale(16, 135)
CASES: dict[str, dict[str, int]] = {
    "linear_transformer": {"K": 5, "V": 35},  # more values than one program holds
    "simple_gla": {},
    "gla": {},
    "gla_outer": {},
    "gsa": {},
    "gated_deltanet": {"K": 17, "V": 6},
    "deltaproduct": {},
    "momentum_delta": {},
    "lru": {},
    "mamba1": {},
    "mlstm": {},
    "mlstm_by_hand": {},
    "abc_attention": {},
    "fox": {},
    "slstm": {},
    "bidirectional": {},
}
"""One example of each class of transition, and of attention, scaled states and both directions."""


def once(subject: Subject) -> Iterator[Finding]:
    """Three chunks, the last of them short, from a state that other tokens left."""
    started = not subject.bench.reference.signature.no_initial
    tokens = 3 if subject.mode == "step" else 2 * subject.chunk + 5
    case = Case(T=tokens, started=started, seed=1)
    yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


def in_place(subject: Subject) -> Iterator[Finding]:
    """Steps that overwrite the state, from one that other tokens left; the third one goes directly
    where it can, as one like it went before."""
    bench, kernel = subject.bench, subject.kernel
    growing = any(map(grows, bench.reference.signature.states))
    if subject.mode != "step" or growing:
        return
    case = Case(T=4, started=True, seed=1)
    arrays, first = bench.arrays(case), bench.start(case)
    state = type(first)(*(np.array(x) for x in first))
    found = []
    for t in range(case.T):
        outputs, state = kernel.step(**cut(bench.spec, arrays, t), state=state, out=state)
        found.append(outputs)
    whole = (
        np.stack(found, 1)
        if len(bench.spec.outputs) == 1
        else type(found[0])(*(np.stack(parts, 1) for parts in zip(*found)))
    )
    got = quantities(bench.spec, whole, state)
    yield from subject.compare(got, bench.truth(case), case, "in place")


def of(check: Check, *modes: str) -> Check:
    """A check in some modes alone."""
    return lambda subject: check(subject) if subject.mode in modes else iter(())


def first(check: Check) -> Check:
    """A check in a kernel's first mode, by chunks where it has them."""
    return lambda subject: (
        check(subject) if subject.mode == subject.kernel.kernel.modes[0] else iter(())
    )
