"""A compiled kernel of Triton or CUDA and the shape of a call go in; what that call launches on a
GPU architecture comes out, as figures of the build. No GPU is needed, and nothing runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lacc.runtime.contract import Signature, Value, axes_of, size_of
from lacc.runtime.kernel import Kernel
from lacc.static.architectures import ARCHITECTURES, Architecture
from lacc.static.launches import Call, call_of
from lacc.verify.inputs import log_gates


class Refused(Exception):
    """The compiler of an architecture refuses a kernel; says which, and why."""


@dataclass(frozen=True)
class Figures:
    """The calls of a kernel on an architecture, for sizes by name and the dtype of its inputs, as
    ``compiler`` (Triton with its version) builds it."""

    spec: str
    architecture: Architecture
    compiler: str
    sizes: Mapping[str, int]
    dtype: str
    calls: tuple[Call, ...]


def figures(
    kernel: Kernel, function: str, architecture: str, sizes: Mapping[str, int], dtype: str
) -> Figures:
    """What forward, backward and step of a kernel launch. ``function`` is its name in the
    emitted file, ``sizes`` are B, T, H, maybe G, and dims that differ from their defaults.

    Inputs have ``dtype``; params and gates that are read as exp(gate) alone have float32, as where
    networks are trained. Raises ValueError for sizes that the spec does not take, Refused where a
    kernel does not compile.
    """
    assert kernel.source is not None
    if dtype == "float64":
        raise ValueError("a GPU takes inputs of bfloat16, float16 or float32")
    known = complete(kernel.signature, sizes)
    wide = {
        a.ascii for a in kernel.spec.args if a.role != "input" or a.name in log_gates(kernel.spec)
    }
    with tempfile.TemporaryDirectory(prefix="lacc-static-") as folder:
        file = Path(folder) / f"emitted_{kernel.signature.name}.py"
        for name, text in (kernel.files or {file.name: kernel.source}).items():
            (file := Path(folder) / name).write_text(text, encoding="utf-8")
        reply = _asked(
            {
                "target": kernel.target,
                "file": str(file),
                "function": function,
                "architecture": architecture,
                "step": not kernel.signature.no_step,
                "arguments": [
                    {
                        "name": a.name,
                        "shape": [_size(a, axis, known) for axis in axes_of(a)],
                        "step": [_size(a, axis, known) for axis in axes_of(a, step=True)],
                        "dtype": "float32" if a.name in wide else dtype,
                    }
                    for a in kernel.signature.arguments
                    if not a.draw
                ],
            },
            Path(folder) / "cache",
        )
    if "invalid" in reply:
        raise ValueError(reply["invalid"])
    if "refused" in reply:
        raise Refused(reply["refused"])
    calls = tuple(map(call_of, reply["calls"]))
    shown = {name.lstrip("#"): size for name, size in known.items()}
    return Figures(
        spec=kernel.signature.name,
        architecture=ARCHITECTURES[architecture],
        compiler=compiler(kernel.target),
        sizes=shown,
        dtype=dtype,
        calls=calls,
    )


def lacking(target: str) -> str:
    """What this machine lacks to compile kernels of a target, "" where nothing; never a GPU."""
    packages = ("torch", "triton") if target == "triton" else ("torch",)
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        return f"it needs {' and '.join(absent)}"
    return "it needs nvcc" if target == "cuda" and not _cuda().nvcc() else ""


def compiler(target: str) -> str:
    """What compiles kernels of a target, with its version."""
    if target == "triton":
        return f"triton {version('triton')}"
    return "nvcc {}.{}".format(*_cuda().release(_cuda().nvcc()))


def _cuda() -> Any:
    return import_module("lacc.runtime.cuda_building")


def complete(signature: Signature, sizes: Mapping[str, int]) -> dict[str, int]:
    """All sizes by the names of `contract`. Raises ValueError where one is not the spec's."""
    leading = {"B": 1, "T": 4096, "H": 16, "G": 1} | {n: s for n, s in sizes.items() if n in "BTHG"}
    dims = {name: size for name, size in sizes.items() if name not in leading}
    for name, size in dims.items():
        if name not in signature.dims:
            raise ValueError(f"{signature.name} has no dim {name}")
        if name in signature.pinned and size != signature.dims[name]:
            raise ValueError(f"{name} is {signature.dims[name]} in {signature.name}")
    if leading["H"] % max(leading["G"], 1):
        raise ValueError(f"G = {leading['G']} does not divide H = {leading['H']}")
    return {f"#{name}": size for name, size in leading.items()} | signature.dims | dims


def _size(value: Value, axis: Any, sizes: Mapping[str, int]) -> int:
    """The size of an axis; a table by position has a row for every token."""
    return sizes["#T"] if axis is None and value.level == "position" else size_of(axis, sizes)


def _asked(request: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """The reply of a process of its own, which compiles afresh."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRITON_")},
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "lacc.static.worker"],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reply
