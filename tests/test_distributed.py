"""Sequences that several ranks share, by Gloo: numbers and gradients as on one rank, no more bytes
than a state and its cotangent, and words for ranks that do not fit together.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import lacc
from lacc.distributed import context_parallel
from lacc.distributed.context import _cut, apart

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


def checked(ranks: int, *names: str) -> dict[str, int]:
    """Bytes that rank 0 sent, for examples whose numbers are those of one rank."""
    found = {}
    code, said, problems = launched(ranks, *(ROOT / "examples" / f"{n}.la" for n in names))
    assert code == 0, problems[-3000:]
    for line in said.splitlines():
        name, error, sent = line.split()
        assert float(error) <= 1e-9, line
        found[name] = int(sent)
    assert set(found) == set(names)
    return found


def test_two_ranks_give_the_numbers_of_one() -> None:
    """A decay, one shared by groups, a running maximum, attention over all before."""
    sent = checked(2, "gla", "retnet", "mlstm", "fox")
    assert sent["gla"] == sent["retnet"] == 2 * 4 * 8 * 6 * 8  # one state of float64, once


@pytest.mark.full
def test_every_class_on_three_ranks() -> None:
    names = ["gla", "mamba2", "rwkv7", "gated_deltanet", "deltaproduct", "gsa", "mamba1", "lru"]
    names += ["ttt_linear", "slstm", "based", "sliding_window", "token_shift", "mlstm", "rwkv4"]
    checked(3, *names)


def test_heads_with_a_drawn_buffer_stay_together() -> None:
    for name, alone in (("rfa", False), ("retnet", False), ("gla", True), ("mamba2", True)):
        assert apart(lacc.load(ROOT / "examples" / f"{name}.la")) is alone


def test_ranks_that_do_not_fit_together_say_so() -> None:
    code, said, problems = launched(2)
    assert code != 0
    assert said.count("runs another call: total, not total") == 2
    sends = "rank 0 sends block 1 of 2, 1 sequences of 4 heads"
    assert f"ValueError: {sends}; rank 1 has block 1 of 2, 2 sequences of 4 heads" in problems


def test_what_cannot_be_cut_in_time_is_refused() -> None:
    dist = pytest.importorskip("torch.distributed")
    kernel = lacc.compile(ROOT / "examples" / "gla.la", target="numpy")
    with pytest.raises(RuntimeError, match="init_process_group"):
        context_parallel(kernel)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match=r"cannot be cut in time: R runs backward"):
            context_parallel(lacc.compile(ROOT / "examples" / "bidirectional.la", target="numpy"))
        with pytest.raises(ValueError, match="blocks: expected 1 or more, got 0"):
            context_parallel(kernel, blocks=0)
        with pytest.raises(TypeError, match="q: expected a tensor"):
            context_parallel(kernel)([1.0], None, None, None)
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
