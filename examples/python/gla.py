"""Gated linear attention as a decorated function: the twin of ``examples/gla.la``."""

import lacc


@lacc.variant
def gla(q: "[K]", k: "[K]", v: "[V]", g: "[K] where g <= 0", *, K=128, V=128):
    """Gated Linear Attention. Yang et al. 2024, arXiv:2312.06635."""
    α = gate(exp(g))
    S = state("[K, V]")
    S[t] = diag(α) @ S[t - 1] + k @ v.T
    return K**-0.5 * S[t].T @ q
