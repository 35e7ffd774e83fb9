"""Run as a script, in a process of its own: small kernels, sound and with a fault planted, as JSON.

TRITON_INTERPRET=1 python interpreter_worker.py checked    {case: "" or the fault}
TRITON_INTERPRET=1 python interpreter_worker.py numbers    {case: largest error}
TRITON_INTERPRET=1 python interpreter_worker.py mixed      values of expressions of mixed types
TRITON_INTERPRET=1 python interpreter_worker.py stock      the same, unrepaired
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl

from lacc import interpreter

N, BLOCK = 21, 8


@triton.jit
def copy(x, y, n, step, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(y + i, tl.load(x + i * step, mask=i < n, other=0.0), mask=i < n)
    else:
        tl.store(y + i, tl.load(x + i * step), mask=i < n)


@triton.jit
def total(x, y, n, BLOCK: tl.constexpr, OTHER: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    block = tl.load(x + i, mask=i < n)
    if OTHER:
        block = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + tl.program_id(0), tl.sum(block, 0))


@triton.jit
def overlapping(x, y, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    i = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def shifted(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(x + i - 1, mask=(i > 0) & (i < n), other=0.0)
    tl.store(y + i, before + 1, mask=i < n)


@triton.jit
def turned(x, y, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i))
    if BARRIER:
        tl.debug_barrier()
    back = tl.load(y + (BLOCK - 1 - i))
    tl.debug_barrier()
    tl.store(y + i, back)


@triton.jit
def skewed(x, y, BLOCK: tl.constexpr, BYTES: tl.constexpr):
    i = tl.arange(0, BLOCK)
    moved = (x.to(tl.pointer_type(tl.int8)) + BYTES).to(tl.pointer_type(tl.float32))
    tl.store(y + i, tl.load(moved + i))


@triton.jit
def gathered(x, y, BLOCK: tl.constexpr, KEPT: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i // KEPT, tl.load(x + i))


def blocks() -> int:
    return -(-N // BLOCK)


def runs(kernel: Any, x: Any, *rest: Any, programs: int = 1, **constants: Any) -> Any:
    """y of one launch, from memory that was never written."""
    y = torch.empty(max(N, BLOCK), dtype=torch.float32)
    kernel[(programs,)](x, y, *rest, BLOCK=BLOCK, **constants)
    return y


def floats(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def in_place(kernel: Any, x: Any, *rest: Any) -> None:
    kernel[(blocks(),)](x, x, *rest, BLOCK=BLOCK)


def finite(y: Any, count: int) -> None:
    assert torch.isfinite(y[:count]).all(), "not finite"


CASES: dict[str, Callable[[], Any]] = {
    "copy": lambda: finite(runs(copy, floats(N), N, 1, programs=blocks(), MASKED=True), N),
    "copy without mask": lambda: runs(copy, floats(N), N, 1, programs=blocks(), MASKED=False),
    "copy too few": lambda: finite(runs(copy, floats(N), N, 1, programs=2, MASKED=True), N),
    "copy strided": lambda: finite(
        runs(copy, floats(N, 3)[:, 1], N, 3, programs=blocks(), MASKED=True), N
    ),
    "copy between": lambda: runs(copy, floats(N, 3)[:, 1], N, 2, programs=blocks(), MASKED=True),
    "copy far": lambda: runs(copy, floats(N), N, 1 << 40, programs=1, MASKED=True),
    "total": lambda: finite(runs(total, floats(N), N, programs=blocks(), OTHER=True), 3),
    "total without other": lambda: finite(
        runs(total, floats(N), N, programs=blocks(), OTHER=False), 3
    ),
    "apart": lambda: runs(overlapping, floats(N), N, programs=2, STEP=8),
    "overlapping": lambda: runs(overlapping, floats(N), N, programs=2, STEP=7),
    "shifted": lambda: runs(shifted, floats(N), N, programs=blocks()),
    "shifted in place": lambda: in_place(shifted, floats(N), N),
    "turned": lambda: finite(runs(turned, floats(N), BARRIER=True), BLOCK),
    "turned without barrier": lambda: runs(turned, floats(N), BARRIER=False),
    "aligned": lambda: runs(skewed, floats(N), BYTES=4),
    "skewed": lambda: runs(skewed, floats(N), BYTES=2),
    "gathered": lambda: runs(gathered, floats(N), KEPT=1),
    "gathered at one": lambda: runs(gathered, floats(N), KEPT=2),
}


def checked() -> dict[str, str]:
    """What each case raises, in every order of programs."""
    found = {}
    for name, case in CASES.items():
        for order in ("ascending", "descending", "shuffle"):
            said = ""
            try:
                with interpreter.checked(order):
                    case()
            except (interpreter.MemoryFault, AssertionError) as fault:
                said = str(fault)
            found[f"{name}, {order}"] = said
    return found


@triton.jit
def combined(a, b):
    return a * 0.5 + b


@triton.jit
def arithmetic(x, y, z, SIZE: tl.constexpr, WHAT: tl.constexpr):
    i = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a, b = tl.load(x + i), tl.load(y + i)
    if WHAT == "product":
        c = a * b + a
    if WHAT == "sum":
        c = tl.sum(a, 1)[:, None] + tl.zeros_like(a)
    if WHAT == "cumsum":
        c = tl.cumsum(a, 0)
    if WHAT == "scan":
        c = tl.associative_scan(a, 0, combined)
    if WHAT == "max":
        c = tl.max(a, 0)[None, :] + tl.zeros_like(a)
    if WHAT == "exp":
        c = tl.exp(a.to(tl.float32))
    if WHAT == "cast":
        c = a.to(tl.float32) + b.to(tl.float32)
    if WHAT == "truncated":
        c = (a.to(tl.float32) * 1.01).to(tl.bfloat16, fp_downcast_rounding="rtz")
    if WHAT == "rounded":
        c = (a.to(tl.float32) * 1.01).to(tl.bfloat16)
    if WHAT == "sqrt":
        c = tl.rsqrt(tl.abs(a).to(tl.float32))
    tl.store(z + i, c.to(z.dtype.element_ty))


@triton.jit
def product(x, y, z, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a, b = tl.load(x + i), tl.load(y + i)
    c = tl.dot(a, b) if PRECISION == "default" else tl.dot(a, b, input_precision=PRECISION)
    tl.store(z + i, c.to(z.dtype.element_ty))


SIZE = 16


def tensor(a: Any) -> Any:
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def array(t: Any) -> Any:
    if t.dtype == torch.bfloat16:
        return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(np.float64)
    return t.numpy().astype(np.float64)


def squares(dtype: Any) -> list[Any]:
    rng = np.random.default_rng(2)
    return [rng.normal(size=(SIZE, SIZE)).astype(np.float32).astype(dtype) for _ in range(2)]


def rounded(a: Any, _: Any) -> Any:
    return (a.astype(np.float32) * np.float32(1.01)).astype(ml_dtypes.bfloat16)


def scanned(a: Any) -> Any:
    found = a.astype(np.float32)
    for t in range(1, SIZE):
        found[t] = found[t - 1] * np.float32(0.5) + found[t]
    return found


WHAT: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda a, b: a * b + a,
    "sum": lambda a, b: np.repeat(a.astype(np.float32).sum(1)[:, None], SIZE, 1).astype(a.dtype),
    "cumsum": lambda a, b: a.astype(np.float32).cumsum(0).astype(a.dtype),
    "scan": lambda a, b: scanned(a).astype(a.dtype),
    "max": lambda a, b: np.repeat(a.max(0)[None], SIZE, 0),
    "exp": lambda a, b: np.exp(a.astype(np.float32)).astype(a.dtype),
    "cast": lambda a, b: (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype),
    "rounded": rounded,
    "truncated": rounded,
    "sqrt": lambda a, b: (1 / np.sqrt(np.abs(a).astype(np.float32))).astype(a.dtype),
}
"""What each kernel means, in numpy; bfloat16 rounds after every operation."""


def numbers() -> dict[str, float]:
    """max|kernel - numpy|, relative."""
    interpreter.repair()
    interpreter.repair()
    found = {}

    def compare(name: str, kernel: Any, given: list[Any], want: Any, out: Any, what: Any) -> None:
        z = torch.empty(SIZE, SIZE, dtype=out)
        kernel[(1,)](*map(tensor, given), z, SIZE, what)
        error = np.abs(array(z) - want.astype(np.float64)).max()
        found[f"{name} {what}"] = float(error / np.abs(want.astype(np.float64)).max())

    dtypes = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
    for name, dtype in dtypes.items():
        given = squares(dtype)
        for what, means in WHAT.items():
            compare(name, arithmetic, given, means(*given), getattr(torch, name), what)
        wide = [x.astype(np.float64) for x in given]
        precisions = ("default", "ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
        for precision in precisions if name == "float32" else ("default",):
            compare(f"{name} dot", product, given, wide[0] @ wide[1], torch.float32, precision)
    return found


@triton.jit
def expressions(out, i, f, d, n, FLAG: tl.constexpr):
    r = tl.arange(0, 4)
    a, b, c = tl.load(i + r), tl.load(f + r), tl.load(d + r)
    s = tl.sum(b, 0)
    k = 3
    tl.store(out + r, a * 2 + b)
    tl.store(out + 4 + r, 1 - c * b)
    tl.store(out + 8 + r, (a + n) / 2 + k)
    tl.store(out + 12 + r, tl.where((a > 1) & (b <= c), b, -1.5))
    tl.store(out + 16 + r, tl.sum(b[:, None] * c[None, :] - s, 1))
    tl.store(out + 20 + r, (a // 2) % 3 + (5 - a) + (a.to(tl.int64) - n) + 2.5)
    a64 = a.to(tl.int64) * n + (a ^ 3) - (a >> 1) + c.to(tl.int32) * (a < a.to(tl.int64) + 1)
    tl.store(out + 36 + r, a64 + (b < c) + (n * b).to(tl.float64))
    tl.store(out + 24 + r, tl.maximum(b, 0.25) * s + (s == s).to(tl.float32) + (b != b))
    tl.store(out + 28 + r, tl.cumsum(b, 0, reverse=True) + tl.max(c, 0) + (b > 2.5))
    tl.store(out + 32 + r, 2 * s + n * 1.5 + tl.exp2(b) + tl.cdiv(n, 2) + tl.minimum(a, k))
    if FLAG:
        tl.store(out + 40 + r, tl.flip(b) + tl.trans(b[:, None] + b[None, :]).reshape(16).sum(0))


def values() -> list[float]:
    """All expressions on fixed numbers."""
    out = torch.zeros(44, dtype=torch.float64)
    i = torch.tensor([0, 1, 5, -7], dtype=torch.int32)
    f = torch.tensor([0.1, -2.5, 3.25, 1e-3], dtype=torch.float32)
    d = torch.tensor([1.1, 2.5, -0.3, 1e3], dtype=torch.float64)
    expressions[(1,)](out, i, f, d, 7, True, num_warps=4)
    return [float(x) for x in out]


def repaired() -> list[float]:
    interpreter.repair()
    return values()


def counts() -> dict[str, Any]:
    """What a session counts of two kernels."""
    with interpreter.checked() as report:
        runs(copy, floats(N), N, 1, programs=blocks(), MASKED=True)
        for what, kernel in (("tf32", product), ("exp", arithmetic)):
            x = [tensor(a) for a in squares(np.float32)]
            kernel[(1,)](*x, torch.empty(SIZE, SIZE), SIZE, what)
    return {name: vars(found) for name, found in report.kernels.items()}


if __name__ == "__main__":
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    work = {
        "checked": checked,
        "numbers": numbers,
        "mixed": repaired,
        "stock": values,
        "counts": counts,
        "obstacle": interpreter.obstacle,
    }
    print(json.dumps({what: work[what]() for what in sys.argv[1:]}))
