"""In goes nothing, out comes a table: times of the C and NumPy targets, the floor and peers.

    python benchmarks/cpu.py            every case, a few minutes
    python benchmarks/cpu.py --quick    the smallest length only, fewer rounds
    python benchmarks/cpu.py --delta    only the delta rules, forward and with gradients
    python benchmarks/cpu.py --memory   only the peak memory of a forward over a million tokens

One thread, float32, B = 1, H = 8. The floor is the time that 4 K V floating-point operations a
token and head (one multiply-add to write the state, one to read it; 6 K V for a delta rule, that
reads it twice) take at the rate of fused multiply-adds measured by a C probe. Peers, where they are
installed: flash-linear-attention's plain torch code (`naive_chunk_simple_gla`), and the torch code
of Hugging Face transformers for Qwen3-Next (`torch_chunk_gated_delta_rule`), with its gradients by
autograd. Peers take turns round by round; times are CPU seconds of this process, given as medians
with the quartiles; ratios are taken within a round. Each output is compared with the float64
reference before it is timed. Numbers go to ``benchmarks/results/cpu.json``, those of ``--delta`` to
``delta.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import record
from record import ROOT

HEADS = 8
LENGTHS = (512, 2048, 8192)
SIZES = (64, 128)
TARGETS = ("c", "numpy")
VARIANTS = ("retnet", "simple_gla", "gla")
DELTA_RULES = ("deltanet", "gated_deltanet", "kda")
TOKENS_IN_MEMORY_TEST = 1_000_000


def least(variant: str, size: int, length: int, gradients: bool = False) -> float:
    """Floating-point operations of the floor of a case."""
    from lacc import driver
    from lacc.bench.case import Case
    from lacc.bench.floors import floor

    spec = driver.load(ROOT / "examples" / f"{variant}.la", {"K": size, "V": size})
    mode = "train" if gradients else "forward"
    found = floor(Case(spec, mode, T=length, H=HEADS))
    assert found is not None
    return found.flops


def draw(variant: str, length: int, size: int, heads: int = HEADS, seed: int = 0):
    """Inputs of ``variant``, float32 [1, T, H, D]: q, k, v, the log gate and the write strength
    where it has them; keys of a delta rule have unit length.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    shape = (1, length, heads)
    arrays = [rng.standard_normal((*shape, size)).astype(np.float32) for _ in "qkv"]
    if variant in DELTA_RULES:
        arrays[1] /= np.linalg.norm(arrays[1], axis=-1, keepdims=True) * np.float32(1.0001)
    gate = {"simple_gla": 4, "gated_deltanet": 4, "gla": 16, "kda": 16}.get(variant)
    if gate:
        wide = shape if gate == 4 else (*shape, size)
        arrays.append(-np.log1p(np.exp(rng.standard_normal(wide))).astype(np.float32) / gate)
    if variant in DELTA_RULES:
        arrays.append((1 / (1 + np.exp(rng.standard_normal(shape)))).astype(np.float32))
    return arrays


def peers(variant: str, size: int, gradients: bool = False) -> dict[str, Callable]:
    """Name to function, arrays in and o [1, T, H, V] out (the gradients of its sum where those are
    wanted): our kernels and whoever is installed.
    """
    import numpy as np

    import lacc

    def ours(target):
        spec = ROOT / "examples" / f"{variant}.la"
        kernel = lacc.compile(spec, target=target, K=size, V=size)
        if gradients:
            return lambda *xs: kernel.vjp(*xs, cotangent=np.ones_like(xs[2]))
        return lambda *xs: kernel(*xs)[0]

    found: dict[str, Callable] = {f"lacc {target}": ours(target) for target in TARGETS}
    try:
        with warnings.catch_warnings(action="ignore"):
            import torch

            torch.set_num_threads(1)
            if variant in ("retnet", "simple_gla"):
                found["fla naive chunk (torch)"] = fla_naive_chunk()
            if variant == "gated_deltanet":
                found["hf torch_chunk"] = hf_chunk(gradients)
    except ImportError as error:
        print(f"{variant}: a peer is missing ({error})")
    return found


def fla_naive_chunk() -> Callable:
    """flash-linear-attention's chunk form in plain torch; RetNet's gates where none are given."""
    import numpy as np
    import torch
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla

    def run(q, k, v, g=None):
        if g is None:
            rates = np.log(1 - 2.0 ** (-5 - np.arange(q.shape[2])))
            g = np.broadcast_to(rates.astype(q.dtype), q.shape[:3]).copy()
        with torch.no_grad():
            return naive_chunk_simple_gla(*map(torch.from_numpy, (q, k, v, g)), chunk_size=64)[
                0
            ].numpy()

    return run


def hf_chunk(gradients: bool) -> Callable:
    """Hugging Face's chunk form in plain torch, below the decorator that would pick a GPU kernel;
    with gradients of all inputs by autograd.
    """
    import torch
    from transformers.models.qwen3_next import modeling_qwen3_next

    chunk = modeling_qwen3_next.torch_chunk_gated_delta_rule
    chunk = getattr(chunk, "__wrapped__", chunk)

    def run(*xs):
        tensors = [torch.from_numpy(x).requires_grad_(gradients) for x in xs]
        with torch.set_grad_enabled(gradients):
            o = chunk(*tensors, output_final_state=True)[0]
        if not gradients:
            return o.numpy()
        o.sum().backward()
        return [x.grad for x in tensors]

    return run


def check(variant: str, size: int, functions: dict[str, Callable]) -> dict[str, float]:
    """The largest error of each function relative to the float64 reference, T = 192."""
    import numpy as np

    import lacc

    arrays = draw(variant, 192, size, heads=2)
    reference = lacc.compile(
        ROOT / "examples" / f"{variant}.la", target="reference", K=size, V=size
    )
    want = reference(*(x.astype(np.float64) for x in arrays))[0]
    errors = {
        name: float(np.abs(function(*arrays) - want).max() / np.abs(want).max())
        for name, function in functions.items()
    }
    for name, error in errors.items():
        if not error < 1e-4:
            raise SystemExit(f"{name} is wrong on {variant}: {error:.1e} relative to the reference")
    return errors


def time_case(functions: dict[str, Callable], arrays: list, rounds: int) -> dict[str, list[float]]:
    """CPU seconds a call of each function, one sample a round, the functions taking turns."""
    repeats = {}
    for name, function in functions.items():
        function(*arrays)
        start = time.process_time()
        function(*arrays)
        repeats[name] = max(1, int(0.05 / max(time.process_time() - start, 1e-6)))

    def sample(name: str, function: Callable) -> float:
        start = time.process_time()
        for _ in range(repeats[name]):
            function(*arrays)
        return (time.process_time() - start) / repeats[name]

    return record.in_turns(functions, sample, rounds)


def table(rounds: int, lengths: tuple[int, ...], variants: tuple[str, ...]) -> dict[str, object]:
    """Every case measured, printed as it comes."""
    from lacc.bench.rates import rates as measured

    peak = measured().flops
    print(f"{record.processor()}: {peak / 1e9:.0f} GFLOP/s of multiply-adds on one core\n")
    print(
        f"{'variant':<20}{'K=V':>5}{'T':>7}  {'who':<26}"
        f"{'ms':>8}{'quartiles':>18}{'x floor':>9}{'error':>10}"
    )
    rows = []
    for variant in variants:
        for size in SIZES:
            functions = peers(variant, size)
            errors = check(variant, size, functions)
            for length in lengths:
                rows += case(variant, size, length, functions, errors, rounds, peak)
                if variant in DELTA_RULES:
                    functions_ = peers(variant, size, gradients=True)
                    rows += case(variant, size, length, functions_, {}, rounds, peak)
    return {"peak_flops": peak, "rows": rows}


def case(
    variant: str,
    size: int,
    length: int,
    functions: dict[str, Callable],
    errors: dict[str, float],
    rounds: int,
    peak: float,
) -> list[dict[str, object]]:
    """The rows of one case, printed; without ``errors`` it is one of gradients, whose floor is
    three times that of the forward.
    """
    of = variant if errors else f"{variant}, vjp"
    floor = least(variant, size, length, gradients=not errors) / peak
    samples = time_case(functions, draw(variant, length, size), rounds)
    rows = []
    for name, times in samples.items():
        low, middle, high = record.quartiles(times)
        row = {"variant": of, "size": size, "length": length, "who": name, "seconds": middle}
        row |= {"quartiles": [low, high], "floors": middle / floor, "error": errors.get(name)}
        rows.append(row)
        spread = f"{low * 1e3:.2f}-{high * 1e3:.2f}"
        error = f"{errors[name]:.1e}" if errors else ""
        print(
            f"{of:<20}{size:>5}{length:>7}  {name:<26}{middle * 1e3:>8.2f}"
            f"{spread:>18}{middle / floor:>9.2f}{error:>10}",
            flush=True,
        )
    for row, (name, theirs) in list(zip(rows, samples.items()))[1:]:
        low, ratio, high = record.ratios(theirs, samples["lacc c"])
        row |= {"c_is_times_as_fast": ratio, "c_is_times_as_fast_quartiles": [low, high]}
        print(f"{'':<34}lacc c is {ratio:.2f} times as fast as {name} ({low:.2f}-{high:.2f})")
    return rows


MEMORY = """
import sys
sys.path.insert(0, {benchmarks!r})
import cpu, lacc, numpy as np
length = {length}
kernel = lacc.compile({spec!r}, target="numpy", K=64, V=64)
kernel(*cpu.draw({variant!r}, 256, 64, heads=1))
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
base = cpu.resident("VmRSS")
shape = (1, length, 1)
arrays = [np.full((*shape, 64), 0.01 * (i + 1), np.float32) for i in range(3)]
gates = cpu.draw({variant!r}, 1, 64, heads=1)[3:]
arrays += [np.full(shape + x.shape[3:], -0.01, np.float32) for x in gates]
o, state = kernel(*arrays)
print(cpu.resident("VmHWM") - base, sum(x.nbytes for x in arrays) + o.nbytes)
"""


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def memory(length: int) -> list[dict[str, object]]:
    """Peak memory of a forward over ``length`` tokens (H = 1, K = V = 64) beside its inputs and
    outputs.
    """
    rows: list[dict[str, object]] = []
    print(f"\n{'variant':<12}{'T':>9}{'peak MiB':>10}{'in + out MiB':>14}{'ratio':>7}")
    for variant in VARIANTS:
        program = MEMORY.format(
            benchmarks=str(ROOT / "benchmarks"),
            spec=str(ROOT / "examples" / f"{variant}.la"),
            variant=variant,
            length=length,
        )
        out = subprocess.check_output([sys.executable, "-c", program], text=True)
        peak, least = map(int, out.split())
        rows.append({"variant": variant, "length": length, "peak": peak, "in_and_out": least})
        megabytes = f"{peak / 2**20:>10.0f}{least / 2**20:>14.0f}"
        print(f"{variant:<12}{length:>9}{megabytes}{peak / least:>7.2f}")
    return rows


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the smallest length, five rounds")
    parser.add_argument("--delta", action="store_true", help="only the delta rules, T = 2048")
    parser.add_argument("--memory", action="store_true", help="only the memory test")
    parser.add_argument("--rounds", type=int, default=15, help="samples a case")
    options = parser.parse_args()
    kept: dict[str, object] = {"processor": record.processor(), "python": platform.python_version()}
    kept["versions"] = record.versions("numpy", "torch", "transformers", "fla-core")
    rounds = 5 if options.quick else options.rounds
    if options.delta:
        kept |= table(rounds, LENGTHS[1:2], DELTA_RULES)
    elif not options.memory:
        kept |= table(rounds, LENGTHS[:1] if options.quick else LENGTHS, VARIANTS)
    if not options.quick:
        if not options.delta:
            kept["memory"] = memory(TOKENS_IN_MEMORY_TEST)
        name = "delta" if options.delta else "memory" if options.memory else "cpu"
        record.write(record.RESULTS / f"{name}.json", json.dumps(kept, indent=1) + "\n")


def on_one_thread() -> None:
    """Start this program again with BLAS held to one thread and to the kernels it picks for this
    processor.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    threads["LACC_THREADS"] = "1"
    if (
        all(os.environ.get(name) == "1" for name in threads)
        and "OPENBLAS_CORETYPE" not in os.environ
    ):
        return
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    os.execve(sys.executable, [sys.executable, *sys.argv], kept | threads)


if __name__ == "__main__":
    on_one_thread()
    main()
