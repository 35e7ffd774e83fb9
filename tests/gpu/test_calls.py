"""Calls of kernels on a GPU in every form that training and decoding need, one example of each
class: long sequences, shapes in turn, packed ones, graphs, compilers, pools of states."""

from __future__ import annotations

from typing import Any

import pytest
from on_device import (
    CLASSES,
    DEVICE,
    INTERPRETED,
    TOKENS,
    OnDevice,
    apart,
    flat,
    inputs,
    marks,
    on_cuda,
    part,
    same_bits,
    shared,
    spec_of,
    token_inputs,
)

from lacc.backends.torch_api import public_name
from lacc.runtime.kernel import load

torch = pytest.importorskip("torch")

pytestmark = marks

NAMES = shared(CLASSES)
LONG = 150 if INTERPRETED else 131_072
EXACT, ROUNDED = 1e-5, 2.0**-7
"""Limits of rms errors in float32 and bfloat16."""


def kernel_of(name: str) -> Any:
    """The kernel of an example, for tensors."""
    return OnDevice(name, "float32").kernel


def emitted(name: str) -> tuple[Any, Any]:
    """The functions of whole sequences and of a step, as they stand in the file."""
    kernel = kernel_of(name)
    public = public_name(kernel.signature)
    module = load(public, kernel.source)
    return module[public], module[f"{public}_step"]


def pulled(outputs: Any) -> Any:
    """Cotangents of outputs."""
    generator = torch.Generator(DEVICE).manual_seed(5)
    many = [
        torch.randn(y.shape, generator=generator, device=DEVICE).to(y.dtype) for y in flat(outputs)
    ]
    return many[0] if isinstance(outputs, torch.Tensor) else type(outputs)(*many)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_in_turn(name: str) -> None:
    """What a shape gives does not depend on those before it."""
    kernel = kernel_of(name)
    shapes = [(TOKENS, 2, 2), (5, 3, 1), (TOKENS // 2, 1, 4), (1, 1, 1)]
    cases = [
        inputs(name, T, B, H, dtype) for T, B, H in shapes for dtype in ("float32", "bfloat16")
    ]
    first = [kernel(**x) for x in cases]
    again = [kernel(**x) for x in reversed(cases)][::-1]
    assert all(same_bits(a, b) for a, b in zip(first, again))
    fresh = kernel_of(name)
    assert same_bits(fresh(**cases[2]), first[2])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_two_runs_are_equal_bit_by_bit(name: str, dtype: str) -> None:
    kernel, x = kernel_of(name), inputs(name, TOKENS, 2, dtype=dtype)
    first, second = kernel(**x), kernel(**x)
    assert same_bits(first, second)
    cotangent = pulled(first[0])
    assert same_bits(kernel.vjp(**x, cotangent=cotangent), kernel.vjp(**x, cotangent=cotangent))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_what_comes_later_does_not_change_a_bit(name: str, dtype: str) -> None:
    kernel = kernel_of(name)
    if "step" in kernel.missing:
        pytest.skip(f"{name} reads later tokens")
    x, other = (inputs(name, TOKENS, dtype=dtype, seed=seed) for seed in (0, 1))
    before = flat(kernel(**x)[0])
    for p in (1, 16, TOKENS // 2 + 1, TOKENS - 1):
        changed = {
            n: torch.cat([y[:, :p], other[n][:, p:]], 1) if n in token_inputs(name) else y
            for n, y in x.items()
        }
        after = flat(kernel(**changed)[0])
        assert same_bits(tuple(y[:, :p] for y in after), tuple(y[:, :p] for y in before)), p


@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_are_sequences(name: str) -> None:
    kernel, x = kernel_of(name), inputs(name, TOKENS, dtype="float32")
    ends = [0, 0, 5, 5, TOKENS // 2 + 3, TOKENS]
    packed = torch.tensor(ends, device=DEVICE)
    outputs, state = kernel(**x, cu_seqlens=packed)
    gradients = kernel.vjp(**x, cu_seqlens=packed, cotangent=pulled(outputs))
    for n in (1, 3, 4):
        tokens = slice(ends[n], ends[n + 1])
        one, final = kernel(**part(name, x, tokens))
        assert apart(one, _cut(outputs, tokens)) <= EXACT
        rows = [(y[n : n + 1], z) for y, z in zip(state, final) if y.shape[1:] == z.shape[1:]]
        assert apart(tuple(z for _, z in rows), tuple(y for y, _ in rows)) <= EXACT
        some = kernel.vjp(**part(name, x, tokens), cotangent=_cut(pulled(outputs), tokens))
        for argument in token_inputs(name) & some.keys():
            assert apart(some[argument], gradients[argument][:, tokens]) <= 10 * EXACT, argument


def _cut(outputs: Any, tokens: slice) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs[:, tokens]
    return type(outputs)(*(y[:, tokens] for y in outputs))


@pytest.mark.parametrize("name", NAMES)
def test_long_sequences(name: str) -> None:
    """Finite, in a few times the memory of inputs and outputs, and the same in four pieces."""
    kernel, x = kernel_of(name), inputs(name, LONG)
    plain = sum(y.nbytes for y in x.values())
    base = 0
    if not INTERPRETED:
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
    outputs, state = kernel(**x)
    assert all(torch.isfinite(y).all() for y in flat(outputs))
    plain += sum(y.nbytes for y in flat(outputs))
    if not INTERPRETED:
        assert torch.cuda.max_memory_allocated() - base <= 8 * plain
    if "step" in kernel.missing:
        return
    pieces, carried = [], None
    for n in range(4):
        tokens = slice(n * LONG // 4, (n + 1) * LONG // 4)
        some, carried = kernel(**part(name, x, tokens), initial_state=carried)
        pieces.append(flat(some))
    joined = tuple(torch.cat(parts, 1) for parts in zip(*pieces))
    # each of the two is within ROUNDED of the truth
    assert apart(joined, tuple(flat(outputs))) <= 2 * ROUNDED
    assert apart(carried, state) <= 2 * ROUNDED


@pytest.mark.parametrize("name", [n for n in NAMES if n != "fox"])
def test_gradients_of_long_sequences(name: str) -> None:
    kernel, x = kernel_of(name), inputs(name, LONG)
    cotangent = pulled(kernel(**x)[0])
    plain = 2 * sum(y.nbytes for y in x.values()) + 2 * sum(y.nbytes for y in flat(cotangent))
    base = 0
    if not INTERPRETED:
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
    gradients = kernel.vjp(**x, cotangent=cotangent)
    assert all(torch.isfinite(y).all() for y in flat(gradients))
    if not INTERPRETED:
        assert torch.cuda.max_memory_allocated() - base <= 16 * plain


@on_cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_a_forward(name: str) -> None:
    call, _ = emitted(name)
    x, other = inputs(name, TOKENS), inputs(name, TOKENS, seed=1)
    with torch.no_grad():
        want = call(**other)
        call(**x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = call(**x)
        for n, y in other.items():
            x[n].copy_(y)
        graph.replay()
    torch.cuda.synchronize()
    assert same_bits(got, want)


@on_cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_a_step(name: str) -> None:
    """Captured once, it decodes four tokens in place as four calls do."""
    call, step = emitted(name)
    kernel = kernel_of(name)
    if "step" in kernel.missing or len(kernel.signature.states) > len(kernel.spec.states):
        pytest.skip(f"{name} has no step in place")
    x = inputs(name, 8, batch=3)
    token = {n: y[:, 0].clone() if n in token_inputs(name) else y for n, y in x.items()}
    with torch.no_grad():
        begun = call(**x)[1]
        states = [type(begun)(*(y.clone() for y in begun)) for _ in range(2)]
        for _ in range(2):
            step(**token, state=states[0], out=states[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got, _ = step(**token, state=states[0], out=states[0])
        for y, z in zip(states[0], begun):
            y.copy_(z)
        for t in range(4):
            new = {n: x[n][:, t] for n in token_inputs(name) & x.keys()}
            want, _ = step(**(token | new), state=states[1], out=states[1])
            for n, y in new.items():
                token[n].copy_(y)
            graph.replay()
            assert same_bits(got, want) and same_bits(states[0], states[1]), t


@pytest.mark.parametrize("name", [n for n in NAMES if n in ("gla", "gated_deltanet", "mlstm")])
def test_compiled_as_one_graph(name: str) -> None:
    call, _ = emitted(name)
    x = inputs(name, TOKENS, dtype="float32")

    def loss(**x: Any) -> Any:
        outputs, state = call(**x)
        return sum(y.square().mean() for y in (*flat(outputs), *state))

    def run(function: Any) -> tuple[Any, ...]:
        leaves = {n: y.clone().requires_grad_() for n, y in x.items()}
        total = function(**leaves)
        return (total.detach(), *torch.autograd.grad(total, [*leaves.values()]))

    assert apart(run(torch.compile(loss, fullgraph=True)), run(loss)) <= EXACT


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_some_rows_of_a_pool(name: str) -> None:
    """The others do not change by a bit."""
    kernel = kernel_of(name)
    if "step" in kernel.missing or len(kernel.signature.states) > len(spec_of(name).states):
        pytest.skip(f"{name} has no step in place")
    x = inputs(name, 8, batch=7)
    pool = kernel(**x)[1]
    before = type(pool)(*(y.clone() for y in pool))
    rows = torch.tensor([5, 0, 3], device=DEVICE)
    y = {n: z[:3, 0] if n in token_inputs(name) else z for n, z in inputs(name, 8, batch=3).items()}
    want, own = kernel.step(**y, state=type(pool)(*(z[rows].clone() for z in before)))
    for _ in range(2):  # the second call goes the short way
        for z, old in zip(pool, before):
            z.copy_(old)
        got, _ = kernel.step(**y, state=pool, out=pool, state_indices=rows)
        assert same_bits(got, want)
        assert same_bits(type(pool)(*(z[rows] for z in pool)), own)
        others = [1, 2, 4, 6]
        assert all(torch.equal(z[others], old[others]) for z, old in zip(pool, before))


def test_errors_come_before_a_launch() -> None:
    kernel, x = kernel_of("gla"), inputs("gla", 8)
    bad = x | {"g": x["g"][:, :, :, :-1]}
    with pytest.raises(ValueError, match="g: "):
        kernel(**bad)
    with pytest.raises((TypeError, ValueError), match="cu_seqlens"):
        kernel(**x, cu_seqlens=torch.tensor([0.0, 8.0], device=DEVICE))
