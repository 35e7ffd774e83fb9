"""The typed spec: what the checker makes of a `File`, and all that the oracle and the compiler
read.

Expressions form a DAG of interned nodes (`Expr` compares by identity; equal nodes are the same
object). Features are applied and definitions inlined: using a definition twice shares its node.
Operators of matrices are still those of the paper (`matmul`, `T`, `diag`, `eye`); the axes-by-name
form comes later, in `lacc.tile.lower`.

Shapes: a scalar is (), a vector [K] is the column (K,), its transpose is the row (1, K), a matrix
(K, V). `k @ v.T` is [K] @ [1, V] -> [K, V]; `k.T @ q` is [1, K] @ [K] -> scalar; `A @ x` is [M, K]
@ [K] -> [M].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lacc.diagnostics import Span
from lacc.spec.shapes import Shape, Size
from lacc.spec.syntax import File

LEVELS = ("head", "group", "layer", "position")
COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq"}
"""The op of each sign that compares."""


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """One typed node. ``op`` is a row of `lacc.ir.ops.OPS`, or a leaf:

    ======== ==================================================================== =========
    leaf     value                                                                shape
    ======== ==================================================================== =========
    const    float or int (±inf too)                                              ()
    size     a `Size`: the value of dims as a number (`K**-0.5`)                  ()
    input    (name, offset): offset 0 is this token, -1 the one before            declared
    param    name; `per position` params are read at t                            declared
    buffer   name                                                                 declared
    state    (name, when): when is 0 (`S[t]`), an offset (-1, +1, -W) or "T"      declared
    eye      None: the identity                                                   (D, D)
    t T head H   None: position from 1, length, head index from 0, heads          ()
    ======== ==================================================================== =========
    """

    op: str
    args: tuple[Expr, ...]
    value: Any
    shape: Shape
    span: Span = field(repr=False)

    @property
    def reference(self) -> tuple[str, Any]:
        """(name, when) of a state or an input."""
        name, when = self.value
        return name, when

    def walk(self) -> Iterator[Expr]:
        """Every node below and including this one, once each, arguments before their users."""
        seen: set[int] = set()
        stack: list[tuple[Expr, bool]] = [(self, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif id(node) not in seen:
                seen.add(id(node))
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))


class Interner:
    """Makes `Expr`s such that equal ones are identical (the span of the first is kept)."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Expr] = {}

    def __call__(
        self, op: str, args: tuple[Expr, ...], value: object, shape: Shape, span: Span
    ) -> Expr:
        key = (op, tuple(map(id, args)), type(value), value, shape)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Expr(op, args, value, shape, span)
        return node

    def keep(self, node: Expr) -> None:
        """Takes in a node that was made elsewhere, after its arguments."""
        key = (node.op, tuple(map(id, node.args)), type(node.value), node.value, node.shape)
        self._nodes.setdefault(key, node)


@dataclass(frozen=True, slots=True)
class Dim:
    """A named size. ``default`` is its value (an override replaces it); ``size`` is what shapes
    use: the dim itself, or the polynomial that defines it. ``pinned`` when its value is compiled
    in: it came from an override, or it is a delay or the window of an `attend`."""

    name: str
    default: int
    size: Size
    pinned: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Promise:
    """``left cmp right`` from a `where`; both sides typed, chains split into pairs."""

    cmp: str
    left: Expr
    right: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Arg:
    """An input, param or buffer. ``role`` says which, ``per`` is one of `LEVELS`; ``ascii`` is its
    spelling outside.

    ``default`` makes it optional: one number for all entries or an expression of ``shape``, for an
    input of arguments declared before it (params too) at the same token, else of numbers, dims,
    `head`, params and buffers. A buffer may have a ``draw`` instead: the name of a sampler in the
    library, such as ``orthogonal_gaussian``.
    """

    role: str
    name: str
    ascii: str
    shape: Shape
    per: str
    default: Expr | None
    draw: str | None
    promises: tuple[Promise, ...]
    span: Span
    doc: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent quantity and its update.

    ``direction`` is "forward" (`S[t-1]` on the right), "backward" (`S[t+1]`) or "value" (neither: a
    per-token value that others may delay). ``initial`` is an expression of numbers, dims, params
    and buffers, a scalar or of ``shape``.
    """

    name: str
    ascii: str
    shape: Shape
    per: str
    initial: Expr
    update: Expr
    direction: str
    stabilized: bool
    span: Span
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """A readout ``name = expr``, one value per token and head (``per``)."""

    name: str
    ascii: str
    shape: Shape
    per: str
    expr: Expr
    span: Span
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """A named expression; ``role`` is "gate", "normalizer", "feature" (one application, ``name``
    such as ``φ(k)``) or "".
    """

    role: str
    name: str
    ascii: str
    expr: Expr
    span: Span
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked variant.

    ``args`` are inputs, then params, then buffers; these and all else in declared order. ``consts``
    are values at the dims' defaults (in expressions a const made of dims stays one). ``file`` has
    bases and library features merged in, ``text`` is it in canonical form, ``digest`` the sha256 of
    that. ``overrides`` is what was set from outside, and no part of the text.
    """

    file: File
    name: str
    ascii: str
    doc: str
    dims: dict[str, Dim]
    consts: dict[str, float]
    args: tuple[Arg, ...]
    states: tuple[State, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[Output, ...]
    expects: tuple[tuple[str, str], ...]
    overrides: dict[str, float]
    text: str
    digest: str

    def arg(self, name: str) -> Arg:
        """The argument called ``name`` in the file."""
        return next(a for a in self.args if a.name == name)

    def state(self, name: str) -> State:
        """The state called ``name`` in the file."""
        return next(s for s in self.states if s.name == name)
