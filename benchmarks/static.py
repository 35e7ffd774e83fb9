"""In goes nothing, out comes a table: what the kernels of lacc and of fla-core take on a GPU, read
off binaries that both compile to without one. Nothing runs.

    python benchmarks/static.py              every variant, a few minutes
    python benchmarks/static.py gla kda      some of them, to standard output alone

One training step of B = 1, T = 4096, H = 16, K = V = 128 on sm_90: bfloat16 inputs, log gates in
float32. fla-core's launches are captured as ours are, each of its functions in a process of its
own, with the first configuration of kernels that it tunes by running them. Numbers go to
``benchmarks/results/static.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module, metadata
from math import prod
from pathlib import Path
from typing import Any

from lacc import LaccError, driver
from lacc.report import table
from lacc.static.architectures import ARCHITECTURES
from lacc.static.launches import Call, call_of
from lacc.views import FIGURES, of_call, of_launch

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "static.md"
ARCHITECTURE = "sm_90"
SHAPE = {"B": 1, "T": 4096, "H": 16, "K": 128, "V": 128}

WIDE, NARROW = ("K", "float32"), ("K", "bfloat16")
HEAD = {"q": NARROW, "k": NARROW, "v": NARROW}
PEERS: dict[str, tuple[str, str, dict[str, tuple[str, str]]]] = {
    "simple_gla": ("simple_gla", "chunk_simple_gla", HEAD | {"g": ("", "float32")}),
    "gla": ("gla", "chunk_gla", HEAD | {"g": WIDE}),
    "gated_deltanet": (
        "gated_delta_rule",
        "chunk_gated_delta_rule",
        HEAD | {"g": ("", "float32"), "beta": ("", "bfloat16")},
    ),
    "kda": ("kda", "chunk_kda", HEAD | {"g": WIDE, "beta": ("", "bfloat16")}),
    "rwkv7": ("rwkv7", "chunk_rwkv7", dict.fromkeys("rwkvab", NARROW)),
}
"""By variant: module and function of fla-core, and its arguments: with channels or not, dtype."""


def ours(variant: str) -> list[Call]:
    """What our kernels launch."""
    figures = driver.build_report(
        ROOT / "examples" / f"{variant}.la",
        shape=SHAPE,
        architecture=ARCHITECTURE,
        dtype="bfloat16",
    )
    return [call for call in figures.calls if call.name in ("forward", "backward")]


def theirs(variant: str) -> list[Call]:
    """What fla-core's kernels launch, from a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--peer", variant],
            env={**os.environ, "TRITON_CACHE_DIR": cache, "TRITON_DEFAULT_FP_FUSION": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [call_of(call) for call in json.loads(done.stdout.splitlines()[-1])]


def captured(variant: str) -> list[Call]:
    """What fla-core launches, here: it looks for its device when it is imported."""
    import torch

    from lacc.static.capture import pretended

    module, name, arguments = PEERS[variant]
    with pretended(ARCHITECTURES[ARCHITECTURE]) as recorder:
        function = getattr(import_module(f"fla.ops.{module}"), name)
        x = {
            name: torch.zeros(
                [SHAPE["B"], SHAPE["T"], SHAPE["H"], *([SHAPE["K"]] if channels else [])],
                dtype=getattr(torch, dtype),
                requires_grad=True,
            )
            for name, (channels, dtype) in arguments.items()
        }
        forward, (o, _) = recorder.call("forward", lambda: function(**x))
        cotangent = torch.zeros_like(o)
        gradients = lambda: torch.autograd.grad(o, [*x.values()], cotangent)  # noqa: E731
        return [forward, recorder.call("backward", gradients)[0]]


def least(variant: str) -> tuple[float, float]:
    """MiB of inputs and outputs once, forward and backward, as fla-core takes them."""
    sizes = {"float32": 4, "bfloat16": 2}
    tokens = prod(SHAPE[name] for name in "BTH")
    _, _, arguments = PEERS[variant]
    inputs = sum(sizes[d] * (SHAPE["K"] if c else 1) for c, d in arguments.values())
    output = 2 * SHAPE["V"]
    return tokens * (inputs + output) / 2**20, tokens * (2 * inputs + output) / 2**20


HEADER = (
    *("variant", "of", "launches", "torch ops", "HBM MiB", "once MiB", "spill B", "registers"),
    "issue us",
)


LEGEND = """Nothing ran on a GPU. Forward / backward of one training step. HBM (modelled): the
tensors behind the loads and stores of each launch, once a launch. once: inputs and outputs, in the
backward their gradients too. spill: the most bytes of a thread. registers: the most of a kernel.
issue (modelled): instructions as often as their loops run, at 4 warp instructions a clock on the
busiest of 132 multiprocessors at 1.75 GHz; a bound from below, not a time. fla-core has the first
configuration of each kernel that it tunes by running it."""


def row(variant: str, whose: str, calls: Sequence[Call]) -> tuple[str, ...]:
    """Forward / backward of each figure."""

    def both(values: Sequence[Any], form: str = "") -> str:
        return " / ".join("-" if value is None else format(value, form) for value in values)

    return (
        variant,
        whose,
        both([len(call.launches) for call in calls]),
        both([sum(call.torch.values()) for call in calls]),
        both([call.bytes / 2**20 for call in calls], ".0f"),
        both(least(variant)[: len(calls)], ".0f"),
        both([call.spill for call in calls]),
        both([max(launch.registers for launch in call.launches) for call in calls]),
        both([call.microseconds for call in calls], ".0f"),
    )


def page(found: dict[str, dict[str, list[Call]]], refused: Sequence[str]) -> str:
    """Everything as Markdown."""
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("triton", "torch", "fla-core"))
    sizes = ", ".join(f"{name} = {size}" for name, size in SHAPE.items())
    rows = [row(v, whose, calls) for v, both in found.items() for whose, calls in both.items()]
    lines = [
        "# Kernels as they are built",
        f"In: `benchmarks/static.py`. Out: the tables below. {versions}.\n{ARCHITECTURE}, {sizes}, "
        "bfloat16 inputs, log gates in float32.",
        LEGEND,
        f"```\n{table(HEADER, rows)}\n```",
        *refused,
    ]
    for variant, both in found.items():
        for whose, calls in both.items():
            for call in calls:
                launches = table(FIGURES, [of_launch(launch) for launch in call.launches])
                lines.append(f"## {variant}, {call.name}, {whose}")
                lines.append(f"{of_call(call)}\n\n```\n{launches}\n```")
    return "\n\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("variants", nargs="*", choices=[[], *PEERS], metavar="VARIANT")
    parser.add_argument("--peer", choices=PEERS, help="print fla-core's launches as JSON")
    given = parser.parse_args()
    if given.peer:
        print(json.dumps([asdict(call) for call in captured(given.peer)]))
        return
    chosen = given.variants or [*PEERS]
    found: dict[str, dict[str, list[Call]]] = {}
    refused = []
    for variant in chosen:
        found[variant] = {}
        try:
            found[variant]["lacc"] = ours(variant)
        except (LaccError, ValueError) as problem:
            refused.append(f"lacc does not build {variant}: {problem}")
        found[variant]["fla-core"] = theirs(variant)
    text = page(found, refused)
    if given.variants:
        print(text)
    else:
        RESULT.write_text(text, encoding="utf-8")
        print(f"{RESULT}: {len(chosen)} variants")


if __name__ == "__main__":
    main()
