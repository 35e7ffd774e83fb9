"""What tests of emitted kernels, interpreted or emulated, have in common: examples, and checks of a
kernel against the reference in few modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lacc.verify.cases import Case, Scale
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


def of(check: Check, *modes: str) -> Check:
    """A check in some modes alone."""
    return lambda subject: check(subject) if subject.mode in modes else iter(())


def first(check: Check) -> Check:
    """A check in a kernel's first mode, by chunks where it has them."""
    return lambda subject: (
        check(subject) if subject.mode == subject.kernel.kernel.modes[0] else iter(())
    )
