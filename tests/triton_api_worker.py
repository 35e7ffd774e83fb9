"""Run as a script, in a process of its own: emitted Triton files, interpreted and called as their
users may call them; what differs most from NumPy, or what is said, as JSON.

    TRITON_INTERPRET=1 python triton_api_worker.py

    {"names": {names of a spec: error}, "strides": {how tensors lie: error},
     "pools": {dtype of a pool: error}, "refused": {bad call: what is said}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch_worker
import triton_module
from torch_worker import Both, apart, said, tensors

import lacc

SPEC = """variant {0}
dim {1} = 4, {2} = 3
input {3}, {4} : [{1}]
input {5} : [{2}]
input {6} : [{1}]  where {6} <= 0
param {7} : [{1}]
state {8} : [{1}, {2}]
output {9} : [{2}]
{8}[t] = diag(exp({6})) @ {8}[t-1] + {4} @ {5}.T
{9} = {8}[t].T @ ({7} * {3})
"""
NAMES = """
    n N run x y dy launch config block kept
    tl torch triton row scan count chunks live place token
    prod C D flat first tokens index batch dx zip
    Host cu table position FLOAT PRECISION CHUNK BT begun ended
    forward_0a dended dbegun last given dfixed dlast scratch into later
    fused_0 seen number dims dtype print dict range maximum_ tl_
    block B D self run Program Pass call promised initial
    meet state_rows INTO firsts t_ room lambda_ at_K in_K BK
    λ K V α β γ field cache main np
"""


def named() -> Iterator[tuple[str, float]]:
    """Specs whose names are those that emitted files use too."""
    for line in NAMES.strip().splitlines():
        text = SPEC.format(*line.split())
        both = Both(text)
        x = both.arguments(1, 5)
        ct = np.ones_like(both.numpy(**x)[0])
        inputs = {a.name for a in both.signature.arguments if a.role == "input"}
        token = {n: y[:, 0] if n in inputs else y for n, y in x.items()}
        pairs = [
            (both.call(**tensors(x), debug=True), both.numpy(**x)),
            (
                both.vjp(**tensors(x), cotangent=tensors(ct)),
                both.numpy.vjp(**x, cotangent=ct),
            ),
            (both.step(**tensors(token)), both.numpy.step(**token)),
        ]
        yield line.strip(), max(apart(got, want) for got, want in pairs)


def strided() -> Iterator[tuple[str, float]]:
    """Tensors that lie in memory in every way that torch has."""
    both = Both("gla")
    x = both.arguments(2, 9)
    state = both.numpy(**x)[1].S
    same = {n: np.repeat(y[:, :1], 9, 1) for n, y in x.items()}

    def spaced(y: torch.Tensor) -> torch.Tensor:
        wide = torch.full((*y.shape[:-1], 2 * y.shape[-1] + 1), float("nan"), dtype=y.dtype)
        wide[..., 1::2] = y
        return wide[..., 1::2]

    def turned(y: torch.Tensor) -> torch.Tensor:
        return y.permute(*reversed(range(y.ndim))).contiguous().permute(*reversed(range(y.ndim)))

    def repeated(y: torch.Tensor) -> torch.Tensor:
        return y[:, :1].expand(y.shape) if y.shape[1] == 9 else y

    for name, lay, given in (
        ("spaced", spaced, x),
        ("turned", turned, x),
        ("repeated", repeated, same),
    ):
        laid = {n: lay(y) for n, y in tensors(given).items()}
        begun, ct = lay(tensors(state)), lay(laid["v"])
        options = {"initial_state": state, "cotangent": given["v"]}
        for mode in ("chunk", "recurrent"):
            got = both.vjp(**laid, mode=mode, cotangent=ct, initial_state=begun)
            yield f"vjp {name} {mode}", apart(got, both.numpy.vjp(**given, **options))
            want = both.numpy(**given, initial_state=state)
            yield f"{name} {mode}", apart(both.call(**laid, mode=mode, initial_state=begun), want)
        one = {n: y[:, 0] for n, y in given.items()}
        want = both.numpy.step(**one, state=state)
        step = {n: y[:, 0] for n, y in laid.items()}
        yield f"step {name}", apart(both.step(**step, state=begun), want)


def pooled() -> Iterator[tuple[str, float]]:
    """One token in place, in rows of pools of each dtype."""
    both = Both("gated_deltanet_raw")
    x = {n: y.astype(np.float32) for n, y in both.arguments(2, 3).items()}
    inputs = {a.name for a in both.signature.arguments if a.role == "input"}
    rows = torch.tensor([4, 1])
    drawn = np.random.default_rng(0).standard_normal(both.numpy(**x)[1][0].shape)
    for dtype, within in ((torch.float32, 1e-6), (torch.bfloat16, 2**-8)):
        pool = torch.full((6, *drawn.shape[1:]), 7.0, dtype=dtype)
        pool[rows] = torch.from_numpy(drawn).to(dtype)
        worst = 0.0
        for t in range(3):
            one = {n: y[:, t] if n in inputs else y for n, y in x.items()}
            before = pool[rows].float().numpy()
            want, state = both.numpy.step(**one, state=before)
            got, back = both.step(**tensors(one), state=pool, out=pool, state_indices=rows)
            assert back is pool
            worst = max(
                worst, apart(got, want) / 1e-5, apart(pool[rows].float(), state[0]) / within
            )
        assert (pool[[0, 2, 3, 5]] == 7).all()
        yield str(dtype), worst


def refused() -> Iterator[tuple[str, str]]:
    """Calls that no kernel takes."""
    both = Both("gla")
    x = tensors(both.arguments(2, 9))
    one = {n: y[:1] for n, y in x.items()}
    yield "device", said(partial(both.call, **{**x, "k": x["k"].to("meta")}))
    yield (
        "state device",
        said(partial(both.call, **x, initial_state=torch.empty(2, 2, 6, 5, device="meta"))),
    )
    yield "dtype", said(partial(both.call, **{**x, "q": x["q"].to(torch.int32)}))
    yield "layout", said(partial(both.call, **{**x, "q": x["q"].to_sparse()}))
    token = {n: y[:, 0] for n, y in x.items()}
    yield "rows", said(partial(both.step, **token, state_indices=[1, 0]))
    late = torch.tensor([0, 4, 12])
    yield "cu past T", said(partial(both.call, **one, cu_seqlens=late))
    yield "chunk", said(partial(both.call, **x, chunk=2.5))
    yield "long chunk", said(partial(both.call, **x, chunk=2000))
    wide = {n: torch.zeros(1, 2, 1, 5 if n == "v" else 1 << 18) for n in "qkvg"}
    module = triton_module.loaded(lacc.load(torch_worker.EXAMPLES / "gla.la"), both.signature)
    for mode in ("chunk", "recurrent"):
        yield f"K {mode}", said(partial(module["gla"], **wide, mode=mode))
    token = {n: y[:, 0] for n, y in wide.items()}
    yield "K step", said(partial(module["gla_step"], **token))
    fox = triton_module.loaded(lacc.load(torch_worker.EXAMPLES / "fox.la"), both.signature)
    q = torch.zeros(1, 2, 1, 2000)
    yield "K attend", said(partial(fox["fox"], q, q, q[..., :4], q[..., 0]))


def main() -> None:
    torch_worker.loaded = triton_module.loaded
    triton_module.poison()
    ways = {"names": named, "strides": strided, "pools": pooled, "refused": refused}
    print(json.dumps({name: dict(way()) for name, way in ways.items()}))


if __name__ == "__main__":
    main()
