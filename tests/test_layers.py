"""Layers around compiled variants: one way through a sequence as another, masks, caches, starts."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT

import lacc
from lacc.diagnostics import LaccError
from lacc.runtime.compiled import missing

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

B, T, WIDTH, H = 2, 7, 8, 2
QUICK = ("gla", "mamba2")
CLASSES: dict[str, Any] = {}


def kernel_class(name: str) -> Any:
    """The layer class of an example."""
    if name not in CLASSES:
        CLASSES[name] = lacc.compile(ROOT / "examples" / f"{name}.la", target="c").layer
    return CLASSES[name]


def made(name: str, **how: Any) -> Any:
    torch.manual_seed(0)
    how = {"dtype": torch.float64, "positions": 2 * T, **how}
    return kernel_class(name)(WIDTH, H, **how)


def drawn(**how: Any) -> Any:
    torch.manual_seed(1)
    return torch.randn(B, T, WIDTH, **{"dtype": torch.float64, **how})


def by_steps(layer: Any, x: Any, cache: Any = None) -> tuple[Any, Any]:
    found = []
    for t in range(x.shape[1]):
        y, cache = layer.step(x[:, t], cache)
        found.append(y)
    return torch.stack(found, 1), cache


NAMES = [
    pytest.param(p.stem, marks=() if p.stem in QUICK else (pytest.mark.full,)) for p in EXAMPLES
]


def meant(state: Any) -> list[Any]:
    """The values of a state: of one beside its exponent, which stands for the same with another,
    their product."""
    fields = state._asdict()
    found = []
    for name, x in fields.items():
        log = fields.get(f"{name}_log")
        scale = 1 if log is None else log.exp().reshape(*log.shape, *[1] * (x.ndim - log.ndim))
        found += [] if name.endswith("_log") and name[:-4] in fields else [x * scale]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_a_layer(name: str) -> None:
    layer = made(name, conv_size=None if name == "mamba2" else 3)
    x = drawn().requires_grad_()
    y, cache = layer(x)
    assert y.shape == x.shape and y.isfinite().all()
    y.square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.any()
    for parameter, p in layer.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), parameter
    with torch.no_grad():
        mask = torch.ones(B, T, dtype=torch.long)
        mask[1, :3] = 0
        padded = x.masked_fill(~mask.bool().unsqueeze(-1), float("nan"))
        z, _ = layer(padded, attention_mask=mask)
        torch.testing.assert_close(z[1, 3:], layer(x[1:, 3:])[0][0])
        torch.testing.assert_close(z[0], y[0])
        assert not z[1, :3].any()
        if layer.run.__self__.signature.no_step:
            return
        found, end = by_steps(layer, x)
        torch.testing.assert_close(found, y)
        torch.testing.assert_close(meant(end.state), meant(cache.state))
        for cut in (1, 4):
            one, half = layer(x[:, :cut])
            two, _ = layer(x[:, cut:], half)
            torch.testing.assert_close(torch.cat([one, two], 1), y)


@pytest.mark.parametrize("where", ["right", "inside", "all"])
def test_padding_changes_nothing(where: str) -> None:
    layer, x = made("gla", conv_size=4), drawn()
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1, {"right": slice(4, None), "inside": slice(2, 4), "all": slice(None)}[where]] = False
    x.requires_grad_()
    y, cache = layer(x, attention_mask=mask)
    wanted, end = layer(x[1:, mask[1]])
    torch.testing.assert_close(y[1, mask[1]], wanted[0])
    torch.testing.assert_close(cache.state.S[1], end.state.S[0])
    torch.testing.assert_close(cache.tails["k"][1], end.tails["k"][0])
    y.sum().backward()
    assert not x.grad[1, ~mask[1]].any()
    more = drawn()[:, :2]
    go, _ = layer(more, cache, attention_mask=torch.cat([mask, mask.new_ones(B, 2)], 1))
    torch.testing.assert_close(go[1], layer(more[1:], end)[0][0])


def test_packed_sequences_are_apart() -> None:
    layer, x = made("gla", conv_size=4), drawn()[:1]
    cu = torch.tensor([0, 3, 3, T])
    y, cache = layer(x, cu_seqlens=cu)
    for n, (a, b) in enumerate(pairwise(cu)):
        wanted, end = layer(x[:, a:b])
        torch.testing.assert_close(y[:, a:b], wanted)
        torch.testing.assert_close(cache.state.S[n], end.state.S[0])
        torch.testing.assert_close(cache.tails["q"][n], end.tails["q"][0])


def test_a_layer_and_its_cache_are_kept() -> None:
    """Pickled and copied, as data loaders and checkpoints do it."""
    layer, x = made("gla", conv_size=3), drawn()
    with torch.no_grad():
        y, cache = layer(x)
        expected = layer.step(x[:, 0], cache)[0]
        for again, then in (
            pickle.loads(pickle.dumps((layer, cache))),
            copy.deepcopy((layer, cache)),
        ):
            assert torch.equal(again(x)[0], y)
            assert torch.equal(again.step(x[:, 0], then)[0], expected)
    assert type(copy.deepcopy(layer)) is type(layer)
    assert copy.deepcopy(cache).state._fields == ("S",)


def test_what_does_not_fit_is_said() -> None:
    layer, x = made("gla", conv_size=3), drawn()
    _, cache = layer(x[:1].expand(3, -1, -1))
    with pytest.raises(ValueError, match=r"cache: expected one of \d rows, got 3"):
        layer(x, cache)
    with pytest.raises(ValueError, match="cu_seqlens: expected a tensor"):
        layer(x[:1], cu_seqlens=[0, x.shape[1]])
    with pytest.raises(ValueError, match="cu_seqlens: expected bounds from 0 to T"):
        layer(x[:1], cu_seqlens=torch.tensor([0, 2]))


def test_rows_of_a_cache_are_chosen() -> None:
    layer, x = made("fox", conv_size=3), drawn()
    _, cache = layer(x)
    rows = torch.tensor([1, 1, 0])
    y, _ = layer.step(x[rows, 0], cache.select(rows))
    torch.testing.assert_close(y, layer.step(x[:, 0], cache)[0][rows])
    assert not any(part.requires_grad for part in cache.detach().state)


def test_starts_are_what_is_asked_for() -> None:
    layer = made(
        "mamba2",
        num_groups=1,
        dims={"N": 3},
        dtype=torch.float32,
        init={"A": torch.tensor([-2.0, -0.5]), "dt_bias": lambda shape: torch.full(shape, -4.0)},
    )
    values, _ = layer._arguments(drawn(dtype=torch.float32), {}, None, None)
    torch.testing.assert_close(values["A"], torch.tensor([-2.0, -0.5]))
    assert (values["dt_bias"] == -4).all() and (values["D"] == 1).all()
    assert values["B"].shape == (B, T, 1, 3) and values["x"].shape == (B, T, H, WIDTH // H)
    gla = made("gla", init={"g": -0.01}, gate_rank=2, dtype=torch.float32)
    values, _ = gla._arguments(torch.zeros(B, T, WIDTH), {}, None, None)
    torch.testing.assert_close(values["g"], torch.full((B, T, H, WIDTH // H), -0.01))


def test_gates_stay_in_float32() -> None:
    layer = made("gla", dtype=torch.bfloat16)
    values, _ = layer._arguments(drawn(dtype=torch.bfloat16), {}, None, None)
    assert (values["g"].dtype, values["q"].dtype) == (torch.float32, torch.bfloat16)
    assert layer(drawn(dtype=torch.bfloat16))[0].dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        y, cache = made("gla", dtype=torch.float32)(drawn(dtype=torch.float32))
    assert y.dtype == torch.bfloat16 and cache.state.S.dtype == torch.float32


def test_a_layer_is_a_module() -> None:
    layer, x = made("gla", conv_size=3), drawn()
    assert list(layer.state_dict()) == [
        *(f"{n}_{what}.weight" for n in "qkv" for what in ("proj", "conv")),
        *("g_proj.weight", "o_norm.weight", "gate_proj.weight", "out_proj.weight"),
    ]
    assert "gla, d_model=8, num_heads=2, K=4, V=4" in repr(layer)
    other = copy.deepcopy(layer)
    assert torch.equal(other(x)[0], layer(x)[0])
    fresh = kernel_class("gla")(WIDTH, H, conv_size=3)
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(fresh(x.float())[0], layer(x)[0].float())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])


def test_a_layer_is_exported_with_any_length() -> None:
    layer, x = made("gla", conv_size=3), drawn()
    mask = torch.ones(B, T, dtype=torch.bool)
    length = torch.export.Dim("T", min=3, max=4096)
    dims = {"x": {1: length}, "attention_mask": {1: length}}
    program = torch.export.export(
        layer, (x,), kwargs={"attention_mask": mask}, dynamic_shapes=dims, strict=False
    )
    longer = torch.cat([x, x, x], 1)
    mask = torch.rand(longer.shape[:2]) < 0.7
    y, cache = program.module()(longer, attention_mask=mask)
    wanted, end = layer(longer, attention_mask=mask)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(cache.state.S, end.state.S)


def test_a_model_generates_as_it_reads() -> None:
    """Greedy tokens of a model of one layer: by its cache, and by reading all again."""
    torch.manual_seed(0)
    embed, layer = torch.randn(11, WIDTH, dtype=torch.float64), made("gla", conv_size=3)
    prompts, mask = torch.randint(11, (B, 5)), torch.ones(B, 5, dtype=torch.long)
    mask[1, :2] = 0
    with torch.no_grad():
        y, cache = layer(embed[prompts], attention_mask=mask)
        tokens, whole = [], prompts
        for _ in range(6):
            tokens.append((y[:, -1] @ embed.T).argmax(-1))
            whole = torch.cat([whole, tokens[-1].unsqueeze(1)], 1)
            mask = torch.cat([mask, mask.new_ones(B, 1)], 1)
            one, cache = layer.step(embed[tokens[-1]], cache)
            y, _ = layer(embed[whole], attention_mask=mask)
            torch.testing.assert_close(one, y[:, -1])


@pytest.mark.parametrize("name", ["gla", "rwkv6", "softmax_attention"])
def test_tokens_in_place(name: str) -> None:
    """What steps give, in the memory of one cache; copies of it go their own way."""
    layer, x = made(name, conv_size=3), drawn()
    with torch.no_grad():
        _, cache = layer(x[:, :2])
        _, mine = layer(x[:, :2])
        for t in range(2, 5):
            y, cache = layer.step(x[:, t], cache)
            found, same = layer.step(x[:, t], mine, in_place=True)
            assert same is mine
            torch.testing.assert_close(found, y)
        others = [copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))]
        others.append(mine.select(torch.tensor([1, 0])))
        for t in range(5, T):
            y, cache = layer.step(x[:, t], cache)
            torch.testing.assert_close(layer.step(x[:, t], mine, in_place=True)[0], y)
        for other, order in zip(others, ([0, 1], [0, 1], [1, 0])):
            for t in range(5, T):
                z, _ = layer.step(x[order, t], other, in_place=True)
            torch.testing.assert_close(z[order], y)
        for p in layer.parameters():  # as training does, while the cache stays
            p.mul_(0.5)
        y, _ = layer.step(x[:, 0], cache)
        torch.testing.assert_close(layer.step(x[:, 0], mine, in_place=True)[0], y)
    with pytest.raises(RuntimeError, match="step: in place it has no gradients"):
        layer.step(x[:, 0], mine, in_place=True)
    layer.requires_grad_(False)
    with pytest.raises(RuntimeError, match="step: in place it has no gradients"):
        layer.step(x[:, 0], mine.map(lambda y: y.double().requires_grad_()), in_place=True)
    _, kept = layer.step(x[:, 0], cache)
    before = [y.clone() for y in cache.state]
    layer.step(x[:, 0], cache)
    assert all(map(torch.equal, before, cache.state)) and kept.state is not cache.state


def test_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lacc.layers.text import text

    kernel = lacc.compile(ROOT / "examples" / "gla.la", target="c")
    for name, content in {**kernel.files, "my_layer.py": text(kernel)}.items():
        (tmp_path / name).write_text(content, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("my_layer").GlaLayer(WIDTH, H, conv_size=3, dtype=torch.float64)
    layer, x = made("gla", conv_size=3), drawn()
    own.load_state_dict(layer.state_dict())
    assert torch.equal(own(x)[0], layer(x)[0])
    torch.testing.assert_close(by_steps(own, x)[0], own(x)[0])
    with torch.no_grad():
        (_, cache), (_, same) = own(x), own(x)
        found = own.step(x[:, 0], same, in_place=True)[0]
        torch.testing.assert_close(found, own.step(x[:, 0], cache)[0])
    assert type(same.stepper[0]).__name__ == "BoundTensors"
    for name in ("my_layer", "gla_c"):
        del sys.modules[name]


def test_misuse_is_named() -> None:
    layer, x = made("gla"), drawn()
    _, cache = made("fox")(x)
    for call, words in (
        (lambda: made("gla", num_groups=1), "num_groups: gla has nothing per group, got 1"),
        (lambda: made("mamba2", num_groups=3), "num_groups: expected a divisor of 2, got 3"),
        (lambda: made("gla", dims={"N": 1}), "dims: expected names of K, V, got 'N'"),
        (lambda: made("gla", conv_size=1), "conv_size: expected at least 2 taps"),
        (lambda: made("gla", init={"o": 1.0}), "init: expected names of q, k, v, g, got 'o'"),
        (lambda: made("gla", buffers={"q": x}), "buffers: expected names of nothing, got 'q'"),
        (lambda: layer(x[0]), r"x: expected \[B, T, 8\], got shape \(7, 8\)"),
        (lambda: layer.step(x), r"x: expected \[B, 8\], got shape"),
        (lambda: layer(x, cache), "cache: expected one of gla, got one of fox"),
        (lambda: layer(x, attention_mask=x[..., 0]), "attention_mask: expected bools or integers"),
        (lambda: layer(x, attention_mask=(x > 0)), r"attention_mask: expected \[B, T\] = \[2, 7\]"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(LaccError, match="target numpy has no layer"):
        _ = lacc.compile(ROOT / "examples" / "gla.la", target="numpy").layer
