"""In goes nothing, out comes a table: from which T on variants cost less than causal softmax
attention, as measured and as `lacc explain` says.

    python benchmarks/crossover.py            every case, a minute or two
    python benchmarks/crossover.py --quick    one variant and size, fewer rounds, nothing written

One thread, float32, B = 1, H = 8, the C target called from Python with NumPy arrays. Against it:
its own attention (`examples/softmax_attention.la`) and PyTorch's
`scaled_dot_product_attention`, forward, and forward with gradients of all inputs. All take turns
round by round at each T; times are CPU seconds of this process, medians; where the ratio of two
passes 1 is interpolated between the T measured. Every output is checked by its shape and finite
values here, by its numbers in `lacc verify`. Numbers go to ``benchmarks/results/crossover.json``,
``.md`` and, where matplotlib is installed, ``.svg``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import cpu
import record

VARIANTS = ("linear_transformer", "gla", "gated_deltanet")
SIZES = (64, 128)
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
KINDS = ("forward", "forward and backward")
PEERS = ("lacc attention", "torch sdpa")
LEAST = 0.01  # CPU seconds of a sample, at least


def kernels(variant: str, size: int) -> dict[str, Callable]:
    """Name to function of the arrays of ``variant``; attention takes the first three."""
    import numpy as np
    import torch

    import lacc

    torch.set_num_threads(1)

    def load(name: str):
        path = record.EXAMPLES / f"{name}.la"
        return lacc.compile(path, target="c", K=size, V=size)

    spec, own = load(variant), load("softmax_attention")

    def sdpa(*xs, gradients: bool = False):
        heads = [torch.from_numpy(x).transpose(1, 2).requires_grad_(gradients) for x in xs[:3]]
        with torch.set_grad_enabled(gradients):
            o = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        if gradients:
            o.backward(torch.ones_like(o))
        return o

    found = {}
    for kind, back in zip(KINDS, (False, True)):
        for name, kernel, most in (("spec", spec, None), (PEERS[0], own, 3)):
            found[f"{name}, {kind}"] = (
                (lambda *xs, k=kernel, n=most: k.vjp(*xs[:n], cotangent=np.ones_like(xs[2])))
                if back
                else (lambda *xs, k=kernel, n=most: k(*xs[:n]))
            )
        found[f"{PEERS[1]}, {kind}"] = lambda *xs, b=back: sdpa(*xs, gradients=b)
    return found


def measured(variant: str, size: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each function at each of LENGTHS."""
    functions, found = kernels(variant, size), {}
    for length in LENGTHS:
        arrays = cpu.draw(variant, length, size)

        def sample(_: str, function: Callable, arrays=arrays) -> float:
            start, calls = time.process_time(), 0
            while calls == 0 or time.process_time() - start < LEAST:
                function(*arrays)
                calls += 1
            return (time.process_time() - start) / calls

        for function in functions.values():
            function(*arrays)
        for name, samples in record.in_turns(functions, sample, rounds).items():
            found.setdefault(name, []).append(statistics.median(samples))
    return found


def meeting(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The T from which ``ours`` is less for good, interpolated; 1: always, None: never."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if logs[-1] >= 0:
        return None
    last = max((n for n, log in enumerate(logs) if log >= 0), default=None)
    if last is None:
        return 1.0
    share = logs[last] / (logs[last] - logs[last + 1])
    low, high = map(math.log, LENGTHS[last : last + 2])
    return math.exp(low + share * (high - low))


def predicted(variant: str, size: int) -> dict[tuple[str, str], int | None]:
    """What `lacc explain` says, by (kind, peer)."""
    from lacc import driver
    from lacc.plan import crossover
    from lacc.plan.choose import choose
    from lacc.plan.machine import DEFAULT, MACHINES

    spec = driver.load(record.EXAMPLES / f"{variant}.la", {"K": size, "V": size})
    derived = driver.analyse(spec)
    machine = MACHINES["c"][DEFAULT]
    plan = choose(derived, machine=machine)
    _, cases = crossover.cases(derived, plan, machine, "c", cpu.HEADS, 4)
    names = {crossover.OWN["c"].name: PEERS[0], crossover.FUSED.name: PEERS[1]}
    return {(c.name, names[c.against]): c.crossover() for c in cases if c.name in KINDS}


def rows(variant: str, size: int, times: Mapping[str, Sequence[float]]) -> list[dict]:
    """A row for each kind and peer."""
    said, found = predicted(variant, size), []
    for kind in KINDS:
        for peer in PEERS:
            T = meeting(times[f"spec, {kind}"], times[f"{peer}, {kind}"])
            row = {"variant": variant, "size": size, "kind": kind, "against": peer}
            found.append(row | {"measured": T, "predicted": said[kind, peer]})
    return found


def apart(row: Mapping) -> str:
    """How far the prediction is off, where both are lengths that were looked at."""
    got, said = row["measured"], row["predicted"]
    if got is None or said is None:
        return "" if got is said else "differs"
    if max(got, said) <= LENGTHS[0]:
        return "both below the shortest"
    return f"{said / max(got, LENGTHS[0]) - 1:+.0%}"


def words(length: float | None) -> str:
    """A crossover as text."""
    if length is None:
        return f"above {LENGTHS[-1]}"
    return f"below {LENGTHS[0]}" if length <= LENGTHS[0] else f"{length:.0f}"


def table(found: Sequence[Mapping]) -> str:
    """All rows as Markdown."""
    header = ("variant", "K=V", "call", "against", "measured T", "predicted T", "off by")
    return record.markdown(
        header,
        (
            (
                *(str(row[name]) for name in ("variant", "size", "kind", "against")),
                *(words(row[name]) for name in ("measured", "predicted")),
                apart(row),
            )
            for row in found
        ),
    )


def plot(times: Mapping[str, Mapping[str, Sequence[float]]], found: Sequence[Mapping]) -> None:
    """Time against T, a panel for each variant and size; does nothing without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("svg")
        matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "crossover"}
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    kind = KINDS[0]
    _, panels = pyplot.subplots(len(SIZES), len(VARIANTS), figsize=(13, 7), squeeze=False)
    for panel, (case, series) in zip(panels.flat, times.items()):
        for name in ("spec", *PEERS):
            panel.loglog(LENGTHS, [x * 1e3 for x in series[f"{name}, {kind}"]], ".-", label=name)
        for row in found:
            if f"{row['variant']}, K=V={row['size']}" == case and row["kind"] == kind:
                at, color = row["predicted"], "C1" if row["against"] == PEERS[0] else "C2"
                if at and at > 1:
                    panel.axvline(at, color=color, linestyle=":")
        panel.set(title=case, xlabel="T", ylabel="ms, forward")
        panel.legend(title="dotted: predicted crossover", fontsize=8, title_fontsize=8)
    pyplot.tight_layout()
    drawn = io.StringIO()
    pyplot.savefig(drawn, metadata={"Date": None})
    lines = (line.rstrip() for line in drawn.getvalue().splitlines())
    record.write(record.RESULTS / "crossover.svg", "\n".join(lines) + "\n")


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one case, three rounds")
    parser.add_argument("--rounds", type=int, default=9, help="samples a function and T")
    options = parser.parse_args()
    times, found = {}, []
    every = [(variant, size) for size in SIZES for variant in VARIANTS]
    for n, (variant, size) in enumerate(every[: 1 if options.quick else None], 1):
        print(f"{n} of {len(every)}: {variant}, K=V={size}", flush=True)
        series = measured(variant, size, 3 if options.quick else options.rounds)
        times[f"{variant}, K=V={size}"] = series
        found += rows(variant, size, series)
    print("\n" + table(found))
    if options.quick:
        return
    kept = {"processor": record.processor(), "versions": record.versions("numpy", "torch")}
    kept |= {"lengths": LENGTHS, "seconds": times, "rows": found}
    record.write(record.RESULTS / "crossover.json", json.dumps(kept, indent=1) + "\n")
    head = "# From which T on less time than causal softmax attention\n\n"
    head += f"{record.processor()}, one thread, float32, B = 1, H = {cpu.HEADS}; "
    head += "`python benchmarks/crossover.py`. Predicted: `lacc explain --target c`.\n\n"
    record.write(record.RESULTS / "crossover.md", head + table(found))
    plot(times, found)


if __name__ == "__main__":
    cpu.on_one_thread()
    main()
