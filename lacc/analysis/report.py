"""What is compiled and its modes in, what was found in the spec out, in the words of papers: plain
data, and its text.

    sections = report(plain(spec), modes(plain(spec)))
    print(text(sections))

Everything is said of the structure that was found, never of a variant that it looks like. States
are those that were written; how a `(stabilized)` one is kept is a row of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from lacc.analysis.modes import Modes
from lacc.analysis.plain import Plain
from lacc.analysis.ranges import Ranges
from lacc.analysis.report_readouts import Readouts
from lacc.analysis.report_states import States
from lacc.analysis.words import Words
from lacc.spec.model import Spec
from lacc.spec.names import is_memory

_INTERVAL = re.compile(r"([\[(][-\d.inf]+,) ")
_WIDTH, _LABEL = 100, 16
_MODES = ("recurrent", "step", "chunk", "parallel")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: rows of a label and what is said."""

    title: str
    rows: tuple[tuple[str, str], ...]


def report(plain: Plain, modes: Modes) -> tuple[Section, ...]:
    """What was found."""
    spec, recurrences = plain.unscaled, plain.written
    ranges = Ranges(spec)
    teller, readouts = _Teller(spec, modes, ranges), Readouts(spec, ranges)
    states = States(plain, modes, ranges)
    sections = [Section("spec", tuple(teller.spec_rows()))]
    features = tuple(teller.features())
    sections += [Section("feature map", features)] if features else []
    for recurrence in recurrences:
        own = [name for name in recurrence.states if not is_memory(name)]
        if not own:
            continue
        noun = "state" if len(own) == 1 else "states"
        names = ", ".join(f"{name} {teller.shape(spec.state(name).shape)}" for name in own)
        sections.append(Section(f"{noun} {names}", tuple(states.recurrence(recurrence))))
    sections += [Section("normalizer", tuple(readouts.normalizers(recurrences)))]
    sections += [Section("readout", tuple(readouts.readouts()))]
    sections += [Section("modes", tuple(teller.mode_rows()))]
    return tuple(section for section in sections if section.rows)


def text(sections: Sequence[Section]) -> str:
    """The report as text: rows under the title of their section, long ones wrapped."""
    labels = [label for section in sections for label, _ in section.rows]
    width = max((len(label) for label in labels if len(label) <= _LABEL), default=0)
    lines = []
    for section in sections:
        lines.append(section.title)
        for label, said in section.rows:
            lines += wrap(
                _INTERVAL.sub("\\1\N{NO-BREAK SPACE}", said),
                _WIDTH,
                initial_indent=f"  {label:<{width}}  ",
                subsequent_indent=" " * (width + 4),
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


class _Teller(Words):
    """Rows of the sections on the spec, its features and its modes."""

    def __init__(self, spec: Spec, modes: Modes, ranges: Ranges) -> None:
        super().__init__(spec, ranges)
        self.modes = modes

    def spec_rows(self) -> Iterator[tuple[str, str]]:
        """Name, first line of its documentation, sizes."""
        yield "variant", self.spec.name
        if self.spec.doc:
            yield "source", " ".join(self.spec.doc.split("\n\n")[0].split())
        sizes = [f"{dim.name} = {dim.default}" for dim in self.spec.dims.values()]
        if sizes:
            yield "sizes", ", ".join(sizes)

    def features(self) -> Iterator[tuple[str, str]]:
        """One row for each application: what it is, its size, its sign."""
        for definition in self.spec.definitions:
            if definition.role != "feature":
                continue
            interval = self.ranges.of(definition.expr)
            said = f"{self.formula(definition.expr)}: {self.shape(definition.expr.shape)}"
            if interval.positive:
                said += ", positive"
            elif interval.lo >= 0:
                said += ", not negative"
            else:
                said += ", of either sign"
            yield definition.name, said

    def mode_rows(self) -> Iterator[tuple[str, str]]:
        """Which modes exist, and the term that prevents each of the others."""
        longest = self.modes.longest
        for mode in _MODES:
            obstacle = self.modes.by_name[mode]
            if obstacle is None:
                bounded = mode == "chunk" and longest is not None
                yield mode, f"yes, of up to {longest} tokens" if bounded else "yes"
                continue
            line, _ = obstacle.expr.span.source.position(obstacle.expr.span.start)
            term = self.say(obstacle.expr)
            where = "" if term in obstacle.reason else f": {term}"
            yield mode, f"no: {obstacle.reason}{where} (line {line})"
