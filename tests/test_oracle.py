"""The oracle: gradients against differences, parts against wholes, blocks, single precision."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT

import lacc
from lacc.runtime import contract, oracle

SPECS = sorted((ROOT / "tests" / "specs").glob("*.la"))
SIZES = [(2, 5, 2, 1), (1, 4, 4, 2), (1, 1, 1, 1), (1, 0, 2, 1)]  # B T H G
BEFORE = 3  # tokens before the call, which make its initial state

each_spec = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
pytestmark = pytest.mark.filterwarnings("error")


@cache
def compiled(spec: Path | str) -> Any:
    return lacc.compile(spec, target="reference")


class Call:
    """A spec's kernel with random arguments, cotangents and, where it takes one, a state."""

    def __init__(self, path: Path, shape: tuple[int, int, int, int], optional: bool = True) -> None:
        self.kernel = kernel = compiled(path)
        rng = self.rng = np.random.default_rng(len(path.stem))
        B, T, H, G = shape
        sizes = kernel.signature.dims | {"#B": B, "#T": T + BEFORE, "#H": H, "#G": G}
        self.timed = {a.name for a in kernel.signature.arguments if a.role == "input"}
        everything = {}
        for a in kernel.signature.arguments:
            if not a.draw and (optional or not a.optional):
                axes = (
                    T + BEFORE if s is None else contract.size_of(s, sizes)
                    for s in contract.axes_of(a)
                )
                everything[a.name] = 0.7 * rng.standard_normal([*axes])
        self.state = None
        if not kernel.signature.no_initial:
            self.state = kernel(**self.cut(everything, slice(BEFORE)))[1]
        self.arguments = self.cut(everything, slice(BEFORE, None))
        outputs, final = self.run()
        self.cotangent = tuple(rng.standard_normal(o.shape) for o in outputs)
        self.final_cotangent = {n: rng.standard_normal(s.shape) for n, s in unscaled(final).items()}

    def cut(self, arguments: dict[str, Any], which: Any) -> dict[str, Any]:
        """The arguments of some tokens."""
        return {n: x[:, which] if n in self.timed else x for n, x in arguments.items()}

    def run(self, arguments: Any = None, state: Any = None) -> tuple[tuple[Any, ...], Any]:
        """Outputs, one or several, and final state."""
        given = {"initial_state": self.state if state is None else state}
        outputs, final = self.kernel(**(arguments or self.arguments), **given)
        return outputs if isinstance(outputs, tuple) else (outputs,), final

    def loss(self, arguments: Any = None, state: Any = None) -> float:
        """The sum of all results times their cotangents."""
        outputs, final = self.run(arguments, state)
        pairs = [*zip(self.cotangent, outputs)]
        pairs += [(ct, unscaled(final)[name]) for name, ct in self.final_cotangent.items()]
        return float(sum((ct * x).sum() for ct, x in pairs))

    def gradients(self) -> dict[str, Any]:
        """Those of `loss`: the cotangent of a scaled field is that of its value times its scale."""
        final = self.run()[1]
        scaled = {n: ct * scale(final, n) for n, ct in self.final_cotangent.items()}
        return self.kernel.vjp(
            **self.arguments,
            initial_state=self.state,
            cotangent=self.cotangent,
            state_cotangent=scaled,
        )


def scale(state: Any, name: str) -> Any:
    """What a field is to be multiplied by."""
    exponent = getattr(state, f"{name}_log", None)
    if exponent is None:
        return 1.0
    axes = getattr(state, name).ndim - exponent.ndim
    return np.exp(exponent).reshape(exponent.shape + (1,) * axes)


def unscaled(state: Any) -> dict[str, Any]:
    """The values of all fields of floats."""
    names = [n for n in state._fields if n != "position" and not n.endswith("_log")]
    return {n: getattr(state, n) * scale(state, n) for n in names}


def close(ours: Any, theirs: Any, what: Any = "") -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12, err_msg=str(what))


def slope(x: Any, way: Any, loss: Any) -> Any:
    """The derivative of a loss along ``way``, to the digits that a difference has."""
    step = 1e-6
    ahead, behind = loss(x + step * way), loss(x - step * way)
    return pytest.approx((ahead - behind) / (2 * step), rel=1e-6, abs=1e-6 + 1e-9 * abs(ahead))


@each_spec
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_gradients_are_those_of_differences(path: Path, shape: tuple[int, int, int, int]) -> None:
    call = Call(path, shape)
    gradients = call.gradients()
    initial = gradients.pop("initial_state", None)
    for name, gradient in gradients.items():
        way = call.rng.standard_normal(gradient.shape)
        x = call.arguments[name]
        expected = slope(x, way, lambda x, name=name: call.loss(call.arguments | {name: x}))
        assert (gradient * way).sum() == expected, name
    for name in initial._fields if initial is not None else ():
        if name != "position":
            x = getattr(call.state, name)
            way = call.rng.standard_normal(x.shape)
            started = lambda x, name=name: call.state._replace(**{name: x})  # noqa: E731
            expected = slope(x, way, lambda x, started=started: call.loss(state=started(x)))
            gradient = getattr(initial, name)
            assert (gradient * way).sum() == expected, name


@each_spec
def test_parts_joined_by_a_state_and_single_steps_are_the_whole(path: Path) -> None:
    call = Call(path, SIZES[0])
    if call.kernel.signature.no_step:
        pytest.skip(call.kernel.signature.no_step)
    outputs, final = call.run()
    length = outputs[0].shape[1]
    for cut in range(length + 1):
        first, state = call.run(call.cut(call.arguments, slice(cut)))
        second, state = call.run(call.cut(call.arguments, slice(cut, None)), state)
        for a, b, whole in zip(first, second, outputs):
            close(np.concatenate([a, b], axis=1), whole, cut)
        for a, whole in zip(state, final):
            close(a, whole, cut)
    state = call.state
    for t in range(length):
        now, state = call.kernel.step(**call.cut(call.arguments, t), state=state)
        for a, whole in zip(now if isinstance(now, tuple) else (now,), outputs):
            close(a, whole[:, t], t)


@each_spec
def test_long_sequences_are_worked_through_in_blocks(path: Path, monkeypatch: Any) -> None:
    call = Call(path, SIZES[0])
    results = []
    for block in (oracle.BLOCK, 2):
        monkeypatch.setattr(oracle, "BLOCK", block)
        gradients = call.gradients()
        initial = gradients.pop("initial_state", ())
        results.append([*call.run()[0], *gradients.values(), *initial])
    for whole, parts in zip(*results):
        close(parts, whole)


@each_spec
def test_defaults_stand_in_for_what_is_left_out(path: Path) -> None:
    call = Call(path, SIZES[1], optional=False)
    assert all(np.isfinite(o).all() for o in call.run()[0])
    for name, gradient in call.gradients().items():
        if name != "initial_state":
            assert gradient.shape == call.arguments[name].shape
            assert np.isfinite(gradient).all()


@pytest.mark.parametrize("path", [*SPECS, *EXAMPLES], ids=lambda path: path.stem)
def test_single_precision_is_single_throughout(path: Path, monkeypatch: Any) -> None:
    call = Call(path, SIZES[0], optional=False)
    arguments = {n: x.astype(np.float32) for n, x in call.arguments.items()}
    outputs, _ = call.kernel(**arguments)
    seen: set[Any] = set()
    add = oracle.Evaluation.add

    def noted(self: Any, node: Any, ct: Any) -> None:
        if node not in self.constant:
            seen.update((ct.dtype, self.values[node].dtype))
        add(self, node, ct)

    monkeypatch.setattr(oracle.Evaluation, "add", noted)
    call.kernel.vjp(**arguments, cotangent=outputs)
    assert seen == {np.dtype(np.float32)}


def test_the_branch_that_was_not_taken_leaks_nothing() -> None:
    spec = """variant a
    input x : scalar
    state s : scalar
    output o : scalar
    s[t] = s[t-1] + where(x > 0, log(x) + sqrt(x), where(x < -1, 1 / (x + 1), x / (x - x)))
    o = where(s[t] > 1e300, exp(s[t] * 1e308), s[t])
    """
    x = np.array([[[-1e3], [0.5], [-3.0], [2.0]]])
    kernel = compiled(spec)
    o, _ = kernel(x)
    gradient = kernel.vjp(x, cotangent=np.ones_like(o))["x"]
    slopes = np.where(x > 0, 1 / np.abs(x) + 0.5 / np.sqrt(np.abs(x)), -1 / (x + 1) ** 2)
    assert np.isfinite(o).all()
    close(gradient, slopes * np.array([4, 3, 2, 1])[None, :, None])


def test_invalid_tokens_and_empty_segments_are_the_identity() -> None:
    path = ROOT / "tests" / "specs" / "delays_and_positions.la"
    call = Call(path, (1, 5, 2, 1))
    kernel, arguments = call.kernel, call.arguments
    outputs, final = call.run()
    at = np.array([1, 2, 4, 5, 7])
    wide = {
        n: np.full((1, 9, *x.shape[2:]), np.nan) if n in call.timed else x
        for n, x in arguments.items()
    }
    for n in call.timed & set(wide):
        wide[n][:, at] = arguments[n]
    valid = np.isin(np.arange(9), at)[None]
    o, state = kernel(**wide, valid=valid, initial_state=call.state)
    close(o[:, at], outputs[0])
    assert not o[~valid].any()
    for a, b in zip(state, final):
        close(a, b)
    o, state = kernel(**arguments, cu_seqlens=np.array([0, 0, 3, 3, 5]))
    first, _ = kernel(**call.cut(arguments, slice(3)))
    close(o[:, :3], first)
    empty, _ = kernel(**call.cut(arguments, slice(0)))[1], None
    close(state.S[0], empty.S[0])


def test_equal_weights_do_not_depend_on_the_size_of_the_logits() -> None:
    kernel = compiled(ROOT / "examples" / "softmax_attention.la")
    q = np.full((1, 3, 1, 16), 1e3)
    v = np.arange(48.0).reshape(1, 3, 1, 16)
    o, _ = kernel(q, q, v)
    close(o[0, :, 0], np.cumsum(v[0, :, 0], 0) / np.arange(1, 4)[:, None])


def test_products_make_no_matrix_that_the_result_does_not_need() -> None:
    wide = 4096
    kernel = lacc.compile(ROOT / "examples" / "gated_deltanet.la", target="reference", K=wide, V=1)
    q, k = np.full((2, 1, 3, 1, wide), wide**-0.5)
    v, g, β = np.ones((1, 3, 1, 1)), np.zeros((1, 3, 1)), np.ones((1, 3, 1))
    o, _ = kernel(q=q, k=k, v=v, g=g, beta=β)  # a matrix of K x K for each token is 400 MB
    close(o.ravel(), wide**-0.5 * np.ones(3))
