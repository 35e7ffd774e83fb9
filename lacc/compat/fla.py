"""Tensors as flash-linear-attention 0.6.0 takes them in, what its functions return out, from
kernels that are compiled from the examples of lacc, on a CPU too.

    from lacc.compat.fla import chunk_gla
    o, state = chunk_gla(q, k, v, g, output_final_state=True)

Names, order and defaults of arguments, layouts ([B, T, H, D]) and results are those of 0.6.0;
what it takes as further keywords is named here. One table says which variant backs a function;
what steers only the speed of its kernels is taken and has no effect.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from lacc import driver
from lacc.compat.kept import kept
from lacc.diagnostics import suggest
from lacc.runtime.kernel import Kernel

VERSION = "0.6.0"
SPEED = (
    "cu_seqlens_cpu",
    "chunk_indices",
    "chunk_size",
    "checkpoint_level",
    "safe_gate",
    "disable_recompute",
    "use_graph",
    "max_num_seqs",
)
"""Arguments that are taken, and change nothing."""

REFUSED = {
    "cp_context": "context parallelism is not part of it",
    "return_intermediate_states": "states are kept at the end alone",
    "output_attentions": "no attention matrix is made",
}
"""Arguments that must keep their default, and why."""


@dataclass
class Call:
    """One call of a kernel: the variant, its arguments, the initial state, what becomes of outputs
    and final state, and which of its arguments has the scale."""

    spec: str
    x: dict[str, Tensor]
    state: Any
    finish: Callable[[Tensor, Any], tuple[Tensor, Any]] | None = None
    query: str = "q"


def linear(given: Mapping[str, Any]) -> Call:
    """Sums without decay; with ``normalize`` the sum of keys is one more column of the values."""
    q, k, v, state = (given[name] for name in ("q", "k", "v", "initial_state"))
    if not given.get("normalize"):
        return Call("linear", {"q": q, "k": k, "v": v}, state)
    begun, keys = state if isinstance(state, tuple) else (state, None)
    if begun is not None or keys is not None:
        of = keys if begun is None else begun
        rows, heads, K, V = of.shape[0], q.shape[2], q.shape[3], v.shape[3]
        begun = of.new_zeros(rows, heads, K, V) if begun is None else begun
        keys = of.new_zeros(rows, 1, heads, K) if keys is None else keys
        state = torch.cat([begun, keys.squeeze(1).unsqueeze(-1)], -1)

    def finish(o: Tensor, end: Any) -> tuple[Tensor, Any]:
        y = (o[..., :-1] / (o[..., -1:] + 1e-10)).to(v.dtype)
        return y, (end[..., :-1], end[..., -1].unsqueeze(1))

    wide = {"q": q, "k": k, "v": torch.cat([v, torch.ones_like(v[..., :1])], -1)}
    narrow = q.dtype in (torch.float16, torch.bfloat16)
    return Call("linear", {n: x.float() if narrow else x for n, x in wide.items()}, state, finish)


def scalar_gate(given: Mapping[str, Any]) -> Call:
    """One log decay a head, of each token (``g``), of all (``g_gamma``), or both."""
    q, g, fixed = given["q"], given["g"], given.get("g_gamma")
    if g is None and fixed is None:
        return linear(given)
    if fixed is not None:
        fixed = fixed.float().expand(q.shape[:3])
        g = fixed if g is None else g + fixed
    x = {"q": q, "k": given["k"], "v": given["v"], "g": g}
    return Call("simple_gla", x, given.get("initial_state"))


def slopes(given: Mapping[str, Any]) -> Call:
    """A fixed decay a head, by the place of the layer."""
    q, at = given["q"], given["layer_idx"] / given["num_layers"]
    heads = torch.arange(q.shape[2], dtype=torch.float32, device=q.device)
    return scalar_gate({**given, "g": None, "g_gamma": -(8 / q.shape[2] * (1 - at)) * heads})


def retention(given: Mapping[str, Any]) -> Call:
    """The decays 1 - 2**(-5 - head)."""
    return Call("retnet", {n: given[n] for n in ("q", "k", "v")}, given.get("initial_state"))


def vector_gates(given: Mapping[str, Any]) -> Call:
    """Log decays of the channels of keys (``g``, ``gk``), of values (``gv``), or both."""
    q, gk, gv = given["q"], given.get("g", given.get("gk")), given.get("gv")
    x = {"q": q, "k": given["k"], "v": given["v"]}
    if gk is None and gv is None:
        return Call("linear", x, given["initial_state"])
    if gv is None:
        return Call("gla", {**x, "g": gk}, given["initial_state"])
    gk = torch.zeros_like(q, dtype=torch.float32) if gk is None else gk
    return Call("gla_outer", {**x, "g": gk, "b": gv}, given["initial_state"])


def delta(given: Mapping[str, Any]) -> Call:
    """The delta rule, with the decays that are there: none, one a head, or one a channel."""
    q, k, v = given["q"], given["k"], given["v"]
    g, gk, beta = given.get("g"), given.get("gk"), given["beta"]
    if given.get("gv") is not None:
        raise ValueError("gv: expected None: no variant here decays value channels of a delta rule")
    if given.get("use_gate_in_kernel"):
        g = log_gate(g, given)
    beta = torch.ones_like(v[..., 0]) if beta is None else beta
    if beta.ndim != 3:
        raise ValueError(f"beta: expected [B, T, H], got shape {tuple(beta.shape)}")
    if given.get("use_beta_sigmoid_in_kernel"):
        beta = beta.sigmoid() * (2 if given["allow_neg_eigval"] else 1)
    elif given.get("allow_neg_eigval"):
        raise ValueError("allow_neg_eigval: expected False without use_beta_sigmoid_in_kernel")
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"v: expected a multiple of {q.shape[2]} heads, got {v.shape[2]}")
    if (times := v.shape[2] // q.shape[2]) > 1:
        q, k = q.repeat_interleave(times, 2), k.repeat_interleave(times, 2)
    x = {"q": q, "k": k, "v": v, "beta": beta}
    if gk is not None or (g is not None and g.ndim == 4):
        parts = [y if y.ndim == 4 else y.unsqueeze(-1) for y in (g, gk) if y is not None]
        return Call("kda", {**x, "g": cast(Tensor, sum(parts))}, given["initial_state"])
    spec = "deltanet" if g is None else "gated_deltanet"
    return Call(spec, x if g is None else {**x, "g": g}, given["initial_state"])


def log_gate(g: Tensor | None, given: Mapping[str, Any]) -> Tensor:
    """The log decay of raw gates, [B, T, H] or [B, T, H, K], by the layer's params."""
    A_log, bias, bound = given["A_log"], given["dt_bias"], given.get("lower_bound")
    if g is None:
        raise ValueError("g: expected raw gates with use_gate_in_kernel, got None")
    if A_log is None and bound is None:
        raise ValueError("A_log: expected a tensor, with use_gate_in_kernel and no lower_bound")
    g = g.float() if bias is None else g.float() + bias.view(g.shape[2:])
    rate = None if A_log is None else A_log.float().exp().view(-1, *[1] * (g.ndim - 3))
    if bound is not None:
        return cast(Tensor, bound * (g if rate is None else rate * g).sigmoid())
    assert rate is not None
    return cast(Tensor, -rate * F.softplus(g))


def low_rank(given: Mapping[str, Any]) -> Call:
    """The identity or a decay, plus b aᵀ."""
    gk = given.get("gk", given.get("w"))
    query = "r" if "r" in given else "q"
    x = {"q": given[query], **{name: given[name] for name in ("k", "v", "a", "b")}}
    return Call(
        "iplr" if gk is None else "dplr",
        x | ({} if gk is None else {"g": gk}),
        given["initial_state"],
    )


def bonus(given: Mapping[str, Any]) -> Call:
    """A decay of each channel, with a bonus for the token itself; the read comes before."""
    x = {name: given[name] for name in ("r", "k", "v", "w", "u")}
    return Call("log_decay", x, given["initial_state"], query="r")


def elementwise(given: Mapping[str, Any]) -> Call:
    """A gated sum of each channel, [B, T, D]; the state is [N, D]."""
    x, state = {name: given[name].unsqueeze(2) for name in ("x", "g")}, given["initial_state"]

    def finish(o: Tensor, end: Any) -> tuple[Tensor, Any]:
        return o.squeeze(2), end.squeeze(1)

    return Call("hgrn", x, None if state is None else state.unsqueeze(1), finish, query="")


def slots(given: Mapping[str, Any]) -> Call:
    """Keys and values written to slots; without ``g`` the slots' shares are running softmaxes."""
    s, g = given["s"], given["g"]
    if g is None:
        if given["cu_seqlens"] is not None or given.get("reverse"):
            raise ValueError("g: expected gates with cu_seqlens or reverse, got None")
        total = s.float().logcumsumexp(1)
        g = torch.cat([total[:, :1], total[:, :-1]], 1) - total
        s = (s.float() - total).exp().to(given["k"].dtype)
    x = {"q": given["q"], "k": given["k"], "v": given["v"], "s": s, "g": g}
    return Call("gsa", x, given["initial_state"], lambda o, end: (o, [*end]))


ENDS = "scale=None, initial_state=None, output_final_state=False"
CUT = "cu_seqlens=None"
CUTS = "cu_seqlens=None, cu_seqlens_cpu=None"
GATES = "use_gate_in_kernel=False, A_log=None, dt_bias=None"
BETA = "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False"
_LOW = (
    "safe_gate=False, chunk_size=None, disable_recompute=False, cp_context=None, lower_bound=None"
)
_GDN = f"use_qk_l2norm_in_kernel=False, {BETA}, state_v_first=False"
_CHUNK_GDN = (
    f"q, k, v, g, beta, {ENDS}, {_GDN}, {CUTS}, chunk_indices=None, cp_context=None, "
    f"{GATES}, chunk_size=None, transpose_state_layout=False"
)
_STEP_GDN = (
    f"q, k, v, g=None, gk=None, gv=None, beta=None, {ENDS}, use_qk_l2norm_in_kernel=False, "
    f"{GATES}, {BETA}, state_v_first=False, {CUT}, transpose_state_layout=False"
)

TABLE: dict[str, tuple[Callable[[Mapping[str, Any]], Call], str, str]] = {
    "chunk_linear_attn": (linear, "linear", f"q, k, v, {ENDS}, normalize=True, {CUT}"),
    "fused_chunk_linear_attn": (linear, "linear", f"q, k, v, {ENDS}, normalize=True, {CUT}"),
    "fused_recurrent_linear_attn": (
        linear,
        "linear",
        f"q, k, v, {ENDS}, reverse=False, normalize=False, {CUT}",
    ),
    "chunk_simple_gla": (
        scalar_gate,
        "simple_gla",
        f"q, k, v, g=None, g_gamma=None, {ENDS}, state_v_first=False, {CUTS}, chunk_size=None",
    ),
    "fused_chunk_simple_gla": (
        scalar_gate,
        "simple_gla",
        f"q, k, v, g=None, g_gamma=None, {ENDS}, {CUT}",
    ),
    "fused_recurrent_simple_gla": (
        scalar_gate,
        "simple_gla",
        f"q, k, v, g=None, g_gamma=None, {ENDS}, reverse=False, state_v_first=False, {CUT}",
    ),
    "parallel_simple_gla": (
        scalar_gate,
        "simple_gla",
        f"q, k, v, g=None, scale=None, output_attentions=False, {CUTS}",
    ),
    "chunk_lightning_attn": (
        slopes,
        "simple_gla",
        f"q, k, v, layer_idx, num_layers, {ENDS}, {CUT}, chunk_size=None",
    ),
    "fused_recurrent_lightning_attn": (
        slopes,
        "simple_gla",
        f"q, k, v, layer_idx, num_layers, {ENDS}, reverse=False, {CUT}",
    ),
    "chunk_retention": (retention, "retnet", f"q, k, v, {ENDS}, {CUT}, chunk_size=None"),
    "fused_chunk_retention": (retention, "retnet", f"q, k, v, {ENDS}, {CUT}"),
    "fused_recurrent_retention": (
        retention,
        "retnet",
        f"q, k, v, {ENDS}, reverse=False, state_v_first=False, {CUT}",
    ),
    "parallel_retention": (
        retention,
        "retnet",
        f"q, k, v, scale=None, output_attentions=False, {CUT}",
    ),
    "chunk_gla": (vector_gates, "gla", f"q, k, v, g, {ENDS}, state_v_first=False, {CUTS}"),
    "fused_recurrent_gla": (
        vector_gates,
        "gla, gla_outer",
        f"q, k, v, gk=None, gv=None, {ENDS}, reverse=False, state_v_first=False, {CUT}",
    ),
    "chunk_delta_rule": (
        delta,
        "deltanet",
        f"q, k, v, beta, {ENDS}, use_qk_l2norm_in_kernel=False, {CUTS}, chunk_size=None",
    ),
    "fused_recurrent_delta_rule": (
        delta,
        "deltanet",
        f"q, k, v, beta=None, {ENDS}, use_qk_l2norm_in_kernel=False, {CUT}",
    ),
    "chunk_gated_delta_rule": (delta, "gated_deltanet", _CHUNK_GDN),
    "chunk_gdn": (delta, "gated_deltanet", _CHUNK_GDN),
    "fused_recurrent_gated_delta_rule": (delta, "gated_deltanet, kda", _STEP_GDN),
    "fused_recurrent_gdn": (delta, "gated_deltanet, kda", _STEP_GDN),
    "chunk_kda": (
        delta,
        "kda",
        f"q, k, v, g, beta, {ENDS}, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, "
        f"{BETA}, safe_gate=False, lower_bound=None, disable_recompute=False, "
        f"return_intermediate_states=False, state_v_first=False, {CUTS}, cp_context=None, "
        "use_graph=False, max_num_seqs=None, A_log=None, dt_bias=None, chunk_size=None, "
        "transpose_state_layout=False",
    ),
    "fused_recurrent_kda": (
        delta,
        "kda",
        f"q, k, v, g, beta, A_log=None, dt_bias=None, {ENDS}, use_qk_l2norm_in_kernel=False, "
        f"use_gate_in_kernel=False, {BETA}, lower_bound=None, state_v_first=False, {CUT}, "
        "transpose_state_layout=False",
    ),
    "chunk_iplr_delta_rule": (low_rank, "iplr", f"q, k, v, a, b, {ENDS}, {CUTS}"),
    "fused_recurrent_iplr_delta_rule": (low_rank, "iplr", f"q, k, v, a, b, {ENDS}, {CUT}"),
    "chunk_dplr_delta_rule": (low_rank, "dplr", f"q, k, v, a, b, gk, {ENDS}, {CUTS}, {_LOW}"),
    "fused_recurrent_dplr_delta_rule": (
        low_rank,
        "dplr",
        f"q, k, v, a, b, gk, {ENDS}, reverse=False, {CUT}",
    ),
    "chunk_rwkv7": (
        low_rank,
        "dplr",
        f"r, w, k, v, a, b, scale=1.0, initial_state=None, output_final_state=False, "
        f"{CUTS}, {_LOW}",
    ),
    "fused_recurrent_rwkv7": (
        low_rank,
        "dplr",
        f"r, w, k, v, a, b, scale=None, initial_state=None, output_final_state=True, {CUT}",
    ),
    "chunk_rwkv6": (bonus, "log_decay", f"r, k, v, w, u, {ENDS}, {CUTS}, chunk_size=None"),
    "fused_recurrent_rwkv6": (bonus, "log_decay", f"r, k, v, w, u, {ENDS}, reverse=False, {CUT}"),
    "chunk_hgrn": (elementwise, "hgrn", "x, g, initial_state=None, output_final_state=False"),
    "fused_recurrent_hgrn": (
        elementwise,
        "hgrn",
        f"x, g, initial_state=None, output_final_state=False, {CUT}",
    ),
    "chunk_gsa": (
        slots,
        "gsa",
        f"q, k, v, s, g=None, {ENDS}, checkpoint_level=2, {CUTS}, chunk_size=None",
    ),
    "fused_recurrent_gsa": (slots, "gsa", f"q, k, v, s, g=None, {ENDS}, reverse=False, {CUT}"),
}
"""Of each function: how its arguments become those of a variant, the variants, its arguments."""

__all__ = [*TABLE, "TABLE", "VERSION"]


KERNELS: dict[str, Kernel] = {}
"""Those that were asked for."""


def kernel(spec: str) -> Kernel:
    """The kernel of a variant, compiled when it is first asked for."""
    there(spec)
    return KERNELS[spec]


@kept
def there(spec: str) -> bool:
    """Has a kernel be among those that were asked for."""
    own = files("lacc.compat") / f"{spec}.la"
    path = own if own.is_file() else files("lacc.examples") / f"{spec}.la"
    KERNELS[spec] = driver.compile(cast(Path, path), target="auto")
    return True


def run(name: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """What a function of the table returns, of all its arguments by name."""
    for what, why in REFUSED.items():
        if given.get(what):
            raise ValueError(f"{name}: {what}: expected its default: {why}")
    first = given[next(iter(given))]
    if not isinstance(first, Tensor):
        raise TypeError(f"{name}: {next(iter(given))}: expected a tensor, got {type(first)}")
    if given.get("use_qk_l2norm_in_kernel"):
        given |= {n: unit(given[n]) for n in ("q", "k")}
    flipped = given.get("state_v_first") or given.get("transpose_state_layout")
    if flipped and given["initial_state"] is not None:
        given["initial_state"] = given["initial_state"].transpose(-1, -2)
    call = TABLE[name][0](given)
    x, state, cu = call.x, call.state, given.get("cu_seqlens")
    if call.query and given["scale"] is not None:
        q = x[call.query]
        times = given["scale"] * q.shape[-1] ** 0.5  # the variants have K**-0.5
        x[call.query] = q if times == 1 else q * times
    if reverse := bool(given.get("reverse")):
        x = {n: y if n == "u" else y.flip(1) for n, y in x.items()}
        cu, state = (None, state) if cu is None else (cu[-1] - cu.flip(0), backward(state))
    o, end = kernel(call.spec)(**x, initial_state=state, cu_seqlens=cu)
    end = end[0] if len(end) == 1 else tuple(end)
    if reverse:
        o, end = o.flip(1), end if cu is None else backward(end)
    if call.finish is not None:
        o, end = call.finish(o, end)
    if not given.get("output_final_state"):
        return o, [None, None] if call.spec == "gsa" else None
    return o, end.transpose(-1, -2) if flipped else end


def backward(state: Any) -> Any:
    """The rows of a state in the other order."""
    if isinstance(state, tuple | list):
        return tuple(x.flip(0) for x in state)
    return None if state is None else state.flip(0)


def unit(x: Tensor) -> Tensor:
    """``x`` over its norm."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def signature(text: str) -> inspect.Signature:
    """The signature of ``q, k, scale=None``."""
    found = []
    for part in text.split(", "):
        word, equals, default = part.partition("=")
        value = ast.literal_eval(default) if equals else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append(inspect.Parameter(word, kind, default=value))
    return inspect.Signature(found)


def function(name: str) -> Callable[..., tuple[Any, Any]]:
    """The function of the table called ``name``, with its signature and its documentation."""
    way, specs, text = TABLE[name]
    taken = signature(text)
    names = tuple(taken.parameters)
    empty = inspect.Parameter.empty
    defaults = {n: p.default for n, p in taken.parameters.items() if p.default is not empty}

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if len(args) > len(names):
            raise TypeError(f"{name}: expected at most {len(names)} arguments, got {len(args)}")
        given = dict(zip(names, args))
        for word, x in kwargs.items():
            if word not in names:
                hint = suggest(word, names)
                raise TypeError(f"{name}: no argument is called {word!r}{hint and f'; {hint}'}")
            if word in given:
                raise TypeError(f"{name}: {word} is given twice, by position and by name")
            given[word] = x
        for word in names:
            if word not in given:
                if word not in defaults:
                    raise TypeError(f"{name}: {word} is missing")
                given[word] = defaults[word]
        return run(name, {word: given[word] for word in names})

    call.__name__ = call.__qualname__ = name
    idle = [word for word in names if word in SPEED]
    call.__doc__ = (
        f"``{name}`` of flash-linear-attention {VERSION}, on {specs}.la.\n\n{way.__doc__}\n\n"
        f"Returns (o, final state), the state None without output_final_state."
        + (f"\nWithout effect here: {', '.join(idle)}." if idle else "")
    )
    cast(Any, call).__signature__ = taken
    call.__module__ = __name__
    return call


_MADE = {name: function(name) for name in TABLE}
globals().update(_MADE)


def __getattr__(name: str) -> Callable[..., tuple[Any, Any]]:
    """Raises AttributeError that says what is there: functions of the table are defined above."""
    hint = suggest(name, TABLE) or f"it has {', '.join(TABLE)}"
    raise AttributeError(f"lacc.compat.fla has no {name}; {hint}")
