"""A schedule and arrays in, the values of its expressions at all tokens out, and the way back.

What does not go from token to token is evaluated for all tokens at once, a recurrence by a plain
loop over its own equations.

Notation: T B H tokens, batch rows and heads, the leading axes of everything (time first: a token is
a row); ct the cotangent of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lacc.ir.apply import fold
from lacc.ir.reach import Key, key_of
from lacc.runtime.contract import Arrays, Run
from lacc.runtime.oracle_attention import View
from lacc.runtime.schedule import Loop, Schedule, Step
from lacc.runtime.track import Carry, Track
from lacc.spec.model import Arg, Expr
from lacc.spec.shapes import Shape

Array = Any
Value = Any  # an array [T, B, H, *axes], any of T B H being 1 where it does not vary; or a number


class Evaluation:
    """One call: arguments and state as a core gets them, all values, and with ``taped`` the tape.

    ``cts`` are cotangents of values, by node; ``param_cts`` collects those of params, by name.
    """

    def __init__(
        self, schedule: Schedule, x: Arrays, state: Arrays, run: Run, taped: bool = False
    ) -> None:
        self.schedule, self.x, self.run = schedule, x, run
        self.carry = Carry(schedule, state, run)
        self.args = {a.name: a for a in schedule.spec.args}
        self.states = {s.name: s for s in schedule.spec.states}
        self.tracks: dict[Key, Track] = {}
        self.values: dict[Expr, Value] = {}
        self.constant: set[Expr] = set()  # nodes without a cotangent
        self.cts: dict[Expr, Array] = {}
        self.param_cts: dict[str, Array] = {}
        self._taped = taped
        self._tape: list[Callable[[], None]] = []

    def walk_back(self) -> None:
        """Takes all cotangents from values to what they came from."""
        while self._tape:
            self._tape.pop()()

    def _record(self, pull: Callable[[], None]) -> None:
        if self._taped:
            self._tape.append(pull)

    def add(self, node: Expr, ct: Array) -> None:
        """Adds to the cotangent of ``node``; ``ct`` may have axes that its value does not have or
        along which it does not vary."""
        if node not in self.constant:
            value = self.values[node]
            ct = fold(ct, value, (1,) * (ct.ndim - value.ndim))
            self.cts[node] = self.cts[node] + ct if node in self.cts else ct

    # ---- values of all tokens ------------------------------------------------------------------

    def value(self, root: Expr) -> Value:
        """The value of ``root``."""
        if root not in self.values:
            for node in root.walk():
                if node not in self.values:
                    self.values[node] = self._node(node)
        return self.values[root]

    def full(self, root: Expr, shape: tuple[int, ...]) -> Array:
        """The value of ``root`` written out, [T, B, H, *shape]."""
        lead = (self.run.T, self.run.B, self.run.H)
        return np.broadcast_to(self.padded(root, len(shape)), lead + shape)

    def padded(self, root: Expr, rank: int) -> Array:
        value = np.asarray(self.value(root), self.run.dtype)
        lead = value.shape if value.ndim else (1, 1, 1)
        return value.reshape(lead + (1,) * (3 + rank - len(lead)))

    def _node(self, node: Expr) -> Value:
        if node.args:
            return self._attend(node) if node.op == "attend" else self._apply(node)
        match node.op:
            case "input":
                return self._input(node)
            case "state":
                return self._state(node)
            case "param":
                return self._param(node)
        self.constant.add(node)
        match node.op:
            case "const":
                return float(node.value)
            case "size":
                return float(node.value.evaluate(self.run.dims))
            case "T":
                return float(self.run.T)
            case "H":
                return float(self.run.H)
            case "t":
                now = np.arange(1, self.run.T + 1)[:, None] + self.carry.position
                return now[..., None].astype(self.run.dtype)
            case "head":
                return np.arange(self.run.H, dtype=self.run.dtype).reshape(1, 1, -1)
            case "eye":
                return np.eye(*self.shape(node.shape), dtype=self.run.dtype)[None, None, None]
            case "buffer":
                return self._argument(str(node.value))[None, None]
        raise AssertionError(node.op)

    def shape(self, shape: Shape) -> tuple[int, ...]:
        return tuple(size.evaluate(self.run.dims) for size in shape)

    def _argument(self, name: str) -> Array:
        return np.asarray(self.x[self.args[name].ascii], self.run.dtype)

    def _input(self, node: Expr) -> Array:
        name, offset = node.reference
        track = self.track(name)
        return self._window(node, track, track.front + offset, self.run.T)

    def _state(self, node: Expr) -> Array:
        name, when = node.reference
        track = self.track(name)
        if when == "T":
            last = track.front + self.run.T - 1
            return self._window(node, track, last if self.run.T else max(last, 0), 1)
        return self._window(node, track, track.front + when, self.run.T)

    def _window(self, node: Expr, track: Track, start: int, length: int) -> Array:
        """Rows of a track as the value of ``node``."""
        rows = slice(start, start + length)

        def pull() -> None:
            if node in self.cts:
                track.pulled()[rows] += self.cts.pop(node)

        self._record(pull)
        return track.rows[rows]

    def _param(self, node: Expr) -> Array:
        name = str(node.value)
        arg = self.args[name]
        if self.x.get(arg.ascii) is None:
            return self._default(node, arg)

        def pull() -> None:
            if node in self.cts:
                self.param_cts[name] = self.cts.pop(node)

        self._record(pull)
        x = self._argument(name)
        return np.swapaxes(x, 0, 1) if arg.per == "position" else x[None, None]

    def _default(self, node: Expr, arg: Arg) -> Array:
        assert arg.default is not None
        default = self.schedule.defaults[arg.name]
        shape = self.shape(arg.shape)
        padded = self.padded(default, len(shape))

        def pull() -> None:
            if node in self.cts:
                self.add(default, self.cts.pop(node))

        self._record(pull)
        return np.broadcast_to(padded, padded.shape[:3] + shape)

    def _apply(self, node: Expr) -> Value:
        operation = self.schedule.apply(node)
        xs = [self.values[arg] for arg in node.args]
        y = operation.value(xs)
        if isinstance(y, np.ndarray) and y.dtype != np.bool_:
            y = y.astype(self.run.dtype, copy=False)
        if node.op == "stop_gradient" or all(arg in self.constant for arg in node.args):
            self.constant.add(node)
            return y

        def pull() -> None:
            if node in self.cts:
                ct = np.broadcast_to(self.cts.pop(node), y.shape)
                wanted = [arg not in self.constant for arg in node.args]
                for arg, d in zip(node.args, operation.pull(ct, y, xs, wanted)):
                    if d is not None:
                        self.add(arg, d)

        self._record(pull)
        return y

    # ---- quantities through time -----------------------------------------------------------------

    def track(self, key: Key) -> Track:
        """All rows of an input, a state or an attended expression."""
        if key not in self.tracks:
            if isinstance(key, Expr):
                self._fill(key, key.shape, key)
            elif self.x.get(self.args[key].ascii) is None:
                self._fill(key, self.args[key].shape, self.schedule.defaults[key])
            else:
                track = self._open(key, self.args[key].shape)
                track.rows[track.now] = np.swapaxes(self.x[self.args[key].ascii], 0, 1)
        return self.tracks[key]

    def _open(self, key: Key, shape: Shape) -> Track:
        """A track without the tokens of this call."""
        if not isinstance(key, str) or key not in self.states:
            track = self.tracks[key] = self.carry.open(key, self.shape(shape), 0)
            return track
        initial = self.schedule.initials[key]
        start = self.padded(initial, len(shape))[0]
        track = self.tracks[key] = self.carry.open(key, self.shape(shape), start)

        def pull() -> None:
            if track.ct is not None:
                ct = track.ct.copy()
                for where in (track.now, *(where for where, _ in track.given)):
                    ct[where] = 0
                self.add(initial, ct.sum(0, keepdims=True))

        self._record(pull)
        return track

    def _fill(self, key: Key, shape: Shape, root: Expr) -> None:
        """A track with the value of ``root`` at the tokens of this call."""
        value = self.full(root, self.shape(shape))
        track = self._open(key, shape)
        track.rows[track.now] = value

        def pull() -> None:
            if track.ct is not None:
                self.add(root, track.ct[track.now])

        self._record(pull)

    def _attend(self, node: Expr) -> Array:
        """Attention for all tokens, one after another."""
        q, k, v, *sink = node.args
        keys, values = self.track(key_of(k)), self.track(key_of(v))
        queries = self.full(q, self.shape(q.shape))
        sinks = self.full(sink[0], ()) if sink else [None] * self.run.T
        views = [self._view((keys, values), t, node.value) for t in range(self.run.T)]
        y = np.zeros(values.rows[values.now].shape, self.run.dtype)
        for t, view in enumerate(views):
            y[t] = view.attend(queries[t], sinks[t])

        def pull() -> None:
            if node in self.cts:
                ct = self.cts.pop(node)
                pulls = [
                    view.pull(ct[t], y[t], queries[t], sinks[t]) for t, view in enumerate(views)
                ]
                for arg, d in zip((q, *sink), zip(*pulls)):
                    self.add(arg, np.stack(d))

        self._record(pull)
        return y

    def _view(self, tracks: tuple[Track, Track], t: int, window: Any) -> View:
        return View.of(*tracks, t, window, self.carry.position)

    def final(self) -> Arrays:
        """The fields of the state after this call."""
        return self.carry.final(self._carried())

    def pull_final(self, cts: Arrays) -> None:
        """Adds the cotangents of the final state."""
        self.carry.pull_final(self._carried(), cts)

    def _carried(self) -> dict[Key, Track]:
        for f in self.schedule.fields:
            if f.key is not None:
                self.track(f.key)
        return self.tracks

    # ---- recurrences -----------------------------------------------------------------------------

    def recur(self) -> None:
        """Runs all states through the tokens of this call."""
        for group in self.schedule.groups:
            if isinstance(group, Loop):
                self._loop(group)
            else:
                self._fill(group, self.states[group].shape, self.schedule.updates[group])

    def _loop(self, loop: Loop) -> None:
        for key in loop.stored:
            self._open(key, key.shape if isinstance(key, Expr) else self.states[key].shape)
        outside = [self.value(node) for node in loop.outside]
        times = range(self.run.T) if loop.ascending else range(self.run.T - 1, -1, -1)
        history: list[list[Value]] = []
        for t in times:
            now = [x[t if len(x) > 1 else 0] if isinstance(x, np.ndarray) else x for x in outside]
            for step in loop.steps:
                self._step(step, t, now)
            if self._taped:
                history.append(now)
        self._record(lambda: self._pull_loop(loop, outside, times, history))

    def _step(self, step: Step, t: int, now: list[Value]) -> None:
        """Does one step of token ``t``, whose values so far are ``now``."""
        if step.apply is not None:
            now.append(step.apply.value([now[i] for i in step.ins]))
            return
        track = self.track(step.keys[0])
        if step.kind == "read":
            now.append(track.rows[track.front + t + step.offset])
        elif step.kind == "store":
            track.rows[track.front + t] = now[step.ins[0]]
        else:
            view = self._view((track, self.track(step.keys[1])), t, step.offset)
            now.append(view.attend(*self._asked(step, now)))

    def _asked(self, step: Step, now: list[Value]) -> tuple[Array, Array | None]:
        """Query [B, H, K] and sink [B, H] of an "attend"."""
        lead = (self.run.B, self.run.H)
        q, *sink = (now[i] for i in step.ins)
        q = np.broadcast_to(q, lead + q.shape[2:])
        return q, np.broadcast_to(np.asarray(sink[0], self.run.dtype), lead) if sink else None

    def _pull_loop(
        self, loop: Loop, outside: list[Value], times: range, history: list[list[Value]]
    ) -> None:
        """From the cotangents of what a loop stored to those of what it read."""
        wanted = [node not in self.constant for node in loop.outside]
        totals = [np.zeros_like(x) if want else None for x, want in zip(outside, wanted)]
        wanted += [True] * len(loop.steps)
        for t, now in zip(reversed(times), reversed(history)):
            cts: list[Any] = [None] * (len(now) + 1)
            slot = len(now)
            for step in reversed(loop.steps):
                slot -= step.kind != "store"
                for i, d in self._pull_step(step, t, now, cts[slot], slot, wanted):
                    if d is not None and wanted[i]:
                        cts[i] = d if cts[i] is None else cts[i] + d
            for total, ct in zip(totals, cts):
                if total is not None and ct is not None:
                    total[t if len(total) > 1 else 0] += ct
        for node, total in zip(loop.outside, totals):
            if total is not None:
                self.add(node, total)

    def _pull_step(
        self, step: Step, t: int, now: list[Value], ct: Any, slot: int, wanted: list[bool]
    ) -> Iterator[tuple[int, Any]]:
        """What one step gives to the cotangents of its arguments, from that of its value."""
        track = self.track(step.keys[0]) if step.keys else None
        if step.kind == "store":
            assert track is not None
            if track.ct is not None:
                yield step.ins[0], fold(track.ct[track.front + t], now[step.ins[0]])
        elif ct is None:
            return
        elif step.apply is not None:
            xs, want = [now[i] for i in step.ins], [wanted[i] for i in step.ins]
            ct = np.broadcast_to(ct, now[slot].shape)
            yield from zip(step.ins, step.apply.pull(ct, now[slot], xs, want))
        elif step.kind == "read":
            assert track is not None
            track.pulled()[track.front + t + step.offset] += ct
        else:
            assert track is not None
            q, sink = self._asked(step, now)
            view = self._view((track, self.track(step.keys[1])), t, step.offset)
            for i, d in zip(step.ins, view.pull(ct, now[slot], q, sink)):
                yield i, fold(d, now[i]) if wanted[i] else None
