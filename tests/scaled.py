"""Specs with `(stabilized)` states, with and without it, and their kernels' numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lacc.spec.model import Spec
from lacc.verify.cases import factors
from lacc.verify.inputs import Sizes, draw

HEAD = "variant x\ndim K = 4, V = 3\n"
DIMS = {"K": 4, "V": 3}

SPECS = {
    "mlstm": """
input q, k : [K]
input v : [V]
input i, f : scalar
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
S[t] = sigmoid(f) * S[t-1] + exp(i) * k @ v.T
n[t] = sigmoid(f) * n[t-1] + exp(i) * k
o = S[t].T @ q / max(abs(n[t].T @ q), 1)
""",
    "a channel each": """
input k, v, u : [K]
param w : [K]
state a, b : [K] (stabilized)
output o : [K]
a[t] = exp(-exp(w)) * a[t-1] + exp(k) * v
b[t] = exp(-exp(w)) * b[t-1] + exp(k)
o = (a[t-1] + exp(u + k) * v) / (b[t-1] + exp(u + k))
""",
    "features": """
input q, k : [K]
input v : [V]
state S : [K, V] (stabilized)
state z : [K] (stabilized)
output o : [V]
S[t] = S[t-1] + exp(k) @ v.T
z[t] = z[t-1] + exp(k)
o = S[t].T @ exp(q) / (z[t].T @ exp(q) + 1e-3)
""",
    "columns": """
input q, k : [K]
input s, w : [V]
state S : [K, V] (stabilized)
state n : [V] (stabilized)
output o : [K]
S[t] = 0.9 * S[t-1] + k @ exp(s).T
n[t] = 0.9 * n[t-1] + exp(s)
o = S[t] @ softmax(S[t].T @ q / n[t] + w) / sum(n[t])
""",
    "rows and columns": """
input a, q : [K]
input b : [V]
input g : [K] where g <= 0
state S : [K, V] (stabilized)
output o : [V]
S[t] = diag(exp(g)) @ S[t-1] + exp(a) @ exp(b).T
o = log(abs(S[t].T @ exp(q)) + 1)
""",
    "gates in linear space": """
input q, k : [K]
input v : [V]
input a : scalar where 0 <= a <= 1
input r : [K] where 0 <= r <= 1
input i : scalar
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
S[t] = a * S[t-1] + exp(i) * k @ v.T
n[t] = r * n[t-1] + exp(k + i)
u = S[t-1].T @ q
o = u / (sum(n[t]) + sum(abs(u)))
""",
    "an erase": """
input q, k : [K]
input v : [V]
input i, f, b : scalar
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
u = normalize(k)
S[t] = sigmoid(f) * (I - sigmoid(b) * u @ u.T) @ S[t-1] + exp(i) * u @ v.T
n[t] = sigmoid(f) * n[t-1] + exp(i) * abs(k)
o = S[t].T @ q / (1e-3 + sum(n[t]))
""",
    "erases beside a decay of each channel": """
input q, k, w : [K]
input v : [V]
input g : [K] where g <= 0
input i : scalar
input b : scalar where 0 <= b <= 1
state S : [K, V] (stabilized)
state n : [K] (stabilized)
output o : [V]
u = normalize(k)
p = normalize(w)
S1 = (I - b * u @ u.T) @ diag(exp(g)) @ S[t-1] + exp(i) * u @ v.T
S[t] = (I - b * p @ p.T) @ S1 + exp(2 * i) * p @ v.T
n[t] = exp(g) * n[t-1] + exp(i) + exp(2 * i)
o = (S[t].T @ q + S[t-1].T @ k) / (1e-3 + sum(n[t]))
""",
    "an erase with a weight of its own": """
input q, k : [K]
input v : [V]
input i, b : scalar
input a, c : scalar where 0 <= a <= 1
state S : [K, V] (stabilized)
state x : [K] (stabilized)
output o : [V]
u = normalize(k)
S[t] = a * S[t-1] - exp(b - 2) * (S[t-1] @ v) @ v.T + exp(i) * k @ v.T
x[t] = c * (x[t-1] - u * (u.T @ x[t-1])) + exp(i) * k
o = S[t].T @ q / (1 + abs(x[t-1].T @ q))
""",
    "backward": """
input q, k : [K]
input v : [V]
input i : scalar
input g : [K] where g <= 0
state S : [K, V] (stabilized)
output o : [V]
S[t] = diag(exp(g)) @ S[t+1] + exp(i) * k @ v.T
o = S[t].T @ q
""",
    "the last value": """
input k, v : [K]
state a, b : [K] (stabilized)
output o : [K]
a[t] = a[t-1] + exp(k) * v
b[t] = b[t-1] + exp(k)
o = a[T] / b[T] + a[t] / b[t]
""",
    "one feeds another, and one that is plain": """
input q, k : [K]
input v : [V]
input i, f : scalar
state n : [K] (stabilized)
state S : [K, V] (stabilized)
state R : [K, V]
output o : [V]
n[t] = sigmoid(f) * n[t-1] + exp(i) * abs(k)
S[t] = sigmoid(n[t].T @ k) * S[t-1] + (n[t] / sum(n[t])) @ v.T
R[t] = exp(-1 / (1 + sum(n[t]))) * R[t-1] + k @ (S[t].T @ q).T
o = R[t].T @ q
""",
    "a start, a delay, a scalar": """
input k : [K]
input i, f : scalar
param p : [K]
state a : [K] (stabilized) = p
state c : scalar (stabilized)
state P : [K]
output o : [K]
P[t] = a[t-1]
a[t] = sigmoid(f) * a[t-1] + exp(i) * k
c[t] = sigmoid(f) * c[t-1] + exp(i)
o = P[t-2] / (1 + c[t] + c[t-1]) + a[t]
""",
}

FAR = {
    "mlstm": {"i": 200, "f": 200},
    "a channel each": {"k": 100},
    "features": {"k": 100, "q": 50},
    "columns": {"s": 100},
    "gates in linear space": {"i": 200},
    "an erase": {"i": 200, "f": 200},
    "erases beside a decay of each channel": {"i": 100},
    "the last value": {"k": 100},
}


def stabilized(name: str) -> str:
    return HEAD + SPECS[name]


def unstabilized(name: str) -> str:
    return stabilized(name).replace(" (stabilized)", "")


def drawn(spec: Spec, T: int = 13, **options: Any) -> dict[str, Any]:
    return draw(spec, Sizes(B=2, T=T, H=2, dims=DIMS), **options)


def true(spec: Spec, state: Any) -> dict[str, Any]:
    """What the fields of a state stand for."""
    scale = factors(spec, state)
    fields = {n: x for n, x in state._asdict().items() if n.removesuffix("_log") not in scale}
    return {**fields, **{n: getattr(state, n) * factor for n, factor in scale.items()}}


def everything(kernel: Any, x: dict[str, Any], start: Any, ends: Any, **options: Any) -> Any:
    """Outputs, true states and gradients of a call, ``ends`` the cotangents of true states."""
    rng = np.random.default_rng(5)
    o, state = kernel(**x, initial_state=start, **options)
    scale = factors(kernel.spec, state)
    cts = {n: ct * scale.get(n, 1.0) for n, ct in ends.items()}
    found = kernel.vjp(
        **x,
        initial_state=start,
        cotangent=rng.normal(size=o.shape),
        state_cotangent=cts,
        **options,
    )
    initial = found.pop("initial_state", None)
    found |= {} if initial is None else {f"d0 {n}": g for n, g in initial._asdict().items()}
    return {"o": o, **true(kernel.spec, state), **found}


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    for name, want in theirs.items():
        scale = np.abs(want).max(initial=0) + 1e-6
        assert np.abs(ours[name] - want).max(initial=0) <= tolerance * scale, name
