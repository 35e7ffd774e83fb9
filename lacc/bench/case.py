"""A spec, a mode and sizes go in; one case to measure, its arrays and what they should give come
out.

Shapes: arguments are [B, T, H, *shape] as in a call; in the modes ``decode`` and ``cold`` they are
those of one token, [B, H, *shape], beside a state [B, H, *shape].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lacc import driver
from lacc.diagnostics import LaccError
from lacc.spec.model import Spec
from lacc.verify.inputs import Sizes, as_dtype, draw

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

MODES = ("forward", "train", "decode", "cold")
"""Whole sequences; these with the gradients of all arguments; one token; one token that finds no
cache warm."""

PREFIX = 64
"""Tokens that lead to the state of a decode, and that are compared of a full-sized call."""

SMALL_T, SMALL_TRAIN = 192, 128
"""Tokens of the call that is compared whole, without and with gradients: a few whole chunks of
anybody's, since some take no other lengths."""


class Unfit(Exception):
    """A contestant cannot do a case: why."""


@dataclass(frozen=True)
class Case:
    """One case: ``T`` tokens are what a call takes, in ``decode`` and ``cold`` how many came before
    (which only attention sees)."""

    spec: Spec
    mode: str
    B: int = 1
    T: int = 512
    H: int = 8
    G: int = 1
    dtype: str = "float32"
    threads: int = 1

    @property
    def dims(self) -> dict[str, int]:
        """The value of each dim."""
        plain = {name: dim.default for name, dim in self.spec.dims.items()}
        return {name: dim.size.evaluate(plain) for name, dim in self.spec.dims.items()}

    @property
    def by_token(self) -> bool:
        """Whether a call is one token."""
        return self.mode in ("decode", "cold")

    @property
    def small(self) -> Case:
        """The case whose results are compared whole."""
        most = SMALL_TRAIN if self.mode == "train" else SMALL_T
        heads = 2 * self.G if self.H % (2 * self.G) == 0 else self.H
        return replace(self, B=min(self.B, 2), T=min(self.T, most), H=heads)

    def array_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each argument of a call, by name."""
        heads = {"head": (self.H,), "group": (self.G,), "layer": ()}
        found = {}
        for arg in self.spec.args:
            own = tuple(size.evaluate(self.dims) for size in arg.shape)
            lead: tuple[int, ...] = (self.T,) if arg.per == "position" else heads[arg.per]
            if arg.role == "input":
                lead = (self.B, *(() if self.by_token else (self.T,)), *lead)
            found[arg.ascii] = (*lead, *own)
        return found

    def __str__(self) -> str:
        dims = " ".join(f"{name}={value}" for name, value in self.dims.items())
        return f"{self.mode} B={self.B} T={self.T} H={self.H} {dims}"


@dataclass(frozen=True)
class Data:
    """Arguments by name, the state to begin with (`decode`, `cold`) and the cotangent of each
    output (`train`)."""

    arguments: Arrays
    state: Any = None
    cotangents: Arrays | None = None


def data(case: Case, seed: int = 0) -> Data:
    """Arrays of a case that keep every promise of its spec. Raises LaccError where none do, and
    ValueError for sizes that do not go together."""
    if case.H % case.G:
        raise ValueError(f"H = {case.H} heads are not {case.G} groups of the same size")
    spec = case.spec
    omit = tuple(a.ascii for a in spec.args if a.default is not None)
    tokens = max(case.T, 1) if not case.by_token or grows(spec) else PREFIX
    sizes = Sizes(case.B, tokens + case.by_token, case.H, case.G)
    arguments = draw(spec, sizes, seed=seed, dtype=as_dtype(case.dtype), omit=omit)
    if case.by_token:
        return _one_token(case, arguments, tokens)
    if case.mode != "train":
        return Data(arguments)
    rng = np.random.default_rng(seed + 1)
    lead = {"head": (case.H,), "group": (case.G,), "layer": ()}
    cotangents = {
        o.ascii: rng.standard_normal(
            (case.B, case.T, *lead[o.per], *(s.evaluate(case.dims) for s in o.shape))
        ).astype(as_dtype(case.dtype))
        for o in spec.outputs
    }
    return Data(arguments, cotangents=cotangents)


def grows(spec: Spec) -> bool:
    """Whether what is kept from token to token grows with their number: attention over all."""
    return any(node.op == "attend" for o in (*spec.outputs, *spec.states) for node in _walk(o))


def _walk(thing: Any) -> Any:
    return (thing.expr if hasattr(thing, "expr") else thing.update).walk()


def _one_token(case: Case, arguments: Arrays, tokens: int) -> Data:
    timed = {a.ascii for a in case.spec.args if a.role == "input"}
    before = {n: x[:, :tokens] if n in timed else x for n, x in arguments.items()}
    token = {
        n: np.ascontiguousarray(x[:, tokens]) if n in timed else x for n, x in arguments.items()
    }
    try:
        kernel = driver.compile(case.spec, "numpy")
        if "step" in kernel.missing:
            raise Unfit("a token by itself does not exist: the spec reads what comes later")
        _, state = kernel(**wide(before))
    except LaccError:
        _, state = driver.compile(case.spec, "reference")(**wide(before))
    return Data(token, type(state)(*(_cast(x, case.dtype) for x in state)))


def _cast(x: Any, dtype: str) -> Any:
    """Floats as float32 at least: states are kept so."""
    wanted = np.float64 if dtype == "float64" else np.float32
    return x.astype(wanted) if np.issubdtype(x.dtype, np.floating) else x


def wide(arrays: Arrays) -> dict[str, Array]:
    """The same numbers in float64."""
    return {name: np.asarray(x).astype(np.float64) for name, x in arrays.items()}


class Truth:
    """What the float64 reference gives for a case, computed when first asked for."""

    def __init__(self, case: Case, given: Data) -> None:
        self.case = case
        self.given = given

    @cached_property
    def results(self) -> dict[str, Array]:
        """Outputs by name; in ``train`` gradients, as ``d q``; of a token in ``decode``."""
        reference = driver.compile(self.case.spec, "reference")
        arguments = wide(self.given.arguments)
        if self.case.mode == "train":
            assert self.given.cotangents is not None
            found = reference.vjp(**arguments, cotangent=wide(self.given.cotangents))
            return {f"d {name}": np.asarray(x) for name, x in found.items()}
        if self.case.by_token:
            state = type(self.given.state)(*(np.asarray(x) for x in self.given.state))
            outputs, _ = reference.step(**arguments, state=state)
        else:
            outputs, _ = reference(**arguments)
        return by_name(self.case.spec, outputs)


def by_name(spec: Spec, outputs: Any) -> dict[str, Array]:
    """The outputs of a call by name."""
    if len(spec.outputs) == 1:
        return {spec.outputs[0].ascii: np.asarray(outputs)}
    return {name: np.asarray(x) for name, x in outputs._asdict().items()}


def first_tokens(case: Case, given: Data, tokens: int) -> tuple[Case, Data]:
    """The first ``tokens`` of a whole sequence as a case of its own."""
    timed = {a.ascii for a in case.spec.args if a.role == "input"}
    arguments = {n: x[:, :tokens] if n in timed else x for n, x in given.arguments.items()}
    return replace(case, T=tokens), Data(arguments)
