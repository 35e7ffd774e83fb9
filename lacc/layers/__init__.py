"""A kernel in, a class of torch layers around it out, or the text of a file that defines one."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Any

from lacc.diagnostics import LaccError, error
from lacc.layers.describe import described
from lacc.runtime.kernel import Kernel

TARGETS = ("auto", "c", "cuda", "triton")
"""Those whose kernels take tensors."""


def layer(kernel: Kernel) -> type[Any]:
    """The class of layers around ``kernel``, a `torch.nn.Module` (see `lacc.layers.module.Layer`).
    Raises LaccError (LA0703) where the kernel takes no tensors."""
    check(kernel.target)
    module = import_module("lacc.layers.module")
    fields = {
        "__doc__": f"A layer of {kernel.spec.name}. {kernel.spec.doc}\n\n{module.Layer.__doc__}",
        "__module__": "lacc.layers",
        "variant": kernel.signature.name,
        "values": tuple(module.Value(**fields) for fields in described(kernel)),
        "dims": MappingProxyType(dict(kernel.signature.dims)),
        "pinned": kernel.signature.pinned,
        "run": staticmethod(kernel.__call__),
        "run_step": staticmethod(kernel.step),
        "run_stepper": staticmethod(kernel.stepper),
        "__reduce__": lambda self: (again, (kernel,), self.__getstate__()),
    }
    return type(class_name(kernel), (module.Layer,), fields)


def again(kernel: Kernel) -> Any:
    """A layer around ``kernel`` with nothing in it yet, which a pickled one fills."""
    made = kernel.layer
    return made.__new__(made)


def class_name(kernel: Kernel) -> str:
    """What the class is called: ``gated_gla`` gives GatedGlaLayer."""
    words = "".join(part[:1].upper() + part[1:] for part in kernel.signature.name.split("_"))
    return f"{words}Layer"


def check(target: str, of: tuple[str, ...] = TARGETS) -> None:
    """Raises LaccError (LA0703) where kernels of ``target`` are none ``of`` those wanted."""
    if target not in of:
        reason = "its kernels take NumPy arrays, and layers hold tensors"
        if target in TARGETS:
            reason = "a file with a layer imports one kernel"
        hint = f"compile for {' or '.join(of)}"
        raise LaccError(
            [error("LA0703", None, target=target, what="layer", reason=reason, hint=hint)]
        )
