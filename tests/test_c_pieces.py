"""The C pieces that work along time against their NumPy meanings, at every length of chunk."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decay_calls import DECAYED, GUARD

from lacc.backends import to_c
from lacc.tile import dense, kernels, scans, triangular

PIECES = Path(__file__).parents[1] / "templates" / "c"
FLAGS = (
    "-O2 -march=native -std=c11 -fopenmp -fno-math-errno -ffp-contract=fast "
    "-Wall -Wextra -Werror -Wno-unused-function"
)
LENGTHS = (*range(1, 20), 23, 31, 32, 33, 40, 47, 57, 63, 64, 65, 70)

ARRAYS = """
#include <stdint.h>
enum { LACC_F32, LACC_F64, LACC_BF16, LACC_F16, LACC_I64 };
enum { LACC_OK, LACC_NO_MEMORY };
typedef struct { void *data; int64_t sequence, token, head; int32_t dtype; } lacc_array;
"""
PULLED = ("prefix_pull", "suffix_pull", "whole_pull")
CALLS = {name: call for name, call in DECAYED.items() if name not in PULLED}
CALLS["pulled"] = "dg|base,cu,up,cd,down,cw,d,w"
CALLS["two_meets_pull"] = "dx,dx2,dy,dg|ct,x,ct2,x2,y,X,d,w"
"""As in CUDA, but for the cotangents of decays, and of sums over pairs with the same decays."""

WRITTEN = {
    "meet_pull": "meet_pull((const meet_t[]){{ct, x, y, dx, dy}}, 1, dg, X, &d, w)",
    "two_meets_pull": "meet_pull((const meet_t[]){{ct, x, y, dx, dy}, {ct2, x2, y, dx2, dy}}, 2, "
    "dg, X, &d, w)",
}
OTHERS = """
int64_t levels_scratch(int64_t C, int64_t D) { return levels_room(C, D); }
int64_t inverse_scratch(int64_t n, int64_t C, int64_t D) {
    return (void)n, (void)D, inverse_room(C);
}
int64_t solve_scratch(int64_t n, int64_t C, int64_t D) { return (void)n, solve_room(C, D); }
int64_t solve_parts_scratch(int64_t n, int64_t C, int64_t D) { return solve_parts_room(n, C, D); }
int64_t dense_solve_scratch(int64_t n, int64_t C, int64_t D) {
    return (void)C, dense_solve_room(n, D);
}
void inverse_all(real *out, const real *a, int64_t C, real *w) { inverse(out, a, C, w); }
void solve_all(real *x, const real *a, const real *r, int64_t C, int64_t D, int64_t transposed,
    real *w) {
    solve(x, a, r, C, D, (int)transposed, w);
}
void solve_parts_all(real *x, const real *a, const real *r, int64_t n, int64_t transposed,
    int64_t C, int64_t D, real *w) {
    real *xs[4];
    const real *as[16], *rs[4];
    for (int64_t i = 0; i < n * n; i++) as[i] = a + i * C * C;
    for (int64_t i = 0; i < n; i++) xs[i] = x + i * C * D, rs[i] = r + i * C * D;
    solve_parts(xs, as, rs, n, (int)transposed, C, D, w);
}
void dense_solve_all(real *x, const real *a, const real *b, int64_t n, int64_t m, real *w) {
    dense_solve(x, a, b, n, m, w);
}
void scan_all(real *h, int64_t C, int64_t R, int64_t D, const real *a, const int64_t *as,
    const real *b, const int64_t *bs, const real *start, const int64_t *ss) {
    if (start) scan(h, C, R, D, a, as, b, bs, start, ss);
    else scan_back(h, C, R, D, a, as, b, bs);
}
void tropical_all(real *m, int64_t op, int64_t C, int64_t D, const real *f, const real *i) {
    tropical(m, (int)op, C, D, f, i);
}
#define ALONE_TOO(ALL) \\
    void ALL##_all(real *out, real *one, const real *x, int64_t n) { \\
        ALL(out, x, n); \\
        for (int64_t i = 0; i < n; i++) ALL(one + i, x + i, 1); \\
    }
ALONE_TOO(exps)
ALONE_TOO(sigmoids)
ALONE_TOO(logsigmoids)
ALONE_TOO(softpluses)
ALONE_TOO(silus)
ALONE_TOO(elu1s)
void running_all(real *out, const real *a, int64_t C, int64_t D) { running(out, a, C, D); }
void chain_parts_all(real *h, const real *a, const real *b, int64_t n, int64_t back, int64_t C,
    int64_t D) {
    real *hs[4];
    const real *as[16], *bs[4];
    for (int64_t i = 0; i < n * n; i++) as[i] = a + i * C * D;
    for (int64_t i = 0; i < n; i++) hs[i] = h + i * C * D, bs[i] = b + i * C * D;
    chain_parts(hs, as, bs, n, (int)back, C, D);
}
"""


def wrapper() -> str:
    """C text: the pieces, and a function of tiles alone around each of theirs."""
    lines = [ARRAYS, *(f'#include "{PIECES / piece}.c"' for piece in to_c.PIECES)]
    for name, call in CALLS.items():
        outs, ins = (part.split(",") for part in call.split("|"))
        tiles = [x for x in ins if x not in ("X", "d", "w")]
        args = ", ".join([*(f"real *{x}" for x in outs), *(f"const real *{x}" for x in tiles)])
        inner = ", ".join("&d" if x == "d" else x for x in (*outs, *ins))
        body = WRITTEN.get(name, f"{name}({inner})")
        lines.append(
            f"void {name}_all({args}, int64_t X, const real *g, int64_t C, int64_t D, int64_t log, "
            f"int64_t strict, real *kept, real *w) {{ levels_t d; (void)X, (void)w; "
            f"levels(&d, g, C, D, (int)log, (int)strict, kept); {body}; }}"
        )
        room = f"{name.replace('two_meets', 'meet')}_room(C, X)" if "w" in ins else "0"
        lines.append(
            f"int64_t {name}_scratch(int64_t C, int64_t X) {{ return (void)C, (void)X, {room}; }}"
        )
    return "\n".join((*lines, OTHERS))


@pytest.fixture(scope="module", params=["float32", "float64"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    room = tmp_path_factory.mktemp("pieces")
    (room / "pieces.c").write_text(wrapper())
    double = ["-DLACC_DOUBLE"] if request.param == "float64" else []
    command = [compiler, *FLAGS.split(), *double, "-shared", "-fPIC", "pieces.c", "-o", "pieces.so"]
    subprocess.run([*command, "-lm"], cwd=room, check=True)
    return Pieces(ctypes.CDLL(str(room / "pieces.so")), np.dtype(request.param))


class Pieces:
    """Functions of the library on arrays of its precision."""

    def __init__(self, library: ctypes.CDLL, dtype: np.dtype[Any]) -> None:
        self.library, self.dtype = library, dtype
        self.error = 1e-5 if dtype == np.float32 else 1e-13

    def __call__(self, name: str, *args: Any) -> None:
        given = [
            ctypes.c_int64(x) if isinstance(x, int) else ctypes.c_void_p(pointer(x)) for x in args
        ]
        getattr(self.library, f"{name}_all")(*given)

    def scratch(self, name: str, *sizes: int) -> Any:
        """Scratch as large as the function asks for, with a guard behind it."""
        room = getattr(self.library, f"{name}_scratch")
        room.restype = ctypes.c_int64
        return np.full(room(*map(ctypes.c_int64, sizes)) + GUARD, np.nan, self.dtype)

    def over_decays(
        self, name: str, shapes: list[Any], tiles: list[Any], g: Any, log: bool, strict: bool
    ) -> list[Any]:
        """Results of a function of decays; a shape of None is a result that is not asked for."""
        C, D = g.shape
        wide = [x.shape[1] for x in tiles if x is not None and x.ndim == 2]
        X = max([D, *wide])
        outs = [None if s is None else np.full(s, np.nan, self.dtype) for s in shapes]
        kept, w = self.scratch("levels", C, D), self.scratch(name, C, X)
        width = wide[-1] if wide else D
        self(name, *outs, *tiles, width, g, C, D, int(log), int(strict), kept, w)
        for buffer in (kept, w):
            assert np.isnan(buffer[-GUARD:]).all()
        return outs

    def close(self, got: Any, want: Any) -> None:
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=0, atol=self.error * scale)


def pointer(x: Any) -> Any:
    if x is None:
        return None
    assert x.flags.c_contiguous or x.dtype == np.int64
    return x.ctypes.data


def decays(rng: np.random.Generator, C: int, D: int, log: bool, dtype: Any) -> Any:
    """Slow, fast and quite closed gates; factors of either sign and 0 where not logs."""
    g = -rng.exponential(size=(C, D)) * rng.choice([0.01, 0.3, 5.0], size=(C, D))
    g[rng.random((C, D)) < 0.05] = -np.inf
    if not log:
        g = np.exp(g) * rng.choice([-1.0, 1.0], size=(C, D))
    return g.astype(dtype)


def double(*arrays: Any) -> list[Any]:
    return [np.asarray(a, np.float64) for a in arrays]


WIDTHS = [(1, 5), (1, 24), (1, 1), (3, 3), (16, 16), (37, 37)]


@pytest.mark.parametrize(
    ("log", "strict"), [(True, True), (True, False), (False, True), (False, False)]
)
@pytest.mark.parametrize(("D", "X"), WIDTHS)
def test_decays(library: Pieces, log: bool, strict: bool, D: int, X: int) -> None:
    for C in LENGTHS if X in (5, 37) else LENGTHS[::3]:
        rng = np.random.default_rng(C)
        x, y, wide = (rng.standard_normal((C, X)).astype(library.dtype) for _ in range(3))
        a = rng.standard_normal((C, C)).astype(library.dtype)
        narrow = rng.standard_normal((C, D)).astype(library.dtype)
        total = rng.standard_normal(D).astype(library.dtype)
        g = decays(rng, C, D, log, library.dtype)
        d = kernels.levels(g.astype(np.float64), log, strict)

        def check(name: str, want: Any, *tiles: Any, g: Any = g) -> None:
            want = want if isinstance(want, tuple) else (want,)
            shapes = [w.shape for w in want]
            got = library.over_decays(name, list(shapes), list(tiles), g, log, strict)
            for one, (have, sought) in enumerate(zip(got, want, strict=True)):
                if name.endswith("_pull") and D == 1 and 1 < one == len(want) - 1:
                    have, sought = have.sum(1), sought.sum(1)
                library.close(have, sought)
            for left in range(len(want)) if len(want) > 1 else ():
                some = [None if n == left else s for n, s in enumerate(shapes)]
                again = library.over_decays(name, some, list(tiles), g, log, strict)
                for n, have in enumerate(again):
                    if n != left:
                        np.testing.assert_array_equal(have, got[n])

        check("prefix", kernels.prefix(d))
        check("suffix", kernels.suffix(d))
        check("whole", kernels.whole(d))
        check("gram", kernels.gram(*double(x, y), d), x, y)
        check("meet", kernels.meet(*double(x, y), d), x, y)
        check("decayed", kernels.decayed(*double(a, y), d), a, y)
        check("meet_pull", kernels.meet_pull(*double(a, x, y), d), a, x, y)
        check("decayed_pull", kernels.decayed_pull(*double(wide, a, y), d), wide, a, y)
        prefix, suffix = (f(d).astype(library.dtype) for f in (kernels.prefix, kernels.suffix))
        other = narrow[::-1].copy()
        base = other + narrow
        pulls = [
            base.astype(np.float64),
            kernels.prefix_pull(*double(narrow), d),
            kernels.suffix_pull(*double(other), d),
            kernels.whole_pull(*double(total), d),
        ]
        given = [[base], [narrow, prefix], [other, suffix], [total]]
        for there in product((True, False), repeat=4):
            tiles = [x if yes else None for yes, xs in zip(there, given) for x in xs]
            check(
                "pulled", sum([p for yes, p in zip(there, pulls) if yes], np.zeros((C, D))), *tiles
            )
        first, second = (kernels.meet_pull(*double(c, z, y), d) for c, z in ((a, x), (a.T, wide)))
        both = (first[0], second[0], first[1] + second[1], first[2] + second[2])
        check("two_meets_pull", both, a, x, a.T.copy(), wide, y)
        if D == 1:
            check("matrix", kernels.between(d))
            check("matrix_pull", kernels.between_pull(*double(a), d), a)


def test_products_of_long_runs_keep_small_results(library: Pieces) -> None:
    """Runs far below the smallest number, next to ones near 1: no overflow, no NaN."""
    for log, strict in product((True, False), (True, False)):
        g = np.full((64, 20), -60.0)
        g[:, ::2] = -1e-4
        g = (g if log else np.exp(g)).astype(library.dtype)
        x = np.ones((64, 20), library.dtype)
        d = kernels.levels(g.astype(np.float64), log, strict)
        (got,) = library.over_decays("gram", [(64, 64)], [x, x], g, log, strict)
        library.close(got, kernels.gram(*double(x, x), d))


STRIDES: list[Callable[[int, int], tuple[int, ...]]] = [
    lambda R, D: (R * D, D, 1),
    lambda R, D: (R, 1, 0),
    lambda R, D: (D, 0, 1),
    lambda R, D: (1, 0, 0),
    lambda R, D: (2 * R * D, D + 1, 1),
]


def view(a: Any, strides: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    return np.lib.stride_tricks.as_strided(a, shape, [s * a.itemsize for s in strides])


@pytest.mark.parametrize(("R", "D"), [(1, 1), (3, 7), (5, 1), (4, 16), (1, 33)])
def test_scans(library: Pieces, R: int, D: int) -> None:
    rng = np.random.default_rng(R + D)
    C = 19
    a, b, start = (rng.standard_normal(4 * C * R * D + 99).astype(library.dtype) for _ in range(3))
    for of_a, of_b in product(STRIDES, STRIDES):
        sa, sb, shape = of_a(R, D), of_b(R, D), (C, R, D)
        ss = of_a(R, D)[1:]
        wide = double(view(a, sa, shape), view(b, sb, shape), view(start, ss, (R, D)))
        h = np.empty(shape, library.dtype)
        numbers = [np.array(s, np.int64) for s in (sa, sb, ss)]
        library("scan", h, *shape, a, numbers[0], b, numbers[1], start, numbers[2])
        library.close(h, kernels.scan(*wide, axis=0))
        library("scan", h, *shape, a, numbers[0], b, numbers[1], None, None)
        library.close(h, kernels.scan_back(*wide[:2], axis=0))


POWERS = {
    "exps": np.exp,
    "sigmoids": lambda x: 1 / (1 + np.exp(-x)),
    "logsigmoids": lambda x: -np.logaddexp(0, -x),
    "softpluses": lambda x: np.logaddexp(0, x),
    "silus": lambda x: x / (1 + np.exp(-x)),
    "elu1s": lambda x: np.where(x > 0, x + 1, np.exp(x)),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_of_e(library: Pieces, name: str) -> None:
    """To the bit the same alone or among others; the ends and what is no number as in NumPy."""
    fine = np.finfo(library.dtype)
    least, most = np.log(float(fine.smallest_subnormal)), np.log(float(fine.max))
    ends = [
        -np.inf,
        np.inf,
        np.nan,
        0.0,
        -0.0,
        fine.smallest_subnormal,
        -fine.tiny,
        fine.min,
        fine.max,
    ]
    x = np.array([*ends, *np.linspace(1.1 * least, 1.1 * most, 1234)], library.dtype)
    out, one = np.empty_like(x), np.empty_like(x)
    library(name, out, one, x, x.size)
    np.testing.assert_array_equal(out, one)
    with np.errstate(all="ignore"):
        want = POWERS[name](x.astype(np.longdouble)).astype(library.dtype)
    least = fine.smallest_subnormal * (-least if name == "silus" else 1)  # a power times x
    np.testing.assert_allclose(out, want, rtol=4 * fine.eps, atol=least)


def test_sums_and_tropical(library: Pieces) -> None:
    rng = np.random.default_rng(3)
    for C, D in ((1, 1), (7, 5), (64, 33)):
        f, i = (rng.standard_normal((C, D)).astype(library.dtype) for _ in range(2))
        i[rng.random((C, D)) < 0.2] = -np.inf
        i[0] = np.where(np.isinf(i[0]), 0, i[0])
        m = np.empty_like(f)
        for op, name in enumerate(("max", "min", "logaddexp")):
            library("tropical", m, op, C, D, f, i)
            want = kernels.tropical(name, *double(f, i), axis=0)
            np.testing.assert_array_equal(np.isinf(m), np.isinf(want))
            library.close(np.nan_to_num(m, neginf=0), np.nan_to_num(want, neginf=0))
        library("running", m, f, C, D)
        library.close(m, np.cumsum(f.astype(np.float64), 0))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_chain_parts(library: Pieces, n: int) -> None:
    rng = np.random.default_rng(n)
    for C, D in ((1, 3), (2, 1), (21, 17)):
        a = rng.standard_normal((n, n, C, D)).astype(library.dtype)
        b = rng.standard_normal((n, C, D)).astype(library.dtype)
        for back, kernel in enumerate((scans.chain, scans.chain_back)):
            h = np.empty_like(b)
            library("chain_parts", h, a, b, n, back, C, D)
            wide = np.moveaxis(a.astype(np.float64), 2, 0), np.moveaxis(b.astype(np.float64), 1, 0)
            library.close(h, np.moveaxis(kernel(*wide, 1), 0, 1))


def test_triangular(library: Pieces) -> None:
    for C, D in product(LENGTHS, (1, 37)):
        rng = np.random.default_rng(C)
        a = (rng.standard_normal((C, C)) / 4).astype(library.dtype)
        r = rng.standard_normal((C, D)).astype(library.dtype)
        out, x = np.empty_like(a), np.empty_like(r)
        w = library.scratch("inverse", 1, C, D)
        library("inverse", out, a, C, w)
        library.close(out, triangular.inverse(a.astype(np.float64)))
        assert np.isnan(w[-GUARD:]).all()
        for transposed in (False, True):
            w = library.scratch("solve", 1, C, D)
            library("solve", x, a, r, C, D, int(transposed), w)
            library.close(x, triangular.solve(*double(a, r), transposed))
            assert np.isnan(w[-GUARD:]).all()
            again = r.copy()
            library("solve", again, a, again, C, D, int(transposed), w)
            np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_solve_parts(library: Pieces, n: int) -> None:
    rng = np.random.default_rng(n)
    for C, D in ((1, 3), (2, 1), (8, 4), (21, 17), (64, 8)):
        a = (rng.standard_normal((n, n, C, C)) / 6).astype(library.dtype)
        r = rng.standard_normal((n, C, D)).astype(library.dtype)
        for transposed in (False, True):
            x = np.empty_like(r)
            w = library.scratch("solve_parts", n, C, D)
            library("solve_parts", x, a, r, n, int(transposed), C, D, w)
            strictly = np.tril(a.astype(np.float64), -1)
            library.close(x, triangular.solve_ranks(strictly, r.astype(np.float64), transposed))
            assert np.isnan(w[-GUARD:]).all()


def test_dense_solve(library: Pieces) -> None:
    rng = np.random.default_rng(7)
    for n, m in ((1, 1), (3, 2), (8, 8), (33, 5)):
        a = (rng.standard_normal((n, n)) + 3 * np.eye(n)[::-1]).astype(library.dtype)
        b = rng.standard_normal((n, m)).astype(library.dtype)
        x, w = np.empty_like(b), library.scratch("dense_solve", n, 1, m)
        library("dense_solve", x, a, b, n, m, w)
        library.close(x, dense.dense_solve(*double(a, b)))
    a[:, 1] = 0
    library("dense_solve", x, a, b, n, m, w)
    assert np.isnan(x).all()
