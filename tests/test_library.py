"""What ships with the compiler: feature maps by their definitions, samplers by their statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lacc import library
from lacc.driver import compile, load
from lacc.frontends.la import parse
from lacc.library import samplers
from lacc.spec.load import Loader, explain
from lacc.spec.model import Spec

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

K = 5


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.0)


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max())
    scaled: Array = e / e.sum()
    return scaled


def both(x: Array) -> Array:
    return np.concatenate([relu(x), relu(-x)])


def test_every_feature_map_is_documented_and_explained() -> None:
    loader = Loader(parse, None)
    names = "identity elu1 relu squared_relu exp softmax taylor2 favor hedgehog dpfp cosformer"
    for name in names.split():
        shown = explain(f"feature_maps.{name}", loader)
        assert shown is not None
        doc, _, text = shown.rpartition("feature ")
        assert doc.startswith("## ") and text.startswith(f"{name}(x")
    assert explain("feature_maps.nothing", loader) is None
    assert explain("nothing.relu", loader) is None


def test_samplers_are_named_once() -> None:
    assert set(library.SAMPLERS) == set(samplers.SAMPLERS)


@pytest.mark.parametrize("name", library.SAMPLERS)
def test_a_sampler_is_seeded_and_fills_any_shape(name: str) -> None:
    for shape in [(), (3,), (7, 4), (2, 5, 3), (4, 4), (0, 3)]:
        drawn = samplers.draw(name, shape, 1)
        assert drawn.shape == shape and drawn.dtype == np.float64
        assert np.array_equal(drawn, samplers.draw(name, shape, 1))
    assert not np.array_equal(samplers.draw(name, (7, 4), 1), samplers.draw(name, (7, 4), 2))


def test_numbers_are_those_of_splitmix64() -> None:
    """The reference's first outputs from the state 1234567."""
    states = np.arange(1, 4) * -0x61C8864680B583EB + 1234567
    found = [int(x) % 2**64 for x in samplers.mixed(states)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("name", library.SAMPLERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5, 3), (3, 40, 32)])
def test_torch_draws_what_numpy_draws(name: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    ours = samplers.SAMPLERS[name](torch, shape, 5)
    assert ours.dtype == torch.float64 and tuple(ours.shape) == shape
    assert np.allclose(ours.numpy(), samplers.draw(name, shape, 5), rtol=0, atol=1e-12)


def test_orthogonal_rows_are_orthogonal_within_a_block() -> None:
    rows = samplers.draw("orthogonal_gaussian", (10, 4), 0)
    for block in (rows[:4], rows[4:8], rows[8:]):
        gram = block @ block.T
        assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-12
    unit = samplers.draw("orthogonal", (4, 4), 0)
    assert np.abs(unit @ unit.T - np.eye(4)).max() < 1e-12


def test_orthogonal_gaussian_rows_are_standard_normal() -> None:
    rows = samplers.draw("orthogonal_gaussian", (4000, 4), 0)
    assert np.abs(rows.mean(0)).max() < 0.08
    assert np.abs(np.cov(rows.T) - np.eye(4)).max() < 0.1


def applied(use: str, size: str, arrays: dict[str, Array], declare: str = "") -> Array:
    """What a feature map, as an output of its own, makes of x : [B, T, H, K]."""
    text = f"variant x\ndim K = {K}, M = 3\n{use}\ninput x : [K]\n{declare}output o : {size}\n"
    kernel = compile(f"{text}o = φ({', '.join(arrays)})\n", target="reference")
    return np.asarray(kernel(*arrays.values())[0])


MAPS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "identity": ("[K]", lambda x: x),
    "elu1": ("[K]", lambda x: np.where(x > 0, x + 1, np.exp(x))),
    "squared_relu": ("[K]", lambda x: relu(x) ** 2),
    "relu": ("[K]", relu),
    "exp": ("[K]", np.exp),
    "softmax": ("[K]", softmax),
    "taylor2": (
        "[1 + K + K**2]",
        lambda x: np.concatenate([[1.0], x, np.outer(x, x).ravel() / np.sqrt(2)]),
    ),
    "dpfp": (
        "[4 * K]",
        lambda x: np.concatenate([both(x) * np.roll(both(x), n) for n in (1, 2)]),
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_feature_map_is_what_its_source_says(name: str) -> None:
    size, expected = MAPS[name]
    x = np.random.default_rng(0).standard_normal((1, 3, 2, K))
    got = applied(f"use feature_maps.{name} as φ", size, {"x": x})
    want = np.apply_along_axis(expected, -1, x)
    assert np.abs(got - want).max() < 1e-14


def test_feature_maps_with_parameters() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 4, 1, K))
    W, square = rng.standard_normal((3, K)), rng.standard_normal((K, K))

    got = applied("use feature_maps.favor as φ", "[M]", {"x": x, "W": W}, "buffer W : [M, K]\n")
    assert np.abs(got - np.exp(x @ W.T - (x * x).sum(-1, keepdims=True) / 2)).max() < 1e-13

    declare = "param W : [K, K] per layer\n"
    got = applied("use feature_maps.hedgehog as φ", "[2 * K]", {"x": x, "W": square}, declare)
    y = 2 * x @ square.T
    assert np.abs(got - np.apply_along_axis(softmax, -1, np.concatenate([y, -y], -1))).max() < 1e-13

    text = f"variant x\ndim K = {K}\nconst M = 8\nuse feature_maps.cosformer as φ\ninput x : [K]\n"
    kernel = compile(f"{text}output o : [2 * K]\no = φ(x, M)\n", target="reference")
    angle = (np.pi / 2 * np.arange(1, 5) / 8)[:, None, None]
    want = np.concatenate([relu(x) * np.sin(angle), relu(x) * np.cos(angle)], -1)
    assert np.abs(np.asarray(kernel(x)[0]) - want).max() < 1e-14


def test_small_features_keep_their_digits() -> None:
    got = applied("use feature_maps.elu1 as φ", "[K]", {"x": np.full((1, 1, 1, K), -8.0)})
    assert np.abs(got / np.exp(-8.0) - 1).max() < 1e-14


def test_a_used_feature_stands_in_the_canonical_text(tmp_path: Path) -> None:
    path = tmp_path / "x.la"
    path.write_text(
        "variant x\ndim K = 5\nuse feature_maps.elu1 as φ\n"
        "input k : [K]\noutput o : [K]\no = φ(k)\n"
    )
    made: Spec = load(path)
    assert "feature φ(x) = where(x > 0, x + 1, exp(x))" in made.text
    assert "use" not in made.text
    assert [(d.role, d.name) for d in made.definitions] == [("feature", "φ(k)")]
