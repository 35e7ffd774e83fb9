"""Terms in, LaTeX out, for amsmath and amssymb."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import ClassVar

from lacc.derivation.printing import ATOM, POSTFIX, PRODUCT, Piece, Printer
from lacc.derivation.terms import At, Equation
from lacc.spec.shapes import Size

GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon phi chi psi omega"
)
_LETTERS = {
    unicodedata.lookup(f"GREEK SMALL LETTER {word.replace('lambda', 'lamda').upper()}"): f"\\{word}"
    for word in GREEK.split()
    if word != "epsilon"
} | {
    unicodedata.lookup(f"GREEK CAPITAL LETTER {word.replace('lambda', 'lamda').upper()}"): (
        f"\\{word.capitalize()}"
    )
    for word in [
        "gamma",
        "delta",
        "theta",
        "lambda",
        "xi",
        "pi",
        "sigma",
        "upsilon",
        "phi",
        "psi",
        "omega",
    ]
}
_LETTERS |= {"ε": "\\varepsilon", "ϕ": "\\phi", "φ": "\\varphi", "𝟙": "\\mathbf{1}", "ℓ": "\\ell"}
_MARKS = {"\u0303": "tilde", "\u0302": "hat", "\u0304": "bar", "\u0307": "dot", "\u0308": "ddot"}
_FUNCTIONS = {"exp": "\\exp", "log": "\\log", "max": "\\max", "min": "\\min", "tanh": "\\tanh"}
_FUNCTIONS |= {"sin": "\\sin", "cos": "\\cos", "sigmoid": "\\sigma"}
_SPECIAL = re.compile(r"([_#%&$])")


class Latex(Printer):
    """LaTeX, with amsmath and amssymb."""

    joints: ClassVar[Mapping[str, str]] = {
        "scale": "\\, ",
        "had": " \\odot ",
        "matmul": " ",
        "dots": "\\cdots",
    }
    _OPS: ClassVar[Mapping[str, str]] = {
        "sum": "\\sum",
        "prod": "\\prod",
        "max": "\\max",
        "min": "\\min",
    }

    def letters(self, word: str) -> str:
        """A word of a name: one letter as it is, several upright."""
        found: list[str] = []
        for char in unicodedata.normalize("NFD", word):
            if char in _MARKS and found:
                found[-1] = f"\\{_MARKS[char]}{{{found[-1]}}}"
            elif char in _LETTERS:
                found.append(_LETTERS[char])
            elif char.isascii() and (char.isalnum() or char == "'"):
                found.append(char)
            else:
                found.append(f"\\mathrm{{u{ord(char):x}}}")
        letters = [c for c in found if c != "'"]
        if len(letters) > 1 and all(len(c) == 1 for c in letters):
            if len(letters) > 1 and letters[0].isalpha() and all(c.isdigit() for c in letters[1:]):
                return f"{letters[0]}_{{{''.join(letters[1:])}}}" + "'" * word.count("'")
            return f"\\mathit{{{''.join(letters)}}}" + "'" * word.count("'")
        return "".join(
            f"{c} " if c.startswith("\\") and c[-1].isalpha() else c for c in found
        ).strip()

    def name(self, name: str, indices: Sequence[str] = ()) -> str:
        name, _, power = name.partition("^")
        lead = "\\mathrm{d}" if name.startswith("d ") else ""
        base, _, below = name.removeprefix("d ").partition("_")
        text = self.letters(base or "x")
        subs = [self.letters(below.replace("_", ""))] if below else []
        number = re.fullmatch(r"(.*)_\{(\w+)\}('*)", text)
        if number is not None and (indices or subs):
            text, subs = number[1] + number[3], [number[2], *subs]
        subs += indices
        above = "\\prime" * text.count("'") + (f"({power})" if power else "")
        text, above = text.replace("'", ""), f"^{{{above}}}" if above else ""
        below = f"_{{{','.join(subs)}}}" if subs else ""
        return f"{lead}{text}{below}{above}"

    def path(self, name: str, low: str, high: str) -> str:
        return self.name(name, [f"{low}\\to {high}"])

    def index(self, at: At) -> str:
        return f"{at.name}{at.offset:+d}" if at.offset else at.name.replace("out", "\\mathrm{out}")

    def call(self, name: str, args: Sequence[str]) -> Piece:
        if name == "sqrt":
            return f"\\sqrt{{{args[0]}}}", ATOM
        if name == "abs":
            return f"\\left|{args[0]}\\right|", ATOM
        name = name.replace("stop_gradient", "sg")
        word = _SPECIAL.sub(r"\\\1", name)
        function = _FUNCTIONS.get(name, f"\\operatorname{{{word}}}")
        return f"{function}{self.bracket(', '.join(args))}", ATOM

    def fraction(self, a: Piece, b: Piece) -> Piece:
        return f"\\frac{{{a[0]}}}{{{b[0]}}}", ATOM

    def power(self, a: Piece, b: Piece) -> Piece:
        base = self.fit(a, ATOM)
        return (f"{{{base}}}" if "^" in base else base) + f"^{{{b[0]}}}", POSTFIX

    def over(self, op: str, index: str, low: str, high: str, body: Piece) -> Piece:
        ends = f"_{{{index}={low}}}^{{{high}}}"
        if op == "lse":
            return f"\\log \\sum{ends} \\exp{self.bracket(body[0])}", PRODUCT
        if op in ("max", "min"):
            ends = f"_{{{low} \\le {index} \\le {high}}}"
        return f"{self._OPS[op]}{ends} {self.fit(body, PRODUCT)}", PRODUCT

    def matrix(self, rows: Sequence[Sequence[str]]) -> str:
        body = " \\\\ ".join(" & ".join(row) for row in rows)
        return f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}"

    def named(self, name: str, at: At) -> str:
        function, bracket, inside = name.partition("(")
        indices = [self.index(at)] if at.name else []
        if not bracket:
            return self.name(name, indices)
        return f"{self.name(function)}{self.bracket(self._inside(inside.removesuffix(')'), at))}"

    def _inside(self, text: str, at: At) -> str:
        """The argument of a feature map, which is known as text alone."""

        def word(found: re.Match[str]) -> str:
            name = found[0]
            timed = name in self.timed or any(s.name == name for s in self.spec.states)
            timed = timed or any(n == name and self.varies(e) for e, n in self.names.items())
            return self.name(name, [self.index(at)] if timed and at.name else [])

        text = re.sub(r"\[t(?:-(\d+))?\]", "", text)
        text = re.sub(r"\*\*(-?[\w.]+)", r"^{\1}", text)
        text = re.sub(r" [*@] ", r" ", text)
        text = text.replace(".T", "^{\\top}")
        return re.sub(r"(?<!\\)\b[^\W\d]\w*", word, text)

    def bracket(self, text: str) -> str:
        tall = re.search(r"\\(frac|sum|prod|begin|left)", text)
        return f"\\left({text}\\right)" if tall else f"({text})"

    def number(self, value: float) -> str:
        if value in (float("inf"), float("-inf")):
            return "\\infty" if value > 0 else "-\\infty"
        text = repr(value).removesuffix(".0")
        digits, power, exponent = text.partition("e")
        if not power:
            return text
        lead = "" if digits == "1" else f"{digits} \\cdot "
        return f"{lead}10^{{{int(exponent)}}}"

    def size(self, size: Size) -> str:
        return re.sub(r"\*\*(\d+)", r"^{\1}", str(size)).replace(" * ", " ").replace("*", " ")

    def transposed(self, x: Piece) -> str:
        text = self.fit(x, ATOM)
        raised = re.fullmatch(r"(.*)\^\{([^{}]*)\}", text)
        return f"{raised[1]}^{{{raised[2]} \\top}}" if raised else f"{text}^{{\\top}}"

    def cotangent(self, x: Piece) -> str:
        text = x[0]
        simple = x[1] == ATOM and "\\left" not in text and "\\frac" not in text
        return f"\\mathrm{{d}}{text}" if simple else f"\\mathrm{{d}}{self.bracket(text)}"

    def larger(self, a: Piece, b: Piece) -> str:
        return f"\\mathbf{{1}}\\left[{a[0]} > {b[0]}\\right]"

    def entry(self, matrix: str, i: int, j: int) -> str:
        return f"{self.bracket(matrix)}_{{{i}{j}}}"

    def jacobian(self, sent: str, state: str) -> str:
        now, then = self.name(state, ["t"]), self.name(state, ["t+1"])
        return (
            f"{sent} + \\left(\\frac{{\\partial {then}}}{{\\partial {now}}}\\right)^{{\\top}} "
            f"\\mathrm{{d}}{then}"
        )

    def sign(self, sign: str) -> str:
        return {"<=": "\\le", ">=": "\\ge", "==": "="}.get(sign, sign)

    def where(self, args: Sequence[str]) -> str:
        condition, a, b = args
        return f"\\begin{{cases}} {a} & {condition} \\\\ {b} & \\text{{otherwise}} \\end{{cases}}"

    def equation(self, equation: Equation) -> str:
        parts = self.summands(equation.right)
        sign = "\\mathrel{+}=" if equation.share else "="
        lines = [f"{self.text(equation.left)} &{sign} {parts[0]}"]
        width = len(_seen(lines[0]))
        for part in parts[1:]:
            width += len(_seen(part))
            if width > 62:
                lines.append(f"&\\quad {part}")
                width = len(_seen(part))
            else:
                lines[-1] += f" {part}"
        where = equation.where.replace("<=", "\\le")
        lines[-1] += f" && {where}" if where else ""
        return " \\\\\n".join(lines)


def _seen(latex: str) -> str:
    """About what is seen of it: commands count as one sign, subscripts by half."""
    text = re.sub(r"\\(left|right|mathrm|mathit|operatorname|quad|,)", "", latex)
    text = re.sub(r"\\[a-zA-Z]+", "x", text)
    return re.sub(r"[{}_^ ]", "", text)
