"""Emitted C files with tensors of torch on the CPU: shared memory, autograd, operators that
compilers can see, steps in place."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from c_leaky import leaky

from lacc.runtime import caching, native_operators
from lacc.runtime.compiled import missing

torch = pytest.importorskip("torch")

B, T, H, K = 2, 21, 3, 4

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The emitted file, imported."""
    folder = tmp_path_factory.mktemp("leaky")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LACC_CACHE", str(folder / "cache"))
        caching.cache_folder.cache_clear()
        for name, text in leaky()[1].files.items():
            (folder / name).write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location("leaky_c", folder / "leaky_c.py")
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules["leaky_c"] = found
        spec.loader.exec_module(found)
        yield found
        del sys.modules["leaky_c"]
    caching.cache_folder.cache_clear()


def drawn(dtype: Any = torch.float32, grad: bool = False) -> list[Any]:
    torch.manual_seed(0)
    found = [torch.randn(B, T, H, K, dtype=dtype), torch.rand(H, K, dtype=dtype)]
    return [x.requires_grad_(grad) for x in found]


def begun(dtype: Any = torch.float32, grad: bool = False) -> Any:
    return torch.randn(B, H, K, dtype=dtype, requires_grad=grad)


def test_tensors_give_what_arrays_give(module: Any) -> None:
    x, w = drawn(torch.float64)
    start, ct = begun(torch.float64), torch.randn_like(x)
    o, state = module.leaky(x, w, initial_state=start)
    wanted, end = module.leaky(x.numpy(), w.numpy(), initial_state=start.numpy())
    assert (o.numpy() == wanted).all() and (state.S.numpy() == end.S).all()
    found = module.leaky_vjp(x, w, cotangent=ct, initial_state=(start,))
    wanted = module.leaky_vjp(
        x.numpy(), w.numpy(), cotangent=ct.numpy(), initial_state=(1 * start.numpy(),)
    )
    assert (found["w"].numpy() == wanted["w"]).all()
    assert (found["initial_state"].S.numpy() == wanted["initial_state"].S).all()


def test_bfloat16_is_taken_as_it_is(module: Any) -> None:
    x, w = drawn(torch.bfloat16)
    view = x.transpose(1, 2).contiguous().transpose(1, 2)
    o, state = module.leaky(view, w)
    assert (o.dtype, state.S.dtype) == (torch.bfloat16, torch.float32)
    assert module.leaky(x, w, state_dtype=torch.bfloat16)[1].S.dtype == torch.bfloat16
    assert torch.equal(o, module.leaky(x.float(), w.float())[0].bfloat16())


def test_memory_is_shared(module: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, _ = drawn(dtype, grad=True)
        assert module.array_of(x).__array_interface__["data"][0] == x.data_ptr()
        assert module.tensor_of(module.array_of(x)).data_ptr() == x.data_ptr()


def test_gradients_are_those_of_the_function(module: Any) -> None:
    given = [*drawn(torch.float64, grad=True), begun(torch.float64, grad=True)]

    def call(x: Any, w: Any, start: Any) -> Any:
        o, state = module.leaky(x, w, initial_state=start, mode="chunk", chunk=8)
        return o, state.S

    assert torch.autograd.gradcheck(call, given)
    o, _ = call(*given)
    (once,) = torch.autograd.grad(o.sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"leaky: its gradients have no gradients"):
        once.sum().backward()


@pytest.mark.parametrize("how", ["dense", "packed", "masked"])
def test_states_are_kept_for_gradients(
    module: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back begins with what the way there kept, and gives what `vjp` gives."""
    x, w = drawn(torch.float64, grad=True)
    start = begun(torch.float64, grad=True)
    cu = torch.tensor([0, 5, 5, T]) if how == "packed" else None
    valid = torch.arange(T) < torch.tensor([[T], [4]]) if how == "masked" else None
    x = x[:1].detach().requires_grad_() if how == "packed" else x
    if how == "packed":
        start = torch.randn(3, H, K, dtype=x.dtype, requires_grad=True)
    more = {"cu_seqlens": cu, "valid": valid, "mode": "chunk", "chunk": 8}
    o, state = module.leaky(x, w, initial_state=start, **more)
    cts = torch.randn_like(o), torch.randn_like(state.S)
    with monkeypatch.context() as patch:
        wanted = module.leaky_vjp(
            *(x, w), cotangent=cts[0], state_cotangent=cts[1], initial_state=start, **more
        )
        ran: list[str] = []
        call = module.Library.call

        def watched(library: Any, what: str, *rest: Any) -> None:
            ran.append(what)
            call(library, what, *rest)

        patch.setattr(module.Library, "call", watched)
        found = torch.autograd.grad([o, state.S], [x, w, start], cts)
    assert {*ran} == {"backward_0"}
    for one, other in zip(found, (wanted["x"], wanted["w"], wanted["initial_state"].S)):
        assert torch.equal(one, other)


def test_what_changed_before_its_gradient_is_an_error(module: Any) -> None:
    x, w = drawn(grad=True)
    y = 1 * x
    o, _ = module.leaky(y, w)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_checkpoints(module: Any) -> None:
    x, w = drawn(grad=True)
    wanted = torch.autograd.grad(module.leaky(x, w)[0].square().sum(), [x, w])
    o = torch.utils.checkpoint.checkpoint(lambda *a: module.leaky(*a)[0], x, w, use_reentrant=False)
    found = torch.autograd.grad(o.square().sum(), [x, w])
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("how", ["dense", "packed", "masked", "begun"])
def test_operators_are_sound(module: Any, how: str) -> None:
    x, w = drawn(grad=True)
    x = x[:1].detach().requires_grad_() if how == "packed" else x
    start = begun(torch.bfloat16, grad=True) if how == "begun" else None
    cu = torch.tensor([0, 5, 5, T]) if how == "packed" else None
    valid = torch.arange(T) < torch.tensor([[T], [4]]) if how == "masked" else None
    call = (x, w, start, cu, valid, "auto", None, None, False)
    checked = torch.library.opcheck(module.HOST.operators.forward, call)
    assert set(checked.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_whole_graph_compiles(module: Any, dynamic: bool) -> None:
    def total(x: Any, w: Any, start: Any) -> Any:
        o, state = module.leaky(x, w, initial_state=start)
        one, _ = module.leaky_step(o[:, 0], w, state)
        return o.square().sum() + one.sum()

    torch._dynamo.reset()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    gradients = []
    for function in (total, compiled):
        given = [*drawn(grad=True), begun()]
        function(*given).backward()
        gradients.append([x.grad for x in given[:2]])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("grad", [False, True])
def test_steps(module: Any, grad: bool) -> None:
    x, w = drawn(torch.float64, grad=grad)
    wanted, end = module.leaky(x, w)
    state, outputs = None, []
    for t in range(T):
        o, state = module.leaky_step(x[:, t], w, state)
        outputs.append(o)
    torch.testing.assert_close(torch.stack(outputs, 1), wanted)
    torch.testing.assert_close(state.S, end.S)
    if grad:
        found = torch.autograd.grad(torch.stack(outputs, 1).sum(), [x, w])
        torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), [x, w]))


@pytest.mark.parametrize("grad", [False, True])
def test_a_step_writes_where_it_is_told(module: Any, grad: bool) -> None:
    x, w = drawn(grad=grad)
    rows, pool = torch.tensor([3, 1]), torch.ones(5, H, K)
    _, state = module.leaky_step(x[:, 0], w, pool[rows])
    with torch.no_grad() if not grad else torch.enable_grad():
        _, back = module.leaky_step(x[:, 0], w, pool.clone(), out=pool, state_indices=rows)
    assert back is pool
    torch.testing.assert_close(pool[rows], state.S)
    assert (pool[[0, 2, 4]] == 1).all()


def test_misuse(module: Any) -> None:
    x, w = drawn()
    for given, words in (
        ({"initial_state": (1, 2)}, r"initial_state: expected \(S\), got \(2 entries\)"),
        ({"initial_state": begun()[0]}, r"initial_state.S: expected \[N, H, K\]"),
        ({"mode": "chunked"}, "mode: expected one of auto, chunk, parallel, recurrent"),
    ):
        with pytest.raises(ValueError, match=words):
            module.leaky(x, w, **given)
    with pytest.raises(TypeError, match="expected tensors on the CPU, got one on meta"):
        module.leaky_vjp(x.to("meta"), w)
    with pytest.raises(TypeError, match=r"x: input .* of leaky is missing"):
        module.leaky(None, w)
    with pytest.raises(ValueError, match=r"w: expected"):
        module.leaky(x, w[:2])


def test_arrays_beside_tensors(module: Any) -> None:
    x, w = drawn()
    o, _ = module.leaky(x, w.numpy())
    assert torch.equal(o, module.leaky(x, w)[0])
    assert isinstance(module.leaky(x.numpy(), w.numpy())[0], np.ndarray)


def test_a_sum_to_no_axes_is_a_tensor() -> None:
    """As the gradient of a scalar that all heads share is."""
    found = native_operators.tensor_of(np.float64(2.5))
    assert torch.is_tensor(found) and found.shape == () and found.item() == 2.5
