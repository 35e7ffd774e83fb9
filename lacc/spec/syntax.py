"""From the frontends come these nodes, to the checker they go: a spec as it was written, untyped.

Every frontend (text, decorated Python) yields the same `File`. A node knows where it was written
and nothing about shapes. Names are NFKC-normalised; `⊙` is already `mul`, `ᵀ` is already `T`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lacc.diagnostics import Source, Span


@dataclass(frozen=True, slots=True)
class Node:
    """One expression node.

    ``op`` and what goes with it:

    ======== ============================================ ==========================
    op       value                                        args
    ======== ============================================ ==========================
    name     the name (str)                               ()
    number   int or float                                 ()
    at       (name, base, shift): ``S[t-1]`` is           ()
             ("S", "t", -1), ``S[T]`` ("S", "T", 0),
             ``k[t-W]`` ("k", "t", "-W")
    neg      None                                         (x,)
    add sub mul div pow matmul   None                     (x, y)
    T        None                                         (x,)
    call     function name                                arguments, keywords last
    keyword  its name (inside a call only)                (value,)
    compare  tuple of "<" "<=" ">" ">=" "=="              one more than comparisons
    ======== ============================================ ==========================
    """

    op: str
    value: object
    args: tuple[Node, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A name where it is declared."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Type:
    """``scalar`` (no axes) or ``[K, V]``; an axis is an expression of dims."""

    axes: tuple[Node, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Sized:
    """``dim K = 64, V = 64`` or ``const eps = 1e-6``; ``kind`` is "dim" or "const"."""

    kind: str
    items: tuple[tuple[Name, Node], ...]
    span: Span = field(compare=False)
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Declare:
    """``role names : type (flags) per LEVEL = default where cond, cond``.

    ``role`` is input, param, buffer, state or output. ``per`` is None where it was not written.
    ``flags`` holds ``(stabilized)`` as ("stabilized", None). ``type`` is None only for an output of
    decorated Python, whose shape is that of its equation.
    """

    role: str
    names: tuple[Name, ...]
    type: Type | None
    flags: tuple[tuple[Name, Node | None], ...]
    per: Name | None
    default: Node | None
    where: tuple[Node, ...]
    span: Span = field(compare=False)
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Feature:
    """``feature φ(x, y) = body``."""

    name: Name
    params: tuple[Name, ...]
    body: Node
    span: Span = field(compare=False)
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Define:
    """``gate α = e``, ``normalizer n = e`` or a plain ``name = e`` (role ""); outputs are plain
    too.
    """

    role: str
    name: Name
    body: Node
    span: Span = field(compare=False)
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Recur:
    """``S[t] = body``."""

    name: Name
    body: Node
    span: Span = field(compare=False)
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """``use feature_maps.taylor2 as φ``; ``alias`` is the last part of the path where not
    written.
    """

    path: tuple[Name, ...]
    alias: Name
    span: Span = field(compare=False)
    doc: str = ""


Statement = Sized | Declare | Feature | Define | Recur | Use


@dataclass(frozen=True, slots=True)
class File:
    """One variant as written.

    ``expects`` are its ``# expect KEY: VALUE`` comments, in order. ``broken`` are the names that
    statements with a syntax error would have declared: whoever misses one of them says nothing, the
    syntax error has been reported.
    """

    source: Source = field(compare=False)
    name: Name
    base: tuple[Name, ...] | None
    statements: tuple[Statement, ...]
    doc: str = ""
    expects: tuple[tuple[str, str], ...] = ()
    broken: frozenset[str] = frozenset()
