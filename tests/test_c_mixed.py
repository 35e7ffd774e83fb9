"""Calls of bfloat16 whose products round their factors, where the processor is faster so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import EXAMPLES, ROOT
from test_c_threads import built, with_threads

from lacc import driver
from lacc.backends.c_host import Emitted
from lacc.backends.rounding import delicate
from lacc.runtime import caching, native
from lacc.runtime.compiled import missing
from lacc.runtime.kernel import Kernel
from lacc.verify import cases
from lacc.verify.checks import half
from lacc.verify.subject import Guarded, Subject

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

fast = pytest.mark.skipif(
    not native.may_mix(), reason="this processor is not faster with products of bfloat16"
)
BF16, EVERY = ml_dtypes.bfloat16, [path.stem for path in EXAMPLES]


def kernel(name: str, target: str = "c") -> Kernel:
    return driver.compile(ROOT / "examples" / f"{name}.la", target)


def arrays(dtype: Any, T: int = 150) -> dict[str, Any]:
    """Arguments of gated_deltanet with heads wide enough."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, T, 1, 40))
    k /= np.sqrt((k**2).sum(-1, keepdims=True))
    g, beta = -rng.uniform(0, 0.1, (1, T, 1)), rng.uniform(0, 1, (1, T, 1))
    return {n: x.astype(dtype) for n, x in zip(("q", "k", "v", "g", "beta"), (q, k, v, g, beta))}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The emitted file of gated_deltanet."""
    files = kernel("gated_deltanet").files
    texts = (files[f"gated_deltanet{end}"] for end in (".c", ".h", "_c.py"))
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mixed")
        yield built(Emitted("gated_deltanet", *texts), folder, patch)
    caching.cache_folder.cache_clear()


@pytest.mark.parametrize(
    "name",
    [
        "gated_deltanet",
        *(pytest.param(n, marks=pytest.mark.full) for n in EVERY if n != "gated_deltanet"),
    ],
)
def test_wide_heads_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As close as `verify` asks, in dims and chunks that are wide enough."""
    monkeypatch.setattr(cases, "ODD", (37, 35, 39, 33, 41))
    monkeypatch.setattr(cases, "EVEN", (40, 36, 48, 32, 44))
    compiled, reference = kernel(name), kernel(name, "numpy")
    for mode in {*compiled.modes} - {"recurrent"}:
        bench = cases.Bench(reference.spec, reference, cases.Scale(40, 200))
        for found in half(Subject(bench, Guarded(compiled), mode)):
            assert found.passed, found


@fast
def test_only_calls_of_bfloat16_round(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the first input is: neither one in float32, nor one on a machine without."""
    narrow = arrays(BF16)
    wide = {name: x.astype(np.float32) for name, x in narrow.items()}
    gates = {**narrow, "g": wide["g"], "beta": wide["beta"]}
    others = {**wide, "k": narrow["k"]}
    state = {
        n: module.gated_deltanet(**x, chunk=50)[1].S
        for n, x in (("narrow", narrow), ("wide", wide), ("gates", gates), ("others", others))
    }
    off = np.abs(state["narrow"] - state["wide"]).max()
    assert 0 < off < 0.02 * np.abs(state["wide"]).max()
    assert (state["gates"] == state["narrow"]).all() and (state["others"] == state["wide"]).all()
    monkeypatch.setattr(module, "may_mix", lambda: False)
    assert (state["wide"] == module.gated_deltanet(**narrow, chunk=50)[1].S).all()


@fast
def test_any_number_of_threads_rounds_the_same(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, found = arrays(BF16, 300), []
    for threads in (1, 2, 3):
        with_threads(module, threads, monkeypatch)
        o, state = module.gated_deltanet(**given, chunk=48)
        pulled = module.gated_deltanet_vjp(**given, chunk=48, cotangent=o)
        found.append([o, state.S, *pulled.values()])
    for others in found[1:]:
        assert all((x == y).all() for x, y in zip(found[0], others, strict=True))


def test_chunks_are_longer_where_products_are_cheap() -> None:
    plan, dims = kernel("gated_deltanet").plan, {"K": 128, "V": 128}
    assert plan is not None
    assert plan.mixed(4).choose(2048, 8, dims)[1] > plan.choose(2048, 8, dims)[1]


@pytest.mark.parametrize(("name", "exact"), [("gated_deltanet", False), ("mlstm", True)])
def test_variants_that_rounding_harms_do_not_round(name: str, exact: bool) -> None:
    files = kernel(name).files
    assert ("#define EXACT_PRODUCTS" in files[f"{name}.c"]) == exact
    assert ("    mixes=mixes," in files[f"{name}_c.py"]) != exact


@pytest.mark.parametrize(
    ("name", "fine"),
    [("gla", False), ("linear_transformer", True), ("performer_noncausal", True)],
)
def test_quotients_by_what_states_give_do_not_round(name: str, fine: bool) -> None:
    """Of each token's state, and of the last one."""
    assert delicate(driver.analyse(driver.load(ROOT / "examples" / f"{name}.la"))) is fine
