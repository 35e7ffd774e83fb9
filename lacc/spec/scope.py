"""What a name stands for: declared things go in by line, symbols come out by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from lacc.diagnostics import Span
from lacc.spec import syntax
from lacc.spec.model import Expr
from lacc.spec.shapes import Shape, Size

ARGS = ("input", "param", "buffer")


@dataclass(slots=True)
class Symbol:
    """One declared name. ``kind`` is dim, const, input, param, buffer, state, output, feature,
    gate, normalizer or "" (a plain definition). ``index`` is the statement that declares it: names
    may be used after it only, states anywhere. ``broken`` when its type has a fault of its own, so
    that its uses stay silent."""

    name: str
    kind: str
    index: int
    span: Span
    shape: Shape = ()
    per: str = "head"
    size: Size | None = None
    expr: Expr | None = None
    feature: syntax.Feature | None = None
    broken: bool = False
    read: bool = False


@dataclass(slots=True)
class Scope:
    """The names of one file.

    ``places`` is where each name is first declared; ``now`` the statement being typed; ``broken``
    are the names in statements that did not parse, and those that may not be declared; not
    ``whole`` where a base could not be read, so that nobody misses what it may have held.
    """

    symbols: dict[str, Symbol] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    now: int = 0
    whole: bool = True

    def usable(self, symbol: Symbol) -> bool:
        """Whether the statement being typed stands after the symbol's."""
        return symbol.kind == "state" or symbol.index < self.now
