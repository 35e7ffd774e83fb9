"""Attention over time on the C target: its functions against NumPy's kernels at every shape of
block, and specs that attend in every way against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc import driver, targets
from lacc.backends.to_c import to_c
from lacc.plan.choose import choose
from lacc.runtime import caching, native
from lacc.runtime.compiled import functions, missing, placed
from lacc.runtime.kernel import Kernel
from lacc.tile.attention_kernels import Sight, attend, attend_pull
from lacc.tile.attention_pass import AttentionPass
from lacc.verify.checks import CHECKS
from lacc.verify.harness import verify

Array = Any
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

WINDOW = 70
TEXT = f"""variant x
dim K = 4, V = 3
input q, k : [K]
input v : [V]
input s : scalar
output o : [V]
o = attend(q, k, v) + attend(q, k, v, window={WINDOW}, sink=s)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LACC_CACHE", str(tmp_path_factory.mktemp("cache")))
        caching.cache_folder.cache_clear()
        yield
    caching.cache_folder.cache_clear()


def emitted(text: str) -> Any:
    """The spec, what its core takes, and its files."""
    spec = driver.load(text)
    derived = driver.analyse(spec)
    refused, seen = targets.offered(spec, "c", derived, None)
    return spec, seen, refused, to_c(derived, choose(derived, dtype="float32"), seen)


class Attentions:
    """The functions of TEXT on arrays: with a sink and a window, or with neither."""

    def __init__(self) -> None:
        spec, _, _, files = emitted(TEXT)
        head = files.c.partition("\n")[0]
        home = placed(files.name, files.files)
        self.library = native.Library(files.name, ("K", "V"), head, home)
        passes = enumerate(driver.analyse(spec).passes)
        self.numbers = {p.window: n for n, p in passes if isinstance(p, AttentionPass)}

    def __call__(self, way: str, sight: Sight, x: list[Array], results: list[Array]) -> list[Array]:
        """``results`` filled in; arrays are [B, H, T, ...], keys and values with their past."""
        (B, H, T, K), P = x[0].shape, sight.past
        dims = {"K": K, "V": x[2].shape[3]}
        run = SimpleNamespace(B=B, T=T, H=H, dims=dims, dtype=x[0].dtype)
        table = native.Table(B, H)
        parts = [x[0], x[1][:, :, P:], x[2][:, :, P:], x[3], x[1][:, :, :P], x[2][:, :, :P]]
        for each in parts:
            table.put(None if each is None else np.moveaxis(each, 2, 1))
        table.put(sight.position[:, None], 2)
        for each in [*x[4:], *results, *([None, None] if way == "forward" else [])]:
            table.put(None if each is None else np.moveaxis(each, 2, 1))
        call: Any = SimpleNamespace(run=run, C=16, by_token=False, past=P, mixed=False)
        number = self.numbers[sight.window]
        self.library.run(f"attend_{way}_{number}", call, table.described())
        return results


@pytest.fixture(scope="module")
def compiled() -> Attentions:
    return Attentions()


def arrays(T: int, past: int, seed: int, sizes: tuple[int, int, int, int]) -> Any:
    B, H, K, V = sizes
    rng = np.random.default_rng(seed)
    shapes = (B, H, T, K), (B, H, past + T, K), (B, H, past + T, V), (B, H, T)
    return [rng.normal(size=shape) for shape in shapes], rng.normal(size=(B, H, T, V))


def pulled(compiled: Attentions, sight: Sight, x: list[Array], ct: Array) -> list[Array]:
    """What is attended to, with maxima and sums, and all cotangents."""
    lead, P = x[0].shape[:3], sight.past
    like = x[2].dtype
    found = compiled(
        "forward", sight, x, [np.full(s, np.nan, like) for s in (ct.shape, lead, lead)]
    )
    parts = [x[0], x[1][:, :, P:], x[2][:, :, P:], x[3], x[1][:, :, :P], x[2][:, :, :P]]
    results = [None if each is None else np.full(each.shape, np.nan, like) for each in parts]
    dq, dk, dv, ds, dpk, dpv = compiled("backward", sight, [*x, *found, ct], results)
    return [found[0], dq, np.concatenate([dpk, dk], 2), np.concatenate([dpv, dv], 2), ds]


def defined(x: list[Array], sight: Sight, ct: Array) -> list[Any]:
    """The same by NumPy."""
    q, k, v, sink = x
    attended = attend(q, k, v, sink, sight)
    return [attended[0], *attend_pull(ct, attended, q, k, v, sink, sight)]


@settings(max_examples=30, deadline=None)
@given(
    T=st.one_of(st.integers(1, 20), st.integers(60, 200)),
    past=st.one_of(st.integers(0, 6), st.integers(60, 140)),
    windowed=st.booleans(),
    seen=st.tuples(st.integers(0, 150), st.integers(0, 8)),
    sizes=st.sampled_from([(2, 2, 3, 4), (2, 1, 1, 1), (2, 1, 16, 17), (2, 1, 70, 33)]),
    dtype=st.sampled_from([np.float64, np.float32]),
)
def test_blocks_give_what_numpy_gives(
    compiled: Attentions,
    T: int,
    past: int,
    windowed: bool,
    seen: tuple[int, int],
    sizes: tuple[int, int, int, int],
    dtype: Any,
) -> None:
    sight = Sight(past, WINDOW if windowed else None, np.array(seen), 16, 16)
    x, ct = arrays(T, past, T, sizes)
    if not windowed:
        x[3] = None
    wanted = defined(x, sight, ct)
    given_ = [None if each is None else each.astype(dtype) for each in x]
    error = 1e-11 if dtype == np.float64 else 2e-4
    for ours, theirs in zip(pulled(compiled, sight, given_, ct.astype(dtype)), wanted):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=error, atol=error)


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_logits_are_finite(compiled: Attentions, size: float, dtype: Any) -> None:
    x, ct = arrays(80, 0, 0, (2, 1, 3, 4))
    x[0][..., 0], x[1][..., 0] = abs(size) ** 0.5, np.copysign(abs(size) ** 0.5, size)
    sight = Sight(0, WINDOW, np.zeros(2, np.int64), 16, 16)
    found = pulled(compiled, sight, [each.astype(dtype) for each in x], ct.astype(dtype))
    assert all(np.isfinite(each).all() for each in found)
    wanted = defined(x, sight, ct)[0]
    np.testing.assert_allclose(found[0], wanted, atol=5e-3 if dtype == np.float32 else 1e-11)


def test_what_sees_nothing_gives_nothing(compiled: Attentions) -> None:
    x, ct = arrays(3, 0, 0, (2, 1, 3, 4))
    x[0], x[1][:, :, 0], x[3] = abs(x[0]), -np.inf, None
    sight = Sight(0, None, np.zeros(2, np.int64), 16, 16)
    (o, *_) = pulled(compiled, sight, x, ct)
    assert (o[:, :, 0] == 0).all()
    assert np.isfinite(o).all()


def test_nan_and_infinity_go_where_numpys_go(compiled: Attentions) -> None:
    sight = Sight(0, None, np.zeros(2, np.int64), 64, 64)
    for bad in (np.nan, np.inf):
        for n in range(3):
            x, ct = arrays(130, 0, n, (2, 1, 3, 4))
            x[n][0, 0, 70, 1], x[3] = bad, None
            with np.errstate(all="ignore"):
                wanted = defined(x, sight, ct)
                found = pulled(compiled, sight, x, ct)
            before = np.s_[:, :, :64]
            np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(wanted[0]))
            np.testing.assert_allclose(found[0][before], wanted[0][before], rtol=1e-11, atol=1e-13)


def test_what_comes_later_changes_no_bit(compiled: Attentions) -> None:
    sight = Sight(0, WINDOW, np.zeros(2, np.int64), 16, 16)
    x, ct = arrays(150, 0, 1, (2, 1, 3, 4))
    before = pulled(compiled, sight, x, ct)[0]
    x[1][:, :, 101:], x[2][:, :, 101:] = 1e3, -1e3
    after = pulled(compiled, sight, x, ct)[0]
    assert before[:, :, :101].tobytes() == after[:, :, :101].tobytes()


HEAD = "variant x\ndim K = 4, V = 3\ninput q, k : [K]\ninput v : [V]\noutput o : [V]\n"
STATE = "state h : [K] = 0.5\n"
ATTENDING = {
    "what was attended to": "a = attend(q, k, v)\no = attend(q, k, a, window=4) + attend(v, v, v)",
    "states as keys": f"{STATE}h[t] = 0.9 * h[t-1] + k\n"
    "o = attend(q, h[t], v, window=3) + attend(h[t-1], h[t], v, window=1) + attend(q, h[t], v)",
    "delayed and attended to": "o = attend(q, k[t-2], v[t-1], window=3) + v[t-4]"
    " + attend(q, k, v[t-1])",
}


@pytest.mark.parametrize("name", ATTENDING)
def test_specs_that_attend(name: str) -> None:
    spec, seen, refused, files = emitted(HEAD + ATTENDING[name])
    offered = functions(files.name, files.files)
    kernel = Kernel(spec, "c", seen, offered, missing=refused, verify=lambda: None)
    checks = {name: CHECKS[name] for name in ("initial state", "split")}
    report = verify(targets.reference_of(spec), [kernel], checks=checks)
    assert report.passed, str(report)
