"""Names that mean something to C, and arrays of the other byte order: what compiled kernels give of
them is what NumPy's give."""

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
