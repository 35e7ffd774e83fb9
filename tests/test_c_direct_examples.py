"""Calls like earlier ones of examples as C files: gradients, attention, and what is beside them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from c_direct import TIMES, known, slowly
from conftest import ROOT

from lacc import driver, targets
from lacc.backends.to_c import to_c
from lacc.plan.choose import choose
from lacc.runtime import caching
from lacc.runtime.compiled import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """The emitted files of examples, imported."""
    folder, found = tmp_path_factory.mktemp("example"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LACC_CACHE", str(folder / "cache"))
        caching.cache_folder.cache_clear()

        def load(name: str) -> Any:
            if name not in found:
                found[name] = imported(name, folder)
            return found[name]

        yield load
        for name in found:
            del sys.modules[f"{name}_direct"]
    caching.cache_folder.cache_clear()


def imported(name: str, folder: Path) -> Any:
    """The emitted file of an example."""
    spec = driver.load(ROOT / "examples" / f"{name}.la")
    derived = driver.analyse(spec)
    _, seen = targets.offered(spec, "c", derived, None)
    for file, text in to_c(derived, choose(derived, dtype="float32"), seen).files.items():
        (folder / file).write_text(text, "utf-8")
    there = importlib.util.spec_from_file_location(f"{name}_direct", folder / f"{name}_c.py")
    assert there is not None and there.loader is not None
    module = sys.modules[there.name] = importlib.util.module_from_spec(there)
    there.loader.exec_module(module)
    return module


# ---- gradients


def all_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert [*found] == [*wanted]
    for name, one in found.items():
        others = zip(one, wanted[name]) if isinstance(one, tuple) else [(one, wanted[name])]
        for x, y in others:
            assert (type(x), x.dtype, x.shape) == (type(y), y.dtype, y.shape)
            assert (x == y).all(), name


def drawn_gla(seed: int, dtype: Any, tokens: int) -> tuple[dict[str, Any], Any, Any]:
    rng = np.random.default_rng(seed)
    q, k, v, g, ct = (rng.standard_normal((2, tokens, 3, 64)) for _ in range(5))
    arrays = {"q": q, "k": k, "v": v, "g": -np.abs(g)}
    x = {name: (y * 0.3).astype(dtype) for name, y in arrays.items()}
    return x, ct.astype(dtype), rng.standard_normal((2, 3, 64, 64)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("options", [{}, {"chunk": 16}, {"mode": "recurrent"}])
def test_known_gradients(
    example: Callable[[str], Any], dtype: Any, options: dict[str, Any]
) -> None:
    module = example("gla")
    module.HOST.direct.mine.seen.clear()
    for seed in range(TIMES):
        x, ct, state = drawn_gla(seed, dtype, 70)
        calls: list[dict[str, Any]] = [
            {"cotangent": ct},
            {"cotangent": (ct,), "initial_state": state},
            {"cotangent": {"o": ct}, "initial_state": {"S": state}, "state_cotangent": state},
            {"state_cotangent": (state,), "initial_state": {}},
        ]
        for call in calls:
            found = module.gla_vjp(**x, **call, **options)
            all_equal(found, slowly(module, module.gla_vjp, **x, **call, **options))
    assert known(module) == len(calls)


def test_heads_have_memory_of_states_in_turn(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the states of all chunks are more than a thread keeps, heads go a few at a time."""
    module = example("gla")
    module.HOST.direct.mine.seen.clear()
    states = 2 * -(-70 // 16) * 64 * 64 * 4
    for held, processors, groups in ((12 * states, 1, 1), (5 * states, 1, 3), (4, 3, 1)):
        monkeypatch.setattr(module, "HELD", held)
        monkeypatch.setattr(module, "processors", lambda n=processors: n)
        module.HOST.direct.mine.seen.clear()
        for seed in range(TIMES):
            x, ct, state = drawn_gla(seed, np.float32, 70)
            call = {"cotangent": ct, "initial_state": state, "state_cotangent": state}
            found = module.gla_vjp(**x, **call, chunk=16)
            all_equal(found, slowly(module, module.gla_vjp, **x, **call, chunk=16))
        (ready,) = module.HOST.direct.mine.seen.values()
        assert len(ready.calls) == 2 * groups


def test_gradients_beside_known_ones(example: Callable[[str], Any]) -> None:
    torch = pytest.importorskip("torch")
    module = example("gla")
    module.HOST.direct.mine.seen.clear()
    x, ct, state = drawn_gla(0, np.float32, 9)
    tensors = {name: torch.from_numpy(y) for name, y in x.items()}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"cotangent": ct[:1]}, "cotangent: expected"),
        ({"cotangent": (ct, ct)}, "cotangent: expected"),
        ({"cotangent": ct.astype(np.int32)}, "cotangent: expected dtype"),
        ({"state_cotangent": state[:, :2]}, "state_cotangent.S: expected"),
        ({"chunk": 0}, "chunk: expected a positive integer, got 0"),
        ({"mode": "fast"}, "mode: expected one of"),
    ]
    for _ in range(TIMES):
        module.gla_vjp(**x, cotangent=ct)
        found = module.gla_vjp(**tensors, cotangent=torch.from_numpy(ct))
        wanted = slowly(module, module.gla_vjp, **tensors, cotangent=torch.from_numpy(ct))
        all_equal(found, wanted)
        turned = {name: y[:, ::-1] for name, y in x.items()}
        found = module.gla_vjp(**turned, cotangent=ct)
        all_equal(found, slowly(module, module.gla_vjp, **turned, cotangent=ct))
        for change, words in refused:
            with pytest.raises((ValueError, TypeError), match=re.escape(words)):
                module.gla_vjp(**x, **{"cotangent": ct, **change})
    assert known(module) == 3


# ---- attention


def attended(name: str, tokens: int, groups: int, seed: int, dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (2, tokens, 4, 64), "k": (2, tokens, groups, 64), "v": (2, tokens, groups, 64)}
    shapes |= {"f": (2, tokens, 4)} if name == "fox" else {}
    shapes |= {"sink": (4,)} if name == "sliding_window" else {}
    return {n: rng.standard_normal(shape).astype(dtype) for n, shape in shapes.items()}


def all_same(found: Any, wanted: Any) -> None:
    for one, other in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
        assert (one == other).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("softmax_attention", np.float32),
        ("fox", ml_dtypes.bfloat16),
        ("fox", np.float32),
        ("sliding_window", np.float32),
    ],
)
def test_known_calls_that_attend(example: Callable[[str], Any], name: str, dtype: Any) -> None:
    module = example(name)
    function = getattr(module, name)
    for tokens in (8, 70, 600):
        for groups in (4, 1):
            module.HOST.direct.mine.seen.clear()
            for seed in range(TIMES):
                x = attended(name, tokens, groups, seed, dtype)
                found = function(**x)
                all_same(found, slowly(module, function, **x))
                more = function(**x, initial_state=found[1])
                all_same(more, slowly(module, function, **x, initial_state=found[1]))
            assert known(module) == 1


def test_example_beside_known_calls(example: Callable[[str], Any]) -> None:
    """Calls that a state, a token, or groups of heads set apart from a known one."""
    module = example("sliding_window")
    module.HOST.direct.mine.seen.clear()
    x = attended("sliding_window", 20, 4, 0, np.float32)
    for _ in range(TIMES):
        _, state = module.sliding_window(**x)
    assert known(module) == 1
    short, shared = ({**x, **{n: x[n][:, :3] for n in "qkv"}}, {**x, "k": x["k"][:, :, :2]})
    shared["v"] = x["v"][:, :, :2]
    for call in ({**x, "mode": "recurrent"}, short, shared):
        for _ in range(TIMES):
            all_same(module.sliding_window(**call), slowly(module, module.sliding_window, **call))
    assert known(module) == 1
    for _ in range(TIMES):
        with pytest.raises(TypeError, match=r"initial_state\.position: expected integers"):
            module.sliding_window(**x, initial_state={"position": np.array([-1, 0])})
        with pytest.raises(ValueError, match=r"initial_state\.k_past: expected"):
            module.sliding_window(**x, initial_state=state._replace(k_past=x["k"]))


def test_tensors_that_attend(example: Callable[[str], Any]) -> None:
    torch = pytest.importorskip("torch")
    module = example("softmax_attention")
    module.HOST.direct.mine.seen.clear()
    for seed in range(TIMES):
        x = attended("softmax_attention", 70, 1, seed, np.float32)
        x = {name: torch.from_numpy(a) for name, a in x.items()}
        found = module.softmax_attention(**x)
        all_same(found, slowly(module, module.softmax_attention, **x))
    assert known(module) == 1


def test_an_output_that_is_overwritten_leaves_the_gradient(
    example: Callable[[str], Any],
) -> None:
    torch = pytest.importorskip("torch")
    module = example("softmax_attention")
    x = attended("softmax_attention", 9, 4, 0, np.float32)
    grads = []
    for overwritten in (False, True):
        given = {name: torch.from_numpy(a).requires_grad_() for name, a in x.items()}
        o, _ = module.softmax_attention(**given)
        o = o.mul_(2) if overwritten else o * 2
        grads.append(torch.autograd.grad(o.sum(), [*given.values()]))
    for one, other in zip(*grads):
        assert torch.equal(one, other) and one.abs().sum() > 0
