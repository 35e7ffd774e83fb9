"""Threads of emitted C: those that share the chunks of one sequence and head give what one thread
gives, bit by bit."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_leaky import emitted
from conftest import EXAMPLES, ROOT

from lacc import driver
from lacc.backends.c_host import Emitted
from lacc.backends.c_turns import changed, in_turns
from lacc.backends.to_c import to_c
from lacc.runtime import caching
from lacc.runtime.compiled import missing
from lacc.runtime.native import REST, Library, resting
from lacc.tile.partition import in_one_loop
from lacc.tile.rewrite import for_one_loop
from lacc.tile.unroll import unroll

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def built(files: Emitted, folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """The emitted file, imported; whatever the work, threads are worth it."""
    patch.setenv("LACC_CACHE", str(folder / "cache"))
    caching.cache_folder.cache_clear()
    for name, text in files.files.items():
        text = re.sub(r"WORTH_A_THREAD = [^}]*", "WORTH_A_THREAD = 1 ", text)
        (folder / name).write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(f"{files.name}_t", folder / f"{files.name}_c.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, found)
    spec.loader.exec_module(found)
    return found


def with_threads(module: Any, count: int, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("LACC_THREADS", str(count))
    module.processors.cache_clear()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield built(emitted(), tmp_path_factory.mktemp("leaky"), patch)
    caching.cache_folder.cache_clear()


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("chunk", [4, 7, 64])
def test_any_number_of_threads_gives_the_same(
    module: Any, monkeypatch: pytest.MonkeyPatch, heads: int, chunk: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 301, heads, 4)).astype(np.float32)
    w = rng.uniform(0.5, 1, (heads, 4)).astype(np.float32)
    start = rng.standard_normal((1, heads, 4)).astype(np.float16)
    found = []
    for threads in (1, 2, 3, 7, 3, 2):
        with_threads(module, threads, monkeypatch)
        o, state = module.leaky(x, w, initial_state=start, chunk=chunk)
        d = module.leaky_vjp(
            x, w, cotangent=x, initial_state=start, state_cotangent=start, chunk=chunk
        )
        found.append([o, state.S, d["x"], d["w"], d["initial_state"].S])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert (one == other).all()
    wanted = x[:, 0] + w * start.astype(np.float32)
    np.testing.assert_allclose(found[0][0][:, 0], wanted, rtol=1e-6)


def test_a_state_ends_where_it_began(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk reads what the last one writes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 90, 1, 4)).astype(np.float32)
    w, start = np.full((1, 4), 0.9, np.float32), np.ones((1, 1, 4), np.float32)
    wanted, end = module.leaky(x, w, initial_state=start, chunk=8)
    with_threads(module, 3, monkeypatch)
    table, state, o = module.Table(1, 1), start.copy(), np.empty_like(x)
    for y, lead in ((x, 3), (w[None], 2), (state, 2), (o, 3), (state, 2), (None, 3)):
        table.put(y, lead)
    sizes = module.LIBRARY.Run(1, 90, 1, 8, 3, 0, 0, None, 0, 4)
    function = module.LIBRARY.function("forward_0", np.float32)
    room = module.LIBRARY.room(sizes, np.float32)
    module.LIBRARY.call("forward_0", function, sizes, room, table.described())
    assert (o == wanted).all() and (state == end.S).all()


def test_threads_are_for_much_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own takes a workspace of its own."""
    monkeypatch.setenv("LACC_CACHE", str(tmp_path))
    caching.cache_folder.cache_clear()
    for name, text in emitted().files.items():
        (tmp_path / name).write_text(text, "utf-8")
    library = Library("leaky", ("K",), emitted().c.partition("\n")[0], tmp_path)

    def room(tokens: int, threads: int) -> int:
        sizes = library.Run(1, tokens, 4, 64, threads, 0, 0, None, 0, 64)
        return library.room(sizes, np.float32)

    assert room(64, 4) == room(64, 1) and room(1 << 20, 4) > room(1 << 20, 1)
    caching.cache_folder.cache_clear()


def test_openmp_is_loaded_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", *REST):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with resting():
        assert {name: os.environ[name] for name in REST} == REST
    assert dict(os.environ) == before
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    with resting():
        assert os.environ["GOMP_SPINCOUNT"] == "7"
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with resting():
        assert "KMP_BLOCKTIME" not in os.environ


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "lru", "mlstm"])
@pytest.mark.parametrize("kind", ["state", "dstate"])
def test_what_waits_for_the_chunk_before(name: str, kind: str) -> None:
    """The order keeps what is computed; what comes before the state's turn needs no state, and
    nothing that comes after is part of the next one."""
    stage = driver.analyse(driver.load(ROOT / "examples" / f"{name}.la")).passes[0]
    pair = stage.forward if kind == "state" else stage.backward  # type: ignore[union-attr]
    (part,) = in_one_loop(unroll(for_one_loop(pair, kind)), kind, ())
    states = changed(part.program, kind)
    program, first, last = in_turns(part.program, kind, states)
    assert len(program.body) == len(part.program.body)
    assert all(i < n for n, inst in enumerate(program.body) for i in inst.ins)
    held = {n for state, n in program.loads(kind).items() if state in states}
    for n, inst in enumerate(program.body[:first]):
        assert n in held or held.isdisjoint(inst.ins)
    assert all(program.outs[f"state:{state}"] < last for state in states)
    assert states and last < len(program.body)


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_by_threads(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example passes its checks where 13 threads share its chunks."""
    monkeypatch.setenv("LACC_THREADS", "13")
    emit = to_c

    def eager(*given: Any) -> Emitted:
        found = emit(*given)
        c = re.sub(r"WORTH_A_THREAD = [^}]*", "WORTH_A_THREAD = 1 ", found.c)
        return Emitted(found.name, c, found.h, found.py)

    monkeypatch.setattr("lacc.backends.to_c.to_c", eager)
    report = driver.verify(path, "c")
    assert report.passed, str(report)
