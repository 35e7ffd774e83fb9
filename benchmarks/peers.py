"""A variant in, the functions of flash-linear-attention (fla-core) that compute it out, and what
they are called with.

Nothing of fla-core is imported until `imported` is called.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]


def same(x: Tensors) -> Tensors:
    """Arguments that are called what ours are."""
    return x


def gated_by_key(x: Tensors) -> Tensors:
    """The gates of GLA's decode are those of keys or of values."""
    return {"gk" if name == "g" else name: y for name, y in x.items()}


def mapped(x: Tensors) -> Tensors:
    """Queries and keys under the feature map elu + 1, which is theirs to apply."""
    import torch

    features = {name: torch.nn.functional.elu(x[name]) + 1 for name in ("q", "k")}
    return x | features | {"normalize": True}


def decaying(x: Tensors) -> Tensors:
    """RWKV-7's decays as logs."""
    import torch

    return x | {"w": -0.6065306597126334 * torch.sigmoid(x["w"])}


def removing(x: Tensors) -> Tensors:
    """RWKV-7's removal as the two factors of a rank 1 update."""
    y = decaying(x)
    kk = y.pop("kk")
    return y | {"a": -kk, "b": kk * x["a"]}


def alone(state: Any) -> Any:
    """A state that is one tensor."""
    return state[0].float().clone()


def with_sum(state: Any) -> Any:
    """The state of keys and values, and the sum of keys."""
    return state[0].float().clone(), state[1].float().unsqueeze(1).clone()


@dataclass(frozen=True)
class Peer:
    """``prefill(**arguments)`` and ``decode(**arguments, initial_state=...)`` of ``fla.ops.MODULE``
    give (o, state). ``given`` and ``step`` make their arguments [B, T, H, ...] of ours, ``state``
    their state of ours; ``shared`` are the arguments whose gradients mean the same.
    """

    module: str
    prefill: str
    decode: str
    shared: tuple[str, ...] = ("q", "k", "v")
    given: Callable[[Tensors], Tensors] = same
    step: Callable[[Tensors], Tensors] = same
    state: Callable[[Any], Any] = alone


QKV = ("q", "k", "v")
PEERS = {
    "simple_gla": Peer("simple_gla", "chunk_simple_gla", "fused_recurrent_simple_gla", (*QKV, "g")),
    "gla": Peer("gla", "chunk_gla", "fused_recurrent_gla", (*QKV, "g"), step=gated_by_key),
    "gated_deltanet": Peer(
        "gated_delta_rule",
        "chunk_gated_delta_rule",
        "fused_recurrent_gated_delta_rule",
        (*QKV, "g", "beta"),
    ),
    "kda": Peer("kda", "chunk_kda", "fused_recurrent_kda", (*QKV, "g", "beta")),
    "rwkv7": Peer(
        "rwkv7",
        "chunk_rwkv7",
        "fused_mul_recurrent_rwkv7",
        ("r", "k", "v"),
        given=removing,
        step=decaying,
    ),
    "deltanet": Peer(
        "delta_rule", "chunk_delta_rule", "fused_recurrent_delta_rule", (*QKV, "beta")
    ),
    "retnet": Peer("retention", "chunk_retention", "fused_recurrent_retention", QKV),
    "linear_transformer": Peer(
        "linear_attn",
        "chunk_linear_attn",
        "fused_recurrent_linear_attn",
        ("v",),
        given=mapped,
        step=mapped,
        state=with_sum,
    ),
}


def imported(peer: Peer, candidates: int, lock: Path) -> tuple[Callable[..., Any], ...]:
    """Its two functions, which tune each kernel among at most ``candidates`` of its configurations,
    spread over all of them, and measure while they hold the file ``lock``. Raises ImportError."""
    module = import_module(f"fla.ops.{peer.module}")
    _tune(candidates, lock)
    return getattr(module, peer.prefill), getattr(module, peer.decode)


def _tune(candidates: int, lock: Path) -> None:
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    def in_turn(call: Callable[[], Any], quantiles: Any = None) -> Any:
        call()  # compiles, which others may do at the same time
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return do_bench(call, warmup=5, rep=20, quantiles=quantiles)

    for name, module in list(sys.modules.items()):
        if not name.startswith("fla."):
            continue
        for kernel in list(vars(module).values()):
            with suppress(AttributeError):
                while not isinstance(kernel, Autotuner):
                    kernel = kernel.fn  # under what wraps it
                kernel._do_bench = in_turn
                kernel.configs = kernel.configs[:: -(-len(kernel.configs) // candidates)]
