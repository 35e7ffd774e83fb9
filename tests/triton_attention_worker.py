"""Run as a script, in a process of its own: attention on Triton, on small arrays, as JSON.

    TRITON_INTERPRET=1 python triton_attention_worker.py numbers   {case: error}
    python triton_attention_worker.py binaries CASE ARCHITECTURE   {kernel: what it takes}

Whether kernels are interpreted is fixed when triton is imported, hence the processes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from lacc.runtime import triton_attention as host
from lacc.tile.attention_kernels import Sight, attend, attend_pull

NAMES = "query", "keys", "values", "sink", "past_keys", "past_values"


@dataclass(frozen=True)
class Case:
    """Sizes and features of a call. ``entries`` of queries, keys and values; ``seen`` tokens before
    each sequence, of which ``past`` are at hand; ``sms`` of the device, ``scale`` of logits."""

    T: int = 40
    K: int = 5
    V: int = 3
    H: int = 2
    entries: tuple[int, int, int] = (2, 2, 2)
    window: int | None = None
    sunk: bool = False
    past: int = 0
    seen: tuple[int, ...] = ()
    cu: tuple[int, ...] = ()
    sms: int = 1
    scale: float = 1.0
    precision: str = "ieee"

    @property
    def B(self) -> int:
        return 1 if self.cu else 2

    @property
    def N(self) -> int:
        return len(self.cu) - 1 if self.cu else self.B

    def drawn(self, dtype: Any) -> dict[str, Any]:
        """The arguments by name, rounded to ``dtype``."""
        rng = np.random.default_rng(self.T)
        q, k, v = self.entries
        shapes: list[tuple[int, ...] | None] = [
            (self.B, self.T, q, self.K),
            (self.B, self.T, k, self.K),
            (self.B, self.T, v, self.V),
            (self.B, self.T, self.H) if self.sunk else None,
            (self.N, k, self.past, self.K) if self.past else None,
            (self.N, v, self.past, self.V) if self.past else None,
        ]
        arrays = [None if s is None else torch.from_numpy(rng.normal(size=s)) for s in shapes]
        arrays[0] = arrays[0] * self.scale
        return {n: None if x is None else x.to(dtype) for n, x in zip(NAMES, arrays)}

    def run(self, dtype: Any) -> Any:
        return SimpleNamespace(
            B=self.B,
            T=self.T,
            H=self.H,
            N=self.N,
            dtype=dtype,
            FLOAT=tl.float64 if dtype == torch.float64 else tl.float32,
            PRECISION=self.precision,
            cu=torch.tensor(self.cu) if self.cu else None,
            position=torch.tensor(self.seen) if self.seen else None,
            sms=self.sms,
            dry=False,
        )


def by_kernels(case: Case, x: dict[str, Any], ct: Any, dtype: Any) -> list[Any]:
    """Output and gradients by the kernels, every access of which is watched."""
    from lacc import interpreter

    given, run = [x[name] for name in NAMES], case.run(dtype)
    with interpreter.checked("shuffle"):
        o, kept = host.attend_forward(*given, case.window, run, True)
        return [o, *host.attend_backward(*given, case.window, o, kept, ct, run)]


def by_definition(case: Case, x: dict[str, Any], ct: Any) -> list[Any]:
    """The same, a sequence at a time by the NumPy kernels in float64."""
    wide = {n: None if a is None else a.to(torch.float64) for n, a in x.items()}
    o = torch.zeros(case.B, case.T, case.H, case.V, dtype=torch.float64)
    found = {n: None if a is None else torch.zeros_like(a) for n, a in wide.items()}

    def heads(a: Any, axis: int) -> Any:
        return a.repeat_interleave(case.H // a.shape[axis], axis)

    def add(name: str, at: Any, d: Any) -> None:
        """Puts a gradient [H, rows, D] where it belongs, summed over the heads of an entry."""
        into = found[name]
        axis = 1 if name.startswith("past") else 2
        d = torch.from_numpy(d).unflatten(0, (into.shape[axis], -1)).sum(1)
        into[at] = d if axis == 1 else d.transpose(0, 1)

    ends = list(zip(case.cu, case.cu[1:])) if case.cu else [(0, case.T)] * case.B
    for n, (start, stop) in enumerate(ends):
        at = (0 if case.cu else n), slice(start, stop)
        q, k, v = (heads(wide[name][at], 1).transpose(0, 1)[None] for name in NAMES[:3])
        sink = None if wide["sink"] is None else wide["sink"][at].transpose(0, 1)[None].numpy()
        past = case.past if case.seen else 0
        if past:
            before = [heads(wide[name][n : n + 1], 1).clone() for name in NAMES[4:]]
            for a in before:
                a[:, :, : max(past - case.seen[n], 0)] = 0
            k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        sight = Sight(past, case.window, np.array([case.seen[n] if past else 0]), 7, 9)
        given = [np.ascontiguousarray(a.numpy()) for a in (q, k, v)]
        attended = attend(*given, sink, sight)
        o[at] = torch.from_numpy(attended[0])[0].transpose(0, 1)
        there = np.ascontiguousarray(ct[at].transpose(0, 1)[None].to(torch.float64).numpy())
        dq, dk, dv, dsink = attend_pull(there, attended, *given, sink, sight)
        add("query", at, dq[0])
        add("keys", at, dk[0, :, past:])
        add("values", at, dv[0, :, past:])
        if dsink is not None:
            found["sink"][at] = torch.from_numpy(dsink)[0].transpose(0, 1)
        if past:
            add("past_keys", n, dk[0, :, :past])
            add("past_values", n, dv[0, :, :past])
    return [o, *(found[name] for name in NAMES)]


def cotangent(case: Case, dtype: Any) -> Any:
    shape = case.B, case.T, case.H, case.V
    return torch.from_numpy(np.random.default_rng(9).normal(size=shape)).to(dtype)


def compare(case: Case, dtype: Any, inputs: Any = None) -> float:
    """The largest error of output and gradients, relative to the largest entry or 1."""
    x, ct = case.drawn(inputs or dtype), cotangent(case, dtype)
    error = 0.0
    for got, want in zip(by_kernels(case, x, ct, dtype), by_definition(case, x, ct)):
        assert (got is None) == (want is None)
        if want is not None and want.numel():
            assert got.shape == want.shape and got.isfinite().all()
            error = max(error, float((got - want).abs().max() / want.abs().max().clamp(min=1)))
    return error


def strided(case: Case, dtype: Any) -> float:
    """By how much results differ where arguments are views: heads first, every other entry."""
    x, ct = case.drawn(dtype), cotangent(case, dtype)
    views = {}
    for name, a in x.items():
        if a is None or a.ndim < 4:
            views[name] = a
        else:
            views[name] = torch.stack([a, a], -1).transpose(1, 2).contiguous().transpose(1, 2)
            views[name] = views[name][..., 0]
    results = by_kernels(case, x, ct, dtype), by_kernels(case, views, ct[:1].expand_as(ct), dtype)
    same = by_kernels(case, x, ct[:1].repeat(2, 1, 1, 1), dtype)
    return float(max((a - b).abs().max() for a, b in zip(results[1], same)))


def causal(case: Case, dtype: Any) -> float:
    """By how much outputs before a changed token differ: not at all."""
    x, ct = case.drawn(dtype), cotangent(case, dtype)
    changed = {n: a.clone() for n, a in x.items() if a is not None}
    for a in changed.values():
        a[:, 21:] *= 0.5
    one, two = (by_kernels(case, {**x, **y}, ct, dtype)[0] for y in ({}, changed))
    assert not torch.equal(one, two)
    return float((one - two)[:, :21].abs().max())


def apart(case: Case, dtype: Any) -> float:
    """The error where rows of the past that never were hold NaN, and so does another sequence."""
    x, ct = case.drawn(dtype), cotangent(case, dtype)
    want = by_definition(case, x, ct)
    for name in NAMES[4:]:
        x[name][0, :, : case.past - case.seen[0]] = torch.nan
    x["keys"][1] = torch.nan
    got = by_kernels(case, x, ct, dtype)
    return float(max((a[0] - b[0]).abs().max() for a, b in zip(got, want)))


def unseen(case: Case, dtype: Any) -> float:
    """The largest output of tokens that see nothing, since their logits are -inf."""
    x = case.drawn(dtype)
    x["query"][:, ::2], x["keys"] = -torch.inf, x["keys"].abs()
    given = [x[name] for name in NAMES]
    o, _ = host.attend_forward(*given, case.window, case.run(dtype), False)
    assert o.isfinite().all() and (o[:, 1::2] != 0).any()
    return float(o[:, ::2].abs().max())


CASES = {
    "plain": Case(T=70),
    "one token": Case(T=1),
    "no token": Case(T=0, past=3, seen=(2, 3)),
    "narrow": Case(K=1, V=1),
    "wide": Case(T=17, K=70, V=130),
    "window": Case(T=70, window=5),
    "wide window": Case(T=100, window=50),
    "window of one": Case(window=1),
    "sink": Case(sunk=True),
    "past": Case(past=9, seen=(4, 20)),
    "past and window": Case(past=40, window=30, seen=(4, 60), sunk=True),
    "past of none": Case(past=3),
    "groups": Case(H=4, entries=(4, 2, 1)),
    "groups by head": Case(H=4, entries=(1, 4, 2), past=3, seen=(1, 3), sms=100),
    "segments": Case(cu=(0, 0, 5, 5, 40)),
    "segments with all": Case(
        70, cu=(0, 33, 33, 34, 70), past=20, seen=(3, 0, 5, 30), window=40, sunk=True
    ),
    "parts": Case(T=2, H=1, entries=(1, 1, 1), past=520, seen=(600, 3), sms=4, sunk=True),
    "large logits": Case(scale=1e4),
}


def numbers() -> dict[str, float]:
    """What the interpreter runs."""
    found = {}
    for name, case in CASES.items():
        found[f"{name} float64"] = compare(case, torch.float64)
        if name != "large logits":
            found[f"{name} float32"] = compare(case, torch.float32)
    mixed = Case(past=9, seen=(4, 20), K=16, V=16, precision="bf16", sunk=True)
    found["bfloat16"] = compare(mixed, torch.float32, torch.bfloat16)
    found["float16"] = compare(Case(K=16), torch.float32, torch.float16)
    everything = Case(past=9, seen=(4, 20), sunk=True, window=30)
    found["strided"] = strided(everything, torch.float64)
    found["causal"] = causal(Case(T=70, sunk=True), torch.float32)
    found["apart"] = apart(everything, torch.float64)
    found["unseen"] = unseen(Case(), torch.float32)
    return found


# ---- compiled without a device

BINARIES = {
    "64": Case(64, 64, 64, cu=(0, 64), window=48, sunk=True, past=32, seen=(9,), precision="bf16"),
    "128": Case(64, 128, 128, precision="bf16"),
    "128 with all": Case(
        64, 128, 128, cu=(0, 64), window=48, sunk=True, past=32, seen=(9,), precision="bf16"
    ),
    "few": Case(1, 128, 128, past=512, seen=(9, 600), sms=132, precision="bf16"),
    "256": Case(64, 256, 256, precision="bf16"),
    "100": Case(64, 100, 60, precision="bf16"),
    "tf32": Case(64, 64, 64, precision="tf32"),
}


class Launches:
    """Stands for a kernel: compiles what it would launch."""

    def __init__(self, kernel: Any, target: GPUTarget, found: dict[str, dict[str, int]]) -> None:
        self.kernel, self.target, self.found = kernel, target, found

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.launch

    def launch(self, *args: Any, **options: int) -> None:
        types: dict[str, str] = {}
        constants, aligned = {}, {}
        for i, (p, arg) in enumerate(zip(self.kernel.params, args)):
            fixed = p.is_constexpr or (type(arg) is int and arg == 1 and not p.do_not_specialize)
            kind = "constexpr" if fixed else mangle_type(arg, specialize=False)
            types[p.name] = kind
            if fixed:
                constants[p.name] = arg
            elif kind.startswith("*") or (arg % 16 == 0 and not p.do_not_specialize):
                aligned[(i,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, types, constants, aligned)
        binary = triton.compile(source, target=self.target, options=options)
        name = self.kernel.__name__.removeprefix("attend_").removesuffix("_kernel")
        self.found[name + " of the past" * (name in self.found)] = measured(binary)


def measured(binary: Any) -> dict[str, int]:
    """Registers and bytes of stack of a thread, shared memory, products by tensor cores."""
    found = {"shared": binary.metadata.shared}
    if getattr(binary.metadata, "tmem_size", None):
        found["columns"] = binary.metadata.tmem_size
    if "cubin" not in binary.asm:
        return found
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    for key in ("REG", "STACK"):
        found[key.lower()] = max(int(n) for n in re.findall(rf"{key}:(\d+)", said))
    return {**found, "wgmma": binary.asm["ptx"].count("wgmma.mma_async")}


TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 << 10),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 << 10),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 << 10),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 << 10),
}
"""Devices, and the bytes of shared memory that a program may have there."""


def binaries(name: str, device: str) -> dict[str, dict[str, int]]:
    """What the kernels take that a case launches."""
    case, found = BINARIES[name], dict[str, dict[str, int]]()
    target, shared = TARGETS[device]
    for kernel in ("forward", "join", "queries", "keys"):
        attribute = f"attend_{kernel}_kernel"
        setattr(host, attribute, Launches(getattr(host, attribute), target, found))
    host.attend_shared = lambda device: shared
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    run, ct = case.run(torch.float32), cotangent(case, dtype)
    given = [
        x if x is None or not name.startswith("past") else x.float()
        for name, x in case.drawn(dtype).items()
    ]
    o, kept = host.attend_forward(*given, case.window, run, True)
    if case.T > 1:
        host.attend_backward(*given, case.window, o, kept, ct, run)
    return found


if __name__ == "__main__":
    work = {"numbers": numbers, "binaries": binaries}[sys.argv[1]]
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    print(json.dumps(work(*sys.argv[2:])))
