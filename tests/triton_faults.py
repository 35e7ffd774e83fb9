"""Specs {name: [text, way]} on standard input in, as JSON; {"name, way, mode": what failed} out.

    TRITON_INTERPRET=1 python triton_faults.py < specs.json

Emitted Triton kernels run interpreted and watched, launched in the way that is given, on tensors
that lie anyhow in memory, against the reference.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import triton_cases

import lacc
from lacc import interpreter
from lacc.runtime import torch_calls
from lacc.verify.harness import verify

AS_GIVEN = torch_calls.tensor


def apart(x: Any) -> Any:
    """A tensor whose floats stand two entries apart, NaN in between."""
    x = AS_GIVEN(x)
    if not x.ndim or not x.is_floating_point():
        return x
    room = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"), dtype=x.dtype)
    found = room[..., 1::2]
    found.copy_(x)
    return found


def failing(name: str, text: str, way: str) -> dict[str, str]:
    """What fails, by mode."""
    spec = lacc.load(text)
    reference = lacc.compile(spec, "reference")
    found = {}
    with triton_cases.launched(way), interpreter.checked("shuffle"):
        kernel = lacc.compile(spec, "triton")
        checks = {"once": triton_cases.once}
        report = verify(reference, [kernel], checks=checks, scale=triton_cases.SCALE)
    for (_, mode), cell in report.cells.items():
        said = [f"{f.quantity}: {f.error:.1e} > {f.limit:.1e}, {f.case}" for f in cell.failures]
        if said:
            found[f"{name}, {way}, {mode}"] = "; ".join(said)[:1500]
    return found


if __name__ == "__main__":
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    torch_calls.tensor = apart
    specs = json.load(sys.stdin)
    print(
        json.dumps(
            {k: v for name, given in specs.items() for k, v in failing(name, *given).items()}
        )
    )
