"""Terms of a state's shape in, their products and sums along its axes out; ``rank`` counts them."""

from __future__ import annotations

from lacc.derivation.terms import Term, diag, had, matmul, scale, transposed

Axes = tuple[int, ...]
ROWS, COLUMNS = Term("ones", (), 0), Term("ones", (), 1)


def times(rank: int, axes: Axes, x: Term, y: Term) -> Term:
    """``y``, of the state's shape, times ``x`` on ``axes``."""
    if axes == ():
        return scale(x, y)
    if axes == (0, 1) or rank == 1:
        return had(x, y)
    return matmul(diag(x), y) if axes == (0,) else matmul(y, diag(x))


def summed(rank: int, x: Term, axes: Axes) -> Term:
    """``x``, of the state's shape, summed over the axes that are not in ``axes``."""
    if axes == tuple(range(rank)):
        return x
    if rank == 1:
        return matmul(transposed(ROWS), x)
    if axes == (0,):
        return matmul(x, COLUMNS)
    if axes == (1,):
        return matmul(transposed(x), ROWS)
    return matmul(transposed(ROWS), x, COLUMNS)
