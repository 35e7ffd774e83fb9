"""The canonical form of one recurrence: what the affine analysis finds, the builder lowers and the
reports print.

Notation: a state S with axes 0, 1 (rows K, columns V in the papers; a vector state has axis 0
only). One token does

    S  <-  Π decays ⊙ S  +  Σ a (bᵀ S)  +  Σ Π parts          decays, a, b and parts hold no value
    of S

Every factor is a typed `Expr` of shape () or of the axes it acts on, so it prints as the paper
writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lacc.spec.model import Expr

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """An S-free expression acting on ``axes`` of the state: () a scalar, (0,) rows, (1,) columns,
    (0, 1) each entry."""

    axes: Axes
    expr: Expr


@dataclass(frozen=True, slots=True)
class LowRank:
    """A rank-one term ``a (bᵀ S)`` that contracts ``axis`` of the state (0: left, an erase of rows;
    1: right); ``along`` multiplies it on the other axis, as a decay there does."""

    axis: int
    a: Expr
    b: Expr
    along: Expr | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """A term without S: the product of ``factors``, at most one per set of axes (`k vᵀ` is rows k
    times columns v)."""

    factors: tuple[Factor, ...]

    def on(self, axes: Axes) -> Expr | None:
        """The factor on exactly these axes."""
        return next((f.expr for f in self.factors if f.axes == axes), None)


@dataclass(frozen=True, slots=True)
class Added:
    """A term that a token adds to coupled states: the product of ``factors``, none of them a
    scalar, times the scalar in ``scales`` of each state (None: not to that one), times w_r where
    ``read`` is r."""

    factors: tuple[Factor, ...]
    scales: tuple[Expr | None, ...]
    read: int | None = None

    def on(self, axes: Axes) -> Expr | None:
        """The factor on exactly these axes."""
        return next((f.expr for f in self.factors if f.axes == axes), None)


@dataclass(frozen=True, slots=True)
class Coupling:
    """The step of n states X_j that need one another, on their values of the token before:

        X_i  <-  Σ_j kept_ij ⊙ X_j  +  Σ added_i                    w_r = Σ_j reads_rjᵀ X_j

    kept   a product of factors for each i and j, None where i does not take from j
    reads  one row for each r and j, None where w_r does not read j; they contract ``axis``
    """

    kept: tuple[tuple[tuple[Factor, ...] | None, ...], ...]
    added: tuple[Added, ...]
    reads: tuple[tuple[Expr | None, ...], ...] = ()
    axis: int = 0

    @property
    def scalar(self) -> bool:
        """Whether every kept factor is a scalar."""
        return all(not f.axes for row in self.kept for factors in row for f in factors or ())

    @property
    def separable(self) -> bool:
        """Whether every term that is added is a product of a factor per axis."""
        return all(len(f.axes) < 2 for added in self.added for f in added.factors)

    def partner(self, read: Added) -> tuple[Added, int] | None:
        """The write that shares column and scalars with all that a read adds, so that one solve
        serves both, and its sign beside it."""
        if len([a for a in self.added if a.read == read.read]) > 1:
            return None
        for write in self.added:
            sign = _sign(read.scales, write.scales)
            column = write.on((self.axis,)) is read.on((self.axis,))
            if write.read is None and sign and column and len(write.factors) == 2:
                return write, sign
        return None

    @property
    def reached(self) -> tuple[frozenset[int], ...]:
        """For each state those that it comes of through what is kept, itself among them."""
        found = [{j} for j in range(len(self.kept))]
        for _ in found:
            for j, row in enumerate(self.kept):
                for i, factors in enumerate(row):
                    found[j] |= found[i] if factors is not None else set()
        return tuple(map(frozenset, found))

    @property
    def triangular(self) -> bool:
        """Whether no two states take from each other, by whatever way."""
        above = self.reached
        return not any(i != j and j in above[i] for j, own in enumerate(above) for i in own)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression in it."""
        kept = (f.expr for row in self.kept for factors in row for f in factors or ())
        added = (e for a in self.added for e in (*(f.expr for f in a.factors), *a.scales) if e)
        return (*kept, *added, *(row for rows in self.reads for row in rows if row))


def _sign(a: tuple[Expr | None, ...], b: tuple[Expr | None, ...]) -> int:
    """1 where the two are the same expressions, -1 where one is the negative of the other, else
    0."""
    if all(x is y for x, y in zip(a, b)):
        return 1
    negative = all(
        x is y is None or (x is not None and y is not None and _negates(x, y)) for x, y in zip(a, b)
    )
    return -1 if negative else 0


def _negates(x: Expr, y: Expr) -> bool:
    if x.op == y.op == "const":
        return bool(x.value == -y.value)
    return (x.op == "neg" and x.args[0] is y) or (y.op == "neg" and y.args[0] is x)


@dataclass(frozen=True, slots=True)
class Tropical:
    """``m[t] = op(m[t-1] + f, i)``, entry by entry; ``op`` is max, min or logaddexp, and f and i,
    scalars or of the state's shape, hold no value of m."""

    op: str
    f: Expr
    i: Expr


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a form does not exist: a sentence for the user and the expression it speaks of.

    ``kind`` is the class that a recurrence falls into by it, ``more`` are further terms of its
    kind, ``cure`` is a sentence on what would have the form; empty where there is none.
    """

    reason: str
    expr: Expr
    kind: str = ""
    cure: str = ""
    more: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One component of the state graph in canonical form.

    kind       "affine" | "maxplus" | "minplus" | "logsumexp" | "nonlinear"
    transition the class, for affine ones: "none" (it is what its token writes), "identity",
               "scalar", "diagonal (rows)", "diagonal (columns)", "diagonal (both sides)",
               "elementwise", "low rank"; "dense" has no canonical form, "coupled" one of several
               states, in ``coupling``
    decays     factors whose product multiplies S entry by entry; empty for the identity
    erases     low-rank terms; least in number
    obstacle   what keeps it from the chunk form, None where nothing does
    tropical   the form of a max-plus, min-plus or log-sum-exp recurrence
    """

    states: tuple[str, ...]
    direction: str
    kind: str
    transition: str
    decays: tuple[Factor, ...] = ()
    erases: tuple[LowRank, ...] = ()
    writes: tuple[Write, ...] = ()
    obstacle: Obstacle | None = None
    coupling: Coupling | None = None
    tropical: Tropical | None = None

    @property
    def form(self) -> Literal["written", "tropical", "coupled", "canonical", "none"]:
        """What says all of it: its writes alone, whatever the state was; `tropical`; `coupling`;
        decays, erases and writes; or nothing but the update."""
        if self.coupling is not None:
            return "coupled"
        if self.tropical is not None:
            return "tropical"
        if self.kind != "affine" or self.transition in ("dense", "coupled"):
            return "none"
        return "written" if self.transition == "none" else "canonical"

    @property
    def separable(self) -> bool:
        """Whether decays and writes are products of a factor per axis; what states that need one
        another keep must be scalars."""
        if self.coupling is not None:
            return self.coupling.scalar and self.coupling.separable
        factors = [*self.decays, *(f for write in self.writes for f in write.factors)]
        return all(len(factor.axes) < 2 for factor in factors)

    def partner(self, erase: LowRank) -> Write | None:
        """The write of a matrix state that has the column of ``erase``: one solve serves both."""
        if next(e for e in self.erases if e.a is erase.a) is not erase:
            return None
        rows = (1 - erase.axis,)
        return next((w for w in self.writes if w.on((erase.axis,)) is erase.a and w.on(rows)), None)

    @property
    def rank(self) -> int:
        """The rank of the transition's low-rank part."""
        return len(self.coupling.reads if self.coupling else self.erases)

    @property
    def gauge(self) -> int | None:
        """The axis whose decay an erase of the other axis shares."""
        return next((1 - e.axis for e in self.erases if e.along is not None), None)
