"""The Python host of a C file, on functions written by hand: what the arrays of a call become, and
that it keeps to the API as NumPy's does. The emitted functions are checked elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from c_leaky import leaky

import lacc
from lacc.diagnostics import LaccError
from lacc.runtime import caching, native
from lacc.runtime.compiled import functions, missing
from lacc.runtime.kernel import Kernel

B, T, H, K = 2, 37, 3, 4
SPEC, EMITTED = leaky()

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """The kernel, from a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LACC_CACHE", str(tmp_path_factory.mktemp("cache")))
        caching.cache_folder.cache_clear()
        like = lacc.compile(SPEC)
        found = functions(EMITTED.name, EMITTED.files)
        yield Kernel(SPEC, "c", like.signature, found, missing={}, verify=lambda: None)
    caching.cache_folder.cache_clear()


@pytest.fixture(scope="module")
def plain() -> Kernel:
    return lacc.compile(SPEC)


def drawn(dtype: Any = np.float32, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((B, T, H, K)).astype(dtype)
    return {"x": x, "w": rng.uniform(0, 1, (H, K)).astype(dtype)}


def close(found: Any, wanted: Any, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        one, other = (x.astype(np.float64) for x in (one, other))
        assert np.abs(one - other).max(initial=0) <= tolerance * (1 + np.abs(other).max(initial=0))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, 1e-12), (np.float32, 1e-5), (ml_dtypes.bfloat16, 1e-5)],
)
@pytest.mark.parametrize(
    "options", [{"mode": "chunk", "chunk": 8}, {"mode": "recurrent"}, {"mode": "parallel"}, {}]
)
def test_calls_give_what_numpy_gives(
    compiled: Kernel, plain: Kernel, dtype: Any, tolerance: float, options: dict[str, Any]
) -> None:
    x = drawn(dtype)
    start = drawn(seed=1)["x"][:, 0]
    more = {"initial_state": start, **options}
    (o, state), (wanted, end) = compiled(**x, **more), plain(**x, **more)
    close((o, *state), (wanted, *end), tolerance)
    more |= {"cotangent": drawn(dtype, seed=2)["x"], "state_cotangent": drawn(seed=3)["x"][:, 1]}
    found, wanted = compiled.vjp(**x, **more), plain.vjp(**x, **more)
    assert found.keys() == wanted.keys()
    for name in ("x", "w"):
        close([found[name]], [wanted[name]], tolerance)
    close(found["initial_state"], wanted["initial_state"], tolerance)


def test_nothing_given_is_zero(compiled: Kernel, plain: Kernel) -> None:
    x = drawn(np.float64)
    found, wanted = compiled.vjp(**x), plain.vjp(**x)
    close(found.values(), wanted.values(), 0)


def test_packed_rows_and_padding(compiled: Kernel, plain: Kernel) -> None:
    x = drawn(np.float64)
    valid = np.arange(T) < np.array([[T], [5]])
    for options in ({"valid": valid}, {"cu_seqlens": np.array([0, 10, 10, T])}):
        given = x if "valid" in options else {**x, "x": x["x"][:1]}
        (o, state), (wanted, end) = compiled(**given, **options), plain(**given, **options)
        close((o, *state), (wanted, *end), 1e-12)


def test_no_tokens_and_no_sequences(compiled: Kernel, plain: Kernel) -> None:
    x = drawn()
    for cut in (np.s_[:, :0], np.s_[:0]):
        given = {**x, "x": x["x"][cut]}
        (o, state), (wanted, end) = compiled(**given), plain(**given)
        close((o, *state), (wanted, *end), 0)
        close(compiled.vjp(**given).values(), plain.vjp(**given).values(), 0)


def test_steps_give_what_a_call_gives(compiled: Kernel) -> None:
    x = drawn(np.float64)
    wanted, end = compiled(**x)
    state = None
    for t in range(T):
        o, state = compiled.step(x["x"][:, t], x["w"], state)
        close([o], [wanted[:, t]], 1e-12)
    close(state, end, 1e-12)


def test_a_step_writes_where_it_is_told(compiled: Kernel) -> None:
    x = drawn()
    pool = np.ones((5, H, K), np.float32)
    rows = np.array([3, 1])
    _, state = compiled.step(x["x"][:, 0], x["w"], pool[rows])
    compiled.step(x["x"][:, 0], x["w"], pool, out={"S": pool}, state_indices=rows)
    close([pool[rows]], [state.S], 0)
    assert (pool[[0, 2, 4]] == 1).all()


def test_errors_are_numpys(compiled: Kernel, plain: Kernel) -> None:
    x = drawn()
    misuses: list[dict[str, Any]] = [
        {**x, "w": x["w"][:2]},
        {**x, "x": x["x"][0]},
        {**x, "x": x["x"].astype(np.int32)},
        {"x": x["x"]},
        {**x, "mode": "chunked"},
        {**x, "initial_state": (1, 2)},
        {**x, "w": x["w"] + 1, "debug": True},
    ]
    for given in misuses:
        said = []
        for kernel in (plain, compiled):
            with pytest.raises((ValueError, TypeError)) as problem:
                kernel(**given)
            said.append((problem.type, str(problem.value)))
        assert said[0] == said[1]


# ---- arrays as C sees them


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::-1],
        lambda x: x[::-1, 1:7, ::2],
        lambda x: np.broadcast_to(x[:1, :, :1], x.shape),
        lambda x: np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 1, 2)), 1, 2),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_views_are_taken_as_they_are(compiled: Kernel, view: Any, dtype: Any) -> None:
    x = drawn(dtype)
    heads = view(x["x"]).shape[2]
    given = view(x["x"])
    assert native.packed(given, 3) is given
    found, _ = compiled(given, x["w"][:heads])
    wanted, _ = compiled(np.array(given), x["w"][:heads])
    close([found], [wanted], 0)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2),
        lambda x: x.astype(x.dtype.newbyteorder()),
        lambda x: np.repeat(x, 2, 3)[..., ::2],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    ],
)
def test_what_c_cannot_read_is_copied(compiled: Kernel, view: Any) -> None:
    x = drawn()
    given = view(x["x"])
    assert native.packed(given, 3) is not given
    close([compiled(given, x["w"])[0].astype(np.float32)], [compiled(**x)[0]], 0)


def test_the_last_token_first() -> None:
    x = drawn()["x"]
    table = native.Table(B, H)
    table.put(x, 3, reverse=True)
    table.put(None)
    table.put(x[:1, 0, :1], 2)
    first, none, one = table.described()
    last = x.ctypes.data + (T - 1) * H * K * 4
    assert (first.data, first.sequence, first.token) == (last, T * H * K, -H * K)
    assert (none.data, none.dtype) == (None, 0)
    assert (one.sequence, one.token, one.head) == (0, 0, 0)


@pytest.mark.parametrize(
    ("dtype", "code"),
    [(np.float32, 0), (np.float64, 1), (ml_dtypes.bfloat16, 2), (np.float16, 3)],
)
def test_dtypes_by_number(dtype: Any, code: int) -> None:
    table = native.Table(B, H)
    table.put(np.zeros((B, H, K), dtype), 2)
    assert table.described()[0].dtype == code


# ---- the files


def test_the_files_work_without_lacc(tmp_path: Path) -> None:
    for name, text in EMITTED.files.items():
        (tmp_path / name).write_text(text, "utf-8")
    code = """
import sys, numpy as np
sys.path.insert(0, ".")
from leaky_c import leaky, leaky_step, leaky_vjp
o, state = leaky(np.ones((1, 3, 1, 2), np.float32), np.full((1, 2), 0.5, np.float32))
print(o[0, :, 0, 0].tolist(), not {"lacc", "torch", "ml_dtypes"} & sys.modules.keys())
"""
    environment = {**os.environ, "LACC_CACHE": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[1.0, 1.5, 1.75] True\n", "")


def test_files_that_do_not_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = EMITTED.c.partition("\n")[0]
    library = native.Library("leaky", ("K",), head, tmp_path)
    with pytest.raises(RuntimeError, match=r"cannot read .*leaky\.c: No such file"):
        library.load("f32")
    for name, text in EMITTED.files.items():
        (tmp_path / name).write_text(text.replace("sha256", "sha255", 1), "utf-8")
    with pytest.raises(RuntimeError, match="is not what its Python file was written with"):
        library.load("f32")


def test_what_cannot_be_built_is_an_error_of_the_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("LACC_CACHE", str(tmp_path))
    caching.cache_folder.cache_clear()
    forward, *_ = functions(EMITTED.name, EMITTED.files)
    with pytest.raises(LaccError, match="there is no such compiler") as problem:
        forward(drawn())
    assert problem.value.code == "LA0702"
    caching.cache_folder.cache_clear()


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LACC_THREADS", raising=False)
    native.processors.cache_clear()
    assert native.processors() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("LACC_THREADS", "3")
    native.processors.cache_clear()
    assert native.processors() == 3
    monkeypatch.setenv("LACC_THREADS", "0")
    native.processors.cache_clear()
    with pytest.raises(ValueError, match="LACC_THREADS: expected a positive number, got '0'"):
        native.processors()
    native.processors.cache_clear()
