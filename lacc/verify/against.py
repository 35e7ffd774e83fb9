"""A spec's reference and somebody's own function go in; where the two first differ comes out: which
output or gradient, which token, head and entry, by how much.

    function = own_function(Path("my_model.py"), "fn")
    print(against(reference, function, tensors=True))

The function is called by name (``q=…, k=…``, in ASCII or as in the spec) with arrays that keep the
promises, [B, T, H, D] as everywhere in lacc. It returns the output, or outputs in declared order, a
dict by name, or a tuple that begins with the only output.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lacc.diagnostics import suggest
from lacc.runtime.kernel import Kernel
from lacc.spec.model import Arg, Output, Spec
from lacc.verify.cases import Arrays, Bench, Case, largest_error
from lacc.verify.explained import likely

LIMITS = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 3e-2, "float16": 3e-2}
"""Errors, relative to max|reference|, up to which two results are the same."""

CASES = (
    Case(T=24),
    Case(T=24, regime="boundary", seed=1),
    Case(T=1, B=1, seed=2),
)

WHERE = {"interior": "inside their bounds", "boundary": "often at their bounds"}
"""How the arrays of a case are drawn, in words."""


class Theirs(Exception):
    """What is wrong with the other function, in words; ``trace`` shows lines of its file where it
    raised."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def told_apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see that they differ."""
    for digits in (6, 9, 12, 17):
        if (x := f"{a:.{digits}g}") != (y := f"{b:.{digits}g}"):
            break
    return x, y


@dataclass(frozen=True)
class Own:
    """A function, where it stands, and the file that it is in."""

    name: str
    function: Callable[..., Any]
    file: Path


@dataclass(frozen=True)
class Difference:
    """The first entry of a quantity that differs: ``place`` names sequence, token, head and entry
    from 0; ``share`` of the entries are off by more than the limit."""

    quantity: str
    place: dict[str, int | list[int]]
    yours: float
    expected: float
    share: float
    case: str
    likely: str = ""

    def __str__(self) -> str:
        where = ", ".join(f"{name} {at}" for name, at in self.place.items())
        said = f"{self.quantity} first differs at {where or 'its only entry'}: "
        said += "yours {}, the spec's {}".format(*told_apart(self.yours, self.expected))
        said += f"\n  {self.share:.0%} of its entries differ, for {self.case}"
        return said + (f"\n  {self.likely}" if self.likely else "")


@dataclass(frozen=True)
class Comparison:
    """The worst error and the limit of each quantity, the first difference of each that has one,
    and what was not compared."""

    function: str
    spec: str
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def __str__(self) -> str:
        width = max(map(len, self.errors), default=0)
        lines = [f"{self.function} against {self.spec}"]
        for name, (error, limit) in self.errors.items():
            mark = "" if error <= limit else "  differs"
            lines.append(f"  {name:<{width}}  {error:.1e} / {limit:.0e}{mark}")
        outputs = [d for d in self.differences if not d.quantity.startswith("d ")]
        lines += ["", *map(str, outputs or self.differences), *self.notes]
        lines.append("they agree" if self.passed else f"{len(self.differences)} quantities differ")
        return "\n".join(lines)


# ---- the function


def own_function(path: Path, name: str) -> Own:
    """The function ``name`` of a Python file, which is run to get it. Raises `Theirs`."""
    wanted = importlib.util.spec_from_file_location(f"lacc_against_{path.stem}", path)
    if wanted is None or wanted.loader is None:
        raise Theirs(f"{path} is no Python file")
    module = importlib.util.module_from_spec(wanted)
    sys.modules[module.__name__] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        wanted.loader.exec_module(module)
    except (Exception, SystemExit) as fault:
        raise _raised(fault, path, f"{path} cannot be loaded") from fault
    finally:
        sys.path.remove(folder)
    found = getattr(module, name, None)
    if found is None:
        there = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
        hint = suggest(name, there) or f"it has {', '.join(there) or 'no functions'}"
        raise Theirs(f"{path} has no {name}; {hint}")
    if not callable(found) or inspect.isclass(found):
        kind = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise Theirs(f"{path}:{name} is {kind}, no function")
    return Own(f"{path}:{name}", found, path)


def _raised(fault: BaseException, path: Path, what: str) -> Theirs:
    """``fault`` in words, and the lines of the traceback from the first of ``path`` on."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [n for n, f in enumerate(frames) if Path(f.filename).resolve() == path.resolve()]
    kept = frames[own[0] :] if own else []
    trace = "".join(traceback.format_list(kept)).rstrip()
    at = f", at line {frames[own[-1]].lineno}" if own else ""
    return Theirs(f"{what}: {type(fault).__name__}: {fault}{at}", trace)


# ---- the call


@dataclass(frozen=True)
class _Caller:
    """Calls the function on arrays or tensors; what it does wrong is a `Theirs`."""

    own: Own
    spec: Spec
    tensors: bool

    def names(self) -> dict[str, str]:
        """The spec's arguments that the function takes, by ASCII name: the name it has for each."""
        try:
            parameters = inspect.signature(self.own.function).parameters
        except (TypeError, ValueError):
            return {a.ascii: a.ascii for a in self.spec.args if _needed(a)}
        every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY]
        taken = {}
        for arg in self.spec.args:
            named = next((n for n in (arg.ascii, arg.name) if n in parameters), None)
            if named is None and every and _needed(arg):
                named = arg.ascii
            if named in positional:
                raise Theirs(f"{self.own.name} takes {named} by position only, not by name")
            if named is None and _needed(arg):
                had = ", ".join(parameters) or "nothing"
                raise Theirs(
                    f"{self.own.name} does not take {arg.ascii}, an argument of {self.spec.name}; "
                    f"it takes {had}"
                )
            if named is not None:
                taken[arg.ascii] = named
        for name, parameter in parameters.items():
            free = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not free and parameter.default is parameter.empty and name not in taken.values():
                known = ", ".join(a.ascii for a in self.spec.args)
                raise Theirs(
                    f"{self.own.name} needs {name}, which {self.spec.name} does not have; "
                    f"it has {known}"
                )
        return taken

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        given = {name: arguments[ascii] for ascii, name in self.names().items()}
        try:
            return self.own.function(**given)
        except (Exception, SystemExit) as fault:
            shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in given.items())
            found = _raised(fault, self.own.file, f"{self.own.name} raised")
            hint = (
                "" if self.tensors or "torch" not in sys.modules else "; --torch gives it tensors"
            )
            raise Theirs(f"{found}, called with {shapes}{hint}", found.trace) from fault

    def outputs(self, result: Any) -> dict[str, Any]:
        """What the function returned, by the output's ASCII name."""
        outs = self.spec.outputs
        if isinstance(result, Mapping):
            found = {o.ascii: result.get(o.ascii, result.get(o.name)) for o in outs}
        elif isinstance(result, tuple | list):
            found = dict(zip((o.ascii for o in outs), result))
        else:
            found = {outs[0].ascii: result}
        for out in outs:
            x = found.get(out.ascii)
            if x is None:
                raise Theirs(f"{self.own.name} returned no {out.ascii}")
            if not hasattr(x, "shape") or not hasattr(x, "dtype"):
                raise Theirs(
                    f"{self.own.name} returned {out.ascii} as {type(x).__name__}, no array"
                )
            if hasattr(x, "detach") and not self.tensors:
                raise Theirs(f"{self.own.name} returned a tensor; --torch gives it tensors, too")
            if not hasattr(x, "detach") and self.tensors:
                raise Theirs(f"{self.own.name} returned no tensor; leave out --torch")
        return found


def _needed(arg: Arg) -> bool:
    return arg.default is None


def _array(x: Any) -> np.ndarray[Any, Any]:
    """A tensor or an array in float64."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.asarray(x).astype(np.float64)


# ---- the comparison


def against(
    reference: Kernel,
    own: Own,
    *,
    tensors: bool = False,
    dtype: str = "float64",
    cases: tuple[Case, ...] = CASES,
) -> Comparison:
    """``own`` against the reference on a few cases, gradients too where it is given tensors.

    Arrays are of ``dtype``; a result is held against the limit of its own dtype where that is
    wider. Raises `Theirs` where the function cannot be called or returns what cannot be compared.
    """
    spec = reference.spec
    bench, caller = Bench(spec, reference), _Caller(own, spec, tensors)
    taken = caller.names()
    left_out = tuple(a.ascii for a in spec.args if a.ascii not in taken)
    errors: dict[str, tuple[float, float]] = {}
    first: dict[str, Difference] = {}
    notes: dict[str, None] = {}
    if left_out:
        notes[f"{own.name} does not take {', '.join(left_out)}: the defaults are compared"] = None
    for case in cases:
        case = replace(case, dtype=dtype, omit=left_out)
        arrays = {**bench.arrays(case), **_buffers(bench, case, taken)}
        for name, want, got, limit in _quantities(bench, caller, case, arrays, notes):
            error = largest_error(got, want, 0.0)
            if error >= errors.get(name, (-1.0, 0.0))[0]:
                errors[name] = error, limit
            if not error <= limit and name not in first:
                first[name] = _difference(spec, name, got, want, limit, case, bench.dims)
    order = sorted(first.values(), key=lambda d: d.quantity.startswith("d "))
    return Comparison(own.name, spec.name, errors, tuple(order), tuple(notes))


def _buffers(bench: Bench, case: Case, taken: Mapping[str, str]) -> Arrays:
    """Drawn buffers, so that both sides have the same."""
    rng = np.random.default_rng([case.seed, 78])
    heads, groups = bench.heads
    lead = {"head": (heads,), "group": (groups,), "layer": ()}
    return {
        a.ascii: rng.normal(
            size=(*lead[a.per], *(axis.evaluate(bench.dims) for axis in a.shape))
        ).astype(bench.arrays(case)[bench.spec.args[0].ascii].dtype)
        for a in bench.spec.args
        if a.draw and a.ascii in taken
    }


def _quantities(
    bench: Bench, caller: _Caller, case: Case, arrays: Arrays, notes: dict[str, None]
) -> Iterator[tuple[str, Any, Any, float]]:
    """Name, what it must be, what it is, and the limit, of each output and gradient."""
    spec, outs = bench.spec, bench.spec.outputs
    wide = {name: x.astype(np.float64) for name, x in arrays.items()}
    result, state = bench.reference(**wide)
    wanted = {outs[0].ascii: result} if len(outs) == 1 else result._asdict()
    given: dict[str, Any] = arrays
    learned = [a.ascii for a in spec.args if a.role != "buffer" and a.ascii in arrays]
    if caller.tensors:
        given = {name: _tensor(x, name in learned) for name, x in arrays.items()}
    found = caller.outputs(caller(given))
    for out in outs:
        want, got = wanted[out.ascii], found[out.ascii]
        _shaped(caller.own.name, out, tuple(got.shape), want.shape)
        yield out.ascii, want, _array(got), _limit(case.dtype, got.dtype)
    if not caller.tensors:
        notes["gradients are compared where the function takes tensors: --torch"] = None
        return
    pulled, _ = bench.cotangents(case, result, state)
    truth = bench.reference.vjp(**wide, cotangent=pulled)
    by_name = {outs[0].ascii: pulled} if len(outs) == 1 else pulled._asdict()
    gradients = _gradients(caller.own, found, by_name, {n: given[n] for n in learned})
    for name in learned:
        got = gradients[name]
        if got is None:
            notes[f"nothing that {caller.own.name} returns depends on {name}"] = None
            got = given[name].detach() * 0
        yield f"d {name}", truth[name], _array(got), _limit(case.dtype, got.dtype)


def _tensor(x: Any, learned: bool) -> Any:
    import torch

    if x.dtype.name == "bfloat16":
        tensor = torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    else:
        tensor = torch.from_numpy(np.ascontiguousarray(x))
    return tensor.requires_grad_(learned)


def _gradients(
    own: Own, found: Mapping[str, Any], pulled: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The gradient of each input by autograd, None where nothing depends on it."""
    import torch

    outputs = {name: x for name, x in found.items() if name in pulled and x.requires_grad}
    if not outputs:
        return dict.fromkeys(inputs)
    cotangents = [torch.from_numpy(np.array(pulled[n])).to(x) for n, x in outputs.items()]
    try:
        gradients = torch.autograd.grad(
            list(outputs.values()), list(inputs.values()), cotangents, allow_unused=True
        )
    except RuntimeError as fault:
        raise _raised(fault, own.file, f"the backward pass of {own.name} raised") from fault
    return dict(zip(inputs, gradients))


def _limit(*dtypes: object) -> float:
    """The widest limit of the dtypes, that of float64 for those without one."""
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return max(LIMITS.get(name, LIMITS["float64"]) for name in names)


def _shaped(name: str, out: Output, got: tuple[int, ...], want: tuple[int, ...]) -> None:
    """Raises `Theirs` where an output has the wrong shape."""
    if got == want:
        return
    axes = ["B", "T", *({"head": ["H"], "group": ["G"]}.get(out.per, [])), *map(str, out.shape)]
    said = f"{name} returned {out.ascii} of shape {list(got)}, expected {list(want)}"
    said += f", which is [{', '.join(axes)}]"
    if len(want) > 2 and got == (want[0], want[2], want[1], *want[3:]):
        said += "; heads come after tokens: x.transpose(1, 2)"
    raise Theirs(said)


def _difference(
    spec: Spec, name: str, got: Any, want: Any, limit: float, case: Case, dims: Mapping[str, int]
) -> Difference:
    """The first entry, by token, then sequence, head and place, that is off by more than the
    limit."""
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(got - want) <= limit * float(np.max(np.abs(want))))
    axes = _axes(spec, name.removeprefix("d "))
    places = np.argwhere(off)
    if "token" in axes:
        places = places[np.argsort(places[:, axes.index("token")], kind="stable")]
    at = tuple(int(i) for i in places[0])
    place: dict[str, int | list[int]] = dict(zip(axes, at))
    if "token" in place:
        place = {"token": place.pop("token"), **place}
    if len(at) > len(axes):
        place["entry"] = list(at[len(axes) :])
    time = axes.index("token") if "token" in axes else None
    return Difference(
        name,
        place,
        float(got[at]),
        float(want[at]),
        float(off.mean()),
        f"T = {case.T}, B = {case.B}, seed {case.seed}, inputs {WHERE[case.regime]}",
        likely(got, want, limit, time, dims),
    )


def _axes(spec: Spec, name: str) -> list[str]:
    """What the leading axes of an output or an argument are."""
    things: tuple[Output | Arg, ...] = (*spec.outputs, *spec.args)
    thing = next(x for x in things if x.ascii == name)
    heads = {"head": ["head"], "group": ["group"]}.get(thing.per, [])
    if isinstance(thing, Output) or thing.role == "input":
        return ["sequence", "token", *heads]
    return ["row"] if thing.per == "position" else heads
