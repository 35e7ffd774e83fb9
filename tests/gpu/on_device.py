"""An example and sizes in, its kernels on the GPU, their tensors and the truth out: what the tests
of this folder share.

They are skipped without CUDA. With TRITON_INTERPRET=1 the same tests run interpreted, on tiny
shapes. LACC_SHARE=2/12 leaves the second of twelve shares of the examples, so that as many
processes can compile them at once.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT

import lacc
from lacc import LaccError
from lacc.runtime import torch_calls
from lacc.verify.cases import Bench, Case, Quantities, grows, quantities
from lacc.verify.inputs import Sizes, draw

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

INTERPRETED = torch_calls.interpreted()
DEVICE = "cpu" if INTERPRETED else "cuda"
NEEDED = "no CUDA device here; TRITON_INTERPRET=1 runs this interpreted, on tiny shapes"
marks = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason=NEEDED),
]
on_cuda = pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device; interpreters have no graphs")

REAL = {"K": 128, "V": 128}
TINY = {"K": 6, "V": 5, "D": 6, "M": 4, "N": 4, "P": 5}
SIZES = TINY if INTERPRETED else REAL
TOKENS = 37 if INTERPRETED else 1100
"""A ragged tail: of no power of two a multiple beyond 4."""

CLASSES = (
    *("linear_transformer", "simple_gla", "gla", "gla_outer", "gsa", "gated_deltanet"),
    *("deltaproduct", "momentum_delta", "lru", "mamba1", "mlstm", "mlstm_by_hand"),
    *("abc_attention", "fox", "slstm", "bidirectional"),
)
"""One example of each class of transition, of attention, scaled states and both directions."""


def shared(names: tuple[str, ...]) -> list[str]:
    """Those of the names that fall into this process's share."""
    number, of = map(int, os.environ.get("LACC_SHARE", "1/1").split("/"))
    every = [path.stem for path in EXAMPLES]
    return [name for name in names if every.index(name) % of == number - 1]


@cache
def spec_of(name: str) -> Any:
    """An example with the sizes of this machine for every dim that takes them; dims that are made
    of others, such as feature maps, keep their defaults on a GPU."""
    path = ROOT / "examples" / f"{name}.la"
    plain = lacc.load(path)
    large = {n for n, d in plain.dims.items() if not d.pinned and (INTERPRETED or d.default >= 64)}
    sizes = {n: SIZES[n] for n in plain.dims if n in SIZES and n in large}
    for given in (sizes, {n: size + size % 2 for n, size in sizes.items()}):
        try:
            return lacc.load(path, given)
        except LaccError:  # a dim is a fixed function of another
            continue
    return plain


class OnDevice:
    """A kernel on the GPU for callers with NumPy arrays: these go there in ``dtype``, states in
    float32, and what comes back is as wide as it was there, at least float32."""

    def __init__(self, name: str, dtype: str) -> None:
        if INTERPRETED:
            torch_calls.prepare()
        self.kernel = lacc.compile(spec_of(name), "triton")
        self.dtype = getattr(torch, dtype)

    def sent(self, x: Any, dtype: Any = None) -> Any:
        """Tensors of arrays, those of a state in float32."""
        if isinstance(x, tuple):
            parts = [self.sent(part, torch.float32) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        if not isinstance(x, np.ndarray):
            return x
        y = torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)
        return y.to(dtype or self.dtype) if y.is_floating_point() else y

    def back(self, x: Any) -> Any:
        """Arrays of tensors."""
        if isinstance(x, tuple):
            parts = map(self.back, x)
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        if isinstance(x, dict):
            return {name: self.back(part) for name, part in x.items()}
        return (x.float() if x.is_floating_point() else x).cpu().numpy()

    def __call__(self, **given: Any) -> Any:
        return self.back(self.kernel(**{n: self.sent(x) for n, x in given.items()}))

    def vjp(self, **given: Any) -> Any:
        return self.back(self.kernel.vjp(**{n: self.sent(x) for n, x in given.items()}))

    def step(self, **given: Any) -> Any:
        return self.back(self.kernel.step(**{n: self.sent(x) for n, x in given.items()}))


class Truth:
    """What an example gives at the sizes of this machine, by NumPy."""

    def __init__(self, name: str, tokens: int = TOKENS) -> None:
        self.spec = spec_of(name)
        self.kernel = lacc.compile(self.spec, "numpy")
        self.recurrent = self.kernel
        if "recurrent" in self.kernel.modes:
            self.recurrent = lacc.compile(self.spec, "numpy", mode="recurrent")
        self.bench = Bench(self.spec, self.kernel)
        self.bench.dims = {n: d.default for n, d in self.spec.dims.items()}
        self.case = Case(T=tokens, seed=3)
        self.arrays = self.bench.arrays(self.case)

    def rounded(self, dtype: str) -> dict[str, Any]:
        """The arguments as ``dtype`` has them, in float64."""
        kind = getattr(torch, dtype)
        return {n: torch.from_numpy(x).to(kind).double().numpy() for n, x in self.arrays.items()}

    def run(self, kernel: Any, arrays: dict[str, Any]) -> Quantities:
        """Outputs, final state and all gradients."""
        return self.bench.run(kernel, self.case, arrays)

    def named(self, outputs: Any, state: Any) -> Quantities:
        """Outputs and state by name."""
        return quantities(self.spec, outputs, state)


def steady(name: str, dtype: str) -> tuple[Truth, dict[str, Any], Quantities]:
    """The truth, its arguments as ``dtype`` has them and what they give, over as many tokens as an
    example can have without growing beyond what a comparison can say."""
    for tokens in (TOKENS, 100, 20):
        truth = Truth(name, min(tokens, TOKENS))
        arrays = truth.rounded(dtype)
        want = truth.run(truth.kernel, arrays)
        if not grows(want):
            return truth, arrays, want
    pytest.skip(f"{name} grows beyond what a comparison can say")


def inputs(
    name: str, tokens: int, batch: int = 1, heads: int = 2, dtype: str = "bfloat16", seed: int = 0
) -> dict[str, Any]:
    """Arguments of an example as tensors; from 4096 tokens on they repeat."""
    spec, length = spec_of(name), min(tokens, 4096)
    groups = 2 if "group" in {a.per for a in spec.args} else 1
    sizes = Sizes(batch, length, heads * groups, groups, tokens)
    arrays = draw(spec, sizes, seed=seed, dtype=np.float32)
    found = {}
    for a in spec.args:
        if a.ascii in arrays:
            x = torch.from_numpy(arrays[a.ascii]).to(DEVICE, getattr(torch, dtype))
            if a.role == "input" and length < tokens:
                x = torch.cat([x] * -(-tokens // length), 1)[:, :tokens].contiguous()
            found[a.ascii] = x
    return found


def token_inputs(name: str) -> set[str]:
    """The arguments that have tokens."""
    return {a.ascii for a in spec_of(name).args if a.role == "input"}


def part(name: str, x: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Some tokens of the arguments."""
    return {n: y[:, tokens] if n in token_inputs(name) else y for n, y in x.items()}


def flat(x: Any) -> list[Any]:
    """The tensors of a result, one after another."""
    if isinstance(x, dict):
        return [y for name in sorted(x) for y in flat(x[name])]
    if isinstance(x, tuple):
        return [y for each in x for y in flat(each)]
    return [] if x is None else [x]


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results are equal bit by bit, NaN included."""
    both = list(zip(flat(a), flat(b), strict=True))
    return all(torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)) for x, y in both)


def apart(got: Any, want: Any) -> float:
    """The largest rms error of a tensor relative to the rms of what is wanted."""
    worst = 0.0
    for x, y in zip(flat(got), flat(want), strict=True):
        if not torch.equal(x, y):
            x, y = x.double(), y.double()
            scale = y.square().mean().sqrt()
            worst = max(worst, float((x - y).square().mean().sqrt() / scale.clamp(min=1e-30)))
    return worst
