"""From a statement that does not parse comes the diagnostic that says what was probably meant."""

from __future__ import annotations

from lark.exceptions import UnexpectedInput

from lacc.diagnostics import Diagnostic, Span, error
from lacc.spec.syntax import File


def explain_mistake(statement: Span, fault: UnexpectedInput, start: str) -> Diagnostic:
    """What is wrong with a statement at the place where the grammar's ``start`` stopped."""
    place = min(statement.start + (fault.pos_in_stream or 0), statement.end)
    here = Span(statement.source, place, place + 1)
    return error("LA0104", here, found=f"`{here.text}`", expected="")


def subscripts(file: File) -> list[Diagnostic]:
    """A diagnostic for each `S_t` that was meant as `S[t]`."""
    return []
