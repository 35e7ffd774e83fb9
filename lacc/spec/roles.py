"""A typed spec goes in; the gates and normalizers that are not used as what they are come out as
faults.

A gate is a factor on a previous or intermediate state and does not depend on the state that it
gates. A normalizer is a divisor on the way to an output, and the states that feed it are not
computed from the state that it normalises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lacc.diagnostics import Diagnostic, error
from lacc.spec.facts import Facts, reads
from lacc.spec.model import Expr
from lacc.spec.scope import Symbol
from lacc.spec.syntax import Define, Feature, Node, Recur

PRODUCTS = ("mul", "matmul", "solve")


# ---- gates


def gates(facts: Facts) -> None:
    """Reports gates that multiply no state, or the one that they depend on."""
    needs = facts.needs()
    for statement in facts.file.statements:
        if not isinstance(statement, Define) or statement.role != "gate":
            continue
        name = statement.name.text
        gate = facts.definitions.get(name)
        if gate is None or (gate.op == "const" and facts.scope.symbols[name].read):
            continue  # a number is folded into what it multiplies
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


def normalizers(facts: Facts) -> None:
    """Reports normalizers that do anything but divide on the way to an output."""
    needs = facts.needs()
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
