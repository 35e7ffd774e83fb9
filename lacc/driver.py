"""The whole pipeline on one screen: a spec's path or text goes in, a compiled kernel comes out.

    spec = load("gla.la", {"K": 64})
    kernel = compile(spec, target="numpy")

The only module that sees frontends; `lacc.targets` is the one that sees backends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lacc import diagnostics
from lacc.diagnostics import Diagnostic, LaccError, Source, error, suggest
from lacc.frontends.la import parse as parse
from lacc.spec import load as loading
from lacc.spec.check import check
from lacc.spec.load import Loader
from lacc.spec.model import Spec
from lacc.spec.syntax import File
from lacc.targets import TARGETS as TARGETS
from lacc.targets import prepare as prepare
from lacc.targets import reference_of, refused
from lacc.targets import target_named as target_named
from lacc.targets import targets as targets
from lacc.targets import usable as usable

if TYPE_CHECKING:
    from lacc.analysis.modes import Modes
    from lacc.analysis.plain import Plain
    from lacc.plan.explain import Table
    from lacc.plan.plan import Plan
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
    options = {"dtype": dtype, "mode": mode, "chunk": chunk, "machine": machine, "tuned": tuned}
    kernel.asked = {"target": target, **options}
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
    if target_named(target).name not in ("triton", "cuda"):
        reason, hint = "it builds no binaries for a GPU", "compile with --target triton or cuda"
        problem = error("LA0703", None, target=target, what="report", reason=reason, hint=hint)
        raise LaccError([problem])
    if reason := lacking(target):
        raise LaccError([error("LA0702", None, name=target, reason=reason)])
    kernel = compile(spec, target, dtype=dtype, mode=mode, chunk=chunk)
    try:
        return figures(kernel, public_name(kernel.signature), architecture, shape, dtype)
    except Refused as why:
        raise LaccError([refused(spec, target, f"for {architecture}, {why}")]) from None


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
    from lacc.plan.explain import against_softmax, explain, spoken_at
    from lacc.runtime.machines import machine_for
    from lacc.runtime.planning import planned
    from lacc.runtime.torch_calls import refusal

    if not target_named(target).planned:
        raise refusal(target, "plan", "it has none to explain before a call")
    derived = analyse(spec)
    plan = planned(spec, derived, target, Wanted(dtype, machine=machine, tuned=tuned))
    constants, name = machine_for(target, machine)[0], target_named(target).name
    beside = against_softmax(derived, plan, shape, constants, name, dtype)
    plan = spoken_at(derived, plan, constants, shape)
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
    reference = kernel if target == "reference" else reference_of(spec)
    scale = Scale(*TARGETS[target].lengths)
    notes = (said,) if said else ()
    return verify(reference, [kernel], full=full, progress=progress, scale=scale, notes=notes)


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
