"""The API of a compiled kernel: what calls take and give, on every target that runs here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lacc
from lacc.runtime.kernel import Kernel
from lacc.verify.inputs import Sizes, draw

EXAMPLES = Path(__file__).parent.parent / "examples"

DELAYS = """variant delays
dim K = 6, V = 4
input q : [K]
input k : [K] per group
input v : [V] per layer
input g : scalar where g <= 0
input β : scalar = 0.5
param u : [K] per layer
param E : [V] per position
state S : [K, V]
output o : [V]
output r : scalar
S[t] = exp(g) * S[t-1] + β * (u * k + k[t-2]) @ v.T
o = S[t].T @ q + E * t
r = q.T @ k
"""


@pytest.fixture(scope="module", params=["reference", "numpy"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def gla(target: str) -> Kernel:
    return lacc.compile(EXAMPLES / "gla.la", target=target)


@pytest.fixture(scope="module")
def delays(target: str) -> Kernel:
    return lacc.compile(DELAYS, target=target)


def arrays(kernel: Kernel, dtype: Any = np.float64, **sizes: int) -> dict[str, Any]:
    """Arguments of a kernel; sizes of dims are those of `DELAYS` or K = 5, V = 3."""
    dims = {"K": 6, "V": 4} if kernel.spec.name == "delays" else {"K": 5, "V": 3}
    full = {"B": 2, "T": 7, "H": 4, "G": 2, **sizes}
    return draw(kernel.spec, Sizes(**full, P=40, dims=dims), seed=1, dtype=dtype)


def equal(a: Any, b: Any, tolerance: float = 1e-12) -> bool:
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


def test_always_outputs_and_state(gla: Kernel, delays: Kernel) -> None:
    o, state = gla(**arrays(gla))
    assert isinstance(o, np.ndarray)
    assert o.shape == (2, 7, 4, 3)
    assert state._fields == ("S",)
    assert state.S.shape == (2, 4, 5, 3)
    outputs, state = delays(**arrays(delays))
    assert outputs._fields == ("o", "r")
    assert outputs.o.shape == (2, 7, 4, 4)
    assert outputs.r.shape == (2, 7, 4)
    assert state._fields == ("S", "position", "k_past")
    assert state.k_past.shape == (2, 2, 2, 6)
    assert state.position.dtype == np.int64
    assert state.position.tolist() == [7, 7]


def test_arguments_by_position_and_by_name(gla: Kernel) -> None:
    x = arrays(gla)
    o, _ = gla(**x)
    assert np.array_equal(o, gla(x["q"], x["k"], x["v"], x["g"])[0])
    assert np.array_equal(o, gla(x["q"], x["k"], g=x["g"], v=x["v"])[0])
    with pytest.raises(TypeError, match="'w'"):
        gla(**x, w=1)
    with pytest.raises(TypeError, match="g"):
        gla(x["q"], x["k"], x["v"])
    with pytest.raises(TypeError, match="q"):
        gla(x["q"], **x)


def test_ascii_names_and_optional_arguments(delays: Kernel) -> None:
    x = arrays(delays)
    omitted = {name: array for name, array in x.items() if name != "beta"}
    half = np.full((2, 7, 4), 0.5)
    assert equal(delays(**omitted)[0].o, delays(**omitted, beta=half)[0].o)
    grads = delays.vjp(**omitted)
    assert set(grads) == set(omitted)


@pytest.mark.parametrize("form", ["tuple", "dict", "array", "plain"])
def test_forms_of_a_state(gla: Kernel, form: str) -> None:
    x = arrays(gla)
    _, state = gla(**x)
    given = {
        "tuple": state,
        "dict": {"S": state.S},
        "array": state.S,
        "plain": (state.S,),
    }[form]
    kept = state.S.copy()
    o, end = gla(**x, initial_state=given)
    assert type(end) is type(state)
    assert not equal(o, gla(**x)[0])
    assert np.array_equal(state.S, kept)
    first = {name: array[:, 0] for name, array in x.items()}
    step, _ = gla.step(*first.values(), given)
    assert equal(step, o[:, 0])
    grads = gla.vjp(**x, cotangent=o, initial_state=given)
    assert type(grads["initial_state"]) is type(state)
    assert grads["initial_state"].S.shape == state.S.shape
    assert "initial_state" not in gla.vjp(**x, cotangent=o)


def test_missing_fields_start_as_declared(delays: Kernel) -> None:
    x = arrays(delays)
    whole, _ = delays(**x)
    empty, _ = delays(**x, initial_state={})
    assert equal(whole.o, empty.o)
    later, _ = delays(**x, initial_state={"position": np.array([3, 4])})
    rows = x["E"][None, :7] * np.arange(1, 8)[:, None]
    shifted = np.stack([x["E"][n : n + 7] * np.arange(1 + n, 8 + n)[:, None] for n in (3, 4)])
    assert equal(later.o - whole.o, (shifted - rows)[:, :, None])


def test_prefill_then_decode(delays: Kernel) -> None:
    x = arrays(delays)
    timed = ("q", "k", "v", "g", "beta")
    whole, end = delays(**x)
    _, state = delays(**{n: a[:, :4] if n in timed else a for n, a in x.items()})
    held = type(state)(*(field.copy() for field in state))
    for t in range(4, 7):
        token = {n: a[:, t] if n in timed else a for n, a in x.items()}
        outputs, state = delays.step(**token, state=state)
        again, held = delays.step(**token, state=held, out=held)
        assert type(outputs) is type(whole)
        assert equal(outputs.o, whole.o[:, t])
        assert equal(outputs.r, whole.r[:, t])
        assert np.array_equal(outputs.o, again.o)
    assert all(map(equal, state, end))
    assert all(map(np.array_equal, state, held))


def test_dtypes(gla: Kernel) -> None:
    x = arrays(gla, np.float32)
    for first in (np.float16, ml_dtypes.bfloat16, np.float32):
        x["q"] = x["q"].astype(first)
        o, state = gla(**x)
        assert o.dtype == first
        assert state.S.dtype == np.float32
        grads = gla.vjp(**x, cotangent=o, initial_state=state)
        assert all(grads[name].dtype == x[name].dtype for name in x)
        assert grads["initial_state"].S.dtype == np.float32
    assert gla(**x, state_dtype=np.float16)[1].S.dtype == np.float16
    wide = {name: array.astype(np.float64) for name, array in x.items()}
    assert gla(**wide)[1].S.dtype == np.float64


def test_strided_arrays_and_untouched_inputs(gla: Kernel) -> None:
    x = arrays(gla)
    o, state = gla(**x)
    grads = gla.vjp(**x, cotangent=o, state_cotangent=state)
    odd = {n: np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1)[:, ::-1] for n, a in x.items()}
    odd = {n: np.repeat(a, 2, -1)[:, ::-1, :, ::2] for n, a in odd.items()}
    for array in odd.values():
        array.flags.writeable = False
    assert all(np.array_equal(odd[n], x[n]) for n in x)
    p, end = gla(**odd)
    assert equal(o, p)
    assert equal(state.S, end.S)
    again = gla.vjp(**odd, cotangent=o, state_cotangent=state)
    assert all(equal(grads[n], again[n]) for n in x)
    assert np.array_equal(o, gla(**x)[0])


def test_nothing_is_shared_with_the_caller(delays: Kernel) -> None:
    x = arrays(delays)
    outputs, state = delays(**x)
    _, end = delays(**x, initial_state=state)
    for array in (*outputs, *end):
        assert not any(np.shares_memory(array, other) for other in (*x.values(), *state))
    x = arrays(delays, T=0)
    _, end = delays(**x, initial_state=state)
    assert all(map(np.array_equal, end, state))
    assert not any(map(np.shares_memory, end, state))


@pytest.mark.parametrize(("B", "T"), [(0, 3), (2, 0), (0, 0), (1, 1)])
def test_no_tokens_and_no_rows(gla: Kernel, B: int, T: int) -> None:
    x = arrays(gla, B=B, T=T)
    o, state = gla(**x)
    assert o.shape == (B, T, 4, 3)
    assert state.S.shape == (B, 4, 5, 3)
    grads = gla.vjp(**x, cotangent=o, state_cotangent=state)
    assert all(grads[name].shape == x[name].shape for name in x)


def test_odd_sizes(gla: Kernel) -> None:
    for K, V in ((1, 1), (1, 17), (3, 8), (17, 3)):
        sizes = Sizes(B=1, T=5, H=3, dims={"K": K, "V": V})
        x = draw(gla.spec, sizes)
        o, state = gla(**x)
        assert o.shape == (1, 5, 3, V)
        assert gla.vjp(**x, cotangent=o)["g"].shape == (1, 5, 3, K)
        assert state.S.shape == (1, 3, K, V)


def test_cotangents(gla: Kernel, delays: Kernel) -> None:
    x = arrays(gla)
    assert not any(g.any() for g in gla.vjp(**x).values())
    o, state = gla(**x)
    both = gla.vjp(**x, cotangent=o, state_cotangent=state)
    apart = gla.vjp(**x, cotangent=o), gla.vjp(**x, state_cotangent={"S": state.S})
    assert all(equal(both[n], apart[0][n] + apart[1][n]) for n in x)
    y = arrays(delays)
    outputs, _ = delays(**y)
    one, two = (
        delays.vjp(**y, cotangent={"o": outputs.o}),
        delays.vjp(**y, cotangent={"r": outputs.r}),
    )
    all_ = delays.vjp(**y, cotangent=outputs)
    assert all(equal(all_[n], one[n] + two[n]) for n in y)
    with pytest.raises(TypeError, match="cotangent"):
        delays.vjp(**y, cotangent=outputs.o)


def test_modes(gla: Kernel, target: str) -> None:
    x = arrays(gla)
    o, _ = gla(**x)
    assert "recurrent" in gla.modes
    for mode in ("auto", *gla.modes):
        assert equal(o, gla(**x, mode=mode)[0], 1e-9)
    if "chunk" in gla.modes:
        for chunk in (1, 2, 3, 7, 8, 64):
            assert equal(o, gla(**x, mode="chunk", chunk=chunk)[0], 1e-9)
            assert equal(o, gla(**x, chunk=chunk)[0], 1e-9)
    for mode in {"chunk", "parallel"} - {*gla.modes}:
        with pytest.raises(lacc.LaccError) as raised:
            gla(**x, mode=mode)
        assert raised.value.code.startswith(("LA06", "LA07"))
    for options in (
        {"mode": "fast"},
        {"chunk": 0},
        {"chunk": 2.5},
        {"mode": "recurrent", "chunk": 4},
    ):
        with pytest.raises(ValueError, match=r"^(mode|chunk): expected"):
            gla(**x, **options)


def test_a_spec_without_step(target: str) -> None:
    kernel = lacc.compile(EXAMPLES / "bidirectional.la", target=target)
    with pytest.raises(lacc.LaccError) as raised:
        kernel.step()
    assert raised.value.code.startswith("LA06")


def test_a_spec_that_reads_the_length(target: str) -> None:
    text = "variant mean\ndim D = 3\ninput x : [D]\nstate h : [D]\noutput y : [D]\n"
    kernel = lacc.compile(text + "h[t] = h[t-1] + x\ny = h[t] / T\n", target=target)
    x = np.ones((1, 4, 2, 3))
    y, state = kernel(x)
    assert equal(y[0, :, 0, 0], [0.25, 0.5, 0.75, 1])
    with pytest.raises(ValueError, match="initial_state"):
        kernel(x, initial_state=state)
    cu = np.array([0, 1, 4])
    assert equal(kernel(x, cu_seqlens=cu)[0][0, :, 0, 0], [1, 1 / 3, 2 / 3, 1])


def test_pinned_dims(target: str) -> None:
    kernel = lacc.compile(EXAMPLES / "gla.la", target=target, K=8)
    with pytest.raises(ValueError, match="K = 8"):
        kernel(**arrays(kernel))
    x = draw(kernel.spec, Sizes(T=3, dims={"V": 2}))
    assert kernel(**x)[0].shape == (2, 3, 2, 2)


def test_debug_checks_promises(gla: Kernel) -> None:
    x = arrays(gla)
    gla(**x, debug=True)
    x["g"][1, 2, 3, 4] = 0.5
    gla(**x)
    with pytest.raises(ValueError, match=r"g.*\[1, 2, 3, 4\]"):
        gla(**x, debug=True)


def test_debug_allows_an_equation_its_rounding(target: str) -> None:
    text = (
        "variant weighted\ndim K = 5\ninput w : [K] where sum(w) == 1, w >= 0\ninput v : scalar\n"
    )
    text += "state z : [K]\noutput y : scalar\nz[t] = z[t-1] + v * w\ny = sum(z[t])\n"
    kernel = lacc.compile(text, target=target)
    x = draw(kernel.spec, Sizes(T=9), dtype=np.float32)
    kernel(**x, debug=True)
    with pytest.raises(ValueError, match=r"w: expected sum\(w\) == 1, broken at"):
        kernel(w=x["w"] * 2, v=x["v"], debug=True)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("k", lambda a: a[..., :-1], ValueError),
        ("k", lambda a: a[:, :-1], ValueError),
        ("k", lambda a: a[:-1], ValueError),
        ("k", lambda a: a[:, :, :3], ValueError),
        ("k", lambda a: a[0], ValueError),
        ("k", lambda a: a.astype(np.int32), TypeError),
        ("k", lambda a: a.astype(complex), TypeError),
        ("k", lambda a: a.tolist(), TypeError),
    ],
)
def test_misuse_names_the_argument(gla: Kernel, name: str, change: Any, error: type) -> None:
    x = arrays(gla)
    x[name] = change(x[name])
    for call in (gla, gla.vjp):
        with pytest.raises(error, match=f"^{name}: expected"):
            call(**x)


def test_same_bits(gla: Kernel) -> None:
    x = arrays(gla, np.float32)
    first, second = gla(**x), gla(**x)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1].S, second[1].S)
    a, b = gla.vjp(**x, cotangent=first[0]), gla.vjp(**x, cotangent=first[0])
    assert all(np.array_equal(a[n], b[n]) for n in a)


def test_the_emitted_file_stands_alone(tmp_path: Path) -> None:
    kernel = lacc.compile(EXAMPLES / "gla.la", target="numpy")
    x = arrays(kernel)
    o, state = kernel(**x)
    assert kernel.source is not None
    (tmp_path / "gla_np.py").write_text(kernel.source, encoding="utf-8")
    np.savez(tmp_path / "x.npz", **x)
    script = """
import sys
sys.modules["lacc"] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
import gla_np
x = dict(np.load(sys.argv[1] + "/x.npz"))
o, state = gla_np.gla(**x)
grads = gla_np.gla_vjp(**x, cotangent=o)
first, _ = gla_np.gla_step(*(a[:, 0] for a in x.values()), None)
loaded = {name.split(".")[0] for name in sys.modules} & {"torch", "triton", "sympy", "jinja2"}
assert not loaded, loaded
named = {"d" + name: g for name, g in grads.items()}
np.savez(sys.argv[1] + "/y.npz", o=o, S=state.S, first=first, **named)
"""
    subprocess.run([sys.executable, "-I", "-c", script, str(tmp_path)], check=True)
    y = np.load(tmp_path / "y.npz")
    assert np.array_equal(y["o"], o)
    assert np.array_equal(y["S"], state.S)
    assert equal(y["first"], o[:, 0])
    grads = kernel.vjp(**x, cotangent=o)
    assert all(np.array_equal(y["d" + name], grads[name]) for name in x)


def test_the_same_spec_gives_the_same_bytes() -> None:
    first, second = (lacc.compile(EXAMPLES / "gla.la", target="numpy").source for _ in range(2))
    assert first == second
