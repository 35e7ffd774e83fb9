"""What benchmarks/cpu_peers.py gives to others is the spec's computation: a recurrence over the
roles, token by token, gives what the reference does. No peer is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

from lacc import driver
from lacc.bench.case import Case, Truth, Unfit, data
from lacc.bench.record import Entry, Measured, Record

sys.path.insert(0, str(ROOT / "benchmarks"))

import cpu_canonical
import cpu_peers
import cpu_runtimes
import cpu_torch

SMALL = {"K": 5, "V": 6, "N": 5, "P": 6}
CANONICAL = [name for name in cpu_canonical.MADE if name != "mamba1"]


def case(name: str, mode: str) -> Case:
    """A small case of an example."""
    path = ROOT / "examples" / f"{name}.la"
    dims = driver.load(path).dims
    spec = driver.load(
        path, {d: n for d, n in {"K": 5, "V": 6, "N": 5, "P": 6}.items() if d in dims}
    )
    return Case(spec, mode, T=9, H=2)


def recurrence(x: Any) -> np.ndarray[Any, Any]:
    """o [B, T, H, V] of roles."""
    S = x.started().astype(np.float64)
    sums = 0.0 if x.sums is None else x.sums.astype(np.float64)
    outputs = []
    for t in range(x.q.shape[1]):
        q, k, v = (y[:, t].astype(np.float64) for y in (x.q, x.k, x.v))
        if x.phi:
            q, k = (np.where(y > 0, y + 1, np.exp(np.minimum(y, 0))) for y in (q, k))
        before = S
        if x.g is not None:
            decay = np.exp(x.g[:, t].astype(np.float64))
            S = (decay if decay.ndim == 3 else decay[..., None])[..., None] * S
        if x.beta is not None:
            v = x.beta[:, t, :, None] * (v - np.einsum("bhk,bhkv->bhv", k, S))
        if x.a is not None:
            S = (
                S
                + x.b[:, t, :, :, None] * np.einsum("bhk,bhkv->bhv", x.a[:, t], before)[:, :, None]
            )
        write = k[..., None] * v[:, :, None]
        read = S + write if x.u is None else before + x.u[..., None] * write
        S = S + write
        o = x.scale * np.einsum("bhk,bhkv->bhv", q, read)
        if x.phi:
            sums = sums + k
            o = o / np.sum(q * sums, -1, keepdims=True)
        outputs.append(o)
    return x.after(np.stack(outputs, 1))


@pytest.mark.parametrize("mode", ["forward", "decode"])
@pytest.mark.parametrize("name", CANONICAL)
def test_what_others_are_given_is_what_the_spec_computes(name: str, mode: str) -> None:
    each = case(name, mode)
    given = data(each)
    o = recurrence(cpu_canonical.roles(each, given))
    (want,) = Truth(each, given).results.values()
    got = o[:, 0] if mode == "decode" else o
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_every_spec_of_the_table_has_roles() -> None:
    assert set(cpu_peers.SPECS) == set(cpu_canonical.MADE)
    rules = {name: cpu_canonical.roles(c := case(name, "forward"), data(c)) for name in CANONICAL}
    assert rules["gla"].rule == "gated" and rules["linear"].rule == "linear"
    assert rules["deltanet"].rule == "delta" and rules["kda"].rule == "gated_delta"
    for name in ("rwkv6", "rwkv7"):
        with pytest.raises(Unfit):
            rules[name].rule  # noqa: B018


def test_a_package_that_is_missing_is_a_reason() -> None:
    with pytest.raises(Unfit, match="not installed"):
        cpu_runtimes.imported("lacc_has_no_such_package")


def test_names_are_told_apart() -> None:
    names = [peer.name for peer in (*cpu_runtimes.PEERS, *cpu_torch.PEERS)]
    assert len(names) == len(set(names))


def test_the_table_has_times_and_reasons() -> None:
    entries = [
        Entry("lacc c", True, samples=[1e-3] * 3, error=1e-7),
        Entry("other", samples=[2e-3] * 3, error=1e-6, memory=1 << 20),
        Entry("absent", why="not installed (absent)"),
    ]
    sizes = {"B": 1, "T": 64, "H": 8}, {"K": 64, "V": 64}
    least = {"flops": 5e-4, "exps": 1e-6, "bytes": 1e-6}
    measured = Measured("gla", "forward", *sizes, "float32", 1, {}, least, entries)
    text = cpu_peers.markdown(Record("python benchmarks/cpu_peers.py", {"gla": ""}, [measured]))
    assert "| lacc c | 1 | 1-1 | 2.00 | 1.00 |" in text
    assert "| other | 2 | 2-2 | 4.00 | 2.00 | 1.0 |" in text
    assert "- absent: not installed (absent)" in text


def test_results_are_kept_as_a_whole(tmp_path: Path) -> None:
    cpu_peers.keep(Record("", {"gla": ""}), tmp_path / "peers")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["peers.html", "peers.json", "peers.md"]
