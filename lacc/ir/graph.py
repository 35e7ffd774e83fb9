"""A spec in, its dependency graph out: which state or output needs which state, and how late (the
one door to networkx)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isinf

from lacc.spec.model import Expr, Spec


@dataclass(frozen=True, slots=True)
class Need:
    """``state`` read at ``when``: 0 (this token), an offset, or "T" (the last token)."""

    state: str
    when: object


def needs(expr: Expr) -> frozenset[Need]:
    """The states that ``expr`` reads."""
    return frozenset(Need(*node.value) for node in expr.walk() if node.op == "state")


def expressions(spec: Spec) -> list[Expr]:
    """All expressions that have a value at each token."""
    defaults = [a.default for a in spec.args if a.role == "input" and a.default is not None]
    return [*defaults, *(s.update for s in spec.states), *(o.expr for o in spec.outputs)]


def nodes(roots: list[Expr]) -> Iterator[Expr]:
    """Every node under ``roots``, once each, arguments before their users."""
    seen: set[Expr] = set()
    for root in roots:
        for node in root.walk():
            if node not in seen:
                seen.add(node)
                yield node


def waits_for_the_end(spec: Spec) -> tuple[str, Expr] | None:
    """What needs tokens that are not there yet, so that there is no step, and where it says so."""
    for node in nodes(expressions(spec)):
        if node.op == "T" and not node.args:
            return "it reads T, the length of the sequence", node
        if node.op == "state" and node.reference[1] == "T":
            return f"it reads {node.reference[0]}[T], the last state", node
    for state in spec.states:
        if state.direction == "backward":
            return f"{state.name} runs backward in time", state.update
    return None


def counts_tokens(spec: Spec) -> bool:
    """Whether the number of tokens so far matters: for `t`, a table by position, attention."""
    return any(a.per == "position" for a in spec.args) or any(
        node.op in ("t", "attend") for node in nodes(expressions(spec))
    )


def components(spec: Spec) -> tuple[tuple[str, ...], ...]:
    """Strongly connected components of the states, each after those it needs; names in declared
    order."""
    return ordered_groups({s.name: {need.state for need in needs(s.update)} for s in spec.states})


def ordered_groups(needed: Mapping[str, Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """Names grouped where they need one another, each group after those it needs; ties in the order
    given."""
    order = {name: n for n, name in enumerate(needed)}
    edges = [(need, name) for name, all_needs in needed.items() for need in all_needs]
    if all(order[need] <= order[name] for need, name in edges):
        return tuple((name,) for name in order)  # no circle, and networkx need not be loaded
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph(edges)
    graph.add_nodes_from(order)
    condensed = nx.condensation(graph)
    members = {n: sorted(condensed.nodes[n]["members"], key=order.__getitem__) for n in condensed}
    ordered = nx.lexicographical_topological_sort(condensed, key=lambda n: order[members[n][0]])
    return tuple(tuple(members[n]) for n in ordered)


def fewest_covering(edges: Collection[tuple[Hashable, Hashable]]) -> set[Hashable]:
    """The fewest nodes that touch every edge of a bipartite graph of (left, right) edges (König's
    theorem)."""
    if len(edges) == 1:
        return {left for left, _ in edges}
    import networkx as nx

    graph: nx.Graph[Hashable] = nx.Graph()
    graph.add_edges_from(edges)
    left = {a for a, _ in edges}
    cover: set[Hashable] = set()
    for part in nx.connected_components(graph):
        inside = graph.subgraph(part)
        matching = nx.bipartite.hopcroft_karp_matching(inside, left & part)
        cover |= nx.bipartite.to_vertex_cover(inside, matching, left & part)
    return cover


class Uncuttable(ValueError):
    """Edges of infinite capacity lead from a source to a sink."""


def cheapest_cut(
    edges: Mapping[tuple[Hashable, Hashable], float], source: Hashable, sink: Hashable
) -> set[Hashable]:
    """The nodes on the side of ``source`` where edges (from, to) -> capacity, which may be
    infinite, are cut at the least sum so that nothing reaches ``sink``; empty where no edge ends
    there. `Uncuttable` where no finite sum does."""
    if not any(to == sink for _, to in edges):
        return set()
    import networkx as nx

    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    for (a, b), capacity in edges.items():
        if isinf(capacity):
            graph.add_edge(a, b)
        else:
            graph.add_edge(a, b, capacity=round(capacity * 1024))
    try:
        _, (near, _) = nx.minimum_cut(graph, source, sink)
    except nx.NetworkXUnbounded:
        raise Uncuttable from None
    return set(near)
