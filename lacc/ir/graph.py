"""A spec in, its dependency graph out: which state or output needs which state, and how late (the one door to networkx)."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from lacc.spec.model import Expr, Spec


@dataclass(frozen=True, slots=True)
class Need:
    """``state`` read at ``when``: 0 (this token), an offset, or "T" (the last token)."""

    state: str
    when: object


def needs(expr: Expr) -> frozenset[Need]:
    """The states that ``expr`` reads."""
    return frozenset(Need(*node.value) for node in expr.walk() if node.op == "state")  # type: ignore[misc]


def reads_length(spec: Spec) -> bool:
    """Whether the spec reads `T`, the length of the call."""
    roots = [s.update for s in spec.states] + [o.expr for o in spec.outputs]
    return any(node.op == "T_length" for root in roots for node in root.walk())


def components(spec: Spec) -> tuple[tuple[str, ...], ...]:
    """Strongly connected components of the states, each after those it needs; names in declared order."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    order = {state.name: n for n, state in enumerate(spec.states)}
    graph.add_nodes_from(order)
    for state in spec.states:
        graph.add_edges_from((need.state, state.name) for need in needs(state.update))
    condensed = nx.condensation(graph)
    members = {n: sorted(condensed.nodes[n]["members"], key=order.__getitem__) for n in condensed}
    ordered = nx.lexicographical_topological_sort(condensed, key=lambda n: order[members[n][0]])
    return tuple(tuple(members[n]) for n in ordered)
