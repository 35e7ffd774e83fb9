"""The type checker: what a spec means, beyond the renderings of `tests/errors`."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import EXAMPLES

from lacc.diagnostics import LaccError, Source
from lacc.driver import load
from lacc.frontends.la import parse
from lacc.spec.check import check
from lacc.spec.format import show
from lacc.spec.load import Loader
from lacc.spec.model import Spec
from lacc.spec.names import KEYWORDS, ascii_spelling, nfkc
from lacc.spec.shapes import show as shape
from lacc.spec.syntax import Declare, Define, Node

HEAD = "variant x\ndim K = 4, V = 6\ninput q, k : [K]\ninput v : [V]\n"


def spec(body: str, overrides: Mapping[str, float] | None = None, head: str = HEAD) -> Spec:
    return load(head + body, overrides)


def codes(body: str, overrides: Mapping[str, float] | None = None, head: str = HEAD) -> list[str]:
    with pytest.raises(LaccError) as caught:
        spec(body, overrides, head)
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


def typed(expr: str) -> tuple[str, str]:
    """Shape and text of an expression of q, k : [K], v : [V], s a scalar and A : [K, V]."""
    made = spec(f"input s : scalar\nparam A : [K, V]\ny = {expr}\noutput o : scalar\no = sum(y)\n")
    y = next(d for d in made.definitions if d.name == "y").expr
    return shape(y.shape), show(y)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_checks_quickly_and_without_a_warning(path: Path) -> None:
    file, problems = parse(Source.read(path))
    assert file is not None and not problems
    times = []
    for _ in range(3):
        start = time.perf_counter()
        checked = check(file, {}, Loader(parse, path.parent))
        times.append(time.perf_counter() - start)
    assert not checked.warnings
    assert min(times) < 0.1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_canonical_text_means_the_same(path: Path) -> None:
    first = load(path)
    again = load(first.text)
    assert (again.text, again.digest) == (first.text, first.digest)
    assert [show(s.update) for s in again.states] == [show(s.update) for s in first.states]
    assert [show(o.expr) for o in again.outputs] == [show(o.expr) for o in first.outputs]
    assert [arg.ascii for arg in again.args] == [arg.ascii for arg in first.args]


@pytest.mark.parametrize(
    ("expr", "result"),
    [
        ("k @ v.T", "[K, V]"),
        ("k.T @ q", "scalar"),
        ("A.T @ q", "[V]"),
        ("q.T @ A", "[1, V]"),
        ("q.T @ A @ v", "scalar"),
        ("k @ (k.T @ q)", "[K]"),
        ("(k.T @ q) @ v.T", "[1, V]"),
        ("k.T.T", "[K]"),
        ("s.T", "scalar"),
        ("2**k", "[K]"),
        ("s * A + 1", "[K, V]"),
        ("where(0 < k < 1, q, s)", "[K]"),
        ("max(q)", "scalar"),
        ("max(q, k, 0)", "[K]"),
        ("rms(A)", "scalar"),
        ("vec(k @ v.T)", "[K*V]"),
        ("vec(k)", "[K]"),
        ("concat(1, q, vec(q @ q.T), s)", "[2 + K + K**2]"),
        ("outer(k, v)", "[K, V]"),
        ("roll(k, -1)", "[K]"),
        ("rotate(v, concat(s, s))", "[V]"),
        ("softmax(k.T)", "[1, K]"),
        ("(I - s * k @ k.T) @ A", "[K, V]"),
        ("A @ (2 * I - diag(v))", "[K, V]"),
        ("I @ k", "[K]"),
        ("(I + A @ A.T)", "[K, K]"),
        ("solve(I + diag(k * k), A)", "[K, V]"),
        ("attend(q, k, v, window=K, sink=s)", "[V]"),
        ("k[t-3] + k[t-K]", "[K]"),
        ("head / H + t / T", "scalar"),
        ("exp(-inf) * K**-0.5", "scalar"),
    ],
)
def test_an_expression_has_the_shape_of_the_paper(expr: str, result: str) -> None:
    assert typed(expr)[0] == result


def test_outer_is_a_product_with_a_transpose_and_numbers_are_folded() -> None:
    assert typed("outer(k, v)")[1] == "k @ v.T"
    assert typed("(2 + 3) * k / sqrt(4)")[1] == "5 * k / 2"


def test_equal_expressions_are_one_node() -> None:
    made = spec(
        "feature φ(x) = elu(x) + 1\noutput a, b : [K]\na = φ(k) * φ(k)\nb = (elu(k) + 1) * φ(k)\n"
    )
    a, b = (output.expr for output in made.outputs)
    assert a is not b or a.args[0] is a.args[1]
    assert a.args[0] is a.args[1] is b.args[0]
    assert [d.name for d in made.definitions] == ["φ(k)"]
    assert made.definitions[0].ascii == "phi_k"


def test_an_identity_takes_its_size_from_the_state() -> None:
    made = spec("state S : [K, K] = 0.5 * I\noutput o : [K]\nS[t] = I @ S[t-1] + I\no = S[t] @ q\n")
    assert shape(made.states[0].initial.shape) == "[K, K]"
    assert show(made.states[0].update) == "I @ S[t-1] + I"


def test_directions() -> None:
    made = spec(
        "state F, B : [K]\nstate a : [K]\noutput o : [K]\n"
        "F[t] = F[t-1] + a[t-3]\nB[t] = B[t+1] + F[t]\na[t] = silu(k)\no = B[t] + F[T]\n"
    )
    assert [state.direction for state in made.states] == ["forward", "backward", "value"]


def test_arguments_are_inputs_then_params_then_buffers() -> None:
    made = spec(
        "buffer W : [K, K] = gaussian()\nparam u : [K]\ninput λ : scalar per group = 1\n"
        "buffer γ : scalar per head = 1 - 2**(-5 - head)\noutput o : [K]\no = λ * γ * (W @ k) + u\n"
        "# v and q stay unused\n"
    )
    assert [arg.ascii for arg in made.args] == ["q", "k", "v", "lambda_", "u", "W", "gamma"]
    assert [arg.per for arg in made.args][3:] == ["group", "head", "layer", "head"]
    assert made.arg("W").draw == "gaussian"
    assert show(made.arg("γ").default or made.outputs[0].expr) == "1 - 2**(-5 - head)"


def test_promises_are_pairs() -> None:
    made = spec(
        "input β : scalar where 0 < β < 1, β * sum(k * k) <= 2\noutput o : [K]\no = β * k\n"
    )
    shown = [(show(p.left), p.cmp, show(p.right)) for p in made.arg("β").promises]
    assert shown == [("0", "<", "β"), ("β", "<", "1"), ("β * sum(k * k)", "<=", "2")]


def test_a_promise_belongs_to_the_arguments_that_it_speaks_of() -> None:
    made = spec("input a, b, c : scalar where a < b, 2 < K\noutput o : [K]\no = a * b * c * k\n")
    assert [len(made.arg(name).promises) for name in "abc"] == [2, 1, 0]


# ---- dims, consts, overrides


def test_a_dim_made_of_others_is_that_size() -> None:
    made = spec(
        "dim F = 1 + K + K**2, G = F / 3, J = K\nstate S : [F, J]\noutput o : [F]\n"
        "S[t] = S[t-1] + concat(1, k, vec(k @ k.T)) @ q.T\no = S[t] @ k * G\n"
    )
    assert {name: dim.default for name, dim in made.dims.items()} == {
        "K": 4, "V": 6, "F": 21, "G": 7, "J": 4,
    }  # fmt: skip


def test_overrides_reach_dims_and_consts_by_either_spelling() -> None:
    body = "const ε = 1, s = K**-0.5 + ε\noutput o : [K]\no = s * k\n"
    made = spec(body, {"K": 16.0, "epsilon": 2})
    assert made.dims["K"].default == 16 and made.dims["K"].pinned and not made.dims["V"].pinned
    assert made.consts == {"ε": 2, "s": 2.25}
    assert show(made.outputs[0].expr) == "(K**-0.5 + 2) * k"
    assert spec(body).digest == made.digest


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ({"k_dim": 2}, "LA0401"),
        ({"K": 0}, "LA0402"),
        ({"K": 2.5}, "LA0402"),
        ({"K": float("nan")}, "LA0402"),
        ({"K": float("inf")}, "LA0402"),
        ({"K": True}, "LA0402"),
        ({"F": 100}, "LA0403"),
    ],
)
def test_an_override_that_does_not_fit(override: Mapping[str, float], code: str) -> None:
    assert codes("dim F = 1 + K\noutput o : [F]\no = concat(1, k)\n", override) == [code]


def test_a_dim_too_large_is_told_the_largest() -> None:
    with pytest.raises(LaccError, match="at most 2147483647"):
        spec("output o : [V]\no = v\n", {"V": 2**31})


def test_an_override_that_agrees_is_fine() -> None:
    made = spec("dim F = 1 + K\noutput o : [F]\no = concat(1, k)\n", {"K": 9, "F": 10})
    assert made.dims["F"].default == 10


def test_a_dim_in_a_window_is_fixed() -> None:
    made = spec("dim W = 3\noutput o : [V]\no = attend(q, k, v, window=W) + v[t-W]\n")
    assert [dim.pinned for dim in made.dims.values()] == [False, False, True]


# ---- bounds


@pytest.mark.parametrize(
    "body",
    [
        "const c = 9**9**9**9\n",
        "dim F = (1 + K + V)**16\n",
        "dim F = 99999999999999999999\n",
        "dim F = K**16 * K**16\n",
        "const c = 1e308 * 10\n",
    ],
)
def test_arithmetic_is_bounded(body: str) -> None:
    start = time.perf_counter()
    assert set(codes(f"{body}output o : [K]\no = k\n")) <= {"LA0306", "LA0307"}
    assert time.perf_counter() - start < 0.5


def test_long_sums_and_long_chains_are_refused_not_crashed_on() -> None:
    file, _ = parse(Source("<spec>", HEAD + "output o : [K]\no = k\n"))
    assert file is not None
    last = file.statements[-1]
    assert isinstance(last, Define)
    total = last.body
    for _ in range(10_000):
        total = Node("add", None, (total, last.body), last.span)
    deep = replace(file, statements=(*file.statements[:-1], replace(last, body=total)))
    with pytest.raises(LaccError) as caught:
        check(deep)
    assert caught.value.code == "LA0308"
    chain = "".join(f"x{i + 1} = x{i} + 1\n" for i in range(420))
    assert codes(f"x0 = sum(k)\n{chain}output o : scalar\no = x420\n") == ["LA0308"]


# ---- roles


GATED = "state S : [K, V]\nstate z : [K]\noutput o : [V]\nz[t] = z[t-1] + k\no = S[t].T @ z[t]\n"


@pytest.mark.parametrize(
    "body",
    [
        "gate α = exp(-abs(q))\nS[t] = diag(α) @ S[t-1] + k @ v.T\n",
        "gate α = 0.9\ngate β = 0.5\nS[t] = α * β * S[t-1] + k @ v.T\n",
        "gate α = sigmoid(sum(q))\nS1 = (I - k @ k.T) @ S[t-1]\n"
        "S[t] = α * S1 + (1 - α) * k @ v.T\n",
        "gate α = sigmoid(z[t-1])\nstate R : [K, V]\noutput p : [K, V]\n"
        "R[t] = S[t] + diag(α) @ R[t-1]\nS[t] = S[t-1] + k @ v.T\np = R[t]\n",
    ],
)
def test_gates_that_are_gates(body: str) -> None:
    spec(GATED + body)


@pytest.mark.parametrize(
    "body",
    [
        "gate β = sigmoid(sum(q))\nS[t] = S[t-1] + β * k @ v.T\n",
        "gate β = sigmoid(sum(q))\nS[t] = S[t-1] + β\n",
        "gate β = sigmoid(sum(S[t-1]))\nS[t] = β * S[t-1] + k @ v.T\n",
    ],
)
def test_gates_that_are_none(body: str) -> None:
    assert codes(GATED + body) == ["LA0215"]


def test_divisors_that_are_normalizers() -> None:
    spec(
        "state S : [K, V]\nstate z : [K]\noutput o, p : [V]\n"
        "S[t] = S[t-1] + k @ v.T\nz[t] = z[t-1] + k\n"
        "normalizer n = z[t].T @ q\nnormalizer m = max(abs(n), 1)\nr = 1 / m\n"
        "p = S[t].T @ q / max(n, 1)\no = r * (S[t].T @ q) * n**-1\n"
    )


# ---- bases


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.la"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"variant {name.split('/')[-1]}{text}", encoding="utf-8")
    return path


BASE = (
    "\ndim K = 4, V = 6\ninput q, k : [K]\ninput v : [V]\nstate S : [K, V]\noutput o : [V]\n"
    "S[t] = S[t-1] + k @ v.T\no = S[t].T @ q\n"
)


def test_a_variant_replaces_in_place_and_adds(tmp_path: Path) -> None:
    write(tmp_path, "base", BASE)
    path = write(
        tmp_path,
        "gated",
        " extends base\ndim K = 8\ngate α = exp(g)\ninput g : scalar\ninput k : [K] where k > 0\n"
        "S[t] = α * S[t-1] + k @ v.T\noutput p : [V]\np = 2 * o\n",
    )
    made = load(path)
    assert [arg.name for arg in made.args] == ["q", "k", "v", "g"]
    assert made.arg("k").promises and made.dims["K"].default == 8
    assert [output.name for output in made.outputs] == ["o", "p"]
    assert "extends" not in made.text
    order = [made.text.index(line) for line in ("gate α", "S[t] =", "\no =", "\np =")]
    assert order == sorted(order)


def test_bases_of_bases_are_beside_their_own_file(tmp_path: Path) -> None:
    write(tmp_path, "lib/root", BASE)
    write(tmp_path, "lib/middle", " extends root\ndim V = 7\n")
    made = load(write(tmp_path, "top", " extends lib.middle\ndim K = 5\n"))
    assert [dim.default for dim in made.dims.values()] == [5, 7]


def test_circles_of_bases_are_found(tmp_path: Path) -> None:
    write(tmp_path, "a", " extends b\n")
    with pytest.raises(LaccError) as caught:
        load(write(tmp_path, "b", " extends a\n"))
    assert caught.value.code == "LA0405"


def test_a_base_that_becomes_another_thing_loses_its_equation(tmp_path: Path) -> None:
    write(tmp_path, "base", BASE)
    made = load(write(tmp_path, "given", " extends base\ninput S : [K, V]\no = S.T @ q\n"))
    assert not made.states and [arg.name for arg in made.args] == ["q", "k", "v", "S"]


# ---- names


def test_every_letter_has_an_ascii_spelling() -> None:
    for char in map(chr, range(0x80, 0x30000)):
        if char.isidentifier() and nfkc(char).isidentifier():
            spelled = ascii_spelling(char)
            assert spelled.isascii() and spelled.isidentifier() and spelled not in KEYWORDS


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("β", "beta"),
        ("ϕ", "phi"),
        ("λ", "lambda_"),
        ("Λ", "Lambda"),
        ("S₁", "S1"),
        ("k̃", "k_tilde"),
        ("Δt", "Delta_t"),
        ("x_β2", "x_beta2"),
        ("for", "for_"),
        ("é", "e_acute"),
        ("字", "u5b57"),
    ],
)
def test_spellings(name: str, spelled: str) -> None:
    assert ascii_spelling(name) == spelled
    assert ascii_spelling(unicodedata.normalize("NFD", name)) == spelled


def test_a_refused_name_is_not_missed() -> None:
    body = "state H : [K, V]\noutput o : [V]\nH[t] = H[t-1] + k @ v.T\no = H[t].T @ q\n"
    assert codes(body) == ["LA0203"]


def test_an_output_without_a_type_gets_that_of_its_value() -> None:
    file, _ = parse(Source("<spec>", HEAD + "output o : [K]\no = concat(k, v, k)\n"))
    assert file is not None
    statements = [
        replace(s, type=None) if isinstance(s, Declare) and s.role == "output" else s
        for s in file.statements
    ]
    made = check(replace(file, statements=tuple(statements))).spec
    assert shape(made.outputs[0].shape) == "[2*K + V]"
    assert "output o : [2 * K + V]" in made.text
