"""The text of an emitted torch module in, its functions as a kernel calls them out.

They take tensors, or NumPy arrays, which go to the GPU where there is one (else to the CPU, where
only interpreted kernels run), and give back what they were given. The module is loaded at its first
call, so that a file can be written where nothing of it could run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from lacc import interpreter
from lacc.diagnostics import LaccError, Span, error
from lacc.runtime.kernel import load


def missing() -> str:
    """What this machine lacks to run kernels of torch and Triton, "" where nothing."""
    if absent := _absent():
        return absent
    if interpreted() or _cuda():
        return ""
    return "it needs a GPU, or TRITON_INTERPRET=1 to interpret it"


def prepare() -> str:
    """Makes this process able to run kernels: on a machine without a GPU it will interpret them,
    which is said. Raises LaccError (LA0702) where it cannot."""
    if absent := _absent():
        raise LaccError([error("LA0702", None, name="triton", reason=absent)])
    if not interpreted():
        if _cuda():
            return ""
        if "triton" in sys.modules:
            late = "there is no GPU, and triton was imported before TRITON_INTERPRET=1 was set"
            raise LaccError([error("LA0702", None, name="triton", reason=late)])
        os.environ["TRITON_INTERPRET"] = "1"
    interpreter.repair()
    return "no GPU: kernels run interpreted" if not _cuda() else "kernels run interpreted"


def interpreted() -> bool:
    """Whether this process interprets kernels, or will."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _absent() -> str:
    absent = [package for package in ("torch", "triton") if find_spec(package) is None]
    return f"it needs {' and '.join(absent)}" if absent else ""


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def functions(
    names: tuple[str, str, str], source: str
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions called ``names`` of an emitted module of Triton: see `calling`."""

    def loaded() -> dict[str, Any]:
        if interpreted():
            interpreter.repair()
        return load(names[0], source)

    return calling(names, loaded)


def calling(
    names: tuple[str, str, str], load_: Callable[[], dict[str, Any]]
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions called ``names`` of a module of torch that ``load_`` loads when one is first
    called: each takes arguments by name and the contract's keywords; with NumPy arrays among them
    it gives NumPy arrays."""
    loaded: dict[str, Any] = {}

    def by_name(name: str) -> Callable[..., Any]:
        def call(arguments: Mapping[str, Any], **options: Any) -> Any:
            if not loaded:
                loaded.update(load_())
            given = {**arguments, **options}
            if not any(isinstance(x, np.ndarray) for x in arguments.values()):
                return loaded[name](**given)
            converted = tensors(given)
            found = loaded[name](**converted)
            for written, x in _pairs(options.get("out"), converted.get("out")):
                if not np.shares_memory(written, arrays(x)):
                    written[...] = arrays(x)
            return arrays(found)

        return call

    forward, step, vjp = map(by_name, names)
    return forward, step, vjp


def _pairs(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """The arrays of a state beside its tensors."""
    if isinstance(x, np.ndarray):
        yield x, y
    elif isinstance(x, Mapping):
        yield from ((x[key], y[key]) for key in x)
    elif x is not None:
        yield from zip(x, y)


def refusal(
    target: str, what: str, reason: str = "it is not lowered yet", span: Span | None = None
) -> LaccError:
    """The error of ``what`` (a mode, a call, a keyword) a target does not offer, and why."""
    hint = "compile with --target numpy"
    return LaccError([error("LA0703", span, target=target, what=what, reason=reason, hint=hint)])


def tensor(x: Any) -> Any:
    """A NumPy array as a tensor, where kernels run; on the CPU the same memory where it can be."""
    import torch

    plain = x if x.flags.writeable and all(step >= 0 for step in x.strides) else np.array(x)
    if x.dtype.name == "bfloat16":
        found = torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
    else:
        found = torch.from_numpy(plain)
    return found.to("cuda") if torch.cuda.is_available() else found


def tensors(x: Any) -> Any:
    """``x`` with tensors for NumPy arrays, those of a tuple or dict too, and torch's dtypes."""
    import torch

    if isinstance(x, np.ndarray):
        return tensor(x)
    if isinstance(x, tuple):
        parts = map(tensors, x)
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if isinstance(x, Mapping):
        return {key: tensors(part) for key, part in x.items()}
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        return getattr(torch, np.dtype(x).name)
    return x


def arrays(x: Any) -> Any:
    """A tensor as NumPy, those of a tuple or dict too."""
    import torch

    if isinstance(x, tuple):
        parts = map(arrays, x)
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if isinstance(x, Mapping):
        return {key: arrays(part) for key, part in x.items()}
    if x.dtype == torch.bfloat16:
        import ml_dtypes

        return x.detach().cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.detach().cpu().numpy()
