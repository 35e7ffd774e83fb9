"""Recurrences in, the tile program of a single token out: any update at all, affine ones by their
canonical form.

It is the decode step and the `recurrent` mode; without a time axis there is nothing to solve or to
mask.
"""

from __future__ import annotations

from collections.abc import Mapping

from lacc.analysis.transition import Recurrence
from lacc.spec.model import Expr, Spec
from lacc.tile.lower import Naming
from lacc.tile.program import Program, verify
from lacc.tile.reads import Reader


class TokenBuilder(Reader):
    """Builds the step of a causal spec."""

    def __init__(self, spec: Spec, recurrences: Mapping[str, Recurrence], naming: Naming) -> None:
        super().__init__(spec, naming, rows=False)
        self.recurrences = recurrences
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
        return verify(self.f.finish(outs))

    def contracts(self, leaf: Expr) -> bool:
        return True

    def contracted(self, leaf: Expr, axis: int, query: int) -> int:
        name, _ = leaf.reference
        return self.f.contract(query, self.shown(leaf), (self.axes_of(name)[axis],))

    def shown(self, leaf: Expr) -> int:
        name, when = leaf.reference
        return self._next(name) if when == 0 else self._before(name)

    def _before(self, name: str) -> int:
        return self.f.load("state", self.spec.state(name).ascii, self.axes_of(name))

    def _next(self, name: str) -> int:
        if name not in self._updated:
            recurrence = self.recurrences[name]
            value = (
                self._affine(name, recurrence)
                if recurrence.canonical and not recurrence.forgets
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
