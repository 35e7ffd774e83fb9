"""An attention of a spec in, its C functions out: the arrays and the sizes that they take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lacc.backends.c_text import size, times
from lacc.spec.shapes import Shape
from lacc.tile.attention_pass import AttentionPass

GIVEN = {
    "query": "queries [N, T, H, K]",
    "keys": "keys [N, T, H, K]",
    "values": "values [N, T, H, V]",
    "sink": "one more logit of each token, whose value is 0 [N, T, H]",
    "past_keys": "keys of the past tokens before the call, the last of them last [N, past, H, K]",
    "past_values": "their values [N, past, H, V]",
    "position": "LACC_I64: how many tokens ever were before the call [N]; NULL: as many as past",
}
FOUND = {
    "output": "what each token attends to [N, T, H, V], 0 where it sees nothing",
    "top": "the largest logit of each token [N, T, H], for the way back",
    "sum": "the sum of exp(logit - top) [N, T, H], for the way back",
}
KEPT = {
    "kept_keys": "keys of the call's tokens, for the state behind it [N, T, H, K]; with a window "
    "the last window - 1",
    "kept_values": "their values [N, T, H, V]",
}
PULLED = {
    "d_query": "gradient of query",
    "d_keys": "gradient of keys",
    "d_values": "gradient of values",
    "d_sink": "gradient of sink",
    "d_past_keys": "gradient of past_keys",
    "d_past_values": "gradient of past_values",
}
ARRAYS = {
    "forward": {**GIVEN, **FOUND, **KEPT},
    "backward": {**GIVEN, **FOUND, "d_output": "cotangent of output", **PULLED},
}
"""What the arrays of each function are, in order."""


@dataclass(frozen=True, slots=True)
class CAttention:
    """The functions NAME_attend_forward_NUMBER and NAME_attend_backward_NUMBER of a pass."""

    prefix: str
    number: int
    of: AttentionPass
    scale: str
    """By what a query is multiplied, as C."""

    @property
    def K(self) -> str:
        """The entries of a query, as C."""
        return _entries(self.of.keys.shape)

    @property
    def V(self) -> str:
        """The entries of a value, as C."""
        return _entries(self.of.values.shape)

    @property
    def window(self) -> int:
        """How many tokens are seen; 0: all."""
        return self.of.window or 0

    def functions(self) -> Iterable[tuple[str, list[tuple[str, str]]]]:
        """The name of each function, and (constant, what it is) of each of its arrays."""
        for way, arrays in ARRAYS.items():
            name = f"{self.prefix}_attend_{way}_{self.number}"
            yield name, [(f"{name}_{array}".upper(), text) for array, text in arrays.items()]

    def fields(self, way: str) -> list[tuple[str, str]]:
        """(field of the struct, constant) of each array."""
        stem = f"{self.prefix}_attend_{way}_{self.number}"
        return [(array, f"{stem}_{array}".upper()) for array in ARRAYS[way]]


def _entries(shape: Shape) -> str:
    return times(*(size(each).code for each in shape))
