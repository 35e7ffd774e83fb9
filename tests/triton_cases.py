"""Run as a script, in a process of its own: emitted Triton kernels, interpreted and watched,
against the reference; prints JSON.

    TRITON_INTERPRET=1 python triton_cases.py some NAME...   {"case, check, mode": what failed}
    TRITON_INTERPRET=1 python triton_cases.py all NAME...    {NAME: (table of errors, row, seconds)}
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lacc
from lacc import interpreter
from lacc.runtime import torch_calls
from lacc.verify.cases import Case, Scale
from lacc.verify.checks import CHECKS, Check
from lacc.verify.harness import verify
from lacc.verify.report import Report
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


@contextmanager
def launched(way: str) -> Iterator[None]:
    """Emitted files launch all of a pass at once (fused), or kernels one after another (split)."""
    stock = torch_calls.load

    def load(name: str, source: str) -> dict[str, Any]:
        module = stock(name, source)
        module["in_one"] = lambda *_: way == "fused"
        return module

    torch_calls.load = load
    try:
        yield
    finally:
        torch_calls.load = stock


def once(subject: Subject) -> Iterator[Finding]:
    """Three chunks, the last of them short, from a state that other tokens left."""
    started = not subject.bench.reference.signature.no_initial
    tokens = 3 if subject.mode == "step" else 2 * subject.chunk + 5
    case = Case(T=tokens, started=started, seed=1)
    yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


def of(check: Check, *modes: str) -> Check:
    """A check in some modes alone."""
    return lambda subject: check(subject) if subject.mode in modes else iter(())


SOME: dict[str, dict[str, Check]] = {
    "fused": {
        "once": once,
        "packed": of(CHECKS["packed"], "chunk", "recurrent"),
        "bfloat16": of(CHECKS["bfloat16"], "chunk"),
    },
    "split": {"once": of(once, "chunk", "parallel"), "packed": of(CHECKS["packed"], "chunk")},
}
"""What is checked of each way of launching."""


def some(name: str) -> dict[str, str]:
    """What fails of a few checks, in both ways of launching."""
    spec = lacc.load(EXAMPLES / f"{name}.la", CASES[name])
    reference = lacc.compile(spec, "reference")
    found = {}
    for way, checks in SOME.items():
        with launched(way), interpreter.checked("shuffle"):
            kernel = lacc.compile(spec, "triton")
            report = verify(reference, [kernel], checks=checks, scale=SCALE)
        for (row, column), cell in report.cells.items():
            said = [f"{f.quantity}: {f.error:.1e} > {f.limit:.1e}, {f.case}" for f in cell.failures]
            found[f"{name} {way}, {row}, {column}"] = "; ".join(said)[:1500]
    return found


def everything(name: str) -> tuple[str, dict[str, str], float]:
    """All checks of `lacc verify`: the table, the worst errors by mode and by dtype."""
    start = time.monotonic()
    with interpreter.checked("shuffle"):
        report = lacc.verify(EXAMPLES / f"{name}.la", "triton")
    return str(report), worst(report), time.monotonic() - start


def worst(report: Report) -> dict[str, str]:
    """The largest error of each mode in float64, and of all modes in shorter floats."""
    found: dict[str, float] = {}
    for (row, column), cell in report.cells.items():
        key = row if row in ("float32", "bfloat16") else column.split()[-1]
        if cell.worst is not None:
            error = cell.worst.error if cell.passed else math.inf
            found[key] = max(found.get(key, 0.0), error)
    return {key: f"{error:.0e}" if error else "0" for key, error in found.items()}


if __name__ == "__main__":
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    what, *names = sys.argv[1:]
    if what == "some":
        print(json.dumps({case: said for name in names for case, said in some(name).items()}))
    else:
        print(json.dumps({name: everything(name) for name in names}))
