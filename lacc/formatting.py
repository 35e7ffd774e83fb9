"""A spec's text goes in, the same spec laid out comes out, checked to read as before.

text, kept = formatted(Source.read(path))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

from lacc import driver
from lacc.diagnostics import LaccError, Source, Span, error
from lacc.spec.builtins import FUNCTIONS
from lacc.spec.layout import arrange, ascii_names, respelled, written_names
from lacc.spec.load import Loader
from lacc.spec.names import RESERVED
from lacc.spec.syntax import File, Name, Node, Use


def formatted(source: Source, ascii: bool = False) -> tuple[str, list[str]]:
    """The text of ``source`` laid out, and the names that stay although ``ascii`` asked for ASCII:
    those of other files, which it extends or uses.

    With ``ascii`` names get their ASCII spelling, as they have it in argument lists. Raises
    LaccError where the text is no spec, or two names have one spelling.
    """
    file = _read(source)
    if not ascii:
        return _same(arrange(file), file), []
    found = ascii_names(file)
    theirs = {name for base in _bases(file) for name in written_names(base)}
    theirs |= {part.text for s in file.statements if isinstance(s, Use) for part in s.path}
    names = {name: spelled for name, spelled in found.items() if name not in theirs}
    _distinct(file, names)
    return _same(arrange(file, names), _renamed(file, names)), sorted(found.keys() - names.keys())


def _read(source: Source) -> File:
    file, problems = driver.parse(source)
    if file is None or problems:
        raise LaccError(problems)
    return file


def _same(text: str, wanted: File) -> str:
    """``text``, once it reads as ``wanted`` and is a fixed point."""
    again = _read(Source(wanted.source.name, text))
    if again != wanted or arrange(again) != text:
        raise AssertionError(f"the layout of {wanted.source.name} would read otherwise")
    return text


def _bases(file: File) -> Iterator[File]:
    """The files that ``file`` extends, the nearest first."""
    home = Path(file.source.name)
    folder = home.parent if home.is_file() else None
    seen = {file.source.name}
    while file.base is not None:
        found = Loader(driver.parse, folder).find(file.base, folder)
        if found is None or found[0].name in seen:
            return
        source, folder = found
        seen.add(source.name)
        file = _read(source)
        yield file


def _distinct(file: File, names: Mapping[str, str]) -> None:
    """Raises LaccError where a new spelling is another name of the file, or a word of the
    language."""
    taken = {name: name for name in (*written_names(file), *FUNCTIONS, *RESERVED)}
    for name, spelled in names.items():
        other = taken.setdefault(spelled, name)
        if other != name:
            text = file.source.text
            at = text.find(name)
            span = Span(file.source, at, at + len(name)) if at >= 0 else file.name.span
            raise LaccError([error("LA0214", span, name=name, other=other, spelled=spelled)])


def _renamed(file: File, names: Mapping[str, str]) -> File:
    """``file`` as it reads once ``names`` have their new spelling."""

    def word(text: str) -> str:
        sign = text[:1] if text[:1] in "+-" else ""
        return sign + names.get(text.removeprefix(sign), text.removeprefix(sign))

    def nodes(node: Node) -> tuple[Node, ...]:
        return tuple(arg for arg in map(of, node.args) if isinstance(arg, Node))

    def of(thing: object) -> object:
        match thing:
            case Name():
                return replace(thing, text=word(thing.text))
            case Node(op="name" | "call" | "keyword", value=str(text)):
                return replace(thing, value=word(text), args=nodes(thing))
            case Node(op="at", value=(str(name), base, shift)):
                by = word(shift) if isinstance(shift, str) else shift
                return replace(thing, value=(word(name), base, by))
            case Node():
                return replace(thing, args=nodes(thing))
            case tuple():
                return tuple(map(of, thing))
        if is_dataclass(thing) and not isinstance(thing, type | Span | Source):
            return replace(thing, **{f.name: of(getattr(thing, f.name)) for f in fields(thing)})
        return thing

    renamed = of(file)
    assert isinstance(renamed, File)
    expects = ((respelled(key, names), respelled(value, names)) for key, value in file.expects)
    return replace(renamed, expects=tuple(expects))
