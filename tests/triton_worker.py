"""Run as a script, in a process of its own: the Triton slice on small arrays, as JSON.

    TRITON_INTERPRET=1 python triton_worker.py numbers    {case: error relative to the oracle}
    python triton_worker.py binaries                      {case: registers and bytes of stack}

Whether kernels are interpreted is fixed when triton is imported, hence the processes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lacc
from lacc.runtime.kernel import Kernel
from lacc.runtime.torch_calls import tensor
from lacc.trial import relative_error
from lacc.verify.inputs import Sizes, draw

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CHUNK = 16
SLICE = (
    *("gla", "gated_deltanet", "simple_gla", "retnet", "rwkv6"),
    *("linear_transformer", "mamba2", "deltanet"),
)
"""One of each form: decays by channel and by head, bonus, normalizer, groups, erase."""

SIGNED = """variant signed
dim K = 5, V = 7
input q, k : [K]
input v : [V]
input x : [K]
input f : [V] where f <= 0
state S : [K, V]
output o : [V]
output p : scalar
S[t] = diag(tanh(x)) @ S[t-1] @ diag(exp(f)) + k @ v.T
o = S[t].T @ q + v**2
p = sum(relu(q)) / (1 + rms(k))
"""
"""A gate of no paper: signed factors of rows, decays of columns; two outputs."""


@cache
def kernels(given: str, **dims: int) -> tuple[Kernel, Kernel]:
    """The Triton kernel and the oracle of an example or a text."""
    spec = lacc.load(given if "\n" in given else EXAMPLES / f"{given}.la", dims)
    return lacc.compile(spec, "triton"), lacc.compile(spec, "reference")


def arguments(kernel: Kernel, T: int, dtype: Any = np.float32) -> dict[str, Any]:
    """Drawn arguments of two heads, where groups are one."""
    return draw(kernel.spec, Sizes(1, T, 2, 1), seed=T, dtype=np.dtype(dtype))


def wide(x: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(a, np.float64) for name, a in x.items()}


def error(got: Any, want: Any) -> float:
    """The largest error of outputs and states."""
    flat = [*flatten(got[0]), *got[1]], [*flatten(want[0]), *want[1]]
    return max(relative_error(a, b) for a, b in zip(*flat))


def flatten(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def plain(given: str, T: int, dtype: Any = np.float32, chunk: int = CHUNK, **dims: int) -> float:
    """One call from zero states."""
    kernel, oracle = kernels(given, **dims)
    x = arguments(kernel, T, dtype)
    return error(kernel(**x, chunk=chunk), oracle(**wide(x)))


def same_keys(given: str, **dims: int) -> float:
    """One key of length 1 at every token, written with a strength of almost 1."""
    kernel, oracle = kernels(given, **dims)
    x = arguments(kernel, 70)
    x["k"] = np.full_like(x["k"], x["k"].shape[-1] ** -0.5)
    x["beta"] = np.full_like(x["beta"], 0.99)
    return error(kernel(**x, chunk=64), oracle(**wide(x)))


def gates(given: str, value: float, **dims: int) -> float:
    """Log gates that are all of one value, and that are it at every third token alone."""
    kernel, oracle = kernels(given, **dims)
    found = []
    for step in (1, 3):
        x = arguments(kernel, 21)
        x["g"] = np.array(x["g"])
        x["g"][:, ::step] = value
        found.append(error(kernel(**x, chunk=CHUNK), oracle(**wide(x))))
    return max(found)


def carried(given: str, T: int, at: int, **dims: int) -> float:
    """Two calls joined by the state, which starts from drawn values."""
    kernel, oracle = kernels(given, **dims)
    x = arguments(kernel, T)
    inputs = {a.ascii for a in kernel.spec.args if a.role == "input"}
    _, state = oracle(**wide(x))
    start = type(state)(*(np.asarray(s, np.float32) for s in state))
    parts = [
        {n: a[:, part] if n in inputs else a for n, a in x.items()}
        for part in (slice(at), slice(at, None))
    ]
    first, middle = kernel(**parts[0], initial_state=start, chunk=CHUNK)
    second, end = kernel(**parts[1], initial_state=middle, chunk=CHUNK)
    joined = np.concatenate([first, second], 1)
    return error((joined, end), oracle(**wide(x), initial_state=start))


def strided(given: str, **dims: int) -> float:
    """Tensors [B, H, T, D] seen as [B, T, H, D], reversed features, a broadcast batch."""
    kernel, oracle = kernels(given, **dims)
    x = arguments(kernel, 21)
    views = {}
    for name, a in x.items():
        held = tensor(a).transpose(1, 2).contiguous().transpose(1, 2)
        views[name] = held[:1].expand(2, *held.shape[1:])
    twice = {name: np.concatenate([a, a]) for name, a in x.items()}
    outputs, state = kernel(**views, chunk=CHUNK)
    got = outputs.numpy(), tuple(s.numpy() for s in state)
    return error(got, oracle(**wide(twice)))


def causal(given: str, **dims: int) -> float:
    """By how much outputs before a changed token differ: not at all."""
    kernel, _ = kernels(given, **dims)
    x = arguments(kernel, 37)
    before, _ = kernel(**x, chunk=CHUNK)
    changed = {name: np.array(a) for name, a in x.items()}
    for a in changed.values():
        a[:, 21:] *= 0.5
    after, _ = kernel(**changed, chunk=CHUNK)
    return float(np.abs(before[:, :21] - after[:, :21]).max())


def short_floats(given: str, **dims: int) -> float:
    """bfloat16 inputs with float32 gates: rms error over rms of what rounded inputs give."""
    import ml_dtypes

    kernel, oracle = kernels(given, **dims)
    x = arguments(kernel, 37)
    x = {n: a if n in ("g", "beta") else a.astype(ml_dtypes.bfloat16) for n, a in x.items()}
    got, _ = kernel(**x, chunk=CHUNK)
    assert got.dtype == ml_dtypes.bfloat16
    want, _ = oracle(**wide(x))
    return float(np.sqrt(np.mean((got.astype(np.float64) - want) ** 2) / np.mean(want**2)))


Case = Callable[[], float]
SMALL = {"K": 5, "V": 19}


def numbers() -> Iterator[tuple[str, Case]]:
    """What the interpreter runs."""
    for name in SLICE:
        dims = {"P": 5, "N": 19} if name == "mamba2" else SMALL
        yield f"{name} 21", partial(plain, name, 21, **dims)
    for name in ("gla", "gated_deltanet"):
        for T in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 70):
            yield f"{name} {T}", partial(plain, name, T, **SMALL)
        for value in (-20.0, -1000.0, -np.inf):
            yield f"{name} gates {value}", partial(gates, name, value, **SMALL)
        yield f"{name} carried", partial(carried, name, 37, 20, **SMALL)
        yield f"{name} float64", partial(plain, name, 37, np.float64, **SMALL)
        yield f"{name} causal", partial(causal, name, **SMALL)
        yield f"{name} bfloat16", partial(short_floats, name, **SMALL)
        for T, chunk in ((17, 1), (70, 33), (70, 64)):
            yield f"{name} chunk {chunk}", partial(plain, name, T, chunk=chunk, **SMALL)
    yield "same keys", partial(same_keys, "deltanet", **SMALL)
    yield "gla strided", partial(strided, "gla", K=16, V=3)
    yield "blocks", partial(plain, "linear_transformer", 17, K=1, V=70)
    yield "carried blocks", partial(carried, "linear_transformer", 20, 3, K=17, V=70)
    yield "signed", partial(plain, SIGNED, 37)
    yield "signed float64", partial(plain, SIGNED, 37, np.float64)


def binaries() -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """What is compiled for sm_90."""
    yield "gla bf16", partial(binary, "gla", "bf16", 128)
    yield "gated_deltanet bf16", partial(binary, "gated_deltanet", "bf16", 64)
    yield "gated_deltanet fp32", partial(binary, "gated_deltanet", "fp32", 32)
    yield "linear_transformer fp16", partial(binary, "linear_transformer", "fp16", 64)


def binary(name: str, dtype: str, dim: int) -> dict[str, int]:
    """The emitted kernel of an example, compiled without a device."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lacc.runtime.kernel import load

    kernel, _ = kernels(name)
    assert kernel.source is not None
    emitted = load(name, kernel.source)["kernel"]
    known = {
        "CHUNK": 32,
        "BT": 32,
        "STARTED": True,
        "FLOAT": tl.float32,
        "PRECISION": {"fp32": "ieee", "fp16": "tf32", "bf16": "bf16"}[dtype],
    }
    types, constants = {}, {}
    for parameter in emitted.params:
        p = parameter.name
        if parameter.is_constexpr or p.endswith("_0"):
            types[p], constants[p] = "constexpr", known.get(p, 1 if p.endswith("_0") else dim)
        elif p.endswith("_ptr"):
            types[p] = f"*{dtype}"
        else:
            types[p] = "*fp32" if p.endswith(("_begun", "_ended")) else "i32"
    compiled = triton.compile(
        ASTSource(emitted, types, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 8},
    )
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = {key.lower(): int(n) for key, n in re.findall(r"(REG|STACK):(\d+)", said)}
    return {**found, "shared": compiled.metadata.shared}


if __name__ == "__main__":
    cases = {"numbers": numbers, "binaries": binaries}[sys.argv[1]]
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    print(json.dumps({name: case() for name, case in cases()}))
