"""A spec goes in; what one would use instead of it comes out: causal softmax attention of queries,
keys and values of the same sizes, as torch computes it.

Shapes: q, k [B, H, T, K], v [B, H, T, V]; a decode reads a cache of T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lacc.bench.case import Array, Arrays, Case, Data, Unfit
from lacc.bench.contestants import Bound, Contestant
from lacc.bench.tensors import array, bound, tensor, torch_for
from lacc.verify.inputs import as_dtype


def softmax() -> Contestant:
    """torch.nn.functional.scaled_dot_product_attention."""
    return Contestant("sdpa", _bind, truth=_truth)


def widths(case: Case) -> tuple[int, int]:
    """K and V of the spec's largest matrix state; V is the axis that its output has. Raises Unfit
    where there is no matrix."""
    dims = case.dims
    states = [state.shape for state in case.spec.states if len(state.shape) == 2]
    if not states:
        raise Unfit("no state is a matrix of keys by values, so no attention is of the same sizes")
    rows, columns = max(states, key=lambda s: s[0].evaluate(dims) * s[1].evaluate(dims))
    outputs = [size for o in case.spec.outputs for size in o.shape]
    K, V = (columns, rows) if rows in outputs and columns not in outputs else (rows, columns)
    return K.evaluate(dims), V.evaluate(dims)


def _drawn(case: Case) -> dict[str, Array]:
    """q, k, v and, for training, the cotangent of o."""
    K, V = widths(case)
    rng = np.random.default_rng(0)
    lead = (case.B, case.H, case.T)
    found = {name: rng.standard_normal((*lead, D)) for name, D in (("k", K), ("v", V), ("do", V))}
    found["q"] = rng.standard_normal((*lead[:2], 1 if case.by_token else case.T, K))
    return {name: x.astype(as_dtype(case.dtype)) for name, x in found.items()}


def _bind(case: Case, given: Data) -> Bound:
    torch = torch_for(case)
    attend = torch.nn.functional.scaled_dot_product_attention
    x = {name: tensor(torch, y) for name, y in _drawn(case).items()}
    cotangent = x.pop("do")
    if not case.by_token:
        return bound(
            torch,
            case,
            lambda q, k, v: {"o": attend(q, k, v, is_causal=True)},
            x,
            {"o": cotangent},
        )
    last_k, last_v = x["k"][:, :, -1:].clone(), x["v"][:, :, -1:].clone()

    def step(q: Any, k: Any, v: Any) -> dict[str, Any]:
        k[:, :, -1:], v[:, :, -1:] = last_k, last_v  # the new token's, into the cache
        return {"o": attend(q, k, v)}

    return bound(torch, case, step, x, None)


def _truth(case: Case, given: Data) -> Arrays:
    """The formula in float64, and its gradients by autograd."""
    torch = torch_for(case)
    x = {name: tensor(torch, y).double() for name, y in _drawn(case).items()}
    q, k, v = (x[name].requires_grad_() for name in "qkv")
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if not case.by_token:
        sees = torch.ones(case.T, case.T, dtype=torch.bool).tril()
        logits = logits.masked_fill(~sees, float("-inf"))
    o = logits.softmax(-1) @ v
    if case.mode != "train":
        return {"o": array(o)}
    found = torch.autograd.grad(o, (q, k, v), x["do"])
    return {f"d {name}": array(y) for name, y in zip("qkv", found)}
