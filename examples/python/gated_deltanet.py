"""Gated DeltaNet as a decorated function: the twin of ``examples/gated_deltanet.la``."""

import lacc


@lacc.variant
def gated_deltanet(
    q: "[K]",
    k: "[K] where sum(k * k) <= 1",
    v: "[V]",
    g: "scalar where g <= 0",
    β: "scalar where 0 < β < 1",
    *,
    K=128,
    V=128,
):
    """Gated DeltaNet. Yang, Kautz, Hatamizadeh 2025, arXiv:2412.06464."""
    α = gate(exp(g))
    S = state("[K, V]")
    S[t] = α * (I - β * k @ k.T) @ S[t - 1] + β * k @ v.T
    return K**-0.5 * S[t].T @ q
