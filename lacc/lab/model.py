"""A layer class and a task go in; a small trained model, what it reached and how come out.

Loaded when a trial begins: it needs torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lacc.lab.tasks import ASK_NOTHING, Array, Task


class Block(nn.Module):
    """A mixing layer and a gated MLP, each on the normalised stream."""

    def __init__(self, mix: nn.Module, width: int) -> None:
        super().__init__()
        self.mix_norm, self.mix = nn.RMSNorm(width), mix
        self.mlp_norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.mix_norm(x))[0]
        a, b = self.up(self.mlp_norm(x)).chunk(2, -1)
        y: Tensor = x + self.down(F.silu(a) * b)
        return y


class Model(nn.Module):
    """Tokens [B, T] to logits [B, T, classes]."""

    def __init__(
        self, layer: Callable[..., nn.Module], task: Task, width: int, heads: int, depth: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(task.vocabulary, width)
        make = (layer(width, heads, conv_size=4) for _ in range(depth))
        self.blocks = nn.Sequential(*(Block(mix, width) for mix in make))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, task.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.embed(tokens))))
        return logits


def drawn(task: Task, rng: Any, rows: int, length: int, held_out: bool) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a task as tensors."""
    tokens, targets = task.draw(rng, rows, length, held_out)
    return torch.from_numpy(tokens.copy()), torch.from_numpy(targets.copy())


def losses(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy, in nats, where something is asked."""
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ASK_NOTHING)


def untrained(
    layer: Callable[..., nn.Module], task: Task, width: int, heads: int, depth: int, seed: int
) -> Model:
    """A model that has learnt nothing."""
    torch.manual_seed(seed)
    return Model(layer, task, width, heads, depth)


def trained(
    model: Model, task: Task, *, steps: int, rows: int, rate: float, seed: int
) -> Iterator[tuple[float, float]]:
    """Trains a model; after each step its loss and the norm of the gradient."""
    rng = np.random.default_rng([seed, 1])
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
    )
    warm = max(1, min(40, steps // 10))
    for step in range(steps):
        done = (step - warm) / max(1, steps - warm)
        scale = (step + 1) / warm if step < warm else 0.55 + 0.45 * math.cos(math.pi * done)
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        tokens, targets = drawn(task, rng, rows, task.train, False)
        loss = losses(model, tokens, targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield float(loss.detach()), float(norm)


@torch.no_grad()
def reached(model: Model, task: Task, length: int, seed: int, rows: int = 64) -> float:
    """The accuracy on new sequences of ``length`` tokens, or the bits a token."""
    rng = np.random.default_rng([seed, 2, length])
    right, asked, nats = 0, 0, 0.0
    for _ in range(rows // 16):
        tokens, targets = drawn(task, rng, 16, length, True)
        logits = model(tokens)
        there = targets != ASK_NOTHING
        right += int((logits.argmax(-1) == targets)[there].sum())
        nats += float(F.cross_entropy(logits[there], targets[there], reduction="sum"))
        asked += int(there.sum())
    return nats / asked / math.log(2) if task.bits else right / asked


def influence(model: Model, task: Task, length: int, seed: int, rows: int = 4) -> Array:
    """How far each token's output of the first mixing layer still moves with each earlier token:
    the norm of a random projection's gradient, [length, length], the mean of some sequences."""
    rng = np.random.default_rng([seed, 3])
    tokens, _ = drawn(task, rng, rows, length, True)
    block = model.blocks[0]
    assert isinstance(block, Block)
    x = block.mix_norm(model.embed(tokens)).detach().requires_grad_()
    y = block.mix(x)[0]
    torch.manual_seed(seed)
    across = torch.randn(y.shape[-1])
    found = np.zeros((length, length))
    for t in range(length):
        (moved,) = torch.autograd.grad((y[:, t] @ across).sum(), x, retain_graph=True)
        found[t] = moved.norm(dim=-1).mean(0).numpy()
    return found


@torch.no_grad()
def state_size(layer: Callable[..., nn.Module], width: int, heads: int, tokens: int) -> int:
    """Numbers that a layer keeps of one sequence after some tokens, its convolution apart."""
    _, cache = layer(width, heads)(torch.zeros(1, tokens, width))
    return sum(x.numel() for x in cache.state if x.is_floating_point())


@torch.no_grad()
def decoding(
    layer: Callable[..., nn.Module], width: int, heads: int, tokens: int, count: int = 30
) -> list[float]:
    """Seconds of processor time of each of ``count`` steps after some tokens."""
    torch.manual_seed(0)
    made: Any = layer(width, heads)
    _, cache = made(torch.randn(1, tokens, width))
    found = []
    for _ in range(count + 3):
        x = torch.randn(1, width)
        begun = time.process_time()
        _, cache = made.step(x, cache, in_place=True)
        found.append(time.process_time() - begun)
    return found[3:]
