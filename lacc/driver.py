"""The whole pipeline on one screen: a spec's path or text goes in, a compiled kernel comes out.

    spec = load("gla.la", {"K": 64})
    kernel = compile(spec, target="numpy")

The only module that sees frontends and backends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lacc import diagnostics
from lacc.diagnostics import Diagnostic, LaccError, Note, Source, Span, error, suggest
from lacc.frontends.la import parse as parse
from lacc.spec import load as loading
from lacc.spec.check import check
from lacc.spec.load import Loader
from lacc.spec.model import Spec
from lacc.spec.syntax import File

if TYPE_CHECKING:
    from lacc.analysis.modes import Modes
    from lacc.analysis.plain import Plain
    from lacc.plan.choose import Wanted
    from lacc.plan.explain import Table
    from lacc.plan.plan import Plan
    from lacc.runtime.contract import Signature
    from lacc.runtime.kernel import Kernel
    from lacc.static.build import Figures
    from lacc.tile.derive import Derived
    from lacc.verify.report import Report

Given = str | os.PathLike[str] | File | Spec
"""A path (`file.py:name` is a decorated function there), source text (more than one line), what a
frontend read, or a checked spec."""


def load(
    given: Given,
    overrides: Mapping[str, float] | None = None,
    warnings: list[Diagnostic] | None = None,
) -> Spec:
    """The checked spec of a path or of source text (which has more than one line).

    ``overrides`` sets dims and consts by name. Warnings are added to ``warnings``. Raises LaccError
    with every problem of the file, OSError where there is no file.
    """
    if isinstance(given, Spec):
        if not overrides:
            return given
        given = given.file
    file: File | None
    problems: list[Diagnostic] = []
    if isinstance(given, File):
        file = given
    elif python := re.fullmatch(r"(.+\.py)(?::(\w+))?", os.fspath(given)):
        from lacc.frontends.embedded import MAX_BYTES, read

        file = read(Source.read(Path(python[1]), limit=MAX_BYTES), python[2])
    else:
        file, problems = parse(_source(given))
    if file is None:
        raise LaccError(problems)
    home = Path(file.source.name)
    loader = Loader(parse, home.parent if home.is_file() else None)
    checked = check(file, overrides, loader, problems)
    if warnings is not None:
        warnings += checked.warnings
    return checked.spec


def _source(given: str | os.PathLike[str]) -> Source:
    if isinstance(given, str) and "\n" in given:
        return Source("<spec>", given)
    return Source.read(Path(given))


def compile(
    given: Given,
    target: str = "numpy",
    *,
    dtype: str = "float32",
    mode: str = "auto",
    chunk: int | None = None,
    machine: str = "default",
    tuned: bool | str = False,
    **overrides: float,
) -> Kernel:
    """The kernel of a spec for one target, or for ``auto``: each call's, by its arguments.

    ``overrides`` set dims and consts (``K=64``); a dim that is not set is taken from the arrays of
    each call. ``dtype`` is what to plan for, ``mode`` and ``chunk`` what a call without them uses,
    ``machine`` one of those that are declared, or "local" for this one as `lacc calibrate` found
    it; with ``tuned`` what `lacc tune` measured here goes before the plan's model, or what is in
    the file that it exported. Raises LaccError, where the mode does not exist too, and ValueError
    for what is no mode, no machine and no such file."""
    from lacc.plan.choose import Wanted
    from lacc.runtime.arguments import chosen
    from lacc.runtime.torch_calls import refusal

    if target != "auto" and not target_named(target).planned and (tuned or machine != "default"):
        what = "a choice that was measured" if tuned else f"a plan for the machine {machine}"
        raise refusal(target, what, "its kernels choose as they are called")
    asked, _ = chosen(mode, chunk)
    spec = load(given, overrides)
    wanted = Wanted(dtype, mode, chunk, machine, tuned)
    if target == "auto":
        from lacc.runtime.picking import Picked

        kernel: Kernel = Picked(
            lambda name: TARGETS[name].build(spec, wanted),
            lambda name: TARGETS[name].missing(),
            mode,
            chunk,
        )
    else:
        kernel = TARGETS[target].build(spec, wanted)
    if asked in kernel.missing:
        raise LaccError([kernel.missing[asked]])
    return kernel


def emit(
    given: Given,
    stage: str,
    target: str = "numpy",
    *,
    dtype: str = "float32",
    mode: str = "auto",
    chunk: int | None = None,
    machine: str = "default",
    tuned: bool | str = False,
    **overrides: float,
) -> str:
    """The text of a stage: ast, ir, recurrence, plan, tile or code. Raises LaccError."""
    from lacc import views
    from lacc.plan.choose import Wanted
    from lacc.runtime.planning import planned

    spec = load(given, overrides)
    wanted = Wanted(dtype, mode, chunk, machine, tuned)
    match stage:
        case "ast":
            return views.of_syntax(spec)
        case "ir":
            return views.of_spec(spec)
        case "recurrence":
            return views.of_recurrences(found(spec)[0])
        case "tile":
            return views.of_programs(analyse(spec))
        case "plan":
            where = target if target in TARGETS and TARGETS[target].planned else "numpy"
            return views.of_plan(planned(spec, analyse(spec), where, wanted))
    kernel = compile(
        spec, target, dtype=dtype, mode=mode, chunk=chunk, machine=machine, tuned=tuned
    )
    if kernel.source is None:
        from lacc.runtime.torch_calls import refusal

        raise refusal(target, "emitted code", "it interprets the spec")
    return kernel.source


def build_report(
    given: Given,
    target: str = "triton",
    *,
    shape: Mapping[str, int],
    architecture: str = "sm_90",
    dtype: str = "float32",
    mode: str = "auto",
    chunk: int | None = None,
    **overrides: float,
) -> Figures:
    """What the kernels of a call of ``shape`` (B, T, H, maybe G and dims) take on an architecture,
    compiled and read off the binary; nothing runs. Raises LaccError, ValueError for sizes that the
    spec does not take."""
    from lacc.backends.torch_api import public_name
    from lacc.static.build import Refused, figures, lacking

    spec = load(given, overrides)
    if target_named(target).name != "triton":
        reason, hint = "it builds no binaries for a GPU", "compile with --target triton"
        problem = error("LA0703", None, target=target, what="report", reason=reason, hint=hint)
        raise LaccError([problem])
    if reason := lacking():
        raise LaccError([error("LA0702", None, name=target, reason=reason)])
    kernel = compile(spec, target, dtype=dtype, mode=mode, chunk=chunk)
    try:
        return figures(kernel, public_name(kernel.signature), architecture, shape, dtype)
    except Refused as refused:
        raise LaccError([_refused(spec, target, f"for {architecture}, {refused}")]) from None


def explain_plan(
    spec: Spec,
    shape: Mapping[str, int],
    target: str = "numpy",
    *,
    dtype: str = "float32",
    machine: str = "default",
    tuned: bool | str = False,
) -> tuple[Plan, tuple[Table, ...]]:
    """What a call of ``shape`` (B, T, H) does on a target that runs by a plan, numpy or c, and why.
    Raises LaccError for other targets."""
    from lacc.plan.choose import Wanted
    from lacc.plan.explain import against_softmax, explain
    from lacc.runtime.machines import machine_for
    from lacc.runtime.planning import planned
    from lacc.runtime.torch_calls import refusal

    if not target_named(target).planned:
        raise refusal(target, "plan", "it has none to explain before a call")
    derived = analyse(spec)
    plan = planned(spec, derived, target, Wanted(dtype, machine=machine, tuned=tuned))
    constants, name = machine_for(target, machine)[0], target_named(target).name
    beside = against_softmax(derived, plan, shape, constants, name, dtype)
    return plan, (*explain(derived, plan, shape), *beside)


def describe(spec: Spec) -> str:
    """What was found in a spec, in the paper's words."""
    from lacc.analysis.report import report, text

    return text(report(*found(spec)))


def lints(spec: Spec) -> list[Diagnostic]:
    """What the analysis has to say: a state that the promises allow to grow, or without chunks."""
    from lacc.analysis.notes import chunk_notes
    from lacc.analysis.stability import stability_warnings

    plain, modes = found(spec)
    return [*stability_warnings(plain.unscaled, plain.written), *chunk_notes(plain.spec, modes)]


def found(spec: Spec) -> tuple[Plain, Modes]:
    """What is compiled of a spec, and the modes that it has."""
    from lacc.analysis.modes import modes
    from lacc.analysis.plain import plain

    compiled = plain(spec)
    return compiled, modes(compiled)


def analyse(spec: Spec) -> Derived:
    """All tile programs of a spec, and why what it lacks does not exist."""
    from lacc.tile.derive import derive

    return derive(spec)


def verify(
    given: Given,
    target: str = "numpy",
    *,
    full: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    **overrides: float,
) -> Report:
    """Every check of every mode on ``target`` against the reference; ``full`` draws more."""
    from lacc.verify.cases import Scale
    from lacc.verify.harness import verify

    spec = load(given, overrides)
    kernel = compile(spec, target)
    said = prepare(target)
    reference = kernel if target == "reference" else _reference(spec)
    scale = Scale(*TARGETS[target].lengths)
    notes = (said,) if said else ()
    return verify(reference, [kernel], full=full, progress=progress, scale=scale, notes=notes)


def _offered(
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
        raise LaccError([_refused(spec, target, ", and ".join(reasons), chunk_.expr.span)])
    why_not = {m: obstacle.reason if obstacle else "" for m, obstacle in derived.modes.items()}
    return missing, signature(spec, {m: why_not.get(m, "") for m in MODES}, derived.longest)


def _numpy(spec: Spec, wanted: Wanted) -> Kernel:
    """One NumPy file, loaded."""
    from lacc.backends.to_numpy import public_name, to_numpy
    from lacc.runtime.kernel import Kernel, from_source
    from lacc.runtime.planning import planned

    derived = analyse(spec)
    missing, seen = _offered(spec, "numpy", derived, wanted.chunk)
    plan = planned(spec, derived, "numpy", wanted)
    source = to_numpy(derived, plan, seen)
    return Kernel(
        spec,
        "numpy",
        seen,
        from_source(public_name(seen), source),
        missing=missing,
        verify=partial(verify, spec, "numpy"),
        source=source,
        plan=plan,
        mode=wanted.mode,
        chunk=wanted.chunk,
    )


def _refused(
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

    derived = analyse(spec)
    missing, seen = _offered(spec, "triton", derived, wanted.chunk)
    obstacle = derived.modes["chunk"]
    if obstacle is not None and derived.attends_by_token:
        reason = f"it runs token by token ({obstacle.reason}), where no kernel attends"
        hint = "the target numpy compiles it"
        raise LaccError([_refused(spec, "triton", reason, obstacle.expr.span, hint)])
    source = to_triton(derived, seen, wanted.chunk)
    name = public_name(seen)
    return Kernel(
        spec,
        "triton",
        seen,
        functions((name, f"{name}_step", f"{name}_vjp"), source),
        missing=missing,
        verify=partial(verify, spec, "triton"),
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

    derived = analyse(spec)
    missing, seen = _offered(spec, "c", derived, wanted.chunk)
    plan = planned(spec, derived, "c", wanted)
    emitted = to_c(derived, plan, seen)
    return Kernel(
        spec,
        "c",
        seen,
        functions(emitted.name, emitted.files),
        missing=missing,
        verify=partial(verify, spec, "c"),
        source=emitted.c,
        files=emitted.files,
        plan=plan,
        mode=wanted.mode,
        chunk=wanted.chunk,
    )


def _reference(spec: Spec, _: object = None) -> Kernel:
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
    check = partial(verify, spec, "reference")
    return Kernel(spec, "reference", seen, functions, missing=missing, verify=check)


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
        Target("reference", "token by token in float64, the meaning of a spec", _reference),
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


def explain(name: str) -> str:
    """The page of an error code, or what a function or library name is. Raises KeyError, with what
    could have been meant, where there is none.
    """
    if name in diagnostics.codes():
        return diagnostics.explain(name)
    text = loading.explain(name, Loader(parse))
    if text is None:
        known = [*diagnostics.codes(), *loading.explained(Loader(parse))]
        raise KeyError(suggest(name, known))
    return text
