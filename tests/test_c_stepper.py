"""Tokens one after the other through a stepper: what `step` gives, bit by bit; arrays that are not
like those of the first are refused by name."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import ROOT

import lacc
from lacc.runtime.compiled import missing

B, H, K, TOKENS = 2, 3, 4, 5
SPECS = ("gla", "gated_deltanet", "mamba2", "rwkv7", "mlstm", "softmax_attention", "token_shift")

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def gla() -> Any:
    return lacc.compile(ROOT / "examples" / "gla.la", target="c")


def drawn(seed: int = 0, dtype: Any = np.float32, tokens: int = TOKENS) -> list[Any]:
    """q, k, v, g of GLA, tokens first."""
    rng = np.random.default_rng(seed)
    q, k, v, g = rng.standard_normal((4, tokens, B, H, K))
    return [x.astype(dtype) for x in (q, k, v, -np.abs(g))]


def copied(state: Any) -> Any:
    return type(state)(*(np.array(x) for x in state))


@pytest.mark.parametrize("target", ["c", "numpy"])
@pytest.mark.parametrize("name", SPECS)
def test_a_stepper_gives_what_steps_give(name: str, target: str) -> None:
    """From the beginning of sequences, and from a state; on every target the same way."""
    from lacc.verify.inputs import Sizes, draw

    kernel = lacc.compile(ROOT / "examples" / f"{name}.la", target=target)
    x = draw(kernel.spec, Sizes(B, TOKENS, H, H), seed=1, dtype=np.dtype(np.float32))
    inputs = [a.name for a in kernel.signature.arguments if a.role == "input" and a.name in x]
    fixed = {n: y for n, y in x.items() if n not in inputs}
    tokens = [{n: np.ascontiguousarray(x[n][:, t]) for n in inputs} for t in range(TOKENS)]
    stepper, state = kernel.stepper(**tokens[0], **fixed), None
    for token in tokens:
        o, state = kernel.step(**token, **fixed, state=state)
        found = stepper(*token.values())
        for one, other in zip(np.atleast_1d(found), np.atleast_1d(o)):
            assert (one == other).all()
        assert all((one == other).all() for one, other in zip(stepper.state, state))
    stepper = kernel.stepper(**tokens[0], **fixed, state=copied(state))
    o, state = kernel.step(**tokens[0], **fixed, state=state)
    assert (np.asarray(stepper(*tokens[0].values())) == np.asarray(o)).all()


@pytest.mark.parametrize("target", ["c", "numpy"])
def test_inputs_come_in_declared_order(target: str) -> None:
    """However those of the first token came; by calls of `step` too, where heads share inputs."""
    from lacc.verify.inputs import Sizes, draw

    kernel = lacc.compile(ROOT / "examples" / "mamba2.la", target=target)
    x = draw(kernel.spec, Sizes(B, TOKENS, 4, 2), seed=1, dtype=np.dtype(np.float32))
    names = [a.name for a in kernel.signature.arguments if a.role == "input" and a.name in x]
    fixed = {n: y for n, y in x.items() if n not in names}
    tokens = [{n: np.ascontiguousarray(x[n][:, t]) for n in names} for t in range(TOKENS)]
    first, state = [*fixed.items(), *tokens[0].items()], None
    stepper = kernel.stepper(**dict(reversed(first)))
    assert type(stepper).__name__ == "Stepper" and [*stepper.names] == names
    for token in tokens:
        wanted, state = kernel.step(**token, **fixed, state=state)
        assert np.array_equal(stepper(*token.values()), wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_outputs_are_fresh_and_the_state_is_the_callers(gla: Any, dtype: Any) -> None:
    x = drawn(dtype=dtype)
    _, state = gla.step(*(y[0] for y in x))
    mine = copied(state)
    stepper = gla.stepper(*(y[0] for y in x), mine)
    assert stepper.state[0] is mine[0] and (mine[0] == state[0]).all()
    every = [stepper(*token) for token in zip(*x)]
    for found, token in zip(every, zip(*x)):
        o, state = gla.step(*token, state)
        assert found.dtype == o.dtype and (found == o).all()
    assert (mine[0] == state[0]).all() and type(stepper).__name__ == "Bound"


def test_arrays_may_lie_elsewhere_and_change_in_place(gla: Any) -> None:
    q, k, v, g = drawn()
    rows = np.ascontiguousarray(np.stack([q, k], 3))  # [t, B, H, 2, K]
    one, other = rows[..., 0, :], rows[..., 1, :]
    stepper, state = gla.stepper(one[0], other[0], v[0], g[0]), None
    for t in range(TOKENS):
        wanted, state = gla.step(q[t], k[t], v[t], g[t], state)
        assert (stepper(one[t], other[t], v[t].copy(), g[t]) == wanted).all()
    buffers = [y[0].copy() for y in (q, k, v, g)]
    stepper, state = gla.stepper(*buffers), None
    for token in zip(q, k, v, g):
        for buffer, y in zip(buffers, token):
            buffer[...] = y
        wanted, state = gla.step(*token, state)
        assert (stepper(*buffers) == wanted).all()
    assert (stepper.state[0] == state[0]).all()
    alone = [y[:, :1] for y in (q, k, v, g)]  # one row: its stride means nothing
    stepper = gla.stepper(*(y[0] for y in alone))
    every = (*(y[1] for y in alone[:3]), np.swapaxes(alone[3], 0, 1)[:, 1])
    assert (stepper(*every) == gla.step(*every)[0]).all()


def test_what_is_refused(gla: Any) -> None:
    q, k, v, g = (y[0] for y in drawn())
    stepper = gla.stepper(q, k, v, g)
    stepper(q, k, v, g)
    before = stepper.state[0].copy()
    moved = np.frombuffer(b"\0" + q.tobytes(), np.uint8)[1:].view(q.dtype).reshape(q.shape)
    part = stepper.state[0].reshape(-1)[: q.size].reshape(q.shape)
    wrong = (
        ((q, k, v), "gla: a token is q, k, v, g; got 3 arguments"),
        ((q, k.astype(np.float64), v, g), "k: expected, as for the first token, numpy.ndarray of"),
        ((q, k, v[:1], g), "v: expected, as for the first token"),
        ((q, k, v, g[..., ::-1]), "got one of float32, shape [2, 3, 4], strides [48, 16, -4]"),
        ((q.tolist(), k, v, g), "q: expected"),
        ((None, k, v, g), "got NoneType"),
        ((moved, k, v, g), "q: expected numbers that are aligned in memory"),
        ((part, k, v, g), "q: expected memory that is none of the state's"),
    )
    for token, words in wrong:
        with pytest.raises((ValueError, TypeError), match=re.escape(words)):
            stepper(*token)
        assert (stepper.state[0] == before).all()
    for given, words in (
        ((q, k, v, g[:1]), "g: expected"),
        ((q, k, v, g, before[:1]), "state.S: expected"),
        ((q, k, v, g, {"S": None}), "state: expected S"),
        ((q, k, v), "g"),
    ):
        with pytest.raises((ValueError, TypeError), match=re.escape(words)):
            gla.stepper(*given)
    before.flags.writeable = False
    with pytest.raises(ValueError, match=r"out\.S: expected a writable array"):
        gla.stepper(q, k, v, g, before)
    with pytest.raises(TypeError, match="no argument is called 'chunk'"):
        gla.stepper(q, k, v, g, chunk=4)


def test_tensors(gla: Any) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = [torch.from_numpy(y).to(dtype) for y in drawn()]
        stepper, state = gla.stepper(*(y[0] for y in x)), None
        assert type(stepper).__name__ == "BoundTensors"
        mine = stepper.state[0]
        version = mine._version
        for token in zip(*x):
            o, state = gla.step(*token, state)
            assert torch.equal(stepper(*token), o)
        assert torch.equal(mine, state[0]) and mine._version > version
    token = [y[0] for y in x]
    before = mine.clone()
    wrong = (
        ((token[0].float(), *token[1:]), "q: expected, as for the first token, torch.Tensor of"),
        ((token[0].numpy(force=True) if dtype != torch.bfloat16 else 1, *token[1:]), "q: expected"),
        ((*token[:3], token[3].to_sparse()), "got torch.sparse_coo on cpu"),
        ((*token[:3], token[3].to("meta")), "got torch.strided on meta"),
        ((*token[:3], torch._neg_view(token[3])), "negated"),
        ((*token[:2], token[2].transpose(1, 2), token[3]), "v: expected"),
    )
    for given, words in wrong:
        with pytest.raises(ValueError, match=re.escape(words)):
            stepper(*given)
    learnt = [y.clone().requires_grad_() for y in token]
    with pytest.raises(RuntimeError, match="has no gradients"):
        stepper(*learnt)
    with torch.no_grad():
        stepper(*learnt)
    with pytest.raises(RuntimeError, match="no mode or transform"):
        torch.func.vmap(lambda q: stepper(q, *token[1:]))(token[0].unsqueeze(0))
    assert not torch.equal(mine, before)


def test_a_tensor_that_is_another_one_now(gla: Any) -> None:
    """A tensor given again is looked at again: its memory may be another's."""
    torch = pytest.importorskip("torch")
    token = [torch.from_numpy(y[0]) for y in drawn()]
    stepper = gla.stepper(*token)
    stepper(*token)
    token[0].set_(torch.ones(B, H, K))
    state = stepper.state[0].clone()
    assert torch.equal(stepper(*token), gla.step(*token, state)[0])
    token[0].resize_(1)
    with pytest.raises(ValueError, match=r"shape \[1\]"):
        stepper(*token)


def test_a_tensor_that_is_turned_in_place(gla: Any) -> None:
    """Of one memory and shape, with other strides or another dtype."""
    torch = pytest.importorskip("torch")
    for turn in (
        lambda x: x.transpose_(1, 2),
        lambda x: setattr(x, "data", x.data.view(torch.int32)),
    ):
        token = [torch.rand(2, 4, 4) for _ in range(3)] + [-torch.rand(2, 4, 4)]
        with torch.no_grad():
            stepper = gla.stepper(*token)
            stepper(*token)
            turn(token[0])
            with pytest.raises(ValueError, match="q: expected, as for the first token"):
                stepper(*token)


@pytest.mark.parametrize("target", ["c", "numpy"])
def test_a_state_cannot_be_replaced(target: str) -> None:
    """C would go on with the memory of the first, and say nothing."""
    token = [y[0] for y in drawn()]
    kernel = lacc.compile(ROOT / "examples" / "gla.la", target=target)
    stepper = kernel.stepper(*token)
    other = kernel.step(*token)[1]
    with pytest.raises(AttributeError, match="state"):
        stepper.state = other
    stepper.state[0][...] = other[0]
    assert np.array_equal(stepper(*token), kernel.step(*token, other)[0])


def test_a_spec_without_steps() -> None:
    kernel = lacc.compile(ROOT / "examples" / "bidirectional.la", target="c")
    with pytest.raises(lacc.LaccError) as refused:
        kernel.stepper()
    assert refused.value.code == "LA0602"
