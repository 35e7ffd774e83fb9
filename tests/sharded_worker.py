"""By ``torchrun`` on two ranks: layers whose heads are apart, and layers whose weights are (FSDP2),
against the whole layer: outputs, gradients, a step of an optimizer. Prints the worst difference.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lacc
from lacc.distributed import tensor_parallel

EXAMPLES = Path(__file__).parents[1] / "examples"


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def compare(first: nn.Module, second: nn.Module, shared: bool) -> float:
    """The worst difference of two layers with equal weights. ``shared``: both ranks have the same
    sequences; else each has its own, and the gradients of ``second`` are their mean."""
    torch.manual_seed(1)
    every = torch.randn(2, 2, 9, 32, dtype=torch.float64)
    x = (every[0] if shared else every[dist.get_rank()]).requires_grad_()
    y = x.detach().clone().requires_grad_()
    a, b = first(x)[0], second(y)[0]
    worst = [(a - b).abs().max()]
    a.square().sum().backward()
    b.square().sum().backward()
    worst.append((x.grad - y.grad).abs().max())
    for (name, p), (other, q) in zip(first.named_parameters(), second.named_parameters()):
        assert name == other
        if not shared:
            dist.all_reduce(p.grad)
            p.grad /= 2
        worst.append((p.grad - whole(q.grad)).abs().max())
    for layer in (first, second):
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        torch.optim.AdamW(layer.parameters(), 1e-2).step()
    worst.append((first(x)[0] - second(y)[0]).abs().max())
    return float(max(worst).detach())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    cases = (
        ("gla", {"gate_rank": 8, "conv_size": 4}),
        ("mamba2", {"num_groups": 2}),
        ("rwkv6", {}),
    )
    for name, options in cases:
        kernel = lacc.compile(EXAMPLES / f"{name}.la", target="c")

        def made(kernel=kernel, options=options):
            torch.manual_seed(0)
            return kernel.layer(32, 4, **options).double()

        apart = tensor_parallel(kernel, made(), mesh)
        assert apart.q_proj.weight.placements[0].dim == 0 if name == "gla" else True
        found[f"{name} heads"] = compare(made(), apart, True)
        if name == "gla":
            found[f"{name} weights"] = compare(made(), fully_shard(made(), mesh=mesh), False)
            x = torch.randn(
                2, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
            )
            y, cache = apart(x)
            _, cache = apart(x[:, :6])
            again, _ = apart.step(x[:, 6], cache)
            found["gla step"] = float((again - y[:, 6]).abs().max())
    kernel = lacc.compile(EXAMPLES / "retnet.la", target="c")
    try:
        tensor_parallel(kernel, kernel.layer(32, 4), mesh)
    except ValueError as problem:
        said = str(problem)
    if dist.get_rank() == 0:
        for name, error in found.items():
            print(f"{name}: {error:.1e}")
        print(said, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
