"""A derivation in, its text out: for a terminal, a page in Markdown, an appendix in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from textwrap import wrap

from lacc.derivation.derive import Derivation
from lacc.derivation.latex import Latex
from lacc.derivation.terms import Equation, Part, Section, Term
from lacc.derivation.text import Plain

WIDTH = 100
PREAMBLE = """\
\\documentclass{article}
\\usepackage[T1]{fontenc}
\\usepackage{amsmath, amssymb}
\\usepackage[margin=2.2cm]{geometry}
\\begin{document}
"""


def titled(derivation: Derivation) -> Iterator[tuple[int, str, tuple[Part, ...]]]:
    """Every heading with its level and what stands below it."""
    yield 1, derivation.recurrent.title, derivation.recurrent.parts
    for part in derivation.parts:
        yield 1, part.title, ()
        for section in part.sections:
            yield 2, section.title, section.parts


def as_text(derivation: Derivation, proof: str = "") -> str:
    """For a terminal; ``proof`` ends it."""
    printer, lines = Plain(derivation.written, derivation.spec), [_heading(derivation)]
    for level, title, parts in titled(derivation):
        lines += ["", title, ("=" if level == 1 else "-") * len(title)]
        for part in parts:
            if isinstance(part, Equation):
                lines += [f"    {line}" for line in printer.equation(part).split("\n")]
            else:
                lines += ["", *wrap(_prose(part, printer.text), WIDTH)]
    lines += ["", *wrap(proof, WIDTH)] if proof else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def as_markdown(derivation: Derivation) -> str:
    """Markdown with formulas between dollars."""
    printer, lines = Latex(derivation.written, derivation.spec), [f"# {_heading(derivation)}", ""]
    for level, title, parts in titled(derivation):
        lines += [f"{'#' * (level + 1)} {title}", ""]
        for block in _blocks(parts):
            if isinstance(block, list):
                body = " \\\\\n".join(printer.equation(e) for e in block)
                lines += [f"$$\\begin{{aligned}}\n{body}\n\\end{{aligned}}$$", ""]
            else:
                lines += [_prose(block, lambda term: f"${printer.text(term)}$"), ""]
    return "\n".join(lines).rstrip() + "\n"


def as_latex(derivation: Derivation, proof: str = "", standalone: bool = False) -> str:
    """LaTeX to be input in an appendix, or a document of its own; ``proof`` ends it."""
    printer = Latex(derivation.written, derivation.spec)
    lines = [f"% {_heading(derivation)}; needs amsmath and amssymb"]
    if standalone:
        lines.append(PREAMBLE + f"\\section*{{{escaped(_heading(derivation))}}}")
    for level, title, parts in titled(derivation):
        kind = "subsection" if level == 1 else "subsubsection"
        lines += ["", f"\\{kind}*{{{escaped(title)}}}"]
        for block in _blocks(parts):
            if isinstance(block, list):
                body = " \\\\\n".join(printer.equation(e) for e in block)
                lines += ["\\begin{align*}", body, "\\end{align*}"]
            else:
                pieces = (block,) if isinstance(block, str) else block
                lines.append(
                    "".join(
                        f"${printer.text(p)}$" if isinstance(p, Term) else escaped(p)
                        for p in pieces
                    )
                )
    lines += ["", escaped(proof)] if proof else []
    if standalone:
        lines.append("\\end{document}")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Prose for LaTeX; letters of a name as formulas."""
    text = re.sub(r"([_#%&$])", r"\\\1", text)
    return re.sub(r"[^\x00-\x7f]+", lambda found: f"${_letters(found[0])}$", text)


def _letters(text: str) -> str:
    return Latex.letters(Latex.__new__(Latex), text)


def proof(errors: Mapping[str, Mapping[str, float]]) -> str:
    """What a check found, in a sentence."""
    if not errors:
        return "There is no recurrence whose equations could be checked."
    worst = max(error for found in errors.values() for error in found.values())
    return (
        "These equations were evaluated on a chunk of random numbers before they were printed, "
        "against the recurrence token by token in float64, gradients against derivatives of it: "
        f"they agree to {worst:.0e}."
    )


def _heading(derivation: Derivation) -> str:
    return f"{derivation.written.name}, derived"


def _prose(part: str | tuple[str | Term, ...], show: Callable[[Term], str]) -> str:
    pieces = (part,) if isinstance(part, str) else part
    return "".join(piece if isinstance(piece, str) else show(piece) for piece in pieces)


def _blocks(
    parts: tuple[Part, ...],
) -> Iterator[str | tuple[str | Term, ...] | list[Equation]]:
    """Paragraphs, and equations that follow one another as one block."""
    run: list[Equation] = []
    for part in parts:
        if isinstance(part, Equation):
            run.append(part)
            continue
        if run:
            yield run
            run = []
        yield part
    if run:
        yield run


def of_section(section: Section, derivation: Derivation) -> dict[str, object]:
    """A section as plain data, its equations in text and in LaTeX."""
    specs = derivation.written, derivation.spec
    plain, latex = Plain(*specs), Latex(*specs)
    said = [_prose(p, plain.text) for p in section.parts if not isinstance(p, Equation)]
    return {
        "title": section.title,
        "text": said,
        "equations": [
            {"text": plain.equation(e), "latex": latex.equation(e)} for e in section.equations
        ],
    }
