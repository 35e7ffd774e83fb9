"""Run as a script, in a process of its own: emitted Triton kernels, interpreted and watched,
against the reference; prints JSON.

    TRITON_INTERPRET=1 python triton_cases.py some NAME...    {"case, check, mode": what failed}
    TRITON_INTERPRET=1 python triton_cases.py blocks          the same, of `ROUNDS`
    TRITON_INTERPRET=1 python triton_cases.py each < names    a line {column: text} for each name
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from kernel_cases import CASES, EXAMPLES, SCALE, first, in_place, of, once

import lacc
from lacc import interpreter
from lacc.diagnostics import LaccError
from lacc.runtime import torch_calls
from lacc.verify.checks import CHECKS, Check, single
from lacc.verify.harness import verify

ROUNDS = {"gla": ({"K": 40, "V": 40}, "backward"), "simple_gla": ({"K": 40, "V": 72}, "forward")}
"""Dims, and the direction whose kernel of one chunk goes through several blocks of an axis."""


@contextmanager
def launched(way: str) -> Iterator[None]:
    """Emitted files launch all of a pass at once (fused), or kernels one after another (split),
    with blocks as small as can be (blocks)."""
    stock = torch_calls.load

    def load(name: str, source: str) -> dict[str, Any]:
        module = stock(name, source)
        module["in_one"] = lambda *_: way == "fused"
        if way == "blocks":
            every = module["every"]
            module["launch"] = lambda _, fit, call: min(every(fit, call), key=lambda x: x.block)
        return module

    torch_calls.load = load
    try:
        yield
    finally:
        torch_calls.load = stock


SOME: dict[str, dict[str, Check]] = {
    "fused": {
        "once": once,
        "packed": of(CHECKS["packed"], "chunk", "recurrent"),
        "bfloat16": of(CHECKS["bfloat16"], "chunk"),
        "in place": in_place,
    },
    "split": {"once": of(once, "chunk", "parallel")},
}
"""What is checked of each way of launching."""

TURNS = ("packed", "bfloat16")
"""Checks of which a case has one or the other by turns; every example has all with ``-m full``."""


def some(name: str) -> dict[str, str]:
    """What fails of a few checks, in both ways of launching."""
    left = TURNS[list(CASES).index(name) % 2]
    spec = lacc.load(EXAMPLES / f"{name}.la", CASES[name])
    reference = lacc.compile(spec, "reference")
    found = {}
    for way, checks in SOME.items():
        with launched(way), interpreter.checked("shuffle"):
            kernel = lacc.compile(spec, "triton")
            mine = {row: check for row, check in checks.items() if row != left}
            report = verify(reference, [kernel], checks=mine, scale=SCALE)
        for (row, column), cell in report.cells.items():
            said = [f"{f.quantity}: {f.error:.1e} > {f.limit:.1e}, {f.case}" for f in cell.failures]
            found[f"{name} {way}, {row}, {column}"] = "; ".join(said)[:1500]
    return found


def blocks() -> dict[str, str]:
    """What fails of `ROUNDS`, whose kernels must loop over blocks."""
    found: dict[str, str] = {}
    for name, (dims, direction) in ROUNDS.items():
        spec = lacc.load(EXAMPLES / f"{name}.la", dims)
        reference = lacc.compile(spec, "reference")
        with launched("blocks"), interpreter.checked("shuffle"):
            kernel = lacc.compile(spec, "triton")
            loops = re.findall(
                r"def (\w+)_0\w?\((?:(?!\ndef )[\s\S])*?for block in ", kernel.source
            )
            assert {*loops} == {direction}, loops
            checks = {"once": of(once, "chunk"), "packed": of(CHECKS["packed"], "chunk")}
            report = verify(reference, [kernel], checks=checks, scale=SCALE)
        found |= {f"{name}, {row}": "; ".join(report.failures) for row, _ in report.cells}
    return found


EACH: dict[str, dict[str, Check]] = {
    "fused": {
        "once": once,
        "packed": first(CHECKS["packed"]),
        "padded": first(CHECKS["padded"]),
        "strong gates": first(CHECKS["strong gates"]),
        "hard resets": first(CHECKS["hard resets"]),
        "float32": first(partial(single, regimes=("interior", "strong"))),
        "bfloat16": first(CHECKS["bfloat16"]),
    },
    "split": {"once": of(once, "chunk")},
}
"""What is checked of every example; the other way of launching where there is one."""


def each(name: str) -> dict[str, str]:
    """What the table says of an example: the worst error of each mode in float64 and of shorter
    floats, the seconds it took, and what ``failed``, or why it is ``refused``."""
    start = time.process_time()
    spec = lacc.load(EXAMPLES / f"{name}.la")
    try:
        source = lacc.compile(spec, "triton").source or ""
    except LaccError as refusal:
        return {"refused": refusal.diagnostics[0].message}
    reference = lacc.compile(spec, "reference")
    errors: dict[str, float] = {}
    failed: list[str] = []
    for way, checks in EACH.items():
        if way == "split" and "in_one(FUSED" not in source:
            continue
        with launched(way), interpreter.checked("shuffle"):
            kernel = lacc.compile(spec, "triton")
            report = verify(reference, [kernel], checks=checks, scale=SCALE)
        failed += [f"{way}, {line}" for line in report.failures]
        for (row, column), cell in report.cells.items():
            key = row if row in ("float32", "bfloat16") else column.split()[-1]
            key = "split" if way == "split" else key
            if cell.worst is not None:
                errors[key] = max(errors.get(key, 0.0), cell.worst.error)
    said = {key: f"{error:.0e}" if error else "0" for key, error in errors.items()}
    return said | {"seconds": f"{time.process_time() - start:.0f}", "failed": "; ".join(failed)}


if __name__ == "__main__":
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    what, *names = sys.argv[1:]
    if what == "each":
        for line in sys.stdin:
            print(json.dumps(each(line.strip())), flush=True)
    elif what == "blocks":
        print(json.dumps(blocks()))
    else:
        print(json.dumps({case: said for name in names for case, said in some(name).items()}))
