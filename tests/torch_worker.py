"""Run as a script, in a process of its own: the host part of emitted Triton files against the NumPy
kernels, ``host`` with passes by the interpreter of tile programs, ``file`` with their kernels; what
differs most, as JSON.

    TRITON_INTERPRET=1 python torch_worker.py host agree gla ...      {variant: {check: error}}
    TRITON_INTERPRET=1 python torch_worker.py file calls gla ...      {variant: {check: error}}
    TRITON_INTERPRET=1 python torch_worker.py host refused            {bad call: [NumPy's, ours]}
    TRITON_INTERPRET=1 python torch_worker.py file operators gla ...  {variant: {check: result}}
    TRITON_INTERPRET=1 python torch_worker.py file surface            {what a caller sees: value}
    python torch_worker.py file compiled                              the error without a GPU
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_standin
import triton_module

import lacc
from lacc.backends.torch_api import public_name
from lacc.trial import relative_error
from lacc.verify.inputs import Sizes, draw

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DIMS = {"K": 6, "V": 5, "D": 6, "M": 4, "R": 4}
CU = [0, 0, 5, 5, 12, 21, 21]
T = 21
LOADERS = {"host": torch_standin.loaded, "file": triton_module.loaded}
loaded: Any = torch_standin.loaded


class Both:
    """A variant by the torch host and by NumPy."""

    def __init__(self, given: str) -> None:
        spec = lacc.load(given if "\n" in given else EXAMPLES / f"{given}.la")
        small = {n: min(DIMS.get(n, 6), d.default) for n, d in spec.dims.items() if not d.pinned}
        sized = {n: size for n, size in small.items() if _fits(given, n, size)}
        self.spec = lacc.load(given if "\n" in given else EXAMPLES / f"{given}.la", sized)
        self.numpy = lacc.compile(self.spec, "numpy")
        self.module = loaded(self.spec, self.numpy.signature)
        self.name = public_name(self.numpy.signature)
        self.call, self.step, self.vjp = (self.module[self.name + s] for s in ("", "_step", "_vjp"))
        self.signature = self.numpy.signature

    def state(self, B: int, tokens: int, **options: Any) -> Any:
        """One that other tokens leave: where a call's own did, maxima of both would be equal but
        for rounding, and either may take the gradient."""
        return self.numpy(**self.arguments(B, tokens, seed=9), **options)[1]

    def arguments(self, B: int, tokens: int, seed: int = 0) -> dict[str, Any]:
        grouped = any(a.per == "group" for a in self.spec.args)
        sizes = Sizes(B, tokens, 4 if grouped else 2, 2 if grouped else 1, 3 * T)
        found = draw(self.spec, sizes, seed=seed, dtype=np.dtype(np.float64))
        return {name: np.asarray(x) for name, x in found.items() if x is not None}


@cache
def _fits(given: str, name: str, size: int) -> bool:
    """Whether a spec takes a dim of that size."""
    try:
        lacc.load(given if "\n" in given else EXAMPLES / f"{given}.la", {name: size})
    except lacc.LaccError:
        return False
    return True


def tensors(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(np.array(x))
    if isinstance(x, tuple):
        return type(x)(*map(tensors, x)) if hasattr(x, "_fields") else tuple(map(tensors, x))
    if isinstance(x, dict):
        return {name: tensors(y) for name, y in x.items()}
    return x


def flat(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [y for name in sorted(x) for y in flat(x[name])]
    return [y for part in x for y in flat(part)] if isinstance(x, tuple) else [x]


def apart(got: Any, want: Any) -> float:
    """The largest relative error."""
    both = list(zip(flat(got), flat(want), strict=True))
    for a, b in both:
        assert tuple(a.shape) == b.shape, (tuple(a.shape), b.shape)
    errors = [relative_error(a.detach().numpy(), b) for a, b in both if b.size]
    return max(errors, default=0.0)


def checks(given: str) -> Iterator[tuple[str, float]]:
    """Every check of a variant, with its error."""
    both = Both(given)
    kernel, signature = both.numpy, both.signature
    rng = np.random.default_rng(1)
    x = both.arguments(2, T)
    tx = tensors(x)
    modes = [m for m in ("chunk", "recurrent", "parallel") if not signature.modes.get(m, "")]
    for mode in ("auto", *modes):
        yield f"forward {mode}", apart(both.call(**tx, mode=mode), kernel(**x))
    want, state = kernel(**x)
    initial = None if signature.no_initial else both.state(2, T)
    ct = tuple(rng.standard_normal(y.shape) for y in flat(want))
    ct = ct[0] if len(ct) == 1 else ct
    ends = type(state)(
        *(rng.standard_normal(y.shape) if y.dtype.kind == "f" else None for y in state)
    )
    options: dict[str, Any] = {"cotangent": ct, "state_cotangent": ends}
    for mode in modes:
        got = both.vjp(**tx, mode=mode, **tensors(options))
        yield f"vjp {mode}", apart(got, kernel.vjp(**x, **options))
    if initial is not None:
        yield (
            "initial",
            apart(
                both.call(**tx, initial_state=tensors(initial)), kernel(**x, initial_state=initial)
            ),
        )
        final = kernel(**x, initial_state=initial)[1]
        ends = type(final)(
            *(rng.standard_normal(y.shape) if y.dtype.kind == "f" else None for y in final)
        )
        options = {"cotangent": ct, "state_cotangent": ends, "initial_state": initial}
        for mode in modes:
            got = both.vjp(**tx, mode=mode, **tensors(options))
            yield f"vjp initial {mode}", apart(got, kernel.vjp(**x, **options))
    yield from calls(both)


def calls(both: Both) -> Iterator[tuple[str, float]]:
    """Checks of what differs from call to call."""
    kernel, signature = both.numpy, both.signature
    rng = np.random.default_rng(1)
    if not signature.no_initial:
        x = both.arguments(2, T)
        outputs, initial = kernel(**x)[0], both.state(2, T)
        ct = tuple(rng.standard_normal(y.shape) for y in flat(outputs))
        ends = _ends(kernel(**x, initial_state=initial)[1], rng)
        error = autograd(both, tensors(x), initial, ct[0] if len(ct) == 1 else ct, ends)
        yield "autograd", error
    yield from packed(both, rng)
    yield from masked(both, rng)
    yield from empty(both)
    if not both.signature.no_step:
        yield from steps(both)


def autograd(both: Both, tx: Any, initial: Any, ct: Any, ends: Any) -> float:
    """Gradients by ``backward`` against `vjp`."""
    leaves = {n: y.clone().requires_grad_() for n, y in tx.items()}
    begun = {
        n: torch.from_numpy(np.array(y)).requires_grad_(y.dtype.kind == "f")
        for n, y in zip(initial._fields, initial)
    }
    outputs, state = both.call(**leaves, initial_state=begun)
    pairs = [*zip(flat(outputs), flat(tensors(ct))), *zip(state, tensors(ends))]
    total = sum((y * d).sum() for y, d in pairs if d is not None)
    total.backward()
    options = {"cotangent": ct, "state_cotangent": ends, "initial_state": initial}
    want = both.vjp(**tx, **tensors(options))
    first = want.pop("initial_state")
    got = {n: leaves[n].grad for n in want}
    error = apart(got, {n: y.numpy() for n, y in want.items()})
    kept = [(begun[n].grad, y.numpy()) for n, y in zip(first._fields, first)]
    return max([error, *(apart(a, b) for a, b in kept if a is not None)])


def packed(both: Both, rng: Any) -> Iterator[tuple[str, float]]:
    """Segments, some of them empty."""
    x = both.arguments(1, T, seed=2)
    cu, kernel = np.array(CU), both.numpy
    want = kernel(**x, cu_seqlens=cu)
    yield "cu_seqlens", apart(both.call(**tensors(x), cu_seqlens=torch.tensor(CU)), want)
    options = _with_state(both, both.state(1, T, cu_seqlens=cu), want[0], rng)
    options["cu_seqlens"] = cu
    final = kernel(**x, **{n: options[n] for n in options if n in ("initial_state", "cu_seqlens")})
    options["state_cotangent"] = _ends(final[1], rng)
    yield (
        "vjp cu_seqlens",
        apart(both.vjp(**tensors(x), **tensors(options)), kernel.vjp(**x, **options)),
    )


def masked(both: Both, rng: Any) -> Iterator[tuple[str, float]]:
    """Tokens that are not valid, NaN in them, a row without any valid one."""
    x = both.arguments(3, T, seed=3)
    valid = rng.random((3, T)) < 0.6
    valid[1] = False
    kernel = both.numpy
    inputs = {a.name for a in both.signature.arguments if a.role == "input"}
    poisoned = {n: tensors(y) for n, y in x.items()}
    for name in inputs & poisoned.keys():
        poisoned[name][~torch.from_numpy(valid)] = float("nan")
    want = kernel(**x, valid=valid)
    yield "valid", apart(both.call(**poisoned, valid=torch.from_numpy(valid)), want)
    options = _with_state(both, both.state(3, T, valid=valid), want[0], rng)
    options["valid"] = valid
    final = kernel(**x, **{n: options[n] for n in options if n in ("initial_state", "valid")})
    options["state_cotangent"] = _ends(final[1], rng)
    yield (
        "vjp valid",
        apart(both.vjp(**poisoned, **tensors(options)), kernel.vjp(**x, **options)),
    )


def _ends(state: Any, rng: Any) -> Any:
    return type(state)(
        *(rng.standard_normal(y.shape) if y.dtype.kind == "f" else None for y in state)
    )


def _with_state(both: Both, state: Any, want: Any, rng: Any) -> dict[str, Any]:
    ct = tuple(rng.standard_normal(y.shape) for y in flat(want))
    found: dict[str, Any] = {"cotangent": ct[0] if len(ct) == 1 else ct}
    if not both.signature.no_initial:
        found["initial_state"] = state
    return found


def empty(both: Both) -> Iterator[tuple[str, float]]:
    """No tokens, one token, no rows."""
    kernel = both.numpy
    begun = {} if both.signature.no_initial else {"initial_state": both.state(2, 5)}
    whole = both.arguments(2, T)
    for tokens in (0, 1):
        inputs = {a.name for a in both.signature.arguments if a.role == "input"}
        x = {n: y[:, :tokens] if n in inputs else y for n, y in whole.items()}
        want = kernel(**x, **begun)
        yield f"T = {tokens}", apart(both.call(**tensors(x), **tensors(begun)), want)
        ones = tuple(np.ones(y.shape) for y in flat(want[0]))
        options = {
            "cotangent": ones[0] if len(ones) == 1 else ones,
            "state_cotangent": type(want[1])(
                *(np.ones(y.shape) if y.dtype.kind == "f" else None for y in want[1])
            ),
            **begun,
        }
        yield (
            f"vjp T = {tokens}",
            apart(both.vjp(**tensors(x), **tensors(options)), kernel.vjp(**x, **options)),
        )


def steps(both: Both) -> Iterator[tuple[str, float]]:
    """Tokens one by one, also in place and in rows of a pool."""
    x = both.arguments(2, 4)
    kernel = both.numpy
    inputs = {a.name for a in both.signature.arguments if a.role == "input"}
    state = want = pool = None
    worst = 0.0
    rows = torch.tensor([3, 1])
    grows = any(s.role == "past" and s.axes[0] is None for s in both.signature.states)
    for t in range(4):
        one = {n: y[:, t] if n in inputs else y for n, y in x.items()}
        o, state = both.step(**tensors(one), state=state)
        ref, want = kernel.step(**one, state=want)
        worst = max(worst, apart((o, state), (ref, want)))
        if grows:
            continue
        if pool is None:
            shapes = ((5, *y.shape[1:]) for y in state)
            pool = type(state)(*(torch.full(x, -1, dtype=y.dtype) for x, y in zip(shapes, state)))
            for y, z in zip(pool, state):
                y[rows] = z
            continue
        o, back = both.step(**tensors(one), state=pool, out=pool, state_indices=rows)
        assert back is pool
        got = type(state)(*(y[rows] for y in pool))
        worst = max(worst, apart((o, got), (ref, want)))
    yield "step", worst


def said(call: Any) -> str:
    """The error of a call, as text."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as e:
        return f"{type(e).__name__}: {e}"
    return "no error"


def refused() -> dict[str, list[str]]:
    """Calls that must be refused: what NumPy says, and what the torch host says."""
    both = Both("gla")
    x, one = both.arguments(2, 9), both.arguments(1, 9)
    token = {name: y[:, 0] for name, y in x.items()}
    (s,) = both.numpy(**x)[1]
    bad: dict[str, tuple[str, dict[str, Any]]] = {
        "rank": ("call", {**x, "q": x["q"][0]}),
        "dim": ("call", {**x, "k": x["k"][..., :-1]}),
        "tokens": ("call", {**x, "k": x["k"][:, :-1]}),
        "heads": ("call", {**x, "v": x["v"][:, :, :1]}),
        "dtype": ("call", {**x, "q": x["q"].astype(np.int64)}),
        "missing": ("call", {**x, "q": None}),
        "mode": ("call", {**x, "mode": "fast"}),
        "chunk": ("call", {**x, "chunk": 0}),
        "chunk of a mode": ("call", {**x, "chunk": 4, "mode": "parallel"}),
        "cu falls": ("call", {**one, "cu_seqlens": np.array([0, 5, 3, 9])}),
        "cu short": ("call", {**one, "cu_seqlens": np.array([0, 5])}),
        "cu late": ("call", {**one, "cu_seqlens": np.array([1, 9])}),
        "cu floats": ("call", {**one, "cu_seqlens": np.array([0.0, 9.0])}),
        "cu of rows": ("call", {**x, "cu_seqlens": np.array([0, 9])}),
        "valid dtype": ("call", {**x, "valid": np.ones((2, 9), int)}),
        "valid shape": ("call", {**x, "valid": np.ones((2, 8), bool)}),
        "state shape": ("call", {**x, "initial_state": s[:1]}),
        "state name": ("call", {**x, "initial_state": {"Z": s}}),
        "state tuple": ("call", {**x, "initial_state": (s, s)}),
        "state type": ("call", {**x, "initial_state": 3.0}),
        "cotangent": ("vjp", {**x, "cotangent": x["v"][:1]}),
        "state cotangent": ("vjp", {**x, "state_cotangent": s[:1]}),
        "promise": ("call", {**x, "g": np.abs(x["g"]) + 1, "debug": True}),
        "step rank": ("step", x),
        "rows twice": ("step", {**token, "state": s, "state_indices": np.array([0, 0])}),
        "rows beyond": ("step", {**token, "state": s, "state_indices": np.array([0, 7])}),
        "rows shape": ("step", {**token, "state": s, "state_indices": np.array([0])}),
    }
    ours = {"call": both.call, "step": both.step, "vjp": both.vjp}
    theirs = {"call": both.numpy, "step": both.numpy.step, "vjp": both.numpy.vjp}
    found = {
        name: [said(partial(theirs[of], **given)), said(partial(ours[of], **tensors(given)))]
        for name, (of, given) in bad.items()
    }
    both = Both("roformer_linear")
    inputs = {a.name for a in both.signature.arguments if a.role == "input"}
    token = {name: y[:, 0] if name in inputs else y for name, y in both.arguments(2, 1).items()}
    token["state"] = {"position": np.array([0, -1, 3])}
    both.step(**tensors(token), state_indices=torch.tensor([2, 0]))
    token["state_indices"] = np.array([1, 0])
    ways = (partial(both.numpy.step, **token), partial(both.step, **tensors(token)))
    found["positions"] = [said(step) for step in ways]
    return found


def operators(given: str) -> dict[str, Any]:
    """What `torch.library.opcheck` says of the operators, and `torch.compile` beside eager."""
    torch_standin.FILL = 0.0  # it compares what stands behind the last valid token too
    both = Both(given)
    x = {n: y.requires_grad_() for n, y in tensors(both.arguments(1, 7)).items()}
    arguments = [x.get(a.name) for a in both.signature.arguments]
    state = both.call(**tensors(both.arguments(1, 7)))[1]
    none = [None] * len(state)
    begun = none if both.signature.no_initial else list(state)
    valid = torch.tensor([[True, True, False, True, False, True, True]])
    found: dict[str, Any] = {}
    for name, fields, cu, mask in (
        ("dense", begun, None, None),
        ("packed", none, torch.tensor([0, 3, 3, 7]), None),
        ("masked", none, None, valid),
    ):
        call = (*arguments, *fields, cu, mask, "auto", 0, True, None, False)
        checked = torch.library.opcheck(both.module["HOST"].operators.forward, call)
        found[name] = sorted(set(checked.values()))

    def total(**x: Any) -> Any:
        outputs, state = both.call(**x)
        return sum(y.sum() for y in (*flat(outputs), *state) if y.is_floating_point())

    for way in ("static", "dynamic"):
        torch.compiler.reset()  # it counts how often one function is compiled, of all variants
        compiled = torch.compile(
            total, fullgraph=True, backend="aot_eager", dynamic=way == "dynamic"
        )
        pairs = []
        for function in (total, compiled):
            y = {n: y.detach().clone().requires_grad_() for n, y in x.items()}
            value = function(**y)
            value.backward()
            pairs.append([value.detach(), *(y[n].grad for n in sorted(y) if y[n].grad is not None)])
        found[f"compiled {way}"] = max(float((a - b).abs().max()) for a, b in zip(*pairs))
    return found


def surface() -> dict[str, Any]:
    """What a caller sees beside numbers."""
    both = Both("gla")
    x = tensors(both.arguments(2, 9))
    leaves = {n: y.clone().requires_grad_() for n, y in x.items()}
    found: dict[str, Any] = {"no gradient": both.call(**x)[0].grad_fn is None}
    o, _ = both.call(**leaves)
    first = torch.autograd.grad(o.sum(), leaves["q"], create_graph=True)[0]
    found["double backward"] = said(lambda: first.sum().backward())
    found["parallel"] = said(partial(both.call, **tensors(both.arguments(1, 200)), mode="parallel"))
    given = both.arguments(1, 2)
    found["lists"] = said(lambda: both.call(**{n: y.tolist() for n, y in given.items()}))
    pairs = zip(flat(both.call(**given)), flat(both.call(**tensors(given))))
    found["dlpack"] = all(torch.equal(a, b) for a, b in pairs)
    low = {n: y.to(torch.float32 if n == "g" else torch.bfloat16) for n, y in x.items()}
    o, state = both.call(**low, state_dtype=torch.bfloat16)
    grads = both.vjp(**low, cotangent=o)
    found["dtypes"] = [str(y.dtype) for y in (o, state.S, grads["q"], grads["g"])]
    small = [x[n][:1, :3].clone().requires_grad_() for n in ("q", "k", "v", "g")]
    begun = torch.randn(1, 2, 6, 5, dtype=torch.float64).requires_grad_()

    def call(*given: Any) -> Any:
        o, state = both.call(*given[:4], initial_state=given[4])
        return o, state.S

    found["gradcheck"] = torch.autograd.gradcheck(call, (*small, begun))
    token = {n: y[:, 0] for n, y in leaves.items()}
    o, state = both.step(**token, state=torch.zeros(2, 2, 6, 5, dtype=torch.float64))
    found["step gradient"] = o.requires_grad and state.S.requires_grad
    again = loaded(both.spec, both.signature)["HOST"].operators.forward
    names = [again._qualname, both.module["HOST"].operators.forward._qualname]
    found["loaded twice"] = names[0] != names[1] and names[0].startswith("lacc_")
    cu = torch.tensor([0, 4, 9])
    one = tensors(both.arguments(1, 9))
    both.call(**one, cu_seqlens=cu)
    known = both.module["CHECKED"][cu]
    both.call(**one, cu_seqlens=cu)
    kept = both.module["CHECKED"][cu] is known
    cu[1] = 5
    both.call(**one, cu_seqlens=cu)
    found["cu read once"] = kept and both.module["CHECKED"][cu].ends == [0, 5, 9]
    drawing = Both("performer")
    given = tensors(drawing.arguments(1, 5))
    found["draws"] = torch.equal(drawing.call(**given)[0], drawing.call(**given)[0])
    return found


def compiled() -> str:
    """What a call of tensors on the CPU says where kernels are compiled."""
    both = Both("gla")
    x = {n: y.float() for n, y in tensors(both.arguments(1, 3)).items()}
    return said(partial(both.call, **x))


def main(whose: str, what: str, *names: str) -> None:
    global loaded
    loaded = LOADERS[whose]
    if whose == "file":
        triton_module.poison()
    found: Any
    match what:
        case "agree":
            found = {name: dict(checks(name)) for name in names}
        case "calls":
            found = {name: dict(calls(Both(name))) for name in names}
        case "operators":
            found = {name: operators(name) for name in names}
        case _:
            found = {"refused": refused, "surface": surface, "compiled": compiled}[what]()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
