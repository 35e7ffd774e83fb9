"""A spec in, what some tokens do to its states out: specs whose states, run over the tokens, are
what these make of a state of zeros, and their transition.

    summary = summarized(spec)              # a Summary, or the words on why there is none

Tokens take a state X to M X + H. H is what they make of X = 0; M, their transition, is the product
of their steps without writes. M runs beside X as states of its own, by the decays, erases and
couplings that the analysis found, so that whatever is known of X holds for it (a product of decays
is the exp of a sum of logs where theirs is):

    decays d along some axes                  D <- d D, along these axes, from 1
    with erases a (bᵀ X)                      M <- d M + Σ a (bᵀ M), [K, K], from I
    coupled X_i <- Σ_j kept_ij X_j + ...      M_ij, for each j a set of coupled states
    max(m + f, i), min, logaddexp             F <- F + f, from 0: m goes to max(m + F, H)

Nothing beside the identity. Notation as in `lacc.analysis.transition`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lacc.analysis.plain import plain
from lacc.analysis.scaled import Interning
from lacc.analysis.transition import Added, Axes, Coupling, Factor, Recurrence
from lacc.ir.graph import expressions, needs, nodes
from lacc.ir.reach import pasts
from lacc.spec.model import Expr, Output, Spec, State
from lacc.spec.names import is_memory
from lacc.spec.shapes import ONE, Shape


@dataclass(frozen=True, slots=True)
class Gain:
    """A part of a transition, the state ``name`` of a summary's spec: what of the state ``source``
    comes to the state ``target``, along ``axes`` of them. ``square``: a matrix [to, from] over the
    one axis, which else it multiplies entry by entry."""

    name: str
    source: str
    target: str
    axes: Axes
    square: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """States whose summary is found together, by ASCII names. ``op`` joins what comes of the state
    before and what the tokens make: "add", or "max", "min" and "logaddexp" with gains that add."""

    states: tuple[str, ...]
    gains: tuple[Gain, ...]
    op: str = "add"


@dataclass(frozen=True, slots=True)
class Round:
    """Groups whose summaries can be found at once: ``spec`` has their states, their gains, and the
    states that they need, which are known by then. It reads no more arguments than these do, and
    gives a 0 for each token."""

    spec: Spec
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The rounds in which the states of a spec are summarized, in order, and the inputs whose last
    tokens are states too."""

    rounds: tuple[Round, ...]
    delayed: tuple[str, ...]


_JOINS = {"maxplus": "max", "minplus": "min", "logsumexp": "logaddexp"}


def summarized(spec: Spec) -> Summary | str:
    """The summary of a causal ``spec``, or why it has none."""
    if why := _missing(spec):
        return why
    rounds: list[list[tuple[Recurrence, Group, tuple[State, ...]]]] = []
    at: dict[str, int] = {}
    build = Interning(spec.file.name.span)
    for recurrence in plain(spec).recurrences:
        needed = {need.state for n in recurrence.states for need in needs(spec.state(n).update)}
        level = max((at[n] + 1 for n in needed - {*recurrence.states}), default=0)
        at |= dict.fromkeys(recurrence.states, level)
        rounds += [[] for _ in range(level + 1 - len(rounds))]
        rounds[level].append((recurrence, *_Gains(build, spec, recurrence).found()))
    found = []
    for level, members in enumerate(rounds):
        own = [name for recurrence, *_ in members for name in recurrence.states]
        states = [s for s in spec.states if s.name in _needed(spec, own)]
        gains = [s for *_, made in members for s in made]
        both = _without_outputs(spec, [*states, *gains], f"summary{level}")
        found.append(Round(both, tuple(group for _, group, _ in members)))
    kept = [a.ascii for a in spec.args if a.role == "input" and pasts(spec)[a.name].length]
    return Summary(tuple(found), tuple(kept))


def _missing(spec: Spec) -> str:
    """Why a spec has no summary, "" where it has one."""
    if any(node.op == "attend" for node in nodes(expressions(spec))):
        return "it attends to the tokens before, each of them"
    for state in spec.states:
        if state.stabilized:
            return f"{state.name} is (stabilized): a value beside an exponent"
    for recurrence in plain(spec).recurrences:
        if recurrence.direction != "forward":
            return f"{recurrence.states[0]} runs backward in time"
        memories = [name for name in recurrence.states if is_memory(name)]
        if memories or recurrence.form == "written":
            return f"{spec.name} reads {recurrence.states[0].partition('@')[0]} with a delay"
        if recurrence.form == "none":
            why = recurrence.obstacle.reason if recurrence.obstacle else recurrence.kind
            return f"{', '.join(recurrence.states)}: {why}"
    for key, past in pasts(spec).items():
        if past.length and not (isinstance(key, str) and _is_given(spec, key)):
            return f"it reads {past.name.removesuffix('_past')} with a delay"
    return ""


def _is_given(spec: Spec, name: str) -> bool:
    return any(a.name == name and a.default is None for a in spec.args)


def _needed(spec: Spec, names: Sequence[str]) -> set[str]:
    """The states ``names`` and all that they need."""
    found: set[str] = set()
    stack = list(names)
    while stack:
        if (name := stack.pop()) not in found:
            found.add(name)
            stack += [need.state for need in needs(spec.state(name).update)]
    return found


def _without_outputs(spec: Spec, states: Sequence[State], suffix: str) -> Spec:
    """A spec of ``states`` with a single output, 0, and the arguments that they read."""
    roots = [e for s in states for e in (s.update, s.initial)]
    read: dict[str, None] = {}
    while roots:
        names = {n.value[0] if n.op == "input" else n.value for n in nodes(roots) if n.op in _ARGS}
        fresh = [spec.arg(name) for name in names if name not in read]
        read |= dict.fromkeys(arg.name for arg in fresh)
        roots = [e for a in fresh if a.default is not None for e in [a.default]]
        roots += [side for a in fresh for p in a.promises for side in (p.left, p.right)]
    if any(spec.arg(name).draw for name in read):  # by its place among all arguments
        read = dict.fromkeys(arg.name for arg in spec.args)
    zero = Interning(spec.file.name.span).number(0)
    none = Output("none", _unused(spec, "none"), (), "layer", zero, spec.file.name.span)
    return replace(
        spec,
        ascii=f"{spec.ascii}_{suffix}",
        args=tuple(a for a in spec.args if a.name in read),
        states=tuple(states),
        definitions=(),
        outputs=(none,),
        expects=(),
        digest=hashlib.sha256(f"{spec.digest} {suffix}".encode()).hexdigest(),
    )


_ARGS = ("input", "param", "buffer")


def _unused(spec: Spec, name: str) -> str:
    """A name that nothing of the spec has."""
    taken = {*spec.dims, *spec.consts, *(s.ascii for s in spec.states)}
    taken |= {a.ascii for a in spec.args} | {o.ascii for o in spec.outputs}
    while name in taken:
        name += "_"
    return name


class _Gains:
    """The transition of one recurrence as states."""

    def __init__(self, build: Interning, spec: Spec, recurrence: Recurrence) -> None:
        self.build, self.spec, self.recurrence = build, spec, recurrence
        self.states = [spec.state(name) for name in recurrence.states]
        shape = self.states[0].shape
        self.places = [n for n, size in enumerate(shape) if size != ONE]
        self.sizes = [shape[n] for n in self.places]

    def found(self) -> tuple[Group, tuple[State, ...]]:
        """The group of the recurrence, and the states that are its gains."""
        made = list(self._made())
        names = tuple(state.ascii for state in self.states)
        group = Group(names, tuple(g for g, _ in made), _JOINS.get(self.recurrence.kind, "add"))
        return group, tuple(s for _, s in made)

    def _made(self) -> Iterator[tuple[Gain, State]]:
        r = self.recurrence
        if r.tropical is not None:
            f = r.tropical.f
            gain = self._gain("moved", 0, 0, tuple(range(len(self.sizes))) if f.shape else ())
            yield gain, self._state(gain, self.build.add(self._before(gain), f), 0)
        elif r.coupling is not None:
            yield from self._coupled(r.coupling)
        elif not r.erases:
            yield from self._kept(r.decays)
        else:
            axis, one = r.erases[0].axis, self.build.number(1)
            aside = [f for f in r.decays if f.axes == (1 - axis,)]
            yield from self._kept(aside)
            own = tuple(f for f in r.decays if f not in aside)
            added = (Added((Factor((axis,), e.a),), (one,), n) for n, e in enumerate(r.erases))
            reads = tuple((e.b,) for e in r.erases)
            yield from self._coupled(Coupling(((own,),), tuple(added), reads, axis))

    def _kept(self, factors: Sequence[Factor]) -> Iterator[tuple[Gain, State]]:
        """A product for each set of axes, that of scalars with the first of them."""
        sets = sorted({f.axes for f in factors}, key=lambda axes: (not axes, axes))
        for n, axes in enumerate(sets[: len(sets) - (len(sets) > 1 and not sets[-1])]):
            own = [f for f in factors if f.axes == axes or (n == 0 and not f.axes)]
            gain = self._gain("_".join(("kept", *map(str, axes))), 0, 0, axes)
            yield gain, self._state(gain, self._times(own, self._before(gain), axes), 1)

    def _coupled(self, coupling: Coupling) -> Iterator[tuple[Gain, State]]:
        """What comes of each state to each."""
        square, at = bool(coupling.reads), range(len(self.states))
        spread = {axis for row in coupling.kept for fs in row for f in fs or () for axis in f.axes}
        axes = (coupling.axis,) if square else tuple(sorted(spread))
        gains = {
            (j, i): self._gain(f"to_{self.states[i].ascii}", j, i, axes, square)
            for j in at
            for i in at
            if square or j in coupling.reached[i]
        }
        for (j, i), gain in gains.items():
            before = {n: self._before(gains[j, n]) for n in at if (j, n) in gains}
            update = self._step(coupling, i, before, axes)
            yield gain, self._state(gain, update, int(i == j))

    def _step(self, coupling: Coupling, i: int, before: dict[int, Expr], axes: Axes) -> Expr:
        """What one token makes of a gain to state ``i``."""
        build = self.build
        parts = [
            self._times(factors, before[n], axes)
            for n, factors in enumerate(coupling.kept[i])
            if factors is not None and n in before
        ]
        for added in coupling.added:
            column, scale = added.on((coupling.axis,)), added.scales[i]
            if added.read is None or column is None or scale is None:
                continue
            read: Expr | None = None
            for n, row in enumerate(coupling.reads[added.read]):
                if row is not None:
                    shape = (ONE, before[n].shape[1])
                    part = build.node("matmul", (build.transpose(row), before[n]), shape)
                    read = part if read is None else build.add(read, part)
            assert read is not None
            product = build.node("matmul", (build.mul(scale, column), read), before[i].shape)
            parts.append(product)
        if not parts:
            return build.node("const", (), before[i].shape, 0)
        total = parts[0]
        for part in parts[1:]:
            total = build.add(total, part)
        return total

    def _times(self, factors: Sequence[Factor], x: Expr, axes: Axes) -> Expr:
        """``x``, which has ``axes`` first, times factors on some of them."""
        build = self.build
        for factor in factors:
            if factor.axes in ((), axes) and len(factor.expr.shape) in (0, len(x.shape)):
                x = build.mul(factor.expr, x)
                continue
            size = factor.expr.shape[0]
            square = build.node("diag", (factor.expr,), (size, size))
            left = factor.axes[0] == axes[0]
            x = build.node("matmul", (square, x) if left else (x, square), x.shape)
        return x

    def _gain(self, way: str, j: int, i: int, axes: Axes, square: bool = False) -> Gain:
        """The gain from state ``j`` to state ``i``, of places in ``axes``."""
        source, target = self.states[j].ascii, self.states[i].ascii
        name = _unused(self.spec, f"{source}_{way}")
        return Gain(name, source, target, tuple(self.places[n] for n in axes), square)

    def _shape(self, gain: Gain) -> Shape:
        sizes = tuple(self.sizes[self.places.index(n)] for n in gain.axes)
        return sizes * 2 if gain.square else sizes

    def _before(self, gain: Gain) -> Expr:
        return self.build.node("state", (), self._shape(gain), (gain.name, -1))

    def _state(self, gain: Gain, update: Expr, start: int) -> State:
        """The state of a gain, which starts at ``start``, or that many times I."""
        build, shape = self.build, self._shape(gain)
        eye = gain.square and start
        return State(
            gain.name,
            gain.name,
            shape,
            self.states[0].per,
            build.node("eye", (), shape) if eye else build.number(start),
            build.adopt(update),
            "forward",
            False,
            self.states[0].span,
        )
