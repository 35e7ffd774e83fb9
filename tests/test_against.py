"""`lacc verify --against`: a function of one's own goes in, where it first differs comes out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from test_cli import Run, lacc  # noqa: F401

from lacc import driver
from lacc.verify.against import Comparison, Theirs, against, own_function
from lacc.verify.explained import likely

# ruff: noqa: F811

GLA = str(ROOT / "examples" / "gla.la")
MODEL = """
import math
import torch


def gla(q, k, v, g, scale=True):
    B, T, H, K = q.shape
    S = q.new_zeros(B, H, K, v.shape[-1])
    out = []
    for t in range(T):
        S = S * g[:, t].exp()[..., None] + k[:, t, :, :, None] * v[:, t, :, None]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(out, 1) * (K**-0.5 if scale else 1), S


def unscaled(q, k, v, g):
    return gla(q, k, v, g, scale=False)


def early(q, k, v, g):
    return torch.cat([torch.zeros_like(v[:, :1]), gla(q, k, v, g)[0][:, :-1]], 1)


def cut(q, k, v, g):
    return gla(q, k, v, g.detach())


def sudden(q, k, v, g):
    o = gla(q, k, v, g)[0].clone()
    if o.shape[1] > 5:
        o[1, 5, 1, 2] += 1
    return o


def heads_first(q, k, v, g):
    return gla(q, k, v, g)[0].transpose(1, 2)


def raises(q, k, v, g):
    raise ValueError("of her own")


def lacks(q, k, v):
    return v


def needs(q, k, v, g, mask):
    return v


def nothing(q, k, v, g):
    return None


def plain(q, k, v, g):
    return v.sum(dtype=None).item()


def by_dict(**given):
    return {"o": gla(given["q"], given["k"], given["v"], given["g"])[0]}


class Model:
    pass


number = 3
print("loaded")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "my_model.py"
    path.write_text(MODEL)
    return path


def compared(model: Path, name: str, **options: object) -> Comparison:
    reference = driver.compile(GLA, "reference")
    return against(reference, own_function(model, name), tensors=True, **options)  # type: ignore[arg-type]


def test_what_is_the_same_passes_with_gradients(model: Path) -> None:
    found = compared(model, "gla")
    assert found.passed
    assert list(found.errors) == ["o", "d q", "d k", "d v", "d g"]
    assert all(error <= limit == 1e-9 for error, limit in found.errors.values())
    assert compared(model, "by_dict").passed
    assert compared(model, "gla", dtype="float32").errors["o"][1] == 1e-4


def test_the_first_difference_has_a_place(model: Path) -> None:
    (found,) = compared(model, "sudden").differences
    assert found.quantity == "o"
    assert found.place == {"token": 5, "sequence": 1, "head": 1, "entry": [2]}
    assert found.yours - found.expected == pytest.approx(1)


def test_a_factor_and_a_delay_are_recognised(model: Path) -> None:
    first = compared(model, "unscaled").differences[0]
    assert first.likely.endswith("times the spec's") and "(K**0.5)" in first.likely
    assert first.place["token"] == 0
    assert "the one before" in compared(model, "early").differences[0].likely


def test_a_gradient_that_is_cut_is_named(model: Path) -> None:
    found = compared(model, "cut")
    assert [d.quantity for d in found.differences] == ["d g"]
    assert "nothing that" in found.notes[0] and "depends on g" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("heads_first", "heads come after tokens"),
        ("raises", "ValueError: of her own, at line 40"),
        ("lacks", "does not take g"),
        ("needs", "needs mask, which gla does not have"),
        ("nothing", "returned no o"),
        ("plain", "o as float"),
        ("Model", "a class"),
        ("number", "of type int"),
        ("glaa", "did you mean `gla`?"),
    ],
)
def test_what_is_wrong_with_the_function_is_said(model: Path, name: str, said: str) -> None:
    with pytest.raises(Theirs) as caught:
        compared(model, name)
    assert said in str(caught.value)
    assert name != "raises" or "in raises" in caught.value.trace


def test_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\nimport no_such_thing\n")
    with pytest.raises(Theirs, match=r"ModuleNotFoundError.*at line 2"):
        own_function(path, "fn")
    assert str(tmp_path) not in sys.path


def test_numpy_functions_are_compared_without_gradients(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import numpy as np\n"
        "def fn(β, k, q, v, g):\n"
        "    S, out = np.zeros((*k.shape[:1], *k.shape[2:], v.shape[-1])), []\n"
        "    for t in range(k.shape[1]):\n"
        "        S = np.exp(g[:, t])[..., None, None] * S\n"
        "        u = β[:, t, :, None] * (v[:, t] - np.einsum('bhk,bhkv->bhv', k[:, t], S))\n"
        "        S = S + k[:, t, ..., None] * u[..., None, :]\n"
        "        out.append(np.einsum('bhk,bhkv->bhv', q[:, t], S) * k.shape[-1]**-0.5)\n"
        "    return np.stack(out, 1)\n",
        encoding="utf-8",
    )
    reference = driver.compile(ROOT / "examples" / "gated_deltanet.la", "reference")
    found = against(reference, own_function(path, "fn"))
    assert found.passed and list(found.errors) == ["o"]
    assert "--torch" in found.notes[0]


def test_buffers_and_optional_arguments(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def fn(q, W):\n    return q @ W.T\n")
    text = "variant x\ndim K = 4, M = 5\ninput q : [K]\ninput c : scalar = 1\n"
    text += "buffer W : [M, K] = gaussian()\noutput o : [M]\no = c * W @ q\n"
    found = against(driver.compile(text, "reference"), own_function(path, "fn"))
    assert found.passed and "does not take c" in found.notes[0]


def test_simple_relations() -> None:
    want = np.arange(1.0, 13).reshape(1, 6, 2)
    assert likely(want * np.nan, want, 1e-9, 1, {}) == "12 of yours are not finite"
    assert likely(want * 0, want, 1e-9, 1, {}) == "yours are all 0"
    assert likely(-want / 4, want, 1e-9, 1, {"K": 16}) == (
        "yours are -0.25 (-K**-0.5) times the spec's"
    )
    assert likely(np.roll(want, -1, 1), want, 1e-9, 1, {}).endswith("the one after")
    assert likely(want + want**2, want, 1e-9, 1, {}) == ""


def test_the_command(lacc: Run, model: Path) -> None:
    code, out, _ = lacc("verify", GLA, "--against", f"{model}:gla", "--torch")
    assert code == 0 and "they agree" in out
    code, out, _ = lacc("verify", GLA, "--against", f"{model}:sudden", "--torch")
    assert code == 1 and "o first differs at token 5, sequence 1, head 1, entry [2]" in out
    code, out, _ = lacc("verify", GLA, "--against", f"{model}:cut", "--torch", "--json")
    result = json.loads(out)["result"]
    assert code == 1 and result["differences"][0]["quantity"] == "d g"
    code, out, err = lacc("verify", GLA, "--against", f"{model}:raises", "--torch")
    assert code == 1 and "of her own" in err and 'raise ValueError("of her own")' in err
    code, out, _ = lacc("verify", GLA, "--against", f"{model}:gla", "--json")
    assert code == 1 and "--torch gives it tensors" in json.loads(out)["diagnostics"][0]["message"]
    for words in (["--against", f"{model}"], ["--against", "none.py:fn"], ["--torch"]):
        assert lacc("verify", GLA, *words)[0] == 2
