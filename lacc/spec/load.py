"""A file that extends another or uses the library goes in; one file without `extends` and `use`
comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lacc import library
from lacc.diagnostics import Diagnostic, LaccError, Source, Span, error, suggest
from lacc.spec.builtins import FUNCTIONS
from lacc.spec.syntax import (
    Declare,
    Define,
    Feature,
    File,
    Name,
    Node,
    Recur,
    Sized,
    Statement,
    Use,
)

Parse = Callable[[Source], tuple[File | None, list[Diagnostic]]]
Report = Callable[[Diagnostic], None]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Loader:
    """Finds the specs that a file names: ``parse`` is the text frontend, ``folder`` holds the file
    (None: it has none).

    Names are dotted, so that nothing outside the folder and the library is ever read.
    """

    parse: Parse
    folder: Path | None = None

    def find(
        self, path: tuple[Name, ...], folder: Path | None
    ) -> tuple[Source, Path | None] | None:
        """The spec ``a.b`` beside the file (`a/b.la`), else in the library; and the folder that it
        is in.
        """
        parts = [name.text for name in path]
        if folder is not None:
            beside = folder.joinpath(*parts[:-1], f"{parts[-1]}.la")
            if beside.is_file():
                return Source.read(beside), beside.parent
        if len(parts) == 1 and parts[0] in (*library.modules(), *library.variants()):
            return Source(f"<library>/{parts[0]}.la", library.text(parts[0])), None
        return None

    def known(self, path: tuple[Name, ...], folder: Path | None) -> list[str]:
        """What ``path`` could have meant, for "did you mean"."""
        names = [*library.modules(), *library.variants()]
        if folder is not None and len(path) == 1:
            names = [*names, *sorted(file.stem for file in folder.glob("*.la"))]
        return names


def merge(file: File, load: Loader | None, report: Report) -> File:
    """``file`` with its bases merged in and its `use`d features in place of the `use`s.

    Faults are reported; a file that still has a base is one whose base could not be read.
    """
    chain = [(file.source.name, file.name.span)]
    folder = None if load is None else load.folder
    return _uses(_extended(file, load, folder, chain, report), load, report)


def _extended(
    file: File,
    load: Loader | None,
    folder: Path | None,
    chain: list[tuple[str, Span]],
    report: Report,
) -> File:
    """``file`` on top of its base, the base on top of its own, and so on."""
    files = [file]
    while (path := files[-1].base) is not None:
        dotted = ".".join(name.text for name in path)
        span = path[0].span.to(path[-1].span)
        found, faults = _found(path, load, folder)
        for diagnostic in faults:
            report(diagnostic)
        if faults:
            break
        if load is None or found is None:
            hint = suggest(dotted, load.known(path, folder)) if load is not None else ""
            report(error("LA0404", span, name=dotted, hint=hint or f"write it as {dotted}.la"))
            break
        source, folder = found
        if any(_same(source.name, name) for name, _ in chain):
            names = " extends ".join([*(f.name.text for f in files), dotted])
            report(error("LA0405", span, names=names))
            break
        chain.append((source.name, span))
        base, faults = load.parse(source)
        for diagnostic in faults:
            report(diagnostic)
        if base is None:
            break
        files.append(base)
    merged = files.pop()
    while files:
        merged = _onto(merged, files.pop())
    return merged


def _found(
    path: tuple[Name, ...], load: Loader | None, folder: Path | None
) -> tuple[tuple[Source, Path | None] | None, list[Diagnostic]]:
    """The base and its folder, and what is wrong with its file; a path too long names no file."""
    try:
        return (None if load is None else load.find(path, folder)), []
    except LaccError as fault:
        return None, list(fault.diagnostics)
    except OSError:
        return None, []


def _same(one: str, other: str) -> bool:
    return one == other or (Path(one).name == Path(other).name and _real(one) == _real(other))


def _real(name: str) -> str:
    return name if name.startswith("<") else str(Path(name).resolve())


# ---- one file on top of another


def _onto(base: File, variant: File) -> File:
    """``variant`` on top of ``base``: same names replaced in place, whole; new declarations after
    the base's, other new statements at the end, definitions moved up to where they are first
    needed."""
    old, new = list(_single(base)), list(_single(variant))
    outputs = {
        s.names[0].text for s in (*old, *new) if isinstance(s, Declare) and s.role == "output"
    }
    fresh: dict[Key, list[Statement]] = {}
    for statement in new:
        fresh.setdefault(_key(statement, outputs), []).append(statement)
    roles = {
        _name(s): s.role if isinstance(s, Declare) else ""
        for s in new
        if _key(s, outputs)[0] == "name"
    }
    kept: list[Statement] = []
    for statement in old:
        key = _key(statement, outputs)
        if key in fresh:
            kept.extend(fresh.pop(key))
        elif key[0] != "equation" or roles.get(key[1], "state") in ("state", "output"):
            kept.append(statement)
    added = [statement for statements in fresh.values() for statement in statements]
    declared = [s for s in added if isinstance(s, Sized | Declare)]
    last = max((i + 1 for i, s in enumerate(kept) if isinstance(s, Sized | Declare)), default=0)
    merged = [*kept[:last], *declared, *kept[last:], *(s for s in added if s not in declared)]
    return replace(
        variant,
        base=base.base,
        statements=tuple(_ordered(merged, outputs)),
        doc=variant.doc or base.doc,
        broken=variant.broken | base.broken,
    )


def _single(file: File) -> Iterator[Statement]:
    """The statements with one name each."""
    for statement in file.statements:
        if isinstance(statement, Sized):
            for item in statement.items:
                yield replace(statement, items=(item,))
        elif isinstance(statement, Declare):
            for name in statement.names:
                yield replace(statement, names=(name,))
        else:
            yield statement


def _name(statement: Statement) -> str:
    if isinstance(statement, Sized):
        return statement.items[0][0].text
    if isinstance(statement, Declare):
        return statement.names[0].text
    return statement.alias.text if isinstance(statement, Use) else statement.name.text


def _key(statement: Statement, outputs: set[str]) -> Key:
    name = _name(statement)
    equation = isinstance(statement, Recur) or (isinstance(statement, Define) and name in outputs)
    return ("equation" if equation else "name", name)


def _ordered(statements: list[Statement], outputs: set[str]) -> list[Statement]:
    """The same order, but what a statement names (states apart) stands before it."""
    home: dict[str, int] = {}
    for index, statement in enumerate(statements):
        kind, name = _key(statement, outputs)
        state = isinstance(statement, Recur) or (
            isinstance(statement, Declare) and statement.role == "state"
        )
        if not state and (kind == "equation" or name not in outputs):
            home.setdefault(name, index)
    done: dict[int, None] = {}
    open_: set[int] = set()
    stack = [(index, False) for index in reversed(range(len(statements)))]
    while stack:
        index, ready = stack.pop()
        if ready:
            done[index] = None
        elif index not in done and index not in open_:
            open_.add(index)
            stack.append((index, True))
            needs = {home[name] for name in _names(statements[index]) if name in home}
            stack.extend((need, False) for need in sorted(needs - {index}, reverse=True))
    return [statements[index] for index in done]


def _names(statement: Statement) -> Iterator[str]:
    """Every name that ``statement`` mentions, promises apart."""
    roots: list[Node] = []
    if isinstance(statement, Sized):
        roots = [body for _, body in statement.items]
    elif isinstance(statement, Declare):
        roots = list(statement.type.axes) if statement.type is not None else []
        roots += [statement.default] if statement.default is not None else []
    elif not isinstance(statement, Use):
        roots = [statement.body]
    while roots:
        node = roots.pop()
        roots.extend(node.args)
        if node.op in ("name", "call"):
            yield str(node.value)
        elif node.op == "at" and isinstance(node.value, tuple):
            name, _, shift = node.value
            yield name
            if isinstance(shift, str):
                yield shift[1:]


# ---- the library


def _uses(file: File, load: Loader | None, report: Report) -> File:
    """``file`` with each `use` replaced by the library's feature under its alias."""
    statements: list[Statement] = []
    lost: set[str] = set()
    for statement in file.statements:
        if not isinstance(statement, Use):
            statements.append(statement)
            continue
        found = _library_feature(statement, load, report)
        statements += found or []
        lost |= {statement.alias.text} if found is None else set()
    return replace(file, statements=tuple(statements), broken=file.broken | lost)


def _library_feature(use: Use, load: Loader | None, report: Report) -> list[Feature] | None:
    """The feature that is used, none where it is a function of the language; None after a fault."""
    module, name = ".".join(part.text for part in use.path[:-1]), use.path[-1].text
    modules = library.modules()
    if load is None or module not in modules:
        dotted = f"{module}.{name}" if module else name
        whole = [f"{m}.{f.name.text}" for m in modules for f in _features(m, load)]
        hint = suggest(dotted, whole) or suggest(module or name, modules)
        hint = hint or "the library holds " + ", ".join(f"`{m}`" for m in modules)
        report(error("LA0406", use.path[0].span.to(use.path[-1].span), name=dotted, hint=hint))
        return None
    features = {feature.name.text: feature for feature in _features(module, load)}
    feature = features.get(name)
    if feature is None:
        hint = suggest(name, features) or f"{module} has " + ", ".join(features)
        report(error("LA0406", use.path[-1].span, name=f"{module}.{name}", hint=hint))
        return None
    if use.alias.text == name and name in FUNCTIONS:
        return []
    note = use.doc or f"{module}.{name}: {feature.doc}"
    return [replace(feature, name=use.alias, doc=note)]


def _features(module: str, load: Loader | None) -> list[Feature]:
    if load is None:
        return []
    file, _ = load.parse(Source(f"<library>/{module}.la", library.text(module)))
    assert file is not None
    return [statement for statement in file.statements if isinstance(statement, Feature)]


def explain(name: str, load: Loader) -> str | None:
    """What a function (``softplus``), a library feature (``feature_maps.taylor2``) or a module of
    the library is; None where there is none.
    """
    if name in FUNCTIONS:
        doc = FUNCTIONS[name].doc
        return doc if doc.startswith(f"{name}(") else f"{name}: {doc}"
    if name in library.modules():
        return "\n".join(f"{name}.{f.name.text}: {_first(f.doc)}" for f in _features(name, load))
    module, _, last = name.rpartition(".")
    for feature in _features(module, load) if module in library.modules() else ():
        if feature.name.text == last:
            doc = "".join(f"## {line}\n" for line in feature.doc.splitlines())
            return f"{doc}{feature.span.text.strip()}\n"
    return None


def explained(load: Loader) -> list[str]:
    """The names that `explain` knows."""
    modules = library.modules()
    whole = [f"{m}.{feature.name.text}" for m in modules for feature in _features(m, load)]
    return [*FUNCTIONS, *modules, *whole]


def _first(doc: str) -> str:
    """The first sentence."""
    return " ".join(doc.split()).split(". ")[0].rstrip(".")
