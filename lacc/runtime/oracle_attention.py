"""Keys, values and one token's query in, what it attends to and the cotangents out.

Notation: N tokens seen (rows, in order of time), B H leading axes of everything, K V channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.runtime.track import Track

Array = Any


@dataclass(frozen=True, slots=True)
class View:
    """What one token may see: the same tokens' rows of the tracks of keys and of values, and which
    of them ever were (``live`` [N, B, 1]; the others are from before the start)."""

    keys: Track
    values: Track
    back: int
    t: int
    live: Array

    @staticmethod
    def of(keys: Track, values: Track, t: int, window: int | None, position: Array) -> View:
        """The last ``window`` tokens (all without) of token ``t``, itself included; ``position``
        [B] tokens came before the call."""
        most = min(keys.known, values.known) + t + 1
        back = most if window is None else min(most, window)
        at = np.arange(t + 1 - back, t + 1)[:, None, None]
        return View(keys, values, back, t, at >= -position[:, None])

    def _rows(self, track: Track) -> slice:
        end = track.front + self.t + 1
        return slice(end - self.back, end)

    def attend(self, q: Array, sink: Array | None) -> Array:
        """Σ_j softmax_j(q·k_j) v_j [B, H, V] for q [B, H, K]; ``sink`` [B, H] is one more logit."""
        values = np.where(self.live[..., None], self.values.rows[self._rows(self.values)], 0)
        return (self._weights(q, sink)[..., None] * values).sum(0)

    def _weights(self, q: Array, sink: Array | None) -> Array:
        """The softmax over rows, [N, B, H]."""
        products = (self.keys.rows[self._rows(self.keys)] * q).sum(-1)
        logits = np.where(self.live, products, -np.inf)
        top = logits.max(0) if sink is None else np.maximum(logits.max(0), sink)
        top = np.where(np.isneginf(top), 0, top)
        shares = np.exp(logits - top)
        total = shares.sum(0) + (0 if sink is None else np.exp(sink - top))
        return np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)

    def pull(self, ct: Array, y: Array, q: Array, sink: Array | None) -> tuple[Array, Array]:
        """Cotangents of query and sink from that of ``y``, what they attended to; those of keys and
        values are added to their tracks."""
        live = self.live[..., None]
        keys = np.where(live, self.keys.rows[self._rows(self.keys)], 0)
        values = np.where(live, self.values.rows[self._rows(self.values)], 0)
        p = self._weights(q, sink)
        mean = (ct * y).sum(-1)
        d_logits = p * ((values * ct).sum(-1) - mean)
        self.keys.pulled()[self._rows(self.keys)] += d_logits[..., None] * q
        self.values.pulled()[self._rows(self.values)] += p[..., None] * ct
        return (d_logits[..., None] * keys).sum(0), -(1 - p.sum(0)) * mean
