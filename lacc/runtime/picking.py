"""Kernels of several targets in, functions out that take for each call the one that its arguments
ask for: where they lie decides, and what this machine has; both are said.

CUDA tensors run on `triton`, without Triton on `cuda`; CPU tensors on `c`; NumPy arrays on `c`,
without a compiler on `numpy`. Tensors stay on their device: what its targets lack is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lacc.diagnostics import LaccError, error
from lacc.runtime.kernel import Kernel

KINDS = {
    "NumPy arrays": ("c", "numpy"),
    "CPU tensors": ("c",),
    "CUDA tensors": ("triton", "cuda"),
}
"""What arguments can be, and the targets that run them: the first that can run here does."""

TENSORS = {"cpu": "CPU tensors", "cuda": "CUDA tensors"}


FUNCTIONS = ("forward", "step", "vjp", "stepper", "placed", "placed_vjp", "end", "begin")


class Picked(Kernel):
    """A kernel that runs each call on the target that its arguments ask for.

    ``chosen`` says for each kind of arguments which target that is here, and why; the text and the
    plan are those of the target for NumPy arrays. Calls, errors and keywords are those of `Kernel`.
    """

    def __init__(
        self, build: Callable[[str], Kernel], missing: Callable[[str], str], mode: str, chunk: Any
    ) -> None:
        """``build`` makes the kernel of a target, ``missing`` says what this machine lacks to run
        one, "" where nothing."""
        self._build, self._missing = build, missing
        self._kernels: dict[str, Kernel] = {}
        self._known: dict[str, Kernel] = {}
        first = self._kernel(self._target("NumPy arrays")[0])
        super().__init__(
            first.spec,
            "auto",
            first.signature,
            tuple(self._call(f"_{name}") for name in FUNCTIONS),
            missing=first.missing,
            verify=first.verify,
            source=first.source,
            files=first.files,
            plan=first.plan,
            mode=mode,
            chunk=chunk,
        )

    @property
    def chosen(self) -> dict[str, str]:
        """For each kind of arguments the target that runs them here, and why."""
        return {kind: "{}: {}".format(*self._target(kind)) for kind in KINDS}

    def _target(self, kind: str) -> tuple[str, str]:
        """The target for a kind of arguments, and why; "refused" where it cannot run here."""
        first, *others = KINDS[kind]
        lacking = self._missing(first)
        if not lacking:
            return first, "it is ready here"
        ready = (target for target in others if not self._missing(target))
        return next(ready, "refused"), f"{first}: {lacking}"

    def _kernel(self, target: str) -> Kernel:
        if target not in self._kernels:
            self._kernels[target] = self._build(target)
        return self._kernels[target]

    def _for(self, kind: str) -> Kernel:
        """The kernel of a kind of arguments. Raises LaccError (LA0702) where none can run here."""
        first = KINDS[kind][0]
        if (found := self._kernels.get(first) or self._known.get(kind)) is not None:
            return found
        target, _ = self._target(kind)
        if target == "refused":
            raise LaccError([error("LA0702", None, name=first, reason=self._missing(first))])
        self._known[kind] = self._kernel(target)
        return self._known[kind]

    def _call(self, function: str) -> Callable[..., Any]:
        """One of the functions of a kernel, of that which the arguments ask for."""

        def call(arguments: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
            return getattr(self._for(kind_of(arguments)), function)(arguments, *rest, **options)

        return call


def kind_of(arguments: Mapping[str, Any]) -> str:
    """What the arguments of a call are, of `KINDS`. Raises TypeError where tensors are apart, or
    where no target runs."""
    if all(getattr(x, "is_cpu", False) for x in arguments.values()):  # most calls
        return "CPU tensors"
    first, where = "", None
    for name, x in arguments.items():
        if x is None or isinstance(x, np.ndarray | np.generic):
            continue
        if not hasattr(x, "requires_grad"):
            raise TypeError(f"{name}: expected an array or a tensor, got {type(x)}")
        if where is None:
            first, where = name, x.device
        elif x.device.type != where.type:
            raise TypeError(f"{name}: expected a tensor on {where}, as {first}; got {x.device}")
    if where is None:
        return "NumPy arrays"
    kind = TENSORS.get(where.type)
    if kind is None:
        raise TypeError(f"{first}: expected arrays, or tensors on cpu or cuda; got {where}")
    return kind
