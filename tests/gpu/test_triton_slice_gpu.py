"""The Triton slice on a GPU, at real sizes: what the interpreter cannot show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import lacc
from lacc.trial import relative_error
from lacc.verify.inputs import Sizes, as_dtype, draw

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def results(name: str, dtype: str, **dims: int) -> tuple[Any, Any, Any]:
    """Outputs of the GPU, of the oracle, and of the oracle's own naive recurrence in float32."""
    spec = lacc.load(ROOT / "examples" / f"{name}.la", dims)
    x = draw(spec, Sizes(2, 517, 4, 2), seed=0, dtype=as_dtype(dtype))
    wide = {key: np.asarray(a, np.float64) for key, a in x.items()}
    return (
        lacc.compile(spec, "triton")(**x)[0],
        lacc.compile(spec, "reference")(**wide)[0],
        lacc.compile(spec, "numpy")(**x, mode="recurrent")[0],
    )


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "rwkv6", "mamba2", "linear_transformer"])
def test_float32_on_the_device(name: str) -> None:
    got, want, naive = results(name, "float32")
    assert relative_error(got, want) <= max(1e-5, 20 * relative_error(naive, want))


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "linear_transformer"])
def test_bfloat16_on_the_device(name: str) -> None:
    got, want, _ = results(name, "bfloat16")
    rms = np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2) / np.mean(want**2))
    assert rms <= 2.0**-7
