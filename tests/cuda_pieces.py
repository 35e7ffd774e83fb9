"""Kernels around each of the CUDA pieces, for tests that run or compile them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import emulated
import numpy as np
from decay_calls import DECAYED, GUARD

from lacc.runtime.cuda_emulation import RACES

ERRORS = {0: 2e-2, 1: 3e-3, 2: 1e-5, 3: 3e-3, 4: 3e-6, 5: 1e-13}
"""Of a result's largest entry, by PRECISION. 5: 4 in double."""

OTHERS = """
KERNEL(gemm,
    gemm(n[0], n[1], n[2], p[0], n[3], n[4], p[1], n[5], n[6], p[2], n[7], n[8], n[9], n[10]);)
KERNEL(gemm_onto,
    gemm_onto(n[0], n[1], n[2], p[0], n[3], n[4], p[1], n[5], n[6], p[2], n[7], n[8], n[9], p[3],
        p[4], n[10], n[11]);)
KERNEL(scan, scan(p[0], n[0], n[1], n[2], p[1], {n[3], n[4], n[5]}, p[2], {n[6], n[7], n[8]}, p[3],
    {n[9], n[10]});)
KERNEL(scan_back,
    scan_back(p[0], n[0], n[1], n[2], p[1], {n[3], n[4], n[5]}, p[2], {n[6], n[7], n[8]});)
KERNEL(tropical, tropical(p[0], n[0], n[1], n[2], p[1], p[2]);)
KERNEL(running, running(p[0], p[1], n[0], n[1]);)
KERNEL(inverse, inverse(p[0], p[1], n[0], p[2]);)
KERNEL(solve, solve(p[0], p[1], p[2], n[0], n[1], n[2], p[3]);)
KERNEL(dense_solve, dense_solve(p[0], p[1], p[2], n[0], n[1], p[3]);)
KERNEL(chain_parts1, chain_parts({p[0]}, {p[1]}, {p[2]}, 1, n[0], n[1], n[2]);)
KERNEL(chain_parts2, const int64_t s = n[1] * n[2];
    chain_parts({p[0], p[0] + s}, {p[1], p[1] + s, p[1] + 2 * s, p[1] + 3 * s}, {p[2], p[2] + s},
        2, n[0], n[1], n[2]);)
KERNEL(solve_parts1, solve_parts({p[0]}, {p[1]}, {p[2]}, 1, n[0], n[1], n[2], p[3]);)
KERNEL(solve_parts2, const int64_t s = n[1] * n[2], q = n[1] * n[1];
    solve_parts({p[0], p[0] + s}, {p[1], p[1] + q, p[1] + 2 * q, p[1] + 3 * q}, {p[2], p[2] + s},
        2, n[0], n[1], n[2], p[3]);)
template <class T> __device__ void loaded(real *out, const T *x, const int64_t *n) {
    load_tile(out, x, n[0], n[1], n[2], n[3], n[4]);
}
template <class T> __device__ void stored(T *x, const real *tile, const int64_t *n) {
    store_tile(x, n[0], n[1], tile, n[2], n[4]);
}
template <class T> __device__ void ahead(real *out, const T *x, const int64_t *n) {
    const int rows = n[3], wide = n[4], known = n[2], narrow = n[7];
    T *raw = (T *)shared_memory(), *other = raw + rows * wide;
    for (int i = 0; i < 3; i++, x += x ? rows * n[0] : 0) {
        const int here = i < 2 ? rows : known, next = i == 0 ? rows : i == 1 ? known : -4 * wide;
        const int width = i < 2 ? wide : narrow, then = i == 0 ? wide : i == 1 ? narrow : next;
        load_ahead<1>(out, raw, x, rows * n[0], n[0], n[1], here, width, next, then, i == 0);
        out += here * width;
        T *const room = n[6] ? nullptr : other;
        load_ahead<1>(out, room, x, rows * n[0], n[0], n[1], here, width, next, then, i == 0);
        out += here * width;
    }
}
#define OF_TYPE(call, cast) \\
    if (n[5] == 0) call(cast(float)); \\
    else if (n[5] == 1) call(cast(bf16)); \\
    else if (n[5] == 2) call(cast(fp16)); \\
    else call(cast(double));
#define IN(type) p[0], (const type *)p[1], n
#define OUT(type) (type *)p[0], p[1], n
KERNEL(load, OF_TYPE(loaded, IN))
KERNEL(ahead, OF_TYPE(ahead, IN))
KERNEL(store, OF_TYPE(stored, OUT))
"""
UNARY = [
    *("exp", "log", "abs", "sqrt", "rsqrt", "sign", "relu", "sigmoid", "logsigmoid", "softplus"),
    *("silu", "tanh", "elu", "elu1", "erf", "gelu", "sin", "cos"),
]
BINARY = ["max", "min", "logaddexp", "pow", "mod"]


def wrapper() -> str:
    """CUDA text: the pieces, and a kernel of tiles alone around each of theirs."""
    lines = [OTHERS]
    for name, call in DECAYED.items():
        outs, ins = (part.split(",") for part in call.split("|"))
        place = {x: f"p[{k}]" for k, x in enumerate(x for x in (*outs, *ins) if x not in "Xdw")}
        place |= {"X": "(int)n[4]", "d": "&d", "w": "p[10]"}
        inner = ", ".join(place[x] for x in (*outs, *ins))
        lines.append(
            f"KERNEL({name}, levels_t d; levels(&d, p[8], n[0], n[1], n[2], n[3], p[9]); "
            f"barrier(); {name}({inner});)"
        )
        sizes = "C, X, D" if name in ("meet_pull", "decayed_pull") else "C, X"
        room = f"{name}_room({sizes})" if "w" in ins else "0"
        lines.append(
            f'extern "C" int64_t {name}_scratch(int64_t C, int64_t X, int64_t D) '
            f"{{ return (void)C, (void)X, (void)D, {room}; }}"
        )
    for room in (
        "levels_room(C, D)",
        "inverse_room(C)",
        "solve_room(C, D)",
        "dense_solve_room(C, D)",
    ):
        name = room.partition("_room")[0]
        lines.append(
            f'extern "C" int64_t {name}_scratch(int64_t C, int64_t D) {{ return (void)D, {room}; }}'
        )
    for name in (*UNARY, *BINARY):
        given = "x" if name in UNARY else "x, p[2][i]"
        lines.append(
            f"KERNEL(f_{name}, for (int i = threadIdx.x; i < n[0]; i += THREADS) "
            f"{{ const real x = p[1][i]; p[0][i] = f_{name}({given}); }})"
        )
    return "\n".join(lines)


class Pieces:
    """Kernels of an emulated library on arrays of its numbers."""

    def __init__(self, library: emulated.Emulated, precision: int) -> None:
        self.run, self.precision = library, precision
        self.exact, self.error = ERRORS[max(precision, 4)], ERRORS[precision]
        self.dtype: Any = np.float32 if precision < 5 else np.float64

    def scratch(self, name: str, *sizes: int) -> Any:
        """Scratch as large as the function asks for, with a guard behind it."""
        room = getattr(self.run.library, f"{name}_scratch")
        room.restype = ctypes.c_int64
        return self.empty(room(*map(ctypes.c_int64, sizes)) + GUARD)

    def over_decays(
        self, name: str, shapes: list[Any], tiles: list[Any], g: Any, log: bool, strict: bool
    ) -> list[Any]:
        """Results of a function of decays; a shape of None is a result that is not asked for."""
        C, D = g.shape
        X = max([D, *(x.shape[1] for x in tiles if x.ndim == 2)])
        outs = [None if s is None else self.empty(*s) for s in shapes]
        kept, w = self.scratch("levels", C, D), self.scratch(name, C, X, D)
        width = tiles[-1].shape[1] if tiles and tiles[-1].ndim == 2 else D
        pointers = [*outs, *tiles]
        pointers += [None] * (8 - len(pointers))
        self.run(name, [*pointers, g, kept, w], [C, D, log, strict, width])
        for buffer in (kept, w):
            assert np.isnan(buffer[-GUARD:]).all()
        return outs

    def close(self, got: Any, want: Any, error: float | None = None) -> None:
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=0, atol=(error or self.error) * scale)

    def empty(self, *shape: int) -> Any:
        """An array of NaN."""
        return emulated.aligned(*shape, dtype=self.dtype)

    def tile(self, rng: np.random.Generator, *shape: int) -> Any:
        """An array of normal numbers."""
        out = self.empty(*shape)
        out[...] = rng.standard_normal(shape)
        return out

    def decays(self, rng: np.random.Generator, C: int, D: int, log: bool) -> Any:
        """Slow, fast and quite closed gates; factors of either sign and 0 where not logs."""
        g = -rng.exponential(size=(C, D)) * rng.choice([0.01, 0.3, 5.0], size=(C, D))
        g[rng.random((C, D)) < 0.05] = -np.inf
        if not log:
            g = np.exp(g) * rng.choice([-1.0, 1.0], size=(C, D))
        return g.astype(self.dtype)


def library(room: Path, threads: int, precision: int, flags: Sequence[str] = RACES) -> Pieces:
    """The pieces for blocks of threads and a precision of `ERRORS`."""
    macros = {"THREADS": threads, "PRECISION": min(precision, 4)}
    macros |= {"LACC_DOUBLE": 1} if precision == 5 else {}
    return Pieces(emulated.built(room, emulated.source(wrapper()), macros, flags), precision)
