"""`lacc fmt`: text with any spaces, blank lines and comments goes in, one layout comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from test_format import files

import lacc
from lacc import library
from lacc.diagnostics import LaccError, Source
from lacc.formatting import formatted
from lacc.frontends.la import parse
from lacc.spec.format import unparse
from lacc.spec.layout import COLUMN
from lacc.spec.syntax import File

LIBRARY = Path(ROOT / "lacc/library/feature_maps.la")


def laid_out(text: str, ascii: bool = False) -> str:
    return formatted(Source("<test>", text), ascii)[0]


def read(text: str) -> File:
    file, problems = parse(Source("<test>", text))
    assert file is not None and not problems
    return file


def comments(text: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"#+[^#\n]*", text)]


@pytest.mark.parametrize("path", [*EXAMPLES, LIBRARY], ids=lambda path: path.stem)
def test_the_examples_and_the_library_are_laid_out(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert laid_out(text) == text


MESSY = """\ufeffvariant  x\r
#note\r
dim K=4,V = 5   \r
\r
\r
\r
input q,k:[ K ]#queries\r
input   v : [V]   ##  values
input g : scalar= - 1 where(g)<=0,g>- 2
state m:scalar(stabilized)
state S : [K,V]=0.50
feature φ( x )=exp( x )   ##a map


  ## of the state

S[ t ]=exp( g )*( S[t - 1]
  # why
  -k  @ (k.T@S[ t-1 ]))+ \t
k @vᵀ
m[t]=max( m[t-1],g )
output o:[V]
o=K ** - 0.5*S[t] . T@φ( q )+attend( q,k,v ,window = 4 )⊙1e-3 # end



# expect   class:S
"""
NEAT = """variant x

# note
dim K = 4, V = 5

input q, k : [K]                      # queries
input v : [V]                         ##  values
input g : scalar = -1 where (g) <= 0, g > -2
state m : scalar (stabilized)
state S : [K, V] = 0.50
feature φ(x) = exp(x)                 ## a map

## of the state
S[t] = exp(g) * (S[t-1]
    # why
    - k @ (k.T @ S[t-1])) +
    k @ vᵀ
m[t] = max(m[t-1], g)
output o : [V]
o = K**-0.5 * S[t].T @ φ(q) + attend(q, k, v, window=4) ⊙ 1e-3  # end

# expect   class:S
"""


def test_a_messy_file() -> None:
    assert laid_out(MESSY.replace(" . T", ".T")) == NEAT


def test_a_line_that_goes_on_stands_below_the_sign() -> None:
    text = "variant x\n\nS[t] = a\n+ b\n- c *\nd\n"
    assert laid_out(text) == "variant x\n\nS[t] = a\n     + b\n     - c *\n    d\n"


def test_comments_of_neighbours_share_a_column() -> None:
    long = "input r1 : scalar where 0 <= r1, r1 <= 1"
    text = f"variant x\n\ninput g : scalar ## a\n{long} ## b\n\ninput h : scalar ## c\n"
    lines = laid_out(text).splitlines()
    assert lines[2].index("##") == lines[3].index("##") == len(long) + 2
    assert lines[5].index("##") == COLUMN


@settings(max_examples=25, deadline=None)
@given(files)
def test_any_syntax_is_kept(file: File) -> None:
    text = unparse(file)
    once = laid_out(text)
    assert read(once) == file
    assert laid_out(once) == once


GAPS = st.sampled_from(["", " ", "  ", "\t", "   "])
BREAKS = st.sampled_from(["\n", "\r\n", "\n\n", "  \n\n \n", "\n# note\n", " # said\n", "\n#x\n\n"])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_noise_in_the_layout_is_gone(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*EXAMPLES, LIBRARY]))
    text = path.read_text(encoding="utf-8")

    def blur(found: re.Match[str]) -> str:
        if "\n" in found[0]:
            return "\n"
        gap = data.draw(GAPS)
        return gap if found[0].strip() else gap or " "

    lines = []
    for line in text.split("\n"):
        code, sign, comment = line.partition("#")
        code = re.sub(r" *[-+*/@,:] *(?![*])| +", lambda m: m[0].replace(" ", "") or " ", code)
        code = re.sub(r" +", blur, code)
        lines.append(data.draw(GAPS) * (code != "") + code + sign + comment)
    noisy = "\n".join(lines)
    assert read(noisy) == read(text)
    assert laid_out(noisy) == text


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_comments_and_blank_lines_between_statements(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(EXAMPLES))
    text = path.read_text(encoding="utf-8")
    noisy = "".join(line + data.draw(BREAKS) for line in text.splitlines())
    once = laid_out(noisy)
    assert read(once) == read(noisy)
    assert comments(once) == [re.sub(r"^#x$", "# x", c) for c in comments(noisy)]
    assert laid_out(once) == once
    assert "\n\n\n" not in once and not re.search(r"[ \t\r]$", once, re.M)


# ---- ASCII


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_in_ascii_means_the_same(path: Path) -> None:
    text, kept = formatted(Source.read(path), ascii=True)
    code = "".join(line.partition("#")[0] for line in text.splitlines())
    assert kept or code.isascii()
    if kept:
        return
    named = [(a.ascii, str(a.shape), a.per) for a in lacc.load(path).args]
    plain = path.with_name("<ascii>").name
    file, _ = parse(Source(str(path.parent / plain), text))
    assert file is not None
    if file.base is None:
        assert [(a.ascii, str(a.shape), a.per) for a in lacc.load(file).args] == named


def test_names_and_signs_in_ascii() -> None:
    text = "variant x\n\ninput β, λ : scalar where β <= 1  # β stays\nstate θ̃ : [K]\n"
    text += "θ̃[t] = θ̃[t-1]ᵀ ⊙ φ(β, x=λ)\n\n# expect class: θ̃ scalar\n"
    plain = laid_out(text, ascii=True)
    assert "input beta, lambda_ : scalar where beta <= 1" in plain
    assert "# β stays" in plain and "# expect class: theta_tilde scalar" in plain
    assert "theta_tilde[t] = theta_tilde[t-1].T * phi(beta, x=lambda_)" in plain


def test_names_that_would_be_one_are_refused() -> None:
    with pytest.raises(LaccError) as caught:
        laid_out("variant x\n\ninput β, beta : scalar\n", ascii=True)
    assert caught.value.code == "LA0214"


def test_names_of_a_base_stay() -> None:
    text, kept = formatted(Source.read(ROOT / "examples" / "kda.la"), ascii=True)
    assert kept == ["α", "β"] and "β" in text


def test_what_does_not_parse_is_refused() -> None:
    with pytest.raises(LaccError):
        laid_out("variant x\n\nS[t] = (a\n")


def test_the_library_is_found() -> None:
    assert library.text("feature_maps") == LIBRARY.read_text(encoding="utf-8")
