"""A typed spec in, its tile programs out: every form that exists of it, and the reason for each
that does not.

    derived = derive(spec)
    derived.passes      one program a pass over time, forward and backward (empty where there is no
    chunk form)
    derived.spec        what is compiled (`lacc.analysis.plain`)
    derived.recurrences its recurrences
    derived.chains      the memories that make each field of delayed values
    derived.exponents   the state that holds the exponent of each scaled one, and its axes
    derived.token       the program of one token (None where the spec is not causal)
    derived.modes       mode -> None, or the `Obstacle` that prevents it
    derived.initial     states before the first token from params (None where all are 0)
    derived.promises    the conditions of every `where`; ``promised``: (output, argument, text)
    derived.delays      inputs that are read with a delay, and how far back
    derived.kept        values of earlier tokens that a state keeps
    derived.counts      whether positions matter
    derived.longest     the most tokens of a chunk (None: any number)
    derived.reflects    whether an erase may turn around what it erases, and nothing fades
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lacc.analysis.affine import CONTRACTING
from lacc.analysis.decay import decay_of
from lacc.analysis.modes import modes
from lacc.analysis.plain import plain
from lacc.analysis.ranges import Ranges
from lacc.analysis.stability import reflects
from lacc.analysis.stabilize import Exponents
from lacc.analysis.stages import Stage, stages
from lacc.analysis.transition import Obstacle, Recurrence
from lacc.ir.graph import counts_tokens, expressions, nodes
from lacc.ir.memories import AttendPasts, Chains
from lacc.ir.reach import pasts
from lacc.spec.model import COMPARISONS, Expr, Spec
from lacc.spec.shapes import ONE
from lacc.tile.attention_pass import AttentionBuilder, AttentionPass, TokenRows
from lacc.tile.carried import Treatment
from lacc.tile.chunk import ChunkBuilder
from lacc.tile.grad import differentiate
from lacc.tile.lower import Lower, Naming
from lacc.tile.program import Program, Tiles
from lacc.tile.reads import reads, vector_first
from lacc.tile.rewrite import for_chunks
from lacc.tile.token import TokenBuilder

DIFFERENTIATED = ("input", "param", "state", "stored", "last")


@dataclass(frozen=True)
class Pair:
    """A program and its reverse: forward gives outputs, "state:S" and "stored:x"; backward gives
    "KIND:name" for every load of `DIFFERENTIATED` kinds, from ("cotangent", output or stored) and
    ("dstate", S).

    ``lowered`` and ``lowered_back`` are both as they are priced and printed.
    """

    forward: Program
    backward: Program

    @cached_property
    def lowered(self) -> Program:
        return for_chunks(self.forward, "state")

    @cached_property
    def lowered_back(self) -> Program:
        return for_chunks(self.backward, "dstate")


@dataclass(frozen=True)
class ChunkPass(Pair):
    """One pass over time, chunk by chunk; a pair by itself has no time axis."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class Derived:
    """All programs of a spec."""

    spec: Spec
    recurrences: tuple[Recurrence, ...]
    passes: tuple[ChunkPass | AttentionPass, ...]
    token: Pair | None
    modes: dict[str, Obstacle | None]
    initial: Pair | None
    promises: Program | None
    promised: tuple[tuple[str, str, str], ...]
    delays: dict[str, int]
    chains: Chains
    exponents: Exponents
    kept: tuple[TokenRows, ...]
    counts: bool
    longest: int | None

    @property
    def attends_by_token(self) -> bool:
        """Whether nothing but the program of one token attends: it reads all earlier ones."""
        if self.passes or self.token is None:
            return False
        read = self.token.forward.loads("state")
        return any(rows.past.name in read for rows in self.kept)

    @property
    def reflects(self) -> bool:
        """Whether a recurrence may turn around what it erases (`lacc.analysis.stability`)."""
        ranges = Ranges(self.spec)
        return any(reflects(r, ranges) for r in self.recurrences)


def derive(written: Spec) -> Derived:
    """Derives every form of a spec."""
    compiled = plain(written)
    spec, found, attended = compiled.spec, compiled.recurrences, compiled.attended
    exist = modes(compiled)
    plan = stages(spec, [r.states for r in found])
    naming = Naming(spec)
    passes: tuple[ChunkPass | AttentionPass, ...] = ()
    if exist.by_name["chunk"] is None:
        passes = _passes(spec, found, plan, naming, attended)
    token = None
    if exist.by_name["recurrent"] is None:
        by_name = {name: r for r in found for name in r.states}
        token = Pair(*_both(TokenBuilder(spec, by_name, naming, attended).program()))
    promises, promised = _promises(spec, naming)
    return Derived(
        spec,
        found,
        passes,
        token,
        exist.by_name,
        _initial(spec, naming),
        promises,
        promised,
        _delays(spec),
        compiled.chains,
        compiled.exponents,
        _kept(written, attended, passes),
        counts_tokens(spec),
        exist.longest,
    )


def _initial(spec: Spec, naming: Naming) -> Pair | None:
    """States that do not start at 0."""
    lower = Lower(naming.tiles(), naming, spec, False, lambda node: None)
    outs = {
        f"state:{s.ascii}": lower.f.expand(lower(s.initial), naming.axes(s.shape))
        for s in spec.states
        if not (s.initial.op == "const" and s.initial.value == 0)
    }
    return Pair(*_both(lower.f.finish(outs))) if outs else None


def _promises(
    spec: Spec, naming: Naming
) -> tuple[Program | None, tuple[tuple[str, str, str], ...]]:
    lower = Lower(naming.tiles(), naming, spec, True, lambda node: None)
    outs: dict[str, int] = {}
    said: list[tuple[str, str, str]] = []
    for arg in spec.args:
        for promise in arg.promises:
            name = f"p{len(outs)}"
            sides = lower(promise.left), lower(promise.right)
            outs[name] = _compared(lower.f, promise.cmp, *sides)
            said.append((name, arg.ascii, promise.span.words))
    return (lower.f.finish(outs) if outs else None), tuple(said)


def _compared(f: Tiles, cmp: str, left: int, right: int) -> int:
    """A comparison; an equation holds up to the rounding of the arguments."""
    if cmp != "==":
        return f.ew(COMPARISONS[cmp], left, right)
    gap, slack = f.ew("abs", f.ew("sub", left, right)), f.load("index", "slack", ())
    return f.ew("le", gap, f.ew("mul", slack, f.ew("add", 1.0, f.ew("abs", right))))


def _delays(spec: Spec) -> dict[str, int]:
    reach: dict[str, int] = {}
    for node in nodes(expressions(spec)):
        if node.op == "input" and node.value[1]:
            name = spec.arg(node.value[0]).ascii
            reach[name] = max(reach.get(name, 0), -node.value[1])
    return reach


def _kept(
    spec: Spec, attended: AttendPasts, passes: tuple[ChunkPass | AttentionPass, ...]
) -> tuple[TokenRows, ...]:
    """What the fields of past values are made of, each field once: inputs that are read with a
    delay, and what is attended to."""
    kept = pasts(spec)
    given = [a for a in spec.args if a.role == "input" and a.default is None]
    every = [TokenRows(a.ascii, kept[a.name], a.shape) for a in given]
    for node, both in attended.items():
        every += [TokenRows("", past, arg.shape) for past, arg in zip(both, node.args[1:3])]
    every += [rows for p in passes if isinstance(p, AttentionPass) for rows in (p.keys, p.values)]
    sources = {rows.past.name: rows for rows in every if rows.source}
    found = {rows.past.name: sources.get(rows.past.name, rows) for rows in every}
    return tuple(rows for rows in found.values() if rows.past.length != 0)


def _passes(
    spec: Spec,
    found: tuple[Recurrence, ...],
    plan: tuple[Stage, ...],
    naming: Naming,
    attended: AttendPasts,
) -> tuple[ChunkPass | AttentionPass, ...]:
    treated = _treated(spec, found)
    at = {name: n for n, stage in enumerate(plan) for name in stage.states}
    attentions = {stage.attend: n for n, stage in enumerate(plan) if stage.attend is not None}
    chunks: dict[int, ChunkBuilder] = {}
    built: dict[int, AttentionPass] = {}
    for n, stage in enumerate(plan):
        if stage.attend is None:
            chunks[n] = ChunkBuilder(
                spec, n, stage, treated, naming, lambda name: chunks[at[name]], attentions
            )
    for n, stage in reversed(list(enumerate(plan))):
        if stage.attend is None:
            chunks[n].fill()
        else:
            home, both = chunks.get(stage.home), attended[stage.attend]
            built[n] = AttentionBuilder(spec, n, stage, naming, home, attentions, both).build()
    return tuple(
        built[n] if n in built else ChunkPass(*_both(chunks[n].program()), stage)
        for n, stage in enumerate(plan)
    )


def _both(forward: Program) -> tuple[Program, Program]:
    seeds = {}
    for out in forward.outs:
        kind, _, name = out.rpartition(":")
        seeds[out] = ("dstate", name) if kind == "state" else ("cotangent", out)
    return forward, differentiate(
        forward, seeds, DIFFERENTIATED, lambda kind, name: f"{kind}:{name}"
    )


def _treated(spec: Spec, found: Sequence[Recurrence]) -> dict[str, Treatment]:
    """How each state is carried, those aside that have no form."""
    ranges = Ranges(spec)
    affine = ("written", "canonical", "coupled")
    shown = _shown(spec, {name: r for r in found if r.form in affine for name in r.states})
    treated: dict[str, Treatment] = {}
    for r in found:
        if r.form != "none":
            decays = tuple(decay_of(factor, ranges) for factor in r.decays)
            contracts = r.form in ("canonical", "coupled") and r.separable
            has_axes = any(size != ONE for size in spec.state(r.states[0]).shape)
            contracted = contracts and has_axes and shown.isdisjoint(r.states)
            treated |= dict.fromkeys(r.states, Treatment(r, decays, contracted))
    return treated


def _shown(spec: Spec, affine: dict[str, Recurrence]) -> set[str]:
    """States that something reads entry by entry."""
    roots: list[Expr] = [out.expr for out in spec.outputs]
    for state in spec.states:
        if state.name in affine:
            recurrence = affine[state.name]
            roots += recurrence.coupling.expressions if recurrence.coupling else ()
            roots += [f.expr for f in recurrence.decays]
            roots += [f.expr for write in recurrence.writes for f in write.factors]
            roots += [expr for erase in recurrence.erases for expr in (erase.a, erase.b)]
        else:
            roots.append(state.update)
    shown: set[str] = set()
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        node = vector_first(stack.pop())
        if id(node) in seen:
            continue
        seen.add(id(node))
        roots.append(node)  # kept, for its id to stay its own
        if node.op == "state":
            name, when = node.reference
            if when != "T" and name in affine:
                shown.add(name)
            continue
        found = None
        if node.op in CONTRACTING:
            found = reads(
                node, lambda leaf: leaf.reference[0] in affine and leaf.reference[1] != "T"
            )
        if found is not None and any(read.product.state for read in found):
            stack += [expr for read in found for expr in read.product.factors.values()]
            roots += [expr for read in found for expr in read.product.factors.values()]
        else:
            stack += node.args
    return shown
