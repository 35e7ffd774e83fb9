"""In goes nothing, out comes a table: times of the Triton target on a GPU, the floor, fla-core's.

    python benchmarks/gpu.py                      everything, most important first, 7.5 minutes
    python benchmarks/gpu.py --seconds 300        what can be had in less; a later call goes on
    python benchmarks/gpu.py --results FOLDER     where gpu.json and gpu.md are read and written
    python benchmarks/gpu.py --smoke              all of it without a GPU: interpreted, tiny shapes

First the machine's own limits are measured: copying and bfloat16 matrix products. Then every
variant and shape is built and checked in a process of its own, several at once: output, gradients,
final state and step against float64 (see `gpu_cases.py`), and fla-core's where it is installed,
which tunes its kernels meanwhile, each among ``--candidates`` of its configurations. Only what is
right is timed, alone on the GPU: rounds in which lacc and fla-core take turns, medians with
quartiles, ratios within a round. bfloat16 inputs, log gates in float32.

forward has no gradients and gives output and final state; training is a forward and the gradients
of all inputs; decode is one token with the state in place, in a CUDA graph of steps over as many
states as do not fit the L2 cache, "decode, eager" the same without a graph. What fla-core takes in
another form (RWKV-7's decay and removal, feature maps) is made before its clock starts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import record
from peers import PEERS, imported

VARIANTS = ("gla", "simple_gla", "gated_deltanet", "kda", "rwkv7")
VARIANTS += ("deltanet", "retnet", "linear_transformer")
SHAPES = ("B2_T16384_H16_D128", "B4_T2048_H16_D128", "B8_T1024_H8_D64")
SHAPES += ("B1_T8192_H96_D128", "B8_T2048_H32_D256", "B4_T4096_H64_D128")
TINY = ("B1_T37_H2_D16", "B2_T5_H1_D8")
MODES = ("forward", "training", "decode", "decode, eager")
BEYOND_CACHE = 256 << 20
"""Bytes of the states that decode goes round."""
BUILDING = 0.7
"""Of the time, how much goes into building at most."""


class Machine:
    """The GPU, or for --smoke the CPU: how long things take on it."""

    def __init__(self, smoke: bool) -> None:
        import torch

        self.torch, self.smoke = torch, smoke
        self.device = "cpu" if smoke else "cuda"
        self.name = "interpreted" if smoke else torch.cuda.get_device_name(0)
        self.rounds, self.least = (2, 0.0) if smoke else (11, 4e-3)
        self.calls: dict[str, int] = {}

    def seconds(self, run: Callable[[], Any], calls: int = 1) -> float:
        """Of one call, from ``calls`` in a row."""
        if self.smoke:
            start = time.perf_counter()
            for _ in range(calls):
                run()
            return (time.perf_counter() - start) / calls
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / calls

    def timed(self, functions: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds of each function, which take turns; a sample has enough calls to be measured."""
        calls = {}
        for name, run in functions.items():
            run()
            once = self.seconds(run)
            calls[name] = min(64, max(1, round(self.least / max(once, 1e-6))))
        sample = lambda name, run: self.seconds(run, calls[name])  # noqa: E731
        return record.in_turns(functions, sample, self.rounds)

    def graph(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """``run`` captured, to be replayed; on the CPU as it is."""
        run()
        if self.smoke:
            return run
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            run()
        return graph.replay

    def limits(self) -> dict[str, float]:
        """Bytes a second of a copy, read and written, and operations a second of a bfloat16
        product."""
        size, n = (1 << 20, 128) if self.smoke else (1 << 30, 8192)
        x = self.torch.zeros(size, dtype=self.torch.uint8, device=self.device)
        y = self.torch.empty_like(x)
        a = self.torch.randn(n, n, device=self.device).bfloat16()
        runs = {"copy": lambda: y.copy_(x), "matmul": lambda: a @ a}
        best = {name: min(samples) for name, samples in self.timed(runs).items()}
        return {"bandwidth": 2 * size / best["copy"], "flops": 2 * n**3 / best["matmul"]}


def case_of(variant: str, shape: str, options: argparse.Namespace) -> tuple[Any, Any, str]:
    """The tensors and functions of a case, fla-core's functions, why there are none."""
    from gpu_cases import Case

    from lacc.runtime import torch_calls

    if options.smoke:
        torch_calls.prepare()
    case = Case(variant, shape, "cpu" if options.smoke else "cuda")
    try:
        lock = Path(tempfile.gettempdir(), "lacc-benchmark.lock")
        return case, imported(PEERS[variant], options.candidates, lock), ""
    except (ImportError, RuntimeError) as error:  # not installed, or it finds no GPU
        return case, None, f"{type(error).__name__}: {error}".splitlines()[0]


def checked(variant: str, shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of its own finds out about a case: errors, and what is wrong, by whose."""
    from gpu_cases import wrong

    case, theirs, absent = case_of(variant, shape, options)
    errors = {"lacc": case.errors()}
    refused = {"lacc": wrong(errors["lacc"]), "fla-core": absent}
    if theirs is not None:
        try:
            errors["fla-core"] = case.peer_errors(PEERS[variant], theirs)
            refused["fla-core"] = wrong(errors["fla-core"], peer=True)
        except Exception as error:  # whatever a peer raises is why it is not timed
            refused["fla-core"] = f"{type(error).__name__}: {error}"[:300]
    return {"errors": errors, "refused": {n: why for n, why in refused.items() if why}}


def build(
    cases: list[tuple[str, str]], options: argparse.Namespace, until: float
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What `checked` says of each case, several at once, in order."""

    def one(case: tuple[str, str]) -> dict[str, Any]:
        arguments = [*case, "--results", options.results, "--candidates", options.candidates]
        command = [sys.executable, "-W", "ignore", __file__, "--check", *map(str, arguments)]
        left = until - time.monotonic()
        try:
            done = subprocess.run(
                [*command, *(["--smoke"] if options.smoke else [])],
                capture_output=True,
                text=True,
                timeout=max(left, 0.1),
            )
        except subprocess.TimeoutExpired:
            return {"late": True}
        if done.returncode:
            said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            return {"errors": {}, "refused": {"lacc": said[:300]}}
        return dict(json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(options.jobs) as pool:
        for (variant, shape), found in zip(cases, pool.map(one, cases)):
            yield variant, shape, found


def times(
    machine: Machine, variant: str, shape: str, found: dict[str, Any], options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, list[float]], Any]]:
    """Mode, samples by whose they are, and the case, of all modes."""
    case, theirs, _ = case_of(variant, shape, options)
    peer = None if theirs is None or "fla-core" in found["refused"] else PEERS[variant]
    for mode in MODES[:2]:
        yield mode, machine.timed(case.functions(mode, peer, theirs)), case
    _, state = case.forward(case.ours, case.x)()
    bytes_ = sum(y.nbytes for y in state)
    many = 2 if machine.smoke else min(64, -(-BEYOND_CACHE // bytes_))
    states = [type(state)(*(y.clone() for y in state)) for _ in range(many)]
    runs = {"lacc": case.steps(states)}
    if peer is not None:
        runs["fla-core"] = case.peer_steps(peer, theirs[1], states)
    for mode, wrap in zip(MODES[2:], (machine.graph, lambda run: run)):
        samples = machine.timed({name: wrap(run) for name, run in runs.items()})
        yield mode, {name: [s / many for s in each] for name, each in samples.items()}, case


def row(
    mode: str, samples: dict[str, list[float]], floor: float, found: dict[str, Any]
) -> dict[str, Any]:
    """One line of the results."""
    ours = samples["lacc"]
    line: dict[str, Any] = {"mode": mode, "floor": floor, **found}
    line["seconds"] = {name: record.quartiles(each) for name, each in samples.items()}
    if "fla-core" in samples:
        line["times_as_fast"] = record.ratios(samples["fla-core"], ours)
    return line


# ---- what is written -----------------------------------------------------------------------------


HEADER = ("variant", "shape", "", "lacc", "fla-core", "times as fast", "x floor", "error")


def cells(line: dict[str, Any]) -> tuple[str, ...]:
    """A line as it is printed."""
    head = (line["variant"], line["shape"], line.get("mode", "all"))
    if "seconds" not in line:
        return (*head, line["refused"]["lacc"], "", "", "", "")

    def spent(name: str) -> str:
        if name not in line["seconds"]:
            return ""
        low, middle, high = (second * 1e3 for second in line["seconds"][name])
        return f"{middle:.4g} ms ({low:.4g}-{high:.4g})"

    low, ratio, high = line.get("times_as_fast", (0, 0, 0))
    return (
        *head,
        spent("lacc"),
        spent("fla-core"),
        f"{ratio:.2f} ({low:.2f}-{high:.2f})" if ratio else "",
        f"{line['seconds']['lacc'][1] / line['floor']:.2f}",
        f"{max(line['errors']['lacc'].values()):.1e}",
    )


def means(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """By variant and mode: geometric means of how many times as fast, and of floors."""
    found = []
    for variant in (*VARIANTS, "all"):
        for mode in MODES:
            some = [r for r in rows if r.get("mode") == mode and variant in (r["variant"], "all")]
            if not some:
                continue
            floors = record.geometric_mean(r["seconds"]["lacc"][1] / r["floor"] for r in some)
            faster = [r["times_as_fast"][1] for r in some if "times_as_fast" in r]
            ratio = f"{record.geometric_mean(faster):.2f}" if faster else ""
            found.append((variant, mode, str(len(some)), ratio, f"{floors:.2f}"))
    return found


def absent(rows: list[dict[str, Any]]) -> list[str]:
    """Why fla-core was not timed, and where."""
    cases: dict[str, list[str]] = {}
    for line in rows:
        if "fla-core" in line["refused"]:
            cases.setdefault(line["refused"]["fla-core"], []).append(
                f"{line['variant']} {line['shape']}"
            )
    return [
        f"fla-core was not timed on {', '.join(dict.fromkeys(some))}: {why}"
        for why, some in cases.items()
    ]


def page(kept: dict[str, Any]) -> str:
    """The results as Markdown."""
    limits, versions = kept["limits"], kept["versions"]
    words = ", ".join(f"{package} {version}" for package, version in versions.items())
    return "\n".join(
        (
            f"# Times on {kept['device']}\n",
            f"In: `benchmarks/gpu.py`. Out: the tables below. {words}.\n",
            f"Copying {limits['bandwidth'] / 1e12:.2f} TB/s, bfloat16 products "
            f"{limits['flops'] / 1e12:.0f} TFLOP/s. Medians (quartiles) of a call, of one token in "
            f"decode; fla-core tunes among at most {kept['candidates']} configurations a kernel. "
            "times as fast: fla-core's time over ours. error: the largest rms error of ours "
            "relative to float64.\n",
            record.markdown(
                ("variant", "", "shapes", "times as fast", "x floor"), means(kept["rows"])
            ),
            record.markdown(HEADER, map(cells, kept["rows"])),
            "".join(f"- {why}\n" for why in absent(kept["rows"])),
        )
    )


def sources() -> str:
    """A digest of the compiler: results of another one are not continued."""
    digest = hashlib.sha256()
    for folder in ("lacc", "backends", "templates", "examples"):
        for file in sorted((record.ROOT / folder).rglob("*.*")):
            if file.suffix in (".py", ".j2", ".la"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def begun(machine: Machine, options: argparse.Namespace) -> dict[str, Any]:
    """Results of earlier calls on a machine like this one, or none yet."""
    kept = {
        "device": machine.name,
        "versions": record.versions("lacc-compiler", "torch", "triton", "fla-core"),
        "sources": sources(),
        "candidates": options.candidates,
    }
    file = options.results / "gpu.json"
    if file.exists():
        before = json.loads(file.read_text())
        if all(before.get(name) == value for name, value in kept.items()):
            return dict(before)
    return kept | {"limits": machine.limits(), "rows": []}


def measure(options: argparse.Namespace) -> None:
    """Everything that is not there yet, written after each case."""
    start = time.monotonic()
    machine = Machine(options.smoke)
    kept = begun(machine, options)
    limits = kept["limits"]

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {text}", flush=True)

    def keep() -> None:
        record.write(options.results / "gpu.json", json.dumps(kept, indent=1) + "\n")
        record.write(options.results / "gpu.md", page(kept))

    say(f"{machine.name}: {limits['bandwidth']:.3g} B/s, {limits['flops']:.3g} FLOP/s")
    there = {(line["variant"], line["shape"]) for line in kept["rows"]}
    cases = [(v, s) for s in options.shapes for v in options.variants if (v, s) not in there]
    say(f"{len(there)} cases are there already, {len(cases)} to go")
    ready = []
    for variant, shape, found in build(cases, options, start + BUILDING * options.seconds):
        if found.get("late"):
            say(f"{variant} {shape}: not built in time")
        elif "lacc" in found["refused"]:
            kept["rows"].append({"variant": variant, "shape": shape, **found})
            keep()
            say(f"{variant} {shape}: {found['refused']['lacc']}")
        else:
            ready.append((variant, shape, found))
            say(f"{variant} {shape}: built and right")
    for variant, shape, found in ready:
        if time.monotonic() - start > options.seconds:
            say(f"{variant} {shape}: no time left")
            continue
        for mode, samples, case in times(machine, variant, shape, found, options):
            floor = case.floor(mode, limits["bandwidth"], limits["flops"])
            line = {"variant": variant, "shape": shape} | row(mode, samples, floor, found)
            kept["rows"].append(line)
            say("  ".join(cells(line)))
        keep()
    keep()
    print(f"\n{page(kept)}\n{options.results / 'gpu.json'}, {options.results / 'gpu.md'}")


def main() -> None:
    """Measure, or check one case for the process that measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="interpreted, on tiny shapes")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--shapes", nargs="+", help="such as B1_T8192_H96_D128")
    parser.add_argument("--seconds", type=float, default=450, help="that it may take")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--candidates", type=int, default=6, help="fla-core's, of each kernel")
    parser.add_argument("--results", type=Path, help="a folder")
    parser.add_argument("--check", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.smoke or options.check):
        import torch

        if not torch.cuda.is_available():
            parser.error("this machine has no CUDA device; --smoke runs interpreted")
    options.shapes = options.shapes or (TINY if options.smoke else SHAPES)
    options.results = options.results or record.RESULTS
    if options.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    options.results.mkdir(parents=True, exist_ok=True)
    if options.check:
        print(json.dumps(checked(*options.check, options)))
    else:
        measure(options)


if __name__ == "__main__":
    main()
