"""A recurrence and its promises in, a verdict out: the state cannot grow, may grow (with an input
that does it), or neither.

What is proven is that one token's transition has norm at most 1: every decay in [-1, 1]; an erase
`D - η u uᵀ` by its eigenvalues, for `I - β k kᵀ` exactly `|1 - β|k|²| <= 1`; a product of steps
(several assignments a token, a decay before or after an erase) by the product of their norms. The
steps are found in the update itself: an expression that every path from the state to its new value
runs through is where one step ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations
from typing import TYPE_CHECKING, TypeGuard

from lacc.analysis import rotations
from lacc.analysis.affine import Affine, NotAffine
from lacc.analysis.algebra import Algebra, Mono, Node, Poly, add, number, times
from lacc.analysis.classify import affine_step
from lacc.analysis.interval import Interval
from lacc.analysis.ranges import Ranges
from lacc.analysis.transition import Factor, LowRank, Recurrence
from lacc.diagnostics import Diagnostic, warning
from lacc.ir.build import Builder
from lacc.spec.format import show
from lacc.spec.model import Expr, Promise, Spec, State
from lacc.spec.names import is_memory

if TYPE_CHECKING:
    from lacc.analysis.probe import Growth

_SLACK = 1e-9
_STEPS = 12
_OPTIONS = 4


@dataclass(frozen=True, slots=True)
class Stability:
    """``verdict`` is "proved" (no token can enlarge the state), "may grow" (``witness`` does it and
    keeps the promises) or "not proved". ``why`` is a sentence; ``help`` the promise that would do,
    "" where none is known."""

    verdict: str
    why: str
    witness: Growth | None = None
    help: str = ""


Reason = tuple[str, Expr | None]
"""A text with a place for an expression."""


@dataclass(frozen=True, slots=True)
class _Norm:
    """A bound of the norm of a step, and what it rests on."""

    bound: float
    because: tuple[Reason, ...]


def stability(spec: Spec, recurrence: Recurrence, ranges: Ranges) -> Stability:
    """The verdict on one recurrence."""
    if recurrence.form == "written":
        return Stability("proved", "it has no memory of its own")
    match recurrence.kind:
        case "maxplus" | "minplus" | "logsumexp":
            return Stability("proved", "a difference between two states is never enlarged")
    norm = _proof(spec, recurrence, ranges)
    if _proves(norm):
        names = named(spec)
        because = [said.format(expr and show(expr, names)) for said, expr in norm.because]
        return Stability("proved", "; ".join(because) or "nothing multiplies the state")
    if not _is_linear(spec, recurrence):
        return Stability("not proved", "the update is not linear in the state")
    from lacc.analysis.probe import growth

    found = growth(spec, recurrence, ranges)
    if found is None:
        why = "no proof was found, and no input that makes it grow"
        if recurrence.coupling is not None:
            why += "; what one state gives to another may add up where neither grows alone"
        return Stability("not proved", why)
    why = f"{_inputs(found)} multiplies it by {found.factor:.3g} every token"
    return Stability("may grow", why, found, _missing(spec, recurrence))


def reflects(recurrence: Recurrence, ranges: Ranges) -> bool:
    """Whether an erase may turn around what it erases, an eigenvalue of ``I + γ u uᵀ`` below 0, and
    no decay makes what went wrong at earlier tokens fade."""
    if recurrence.decays:
        return False
    found = (_eigenvalue(erase, ranges) for erase in recurrence.erases)
    return any(ranges.of_poly(add(number(1.0), e)).lo < -_SLACK for e in found if e is not None)


def named(spec: Spec) -> dict[Expr, str]:
    """The names that a spec gives to expressions, numbers and bare arguments aside."""
    return {d.expr: d.name for d in reversed(spec.definitions) if d.expr.args}


def _inputs(found: Growth) -> str:
    """The settings that are not 0; where there is none, all."""
    shown = [setting for setting in found.settings if setting.value] or found.settings
    return ", ".join(map(str, shown)) or "any input"


def _proves(norm: _Norm | None) -> TypeGuard[_Norm]:
    return norm is not None and norm.bound <= 1 + _SLACK


def _is_linear(spec: Spec, recurrence: Recurrence) -> bool:
    """Whether the updates are affine in the states of the recurrence, dense ones included."""
    affine = Affine(
        Builder(spec.state(recurrence.states[0]).span),
        lambda leaf: leaf.reference[0] in recurrence.states,
    )
    try:
        for name in recurrence.states:
            update = spec.state(name).update
            affine.terms(update, affine.indices(update))
    except NotAffine:
        return False
    return True


def stability_warnings(spec: Spec, recurrences: Iterable[Recurrence]) -> list[Diagnostic]:
    """LA0501 for every recurrence that the promises allow to grow."""
    ranges = Ranges(spec)
    found = []
    for recurrence in recurrences:
        verdict = stability(spec, recurrence, ranges)
        if verdict.witness is None:
            continue
        *others, last = (name for name in recurrence.states if not is_memory(name))
        found.append(
            warning(
                "LA0501",
                spec.state(recurrence.states[0]).update.span,
                states=f"states {', '.join(others)} and {last}" if others else f"state {last}",
                them="them" if others else "it",
                inputs=_inputs(verdict.witness),
                factor=f"{verdict.witness.factor:.3g}",
                help=verdict.help,
            )
        )
    return found


# ---- proofs --------------------------------------------------------------------------------------


def _proof(spec: Spec, recurrence: Recurrence, ranges: Ranges) -> _Norm | None:
    """A bound of the transition's norm: of its canonical form, or of the steps that its update is
    made of."""
    if recurrence.coupling is not None:
        bound = rotations.norm(recurrence.coupling, ranges)
        return bound and _Norm(bound[0], ((bound[1], None),))
    if len(recurrence.states) > 1:
        return None
    whole = _step_norm(recurrence, ranges)
    if _proves(whole):
        return whole
    return _chain(spec.state(recurrence.states[0]), ranges) or whole


def _chain(state: State, ranges: Ranges) -> _Norm | None:
    """The least product of norms over ways to cut the update into steps."""
    cuts = [node for node in _cuts(state) if node.shape == state.shape]
    if not cuts or len(cuts) > _STEPS:
        return None
    best: list[_Norm | None] = [_Norm(1.0, ())]
    for end in range(1, len(cuts)):
        best.append(None)
        for start in range(end):
            before = best[start]
            if before is None:
                continue
            step = _norm_between(state, cuts[start], cuts[end], ranges)
            if step is None:
                continue
            bound = before.bound * step.bound
            known = best[end]
            if known is None or bound < known.bound:
                best[end] = _Norm(bound, tuple(dict.fromkeys(before.because + step.because)))
    return best[-1]


def _cuts(state: State) -> list[Expr]:
    """The nodes that every path from the state to its update runs through, in order: those with all
    the paths."""
    nodes = list(state.update.walk())
    leaves = {id(n) for n in nodes if n.op == "state" and n.value[0] == state.name}
    if len(leaves) != 1:
        return []
    below: dict[int, int] = {}
    for node in nodes:
        paths = sum(below[id(arg)] for arg in node.args)
        below[id(node)] = 1 if id(node) in leaves else paths
    above = dict.fromkeys(below, 0)
    above[id(state.update)] = 1
    for node in reversed(nodes):
        for arg in node.args:
            above[id(arg)] += above[id(node)]
    total = below[id(state.update)]
    return [n for n in nodes if total and below[id(n)] * above[id(n)] == total]


def _norm_between(state: State, start: Expr, end: Expr, ranges: Ranges) -> _Norm | None:
    """A bound of the linear map from one cut to a later one."""
    build = Builder(end.span)
    leaf = build.node("state", (), state.shape, (state.name, -1))
    rebuilt: dict[int, Expr] = {id(start): leaf}
    for node in end.walk():
        if id(node) not in rebuilt:
            args = tuple(rebuilt[id(arg)] for arg in node.args)
            same = all(a is b for a, b in zip(args, node.args))
            rebuilt[id(node)] = node if same else build.node(node.op, args, node.shape, node.value)
    try:
        return _step_norm(affine_step(replace(state, update=rebuilt[id(end)])), ranges)
    except NotAffine:
        return None


def _step_norm(step: Recurrence, ranges: Ranges) -> _Norm | None:
    """A bound of the norm of one canonical step."""
    if step.form not in ("written", "canonical"):
        return None
    if step.erases:
        return _erase_norm(step, ranges)
    bound = 1.0
    because: list[Reason] = []
    for factor in step.decays:
        interval = ranges.of(factor.expr)
        bound = _product(bound, interval.magnitude)
        because.append((f"{{}} is {interval.words}", factor.expr))
    return _Norm(bound, tuple(because))


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _erase_norm(step: Recurrence, ranges: Ranges) -> _Norm | None:
    """The norm of ``D + Σ a bᵀ`` where each a bᵀ is, next to D, a multiple of some u uᵀ."""
    axis = step.erases[0].axis
    if any(e.axis != axis for e in step.erases) or any(
        f.axes not in ((), (axis,)) for f in step.decays
    ):
        return None
    candidates = [_symmetric(step.decays, step.erases, ranges)]
    if len(step.erases) == 1:
        candidates += _one_erase(step.decays, step.erases[0], ranges)
    return min((c for c in candidates if c is not None), key=lambda c: c.bound, default=None)


def _one_erase(decays: tuple[Factor, ...], erase: LowRank, ranges: Ranges) -> Iterator[_Norm]:
    """``D (I + γ u uᵀ)`` and ``(I + γ u uᵀ) D``: the larger of 1 and |1 + γ|u|²|, times that of
    D."""
    algebra = ranges.algebra
    decay, scale = _decay(decays, ranges)
    magnitude = 1.0
    said: list[Reason] = []
    for factor in decays:
        interval = ranges.of(factor.expr)
        magnitude = _product(magnitude, interval.magnitude)
        said.append((f"{{}} is {interval.words}", factor.expr))
    a, ca = algebra.monomial(erase.a)
    b, cb = algebra.monomial(erase.b)
    if not scale or not ca or not cb:
        return
    bare_a, bare_b = times(a, decay, Fraction(-1)), times(b, decay, Fraction(-1))
    for u, other, c in ((a, bare_b, cb / scale * ca), (bare_a, b, ca / scale * cb)):
        ratio = times(other, u, Fraction(-1))
        if any(algebra.is_vector(atom) for atom, _ in ratio):
            continue
        along = _along(ratio, u, c, ranges)
        if along is not None:
            left = ranges.of_poly(add(number(1.0), along))
            bound = _product(magnitude, max(1.0, left.magnitude))
            kept = f"along {{}} the erase leaves a factor {left.words}", erase.a
            yield _Norm(bound, (*said, kept))


def _along(ratio: Mono, u: Mono, c: float, ranges: Ranges) -> Poly | None:
    """``c · ratio · |u|²``, the eigenvalue of ``c · ratio · u uᵀ``."""
    algebra = ranges.algebra
    square = algebra.expanded(times(u, u))
    norm2 = square and algebra.total(square)
    scale = algebra.expanded(ratio, c)
    return algebra.mul(scale, norm2) if scale and norm2 else None


def _symmetric(
    decays: tuple[Factor, ...], erases: tuple[LowRank, ...], ranges: Ranges
) -> _Norm | None:
    """``D + Σ γ u uᵀ`` with symmetric terms: its eigenvalues lie between min D + Σ γ₋|u|² and max D
    + Σ γ₊|u|²."""
    algebra = ranges.algebra
    mono, scale = _decay(decays, ranges)
    diagonal = algebra.expanded(mono, scale)
    if diagonal is None:
        return None
    around = ranges.of_poly(diagonal)
    scalar = not any(algebra.is_vector(atom) for atom, _ in mono)
    low, high, moved = around.lo, around.hi, diagonal
    said: list[Reason] = [(f"{{}} is {ranges.of(f.expr).words}", f.expr) for f in decays]
    for erase in erases:
        along = _eigenvalue(erase, ranges)
        if along is None:
            return None
        interval = ranges.of_poly(along)
        low, high = low + min(interval.lo, 0.0), high + max(interval.hi, 0.0)
        moved = add(moved, along)
    if scalar and len(erases) == 1:
        both = around.hull(ranges.of_poly(moved))
        low, high = max(low, both.lo), min(high, both.hi)
    said.append((f"with the erase its eigenvalues are {Interval(low, high).words}", None))
    return _Norm(max(abs(low), abs(high)), tuple(said))


def _eigenvalue(erase: LowRank, ranges: Ranges) -> Poly | None:
    """That of ``a bᵀ``, where b is a multiple of a."""
    algebra = ranges.algebra
    (a, ca), (b, cb) = algebra.monomial(erase.a), algebra.monomial(erase.b)
    ratio = times(b, a, Fraction(-1))
    if any(algebra.is_vector(atom) for atom, _ in ratio):
        return None
    return _along(ratio, a, ca * cb, ranges)


def _decay(decays: tuple[Factor, ...], ranges: Ranges) -> tuple[Mono, float]:
    """The product of the decays as one mono and its coefficient."""
    mono: Mono = ()
    scale = 1.0
    for factor in decays:
        more, by = ranges.algebra.monomial(factor.expr)
        mono, scale = times(mono, more), scale * by
    return mono, scale


# ---- what would help -----------------------------------------------------------------------------


def _missing(spec: Spec, recurrence: Recurrence) -> str:
    """The fewest promises that would make the proof go through, as advice; "" where none of the
    usual ones does."""
    options = list(_options(spec, recurrence))[:_OPTIONS]
    some = chain.from_iterable(combinations(options, n) for n in range(1, len(options) + 1))
    for chosen in some:
        promised = spec
        for name, promises in chosen:
            args = (
                replace(a, promises=a.promises + promises) if a.name == name else a
                for a in promised.args
            )
            promised = replace(promised, args=tuple(args))
        if _proves(_proof(promised, recurrence, Ranges(promised))):
            said = ", ".join(dict.fromkeys(_said(promises) for _, promises in chosen))
            return f"promise it: `where {said}`"
    return ""


Option = tuple[str, tuple[Promise, ...]]


def _options(spec: Spec, recurrence: Recurrence) -> Iterator[Option]:
    """What is usually promised of the arguments that stand in the transition as factors, or under
    an `exp`."""
    algebra = Ranges(spec).algebra
    factors = [(f.expr, 1) for f in recurrence.decays]
    factors += [(side, 2) for erase in recurrence.erases for side in (erase.a, erase.b)]
    seen: set[str] = set()
    for expr, most in factors:
        for leaf, under_exp in _leaves(expr, algebra):
            name = leaf.reference[0] if leaf.op == "input" else str(leaf.value)
            if name in seen:
                continue
            seen.add(name)
            build = Builder(leaf.span)
            zero, one, top = build.number(0), build.number(1), build.number(most)
            if under_exp:
                yield name, (Promise("<=", leaf, zero, leaf.span),)
            elif len(leaf.shape) == 1 and recurrence.erases:
                squares = build.node("sum", (build.mul(leaf, leaf),), ())
                yield name, (Promise("<=", squares, one, leaf.span),)
            else:
                yield (
                    name,
                    (Promise("<=", zero, leaf, leaf.span), Promise("<=", leaf, top, leaf.span)),
                )


def _leaves(expr: Expr, algebra: Algebra) -> Iterator[tuple[Expr, bool]]:
    """The arguments that are factors of ``expr``, and those that are factors of an exponent in
    it."""
    for index, _ in algebra.monomial(expr)[0]:
        atom = algebra.atoms[index]
        if not isinstance(atom, Node):
            continue
        if atom.expr.op in ("input", "param"):
            yield atom.expr, False
        elif atom.expr.op == "exp":
            yield from ((leaf, True) for leaf, _ in _leaves(atom.expr.args[0], algebra))


def _said(promises: tuple[Promise, ...]) -> str:
    """Promises about one argument as a spec would write them."""
    if len(promises) == 2:
        low, high = promises
        return f"{show(low.left)} <= {show(low.right)} <= {show(high.right)}"
    (promise,) = promises
    return f"{show(promise.left)} <= {show(promise.right)}"
