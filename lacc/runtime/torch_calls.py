"""The text of an emitted torch module in, its function as a kernel calls it out.

It takes tensors, or NumPy arrays, which it copies to the GPU where there is one (else to the CPU,
where only interpreted kernels run), and gives back what it was given. The module is loaded at its
first call, so that a file can be written where nothing of it could run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from lacc.diagnostics import LaccError, Span, error
from lacc.runtime.kernel import load

ASKED = ("initial_state", "chunk")


def missing() -> str:
    """What this machine lacks to run kernels of torch and Triton, "" where nothing."""
    absent = [package for package in ("torch", "triton") if find_spec(package) is None]
    if absent:
        return f"it needs {' and '.join(absent)}"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    import torch

    if torch.cuda.is_available():
        return ""
    return "it needs a GPU, or TRITON_INTERPRET=1 to interpret it"


def forward(name: str, source: str, target: str) -> Callable[..., Any]:
    """``forward(arguments, initial_state=, chunk=)`` of the function ``name``: (outputs, state)."""
    loaded: dict[str, Any] = {}

    def call(arguments: Mapping[str, Any], **options: Any) -> Any:
        asked = {key: options.pop(key) for key in ASKED if options.get(key) is not None}
        options.pop("mode", None)
        for option, value in options.items():
            if value is not None and value is not False:
                raise refusal(target, option)
        if not loaded:
            loaded.update(load(name, source))
        function = loaded[name]
        if not any(isinstance(x, np.ndarray) for x in arguments.values()):
            return function(**arguments, **asked)
        outputs, state = function(**tensors(arguments), **tensors(asked))
        return arrays(outputs), arrays(state)

    return call


def refusal(
    target: str, what: str, reason: str = "it is not lowered yet", span: Span | None = None
) -> LaccError:
    """The error of ``what`` (a mode, a call, a keyword) a target does not offer, and why."""
    hint = "compile with --target numpy"
    return LaccError([error("LA0703", span, target=target, what=what, reason=reason, hint=hint)])


def tensor(x: Any) -> Any:
    """A NumPy array as a tensor, where kernels run."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if x.dtype.name == "bfloat16":
        bits = torch.from_numpy(np.array(x).view(np.int16))
        return bits.view(torch.bfloat16).to(device)
    return torch.from_numpy(np.array(x)).to(device)


def tensors(x: Any) -> Any:
    """``x`` with tensors for NumPy arrays, those of a tuple or dict too."""
    if isinstance(x, np.ndarray):
        return tensor(x)
    if isinstance(x, tuple):
        parts = map(tensors, x)
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if isinstance(x, Mapping):
        return {key: tensors(part) for key, part in x.items()}
    return x


def arrays(x: Any) -> Any:
    """A tensor, or a NamedTuple of them, as NumPy."""
    import torch

    if isinstance(x, tuple):
        return type(x)(*map(arrays, x))
    if x.dtype == torch.bfloat16:
        import ml_dtypes

        return x.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.cpu().numpy()
