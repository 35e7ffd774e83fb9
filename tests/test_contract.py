"""The contract runtime over a hand-made core in, every line of the API contract out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lacc.runtime.calls import forward, step, vjp
from lacc.runtime.contract import Core, Run, Signature, Value
from lacc.runtime.kernel import bind

# S[t] = g S[t-1] + k v.T + bias k[t-1] 1.T ;  o = S.T q + table[t]
SIGNATURE = Signature(
    name="toy",
    dims={"K": 8, "V": 8},
    pinned=(),
    arguments=(
        Value("q", "input", ("K",)),
        Value("k", "input", ("K",), level="group"),
        Value("v", "input", ("V",), level="layer"),
        Value("g", "input", optional=True),
        Value("bias", "param", level="layer"),
        Value("table", "param", ("V",), level="position"),
    ),
    outputs=(Value("o", "output", ("V",)),),
    states=(
        Value("S", "state", ("K", "V")),
        Value("position", "position", level="layer"),
        Value("k_past", "past", (1, "K"), level="group"),
    ),
    modes={"chunk": "", "parallel": "the toy has none", "recurrent": ""},
)


def _forward(
    x: dict[str, Any], state: dict[str, Any], run: Run
) -> tuple[dict[str, Any], dict[str, Any]]:
    f = {n: None if a is None else a.astype(run.dtype) for n, a in x.items()}
    S = (
        np.zeros((run.B, run.H, run.dims["K"], run.dims["V"]), run.dtype)
        if state["S"] is None
        else state["S"]
    )
    past = state["k_past"][:, :, 0]
    o = np.zeros((run.B, run.T, run.H, run.dims["V"]), run.dtype)
    for t in range(run.T):
        k = f["k"][:, t]
        g = 1.0 if f["g"] is None else f["g"][:, t, :, None, None]
        S = g * S + k[..., None] * f["v"][:, t, :, None, :] + (f["bias"][:, None] * past)[..., None]
        o[:, t] = np.einsum("bhkv,bhk->bhv", S, f["q"][:, t]) + f["table"][:, t]
        past = k
    return {"o": o}, {"S": S, "position": state["position"] + run.T, "k_past": past[:, :, None]}


def _step(
    x: dict[str, Any], state: dict[str, Any], run: Run
) -> tuple[dict[str, Any], dict[str, Any]]:
    per_token = ("q", "k", "v", "g", "table")
    x = {n: a[:, None] if n in per_token and a is not None else a for n, a in x.items()}
    outputs, final = _forward(x, state, run)
    return {n: o[:, 0] for n, o in outputs.items()}, final


def _backward(
    x: dict[str, Any], state: dict[str, Any], run: Run, ct: dict[str, Any], ends: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    f = {n: None if a is None else a.astype(run.dtype) for n, a in x.items()}
    grads = {n: np.zeros(a.shape, run.dtype) for n, a in f.items() if a is not None}
    states = [
        np.zeros((run.B, run.H, run.dims["K"], run.dims["V"])) if state["S"] is None else state["S"]
    ]
    for t in range(run.T):
        part = {n: a if n == "bias" or a is None else a[:, t : t + 1] for n, a in x.items()}
        before = {
            "S": states[-1],
            "position": state["position"],
            "k_past": (f["k"][:, t - 1] if t else state["k_past"][:, :, 0])[:, :, None],
        }
        states.append(_forward(part, before, Run(run.B, 1, run.H, run.dims, run.dtype))[1]["S"])
    dS = np.zeros_like(states[0]) if ends["S"] is None else ends["S"].copy()
    dpast = (
        np.zeros((run.B, run.H, run.dims["K"]))
        if ends["k_past"] is None
        else ends["k_past"][:, :, 0]
    )
    for t in reversed(range(run.T)):
        do = np.zeros((run.B, run.H, run.dims["V"])) if ct["o"] is None else ct["o"][:, t]
        dS = dS + f["q"][:, t, :, :, None] * do[:, :, None]
        grads["q"][:, t] = np.einsum("bhkv,bhv->bhk", states[t + 1], do)
        grads["table"][:, t] = do
        grads["k"][:, t] = np.einsum("bhkv,bhv->bhk", dS, f["v"][:, t]) + dpast
        grads["v"][:, t] = np.einsum("bhkv,bhk->bhv", dS, f["k"][:, t])
        past = f["k"][:, t - 1] if t else state["k_past"][:, :, 0]
        grads["bias"] += np.einsum("bhkv,bhk->h", dS, past)
        dpast = f["bias"][:, None] * dS.sum(-1)
        if f["g"] is not None:
            grads["g"][:, t] = (dS * states[t]).sum((-1, -2))
            dS = dS * f["g"][:, t, :, None, None]
    initial = {"k_past": dpast[:, :, None]}
    return grads, initial if state["S"] is None else {**initial, "S": dS}


def _promises(x: dict[str, Any], run: Run) -> list[tuple[str, str, Any]]:
    return [] if x["g"] is None else [("g", "g <= 1", x["g"] <= 1)]


CORE = Core(_forward, _step, _backward, _promises, {})


def _inputs(
    B: int = 2, T: int = 7, H: int = 4, G: int = 2, K: int = 3, V: int = 5
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "q": rng.normal(size=(B, T, H, K)),
        "k": rng.normal(size=(B, T, G, K)),
        "v": rng.normal(size=(B, T, V)),
        "g": rng.uniform(size=(B, T, H)),
        "bias": rng.normal(size=()),
        "table": rng.normal(size=(9, V)),
    }


def test_shapes_and_levels() -> None:
    x = _inputs()
    o, state = forward(SIGNATURE, CORE, x)
    assert o.shape == (2, 7, 4, 5)
    assert state._fields == ("S", "position", "k_past")
    assert state.S.shape == (2, 4, 3, 5)
    assert state.position.tolist() == [7, 7]
    assert np.array_equal(state.k_past[:, :, 0], x["k"][:, -1])


def _grads(x: dict[str, Any], **options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    ct = rng.normal(size=(*x["q"].shape[:3], x["v"].shape[-1]))
    return vjp(SIGNATURE, CORE, x, cotangent=ct, **options)


def test_vjp_is_the_derivative_of_forward() -> None:
    x = _inputs()
    state = {"S": np.random.default_rng(2).normal(size=(2, 4, 3, 5)), "position": np.array([1, 2])}
    state["k_past"] = np.random.default_rng(3).normal(size=(2, 2, 1, 3))
    o, end = forward(SIGNATURE, CORE, x, initial_state=state)
    rng = np.random.default_rng(4)
    do, dS, dk = (rng.normal(size=a.shape) for a in (o, end.S, end.k_past))
    grads = vjp(
        SIGNATURE,
        CORE,
        x,
        cotangent=do,
        state_cotangent={"S": dS, "k_past": dk},
        initial_state=state,
    )

    def loss(x: dict[str, Any], state: dict[str, Any]) -> float:
        o, end = forward(SIGNATURE, CORE, x, initial_state=state)
        return float((o * do).sum() + (end.S * dS).sum() + (end.k_past * dk).sum())

    for name, array in {**x, **state}.items():
        if name == "position":
            continue
        grad = grads[name] if name in x else getattr(grads["initial_state"], name)
        assert grad.shape == array.shape
        direction = rng.normal(size=array.shape)
        ends = [
            loss(
                {**x, name: array + h * direction} if name in x else x,
                {**state, name: array + h * direction} if name in state else state,
            )
            for h in (1e-6, -1e-6)
        ]
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(
            float((grad * direction).sum()), rel=1e-6
        )
    assert grads["initial_state"].position.tolist() == [0, 0]


def test_split_and_steps_equal_the_whole() -> None:
    x = _inputs()
    tokens = ("q", "k", "v", "g")
    whole, end = forward(SIGNATURE, CORE, x)
    a, state = forward(SIGNATURE, CORE, {n: v[:, :3] if n in tokens else v for n, v in x.items()})
    b, last = forward(
        SIGNATURE,
        CORE,
        {n: v[:, 3:] if n in tokens else v for n, v in x.items()},
        initial_state=state,
    )
    assert np.array_equal(np.concatenate([a, b], 1), whole)
    assert all(map(np.array_equal, last, end))
    state = None
    for t in range(7):
        o, state = step(
            SIGNATURE, CORE, {n: v[:, t] if n in tokens else v for n, v in x.items()}, state
        )
        assert np.array_equal(o, whole[:, t])
    assert all(map(np.array_equal, state, end))


def test_packed_segments() -> None:
    x = _inputs(B=1, T=9)
    tokens = ("q", "k", "v", "g")
    cu = np.array([0, 0, 5, 5, 9])
    start = {"S": np.random.default_rng(2).normal(size=(4, 4, 3, 5))}
    o, state = forward(SIGNATURE, CORE, x, cu_seqlens=cu, initial_state=start)
    grads = _grads(x, cu_seqlens=cu, initial_state=start)
    ct = np.random.default_rng(1).normal(size=o.shape)
    bias = 0.0
    for n in range(4):
        part = slice(cu[n], cu[n + 1])
        y = {m: v[:, part] if m in tokens else v for m, v in x.items()}
        first = {"S": start["S"][n : n + 1]}
        p, end = forward(SIGNATURE, CORE, y, initial_state=first)
        g = vjp(SIGNATURE, CORE, y, cotangent=ct[:, part], initial_state=first)
        assert np.array_equal(o[:, part], p)
        assert all(np.array_equal(f[n : n + 1], e) for f, e in zip(state, end))
        assert np.array_equal(grads["k"][:, part], g["k"])
        assert np.array_equal(grads["initial_state"].S[n], g["initial_state"].S[0])
        bias += g["bias"]
    assert grads["bias"] == pytest.approx(bias)
    assert np.array_equal(state.S[0], start["S"][0])
    o, state = forward(SIGNATURE, CORE, _inputs(B=1, T=0), cu_seqlens=np.array([0]))
    assert o.shape == (1, 0, 4, 5)
    assert state.S.shape == (0, 4, 3, 5)


def test_invalid_tokens_are_never_used() -> None:
    x = _inputs(B=4)
    valid = np.ones((4, 7), bool)
    valid[0, :3] = valid[1, 4:] = valid[2, [1, 4, 5]] = valid[3] = False
    dirty = {n: v.copy() for n, v in x.items()}
    for name in ("q", "k", "v", "g"):
        dirty[name][~valid] = np.nan
    o, state = forward(SIGNATURE, CORE, dirty, valid=valid)
    ct = np.random.default_rng(1).normal(size=o.shape)
    grads = vjp(
        SIGNATURE, CORE, dirty, cotangent=np.where(valid[..., None, None], ct, np.nan), valid=valid
    )
    assert not o[~valid].any()
    for b in range(4):
        keep = valid[b]
        y = {n: v[b : b + 1, keep] if n in ("q", "k", "v", "g") else v for n, v in x.items()}
        p, end = forward(SIGNATURE, CORE, y)
        g = vjp(SIGNATURE, CORE, y, cotangent=ct[b : b + 1, keep])
        assert np.array_equal(o[b, keep], p[0])
        assert all(np.array_equal(f[b : b + 1], e) for f, e in zip(state, end))
        for name in ("q", "k", "v", "g"):
            assert np.array_equal(grads[name][b, keep], g[name][0])
            assert not grads[name][b, ~keep].any()
    assert state.position.tolist() == [4, 4, 4, 0]


def test_dtypes() -> None:
    x = {n: v.astype(np.float32) for n, v in _inputs().items()}
    x["q"] = x["q"].astype(ml_dtypes.bfloat16)
    x["k"] = x["k"].astype(np.float16)
    o, state = forward(SIGNATURE, CORE, x)
    assert (o.dtype, state.S.dtype) == (ml_dtypes.bfloat16, np.float32)
    assert forward(SIGNATURE, CORE, x, state_dtype=np.float16)[1].S.dtype == np.float16
    grads = vjp(SIGNATURE, CORE, x, cotangent=o, initial_state=state._replace(position=None))
    assert all(g.dtype == x[n].dtype for n, g in grads.items() if n in x)
    assert grads["initial_state"].S.dtype == np.float32
    x["table"] = x["table"].astype(np.float64)
    assert forward(SIGNATURE, CORE, x)[1].S.dtype == np.float64


def test_omitted_arguments_and_missing_cotangents() -> None:
    x = _inputs()
    del x["g"]
    grads = vjp(SIGNATURE, CORE, x)
    assert set(grads) == set(x)
    assert not any(g.any() for g in grads.values())


@pytest.mark.parametrize(("B", "T"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_to_do(B: int, T: int) -> None:
    x = _inputs(B=B, T=T)
    o, state = forward(SIGNATURE, CORE, x)
    assert o.shape == (B, T, 4, 5)
    assert [f.shape for f in state] == [(B, 4, 3, 5), (B,), (B, 2, 1, 3)]
    grads = _grads(x, initial_state=state)
    assert grads["k"].shape == x["k"].shape
    assert grads["bias"].shape == ()


def test_step_in_place_and_pools() -> None:
    x = _inputs()
    tokens = ("q", "k", "v", "g")
    first = {n: v[:, 0] if n in tokens else v for n, v in x.items()}
    o, fresh = step(SIGNATURE, CORE, first)
    held = type(fresh)(*(np.zeros_like(f) for f in fresh))
    o2, same = step(SIGNATURE, CORE, first, held, out=held)
    assert same is held
    assert np.array_equal(o, o2)
    assert all(map(np.array_equal, held, fresh))
    pool = type(fresh)(*(np.zeros((5, *f.shape[1:]), f.dtype) for f in fresh))
    o3, rows = step(SIGNATURE, CORE, first, pool, state_indices=np.array([3, 1]))
    assert np.array_equal(o, o3)
    assert rows.S.shape[0] == 2
    assert not pool.S.any()
    step(SIGNATURE, CORE, first, pool, out=pool, state_indices=np.array([3, 1]))
    assert np.array_equal(pool.S[[3, 1]], fresh.S)
    assert pool.position.tolist() == [0, 1, 0, 1, 0]
    pool.position[[0, 2, 4]] = -1
    step(SIGNATURE, CORE, first, pool, out=pool, state_indices=np.array([3, 1]))
    assert pool.position.tolist() == [-1, 2, -1, 2, -1]
    with pytest.raises(TypeError, match=r"state\.position: .* at least 0"):
        step(SIGNATURE, CORE, first, pool, state_indices=np.array([3, 2]))
    for bad in (np.array([3, 3]), np.array([0, 5]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="state_indices"):
            step(SIGNATURE, CORE, first, pool, state_indices=bad)


def _cut(name: str, change: Any) -> dict[str, Any]:
    x = _inputs()
    return {**x, name: change(x[name])}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (_cut("q", lambda a: a[0]), {}, ValueError, r"q: expected \[B, T, H, K\], got shape"),
        (
            _cut("k", lambda a: a[:, :, :, :2]),
            {},
            ValueError,
            r"k: .*K = 3 from q, got shape \(2, 7, 2, 2\)",
        ),
        (_cut("k", lambda a: a[:, :6]), {}, ValueError, r"k: .*T = 7 from q"),
        (_cut("g", lambda a: a[:1]), {}, ValueError, r"g: .*B = 2 from q"),
        (_cut("g", lambda a: a[..., None]), {}, ValueError, r"g: expected \[B, T, H\]"),
        (
            _cut("k", lambda a: np.repeat(a, 3, 2)[:, :, :3]),
            {},
            ValueError,
            "G = 3 does not divide H = 4",
        ),
        (_cut("v", lambda a: a.astype(int)), {}, TypeError, "v: expected dtype .* got int"),
        (
            _cut("v", lambda a: a.tolist()),
            {},
            TypeError,
            "v: expected a NumPy array, got <class 'list'>",
        ),
        (_cut("v", lambda a: None), {}, TypeError, r"v: input \[B, T, V\] of toy is missing"),
        (_cut("table", lambda a: a[:6]), {}, ValueError, "table: expected at least 7 rows, got 6"),
        (_inputs(), {"mode": "fast"}, ValueError, "mode: expected one of auto"),
        (_inputs(), {"mode": "parallel"}, ValueError, "toy has no mode parallel: the toy has none"),
        (_inputs(), {"chunk": 0}, ValueError, "chunk: expected a positive integer, got 0"),
        (_inputs(), {"chunk": True}, ValueError, "chunk: expected a positive integer"),
        (_inputs(), {"chunk": 4, "mode": "recurrent"}, ValueError, "chunk: expected None"),
        (_inputs(), {"cu_seqlens": np.array([0, 7])}, ValueError, "cu_seqlens: .*B = 1, got B = 2"),
        (
            _inputs(B=1),
            {"cu_seqlens": np.array([0, 5, 4, 7])},
            ValueError,
            "cu_seqlens: expected to rise",
        ),
        (_inputs(B=1), {"cu_seqlens": np.array([0, 5])}, ValueError, "from 0 to T = 7"),
        (
            _inputs(B=1),
            {"cu_seqlens": np.array([0.0, 7.0])},
            TypeError,
            "cu_seqlens: expected integers",
        ),
        (
            _inputs(),
            {"valid": np.ones((2, 7))},
            TypeError,
            r"valid: expected a bool array \[B, T\], got float64",
        ),
        (
            _inputs(),
            {"valid": np.ones((7, 2), bool)},
            ValueError,
            r"valid: expected \[B, T\] = \[2, 7\]",
        ),
        (
            _inputs(),
            {"initial_state": {"Z": np.zeros(1)}},
            ValueError,
            "initial_state: expected S, .*'Z'",
        ),
        (
            _inputs(),
            {"initial_state": np.zeros((2, 4, 5, 3))},
            ValueError,
            r"initial_state.S: .*K = 3",
        ),
        (_inputs(), {"initial_state": (1, 2)}, ValueError, "initial_state: .*got .2 entries"),
        (_inputs(), {"initial_state": 3}, TypeError, "initial_state: .*got <class 'int'>"),
        (_inputs(), {"initial_state": {"position": np.array([-1, 0])}}, TypeError, "at least 0"),
        (
            _inputs(),
            {"initial_state": {"position": np.array([0, 3])}},
            ValueError,
            "table: .*10 rows",
        ),
    ],
)
def test_misuse(arguments: dict[str, Any], options: dict[str, Any], error: type, text: str) -> None:
    core = Core(*(pytest.fail,) * 4, {})
    with pytest.raises(error, match=text):
        forward(SIGNATURE, core, arguments, **options)
    with pytest.raises(error, match=text):
        vjp(SIGNATURE, core, arguments, **options)


def test_misuse_of_cotangents_and_calls() -> None:
    x = _inputs()
    with pytest.raises(ValueError, match=r"cotangent: .*V = 5"):
        vjp(SIGNATURE, CORE, x, cotangent=np.zeros((2, 7, 4, 6)))
    with pytest.raises(TypeError, match=r"cotangent: expected an array for each of o, got <class"):
        vjp(SIGNATURE, CORE, x, cotangent={"p": np.zeros(1)})
    with pytest.raises(TypeError, match="expected at most 6 arguments, got 7"):
        bind(SIGNATURE, range(7), {})
    with pytest.raises(TypeError, match="no argument is called 'w'"):
        bind(SIGNATURE, (), {"w": 1})
    with pytest.raises(TypeError, match="q: given twice"):
        bind(SIGNATURE, (1,), {"q": 1})


def test_debug_checks_promises() -> None:
    x = _inputs()
    x["g"][1, 2, 3] = 2
    forward(SIGNATURE, CORE, x)
    with pytest.raises(ValueError, match=r"g: expected g <= 1, broken at index \[1, 2, 3\]"):
        forward(SIGNATURE, CORE, x, debug=True)
    valid = np.ones((2, 7), bool)
    valid[1, 2] = False
    forward(SIGNATURE, CORE, x, debug=True, valid=valid)


def test_sizes_that_are_sums_of_products() -> None:
    square = ((1,), (1, "K"), ("1/2", "K", "K"))
    wide = Signature(
        "wide", {"K": 2, "M": 3}, ("M",), (Value("f", "input", (square, "M")),), (), (), {}
    )
    core = Core(lambda x, state, run: ({"o": x["f"]}, {"n": run.dims}), *(pytest.fail,) * 3, {})
    out = Value("o", "output", (square, "M"))
    wide = Signature("wide", {"K": 2, "M": 3}, ("M",), wide.arguments, (out,), (), {})
    assert forward(wide, core, {"f": np.zeros((1, 2, 2, 13, 3))})[0].shape == (1, 2, 2, 13, 3)
    with pytest.raises(
        ValueError, match=r"f: K >= 1 does not fit \[B, T, H, 1 \+ K \+ 1/2\*K\*K, M\]"
    ):
        forward(wide, core, {"f": np.zeros((1, 2, 2, 12, 3))})
    with pytest.raises(ValueError, match="M = 3 from the compilation"):
        forward(wide, core, {"f": np.zeros((1, 2, 2, 13, 4))})
