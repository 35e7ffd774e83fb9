"""`target="auto"`: which kernel a call takes, and what PyTorch makes of it on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import lacc
from lacc import driver
from lacc.diagnostics import LaccError
from lacc.runtime.compiled import missing
from lacc.runtime.picking import Picked

torch = pytest.importorskip("torch")

B, T, H, K, V = 2, 11, 2, 4, 3

EXAMPLES_DIR = ROOT / "examples"

compiled_c = pytest.mark.skipif(bool(missing()), reason=missing())


KERNELS: dict[str, Any] = {}


def kernel(name: str = "gla") -> Any:
    if name not in KERNELS:
        KERNELS[name] = lacc.compile(EXAMPLES_DIR / f"{name}.la", target="auto")
    return KERNELS[name]


def drawn(steps: int = T, grad: bool = False, **how: Any) -> list[Any]:
    torch.manual_seed(0)
    found = [torch.randn(B, steps, H, d, **how) for d in (K, K, V)]
    found.append(-torch.rand(B, steps, H, K, **how))
    return [x.requires_grad_(grad) for x in found]


def one_output(*given: Any) -> Any:
    return kernel()(*given)[0]


# ---- which target


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from dataclasses import replace

    lacking = replace(driver.TARGETS["c"], missing=lambda: "no C compiler: looked for cc")
    monkeypatch.setitem(driver.TARGETS, "c", lacking)
    yield


def test_without_a_compiler_arrays_run_on_numpy_and_tensors_are_refused(no_compiler: None) -> None:
    gla = lacc.compile(EXAMPLES_DIR / "gla.la", target="auto")
    assert gla.chosen["NumPy arrays"] == "numpy: c: no C compiler: looked for cc"
    assert gla.chosen["CPU tensors"] == "refused: c: no C compiler: looked for cc"
    given = drawn(dtype=torch.float64)
    o, _ = gla(*(x.numpy() for x in given))
    wanted, _ = lacc.compile(EXAMPLES_DIR / "gla.la")(*(x.numpy() for x in given))
    assert (o == wanted).all()
    with pytest.raises(LaccError, match="no C compiler: looked for cc"):
        gla(*given)


def test_without_triton_tensors_of_a_gpu_take_cuda() -> None:
    lacking = {"triton": "it needs triton", "cuda": ""}
    picked = Picked(lambda target: kernel(), lambda target: lacking.get(target, ""), "auto", None)
    assert picked.chosen["CUDA tensors"] == "cuda: triton: it needs triton"
    lacking["cuda"] = "it needs a GPU"
    assert picked.chosen["CUDA tensors"] == "refused: triton: it needs triton"
    lacking["triton"] = ""
    assert picked.chosen["CUDA tensors"] == "triton: it is ready here"


@compiled_c
def test_tensors_and_arrays_take_c() -> None:
    assert kernel().chosen["CPU tensors"].startswith("c: ")
    given = drawn(dtype=torch.float64)
    o, _ = kernel()(*given)
    arrays, _ = kernel()(*(x.numpy() for x in given))
    assert isinstance(arrays, np.ndarray) and (o.numpy() == arrays).all()
    reference = lacc.compile(EXAMPLES_DIR / "gla.la", target="reference")
    wanted, _ = reference(*(x.numpy() for x in given))
    np.testing.assert_allclose(o.numpy(), wanted, rtol=1e-12, atol=1e-12)
    assert kernel().target == "auto" and "gla" in repr(kernel()) and kernel().plan.why


def test_devices_are_told_apart() -> None:
    q, k, v, g = drawn()
    with pytest.raises(TypeError, match=r"k: expected a tensor on cpu, as q; got meta"):
        kernel()(q, k.to("meta"), v, g)
    with pytest.raises(TypeError, match=r"q: expected arrays, or tensors on cpu or cuda; got meta"):
        kernel()(*(x.to("meta") for x in (q, k, v, g)))


@pytest.mark.parametrize("target", ["auto", "c"])
def test_what_is_no_array_is_named(target: str) -> None:
    torch = pytest.importorskip("torch")
    kernel, q = lacc.compile(ROOT / "examples/linear.la", target=target), torch.zeros(1, 4, 2, 3)
    for wrong in (q.tolist(), "q"):
        with pytest.raises(TypeError, match=r"k: expected .*, got <class"):
            kernel(q, wrong, q)


def test_numpy_refuses_tensors() -> None:
    with pytest.raises(TypeError, match=r"q: expected a NumPy array, got <class 'torch.Tensor'>"):
        lacc.compile(EXAMPLES_DIR / "gla.la", target="numpy")(*drawn())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    assert "GPU" in kernel().chosen["CUDA tensors"] or "TRITON" in kernel().chosen["CUDA tensors"]


# ---- in PyTorch


@compiled_c
def test_a_compiled_function_may_be_the_first_call() -> None:
    torch._dynamo.reset()
    fresh = lacc.compile(EXAMPLES_DIR / "gla.la", target="auto")
    given = drawn(grad=True)

    def both(*given: Any) -> Any:
        o, state = fresh(*given)
        one, _ = fresh.step(*(x[:, 0] for x in given), state)
        return o.sum() + one.square().sum()

    whole = torch.compile(both, fullgraph=True, backend="aot_eager")
    whole(*given).backward()
    found = [x.grad.clone() for x in given]
    for x, wanted in zip(found, torch.autograd.grad(both(*given), given)):
        torch.testing.assert_close(x, wanted)


@compiled_c
def test_lengths_stay_open_in_a_compiled_function() -> None:
    torch._dynamo.reset()
    gla, graphs = kernel(), []

    def backend(module: Any, _: Any) -> Any:
        graphs.append(module)
        return module

    def call(*given: Any) -> Any:
        return gla(*given)[0] * 2

    whole = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
    for steps in (11, 17, 40):
        torch.testing.assert_close(whole(*drawn(steps)), one_output(*drawn(steps)) * 2)
    assert len(graphs) == 1


@compiled_c
@pytest.mark.parametrize("name", ["gla", "fox"])
def test_an_exported_program_takes_any_length(name: str) -> None:
    given = drawn()
    if name == "fox":
        given[3] = given[3][..., 0]

    compiled = kernel(name)

    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, g: Any) -> Any:
            o, state = compiled(q, k, v, g)
            return o, *state

    def longer(steps: int) -> list[Any]:
        found = drawn(steps)
        return [*found[:3], found[3][..., 0] if name == "fox" else found[3]]

    length = torch.export.Dim("T", min=2, max=4096)
    program = torch.export.export(Model(), tuple(given), dynamic_shapes=[{1: length}] * 4)
    for steps in (5, 130):
        for x, wanted in zip(program.module()(*longer(steps)), Model()(*longer(steps))):
            assert torch.equal(x, wanted)


@compiled_c
@pytest.mark.parametrize("how", ["inputs", "in_dims", "state", "valid", "nested", "step", "mamba2"])
def test_vmap_is_a_call_each(how: str) -> None:
    given = [torch.stack([x, 0.5 * x, -x if i < 3 else 2 * x], 0) for i, x in enumerate(drawn())]
    call: Any = lambda *x: kernel()(*x)  # noqa: E731
    dims: Any = 0
    if how == "in_dims":
        given = [given[0].movedim(0, 2), given[1], given[2][0], given[3]]
        dims = (2, 0, None, 0)
    elif how == "state":
        given.append(torch.randn(3, B, H, K, V))
        call = lambda *x: kernel()(*x[:4], initial_state=x[4])  # noqa: E731
    elif how == "valid":
        given.append(torch.rand(3, B, T) < 0.5)
        call = lambda *x: kernel()(*x[:4], valid=x[4])  # noqa: E731
    elif how == "nested":
        given = [x.unflatten(1, (B, 1)) for x in given]
        call = torch.vmap(call)
    elif how == "step":
        given = [x[:, :, 0] for x in given]
        call = lambda *x: kernel().step(*x)  # noqa: E731
    elif how == "mamba2":  # params have the dimension as well
        torch.manual_seed(1)
        given = [torch.randn(3, B, T, H, 4), torch.randn(3, B, T, H)]
        given += [torch.randn(3, B, T, H, 5), torch.randn(3, B, T, H, 5)]
        given += [-torch.rand(3, H), torch.randn(3, H), torch.randn(3, H)]
        call = lambda *x: kernel("mamba2")(*x)  # noqa: E731
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
    o, state = torch.vmap(call, in_dims=dims)(*given)
    rows = dims if isinstance(dims, tuple) else (0,) * len(given)
    each = [
        call(*(x if d is None else x.select(d, i) for x, d in zip(given, rows))) for i in range(3)
    ]
    torch.testing.assert_close(o, torch.stack([x for x, _ in each]))
    torch.testing.assert_close(state[0], torch.stack([s[0] for _, s in each]))
    floats = [x for x in given if x.requires_grad]
    found = torch.autograd.grad(o.sum() + state[0].square().sum(), floats)
    total = sum(x.sum() + s[0].square().sum() for x, s in each)
    torch.testing.assert_close(found, torch.autograd.grad(total, floats))


@compiled_c
def test_gradients_of_many_cotangents_at_once() -> None:
    given = drawn(grad=True)
    o = one_output(*given)
    ct = torch.randn(3, *o.shape)

    def pulled(ct: Any) -> Any:
        return torch.autograd.grad(o, given[1], ct, retain_graph=True)[0]

    for x, each in zip(torch.vmap(pulled)(ct), ct):
        (wanted,) = torch.autograd.grad(o, given[1], each, retain_graph=True)
        torch.testing.assert_close(x, wanted)


@compiled_c
def test_what_has_no_rule_is_refused_by_name() -> None:
    given = drawn(grad=True)
    with pytest.raises(RuntimeError, match="gla: it has no derivatives in forward mode"):
        torch.func.jvp(lambda q: one_output(q, *given[1:]), (given[0],), (given[0],))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given[0], given[0])
        with pytest.raises(RuntimeError, match="gla: it has no derivatives in forward mode"):
            one_output(dual, *given[1:])
        token = [x[:, 0] for x in (dual, *given[1:])]
        with pytest.raises(RuntimeError, match="gla: it has no derivatives in forward mode"):
            kernel().step(*token)
        assert one_output(*given).shape == (B, T, H, V)
    with pytest.raises(RuntimeError, match=r"gla: torch.func.grad and vjp do not reach it"):
        torch.func.grad(lambda q: one_output(q, *given[1:]).sum())(given[0])
    (once,) = torch.autograd.grad(one_output(*given).sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="gla: its gradients have no gradients"):
        once.sum().backward()


@compiled_c
def test_a_checkpoint_gives_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    given = drawn(grad=True)
    wanted = torch.autograd.grad(one_output(*given).square().sum(), given)
    for reentrant in (True, False):
        o = checkpoint(one_output, *given, use_reentrant=reentrant)
        o.square().sum().backward()
        for x, y in zip(given, wanted):
            torch.testing.assert_close(x.grad, y)
            x.grad = None


@compiled_c
def test_autocast_leaves_each_argument_its_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v, g = drawn(grad=True)
        o, state = kernel()(torch.nn.functional.linear(q, torch.eye(K)), k, v, g)
        assert (o.dtype, state.S.dtype) == (torch.bfloat16, torch.float32)
        o.float().sum().backward()
    assert q.grad.dtype == torch.float32 and g.grad.dtype == torch.float32


@compiled_c
def test_tokens_in_place_go_by_the_kernel_of_their_tensors() -> None:
    """A stepper is that of C, and outputs are written where they are wanted."""
    x = dict(zip("qkvg", drawn()))
    o, state = kernel()(**x)
    place = torch.full((B, T, H + 1, V), torch.nan)
    end = kernel().fill({"o": place[:, :, 1:]}, x)
    assert torch.equal(place[:, :, 1:], o) and torch.equal(end.S, state.S)
    assert place[:, :, 0].isnan().all()
    stepper = kernel().stepper(**{n: y[:, 0] for n, y in x.items()})
    assert type(stepper).__name__ == "BoundTensors"
    for t in range(T):
        last = stepper(*(y[:, t] for y in x.values()))
    assert (last - o[:, -1]).abs().max() < 1e-5
