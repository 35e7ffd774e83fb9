"""Tensors whose memory others count on: what a step writes is seen by autograd, memory that is not
there is said, a forked process calls kernels too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from conftest import ROOT

import lacc
from lacc.runtime.compiled import missing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a compiler")


@cache
def gla() -> Any:
    return lacc.compile(ROOT / "examples" / "gla.la", target="c", K=8, V=5)


def token() -> list[Any]:
    return [*(torch.randn(2, 2, d) for d in (8, 8, 5)), -torch.rand(2, 2, 8)]


def sequence() -> list[Any]:
    return [*(torch.randn(1, 4, 2, d) for d in (8, 8, 5)), -torch.rand(1, 4, 2, 8)]


def test_autograd_notices_a_state_that_a_step_wrote_to() -> None:
    x = token()
    for _ in range(4):  # the third call of a kind goes straight to C
        state, w = torch.randn(2, 2, 8, 5), torch.ones(1, requires_grad=True)
        y = (w * state).sum()
        with torch.no_grad():
            gla().step(*x, state, out=state)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y, w)


def test_what_a_step_cannot_be_written_into_is_refused() -> None:
    x, leaf = token(), torch.randn(2, 2, 8, 5, requires_grad=True)
    with pytest.raises(ValueError, match="out: expected a tensor without requires_grad"):
        gla().step(*x, leaf.detach(), out=leaf)
    negated = torch.complex(leaf.detach(), leaf.detach()).conj().imag
    with pytest.raises(ValueError, match="out: expected a tensor of its own"):
        gla().step(*x, leaf.detach(), out=negated)


def test_memory_that_is_not_there_is_said() -> None:
    for _ in range(4):
        gla()(*sequence())
        x = sequence()
        x[0].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="expected a tensor with memory"):
            gla()(*x)


def test_negated_views_are_read_as_what_they_stand_for() -> None:
    x = sequence()
    negated = torch.complex(x[0], x[0]).conj().imag
    assert negated.is_neg()
    assert torch.equal(gla()(negated, *x[1:])[0], gla()(-x[0], *x[1:])[0])


FORKING = """
import os, sys, numpy as np, lacc
gla = lacc.compile(sys.argv[1], target="c")
r = np.random.default_rng(0)
x = [r.normal(size=(2, 1024, 8, 64)).astype("f4") for _ in range(4)]
x[3] = -abs(x[3])
o, _ = gla(*x)
if os.fork() == 0:
    os._exit(0 if np.array_equal(gla(*x)[0], o) else 3)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_calls_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(ROOT / "examples" / "gla.la")],
        timeout=300,
        env={**os.environ, "LACC_THREADS": "2"},
    )
    assert done.returncode == 0


DELAYED = """variant x
dim K = 4, V = 3
input k : [K]
input v : [V]
state S : [K, V]
output o : [V]
S[t] = 0.5 * S[t-1] + (k[t] + 0.5 * k[t-1] - k[t-3]) @ v[t-1].T
o = S[t].T @ k
"""


def test_gradients_of_delays_do_not_hang_on_the_hash_seed(tmp_path: Any) -> None:
    path = tmp_path / "x.la"
    path.write_text(DELAYED)
    program = (
        "import sys, numpy as np, lacc\n"
        "k, r = lacc.compile(sys.argv[1]), np.random.default_rng(0)\n"
        "x = [r.normal(size=(1, 40, 2, d)) for d in (4, 3)]\n"
        "print(k.vjp(*x, cotangent=x[1])['k'].tobytes().hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "2", "5")
    }
    assert len(found) == 1 and len(found.pop()) > 1000
