"""Calls of emitted C files like earlier ones: what they give, what makes a call another one, and
that what was refused is refused again."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from c_direct import TIMES, known, slowly
from c_leaky import emitted

from lacc.runtime import caching
from lacc.runtime.compiled import missing

B, T, H, K = 2, 21, 3, 4

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The emitted file, imported."""
    folder = tmp_path_factory.mktemp("leaky")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LACC_CACHE", str(folder / "cache"))
        caching.cache_folder.cache_clear()
        for name, text in emitted().files.items():
            (folder / name).write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location("leaky_direct", folder / "leaky_c.py")
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules["leaky_direct"] = found
        spec.loader.exec_module(found)
        yield found
        del sys.modules["leaky_direct"]
    caching.cache_folder.cache_clear()


@pytest.fixture(autouse=True)
def forgotten(module: Any) -> None:
    module.HOST.direct.mine.seen.clear()


def drawn(seed: int, dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(dtype) for s in ((B, T, H, K), (H, K), (B, H, K))]


def same(found: Any, wanted: Any) -> None:
    (o, state), (p, end) = found, wanted
    for one, other in ((o, p), (state.S, end.S)):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
        assert (one == other).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("options", [{}, {"chunk": 8}, {"mode": "recurrent"}])
def test_a_known_call_gives_what_the_first_gave(
    module: Any, dtype: Any, options: dict[str, Any]
) -> None:
    for seed in range(TIMES):
        x, w, start = drawn(seed, dtype)
        found = module.leaky(x, w, initial_state=start, **options)
        same(found, slowly(module, module.leaky, x, w, initial_state=start, **options))
    assert known(module) == 1


def test_what_makes_a_call_another_one(module: Any) -> None:
    x, w, start = drawn(0)
    turned = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    calls: list[dict[str, Any]] = [
        {"x": x, "w": w},
        {"x": turned, "w": w},
        {"x": x[:, ::-1], "w": w},
        {"x": np.broadcast_to(x[:, :, :1], x.shape), "w": w},
        {"x": x.astype(np.float16), "w": w},
        {"x": x.astype(">f4"), "w": w},
        {"x": x[:, :8], "w": w},
        {"x": x, "w": w.astype(np.float64)},
        {"x": x, "w": w.T.copy().T},
        {"x": x, "w": w, "initial_state": start},
        {"x": x, "w": w, "initial_state": (start,)},
        {"x": x, "w": w, "initial_state": {"S": start[:, ::-1]}},
        {"x": x, "w": w, "chunk": 1},
        {"x": x, "w": w, "chunk": 5},
        {"x": x, "w": w, "mode": "parallel"},
        {"x": x, "w": w, "state_dtype": np.float64},
        {"x": x, "w": w, "valid": np.arange(T) < np.array([[T], [3]])},
        {"x": x[:1], "w": w, "cu_seqlens": np.array([0, 4, T])},
        {"x": x, "w": w, "debug": True} | {"w": np.clip(w, 0, 1)},
    ]
    for _ in range(TIMES):
        for call in calls:
            same(module.leaky(**call), slowly(module, module.leaky, **call))
    assert known(module) == 12  # neither the last four nor arrays that are copied


def test_what_is_refused_is_refused_beside_a_known_call(module: Any) -> None:
    x, w, start = drawn(0)
    for _ in range(TIMES):
        module.leaky(x, w, chunk=1)
        module.leaky_step(x[:, 0], w, start)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"chunk": True}, "chunk: expected a positive integer, got True"),
        ({"chunk": 1.0}, "chunk: expected a positive integer, got 1.0"),
        ({"w": w[:2]}, "w: expected"),
        ({"x": x.astype(np.int32)}, "x: expected dtype"),
        ({"initial_state": start[:, :2]}, "initial_state.S: expected"),
        ({"chunk": 1, "mode": "recurrent"}, "chunk: expected None in mode recurrent"),
        ({"state_dtype": np.int32}, "state_dtype: expected"),
    ]
    for change, words in refused:
        for _ in range(TIMES):
            with pytest.raises((ValueError, TypeError), match=re.escape(words)):
                module.leaky(**{"x": x, "w": w, "chunk": 1} | change)
    frozen = start.copy()
    frozen.flags.writeable = False
    for _ in range(TIMES):
        module.leaky_step(x[:, 0], w, start, out=start.copy())
        with pytest.raises(ValueError, match=r"out\.S: expected a writable array"):
            module.leaky_step(x[:, 0], w, start, out=frozen)


def test_steps_in_place_and_over_one_another(module: Any) -> None:
    """A state may be written where it is read; where it lies half on what is read, nothing changes
    before it is read."""
    x, w, _ = drawn(0)
    room = np.random.default_rng(1).standard_normal(4 * B * H * K).astype(np.float32)

    def at(first: int) -> Any:
        return room[first : first + B * H * K].reshape(B, H, K)

    size = B * H * K
    for begun, ended in ((0, 0), (0, size), (0, K), (K, 0), (3, 2)):
        for _ in range(TIMES):
            before = at(begun).copy()
            wanted = slowly(module, module.leaky_step, x[:, 0], w, before)
            out = at(ended)
            o, back = module.leaky_step(x[:, 0], w, at(begun), out=out)
            assert back is out and (o == wanted[0]).all() and (out == wanted[1].S).all()
    assert known(module) == 1
    inputs = at(0)  # the state goes where an input is
    for _ in range(TIMES):
        wanted = slowly(module, module.leaky_step, inputs.copy(), w, at(size))
        o, _ = module.leaky_step(inputs, w, at(size), out=inputs)
        assert (o == wanted[0]).all() and (inputs == wanted[1].S).all()


def test_steps_of_rows_of_a_pool(module: Any) -> None:
    """Rows one after the other, equally far apart, backwards and in any order; into the pool that
    they come from, and into another."""
    x, w, _ = drawn(0)
    x3 = np.concatenate([x[:, 0], x[:1, 1]])
    pool = np.random.default_rng(1).standard_normal((9, H, K)).astype(np.float32)
    every = ([0, 1, 2], [1, 4, 7], [8, 6, 4], [5, 0, 7])
    for rows in map(np.array, (*every, *every)):
        for other in (False, True):
            one, two = pool.copy(), pool.copy()
            given = (x3, w, one), (x3, w, two)
            out, wanted_out = (pool * 2, pool * 2) if other else (one, two)
            o, back = module.leaky_step(*given[0], out=out, state_indices=rows)
            wanted, _ = slowly(
                module, module.leaky_step, *given[1], out=wanted_out, state_indices=rows
            )
            assert back is out and (o == wanted).all()
            assert (one == two).all() and (out == wanted_out).all()
    assert known(module) == 1
    refused = ([0, 1, 9], "below 9"), ([0, 1, 1], "different rows"), ([0, -1, 2], "different rows")
    for wrong, words in refused:
        before = pool.copy()
        with pytest.raises(ValueError, match=f"state_indices: expected {words}"):
            module.leaky_step(x3, w, pool, out=pool, state_indices=np.array(wrong))
        assert (pool == before).all()
    for wrong in (np.array([0.0, 1, 2]), np.array([0, 1])):
        with pytest.raises(TypeError, match="state_indices: expected integers"):
            module.leaky_step(x3, w, pool, out=pool, state_indices=wrong)


def test_rows_of_a_pool_of_tensors(module: Any) -> None:
    torch = pytest.importorskip("torch")
    x, w, _ = (torch.from_numpy(a) for a in drawn(0))
    pool = torch.randn(5, H, K)
    for rows in map(torch.tensor, ([3, 1], [0, 2], [4, 0], [1, 2])):
        one, two = pool.clone(), pool.clone()
        o, _ = module.leaky_step(x[:, 0], w, one, out=one, state_indices=rows)
        wanted, _ = slowly(module, module.leaky_step, x[:, 0], w, two, out=two, state_indices=rows)
        assert torch.equal(o, wanted) and torch.equal(one, two)
    assert known(module) == 1


def test_every_other_call_is_not_aligned(module: Any) -> None:
    x, w, _ = drawn(0)
    moved = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    for _ in range(TIMES):
        for one in (x, moved):
            same(module.leaky(one, w), slowly(module, module.leaky, x, w))


def test_results_are_fresh(module: Any) -> None:
    x, w, start = drawn(0)
    every = [module.leaky_step(x[:, 0], w, start) for _ in range(TIMES)]
    kept = [(o.copy(), state.S.copy()) for o, state in every]
    module.leaky_step(x[:, 1], w, start)
    for (o, state), (p, end) in zip(every, kept):
        assert (o == p).all() and (end == state.S).all()


def test_threads_know_their_own_calls(module: Any) -> None:
    given = [drawn(seed) for seed in range(4)]
    wanted = [slowly(module, module.leaky, x, w) for x, w, _ in given]
    found: list[Any] = [None] * 4

    def work(n: int) -> None:
        found[n] = [module.leaky(*given[n][:2]) for _ in range(50)]

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, right in zip(found, wanted):
        for result in results:
            same(result, right)


def test_the_number_of_threads_may_change(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = drawn(0)
    wanted = slowly(module, module.leaky, x, w)
    for count in ("1", "7", "2"):
        monkeypatch.setenv("LACC_THREADS", count)
        module.processors.cache_clear()
        for _ in range(TIMES):
            same(module.leaky(x, w), wanted)
        (ready,) = [r for r in module.HOST.direct.mine.seen.values() if r is not True]
        assert ready.sizes.threads == int(count)
    module.processors.cache_clear()


# ---- tensors


def test_known_calls_of_tensors(module: Any) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        for seed in range(TIMES):
            x, w, start = (torch.from_numpy(a).to(dtype) for a in drawn(seed))
            view = x.transpose(1, 2).contiguous().transpose(1, 2)
            for given in (x, view):
                found = module.leaky(given, w, initial_state=start)
                same(found, slowly(module, module.leaky, x, w, initial_state=start))
            found = module.leaky_step(x[:, 0], w, start)
            same(found, slowly(module, module.leaky_step, x[:, 0], w, start))
            wanted = slowly(module, module.leaky_step, x[:, 0], w, start)[1].S.to(dtype)
            _, back = module.leaky_step(x[:, 0], w, start, out=(start,))
            assert back[0] is start and torch.equal(start, wanted)
    assert known(module) == 8


def test_gradients_are_asked_for_beside_known_calls(module: Any) -> None:
    torch = pytest.importorskip("torch")
    x, w, _ = (torch.from_numpy(a) for a in drawn(0))
    for _ in range(TIMES):
        o, state = module.leaky(x, w)
        assert not o.requires_grad
        x.requires_grad_()
        o, state = module.leaky(x, w)
        assert o.requires_grad and state.S.requires_grad
        with torch.no_grad():
            assert not module.leaky(x, w)[0].requires_grad
        one, _ = module.leaky_step(x[:, 0], w)
        assert one.requires_grad
        assert torch.autograd.grad(o.sum(), x)[0].abs().sum() > 0
        x.requires_grad_(False)


def test_what_is_no_plain_tensor_goes_the_long_way(module: Any) -> None:
    torch = pytest.importorskip("torch")
    x, w, _ = (torch.from_numpy(a) for a in drawn(0))
    wanted = module.leaky(x, w)
    negative = torch.complex(x, -x).conj().imag  # x, kept as -x with a mark
    assert negative.is_neg()
    for _ in range(TIMES):
        module.leaky(x, w)
        assert module.leaky(x.to("meta"), w.to("meta"))[0].is_meta
        with pytest.raises(RuntimeError, match=r"torch\.func\.grad and vjp do not reach it"):
            torch.func.grad(lambda a: module.leaky(a, w)[0].sum())(x)
        same(module.leaky(negative.resolve_neg(), w), wanted)
        with torch.device("meta"):
            same(module.leaky(x, w), wanted)
