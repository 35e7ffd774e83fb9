"""Recurrences in, the tile program of a single token out: any update at all, affine ones by their
canonical form.

It is the decode step and the `recurrent` mode; without a time axis there is nothing to solve or to
mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from lacc.analysis.transition import Recurrence
from lacc.ir.memories import AttendPasts
from lacc.ir.reach import Past
from lacc.spec.model import Expr, Spec
from lacc.spec.shapes import ONE, Size
from lacc.tile.lower import Naming
from lacc.tile.program import PAST, Program, verify
from lacc.tile.reads import Reader


def _size(past: Past) -> Size:
    """How many values are kept."""
    return PAST if past.length is None else Size.of(past.length)


def _joined_size(past: Past) -> Size:
    """How many values there are with that of the token, and the state before it where that is not
    among those kept."""
    return _size(past) + Size.of(1 + (past.state is not None))


class TokenBuilder(Reader):
    """Builds the step of a causal spec."""

    def __init__(
        self,
        spec: Spec,
        recurrences: Mapping[str, Recurrence],
        naming: Naming,
        pasts: AttendPasts,
    ) -> None:
        super().__init__(spec, naming, rows=False)
        self.recurrences = recurrences
        self.pasts = pasts
        self._updated: dict[str, int] = {}

    def program(self) -> Program:
        """Outputs by name and "state:S" for every state."""
        outs = {}
        for out in self.spec.outputs:
            value = self.f.arrange(self.lower(out.expr), self.naming.axes(out.shape))
            outs[out.ascii] = self.f.named(value, out.ascii)
        for state in self.spec.states:
            axes = self.axes_of(state.name)
            outs[f"state:{state.ascii}"] = self.f.arrange(self._next(state.name), axes)
        for node, both in self.pasts.items():
            for arg, past in zip(node.args[1:3], both):
                if past.length != 0:
                    outs[f"state:{past.name}"] = self._kept(arg, past)
        return verify(self.f.finish(outs))

    def contracts(self, leaf: Expr) -> bool:
        return True

    def contracted(self, leaf: Expr, axis: int, query: int) -> int:
        name, _ = leaf.reference
        return self.f.contract(query, self.shown(leaf), (self.axes_of(name)[axis],))

    def shown(self, leaf: Expr) -> int:
        name, when = leaf.reference
        return self._next(name) if when == 0 else self._before(name)

    def attended(self, node: Expr) -> int:
        f, (query, key, value, *sink) = self.f, node.args
        size = self._attended_size(node)
        rows = self._rows(size)
        keys, values = (
            self._fitted(self._joined(arg, past), _joined_size(past), size, past.length is None)
            for arg, past in zip(node.args[1:3], self.pasts[node])
        )
        live = f.lt(f.op("age", (keys,), rows), f.load("index", "t", ()))
        logits = f.contract(self.lower(query), keys, self.naming.axes(key.shape))
        logits = f.where(live, logits, -inf)
        top = f.op("largest", (logits,), (rows,))
        top = f.max(top, self.lower(sink[0])) if sink else top
        top = f.stop_gradient(f.where(f.eq(top, -inf), 0.0, top))
        shares = f.exp(f.sub(logits, top))
        total = f.sum(shares, (rows,))
        total = f.add(total, f.exp(f.sub(self.lower(sink[0]), top))) if sink else total
        sums = f.contract(shares, f.where(live, values, 0.0), (rows,))
        sums = f.expand(sums, self.naming.axes(value.shape))
        return f.where(f.eq(total, 0.0), 0.0, f.div(sums, total))

    def _attended_size(self, node: Expr) -> Size:
        """How many rows of keys and values there are for a token; the first may be of none."""
        if node.value is not None:
            return Size.of(node.value)
        return PAST + Size.of(1 + any(past.state for past in self.pasts[node]))

    def _joined(self, arg: Expr, past: Past) -> int:
        """The values of ``arg`` that are kept, and that of this token behind them."""
        own = self.naming.axes(arg.shape)
        parts = [(self.f.expand(self.lower(arg), own), ONE)]
        if past.state is not None:
            parts.insert(0, (self.f.load("state", past.state, own), ONE))
        if past.length != 0:
            size = _size(past)
            axes = (self._rows(size), *own)
            parts.insert(0, (self.f.load("state", past.name, axes), size))
        return self._stacked(parts, _joined_size(past))

    def _stacked(self, parts: list[tuple[int, Size]], size: Size) -> int:
        """Rows one after another; what has no axis of rows is one."""
        values, axes = [], []
        for n, (value, length) in enumerate(parts):
            axis = self._rows(length)
            if axis in self.f.axes(value):
                value = self.f.rename(value, {axis: f"{axis}|{n}"})
            axis = f"{axis}|{n}"
            self.f.sizes[axis] = length
            values.append(self.f.expand(value, (axis,)))
            axes.append(axis)
        if len(parts) == 1:
            return self.f.rename(values[0], {axes[0]: self._rows(size)})
        return self.f.op("concat", tuple(values), (self._rows(size), tuple(axes)))

    def _rows(self, size: Size) -> str:
        """The axis of so many rows."""
        name = f"rows {size}"
        self.f.sizes[name] = size
        return name

    def _fitted(self, value: int, size: Size, wanted: Size, grows: bool) -> int:
        """The last ``wanted`` rows, with zeros before the first where there may be fewer."""
        missing = wanted - ONE if grows and wanted.constant is not None else wanted - size
        if grows and missing != Size.of(0):
            zeros = self.f.expand(self.f.const(0.0), (self._rows(missing),))
            size, value = (
                size + missing,
                self._stacked([(zeros, missing), (value, size)], size + missing),
            )
        if size != wanted:
            taken = (self._rows(size), self._rows(wanted), size - wanted, 1)
            value = self.f.op("take", (value,), taken)
        return value

    def _kept(self, arg: Expr, past: Past) -> int:
        """The field of past values that the next token finds."""
        size, length = _joined_size(past), _size(past)
        value = self._joined(arg, past)
        if past.length is None:
            start, length = Size.of(0), length + ONE
        else:
            start = ONE
        if size != length:
            value = self.f.op("take", (value,), (self._rows(size), self._rows(length), start, 1))
        return self.f.arrange(value, (self._rows(length), *self.naming.axes(arg.shape)))

    def _before(self, name: str) -> int:
        return self.f.load("state", self.spec.state(name).ascii, self.axes_of(name))

    def _next(self, name: str) -> int:
        if name not in self._updated:
            recurrence = self.recurrences[name]
            value = (
                self._affine(name, recurrence)
                if recurrence.form == "canonical"
                else self.lower(self.spec.state(name).update)
            )
            value = self.f.expand(value, self.axes_of(name))
            self._updated[name] = self.f.named(value, self.spec.state(name).ascii)
        return self._updated[name]

    def _affine(self, name: str, recurrence: Recurrence) -> int:
        f, own = self.f, self.axes_of(name)
        before = value = self._before(name)
        for decay in recurrence.decays:
            value = f.mul(self.lower.on(decay.expr, tuple(own[a] for a in decay.axes)), value)
        for erase in recurrence.erases:
            label = (own[erase.axis],)
            row = f.contract(self.lower.on(erase.b, label), before, label)
            if erase.along is not None:
                row = f.mul(row, self.lower.on(erase.along, (own[1 - erase.axis],)))
            value = f.add(value, f.mul(self.lower.on(erase.a, label), row))
        for write in recurrence.writes:
            term = f.const(1.0)
            for factor in write.factors:
                axes = tuple(own[a] for a in factor.axes)
                term = f.mul(term, self.lower.on(factor.expr, axes))
            value = f.add(value, term)
        return value
