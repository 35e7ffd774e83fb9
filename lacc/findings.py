"""What commands find goes in, plain data for JSON comes out; docs/json.md is its reference.

Places count lines and columns from 1 and characters from 0, both in code points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lacc.diagnostics import Diagnostic, LaccError, Span
from lacc.spec.format import show
from lacc.spec.model import Spec
from lacc.spec.shapes import show as show_shape

if TYPE_CHECKING:
    from lacc.analysis.modes import Modes
    from lacc.analysis.plain import Plain
    from lacc.derivation.derive import Derivation
    from lacc.plan.explain import Table
    from lacc.plan.plan import Plan
    from lacc.trial import Trial
    from lacc.verify.against import Comparison
    from lacc.verify.report import Report

FORMAT = 1
"""The number of the format; it grows when a field changes its meaning or goes."""

Data = dict[str, Any]


def document(
    command: str, code: int, diagnostics: Iterable[Data], result: Mapping[str, Any]
) -> str:
    """The one document that a command prints."""
    from lacc import __version__

    whole = {
        "format": FORMAT,
        "lacc": __version__,
        "command": command,
        "exit": code,
        "diagnostics": list(diagnostics),
        "result": dict(result),
    }
    return json.dumps(_finite(whole), ensure_ascii=False, indent=2, allow_nan=False)


def _finite(thing: Any) -> Any:
    """``thing`` with the numbers that JSON lacks as text: "nan", "inf", "-inf"."""
    if isinstance(thing, Mapping):
        return {str(key): _finite(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_finite(value) for value in thing]
    if isinstance(thing, float) and not abs(thing) < float("inf"):
        return str(thing)
    return thing


def exit_code(problem: LaccError) -> int:
    """What a command ends with: 3 where a target is the matter, else 1."""
    return 3 if problem.code.startswith("LA07") else 1


def of_diagnostic(diagnostic: Diagnostic) -> Data:
    """Code, severity, message, hint, place, notes."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.help,
        "span": of_span(diagnostic.span),
        "notes": [{"message": n.message, "span": of_span(n.span)} for n in diagnostic.notes],
    }


def of_fault(code: str, message: str, hint: str | None = None) -> Data:
    """An error that is none of a spec: of usage, or internal."""
    return {
        "code": code,
        "severity": "error",
        "message": message,
        "hint": hint,
        "span": None,
        "notes": [],
    }


def of_span(span: Span | None) -> Data | None:
    """Where it begins and ends."""
    if span is None:
        return None
    (line, column), (end_line, end_column) = map(span.source.position, (span.start, span.end))
    return {
        "file": span.source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "start": span.start,
        "end": span.end,
        "text": span.text,
    }


def of_spec(spec: Spec, plain: Plain, modes: Modes) -> Data:
    """What a spec declares and what was found in it."""
    from lacc.analysis.report import report
    from lacc.views import class_of

    return {
        "variant": spec.name,
        "ascii": spec.ascii,
        "sha256": spec.digest,
        "dims": {dim.name: dim.default for dim in spec.dims.values()},
        "consts": dict(spec.consts),
        "arguments": [
            {
                "name": a.name,
                "ascii": a.ascii,
                "role": a.role,
                "shape": show_shape(a.shape),
                "per": a.per,
                "optional": a.default is not None or a.draw is not None,
                "where": [f"{show(p.left)} {p.cmp} {show(p.right)}" for p in a.promises],
            }
            for a in spec.args
        ],
        "states": [
            {"name": s.name, "ascii": s.ascii, "shape": show_shape(s.shape), "per": s.per}
            for s in spec.states
        ],
        "outputs": [
            {"name": o.name, "ascii": o.ascii, "shape": show_shape(o.shape), "per": o.per}
            for o in spec.outputs
        ],
        "recurrences": [
            {
                "states": [name for name in r.states if "@" not in name],
                "class": class_of(r),
                "direction": r.direction,
            }
            for r in plain.written
            if any("@" not in name for name in r.states)
        ],
        "modes": {
            name: {"exists": why is None, "reason": why and why.reason}
            for name, why in modes.by_name.items()
        },
        "longest_chunk": modes.longest,
        "report": [
            {"title": s.title, "rows": [{"label": label, "text": text} for label, text in s.rows]}
            for s in report(plain, modes)
        ],
    }


def of_plan(plan: Plan, tables: Iterable[Table]) -> Data:
    """The machine, the reasons, and the tables of a call."""
    return {
        "machine": plan.machine,
        "why": list(plan.why),
        "tables": [{"title": t.title, "header": t.header, "rows": t.rows} for t in tables],
    }


def of_verified(report: Report) -> Data:
    """Every check on every mode with its worst error, and each failure."""
    return {
        "variant": report.spec,
        "passed": report.passed,
        "cells": [
            {
                "check": check,
                "mode": mode,
                "passed": cell.passed,
                "error": cell.worst and cell.worst.error,
                "limit": cell.worst and cell.worst.limit,
                "quantity": cell.worst and cell.worst.quantity,
                "case": cell.worst and str(cell.worst.case),
                "growth": cell.growth or None,
            }
            for (check, mode), cell in report.cells.items()
        ],
        "failures": list(report.failures),
        "notes": [*report.notes, *report.growths],
    }


def of_comparison(comparison: Comparison) -> Data:
    """The errors of each quantity, and the first difference of those that have one."""
    return {
        "function": comparison.function,
        "variant": comparison.spec,
        "passed": comparison.passed,
        "quantities": [
            {"name": name, "error": error, "limit": limit}
            for name, (error, limit) in comparison.errors.items()
        ],
        "differences": [
            {
                "quantity": d.quantity,
                "place": d.place,
                "yours": d.yours,
                "expected": d.expected,
                "share": d.share,
                "likely": d.likely,
                "case": d.case,
            }
            for d in comparison.differences
        ],
        "notes": list(comparison.notes),
    }


def of_derivation(derivation: Derivation, errors: Mapping[str, Mapping[str, float]]) -> Data:
    """The sections of a derivation, its equations in text and in LaTeX, and its check."""
    from lacc.derivation.written import of_section

    parts = [
        {
            "title": part.title,
            "class": part.kind,
            "states": list(part.states),
            "sections": [of_section(section, derivation) for section in part.sections],
            "errors": errors.get(part.title),
        }
        for part in derivation.parts
    ]
    recurrent = of_section(derivation.recurrent, derivation)
    return {"variant": derivation.written.name, "recurrent": recurrent, "parts": parts}


def of_trial(trial: Trial) -> Data:
    """The arrays of a run, its time and its errors."""
    groups = (("in", trial.arguments), ("out", trial.outputs), ("state", trial.states))
    return {
        "shape": trial.shape,
        "dims": trial.dims,
        "arrays": [
            {
                "role": role,
                "name": name,
                "shape": list(x.shape),
                "dtype": str(x.dtype),
                "error": trial.errors.get(name),
            }
            for role, arrays in groups
            for name, x in arrays.items()
        ],
        "seconds": trial.seconds,
    }
