"""Words such as ``c``, ``sdpa`` or ``fla`` go in; those who take part in a benchmark come out.

A contestant is bound to a case and its arrays before anything is timed; who cannot do a case
raises `Unfit` with the reason, and stays in the record with it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lacc import driver
from lacc.bench.case import Arrays, Case, Data, Truth, Unfit, by_name, grows
from lacc.diagnostics import LaccError, suggest


@dataclass(frozen=True)
class Bound:
    """A contestant that is ready: ``call()`` is what is timed, ``results`` makes arrays by name of
    what it gave, as `Truth` has them."""

    call: Callable[[], Any]
    results: Callable[[Any], Arrays]


@dataclass(frozen=True)
class Contestant:
    """``bind(case, data)`` makes it ready, or raises `Unfit`. ``truth`` is what it should give
    where that is not what the spec says: it is what one would use instead. ``ours``: a target of
    lacc. ``tolerance`` widens what its numbers may be off, for one that works in lower precision.
    """

    name: str
    bind: Callable[[Case, Data], Bound]
    truth: Callable[[Case, Data], Arrays] | None = None
    ours: bool = False
    tolerance: float = 0.0

    def expected(self, case: Case, given: Data) -> Arrays:
        """What it should give."""
        return self.truth(case, given) if self.truth else Truth(case, given).results


def targets(names: Sequence[str]) -> list[Contestant]:
    """Targets of lacc. Raises LaccError for one that is unknown."""
    known = [driver.target_named(name).name for name in names]
    return [Contestant(f"lacc {name}", _target(name), ours=True) for name in known]


def _target(name: str) -> Callable[[Case, Data], Bound]:
    def bind(case: Case, given: Data) -> Bound:
        try:
            driver.usable(name)
            kernel = driver.compile(case.spec, name, dtype=case.dtype)
        except LaccError as problem:
            raise Unfit(_reason(problem)) from None
        if case.by_token and "step" in kernel.missing:
            raise Unfit(kernel.missing["step"].message)
        arguments = given.arguments
        if case.mode == "train":
            cotangent = dict(given.cotangents or {})
            return Bound(lambda: kernel.vjp(**arguments, cotangent=cotangent), _gradients)
        if case.by_token:
            state = type(given.state)(*(np.array(x) for x in given.state))
            if grows(case.spec):  # so that every call has as many tokens before it
                return Bound(lambda: kernel.step(**arguments, state=state), _outputs(case))
            stepper = kernel.stepper(**arguments, state=state)
            token = [arguments[name] for name in stepper.names]
            return Bound(lambda: (stepper(*token),), _outputs(case))
        return Bound(lambda: kernel(**arguments), _outputs(case))

    return bind


def _reason(problem: LaccError) -> str:
    return problem.diagnostics[0].message


def _outputs(case: Case) -> Callable[[Any], Arrays]:
    return lambda found: by_name(case.spec, found[0])


def _gradients(found: Any) -> Arrays:
    return {f"d {name}": np.asarray(x) for name, x in found.items()}


KINDS = ("sdpa", "torch")
"""What one can be against beside packages and functions: softmax attention, and the spec itself
token by token."""


def against(words: Sequence[str]) -> Iterator[Contestant | Found]:
    """Those that words name: ``sdpa``, ``torch``, a package (``fla``, ``hf``) or one function, as
    ``MODULE:FUNCTION`` with its arguments behind ``=``. Raises ValueError for other words."""
    from lacc.bench.found import PACKAGES

    for word in words:
        if word == "sdpa":
            from lacc.bench.softmax import softmax

            yield softmax()
        elif word == "torch":
            from lacc.bench.loop import token_loop

            yield token_loop()
        elif word in PACKAGES:
            yield Found(word)
        elif ":" in word:
            from lacc.bench.found import named

            yield named(word)
        else:
            known = (*KINDS, *PACKAGES)
            hint = suggest(word, known)
            raise ValueError(
                f"--against knows {', '.join(known)} and MODULE:FUNCTION[=ARGUMENTS], got {word!r}"
                + (f"; {hint}" if hint else "")
            )


@dataclass(frozen=True)
class Found:
    """A package whose functions are tried on a spec: those that compute it take part."""

    package: str


def from_file(path: Path) -> list[Contestant]:
    """The contestants of a Python file, its list ``PEERS``. The file is run. Raises ValueError."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"lacc_peers_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, "PEERS", None)
    if not isinstance(found, list) or not all(isinstance(p, Contestant) for p in found):
        raise ValueError(f"{path} defines no list PEERS of lacc.bench.contestants.Contestant")
    return found
