"""A spec in, its C files and a record of calls of them out: what each took and gave in float64 on
this machine, where it agreed with the reference. tests/c/replay.c repeats them elsewhere.

A record is a run of little-endian int64 and float64: the number of calls; for each the function,
how many arrays, the sizes of the run, how many dims and these; for each array whether it is given,
of which kind, is a result, its count of numbers, the place of the first, its strides, and the
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from conftest import ROOT

import lacc
from lacc.runtime.kernel import Kernel, load
from lacc.verify.cases import Bench, Case, errors, largest_error
from lacc.verify.subject import Guarded, Subject

SOURCES = ROOT / "tests" / "c"
CASES = (Case(T=21, dtype="bfloat16"), Case(T=10, seed=3, started=True))
"""First of inputs that bfloat16 holds, at dims of more than a vector, then from a state."""

REAL, BF16, I64 = range(3)
"""Kinds of arrays: the type that a build computes in, or one that stays."""

RESULTS = re.compile(
    r"_FORWARD_\w+?_(OUT|ENDED|START)_|_BACKWARD_\w+?_D(IN|FIXED|LAST|BEGUN)_"
    r"|_ATTEND_FORWARD_\d+_(OUTPUT|TOP|SUM)$|_ATTEND_BACKWARD_\d+_D_(?!OUTPUT)"
)
"""Arrays that functions fill, where their text names them."""


@dataclass
class Wide(Bench):
    """A bench with dims of more than a vector, and no whole number of them."""

    @cached_property
    def dims(self) -> dict[str, int]:
        small = Bench(self.spec, self.reference).dims
        return {
            n: size if size == self.spec.dims[n].default else 5 * size for n, size in small.items()
        }


@dataclass
class Record:
    """The calls of one emitted module while it is patched."""

    functions: list[str]
    arrays: dict[str, list[str]]
    filled: set[str]
    calls: list[list[bytes]] = field(default_factory=list)

    def watch(self, module: dict[str, Any]) -> None:
        """Has every call of ``module`` recorded."""
        table, library = module["Table"], module["Library"]
        put, run = table.put, library.run

        def putting(
            into: Any, x: Any, lead: int = 3, reverse: bool = False, *, name: str = ""
        ) -> None:
            into.given = [*getattr(into, "given", ()), (x, lead, reverse)]
            put(into, x, lead, reverse, name=name)

        def describing(into: Any) -> Any:
            into.found = described(into)
            into.found.table = into
            return into.found

        def running(at: Any, what: str, call: Any, arrays: Any, past: int | None = None) -> None:
            given, names = arrays.table.given, self.arrays[what]
            assert len(names) == len(given), (what, names)
            for (x, *_), name in zip(given, names, strict=True):
                if x is not None and name in self.filled:
                    x.fill(np.nan)  # what stays so is no result of this call
            run(at, what, call, arrays, past)
            seen = (call.past or 0) if past is None else past
            sizes = [call.run.B, call.run.T, call.run.H]
            sizes += [module["EVERY"] if call.by_token else call.C, seen, len(at.dims)]
            sizes += [call.run.dims[dim] for dim in at.dims]
            head = _ints(self.functions.index(what), len(given), *sizes)
            packed = [
                _array(table(call.run.B, call.run.H), *one, name in self.filled)
                for one, name in zip(given, names, strict=True)
            ]
            self.calls.append([head, *packed])

        for host in (x for x in module.values() if isinstance(x, module["Host"])):
            host.direct.possible = False  # calls like earlier ones are recorded, too
        described = table.described
        table.put, table.described, library.run = putting, describing, running

    def text(self) -> bytes:
        """The file."""
        return b"".join([_ints(len(self.calls)), *(part for call in self.calls for part in call)])


def _ints(*numbers: int) -> bytes:
    return np.array(numbers, "<i8").tobytes()


def _array(table: Any, x: Any, lead: int, reverse: bool, result: bool) -> bytes:
    """An array as it lies packed, with the strides that the host gives it."""
    if x is None:
        return _ints(0, 0, 0, 0, 0, 0, 0, 0)
    packed = np.ascontiguousarray(x)
    table.put(packed, lead, reverse)
    data, sequence, token, head, _ = table.rows[0]
    first = (data - packed.ctypes.data) // packed.itemsize
    with np.errstate(over="ignore"):
        small = packed.astype(ml_dtypes.bfloat16).astype(packed.dtype)
    kind = REAL
    if packed.dtype == np.int64:
        kind = I64
    elif lead == 3 and not result and packed.size and np.array_equal(small, packed):
        kind = BF16
    numbers = packed.astype("<f8").tobytes()
    return _ints(1, kind, result, packed.size, first, sequence, token, head) + numbers


def recorded(path: Path, folder: Path) -> float:
    """Puts the C files of a spec, calls.h and the record into ``folder``. Gives the largest error
    that calls in float32 may have: 1e-5, or 20 times what the recurrence itself has in float32.
    Raises AssertionError where a call is not what the reference gives."""
    spec = lacc.load(path)
    like = lacc.compile(spec, target="c")
    (name,) = (file.removesuffix(".c") for file in like.files if file.endswith(".c"))
    for file, text in like.files.items():
        (folder / file).write_text(text, "utf-8")
    header = like.files[f"{name}.h"]
    functions = re.findall(rf"^int LACC_NAME\({name}_(\w+)\)", header, re.M)
    arrays = {
        function: re.findall(r"^    (\w+), /\*", body, re.M)
        for function, body in re.findall(
            rf"The arrays of {name}_(\w+), in order\. \*/\nenum {{\n(.*?)}};", header, re.S
        )
    }
    for function in functions:  # those that keep what a gradient needs
        arrays.setdefault(function, arrays.get(function.replace("keep", "forward"), []))
    (folder / "calls.h").write_text(_calls(name, functions), "utf-8")
    module = load(name, like.files[f"{name}_c.py"], folder / f"{name}_c.py")
    module["FLAGS"] = tuple("-O1" if flag == "-O3" else flag for flag in module["FLAGS"])
    named = re.findall(r"\w+(?=[];])", like.files[f"{name}.c"])
    record = Record(functions, arrays, set(filter(RESULTS.search, named)))
    record.watch(module)
    kernel = Kernel(
        spec, "c", like.signature, _by_name(module, name), missing=like.missing, verify=lambda: None
    )
    reference = lacc.compile(spec, target="reference")
    limit = 1e-5
    for bench, case in zip((Wide(spec, reference), Bench(spec, reference)), CASES, strict=True):
        _compare(bench, kernel, case)
        single = {n: x.astype(np.float32) for n, x in bench.arrays(case).items()}
        rounded = errors(bench.run(reference, case, single), bench.truth(case), largest_error)
        limit = max(limit, 20 * max(rounded.values()))
    (folder / "record").write_bytes(record.text())
    return limit


def _compare(bench: Bench, kernel: Kernel, case: Case) -> None:
    arrays = {n: x.astype(np.float64) for n, x in bench.arrays(case).items()}
    modes = [m for m in ("chunk", "recurrent") if m in kernel.modes]
    for mode in modes + ["step"] * ("step" not in kernel.missing):
        subject = Subject(bench, Guarded(kernel), mode)
        if mode == "step":
            case, arrays = Case(T=5, seed=case.seed, started=True), None
        for finding in subject.compare(subject.run(case, arrays), bench.truth(case), case, mode):
            assert finding.passed, finding


def _by_name(module: dict[str, Any], name: str) -> Any:
    def function(ending: str) -> Any:
        return lambda arguments, **options: module[name + ending](**arguments, **options)

    return tuple(map(function, ("", "_step", "_vjp")))


def _calls(name: str, functions: list[str]) -> str:
    """The text of calls.h."""

    def listed() -> Iterator[str]:
        yield f'#include "{name}.h"'
        yield f"typedef {name}_run run_t;"
        yield f"#define ROOM LACC_NAME({name}_room)"
        yield "static int (*const functions[])(const run_t *, const lacc_array *) = {"
        yield from (f"    LACC_NAME({name}_{function})," for function in functions)
        yield "};"
        yield "static const char *const names[] = {"
        yield from (f'    "{function}",' for function in functions)
        yield "};"

    return "\n".join(listed()) + "\n"
