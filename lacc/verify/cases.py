"""A spec, its reference and a case (sizes, regime, seed) go in; what a call must give comes out.

A *quantity* is anything a call gives, by name: ``o``, ``state.S``, ``d q``, ``d initial_state.S``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from lacc.ir.graph import nodes
from lacc.runtime.kernel import Kernel
from lacc.spec.model import Spec
from lacc.spec.shapes import Shape
from lacc.verify.inputs import Sizes, as_dtype, draw, roots

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Quantities = dict[str, Array]

GROWTH = 1e6
"""Beyond this the reference itself has lost the digits that a comparison needs."""


@dataclass(frozen=True)
class Scale:
    """How long cases are: tokens of a chunk, and of the longest sequence of a full run."""

    chunk: int = 8
    longest: int = 1027


SCALE = Scale()

ODD = (5, 3, 7, 4, 6)
EVEN = (4, 6, 8, 2, 10)


@dataclass(frozen=True)
class Case:
    """What to draw: printed, it is what a failure needs to be repeated."""

    T: int
    B: int = 2
    regime: str = "interior"
    seed: int = 0
    started: bool = False  # from a state that other tokens left
    dtype: str = "float64"
    omit: tuple[str, ...] = ()


@dataclass
class Bench:
    """Draws cases of a spec and knows, from its reference, what each must give."""

    spec: Spec
    reference: Kernel
    scale: Scale = SCALE
    drawn: dict[Case, Arrays] = field(default_factory=dict)
    known: dict[Case, Quantities] = field(default_factory=dict)

    @cached_property
    def dims(self) -> dict[str, int]:
        """Small sizes, different and odd if they can be, of the dims that arrays show."""
        shapes = [a.shape for a in self.spec.args if not a.draw]
        shown = {name for shape in shapes for axis in shape for name in axis.dims}
        free = [n for n, d in self.spec.dims.items() if n in shown and not d.pinned]
        default = {name: dim.default for name, dim in self.spec.dims.items()}
        everything = [*shapes, *(s.shape for s in self.spec.states)]
        for sizes in (ODD, EVEN):
            found = default | {n: sizes[i % len(sizes)] for i, n in enumerate(free)}
            if all(_whole(shape, found) for shape in everything) and _turns(self.spec, found):
                return found
        return default

    @cached_property
    def heads(self) -> tuple[int, int]:
        """H and G."""
        levels = {a.per for a in self.spec.args}
        groups = 2 if "group" in levels else 1
        return (2 * groups if "head" in levels else groups), groups

    @cached_property
    def causal(self) -> bool:
        """Whether nothing is read from later tokens."""
        return not self.reference.signature.no_step

    def arrays(self, case: Case) -> Arrays:
        """The arguments of a case."""
        if case not in self.drawn:
            heads, groups = self.heads
            sizes = Sizes(case.B, case.T, heads, groups, case.T + 16, self.dims)
            dtype = as_dtype(case.dtype)
            self.drawn[case] = draw(
                self.spec, sizes, seed=case.seed, regime=case.regime, dtype=dtype, omit=case.omit
            )
        return dict(self.drawn[case])

    def start(self, case: Case, batch: int | None = None) -> Any:
        """The initial state of a case: what eleven other tokens leave, or None."""
        if not case.started:
            return None
        other = Case(T=11, B=batch or case.B, seed=case.seed + 1000)
        shared = {a.ascii for a in self.spec.args if a.role != "input"}
        arrays = {n: x for n, x in self.arrays(other).items() if n not in shared}
        arrays |= {
            n: x for n, x in self.arrays(replace(case, dtype="float64")).items() if n in shared
        }
        return self.reference(**arrays)[1]

    def cotangents(self, case: Case, outputs: Any, state: Any) -> tuple[Any, Any]:
        """Random cotangents of what a call gave, of the true values of scaled states."""
        rng = np.random.default_rng([case.seed, 77])

        def like(x: Array) -> Array:
            return np.asarray(rng.normal(size=x.shape), np.float32).astype(_accurate(x.dtype))

        single = isinstance(outputs, np.ndarray)
        pulled = like(outputs) if single else type(outputs)(*map(like, outputs))
        return pulled, type(state)(*map(like, state))

    def of_fields(self, ends: Any, state: Any) -> Any:
        """The cotangents of the fields of ``state`` from those of what they stand for."""
        fields = ends._asdict()
        for name, factor in factors(self.spec, state).items():
            ct = fields[name]
            fields[name] = (ct * factor).astype(ct.dtype)
        return type(ends)(**fields)

    def truth(self, case: Case) -> Quantities:
        """The quantities of a case in float64."""
        if case not in self.known:
            arrays = {n: x.astype(np.float64) for n, x in self.arrays(case).items()}
            self.known[case] = self.run(self.reference, case, arrays)
        return self.known[case]

    def lost(self, case: Case) -> dict[str, float]:
        """The error of the recurrence's own float64, by that of its float32, for each quantity."""
        single = replace(case, dtype="float32")
        rounded = self.run(self.reference, single, self.arrays(single))
        naive = errors(rounded, self.truth(case), largest_error)
        ratio = np.finfo(np.float64).eps / np.finfo(np.float32).eps
        return {name: float(e * ratio) for name, e in naive.items() if np.isfinite(e)}

    def run(
        self,
        kernel: Any,
        case: Case,
        arrays: Arrays,
        options: Mapping[str, Any] | None = None,
    ) -> Quantities:
        """All quantities of a forward and a vjp of ``kernel``."""
        options = dict(options or {})
        start = self.start(case)
        outputs, state = kernel(**arrays, initial_state=start, **options)
        pulled, ends = self.cotangents(case, outputs, state)
        gradients = kernel.vjp(
            **arrays,
            cotangent=pulled,
            state_cotangent=self.of_fields(ends, state),
            initial_state=start,
            **options,
        )
        return quantities(self.spec, outputs, state, gradients)


def quantities(
    spec: Spec, outputs: Any = None, state: Any = None, gradients: Mapping[str, Any] | None = None
) -> Quantities:
    """What a forward and a vjp gave, by name; scaled states as what they stand for."""
    found: Quantities = {}
    if outputs is not None:
        several = (outputs,) if isinstance(outputs, np.ndarray) else outputs
        found |= {o.ascii: x for o, x in zip(spec.outputs, several)}
    if state is not None:
        found |= {f"state.{name}": x for name, x in state._asdict().items()}
        for name, factor in factors(spec, state).items():
            found[f"state.{name}"] = getattr(state, name) * factor
            del found[f"state.{name}_log"]
        for name in _from_infinity(spec):
            x = found[f"state.{name}"]
            found[f"state.{name}"] = np.where(np.isinf(x), 0, x).astype(x.dtype)
            found[f"state.{name} without a value"] = np.isinf(x).astype(x.dtype)
    for name, x in (gradients or {}).items():
        if name == "initial_state":
            fields = x._asdict().items()
            found |= {f"d initial_state.{n}": y for n, y in fields if n != "position"}
        else:
            found[f"d {name}"] = x
    return found


def _from_infinity(spec: Spec) -> Iterator[str]:
    """States that start at an infinity, and may stay there."""
    for s in spec.states:
        start = s.initial.args[0] if s.initial.op == "neg" else s.initial
        if s.direction != "value" and start.op == "const" and np.isinf(start.value):
            yield s.ascii


def factors(spec: Spec, state: Any, unit: Any = None) -> Arrays:
    """What the field of each `(stabilized)` state stands for, divided by the field: one number, or
    one an entry of a vector; in units of the largest factor of ``unit``, a state, where given."""
    found = {}
    for s in spec.states:
        if s.stabilized:
            log = np.asarray(getattr(state, f"{s.ascii}_log"), np.float64)
            x = getattr(state, s.ascii)
            if unit is not None:
                log = log - np.max(getattr(unit, f"{s.ascii}_log"), initial=-np.inf)
            with np.errstate(over="ignore"):
                found[s.ascii] = np.exp(log.reshape(log.shape + (1,) * (x.ndim - log.ndim)))
    return found


def grows(truth: Quantities) -> float:
    """The magnitude of the largest quantity if it is beyond `GROWTH` (infinite where one is not a
    number), else 0."""
    sizes = [float(np.max(np.abs(x), initial=0)) for x in truth.values()]
    top = math.inf if any(map(math.isnan, sizes)) else max(sizes, default=0.0)
    return 0.0 if top <= GROWTH else top


def _kind(name: str) -> str:
    """What a quantity is: a "state", a gradient "d", or an "output"."""
    first = name.replace(".", " ").split()[0]
    return first if first in ("state", "d") and first != name else "output"


def errors(got: Quantities, truth: Quantities, measure: Callable[..., float]) -> dict[str, float]:
    """The error of each quantity relative to its own size, down to 1e-5 of that of the largest of
    its kind: below that float64 itself has no digits left where a cotangent cancels."""
    found = {}
    for name, want in truth.items():
        kind = [x for n, x in truth.items() if _kind(n) == _kind(name)]
        largest = max(float(np.max(np.abs(x), initial=0)) for x in kind)
        x = got.get(name)
        if x is None or x.shape != want.shape:
            found[name] = np.inf
        else:
            found[name] = measure(x.astype(np.float64), want, 1e-5 * largest)
    return found


def largest_error(x: Array, want: Array, floor: float) -> float:
    """max|x - want| relative to max|want| + floor."""
    if x.size == 0 or np.array_equal(x, want, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        error = float(np.max(np.abs(x - want)))
    scale = float(np.max(np.abs(want))) + floor
    return error / scale if np.isfinite(error) and scale else np.inf


def rms_error(x: Array, want: Array, floor: float) -> float:
    """rms(x - want) relative to rms(want) + floor."""
    if x.size == 0 or np.array_equal(x, want, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.sqrt(np.mean(np.square(x - want))))
        scale = float(np.sqrt(np.mean(np.square(want)))) + floor
    return error / scale if np.isfinite(error) and scale else np.inf


def cut(spec: Spec, arrays: Arrays, tokens: Any, rows: Any = slice(None)) -> Arrays:
    """Some tokens (and rows) of every input; params and buffers as they are."""
    inputs = {a.ascii for a in spec.args if a.role == "input"}
    return {n: x[rows][:, tokens] if n in inputs else x for n, x in arrays.items()}


def _whole(shape: Shape, dims: Mapping[str, int]) -> bool:
    try:
        return all(axis.evaluate(dims) > 0 for axis in shape)
    except ValueError:
        return False


def _turns(spec: Spec, dims: Mapping[str, int]) -> bool:
    """Whether no `rotate` has more angles than pairs of channels."""
    turned = (node.args for node in nodes(roots(spec)) if node.op == "rotate")
    return all(2 * a.shape[0].evaluate(dims) <= x.shape[0].evaluate(dims) for x, a in turned)


def _accurate(dtype: Any) -> Any:
    return np.float64 if dtype == np.float64 or dtype == np.int64 else np.float32
