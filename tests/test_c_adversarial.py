"""Names that mean something to C, arrays of the other byte order, states that are what others were:
what compiled kernels give of them is what NumPy's give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lacc
from lacc.runtime.compiled import missing

NAMES = """\
variant double
dim N = 7, EVEN = 3
input register, NULL : [N]
input bool : [EVEN]
input w, w_ : scalar where w <= 0, w_ <= 0
input int64_t : scalar
state NAN : [N, EVEN]
state INFINITY : [N]
output main : [EVEN]
INFINITY[t] = exp(w) * INFINITY[t-1] + register
NAN[t] = exp(w + w_) * NAN[t-1] + int64_t * (register + INFINITY[t]) @ bool.T
main = NAN[t].T @ NULL
"""

SOLVED = """\
variant solved
dim K = 5, V = 7
input q, k : [K]
input v : [V]
input g : [K] where g <= 0
state P : [K, K]
state S : [V, K]
output o : [V]
P[t] = diag(exp(g)) @ P[t-1] @ diag(exp(g)) + k @ k.T
S[t] = S[t-1] @ diag(exp(g)) + v @ k[t-1].T
o = S[t] @ solve(P[t] + I, q)
"""

DELAYED = """\
variant delayed
dim K = 5, V = 7
input q, k : [K]
input v : [V]
input g : [K] where g <= 0
state y : [V]
state S : [K, V]
output o : [V]
y[t] = v + v[t-2]
S[t] = diag(exp(g)) @ S[t-1] + k @ y[t].T - k[t-3] @ y[t-3].T
o = S[t].T @ q
"""

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.mark.parametrize("order", ["<", ">"])
def test_names_of_c_and_byte_orders(tmp_path: Path, order: str) -> None:
    path = tmp_path / "names.la"
    path.write_text(NAMES, encoding="utf-8")
    compiled, plain = (lacc.compile(lacc.load(path), target) for target in ("c", "numpy"))
    rng = np.random.default_rng(0)
    shapes = [(2, 9, 1, 7)] * 2 + [(2, 9, 1, 3)] + [(2, 9, 1)] * 3
    given = [-abs(rng.normal(size=shape)).astype(f"{order}f8") for shape in shapes]
    for mode in ("chunk", "recurrent"):
        (o, state), (wanted, end) = (k(*given, mode=mode) for k in (compiled, plain))
        for one, other in zip((o, *state), (wanted, *end), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        pulled = [k.vjp(*given, cotangent=wanted, mode=mode) for k in (compiled, plain)]
        for name, gradient in pulled[1].items():
            np.testing.assert_allclose(pulled[0][name], gradient, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("text", [SOLVED, DELAYED], ids=["solved", "delayed"])
@pytest.mark.parametrize("mode", ["chunk", "recurrent"])
def test_states_and_gradients(tmp_path: Path, text: str, mode: str) -> None:
    path = tmp_path / "x.la"
    path.write_text(text, encoding="utf-8")
    compiled, plain = (lacc.compile(lacc.load(path), target) for target in ("c", "numpy"))
    rng = np.random.default_rng(0)
    x = [-abs(rng.normal(size=(2, 70, 2, width))) for width in (5, 5, 7, 5)]
    (o, state), (wanted, end) = (k(*x, mode=mode) for k in (compiled, plain))
    for one, other in zip((o, *state), (wanted, *end), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    more = {"cotangent": wanted, "state_cotangent": end, "initial_state": end, "mode": mode}
    found, pulled = (k.vjp(*x, **more) for k in (compiled, plain))
    for name in ("q", "k", "v", "g"):
        size = abs(pulled[name]).max()
        np.testing.assert_allclose(found[name] / size, pulled[name] / size, atol=1e-10)
    for one, other in zip(found["initial_state"], pulled["initial_state"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10 * (1 + abs(other).max()))
