"""Specs' paths go in, by ``torchrun``; each rank compares its share of every call and gradient with
one kernel on the whole sequence, and rank 0 prints the worst error and the bytes sent.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import lacc
from lacc.distributed import context_parallel, together
from lacc.distributed.context import Shared
from lacc.distributed.ran import Ran
from lacc.runtime.kernel import Kernel
from lacc.verify.inputs import Sizes, as_dtype, draw

T = 23


def drawn(kernel: lacc.Kernel, groups: int) -> dict[str, torch.Tensor]:
    """Two sequences of four heads within the promises."""
    dims = {name: dim.default for name, dim in kernel.spec.dims.items()}
    sizes = Sizes(2, T, 4, groups, T + 16, dims)
    arrays = draw(kernel.spec, sizes, seed=3, regime="interior", dtype=as_dtype("float64"))
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}


def pulled(outputs: tuple[torch.Tensor, ...], state: tuple[torch.Tensor, ...], part: slice, last):
    """A number whose gradient reaches every output, and the state on the last rank."""
    torch.manual_seed(1)
    cotangents = [torch.randn(y.shape[0], T, *y.shape[2:], dtype=y.dtype) for y in outputs]
    total = sum((y * ct[:, part]).sum() for y, ct in zip(outputs, cotangents))
    for y in state:
        if y.is_floating_point() and last:
            total = total + (y * torch.cos(torch.arange(y.numel())).reshape(y.shape)).sum()
    return total


def compare(path: Path, rank: int, ranks: int, exchange: str) -> tuple[float, int, int]:
    """The worst error of a spec, relative to the largest number of its quantity; bytes sent, and
    bytes that the formula has."""
    dims = {"K": 8, "V": 6} if {"K", "V"} <= lacc.load(path).dims.keys() else {}
    kernel = lacc.compile(path, target="c", **dims)
    arguments = kernel.signature.arguments
    roles = {a.name: a.role for a in arguments}
    x = drawn(kernel, 2 if any(a.level == "group" for a in arguments) else 1)
    start = kernel(**{n: y[:, :3] if roles[n] == "input" else y for n, y in x.items()})[1]
    ends = [0, *(T * i // ranks + 1 for i in range(1, ranks)), T]
    part = slice(ends[rank], ends[rank + 1])

    some = torch.rand(2, T, generator=torch.Generator().manual_seed(5)) > 0.2

    def watched(tokens: slice) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
        of = {n: y[:, tokens] if roles[n] == "input" else y for n, y in x.items()}
        return {n: y.clone().requires_grad_(roles[n] != "buffer") for n, y in of.items()}, type(
            start
        )(*(y.clone().requires_grad_(y.is_floating_point()) for y in start))

    def run(function, given, begun, tokens: slice, last: bool, valid):
        valid = None if valid is None else valid[:, tokens]
        outputs, state = function(**given, initial_state=begun, valid=valid)
        outputs = (outputs,) if torch.is_tensor(outputs) else tuple(outputs)
        pulled(outputs, state, tokens, last).backward()
        return outputs, state

    def off(a: torch.Tensor | None, b: torch.Tensor | None, of: torch.Tensor | None) -> float:
        if b is None or not b.numel():
            return 0.0
        a = torch.zeros_like(b) if a is None else a
        assert of is not None and a.shape == b.shape
        return float((a - b).abs().max() / (of.abs().max() + 1e-12))

    shared, worst = context_parallel(kernel, exchange=exchange), []
    for valid in (some, None, None, None):  # a call is known from its second time on
        given, begun = watched(slice(0, T))
        outputs, state = run(kernel, given, begun, slice(0, T), True, valid)
        shared.ranks.sent = 0
        mine, first = watched(part)
        got, end = run(shared, mine, None if rank else first, part, rank == ranks - 1, valid)
        worst += [off(a, b[:, part], b) for a, b in zip(got, outputs)]
        if rank == ranks - 1:
            worst += [off(a, b, b) for a, b in zip(end, state)]
        if rank == 0:
            worst += [off(a.grad, b.grad, b.grad) for a, b in zip(first, begun)]
        for name, y in mine.items():
            whole = given[name].grad
            if roles[name] == "param":
                total = torch.zeros_like(y) if y.grad is None else y.grad.clone()
                dist.all_reduce(total)
                worst.append(off(total, whole, whole))
            elif whole is not None:
                worst.append(off(y.grad, whole[:, part], whole))
    found = torch.tensor([max(worst)], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    sizes = {"B": 2, "H": 4, "G": 2 if any(a.level == "group" for a in arguments) else 1}
    way = shared.why.partition(":")[0]
    said = shared.bytes_sent(way, itemsize=8, **sizes, **dims)
    return (
        float(found),
        shared.sent,
        said[0] * (way == "summaries" or rank < ranks - 1)
        + said[1] * (way == "summaries" or rank > 0),
    )


def disagree(rank: int) -> None:
    """Ranks that do not fit together, and ranks one of which fails: each says what it was told."""
    kernels = [lacc.compile(text, target="c") for text in (SUM, SUM.replace("0.5", "0.25"))]
    told("specs", rank, lambda: context_parallel(kernels[rank]))
    for exchange in ("ring", "summaries"):
        fail(context_parallel(kernels[0], blocks=2, exchange=exchange), exchange, rank)


def fail(shared: Shared, exchange: str, rank: int) -> None:
    """Calls that fail on one rank or do not fit, and one that is well behind them."""
    x = torch.zeros(2, 3, 4)
    told(f"{exchange} sizes", rank, lambda: shared(torch.zeros(2 + rank, 3, 4)))
    told(f"{exchange} argument", rank, lambda: shared(x, y=x) if rank else shared(x))
    o, _ = shared(x.clone().requires_grad_())
    pull, fill = Ran.pull, Kernel.fill_gradients
    if rank == 1:  # what a kernel of one rank finds out as it runs
        Ran.pull = Kernel.fill_gradients = broken  # type: ignore[method-assign,assignment]
    told(f"{exchange} backward", rank, lambda: o.sum().backward())
    Ran.pull, Kernel.fill_gradients = pull, fill  # type: ignore[method-assign]
    o, state = shared(x + 1)
    whole, end = shared.kernel(torch.ones(2, 6, 4))
    assert torch.allclose(o, whole[:, 3 * rank : 3 * rank + 3])
    assert not rank or torch.allclose(state.s, end.s)


def leave(rank: int) -> None:
    """Rank 1 leaves blocks by exceptions between calls; then it comes too late."""
    kernel, x = lacc.compile(SUM, target="c"), torch.ones(2, 3, 4)

    def block(shared: Shared, place: str) -> None:
        def may_leave(here: str) -> None:
            if rank and here == place:
                raise KeyError(f"mine, {place}")

        with together():
            o, _ = shared(x.clone().requires_grad_())
            may_leave("forward")
            o.sum().backward()
            may_leave("backward")
            shared(x)
            may_leave("last")

    for exchange in ("ring", "summaries"):
        shared = context_parallel(kernel, blocks=2, exchange=exchange)
        for place in ("forward", "backward", "last", "nowhere"):
            told(f"{exchange} {place}", rank, lambda s=shared, p=place: block(s, p))
    with together():
        told("early", rank, lambda: shared(x) if rank else nested())
    told("late", rank, lambda: too_late(shared, x, rank))
    os._exit(0)  # the group is of no use any more


def nested() -> None:
    with together():
        pass


def too_late(shared: Shared, x: torch.Tensor, rank: int) -> None:
    with together(timeout=1.5):
        shared(x)
        time.sleep(4 * rank)
        shared(x)


def told(what: str, rank: int, call: Callable[[], object]) -> None:
    """Prints what a call raises."""
    try:
        call()
    except (ValueError, TypeError, RuntimeError, KeyError, TimeoutError) as problem:
        line = f"{what}, rank {rank}: {type(problem).__name__}: {problem}\n"
        os.write(1, line.encode())  # at once, beside what other ranks say


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("out of memory")


SUM = """variant total
input x : scalar
state s : scalar
output o : scalar
s[t] = 0.5 * s[t-1] + x
o = s[t]
"""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    exchange, *paths = sys.argv[1:] or ["auto"]
    if exchange == "leave":
        leave(rank)
    for path in map(Path, paths):
        worst, sent, said = compare(path, rank, ranks, exchange)
        if rank == 0:
            print(f"{path.stem} {worst:.2e} {sent} {said}", flush=True)
    if not paths:
        disagree(rank)
    dist.barrier()
    if not paths:
        sys.stdout.flush()
        os._exit(0)  # Gloo's threads at times abort a group whose exchanges have failed as it ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
