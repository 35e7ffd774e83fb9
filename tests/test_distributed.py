"""Sequences that several ranks share, by Gloo: numbers and gradients as on one rank, no more bytes
than a state and its cotangent, and words for ranks that do not fit together.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import lacc
from lacc.analysis.summaries import Summary, summarized
from lacc.distributed import context_parallel
from lacc.distributed.ring import _cut, apart, best_blocks
from lacc.distributed.summaries import starts
from lacc.verify.inputs import Sizes, draw

WORKER = ROOT / "tests" / "distributed_worker.py"
TRAINING = ROOT / "examples" / "apps" / "train_lm.py"


def launched(ranks: int, *arguments: object, script: Path = WORKER) -> tuple[int, str, str]:
    """The exit code of a script on several ranks, what it printed, and what went to standard
    error."""
    pytest.importorskip("torch.distributed")
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    done = subprocess.run(
        [*command, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LACC_THREADS": "1"},
    )
    return done.returncode, done.stdout, done.stderr


GROWING = ("fox",)
"""Examples whose states hold all tokens so far, of which no formula says how many there are."""


def checked(ranks: int, exchange: str, *names: str) -> dict[str, int]:
    """Bytes that rank 0 sent, for examples whose numbers are those of one rank, and whose bytes
    those of the formula."""
    found = {}
    paths = (ROOT / "examples" / f"{n}.la" for n in names)
    code, said, problems = launched(ranks, exchange, *paths)
    assert code == 0, problems[-3000:]
    for line in said.splitlines():
        name, error, sent, formula = line.split()
        assert float(error) <= 1e-9, line
        assert sent == formula or name in GROWING, line
        found[name] = int(sent)
    assert set(found) == set(names)
    return found


def test_two_ranks_give_the_numbers_of_one() -> None:
    """A decay, one shared by groups, a running maximum, attention over all before."""
    sent = checked(2, "ring", "gla", "retnet", "mlstm", "fox")
    assert sent["gla"] == sent["retnet"] == 2 * 4 * 8 * 6 * 8  # one state of float64, once


@pytest.mark.full
def test_every_class_on_three_ranks() -> None:
    names = ["gla", "mamba2", "rwkv7", "gated_deltanet", "deltaproduct", "gsa", "mamba1", "lru"]
    names += ["ttt_linear", "slstm", "based", "sliding_window", "token_shift", "mlstm", "rwkv4"]
    checked(3, "ring", *names)


def test_heads_with_a_drawn_buffer_stay_together() -> None:
    for name, alone in (("rfa", False), ("retnet", False), ("gla", True), ("mamba2", True)):
        assert apart(lacc.load(ROOT / "examples" / f"{name}.la")) is alone


@pytest.mark.full
def test_summaries_on_two_ranks() -> None:
    """Of B = 2, H = 4, K = 8, V = 6 in float64: forward H and M, backward the cotangent of H."""
    sent = checked(2, "summaries", "linear", "retnet", "gla", "deltanet")
    state, times = 48, 2 * 4 * 8
    assert sent["linear"] == (state + state) * times
    assert sent["retnet"] == (state + 1 + state) * times
    assert sent["gla"] == (state + 8 + state) * times
    assert sent["deltanet"] == (state + 8 * 8 + state) * times


THREE = (
    "gla_outer gsa mamba1 gateloop hgrn lightnet rglru token_shift",
    "momentum_delta precond_gdn kda dplr gated_oja short_convolution gated_deltanet rwkv7",
    "mlstm_by_hand abc_attention windowed_linear_attention mamba2 rfa retnet_rotated",
)


@pytest.mark.full
@pytest.mark.parametrize("names", THREE)
def test_summaries_of_every_class_on_three_ranks(names: str) -> None:
    sent = checked(3, "summaries", *names.split())
    assert sent.get("gla_outer", 0) in (0, 2 * (48 + 8 + 6 + 48) * 2 * 4 * 8)


def test_ranks_that_do_not_fit_together_say_so() -> None:
    """And what fails on one fails on all."""
    code, said, problems = launched(2)
    assert code == 0, problems[-3000:]
    heard = dict(line.split(": ", 1) for line in said.splitlines())
    for rank in (0, 1):
        assert heard[f"specs, rank {rank}"].endswith("runs another call: total, not total")
        for way in ("ring", "summaries"):
            sizes = "rank 0 has 2 sequences, 4 heads, x float32; rank 1 has 3 sequences, 4 heads"
            assert sizes in heard[f"{way} sizes, rank {rank}"]
    for way in ("ring", "summaries"):
        why = "TypeError: total takes x: no argument is called 'y'"
        assert heard[f"{way} argument, rank 1"] == why
        assert heard[f"{way} argument, rank 0"] == f"RuntimeError: context_parallel: rank 1: {why}"
        assert heard[f"{way} backward, rank 1"] == "RuntimeError: out of memory"
        what = "RuntimeError: context_parallel: rank 1: RuntimeError: out of memory"
        assert heard[f"{way} backward, rank 0"] == what


def test_who_leaves_a_block_together_takes_the_others_along() -> None:
    """Who raises between calls is heard of in the next; who does not come is named."""
    code, said, problems = launched(2, "leave")
    assert code == 0, problems[-3000:]
    heard = dict(line.split(": ", 1) for line in said.splitlines())
    for way in ("ring", "summaries"):
        for place in ("forward", "backward", "last"):
            mine = f"KeyError: 'mine, {place}'"
            assert heard.pop(f"{way} {place}, rank 1") == mine
            what = "together" if place == "last" else "context_parallel"
            assert heard.pop(f"{way} {place}, rank 0") == f"RuntimeError: {what}: rank 1: {mine}"
    for rank in (0, 1):
        found = heard.pop(f"early, rank {rank}")
        assert "rank 0 has the beginning of a block of together; rank 1 has 2 sequences" in found
    who = "rank 0 waited 1.5 s for rank 1, last seen at call 8 of total"
    assert heard.pop("late, rank 0") == f"TimeoutError: call 9 of total: {who}"
    assert "rank 1 lost the others" in heard.pop("late, rank 1")
    assert not heard


SUMMARIZED = ["gla_outer", "gated_deltanet", "gated_oja", "gateloop", "lightnet", "rfa"]


@pytest.mark.parametrize("name", SUMMARIZED)
def test_a_state_through_summaries_is_that_of_the_whole(name: str) -> None:
    """Three parts of a sequence: what the summary of each makes of the state before it."""
    torch = pytest.importorskip("torch")
    spec = lacc.load(ROOT / "examples" / f"{name}.la")
    if "K" in spec.dims:
        spec = lacc.load(spec, {"K": 5, "V": 4})
    summary = summarized(spec)
    assert isinstance(summary, Summary)
    dims = {dim: d.default for dim, d in spec.dims.items()}
    arrays = draw(spec, Sizes(2, 18, 2, 2, 34, dims), seed=1, regime="interior", dtype=np.float64)
    whole = lacc.compile(spec)
    inputs = {a.name for a in whole.signature.arguments if a.role == "input"}
    cuts = (slice(0, 5), slice(5, 6), slice(6, 18))
    known: list[dict[str, Any]] = [{}, {}, {}]
    for one in summary.rounds:
        kernel = lacc.compile(one.spec)
        own = {a.name for a in kernel.signature.arguments}
        told = []
        for start, cut in zip(known, cuts):
            x = {n: y[:, cut] if n in inputs else y for n, y in arrays.items() if n in own}
            empty = kernel(**{n: y[:, :0] if n in inputs else y for n, y in x.items()})[1]._asdict()
            begun = {n: y for n, y in start.items() if n in empty}
            for group in one.groups:
                neutral = 0.0 if group.op == "add" else -np.inf
                if start is not known[0]:
                    begun |= {n: np.full_like(empty[n], neutral) for n in group.states}
            end = kernel(**x, initial_state=begun or None)[1]._asdict()
            told.append({n: torch.from_numpy(np.asarray(y)) for n, y in end.items()})
        for group in one.groups:
            for start, found in zip(known, starts(group, told)):
                start |= {n: y.numpy() for n, y in found.items()}
    for start, cut in zip(known[1:], cuts[1:]):
        before = {n: y[:, : cut.start] if n in inputs else y for n, y in arrays.items()}
        for n, y in whole(**before)[1]._asdict().items():
            assert np.abs(start[n] - y).max() <= 1e-12 * (1 + np.abs(y).max()), n


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", ["gated_deltanet", "hgrn", "mlstm", "nonlinear_delta"])
def test_results_go_where_a_caller_wants_and_states_are_found_alone(name: str, keeps: bool) -> None:
    """Outputs and gradients in views of one head of three, the first call and those behind it; of
    calls that are known, with the states that chunks start from kept for the gradients."""
    torch = pytest.importorskip("torch")
    path = ROOT / "examples" / f"{name}.la"
    dims = dict.fromkeys(lacc.load(path).dims, 5)
    kernel = lacc.compile(path, target="c", **dims)
    sizes = Sizes(2, 35, 3, 1, 40, dims)
    arrays = draw(kernel.spec, sizes, seed=1, regime="interior", dtype=np.float64)
    every = {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in arrays.items()}
    x = {n: y[:, :, 1:2] for n, y in every.items()}
    _, start = kernel(**{n: y[:, :7] for n, y in x.items()})
    outputs, end = kernel(**x, initial_state=start)
    cotangents = {"cotangent": torch.ones_like(outputs), "state_cotangent": end}
    gradients = kernel.vjp(**x, initial_state=start, **cotangents)
    (output,) = kernel.signature.outputs
    for time in range(7):
        whole = {n: torch.full_like(y, torch.nan) for n, y in every.items()}
        whole["o"] = torch.full((*outputs.shape[:2], 3, *outputs.shape[3:]), torch.nan).double()
        place = {n: y[:, :, 1:2] for n, y in whole.items()}
        kept: list[Any] = []
        keep = kept if keeps else None
        state = kernel.fill({output.name: place["o"]}, x, keep=keep, initial_state=start)
        first = kernel.fill_gradients(place, x, kept=kept, initial_state=start, **cotangents)
        found = {"o": (place["o"], outputs)} | {n: (place[n], gradients[n]) for n in x}
        found |= {"end": (state[0], end[0]), "begin": (first[0], gradients["initial_state"][0])}
        for n, (a, b) in found.items():
            assert (a - b).abs().max() <= 1e-12 * b.abs().max(), n
        assert all(y[:, :, ::2].isnan().all() for y in whole.values())
        ended = kernel.end(x, initial_state=start)
        begun = kernel.begin(x, initial_state=start, **cotangents)
        plain = name in ("gated_deltanet", "hgrn")
        assert bool(kept) == (keeps and name != "mlstm" and time > 1)
        assert (ended is not None) == (name != "mlstm")
        assert (begun is not None) == plain
        if ended is not None:
            assert (ended[0] - end[0]).abs().max() <= 1e-12 * end[0].abs().max()
        if begun is not None:
            assert (begun[0] - first[0]).abs().max() <= 1e-12 * first[0].abs().max()


def test_blocks_are_as_many_as_pay() -> None:
    """The fewer heads a block has the fewer ranks wait, and the longer it takes."""
    spec = lacc.load(ROOT / "examples" / "gla.la")
    assert [len(best_blocks(spec, {"#B": 1, "#H": 8}, 2, alone)) for alone in (True, False)] == [
        2,
        4,
    ]
    assert len(best_blocks(spec, {"#B": 8, "#H": 8}, 2, True)) == 8  # whole sequences
    assert len(best_blocks(spec, {"#B": 1, "#H": 8}, 1, True)) == 1


def test_what_has_no_summary_says_why() -> None:
    for name, why in {
        "nonlinear_delta": "S: the nonlinear function tanh of the state",
        "softmax_attention": "it attends to the tokens before, each of them",
        "mlstm": "C is (stabilized): a value beside an exponent",
        "mamba3": "mamba3 reads r with a delay",
        "bidirectional": "R runs backward in time",
    }.items():
        assert summarized(lacc.load(ROOT / "examples" / f"{name}.la")) == why


def test_what_cannot_be_cut_in_time_is_refused() -> None:
    dist = pytest.importorskip("torch.distributed")
    kernel = lacc.compile(ROOT / "examples" / "gla.la", target="numpy")
    with pytest.raises(RuntimeError, match="init_process_group"):
        context_parallel(kernel)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match=r"cannot be cut in time: R runs backward"):
            context_parallel(lacc.compile(ROOT / "examples" / "bidirectional.la", target="numpy"))
        with pytest.raises(ValueError, match="exchange: expected one of auto, ring, summaries"):
            context_parallel(kernel, exchange="tree")
        stable = lacc.compile(ROOT / "examples" / "mlstm.la", target="numpy")
        with pytest.raises(ValueError, match=r"mlstm has no summaries: C is \(stabilized\)"):
            context_parallel(stable, exchange="summaries")
        with pytest.raises(ValueError, match="blocks: expected 1 or more, got 0"):
            context_parallel(kernel, blocks=0)
        with pytest.raises(TypeError, match="q: expected a tensor"):
            context_parallel(kernel)([1.0], None, None, None)
    finally:
        dist.destroy_process_group()


def test_calls_of_many_sizes_hold_no_more_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """States of calls are held by their sizes: those of the last few."""
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setattr("lacc.distributed.context.MOST", 2)
    kernel = lacc.compile(ROOT / "examples" / "gla.la", target="c")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        shared = context_parallel(kernel, exchange="ring")
        for rows in (1, 2, 3, 1):
            q, k, v, g = torch.randn(4, rows, 3, 2, 4)
            o, _ = shared(q, k, v, -g.abs())
            assert torch.equal(o, kernel(q, k, v, -g.abs())[0])
            assert len(shared._likes) <= 2
    finally:
        dist.destroy_process_group()


def test_training_is_the_same_where_two_ranks_share_the_sequences() -> None:
    options = ["--steps=2", "--length=48", "--batch=2", "--width=32", "--depth=1"]
    alone = subprocess.run(
        [sys.executable, str(TRAINING), *options], capture_output=True, text=True, timeout=900
    )
    assert alone.returncode == 0, alone.stderr[-3000:]
    code, said, problems = launched(2, *options, "--context", script=TRAINING)
    assert code == 0, problems[-3000:]
    losses = [re.findall(r"loss (\S+)", text) for text in (alone.stdout, said)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_layers_with_heads_or_weights_apart_are_the_whole_layer() -> None:
    code, said, problems = launched(2, script=ROOT / "tests" / "sharded_worker.py")
    assert code == 0, problems[-3000:]
    *found, refusal = said.splitlines()
    names = ["gla heads", "gla weights", "gla step", "mamba2 heads", "rwkv6 heads"]
    assert [line.partition(":")[0] for line in found] == names
    for line in found:
        assert float(line.partition(":")[2]) <= 1e-12, line
    assert refusal == "tensor_parallel: retnet has a state for all heads, or reads their index"


def test_parts_differ_by_one_at_most() -> None:
    assert _cut(7, 3) == [slice(0, 2), slice(2, 4), slice(4, 7)]
    assert _cut(2, 5) == [slice(0, 1), slice(1, 2)]
    assert _cut(0, 3) == [slice(0, 0)]
