"""The name of a package goes in; those of its functions that compute a spec come out.

Nothing is known of any function: candidates are found in the text of a package by what they ask
for (queries, keys, values and more that the spec has), are called with small arrays, in each layout
that is in use, and are held against the float64 reference. Who agrees computes the spec.

    fla    the plain torch code of flash-linear-attention, whose Triton kernels need a GPU
    hf     the plain torch code of the models of Hugging Face transformers
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lacc.bench.case import Case, Data, Truth, Unfit, data
from lacc.bench.contestants import Bound, Contestant
from lacc.bench.tensors import bound, tensor, torch_for
from lacc.diagnostics import suggest
from lacc.trial import relative_error

PACKAGES = {"fla": ("fla.ops", "**/*naive*.py"), "hf": ("transformers.models", "*/modeling_*.py")}
"""A short name: the module that functions are under, and the files that have them."""

SPELLINGS = {"query": "q", "key": "k", "value": "v", "gk": "g"}
"""How else arguments are called."""

LAYOUTS = ("tokens first", "heads first")
"""[B, T, H, D], and [B, H, T, D]."""

MATCHED = 128
"""Tokens of the call that is compared: a whole number of anybody's chunks."""

TOLERANCE = 1e-3
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What code of others raises when it is called with what it does not take."""


@dataclass(frozen=True)
class Candidate:
    """A function by where it stands, its parameters without a default, and whether it takes a
    scale."""

    package: str
    module: str
    name: str
    needs: tuple[str, ...]
    scaled: bool

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.package} {self.name}" if self.package else self.name

    def function(self) -> Callable[..., Any]:
        """The function, below what would pick a kernel for a GPU."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = getattr(importlib.import_module(self.module), self.name)
        return getattr(found, "__wrapped__", found)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Way:
    """How a function is called: the spec's name of each argument by its own, the layout, and more
    keywords."""

    arguments: Mapping[str, str]
    layout: str
    more: Mapping[str, Any] = field(default_factory=dict)


def matching(package: str, case: Case) -> Iterator[Contestant]:
    """The functions of a package that compute the spec of a case. Raises Unfit where it is not
    installed, or has none."""
    torch_for(case)
    names = {arg.ascii for arg in case.spec.args}
    fits = [c for c in candidates(package) if _sources(c.needs, names) is not None]
    small = Case(case.spec, "forward", B=1, T=MATCHED, H=2 * case.G, G=case.G)
    given = data(small)
    truth = Truth(small, given)
    found = False
    for candidate in fits:
        way = _agreeing(candidate, small, given, truth, names)
        if way is not None:
            found = True
            yield Contestant(candidate.label, _binding(candidate, way))
    if not found:
        tried = ", ".join(c.name for c in fits)
        raise Unfit(f"of {package}, no function computes this spec (tried: {tried or 'none'})")


def named(word: str) -> Contestant:
    """``MODULE:FUNCTION=q,k,v,g``: a function that takes these arguments of the spec in this
    order; those of its own parameters' names where none are given. Raises ValueError where there is
    no such function."""
    place, _, listed = word.partition("=")
    module, _, name = place.partition(":")
    if module in PACKAGES:
        try:
            known = {c.name: c for c in candidates(module)}
        except Unfit as problem:
            raise ValueError(str(problem)) from None
        if name not in known:
            hint = suggest(name, known)
            raise ValueError(f"{module} has no function {name}" + (f"; {hint}" if hint else ""))
        candidate = known[name]
    else:
        candidate = _imported(module, name)
    given = tuple(part.strip() for part in listed.split(",") if part.strip())
    return Contestant(candidate.label, _searching(candidate, given))


def _imported(module: str, name: str) -> Candidate:
    import inspect

    try:
        function = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(function).parameters.values()
    except FAILURES as problem:
        raise ValueError(f"{module}:{name} is no function here: {problem}") from None
    needs = tuple(p.name for p in parameters if p.default is p.empty)
    return Candidate("", module, name, needs, any(p.name == "scale" for p in parameters))


def _searching(candidate: Candidate, given: Sequence[str]) -> Callable[[Case, Data], Bound]:
    """Finds out how a function is called when it is bound."""

    def bind(case: Case, arrays: Data) -> Bound:
        names = {arg.ascii for arg in case.spec.args}
        if unknown := [name for name in given if name not in names]:
            hint = suggest(unknown[0], names)
            raise Unfit(f"the spec has no argument {unknown[0]}" + (f"; {hint}" if hint else ""))
        if not given and _sources(candidate.needs, names) is None:
            raise Unfit(f"it asks for {', '.join(candidate.needs)}, which the spec does not have")
        small = Case(case.spec, "forward", B=1, T=MATCHED, H=2 * case.G, G=case.G)
        inputs = data(small)
        way = _agreeing(candidate, small, inputs, Truth(small, inputs), names, given)
        if way is None:
            raise Unfit("in no layout and scale does it give what the spec says")
        return _binding(candidate, way)(case, arrays)

    return bind


def _agreeing(
    candidate: Candidate,
    small: Case,
    given: Data,
    truth: Truth,
    names: set[str],
    listed: Sequence[str] = (),
) -> Way | None:
    """How a function is called so that it gives what the reference does; None for no way."""
    if listed:
        sources: Mapping[str, str] | None = dict(zip(candidate.needs, listed))
    else:
        sources = _sources(candidate.needs, names)
    assert sources is not None
    scales: list[dict[str, Any]] = [{}, {"scale": 1.0}] if candidate.scaled else [{}]
    for layout, more in itertools.product(LAYOUTS, scales):
        way = Way(sources, layout, more)
        try:
            ready = _binding(candidate, way)(small, given)
            got = ready.results(ready.call())
        except (Unfit, *FAILURES):
            continue
        want = truth.results
        if all(
            got[n].shape == x.shape and relative_error(got[n], x) < TOLERANCE
            for n, x in want.items()
        ):
            return way
    return None


def _binding(candidate: Candidate, way: Way) -> Callable[[Case, Data], Bound]:
    """The function bound to arrays: tensors in its layout, its first result back in ours."""

    def bind(case: Case, given: Data) -> Bound:
        if case.by_token:
            raise Unfit("it runs whole sequences")
        if len(case.spec.outputs) != 1:
            raise Unfit("it gives one output")
        torch = torch_for(case)
        function = candidate.function()
        output = case.spec.outputs[0].ascii
        swapped = way.layout == "heads first"
        timed = {arg.ascii for arg in case.spec.args if arg.role == "input"}

        def laid_out(x: Any, source: str) -> Any:
            return x.transpose(1, 2).contiguous() if swapped and source in timed else x

        def run(**x: Any) -> dict[str, Any]:
            arguments = {name: x[source] for name, source in way.arguments.items()}
            found = function(**arguments, **way.more)
            found = found[0] if isinstance(found, tuple | list) else found
            return {output: found.transpose(1, 2) if swapped else found}

        used = dict.fromkeys(way.arguments.values())
        tensors = {n: laid_out(tensor(torch, given.arguments[n]), n) for n in used}
        cotangents = {n: tensor(torch, x) for n, x in (given.cotangents or {}).items()}
        ready = bound(torch, case, run, tensors, cotangents)
        if not (swapped and case.mode == "train"):
            return ready
        return Bound(
            ready.call,
            lambda found: {
                name: x.swapaxes(1, 2) if name[2:] in timed else x
                for name, x in ready.results(found).items()
            },
        )

    return bind


def _sources(needs: Sequence[str], names: set[str]) -> dict[str, str] | None:
    """The spec's argument for each of a function's; None where it lacks one, or the function takes
    no keys and values."""
    found = {n: n if n in names else SPELLINGS.get(n, "") for n in needs}
    if not set(found.values()) <= names or len(found) < 3:
        return None
    return found


@cache
def candidates(package: str) -> tuple[Candidate, ...]:
    """The functions of a package that might compute a spec; each text once. Nothing of it is
    imported but what is above. Raises Unfit where it is not installed."""
    above, pattern = PACKAGES[package]
    try:
        spec = importlib.util.find_spec(above)
    except ImportError as problem:
        raise Unfit(f"{package} is not here: {problem}") from None
    if spec is None or not spec.submodule_search_locations:
        raise Unfit(f"{package} is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    found: dict[str, Candidate] = {}
    for path in sorted(root.glob(pattern)):
        text = path.read_text("utf-8", "replace")
        if not re.search(r"^def \w*(chunk|recurrent|naive|delta|attn)", text, re.M):
            continue
        module = ".".join((above, *path.relative_to(root).with_suffix("").parts))
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                key = node.name + hashlib.sha256(ast.dump(node).encode()).hexdigest()
                found.setdefault(key, _candidate(package, module, node))
    return tuple(found.values())


def _candidate(package: str, module: str, node: ast.FunctionDef) -> Candidate:
    every = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    needs = every[: len(every) - len(node.args.defaults)]
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults)
    needs += [a.arg for a, default in keywords if default is None]
    return Candidate(package, module, node.name, tuple(needs), "scale" in every)
