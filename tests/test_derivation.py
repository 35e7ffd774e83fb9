"""`lacc derive`: what is printed of a spec is true, of every class, and LaTeX takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT
from test_cli import Run, lacc  # noqa: F401

import lacc as compiler
from lacc import driver
from lacc.derivation.checking import check
from lacc.derivation.derive import CLASSES, Derivation, derive
from lacc.derivation.terms import Equation, neg
from lacc.derivation.written import as_latex, as_markdown, as_text

# ruff: noqa: F811

BOTH = """variant both
dim K = 4, V = 3
input q, k, b : [K]
input v, f : [V] where 0.5 <= f <= 1
input g : [K] where 0 <= g <= 1
state S : [K, V]
output o : [V]
S[t] = diag(g) @ S[t-1] @ diag(f) + b @ (b.T @ S[t-1]) @ diag(f) + k @ v.T
o = S[t-1].T @ q
"""
DENSE = """variant mixed
dim K = 4
input x : [K]
param A : [K, K]
state h : [K]
output o : [K]
h[t] = A @ h[t-1] + x
o = h[t]
"""
SCALAR = """variant counted
input x : scalar
input g : scalar where 0 <= g <= 1
state s : scalar
state m : scalar
output o : scalar
s[t] = g * s[t-1] + x
m[t] = logaddexp(m[t-1], x)
o = s[t] + m[t]
"""
COLUMNS = """variant columns
dim K = 4, V = 3
input q, k : [K]
input v, f : [V] where -1 <= f <= 1
state S : [K, V]
output o : [V]
S[t] = S[t-1] @ diag(f) + k @ v.T
o = S[t].T @ q
"""
LEAST = """variant least
dim K = 4
input f, i : [K]
state m : [K]
output o : [K]
m[t] = min(m[t-1] + f, i)
o = m[t]
"""
SHARED = """variant shared
dim K = 4
input i : [K]
input f : scalar
state m, z : [K]
output o : [K]
m[t] = max(m[t-1] + f, i)
z[t] = logaddexp(z[t-1] + logsigmoid(f), i)
o = m[t] + z[t]
"""
BY_CLASS = {
    "identity": "linear_transformer",
    "scalar": "gated_deltaproduct",
    "diagonal (rows)": "gla",
    "diagonal (both sides)": "gla_outer",
    "diagonal (columns)": COLUMNS,
    "low rank": "rwkv7",
    "low rank, merged": "kda",
    "low rank of the columns": "gated_oja",
    "elementwise": "mamba1",
    "coupled": "momentum_delta",
    "coupled, turning": "lru",
    "maxplus": "mlstm",
    "logsumexp": "lightnet",
    "attention": "fox",
    "attention, windowed": "sliding_window",
    "backward": "bidirectional",
    "nonlinear": "ttt_linear",
    "minplus": LEAST,
    "one decay of all channels": SHARED,
    "both": BOTH,
    "dense": DENSE,
    "scalars": SCALAR,
}
SOURCES = {name: given if "\n" in given else ROOT / f"examples/{given}.la"
           for name, given in BY_CLASS.items()}  # fmt: skip


def derived(given: Path | str) -> tuple[Derivation, dict[str, dict[str, float]]]:
    spec = driver.load(given)
    derivation = derive(spec, *driver.found(spec))
    return derivation, check(derivation, driver.compile(spec, "reference"))


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_derived_is_true(name: str) -> None:
    derivation, errors = derived(SOURCES[name])
    assert derivation.parts
    for part in derivation.parts:
        titles = [section.title for section in part.sections]
        assert titles[-2:] == ["Backward", "Decode step"]
        found = errors[part.title]
        assert max(found.values()) < 1e-12, (part.title, found)
        chunked = part.kind not in ("dense", "nonlinear")
        assert set(found) >= ({"chunk", "backward"} if chunked else {"recurrent"})


def test_blocks_of_keys_out_of_sight() -> None:
    """A window shorter than the sequence that the equations are checked on."""
    spec = driver.load(ROOT / "examples/sliding_window.la", {"W": 3})
    errors = check(derive(spec, *driver.found(spec)), driver.compile(spec, "reference"))
    assert max(errors["Attention"].values()) < 1e-12


def test_every_class_is_derived() -> None:
    kinds = {part.kind for given in SOURCES.values() for part in derived_only(given).parts}
    assert kinds == {*CLASSES, "attention"} - {"none"}


def derived_only(given: Path | str) -> Derivation:
    spec = driver.load(given)
    return derive(spec, *driver.found(spec))


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_derivation_of_an_example_is_true(path: Path) -> None:
    _, errors = derived(path)
    assert all(max(found.values()) < 1e-10 for found in errors.values()), errors


SLOWER = [pytest.param(name, marks=pytest.mark.full) for name in ("gated_deltanet", "fox")]


@pytest.mark.parametrize("name", ["gla", "momentum_delta", "mlstm_by_hand", *SLOWER])
def test_a_wrong_equation_is_noticed(name: str) -> None:
    """Every equation that is checked, with its sign turned, is off."""
    spec = driver.load(ROOT / f"examples/{name}.la")
    derivation, reference = derive(spec, *driver.found(spec)), driver.compile(spec, "reference")
    (part, *_) = derivation.parts if name != "fox" else derivation.parts[1:]
    seen = 0
    for number, section in enumerate(part.sections[:3]):
        if section.title in ("Canonical form", "Decode step"):
            continue
        for place, equation in enumerate(section.parts):
            if not isinstance(equation, Equation) or equation.right.op in ("matrix", "chain"):
                continue
            wrong = replace(equation, right=neg(equation.right))
            parts = (*section.parts[:place], wrong, *section.parts[place + 1 :])
            sections = list(part.sections)
            sections[number] = replace(section, parts=parts)
            turned = replace(derivation, parts=(replace(part, sections=tuple(sections)),))
            (found,) = check(turned, reference).values()
            assert not max(found.values()) < 1e-6, (name, section.title, equation)
            seen += 1
    assert seen > 4


# ---- what is printed


def test_the_words_of_a_diagonal_decay() -> None:
    text = as_text(derived_only(ROOT / "examples" / "gla.la"))
    for line in (
        "S[t] = diag(α[t]) @ S[t-1] + k[t] @ v[t]ᵀ",
        "α[s→t] = Π_{u=s+1..t} α[u]    (0 ≤ s ≤ t ≤ C)",
        "P[t, s] = q[t]ᵀ @ (α[s→t] ⊙ k[s])    (1 ≤ s ≤ t ≤ C)",
        "S[C] = diag(α[0→C]) @ S[0] + Σ_{s=1..C} (α[s→C] ⊙ k[s]) @ v[s]ᵀ",
        "S[t]ᵀ @ q[t] = S[0]ᵀ @ (α[0→t] ⊙ q[t]) + Σ_{s=1..t} P[t, s] * v[s]    (1 ≤ t ≤ C)",
        "dα[t] = (dS[t] ⊙ S[t-1]) @ 𝟙    (1 ≤ t ≤ C)",
    ):
        assert f"    {line}\n" in text, line


def test_shares_of_a_gradient_are_marked() -> None:
    """k stands in the erase too, and φ(k) in the normalizer; v and q do not."""
    text = as_text(derived_only(ROOT / "examples" / "gated_deltanet.la"))
    for factor in ("k", "β", "α"):
        assert f"d{factor}[t] += " in text
    for factor in ("q", "v"):
        assert f"d{factor}[t] = " in text and f"d{factor}[t] += " not in text
    assert text.count("+= adds one share of several") == 1
    both = as_text(derived_only(ROOT / "examples" / "linear_transformer.la"))
    assert "d(φ(k)[t]) += dz[t]" in both
    assert "+=" not in as_text(derived_only(ROOT / "examples" / "gla.la"))


def test_names_are_the_specs_own() -> None:
    text = compiler.load(BOTH).text.replace("dim K = 4, V = 3", "dim K = 4, V = 3\nconst w = 2")
    found = as_text(derived_only(text))
    assert "w[t]" not in found and "h[t]" in found


WORDS = """
alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau
upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell
left right mathrel mathrm mathit mathbf operatorname exp log max min tanh sin cos sqrt frac sum prod
odot top le ge to infty partial cdots prime tilde hat bar dot ddot begin end text quad
subsection subsubsection cdot
"""
COMMANDS = set(WORDS.split())


def checked_latex(text: str) -> None:
    """Braces, brackets and environments close; every command is one that amsmath knows."""
    for body in re.findall(r"\\begin\{align\*\}\n(.*?)\\end\{align\*\}", text, re.S):
        assert not re.search(r"[^\x00-\x7f#%$]", body), body
        for row in re.split(r"\\\\\n", body):
            assert len(re.findall(r"(?<!\\)&=", row)) <= 1
            assert row.count(r"\left") == row.count(r"\right")
    depth, opened = 0, []
    for found in re.finditer(r"\\([{}$%&#_\\,]|[a-zA-Z]+)|[{}]|\\(begin|end)", text):
        if found[0] in "{}":
            depth += 1 if found[0] == "{" else -1
            assert depth >= 0
        elif found[1].isalpha():
            assert found[1] in COMMANDS, found[1]
            if found[1] in ("begin", "end"):
                name = text[found.end() + 1 : text.index("}", found.end())]
                if found[1] == "begin":
                    opened.append(name)
                else:
                    assert opened.pop() == name
    assert depth == 0 and not opened
    assert not re.search(r"\^\{[^{}]*\}\^|_\{[^{}]*\}_", text)
    prose = re.sub(
        r"\\begin\{align\*\}.*?\\end\{align\*\}|\$[^$]*\$|^%.*$", "", text, flags=re.S | re.M
    )
    assert not re.search(r"(?<!\\)[_^&#]", prose)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_printed(path: Path) -> None:
    derivation = derived_only(path)
    checked_latex(as_latex(derivation))
    assert as_text(derivation) and "$$\\begin{aligned}" in as_markdown(derivation)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("name", ["momentum_delta", "mlstm", "kda", "fox", "rwkv4", "lru"])
def test_latex_takes_it(name: str, tmp_path: Path) -> None:
    text = as_latex(derived_only(ROOT / f"examples/{name}.la"), "True_ & so.", standalone=True)
    (tmp_path / "x.tex").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"],
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]


# ---- the command


def test_the_command(lacc: Run, tmp_path: Path) -> None:
    gla = str(ROOT / "examples" / "gla.la")
    code, out, _ = lacc("derive", gla)
    assert code == 0 and "they agree to" in " ".join(out.split())
    path = tmp_path / "gla.tex"
    for _ in range(2):  # its own file is written over
        assert lacc("derive", gla, "--format", "latex", "-o", str(path))[0] == 0
    assert path.read_text().startswith("% Written by lacc\n")
    checked_latex(path.read_text())
    assert lacc("derive", gla, "--format", "md")[1].startswith("# gla, derived")
    (tmp_path / "mine.md").write_text("mine")
    code, _, err = lacc("derive", gla, "--format", "md", "-o", str(tmp_path / "mine.md"))
    assert code == 2 and "--force" in err
    assert lacc("derive", gla, "--standalone")[0] == 2
