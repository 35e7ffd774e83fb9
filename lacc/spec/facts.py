"""What the rules of a whole spec look at: typed expressions go in, who reads what and where comes
out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lacc.diagnostics import Diagnostic, Span
from lacc.spec.model import Expr
from lacc.spec.scope import Scope
from lacc.spec.syntax import Declare, Define, File, Node, Recur

When = int | str
Report = Callable[[Diagnostic], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """``updates`` and ``readouts`` hold the equations that are free of faults, ``definitions`` all
    other typed expressions by name; ``typed`` the type of each node that a statement wrote.
    """

    file: File
    scope: Scope
    updates: Mapping[str, Expr]
    readouts: Mapping[str, Expr]
    definitions: Mapping[str, Expr]
    initials: Mapping[str, Expr]
    typed: Mapping[int, Expr]
    report: Report

    def equation(self, name: str) -> Node:
        """What is written on the right of ``name``: its update or definition, else its start."""
        start: Node | None = None
        for statement in self.file.statements:
            if isinstance(statement, Recur | Define) and statement.name.text == name:
                return statement.body
            names = statement.names if isinstance(statement, Declare) else ()
            if isinstance(statement, Declare) and name in [declared.text for declared in names]:
                start = statement.default or start
        assert start is not None
        return start

    def place(self, name: str, leaf: Expr) -> Span:
        """Where the equation of ``name`` writes ``leaf``; all of it where a definition brings it
        in.
        """
        body = self.equation(name)
        stack = [body]
        while stack:
            node = stack.pop()
            if self.typed.get(id(node)) is leaf:
                return node.span
            stack.extend(reversed(node.args))
        return body.span

    def needs(self) -> dict[str, set[str]]:
        """For each state all that its update reads, at any time, and all that these read."""
        edges = {name: {s for s, _ in reads(update)} for name, update in self.updates.items()}
        closed: dict[str, set[str]] = {}
        for name, first in edges.items():
            closed[name], stack = set(), list(first)
            while stack:
                state = stack.pop()
                if state not in closed[name]:
                    closed[name].add(state)
                    stack.extend(edges.get(state, ()))
        return closed


def reads(expr: Expr) -> dict[tuple[str, When], Expr]:
    """The states that ``expr`` reads, each with its time, in order of first reading."""
    found: dict[tuple[str, When], Expr] = {}
    for node in expr.walk():
        if node.op == "state" and isinstance(node.value, tuple):
            found.setdefault(node.value, node)
    return found
