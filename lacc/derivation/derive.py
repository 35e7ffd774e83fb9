"""What is compiled of a spec goes in, its whole derivation comes out: for each recurrence, and for
each attention, the form it has, the chunk form, the backward form and the decode step.

    document = derive(plain(spec), modes(plain(spec)))

Everything is derived from the class of a recurrence; the names of variants play no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lacc.analysis.decay import decay_of
from lacc.analysis.modes import Modes
from lacc.analysis.plain import Plain
from lacc.analysis.ranges import Ranges
from lacc.analysis.transition import Recurrence
from lacc.derivation.adjoint import Canonical
from lacc.derivation.attention import Attention
from lacc.derivation.coupled import Coupled
from lacc.derivation.naming import Names, alphabet
from lacc.derivation.reading import contractions
from lacc.derivation.terms import Equation, Part, Section, T, Term, spec, symbol
from lacc.derivation.tropical import Tropical
from lacc.ir.graph import expressions, nodes
from lacc.spec.model import Expr, Spec
from lacc.spec.names import as_read, is_memory

CLASSES = {
    "none": "a value of each token",
    "identity": "the state only accumulates",
    "scalar": "a scalar decay",
    "diagonal (rows)": "a diagonal decay of the rows",
    "diagonal (columns)": "a diagonal decay of the columns",
    "diagonal (both sides)": "a diagonal decay on both sides",
    "elementwise": "a decay of its own for every entry",
    "low rank": "{decay}erases of rank {rank}",
    "coupled": "states that need one another",
    "dense": "a dense map of the entries",
    "maxplus": "a running maximum",
    "minplus": "a running minimum",
    "logsumexp": "a running log-sum-exp",
    "nonlinear": "an update that is not linear in the state",
}


@dataclass(frozen=True)
class Derived:
    """The forms of one recurrence or attention.

    ``kind`` is a key of `CLASSES`, or "attention"; ``states`` are those that it carries, ``direct``
    the names of the cotangents that reads send them entry by entry, ``reads`` the cotangents of
    contractions with what is read. ``turned``: t counts tokens from the end. ``sections`` are
    recurrent, chunk, backward, decode.
    """

    kind: str
    title: str
    states: tuple[str, ...]
    sections: tuple[Section, ...]
    steps: tuple[Equation, ...] = ()
    direct: tuple[str, ...] = ()
    reads: tuple[tuple[str, Term], ...] = ()
    turned: bool = False
    node: Expr | None = None

    @property
    def equations(self) -> list[Equation]:
        return [equation for section in self.sections for equation in section.equations]


@dataclass(frozen=True)
class Derivation:
    """The whole of a spec: its own equations, then what is derived of each recurrence. ``spec`` is
    what is compiled, ``written`` what was written."""

    spec: Spec
    written: Spec
    recurrent: Section
    parts: tuple[Derived, ...]


def derive(written: Spec, plain: Plain, modes: Modes) -> Derivation:
    """Every form of ``written``, of which ``plain`` is compiled."""
    parts = _with_shares(tuple(_parts(plain, modes)))
    return Derivation(plain.spec, written, _recurrent(written), parts)


def _with_shares(parts: tuple[Derived, ...]) -> tuple[Derived, ...]:
    """The equations of gradients as shares where their factor stands in another one too, of the
    same recurrence or of another, and a sentence on what that means."""
    of = [{_key(e): e for e in map(_pulled, part.equations) if e is not None} for part in parts]
    stands: dict[object, int] = {}
    for exprs in of:
        for expr in exprs.values():
            for key in {_key(node) for node in expr.walk()}:
                stands[key] = stands.get(key, 0) + 1

    def marked(section: Section) -> Section:
        found: list[Part] = []
        for part in section.parts:
            expr = _pulled(part) if isinstance(part, Equation) else None
            if isinstance(part, Equation) and expr is not None and stands[_key(expr)] > 1:
                part = replace(part, share=True)
            found.append(part)
        if any(isinstance(part, Equation) and part.share for part in found):
            found.append(_SHARES)
        return Section(section.title, tuple(found))

    return tuple(replace(part, sections=tuple(map(marked, part.sections))) for part in parts)


_SHARES = (
    "+= adds one share of several: the factor stands in other factors above, or in those of "
    "another state, and its gradient is the sum of all shares, with what readouts take of it "
    "beside a state."
)


def _pulled(equation: Equation) -> Expr | None:
    """What an equation is the gradient of."""
    if equation.left.op != "d" or not isinstance(equation.left.args[0].value, tuple):
        return None
    expr = equation.left.args[0].value[0]
    return expr if isinstance(expr, Expr) else None


def _key(expr: Expr) -> tuple[object, ...]:
    """What equal expressions of different builders have in common."""
    return (expr.op, repr(expr.value), expr.shape, *map(_key, expr.args))


def _delays(name: str) -> bool:
    """Whether a state only holds what was there some tokens ago."""
    return is_memory(name) and not name.endswith("@log")


def _scaled(plain: Plain, recurrence: Recurrence) -> Part | None:
    """How a `(stabilized)` state is kept; None where it is none."""
    state = plain.spec.state(recurrence.states[0])
    owner, _ = plain.exponents.get(state.ascii, ("", ()))
    held = next((s for s in plain.spec.states if s.ascii == owner), None)
    if held is None:
        return None
    kept, power = symbol(state.name, T), symbol(held.name, T)
    return (
        "The state is kept divided by the exponential of ",
        power,
        ", and ",
        kept,
        " is that value; stop_gradient (sg) passes its argument and no gradient.",
    )


def _recurrent(spec_: Spec) -> Section:
    """The spec's own equations."""
    parts: list[Part] = ["What is computed, token by token; states start as declared:"]
    for definition in spec_.definitions:
        if definition.expr.args and definition.role != "feature":
            parts.append(Equation(Term("named", (), (definition.expr, T)), _whole(definition.expr)))
    for state in spec_.states:
        if not is_memory(state.name):
            parts.append(Equation(symbol(state.name, T), spec(state.update, T)))
    for out in spec_.outputs:
        parts.append(Equation(symbol(out.name, T), spec(out.expr, T)))
    return Section("Recurrent form", tuple(parts))


def _whole(expr: Expr) -> Term:
    """An expression by its parts, where it has a name."""
    return Term("whole", (), (expr, T))


def _parts(plain: Plain, modes: Modes) -> Iterator[Derived]:
    spec_, ranges = plain.spec, Ranges(plain.spec)
    obstacles = {name: why for states, why in modes.refused for name in states}
    for recurrence in plain.recurrences:
        if recurrence.form == "written" or all(map(_delays, recurrence.states)):
            continue
        names = Names(spec_)
        found = _derived(recurrence, spec_, ranges, names)
        why = obstacles.get(recurrence.states[0])
        if found is None:
            yield _by_token(recurrence, spec_, names, why.reason if why else "")
        else:
            turned = recurrence.direction == "backward"
            first, *others = found.sections
            if scaled := _scaled(plain, recurrence):
                first = Section(first.title, (scaled, *first.parts))
            yield replace(found, turned=turned, sections=(first, *others))
    attends = [node for node in nodes(expressions(spec_)) if node.op == "attend"]
    for number, node in enumerate(attends, 1):
        attention = Attention(node, Names(spec_))
        forms = attention.forward(), attention.chunk(), attention.backward()
        sections = *forms, attention.decode()
        title = "Attention" if len(attends) == 1 else f"Attention {number}"
        yield Derived("attention", title, (), sections, node=node)


def _derived(recurrence: Recurrence, spec_: Spec, ranges: Ranges, names: Names) -> Derived | None:
    """The forms of a recurrence that has chunks."""
    states = [spec_.state(name) for name in recurrence.states]
    roots = [o.expr for o in spec_.outputs]
    roots += [s.update for s in spec_.states if s.name not in recurrence.states]
    reads, shown = contractions(roots, set(recurrence.states))
    title = _title(recurrence)
    if recurrence.form == "tropical":
        running = Tropical(recurrence, states[0], names)
        sections = _sections(recurrence, (running.step(),), running)
        return Derived(
            recurrence.kind,
            title,
            recurrence.states,
            sections,
            (running.step(),),
            (running.direct,),
        )
    if recurrence.form == "coupled":
        coupled = Coupled(recurrence, states, reads, bool(shown), names)
        steps = tuple(coupled.steps())
        sections = _sections(recurrence, steps, coupled)
        return Derived("coupled", title, recurrence.states, sections, steps, tuple(coupled.direct))
    if recurrence.form != "canonical":
        return None
    decays = [decay_of(factor, ranges) for factor in recurrence.decays]
    one = Canonical(recurrence, decays, states[0], reads, bool(shown), names)
    sections = _sections(recurrence, (one.step(),), one)
    given = tuple(
        (name, one.read_equation(i, read).left)
        for i, (name, read) in enumerate(zip(one.cotangents, one.reads))
    )
    direct = (one.direct,) if one.direct else ()
    return Derived(
        recurrence.transition, title, recurrence.states, sections, (one.step(),), direct, given
    )


def _sections(
    recurrence: Recurrence, steps: tuple[Equation, ...], builder: Canonical | Coupled | Tropical
) -> tuple[Section, ...]:
    said = "By its class, a token does:"
    if recurrence.direction == "backward":
        said = (
            "It runs from the last token to the first: below, t counts the tokens from the end, "
            "and t-1 is the token after. By its class, a token does:"
        )
    first = Section("Canonical form", (said, *steps))
    return first, builder.chunk(), builder.backward(), builder.decode()


def _title(recurrence: Recurrence) -> str:
    kind = recurrence.transition if recurrence.kind == "affine" else recurrence.kind
    names = alphabet(as_read(name, 0)[0] for name in recurrence.states)
    noun = "State" if len(recurrence.states) == 1 else "States"
    decay = "a decay and " if recurrence.decays else ""
    return f"{noun} {names}: {CLASSES[kind].format(rank=recurrence.rank, decay=decay)}"


def _by_token(recurrence: Recurrence, spec_: Spec, names: Names, why: str) -> Derived:
    """The forms of a recurrence without chunks: token by token, with its Jacobian."""
    kind = recurrence.transition if recurrence.kind == "affine" else recurrence.kind
    steps = tuple(
        Equation(symbol(name, T), spec(spec_.state(name).update, T)) for name in recurrence.states
    )
    state = recurrence.states[0] if len(recurrence.states) == 1 else "X"
    direct = names.fresh("G", "Ḡ")
    adjoint = Equation(
        symbol(f"d {state}", T),
        Term("jacobian", (symbol(direct, T),), state),
    )
    reason = f" ({why})" if why else ""
    stacked = "" if state != "X" else f", with X = ({', '.join(recurrence.states)})"
    sections = (
        Section("Recurrent form", ("A token does:", *steps)),
        Section(
            "Chunk form",
            (f"There is none{reason}: the state goes from token to token.",),
        ),
        Section(
            "Backward",
            (
                (
                    "Token by token, from the last to the first, by the transposed Jacobian of the "
                    f"update at the state that was{stacked}; ",
                    symbol(direct, T),
                    " is what the outputs of the token send:",
                ),
                adjoint,
            ),
        ),
        Section("Decode step", ("One token, from the state before it: the update above.",)),
    )
    return Derived(kind, _title(recurrence), recurrence.states, sections, steps)
