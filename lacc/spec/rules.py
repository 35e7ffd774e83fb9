"""The parts of a typed spec go in; the faults that need the whole of it come out: time, circles,
levels, roles.

times      which offsets of a state may be read, and which way each recurrence runs
circles    within one token, between directions, and through `S[T]`
levels     nothing finer enters a quantity that heads share
gates, normalizers   each is used as what it is
unused     warnings
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from lacc.diagnostics import Diagnostic, Span, error, warning
from lacc.spec.model import Expr
from lacc.spec.scope import Scope, Symbol
from lacc.spec.syntax import Define, Feature, File, Node, Recur

When = int | str
FINENESS = {"layer": 0, "position": 0, "group": 1, "head": 2}
PRODUCTS = ("mul", "matmul", "solve")
Report = Callable[[Diagnostic], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at. ``updates`` and ``readouts`` hold the statements that are free of
    faults; ``definitions`` all other typed expressions by name; ``typed`` the type of each node
    that a statement wrote."""

    file: File
    scope: Scope
    updates: Mapping[str, Expr]
    readouts: Mapping[str, Expr]
    definitions: Mapping[str, Expr]
    initials: Mapping[str, Expr]
    typed: Mapping[int, Expr]
    report: Report


def reads(expr: Expr) -> dict[tuple[str, When], Span]:
    """The states that ``expr`` reads, each with its time, in order of first reading."""
    found: dict[tuple[str, When], Span] = {}
    for node in expr.walk():
        if node.op == "state" and isinstance(node.value, tuple):
            found.setdefault(node.value, node.span)
    return found


def direction(name: str, update: Expr) -> str:
    """Which way the state's recurrence runs: "forward", "backward", or "value" where it does not
    read itself.
    """
    own = [when for state, when in reads(update) if state == name and isinstance(when, int)]
    return (
        "forward" if any(w < 0 for w in own) else "backward" if any(w > 0 for w in own) else "value"
    )


def whole_spec(facts: Facts) -> None:
    """All rules of this file, in order."""
    _times(facts)
    _circles(facts)
    _levels(facts)
    _gates(facts)
    _normalizers(facts)
    _unused(facts)


# ---- time


def _times(facts: Facts) -> None:
    runs = {name: direction(name, update) for name, update in facts.updates.items()}
    seen: set[tuple[str, When]] = set()
    for name, expr in (*facts.updates.items(), *facts.readouts.items(), *facts.definitions.items()):
        own = {when for state, when in reads(expr) if state == name and isinstance(when, int)}
        if name in runs and any(w < 0 for w in own) and any(w > 0 for w in own):
            facts.report(error("LA0208", _recur(facts, name).span, name=name))
            seen |= {(name, when) for when in own}
        for (state, when), span in reads(expr).items():
            if state not in runs or not isinstance(when, int) or (state, when) in seen:
                continue
            why = _bad_time(state, when, runs[state])
            if why:
                seen.add((state, when))
                facts.report(error("LA0209", span, state=_at(state, when), why=why[0], hint=why[1]))


def _bad_time(state: str, when: int, runs: str) -> tuple[str, str] | None:
    """Why a state that ``runs`` this way is not read at ``when``, and the way out; None where it
    is.
    """
    step = {"forward": -1, "backward": 1, "value": 0}[runs]
    if when in (0, step) or (runs == "value" and when < 0):
        return None
    if runs == "value":
        return (
            f"`{state}` is a value of its own token and not known ahead",
            "only a state that reads itself at t+1 runs backward",
        )
    if (when < 0) != (step < 0):
        return f"`{state}` runs {runs}", f"read `{_at(state, step)}` or `{state}[t]`"
    return (
        f"a recurrence keeps its last value, `{_at(state, step)}`, only",
        f"declare a second state of its shape, write `P[t] = {_at(state, step)}`, and delay that",
    )


def _at(state: str, when: When) -> str:
    if isinstance(when, str):
        return f"{state}[{when}]"
    return f"{state}[t{when:+d}]" if when else f"{state}[t]"


def _circles(facts: Facts) -> None:
    """Circles within one token first; then those that two directions, or an end of the sequence,
    close.
    """
    now: dict[str, list[str]] = {}
    ever: dict[str, list[str]] = {}
    last: dict[tuple[str, str], Span] = {}
    for name, update in facts.updates.items():
        found = reads(update)
        now[name] = [s for s, when in found if when == 0 and s in facts.updates]
        ever[name] = list(dict.fromkeys(s for s, _ in found if s in facts.updates))
        last.update({(name, s): span for (s, when), span in found.items() if when == "T"})
    reported: set[str] = set()
    for name in facts.updates:
        circle = _path(now, name, name)
        if circle and not reported & set(circle):
            reported |= set(circle)
            chain = ", ".join(f"`{a}[t]` needs `{b}[t]`" for a, b in pairwise(circle))
            facts.report(error("LA0207", _recur(facts, name).span, chain=chain, name=name))
    for (name, state), span in last.items():
        if state == name or _path(ever, state, name):
            facts.report(error("LA0210", span, state=state, name=name))
            reported |= {name, state}
    runs = {name: direction(name, update) for name, update in facts.updates.items()}
    for name, way in runs.items():
        for other in facts.updates:
            if way == "forward" and runs[other] == "backward" and not reported & {name, other}:
                circle = _path(ever, name, other)
                back = _path(ever, other, name)
                if circle and back:
                    reported |= {*circle, *back}
                    facts.report(error("LA0226", _recur(facts, name).span, name=name, other=other))


def _path(edges: Mapping[str, list[str]], start: str, goal: str) -> list[str]:
    """The shortest way of one step or more from ``start`` to ``goal``; empty where there is
    none.
    """
    came: dict[str, str] = {}
    queue = [start]
    for at in queue:
        for to in edges[at]:
            if to not in came:
                came[to] = at
                queue.append(to)
    if goal not in came:
        return []
    path = [goal, came[goal]]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[::-1]


def _recur(facts: Facts, name: str) -> Recur:
    return next(s for s in facts.file.statements if isinstance(s, Recur) and s.name.text == name)


# ---- levels


def _levels(facts: Facts) -> None:
    symbols = facts.scope.symbols
    for name, expr in (*facts.updates.items(), *facts.initials.items(), *facts.readouts.items()):
        finer(expr, symbols[name], symbols, facts.report)


def finer(expr: Expr, symbol: Symbol, symbols: Mapping[str, Symbol], report: Report) -> None:
    """Reports what in ``expr`` differs between heads that share ``symbol``."""
    for node in expr.walk():
        name = str(node.value[0] if isinstance(node.value, tuple) else node.value)
        if node.op in ("input", "param", "buffer", "state"):
            per = symbols[name].per
        elif node.op == "head":
            name, per = "head", "head"
        else:
            continue
        if FINENESS[per] > FINENESS[symbol.per]:
            report(
                error("LA0232", node.span, name=symbol.name, per=symbol.per, finer=name, level=per)
            )
            return


# ---- gates


def _gates(facts: Facts) -> None:
    needs = _needs(facts)
    for statement in facts.file.statements:
        if not isinstance(statement, Define) or statement.role != "gate":
            continue
        name = statement.name.text
        gate = facts.definitions.get(name)
        if gate is None:
            continue
        gated: dict[str, None] = {}
        for state, update in facts.updates.items():
            gated.update(dict.fromkeys(_gated(gate, update, state)))
        for readout in facts.readouts.values():
            gated.update(dict.fromkeys(_gated_previous(gate, readout, facts.scope.symbols)))
        if not gated and len(facts.updates) == _states(facts):
            why, hint = _no_factor(gate, facts)
            facts.report(error("LA0215", statement.span, name=name, why=why, hint=hint))
            continue
        feeding = {s for state, _ in reads(gate) for s in (state, *needs.get(state, ()))}
        own = next((state for state in gated if state in feeding), None)
        if own is not None:
            why = f"depends on `{own}`, the state that it gates"
            hint = f"write `{name} = …` without `gate`; the recurrence is nonlinear in `{own}`"
            facts.report(error("LA0215", statement.span, name=name, why=why, hint=hint))


def _states(facts: Facts) -> int:
    return sum(symbol.kind == "state" for symbol in facts.scope.symbols.values())


def _no_factor(gate: Expr, facts: Facts) -> tuple[str, str]:
    """Why a gate that multiplies no state is none, and the way out."""
    users = [name for name, update in facts.updates.items() if gate in set(update.walk())]
    why = "multiplies no previous or intermediate state"
    if users:
        why += f" in the update of `{users[0]}`"
    hint = (
        "a gate is a factor on a state, as in `α * S[t-1]` or `diag(α) @ S[t-1]`\n"
        "a plain definition, without `gate`, may be anything"
    )
    return why, hint


def _needs(facts: Facts) -> dict[str, set[str]]:
    """For each state all states that its update reads, at any time, and those that these read."""
    edges = {name: list({s for s, _ in reads(u)}) for name, u in facts.updates.items()}
    closed: dict[str, set[str]] = {}
    for name in edges:
        seen: set[str] = set()
        stack = list(edges[name])
        while stack:
            state = stack.pop()
            if state not in seen:
                seen.add(state)
                stack.extend(edges.get(state, ()))
        closed[name] = seen
    return closed


def _factors(gate: Expr, expr: Expr) -> Iterable[Expr]:
    """What is multiplied, somewhere in ``expr``, by a factor that holds the gate."""
    holds: set[int] = {id(gate)}
    for node in expr.walk():
        if any(id(arg) in holds for arg in node.args):
            holds.add(id(node))
        if node.op in PRODUCTS:
            left, right = node.args
            if id(left) in holds:
                yield right
            if id(right) in holds:
                yield left


def _gated(gate: Expr, update: Expr, name: str) -> list[str]:
    """The states that the gate multiplies in the update of ``name``: itself, else others."""
    gated: dict[str, None] = {}
    for factor in _factors(gate, update):
        states = [state for state, _ in reads(factor)]
        gated.update(dict.fromkeys([name] if name in states else states))
    return list(gated)


def _gated_previous(gate: Expr, readout: Expr, symbols: Mapping[str, Symbol]) -> list[str]:
    """The states whose previous value the gate multiplies in a readout."""
    return [
        state
        for factor in _factors(gate, readout)
        for state, when in reads(factor)
        if when in (-1, 1) and factor.shape == symbols[state].shape
    ]


# ---- normalizers


def _normalizers(facts: Facts) -> None:
    needs = _needs(facts)
    for statement in facts.file.statements:
        if not isinstance(statement, Define) or statement.role != "normalizer":
            continue
        name = statement.name.text
        fault = _not_a_divisor(name, facts)
        if fault is not None:
            facts.report(fault)
            continue
        normalizer = facts.definitions.get(name)
        if normalizer is None:
            continue
        feeding = list(dict.fromkeys(state for state, _ in reads(normalizer)))
        for state in _normalised(name, facts):
            bad = [z for z in feeding if z != state and state in needs.get(z, ())]
            if bad:
                why = f"reads `{bad[0]}`, computed from `{state}`, the state that it normalises"
                hint = f"write `{name} = …` without `normalizer`"
                facts.report(error("LA0216", statement.span, name=name, why=why, hint=hint))
                break


def _not_a_divisor(name: str, facts: Facts) -> Diagnostic | None:
    """The first use of ``name`` that is not a divisor on the way to an output."""
    through = {name}
    for statement in facts.file.statements:
        if not isinstance(statement, Define | Feature | Recur):
            continue
        uses = [use for use in _uses(statement.body) if use[0].value in through]
        if not uses:
            continue
        node = uses[0][0]
        if isinstance(statement, Recur):
            why = f"enters the update of `{statement.name.text}`, not an output"
            hint = f"write `{name} = …` without `normalizer` for a divisor inside a recurrence"
            return error("LA0216", node.span, name=name, why=why, hint=hint)
        bad = [use for use, divides in uses if use.value == name and not divides]
        if bad and not (isinstance(statement, Define) and statement.role == "normalizer"):
            why = "is used as something else than a divisor"
            hint = f"divide by it, `… / {name}`, or write `{name} = …` without `normalizer`"
            return error("LA0216", bad[0].span, name=name, why=why, hint=hint)
        through.add(statement.name.text)
    return None


def _uses(root: Node) -> Iterable[tuple[Node, bool]]:
    """Every name, index and call in ``root``, and whether it is part of a divisor."""
    stack = [(root, False)]
    while stack:
        node, divides = stack.pop()
        if node.op == "at" and isinstance(node.value, tuple):
            yield Node("name", node.value[0], (), node.span), divides
        elif node.op == "name" or node.op == "call":
            yield node, divides
        inverse = node.op == "pow" and node.args[1].op == "neg"
        for index, arg in reversed(list(enumerate(node.args))):
            below = (node.op == "div" and index == 1) or (inverse and index == 0)
            stack.append((arg, divides or below))


def _normalised(name: str, facts: Facts) -> list[str]:
    """The states in the dividends of ``name``."""
    found: dict[str, None] = {}
    for statement in facts.file.statements:
        if not isinstance(statement, Define):
            continue
        stack = [statement.body]
        while stack:
            node = stack.pop()
            stack.extend(node.args)
            if node.op == "div" and any(use.value == name for use, _ in _uses(node.args[1])):
                dividend = facts.typed.get(id(node.args[0]))
                found.update({s: None for s, _ in (reads(dividend) if dividend else ())})
    return list(found)


# ---- unused


def _unused(facts: Facts) -> None:
    reached: set[str] = set()
    stack = [state for readout in facts.readouts.values() for state, _ in reads(readout)]
    while stack:
        state = stack.pop()
        if state not in reached:
            reached.add(state)
            if state in facts.updates:
                stack.extend(s for s, _ in reads(facts.updates[state]))
    for symbol in facts.scope.symbols.values():
        used = symbol.name in reached if symbol.kind == "state" else symbol.read
        if not used and symbol.kind not in ("output", "gate"):
            kind = symbol.kind or "definition"
            facts.report(warning("LA0229", symbol.span, name=symbol.name, kind=kind))
