"""A variant and a shape in, tensors and the functions that are timed on them out, and the errors of
what these compute.

The truth is the NumPy target in float64 on the last batch row's first head, over all tokens, from
the same rounded inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from peers import Peer
from record import EXAMPLES

import lacc
from lacc.backends.torch_api import public_name
from lacc.runtime.kernel import load

OUTPUT, GRADIENT, PEER = 2.0**-7, 2.0**-6, 2.0**-5
"""Limits of the rms error relative to the rms of what is compared: ours, and all of a peer."""

NORMAL, UNIT, SHARE, SHARES, GATE, GATES = "normal", "unit", "share", "shares", "gate", "gates"
QKV = {"q": NORMAL, "k": NORMAL, "v": NORMAL}
DELTA = {"q": NORMAL, "k": UNIT, "v": NORMAL}
ARGUMENTS: dict[str, dict[str, str]] = {
    "simple_gla": QKV | {"g": GATE},
    "gla": QKV | {"g": GATES},
    "gated_deltanet": DELTA | {"g": GATE, "beta": SHARE},
    "kda": DELTA | {"g": GATES, "beta": SHARE},
    "rwkv7": dict.fromkeys("rwkv", NORMAL) | {"kk": UNIT, "a": SHARES},
    "deltanet": DELTA | {"beta": SHARE},
    "retnet": QKV,
    "linear_transformer": QKV,
}
"""How arguments are drawn: bfloat16, of unit length along channels (unit), between 0 and 1 (share,
shares: a number a head, or a channel), or log decays in float32 (gate, gates)."""

FLOPS = dict.fromkeys(ARGUMENTS, 4) | {"rwkv7": 8}
FLOPS |= dict.fromkeys(("gated_deltanet", "kda", "deltanet"), 6)
"""Floating-point operations for each entry of the state, a token and head: a multiply-add to write,
one to read; one more to read what a delta rule erases, and one for RWKV-7's decay beside it."""

Tensors = dict[str, Any]


def sizes_of(shape: str) -> tuple[int, int, int, int]:
    """B, T, H and D = K = V of a shape such as B1_T8192_H96_D128."""
    found = re.fullmatch(r"B(\d+)_T(\d+)_H(\d+)_D(\d+)", shape)
    if found is None:
        raise ValueError(f"expected a shape such as B1_T8192_H96_D128, got {shape!r}")
    B, T, H, D = map(int, found.groups())
    return B, T, H, D


def draw(variant: str, shape: str, device: str, seed: int = 0) -> Tensors:
    """Arguments by name."""
    generator = torch.Generator(device).manual_seed(seed)
    B, T, H, D = sizes_of(shape)

    def one(kind: str) -> Any:
        axes = (B, T, H) if kind in (GATE, SHARE) else (B, T, H, D)
        x = torch.randn(axes, generator=generator, device=device)
        if kind in (GATE, GATES):
            return torch.nn.functional.logsigmoid(x) / 16
        if kind in (SHARE, SHARES):
            x = torch.sigmoid(x)
        if kind == UNIT:
            x = torch.nn.functional.normalize(x, dim=-1) * 0.99
        return x.bfloat16()

    return {name: one(kind) for name, kind in ARGUMENTS[variant].items()}


@cache
def kernels(variant: str, D: int) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """The emitted functions of whole sequences and of a step, and the NumPy kernel."""
    spec = lacc.load(EXAMPLES / f"{variant}.la", {"K": D, "V": D})
    kernel = lacc.compile(spec, "triton")
    name = public_name(kernel.signature)
    module = load(name, str(kernel.source))
    return module[name], module[f"{name}_step"], lacc.compile(spec, "numpy")


class Case:
    """A variant at a shape on a device: its tensors, and what is done with them."""

    def __init__(self, variant: str, shape: str, device: str) -> None:
        self.variant, self.shape, self.device = variant, shape, device
        self.x = draw(variant, shape, device)
        self.ours, self.our_step, self.numpy = kernels(variant, sizes_of(shape)[3])
        generator = torch.Generator(device).manual_seed(1)
        like = self.x["v"]
        self.do = torch.randn(like.shape, generator=generator, device=device).to(like.dtype)
        self.token = {name: y[:, 0].contiguous() for name, y in self.x.items()}

    # ---- what is done

    def given(self, peer: Peer) -> Tensors:
        """What a peer takes for the same call, its final state included."""
        return peer.given(self.x) | {"output_final_state": True}

    def training(self, function: Callable[..., Any], x: Tensors) -> Callable[[], Any]:
        """Output and gradients of the arguments that are tensors."""
        leaves = {
            name: y.detach().clone().requires_grad_() if isinstance(y, torch.Tensor) else y
            for name, y in x.items()
        }
        tensors = [y for y in leaves.values() if isinstance(y, torch.Tensor)]
        names = [name for name, y in leaves.items() if isinstance(y, torch.Tensor)]

        def run() -> Tensors:
            o = function(**leaves)[0]
            gradients = torch.autograd.grad(o, tensors, self.do)
            return {"o": o.detach()} | {f"d {n}": d for n, d in zip(names, gradients)}

        return run

    def forward(self, function: Callable[..., Any], x: Tensors) -> Callable[[], Any]:
        """Output and final state."""

        def run() -> Any:
            with torch.no_grad():
                return function(**x)

        return run

    def functions(self, mode: str, peer: Peer | None, theirs: Any) -> dict[str, Callable[[], Any]]:
        """By whose it is, a function without arguments for ``mode`` forward or training."""
        run = self.forward if mode == "forward" else self.training
        found = {"lacc": run(self.ours, self.x)}
        if peer is not None:
            found["fla-core"] = run(theirs[0], self.given(peer))
        return found

    def steps(self, states: list[Any]) -> Callable[[], Any]:
        """One token of each of the states, in place; gives the last output."""

        def run() -> Any:
            with torch.no_grad():
                for state in states:
                    o, _ = self.our_step(**self.token, state=state, out=state)
            return o

        return run

    def peer_steps(self, peer: Peer, function: Any, states: list[Any]) -> Callable[[], Any]:
        """One token from each of the states by a peer, which writes new ones."""
        x = peer.step({name: y.unsqueeze(1) for name, y in self.token.items()})
        begun = [peer.state(state) for state in states]

        def run() -> Any:
            with torch.no_grad():
                for state in begun:
                    o, _ = function(**x, initial_state=state, output_final_state=True)
            return o[:, 0]

        return run

    # ---- whether it is right

    @cached_property
    def truth(self) -> dict[str, Any]:
        """Output, gradients and state of one head in float64, and the step after them."""
        x = {name: wide(one_head(y)) for name, y in self.x.items()}
        o, state = self.numpy(**x)
        pulled = self.numpy.vjp(**x, cotangent=wide(one_head(self.do)))
        token = {name: y[:, 0] for name, y in x.items()}
        after, _ = self.numpy.step(**token, state=state)
        found = {"o": o, "decode o": after} | {f"d {n}": d for n, d in pulled.items()}
        return found | {f"state.{n}": y for n, y in state._asdict().items()}

    def errors(self) -> dict[str, float]:
        """Of our output, gradients, state and step; every kernel that is timed has then run."""
        o, state = self.forward(self.ours, self.x)()
        found = self.training(self.ours, self.x)()
        got = {name: one_head(y) for name, y in found.items()}
        got |= {f"state.{n}": y[-1:, :1] for n, y in state._asdict().items()}
        got["decode o"] = self.steps([type(state)(*(y.clone() for y in state))])()[-1:, :1]
        errors = {name: rms(wide(y), self.truth[name]) for name, y in got.items()}
        errors["o without gradients"] = rms(wide(one_head(o)), self.truth["o"])
        return errors

    def peer_errors(self, peer: Peer, theirs: Any) -> dict[str, float]:
        """The same of a peer, and how far its output is from ours over all heads."""
        found = self.training(theirs[0], self.given(peer))()
        shared = {"o", *(f"d {name}" for name in peer.shared)}
        errors = {n: rms(wide(one_head(y)), self.truth[n]) for n, y in found.items() if n in shared}
        ours, state = self.forward(self.ours, self.x)()
        self.forward(theirs[0], self.given(peer))()
        after = self.peer_steps(peer, theirs[1], [state])()
        errors["decode o"] = rms(wide(after[-1:, :1]), self.truth["decode o"])
        apart = (found["o"].float() - ours.float()).square().mean().sqrt()
        errors["o from ours"] = float(apart / ours.float().square().mean().sqrt())
        return errors

    # ---- the least it could take

    def floor(self, mode: str, bandwidth: float, flops: float) -> float:
        """Seconds: of inputs and outputs moved once at ``bandwidth``, or of the operations that
        read and write the state at the rate of matrix products, where those take longer. Training
        has the forward, and a backward of the inputs, the gradients and twice the operations."""
        B, T, H, D = sizes_of(self.shape)
        state = B * H * D * D
        if mode == "decode":
            token = sum(y.nbytes for y in self.token.values()) + B * H * D * 2
            return max((token + 8 * state) / bandwidth, FLOPS[self.variant] * state / flops)
        inputs, output = sum(y.nbytes for y in self.x.values()), self.do.nbytes
        moved, times = inputs + output, 1
        if mode == "training":
            moved, times = moved + 2 * inputs + output, 3
        return max(moved / bandwidth, times * FLOPS[self.variant] * state * T / flops)


def wrong(errors: dict[str, float], peer: bool = False) -> str:
    """What is beyond its limit, "" if nothing."""
    limits = {n: PEER if peer else GRADIENT if n[:2] == "d " else OUTPUT for n in errors}
    beyond = [f"{n} is off by {e:.1e}" for n, e in errors.items() if not e <= limits[n]]
    return ", ".join(beyond)


def one_head(x: Any) -> Any:
    """The last batch row's first head, [1, T, 1, ...]."""
    return x[-1:, :, :1]


def wide(x: Any) -> Any:
    """A tensor as float64 in NumPy."""
    return x.detach().double().cpu().numpy()


def rms(got: Any, want: Any) -> float:
    """The error relative to what is wanted, both as root mean squares."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
