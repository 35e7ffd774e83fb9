"""The recurrences of one pass over time in, the tile program of one chunk out: all its states and
outputs.

How a state goes through a chunk is a matter of its recurrence's class (`carried_by`); the builder
lowers what reads them, and stores what another pass has to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lacc.analysis.stages import Stage, sources
from lacc.spec.model import Expr, Spec
from lacc.tile.carried import Carried, Treatment
from lacc.tile.contracted import Contracted
from lacc.tile.coupled import Coupled
from lacc.tile.lower import Naming
from lacc.tile.program import Axes, Program, verify
from lacc.tile.reads import Read, Reader
from lacc.tile.scanned import Scanned
from lacc.tile.tropical import TropicalScan
from lacc.tile.written import Written


def carried_by(reader: Reader, treatment: Treatment) -> Carried:
    """What carries the states of one recurrence through a chunk."""
    match treatment.recurrence.form:
        case "written":
            return Written(reader, treatment)
        case "tropical":
            return TropicalScan(reader, treatment)
        case "coupled":
            return Coupled(reader, treatment)
    carrier = Contracted if treatment.contracted else Scanned
    return carrier(reader, treatment)


def attended_name(number: int) -> str:
    """What the attention of stage ``number`` stores."""
    return f"{number}.0"


class ChunkBuilder(Reader):
    """Builds stage ``number``. ``carrier`` finds the builder of the stage that carries a state;
    ``attentions`` numbers the stages of attentions."""

    def __init__(
        self,
        spec: Spec,
        number: int,
        stage: Stage,
        treated: Mapping[str, Treatment],
        naming: Naming,
        carrier: Callable[[str], ChunkBuilder],
        attentions: Mapping[Expr, int],
    ) -> None:
        super().__init__(spec, naming, rows=True)
        self.number = number
        self.stage = stage
        self.treated = treated
        self.carrier = carrier
        self.attentions = attentions
        self._outs: dict[str, int] = {}
        self._carried: dict[str, Carried] = {}
        for treatment in treated.values():
            states = treatment.recurrence.states
            if set(states) <= set(stage.states):
                self._carried |= dict.fromkeys(states, carried_by(self, treatment))

    def fill(self) -> None:
        """Lowers the stage's outputs and what it carries on; may store reads in earlier stages."""
        for name in self.stage.states:  # in order: a long chain of memories is no deep recursion
            if self._carried[name].recurrence.form == "written":
                self._carried[name].shown(name, strict=False)
        for out in self.spec.outputs:
            if out.name in self.stage.outputs:
                value = self.f.arrange(self.lower(out.expr), ("t", *self.naming.axes(out.shape)))
                self._outs[out.ascii] = self.f.named(value, out.ascii)
        for name in self.stage.states:
            value = self.f.arrange(self._carried[name].next(name), self.axes_of(name))
            self._outs[f"state:{self.spec.state(name).ascii}"] = value

    def program(self) -> Program:
        """Outputs by name, "state:S" for what is carried on, "stored:x" for what later stages
        read."""
        return verify(self.f.finish(self._outs))

    # ---- reading
    # ---------------------------------------------------------------------------------------------

    def contracts(self, leaf: Expr) -> bool:
        name, when = leaf.reference
        return name in self.treated and self.treated[name].contracted and when != "T"

    def contracted(self, leaf: Expr, axis: int, query: int) -> int:
        name, when = leaf.reference
        if name not in self.stage.states:
            return self.f.contract(query, self.shown(leaf), (self.axes_of(name)[axis],))
        return self._carried[name].read_by(name, axis, query, strict=when != 0)

    def term(self, read: Read, axes: Axes) -> int:
        state = read.product.state
        name = state[0].value[0] if state else None
        if name is None or name in self.stage.states or self._waits(read, self.carrier(name)):
            return super().term(read, axes)
        return self._stored(name, lambda carrier: carrier.term(read, axes), axes)

    def _waits(self, read: Read, carrier: ChunkBuilder) -> bool:
        """Whether a readout's factors are known only after the stage that carries its state."""
        return any(
            self.attentions[need] > carrier.number
            if isinstance(need, Expr)
            else self.carrier(need.state).number + (need.when == "T") > carrier.number
            for need in sources(self.spec, *read.product.factors.values())
        )

    def attended(self, node: Expr) -> int:
        stored = attended_name(self.attentions[node])
        return self.f.load("stored", stored, ("t", *self.naming.axes(node.shape)))

    def shown(self, leaf: Expr) -> int:
        name, when = leaf.reference
        state, axes = self.spec.state(name), self.axes_of(name)
        if when == "T":
            return self.f.load("last", state.ascii, axes)
        if name not in self.stage.states:
            return self._stored(name, lambda carrier: carrier.shown(leaf), axes)
        return self._carried[name].shown(name, strict=when != 0)

    def _stored(self, name: str, lower: Callable[[ChunkBuilder], int], axes: Axes) -> int:
        carrier = self.carrier(name)
        return self.f.load("stored", carrier.store(lower(carrier), axes), ("t", *axes))

    def store(self, value: int, axes: Axes) -> str:
        """Adds a per-token value to what the stage gives, for a later stage; its name."""
        value = self.f.arrange(value, ("t", *axes))
        prefix = f"stored:{self.number}."
        known = [n for n in self._outs if n.startswith(prefix)]
        name = next((n for n in known if self._outs[n] == value), f"{prefix}{len(known)}")
        self._outs[name] = value
        return name.removeprefix("stored:")
