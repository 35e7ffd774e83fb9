"""Modules of lacc in, pieces of their text out, for files that must stand alone.

A piece is what follows the imports, or chosen functions with all that they need of the same module.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import takewhile
from types import MappingProxyType


@cache
def _parsed(module: str) -> tuple[str, ast.Module]:
    package, _, name = module.rpartition(".")
    text = files(importlib.import_module(package)).joinpath(f"{name}.py").read_text("utf-8")
    return text, ast.parse(text)


def _start(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(d.lineno for d in decorators)])
    return first


def _is_head(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Import | ast.ImportFrom)


def imports(*modules: str, also: Mapping[str, Iterable[str]] = MappingProxyType({})) -> list[str]:
    """The import lines of the modules, and of ``also`` (module, names), sorted, each name once."""
    plain: set[str] = set()
    named = {module: {*names} for module, names in also.items()}
    for module in modules:
        for node in _parsed(module)[1].body:
            if isinstance(node, ast.Import):
                plain.update(ast.unparse(ast.Import([alias])) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and _from_outside(node):
                names = {ast.unparse(alias) for alias in node.names}
                named.setdefault(node.module or "", set()).update(names)
    lines = sorted(plain, key=lambda line: ("numpy" in line, line))
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in named.items()]
    standard = sorted(line for line in lines if "numpy" not in line)
    return [*standard, "", *sorted(line for line in lines if "numpy" in line)]


def _from_outside(node: ast.ImportFrom) -> bool:
    """Whether an import is neither of a language feature nor of another module that is pasted."""
    return (node.module or "").partition(".")[0] not in ("__future__", "lacc")


def body(module: str) -> str:
    """All that follows the imports of a module."""
    text, tree = _parsed(module)
    last = max(node.end_lineno or 0 for node in takewhile(_is_head, tree.body))
    return "\n".join(text.splitlines()[last:]).strip("\n") + "\n"


def names(module: str) -> set[str]:
    """Names that a module defines or imports at its top."""
    found: set[str] = set()
    for node in _parsed(module)[1].body:
        found |= _defines(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {t.id for t in targets if isinstance(t, ast.Name)}
    return set()


def chosen(module: str, wanted: Iterable[str]) -> str:
    """The definitions of ``wanted`` names and of what they use, in the module's order."""
    text, tree = _parsed(module)
    lines = text.splitlines()
    defined = {name: node for node in tree.body for name in _defines(node)}
    keep, stack = set(), [name for name in wanted if name in defined]
    while stack:
        name = stack.pop()
        if name not in keep:
            keep.add(name)
            used = {n.id for n in ast.walk(defined[name]) if isinstance(n, ast.Name)}
            stack.extend(used & defined.keys())
    pieces = [
        "\n".join(lines[_start(node) - 1 : node.end_lineno])
        for node in tree.body
        if _defines(node) & keep
    ]
    blank = ["\n\n\n" if piece.startswith(("def", "class", "@")) else "\n" for piece in pieces]
    return (
        "".join(gap + piece for gap, piece in zip(blank, pieces)).strip("\n") + "\n"
        if pieces
        else ""
    )
