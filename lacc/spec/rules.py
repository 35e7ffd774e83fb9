"""A typed spec goes in; the faults that need the whole of it come out: time, circles, levels,
roles.

    times      which offsets of a state may be read, and which way each recurrence runs
    circles    within one token, between directions, and through `S[T]`
    levels     nothing finer enters a quantity that heads share
    roles      each gate and normalizer is used as what it is (`lacc.spec.roles`)
    unused     warnings
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from lacc.diagnostics import Span, error, warning
from lacc.spec import roles
from lacc.spec.facts import Facts, Report, When, reads
from lacc.spec.model import Expr
from lacc.spec.names import ascii_spelling
from lacc.spec.scope import Symbol
from lacc.spec.syntax import Declare

FINENESS = {"layer": 0, "position": 0, "group": 1, "head": 2}


def direction(name: str, update: Expr) -> str:
    """Which way the state's recurrence runs: "forward", "backward", or "value" where it does not
    read itself.
    """
    own = [when for state, when in reads(update) if state == name and isinstance(when, int)]
    return (
        "forward" if min(own, default=0) < 0 else "backward" if max(own, default=0) > 0 else "value"
    )


def whole_spec(facts: Facts) -> None:
    """All rules of this file, in order."""
    _times(facts)
    _circles(facts)
    _levels(facts)
    _fields(facts)
    roles.gates(facts)
    roles.normalizers(facts)
    _unused(facts)


# ---- time


def _times(facts: Facts) -> None:
    runs = {name: direction(name, update) for name, update in facts.updates.items()}
    seen: set[tuple[str, When]] = set()
    for name, expr in (*facts.updates.items(), *facts.readouts.items(), *facts.definitions.items()):
        own = [when for state, when in reads(expr) if state == name and isinstance(when, int)]
        if name in runs and min(own, default=0) < 0 < max(own, default=0):
            facts.report(error("LA0208", facts.equation(name).span, name=name))
            seen |= {(name, when) for when in own}
        for (state, when), leaf in reads(expr).items():
            if state not in runs or not isinstance(when, int) or (state, when) in seen:
                continue
            if fault := _bad_time(state, when, runs[state]):
                seen.add((state, when))
                why, hint = fault
                place = facts.place(name, leaf)
                facts.report(error("LA0209", place, state=_at(state, when), why=why, hint=hint))


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
    last: dict[tuple[str, str], Expr] = {}
    for name, update in facts.updates.items():
        found = reads(update)
        now[name] = [s for s, when in found if when == 0 and s in facts.updates]
        ever[name] = list(dict.fromkeys(s for s, _ in found if s in facts.updates))
        last.update({(name, s): leaf for (s, when), leaf in found.items() if when == "T"})
    reported: set[str] = set()
    for name in facts.updates:
        circle = _path(now, name, name)
        if circle and not reported & set(circle):
            reported |= set(circle)
            chain = ", ".join(f"`{a}[t]` needs `{b}[t]`" for a, b in pairwise(circle))
            facts.report(error("LA0207", facts.equation(name).span, chain=chain, name=name))
    for (name, state), leaf in last.items():
        if state == name or (state in ever and _path(ever, state, name)):
            span = facts.place(name, leaf)
            other = "" if state == name else f", or let `{state}` do without `{name}`"
            facts.report(error("LA0210", span, state=state, other=other))
            reported |= {name, state}
    runs = {name: direction(name, update) for name, update in facts.updates.items()}
    for name, way in runs.items():
        for other in facts.updates:
            if way == "forward" and runs[other] == "backward" and not reported & {name, other}:
                circle = _path(ever, name, other)
                back = _path(ever, other, name)
                if circle and back:
                    reported |= {*circle, *back}
                    facts.report(error("LA0226", facts.equation(name).span, name=name, other=other))
    for name, update in facts.updates.items():
        together = {
            name,
            *(s for s in facts.updates if _path(ever, name, s) and _path(ever, s, name)),
        }
        ahead = [s for s in facts.updates if s in together and runs[s] == "backward"]
        if not ahead or name in reported:
            continue
        for (state, when), leaf in reads(update).items():
            if state in together and isinstance(when, int) and when < 0:
                place, read = facts.place(name, leaf), _at(state, when)
                facts.report(error("LA0226", place, name=read, other=ahead[0]))
                reported |= together
        for node in update.walk():
            seen = (
                {s for arg in node.args[1:3] for s, _ in reads(arg)} if node.op == "attend" else {}
            )
            if together.intersection(seen):
                chain = "it runs backward and attends to what comes of it at earlier tokens"
                facts.report(error("LA0207", facts.equation(name).span, chain=chain, name=name))
                break


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


# ---- what is kept from call to call


def _fields(facts: Facts) -> None:
    """States share their spelling with nothing else that is kept: positions, delayed values."""
    kept: dict[str, str] = {}
    exprs = (*facts.updates.values(), *facts.readouts.values())
    values = [n for n, update in facts.updates.items() if direction(n, update) == "value"]
    for node in (node for expr in exprs for node in expr.walk()):
        name, when = node.value if isinstance(node.value, tuple) else (str(node.value), 0)
        if node.op == "t" or (node.op == "param" and facts.scope.symbols[name].per == "position"):
            kept["position"] = "t" if node.op == "t" else name
        elif isinstance(when, int) and when < 0 and (node.op == "input" or name in values):
            kept[f"{ascii_spelling(name)}_past"] = name
    for statement in facts.file.statements:
        if isinstance(statement, Declare) and statement.role == "state" and statement.flags:
            names = [name.text for name in statement.names]
            kept.update({f"{ascii_spelling(name)}_log": name for name in names})
    for symbol in facts.scope.symbols.values():
        spelled = ascii_spelling(symbol.name)
        if symbol.kind == "state" and spelled in kept:
            other = kept[spelled]
            name = symbol.name
            facts.report(error("LA0214", symbol.span, name=name, other=other, spelled=spelled))


# ---- levels


def _levels(facts: Facts) -> None:
    symbols = facts.scope.symbols
    for name, expr in (*facts.updates.items(), *facts.initials.items(), *facts.readouts.items()):
        leaf = finer(expr, symbols[name], symbols)
        if leaf is not None:
            report_finer(leaf, facts.place(name, leaf), symbols[name], symbols, facts.report)


def finer(expr: Expr, symbol: Symbol, symbols: Mapping[str, Symbol]) -> Expr | None:
    """What in ``expr`` differs between heads that share ``symbol``; None where nothing does."""
    for node in expr.walk():
        if FINENESS[_level(node, symbols)] > FINENESS[symbol.per]:
            return node
    return None


def report_finer(
    leaf: Expr, span: Span, symbol: Symbol, symbols: Mapping[str, Symbol], report: Report
) -> None:
    """Reports that the coarser ``symbol`` reads ``leaf``."""
    name = leaf.value[0] if isinstance(leaf.value, tuple) else leaf.value or leaf.op
    level = _level(leaf, symbols)
    report(error("LA0232", span, name=symbol.name, per=symbol.per, finer=name, level=level))


def _level(node: Expr, symbols: Mapping[str, Symbol]) -> str:
    if node.op in ("input", "param", "buffer", "state"):
        return symbols[str(node.value[0] if isinstance(node.value, tuple) else node.value)].per
    return "head" if node.op == "head" else "layer"


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
