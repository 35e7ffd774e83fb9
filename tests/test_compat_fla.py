"""`lacc.compat.fla`: numbers that flash-linear-attention gave, its own references where it is
installed, and what its arguments mean."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

from lacc.runtime.compiled import missing

torch = pytest.importorskip("torch")

from lacc.compat import fla  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

GOLDEN = {
    "gla__varlen": ("chunk_gla", {}),
    "gated_deltanet__c": ("chunk_gated_delta_rule", {}),
    "hgrn__b": ("chunk_hgrn", {"out_h": "S", "in_h0": "S0"}),
    "linear_elu1__a": ("chunk_linear_attn", {}),
    "rwkv6__a": ("chunk_rwkv6", {"scale": 1.0}),
    "gla__a": ("fused_recurrent_gla", {"g": "gk"}),
    "deltanet__c": ("chunk_delta_rule", {}),
    "retention__a": ("chunk_retention", {}),
    "linear__a": ("fused_recurrent_linear_attn", {}),
}
QUICK = ("gla__varlen", "hgrn__b", "linear_elu1__a", "gla__a")


def parts(x: Any) -> list[Any]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [] if x is None else [y for part in x for y in parts(part)]


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else (pytest.mark.full,)) for c in GOLDEN]
)
def test_numbers_and_gradients_of_fla(case: str) -> None:
    name, renamed = GOLDEN[case]
    data = np.load(ROOT / "tests" / "golden" / f"{case}.npz")
    keywords: dict[str, Any] = {k: v for k, v in renamed.items() if not isinstance(v, str)}
    given = {
        renamed.get(n[3:], n[3:]): torch.from_numpy(data[n]).double().requires_grad_()
        for n in data
        if n.startswith("in_") and n not in ("in_S0", "in_h0")
    }
    fed = dict(given)
    if "elu1" in case:
        fed |= {n: torch.nn.functional.elu(given[n]) + 1 for n in ("q", "k")}
    if "rwkv6" in case:  # those have the raw decay
        fed["w"] = -given["w"].exp()
    start = next((data[n] for n in ("in_S0", "in_h0") if n in data), None)
    if start is not None:
        given["initial_state"] = fed["initial_state"] = torch.from_numpy(start).double()
        given["initial_state"].requires_grad_()
    if "cu_seqlens" in data:
        keywords["cu_seqlens"] = torch.from_numpy(data["cu_seqlens"])
    o, state = getattr(fla, name)(**fed, output_final_state=True, **keywords)
    ends = [n for n in ("S", "h", "z") if f"out_{n}" in data]
    found = [o, *(x.reshape(data[f"out_{n}"].shape) for n, x in zip(ends, parts(state)))]
    wanted = [data[f"out_{n}"] for n in ("o", *ends)]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x.detach().numpy(), y, rtol=0, atol=1e-9 * np.abs(y).max())
    cotangents = [torch.from_numpy(data[f"do_{n}"]).double() for n in ("o", *ends)]
    grads = torch.autograd.grad(found, [*given.values()], cotangents)
    back = {b: a for a, b in renamed.items() if isinstance(b, str)}
    for n, g in zip(given, grads):
        n = ("h0" if "hgrn" in case else "S0") if n == "initial_state" else back.get(n, n)
        y = data[f"grad_{n}"]
        np.testing.assert_allclose(g.numpy(), y, rtol=0, atol=1e-8 * np.abs(y).max())


# ---- what arguments mean

B, T, H, K, V = 2, 13, 2, 16, 16


def drawn(**how: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    found = {n: torch.randn(B, T, H, K, **how) for n in "qkv"}
    return {**found, "g": -torch.rand(B, T, H, K, **how)}


def test_states_are_given_as_they_are_asked_for() -> None:
    x, start = drawn(dtype=torch.float64), torch.randn(B, H, K, V, dtype=torch.float64)
    o, end = fla.chunk_gla(**x, initial_state=start, output_final_state=True)
    same, flipped = fla.chunk_gla(
        **x, initial_state=start.mT, output_final_state=True, state_v_first=True
    )
    assert torch.equal(o, same) and torch.equal(end, flipped.mT)
    assert fla.chunk_gla(**x, initial_state=start)[1] is None
    scaled, _ = fla.chunk_gla(**x, initial_state=start, scale=1.0)
    torch.testing.assert_close(scaled, 4 * o)


@pytest.mark.parametrize("packed", [False, True])
def test_reverse_runs_from_the_end(packed: bool) -> None:
    x = drawn(dtype=torch.float64)
    x["gk"] = x.pop("g")
    call, how = fla.fused_recurrent_gla, {"output_final_state": True}
    if packed:
        x, cu = {n: y[:1] for n, y in x.items()}, torch.tensor([0, 4, 4, T])
        start = torch.randn(3, H, K, V, dtype=torch.float64)
        o, end = call(**x, reverse=True, cu_seqlens=cu, initial_state=start, **how)
        for n, (a, b) in enumerate(((0, 4), (4, 4), (4, T))):
            piece = {m: y[:, a:b].flip(1) for m, y in x.items()}
            wanted, last = call(**piece, initial_state=start[n : n + 1], **how)
            torch.testing.assert_close(o[:, a:b], wanted.flip(1))
            torch.testing.assert_close(end[n], last[0])
        return
    o, end = call(**x, reverse=True, **how)
    wanted, last = call(**{n: y.flip(1) for n, y in x.items()}, **how)
    assert torch.equal(o, wanted.flip(1)) and torch.equal(end, last)


def test_a_normalizer_goes_on_where_it_was() -> None:
    x = {n: drawn(dtype=torch.float64)[n].abs() for n in "qkv"}
    o, (S, z) = fla.chunk_linear_attn(**x, output_final_state=True)
    assert (S.shape, z.shape) == ((B, H, K, V), (B, 1, H, K))
    torch.testing.assert_close(z[:, 0], x["k"].sum(1))
    first, state = fla.chunk_linear_attn(
        **{n: y[:, :5] for n, y in x.items()}, output_final_state=True
    )
    rest, _ = fla.chunk_linear_attn(**{n: y[:, 5:] for n, y in x.items()}, initial_state=state)
    torch.testing.assert_close(torch.cat([first, rest], 1), o)
    narrow, _ = fla.chunk_linear_attn(**{n: y.bfloat16() for n, y in x.items()})
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.double(), o, rtol=0.05, atol=0.05)


def test_every_function_says_what_it_takes() -> None:
    for name in fla.TABLE:
        function = getattr(fla, name)
        assert function.__name__ == name and "0.6.0" in function.__doc__
        assert list(inspect.signature(function).parameters)
        for spec in fla.TABLE[name][1].split(", "):
            homes = (ROOT / "examples", ROOT / "lacc" / "compat")
            assert any((home / f"{spec}.la").is_file() for home in homes)


def test_misuse_is_named() -> None:
    x = drawn()
    for call, error, words in (
        (
            lambda: fla.chunk_gla(**x, head_first=True),
            TypeError,
            "chunk_gla: no argument is called 'head_first'",
        ),
        (lambda: fla.chunk_gla(**x, output_final_sate=True), TypeError, "output_final_state"),
        (lambda: fla.chunk_gla(x["q"], x["k"]), TypeError, "chunk_gla: v is missing"),
        (lambda: fla.chunk_gla(x["q"], **x), TypeError, "q is given twice"),
        (lambda: fla.chunk_gla(*[x["q"]] * 11), TypeError, "expected at most 10 arguments, got 11"),
        (
            lambda: fla.chunk_gla(**{**x, "q": 1}),
            TypeError,
            "q: expected a tensor, got <class 'int'>",
        ),
        (lambda: fla.chunk_gla(**x, cu_seqlens=torch.tensor([0, T])), ValueError, "cu_seqlens"),
        (
            lambda: fla.parallel_retention(x["q"], x["k"], x["v"], output_attentions=True),
            ValueError,
            "no attention matrix",
        ),
        (lambda: fla.chunk_kda(**x, beta=x["g"]), ValueError, r"beta: expected \[B, T, H\]"),
        (
            lambda: fla.chunk_gated_delta_rule(**x, beta=x["g"][..., 0], use_gate_in_kernel=True),
            ValueError,
            "A_log: expected a tensor",
        ),
        (
            lambda: fla.chunk_gdn(**x, beta=x["g"][..., 0], allow_neg_eigval=True),
            ValueError,
            "use_beta_sigmoid_in_kernel",
        ),
        (lambda: fla.chunk_nsa, AttributeError, "lacc.compat.fla has no chunk_nsa"),
    ):
        with pytest.raises(error, match=words):
            call()


# ---- against fla itself


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Signatures and results of fla, from a process of its own."""
    if importlib.util.find_spec("fla") is None:
        pytest.skip("fla-core is not installed")
    out = tmp_path_factory.mktemp("fla") / "results.pt"
    command = [sys.executable, str(Path(__file__).with_name("fla_worker.py")), str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(out)


def off(x: Any, y: Any) -> float:
    """The largest difference over the largest value."""
    return float(((x - y).abs().max() / y.abs().max()).detach())


@pytest.mark.full
def test_signatures_are_those_of_fla(theirs: Any) -> None:
    for name, wanted in theirs["takes"].items():
        found = [
            (p.name, None if p.default is p.empty else repr(p.default), p.default is p.empty)
            for p in inspect.signature(getattr(fla, name)).parameters.values()
        ]
        assert found[: len(wanted)] == wanted, name


@pytest.mark.full
def test_results_are_those_of_its_references(theirs: Any) -> None:
    for case in theirs["results"]:
        given = {n: x.clone().requires_grad_() for n, x in case["inputs"].items()}
        o, state = getattr(fla, case["name"])(**given, output_final_state=True, **case["keywords"])
        found = [o, *parts(state)]
        if case["keywords"].get("g", 1) is None:
            found, wanted = found[:1], case["found"][:1]
        else:
            wanted = case["found"]
        worst = 0.0
        for x, y in zip(found, wanted, strict=True):
            worst = max(worst, off(x, y))
        if len(found) == len(case["cotangents"]):
            grads = torch.autograd.grad(found, [*given.values()], case["cotangents"])
            for n, g in zip(given, grads):
                if (y := case["grads"][n]) is not None:
                    worst = max(worst, off(g, y))
        print(f"{case['name']}: {worst:.0e}")
        assert worst < 1e-5, case["name"]


LAYERS = {
    "gla": ("GatedLinearAttention", {"num_heads": 2}),
    "linear_attn": ("LinearAttention", {"num_heads": 2}),
    "multiscale_retention": ("MultiScaleRetention", {"num_heads": 2}),
    "delta_net": ("DeltaNet", {"num_heads": 2}),
    "gated_deltanet": ("GatedDeltaNet", {"num_heads": 2, "num_v_heads": 4, "head_dim": 16}),
    "kda": ("KimiDeltaAttention", {"num_heads": 2, "head_dim": 16}),
    "rwkv6": ("RWKV6Attention", {"num_heads": 2}),
    "gsa": ("GatedSlotAttention", {"num_heads": 2, "num_slots": 16}),
    "simple_gla": ("SimpleGatedLinearAttention", {"num_heads": 2}),
}


@pytest.mark.full
@pytest.mark.parametrize("home", LAYERS)
def test_a_layer_of_fla_does_not_notice(home: str) -> None:
    found = importlib.util.find_spec("fla")
    if found is None or not (Path(found.origin or "").parent / "layers").is_dir():
        pytest.skip("flash-linear-attention is not installed")
    name, how = LAYERS[home]
    worker = str(Path(__file__).with_name("fla_layers_worker.py"))
    command = [sys.executable, worker, home, name, json.dumps(how)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"{name}: {float(done.stdout.splitlines()[-1]):.0e}")
    assert float(done.stdout.splitlines()[-1]) < 2e-5
