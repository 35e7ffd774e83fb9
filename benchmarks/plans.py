"""In goes nothing, out comes a table: how far the plan's choice is from the best there is.

    python benchmarks/plans.py                   every case on the C target, some minutes
    python benchmarks/plans.py --gradients       calls for gradients
    python benchmarks/plans.py --machine local   with the constants that `lacc calibrate` measured
    python benchmarks/plans.py --only gla,kda    these variants alone; nothing is kept

For every variant and shape, every mode and chunk length that exists takes its turn, round by round,
and the one that the plan chooses is compared with the fastest: one thread, float32, B = 1, H = 8,
CPU seconds of this process, medians. What took `HOPELESS` times as long as the best when it was
first run is not run again. Results go to ``benchmarks/results/plans.json``, and from there, all
that were kept together, to ``plans.md``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import cpu
import record

HEADS = 8
LENGTHS = (64, 512, 2048)
SIZES = (64, 128)
VARIANTS = (
    *("retnet", "simple_gla", "gla", "rwkv6", "mamba2", "linear_transformer"),
    *("mlstm", "deltanet", "gated_deltanet", "kda", "rwkv7", "mamba1"),
)
CLOSE = 1.10
"""The chosen plan is close to the best if it takes at most this many times as long."""
HOPELESS = 3.0
SAMPLE = 0.02
"""Seconds that a sample takes at least."""

Candidate = tuple[str, int]


@dataclass(frozen=True)
class Row:
    """A case: each candidate's median seconds, what the plan says each takes, and its choice."""

    variant: str
    size: int
    length: int
    seconds: dict[str, float]
    modelled: dict[str, float]
    chosen: str

    @property
    def best(self) -> str:
        """The fastest candidate."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def ratio(self) -> float:
        """How many times as long as the best the choice takes."""
        return self.seconds[self.chosen] / self.seconds[self.best]


def named(candidate: Candidate) -> str:
    """``chunk 64``."""
    mode, chunk = candidate
    return f"chunk {chunk}" if mode == "chunk" else mode


def candidates(plan: Any, T: int) -> list[Candidate]:
    """Every mode and chunk length of a plan that exists for T tokens."""
    found: list[Candidate] = [("chunk", C) for C in plan.chunks if C < T and "chunk" in plan.modes]
    if "parallel" in plan.modes and T <= 512:
        found.append(("parallel", T))
    if "recurrent" in plan.modes:
        found.append(("recurrent", 1))
    return found


def measured(
    call: Callable[[Candidate], object], found: list[Candidate], rounds: int
) -> dict[Candidate, list[float]]:
    """CPU seconds of each candidate, a sample a round, those without hope left out."""
    first, repeats = {}, {}
    for candidate in found:
        call(candidate)
        start = time.process_time()
        call(candidate)
        first[candidate] = time.process_time() - start
        repeats[candidate] = max(1, round(SAMPLE / max(first[candidate], 1e-6)))
    limit = HOPELESS * min(first.values())

    def sample(candidate: Candidate, function: Callable[[], object]) -> float:
        start = time.process_time()
        for _ in range(repeats[candidate]):
            function()
        return (time.process_time() - start) / repeats[candidate]

    hopeful = {c: (lambda c=c: call(c)) for c in found if first[c] <= limit}
    taken = record.in_turns(hopeful, sample, rounds)
    return {c: taken.get(c, [first[c]]) for c in found}


def cases(variant: str, options: argparse.Namespace) -> Iterator[Row]:
    """Every shape of a variant."""
    import lacc
    from lacc.tuning.calls import drawn

    spec = record.EXAMPLES / f"{variant}.la"
    free = [name for name in ("K", "V") if name in lacc.load(spec).dims]
    for size in SIZES if free else SIZES[:1]:
        pinned = dict.fromkeys(free, size)
        kernel = lacc.compile(spec, target=options.target, machine=options.machine, **pinned)
        plan = kernel.plan.back if options.gradients else kernel.plan
        dims = {name: kernel.spec.dims[name].default for name in kernel.signature.dims}
        for T in LENGTHS:
            shape = {"B": 1, "T": T, "H": HEADS}
            call = drawn(kernel, shape, "float32", options.gradients)
            found = candidates(plan, T)
            samples = measured(call, found, options.rounds)
            yield Row(
                variant,
                size if free else 0,
                T,
                {named(c): record.quartiles(samples[c])[1] for c in found},
                {named(c): plan.cost(c, T, HEADS, dims) * 1e-9 for c in found},
                named(plan.choose(T, HEADS, dims)),
            )


HEADER = ("variant", "K = V", "T", "chosen", "ms", "best", "ms", "chosen / best")


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    ms = {name: f"{seconds * 1e3:.2f}" for name, seconds in row.seconds.items()}
    sizes = row.variant, str(row.size or "-"), str(row.length)
    return (*sizes, row.chosen, ms[row.chosen], row.best, ms[row.best], f"{row.ratio:.2f}")


def summary(rows: list[Row]) -> str:
    """How many choices are close to the best."""
    close = sum(row.ratio <= CLOSE for row in rows)
    worst = max(rows, key=lambda row: row.ratio)
    return (
        f"{close} of {len(rows)} choices ({close / len(rows):.0%}) within 10 % of the best; "
        f"geometric mean {record.geometric_mean(row.ratio for row in rows):.3f}, worst "
        f"{worst.ratio:.2f} ({worst.variant}, K = V = {worst.size or '-'}, T = {worst.length})"
    )


def keep(rows: list[Row], options: argparse.Namespace) -> None:
    """Adds a run to those that are kept, and writes the tables of all of them."""
    path = record.RESULTS / "plans.json"
    runs = json.loads(path.read_text()) if path.exists() else {}
    way = "gradients" if options.gradients else "forward"
    runs[f"{options.target}, {way}, constants: {options.machine}"] = {
        "processor": record.processor(),
        "python": platform.python_version(),
        "versions": record.versions("numpy"),
        "rounds": options.rounds,
        "rows": [asdict(row) for row in rows],
    }
    record.write(path, json.dumps(runs, indent=1) + "\n")
    text = "# Choices of the plan beside the best of a sweep\n\n" + (
        "In: `benchmarks/plans.py`. Out: the tables below. One thread, float32, B = 1, H = 8, CPU "
        "time, medians.\n"
    )
    for name, run in runs.items():
        every = [Row(**row) for row in run["rows"]]
        text += f"\n## {name}\n\n{run['processor']}, {run['rounds']} rounds: {summary(every)}.\n\n"
        text += record.markdown(HEADER, map(cells, every))
    record.write(path.with_suffix(".md"), text)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gradients", action="store_true", help="calls for gradients")
    parser.add_argument("--machine", default="default", help="whose constants: default, local")
    parser.add_argument("--target", default="c", choices=("c", "numpy"))
    parser.add_argument("--rounds", type=int, default=7, help="samples a candidate")
    parser.add_argument("--only", default="", help="variants, separated by commas; keeps nothing")
    options = parser.parse_args()
    only = tuple(filter(None, options.only.split(",")))
    rows: list[Row] = []
    for variant in only or VARIANTS:
        for row in cases(variant, options):
            rows.append(row)
            print("  ".join(f"{cell:>12}" for cell in cells(row)), flush=True)
    print(summary(rows))
    if not only:
        keep(rows, options)


if __name__ == "__main__":
    cpu.on_one_thread()
    main()
