"""In goes nothing, out comes what NumPy itself allows: the rate of its BLAS, and the time of a loop
written by hand for one case.

    python benchmarks/by_hand.py

The case is retention (a constant decay per head), one thread, float32, B = 1, H = 8, T = 2048. The
loop goes over chunks of all heads, has every array made before it starts, and serves no other spec,
shape, state or dtype. Its output is compared with our kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import cpu
import numpy as np
import record

from lacc.bench.rates import rates

LENGTH = 2048


def median(function: Callable[[], object], rounds: int = 15) -> float:
    """CPU seconds of a call."""
    function()
    samples = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        samples.append(time.process_time() - start)
    return sorted(samples)[rounds // 2]


def rate(size: int, batch: int) -> float:
    """Floating-point operations a second of ``batch`` products of square float32 matrices."""
    a = np.ones((batch, size, size), np.float32)
    b, out = a.copy(), np.empty_like(a)
    times = max(1, 2**27 // (batch * size**3))
    seconds = median(lambda: [np.matmul(a, b, out=out) for _ in range(times)])
    return 2 * size**3 * batch * times / seconds


def loop(q: np.ndarray, k: np.ndarray, v: np.ndarray, C: int) -> Callable[[], np.ndarray]:
    """Retention over arrays [1, T, H, D], scaled by D**-0.5, in chunks of C tokens."""
    _, T, H, D = q.shape
    o = np.empty_like(q)
    decay = 1 - 2.0 ** (-5 - np.arange(H))[:, None, None]
    t = np.arange(C)
    between = np.where(t[:, None] >= t, decay ** np.abs(t[:, None] - t), 0) * D**-0.5
    between = between.astype(np.float32)
    up = (decay ** (t[:, None] + 1) * D**-0.5).astype(np.float32)
    down, total = (decay ** (C - 1 - t)).astype(np.float32), (decay**C).astype(np.float32)
    wide, turned, square = (H, C, D), (H, D, C), (H, D, D)
    Q, V, A, B = (np.empty(wide, np.float32) for _ in range(4))
    K, P, W = (np.empty(s, np.float32) for s in (turned, (H, C, C), square))

    def run() -> np.ndarray:
        S = np.zeros(square, np.float32)
        for at in range(0, T, C):
            here = slice(at, at + C)
            np.copyto(Q, q[0, here].swapaxes(0, 1))
            np.copyto(V, v[0, here].swapaxes(0, 1))
            np.copyto(K, k[0, here].transpose(1, 2, 0))
            np.matmul(Q, K, out=P)
            np.multiply(P, between, out=P)
            np.matmul(P, V, out=A)
            np.multiply(Q, up, out=Q)
            np.matmul(Q, S, out=B)
            np.add(A, B, out=A)
            np.multiply(K, down, out=K)
            np.matmul(K, V, out=W)
            np.multiply(S, total, out=S)
            np.add(S, W, out=S)
            o[0, here] = A.swapaxes(0, 1)
        return o

    return run


def main() -> None:
    """Measure and print."""
    peak = rates().flops
    print(
        f"{record.processor()}, NumPy {np.__version__}: {peak / 1e9:.0f} GFLOP/s of multiply-adds"
    )
    for size, batch in ((32, 128), (64, 64), (128, 16), (1024, 1)):
        got = rate(size, batch)
        print(f"sgemm, {batch} of {size:>4}^3: {got / 1e9:>4.0f} GFLOP/s, {got / peak:.0%} of peak")
    for size in cpu.SIZES:
        arrays = cpu.draw("retnet", LENGTH, size)
        want = cpu.peers("retnet", size)["lacc numpy"](*arrays)
        floor = 4 * size * size * LENGTH * cpu.HEADS / peak
        for C in (32, 64):
            run = loop(*arrays, C)
            error = np.abs(run() - want).max() / np.abs(want).max()
            seconds = median(run)
            print(
                f"by hand, K = V = {size:>3}, chunks of {C}: {seconds * 1e3:.2f} ms, "
                f"{seconds / floor:.2f}x the floor; differs from ours by {error:.0e}"
            )


if __name__ == "__main__":
    cpu.on_one_thread()
    main()
