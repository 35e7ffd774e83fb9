"""A kernel and arrays (or sizes to draw them in) go in; what one run of it gave, and how far it is
off, comes out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lacc.verify.cases import factors
from lacc.verify.inputs import Sizes, as_dtype, draw

if TYPE_CHECKING:
    from lacc.runtime.kernel import Kernel
    from lacc.spec.model import Spec

ROUNDS = 5
LONGEST = 2.0
"""Seconds after which no further round is timed."""


@dataclass(frozen=True)
class Trial:
    """One run: arguments, outputs and states by name, seconds a call, errors relative to
    max|reference|.
    """

    spec: Spec
    arguments: Mapping[str, Any]
    outputs: Mapping[str, Any]
    states: Mapping[str, Any]
    seconds: float
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> dict[str, int]:
        """B, T and H of the run, as the first output has them."""
        return dict(zip("BTH", next(iter(self.outputs.values())).shape))

    @property
    def dims(self) -> dict[str, int]:
        """Every dim's value, as the arguments have it."""
        dims = {name: dim.default for name, dim in self.spec.dims.items()}
        for arg in self.spec.args:
            if arg.ascii in self.arguments:
                sizes = self.arguments[arg.ascii].shape[::-1]
                dims |= {str(s): n for s, n in zip(arg.shape[::-1], sizes) if str(s) in dims}
        plain = dict(dims)
        return {name: dim.size.evaluate(plain) for name, dim in self.spec.dims.items()}

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of a report."""
        rows = []
        for role, arrays in (
            ("in", self.arguments),
            ("out", self.outputs),
            ("state", self.states),
        ):
            width = max((len(name) for name in arrays), default=0)
            for name, x in arrays.items():
                error = f"  error {self.errors[name]:.1e}" if name in self.errors else ""
                rows.append((role, f"{name:<{width}}  {_describe(x)}{error}"))
        rows.append(("time", f"{self.seconds * 1e3:.2f} ms a call at best"))
        if self.errors:
            worst = max(self.errors.values())
            rows.append(("error", f"{worst:.1e} at most, relative to the float64 reference"))
        return rows


def trial(
    kernel: Kernel,
    reference: Kernel | None,
    arrays: Mapping[str, Any] | None,
    shape: Mapping[str, int],
    *,
    dtype: str = "float32",
    seed: int = 0,
) -> Trial:
    """One run of ``kernel`` on ``arrays``, or on ones drawn within the promises at ``shape`` (B, T,
    H, G).

    Raises ValueError or TypeError where the arrays do not fit.
    """
    if arrays is None:
        arrays = draw_arguments(kernel, shape, dtype=dtype, seed=seed)
    times: list[float] = []
    while len(times) < ROUNDS and sum(times) < LONGEST:
        start = time.perf_counter()
        outputs, states = kernel(**arrays)
        times.append(time.perf_counter() - start)
    found = by_name(kernel.spec.outputs, outputs)
    fields = states._asdict()
    errors = {}
    if reference is not None:
        wide = {name: np.asarray(x).astype(np.float64) for name, x in arrays.items()}
        want, want_states = reference(**wide)
        wanted = by_name(kernel.spec.outputs, want) | true_state(
            kernel.spec, want_states, want_states
        )
        got = found | true_state(kernel.spec, states, want_states)
        errors = {name: relative_error(x, wanted[name]) for name, x in got.items()}
    return Trial(kernel.spec, arrays, found, fields, min(times), errors)


def draw_arguments(
    kernel: Kernel, shape: Mapping[str, int], *, dtype: str, seed: int
) -> dict[str, Any]:
    """Arguments of ``kernel`` by name that keep every promise of its spec; optional ones are left
    out.
    """
    spec = kernel.spec
    omit = tuple(a.ascii for a in spec.args if a.default is not None)
    sizes = Sizes(shape.get("B", 1), shape.get("T", 256), shape.get("H", 4), shape.get("G", 1))
    return draw(spec, sizes, seed=seed, dtype=as_dtype(dtype), omit=omit)


def relative_error(got: Any, want: Any) -> float:
    """max|got - want| over max|want|; 0 for empty arrays, NaN where one is NaN and the other is
    not.
    """
    want = np.asarray(want, np.float64)
    got = np.asarray(got).astype(np.float64)
    if not want.size:
        return 0.0
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    apart = np.abs(np.where(same, 0.0, got - want)).max()
    scale = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    return float(apart / scale) if scale else float(apart)


def true_state(spec: Spec, state: Any, unit: Any) -> dict[str, Any]:
    """The fields of a state; scaled ones as what they stand for, whatever their exponents are."""
    fields: dict[str, Any] = state._asdict()
    for name, factor in factors(spec, state, unit).items():
        fields[name] = np.asarray(fields[name]).astype(np.float64) * factor
        del fields[f"{name}_log"]
    return fields


def by_name(values: Any, results: Any) -> dict[str, Any]:
    """Results of a call by the names of the ``values`` that they are of."""
    return {values[0].ascii: results} if len(values) == 1 else results._asdict()


def _describe(x: Any) -> str:
    wide = np.asarray(x).astype(np.float64)
    shape = "[" + ", ".join(map(str, wide.shape)) + "]"
    if not wide.size:
        return f"{shape}  {x.dtype}  empty"
    bad = "" if np.isfinite(wide).all() else f"  {np.count_nonzero(~np.isfinite(wide))} not finite"
    return f"{shape}  {x.dtype}  {wide.min():.4g} … {wide.max():.4g}{bad}"
