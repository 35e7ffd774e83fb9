"""The files of a variant compiled to CUDA in, its functions as a kernel calls them out.

The files are put into the cache and loaded at the first call. Where kernels are `emulated` they run
on the CPU, on tensors there, in float64 too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from lacc.diagnostics import LaccError, error
from lacc.runtime import caching, torch_calls
from lacc.runtime.compiled import placed
from lacc.runtime.cuda_emulation import COMPILER, Emulated
from lacc.runtime.kernel import load

_EMULATIONS: list[Emulated] = []
"""What makes kernels of files that are loaded from now on; the last one does."""


def missing() -> str:
    """What this machine lacks to run kernels of CUDA, "" where nothing."""
    if absent := _absent():
        return absent
    import torch

    if _EMULATIONS:
        return ""
    if not torch.cuda.is_available():
        return "it needs a GPU; `lacc verify` emulates one"
    from lacc.runtime import cuda_building

    try:
        cuda_building.builder()
    except caching.BuildError as problem:
        return str(problem)
    return ""


def _absent() -> str:
    return "" if find_spec("torch") else "it needs torch"


def prepare() -> str:
    """Makes this process emulate kernels, since those of a GPU know no float64, which is said.
    Raises LaccError (LA0702) where it cannot."""
    reason = _absent() or ("" if shutil.which(COMPILER) else f"emulating it needs {COMPILER}")
    if reason:
        raise LaccError([error("LA0702", None, name="cuda", reason=reason)])
    if not _EMULATIONS:
        _EMULATIONS.append(Emulated())
    return f"kernels run emulated on the CPU, compiled by {COMPILER}; threads that race end them"


@contextmanager
def emulated(builder: Emulated) -> Iterator[None]:
    """Files that are loaded meanwhile have their kernels made by ``builder``."""
    _EMULATIONS.append(builder)
    try:
        yield
    finally:
        _EMULATIONS.remove(builder)


def functions(
    name: str, files: Mapping[str, str]
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """forward, step and vjp of ``files``, texts by file name, of which ``name``_cuda.py is loaded;
    with NumPy arrays they give NumPy arrays. What cannot be built raises LaccError (LA0702)."""
    own: list[Any] = [caching.BuildError]

    def loaded() -> dict[str, Any]:
        file = f"{name}_cuda.py"
        module = load(name, files[file], placed(name, files) / file)
        own.append(module["BuildError"])
        if _EMULATIONS:
            emulate(module, _EMULATIONS[-1])
        return module

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(arguments: Mapping[str, Any], **options: Any) -> Any:
            try:
                return call(arguments, **options)
            except RuntimeError as problem:
                if not isinstance(problem, tuple(own)):
                    raise
                found = error("LA0702", None, name="cuda", reason=str(problem))
                raise LaccError([found]) from None

        return guarded

    names = (name, f"{name}_step", f"{name}_vjp")
    forward, step, vjp = map(refusing, torch_calls.calling(names, loaded))
    return forward, step, vjp


def emulate(module: Mapping[str, Any], builder: Emulated) -> None:
    """The kernels of a loaded file are made by ``builder`` and take tensors on the CPU."""
    module["launched"].builder = builder
    module["SUPPORT"].everywhere = True
