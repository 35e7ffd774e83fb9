"""A name as a paper writes it goes in, its one ASCII spelling and whether it may be declared come
out.

`β` is `beta`, `k̃` is `k_tilde`, `S₁` is `S1`, `λ` is `lambda_` (a keyword of a target), `_x` is
`x_`. Every Unicode letter has some spelling: its Greek or Latin name, else its code point (`字` is
`u5b57`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from lacc.diagnostics import suggest

RESERVED = {
    "I": "the identity matrix",
    "t": "the position of the token",
    "T": "the length of the sequence",
    "head": "the index of the head",
    "H": "the number of heads",
    "inf": "infinity",
}
API_WORDS = (
    "mode chunk state initial_state cu_seqlens valid out state_dtype state_indices cotangent "
    "state_cotangent"
)
PYTHON_WORDS = (
    "False None True and as assert async await break case class continue def del elif else except "
    "finally for from global if import in is lambda match nonlocal not or pass raise return try "
    "type while with yield self"
)
C_WORDS = (
    "alignas alignof asm auto bool catch char const constexpr const_cast default delete do double "
    "dynamic_cast enum explicit export extern float friend goto inline int long mutable namespace "
    "new noexcept nullptr operator private protected public register reinterpret_cast restrict "
    "short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw typedef typeid typename typeof union unsigned using virtual void volatile "
    "wchar_t main blockIdx blockDim threadIdx gridDim"
)
MODULE_WORDS = "np numpy torch triton tl math print len range int8 int16 int32 int64 uint8 object"
KEYWORDS = frozenset(f"{PYTHON_WORDS} {C_WORDS} {MODULE_WORDS}".split())
API = frozenset(API_WORDS.split())

MARKS = {
    "\u0300": "grave", "\u0301": "acute", "\u0302": "hat", "\u0303": "tilde", "\u0304": "bar",
    "\u0305": "bar", "\u0306": "breve", "\u0307": "dot", "\u0308": "ddot", "\u030a": "ring",
    "\u030c": "check", "\u0331": "under", "\u0332": "under", "\u20d7": "arrow",
}  # fmt: skip


def memory(name: str, age: int) -> str:
    """The name that no spec has, of what holds ``name`` as it was ``age`` tokens ago."""
    return f"{name}@{age}"


def exponent(name: str) -> str:
    """The name that no spec has, of the exponent of a scaled state."""
    return f"{name}@log"


def as_read(name: str, when: object) -> tuple[str, object]:
    """What a spec reads where ``name``, a memory perhaps, is read at ``when``; an exponent has the
    name of its field."""
    owner, _, age = name.partition("@")
    if age == "log":
        return f"{owner}_log", when
    return owner, -int(age) if age and when == -1 else when


def is_memory(name: str) -> bool:
    """Whether a state is no state of the spec's own, but a memory or an exponent of one in it."""
    return "@" in name


def nfkc(name: str) -> str:
    """The form in which names are compared."""
    return unicodedata.normalize("NFKC", name)


def ascii_spelling(name: str) -> str:
    """The spelling of ``name`` in argument lists and emitted code: an identifier, no keyword."""
    if name.isascii() and name[0] != "_":
        return f"{name}_" if name in KEYWORDS else name
    words = [""]
    for char in unicodedata.normalize("NFD", nfkc(name)):
        word = char if char.isascii() else _word(char)
        long = len(word) > 1 or len(words[-1]) > 1
        if long and word[0].isalpha() and words[-1][-1:].isalnum():
            words.append("_")
        words.append(word)
    text = "".join(words)
    if text[0] == "_":
        text = f"{text.strip('_')}_"
    if not text[0].isalpha():
        text = f"n{text}"
    return f"{text}_" if text in KEYWORDS else text


def _word(char: str) -> str:
    """How one character is spelled: by its Unicode name, else by its code point."""
    digit = unicodedata.digit(char, None)
    if digit is not None:
        return str(digit)
    if char in MARKS:
        return MARKS[char]
    kind, letter, name = unicodedata.name(char, "").partition("LETTER ")
    words = [word for word in name.lower().replace("-", " ").split() if word != "with"]
    if not letter or not words:
        return f"u{ord(char):x}"
    spelled = "_".join("lambda" if word == "lamda" else word for word in words)
    return spelled.capitalize() if "CAPITAL" in kind else spelled


def meant(name: str, known: Iterable[str]) -> str:
    """As `suggest`, and the name that is spelled alike in ASCII: `β` for ``beta``, and back."""
    known = list(known)
    plain = ascii_spelling(name).rstrip("_")
    spelled = [other for other in known if ascii_spelling(other).rstrip("_") == plain]
    return f"did you mean `{spelled[0]}`?" if spelled else suggest(name, known)
