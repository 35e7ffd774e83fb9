"""Arrays of a case go in, torch tensors come out, and a function of tensors as a contestant.

torch is imported when a contestant is bound.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lacc.bench.case import Array, Arrays, Case, Unfit
from lacc.bench.contestants import Bound


def torch_for(case: Case) -> Any:
    """torch, held to the threads of the case. Raises Unfit where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
    except ImportError as problem:
        raise Unfit(f"torch is not installed ({problem})") from None
    torch.set_num_threads(case.threads)
    return torch


def tensor(torch: Any, x: Array) -> Any:
    """A copy of an array as a tensor; bfloat16 keeps its bits."""
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(x))


def array(x: Any) -> Array:
    """A tensor as a float32 (or float64) array."""
    x = x.detach()
    found: Array = (x if x.element_size() >= 4 else x.float()).numpy()
    return found


def bound(
    torch: Any,
    case: Case,
    function: Callable[..., Mapping[str, Any]],
    given: Mapping[str, Any],
    cotangents: Mapping[str, Any] | None,
    rename: Mapping[str, str] | None = None,
) -> Bound:
    """``function(**given)``, which gives outputs by name: as it is, or with the gradients of all
    of ``given`` where the case is one of training. ``rename`` gives the spec's names of these."""
    names = rename or {}
    if case.mode != "train":

        def call() -> Mapping[str, Any]:
            with torch.no_grad():
                return function(**given)

        return Bound(call, lambda found: {name: array(x) for name, x in found.items()})
    leaves = {n: x.clone().requires_grad_() for n, x in given.items() if x.is_floating_point()}
    arguments = {**given, **leaves}
    assert cotangents is not None

    def pull() -> tuple[Any, ...]:
        outputs = function(**arguments)
        found: tuple[Any, ...] = torch.autograd.grad(
            [outputs[name] for name in cotangents],
            list(leaves.values()),
            list(cotangents.values()),
            allow_unused=True,
        )
        return found

    def results(found: tuple[Any, ...]) -> Arrays:
        each = zip(leaves, found)
        return {f"d {names.get(n, n)}": array(x) for n, x in each if x is not None}

    return Bound(pull, results)
