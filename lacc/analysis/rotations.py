"""The step of states that need one another in, a bound of its norm out: what products of such steps
can at most multiply the states by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from lacc.analysis.algebra import Mono, Node, times
from lacc.analysis.interval import Interval
from lacc.analysis.ranges import Ranges
from lacc.analysis.transition import Coupling, Factor


def norm(coupling: Coupling, ranges: Ranges) -> tuple[float, str] | None:
    """A bound of the norm, and why; None where an erase takes part.

    A rotation's is that of its factor. Else it is the root of the largest sum over a row times the
    largest sum over a column. That eigenvalues are at most 1 proves nothing: a triangular step with
    two of them may still grow.
    """
    if coupling.reads:
        return None
    factor = rotation(coupling, ranges)
    if factor is not None:
        return factor.magnitude, f"a rotation, times a factor {factor.words}"
    sizes = [[_magnitude(factors, ranges) for factors in row] for row in coupling.kept]
    bound = math.sqrt(max(map(sum, sizes)) * max(map(sum, zip(*sizes))))
    return bound, f"what states take and give allows a factor of {bound:.3g} at most"


def rotation(coupling: Coupling, ranges: Ranges) -> Interval | None:
    """The range of r where the step is r [[cos x, -sin x], [sin x, cos x]], or its transpose."""
    if len(coupling.kept) != 2:
        return None
    entries = [_monomial(factors, ranges) for row in coupling.kept for factors in row]
    (same, _), (ahead, _) = entries[:2]
    if entries[3] != entries[0] or entries[2] != (ahead, -entries[1][1]):
        return None
    if not entries[0][1] or abs(entries[0][1]) != abs(entries[1][1]):
        return None
    atoms = ranges.algebra.atoms
    turn = {power: atoms[atom] for atom, power in times(ahead, same, Fraction(-1))}
    sine, cosine = turn.get(Fraction(1)), turn.get(Fraction(-1))
    if len(turn) != 2 or not isinstance(sine, Node) or not isinstance(cosine, Node):
        return None
    if (sine.expr.op, cosine.expr.op) != ("sin", "cos"):
        return None
    if ranges.algebra.poly(sine.expr.args[0]) != ranges.algebra.poly(cosine.expr.args[0]):
        return None
    rest = times(same, next(((a, p),) for a, p in same if atoms[a] is cosine), Fraction(-1))
    factor = ranges.algebra.expanded(rest, entries[0][1])
    return None if factor is None else ranges.of_poly(factor)


def _monomial(factors: Sequence[Factor] | None, ranges: Ranges) -> tuple[Mono, float]:
    """The product of factors as a monomial and its coefficient, 0 where there is none."""
    mono: Mono = ()
    scale = 0.0 if factors is None else 1.0
    for factor in factors or ():
        more, by = ranges.algebra.monomial(factor.expr)
        mono, scale = times(mono, more), scale * by
    return mono, scale


def _magnitude(factors: Sequence[Factor] | None, ranges: Ranges) -> float:
    """The largest absolute value of a product of factors."""
    if factors is None:
        return 0.0
    sizes = [ranges.of(factor.expr).magnitude for factor in factors]
    return 0.0 if 0.0 in sizes else math.prod(sizes)
