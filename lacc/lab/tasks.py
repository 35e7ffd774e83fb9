"""A task's name and a seed go in; sequences of tokens and what is asked at each come out.

Small tasks that tell what a recurrence can and cannot keep, and a little real text. Targets are
class numbers, `ASK_NOTHING` where nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Drawn = tuple[Array, Array]
ASK_NOTHING = -1


@dataclass(frozen=True)
class Task:
    """``draw(rng, rows, length, held_out)`` gives tokens and targets, int64 [rows, length].

    vocabulary  tokens that there are
    classes     values that a target may have
    train       the length of sequences that are learnt from
    test        lengths that are asked about afterwards
    chance      the accuracy of guessing; 0 where what counts are bits
    bits        whether a model is judged by bits a token rather than accuracy
    """

    name: str
    about: str
    vocabulary: int
    classes: int
    train: int
    test: tuple[int, ...]
    chance: float
    draw: Callable[[np.random.Generator, int, int, bool], Drawn]
    bits: bool = False

    def rows(self, tokens: int) -> int:
        """Sequences that have about so many tokens together."""
        return max(1, tokens // self.train)


KEYS, VALUES = 32, 16
FILLER = KEYS + VALUES


def recall(rng: np.random.Generator, rows: int, length: int, _: bool = False) -> Drawn:
    """Multi-query associative recall (Arora et al. 2023, arXiv:2312.04927): pairs of a key and its
    value, then keys in another order among filler; asked is each key's value."""
    pairs = min(length // 4, KEYS)
    tokens = np.full((rows, length), FILLER)
    targets = np.full((rows, length), ASK_NOTHING)
    for row in range(rows):
        keys = rng.permutation(KEYS)[:pairs]
        values = rng.integers(VALUES, size=pairs)
        tokens[row, 0 : 2 * pairs : 2] = keys
        tokens[row, 1 : 2 * pairs : 2] = KEYS + values
        places = np.sort(rng.permutation(length - 2 * pairs)[:pairs]) + 2 * pairs
        order = rng.permutation(pairs)
        tokens[row, places] = keys[order]
        targets[row, places] = values[order]
    return tokens, targets


SYMBOLS = 16


def copying(rng: np.random.Generator, rows: int, length: int, _: bool = False) -> Drawn:
    """A string, a mark, the string again (Jelassi et al. 2024, arXiv:2402.01032); asked is each
    next symbol of the second one."""
    half = (length + 1) // 2
    string = rng.integers(SYMBOLS, size=(rows, half))
    mark = np.full((rows, 1), SYMBOLS)
    tokens = np.concatenate([string, mark, string], 1)[:, :length]
    targets = np.full((rows, length), ASK_NOTHING)
    targets[:, half:] = string[:, : length - half]
    return tokens, targets


def parity(rng: np.random.Generator, rows: int, length: int, _: bool = False) -> Drawn:
    """Bits; asked at each is the parity of all so far (a reflection; Grazzi et al. 2024,
    arXiv:2411.12537)."""
    bits = rng.integers(2, size=(rows, length))
    return bits, np.cumsum(bits, 1) % 2


ELEMENTS = list(permutations(range(3)))
PRODUCT = np.array(
    [[ELEMENTS.index(tuple(a[i] for i in b)) for b in ELEMENTS] for a in ELEMENTS]  # a after b
)


def group(rng: np.random.Generator, rows: int, length: int, _: bool = False) -> Drawn:
    """Permutations of three things, S3; asked at each is the product of all so far (Merrill et al.
    2024, arXiv:2404.08819)."""
    tokens = rng.integers(len(ELEMENTS), size=(rows, length))
    targets = np.zeros_like(tokens)
    now = np.zeros(rows, int)  # the identity is the first
    for t in range(length):
        now = PRODUCT[tokens[:, t], now]
        targets[:, t] = now
    return tokens, targets


@cache
def book() -> tuple[Array, Array]:
    """Python's own documentation as bytes: what is learnt from, and the last tenth."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    whole = np.frombuffer(text, np.uint8).astype(np.int64)
    cut = len(whole) * 9 // 10
    return whole[:cut], whole[cut:]


def text(rng: np.random.Generator, rows: int, length: int, held_out: bool = False) -> Drawn:
    """English prose and code by the byte; asked is the next byte."""
    whole = book()[held_out]
    starts = rng.integers(len(whole) - length - 1, size=rows)
    parts = np.stack([whole[s : s + length + 1] for s in starts])
    return parts[:, :-1], parts[:, 1:]


TASKS = {
    task.name: task
    for task in (
        Task(
            "recall",
            "values of keys that were named before",
            FILLER + 1,
            VALUES,
            64,
            (32, 64, 128),
            1 / VALUES,
            recall,
        ),
        Task(
            "copying",
            "a string, again",
            SYMBOLS + 1,
            SYMBOLS,
            64,
            (32, 64, 128),
            1 / SYMBOLS,
            copying,
        ),
        Task(
            "parity",
            "whether an even number of ones was seen",
            2,
            2,
            32,
            (32, 64, 256),
            0.5,
            parity,
        ),
        Task(
            "S3",
            "the product of permutations of three things",
            6,
            6,
            32,
            (32, 64, 256),
            1 / 6,
            group,
        ),
        Task(
            "text",
            "the next byte of Python's documentation",
            256,
            256,
            128,
            (128, 512),
            0,
            text,
            True,
        ),
    )
}
