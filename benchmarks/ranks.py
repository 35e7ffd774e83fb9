"""In goes nothing, out comes a table: wall time of one call whose sequence lies on two ranks,
beside that of one rank.

    python benchmarks/ranks.py            gla and gated_deltanet at T = 32,768, two minutes
    python benchmarks/ranks.py --quick    gla at T = 2,048, two rounds, nothing written

Starts itself by torchrun with one rank and with two, a processor and a thread each, joined by Gloo.
B = 1, H = 8, K = V = 64, float32, the C target; forward, and forward with gradients of all inputs,
by the ring and by summaries. A round's time is that of its slowest rank. First, outputs of two
ranks are compared with those that one kernel gives on the whole sequence. Of use on a machine that
does nothing else. Numbers go to ``benchmarks/results/ranks.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import record

VARIANTS = ("gla", "gated_deltanet")
HEADS, SIZE = 8, 64
KINDS = ("forward", "forward and backward")
EXCHANGES = ("ring", "summaries")
ALONE = "one rank"
LIMIT = 1e-5  # of outputs, relative to the largest
ROW = "ROW "


def arrays(kernel: Any, tokens: int) -> list[Any]:
    """Inputs of the whole sequence, the same on every rank: keys of length 1, gates where they
    belong."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    found = []
    for argument in kernel.signature.arguments:
        x = torch.randn(1, tokens, HEADS, *(SIZE for _ in argument.axes), generator=drawn)
        if argument.name == "k":
            x = x / x.norm(dim=-1, keepdim=True)
        found.append({"g": -x.abs(), "beta": x.sigmoid()}.get(argument.name, x))
    return found


def seconds(run: Callable, given: list[Any], kind: str, rounds: int) -> list[float]:
    """Of each round, what the slowest rank took; two rounds before them do not count."""
    import torch
    import torch.distributed as dist

    found = []
    for _ in range(rounds + 2):
        x = [y.clone().requires_grad_(kind == KINDS[1]) for y in given]
        dist.barrier()
        begun = time.perf_counter()
        with torch.set_grad_enabled(kind == KINDS[1]):
            output, _ = run(*x)
            if kind == KINDS[1]:
                output.sum().backward()
        took = torch.tensor([time.perf_counter() - begun])
        dist.all_reduce(took, dist.ReduceOp.MAX)
        found.append(took.item())
    return found[2:]


def work(options: argparse.Namespace) -> None:
    """What each rank does; the first prints rows of JSON."""
    import torch
    import torch.distributed as dist

    import lacc
    from lacc.distributed import context_parallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    own = slice(rank * options.tokens // ranks, (rank + 1) * options.tokens // ranks)
    for variant in options.variants:
        path = record.EXAMPLES / f"{variant}.la"
        kernel = lacc.compile(path, target="c", K=SIZE, V=SIZE)
        whole = arrays(kernel, options.tokens)
        given = [x[:, own].contiguous() for x in whole]
        for exchange in (ALONE,) if ranks == 1 else EXCHANGES:
            run = kernel if ranks == 1 else context_parallel(kernel, exchange=exchange)
            if ranks > 1:
                want, got = kernel(*whole)[0][:, own], run(*given)[0]
                error = float((got - want).abs().max() / want.abs().max())
                if not error <= LIMIT:
                    raise SystemExit(f"{variant}, {exchange}: rank {rank} is off by {error:.1e}")
            for kind in KINDS:
                row = [variant, kind, exchange, seconds(run, given, kind, options.rounds)]
                if rank == 0:
                    print(ROW + json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def started(ranks: int, options: argparse.Namespace) -> list[list[Any]]:
    """The rows of a run of this file on so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", __file__]
    command += [f"--tokens={options.tokens}", f"--rounds={options.rounds}", *options.variants]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LACC_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    lines = done.stdout.splitlines()
    return [json.loads(line.removeprefix(ROW)) for line in lines if line.startswith(ROW)]


def table(rows: list[list[Any]]) -> str:
    """Milliseconds, the quartiles beside them, and how often faster than one rank."""
    alone = {(variant, kind): times for variant, kind, exchange, times in rows if exchange == ALONE}
    cells = []
    for variant, kind, exchange, times in rows:
        low, middle, high = (x * 1e3 for x in record.quartiles(times))
        faster = record.quartiles(alone[variant, kind])[1] * 1e3 / middle
        said = f"{middle:.0f} ({low:.0f} to {high:.0f})"
        cells.append((variant, kind, exchange, said, f"{faster:.2f}"))
    names = list(dict.fromkeys(variant for variant, *_ in rows))
    cells.sort(key=lambda cell: (names.index(cell[0]), KINDS.index(cell[1])))
    return record.markdown(("variant", "call", "ranks", "ms (quartiles)", "times faster"), cells)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("variants", nargs="*", default=VARIANTS, help="examples to measure")
    parser.add_argument("--quick", action="store_true", help="one variant, few tokens and rounds")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if "RANK" in os.environ:
        work(options)
        return
    if options.quick:
        options.variants, options.tokens, options.rounds = VARIANTS[:1], 2048, 2
    found = []
    for ranks in (1, 2):
        print(f"{ranks} of 2 ranks", flush=True)
        found += started(ranks, options)
    said = table(found)
    print(f"\n{said}")
    if options.quick:
        return
    kept = {"processor": record.processor(), "versions": record.versions("numpy", "torch")}
    kept |= {"tokens": options.tokens, "rows": found}
    record.write(record.RESULTS / "ranks.json", json.dumps(kept, indent=1) + "\n")
    head = "# One sequence on two ranks\n\n"
    head += f"{record.processor()}, a thread and a processor a rank, float32, B = 1, H = {HEADS}, "
    head += f"K = V = {SIZE}, T = {options.tokens:,} in all, Gloo, target c; wall time of the "
    head += "slowest rank; `python benchmarks/ranks.py`.\n\n"
    record.write(record.RESULTS / "ranks.md", head + said)


if __name__ == "__main__":
    main()
