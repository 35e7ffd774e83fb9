"""Faults of emitted Triton kernels that came up once, each by the kind of spec that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_faults

import lacc
from lacc import driver
from lacc.backends.triton_pass import TritonPass

HEAD = """variant x
dim K = 4, V = 3
input q, k : [K]
input v : [V]
input β : scalar where 0 < β < 1
input g : scalar where g <= 0
kn = normalize(k)
"""
MOMENTUM = """state S, M : [K, V]
output o : [V]
M[t] = 0.9 * M[t-1] + kn @ (v - S[t-1].T @ kn).T * β
S[t] = 0.8 * S[t-1] + 0.1 * M[t]
o = S[t].T @ q
"""
SPECS = {
    "states that only other states need": """state a, b : [K]
output o : [K]
a[t] = 0.5 * b[t-1] + k
b[t] = tanh(a[t-2]) + a[t]
o = a[t] * b[t]
""",
    "a scan of numbers alone": MOMENTUM,
    "a system of numbers alone": """param one : [K] = 1
state S : [K, V]
output o : [V]
S[t] = 0.9 * (S[t-1] - one @ (one.T @ S[t-1]) / 8) + k @ v.T
o = S[t].T @ q
""",
    "a chain of decays along the last axis": """state X, Y : [K, V]
output o : [V]
X[t] = X[t-1] @ diag(sigmoid(v)) - 0.1 * Y[t-1] + k @ v.T
Y[t] = 0.5 * Y[t-1] @ diag(sigmoid(v)) + 0.1 * X[t-1]
o = X[t].T @ q + Y[t].T @ q
""",
    "a last value of a backward state": """state b : [K]
output o : [K]
b[t] = sigmoid(k) * b[t+1] + k
o = b[T] + b[t]
""",
    "a last value that the next chunk does not find": """input x : [K] = tanh(k)
output o : [V]
y = attend(x, x[t-1], v, sink=0)
o = y * exp(g)
""",
    "attention to a state that was there": """state z : [V] = 0.5
output o : [V]
z[t] = 0.9 * z[t-1] + v
o = attend(q, k, z[t]) + attend(q, k, 2 * z[t], window=3) + attend(q, k, z[t], window=2)
""",
    "comparisons between kernels": """state m, n : scalar = -inf
state S : [K, V]
output o : [V]
m[t] = max(m[t-1] + g, sum(k))
n[t] = logaddexp(n[t-1] - 0.5, max(sum(q), m[t]))
S[t] = sigmoid(n[t]) * S[t-1] + k @ v.T
o = S[t].T @ q
""",
}


@pytest.mark.parametrize("turn", (0, pytest.param(1, marks=pytest.mark.full)))
def test_kernels_are_the_recurrence_where_they_were_not(turn: int) -> None:
    """Launched at once and one after another by turns, and the other way round with -m full."""
    ways = ("fused", "split")
    specs = {
        name: (HEAD + text, ways[(n + turn) % 2]) for n, (name, text) in enumerate(SPECS.items())
    }
    done = subprocess.run(
        [sys.executable, "-W", "error:tl.where", triton_faults.__file__],
        input=json.dumps(specs),
        cwd=Path(triton_faults.__file__).parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize("name", ("mlstm", "gated_deltanet", "mesa", "gla_outer", "longhorn"))
def test_no_kernel_writes_what_it_reads(name: str) -> None:
    derived = driver.analyse(driver.load(ROOT / "examples" / f"{name}.la"))
    for pair in derived.passes:
        for kernel in TritonPass(derived.spec, pair, "0").kernels:
            program = kernel.program
            assert not {f"kept:{name}" for name in program.loads("kept")} & program.outs.keys()


def test_what_heads_are_moved_by_passes_two_to_the_31() -> None:
    source = lacc.compile(ROOT / "examples" / "gla.la", "triton").source
    assert source is not None
    heads = [line for line in source.splitlines() if ", head = " in line]
    assert heads and all("tl.program_id(0).to(tl.int64) % H" in line for line in heads)


def test_a_pass_may_have_more_kernels_than_there_are_letters() -> None:
    states = [f"S{n}" for n in range(14)]
    lines = [f"state {', '.join(states)} : [K, V]", "output o : [V]"]
    lines.append("S0[t] = exp(g) * S0[t-1] + k @ v.T")
    lines += [
        f"{new}[t] = exp(g) * {new}[t-1] + k @ ({old}[t].T @ q).T" for old, new in pairwise(states)
    ]
    source = lacc.compile(HEAD + "\n".join([*lines, "o = S13[t].T @ q", ""]), "triton").source
    assert source is not None and "def forward_0aa(" in source
