"""Tokens and taps in, a causal convolution of each channel with SiLU behind it out, on a CPU: some
tokens at a time, so that all that lies in between stays in a processor's caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NEAR = 1 << 19
"""Bytes of an input's tokens that are gone through at once."""


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(bias + Σ weight[..., i] x[t - taps + 1 + i]), ``x`` [B, T, *C] of any strides,
    ``weight`` [*C, taps], ``bias`` [*C]; tokens before the first are 0."""
    if torch.compiler.is_compiling():
        return _plain(x, weight, bias)
    result: Tensor = _Convolved.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`convolved` in functions of torch alone, which a compiler puts together as it likes."""
    taps, length = weight.unbind(-1), x.shape[1]
    every = torch.cat([x.new_zeros((len(x), len(taps) - 1, *x.shape[2:])), x], 1)
    total = every[:, :length] * taps[0]
    for ago, tap in enumerate(taps[1:], 1):
        total = total + every[:, ago : ago + length] * tap
    return torch.nn.functional.silu(total if bias is None else total + bias)


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        taps, y = _taps(weight), torch.empty(x.shape, dtype=x.dtype)
        room = torch.empty_like(y[:, : _step(x)])
        for a, b in _parts(x):
            total = _summed(room[:, : b - a], x, taps, bias, a)
            torch.ops.aten.silu.out(total, out=y[:, a:b])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight, bias = ctx.saved_tensors
        taps, reach = _taps(weight), weight.shape[-1] - 1
        dx = torch.empty(x.shape, dtype=x.dtype)
        dtaps = [torch.zeros_like(tap) for tap in taps]
        dbias = None if bias is None else torch.zeros_like(bias)
        step = _step(x)
        room, product = (torch.empty_like(dx[:, :step]) for _ in range(2))
        every = dx.new_zeros((dx.shape[0], step + reach, *dx.shape[2:]))
        for a, b in reversed(_parts(x)):
            n = b - a
            every[:, n : n + reach] = every[:, :reach].clone()  # of the tokens behind, 0 at first
            total = _summed(room[:, :n], x, taps, bias, a)
            d = torch.ops.aten.silu_backward.grad_input(dy[:, a:b], total, grad_input=every[:, :n])
            into = torch.mul(d, taps[reach], out=dx[:, a:b])
            for ago in range(1, reach + 1):
                into.addcmul_(every[:, ago : ago + n], taps[reach - ago])
            for ago in range(reach + 1):
                if (none := max(ago - a, 0)) < n:  # tokens that look before the first
                    seen = x[:, a + none - ago : b - ago]
                    both = torch.mul(d[:, none:], seen, out=product[:, : n - none])
                    dtaps[reach - ago] += both.sum((0, 1))
            if dbias is not None:
                dbias += d.sum((0, 1))
        return dx, torch.stack(dtaps, -1), dbias


def _taps(weight: Tensor) -> list[Tensor]:
    """The weights of each tap, packed."""
    return [tap.contiguous() for tap in weight.unbind(-1)]


def _step(x: Tensor) -> int:
    """How many tokens are gone through at once."""
    return max(1, NEAR // max(1, x[:, :1].numel() * x.element_size()))


def _parts(x: Tensor) -> list[tuple[int, int]]:
    """Tokens that are gone through at once, from and to."""
    step, length = _step(x), x.shape[1]
    return [(a, min(a + step, length)) for a in range(0, length, step)]


def _summed(room: Tensor, x: Tensor, taps: list[Tensor], bias: Tensor | None, a: int) -> Tensor:
    """What SiLU takes of the tokens from ``a`` on for which there is room, there."""
    b = a + room.shape[1]
    torch.mul(x[:, a:b], taps[-1], out=room)
    if bias is not None:
        room += bias
    for ago, tap in enumerate(reversed(taps[:-1]), 1):
        if (none := max(ago - a, 0)) < b - a:
            room[:, none:].addcmul_(x[:, a + none - ago : b - ago], tap)
    return room
