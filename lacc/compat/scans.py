"""Tensors as functions of Hugging Face transformers take them in, what these return out, from
kernels of lacc.

Arguments, layouts, results and what happens to caches are those of transformers 5.24's PyTorch
functions; these compute in float32 whatever comes in, and so do the functions here. Where one there
takes any further keyword, it does here (``**_``): layers pass all that the model was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lacc.compat.convolution import convolved
from lacc.compat.fla import TABLE, kernel
from lacc.compat.fla import function as fla_function

HEADS = 8
"""Heads that rows without any are put in: threads share heads."""

ABREAST = 128
"""Channels of a head that a convolution is put in."""

FEW = 64
"""Rows that PyTorch takes no longer for than a call of a kernel."""

WIDTH = 64
"""Channels of a head, where a recurrence has channels and no heads."""


def wide(x: Tensor) -> Tensor:
    """``x`` in float32, or as it is in float64."""
    return x if x.dtype == torch.float64 else x.float()


def heads_of(channels: int) -> int:
    """In how many heads independent channels are put: threads share heads."""
    return channels // WIDTH if channels % WIDTH == 0 else 1


def apart(x: Tensor, heads: int) -> Tensor:
    """The last axis of ``x`` as [heads, width], in float32 or float64."""
    return wide(x).reshape(*x.shape[:-1], heads, -1)


def delta_rule(spec: str, plain: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The delta rule with decays of ``spec``, and of fla's ``plain`` where keys come normalized."""
    given = fla_function(plain)

    def run(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        x = [wide(y) for y in (query, key, value, g, beta)]
        begun = None if initial_state is None else wide(initial_state)
        if not use_qk_l2norm_in_kernel:
            ends = {"initial_state": begun, "output_final_state": output_final_state}
            o, end = given(*x, **ends, cu_seqlens=cu_seqlens)
        else:
            o, (end,) = kernel(spec)(*x, initial_state=begun, cu_seqlens=cu_seqlens)
        return o.to(query.dtype), end if output_final_state else None

    run.__doc__ = f"The delta rule on {spec}.la ({TABLE[plain][1]}.la without norms); [B, T, H, D]."
    return run


def time_steps(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """Positive time steps of raw ones, channels last."""
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return wide(F.softplus(dt) if softplus else dt)


def selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """Whole sequences of Mamba-1 from a state of 0; channels first, [B, D, T], [B, N, T]."""
    channels, entries = A.shape
    heads = heads_of(channels)
    steps = time_steps(dt.transpose(1, 2), delta_bias, delta_softplus)
    y, (end,) = kernel("selective_scan")(
        x=apart(hidden_states.transpose(1, 2), heads),
        Delta=apart(steps, heads),
        B=wide(B).transpose(1, 2).unsqueeze(2),
        C=wide(C).transpose(1, 2).unsqueeze(2),
        A=wide(A).reshape(heads, -1, entries),
        skip=apart(A.new_zeros(channels) if D is None else D, heads),
    )
    y = y.flatten(2).transpose(1, 2)
    y = y if z is None else y * F.silu(z)
    return (y, end.flatten(1, 2)) if return_last_state else y


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The scan of Mamba-2: x [B, T, H, P], dt [B, T, H], B and C [B, T, G, N], a state
    [B, H, P, N]."""
    y, (end,) = kernel("ssd")(
        x=wide(x),
        Delta=dt,
        B=wide(B),
        C=wide(C),
        A=wide(A),
        D=torch.zeros_like(wide(A)) if D is None else wide(D),
        initial_state=None if state is None else wide(state),
    )
    return y, end


def ssd_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    seq_idx: Tensor | None = None,
    **_: Any,
) -> Any:
    """Whole sequences of Mamba-2, [B, T, H, P]. Raises ValueError on packed sequences."""
    if seq_idx is not None:
        raise ValueError("seq_idx: expected None: sequences packed in one row are not kept apart")
    steps = time_steps(dt, dt_bias, dt_softplus)
    if tuple(dt_limit) != (0.0, float("inf")):
        steps = steps.clamp(*dt_limit)
    y, end = ssd(hidden_states, steps, A, B, C, D, initial_states)
    return (y, end) if return_final_states else y


def ssd_step(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """One token of Mamba-2, [B, H, P], what a head has one of expanded to it (dt and its bias, A,
    D); ``state`` [B, H, P, N] is written."""
    dt_bias = None if dt_bias is None else dt_bias[:, 0]
    steps = time_steps(dt[..., 0], dt_bias, dt_softplus)
    x, steps, B, C = (y.unsqueeze(1) for y in (hidden_states, steps, B, C))
    y, end = ssd(x, steps, A[:, 0, 0], B, C, None if D is None else D[:, 0], state)
    state.copy_(end)
    y = y[:, 0] if z is None else y[:, 0] * F.silu(z)
    return y.to(hidden_states.dtype)


def convolution(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``original``, where one with a SiLU takes its place, on a GPU of four taps: [B, D, T], whose
    memory is [B, T, D] where layers come from projections, and is so again behind it."""

    def run(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        packed = options.get("seq_idx") is not None or options.get("cu_seqlens") is not None
        if activation not in ("silu", "swish") or packed:
            return original(hidden_states, weight, bias, activation=activation, **options)
        x, dtype = hidden_states.transpose(1, 2), hidden_states.dtype
        if x.is_cpu:
            made = convolved(wide(x), wide(weight), None if bias is None else wide(bias))
            return made.transpose(1, 2).to(dtype)
        if weight.shape[1] != 4:
            return original(hidden_states, weight, bias, activation=activation, **options)
        channels = len(weight)
        heads = channels // ABREAST if channels % ABREAST == 0 else 1
        bias = weight.new_zeros(channels) if bias is None else bias
        params = (apart(y, heads) for y in (*weight.unbind(1), bias))
        y: Tensor = kernel("causal_convolution")(apart(x, heads), *params)[0]
        return y.flatten(2).transpose(1, 2).to(dtype)

    return run


def convolution_step(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``original`` on several tokens; on one, [B, D, 1], a sum of products in torch, which takes
    less time than a convolution does. ``conv_state`` [B, D, past] is written."""

    def run(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        if hidden_states.shape[2] != 1 or activation not in (None, "silu", "swish"):
            return original(hidden_states, conv_state, weight, bias, activation)
        x, silu = hidden_states.squeeze(2), activation is not None
        return convolved_token(x, conv_state, weight, bias, silu=silu).unsqueeze(2)

    return run


def convolved_token(
    x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, *, silu: bool
) -> Tensor:
    """One token [B, D] behind the ``past`` [B, D, length], which is written; ``weight``
    [D, taps]."""
    taps, length = weight.shape[1], past.shape[2]
    every = torch.cat([past, x.unsqueeze(2).to(past.dtype)], 2)[:, :, -max(taps, length) :]
    past.copy_(every[:, :, -length:])
    y = torch.linalg.vecdot(every[:, :, -taps:], weight.to(every.dtype))
    y = y if bias is None else y + bias
    return (F.silu(y) if silu else y).to(x.dtype)


def gated_norm(self: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
    """The norm of rows [..., V] times SiLU of a gate; few of them by functions of torch."""
    rows = hidden_states.numel() // hidden_states.shape[-1]
    if gate is not None and rows < FEW and hidden_states.dtype == gate.dtype == torch.float32:
        shape, eps = hidden_states.shape[-1:], self.variance_epsilon
        return F.rms_norm(hidden_states, shape, self.weight, eps) * F.silu(gate)
    if gate is None or rows % HEADS or rows < FEW:
        norm: Tensor = type(self).forward(self, hidden_states, gate)
        return norm
    x = (wide(y).reshape(1, rows // HEADS, HEADS, -1) for y in (hidden_states, gate))
    weight = wide(self.weight)
    y: Tensor = kernel("gated_norm")(*x, weight, weight.new_tensor(self.variance_epsilon))[0]
    return y.reshape(hidden_states.shape).to(hidden_states.dtype)


def no_fused_layer(*_: Any, **__: Any) -> None:
    """None, which says that the layer is not computed as a whole: its scan is called then."""


def wkv(
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Any = None,
    return_state: bool = False,
) -> tuple[Tensor, Any]:
    """The time mixing of RWKV-4, [B, T, D]; the state is [num, den, exponent of both], [B, D]."""
    heads = heads_of(key.shape[-1])
    begun = None
    if state is not None:
        num, den, most = (apart(y, heads) for y in state)
        begun = {"num": num, "num_log": most, "den": den, "den_log": most}
    x = {"k": key, "v": value, "w": time_decay, "u": time_first}
    o, end = kernel("rwkv4")(**{n: apart(y, heads) for n, y in x.items()}, initial_state=begun)
    if return_state or state is not None:
        most = torch.maximum(end.num_log, end.den_log)
        num = end.num * (end.num_log - most).exp()
        den = end.den * (end.den_log - most).exp()
        state = [y.flatten(1) for y in (num, den, most)]
    return o.flatten(2).to(key.dtype), state


def rg_lru_scan(
    self: Any,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """The recurrence of RG-LRU, [B, T, D]; ``reset`` [B, T, 1] starts anew. The state is [B, D]."""
    heads = heads_of(hidden_states.shape[-1])
    o, (end,) = kernel("gated_sum")(
        apart(hidden_states, heads),
        apart(recurrent_gate * ~reset, heads),
        initial_state=None if recurrent_states is None else apart(recurrent_states, heads),
    )
    return o.flatten(2).to(hidden_states.dtype), end.flatten(1)


def lightning(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: Any,
    attention_mask: Tensor | None,
    cache: Any = None,
    past_key_values: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The lightning attention of MiniMax, a whole layer, since its loop stands in it: [B, T, D]."""
    cache = past_key_values if cache is None else cache
    rows, tokens = hidden_states.shape[:2]
    x = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        x = (x * attention_mask[:, :, None]).to(x.dtype)
    q, k, v = x.reshape(rows, tokens, self.num_attention_heads, -1).split(self.head_dim, dim=3)
    g = -wide(self.slope_rate).flatten().expand(rows, tokens, -1)
    begun = None if cache is None else cache.get_linear_cache(self.layer_idx)
    o, (end,) = kernel("simple_gla")(
        wide(q) * self.head_dim**0.5,  # the variant has K**-0.5
        wide(k),
        wide(v),
        g,
        initial_state=None if begun is None else wide(begun),
    )
    end = end.to(v.dtype)
    o = self.norm(o.to(v.dtype).reshape(rows, tokens, -1))
    o = self.out_proj(F.sigmoid(self.output_gate(hidden_states)) * o)
    if cache is not None:
        cache.set_linear_cache(self.layer_idx, end)
    return o, end


def mlstm(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool | None = None,
    mode: str | None = None,
) -> Any:
    """The mLSTM of xLSTM, heads before tokens, [B, H, T, D]; the state is (C, n, m [B, H, 1])."""
    x = [wide(y.transpose(1, 2)) for y in (query, key, value, igate, fgate)]
    begun = None
    if c_initial is not None and n_initial is not None and m_initial is not None:
        begun = {"C": wide(c_initial), "n": wide(n_initial), "m": wide(m_initial).squeeze(-1)}
    eps = x[0].new_tensor(self.config.eps)
    h, end = kernel("mlstm_eps")(*x, eps, initial_state=begun)
    h = h.transpose(1, 2).to(query.dtype)
    if return_last_states is None:
        return_last_states = self.config.return_last_states
    training = "train" in (mode or self.config.mode)
    if training and not return_last_states:
        return h
    return h, (end.C, end.n, end.m.unsqueeze(-1))
