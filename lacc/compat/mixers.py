"""The method of a whole mixer of Hugging Face transformers in, one that leaves out copies out: what
projections give is read where it lies.

Sequences that begin are run so; what goes on from a cache, is packed or recorded goes by the method
that was there, on kernels of its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lacc.compat.convolution import convolved
from lacc.compat.scans import delta_rule, wide

DELTA = delta_rule("delta_layer", "chunk_gated_delta_rule")

TAPS = 4
"""Those of its convolution."""


def taps_by_head(weight: Tensor, heads: int, widths: list[int]) -> Tensor:
    """Taps [heads, width, taps] of channels side by side in a head, ``widths`` of each kind, from
    those of one kind behind another, [channels, 1, taps]."""
    kinds = torch.split(weight.squeeze(1), [heads * width for width in widths])
    return torch.cat([w.view(heads, -1, w.shape[-1]) for w in kinds], 1)


def grouped_delta(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``plain``, the mixer of Qwen3-Next: its queries, keys, values and gates lie side by side in
    one projection, and need not be put side by side in another way for the convolution."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        x = hidden_states
        packed = any(kwargs.get(word) is not None for word in ("cu_seq_lens_q", "seq_idx"))
        known = cache is None or not (
            cache.get_conv_state(self.layer_idx, state_idx=0) is not None
            or cache.is_recording_past(self.layer_idx)
        )
        hooked = hasattr(self.conv1d, "_hf_hook")
        if packed or hooked or not known or x.is_cuda or x.shape[1] < TAPS:
            return plain(self, x, cache, attention_mask, **kwargs)
        if attention_mask is not None:
            x = (x * attention_mask[:, :, None]).to(x.dtype)
        rows, tokens, heads = *x.shape[:2], self.num_k_heads
        widths = [self.head_k_dim, self.head_k_dim, self.value_dim // heads]
        every = self.in_proj_qkvz(x).view(rows, tokens, heads, -1)
        qkv, z = torch.split(every, [sum(widths), widths[2]], 3)
        gates = torch.chunk(self.in_proj_ba(x).view(rows, tokens, heads, -1), 2, 3)
        b, a = (y.flatten(2) for y in gates)
        mixed = convolved(wide(qkv), taps_by_head(wide(self.conv1d.weight), heads, widths))
        q, k, v = torch.split(mixed.to(qkv.dtype), widths, 3)
        v = v.reshape(rows, tokens, -1, self.head_v_dim)
        if cache is not None:
            kinds = torch.split(qkv[:, -TAPS:], widths, 3)
            last = torch.cat([y.flatten(2) for y in kinds], -1).transpose(1, 2)
            cache.update_conv_state(last, self.layer_idx, conv_kernel_size=self.conv_kernel_size)
        g = -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias)
        o, end = DELTA(
            *(q, k, v, g, b.sigmoid()),
            output_final_state=cache is not None,
            use_qk_l2norm_in_kernel=True,
        )
        if cache is not None:
            cache.update_recurrent_state(end, self.layer_idx)
        y = self.norm(o.reshape(-1, self.head_v_dim), z.reshape(-1, self.head_v_dim))
        return self.out_proj(y.view(rows, tokens, -1))

    return forward


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
