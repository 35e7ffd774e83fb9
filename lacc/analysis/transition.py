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
class Tropical:
    """``m[t] = op(m[t-1] + f, i)``, entry by entry; ``op`` is max, min or logaddexp, and f and i,
    scalars or of the state's shape, hold no value of m."""

    op: str
    f: Expr
    i: Expr


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a form does not exist: a sentence for the user and the expression it speaks of."""

    reason: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One component of the state graph in canonical form.

    kind       "affine" | "maxplus" | "minplus" | "logsumexp" | "nonlinear"
    transition the class, for affine ones: "none" (it is what its token writes), "identity",
               "scalar", "diagonal (rows)", "diagonal (columns)", "diagonal (both sides)",
               "elementwise", "low rank"; "dense" and "coupled" have no canonical form
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
    tropical: Tropical | None = None

    @property
    def canonical(self) -> bool:
        """Whether decays, erases and writes say all of it."""
        return self.kind == "affine" and self.transition not in ("dense", "coupled")

    def partner(self, erase: LowRank) -> Write | None:
        """The write of a matrix state that has the column of ``erase``: one solve serves both."""
        if next(e for e in self.erases if e.a is erase.a) is not erase:
            return None
        rows = (1 - erase.axis,)
        return next((w for w in self.writes if w.on((erase.axis,)) is erase.a and w.on(rows)), None)

    @property
    def forgets(self) -> bool:
        """Whether the state is what its token writes, whatever it was."""
        return self.transition == "none"

    @property
    def rank(self) -> int:
        """The rank of the transition's low-rank part."""
        return len(self.erases)

    @property
    def gauge(self) -> int | None:
        """The axis whose decay an erase of the other axis shares."""
        return next((1 - e.axis for e in self.erases if e.along is not None), None)
