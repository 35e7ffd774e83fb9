"""The method of a whole mixer of Hugging Face transformers in, one that leaves out copies out: what
projections give is read where it lies.

Sequences that begin are run so; what goes on from a cache, is packed or recorded goes by the method
that was there, on kernels of its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from lacc.compat.convolution import convolved
from lacc.compat.fla import kernel
from lacc.compat.kept import kept
from lacc.compat.linears import bare, projected
from lacc.compat.scans import wide
from lacc.runtime.native_operators import looked_at

TAPS = 4
"""Those of its convolution."""


def taps_by_head(weight: Tensor, heads: int, widths: list[int]) -> Tensor:
    """Taps [heads, width, taps] of channels side by side in a head, ``widths`` of each kind, from
    those of one kind behind another, [channels, 1, taps]."""
    kinds = torch.split(weight.squeeze(1), [heads * width for width in widths])
    return torch.cat([w.view(heads, -1, w.shape[-1]) for w in kinds], 1)


@kept
def number(x: float, dtype: torch.dtype) -> Tensor:
    """``x`` as a tensor, made once."""
    return torch.tensor(x, dtype=dtype)


def learned(mixer: Any) -> dict[str, Tensor]:
    """The params of `delta_mixer.la` that a mixer has."""
    w = wide(mixer.norm.weight)
    found = {"A_log": wide(mixer.A_log), "dt_bias": wide(mixer.dt_bias), "w": w}
    return {**found, "epsilon": number(mixer.norm.variance_epsilon, w.dtype)}


def grouped_delta(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``plain``, the mixer of Qwen3-Next: its queries, keys, values and gates lie side by side in
    one projection, and need not be put side by side in another way for the convolution. What lies
    between that and the last projection is one kernel."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        x = hidden_states
        packed = any(kwargs.get(word) is not None for word in ("cu_seq_lens_q", "seq_idx"))
        if packed or x.is_cuda or not (bare(self.conv1d) and bare(self.norm)):
            return plain(self, x, cache, attention_mask, **kwargs)
        past = None if cache is None else cache.get_conv_state(self.layer_idx, state_idx=0)
        if cache is not None and cache.is_recording_past(self.layer_idx):
            return plain(self, x, cache, attention_mask, **kwargs)
        if past is None and x.shape[1] >= TAPS:
            return begun(self, x, cache, attention_mask)
        alone = past is not None and x.shape[1] == 1 and attention_mask is None
        if alone and not torch.is_grad_enabled() and not looked_at((x,)):
            return one_token(self, x[:, 0], cache)
        return plain(self, x, cache, attention_mask, **kwargs)

    return forward


def begun(self: Any, x: Tensor, cache: Any, attention_mask: Tensor | None) -> Tensor:
    """A sequence [B, T, D] from its first token on; an empty ``cache`` is filled."""
    if attention_mask is not None:
        x = (x * attention_mask[:, :, None]).to(x.dtype)
    rows, tokens, heads = *x.shape[:2], self.num_k_heads
    widths = [self.head_k_dim, self.head_k_dim, self.value_dim // heads]
    every = projected(self.in_proj_qkvz, x).view(rows, tokens, heads, -1)
    qkv, z = torch.split(every, [sum(widths), widths[2]], 3)
    gates = torch.chunk(self.in_proj_ba(x).view(rows, tokens, heads, -1), 2, 3)
    b, a = (wide(y).flatten(2) for y in gates)
    mixed = convolved(wide(qkv), taps_by_head(wide(self.conv1d.weight), heads, widths))
    q, k, v = torch.split(mixed, widths, 3)
    v, z = (wide(y).reshape(rows, tokens, -1, self.head_v_dim) for y in (v, z))
    if cache is not None:
        kinds = torch.split(qkv[:, -TAPS:], widths, 3)
        last = torch.cat([y.flatten(2) for y in kinds], -1).transpose(1, 2)
        cache.update_conv_state(last, self.layer_idx, conv_kernel_size=self.conv_kernel_size)
    y, (end,) = kernel("delta_mixer")(q, k, v, z, a, b, **learned(self))
    if cache is not None:
        cache.update_recurrent_state(end, self.layer_idx)
    return projected(self.out_proj, y.to(x.dtype).flatten(2))


STEPPERS: WeakKeyDictionary[Any, tuple[Any, Any, Tensor]] = WeakKeyDictionary()
"""Of each layer of a cache: what its stepper was made with, the stepper, and taps [taps, channels]
of the convolution."""


def one_token(self: Any, x: Tensor, cache: Any) -> Tensor:
    """A token [B, D] behind others; the last inputs of the convolution [B, channels, taps] and the
    state [B, H, K, V] that ``cache`` has are written where they are."""
    rows, heads, times = len(x), self.num_k_heads, self.num_v_heads // self.num_k_heads
    widths = [self.head_k_dim, self.head_k_dim, self.value_dim // heads]
    every = wide(self.in_proj_qkvz(x)).view(rows, heads, -1)
    *kinds, z = torch.split(every, [*widths, widths[2]], 2)
    b, a = torch.chunk(wide(self.in_proj_ba(x)).view(rows, heads, -1), 2, 2)
    past = cache.get_conv_state(self.layer_idx, state_idx=0)
    state = cache.get_recurrent_state(self.layer_idx)
    given = (self.A_log, self.dt_bias, self.norm.weight, self.conv1d.weight)
    made = [(p.data_ptr(), None if p.is_inference() else p._version) for p in given]
    like, stepper, taps = STEPPERS.get(cache.layers[self.layer_idx], (None, None, x))
    known = stepper is not None and stepper.state[0] is state and like == (every.dtype, made)
    taps = taps if known else wide(self.conv1d.weight).squeeze(1).T.contiguous()
    mixed = latest(torch.cat([y.flatten(1) for y in kinds], 1), past, taps)
    parts = torch.split(mixed, [self.key_dim, self.key_dim, self.value_dim], 1)
    q, k, v = (y.view(rows, -1, width) for y, width in zip(parts, (*widths[:2], self.head_v_dim)))
    if times > 1:
        q, k = q.repeat_interleave(times, 1), k.repeat_interleave(times, 1)
    token = (q, k, v, z.reshape(v.shape), a.flatten(1), b.flatten(1))
    if not known:
        stepper = kernel("delta_mixer").stepper(*token, **learned(self), state=(state,))
        STEPPERS[cache.layers[self.layer_idx]] = (every.dtype, made), stepper, taps
    found: Tensor = self.out_proj(stepper(*token).to(x.dtype).flatten(1))
    return found.unsqueeze(1)


def latest(x: Tensor, past: Tensor, taps: Tensor) -> Tensor:
    """A convolution's values with SiLU for one token [B, channels] behind the ``past``
    [B, channels, taps], which is written and from then on lies in memory token by token."""
    if past.stride(1) != 1:
        turned = past.mT.contiguous().mT
        past.set_(turned.untyped_storage(), 0, turned.shape, turned.stride())
    lines = past.mT
    every = torch.cat([lines[:, 1:], x.to(past.dtype).unsqueeze(1)], 1)
    lines.copy_(every)
    return F.silu((every * taps).sum(1))


def is_grouped_delta(module: Any) -> bool:
    """Whether a module is that mixer, with the convolution that it has by default."""
    words = ("in_proj_qkvz", "in_proj_ba", "fix_query_key_value_ordering", "A_log", "dt_bias")
    return (
        all(hasattr(module, word) for word in words)
        and module.conv1d.weight.shape[1:] == (1, TAPS)
        and module.conv1d.bias is None
        and module.activation in ("silu", "swish")
        and module.norm.activation in ("silu", "swish")
    )
