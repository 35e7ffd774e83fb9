"""Any syntax goes to text and back unchanged; typed expressions print as a paper writes them."""

from __future__ import annotations

import pytest
from conftest import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from lacc.diagnostics import Source, Span, render
from lacc.frontends.la import parse
from lacc.spec.format import LONGEST, show, unparse
from lacc.spec.model import Expr, Interner
from lacc.spec.shapes import Shape, Size
from lacc.spec.syntax import (
    Declare,
    Define,
    Feature,
    File,
    Name,
    Node,
    Recur,
    Sized,
    Statement,
    Type,
    Use,
)

NOWHERE = Span(Source("<test>", ""), 0, 0)
BINARY = ("add", "sub", "mul", "div", "pow", "matmul")

KEYWORDS = ["gate", "state", "input", "dim", "use", "where", "per", "as", "scalar", "extends"]
words = st.sampled_from(["a", "b", "S", "K", "φ", "x_1", "t", "T", "inf", "variant", *KEYWORDS])
names = st.builds(Name, words, st.just(NOWHERE))
several = st.lists(names, min_size=1, max_size=3).map(tuple)


def node(op: str, value: object = None, *args: Node) -> Node:
    return Node(op, value, args, NOWHERE)


numbers = st.integers(0, 10**20) | st.floats(0, allow_infinity=False, allow_nan=False)
times = (
    st.integers(-9, 9).map(lambda by: ("t", by))
    | st.builds(lambda sign, word: ("t", sign + word), st.sampled_from("+-"), words)
    | st.just(("T", 0))
)
leaves = (
    words.map(lambda word: node("name", word))
    | numbers.map(lambda number: node("number", number))
    | st.builds(lambda word, time: node("at", (word, *time)), words, times)
)


def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Expressions made of ``inner``."""
    signs = st.lists(st.sampled_from(["<", "<=", ">", ">=", "=="]), min_size=1, max_size=2)
    args = st.lists(inner | compared(inner, signs), max_size=3)
    keywords = st.lists(
        st.builds(lambda word, value: node("keyword", word, value), words, inner), max_size=2
    )
    return (
        st.builds(lambda op, a, b: node(op, None, a, b), st.sampled_from(BINARY), inner, inner)
        | st.builds(lambda op, a: node(op, None, a), st.sampled_from(["neg", "T"]), inner)
        | st.builds(lambda f, xs, ks: node("call", f, *xs, *ks), words, args, keywords)
    )


def compared(
    inner: st.SearchStrategy[Node], signs: st.SearchStrategy[list[str]]
) -> st.SearchStrategy[Node]:
    """Comparisons of ``inner``."""
    return st.tuples(signs, st.lists(inner, min_size=3, max_size=3)).map(
        lambda drawn: node("compare", tuple(drawn[0]), *drawn[1][: len(drawn[0]) + 1])
    )


exprs = st.recursive(leaves, larger, max_leaves=8)
conds = st.lists(compared(exprs, st.just(["<"])), max_size=2).map(tuple)
types = st.lists(exprs, max_size=2).map(lambda axes: Type(tuple(axes), NOWHERE))
flags = st.lists(st.tuples(names, st.none() | exprs), max_size=2).map(tuple)
lines = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=8)
docs = st.lists(lines, max_size=3).map("\n".join)
roles = st.sampled_from(["input", "param", "buffer", "state", "output"])
here = st.just(NOWHERE)
statements: st.SearchStrategy[Statement] = st.one_of(
    st.builds(
        Sized,
        st.sampled_from(["dim", "const"]),
        st.lists(st.tuples(names, exprs), min_size=1, max_size=2).map(tuple),
        here,
        docs,
    ),
    st.builds(
        Declare,
        roles,
        several,
        types,
        flags,
        st.none() | names,
        st.none() | exprs,
        conds,
        here,
        docs,
    ),
    st.builds(Feature, names, several, exprs, here, docs),
    st.builds(Define, st.sampled_from(["", "gate", "normalizer"]), names, exprs, here, docs),
    st.builds(Recur, names, exprs, here, docs),
    st.builds(
        lambda path, alias: Use(path, alias or path[-1], NOWHERE), several, st.none() | names
    ),
)
keys = st.sampled_from(["class", "modes", "o[0,1,2,:3]"])
files = st.builds(
    File,
    st.just(NOWHERE.source),
    names,
    st.none() | several,
    st.lists(statements, max_size=4).map(tuple),
    docs,
    st.lists(st.tuples(keys, lines), max_size=2).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(files)
def test_text_of_any_syntax_parses_to_it(file: File) -> None:
    text = unparse(file)
    parsed, problems = parse(Source("<test>", text))
    assert not problems, render(problems) + text
    assert parsed == file
    assert unparse(parsed) == text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_canonical_text_of_the_examples(path) -> None:  # type: ignore[no-untyped-def]
    file, _ = parse(Source.read(path))
    assert file is not None
    assert parse(Source("<test>", unparse(file)))[0] == file


def test_canonical_layout() -> None:
    text = (
        "## Doc.\nvariant x extends y\n\n"
        "dim K = 64, V = 64\nconst eps = 1e-6\n"
        "input g : [K] where g <= 0            ## log of the gate\n"
        "gate α = exp(g)\nstate S : [K, V] (stabilized) per layer = 0\n\n"
        "## one\n## two\nS[t] = diag(α) @ S[t-1]\no = -(a - (b - c))**-0.5 / (d / e)\n\n"
        "# expect class: diagonal\n"
    )
    file, _ = parse(Source("<test>", text))
    assert file is not None and unparse(file) == text


# ---- typed expressions

make = Interner()
K, V = Size.of("K"), Size.of("V")


def typed(op: str, *args: Expr, value: object = None, shape: Shape = ()) -> Expr:
    return make(op, args, value, shape, NOWHERE)


q = typed("input", value=("q", 0), shape=(K,))
g = typed("input", value=("g", -2), shape=(K,))
S = typed("state", value=("S", 0), shape=(K, V))
half = typed("const", value=-0.5)
size = typed("size", value=K)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (
            typed("matmul", typed("mul", typed("pow", size, half), typed("T", S)), q),
            "K**-0.5 * S[t].T @ q",
        ),
        (typed("diag", typed("exp", g)), "diag(exp(g[t-2]))"),
        (typed("state", value=("S", "T")), "S[T]"),
        (typed("sub", q, typed("sub", q, q)), "q - (q - q)"),
        (typed("pow", half, half), "(-0.5)**-0.5"),
        (typed("mul", typed("size", value=Size.of(1) + K), q), "(1 + K) * q"),
        (typed("where", typed("lt", q, half), q, typed("neg", q)), "where(q < -0.5, q, -q)"),
        (typed("reduce_max", q), "max(q)"),
        (typed("roll", q, value=2), "roll(q, 2)"),
        (typed("attend", q, q, q, half, value=4), "attend(q, q, q, window=4, sink=-0.5)"),
        (typed("sub", typed("eye", shape=(K, K)), S), "I - S[t]"),
        (typed("const", value=float("inf")), "inf"),
    ],
)
def test_typed_expressions(expr: Expr, text: str) -> None:
    assert show(expr) == text


def test_parts_can_have_names() -> None:
    decayed = typed("matmul", typed("diag", typed("exp", g)), S)
    assert show(decayed, {typed("exp", g): "α"}) == "diag(α) @ S[t]"


def test_a_large_expression_is_cut() -> None:
    expr = q
    for _ in range(5000):
        expr = typed("add", expr, expr)
    assert len(show(expr)) < 3 * LONGEST and "…" in show(expr)
