"""A spec's text goes in; its NumPy kernel, asserted to be the recurrence, comes out."""

from __future__ import annotations

from collections.abc import Set

from lacc.driver import compile, load
from lacc.runtime.kernel import Kernel
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify

ROWS = (
    "lengths",
    "chunks",
    "initial state",
    "defaults",
    "split",
    "packed",
    "padded",
    "causal",
    "isolated",
    "empty",
)


def check(text: str, modes: Set[str]) -> Kernel:
    """At least ``modes`` exist, and each gives every value and gradient of the reference."""
    spec = load(text, {})
    kernel = compile(spec, "numpy")
    assert set(kernel.modes) >= modes
    report = verify(compile(spec, "reference"), [kernel], checks={n: CHECKS[n] for n in ROWS})
    assert report.passed, str(report)
    return kernel
