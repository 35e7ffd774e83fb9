"""A checked spec and what is wanted go in, the kernel of a target comes out: what there is to
compile for, how, and what of it this machine can run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lacc.diagnostics import Diagnostic, LaccError, Note, Span, error, suggest
from lacc.spec.model import Spec

if TYPE_CHECKING:
    from lacc.plan.choose import Wanted
    from lacc.runtime.contract import Signature
    from lacc.runtime.kernel import Kernel
    from lacc.tile.derive import Derived


def offered(
    spec: Spec, target: str, derived: Derived, chunk: int | None
) -> tuple[dict[str, Diagnostic], Signature]:
    """The error of each mode that does not exist, and what callers see. Raises LaccError where
    none does, or a chunk has too many tokens."""
    from lacc.runtime.contract import MODES
    from lacc.runtime.signature import signature

    modes = ", ".join(mode for mode, obstacle in derived.modes.items() if obstacle is None)
    missing = {}
    for mode, obstacle in derived.modes.items():
        if obstacle is not None:
            span, why = obstacle.expr.span, obstacle.reason
            notes = [Note(obstacle.cure)] if obstacle.cure else []
            values = {"variant": spec.name, "mode": mode, "reason": why, "modes": modes}
            missing[mode] = (
                error("LA0602", span, reason=why)
                if mode == "step"
                else error("LA0601", span, notes=notes, **values)
            )
    if chunk is not None and derived.longest is not None and chunk > derived.longest:
        bound = derived.modes["parallel"]
        assert bound is not None
        asked = f"chunk of {chunk} tokens"
        span, why = bound.expr.span, bound.reason
        raise LaccError(
            [error("LA0601", span, variant=spec.name, mode=asked, reason=why, modes=modes)]
        )
    if not {"chunk", "recurrent"} - missing.keys():
        token, chunk_ = derived.modes["recurrent"], derived.modes["chunk"]
        assert token is not None and chunk_ is not None
        reasons = dict.fromkeys((token.reason, chunk_.reason))
        raise LaccError([refused(spec, target, ", and ".join(reasons), chunk_.expr.span)])
    why_not = {m: obstacle.reason if obstacle else "" for m, obstacle in derived.modes.items()}
    return missing, signature(spec, {m: why_not.get(m, "") for m in MODES}, derived.longest)


def _check_attention(spec: Spec, target: str, derived: Derived) -> None:
    """Raises LaccError where a recurrence attends, which kernels of a device do not do."""
    obstacle = derived.modes["chunk"]
    if obstacle is not None and derived.attends_by_token:
        reason = (
            "its recurrence attends to earlier values of the state, each of which is there only "
            f"once the one before it is; kernels of {target} attend to what is there for all tokens"
        )
        hint = "the target numpy compiles it"
        raise LaccError([refused(spec, target, reason, obstacle.expr.span, hint)])


def _numpy(spec: Spec, wanted: Wanted) -> Kernel:
    """One NumPy file, loaded."""
    from lacc.backends.to_numpy import public_name, to_numpy
    from lacc.runtime.kernel import Kernel, from_source
    from lacc.runtime.planning import planned
    from lacc.tile.derive import derive

    derived = derive(spec)
    missing, seen = offered(spec, "numpy", derived, wanted.chunk)
    plan = planned(spec, derived, "numpy", wanted)
    source = to_numpy(derived, plan, seen)
    return Kernel(
        spec,
        "numpy",
        seen,
        from_source(public_name(seen), source),
        missing=missing,
        verify=_verifier(spec, "numpy"),
        source=source,
        plan=plan,
        mode=wanted.mode,
        chunk=wanted.chunk,
    )


def refused(
    spec: Spec,
    target: str,
    reason: str,
    span: Span | None = None,
    hint: str = "the target reference runs every spec",
) -> Diagnostic:
    """That a target does not compile a spec."""
    return error("LA0704", span, target=target, variant=spec.name, reason=reason, hint=hint)


def _triton(spec: Spec, wanted: Wanted) -> Kernel:
    """One file of torch and Triton, loaded when it is first called."""
    from lacc.backends.to_triton import to_triton
    from lacc.backends.torch_api import public_name
    from lacc.runtime.kernel import Kernel
    from lacc.runtime.torch_calls import functions
    from lacc.tile.derive import derive

    derived = derive(spec)
    missing, seen = offered(spec, "triton", derived, wanted.chunk)
    _check_attention(spec, "triton", derived)
    source = to_triton(derived, seen, wanted.chunk)
    name = public_name(seen)
    return Kernel(
        spec,
        "triton",
        seen,
        functions((name, f"{name}_step", f"{name}_vjp"), source),
        missing=missing,
        verify=_verifier(spec, "triton"),
        source=source,
        mode=wanted.mode,
        chunk=wanted.chunk,
    )


def _c(spec: Spec, wanted: Wanted) -> Kernel:
    """C files and their Python host, built and loaded when it is first called."""
    from lacc.backends.to_c import to_c
    from lacc.runtime.compiled import functions
    from lacc.runtime.kernel import Kernel
    from lacc.runtime.planning import planned
    from lacc.tile.derive import derive

    derived = derive(spec)
    missing, seen = offered(spec, "c", derived, wanted.chunk)
    plan = planned(spec, derived, "c", wanted)
    emitted = to_c(derived, plan, seen)
    return Kernel(
        spec,
        "c",
        seen,
        functions(emitted.name, emitted.files),
        missing=missing,
        verify=_verifier(spec, "c"),
        source=emitted.c,
        files=emitted.files,
        plan=plan,
        mode=wanted.mode,
        chunk=wanted.chunk,
    )


def _cuda(spec: Spec, wanted: Wanted) -> Kernel:
    """A CUDA file, its header and their Python host, built and loaded when it is first called."""
    from lacc.backends.cuda_host import cuda_texts
    from lacc.backends.to_cuda import to_cuda
    from lacc.runtime.cuda_calls import functions
    from lacc.runtime.kernel import Kernel
    from lacc.tile.derive import derive

    derived = derive(spec)
    missing, seen = offered(spec, "cuda", derived, wanted.chunk)
    _check_attention(spec, "cuda", derived)
    made = to_cuda(derived, seen, wanted.chunk)
    files = cuda_texts(derived, seen, made)
    return Kernel(
        spec,
        "cuda",
        seen,
        functions(made.name, files),
        missing=missing,
        verify=_verifier(spec, "cuda"),
        source=made.source,
        files=files,
        mode=wanted.mode,
        chunk=wanted.chunk,
    )


def reference_of(spec: Spec, _: object = None) -> Kernel:
    """The token-by-token interpreter of ``spec`` as a kernel."""
    from lacc.ir.graph import waits_for_the_end
    from lacc.library import samplers
    from lacc.runtime.contract import MODES
    from lacc.runtime.kernel import Kernel, from_core
    from lacc.runtime.oracle import reference
    from lacc.runtime.signature import signature

    why = "it runs token by token, as the spec says"
    missing = {
        mode: error(
            "LA0703", None, target="reference", what=f"mode {mode}", reason=why, hint="leave it out"
        )
        for mode in ("chunk", "parallel")
    }
    if waits := waits_for_the_end(spec):
        missing["step"] = error("LA0602", waits[1].span, reason=waits[0])
    seen = signature(spec, dict.fromkeys(MODES, ""))
    draws = {name: partial(samplers.draw, name) for name in samplers.SAMPLERS}
    functions = from_core(seen, reference(spec, draws))
    check = _verifier(spec, "reference")
    return Kernel(spec, "reference", seen, functions, missing=missing, verify=check)


def _verifier(spec: Spec, target: str) -> Callable[..., Any]:
    """What checks a kernel of ``spec`` on ``target``; it stands in the driver, which makes both."""
    return lambda **options: import_module("lacc.driver").verify(spec, target, **options)


@dataclass(frozen=True)
class Target:
    """One thing to compile for: ``build(spec, wanted)`` gives the kernel; ``missing`` says what a
    machine lacks to run it, "" if nothing; ``prepare`` does what a process can do about it and says
    so; ``lengths`` are the tokens of a chunk and the most of a sequence to verify; ``folder``: its
    files go into one; ``planned``: its kernels run by a plan."""

    name: str
    about: str
    build: Callable[[Spec, Wanted], Kernel]
    missing: Callable[[], str] = str
    prepare: Callable[[], str] = str
    lengths: tuple[int, int] = (8, 1027)
    folder: bool = False
    planned: bool = False


def _late(module: str, function: str) -> Callable[[], str]:
    """A function of a module that is not loaded before it is called."""
    return lambda: str(getattr(import_module(f"lacc.runtime.{module}"), function)())


def _c_prepare() -> str:
    usable("c")
    return ""


TARGETS = {
    target.name: target
    for target in (
        Target("reference", "token by token in float64, the meaning of a spec", reference_of),
        Target("numpy", "one file of NumPy: forward, vjp, step", _numpy, planned=True),
        Target(
            "c",
            "C with its Python host: forward, vjp, step",
            _c,
            _late("compiled", "missing"),
            _c_prepare,
            folder=True,
            planned=True,
        ),
        Target(
            "triton",
            "one file of torch and Triton: forward, vjp, step",
            _triton,
            _late("torch_calls", "missing"),
            _late("torch_calls", "prepare"),
            (16, 135),
        ),
        Target(
            "cuda",
            "CUDA C++ with its host of torch: forward, vjp, step",
            _cuda,
            _late("cuda_calls", "missing"),
            _late("cuda_calls", "prepare"),
            (16, 135),
            folder=True,
        ),
    )
}


def targets() -> dict[str, str]:
    """Every target by name, and what this machine lacks to run it ("" where nothing)."""
    return {target.name: target.missing() for target in TARGETS.values()}


def target_named(name: str) -> Target:
    """The target called ``name``. Raises LaccError where there is none."""
    if name not in TARGETS:
        hint = suggest(name, TARGETS) or f"the targets are {', '.join(TARGETS)}"
        raise LaccError([error("LA0701", None, name=name, hint=hint)])
    return TARGETS[name]


def usable(name: str) -> None:
    """Raises LaccError where the target called ``name`` cannot run on this machine."""
    if missing := target_named(name).missing():
        raise LaccError([error("LA0702", None, name=name, reason=missing)])


def prepare(name: str) -> str:
    """Makes this process able to run kernels of the target called ``name``: what was done about
    what the machine lacks, "" where nothing was. Raises LaccError where nothing can be."""
    return target_named(name).prepare()
