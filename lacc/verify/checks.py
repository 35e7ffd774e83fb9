"""A kernel in one mode and a bench go in; what each line of the numerics contract finds comes out.

A check yields a `Finding` for each quantity it compares. `CHECKS` is the list; a row of the report
each. A check that does not apply (a split of what is not causal) yields nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from lacc.verify.cases import Case, cut, errors, grows, largest_error, quantities, rms_error
from lacc.verify.parts import assembled, call, fitting, glued, outputs_of, part, together
from lacc.verify.subject import Finding, Subject

Check = Callable[[Subject], Iterator[Finding]]


def lengths(subject: Subject) -> Iterator[Finding]:
    """One token, two, around a chunk, several chunks and a rest."""
    for T in (1, 2, subject.chunk - 1, subject.chunk, subject.chunk + 1, 4 * subject.chunk + 5):
        if subject.mode != "step" or T in (1, 2, subject.chunk + 1):
            case = Case(T=T)
            yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


def chunks(subject: Subject) -> Iterator[Finding]:
    """Other chunks, the plan's own, and what mode auto chooses."""
    if subject.mode == "step":
        return
    case = Case(T=subject.bench.scale.longest if subject.full else 71, seed=11)
    arrays, truth = subject.bench.arrays(case), subject.bench.truth(case)
    asked: list[dict[str, Any]] = [{"mode": "auto"}, {"mode": subject.mode}]
    if subject.mode == "chunk":
        lengths = {min(chunk, subject.longest) for chunk in (1, 3, 7, 16, 64, 200)}
        asked += [{"chunk": chunk} for chunk in sorted(lengths)]
    for options in asked:
        got = subject.bench.run(subject.kernel, case, arrays, options)
        yield from subject.compare(got, truth, case, f"{options}")


def initial_states(subject: Subject) -> Iterator[Finding]:
    """From a state that other tokens left, its gradient included."""
    if subject.bench.reference.signature.no_initial:
        return
    for T in (1, subject.chunk, 2 * subject.chunk + 3):
        case = Case(T=T, started=True, seed=1)
        yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


def regime(name: str) -> Check:
    """Arguments drawn in one of the regimes of `lacc.verify.inputs`."""

    def check(subject: Subject) -> Iterator[Finding]:
        for seed in range(4 if subject.full else 1):
            case = Case(T=3 * subject.chunk - 1, regime=name, seed=2 + seed)
            interior = replace(case, regime="interior")
            drawn, usual = subject.bench.arrays(case), subject.bench.arrays(interior)
            if all(np.array_equal(drawn[n], usual[n]) for n in drawn):
                return
            yield from subject.compare(subject.run(case), subject.bench.truth(case), case)

    return check


def defaults(subject: Subject) -> Iterator[Finding]:
    """Every optional argument left out, and each alone."""
    inputs = {a.ascii for a in subject.bench.spec.args if a.role == "input"}
    names = [a.ascii for a in subject.bench.spec.args if a.default is not None]
    for omit in [tuple(names), *((name,) for name in names if len(names) > 1)]:
        if omit and inputs - {*omit}:
            case = Case(T=subject.chunk + 3, omit=omit, seed=3)
            yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


def splits(subject: Subject) -> Iterator[Finding]:
    """The sequence in two calls, the state (and its cotangent) carried."""
    bench, kernel = subject.bench, subject.kernel
    if not bench.causal or subject.mode == "step":
        return
    case = Case(T=2 * subject.chunk + 3, seed=4)
    arrays, truth = bench.arrays(case), bench.truth(case)
    outputs, end = bench.reference(**arrays)
    pulled, ends = bench.cotangents(case, outputs, end)
    for p in (0, 1, subject.chunk - 1, subject.chunk, case.T - 1, case.T):
        first, second = (
            cut(bench.spec, arrays, slice(0, p)),
            cut(bench.spec, arrays, slice(p, None)),
        )
        a, middle = subject.forward(first)
        b, last = subject.forward(second, middle)
        back = kernel.vjp(
            **second,
            cotangent=part(pulled, slice(p, None)),
            state_cotangent=bench.of_fields(ends, last),
            initial_state=middle,
            **subject.options,
        )
        carried = back.pop("initial_state")
        front = kernel.vjp(
            **first,
            cotangent=part(pulled, slice(0, p)),
            state_cotangent=carried,
            **subject.options,
        )
        got = quantities(bench.spec, glued(a, b), last, together(bench, front, back))
        yield from subject.compare(got, truth, case, f"split at {p}")


def packing(subject: Subject) -> Iterator[Finding]:
    """``cu_seqlens`` with empty segments and one state for each, against segment by segment."""
    bench = subject.bench
    if subject.mode == "step":
        return
    ends = (0, 0, 5, 5, 5 + subject.chunk, 2 * subject.chunk + 3, 2 * subject.chunk + 3)
    started = not bench.reference.signature.no_initial
    case = Case(T=ends[-1], B=1, seed=5)
    arrays = bench.arrays(case)
    first = bench.start(replace(case, started=started), len(ends) - 1)
    options = subject.options | {"cu_seqlens": np.array(ends)}
    got, (pulled, last) = call(bench, subject.kernel, case, arrays, first, options)
    parts = []
    for n, (start, stop) in enumerate(pairwise(ends)):
        tokens, row = slice(start, stop), slice(n, n + 1)
        piece = cut(bench.spec, arrays, tokens)
        begin = None if first is None else type(first)(*(x[row] for x in first))
        outputs, state = bench.reference(**piece, initial_state=begin)
        gradients = bench.reference.vjp(
            **piece,
            cotangent=part(pulled, tokens),
            state_cotangent=bench.of_fields(fitting(last, state, row), state),
            initial_state=begin,
        )
        parts.append(quantities(bench.spec, outputs, state, gradients))
    truth = assembled(bench, parts)
    yield from subject.compare(got, truth, case, f"cu_seqlens={list(ends)}")


def padding(subject: Subject) -> Iterator[Finding]:
    """``valid`` with left, right and interior padding that holds NaN, and a row without a token,
    against the rows without their invalid tokens."""
    bench = subject.bench
    if subject.mode == "step":
        return
    case = Case(T=subject.chunk + 4, B=5, seed=6)
    arrays = bench.arrays(case)
    valid = np.ones((case.B, case.T), bool)
    valid[0, :3] = valid[1, -4:] = valid[2, [1, 4, 5, subject.chunk]] = valid[3] = False
    dirty = dict(arrays)
    for a in bench.spec.args:
        if a.role == "input":
            dirty[a.ascii] = arrays[a.ascii].copy()
            dirty[a.ascii][~valid] = np.nan
    options = subject.options | {"valid": valid}
    got, (pulled, last) = call(bench, subject.kernel, case, dirty, None, options)
    zero = {a.ascii for a in bench.spec.args if a.role == "input"}
    spilt = [n for n in got if (n[2:] in zero or n in outputs_of(bench)) and got[n][~valid].any()]
    for name in spilt:
        yield Finding(name, np.inf, 0.0, f"{case}, not 0 where invalid")
    parts = []
    for b in range(case.B):
        tokens = np.flatnonzero(valid[b])
        piece = cut(bench.spec, arrays, tokens, slice(b, b + 1))
        outputs, state = bench.reference(**piece)
        gradients = bench.reference.vjp(
            **piece,
            cotangent=part(pulled, tokens, slice(b, b + 1)),
            state_cotangent=bench.of_fields(fitting(last, state, slice(b, b + 1)), state),
        )
        parts.append(quantities(bench.spec, outputs, state, gradients))
    for name in (n for n in got if n in outputs_of(bench) or n[2:] in zero):
        got[name] = got[name][valid][None]
    yield from subject.compare(got, assembled(bench, parts), case, "padded")


def causality(subject: Subject) -> Iterator[Finding]:
    """Outputs before p do not change by a bit when inputs from p on do."""
    bench = subject.bench
    if not bench.causal or subject.mode == "step":
        return
    inputs = {a.ascii for a in bench.spec.args if a.role == "input"}
    for dtype in ("float64", "float32"):
        for name in ("interior", "strong"):
            case = Case(T=2 * subject.chunk + 3, regime=name, dtype=dtype, seed=7)
            arrays, other = bench.arrays(case), bench.arrays(replace(case, seed=8))
            before = quantities(bench.spec, subject.forward(arrays)[0])
            for p in (1, subject.chunk - 1, subject.chunk, subject.chunk + 3, case.T - 1):
                changed = dict(arrays)
                for n in inputs & arrays.keys():
                    changed[n] = np.concatenate([arrays[n][:, :p], other[n][:, p:]], 1)
                after = quantities(bench.spec, subject.forward(changed)[0])
                for n, y in before.items():
                    same = np.array_equal(y[:, :p], after[n][:, :p], equal_nan=True)
                    yield Finding(n, 0.0 if same else np.inf, 0.0, f"{case}, changed from {p}")


def isolation(subject: Subject) -> Iterator[Finding]:
    """NaN in one row, one group of heads or one segment does not change a bit of the others."""
    bench = subject.bench
    if subject.mode == "step":
        return
    heads, groups = bench.heads
    inputs = {a.ascii: a.per for a in bench.spec.args if a.role == "input"}
    for what in ("row", "group", "segment"):
        case = Case(T=2 * subject.chunk + 3, B=1 if what == "segment" else 2, seed=12)
        arrays, ends = bench.arrays(case), [0, subject.chunk + 3, case.T]
        options: dict[str, Any] = {"cu_seqlens": np.array(ends)} if what == "segment" else {}
        dirty = dict(arrays)
        for name in inputs.keys() & arrays.keys():
            x = dirty[name] = arrays[name].copy()
            if what == "row":
                x[0] = np.nan
            elif what == "segment":
                x[:, : ends[1]] = np.nan
            elif inputs[name] != "layer":
                x[:, :, : max(1, x.shape[2] // max(2, groups))] = np.nan
        clean = quantities(bench.spec, subject.forward(arrays, **options)[0])
        after = quantities(bench.spec, subject.forward(dirty, **options)[0])
        last: dict[str, Any] = {"row": np.s_[1:], "segment": np.s_[:, ends[1] :]}
        for o in bench.spec.outputs:
            kept = last.get(what, np.s_[:, :, heads - 1 :])
            if what != "group" or (heads > 1 and o.per == "head"):
                same = np.array_equal(clean[o.ascii][kept], after[o.ascii][kept])
                yield Finding(o.ascii, 0.0 if same else np.inf, 0.0, f"{case}, NaN in a {what}")


def nothing(subject: Subject) -> Iterator[Finding]:
    """No token, no batch row: empty outputs, the state as it started, zero gradients."""
    for case in (Case(T=0, started=subject.bench.causal), Case(T=3, B=0), Case(T=0, B=0)):
        if subject.mode != "step" or case.T:
            yield from subject.compare(subject.run(case), subject.bench.truth(case), case)


REGIMES = ("interior", "boundary", "strong", "weak", "reset", "repeated")


def single(subject: Subject, regimes: tuple[str, ...] = REGIMES) -> Iterator[Finding]:
    """float32: 20 times the error of the recurrence in float32, or 1e-5."""
    bench = subject.bench
    for name in regimes:
        case = Case(T=3 * subject.chunk - 1, regime=name, dtype="float32", seed=9)
        arrays, truth = bench.arrays(case), bench.truth(case)
        growth = grows(truth)
        naive = errors(bench.run(bench.reference, case, arrays), truth, largest_error)
        got = subject.run(case)
        for quantity, error in errors(got, {n: truth[n] for n in got}, largest_error).items():
            limit = max(1e-5, 20 * naive[quantity]) if np.isfinite(naive[quantity]) else np.inf
            yield Finding(quantity, error, limit, str(case), growth)


def half(subject: Subject) -> Iterator[Finding]:
    """bfloat16, all of it or the inputs that promise nothing (float32 gates): rms twice that of
    rounding the inputs, or 2⁻⁷ of the quantity's."""
    bench = subject.bench
    case = Case(T=3 * subject.chunk - 1, dtype="bfloat16", seed=10)
    wide, unrounded = (replace(case, dtype=dtype) for dtype in ("float32", "float64"))
    plain = {a.ascii for a in bench.spec.args if a.role == "input" and not a.promises}
    rounded, gates = bench.arrays(case), bench.arrays(wide)
    for note, arrays in (
        ("", rounded),
        (", float32 gates", {n: rounded[n] if n in plain else gates[n] for n in rounded}),
    ):
        exact = {n: x.astype(np.float64) for n, x in arrays.items()}
        truth = bench.run(bench.reference, case, exact)
        least = errors(truth, bench.truth(unrounded), rms_error)
        got = subject.run(case, arrays)
        for quantity, error in errors(got, {n: truth[n] for n in got}, rms_error).items():
            limit = max(2.0**-7, 2 * least[quantity])
            yield Finding(quantity, error, limit, f"{case}{note}", grows(truth))


CHECKS: dict[str, Check] = {
    "lengths": lengths,
    "chunks": chunks,
    "initial state": initial_states,
    "bounds": regime("boundary"),
    "strong gates": regime("strong"),
    "weak gates": regime("weak"),
    "hard resets": regime("reset"),
    "same tokens": regime("repeated"),
    "defaults": defaults,
    "split": splits,
    "packed": packing,
    "padded": padding,
    "causal": causality,
    "isolated": isolation,
    "empty": nothing,
    "float32": single,
    "bfloat16": half,
}
