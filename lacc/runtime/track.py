"""The fields of a state in, quantities through time out, and back.

Notation: T B H tokens, batch rows and heads, the leading axes (time first: a token is a row); ct
the cotangent of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lacc.ir.reach import Key, Reach
from lacc.runtime.contract import Arrays, Run
from lacc.runtime.schedule import Schedule
from lacc.runtime.state_fields import Field

Array = Any


@dataclass(slots=True)
class Track:
    """One quantity: ``rows`` [front + T + after, B, H, *axes], 0 where nothing else is known; an
    attention looks no further back than ``known`` rows before the call.

    ``given`` says which rows came as which field of the state; ``ct`` is the cotangent of ``rows``.
    """

    rows: Array
    front: int
    length: int
    known: int
    given: list[tuple[slice, Field]] = field(default_factory=list)
    ct: Array = None

    @property
    def now(self) -> slice:
        """The rows of this call's tokens."""
        return slice(self.front, self.front + self.length)

    def pulled(self) -> Array:
        """The cotangent of all rows, to add to."""
        if self.ct is None:
            self.ct = np.zeros_like(self.rows)
        return self.ct


class Carry:
    """What comes from the tokens before a call and goes to those after it, as fields of a state."""

    def __init__(self, schedule: Schedule, state: Arrays, run: Run) -> None:
        self.run, self.reach, self.fields = run, schedule.reach, schedule.fields
        self.directions = {s.name: s.direction for s in schedule.spec.states}
        self.state = {name: x for name, x in state.items() if x is not None}

    @property
    def position(self) -> Array:
        """How many tokens each batch row has seen before, [B]."""
        return self.state.get("position", np.zeros(self.run.B, np.int64))

    def open(self, key: Key, shape: tuple[int, ...], start: Array) -> Track:
        """A track whose rows outside the call are what the state brings, or ``start``."""
        run, reach = self.run, self.reach.get(key, Reach())
        given = {
            f.value.role: f for f in self.fields if f.key == key and f.value.name in self.state
        }
        forward = self._forward(key)
        past = self.state[given["past"].value.name].shape[2] if "past" in given else 0
        front = max(reach.back, forward + past)
        rows = np.zeros((front + run.T + reach.ahead, run.B, run.H, *shape), run.dtype)
        known = forward + past if reach.grows else front
        if isinstance(key, str) and self.directions.get(key) == "backward":
            known = 0
        track = Track(rows, front, run.T, known)
        rows[:front] = rows[front + run.T :] = start
        if "past" in given:
            track.given.append((slice(front - forward - past, front - forward), given["past"]))
        if "state" in given:
            row = front - 1 if forward else front + run.T
            track.given.append((slice(row, row + 1), given["state"]))
        for where, f in track.given:
            x = self.state[f.value.name]
            rows[where] = np.moveaxis(x, 2, 0) if f.value.role == "past" else x * self._scale(f, x)
        return track

    def _forward(self, key: Key | None) -> bool:
        return isinstance(key, str) and self.directions.get(key) == "forward"

    def _scale(self, f: Field, x: Array) -> Array | float:
        """What the field of a `(stabilized)` state is to be multiplied by."""
        exponent = self.state.get(f"{f.value.name}_log")
        return 1.0 if exponent is None else _under(np.exp(exponent), x.ndim)

    def _last(self, f: Field, track: Track) -> slice:
        """The rows that a field holds after this call."""
        forward, end = self._forward(f.key), track.now.stop
        if f.value.role != "past":
            return slice(end - 1, end) if forward else slice(track.front, track.front + 1)
        length = f.value.axes[0]
        if length is None:
            before = [where.stop - where.start for where, given in track.given if given is f]
            length = sum(before) + self.run.T
        assert isinstance(length, int)
        return slice(end - forward - length, end - forward)

    def final(self, tracks: dict[Key, Track]) -> Arrays:
        """The fields of the state after this call."""
        found: Arrays = {}
        for f in self.fields:
            name = f.value.name
            if f.key is None:
                found[name] = self.position + self.run.T
                continue
            track = tracks[f.key]
            if f.value.role == "past":
                found[name] = np.moveaxis(track.rows[self._last(f, track)], 0, 2).copy()
            elif f.value.role == "state":
                found[name] = track.rows[self._last(f, track)][0].copy()
            else:
                value = found[name.removesuffix("_log")]
                found[name] = _exponent(value, len(f.value.axes))
                value /= _under(np.exp(found[name]), value.ndim)
        return found

    def pull_final(self, tracks: dict[Key, Track], cts: Arrays) -> None:
        """Adds the cotangents of the final state to the tracks."""
        final = self.final(tracks)
        for f in self.fields:
            ct = cts.get(f.value.name)
            if ct is None or f.key is None or f.value.role == "log":
                continue
            ct = np.asarray(ct, self.run.dtype)
            if f"{f.value.name}_log" in final:
                ct = ct / _under(np.exp(final[f"{f.value.name}_log"]), ct.ndim)
            rows = np.moveaxis(ct, 2, 0) if f.value.role == "past" else ct
            track = tracks[f.key]
            track.pulled()[self._last(f, track)] += rows

    def gradients(self, tracks: dict[Key, Track]) -> Arrays:
        """The gradient of every field that was given."""
        found = {
            f.value.name: np.zeros(self.state[f.value.name].shape, self.run.dtype)
            for f in self.fields
            if f.key is not None and f.value.name in self.state
        }
        for track in tracks.values():
            for where, f in track.given if track.ct is not None else ():
                name, ct = f.value.name, track.ct[where]
                if f.value.role == "past":
                    found[name] += np.moveaxis(ct, 0, 2)
                    continue
                found[name] += ct[0] * self._scale(f, ct[0])
                if f"{name}_log" in found:
                    exponent = found[f"{name}_log"]
                    product = ct[0] * track.rows[where][0]
                    exponent += product.sum(axis=tuple(range(exponent.ndim, product.ndim)))
        return found


def _under(x: Array, ndim: int) -> Array:
    """``x`` with axes of length 1 behind."""
    return x.reshape(x.shape + (1,) * (ndim - x.ndim))


def _exponent(value: Array, rank: int) -> Array:
    """The log of the largest |entry| of ``value`` [B, H, *axes] along all but ``rank`` axes, and 0
    where that is not a finite number."""
    size = np.abs(value).max(axis=tuple(range(2 + rank, value.ndim)))
    return np.log(np.where((size > 0) & np.isfinite(size), size, 1))
