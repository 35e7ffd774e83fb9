"""Text of a spec goes in: its syntax, its layout, its comments, what each mistake is told."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from conftest import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st

from lacc.diagnostics import Diagnostic, Source
from lacc.frontends import la
from lacc.frontends.la import parse
from lacc.frontends.split import split
from lacc.spec.syntax import Declare, Define, File, Node, Recur, Sized, Use


def read(text: str) -> File:
    """The syntax of a variant's statements, which are all right."""
    file, problems = parse(Source("x.la", f"variant x\n{text}\n"))
    assert not problems, problems[0].render()
    assert file is not None
    return file


def faults(text: str) -> list[Diagnostic]:
    return parse(Source("x.la", f"variant x\n{text}\n"))[1]


def lisp(node: Node) -> str:
    """A tree as one line."""
    args = "".join(f" {lisp(arg)}" for arg in node.args)
    value = "" if node.value is None else f" {node.value}"
    return str(node.value) if node.op in ("name", "number") else f"({node.op}{value}{args})"


def body(text: str) -> str:
    [statement] = read(f"o = {text}").statements
    assert isinstance(statement, Define)
    return lisp(statement.body)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b - c", "(sub (add a b) c)"),
        ("a @ b * c / d", "(div (mul (matmul a b) c) d)"),
        ("a - (b - c)", "(sub a (sub b c))"),
        ("-a**2", "(neg (pow a 2))"),
        ("a**-b**2", "(pow a (neg (pow b 2)))"),
        ("K**-0.5 * S[t].T @ q", "(matmul (mul (pow K (neg 0.5)) (T (at ('S', 't', 0)))) q)"),
        ("a * -b", "(mul a (neg b))"),
        ("A.T.Tᵀ", "(T (T (T A)))"),
        ("(k ⊙ v)ᵀ @ q", "(matmul (T (mul k v)) q)"),
        ("kᵀ", "(T k)"),
        ("k[t-W] + k[t-2] + S[t+1] + S[T]",
         "(add (add (add (at ('k', 't', '-W')) (at ('k', 't', -2))) (at ('S', 't', 1)))"
         " (at ('S', 'T', 0)))"),
        ("where(0 <= a < b, -x, attend(q, k, v, window=W, sink=s))",
         "(call where (compare ('<=', '<') 0 a b) (neg x)"
         " (call attend q k v (keyword window W) (keyword sink s)))"),
        ("f()", "(call f)"),
        ("1 + .5 + 2. + 1e-3 + 2.5E+2", "(add (add (add (add 1 0.5) 2.0) 0.001) 250.0)"),
    ],
)  # fmt: skip
def test_expressions(text: str, tree: str) -> None:
    assert body(text) == tree


def test_statements() -> None:
    file = read(
        "use feature_maps.taylor2 as φ\n"
        "use feature_maps.relu\n"
        "dim K = 64, F = 1 + K\n"
        "state S, Z : [K, F] (stabilized, tau = 2) per group = eps where S > 0, Z > 0\n"
        "gate α = g\n"
        "S[t] = α"
    )
    use, bare, sized, state, gate, recur = file.statements
    assert isinstance(use, Use)
    assert ([n.text for n in use.path], use.alias.text) == (["feature_maps", "taylor2"], "φ")
    assert isinstance(bare, Use) and bare.alias.text == "relu"
    assert isinstance(sized, Sized)
    assert [(n.text, lisp(e)) for n, e in sized.items] == [("K", "64"), ("F", "(add 1 K)")]
    assert isinstance(state, Declare)
    assert (state.role, [n.text for n in state.names]) == ("state", ["S", "Z"])
    assert state.type is not None and [lisp(axis) for axis in state.type.axes] == ["K", "F"]
    assert [(n.text, v and lisp(v)) for n, v in state.flags] == [("stabilized", None), ("tau", "2")]
    assert state.per is not None and state.per.text == "group"
    assert state.default is not None and lisp(state.default) == "eps"
    assert [lisp(cond) for cond in state.where] == ["(compare ('>',) S 0)", "(compare ('>',) Z 0)"]
    assert isinstance(gate, Define) and (gate.role, gate.name.text) == ("gate", "α")
    assert isinstance(recur, Recur) and recur.name.text == "S"


def test_a_variant_with_a_base() -> None:
    file, problems = parse(Source("x.la", "variant mine extends papers.gla\n"))
    assert not problems and file is not None and file.base is not None
    assert (file.name.text, [part.text for part in file.base]) == ("mine", ["papers", "gla"])


def test_role_words_can_name_things() -> None:
    file = read(
        "gate = 3\nstate[t] = input + where\n"
        "input per : [scalar] per per = where where where < as\n"
        "feature gate(use) = use\nuse as.use as as\ndim dim = 2\nvariant = variant[t]"
    )
    define, recur, declare, *_ = file.statements
    assert isinstance(define, Define) and define.role == "" and define.name.text == "gate"
    assert isinstance(recur, Recur) and lisp(recur.body) == "(add input where)"
    assert isinstance(declare, Declare) and declare.per is not None
    assert declare.default is not None and lisp(declare.default) == "where"
    assert [lisp(cond) for cond in declare.where] == ["(compare ('<',) where as)"]


def test_names_are_compared_after_nfkc() -> None:
    [a, b] = read("𝐊 = ℓ + ϵ\nx₁ = k̂").statements
    assert isinstance(a, Define) and (a.name.text, lisp(a.body)) == ("K", "(add l ε)")
    assert isinstance(b, Define) and (b.name.text, lisp(b.body)) == ("x1", "k̂")


# ---- layout


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a = b\n+ c", 1),
        ("a = b\n\n  # why\n  - c", 1),
        ("a = b +\n\nc", 1),
        ("a =\nb", 1),
        ("a = f(\nb,\n# note\nc\n)", 1),
        ("a = attend(q, k, v,\n  window=4)", 1),
        ("dim K = 4,\n V = 4", 1),
        ("a = b\r\n@ c\r\n", 1),
        ("a = b\rc = d", 2),
        ("a = b\n   c = d", 2),
        ("a = b\u00a0+\tc", 1),
    ],
)
def test_where_a_newline_ends_a_statement(text: str, count: int) -> None:
    assert len(read(text).statements) == count


@pytest.mark.parametrize(
    "text",
    ["a = (b\nc = d", "a = f(b,\nstate S : [K]", "a = b +\nc = d", "a = b *\ninput q : [K]",
     "a = f(b\n\nS[t] = d", "input q : [K\ninput k : [K]"],
)  # fmt: skip
def test_what_was_left_open_does_not_swallow_the_next_statement(text: str) -> None:
    file, problems = parse(Source("x.la", f"variant x\n{text}\n"))
    assert [p.code for p in problems] in (["LA0105"], ["LA0104"])
    assert file is not None and len(file.statements) == 1


def test_bom_and_crlf_leave_places_right() -> None:
    source = Source("x.la", "\ufeffvariant x\r\n\r\nα = 2 β\r\n")
    [problem] = parse(source)[1]
    assert problem.span is not None and (problem.span.text, str(problem.span)) == (
        "2 β",
        "x.la:3:5",
    )


def test_comments_and_documentation() -> None:
    file, problems = parse(
        Source(
            "x.la",
            "## Of the variant.\n## Two lines.\n# a note\nvariant x\n\n"
            "# expect class: diagonal\n# expect o[0,3,0,:2]: 0.5 -1e-3\n# expected: nothing\n"
            "## before a\na = b      ## beside a\n\n##\n#### no doc\nc = d # note\n"
            "S[t] = a  ## first\n  # note\n  ## between\n  + b  ## second\n## of nobody\n",
        )
    )
    assert not problems and file is not None
    assert file.doc == "Of the variant.\nTwo lines."
    assert [s.doc for s in file.statements] == ["before a\nbeside a", "", "first\nbetween\nsecond"]
    assert file.expects == (("class", "diagonal"), ("o[0,3,0,:2]", "0.5 -1e-3"))


# ---- mistakes


@pytest.mark.parametrize(
    ("text", "code", "place", "help"),
    [
        ("def f(x):", "LA0111", "def", "feature"),
        ("for t in x:", "LA0111", "for", "by itself"),
        ("o = a if c else b", "LA0111", "if", "where(cond, a, b)"),
        ("o = lambda x: x", "LA0111", "lambda", "feature"),
        ("normaliser n = z", "LA0111", "normaliser", "`normalizer`"),
        ("o = not a", "LA0111", "not", "branches"),
        ("S[t] == a", "LA0112", "==", "write ="),
        ("S[t] += a", "LA0112", "+=", "S[t] = S[t-1] + ..."),
        ("input q [K]", "LA0113", "[", "input q : [K]"),
        ("output o : []", "LA0113", "]", "output o : [K]"),
        ("o = S[i]", "LA0114", "i", "t-1"),
        ("o = S[t-1.5]", "LA0114", "t-1.5", "t-1"),
        ("S[t-1] = a", "LA0115", "S[t-1]", "S[t] = ..."),
        ("f(x) = a", "LA0115", "f(x)", "feature f(x)"),
        ("o = a^2", "LA0116", "^", "**"),
        ("o = x²", "LA0117", "x²", "x**2"),
        ("o = S_{t-1} + a", "LA0118", "S_{t-1}", "S[t-1]"),
        ("o = k' @ v", "LA0119", "'", ".T"),
        ("o = k^T", "LA0119", "^T", ".T"),
        ("o = 'k'", "LA0120", "'k'", "quotes"),
        ("o = f(a=1, b)", "LA0121", "b", "a= last"),
        ("o = a < b", "LA0122", "<", "where(cond, a, b)"),
        ("input g : [K] where g <= 0 per head", "LA0123", "per", "order"),
        ("o = 1e", "LA0108", "1e", "1e-6"),
        ("o = 1_000", "LA0108", "1_000", "1000"),
        ("o = 2 x", "LA0108", "2 x", "2 * x"),
        ("o = a b", "LA0104", "b", "* or @"),
        ("o = a @", "LA0104", "", "an expression"),
        ("o = k.exp()", "LA0104", ".exp", "exp(...)"),
        ("o : [V]", "LA0104", "o :", "output o : [K]"),
        ("o = a × b", "LA0103", "×", "@ (matrix product)"),
        ("o = a ∗ b", "LA0103", "∗", "write *"),
        ("o = a — b", "LA0103", "—", "write -"),
        ("o = a ＊ b", "LA0103", "＊", "write *: it is fullwidth asterisk"),
        ("o = a\u200b + b", "LA0103", "\u200b", "zero width space"),
        ("o = {a}", "LA0103", "{", "("),
    ],
)
def test_a_mistake_is_told_what_to_write(text: str, code: str, place: str, help: str) -> None:
    [problem] = faults(text)
    assert problem.code == code
    assert problem.span is not None and problem.span.text == place
    assert problem.help is not None and help in problem.help


def test_every_mistake_is_reported_in_one_run() -> None:
    found = faults("a = x^2\nb = c\ninput q\nd = S[i] + S[j]\ne = (f")
    assert [d.code for d in found] == ["LA0116", "LA0113", "LA0114", "LA0114", "LA0105"]


def test_names_of_wrong_statements_are_kept_apart() -> None:
    file, _ = parse(Source("x.la", "variant x\ninput q, k\ndim K = 4, V\na = 2 b\nc = a\n"))
    assert file is not None and {"q", "k", "K", "V", "a"} <= file.broken
    assert "c" not in file.broken and len(file.statements) == 1


def test_a_subscript_of_a_state_is_its_time_only_where_it_has_no_other_meaning() -> None:
    assert [d.code for d in faults("state S : [K]\nS_t = S[t-1]")] == ["LA0118"]
    assert [d.code for d in faults("input k : [K]\no = k_t + k_t")] == ["LA0118", "LA0118"]
    assert not faults("state S : [K]\nS[t] = S[t-1]\nS_t = S[t]\no = S_t + x_t")
    assert not faults("input k : [K]\ninput k_t : [K]\no = k_t")


@pytest.mark.parametrize("text", ["", "\n# only a note\n", "dim K = 4\n", "Variant x\ndim K = 4\n"])
def test_a_file_begins_with_its_variant(text: str) -> None:
    file, problems = parse(Source("x.la", text))
    assert [p.code for p in problems] == ["LA0109"]
    assert (file is None) == ("dim" not in text)


def test_one_variant_in_a_file() -> None:
    assert [d.code for d in faults("variant y\na = b")] == ["LA0110"]
    late = parse(Source("x.la", "a = b\nvariant y\nvariant z\n"))[1]
    assert [d.code for d in late] == ["LA0109", "LA0110"]


def test_what_inherits_from_an_unreadable_base_is_not_judged() -> None:
    file, problems = parse(Source("x.la", "variant x extends 'y'\no = x^2\n"))
    assert file is None and [d.code for d in problems] == ["LA0120", "LA0116"]


# ---- the parser


@pytest.mark.parametrize("kept", [None, b"", b"garbage", b"\x80\x05."])
def test_a_damaged_cache_of_the_grammar_does_no_harm(
    kept: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lacc"
    if kept is not None:
        folder.mkdir()
        (folder / "grammar").write_bytes(kept)
    monkeypatch.setattr(la, "user_cache_path", tmp_path.joinpath)
    la.grammar.cache_clear()
    assert body("a + b") == "(add a b)"
    la.grammar.cache_clear()
    assert body("a + b") == "(add a b)"
    (tmp_path / "file").touch()
    monkeypatch.setattr(la, "user_cache_path", lambda name: tmp_path / "file" / name)
    la.grammar.cache_clear()
    assert body("a + b") == "(add a b)"


# ---- nothing is lost


@given(st.sampled_from(EXAMPLES), st.data())
def test_splitting_loses_no_token(path, data) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    cut = data.draw(st.integers(0, len(text)))
    pieces, _ = split(Source("x.la", text[:cut]))
    spans = [piece.span for piece in pieces]
    assert all(a.end <= b.start for a, b in pairwise(spans))
    left = list(text[:cut])
    for span in spans:
        left[span.start : span.end] = " " * (span.end - span.start)
    outside = "".join(left).splitlines()
    assert all(line.lstrip()[:1] in ("", "#") for line in outside)
