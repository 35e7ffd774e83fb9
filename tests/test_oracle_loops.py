"""The oracle against loops written by hand in torch: outputs, final states and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from test_oracle import close, compiled

torch = pytest.importorskip("torch")


def compared(kernel: Any, arguments: dict[str, Any], loop: Any) -> None:
    """Output, final states and gradients of a kernel are those of ``loop`` (torch tensors in, the
    output and a tuple of states out)."""
    leaves = {n: torch.tensor(x, requires_grad=True) for n, x in arguments.items()}
    o, states = loop(**leaves)
    ct = torch.linspace(-1, 1, o.numel(), dtype=torch.float64).reshape(o.shape)
    cts = [torch.linspace(1, 2, s.numel(), dtype=torch.float64).reshape(s.shape) for s in states]
    total = sum((c * x).sum() for c, x in zip([ct, *cts], [o, *states]))
    theirs = torch.autograd.grad(total, list(leaves.values()))
    output, final = kernel(**arguments)
    close(output, o.detach().numpy())
    names = final._fields[: len(states)]
    for name, s in zip(names, states):
        close(getattr(final, name), s.detach().numpy(), name)
    ours = kernel.vjp(
        **arguments,
        cotangent=ct.numpy(),
        state_cotangent={n: c.numpy() for n, c in zip(names, cts)},
    )
    for name, gradient in zip(leaves, theirs):
        close(ours[name], gradient.numpy(), name)


def normal(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((2, 7, 2, *shape)) for shape in shapes]


def test_gated_delta_rule_with_hard_resets() -> None:
    q, k, v, β, g = normal((4,), (4,), (3,), (), ())
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -np.abs(g)
    g[:, 2], g[:, 4, 1] = -np.inf, -1e3

    def loop(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        S, o = torch.zeros(2, 2, 4, 3, dtype=torch.float64), []
        for t in range(q.shape[1]):
            a, b, kt = torch.exp(g[:, t])[..., None, None], beta[:, t][..., None, None], k[:, t]
            S = a * (S - b * kt[..., None] * (kt[..., None, :] @ S))
            S = S + b * kt[..., None] * v[:, t][..., None, :]
            o.append(4**-0.5 * (q[:, t][..., None, :] @ S)[..., 0, :])
        return torch.stack(o, 1), (S,)

    arguments = {"q": q, "k": k, "v": v, "beta": 1 / (1 + np.exp(-β)), "g": g}
    compared(compiled(ROOT / "examples" / "gated_deltanet.la"), arguments, loop)


def test_normalized_kernel_in_its_exponential_branch() -> None:
    q, k, v = normal((4,), (4,), (3,))
    k[:, 3], q[:, 5] = -8.0, -20.0

    def loop(q: Any, k: Any, v: Any) -> Any:
        φ = lambda x: torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))  # noqa: E731
        S = torch.cumsum(φ(k)[..., None] * v[..., None, :], 1)
        z = torch.cumsum(φ(k), 1)
        n = (z * φ(q)).sum(-1, keepdim=True) + 1e-6
        o = (φ(q)[..., None, :] @ S)[..., 0, :] / n
        return o, (S[:, -1], z[:, -1])

    compared(compiled(ROOT / "examples" / "linear_transformer.la"), {"q": q, "k": k, "v": v}, loop)


def test_running_maximum_gates_other_states() -> None:
    f, i, v = normal((3,), (3,), (3,))
    i[:, 4] = 100.0

    def loop(f: Any, i: Any, v: Any) -> Any:
        m = torch.full((2, 2, 3), -torch.inf, dtype=torch.float64)
        z, n, o = m, torch.zeros_like(m), []
        for t in range(f.shape[1]):
            new = torch.maximum(m + f[:, t], i[:, t])
            z = torch.logaddexp(z + f[:, t], i[:, t])
            n = torch.exp(m + f[:, t] - new) * n + torch.exp(i[:, t] - new) * v[:, t]
            m = new
            o.append(n + m + z)
        return torch.stack(o, 1), (m, z, n)

    spec = """variant a
    dim D = 3
    input f, i, v : [D]
    state m : [D] = -inf
    state z : [D] = -inf
    state n : [D]
    output o : [D]
    m[t] = max(m[t-1] + f, i)
    z[t] = logaddexp(z[t-1] + f, i)
    n[t] = exp(m[t-1] + f - m[t]) * n[t-1] + exp(i - m[t]) * v
    o = n[t] + m[t] + z[t]
    """
    compared(compiled(spec), {"f": f, "i": i, "v": v}, loop)


def test_attention_in_a_window_with_a_sink() -> None:
    q, k, v, s = normal((4,), (4,), (3,), ())

    def loop(q: Any, k: Any, v: Any, s: Any) -> Any:
        logits = torch.einsum("bthk,bshk->bhts", q, k)
        t = torch.arange(q.shape[1])
        near = (t[:, None] >= t) & (t[:, None] - t < 3)
        logits = torch.where(near, logits, -torch.inf)
        sink = s.permute(0, 2, 1)[..., None]
        p = torch.softmax(torch.cat([sink, logits], -1), -1)[..., 1:]
        return torch.einsum("bhts,bshv->bthv", p, v), ()

    spec = """variant a
    dim K = 4, V = 3
    input q, k : [K]
    input v : [V]
    input s : scalar
    output o : [V]
    o = attend(q, k, v, window=3, sink=s)
    """
    compared(compiled(spec), {"q": q, "k": k, "v": v, "s": s}, loop)


def test_both_directions_and_a_second_pass() -> None:
    x, g = normal((3,), ())

    def loop(x: Any, g: Any) -> Any:
        a, ups, downs = torch.exp(-(g**2))[..., None], [], []
        up = down = torch.zeros(2, 2, 3, dtype=torch.float64)
        for t in range(x.shape[1]):
            up = a[:, t] * up + x[:, t]
            ups.append(up)
        for t in reversed(range(x.shape[1])):
            down = a[:, t] * down + x[:, t]
            downs.insert(0, down)
        last, w, o = ups[-1], torch.zeros_like(up), []
        for t in range(x.shape[1]):
            w = torch.tanh(last) * w + downs[t]
            o.append(ups[t] * downs[t] + w)
        return torch.stack(o, 1), (ups[-1], downs[0], w)

    spec = """variant a
    dim D = 3
    input x : [D]
    input g : scalar
    gate α = exp(-g**2)
    state U, R, w : [D]
    output o : [D]
    U[t] = α * U[t-1] + x
    R[t] = α * R[t+1] + x
    w[t] = tanh(U[T]) * w[t-1] + R[t]
    o = U[t] * R[t] + w[t]
    """
    compared(compiled(spec), {"x": x, "g": g}, loop)


def test_a_nonlinear_recurrence() -> None:
    x, y = normal((3,), (3,))

    def loop(x: Any, y: Any) -> Any:
        h, o = torch.full((2, 2, 3), 0.5, dtype=torch.float64), []
        for t in range(x.shape[1]):
            r = h * torch.sqrt(torch.mean(h * h, -1, keepdim=True))
            h = torch.tanh(x[:, t] * r + torch.softmax(h, -1)) + torch.relu(y[:, t])
            o.append(h)
        return torch.stack(o, 1), (h,)

    spec = """variant a
    dim D = 3
    input x, y : [D]
    state h : [D] = 0.5
    output o : [D]
    h[t] = tanh(x * h[t-1] * rms(h[t-1]) + softmax(h[t-1])) + relu(y)
    o = h[t]
    """
    compared(compiled(spec), {"x": x, "y": y}, loop)
