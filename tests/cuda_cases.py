"""An example in, what an emulation of its CUDA kernels gets wrong against the reference out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kernel_cases import EXAMPLES, SCALE, first, in_place, of, once

import lacc
from lacc.runtime import cuda_calls
from lacc.runtime.cuda_emulation import Emulated
from lacc.verify.checks import CHECKS, Check, single
from lacc.verify.harness import verify

KEPT = 16
"""Tokens between two states that the backward of a token program keeps: as many as a chunk has, so
that one compilation does for both."""

SOME: dict[str, dict[str, Check]] = {
    "fused": {
        "once": of(once, "chunk", "recurrent", "step"),
        "packed": of(CHECKS["packed"], "chunk", "recurrent"),
        "in place": in_place,
    },
    "split": {"once": of(once, "chunk")},
}
"""What is checked of each way of launching."""

SHORT: dict[str, dict[str, dict[str, Check]]] = {
    "linear_transformer": {"fused": {"bfloat16": of(CHECKS["bfloat16"], "chunk")}},
    "gated_deltanet": {
        "split": {"float32": of(partial(single, regimes=("interior",)), "chunk")},
    },
}
"""The same in shorter floats, whose products are those of tensor cores, by example."""

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
    "split": {"once": of(once, "chunk"), "bfloat16": of(CHECKS["bfloat16"], "chunk")},
}
"""What is checked of every example."""


@contextmanager
def launched(way: str) -> Iterator[None]:
    """Files that are loaded meanwhile launch all of a pass at once (fused), or kernels one after
    another (split)."""
    stock = cuda_calls.load

    def load(name: str, source: str, path: Path) -> dict[str, Any]:
        module = stock(name, source, path)
        module["launched"].in_one = lambda *_: way == "fused"
        module["KEPT"] = KEPT
        return module

    cuda_calls.load = load
    try:
        yield
    finally:
        cuda_calls.load = stock


def has_two_ways(source: str) -> bool:
    """Whether a forward of a CUDA file has one kernel and several."""
    return "_fused_" in source


def reports(
    name: str,
    dims: Mapping[str, int],
    checks: Mapping[str, Mapping[str, Check]],
    builder: Emulated,
) -> Iterator[tuple[str, Any]]:
    """A report for each way of launching that an example has."""
    spec = lacc.load(EXAMPLES / f"{name}.la", dims)
    reference = lacc.compile(spec, "reference")
    for way, some in checks.items():
        with launched(way), cuda_calls.emulated(builder):
            kernel = lacc.compile(spec, "cuda")
            if way == "split" and not has_two_ways(kernel.source or ""):
                continue
            yield way, verify(reference, [kernel], checks=some, scale=SCALE)


def failures(
    name: str,
    dims: Mapping[str, int],
    checks: Mapping[str, Mapping[str, Check]],
    builder: Emulated,
) -> list[str]:
    """What fails of an example."""
    each = reports(name, dims, checks, builder)
    return [f"{way}, {line}" for way, report in each for line in report.failures]


def row(name: str, builder: Emulated) -> dict[str, str]:
    """What the table says of an example: the worst error of each mode in float64 and of shorter
    floats, the seconds it took, and what ``failed``."""
    start = time.process_time()
    errors: dict[str, float] = {}
    failed: list[str] = []
    for way, report in reports(name, {}, EACH, builder):
        failed += [f"{way}, {line}" for line in report.failures]
        for (check, column), cell in report.cells.items():
            key = check if check in ("float32", "bfloat16") else column.split()[-1]
            key = "split" if way == "split" and key == "chunk" else key
            if cell.worst is not None:
                errors[key] = max(errors.get(key, 0.0), cell.worst.error)
    said = {key: f"{error:.0e}" if error else "0" for key, error in errors.items()}
    return said | {"seconds": f"{time.process_time() - start:.0f}", "failed": "; ".join(failed)}
