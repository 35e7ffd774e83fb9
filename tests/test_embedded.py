"""Decorated Python goes in: the syntax of the same `.la` file comes out, or what is wrong."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from conftest import ROOT

from lacc.diagnostics import LaccError, Source
from lacc.driver import load
from lacc.frontends.embedded import variant
from lacc.frontends.la import parse
from lacc.spec.format import unparse
from lacc.spec.syntax import Declare, File, Recur

# ruff: noqa: B007, F841, RUF059
# mypy: ignore-errors


def text(source: str) -> File:
    file, problems = parse(Source("x.la", source))
    assert file is not None and not problems
    return file


EXAMPLES = ROOT / "examples"
TWINS = sorted((EXAMPLES / "python").glob("*.py"))


@variant
def everything(
    q: "[K]",
    k: "[K] per group where sum(k * k) <= 1",
    g: "scalar" = -1,
    *,
    K=64,
    V=8,
    eps=1e-6,
    low=-2.5,
    u: "param [K] per layer",
):
    """One of each.

    And a second paragraph.
    """
    F = dim(1 + K)
    W = buffer("[F, K] = orthogonal_gaussian()")
    φ = feature(lambda x, y: elu(x) + y**2)
    ψ = use(feature_maps.taylor2)
    α = gate(exp(g))
    S, Z = state("[K, V] (stabilized) = eps")
    S[t] = α * S[t - 1] + outer(k, k[t - 2]) @ W.T
    Z[t] = where(0 <= g < 1, Z[t - W], S[T])
    n = normalizer(attend(q, k, v=k, window=4))
    y = -(S[t].T @ q) / n
    z = y
    return y, z


def test_each_kind_of_statement() -> None:
    expected = text(
        "## One of each.\n##\n## And a second paragraph.\n"
        "variant everything\n"
        "dim K = 64, V = 8\nconst eps = 1e-6, low = -2.5\n"
        "input q : [K]\ninput k : [K] per group where sum(k * k) <= 1\ninput g : scalar = -1\n"
        "param u : [K] per layer\n"
        "dim F = 1 + K\nbuffer W : [F, K] = orthogonal_gaussian()\n"
        "feature φ(x, y) = elu(x) + y**2\nuse feature_maps.taylor2 as ψ\ngate α = exp(g)\n"
        "state S, Z : [K, V] (stabilized) = eps\n"
        "S[t] = α * S[t-1] + outer(k, k[t-2]) @ W.T\n"
        "Z[t] = where(0 <= g < 1, Z[t-W], S[T])\n"
        "normalizer n = attend(q, k, v=k, window=4)\n"
        "y = -(S[t].T @ q) / n\nz = y\n"
    )
    outputs = [s for s in everything.statements if isinstance(s, Declare) and s.role == "output"]
    assert [(s.names[0].text, s.type) for s in outputs] == [("y", None), ("z", None)]
    at = [everything.statements.index(output) for output in outputs]
    assert isinstance(everything.statements[at[0] - 1], Declare)
    assert isinstance(everything.statements[at[1] + 1], Recur)
    rest = tuple(s for s in everything.statements if s not in outputs)
    assert rest == expected.statements
    assert (everything.name, everything.doc) == (expected.name, expected.doc)


def test_an_unnamed_output_with_a_type() -> None:
    @variant
    def add(v: "[V]", *, V=2) -> "[V]":
        s = state("[V]")
        s[t] = s[t - 1] + v
        return s[t]

    assert unparse(add) == (
        "variant add\n\ndim V = 2\ninput v : [V]\nstate s : [V]\noutput o : [V]\n\n"
        "s[t] = s[t-1] + v\no = s[t]\n"
    )


def test_places_are_those_of_the_python_file() -> None:
    here = everything.statements[-1].span
    assert here.source.name == __file__
    assert everything.name.span.text == "everything"
    gate = next(s for s in everything.statements if getattr(s, "role", "") == "gate")
    assert (gate.span.text, gate.body.span.text) == ("α = gate(exp(g))", "exp(g)")
    promise = everything.statements[3].where[0]
    assert promise.span.text == "sum(k * k) <= 1"


def broken(q, k: "[K", *rest, K, u: "[K] was x", eps="a"):
    for x in y:
        pass
    S[t + 1] = 3
    S[t] += k @ v
    a = k.t + 1
    b = lambda x: x  # noqa: E731
    c = x if y else z
    e = S[i] + 1
    f = k ^ 2
    g, h = 3
    h = np.exp(x)
    i = a % 2
    "text"
    j: "[K]" = a
    return q, k


def test_every_mistake_is_reported_in_its_place() -> None:
    with pytest.raises(LaccError) as caught:
        variant(broken)
    found = [(d.code, d.span.text.partition("\n")[0]) for d in caught.value.diagnostics]
    assert found == [
        ("LA0130", "rest"),
        ("LA0113", "q"),
        ("LA0104", ""),
        ("LA0130", "K"),
        ("LA0104", "was"),
        ("LA0120", '"a"'),
        ("LA0130", "for x in y:"),
        ("LA0115", "S[t + 1]"),
        ("LA0112", "S[t] += k @ v"),
        ("LA0104", "k.t"),
        ("LA0130", "lambda x: x"),
        ("LA0130", "x if y else z"),
        ("LA0114", "i"),
        ("LA0116", "k ^ 2"),
        ("LA0130", "g, h"),
        ("LA0104", "np.exp(x)"),
        ("LA0130", "a % 2"),
        ("LA0130", '"text"'),
        ("LA0130", 'j: "[K]" = a'),
        ("LA0130", "q"),
    ]


def test_a_function_returns_its_outputs_last() -> None:
    def nothing(q: "[K]", *, K=2):
        a = q

    def more(q: "[K]", *, K=2):
        return q
        a = q

    for function, place in ((nothing, "nothing"), (more, "a = q")):
        with pytest.raises(LaccError) as caught:
            variant(function)
        [problem] = caught.value.diagnostics
        assert (problem.code, problem.span and problem.span.text) == ("LA0130", place)


def test_the_body_is_never_run(tmp_path: Path) -> None:
    @variant
    def launches(q: "[K]", *, K=2):
        a = system(remove(q))
        return a

    assert isinstance(launches, File)


@pytest.mark.parametrize("given", [eval("lambda q: q"), len, 3])
def test_what_has_no_source_is_refused(given: Any) -> None:
    namespace: dict[str, FunctionType] = {}
    exec("def made(q): return q", namespace)
    for function in (given, namespace["made"]):
        with pytest.raises(LaccError) as caught:
            variant(function)
        assert caught.value.code == "LA0131"


@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.stem)
def test_the_twin_of_an_example_is_the_same_spec(path: Path) -> None:
    namespace = runpy.run_path(str(path))
    twin, example = load(namespace[path.stem]), load(EXAMPLES / f"{path.stem}.la")
    plain = re.sub(r"\s+## .*|\n# expect .*", "", example.text)
    assert re.sub(r"## .*", "", twin.text).strip() == re.sub(r"## .*", "", plain).strip()


# ---- files


TWO = """
import lacc
from lacc import variant
raise SystemExit("this file is never run")

@lacc.variant
def one(v: "[V]", *, V=4):
    return v

class Holder:
    @variant
    def two(v: "[V]", *, V=4):
        return 2 * v

def three(v):
    return v
"""


def test_a_function_of_a_file_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "specs.py"
    path.write_text(TWO)
    assert load(f"{path}:one").name == "one"
    assert unparse(load(f"{path}:two").file).endswith("o = 2 * v\n")
    with pytest.raises(LaccError, match="has 2 decorated functions"):
        load(path)
    with pytest.raises(LaccError, match="no decorated function `three`") as caught:
        load(f"{path}:three")
    assert caught.value.code == "LA0133"
    with pytest.raises(LaccError, match="did you mean `one`"):
        load(f"{path}:onee")
    path.write_text("x = 1\n")
    with pytest.raises(LaccError, match="0 decorated functions"):
        load(path)
    path.write_text("x = 1\ndef f(:\n")
    with pytest.raises(LaccError, match=r"specs.py:2:1") as caught:
        load(path)
    assert caught.value.code == "LA0132"
    path.write_text("x = " + "-" * 200_000 + "1\n")
    with pytest.raises(LaccError):
        load(path)


@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.stem)
def test_the_file_of_a_twin_is_a_spec(path: Path) -> None:
    assert load(path).text == load(f"{path}:{path.stem}").text


def test_problems_of_a_file_have_their_places_in_it(tmp_path: Path) -> None:
    path = tmp_path / "specs.py"
    path.write_text(TWO.replace("return 2 * v", "return 2 * w"))
    with pytest.raises(LaccError, match=r"specs.py:13:20"):
        load(f"{path}:two")
