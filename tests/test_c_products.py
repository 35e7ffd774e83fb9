"""Pieces of C built into a small library: products, functions and tiles against NumPy's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lacc.ir.ops import OPS

PIECES = Path(__file__).parents[1] / "templates" / "c"
FLAGS = ["-march=native", "-std=c11", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
HEADER = """
#include <stdint.h>
enum { LACC_F32, LACC_F64, LACC_BF16, LACC_F16, LACC_I64 };
typedef struct { void *data; int64_t sequence, token, head; int32_t dtype; } lacc_array;
"""
EXPORTS = """
void product(const int64_t *s, const real *a, const real *b, real *c) {
    gemm(s[0], s[1], s[2], a, s[3], s[4], b, s[5], s[6], c, s[7], s[8], (int)s[9], (int)s[10]);
}
void onto(const int64_t *s, const real *a, const real *b, real *c, const real *base,
          const real *scale) {
    gemm_onto(s[0], s[1], s[2], a, s[3], s[4], b, s[5], s[6], c, s[7], s[8], (int)s[9], base,
              s[10] ? scale : NULL, s[11], s[12]);
}
int mixing(int wanted) {
    mix(wanted && may_mix());
    return mixed;
}
void load(real *out, const lacc_array *x, const int64_t *s) {
    load_tile(out, x, s[0], s[1], s[2], s[3], s[4]);
}
void store(const lacc_array *x, const real *tile, const int64_t *s) {
    store_tile(x, s[0], s[1], s[2], tile, s[3], s[4]);
}
"""
ONE = [
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "abs",
    "sign",
    "sigmoid",
    "logsigmoid",
    "softplus",
    "tanh",
    "relu",
    "silu",
    "gelu",
    "erf",
    "elu",
    "elu1",
    "sin",
    "cos",
]
TWO = ["pow", "mod", "max", "min", "logaddexp"]
WHOLE, LOWER_OUT, LOWER_A, UPPER_A = range(4)
DTYPES = [np.float32, np.float64, ml_dtypes.bfloat16, np.float16]


class Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sequence", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
    )


class Built:
    """One library of one precision; ``run(name, *arguments)`` calls what it exports."""

    def __init__(self, path: Path, dtype: type) -> None:
        self.library, self.dtype = ctypes.CDLL(str(path)), dtype

    def run(self, name: str, *arguments: Any) -> None:
        getattr(self.library, name)(*(pointer(x) for x in arguments))

    def apply(self, name: str, *xs: np.ndarray) -> np.ndarray:
        out = np.empty_like(xs[0])
        self.run(f"all_{name}", ctypes.c_int64(out.size), out, *xs)
        return out


def pointer(x: Any) -> Any:
    return ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else x


def sizes(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def source() -> str:
    pieces = [(PIECES / f"{name}.c").read_text() for name in ("base", "math", "products", "mixed")]
    loops = [loop(name, "x") for name in ONE] + [loop(name, "x", "y") for name in TWO]
    return "\n".join([HEADER, *pieces, EXPORTS, *loops])


def loop(name: str, *arguments: str) -> str:
    given = "".join(f", const real *{x}" for x in arguments)
    each = ", ".join(f"{x}[i]" for x in arguments)
    return f"""
void all_{name}(int64_t n, real *out{given}) {{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = f_{name}({each});
}}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Built]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder, kept = tmp_path_factory.mktemp("c"), dict[tuple[str, ...], Built]()
    (folder / "pieces.c").write_text(source())

    def build(dtype: type, *flags: str) -> Built:
        key = (dtype.__name__, *flags)
        if key not in kept:
            path = folder / ("-".join(key) + ".so")
            double = ["-DLACC_DOUBLE"] if dtype is np.float64 else []
            command = [compiler, "-shared", "-fPIC", *FLAGS, *STRICT, *flags, *double]
            subprocess.run([*command, folder / "pieces.c", "-o", path, "-lm"], check=True)
            kept[key] = Built(path, dtype)
        return kept[key]

    return build


@pytest.fixture(params=[np.float32, np.float64], ids=["f32", "f64"])
def built(request: pytest.FixtureRequest, compiled: Callable[..., Built]) -> Iterator[Built]:
    yield compiled(request.param, "-O3")


# ---- products

SHAPES = [
    *product((1, 2, 3, 7, 8, 13), (1, 2, 5, 16, 33), (1, 4, 19)),
    *[(0, 3, 2), (3, 0, 2), (3, 4, 0), (64, 64, 64), (37, 70, 130), (9, 31, 300), (1, 150, 140)],
    *[(1, 37, 300), (150, 1, 140), (100, 100, 100)],
]


def strided(rng: np.random.Generator, rows: int, columns: int, how: str, dtype: type) -> Any:
    """A matrix of a layout: contiguous, transposed, every other column, rows from the last on."""
    if how == "rows":
        return rng.standard_normal((rows, columns)).astype(dtype)
    if how == "columns":
        return rng.standard_normal((columns, rows)).astype(dtype).T
    if how == "apart":
        return rng.standard_normal((rows, 2 * columns + 1)).astype(dtype)[:, 1::2]
    return rng.standard_normal((rows + 1, columns)).astype(dtype)[:0:-1]


def check_product(
    built: Built, m: int, n: int, k: int, layouts: tuple[str, str, str], shape: int, add: int
) -> None:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    a, b, c = (
        strided(rng, *size, how, built.dtype)
        for size, how in zip(((m, k), (k, n), (m, n)), layouts)
    )
    if shape == LOWER_A:
        a[...] = np.tril(a)
    if shape == UPPER_A:
        a[...] = np.triu(a)
    before = c.astype(np.longdouble) if add else 0 * c
    made = a.astype(np.longdouble) @ b.astype(np.longdouble)
    size = np.abs(a) @ np.abs(b)
    if shape == LOWER_OUT:
        made = np.tril(made)
    strides = [s // c.itemsize for x in (a, b, c) for s in x.strides]
    around = c.base.copy() if c.base is not None else None
    built.run("product", sizes(m, n, k, *strides, shape, add), a, b, c)
    bound = np.finfo(built.dtype).eps * (np.sqrt(k) + 2) * (size + np.abs(before) + 1e-3)
    assert (np.abs(c - (before + made)) <= bound).all()
    if shape == LOWER_OUT:
        assert (np.triu(c - before, 1) == 0).all()
    if layouts[2] == "apart" and around is not None:
        assert (c.base[:, ::2] == around[:, ::2]).all()


@pytest.mark.parametrize("shape", range(4), ids=["whole", "lower out", "lower a", "upper a"])
def test_products(built: Built, shape: int) -> None:
    layouts = list(product(("rows", "columns", "apart", "reversed"), repeat=3))
    for at, (m, n, k) in enumerate(SHAPES):
        for i in range(8):
            check_product(built, m, n, k, layouts[(at * 29 + i * 13) % 64], shape, i % 2)


@pytest.mark.parametrize("shape", [WHOLE, LOWER_A, UPPER_A], ids=["whole", "lower a", "upper a"])
@pytest.mark.parametrize("scaled", ["as it is", "all", "rows", "columns"])
def test_products_onto_a_multiple(built: Built, shape: int, scaled: str) -> None:
    rng = np.random.default_rng(5)
    for at, (m, n, k) in enumerate(SHAPES):
        for how, in_place in product(("rows", "columns"), (False, True)):
            a, b = (rng.standard_normal(s).astype(built.dtype) for s in ((m, k), (k, n)))
            a = {LOWER_A: np.tril, UPPER_A: np.triu}.get(shape, np.asarray)(a)
            c, base = (strided(rng, m, n, how, built.dtype) for _ in range(2))
            base = c if in_place else base
            scale = rng.standard_normal(max(m, n, 1)).astype(built.dtype)
            factor = {"as it is": 1, "all": scale[0], "rows": scale[:m, None]}.get(
                scaled, scale[:n]
            )
            before = base.astype(np.longdouble) * factor
            made = before + a.astype(np.longdouble) @ b.astype(np.longdouble)
            size = np.abs(a) @ np.abs(b) + np.abs(before)
            strides = [s // c.itemsize for x in (a, b, c) for s in x.strides]
            steps = (scaled != "as it is", scaled == "rows", scaled == "columns")
            given = sizes(m, n, k, *strides, shape, *map(int, steps))
            built.run("onto", given, a, b, c, base, scale)
            bound = np.finfo(built.dtype).eps * (np.sqrt(k) + 2) * (size + 1e-3)
            assert (np.abs(c - made) <= bound).all(), (at, how, in_place)


@pytest.mark.parametrize("how", list(product(("rows", "columns", "apart"), repeat=3)), ids="-".join)
def test_strides_of_products(built: Built, how: tuple[str, str, str]) -> None:
    for (m, n, k), shape, add in product(
        [(21, 45, 18), (1, 40, 37), (40, 1, 37)], range(4), (0, 1)
    ):
        check_product(built, m, n, k, how, shape, add)


@pytest.mark.parametrize(
    "flags", [("-O1",), ("-O3", "-mno-avx"), ("-O2", "-mno-avx512f")], ids=" ".join
)
def test_products_of_other_builds(compiled: Callable[..., Built], flags: tuple[str, ...]) -> None:
    built = compiled(np.float32, *flags)
    for (m, n, k), shape in product(SHAPES[::5] + SHAPES[-9:], range(4)):
        for how in ("rows", "columns"):
            check_product(built, m, n, k, ("rows", how, "rows"), shape, 0)


TILES, VECTORS = (), ("-mno-amx-bf16", "-mno-avx512fp16")
NEITHER = ("-mno-amx-bf16", "-mno-avx512bf16")


@pytest.fixture(params=[TILES, VECTORS], ids=["tiles", "vectors"])
def mixing(request: pytest.FixtureRequest, compiled: Callable[..., Built]) -> Iterator[Built]:
    """Pieces that round factors to bfloat16, by tile registers or by vectors."""
    try:
        features = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        features = set()
    if not {"avx512_bf16", *(["amx_bf16"] if request.param == TILES else [])} <= features:
        pytest.skip("this processor has no such products of bfloat16")
    built = compiled(np.float32, "-O1", *request.param)
    if not built.library.mixing(1):
        pytest.skip("the system does not grant tile registers")
    yield built
    built.library.mixing(0)


@pytest.mark.parametrize("shape", range(4), ids=["whole", "lower out", "lower a", "upper a"])
def test_mixed_products_round_their_factors(mixing: Built, shape: int) -> None:
    """As products of rounded numbers, but for the order in which they are summed."""
    rng = np.random.default_rng(3)
    layouts = list(product(("rows", "columns", "apart"), repeat=3))
    sizes_of = [(32, 32, 32), (64, 64, 64), (33, 47, 35), (130, 70, 200), (65, 129, 257)]
    for at, (m, n, k) in enumerate(sizes_of * 6):
        a, b, c = (
            strided(rng, *size, how, np.float32)
            for size, how in zip(((m, k), (k, n), (m, n)), layouts[at % 27])
        )
        a[...] = {LOWER_A: np.tril, UPPER_A: np.triu}.get(shape, np.asarray)(a)
        x, y = (z.astype(ml_dtypes.bfloat16).astype(np.float64) for z in (a, b))
        strides = [s // c.itemsize for z in (a, b, c) for s in z.strides]
        add, around = at % 2, c.base.copy() if c.base is not None else None
        made = np.tril(x @ y) if shape == LOWER_OUT else x @ y
        before = c.astype(np.float64)
        mixing.run("product", sizes(m, n, k, *strides, shape, add), a, b, c)
        assert np.abs(c - (made + before * add)).max() < 1e-6 * k**0.5 * np.abs(made).max()
        if shape == LOWER_OUT:
            assert (np.triu(c - before * add, 1) == 0).all()
        if layouts[at % 27][2] == "apart" and around is not None:
            assert (c.base[:, ::2] == around[:, ::2]).all()
        if shape != LOWER_OUT:
            base, scale = c.copy(), rng.standard_normal(m).astype(np.float32)
            strides[4:] = [s // 4 for s in base.strides]
            given = sizes(m, n, k, *strides[:4], *strides[4:], shape, 1, 1, 0)
            before = base * scale[:, None].astype(np.float64)
            mixing.run("onto", given, a, b, base, base, scale)
            assert np.abs(base - (before + made)).max() < 1e-6 * k**0.5 * np.abs(made).max()


def test_products_are_mixed_only_where_asked(mixing: Built, compiled: Callable[..., Built]) -> None:
    rng, plain = np.random.default_rng(4), compiled(np.float32, "-O1", *NEITHER)
    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    given = sizes(64, 64, 64, 64, 1, 64, 1, 64, 1, WHOLE, 0)
    rounded, exact, without = np.empty((3, 64, 64), np.float32)
    mixing.run("product", given, a, b, rounded)
    mixing.library.mixing(0)
    mixing.run("product", given, a, b, exact)
    assert plain.library.mixing(1) == 0
    plain.run("product", given, a, b, without)
    assert (exact == without).all() and (exact != rounded).any()


# ---- functions


def grid(dtype: type, count: int = 20001) -> np.ndarray:
    """Numbers of all sizes and either sign, dense along the line, and special ones."""
    info = np.finfo(dtype)
    least, most = np.log2(float(info.smallest_subnormal)), np.log2(float(info.max))
    powers = np.exp2(np.linspace(least, most - 1e-3, count))
    lines = [np.linspace(-w, w, count) for w in (1.0, 4.0, 100.0, 800.0)]
    special = [
        0.0,
        np.inf,
        np.nan,
        float(info.max),
        float(info.tiny),
        float(info.smallest_subnormal),
    ]
    x = np.concatenate([powers, special, *lines]).astype(dtype)
    return np.concatenate([x, -x])


def ulps(made: np.ndarray, true: np.ndarray) -> np.ndarray:
    """How far apart in units of the last place of the true value; 0 where both are the same."""
    dtype = made.dtype.type
    with np.errstate(all="ignore"):
        near = true.astype(dtype)
        unit = np.maximum(np.spacing(np.abs(near)), np.finfo(dtype).smallest_subnormal)
        off = np.abs(made.astype(np.longdouble) - true) / unit
    same = (made == near) | (np.isnan(made) & np.isnan(near))
    return np.where(same, 0, np.where(np.isfinite(made) & np.isfinite(near), off, np.inf))


def meaning(name: str, *xs: np.ndarray) -> np.ndarray:
    row = OPS[name].numpy
    assert row is not None
    wide = np.float64 if xs[0].dtype == np.float32 else np.longdouble
    return np.asarray(row(*(x.astype(wide) for x in xs)))


def check_function(built: Built, name: str, *xs: np.ndarray) -> None:
    """3 ulp; of what cancels, or goes down with an error function, as much of its summands."""
    made, true = built.apply(name, *xs), meaning(name, *xs)
    off = ulps(made, true)
    with np.errstate(all="ignore"):
        largest = np.abs(xs).max(0)
        parts = {"erf": 1.0, "gelu": largest, "logaddexp": largest, "silu": largest}.get(name, 0.0)
        size = np.where(np.isfinite(largest), parts, 0)
        info = np.finfo(built.dtype)
        least = info.smallest_subnormal if name == "silu" else info.eps
        near = np.abs(made - true) <= least * size
    worst = np.where(near, 0, off).argmax()
    assert near[worst] or off[worst] <= 3, (name, *(x[worst] for x in xs), made[worst], true[worst])


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(built: Built, name: str) -> None:
    check_function(built, name, grid(built.dtype))


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(built: Built, name: str) -> None:
    rng, x = np.random.default_rng(0), grid(built.dtype, 5001)
    check_function(built, name, rng.permutation(x), rng.permutation(x))
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.3, np.inf, -np.inf, np.nan], built.dtype)
    a, b = (x.ravel().copy() for x in np.meshgrid(special, special))
    check_function(built, name, a, b)


def test_signs_of_zeros(built: Built) -> None:
    zeros = np.array([0.0, -0.0], built.dtype)
    for name in ("tanh", "sqrt", "erf", "silu", "sin"):
        assert (np.signbit(built.apply(name, zeros)) == [False, True]).all(), name
    assert np.signbit(built.apply("mod", zeros, np.array([2.0, -2.0], built.dtype))).tolist() == [
        False,
        True,
    ]


def test_loops_over_functions_are_vector_code(tmp_path: Path) -> None:
    """No call is left in a loop over a function that needs none."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    (tmp_path / "pieces.c").write_text(source())
    command = [compiler, "-O3", *FLAGS, "-S", tmp_path / "pieces.c", "-o", tmp_path / "pieces.s"]
    subprocess.run(command, check=True)
    code = (tmp_path / "pieces.s").read_text()
    for name in set(ONE) - {"sqrt", "erf", "gelu", "sin", "cos"} | {"max", "min", "logaddexp"}:
        body = code.split(f"\nall_{name}:")[1].split(".cfi_endproc")[0]
        assert "call" not in body and "mm" in body, name


# ---- tiles


def array_of(x: np.ndarray) -> Array:
    """The C array of x [n, t, h, width]."""
    n, t, h = (s // x.itemsize for s in x.strides[:3])
    return Array(x.ctypes.data, n, t, h, DTYPES.index(x.dtype.type))


@pytest.mark.parametrize(
    "how", ["as it is", "tokens apart", "last token first", "one for all heads"]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("width", [1, 7, 32, 50])
def test_tiles(built: Built, dtype: type, how: str, width: int) -> None:
    rng = np.random.default_rng(width)
    heads = 1 if how == "as it is" else 3
    x = (100 * rng.standard_normal((2, 20, heads, width))).astype(dtype)
    x = x[:, ::2] if how == "tokens apart" else x[:, ::-1] if how == "last token first" else x
    x = np.broadcast_to(x[:, :, :1], x.shape) if how == "one for all heads" else x
    n, h, at, rows = 1, heads - 1, 3, 6
    tile = np.full((rows, width), np.nan, built.dtype)
    built.run("load", tile, ctypes.byref(array_of(x)), sizes(n, h, at, rows, width))
    assert (tile == x[n, at : at + rows, h].astype(built.dtype)).all()
    if how == "one for all heads":
        return
    before, new = x.copy(), (100 * rng.standard_normal((rows, width))).astype(built.dtype)
    built.run("store", ctypes.byref(array_of(x)), new, sizes(n, h, at, rows, width))
    before[n, at : at + rows, h] = new.astype(dtype)
    assert (x == before).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "f16"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_halves_read_exactly(built: Built, dtype: type) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    tile = np.empty(x.size, built.dtype)
    at = Array(x.ctypes.data, 0, x.size, 0, DTYPES.index(dtype))
    built.run("load", tile, ctypes.byref(at), sizes(0, 0, 0, 1, x.size))
    assert np.array_equal(tile, x.astype(built.dtype), equal_nan=True)
    assert (np.signbit(tile) == np.signbit(x.astype(np.float32))).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "f16"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_halves_round_to_nearest_even(built: Built, dtype: type) -> None:
    """All halves, what lies midway between them, and the next numbers to either side."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float64)
    finite = np.unique(halves[np.isfinite(halves)])
    beyond = finite[-1] + (finite[-1] - finite[-2]) / 2
    middles = np.append((finite[1:] + finite[:-1]) / 2, [beyond, -beyond]).astype(built.dtype)
    sides = [np.nextafter(middles, built.dtype(w)) for w in (-np.inf, np.inf)]
    special = [np.nan, -np.nan, np.inf, -np.inf, -0.0, np.finfo(built.dtype).max, 1e-45]
    x = np.concatenate([finite, middles, *sides, special, -np.array(special)]).astype(built.dtype)
    out = np.empty(x.size, dtype)
    at = Array(out.ctypes.data, 0, x.size, 0, DTYPES.index(dtype))
    built.run("store", ctypes.byref(at), x, sizes(0, 0, 0, 1, x.size))
    places = np.searchsorted(finite, np.nan_to_num(x, nan=0.0).astype(np.float64))
    low, high = finite[np.clip(places - 1, 0, None)], finite[np.clip(places, None, finite.size - 1)]
    made = out.astype(np.float64)
    inside = np.isfinite(x) & (np.abs(x) < beyond)
    distance = np.minimum(np.abs(x - low), np.abs(x - high))
    assert (np.abs(made - x)[inside] == distance[inside]).all()
    even = (np.abs(x - low) == np.abs(x - high)) & (low != high) & inside
    assert even.any() and (out.view(np.uint16)[even] % 2 == 0).all()
    assert (np.isinf(made) == (np.abs(x) >= beyond)).all()
    assert (np.isnan(made) == np.isnan(x)).all()
    assert (np.signbit(made) == np.signbit(x)).all()
