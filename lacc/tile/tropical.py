"""A max-plus, min-plus or log-sum-exp recurrence in, its values at all tokens of a chunk out.

With m[t] = (m[t-1] + f) ⊕ i and m0 the value that a chunk starts from,

    m[t]  =  local[t] ⊕ (F[t] + m0)          F = f1 + … + ft; local the scan of the chunk alone

so that only a sum waits for the chunk before. The gradient is that of the update as it was written,
token by token: with w[t] its slope in m[t-1], λ[t] = ct[t] + w[t+1] λ[t+1] is what flows into the
update of token t. Ties share it as the ops of the update say.
"""

from __future__ import annotations

from lacc.spec.model import Expr
from lacc.tile.carried import Entrywise, Treatment
from lacc.tile.grad import partials
from lacc.tile.reads import Reader


class TropicalScan(Entrywise):
    """A state of its own ⊕, entry by entry."""

    def __init__(self, reader: Reader, treatment: Treatment) -> None:
        super().__init__(reader, treatment)
        (self.name,) = self.recurrence.states

    def after(self, name: str) -> int:
        f, state, form = self.f, self.spec.state(self.name), self.recurrence.tropical
        assert form is not None
        self.lower.tag(state.update)
        full = ("t", *self.axes_of(self.name))
        added, met = (f.expand(self.lower(part), full) for part in (form.f, form.i))
        self.lower.tag(state.update)
        start = self.start(self.name)
        if form.f.op != "const" or form.f.value != 0:
            start = f.add(f.op("running", (added,)), start)
        value = f.ew(form.op, f.op("tropical", (added, met), form.op), start)
        before = f.op("before", (f.stop_gradient(value), self.start(self.name)))
        update, slope = self._step(state.update, before)
        assert slope is not None
        through = f.op("through_time", (f.expand(update, full), slope))
        return f.named(f.op("instead", (value, through)), state.ascii)

    def _step(self, e: Expr, before: int) -> tuple[int, int | None]:
        """The value of a part of the update, where m[t-1] is ``before``, and its slope in it (None:
        it holds none of it)."""
        f = self.f
        if e.op == "state" and e.reference[0] == self.name:
            return before, f.const(1.0)
        if all(n.op != "state" or n.reference[0] != self.name for n in e.walk()):
            return self.lower(e), None
        values, slopes = zip(*(self._step(arg, before) for arg in e.args))
        value = f.ew(e.op, *values)
        total = f.const(0.0)
        for partial, slope in zip(partials(f, e.op, value, values), slopes):
            if partial is not None and slope is not None:
                total = f.add(total, f.mul(partial, slope))
        return value, total
