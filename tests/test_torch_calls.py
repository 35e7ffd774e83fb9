"""Emitted torch modules called with NumPy arrays: what goes in as arrays comes out as arrays."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lacc.runtime.torch_calls import functions

torch = pytest.importorskip("torch")

SOURCE = """
from collections import namedtuple
import torch
State = namedtuple("State", ["S", "position"])
def variant(q, *, initial_state=None, state_dtype=None, cu_seqlens=None, mode="auto"):
    assert mode == "chunk" and cu_seqlens is None
    held = torch.zeros(2) if initial_state is None else initial_state["S"]
    return q * 2, State((held + 1).to(state_dtype), torch.tensor([q.shape[1]]))
def variant_step(q, *, state=None, out=None):
    out.S.copy_(state.S + 1)
    return q, out
def variant_vjp(q, *, cotangent=None):
    return {"q": cotangent * 2, "initial_state": State(q, q)}
"""
State = namedtuple("State", ["S", "position"])


@pytest.fixture
def called() -> tuple[Any, ...]:
    return functions(["variant", "variant_step", "variant_vjp"], SOURCE)


def test_arrays_of_all_dtypes_come_back(called: tuple[Any, ...]) -> None:
    forward, _, vjp = called
    options = {"mode": "chunk", "cu_seqlens": None, "initial_state": {"S": np.ones(2)}}
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        q = np.ones((1, 3), dtype)
        o, state = forward({"q": q}, state_dtype=np.float32, **options)
        assert o.dtype == dtype and (o.astype(float) == 2).all()
        assert type(state).__name__ == "State" and state.S.tolist() == [2, 2]
        assert state.S.dtype == np.float32 and state.position.tolist() == [3]
        gradients = vjp({"q": q}, cotangent=o)
        assert gradients["q"].dtype == dtype and isinstance(
            gradients["initial_state"].S, np.ndarray
        )


def test_views_that_torch_does_not_take_are_copied(called: tuple[Any, ...]) -> None:
    forward = called[0]
    fixed = np.arange(6.0)
    fixed.flags.writeable = False
    for q in (np.arange(6.0)[::-1], fixed):
        o, _ = forward({"q": q[None]}, mode="chunk", state_dtype=torch.float32)
        np.testing.assert_array_equal(o[0], 2 * q)


def test_a_state_is_updated_in_place(called: tuple[Any, ...]) -> None:
    state = State(np.zeros((4, 3)), np.zeros(1, np.int64))
    turned = State(np.zeros((4, 3))[::-1], np.zeros(1, np.int64))
    for out in (state, turned):
        called[1]({"q": np.ones(2)}, state=state, out=out)
    assert (state.S == 1).all() and (turned.S == 2).all()


def test_tensors_stay_tensors(called: tuple[Any, ...]) -> None:
    o, state = called[0]({"q": torch.ones(1, 3)}, mode="chunk", state_dtype=torch.float32)
    assert isinstance(o, torch.Tensor) and isinstance(state.S, torch.Tensor)
