"""A parsed `File` goes in, a typed `Spec` comes out, or every fault of the file at once.

    checked = check(file, {"K": 32}, Loader(parse, folder))
    checked.spec, checked.warnings

Order of work: bases and library features are merged into one file (`load`), names and sizes are
declared (`declare`), each statement is typed in turn (`statements`, `infer`), and last come the
rules that need the whole spec (`rules`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from lacc.diagnostics import Diagnostic, LaccError, Span
from lacc.spec import rules
from lacc.spec.facts import Facts
from lacc.spec.format import unparse
from lacc.spec.load import Loader, merge
from lacc.spec.model import Output, Spec, State
from lacc.spec.names import ascii_spelling
from lacc.spec.scope import ARGS
from lacc.spec.shapes import Shape, Size
from lacc.spec.statements import Statements
from lacc.spec.syntax import Declare, File, Node, Type


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec without errors, and the warnings about it."""

    spec: Spec
    warnings: list[Diagnostic]


def check(
    file: File,
    overrides: Mapping[str, float] | None = None,
    load: Loader | None = None,
    problems: Sequence[Diagnostic] = (),
) -> Checked:
    """The typed spec of ``file``.

    ``overrides`` gives dims and consts another value, by name or ASCII spelling; ``load`` finds
    what the file extends and uses; ``problems`` is what the frontend reported. Raises LaccError
    with every diagnostic of the file, in the order of its lines, where one of them is an error.
    """
    diagnostics = list(problems)
    merged = merge(file, load, diagnostics.append)
    typed = Statements(merged, overrides or {}, diagnostics.append)
    rules.whole_spec(
        Facts(
            file=merged,
            scope=typed.scope,
            updates=typed.updates,
            readouts=typed.readouts,
            definitions={d.name: d.expr for d in typed.definitions if d.role != "feature"},
            initials=typed.initials,
            typed=typed.typer.typed,
            report=diagnostics.append,
        )
    )
    found = _in_order(diagnostics, file)
    if any(d.severity == "error" for d in found):
        raise LaccError([d for d in found if d.code != "LA0229"])
    return Checked(_spec(merged, typed), found)


def _in_order(found: list[Diagnostic], file: File) -> list[Diagnostic]:
    """The same diagnostics without repetitions, in the order of the file, other files' last."""
    seen: dict[tuple[object, ...], Diagnostic] = {}
    for diagnostic in found:
        span = diagnostic.span
        place = (span.source.name, span.start, span.end) if span is not None else ()
        seen.setdefault((diagnostic.code, *place, diagnostic.message), diagnostic)
    return sorted(seen.values(), key=partial(_place, file))


def _place(file: File, diagnostic: Diagnostic) -> tuple[bool, int]:
    span = diagnostic.span
    return (False, -1) if span is None else (span.source is not file.source, span.start)


def _spec(file: File, typed: Statements) -> Spec:
    symbols, declared = typed.scope.symbols, typed.declared
    states = [
        State(
            name=name,
            ascii=ascii_spelling(name),
            shape=symbols[name].shape,
            per=symbols[name].per,
            initial=typed.initials[name],
            update=typed.updates[name],
            direction=rules.direction(name, typed.updates[name]),
            stabilized=any(flag.text == "stabilized" for flag, _ in statement.flags),
            span=symbols[name].span,
            doc=statement.doc,
        )
        for name, statement in typed.declarations.items()
        if statement.role == "state"
    ]
    outputs = [
        Output(
            name=name,
            ascii=ascii_spelling(name),
            shape=symbols[name].shape,
            per=symbols[name].per,
            expr=typed.readouts[name],
            span=symbols[name].span,
            doc=statement.doc,
        )
        for name, statement in typed.declarations.items()
        if statement.role == "output"
    ]
    fixed = typed.typer.fixed
    file = _with_types(file, {output.name: output.shape for output in outputs})
    text = unparse(file)
    return Spec(
        file=file,
        name=file.name.text,
        ascii=ascii_spelling(file.name.text),
        doc=file.doc,
        dims={n: replace(d, pinned=d.pinned or n in fixed) for n, d in declared.dims.items()},
        consts=declared.consts,
        args=tuple(sorted(typed.args, key=lambda arg: ARGS.index(arg.role))),
        states=tuple(states),
        definitions=tuple(typed.definitions),
        outputs=tuple(outputs),
        expects=file.expects,
        overrides=declared.overrides,
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


# ---- the types that outputs of decorated Python have from their values


def _with_types(file: File, shapes: Mapping[str, Shape]) -> File:
    statements = [
        replace(s, type=_type(shapes[s.names[0].text], s.span))
        if isinstance(s, Declare) and s.type is None
        else s
        for s in file.statements
    ]
    return replace(file, statements=tuple(statements))


def _type(shape: Shape, span: Span) -> Type:
    return Type(tuple(_polynomial(size, span) for size in shape), span)


def _polynomial(size: Size, span: Span) -> Node:
    """A size as it would have been written."""

    def node(op: str, value: object, *args: Node) -> Node:
        return Node(op, value, args, span)

    terms = []
    for monomial, coefficient in size.terms:
        factors = [node("name", name) for name, power in monomial for _ in range(power)]
        if coefficient.numerator != 1 or not factors:
            factors.insert(0, node("number", coefficient.numerator))
        term = reduce(lambda a, b: node("mul", None, a, b), factors)
        if coefficient.denominator != 1:
            term = node("div", None, term, node("number", coefficient.denominator))
        terms.append(term)
    return reduce(lambda a, b: node("add", None, a, b), terms)
