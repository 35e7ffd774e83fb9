"""What `lacc.compat.transformers` is made of, without a model: linear maps on kernels, a
convolution by parts, functions rebuilt on others."""

from __future__ import annotations

from typing import Any

import pytest

from lacc.runtime.compiled import missing

torch = pytest.importorskip("torch")

from lacc.compat import convolution, linears  # noqa: E402
from lacc.compat.fla import kernel  # noqa: E402
from lacc.compat.rebinding import rebuilt  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def apart(x: Any, y: Any) -> float:
    return float((x - y).abs().max() / y.abs().max())


def test_linear_maps_on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole layers as they are called; what looks at a layer, or is too little, goes by torch."""
    monkeypatch.setattr(linears, "gains", lambda: True)
    monkeypatch.setattr(linears, "processors", lambda: 1)
    asked: list[str] = []
    monkeypatch.setattr(linears, "kernel", lambda spec: asked.append(spec) or kernel(spec))
    linear, seen = torch.nn.Linear(24, 256, bias=False), []
    for tokens in (130, 3):
        asked.clear()
        x = torch.randn(2, tokens, 24, requires_grad=True)
        y, d = linears.projected(linear, x), torch.randn(2, tokens, 256)
        assert len(asked) == (tokens > 3)
        expected = linear(x)
        assert apart(y, expected) < 1e-6
        wanted = torch.autograd.grad(expected, (x, linear.weight), d)
        for g, h in zip(torch.autograd.grad(y, (x, linear.weight), d), wanted):
            assert apart(g, h) < 1e-6
    x, _ = torch.randn(2, 130, 24), asked.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linears.projected(linear, x).dtype == torch.bfloat16
    linear.register_forward_hook(lambda *_: seen.append(1))
    linears.projected(linear, x)
    assert not asked and len(seen) == 1


def test_a_convolution_by_parts_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts shorter than the taps too, and strided tokens."""
    for tokens, taps, near in ((1, 4, 1), (3, 5, 1), (40, 2, 3000), (40, 4, 1 << 19)):
        monkeypatch.setattr(convolution, "NEAR", near)
        x = torch.randn(2, tokens, 3, 8, dtype=torch.float64)[..., :4].requires_grad_()
        weight = torch.randn(3, 4, taps, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        y = convolution.convolved(x, weight, bias)
        torch.testing.assert_close(convolution._plain(x, weight, bias), y)
        padded = torch.nn.functional.pad(x.flatten(2).transpose(1, 2), (taps - 1, 0))
        flat = weight.flatten(0, 1).unsqueeze(1)
        of_torch = torch.nn.functional.conv1d(padded, flat, bias.flatten(), groups=12)
        of_torch = torch.nn.functional.silu(of_torch).transpose(1, 2).reshape(y.shape)
        ct = torch.randn_like(y)
        found = torch.autograd.grad(y, (x, weight, bias), ct)
        wanted = torch.autograd.grad(of_torch, (x, weight, bias), ct)
        for a, b in zip((y, *found), (of_torch, *wanted)):
            assert (a - b).abs().max() <= 1e-12 * (1 + b.abs().max())


def test_a_decorated_function_is_rebuilt() -> None:
    def decorated(function: Any) -> Any:
        def wrapper(x: int) -> int:
            return 10 * function(x)

        return wrapper

    scope: dict[str, Any] = {"decorated": decorated, "inner": lambda x: x + 1}
    exec("@decorated\ndef outer(x):\n    return [inner(y) for y in (x,)][0]", scope)
    assert rebuilt(scope["outer"], {"inner": lambda x: x + 2})(1) == 30
    assert scope["outer"](1) == 20
